"""Extremes, conflicts and centres against hand calculation, cvxpy, and duality."""

import math
from dataclasses import replace
from itertools import pairwise

import cvxpy as cp
import numpy as np
import pytest
from robrel.exact import (
    Infeasible,
    Pool,
    chebyshev_center,
    conflict,
    extreme,
    interval,
    margin_center,
    relaxed,
)
from robrel.feasible import Cut, FeasibleSet, ball, box

CYCLE = [[1.0, -1.0, 0.0], [0.0, 1.0, -1.0], [-1.0, 0.0, 1.0]]  # a over b over c over a


def three_actions():
    """One state, rewards in [0, 1]³ (spec. 10): a1 over a3 and a3 over a2."""
    return box(3, 0.0, 1.0).with_rows([[1.0, 0.0, -1.0], [0.0, -1.0, 1.0]])


def draw(seed, k=6, m=20):
    """Comparisons that a random reward agrees with, two-sided for every third row."""
    rng = np.random.default_rng(seed)
    truth = rng.uniform(-1, 1, k)
    rows = rng.standard_normal((m, k))
    rows *= np.sign(rows @ truth)[:, None]
    upper = np.where(np.arange(m) % 3 == 0, rows @ truth + 0.3, math.inf)
    return rng.standard_normal(k), box(k).with_rows(rows, 0.0, upper), truth


def independent(c, feasible):
    """The same minimum, written out for cvxpy."""
    x = cp.Variable(feasible.dim)
    constraints = [x >= feasible.low, x <= feasible.high]
    for row, low, high in zip(feasible.rows, feasible.lower, feasible.upper, strict=True):
        constraints += [row @ x >= low] * math.isfinite(low) + [row @ x <= high] * math.isfinite(high)
    if feasible.radius is not None:
        constraints.append(cp.sum_squares(x) <= feasible.radius**2)
    problem = cp.Problem(cp.Minimize(c @ x), constraints)
    problem.solve(solver=cp.CLARABEL)
    return problem.value


def largest_of(pieces, bound, name="polytope"):
    """The polytope pieces @ x <= bound, given by the oracle of its largest row only."""

    def oracle(x):
        values = pieces @ x
        return float(values.max()), pieces[values.argmax()]

    return Cut(name, oracle, bound)


def test_without_constraints_the_interval_is_the_l1_norm():
    d = np.array([0.5, -2.0, 0.0, 1.0])
    found = interval(d, box(4))
    assert (found.m, found.M) == pytest.approx((-3.5, 3.5), abs=1e-12)
    np.testing.assert_allclose(found.x_max[[0, 1, 3]], [1, -1, 1])


def test_the_interval_of_the_three_actions():
    d = np.array([1.0, -1.0, 0.0])
    before, after = interval(d, box(3, 0.0, 1.0)), interval(d, three_actions())
    assert (before.m, before.M) == pytest.approx((-1.0, 1.0), abs=1e-12)
    assert (after.m, after.M) == pytest.approx((0.0, 1.0), abs=1e-12)


def test_an_optimal_demonstration_of_the_first_action_gives_the_same_interval():
    cut = largest_of(np.eye(3) - np.array([1.0, 0.0, 0.0]), 0.0)  # max_a r(a) - r(a1) <= 0
    found = interval([1.0, -1.0, 0.0], box(3, 0.0, 1.0).with_cuts(cut))
    assert (found.m, found.M) == pytest.approx((0.0, 1.0), abs=1e-7)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("radius", [None, 1.1])
def test_extremes_are_those_of_cvxpy(seed, radius):
    c, base, _ = draw(seed)
    feasible = FeasibleSet(base.rows, base.lower, base.upper, base.labels, base.low, base.high, radius)
    found = interval(c, feasible)
    assert found.m == pytest.approx(independent(c, feasible), abs=1e-6)
    assert pytest.approx(-independent(-c, feasible), abs=1e-6) == found.M
    assert c @ found.x_min == pytest.approx(found.m, abs=1e-9)
    assert feasible.contains(found.x_min, 1e-6)
    assert feasible.contains(found.x_max, 1e-6)


