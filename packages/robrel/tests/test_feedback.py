"""Feedback as constraints: rows, and the convex function of a demonstration against its linear programme."""

import math
from dataclasses import replace

import numpy as np
import pytest
from robrel.exact import conflict, interval
from robrel.feedback import (
    Demonstration,
    PolicyComparison,
    TrajectoryComparison,
    anchor,
    build,
    optimality_gap,
    simulate_comparisons,
    values_lifting,
    visits,
)
from robrel.mdp import MDP, occupancies, optimal_occupancy, plan, random_policies, returns
from robrel.space import RewardSpace
from scipy.optimize import linprog

BANDIT = MDP(np.ones((1, 3, 1)), np.ones(1), 1)  # one state, three actions, one stage
ARMS = np.eye(3)[:, None, None]  # (3, 1, 1, 3) occupancies of the three deterministic policies


def random_mdp(seed, states=3, actions=2, horizon=4):
    rng = np.random.default_rng(seed)
    return MDP(rng.dirichlet(np.ones(states), size=(states, actions)), rng.dirichlet(np.ones(states)), horizon)


def spaces(mdp):
    phi = np.random.default_rng(0).normal(size=(mdp.states * mdp.actions, 4))
    sizes = mdp.states, mdp.actions, mdp.horizon
    return [RewardSpace("stage", *sizes), RewardSpace("stationary", *sizes), RewardSpace("linear", *sizes, phi)]


def extreme(c, feasible, rows=(), limits=()):
    """Minimise c @ x over the rows lower <= rows x of a feasible set, its box, and more rows g @ x <= limit."""
    a = np.concatenate([-feasible.rows, np.reshape(rows, (-1, len(c)))])
    b = np.concatenate([-feasible.lower, np.reshape(limits, -1)])
    return linprog(c, A_ub=a, b_ub=b, bounds=list(zip(feasible.low, feasible.high, strict=True)))


def extreme_by_cuts(c, feasible):
    """Minimise c @ x by asking the oracles for violated rows."""
    rows, limits = [], []
    while True:
        x = extreme(c, feasible, rows, limits).x
        answers = [(cut.oracle(x), cut.bound) for cut in feasible.cuts]
        violated = [(g, bound) for (f, g), bound in answers if f > bound + 1e-9]
        if not violated:
            return c @ x
        rows += [g for g, _ in violated]
        limits += [bound for _, bound in violated]


def extreme_by_values(c, space, mdp, demonstration, low=-1.0):
    """Minimise c @ x with auxiliary V: V_h >= r_h + p V_{h+1}, V_{H+1} = 0, <mu0, V_1> - <d^E, r> <= epsilon."""
    k, n, s = space.dim, mdp.horizon * mdp.states, mdp.states
    a, b = [], []
    for h, i, j in np.ndindex(mdp.horizon, s, mdp.actions):
        one = np.zeros((mdp.horizon, s, mdp.actions))
        one[h, i, j] = 1.0
        row = np.zeros(k + n)
        row[:k] = space.coefficients(one)
        row[k + h * s + i] -= 1
        if h + 1 < mdp.horizon:
            row[k + (h + 1) * s : k + (h + 2) * s] += mdp.transitions[i, j]
        a.append(row)
        b.append(0.0)
    row = np.zeros(k + n)
    row[:k] = -space.coefficients(demonstration.occupancy)
    row[k : k + s] = mdp.initial
    a.append(row)
    b.append(demonstration.epsilon)
    return linprog(np.append(c, np.zeros(n)), A_ub=a, b_ub=b, bounds=[(low, 1)] * k + [(None, None)] * n).fun


def test_three_action_example_has_the_intervals_of_the_paper():
    space = RewardSpace("stage", 1, 3, 1)
    d = space.coefficients(ARMS[0] - ARMS[1])

    def interval(items):
        feasible = build(space, BANDIT, items, low=0)
        return extreme_by_cuts(d, feasible), -extreme_by_cuts(-d, feasible)

    assert interval([]) == (-1, 1)
    chain = [PolicyComparison(ARMS[0], ARMS[2]), TrajectoryComparison([[0, 2]], [[0, 1]])]
    assert interval(chain) == pytest.approx((0, 1), abs=1e-9)
    assert interval([Demonstration(ARMS[0])]) == pytest.approx((0, 1), abs=1e-9)
    assert interval([Demonstration(ARMS[0], epsilon=0.25)]) == pytest.approx((-0.25, 1), abs=1e-9)


