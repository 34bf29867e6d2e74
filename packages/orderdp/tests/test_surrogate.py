"""γ and L_q against exact fractions, brute force over all pools, and closed-form limits."""

import importlib.util
import itertools
import math
import shutil
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from orderdp import surrogate
from orderdp.surrogate import limit_weights, never_kept, order_weights, surrogate_loss, surrogate_weights

LOSSES = [3.0, 1.0, 4.0, 1.5, 2.0]


def all_sizes(largest):
    return [(n, s, q) for n in range(1, largest + 1) for s in range(1, n + 1) for q in range(1, s + 1)]


def double_sum(n, s, q):
    """The paper's sum over the rank l that sample j has in the pool, in exact fractions (Sec. 3.3)."""
    return [
        sum(
            Fraction(math.comb(j - 1, rank - 1) * math.comb(n - j, s - rank), math.comb(n, s))
            for rank in range(max(1, s - n + j), min(q, j) + 1)
        )
        for j in range(1, n + 1)
    ]


def counted(n, s, q):
    """How often rank j is among the q first of a pool, over all pools."""
    counts = [0] * n
    for pool in itertools.combinations(range(n), s):
        for j in pool[:q]:
            counts[j] += 1
    return [Fraction(count, math.comb(n, s)) for count in counts]


@pytest.mark.parametrize(
    ("n", "s", "q", "expected"),
    [
        (5, 3, 2, [3 / 5, 3 / 5, 1 / 2, 3 / 10, 0]),
        (10, 5, 3, [1 / 2, 1 / 2, 1 / 2, 10 / 21, 5 / 12, 9 / 28, 17 / 84, 1 / 12, 0, 0]),
        (6, 4, 1, [2 / 3, 4 / 15, 1 / 15, 0, 0, 0]),
    ],
)
def test_gamma_is_that_of_the_worked_examples(n, s, q, expected):
    np.testing.assert_allclose(order_weights(n, s, q), expected, rtol=1e-13, atol=0)


def test_gamma_equals_the_papers_double_sum_and_the_count_over_all_pools():
    assert order_weights(1, 1, 1).tolist() == [1.0]
    for n, s, q in all_sizes(9):
        exact = double_sum(n, s, q)
        assert exact == counted(n, s, q), (n, s, q)
        assert sum(exact) == q
        np.testing.assert_allclose(order_weights(n, s, q), [float(x) for x in exact], rtol=1e-12, atol=0)


def test_gamma_sums_to_q_never_increases_and_is_exactly_zero_for_the_last_s_minus_q_ranks():
    for n, s, q in [*all_sizes(9), (100, 50, 30), (1000, 999, 1), (5000, 2500, 1500)]:
        gamma = order_weights(n, s, q)
        assert gamma.sum() == pytest.approx(q, rel=1e-12)
        assert np.diff(gamma).max(initial=0) <= 1e-14
        assert np.count_nonzero(gamma[n - s + q :]) == 0
        if n < 10:  # of many samples the last that can be chosen are so unlikely that they underflow
            assert never_kept(s, q) == np.count_nonzero(gamma == 0)


def test_equal_pool_and_budget_is_uniform_and_the_whole_pool_is_the_top_q():
    np.testing.assert_allclose(order_weights(7, 3, 3), np.full(7, 3 / 7), rtol=1e-13)
    assert order_weights(7, 7, 3).tolist() == [1, 1, 1, 0, 0, 0, 0]
    assert surrogate_loss(LOSSES, 2, 2) == pytest.approx(2.3, abs=1e-14)
    assert surrogate_loss(LOSSES, 5, 2) == pytest.approx((4 + 3) / 2, abs=1e-14)


def test_gamma_of_imagenet_size_is_finite_and_sums_to_q():
    n, s, q = 1_300_000, 1_040_000, 936_000  # the ratios of ResNet-18: 0.8 x 0.9
    gamma = order_weights(n, s, q)
    assert np.isfinite(gamma).all()
    assert gamma.sum() == pytest.approx(q, rel=1e-9)
    # In proportion to n the limit is a step: ρ for z < κ, 0 beyond.
    assert gamma[int(0.89 * n)] == pytest.approx(0.8, abs=1e-9)
    assert gamma[int(0.91 * n)] == pytest.approx(0.0, abs=1e-9)


def test_surrogate_loss_is_the_worked_example_and_the_mean_over_all_pools():
    assert surrogate_loss(LOSSES, 3, 2) == pytest.approx(2.825, abs=1e-14)
    pools = [sorted(pool, reverse=True)[:2] for pool in itertools.combinations(LOSSES, 3)]
    assert np.mean(pools) == pytest.approx(2.825, abs=1e-14)


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=12), st.data())
@settings(max_examples=100, deadline=None)
def test_surrogate_is_never_below_the_mean_loss(losses, data):
    s = data.draw(st.integers(1, len(losses)))
    q = data.draw(st.integers(1, s))
    assert surrogate_loss(losses, s, q) >= np.mean(losses) - 1e-10
    assert surrogate_loss(np.full(len(losses), losses[0]), s, q) == pytest.approx(losses[0], abs=1e-10)
    assert surrogate_loss(losses, q, q) == pytest.approx(np.mean(losses), abs=1e-10)


def test_surrogate_is_above_the_mean_by_a_margin_where_losses_and_sizes_differ():
    for n, s, q in [x for x in all_sizes(6) if x[1] > x[2]]:
        losses = np.arange(n, dtype=float)
        assert surrogate_loss(losses, s, q) > losses.mean() + 0.1, (n, s, q)