@pytest.mark.parametrize("solver", ["lp", "cone"])
def test_both_solvers_satisfy_strong_duality_with_signs_as_documented(solver):
    c, feasible, _ = draw(3)
    feasible = feasible.with_rows([1.0, 1.0, 0.0, 0.0, 0.0, 0.0], 0.1, 0.1, ["equality"])
    found = extreme(c, feasible, solver=solver)
    y = found.duals
    bounds = np.where(y > 0, feasible.lower, feasible.upper)
    reduced = c - feasible.rows.T @ y
    dual = y[np.abs(y) > 1e-7] @ bounds[np.abs(y) > 1e-7] - np.abs(reduced).sum()
    assert dual == pytest.approx(found.value, abs=1e-5)
    assert independent(c, feasible) == pytest.approx(found.value, abs=1e-6)


def test_a_dual_is_the_change_of_the_value_with_its_bound():
    c, feasible, _ = draw(3)
    found = interval(c, feasible)
    for i in found.active:
        raised = FeasibleSet(
            feasible.rows, feasible.lower + 1e-4 * (np.arange(20) == i), feasible.upper + 1e-4 * (np.arange(20) == i),
            feasible.labels, feasible.low, feasible.high,
        )  # fmt: skip
        moved = interval(c, raised)
        assert (moved.m - found.m) / 1e-4 == pytest.approx(found.duals_min[i], abs=1e-6)
        assert pytest.approx(found.duals_max[i], abs=1e-6) == (moved.M - found.M) / 1e-4


@pytest.mark.parametrize("seed", range(5))
def test_rows_that_are_not_active_can_go_and_the_active_ones_cannot(seed):
    c, feasible, _ = draw(seed)
    found = interval(c, feasible)

    def without(dropped):
        kept = [i for i in range(20) if i not in dropped]
        return interval(c, box(6).with_rows(feasible.rows[kept], feasible.lower[kept], feasible.upper[kept]))

    rest = without(set(range(20)) - set(found.active))
    assert (rest.m, rest.M) == pytest.approx((found.m, found.M), abs=1e-8)
    wider = without(set(found.active))
    assert wider.M - wider.m > found.M - found.m + 1e-2


@pytest.mark.parametrize("seed", range(3))
def test_more_feedback_never_widens_and_duplicates_change_nothing(seed):
    c, feasible, truth = draw(seed)
    widths = []
    for n in (0, 1, 5, 20):
        found = interval(c, box(6).with_rows(feasible.rows[:n], feasible.lower[:n], feasible.upper[:n]))
        assert found.m - 1e-9 <= c @ truth <= found.M + 1e-9
        widths.append((found.m, found.M))
    assert all(a[0] <= b[0] + 1e-9 and a[1] >= b[1] - 1e-9 for a, b in pairwise(widths))
    twice = interval(c, feasible.with_rows(feasible.rows, feasible.lower, feasible.upper))
    assert (twice.m, twice.M) == pytest.approx(widths[-1], abs=1e-9)


def test_swapping_the_policies_negates_the_interval_and_equal_ones_give_zero():
    c, feasible, _ = draw(1)
    there, back = interval(c, feasible), interval(-c, feasible)
    assert (back.m, back.M) == pytest.approx((-there.M, -there.m), abs=1e-9)
    equal = interval(np.zeros(6), feasible)
    assert (equal.m, equal.M) == (0.0, 0.0)
    assert math.copysign(1, equal.m) == math.copysign(1, equal.M) == 1


