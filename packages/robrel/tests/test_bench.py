"""Races: the batched primal-dual method and planning against Python loops, and linear programs beside it (Sec. 11).

    make bench PKG=robrel

Ratios are medians over interleaved rounds, so that a machine that slows down in between slows all sides. Limits leave
room for a machine that does other things too; the targets are printed beside what was measured.
"""

import statistics
import time

import numpy as np
import pytest
import torch
from robrel.data import RobRelData
from robrel.environments import gridworld
from robrel.exact import extreme
from robrel.feasible import box
from robrel.mdp import occupancies, plan, random_policies
from robrel.primal_dual import STEP_SIZE, solve
from robrel.problems import ProblemOptions, draw_problem

INSTANCES, STEPS = 64, 200  # the cost of a step does not depend on how many there are: 200 stand for 10,000


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


def loop(c, rows, steps):
    """The same iteration for one instance after another, in NumPy: plain comparisons in the box [-1, 1]."""
    averages = np.empty_like(c)
    for i, (direction, g) in enumerate(zip(c, rows, strict=True)):
        alpha = STEP_SIZE * np.sqrt(1000 / steps) / np.linalg.norm(g, 2)
        x, lam, total = np.zeros(len(direction)), np.zeros(len(g)), np.zeros(len(direction))
        for _ in range(steps):
            x = np.clip(x - alpha * (direction - lam @ g), -1, 1)
            lam = np.clip(lam - alpha * (g @ x), 0, 20)
            total += x
        averages[i] = total / steps
    return averages


@pytest.mark.benchmark(group="primal-dual, 64 instances, k = 6, 60 rows (rounds of both)")
def test_a_batch_of_instances_is_much_faster_than_a_loop_over_them(benchmark):
    data = RobRelData(60, INSTANCES)
    data.setup()
    stacked = data.stacked()
    c, rows = stacked.d.numpy(), stacked.rows.numpy()
    assert rows.shape == (64, 60, 6)
    sides = {"batch": lambda: solve(*stacked, steps=STEPS), "loop": lambda: loop(c, rows, STEPS)}
    np.testing.assert_allclose(sides["batch"]().x.numpy(), sides["loop"](), atol=1e-9)
    times = benchmark.pedantic(interleave, (5,), sides, rounds=1)
    ratio = median_ratio(times, "loop", "batch")
    benchmark.extra_info["ratio"] = ratio
    seconds = min(times["batch"]) * 10_000 / STEPS
    print(f"\n64 instances, T = 10,000: {seconds:.2f} s, {ratio:.1f} times as fast as a loop (target 10)")
    assert ratio >= 5


@pytest.mark.parametrize("size", [5, 10, 20])
@pytest.mark.benchmark(group="linear program against 10,000 primal-dual steps, stationary rewards, 60 rows")
def test_the_linear_program_and_the_primal_dual_method_as_rewards_grow(benchmark, size):
    problem = draw_problem(ProblemOptions(size=size, reward="stationary"), 60, 0)
    feasible = problem.feasible
    tensors = [torch.tensor(a) for a in (
        problem.d[None], feasible.rows, feasible.lower, feasible.upper, feasible.low, feasible.high,
    )]  # fmt: skip
    sides = {
        "lp": lambda: extreme(problem.d, feasible),
        "pd": lambda: solve(*tensors, steps=STEPS),
    }
    times = benchmark.pedantic(interleave, (3,), sides, rounds=1)
    lp, pd = min(times["lp"]), min(times["pd"]) * 10_000 / STEPS
    benchmark.extra_info.update(lp=lp, pd=pd)
    print(f"\nS A = {problem.space.dim}: linear program {1e3 * lp:.1f} ms, 10,000 steps {1e3 * pd:.0f} ms")
    assert extreme(problem.d, feasible).value >= solve(*tensors, steps=STEPS).dual_bound.item() - 1e-6
    assert lp < 2


def triple_loop(mdp, rewards):
    """Backward induction over rewards, stages, states and actions one by one."""
    values = []
    for reward in rewards:
        v = [0.0] * mdp.states
        for _ in range(mdp.horizon):
            q = [[reward[s, a] + float(mdp.transitions[s, a] @ v) for a in range(mdp.actions)]
                 for s in range(mdp.states)]  # fmt: skip
            v = np.array([max(row) for row in q])
        values.append(float(mdp.initial @ v))
    return np.array(values)


@pytest.mark.benchmark(group="planning for 64 rewards, 25 states (rounds of both)")
def test_one_sweep_for_all_rewards_is_much_faster_than_loops(benchmark):
    mdp = gridworld().mdp
    rewards = np.random.default_rng(0).uniform(-1, 1, (64, 1, 25, 5))
    sides = {"sweep": lambda: plan(mdp, rewards).value, "loops": lambda: triple_loop(mdp, rewards[:, 0])}
    np.testing.assert_allclose(sides["sweep"](), sides["loops"](), atol=1e-12)
    times = benchmark.pedantic(interleave, (3,), sides, rounds=1)
    ratio = median_ratio(times, "loops", "sweep")
    benchmark.extra_info["ratio"] = ratio
    print(f"\n64 rewards: {1e3 * min(times['sweep']):.2f} ms, {ratio:.0f} times as fast as loops")
    assert ratio >= 20


@pytest.mark.benchmark(group="occupancies of 200 policies, 25 states")
def test_the_occupancies_of_200_policies_take_milliseconds(benchmark):
    mdp = gridworld().mdp
    policies = random_policies(200, 25, 5, 0.2, np.random.default_rng(0))
    d = benchmark.pedantic(occupancies, (mdp, policies), rounds=20, warmup_rounds=2)
    median = benchmark.stats.stats.median
    print(f"\n200 policies: {1e3 * median:.1f} ms (target 50)")
    np.testing.assert_allclose(d.sum((-2, -1)), 1)
    assert median < 0.05


@pytest.mark.benchmark(group="linear program, 125 parameters, 200 rows")
def test_a_linear_program_of_125_parameters_and_200_rows_takes_tens_of_milliseconds(benchmark):
    rng = np.random.default_rng(0)
    truth, rows = rng.uniform(-1, 1, 125), rng.standard_normal((200, 125))
    rows *= np.sign(rows @ truth)[:, None]
    c, feasible = rng.standard_normal(125), box(125).with_rows(rows)
    found = benchmark.pedantic(extreme, (c, feasible), rounds=5, warmup_rounds=1)
    median = benchmark.stats.stats.median
    print(f"\n125 parameters, 200 rows: {1e3 * median:.0f} ms (expected 20 to 30)")
    assert feasible.contains(found.x)
    assert found.value <= c @ truth
    assert median < 0.5
