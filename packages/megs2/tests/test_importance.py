from __future__ import annotations

import math

import torch
from megs2.camera import Camera, look_at
from megs2.compositing import weights_at
from megs2.gaussians import Gaussians, from_points
from megs2.importance import blending_weights, visible_colours
from megs2.projection import Projection, project


def scene(n: int = 60) -> Gaussians:
    g = torch.Generator().manual_seed(n)
    made = from_points(torch.randn(n, 3, generator=g), torch.rand(n, 3, generator=g))
    made.opacities.copy_(torch.randn(n, generator=g))
    return made


def cameras() -> list[Camera]:
    up, target = torch.tensor([0.0, 0, 1]), torch.zeros(3)
    eyes = torch.tensor([[4.0, 0, 1], [-1, 4, 0.5]])
    return [look_at(eye, target, up, fov=30, width=20, height=16) for eye in eyes]


def by_brute_force(made: Gaussians, camera: Camera) -> torch.Tensor:
    """Sum the weights T alpha of all pixels."""
    opacities = made.opacities.sigmoid()
    projected = project(made.means, made.quats, made.scales.exp(), opacities, camera)
    order = torch.argsort(projected.depths)
    order = order[(projected.radii[order] > 0).all(1)]
    y, x = torch.meshgrid(torch.arange(16) + 0.5, torch.arange(20) + 0.5, indexing="ij")
    near_first = Projection(projected.means2d[order], projected.conics[order], projected.depths, projected.radii)
    weights, _ = weights_at(torch.stack([x, y], -1).reshape(-1, 2), near_first, opacities[order])
    total = torch.zeros(len(made))
    total[order] = weights.sum(0)
    return total


def test_weights_are_those_of_compositing_summed_over_pixels_and_views() -> None:
    made = scene()
    expected = sum(by_brute_force(made, camera) for camera in cameras())
    torch.testing.assert_close(blending_weights(made, cameras()), expected, rtol=1e-4, atol=1e-4)


def test_what_no_view_sees_has_no_weight() -> None:
    made = scene()
    made.means[7] = torch.tensor([0.0, 0, 90])
    weights = blending_weights(made, cameras())
    assert weights[7] == 0
    assert int((weights == 0).sum()) < 30


def test_per_area_divides_each_view_by_the_ellipses_area() -> None:
    made = scene()
    expected = torch.zeros(60)
    for camera in cameras():
        radii = project(made.means, made.quats, made.scales.exp(), made.opacities.sigmoid(), camera).radii
        area = math.pi * radii.prod(1).float()
        expected += torch.where(area > 0, by_brute_force(made, camera) / area.clamp(min=1), 0.0)
    torch.testing.assert_close(blending_weights(made, cameras(), per_area=True), expected, rtol=1e-4, atol=1e-6)


def test_nothing_of_the_scene_is_touched_and_gradients_may_be_off() -> None:
    made = scene()
    made.means.requires_grad_()
    with torch.no_grad():
        weights = blending_weights(made, cameras())
    assert made.means.grad is None
    assert not weights.requires_grad
    assert float(weights.sum()) > 0


def test_visible_colours_are_means_over_cameras_and_channels() -> None:
    made = from_points(torch.randn(5, 3), torch.rand(5, 3))
    torch.testing.assert_close(visible_colours(made, cameras()), (0.5 + 0.28209479 * made.base).mean(1))
