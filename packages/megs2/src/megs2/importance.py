"""How much each Gaussian and each lobe matters to the training pictures (Sec. 3.4, 3.5)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from megs2.camera import Camera
from megs2.colours import colours
from megs2.gaussians import C0, Gaussians
from megs2.rasterizer import TILE, Backend, rasterize
from megs2.spherical_gaussians import sphere_variance


def blending_weights(
    gaussians: Gaussians,
    cameras: Sequence[Camera],
    *,
    backend: Backend = "cpu",
    tile_size: int = TILE,
    per_area: bool = False,
) -> Tensor:
    """Sum what each Gaussian contributes to the pixels of some views: W_i = sum of T alpha.

    A picture is linear in the colours, so W_i is the gradient of one channel's sum with respect to colour i: one
    backward pass for a view, with any rasteriser.

    Args:
        gaussians: N Gaussians.
        cameras: of training views, never of test views.
        backend: see `rasterizer.choose_backend`.
        tile_size: edge of a tile in pixels.
        per_area: divide each view's weight by the area of the projected Gaussian, as the release does outdoors.

    Returns:
        (N,), 0 for what no view sees.
    """
    scene = gaussians.detach()
    total = torch.zeros_like(scene.opacities)
    black = scene.means.new_zeros(3)
    scales, opacities = scene.scales.exp(), scene.opacities.sigmoid()
    for camera in cameras:
        colour = torch.zeros_like(scene.means, requires_grad=True)
        with torch.enable_grad():
            drawn = rasterize(
                scene.means, scene.quats, scales, opacities, colour, camera, black,
                backend=backend, tile_size=tile_size,
            )  # fmt: skip
            (weight,) = torch.autograd.grad(drawn.image[..., 0].sum(), colour)
        weight = weight[:, 0]
        if per_area:
            area = math.pi * drawn.radii.reshape(-1, 2).to(weight).prod(1)
            weight = torch.where(area > 0, weight / area.clamp(min=1), torch.zeros_like(weight))
        total += weight
    return total


def visible_colours(gaussians: Gaussians, cameras: Sequence[Camera]) -> Tensor:
    """Return the mean over RGB and cameras of each Gaussian's colour (N,)."""
    scene = gaussians.detach()
    mean = torch.stack([colours(scene, camera.centre).mean(1) for camera in cameras])
    return mean.mean(0)


def lobe_values(gaussians: Gaussians, weights: Tensor) -> Tensor:
    """Return the expected change of the pictures when a lobe is removed and its mean kept (Sec. 3.4, inferred).

    v_ij = W_i mean_rgb |C0 a_ij| sqrt(Var_S2[G]).

    Args:
        gaussians: N Gaussians.
        weights: W (N,).

    Returns:
        (N, K), 0 for lobes that are not active.
    """
    scene = gaussians.detach()
    spread = sphere_variance(scene.sharpness).sqrt()
    values = weights[:, None] * (C0 * scene.amplitudes).abs().mean(-1) * spread
    return values * scene.active


def lobe_scores(gaussians: Gaussians) -> Tensor:
    """Return the release's score of lobes, mean_rgb |a| (1 - exp(-2 s)) (Sec. 3.4).

    Args:
        gaussians: N Gaussians.

    Returns:
        (N, K), 0 for lobes that are not active.
    """
    scene = gaussians.detach()
    return scene.amplitudes.abs().mean(-1) * -torch.expm1(-2 * scene.sharpness.abs()) * scene.active
