"""Spherical-Gaussian lobes: their value, their mean and their variance over the sphere (Sec. 3.2, 3.4, 3.6).

    G(v; mu, s, a) = a exp(s (mu . v - 1)),   s >= 0

Sharpness is stored raw and enters by its absolute value; axes are stored raw and normalised.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_SERIES = 0.02  # below it the closed forms cancel in float32, and a series to the fourth order is exact


def lobes(directions: Tensor, axes: Tensor, sharpness: Tensor, amplitudes: Tensor) -> Tensor:
    """Evaluate lobes (Sec. 3.2).

    Args:
        directions: (..., 3) unit vectors from the Gaussian to the camera.
        axes: (..., 3), of any length but 0.
        sharpness: (...), raw.
        amplitudes: (..., 3).

    Returns:
        (..., 3), a exp(s (mu . v - 1)).
    """
    cosine = (F.normalize(axes, dim=-1) * directions).sum(-1)
    return amplitudes * torch.exp(sharpness.abs() * (cosine - 1))[..., None]


def sphere_mean(sharpness: Tensor) -> Tensor:
    """Return the mean over the sphere of a lobe of amplitude 1, (1 - exp(-2 s)) / (2 s); 1 at s = 0 (Sec. 3.6).

    Args:
        sharpness: any shape, raw.

    Returns:
        The same shape, in (0, 1].
    """
    s = sharpness.abs()
    small = s < _SERIES
    safe = torch.where(small, torch.ones_like(s), s)
    s = torch.where(small, s, torch.zeros_like(s))  # a large one would overflow the series, and its gradient be NaN
    series = 1 + s * (-1 + s * (2 / 3 + s * (-1 / 3 + s * (2 / 15))))
    return torch.where(small, series, -torch.expm1(-2 * safe) / (2 * safe))


def sphere_variance(sharpness: Tensor) -> Tensor:
    """Return the variance over the sphere of a lobe of amplitude 1 (Sec. 3.4).

    (1 - exp(-4 s)) / (4 s) - ((1 - exp(-2 s)) / (2 s))^2: what remains of a lobe once its mean is in the base colour.

    Args:
        sharpness: any shape, raw.

    Returns:
        The same shape, 0 at s = 0, where it rises as s^2 / 3.
    """
    s = sharpness.abs()
    # The difference cancels long before its terms do; the series is exact to 1e-5 of it below the threshold.
    small = s < 2 * _SERIES
    safe = torch.where(small, torch.ones_like(s), s)
    s = torch.where(small, s, torch.zeros_like(s))
    series = s * s * (1 / 3 + s * (-2 / 3 + s * (34 / 45 + s * (-28 / 45))))
    return torch.where(small, series, sphere_mean(2 * safe) - sphere_mean(safe) ** 2)


def compensation(sharpness: Tensor, amplitudes: Tensor) -> Tensor:
    """Return what the base colour gains when lobes are removed: their mean over the sphere (Sec. 3.6).

    It is the constant with the least squared error over all directions.

    Args:
        sharpness: (...), raw.
        amplitudes: (..., 3).

    Returns:
        (..., 3), a (1 - exp(-2 s)) / (2 s).
    """
    return amplitudes * sphere_mean(sharpness)[..., None]
