"""Trivial predictors: exact where they must be, and clear before they are fitted."""

import math

import numpy as np
import pytest
import torch
from atom.baselines import FITTED, FREE, TRIVIAL, NearestNeighbour, Ridge, TrainMean, constant_velocity, identity

N, P = 3, 4


def states(count, seed=0):
    gen = torch.Generator().manual_seed(seed)
    x = torch.randn(count, N, 3, generator=gen, dtype=torch.float64)
    return x, 0.01 * torch.randn(count, N, 3, generator=gen, dtype=torch.float64)


def futures(count, seed=1):
    return torch.randn(count, P, N, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_identity_repeats_the_state_in_a_tensor_of_its_own():
    x, v = states(2)
    out = identity(x, v, torch.ones(2, P))
    for p in range(P):
        assert torch.equal(out[:, p], x)
    out += 1
    assert torch.equal(x, states(2)[0])


def test_constant_velocity_is_exact_on_free_flight_with_lags_of_each_sample():
    start, velocity = states(2)
    steps = torch.tensor([[1, 2, 5, 9], [3, 4, 8, 16]])
    path = start.unsqueeze(1) + torch.arange(20, dtype=torch.float64)[:, None, None] * velocity.unsqueeze(1)
    expected = torch.stack([path[b, steps[b]] for b in range(2)])
    torch.testing.assert_close(constant_velocity(path[:, 0], path[:, 1] - path[:, 0], steps), expected)


def test_train_mean_predicts_the_mean_future_whatever_the_state():
    x, v = states(5)
    y = futures(5)
    out = TrainMean().fit(x, v, y).predict(*states(2, seed=9))
    torch.testing.assert_close(out, torch.stack([sum(y) / 5] * 2))


def test_ridge_recovers_an_affine_map_from_samples():
    """y_p = x + A_p (x, v) + b_p has no noise, so leave-one-out takes the least penalty and finds the map."""
    gen = torch.Generator().manual_seed(2)
    a = torch.randn(P * N * 3, 2 * N * 3, generator=gen, dtype=torch.float64)
    b = torch.randn(P * N * 3, generator=gen, dtype=torch.float64)

    def move(x, v):
        features = torch.cat((x.flatten(1), 100 * v.flatten(1)), 1)
        return x.unsqueeze(1) + (features @ a.T + b).view(-1, P, N, 3)

    x, v = states(60)
    ridge = Ridge().fit(x, v, move(x, v))
    new = states(7, seed=3)
    torch.testing.assert_close(ridge.predict(*new), move(*new), rtol=0, atol=1e-7)
    assert ridge.alpha == 1e-8


def test_ridge_is_exact_for_harmonic_vibrations():
    """x(t + Δ) = x_0 + (x − x_0) cos ωΔ + v sin ωΔ / ω is linear in the state, also with v as a frame difference."""
    t = torch.arange(0, 200, dtype=torch.float64) * 0.77
    omega = torch.linspace(0.2, 0.5, N * 3, dtype=torch.float64)
    lags = torch.tensor([2.0, 4.0, 8.0, 16.0], dtype=torch.float64)

    def position(times):
        return (torch.arange(N * 3) + 0.1 * torch.cos(omega * times.unsqueeze(-1) + omega * 7)).unflatten(-1, (N, 3))

    x, y = position(t), position(t.unsqueeze(1) + lags)
    v = position(t + 1) - x
    ridge = Ridge().fit(x[:150], v[:150], y[:150])
    assert (ridge.predict(x[150:], v[150:]) - y[150:]).square().mean() < 1e-10
    assert (identity(x[150:], v[150:], lags.expand(50, P)) - y[150:]).square().mean() > 1e-3


def test_ridge_shrinks_towards_a_constant_displacement_as_the_penalty_grows():
    x, v = states(40)
    y = futures(40)
    displacement = (y - x.unsqueeze(1)).mean(0)
    new = states(2, seed=5)
    out = Ridge(np.array([1e12])).fit(x, v, y).predict(*new)
    torch.testing.assert_close(out, new[0].unsqueeze(1) + displacement, rtol=0, atol=1e-8)


def test_ridge_minimises_its_penalised_sum_of_squares():
    """One feature varies, so the slope is S_xy / (S_xx + λ), with S_xx = n for a standardised feature."""
    x, v = states(6)[0] * 0, states(6)[1] * 0
    values = torch.tensor([1.0, 2.0, 4.0, 5.0, 7.0, 11.0], dtype=torch.float64)
    x[:, 0, 0] = values
    y = x.unsqueeze(1) + values.square().view(6, 1, 1, 1)
    standard = (values - values.mean()) / values.std(correction=0)
    slope = (standard * values.square()).sum() / (6 + 2.5)
    out = Ridge(np.array([2.5])).fit(x, v, y).predict(x, v)
    expected = x.unsqueeze(1) + (values.square().mean() + slope * standard).view(6, 1, 1, 1)
    torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("chunk", [1, 3, 512])
def test_the_nearest_neighbours_future_is_returned(chunk):
    x, v = states(30)
    y = futures(30)
    chosen = torch.tensor([4, 17, 0, 29, 17])
    out = NearestNeighbour(chunk).fit(x, v, y).predict(x[chosen] + 1e-4, v[chosen] - 1e-6)
    assert torch.equal(out, y[chosen])


def test_positions_and_velocities_count_by_their_own_deviation():
    """Deviations 1 Å and 0.01 Å per frame: a miss of 0.3 σ in x is nearer than one of 0.5 σ in v, though 60× longer."""
    x = torch.zeros(2, 1, 3, dtype=torch.float64)
    v = torch.zeros(2, 1, 3, dtype=torch.float64)
    x[1], v[1] = 2.0, 0.02  # deviations from the mean: 1 and 0.01 in every coordinate
    model = NearestNeighbour().fit(x, v, torch.arange(2.0).view(2, 1, 1, 1).expand(2, P, 1, 3))
    # Offsets from the first sample in units of σ: (0.9, 1.3); squares 0.81 + 1.69 < 1.21 + 0.49 is false.
    assert model.predict(x[:1] + 0.9, v[:1] + 0.013).unique() == 1
    assert model.predict(x[:1] + 1.3, v[:1] + 0.006).unique() == 0


def test_predictions_keep_the_dtype_of_the_state():
    x, v = states(12)
    y = futures(12)
    for kind in FITTED.values():
        out = kind().fit(x.float(), v.float(), y.float()).predict(x.float(), v.float())
        assert out.dtype == torch.float32 and out.isfinite().all()


def test_what_was_fitted_does_not_change_with_the_callers_data():
    for kind in FITTED.values():
        (x, v), y = states(12), futures(12)
        model = kind().fit(x, v, y)
        before = model.predict(*states(3, seed=4))
        x += 1
        v += 1
        y += 1
        assert torch.equal(model.predict(*states(3, seed=4)), before)


def test_every_trivial_predictor_is_listed_once():
    assert TRIVIAL == ("identity", "constant_velocity", "train_mean", "ridge", "nearest")
    assert set(TRIVIAL) == set(FREE) | set(FITTED)


@pytest.mark.parametrize("kind", FITTED.values(), ids=list(FITTED))
def test_predicting_too_early_or_for_another_molecule_is_refused(kind):
    x, v = states(12)
    with pytest.raises(ValueError, match=f"{kind.__name__} must be fitted before it predicts"):
        kind().predict(x, v)
    model = kind().fit(x, v, futures(12))
    with pytest.raises(ValueError, match=r"molecule of 3 atoms: x and v must both be \(B, 3, 3\), got \(12, 2, 3\)"):
        model.predict(x[:, :2], v[:, :2])
    with pytest.raises(ValueError, match=r"y must be \(12, P, 3, 3\) to go with x, got \(11, 4, 3, 3\)"):
        kind().fit(x, v, futures(11))
    with pytest.raises(ValueError, match=r"x and v must both be \(n, N, 3\) with n of at least 1"):
        kind().fit(x, v[:, :2], futures(12))


def test_options_out_of_range_are_refused():
    with pytest.raises(ValueError, match="chunk must be at least 1, got 0"):
        NearestNeighbour(0)
    with pytest.raises(ValueError, match=r"alphas must be one or more positive numbers, got \[0.0\]"):
        Ridge(np.zeros(1))
    with pytest.raises(ValueError, match="Ridge needs at least 2 samples to choose its penalty, got 1"):
        Ridge().fit(*states(1), futures(1))
    assert math.isclose(Ridge().alphas[0], 1e-8)
