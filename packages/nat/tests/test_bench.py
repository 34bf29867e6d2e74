"""Races: the attack against a peer, NAT's step against its control's, and two layouts of a network in memory.

    make bench PKG=nat

Ratios are medians over interleaved rounds, so that a machine that slows down in between slows both sides.
"""

import statistics
import time

import pytest
import torch
from nat.attack import fgsm, pgd
from nat.baselines import Threat, build_objective
from nat.data import NATDataModule
from nat.models import create_model

EPS, STEPS = 0.15, 20
ALPHA = EPS / 4
NOISE = 0.1  # of a ratio, on a machine that does other things too


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


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


@pytest.fixture(scope="module")
def digits():
    """A network trained against FGSM for a moment, and the test images."""
    data = NATDataModule("digits")
    data.setup()
    (x, labels), (test, test_labels) = (data.parts[part][range(len(data.parts[part]))] for part in ("train", "test"))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = create_model("digits_cnn", 10, 1)
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(80):
        both = torch.cat([x, fgsm(model, x, labels, EPS)])
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(both), torch.cat([labels, labels])).backward()
        optimizer.step()
    return model.eval(), test, test_labels


def resnet_batch(size=8):
    x = torch.rand(size, 3, 32, 32, generator=seeded())
    return x, torch.arange(size) % 10


def own(model, x, labels, eps=EPS, alpha=ALPHA, steps=STEPS):
    return pgd(model, x, labels, eps=eps, alpha=alpha, steps=steps, generator=seeded())


def peer(model, eps=EPS, alpha=ALPHA, steps=STEPS):
    torchattacks = pytest.importorskip("torchattacks")
    return torchattacks.PGD(model, eps=eps, alpha=alpha, steps=steps, random_start=True)


@pytest.mark.benchmark(group="PGD-20, 597 digits")
def test_own_pgd(benchmark, digits):
    benchmark(lambda: own(*digits))


@pytest.mark.benchmark(group="PGD-20, 597 digits")
def test_torchattacks_pgd(benchmark, digits):
    model, x, labels = digits
    attack = peer(model)
    benchmark(lambda: attack(x, labels))


@pytest.mark.parametrize("arch", ["digits_cnn", "resnet18"])
@pytest.mark.benchmark(group="PGD race (rounds of both)")
def test_own_pgd_is_as_fast_as_torchattacks_and_as_strong(benchmark, digits, arch):
    if arch == "digits_cnn":
        (model, x, labels), threat, rounds = digits, (EPS, ALPHA, STEPS), 15
    else:
        model, (x, labels), threat, rounds = create_model(arch).eval(), resnet_batch(), (8 / 255, 2 / 255, 3), 11
    attack = peer(model, *threat)
    sides = {"own": lambda: own(model, x, labels, *threat), "torchattacks": lambda: attack(x, labels)}
    times = benchmark.pedantic(interleave, (rounds,), sides, rounds=1)
    ratio = median_ratio(times, "torchattacks", "own")
    benchmark.extra_info["speed"] = ratio
    print(f"\nPGD on {arch}: {ratio:.2f} times as fast as torchattacks")
    assert ratio >= 1 - NOISE
    if arch == "digits_cnn":
        with torch.random.fork_rng():
            torch.manual_seed(0)
            found = {name: (model(side()).argmax(1) == labels).float().mean().item() for name, side in sides.items()}
        print(f"robust accuracy: {found}")
        assert 0.1 < found["own"] < 0.95
        assert found["own"] == pytest.approx(found["torchattacks"], abs=0.01)  # they differ in the random start


def step(method, model, adversary, x, labels, steps=7):
    """One training step without the optimiser: attack, outer loss, gradients."""
    threat = Threat(8 / 255, 2 / 255, steps)
    objective = build_objective(method, threat, omega=0.06, temperature=4.0, adversary=adversary)

    def run():
        model.zero_grad(set_to_none=True)
        objective(model, x, labels, seeded()).loss.backward()

    return run


def network(arch):
    return create_model(arch, 10, 1 if arch == "digits_cnn" else 3)


def steps_of(arch):
    """A step of NAT and one of its control at the same network and batch."""
    model, adversary = network(arch).train(), network(arch).eval().requires_grad_(False)
    x, labels = resnet_batch(128 if arch == "digits_cnn" else 8)
    x = x[:, :1, :8, :8].contiguous() if arch == "digits_cnn" else x
    return {method: step(method, model, adversary, x, labels) for method in ("nat", "at_mix")}


@pytest.mark.parametrize("method", ["nat", "at_mix"])
@pytest.mark.benchmark(group="training step, PGD-7, 128 digits")
def test_step(benchmark, method):
    benchmark(steps_of("digits_cnn")[method])


@pytest.mark.parametrize(("arch", "rounds"), [("digits_cnn", 31), ("resnet18", 7)])
@pytest.mark.benchmark(group="step race (rounds of both)")
def test_the_nasty_term_adds_at_most_a_tenth_to_a_step(benchmark, arch, rounds):
    times = benchmark.pedantic(interleave, (rounds,), steps_of(arch), rounds=1)
    ratio = median_ratio(times, "nat", "at_mix")
    benchmark.extra_info["cost"] = ratio
    print(f"\nstep on {arch}: nat takes {ratio:.3f} times what at_mix takes")
    assert ratio <= 1.10 + NOISE / 2


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.benchmark(group="PGD-3 on ResNet-18, 8 images of 32 x 32")
def test_layout(benchmark, layout):
    memory_format = torch.channels_last if layout == "channels_last" else torch.contiguous_format
    model = create_model("resnet18").eval().to(memory_format=memory_format)
    x, labels = resnet_batch()
    x = x.contiguous(memory_format=memory_format)
    benchmark.pedantic(own, (model, x, labels, 8 / 255, 2 / 255, 3), rounds=5, warmup_rounds=1)
