"""Races: fused attention against the formula, one parallel pass against a roll-out, ATOM against EGNO, and the data.

    make bench PKG=atom

Ratios are medians over interleaved rounds, so that a machine that slows down in between slows all sides. Limits leave
room for a machine that does other things too; the targets are printed beside what was measured.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from atom import ATOM, EGNO
from atom.attention import explicit_attention, heterogeneous_attention
from atom.baselines import Ridge
from atom.data import MoleculeData
from atom.rope import angles, rotate

DATA = Path(__file__).parent / "data"
HEADS, WIDTH, SLOTS, ATOMS = 8, 256, 8, 45  # stachyose without its hydrogens: S = 360 tokens
TOKENS = SLOTS * ATOMS


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def interleave(rounds, **sides):
    """Time each side once a round, after one round that does not count; the seconds of each, round by round."""
    times = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, side in sides.items():
            start = time.perf_counter()
            side()
            if number:
                times[name].append(time.perf_counter() - start)
    return times


def median_ratio(times, over, under):
    """The median over the rounds of the ratio of two sides: neighbours in time meet the same load."""
    return statistics.median(a / b for a, b in zip(times[over], times[under], strict=True))


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def attention_inputs(batch, grad):
    rng = seeded()
    q, *others = (torch.randn(batch, HEADS, TOKENS, WIDTH // HEADS, generator=rng) for _ in range(7))
    tensors = [q, *others]
    for tensor in tensors:
        tensor.requires_grad_(grad)
    gamma, mask = torch.tensor([0.2, 0.3, 0.5]), torch.ones(batch, TOKENS, dtype=torch.bool)
    mask[0, -5:] = False
    return tensors, (q, others[:3], others[3:], gamma, mask, (WIDTH // HEADS) ** -0.5)


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "forward and backward"])
@pytest.mark.benchmark(group="attention of three streams, S = 360, d = 256, 8 heads (rounds of both)")
def test_fused_attention_is_faster_than_the_formula_with_the_same_numbers(benchmark, backward):
    tensors, inputs = attention_inputs(2, backward)

    def run(attention):
        out = attention(*inputs)
        return (out, *torch.autograd.grad(out.square().sum(), tensors)) if backward else (out,)

    for one, other in zip(run(heterogeneous_attention), run(explicit_attention), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    sides = {"fused": lambda: run(heterogeneous_attention), "explicit": lambda: run(explicit_attention)}
    times = benchmark.pedantic(interleave, (5,), sides, rounds=1)
    ratio = median_ratio(times, "explicit", "fused")
    benchmark.extra_info["ratio"] = ratio
    each = ", ".join(f"{name} {1e3 * statistics.median(seconds):.1f} ms" for name, seconds in times.items())
    print(f"\n{each}: {ratio:.2f} times as fast (target 2)")
    assert ratio > 1


PEAK = """
import resource, sys, torch
from test_bench import attention_inputs
from atom.attention import explicit_attention, heterogeneous_attention
torch.set_num_threads(1)
attention = {"fused": heterogeneous_attention, "explicit": explicit_attention}[sys.argv[1]]
tensors, inputs = attention_inputs(int(sys.argv[2]), True)
small = [t[:1, :, :16].detach().requires_grad_(True) for t in tensors]  # what a first call loads is no memory of it
q, *others = small
out = attention(q, others[:3], others[3:], inputs[3], inputs[4][:1, :16], inputs[5])
torch.autograd.grad(out.square().sum(), small)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
out = attention(*inputs)
if sys.argv[3] == "backward":
    torch.autograd.grad(out.square().sum(), tensors)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("kind", ["forward", "backward"])
