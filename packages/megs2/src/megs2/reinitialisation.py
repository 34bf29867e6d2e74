"""A new start from rendered depth while the scene grows (Sec. 3.5, inferred): points where surfaces have been found."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from megs2.camera import Camera, View
from megs2.gaussians import Gaussians
from megs2.rasterizer import TILE, Backend, rasterize

COVERED = 0.5  # a pixel has a depth where the scene covers so much of it


@torch.no_grad()
def depth_map(
    gaussians: Gaussians, camera: Camera, *, backend: Backend = "cpu", tile_size: int = TILE
) -> tuple[Tensor, Tensor]:
    """Draw the expected depth, sum of T alpha z over sum of T alpha.

    Args:
        gaussians: N of them.
        camera: on the same device.
        backend: see `rasterizer.choose_backend`.
        tile_size: edge of a tile in pixels.

    Returns:
        Depth along the camera's axis (H, W), 0 where nothing is, and coverage (H, W).
    """
    scene = gaussians.detach()
    z = (scene.means @ camera.rotation.T + camera.translation)[:, 2:]
    drawn = rasterize(
        scene.means, scene.quats, scene.scales.exp(), scene.opacities.sigmoid(), z.expand(-1, 3).contiguous(), camera,
        torch.zeros_like(camera.translation), backend=backend, tile_size=tile_size,
    )  # fmt: skip
    covered = drawn.coverage > 0
    depth = drawn.image[..., 0] / torch.where(covered, drawn.coverage, torch.ones_like(drawn.coverage))
    return depth * covered, drawn.coverage


def unproject(depth: Tensor, camera: Camera, pixels: Tensor) -> Tensor:
    """Return the points (P, 3) of the world that pixels (P,), row by row, see at a depth map (H, W)."""
    x = (pixels % camera.width + 0.5 - camera.cx) / camera.fx
    y = (pixels // camera.width + 0.5 - camera.cy) / camera.fy
    z = depth.flatten()[pixels]
    return (torch.stack([x * z, y * z, z], 1) - camera.translation) @ camera.rotation


@torch.no_grad()
def points_from_depth(
    gaussians: Gaussians, views: Sequence[View], count: int, generator: torch.Generator, *,
    backend: Backend = "cpu", tile_size: int = TILE,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Sample coloured points on what the scene shows, as many from each view, at pixels drawn at random.

    Args:
        gaussians: N of them.
        views: training views, on the same device.
        count: points in all, about.
        generator: on the CPU.
        backend: see `rasterizer.choose_backend`.
        tile_size: edge of a tile in pixels.

    Returns:
        Points (P, 3) and colours (P, 3) in [0, 1], those of the photographs; P is less than `count` where views show
        less, and 0 if no view shows anything.
    """
    points, colours = [], []
    for view in views:
        depth, coverage = depth_map(gaussians, view.camera, backend=backend, tile_size=tile_size)
        seen = (coverage.flatten() > COVERED).nonzero().squeeze(1).cpu()
        order = torch.randperm(len(seen), generator=generator)[: -(-count // len(views))]
        pixels = seen[order].to(depth.device)
        points.append(unproject(depth, view.camera, pixels))
        colours.append(view.image.reshape(-1, 3)[pixels])
    return torch.cat(points), torch.cat(colours)
