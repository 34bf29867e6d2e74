"""Answers of the methods and their measures, by hand and against the baselines."""

from dataclasses import replace

import numpy as np
import pytest
from robrel import baselines
from robrel.evaluate import METHODS, Bounds, exact_interval, known_interval, measure, rewards_of
from robrel.exact import interval
from robrel.feasible import box
from robrel.mdp import occupancies
from robrel.problems import ProblemOptions, draw_problem
from robrel.soft import soft_policy

SMALL = ProblemOptions(size=3, horizon=4, features=4)


def small(comparisons=6, seed=0, **options):
    return draw_problem(replace(SMALL, **options), comparisons, seed)


def rng():
    return np.random.default_rng(7)


def test_measures_worked_out_by_hand():
    found = measure(np.array([0.0, 3.0]), known=Bounds(-1.5, 3.5), exact=Bounds(-1.0, 3.0), truth=2.5)
    assert found == pytest.approx({
        "worst": (3 + 4) / 2,  # max(3 - 0, 0 + 1) and max(3 - 3, 3 + 1)
        "ratio": 3.5 / 2,
        "error": (2.5 + 0.5) / 2,
        "half_width": 2.5,
        "coverage": 1,
        "sign": 0.5,  # 0 is no sign
        "interval_error": 0.5,
    })  # fmt: skip


def test_the_midpoint_has_ratio_1_and_an_end_has_ratio_2():
    bounds = Bounds(-0.5, 1.5)
    ratios = [measure(np.array([y]), bounds, bounds, 0.0)["ratio"] for y in (0.5, -0.5, 1.5)]
    assert ratios == [1, 2, 2]


@pytest.mark.parametrize(("truth", "covered"), [(-1 - 1e-5, 0), (-1 - 1e-7, 1), (2 + 1e-7, 1), (2 + 1e-5, 0)])
def test_coverage_asks_the_reported_interval_up_to_rounding(truth, covered):
    found = measure(np.zeros(1), Bounds(-1.0, 2.0), Bounds(-10.0, 10.0), truth)
    assert found["coverage"] == covered


def test_an_interval_of_one_point_has_ratio_1():
    point = Bounds(0.25, 0.25)
    assert measure(np.array([0.25]), point, point, 0.25)["ratio"] == 1


def test_the_baselines_are_those_of_their_module():
    problem = small(10)
    feasible = problem.feasible
    expected = {
        "arbitrary": baselines.arbitrary(feasible, rng()),
        "mle": baselines.maximum_likelihood(feasible.rows, feasible)[None],
        "chebyshev": baselines.chebyshev(feasible)[None],
        "max_margin": baselines.max_margin(feasible)[None],
    }
    for name, rewards in expected.items():
        np.testing.assert_allclose(rewards_of(name, problem, rng()), rewards, atol=1e-12)
    assert expected["arbitrary"].shape == (30, 4)


@pytest.mark.parametrize("expert", ["exact", "sampled"])
def test_maximum_entropy_matches_the_experts_features_where_the_box_lets_it(expert):
    problem = small(0, expert=expert)
    (x,) = rewards_of("max_entropy", problem, rng())
    policy = soft_policy(problem.planning, problem.space.reward(x))
    features = problem.space.coefficients(occupancies(problem.planning, policy))
    missing = features - problem.expert
    inside = np.abs(x) < 1
    assert np.abs(missing[inside]).max(initial=0) < 1e-5
    assert (missing[x == 1] <= 1e-9).all()  # the box holds back what would be too few
    assert (missing[x == -1] >= -1e-9).all()
    assert not inside.all()


def test_maximum_entropy_recovers_a_soft_optimal_experts_reward():
    problem = small(0, expert="exact")
    x = 0.5 * problem.x_true
    d = occupancies(problem.planning, soft_policy(problem.planning, problem.space.reward(x)))
    other = replace(problem, expert=problem.space.coefficients(d))
    found = rewards_of("max_entropy", other, rng())[0]
    policies = [soft_policy(problem.planning, problem.space.reward(r)) for r in (x, found)]
    np.testing.assert_allclose(*policies, atol=1e-4)


def test_maximum_entropy_needs_an_expert_and_a_method_its_name():
    with pytest.raises(ValueError, match=r"max_entropy needs demonstrations: data.problem.expert must be exact or sam"):
        rewards_of("max_entropy", small(), rng())
    with pytest.raises(ValueError, match=r"method must be one of robust, arbitrary, .*, got 'nonsense'"):
        rewards_of("nonsense", small(), rng())
    assert METHODS == ("robust", "arbitrary", "mle", "chebyshev", "max_margin", "max_entropy")


def test_every_feasible_answer_has_a_ratio_between_1_and_2():
    for seed in range(4):
        problem = small(8, seed)
        bounds = exact_interval(problem)
        for method in ("arbitrary", "chebyshev", "max_margin"):
            for answer in rewards_of(method, problem, rng()) @ problem.d:
                assert 1 - 1e-9 <= measure(np.array([answer]), bounds, bounds, problem.truth)["ratio"] <= 2 + 1e-6


def test_the_known_interval_is_that_of_the_estimates_widened_if_conservative():
    problem = small(8, episodes=300, slack="conservative")
    found = interval(problem.d, problem.feasible)
    assert problem.widening > 0
    assert known_interval(problem) == pytest.approx((found.m - problem.widening, found.M + problem.widening))


def test_the_exact_interval_knows_nothing_of_the_estimates():
    problem = small(8, episodes=20, slack="conservative", expert="sampled")
    exact = small(8, expert="exact")
    assert exact_interval(problem) == pytest.approx(exact_interval(exact), abs=1e-6)
    assert known_interval(problem) != pytest.approx(known_interval(exact), abs=1e-2)
    assert exact_interval(exact) == known_interval(exact)


def test_a_question_about_one_policy_twice_is_answered_by_0():
    problem = replace(small(0), exact_d=np.zeros(4), d=np.zeros(4), feasible=box(4), exact_feasible=box(4))
    assert exact_interval(problem) == known_interval(problem) == (0, 0)
