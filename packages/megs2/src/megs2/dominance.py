"""The Gaussian that contributes most to each pixel, and how many pixels each so dominates (Sec. 3.5, blur-split).

gsplat does not report it, so it is compiled for the CPU; a scene on another device is copied for it.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor

from megs2.camera import Camera
from megs2.compositing import ALPHA_MAX, T_MIN
from megs2.gaussians import Gaussians
from megs2.projection import ALPHA_MIN, project
from megs2.tiles import Floats, Ints, list_pairs

TILE = 16


@njit(cache=True, nogil=True, error_model="numpy")
def _dominant(
    across: int, size: int, starts: NDArray[np.int64], ids: Ints, means2d: Floats, conics: Floats, opacities: Floats,
    limits: Floats, winners: Ints,
) -> None:  # fmt: skip
    """Write the Gaussian of the largest T alpha into each pixel of `winners` (H, W), which holds -1."""
    height, width = winners.shape
    for row in range(height):
        for column in range(width):
            tile = row // size * across + column // size
            remaining, largest = limits[4], limits[4] - limits[4]
            for place in range(starts[tile], starts[tile + 1]):
                g = ids[place]
                dx, dy = column + limits[3] - means2d[g, 0], row + limits[3] - means2d[g, 1]
                exponent = limits[3] * (conics[g, 0] * dx * dx + conics[g, 2] * dy * dy) + conics[g, 1] * dx * dy
                alpha = min(limits[1], opacities[g] * math.exp(-exponent))
                if not alpha >= limits[0] or exponent < 0:
                    continue
                if remaining * (limits[4] - alpha) <= limits[2]:
                    break
                if remaining * alpha > largest:
                    largest = remaining * alpha
                    winners[row, column] = g
                remaining *= limits[4] - alpha


@torch.no_grad()
def dominant(gaussians: Gaussians, camera: Camera) -> Tensor:
    """Return for each pixel the index of the Gaussian with the largest T alpha, (H, W) int64; -1 where there is none.

    Args:
        gaussians: N of them, on any device.
        camera: likewise.
    """
    scene, camera = gaussians.detach().to("cpu"), camera.to("cpu")
    opacities = scene.opacities.sigmoid()
    projected = project(scene.means, scene.quats, scene.scales.exp(), opacities, camera)
    across, down = -(-camera.width // TILE), -(-camera.height // TILE)
    means2d = projected.means2d.contiguous().numpy()
    order = torch.argsort(projected.depths, stable=True).numpy()
    starts, ids = list_pairs(means2d, projected.radii.contiguous().numpy(), order, across, down, TILE)
    winners = np.full((camera.height, camera.width), -1, np.int32)
    limits = np.array([ALPHA_MIN, ALPHA_MAX, T_MIN, 0.5, 1], means2d.dtype)
    conics = projected.conics.contiguous().numpy()
    _dominant(across, TILE, starts, ids, means2d, conics, opacities.numpy(), limits, winners)
    return torch.from_numpy(winners).long()


def largest_areas(gaussians: Gaussians, cameras: list[Camera]) -> Tensor:
    """Return the most pixels of a view that each Gaussian dominates, (N,) int64, on the scene's device."""
    areas = torch.zeros(len(gaussians), dtype=torch.long)
    for camera in cameras:
        winners = dominant(gaussians, camera)
        areas = torch.maximum(areas, torch.bincount(winners[winners >= 0], minlength=len(gaussians)))
    return areas.to(gaussians.means.device)
