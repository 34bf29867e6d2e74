"""The baselines against closed forms, brute force and moments."""

import math

import numpy as np
import pytest
from robrel.baselines import arbitrary, chebyshev, hit_and_run, max_margin, maximum_entropy, maximum_likelihood
from robrel.exact import Pool
from robrel.feasible import Cut, ball, box


def rng(seed=0):
    return np.random.default_rng(seed)


def energy(bound):
    return Cut("energy", lambda x: (float(x @ x), 2 * x), bound)


def test_arbitrary_rewards_are_the_vertices_of_a_triangle():
    feasible = box(2, 0.0, 1.0).with_rows([1.0, 1.0], -math.inf, 1.0)
    drawn = arbitrary(feasible, rng(), 60)
    assert {tuple(map(float, x)) for x in drawn.round(9) + 0.0} == {(0.0, 0.0), (1.0, 0.0), (0.0, 1.0)}
    # Vertex 0 is chosen by objectives in the first quadrant: a quarter of them.
    origin = (np.abs(arbitrary(feasible, rng(1), 400)).max(1) < 1e-9).mean()
    assert origin == pytest.approx(0.25, abs=4 * math.sqrt(0.25 * 0.75 / 400))


def test_arbitrary_rewards_are_those_of_their_generator():
    feasible = box(3).with_rows([1.0, 0.2, 0.0], 0.1)
    assert np.array_equal(arbitrary(feasible, rng(1), 5), arbitrary(feasible, rng(1), 5))
    assert not np.array_equal(arbitrary(feasible, rng(1), 5), arbitrary(feasible, rng(2), 5))


def test_arbitrary_rewards_share_a_pool():
    pool, feasible = Pool(), box(2).with_cuts(energy(0.5))
    drawn = arbitrary(feasible, rng(), 3, pool=pool)
    assert len(pool) > 0
    np.testing.assert_allclose(np.linalg.norm(drawn, axis=1), math.sqrt(0.5), atol=1e-6)


def test_the_maximum_likelihood_of_opposite_votes_is_the_log_odds():
    rows = np.concatenate([np.ones((3, 1)), -np.ones((1, 1))])  # 3 wins to 1: σ(x) = 3/4
    assert maximum_likelihood(rows, box(1, -5, 5), ridge=1e-9)[0] == pytest.approx(math.log(3), abs=1e-6)
    assert maximum_likelihood(rows, box(1), ridge=1e-9)[0] == 1.0  # clipped to the box


def test_the_maximum_likelihood_is_stationary_with_its_ridge():
    rows = rng(2).standard_normal((30, 3))
    x = maximum_likelihood(rows, box(3, -50, 50), ridge=0.1)
    gradient = -(rows / (1 + np.exp(rows @ x))[:, None]).sum(0) + 0.1 * x
    np.testing.assert_allclose(gradient, 0.0, atol=1e-6)


def test_comparisons_that_agree_push_the_likelihood_to_the_wall():
    x = maximum_likelihood([[1.0, 0.0], [2.0, 0.0]], box(2))
    assert x.tolist() == [1.0, 0.0]
    assert maximum_likelihood(np.zeros((0, 2)), box(2)).tolist() == [0.0, 0.0]
    np.testing.assert_allclose(maximum_likelihood([[3.0, 4.0]], ball(2, 0.5)), [0.3, 0.4], atol=1e-6)


def test_the_chebyshev_centre_is_the_incentre_and_the_largest_margin_is_at_the_wall():
    feasible = box(2, 0.0, 1.0).with_rows([-1.0, -1.0], -1.0)  # x + y <= 1
    r = 1 / (2 + math.sqrt(2))
    np.testing.assert_allclose(chebyshev(feasible), [r, r], atol=1e-9)
    np.testing.assert_allclose(max_margin(feasible), [0.0, 0.0], atol=1e-9)  # the box has no margin