@pytest.mark.benchmark(group="peak memory of the attention (a process for each side)")
def test_fused_attention_needs_less_memory_than_the_formula(benchmark, kind):
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parent)}

    def peak(name):
        """Kilobytes by which the process's peak grows."""
        command = [sys.executable, "-c", PEAK, name, "4", kind]
        return int(subprocess.run(command, env=environment, text=True, capture_output=True, check=True).stdout)

    found = benchmark.pedantic(lambda: {name: peak(name) for name in ("fused", "explicit")}, rounds=1)
    ratio = found["fused"] / found["explicit"]
    benchmark.extra_info.update(found, ratio=ratio)
    each = ", ".join(f"{name} {kilobytes / 1024:.0f} MiB" for name, kilobytes in found.items())
    print(f"\n{kind}, batch of 4: {each}: {ratio:.2f} of it (target 0.5)")
    assert ratio < 1


@pytest.fixture(scope="module")
def state():
    """A training batch of 32 windows of three molecules."""
    data = MoleculeData(["CH3CH2OH", "CH3CHO", "C5H5N"], root=DATA, horizon=32, split="random")
    data.setup()
    windows = data.parts["train"]
    return windows.__getitems__(torch.randperm(len(windows), generator=seeded())[:32])


@pytest.mark.benchmark(group="P states at once, or by P calls one after the other (rounds of all)")
def test_the_cost_of_a_prediction_does_not_grow_with_the_horizon(benchmark, state):
    """A roll-out asks for the next state and starts again from it; it needs a call for each state."""
    operator = ATOM(depth=3, width=56).eval()
    x, v, z, _, bonds, mask = state.state

    def parallel(horizon):
        lags = torch.linspace(horizon / SLOTS, horizon, SLOTS).expand(len(x), -1)
        with torch.no_grad():
            return operator(x, v, z, lags, bonds, mask)

    def rollout():
        lags, at, velocity, found = torch.tensor([[2.0, 4.0]]).expand(len(x), -1), x, v, []
        with torch.no_grad():
            for _ in range(SLOTS):
                after = operator(at, velocity, z, lags, bonds, mask)[:, 1]
                at, velocity = after, (after - at) / 4
                found.append(after)
        return torch.stack(found, dim=1)

    sides = {
        "parallel": lambda: parallel(32.0),
        "far": lambda: parallel(24_000.0),
        "rollout": rollout,
    }
    assert sides["parallel"]().shape == sides["rollout"]().shape
    times = benchmark.pedantic(interleave, (5,), sides, rounds=1)
    gain, growth = median_ratio(times, "rollout", "parallel"), median_ratio(times, "far", "parallel")
    benchmark.extra_info.update(gain=gain, growth=growth)
    print(
        f"\n{SLOTS} states at once: {gain:.2f} times as fast as one after the other; 24 ps cost {growth:.2f} of 32 fs"
    )
    assert gain > 1
    assert 0.6 < growth < 1.6


@pytest.mark.benchmark(group="a training step of 32 windows (rounds of both)")
def test_a_step_of_atom_beside_one_of_egno(benchmark, state):
    torch.manual_seed(0)
    operators = {
        "atom": ATOM(depth=3, width=56, attention_dropout=0.0, dropout=0.0),
        "egno": EGNO(depth=5, width=64, radial=0),
    }

    def step(operator):
        loss = (operator(*state.state) - state.target).square().mean()
        return torch.autograd.grad(loss, [p for p in operator.parameters() if p.requires_grad], allow_unused=True)

    sides = {name: lambda operator=operator: step(operator) for name, operator in operators.items()}
    times = benchmark.pedantic(interleave, (5,), sides, rounds=1)
    ratio = median_ratio(times, "egno", "atom")
    benchmark.extra_info["ratio"] = ratio
    sizes = {name: sum(p.numel() for p in operator.parameters()) for name, operator in operators.items()}
    for name, seconds in times.items():
        print(f"\n{name}: {1e3 * statistics.median(seconds):.0f} ms, {sizes[name]} weights", end="")
    print(f"; a step of EGNO takes {ratio:.2f} of ATOM's")
    assert ratio > 1 / 3