def test_a_polytope_behind_an_oracle_gives_the_interval_of_its_rows():
    c, feasible, _ = draw(2)
    rows = -feasible.rows
    explicit = interval(c, box(6).with_rows(rows, -math.inf, 0.1))
    pool = Pool()
    hidden = interval(c, box(6).with_cuts(largest_of(rows, 0.1)), pool=pool)
    assert (hidden.m, hidden.M) == pytest.approx((explicit.m, explicit.M), abs=1e-6)
    assert 0 < hidden.cuts == len(pool) <= 20
    assert hidden.cut_duals[0] == pytest.approx(explicit.duals_min.sum(), abs=1e-6)
    assert hidden.cut_duals[1] == pytest.approx(explicit.duals_max.sum(), abs=1e-6)


def test_a_shared_pool_spares_the_oracle_and_survives_new_rows_and_bounds():
    c, feasible, _ = draw(2)
    calls = 0
    inner = largest_of(-feasible.rows, 0.1)

    def counting(x):
        nonlocal calls
        calls += 1
        return inner.oracle(x)

    pool, hidden = Pool(), box(6).with_cuts(Cut("polytope", counting, 0.1))
    first = interval(c, hidden, pool=pool)
    calls = 0
    assert interval(c, hidden, pool=pool).m == pytest.approx(first.m, abs=1e-9)
    assert calls == 2  # one look at each solution
    wider = relaxed(hidden, 0.2)
    expected = interval(c, box(6).with_rows(-feasible.rows, -math.inf, 0.3))
    assert interval(c, wider, pool=pool).m == pytest.approx(expected.m, abs=1e-6)


def test_a_smooth_oracle_is_met_from_outside():
    c = np.array([1.0, -2.0, 0.5])
    energy = Cut("energy", lambda x: (float(x @ x), 2 * x), 0.5)
    found = interval(c, box(3).with_cuts(energy))
    exact = math.sqrt(0.5) * np.linalg.norm(c)
    assert exact <= found.M <= exact + 1e-6
    assert pytest.approx(-found.m, abs=1e-6) == found.M


def test_the_ball_has_its_closed_form():
    c = np.array([3.0, -4.0])
    assert pytest.approx(2.5, abs=1e-7) == interval(c, ball(2, 0.5)).M
    # x >= 0.3 y in the ball: the cone program with a row, turned by hand: the minimum of y is at (-0.3, -1)/√1.09.
    assert extreme([0.0, 1.0], ball(2).with_rows([1.0, -0.3])).value == pytest.approx(-1.0, abs=1e-7)
    assert extreme([1.0, 0.0], ball(2).with_rows([1.0, -0.3])).value == pytest.approx(-0.3 / math.sqrt(1.09), abs=1e-7)


def test_cyclic_preferences_conflict_only_with_a_margin():
    assert conflict(box(3).with_rows(CYCLE)) is None
    tie = interval([1.0, -1.0, 0.0], box(3).with_rows(CYCLE))
    assert (tie.m, tie.M) == pytest.approx((0.0, 0.0), abs=1e-9)
    feasible = box(3).with_rows(CYCLE, 0.1, labels=["line 1", "line 2", "line 3"]).with_rows([1, 1, 1], labels=["fine"])
    found = conflict(feasible)
    assert found is not None
    assert found.tau == pytest.approx(0.1, abs=1e-9)  # the margins sum to 0.3 around the cycle and must be 0
    assert found.labels == ("line 1", "line 2", "line 3")
    with pytest.raises(Infeasible, match="no reward satisfies all of the feedback"):
        interval([1.0, 0.0, 0.0], feasible)
    again = relaxed(feasible, found.tau)
    assert again.contains(found.x, 1e-9)
    assert pytest.approx(0.0, abs=1e-7) == interval([1.0, -1.0, 0.0], again).M
    with pytest.raises(Infeasible):
        interval([1.0, 0.0, 0.0], relaxed(feasible, found.tau - 0.01))


def test_relaxing_moves_both_sides():
    found = interval([1.0], relaxed(box(1).with_rows([1.0], -0.1, 0.5), 0.2))
    assert (found.m, found.M) == pytest.approx((-0.3, 0.7), abs=1e-9)