def test_maximum_entropy_matches_the_features_of_a_softmax():
    # One state, 4 actions with features φ: the soft value is log Σ exp(φ x), its gradient φᵀ softmax(φ x).
    phi = rng(3).standard_normal((4, 3))
    x_true = np.array([0.5, -0.3, 0.2])

    def expected(x):
        p = np.exp(phi @ x)
        return phi.T @ (p / p.sum())

    x = maximum_entropy(expected, expected(x_true), box(3), tolerance=1e-9)
    np.testing.assert_allclose(x, x_true, atol=1e-6)


@pytest.mark.parametrize("feasible", [box(2, -0.4, 0.4), ball(2, 0.4)])
def test_maximum_entropy_of_features_out_of_reach_is_optimal_on_the_boundary(feasible):
    def expected(x):  # two actions each of two independent choices
        return np.tanh(x)

    target = np.array([0.9, 0.1])  # tanh(1.47), tanh(0.1003)
    x = maximum_entropy(expected, target, feasible, tolerance=1e-10)
    grid = np.stack(np.meshgrid(*[np.linspace(-0.4, 0.4, 801)] * 2), -1).reshape(-1, 2)
    grid = grid[np.linalg.norm(grid, axis=1) <= (feasible.radius or 1.0)]
    dual = np.log(np.cosh(grid)).sum(1) - grid @ target
    mine = np.log(np.cosh(x)).sum() - x @ target
    assert mine <= dual.min() + 1e-9
    assert feasible.contains(x, 1e-9)


def test_hit_and_run_is_uniform_in_a_triangle():
    feasible = box(2, 0.0, 1.0).with_rows([-1.0, -1.0], -1.0)
    x = hit_and_run(feasible, rng(), 3000, thin=3)
    assert max(feasible.violation(p) for p in x[::20]) <= 1e-9
    # Mean 1/3 and variance 1/18 of each coordinate, covariance -1/36.
    np.testing.assert_allclose(x.mean(0), [1 / 3, 1 / 3], atol=0.02)
    np.testing.assert_allclose(np.cov(x.T), [[1 / 18, -1 / 36], [-1 / 36, 1 / 18]], atol=0.006)


def test_hit_and_run_knows_oracles_and_balls():
    by_ball = hit_and_run(ball(2, 0.5), rng(), 3000)
    by_oracle = hit_and_run(box(2).with_cuts(energy(0.25)), rng(), 600)
    for x, atol in ((by_ball, 0.012), (by_oracle, 0.025)):
        radii = np.linalg.norm(x, axis=1)
        assert radii.max() <= 0.5 + 1e-6
        assert (radii**2).mean() == pytest.approx(0.125, abs=atol)  # uniform in the disc: R² / 2


def test_hit_and_run_stays_on_equality_rows():
    x = hit_and_run(box(2, 0.0, 1.0).with_rows([1.0, 1.0], 1.0, 1.0), rng(), 2000)
    np.testing.assert_allclose(x.sum(1), 1.0, atol=1e-6)
    assert x[:, 0].mean() == pytest.approx(0.5, abs=0.03)
    assert x[:, 0].var() == pytest.approx(1 / 12, abs=0.006)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: arbitrary(box(2), rng(), 0), "draws must be at least 1, got 0"),
        (lambda: maximum_likelihood([[1.0]], box(2)), r"rows must have shape \(n, 2\)"),
        (lambda: maximum_likelihood([[1.0, 0.0]], box(2), 0.0), "ridge must be positive, got 0.0"),
        (lambda: maximum_entropy(lambda x: x, [1.0], box(2)), r"target must have shape \(2,\)"),
        (lambda: maximum_entropy(lambda x: x[:1], [1.0, 0.0], box(2)), r"finite features \(2,\), got shape \(1,\)"),
        (lambda: hit_and_run(box(2), rng(), 0), "n and thin must be at least 1"),
        (lambda: hit_and_run(box(2), rng(), 5, start=[2.0, 0.0]), "breaks a constraint by 1.0"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_too_few_iterations_say_so():
    with pytest.raises(RuntimeError, match="in 1 iterations"):
        maximum_entropy(np.tanh, np.array([0.9, 0.1]), box(2, -5, 5), tolerance=1e-12, iterations=1)
