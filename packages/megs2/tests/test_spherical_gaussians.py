from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from megs2.spherical_gaussians import compensation, lobes, sphere_mean, sphere_variance


def exact_moments(s: float) -> tuple[float, float]:
    """Integrate exp(s (t - 1)) and its square over t = mu . v, which is uniform in [-1, 1] on the sphere."""
    nodes, weights = map(torch.from_numpy, np.polynomial.legendre.leggauss(200))
    values = torch.exp(s * (nodes - 1))
    mean = float((weights * values).sum() / 2)
    return mean, float((weights * (values - mean) ** 2).sum() / 2)


@pytest.mark.parametrize("s", [0.0, 1e-6, 1e-3, 0.019, 0.021, 0.039, 0.041, 0.1, 1.0, 10.0, 100.0])
@pytest.mark.parametrize("sign", [1, -1])
def test_mean_and_variance_are_the_integrals_over_the_sphere(s: float, sign: int) -> None:
    mean, variance = exact_moments(s)
    exact = torch.tensor(sign * s, dtype=torch.float64)
    assert float(sphere_mean(exact)) == pytest.approx(mean, rel=1e-8)
    assert float(sphere_variance(exact)) == pytest.approx(variance, rel=1e-5, abs=1e-16)
    assert float(sphere_mean(exact.float())) == pytest.approx(mean, rel=1e-6)
    assert float(sphere_variance(exact.float())) == pytest.approx(variance, rel=2e-3, abs=1e-12)


@pytest.mark.parametrize("s", [1e-6, 0.1, 1.0, 10.0])
def test_mean_over_random_directions_is_within_the_monte_carlo_error(s: float) -> None:
    g = torch.Generator().manual_seed(0)
    directions = torch.nn.functional.normalize(torch.randn(200_000, 3, generator=g, dtype=torch.float64), dim=1)
    axis, amplitude = torch.tensor([0.3, -2.0, 0.5]).double(), torch.tensor([1.0, -0.5, 2.0]).double()
    values = lobes(
        directions, axis.expand(200_000, 3), torch.full((200_000,), s).double(), amplitude.expand(200_000, 3)
    )
    error = values.std(0) / math.sqrt(200_000)
    found = compensation(torch.tensor(s).double(), amplitude)
    assert bool(((values.mean(0) - found).abs() <= 4 * error + 1e-12).all())


def test_no_nan_in_value_or_gradient_as_the_sharpness_goes_to_zero() -> None:
    for function in (sphere_mean, sphere_variance):
        s = torch.tensor([0.0, 1e-30, 1e-8, -1e-8, 1e30], requires_grad=True)
        (grad,) = torch.autograd.grad(function(s).sum(), s)
        assert bool(function(s).isfinite().all())
        assert bool(grad.isfinite().all())


def test_value_at_the_axis_is_the_amplitude_and_falls_to_exp_minus_2s_opposite() -> None:
    axis, a = torch.tensor([[0.0, 0, 5], [0, 0, 5]]), torch.tensor([[2.0, -1, 0]]).expand(2, 3)
    found = lobes(torch.tensor([[0.0, 0, 1], [0, 0, -1]]), axis, torch.tensor([-3.0, 3.0]), a)
    torch.testing.assert_close(found, torch.stack([a[0], a[0] * math.exp(-6)]))
