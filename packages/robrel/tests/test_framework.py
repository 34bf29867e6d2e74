"""The robust answer against hand calculation, sampled rewards and brute force."""

import math

import numpy as np
import pytest
from robrel.baselines import arbitrary, hit_and_run
from robrel.exact import Infeasible, interval
from robrel.feasible import Cut, ball, box
from robrel.framework import (
    assess,
    assess_application,
    decide,
    minimax,
    next_question,
    robust_answer,
    worst_case_loss,
)

D3 = np.array([1.0, -1.0, 0.0])


def three_actions():
    """One state, rewards in [0, 1]³ (spec. 10): a1 over a3 and a3 over a2."""
    return box(3, 0.0, 1.0).with_rows([[1.0, 0.0, -1.0], [0.0, -1.0, 1.0]], labels=["a1 over a3", "a3 over a2"])


def draw(seed, k=6, m=20):
    rng = np.random.default_rng(seed)
    truth = rng.uniform(-1, 1, k)
    rows = rng.standard_normal((m, k))
    rows *= np.sign(rows @ truth)[:, None]
    return rng.standard_normal(k), box(k).with_rows(rows), truth


def test_the_three_actions_without_feedback():
    found = assess(D3, box(3, 0.0, 1.0))
    assert (found.m, found.M, found.answer, found.half_width) == pytest.approx((-1.0, 1.0, 0.0, 1.0), abs=1e-12)
    assert (found.decision, found.certificate, found.active) == ("undetermined", "none", ())


def test_the_three_actions_with_feedback():
    found = assess(D3, three_actions())
    assert (found.m, found.M, found.answer, found.half_width) == pytest.approx((0.0, 1.0, 0.5, 0.5), abs=1e-12)
    assert (found.decision, found.certificate) == ("first", "weak")
    assert found.active == ("a1 over a3", "a3 over a2")
    assert found.zero_feasible
    assert found.W(0.9) == pytest.approx(0.9)
    assert found.W(found.answer) == pytest.approx(found.half_width)