@pytest.mark.benchmark(group="ridge on 500 windows of 45 atoms (rounds of both)")
def test_ridge_beside_one_solution_by_scikit_learn(benchmark):
    from sklearn.linear_model import Ridge as OnePenalty

    rng = seeded()
    x, v = (torch.randn(500, ATOMS, 3, generator=rng) for _ in range(2))
    y = torch.randn(500, SLOTS, ATOMS, 3, generator=rng)
    features, targets = torch.cat((x.flatten(1), v.flatten(1)), 1).double().numpy(), y.flatten(1).double().numpy()
    sides = {"25 penalties": lambda: Ridge().fit(x, v, y), "one": lambda: OnePenalty(1.0).fit(features, targets)}
    times = benchmark.pedantic(interleave, (2,), sides, rounds=1)
    ratio = median_ratio(times, "25 penalties", "one")
    benchmark.extra_info["ratio"] = ratio
    print(f"\n{1e3 * statistics.median(times['25 penalties']):.0f} ms, {ratio:.1f} times one penalty's")
    assert ratio < 25  # the search is cheaper than its parts


@pytest.mark.benchmark(group="rotary positions of 4 x 8 x 360 tokens of 32 (rounds of both)")
def test_rotating_as_complex_numbers_is_faster_than_by_places(benchmark):
    x = torch.randn(4, HEADS, SLOTS, ATOMS, WIDTH // HEADS, generator=seeded())
    theta = angles(torch.arange(SLOTS).double(), WIDTH // HEADS).float()[:, None]

    def by_places():
        even, odd, c, s = x[..., ::2], x[..., 1::2], theta.cos(), theta.sin()
        return torch.stack((even * c - odd * s, even * s + odd * c), dim=-1).flatten(-2)

    torch.testing.assert_close(rotate(x, theta), by_places())
    sides = {"complex": lambda: rotate(x, theta), "by places": by_places}
    times = benchmark.pedantic(interleave, (25,), sides, rounds=1)
    ratio = median_ratio(times, "by places", "complex")
    benchmark.extra_info["ratio"] = ratio
    print(f"\n{1e3 * statistics.median(times['complex']):.2f} ms, {ratio:.2f} times as fast as by places")
    assert ratio > 1


STEPS_PER_SECOND = """
import json, time
from ase import units
from ase.build import molecule
from ase.md.verlet import VelocityVerlet
from ase.md.velocitydistribution import MaxwellBoltzmannDistribution
import numpy as np
from atom.tblite_forces import TBLiteForces
from tblite.ase import TBLite

runs = {}
for kind in (TBLiteForces, TBLite):
    atoms = molecule("CH3CH2OH")
    atoms.calc = kind(method="GFN2-xTB", verbosity=0)
    MaxwellBoltzmannDistribution(atoms, temperature_K=300, rng=np.random.default_rng(0))
    runs[kind.__name__] = VelocityVerlet(atoms, timestep=0.5 * units.fs)
seconds = {name: [] for name in runs}
for number in range(8):
    for name, dynamics in runs.items():
        start = time.perf_counter()
        dynamics.run(100)
        if number:
            seconds[name].append(time.perf_counter() - start)
same = [run.atoms.positions.tolist() for run in runs.values()]
print(json.dumps({"seconds": seconds, "same": same[0] == same[1]}))
"""


@pytest.mark.benchmark(group="molecular dynamics of ethanol on one core (a process without torch)")
def test_the_slim_calculator_makes_the_same_steps_faster_than_tblites_own(benchmark):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}

    def run():
        command = [sys.executable, "-c", STEPS_PER_SECOND]
        return json.loads(subprocess.run(command, env=environment, text=True, capture_output=True, check=True).stdout)

    found = benchmark.pedantic(run, rounds=1)
    assert found["same"]
    ratio = median_ratio(found["seconds"], "TBLite", "TBLiteForces")
    rate = 100 / min(found["seconds"]["TBLiteForces"])
    benchmark.extra_info.update(ratio=ratio, steps_per_second=rate)
    print(f"\n{rate:.0f} steps/s (target 600), {ratio:.2f} times as fast as tblite's own")
    assert ratio > 1.1
