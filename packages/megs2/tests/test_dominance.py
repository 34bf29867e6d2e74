from __future__ import annotations

import torch
from megs2.camera import Camera, look_at
from megs2.compositing import weights_at
from megs2.dominance import dominant, largest_areas
from megs2.gaussians import from_points
from megs2.projection import Projection, project


def test_the_dominant_gaussian_has_the_largest_weight() -> None:
    g = torch.Generator().manual_seed(4)
    made = from_points(torch.randn(80, 3, generator=g), torch.rand(80, 3))
    made.opacities.copy_(2 * torch.randn(80, generator=g))
    camera = look_at(torch.tensor([0.0, -5, 1]), torch.zeros(3), torch.tensor([0.0, 0, 1]), fov=30, width=22, height=19)
    opacities = made.opacities.sigmoid()
    projected = project(made.means, made.quats, made.scales.exp(), opacities, camera)
    order = torch.argsort(projected.depths)
    order = order[(projected.radii[order] > 0).all(1)]
    y, x = torch.meshgrid(torch.arange(19) + 0.5, torch.arange(22) + 0.5, indexing="ij")
    near_first = Projection(projected.means2d[order], projected.conics[order], projected.depths, projected.radii)
    weights, _ = weights_at(torch.stack([x, y], -1).reshape(-1, 2), near_first, opacities[order])
    largest = weights.max(1)
    expected = torch.where(largest.values > 0, order[largest.indices], -1).view(19, 22)
    found = dominant(made, camera)
    assert int((found != expected).sum()) <= 2  # nearly equal ones
    areas = largest_areas(made, [camera, camera])
    torch.testing.assert_close(areas, torch.bincount(found[found >= 0], minlength=80))


def test_the_nearer_of_two_wins_unless_it_lets_most_light_through() -> None:
    made = from_points(torch.tensor([[0.0, 0, 2], [0, 0, 3]]), torch.rand(2, 3))
    camera = Camera(torch.eye(3), torch.zeros(3), 16.0, 16.0, 8.0, 8.0, 16, 16)
    for near, winner in ((0.6, 0), (0.2, 1)):  # of the middle's light: 0.6 against 0.4 * 0.9, 0.2 against 0.8 * 0.9
        made.opacities.copy_(torch.logit(torch.tensor([near, 0.9])))
        assert int(dominant(made, camera)[8, 8]) == winner


def test_the_largest_area_is_that_of_one_view_and_0_for_what_none_sees() -> None:
    made = from_points(torch.tensor([[0.0, 0, 4], [0, 0, -4]]), torch.rand(2, 3))
    made.scales.fill_(-2.0)
    near, far = (Camera(torch.eye(3), torch.tensor([0.0, 0, z]), 16.0, 16.0, 8.0, 8.0, 16, 16) for z in (-2.0, 3.0))
    counts = [int((dominant(made, camera) == 0).sum()) for camera in (far, near)]
    assert 0 < counts[0] < counts[1]
    assert largest_areas(made, [far, near, far]).tolist() == [counts[1], 0]