@pytest.mark.parametrize("seed", range(4))
def test_the_robust_reward_is_feasible_and_attains_the_answer(seed):
    d, feasible, _ = draw(seed)
    found = assess(d, feasible)
    assert feasible.contains(found.x, 1e-8)
    assert found.violation <= 1e-8
    assert d @ found.x == pytest.approx(found.answer, abs=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_no_feasible_answer_beats_the_robust_one_and_none_is_twice_as_bad(seed):
    d, feasible, truth = draw(seed)
    found = assess(d, feasible)
    rewards = [
        *hit_and_run(feasible, np.random.default_rng(seed), 200),
        *arbitrary(feasible, np.random.default_rng(seed)),
        truth,
    ]
    for x in rewards:
        assert found.m - 1e-9 <= d @ x <= found.M + 1e-9
        assert found.half_width - 1e-9 <= found.W(d @ x) <= 2 * found.half_width + 1e-9
    assert found.W(d @ found.x_max) == pytest.approx(2 * found.half_width)  # the factor is attained


@pytest.mark.parametrize("seed", range(3))
def test_swapping_the_policies_swaps_everything(seed):
    d, feasible, _ = draw(seed)
    there, back = assess(d, feasible), assess(-d, feasible)
    assert (back.m, back.M, back.answer) == pytest.approx((-there.M, -there.m, -there.answer), abs=1e-9)
    assert back.half_width == pytest.approx(there.half_width, abs=1e-9)
    swapped = {"first": "second", "second": "first", "undetermined": "undetermined"}
    assert back.decision == swapped[there.decision]
    np.testing.assert_allclose(back.duals_min, -there.duals_max, atol=1e-9)


def test_equal_policies_are_equal_for_every_reward():
    found = assess(np.zeros(6), draw(0)[1])
    assert (found.m, found.M, found.half_width) == (0.0, 0.0, 0.0)
    assert (found.decision, found.certificate) == ("undetermined", "weak")


def test_comparisons_without_margin_never_give_a_strict_certificate_and_margins_do():
    plain = box(2).with_rows([1.0, -1.0])
    assert assess([1.0, -1.0], plain).certificate == "weak"
    assert assess([1.0, -1.0], plain).zero_feasible
    margin = box(2).with_rows([1.0, -1.0], 0.3)
    found = assess([1.0, -1.0], margin)
    assert (found.decision, found.certificate, found.zero_feasible) == ("first", "strict", False)
    assert found.m == pytest.approx(0.3, abs=1e-9)
    assert assess([-1.0, 1.0], margin).decision == "second"


@pytest.mark.parametrize(
    ("m", "M", "expected"),
    [
        (0.1, 0.2, ("first", "strict")),
        (-0.2, -0.1, ("second", "strict")),
        (0.0, 0.2, ("first", "weak")),
        (-0.005, 0.2, ("first", "weak")),
        (-0.2, 0.005, ("second", "weak")),
        (-0.005, 0.005, ("undetermined", "weak")),
        (-0.2, 0.1, ("undetermined", "none")),
    ],
)
def test_the_decision_follows_the_signs_up_to_the_tolerance(m, M, expected):
    assert decide(m, M, 0.01) == expected


@pytest.mark.parametrize("seed", range(2))
def test_primal_dual_bounds_hold_the_exact_interval(seed):
    d, feasible, _ = draw(seed)
    exact, found = assess(d, feasible), assess(d, feasible, "pd")
    assert found.m <= exact.m + 1e-12
    assert found.M >= exact.M - 1e-12
    assert (found.m, found.M) == pytest.approx((exact.m, exact.M), abs=2e-2)
    assert found.violation <= 2e-2
    assert found.gap <= 5e-2
    assert d @ found.x == pytest.approx(exact.answer, abs=2e-2)
    kept = [feasible.labels.index(label) for label in found.active]
    rest = interval(d, box(6).with_rows(feasible.rows[kept]))
    assert (rest.m, rest.M) == pytest.approx((exact.m, exact.M), abs=5e-2)


def test_primal_dual_has_the_duals_of_the_linear_program():
    for solver in ("lp", "pd"):
        found = assess(D3, three_actions(), solver)
        np.testing.assert_allclose(found.duals_min, [1.0, 1.0], atol=5e-3)  # the only optimal ones
        limit = assess([1.0], box(1).with_rows([1.0], -math.inf, 0.6), solver)
        np.testing.assert_allclose([limit.duals_min, limit.duals_max], [[0.0], [1.0]], atol=5e-3)  # M is the bound


def test_primal_dual_takes_oracles():
    pieces = np.random.default_rng(1).standard_normal((8, 4))
    d = np.array([1.0, -0.5, 0.2, 0.7])

    def oracle(x):
        values = pieces @ x
        return float(values.max()), pieces[values.argmax()]

    feasible = box(4).with_cuts(Cut("demo", oracle, 0.4))
    exact = interval(d, box(4).with_rows(pieces, -math.inf, 0.4))
    lp, pd = assess(d, feasible), assess(d, feasible, "pd")
    assert (lp.m, lp.M) == pytest.approx((exact.m, exact.M), abs=1e-6)
    assert pd.m <= exact.m <= exact.M <= pd.M
    assert (pd.m, pd.M) == pytest.approx((exact.m, exact.M), abs=8e-2)
    assert lp.active == pd.active == ("demo",)


def test_cone_and_lp_agree_and_the_ball_has_its_closed_form():
    d, feasible, _ = draw(1)
    lp, cone = assess(d, feasible), assess(d, feasible, "cone")
    assert (lp.m, lp.M) == pytest.approx((cone.m, cone.M), abs=1e-6)
    for solver in ("cone", "pd"):
        assert pytest.approx(2.5, abs=1e-6) == assess([3.0, -4.0], ball(2, 0.5), solver).M


def test_primal_dual_proves_a_conflict_when_its_bounds_cross():
    feasible = box(2).with_rows([[1.0, -1.0], [-1.0, 1.0]], 0.5)
    with pytest.raises(Infeasible, match="contradict each other"):
        assess([1.0, 0.0], feasible, "pd", steps=2000)
    with pytest.raises(Infeasible):
        assess([1.0, 0.0], feasible)


@pytest.mark.parametrize("loss", ["absolute", "squared", "sign"])
@pytest.mark.parametrize(("m", "M"), [(-1.0, 3.0), (0.0, 1.0), (0.5, 2.0), (-2.0, 0.0), (-3.0, -1.0)])
def test_worst_case_losses_are_those_over_the_values_of_the_interval(loss, m, M):
    def single(answer, y):
        sign = float(y != 0 and np.sign(answer) != np.sign(y))
        return {"absolute": abs(answer - y), "squared": (answer - y) ** 2, "sign": sign}[loss]

    ys = np.linspace(m, M, 401)
    for answer in (-2.0, -0.3, 0.0, 0.4, 1.0, 2.5):
        assert worst_case_loss(answer, m, M, loss) == pytest.approx(max(single(answer, y) for y in ys), abs=1e-12)


@pytest.mark.parametrize("loss", ["absolute", "squared", "sign"])
def test_the_midpoint_is_robust_for_all_three_losses(loss):
    for m, M in [(-1.0, 3.0), (0.2, 1.0), (-2.0, 0.5)]:
        best = min(worst_case_loss(y, m, M, loss) for y in np.linspace(-4, 4, 801))
        assert worst_case_loss((m + M) / 2, m, M, loss) == pytest.approx(best, abs=1e-9)


def test_restricting_the_answer_to_feasible_rewards_costs_up_to_a_factor_of_two():
    assert robust_answer([0.0, 4.0]) == (2.0, 2.0)
    assert robust_answer([0.0, 4.0], restrict_to_feasible=True) == (0.0, 4.0)
    assert robust_answer([0.0, 1.0, 4.0], restrict_to_feasible=True) == (1.0, 3.0)
    assert robust_answer([0.0, 1.0, 4.0], "squared") == (2.0, 4.0)
    assert robust_answer([0.0, 1.0, 4.0], lambda y, truth: max(truth - y, 0.0)) == (4.0, 0.0)


def test_minimax_is_that_of_the_table():
    found = minimax([[0.0, 5.0, 1.0], [2.0, 3.0, 0.0], [3.0, 0.0, 1.0]])
    assert (found.position, found.value, found.worst.tolist()) == (1, 3.0, [5.0, 3.0, 3.0])


def test_another_application_is_a_class_with_a_loss():
    class BestAction:
        """Choose an action; the loss is the regret."""

        def loss(self, answer, x):
            return float(x.max() - x[answer])

    rewards = arbitrary(three_actions(), np.random.default_rng(0), 200)
    found = assess_application(BestAction(), range(3), rewards)
    # a1 is at least as good as both others; a2 and a3 can be worse than a1 by 1.
    assert found.position == 0
    np.testing.assert_allclose(found.worst, [0.0, 1.0, 1.0], atol=1e-9)


def test_the_next_question_is_the_one_that_halves_the_interval():
    # d = e1: asking its sign halves the interval, asking that of e2 does nothing, e1 + e2 is in between.
    ranked = next_question([1.0, 0.0], box(2), [[0.0, 1.0], [1.0, 1.0], [1.0, 0.0]], ["e2", "both", "e1"])
    assert [q.label for q in ranked] == ["e1", "e2", "both"]
    assert [q.half_width for q in ranked] == pytest.approx([0.5, 1.0, 1.0], abs=1e-9)
    assert [q.position for q in ranked] == [2, 0, 1]


def test_the_next_question_is_judged_by_the_worse_of_its_answers():
    d, feasible, _ = draw(5, m=3)
    candidates = np.random.default_rng(7).standard_normal((4, 6))
    ranked = next_question(d, feasible, candidates)
    for q in ranked:
        for sign, reported in ((1, q.if_first), (-1, q.if_second)):
            answered = assess(d, feasible.with_rows(sign * candidates[q.position]))
            assert reported == pytest.approx(answered.half_width, abs=1e-9)
        assert q.half_width == max(q.if_first, q.if_second)
    assert [q.half_width for q in ranked] == sorted(q.half_width for q in ranked)


def test_an_answer_that_the_feedback_rules_out_does_not_count():
    known = box(2).with_rows([1.0, 0.0], 0.5)
    (question,) = next_question([1.0, 0.0], known, [[1.0, 0.0]])
    assert question.if_first == question.half_width == pytest.approx(0.25, abs=1e-9)
    assert math.isnan(question.if_second)
    with pytest.raises(Infeasible):
        next_question([1.0, 0.0], known.with_rows([-1.0, 0.0]), [[0.0, 1.0]])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: assess(D3, box(2)), r"shape \(2,\), got \(3,\)"),
        (lambda: assess(D3, box(3), "simplex"), "got 'simplex'"),
        (lambda: assess(D3, ball(3)), 'solver "lp" cannot hold an l2 ball'),
        (lambda: assess(D3, box(3), tolerance=-1.0), "tolerance must be at least 0"),
        (lambda: worst_case_loss(0.0, 1.0, 0.0), "m <= M, got 1.0 and 0.0"),
        (lambda: worst_case_loss(0.0, 0.0, 1.0, "l2"), "got 'l2'"),
        (lambda: robust_answer([]), "values must be finite"),
        (lambda: minimax([[1.0, math.nan]]), "losses must be finite"),
        (lambda: next_question(D3, box(3), [[1.0, 0.0]]), r"candidates must have shape \(n, 3\)"),
        (lambda: next_question(D3, box(3), [D3], ["a", "b"]), "expected 1 labels"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