def test_rows_are_differences_of_visits_and_of_occupancies():
    mdp = random_mdp(1)
    d = occupancies(mdp, random_policies(2, 3, 2, 1.0, np.random.default_rng(2)))
    items = [
        TrajectoryComparison([[0, 1], [2, 0], [2, 0]], np.array([[2, 0], [1, 1]]), margin=0.5),
        Demonstration(d[0]),
        PolicyComparison(d[0], d[1], margin_low=-0.25, margin_high=2.0),
        anchor(d[1], 0.75),
    ]
    for space in spaces(mdp):
        feasible = build(space, mdp, items, low=-2, radius=3.0, labels=["a", "b", "c", "d"])
        x = np.random.default_rng(3).normal(size=space.dim)
        r = space.reward(x)
        walk = r[0, 0, 1] + r[1, 2, 0] + r[2, 2, 0] - r[0, 2, 0] - r[1, 1, 1]
        by_hand = [walk, returns(d[0], r) - returns(d[1], r), returns(d[1], r)]
        np.testing.assert_allclose(feasible.rows @ x, by_hand, atol=1e-13)
        assert feasible.lower.tolist() == [0.5, -0.25, 0.75]
        assert feasible.upper.tolist() == [math.inf, 2.0, 0.75]
        assert feasible.labels == ("a", "c", "d")
        assert [cut.name for cut in feasible.cuts] == ["b"]
        assert (feasible.low == -2).all()
        assert (feasible.high == 1).all()
        assert feasible.radius == 3.0


def test_no_feedback_leaves_the_box():
    space = RewardSpace("stationary", 3, 2, 4)
    feasible = build(space, random_mdp(0), [], high=np.arange(1, 7))
    assert feasible.rows.shape == (0, 6)
    assert feasible.high.tolist() == [1, 2, 3, 4, 5, 6]
    d = np.random.default_rng(1).normal(size=6)
    assert -extreme(-d, build(space, random_mdp(0), [])).fun == pytest.approx(np.abs(d).sum(), abs=1e-9)


@pytest.mark.parametrize("index", range(3))
def test_the_optimality_gap_is_convex_homogeneous_and_never_below_a_policys_lead(index):
    mdp = random_mdp(4)
    space = spaces(mdp)[index]
    rng = np.random.default_rng(5)
    d = occupancies(mdp, random_policies(30, 3, 2, 0.3, rng))
    gap = optimality_gap(space, mdp, d[0])
    x, y = rng.normal(size=(2, 50, space.dim))
    f, g = gap(x)
    np.testing.assert_allclose(f, (g * x).sum(-1), atol=1e-13)
    np.testing.assert_allclose(gap(3 * x)[0], 3 * f, atol=1e-12)
    # f(y) >= f(x) + g @ (y - x): a subgradient.
    assert (gap(y)[0] - f - (g * (y - x)).sum(-1) >= -1e-12).all()
    leads = x @ (space.coefficients(d) - space.coefficients(d[0])).T
    assert (f[:, None] >= leads - 1e-12).all()
    for one, value, slope in zip(x[:5], f, g, strict=False):
        np.testing.assert_allclose(gap(one)[0], value, atol=1e-13)
        np.testing.assert_allclose(gap(one)[1], slope, atol=1e-13)


@pytest.mark.parametrize("index", range(3))
@pytest.mark.parametrize("epsilon", [0.0, 0.3])
def test_a_demonstrations_cuts_describe_the_set_of_its_linear_programme(index, epsilon):
    mdp = random_mdp(6)
    space = spaces(mdp)[index]
    rng = np.random.default_rng(7)
    truth = rng.uniform(-1, 1, space.dim)
    demonstration = Demonstration(optimal_occupancy(mdp, space.reward(truth))[1], epsilon)
    feasible = build(space, mdp, [demonstration])
    lowest = [-np.abs(c).sum() for c in np.eye(space.dim)]
    for c in (*rng.normal(size=(3, space.dim)), np.eye(space.dim)[0]):
        by_values = extreme_by_values(c, space, mdp, demonstration)
        assert extreme_by_cuts(c, feasible) == pytest.approx(by_values, abs=1e-7)
        assert by_values <= c @ truth + 1e-9
        lowest.append(by_values + np.abs(c).sum())
    assert max(lowest) > 0.01  # the demonstration says something


