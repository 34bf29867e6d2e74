from __future__ import annotations

import math

import pytest
import torch
from megs2.camera import Camera, Capture, View, look_at
from megs2.colours import colours
from megs2.formats import bytes_by_part
from megs2.gaussians import build, from_points, neighbour_scales


def test_scales_are_the_rms_distance_to_the_three_nearest_points() -> None:
    points = torch.tensor([[0.0, 0, 0], [1, 0, 0], [0, 2, 0], [0, 0, 3], [50, 50, 50]])
    found = neighbour_scales(points)
    assert found[0].tolist() == pytest.approx([math.log(math.sqrt((1 + 4 + 9) / 3))] * 3)
    assert neighbour_scales(points[:1]).tolist() == [[0.0] * 3]
    assert neighbour_scales(torch.zeros(4, 3))[0, 0] == pytest.approx(math.log(1e-7))


def test_a_scene_from_points_has_their_colours_and_no_active_lobe() -> None:
    rgb = torch.rand(10, 3, generator=torch.Generator().manual_seed(0))
    scene = from_points(torch.randn(10, 3), rgb, lobes=3, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(colours(scene, torch.tensor([0.0, 0, 9])), rgb)
    torch.testing.assert_close(scene.opacities.sigmoid(), torch.full((10,), 0.1))
    assert scene.counts.tolist() == [0] * 10
    torch.testing.assert_close(scene.axes.norm(dim=-1), torch.ones(10, 3))
    assert scene.sharpness.unique().tolist() == pytest.approx([0.1])
    assert float(scene.amplitudes.std()) == pytest.approx(0.1, rel=0.3)


def test_static_bytes_are_those_of_the_formulas() -> None:
    sh3 = from_points(torch.randn(100, 3), torch.rand(100, 3), sh_degree=3)
    assert sh3.static_bytes() == 236 * 100
    sg = from_points(torch.randn(100, 3), torch.rand(100, 3), lobes=3)
    sg.counts[:30], sg.counts[30:40] = 2, 1
    assert sg.static_bytes() == 4 * (14 * 100 + 7 * 70) + 100
    for scene in (sh3, sg):
        assert sum(bytes_by_part(scene).values()) == scene.static_bytes()


def test_shapes_that_disagree_are_refused_by_name() -> None:
    means = torch.zeros(4, 3)
    with pytest.raises(ValueError, match=r"opacities has shape \(3,\), expected \(4,\)"):
        build(means, means, torch.zeros(4, 4), torch.zeros(3), means)
    with pytest.raises(ValueError, match="rest has 4 coefficients"):
        build(means, means, torch.zeros(4, 4), torch.zeros(4), means, rest=torch.zeros(4, 4, 3))
    with pytest.raises(ValueError, match=r"counts lie in 0..2, expected 0..1"):
        build(means, means, torch.zeros(4, 4), torch.zeros(4), means, axes=torch.ones(4, 1, 3),
              counts=torch.tensor([0, 1, 2, 0]))  # fmt: skip


def test_look_at_has_the_target_in_the_middle_and_up_upwards() -> None:
    eye, target, up = torch.tensor([3.0, -2, 1]), torch.tensor([0.5, 0, 0]), torch.tensor([0.0, 0, 1])
    camera = look_at(eye, target, up, fov=50, width=80, height=60)
    torch.testing.assert_close(camera.rotation @ camera.rotation.T, torch.eye(3))
    assert float(torch.linalg.det(camera.rotation)) == pytest.approx(1)
    torch.testing.assert_close(camera.centre, eye)

    def pixel(point: torch.Tensor) -> torch.Tensor:
        image = camera.intrinsics @ (camera.rotation @ point + camera.translation)
        return image[:2] / image[2]

    torch.testing.assert_close(pixel(target), torch.tensor([40.0, 30.0]))
    assert float(pixel(target + 0.1 * up)[1]) < 30  # rows are counted downwards
    assert camera.fx == pytest.approx(40 / math.tan(math.radians(25)), rel=1e-6)
    with pytest.raises(ValueError, match="parallel"):
        look_at(eye, eye + up, up, fov=50, width=80, height=60)


def test_a_camera_of_another_size_sees_the_same() -> None:
    camera = Camera(torch.eye(3), torch.zeros(3), 100.0, 110.0, 33.0, 20.0, 64, 48).resized(32, 12)
    assert (camera.fx, camera.fy, camera.cx, camera.cy) == (50.0, 27.5, 16.5, 5.0)


def test_extent_is_the_radius_of_the_training_cameras_and_a_tenth() -> None:
    views = [View(Camera(torch.eye(3), -torch.tensor(c), 1, 1, 0, 0, 1, 1), torch.zeros(1, 1, 3), "") for c in
             ([1.0, 0, 0], [-3.0, 0, 0])]  # fmt: skip
    nothing = torch.zeros(0, 3)
    assert Capture("a", views, [], nothing, nothing, torch.zeros(3)).extent == pytest.approx(2.2)
    assert Capture("a", views[:1], [], nothing, nothing, torch.zeros(3)).extent == 1.0
