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


@pytest.mark.parametrize("s", [0.0, 1e-6, 1e-3, 5e-3, 0.019, 0.021, 0.039, 0.041, 0.1, 1.0, 10.0, 100.0])
@pytest.mark.parametrize("sign", [1, -1])
def test_mean_and_variance_are_the_integrals_over_the_sphere(s: float, sign: int) -> None:
    mean, variance = exact_moments(s)
    exact = torch.tensor(sign * s, dtype=torch.float64)
    assert float(sphere_mean(exact)) == pytest.approx(mean, rel=1e-8)
    assert float(sphere_variance(exact)) == pytest.approx(variance, rel=1e-5, abs=1e-16)
    assert float(sphere_mean(exact.float())) == pytest.approx(mean, rel=1e-6)
    assert float(sphere_variance(exact.float())) == pytest.approx(variance, rel=2e-3, abs=1e-12)


@pytest.mark.parametrize("s", [1e-6, 0.1, 1.0, 10.0])
def test_mean_and_variance_over_random_directions_are_within_the_monte_carlo_error(s: float) -> None:
    g = torch.Generator().manual_seed(0)
    directions = torch.nn.functional.normalize(torch.randn(200_000, 3, generator=g, dtype=torch.float64), dim=1)
    axis, amplitude = torch.tensor([0.3, -2.0, 0.5]).double(), torch.tensor([1.0, -0.5, 2.0]).double()
    values = lobes(
        directions, axis.expand(200_000, 3), torch.full((200_000,), s).double(), amplitude.expand(200_000, 3)
    )
    error = values.std(0) / math.sqrt(200_000)
    found = compensation(torch.tensor(s).double(), amplitude)
    assert bool(((values.mean(0) - found).abs() <= 4 * error + 1e-12).all())
    squares = (values - found).square()
    variance = amplitude**2 * sphere_variance(torch.tensor(s).double())
    assert bool(((squares.mean(0) - variance).abs() <= 4 * squares.std(0) / math.sqrt(200_000)).all())


@pytest.mark.parametrize("s", [0.01, 0.7, 12.0])
def test_no_other_constant_has_a_smaller_squared_error_over_the_sphere(s: float) -> None:
    nodes, weights = map(torch.from_numpy, np.polynomial.legendre.leggauss(100))
    amplitude = torch.tensor([1.5, -0.3, 0.8]).double()
    directions = torch.stack([(1 - nodes**2).sqrt(), torch.zeros(100), nodes], 1)
    axis, sharpness = torch.tensor([0.0, 0, 1]).double(), torch.tensor(s).double()
    values = lobes(directions, axis.expand(100, 3), sharpness.expand(100), amplitude.expand(100, 3))

    def error(constant: torch.Tensor) -> torch.Tensor:
        return (weights[:, None] / 2 * (values - constant).square()).sum(0)

    best = compensation(sharpness, amplitude)
    torch.testing.assert_close(error(best), amplitude**2 * sphere_variance(sharpness), rtol=1e-5, atol=0)
    for step in (1e-3, -1e-3):
        torch.testing.assert_close(error(best + step) - error(best), torch.full((3,), 1e-6).double(), rtol=1e-6, atol=0)


def test_no_nan_in_value_or_gradient_as_the_sharpness_goes_to_zero() -> None:
    for function in (sphere_mean, sphere_variance):
        s = torch.tensor([0.0, 1e-30, 1e-8, -1e-8, 1e30], requires_grad=True)
        (grad,) = torch.autograd.grad(function(s).sum(), s)
        assert bool(function(s).isfinite().all())
        assert bool(grad.isfinite().all())


def test_gradients_in_single_precision_are_those_in_double() -> None:
    # Far from the thresholds of the series and close to them, on both sides.
    places = torch.tensor([1e-6, 1e-3, 0.0199, 0.0201, 0.0399, 0.0401, 0.1, 1.0, 10.0, -0.5]).double()
    for function, tolerance in ((sphere_mean, 1e-4), (sphere_variance, 1e-2)):
        grads = []
        for dtype in (torch.float32, torch.float64):
            s = places.to(dtype).requires_grad_()
            grads.append(torch.autograd.grad(function(s).sum(), s)[0].double())
        torch.testing.assert_close(grads[0], grads[1], rtol=tolerance, atol=0)
    s = torch.tensor(1e-9, dtype=torch.float64, requires_grad=True)
    assert float(torch.autograd.grad(sphere_mean(s), s)[0]) == pytest.approx(-1)


def test_value_at_the_axis_is_the_amplitude_and_falls_to_exp_minus_2s_opposite() -> None:
    axis, a = torch.tensor([[0.0, 0, 5], [0, 0, 5]]), torch.tensor([[2.0, -1, 0]]).expand(2, 3)
    found = lobes(torch.tensor([[0.0, 0, 1], [0, 0, -1]]), axis, torch.tensor([-3.0, 3.0]), a)
    torch.testing.assert_close(found, torch.stack([a[0], a[0] * math.exp(-6)]))