def test_the_truth_is_feasible_if_the_expert_is_optimal_for_it_or_nearly_so():
    mdp = random_mdp(8)
    for space in spaces(mdp):
        truth = np.random.default_rng(9).uniform(-1, 1, space.dim)
        reward = space.reward(truth)
        best = plan(mdp, reward)
        noisy = occupancies(mdp, 0.9 * best.policy + 0.05)
        loss = float(best.value - returns(noisy, reward))
        assert loss > 0
        assert build(space, mdp, [Demonstration(occupancies(mdp, best.policy))]).contains(truth, 1e-12)
        assert build(space, mdp, [Demonstration(noisy, loss)]).contains(truth, 1e-12)
        assert build(space, mdp, [Demonstration(noisy, 0.9 * loss)]).violation(truth) == pytest.approx(0.1 * loss)


def test_visits_count_each_step_once_and_a_short_trajectory_ends():
    counts = visits(random_mdp(0), [[2, 1], [0, 0]])
    assert counts[0, 2, 1] == counts[1, 0, 0] == counts.sum() - 1 == 1


@pytest.mark.parametrize(
    ("trajectory", "message"),
    [
        ([[0, 0]] * 5, "has 5 steps, more than the horizon 4"),
        ([[0, 0], [3, 0]], "has state 3 at step 1, expected 0 to 2"),
        ([[0, 0], [0, -1]], "has action -1 at step 1, expected 0 to 1"),
        ([[0.5, 0]], "has state 0.5 at step 0"),
        ([[np.nan, 0]], "has state nan at step 0"),
        ([], r"at least one pair \[state, action\], got shape \(0,\)"),
        ([[0, 0, 0]], r"got shape \(1, 3\)"),
        ([[0, 0], [0]], "rows of different lengths"),
        ([["left", 0]], "array of real numbers"),
    ],
)
def test_a_faulty_trajectory_is_refused_under_its_label(trajectory, message):
    item = TrajectoryComparison([[0, 0]], trajectory)
    with pytest.raises(ValueError, match=f"^line 2: worse .*{message}"):
        build(RewardSpace("stage", 3, 2, 4), random_mdp(0), [item], labels=["line 2"])


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (Demonstration(np.zeros((4, 3, 2)), epsilon=-1), "epsilon must be a number of at least 0, got -1"),
        (Demonstration(np.zeros((3, 2))), r"occupancy must be an occupancy of shape \(4, 3, 2\), got \(3, 2\)"),
        (PolicyComparison(np.full((4, 3, 2), np.nan), np.zeros((4, 3, 2))), "better holds a number that is not finite"),
        (
            PolicyComparison(np.zeros((4, 3, 2)), np.zeros((4, 3, 2)), 2, 1),
            "lower bound not above the upper, got 2 to 1",
        ),
        (TrajectoryComparison([[0, 0]], [[0, 0]], margin=math.nan), "margin must be a number"),
    ],
)
def test_faulty_feedback_is_refused_under_its_number(item, message):
    good = TrajectoryComparison([[0, 0]], [[0, 1]])
    with pytest.raises(ValueError, match=f"^feedback 2: .*{message}"):
        build(RewardSpace("stage", 3, 2, 4), random_mdp(0), [good, item])


def test_another_mdps_space_and_missing_labels_are_refused():
    with pytest.raises(ValueError, match=r"\(S, A, H\) = \(3, 2, 5\), the MDP has \(3, 2, 4\)"):
        build(RewardSpace("stage", 3, 2, 5), random_mdp(0), [])
    with pytest.raises(ValueError, match="got 2 labels for 1 items"):
        build(RewardSpace("stage", 1, 3, 1), BANDIT, [Demonstration(ARMS[0])], labels=["a", "b"])


@pytest.mark.parametrize("kind", ["policy", "trajectory"])
def test_a_judge_without_noise_agrees_with_the_true_reward_and_flipping_turns_every_answer(kind):
    mdp = random_mdp(10)
    for space in spaces(mdp):
        truth = np.random.default_rng(11).uniform(-1, 1, space.dim)

        def leads(space=space, truth=truth, **options):
            items = simulate_comparisons(mdp, space, truth, 40, np.random.default_rng(12), kind, **options)
            return build(space, mdp, items).rows @ truth

        assert (leads() >= 0).all()
        assert leads().max() > 0
        np.testing.assert_array_equal(leads(flip=1), -leads())
        assert simulate_comparisons(mdp, space, truth, 0, np.random.default_rng(0), kind) == []