def test_weights_of_equal_losses_are_the_mean_over_random_ties():
    losses = [2.0, 1.0, 2.0, 3.0, 1.0, 1.0]
    gamma = order_weights(6, 4, 2) / 2
    total = np.zeros(6)
    for key in itertools.permutations(range(6)):
        ranked = sorted(range(6), key=lambda i, key=key: (-losses[i], key[i]))
        total[ranked] += gamma
    np.testing.assert_allclose(surrogate_weights(losses, 4, 2), total / math.factorial(6), rtol=1e-12, atol=1e-16)


def test_weights_follow_the_samples_and_give_the_surrogate():
    weights = surrogate_weights(LOSSES, 3, 2)
    np.testing.assert_allclose(weights, [3 / 10, 0, 3 / 10, 3 / 20, 1 / 4], rtol=1e-13)
    assert weights @ LOSSES == pytest.approx(2.825, abs=1e-14)


def test_mean_gradient_over_all_pools_is_that_of_the_surrogate_and_not_of_the_mean_loss():
    n, s, q = 12, 6, 3
    rng = np.random.default_rng(3)
    x, y = torch.from_numpy(rng.normal(size=(n, 4))), torch.from_numpy(rng.normal(size=n))
    theta = torch.from_numpy(rng.normal(size=4)).requires_grad_()

    losses = (x @ theta - y) ** 2 / 2
    objective = torch.from_numpy(order_weights(n, s, q)) @ losses.sort(descending=True).values / q
    (surrogate_gradient,) = torch.autograd.grad(objective, theta, retain_graph=True)
    (mean_gradient,) = torch.autograd.grad(losses.mean(), theta)

    values = losses.detach().numpy()
    gradients = ((x @ theta - y)[:, None] * x).detach().numpy()
    rounds = [sorted(pool, key=lambda i: -values[i])[:q] for pool in itertools.combinations(range(n), s)]
    average = np.mean([gradients[kept].mean(axis=0) for kept in rounds], axis=0)

    np.testing.assert_allclose(average, surrogate_gradient.numpy(), rtol=0, atol=1e-10)
    np.testing.assert_allclose(surrogate_weights(values, s, q) @ gradients, average, rtol=0, atol=1e-10)
    assert np.abs(average - mean_gradient.numpy()).max() > 0.1


def test_limit_is_the_polynomial_of_small_pools():
    z = np.linspace(0, 1, 11)
    np.testing.assert_allclose(limit_weights(z, 1, 1), 1 + 0 * z, atol=1e-14)
    np.testing.assert_allclose(limit_weights(z, 2, 1), 2 * (1 - z), atol=1e-14)
    np.testing.assert_allclose(limit_weights(z, 3, 2), 3 * (1 - z**2), atol=1e-14)


@pytest.mark.parametrize(("s", "q"), [(4, 1), (5, 3), (10, 4)])
def test_n_gamma_approaches_the_limit_as_one_over_n_and_its_integral_is_q(s, q):
    errors = []
    for n in (100, 1000, 10000):
        z = (np.arange(n) + 0.5) / n
        errors.append(np.abs(n * order_weights(n, s, q) - limit_weights(z, s, q)).max())
    assert errors[2] < 0.02
    assert 9 < errors[0] / errors[1] < 12
    assert 9 < errors[1] / errors[2] < 12
    nodes, weights = np.polynomial.legendre.leggauss(s)  # exact for a polynomial of degree s - 1
    assert weights / 2 @ limit_weights((nodes + 1) / 2, s, q) == pytest.approx(q, rel=1e-12)


@pytest.mark.parametrize(("n", "s", "q"), [(5, 3, 0), (5, 2, 3), (5, 6, 3), (0, 0, 0), (5, 3, -1)])
def test_sizes_out_of_range_are_refused_by_name(n, s, q):
    with pytest.raises(ValueError, match=f"expected 1 <= q <= s <= n, got q = {q}, s = {s}, n = {n}"):
        order_weights(n, s, q)


def test_bad_losses_and_quantiles_are_refused_by_name():
    for function in (surrogate_loss, surrogate_weights):
        with pytest.raises(ValueError, match="losses must be finite"):
            function([1.0, math.nan], 1, 1)
        with pytest.raises(ValueError, match="losses must be finite"):
            function([1.0, math.inf], 1, 1)
        with pytest.raises(ValueError, match=r"losses must have shape \(n,\) with n >= 1, got \(0,\)"):
            function([], 1, 1)
        with pytest.raises(ValueError, match=r"losses must have shape \(n,\) with n >= 1, got \(2, 2\)"):
            function(np.ones((2, 2)), 1, 1)
        with pytest.raises(ValueError, match="got q = 2, s = 1, n = 2"):
            function([1.0, 2.0], 1, 2)
    for z in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match=r"z must lie in \[0, 1\], got"):
            limit_weights(z, 3, 2)
    for q in (0, 4):
        with pytest.raises(ValueError, match=rf"q must lie in \[1, s\] = \[1, 3\], got {q}"):
            limit_weights(0.5, 3, q)


def test_caller_s_losses_are_left_as_they_are():
    losses = np.array(LOSSES)
    surrogate_loss(losses, 3, 2)
    surrogate_weights(losses, 3, 2)
    assert losses.tolist() == LOSSES


def test_the_file_works_alone(tmp_path):
    path = tmp_path / "borrowed.py"
    shutil.copy(surrogate.__file__, path)
    spec = importlib.util.spec_from_file_location("borrowed", path)
    borrowed = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(borrowed)  # a relative import would fail here
    assert borrowed.surrogate_loss(LOSSES, 3, 2) == pytest.approx(2.825, abs=1e-14)
