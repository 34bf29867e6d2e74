"""Instances: what is drawn from the seed and what from the options, and that the truth agrees with its feedback."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from robrel.environments import from_gym, gridworld
from robrel.estimation import slack
from robrel.exact import interval
from robrel.mdp import occupancies, plan
from robrel.problems import ProblemOptions, draw_problem

SMALL = ProblemOptions(size=3, horizon=4, features=4)
GYM = ProblemOptions(environment="FrozenLake", reward="stationary", horizon=8)


def small(comparisons=6, seed=0, **options):
    return draw_problem(replace(SMALL, **options), comparisons, seed)


def ends(problem, exact=False):
    found = interval(problem.exact_d, problem.exact_feasible) if exact else interval(problem.d, problem.feasible)
    return np.array([found.m, found.M])


def test_two_draws_of_one_seed_are_equal_and_those_of_two_seeds_are_not():
    first, again, other = small(seed=3, episodes=50), small(seed=3, episodes=50), small(seed=4, episodes=50)
    for name in ("d", "exact_d", "x_true"):
        assert np.array_equal(getattr(first, name), getattr(again, name))
        assert not np.array_equal(getattr(first, name), getattr(other, name))
    assert np.array_equal(first.feasible.rows, again.feasible.rows)


@pytest.mark.parametrize("kind", ["policy", "trajectory"])
def test_the_seed_and_not_the_number_of_comparisons_decides_reward_and_question(kind):
    few, many = small(2, kind=kind), small(9, kind=kind)
    assert np.array_equal(few.x_true, many.x_true)
    assert np.array_equal(few.exact_d, many.exact_d)
    assert few.truth == many.truth == pytest.approx(float(few.exact_d @ few.x_true))


def test_more_comparisons_contain_the_fewer_and_narrow_the_interval():
    problems = [small(count) for count in (0, 3, 10, 30)]
    for few, many in pairwise(problems):
        assert len(many.feasible.rows) > len(few.feasible.rows)
        np.testing.assert_allclose(many.feasible.rows[: len(few.feasible.rows)], few.feasible.rows, rtol=0, atol=1e-12)
    m, M = np.transpose([ends(problem) for problem in problems])
    assert (np.diff(m) >= -1e-9).all()
    assert (np.diff(M) <= 1e-9).all()
    assert M[-1] - m[-1] < 0.7 * (M[0] - m[0])


def test_without_feedback_the_interval_is_the_norm_of_the_question():
    problem = small(0)
    total = np.abs(problem.d).sum()
    np.testing.assert_allclose(ends(problem), [-total, total])


@pytest.mark.parametrize("reward", ["linear", "stationary", "stage"])
@pytest.mark.parametrize("kind", ["policy", "trajectory"])
@pytest.mark.parametrize("expert", ["none", "exact"])
def test_the_truth_agrees_with_exact_feedback_and_lies_in_the_interval(reward, kind, expert):
    for seed in range(3):
        problem = small(8, seed, reward=reward, kind=kind, expert=expert)
        assert problem.exact_feasible.contains(problem.x_true, 1e-9)
        if expert == "none" or reward == "linear":  # cutting planes take long in many dimensions
            m, M = ends(problem, exact=True)
            assert m - 1e-7 <= problem.truth <= M + 1e-7
        assert len(problem.exact_feasible.cuts) == (expert == "exact")


def test_nothing_is_estimated_where_nothing_is_sampled():
    problem = small(expert="exact")
    assert problem.d is problem.exact_d
    assert problem.feasible is problem.exact_feasible
    assert problem.planning is problem.environment.mdp
    assert problem.widening == 0
    assert small(episodes=5).feasible is not small(episodes=5).exact_feasible


def test_a_sampled_expert_is_known_by_frequencies_and_all_else_exactly():
    problem = small(expert="sampled", demonstrations=8)
    np.testing.assert_allclose(problem.d, problem.exact_d, rtol=0, atol=1e-12)
    np.testing.assert_allclose(problem.feasible.rows, problem.exact_feasible.rows, rtol=0, atol=1e-12)
    visits = small(reward="stage", expert="sampled", demonstrations=8).expert
    assert visits.sum() == pytest.approx(SMALL.horizon)
    np.testing.assert_allclose(8 * visits, np.round(8 * visits), atol=1e-12)


def test_the_expert_is_optimal_under_the_truth():
    problem = small(expert="exact")
    best = plan(problem.environment.mdp, problem.space.reward(problem.x_true)).value
    assert problem.expert @ problem.x_true == pytest.approx(float(best))
    assert problem.exact_feasible.cuts[0].oracle(problem.x_true)[0] == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("estimate", ["rollouts", "model"])
def test_estimates_converge_with_the_number_of_episodes(estimate):
    errors = []
    for episodes in (50, 5000):
        problems = [small(seed=seed, episodes=episodes, estimate=estimate) for seed in range(4)]
        errors.append([
            np.mean([np.abs(p.d - p.exact_d).mean() for p in problems]),
            np.mean([np.abs(p.feasible.rows - p.exact_feasible.rows).mean() for p in problems]),
        ])  # fmt: skip
    ratio = np.divide(*errors)
    assert (ratio > 4).all()  # ten times as small in the limit
    assert (ratio < 25).all()


def test_trajectories_are_what_they_are_however_few_episodes_there_are():
    problem = small(kind="trajectory", episodes=5)
    np.testing.assert_array_equal(problem.feasible.rows, problem.exact_feasible.rows)
    assert not np.allclose(problem.d, problem.exact_d)


def test_a_model_is_planned_in_and_rollouts_leave_the_true_one():
    model, walks = small(episodes=40, estimate="model"), small(episodes=40)
    true = walks.environment.mdp
    assert walks.planning is true
    assert np.abs(model.planning.transitions - true.transitions).max() > 0.05
    assert model.planning.horizon == true.horizon


def test_slack_loosens_rows_and_epsilon_by_beta_and_conservative_widens_too():
    options = {"episodes": 400, "expert": "exact", "epsilon": 0.25, "delta": 0.1}
    tight, loose, wide = (small(slack=name, **options) for name in ("none", "relax", "conservative"))
    bound = np.abs(tight.space.features).sum(1).max()
    beta = slack(9, 5, 4, 400, 6, 0.1, bound)
    for problem in (loose, wide):
        np.testing.assert_array_equal(problem.feasible.rows, tight.feasible.rows)
        np.testing.assert_allclose(problem.feasible.lower, -beta)
        assert problem.feasible.cuts[0].bound == pytest.approx(0.25 + beta)
        np.testing.assert_array_equal(problem.exact_feasible.lower, 0)
        assert problem.exact_feasible.cuts[0].bound == 0.25
    assert (tight.widening, loose.widening, wide.widening) == (0, 0, pytest.approx(beta))
    assert tight.feasible.cuts[0].bound == 0.25
    np.testing.assert_array_equal(tight.feasible.lower, 0)


def test_slack_is_of_no_use_to_exact_occupancies():
    problem = small(slack="conservative")
    assert problem.widening == 0
    np.testing.assert_array_equal(problem.feasible.lower, 0)


def test_answers_that_are_all_wrong_turn_the_feasible_set_round():
    right, wrong = small(12), small(12, flip=1.0)
    np.testing.assert_allclose(wrong.feasible.rows, -right.feasible.rows, atol=1e-12)
    np.testing.assert_allclose(ends(wrong), -ends(right)[::-1], atol=1e-7)


def test_some_wrong_answers_contradict_the_truth_and_each_other():
    problems = [(small(40, seed), small(40, seed, flip=0.3)) for seed in range(6)]
    assert not any(noisy.feasible.contains(noisy.x_true, 1e-6) for _, noisy in problems)
    # Only rewards on which all comparisons are near ties are left, in the end 0 alone.
    widths = np.array([[np.ptp(ends(p)) for p in pair] for pair in problems])
    assert (widths[:, 1] < 1e-6).sum() >= 3
    assert (widths[:, 0] > 1e-3).all()


@pytest.mark.parametrize("radius", [0.5, 100.0])
def test_a_radius_bounds_the_truth_and_the_feasible_set(radius):
    free, bounded = small(0), small(0, radius=radius)
    norm = np.linalg.norm(free.x_true)
    np.testing.assert_allclose(bounded.x_true, free.x_true * min(1, radius / norm))
    assert bounded.feasible.contains(bounded.x_true, 1e-9)
    largest = radius * np.linalg.norm(bounded.d) if radius < 1 else np.abs(bounded.d).sum()
    np.testing.assert_allclose(ends(bounded), [-largest, largest], rtol=1e-5)


def test_a_game_brings_its_own_reward_and_asks_how_much_better_its_optimal_policy_is():
    problem = draw_problem(replace(GYM, expert="exact"), 4, 0)
    lake = from_gym("FrozenLake", 8)
    np.testing.assert_array_equal(problem.x_true, lake.reward.ravel())
    mdp = problem.environment.mdp
    best = plan(mdp, lake.reward)
    uniform = np.full((17, 4), 0.25)
    d = [occupancies(mdp, policy) for policy in (0.9 * best.policy + 0.1 * uniform, uniform)]
    assert problem.truth == pytest.approx(float(((d[0] - d[1]) * lake.reward).sum()))
    assert problem.truth > 0
    assert problem.exact_feasible.contains(problem.x_true, 1e-9)


def test_options_of_the_environment_arrive():
    problem = small(0, size=2, slip=0.4, horizon=6)
    expected = gridworld(2, 0.4, 6).mdp
    np.testing.assert_array_equal(problem.environment.mdp.transitions, expected.transitions)
    assert problem.environment.mdp.horizon == 6
    assert draw_problem(replace(GYM, map_name="8x8"), 0, 0).environment.mdp.states == 65


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "size must be at least 1, got 0"),
        ({"horizon": 0}, "horizon must be at least 1, got 0"),
        ({"features": 0}, "features must be at least 1, got 0"),
        ({"demonstrations": 0}, "demonstrations must be at least 1, got 0"),
        ({"episodes": -1}, "episodes must be at least 0, got -1"),
        ({"slip": 1.5}, r"slip must lie in \[0, 1\], got 1.5"),
        ({"flip": -0.1}, r"flip must lie in \[0, 1\], got -0.1"),
        ({"flip": math.nan}, r"flip must lie in \[0, 1\], got nan"),
        ({"delta": 0.0}, r"delta must lie in \(0, 1\), got 0.0"),
        ({"delta": 1.0}, r"delta must lie in \(0, 1\), got 1.0"),
        ({"epsilon": -1.0}, "epsilon must be a finite number of at least 0, got -1.0"),
        ({"epsilon": math.inf}, "epsilon must be a finite number of at least 0, got inf"),
        ({"radius": -1.0}, "radius must be a finite number > 0 or null, got -1.0"),
        ({"radius": math.nan}, "radius must be a finite number > 0 or null, got nan"),
        ({"environment": "Taxi"}, "reward must be stationary for Taxi, which has its own, got linear"),
    ],
)
def test_an_option_out_of_range_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ProblemOptions(**options)


def test_what_does_not_fit_the_environment_is_refused():
    with pytest.raises(ValueError, match="comparisons must be at least 0, got -1"):
        small(-1)
    with pytest.raises(ValueError, match="no environment Tetris in gymnasium"):
        draw_problem(replace(GYM, environment="Tetris"), 0, 0)
    with pytest.raises(ValueError, match="FrozenLake-v1 could not be made with options"):
        draw_problem(replace(GYM, map_name="5x5"), 0, 0)
    with pytest.raises(ValueError, match=r"radius must be at least 0.\d+, the norm of the game's reward, got 0.1"):
        draw_problem(replace(GYM, radius=0.1), 0, 0)