def test_a_bradley_terry_judge_errs_as_often_as_the_logistic_function_says():
    # Both arms of a bandit, drawn at random: the better leads by 1, or they are the same.
    bandit, space = MDP(np.ones((1, 2, 1)), np.ones(1), 1), RewardSpace("stage", 1, 2, 1)
    truth, n = np.array([0.5, -0.5]), 6000
    items = simulate_comparisons(
        bandit, space, truth, n, np.random.default_rng(13), "trajectory", concentration=1.0, temperature=0.5
    )
    leads = build(space, bandit, items).rows @ truth
    different = leads != 0
    p = 1 / (1 + math.exp(-1 / 0.5))
    assert abs((leads[different] > 0).mean() - p) < 4.5 * math.sqrt(p * (1 - p) / different.sum())
    sure = simulate_comparisons(bandit, space, truth, 50, np.random.default_rng(14), temperature=1e-300)
    assert (build(space, bandit, sure).rows @ truth >= 0).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "state"}, "kind must be"),
        ({"flip": 1.5}, "flip must lie"),
        ({"temperature": -1}, "temperature must be"),
    ],
)
def test_a_judge_refuses_options_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        simulate_comparisons(BANDIT, RewardSpace("stage", 1, 3, 1), np.zeros(3), 1, np.random.default_rng(0), **options)


def per_stage(seed, states=3, actions=2, horizon=4):
    """An MDP whose transitions depend on the stage."""
    rng = np.random.default_rng(seed)
    table = rng.dirichlet(np.ones(states), size=(horizon, states, actions))
    return MDP(table, rng.dirichlet(np.ones(states)), horizon)


@pytest.mark.parametrize("mdp", [random_mdp(1), per_stage(2)], ids=["stationary", "per stage"])
@pytest.mark.parametrize("place", [0, 1, 2], ids=["stage", "stationary reward", "linear"])
def test_the_lifting_of_a_demonstration_is_its_optimality_gap(mdp, place):
    space = spaces(mdp)[place]
    expert = occupancies(mdp, random_policies(1, mdp.states, mdp.actions, 1.0, np.random.default_rng(3)))[0]
    gap, lift = optimality_gap(space, mdp, expert), values_lifting(space, mdp, expert)
    assert lift.a.shape == (mdp.horizon * mdp.states * mdp.actions, space.dim)
    for x in np.random.default_rng(4).uniform(-1, 1, (5, space.dim)):
        least = linprog(lift.h, A_ub=lift.b, b_ub=-(lift.a @ x), bounds=(None, None))
        assert least.fun + lift.g @ x == pytest.approx(float(gap(x)[0]), abs=1e-9)


@pytest.mark.parametrize("place", [0, 1, 2], ids=["stage", "stationary reward", "linear"])
def test_answers_by_lifting_are_those_of_cutting_planes(place):
    mdp = random_mdp(5)
    space, rng = spaces(mdp)[place], np.random.default_rng(6)
    first, second, third, other = occupancies(mdp, random_policies(4, mdp.states, mdp.actions, 0.5, rng))
    best = optimal_occupancy(mdp, space.reward(rng.uniform(-1, 1, space.dim)))[1]
    items = [PolicyComparison(first, second), Demonstration(best, 0.1), Demonstration(best, 0.3)]
    lifted = build(space, mdp, items)
    asked = replace(lifted, cuts=tuple(replace(cut, lifting=None) for cut in lifted.cuts))
    d = space.coefficients(third - other)
    one, many = interval(d, lifted), interval(d, asked)
    assert (one.m, one.M) == pytest.approx((many.m, many.M), abs=1e-6)
    np.testing.assert_allclose(one.duals_min, many.duals_min, atol=1e-5)
    np.testing.assert_allclose(one.cut_duals, many.cut_duals, atol=1e-4)
    assert one.cut_duals[:, 0].all()  # the stricter of the two is what holds m and M
    assert one.cuts == 0 < many.cuts
    assert lifted.contains(one.x_min, 1e-7)
    worst = PolicyComparison(first, best, 0.5)  # no reward makes it true of an expert who is nearly optimal
    clash = [conflict(build(space, mdp, [worst, Demonstration(best, 0.1)]))]
    clash.append(conflict(replace(asked, rows=build(space, mdp, [worst]).rows, lower=[0.5], cuts=asked.cuts[:1])))
    assert clash[0].tau == pytest.approx(clash[1].tau, abs=1e-6)
    assert clash[0].tau > 0
    assert clash[0].labels == ("feedback 1", "feedback 2")