def test_a_conflict_with_an_oracle_or_an_equality_names_it_and_shares_the_slack():
    feasible = box(2).with_rows([1.0, 0.0], 0.6, 0.6, ["anchor"]).with_cuts(largest_of(np.eye(2), 0.2, "demo"))
    found = conflict(feasible)
    assert found is not None
    assert found.tau == pytest.approx(0.2, abs=1e-7)  # x1 = 0.6 and x1 <= 0.2 meet half way
    assert found.labels == ("anchor", "demo")


def test_the_chebyshev_ball_of_a_triangle_is_its_incircle():
    centre, radius = chebyshev_center(box(2, 0.0, 1.0).with_rows([1.0, 1.0], -math.inf, 1.0))
    r = 1 / (2 + math.sqrt(2))  # legs 1 and 1: (1 + 1 - √2) / 2
    assert radius == pytest.approx(r, abs=1e-9)
    np.testing.assert_allclose(centre, [r, r], atol=1e-9)


def test_the_chebyshev_ball_lies_in_the_subspace_of_the_equality_rows():
    # On x1 + x2 = 1 in [0, 1]² the largest "ball" is the whole segment of length √2.
    centre, radius = chebyshev_center(box(2, 0.0, 1.0).with_rows([1.0, 1.0], 1.0, 1.0))
    np.testing.assert_allclose(centre, [0.5, 0.5], atol=1e-9)
    assert radius == pytest.approx(math.sqrt(0.5), abs=1e-9)


def test_the_chebyshev_ball_keeps_clear_of_balls_and_oracles():
    assert chebyshev_center(ball(3, 0.7))[1] == pytest.approx(0.7, abs=1e-6)
    # A ball inside the box, so that the box does not do its work.
    assert chebyshev_center(replace(box(3), radius=0.7))[1] == pytest.approx(0.7, abs=1e-6)
    half = chebyshev_center(ball(2).with_rows([1.0, 0.0]))  # half a disc: its largest circle has half the radius
    assert half[1] == pytest.approx(0.5, abs=1e-6)
    np.testing.assert_allclose(half[0], [0.5, 0.0], atol=1e-3)
    pieces = np.array([[1.0, 1.0], [1.0, 0.0]])
    energy = Cut("energy", lambda x: (float(x @ x), 2 * x), 0.5)
    assert chebyshev_center(box(3).with_cuts(energy))[1] == pytest.approx(math.sqrt(0.5), abs=1e-5)
    r = chebyshev_center(box(2, 0.0, 1.0).with_cuts(largest_of(pieces, 1.0)))[1]
    assert r == pytest.approx(1 / (2 + math.sqrt(2)), abs=1e-6)


def test_the_largest_margin_does_not_depend_on_the_scale_of_the_rows():
    rows = np.array([[1.0, -1.0], [1.0, 0.0]])
    x, margin = margin_center(box(2).with_rows(rows))
    assert margin == pytest.approx(1.0, abs=1e-9)  # x1 = 1 limits the second row; (1 - x2)/√2 can reach √2
    assert x[0] == pytest.approx(1.0)
    assert margin_center(box(2).with_rows(rows * [[5.0], [0.1]]))[1] == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: extreme([1.0], box(2)), r"objective must have shape \(2,\), got \(1,\)"),
        (lambda: extreme([1.0, math.nan], box(2)), "objective must be finite"),
        (lambda: extreme([1.0, 0.0], ball(2), solver="lp"), 'solver "lp" cannot hold an l2 ball'),
        (lambda: extreme([1.0, 0.0], box(2), solver="simplex"), "got 'simplex'"),
        (lambda: relaxed(box(2), -0.1), "tau must be at least 0, got -0.1"),
        (lambda: margin_center(box(2)), "at least one comparison"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_too_few_rounds_name_the_oracle():
    energy = Cut("line 7", lambda x: (float(x @ x), 2 * x), 0.5)
    with pytest.raises(RuntimeError, match="did not satisfy line 7 in 3 rounds"):
        extreme([1.0, 0.3], box(2).with_cuts(energy), rounds=3)
