"""Figures of a trained scene: against its photographs, and where its lobes are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from shared.tables import drawing
from torch import Tensor

from megs2.camera import Camera, Capture, View
from megs2.fitting import sphere_directions, to_harmonics, unclamped
from megs2.gaussians import MAX_LOBES, Gaussians
from megs2.pictures import heat_map, save_png, strip
from megs2.rasterizer import Backend, rasterize, render

SHOWN = 4  # test views


@torch.no_grad()
def draw_strips(
    scene: Gaussians, views: Sequence[View], background: Tensor, path: Path, backend: Backend = "cpu"
) -> None:
    """Draw photographs, pictures and errors, a row for each view.

    Args:
        scene: the Gaussians.
        views: of one size.
        background: (3,).
        path: the PNG to write.
        backend: see `rasterizer.choose_backend`.
    """
    rows = [strip(view.image, render(scene, view.camera, background, backend=backend).image) for view in views]
    save_png(path, torch.cat(rows))


@torch.no_grad()
def lobe_map(scene: Gaussians, camera: Camera, backend: Backend = "cpu") -> tuple[Tensor, Tensor]:
    """Return the mean number of lobes that a camera sees in each pixel (H, W), and the coverage (H, W)."""
    counts = scene.counts.to(scene.means)[:, None].expand(-1, 3).contiguous()
    drawn = rasterize(
        scene.means, scene.quats, scene.scales.exp(), scene.opacities.sigmoid(), counts, camera,
        torch.zeros_like(camera.translation), backend=backend,
    )  # fmt: skip
    return drawn.image[..., 0] / drawn.coverage.clamp(min=1e-3), drawn.coverage


def draw_lobes(scene: Gaussians, views: Sequence[View], path: Path, backend: Backend = "cpu") -> None:
    """Draw where the lobes are: pictures of their mean number, from blue (0) to yellow (3), on white.

    Args:
        scene: the Gaussians.
        views: of one size.
        path: the PNG to write.
        backend: see `rasterizer.choose_backend`.
    """
    tiles = []
    for view in views:
        number, coverage = (each.cpu() for each in lobe_map(scene, view.camera, backend))
        tiles.append(heat_map(number, MAX_LOBES) * coverage[..., None] + 1 - coverage[..., None])
    save_png(path, torch.cat(tiles, 1))


def draw_histogram(scene: Gaussians, path: Path) -> None:
    """Draw how many Gaussians have how many lobes.

    Args:
        scene: the Gaussians.
        path: the PNG to write.
    """
    counts = torch.bincount(scene.counts.cpu(), minlength=scene.max_lobes + 1).tolist()
    with drawing(path, (4.0, 3.0)) as image:
        axes = image.subplots()
        axes.bar(range(len(counts)), counts, color="#0072B2")
        axes.set_xticks(range(len(counts)))
        axes.set_xlabel("lobes of a Gaussian")
        axes.set_ylabel("Gaussians")
        axes.spines[["top", "right"]].set_visible(False)


@torch.no_grad()
def draw_sphere(scene: Gaussians, path: Path) -> None:
    """Draw one Gaussian's colour over the sphere: its lobes, and the harmonics of degree 3 that fit them best.

    The Gaussian is the one whose colour changes most with the direction.

    Args:
        scene: with at least one lobe.
        path: the PNG to write.
    """
    spread = unclamped(scene, sphere_directions().to(scene.means)).var(1).sum(-1)
    index = spread.argmax()[None]
    one = scene.select(index)
    rows, columns = 90, 180
    theta = torch.pi * (torch.arange(rows) + 0.5) / rows
    phi = 2 * torch.pi * (torch.arange(columns) + 0.5) / columns
    x = torch.sin(theta)[:, None] * torch.cos(phi)
    y = torch.sin(theta)[:, None] * torch.sin(phi)
    z = torch.cos(theta)[:, None].expand(rows, columns)
    directions = torch.stack([x, y, z], -1).reshape(-1, 3).to(scene.means)
    pictures = {"lobes": one, "harmonics of degree 3": to_harmonics(one)[0]}
    with drawing(path, (7.0, 2.2)) as image:
        for axes, (label, each) in zip(image.subplots(1, 2), pictures.items(), strict=True):
            values = unclamped(each, directions)[0].clamp(0, 1).reshape(rows, columns, 3)
            axes.imshow(values.cpu().numpy(), extent=(0, 360, -90, 90))
            axes.set_title(f"{label}: colour by direction", fontsize=8)
            axes.set_xlabel("azimuth (degrees)", fontsize=8)


def draw_scene(scene: Gaussians, capture: Capture, folder: Path) -> list[Path]:
    """Draw all figures of a scene on the CPU.

    Args:
        scene: the Gaussians, on any device.
        capture: whose test views are shown.
        folder: to write to.

    Returns:
        The files.
    """
    scene = scene.to("cpu")
    step = max(1, len(capture.test) // SHOWN)
    views = capture.test[::step][:SHOWN]
    views = [view for view in views if view.image.shape == views[0].image.shape]
    files = []
    if views:
        files.append(folder / "views.png")
        draw_strips(scene, views, capture.background.cpu(), files[-1])
    if scene.max_lobes and len(scene):
        files.append(folder / "lobes.png")
        draw_histogram(scene, files[-1])
        if views:
            files.append(folder / "lobe-map.png")
            draw_lobes(scene, views, files[-1])
        if int(scene.counts.sum()):
            files.append(folder / "sphere.png")
            draw_sphere(scene, files[-1])
    return files
