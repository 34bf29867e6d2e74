"""The colour of each Gaussian as one camera sees it (Sec. 3.2).

    col_i(v) = clamp(0.5 + C0 (base_i + sum_{j < n_i} G(v; mu_ij, s_ij, a_ij)), 0, 1),   v_i = (c - x_i) / |c - x_i|

Channels that the clamp changes get no gradient. With spherical harmonics in place of lobes the direction is opposite,
and there is no upper clamp, as in 3DGS.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from megs2.gaussians import C0, Gaussians
from megs2.spherical_gaussians import lobes
from megs2.spherical_harmonics import sh_basis


def directions_to(centre: Tensor, means: Tensor) -> Tensor:
    """Return unit directions (N, 3) from Gaussians (N, 3) to a camera at `centre` (3,)."""
    return F.normalize(centre - means, dim=-1)


def colours(gaussians: Gaussians, centre: Tensor) -> Tensor:
    """Evaluate the colours seen from a place.

    Args:
        gaussians: N Gaussians.
        centre: (3,) where the camera is.

    Returns:
        (N, 3): in [0, 1] of a scene with room for lobes, otherwise at least 0.
    """
    units = gaussians.base
    if gaussians.rest.shape[1] or gaussians.max_lobes:
        towards = directions_to(centre, gaussians.means)
    if gaussians.rest.shape[1]:
        basis = sh_basis(-towards, gaussians.sh_degree)
        # The coefficients beyond the constant are in absolute units, base in those of C0.
        units = units + (basis[..., None] * gaussians.rest).sum(1) / C0
    if gaussians.max_lobes:
        # Slots that are not active may hold anything, and must reach neither value nor gradient.
        active = gaussians.active
        amplitudes = torch.where(active[..., None], gaussians.amplitudes, 0.0)
        sharpness = torch.where(active, gaussians.sharpness, 0.0)
        axes = torch.where(active[..., None], gaussians.axes, 1.0)
        units = units + lobes(towards[:, None], axes, sharpness, amplitudes).sum(1)
    colour = 0.5 + C0 * units
    # At exactly 0 or 1 there is a gradient, so that black and white can be left; versions of torch differ in clamp.
    free = (colour >= 0) & (colour <= 1) if gaussians.max_lobes else colour >= 0
    return torch.where(free, colour, colour.detach().clamp(0, 1 if gaussians.max_lobes else None))
