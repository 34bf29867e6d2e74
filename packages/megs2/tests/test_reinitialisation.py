from __future__ import annotations

import torch
from megs2.camera import Camera, View, look_at
from megs2.gaussians import Gaussians, from_points
from megs2.reinitialisation import depth_map, points_from_depth, unproject


def wall(distance: float = 3.0) -> tuple[Gaussians, Camera]:
    """A dense flat wall, seen from the front."""
    y, x = torch.meshgrid(torch.linspace(-2, 2, 40), torch.linspace(-2, 2, 40), indexing="ij")
    points = torch.stack([x.flatten(), y.flatten(), torch.full((1600,), distance)], 1)
    made = from_points(points, torch.full((1600, 3), 0.5))
    made.opacities.fill_(4.0)
    return made, Camera(torch.eye(3), torch.zeros(3), 20.0, 20.0, 8.0, 8.0, 16, 16)


def test_depth_of_a_wall_is_its_distance() -> None:
    depth, coverage = depth_map(*wall())
    torch.testing.assert_close(depth, torch.full((16, 16), 3.0), rtol=1e-3, atol=0)
    assert float(coverage.min()) > 0.95


def test_nothing_has_no_depth() -> None:
    made, camera = wall(-3.0)
    depth, coverage = depth_map(made, camera)
    assert float(depth.abs().sum()) == 0
    assert float(coverage.sum()) == 0
    view = View(camera, torch.zeros(16, 16, 3), "a")
    assert len(points_from_depth(made, [view], 10, torch.Generator())[0]) == 0


def test_unprojection_inverts_projection() -> None:
    up = torch.tensor([0.0, 0, 1])
    camera = look_at(torch.tensor([2.0, -3, 1]), torch.zeros(3), up, fov=40, width=12, height=10)
    pixels = torch.tensor([0, 17, 119])
    points = unproject(torch.arange(1.0, 121.0).view(10, 12), camera, pixels)
    local = points @ camera.rotation.T + camera.translation
    torch.testing.assert_close(local[:, 2], pixels + 1.0)
    column = camera.fx * local[:, 0] / local[:, 2] + camera.cx
    row = camera.fy * local[:, 1] / local[:, 2] + camera.cy
    torch.testing.assert_close(column, pixels % 12 + 0.5, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(row, pixels // 12 + 0.5, rtol=1e-4, atol=1e-3)


def test_points_lie_on_the_wall_with_the_colours_of_the_photograph() -> None:
    made, camera = wall()
    image = torch.rand(16, 16, 3, generator=torch.Generator().manual_seed(0))
    points, colours = points_from_depth(made, [View(camera, image, "a")], 50, torch.Generator().manual_seed(1))
    assert points.shape == (50, 3)
    torch.testing.assert_close(points[:, 2], torch.full((50,), 3.0), rtol=1e-3, atol=0)
    columns, rows = (20 * points[:, 0] / 3 + 7.5).round().long(), (20 * points[:, 1] / 3 + 7.5).round().long()
    torch.testing.assert_close(colours, image[rows, columns])
