"""The colour models that are compared: lobes, spherical harmonics (3DGS, GaussianSpa), lobes along fixed axes.

They differ in what a Gaussian stores. Optimiser, schedule and pruning are the same for all, so that GaussianSpa is
harmonics with a budget, and 3DGS harmonics without one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from megs2.gaussians import Gaussians, from_points

Colour = Literal["sg", "sh", "fixed_axes"]


def fixed_axes(gaussians: Gaussians) -> Gaussians:
    """Give all Gaussians the same orthogonal axes x, y, z, as many as there is room for; they are not to be trained.

    Args:
        gaussians: with room for up to three lobes.
    """
    axes = torch.eye(3)[: gaussians.max_lobes].to(gaussians.axes)
    return replace(gaussians, axes=axes.expand(len(gaussians), -1, -1).clone())


def start(
    colour: Colour, points: Tensor, seen: Tensor, *, lobes: int, sh_degree: int, generator: torch.Generator
) -> Gaussians:
    """Start a scene of a colour model from coloured points.

    Args:
        colour: `sg`, `sh` or `fixed_axes`.
        points: (P, 3).
        seen: their colours (P, 3) in [0, 1].
        lobes: K, of `sg` and `fixed_axes`.
        sh_degree: 0 to 3, of `sh`.
        generator: of the lobes, on the CPU.

    Returns:
        P Gaussians.
    """
    if colour == "sh":
        return from_points(points, seen, sh_degree=sh_degree)
    scene = from_points(points, seen, lobes=lobes, generator=generator)
    return fixed_axes(scene) if colour == "fixed_axes" else scene
