from __future__ import annotations

import math

import pytest
import torch
from megs2.camera import Camera, Capture, View, look_at


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


@pytest.mark.parametrize("target", [(1.0, 2, 3), (1.0, 2, 9), (1.0, 2, -9)])
def test_a_line_of_sight_that_leaves_the_picture_free_to_turn_is_refused(target: tuple[float, ...]) -> None:
    eye, up = torch.tensor([1.0, 2, 3]), torch.tensor([0.0, 0, 2])
    with pytest.raises(ValueError, match="eye and target must differ, and up must not be parallel"):
        look_at(eye, torch.tensor(target), up, fov=50, width=80, height=60)


def test_edges_of_the_field_of_view_lie_on_the_edges_of_the_picture() -> None:
    camera = look_at(torch.zeros(3), torch.tensor([0.0, 5, 0]), torch.tensor([0.0, 0, 1]), fov=90, width=80, height=60)
    # Looking along y with z up, x is to the right.
    torch.testing.assert_close(camera.rotation, torch.tensor([[1.0, 0, 0], [0, 0, -1], [0, 1, 0]]))
    assert camera.fx == pytest.approx(40)
    corner = camera.view_matrix @ torch.tensor([2.0, 2.0, 1.5, 1.0])
    image = camera.intrinsics @ corner[:3]
    torch.testing.assert_close(image / image[2], torch.tensor([80.0, 0.0, 1.0]))


def test_a_camera_of_another_size_sees_the_same() -> None:
    camera = Camera(torch.eye(3), torch.zeros(3), 100.0, 110.0, 33.0, 20.0, 64, 48).resized(32, 12)
    assert (camera.fx, camera.fy, camera.cx, camera.cy) == (50.0, 27.5, 16.5, 5.0)


def test_extent_is_the_radius_of_the_training_cameras_and_a_tenth() -> None:
    views = [View(Camera(torch.eye(3), -torch.tensor(c), 1, 1, 0, 0, 1, 1), torch.zeros(1, 1, 3), "") for c in
             ([1.0, 0, 0], [-3.0, 0, 0])]  # fmt: skip
    nothing = torch.zeros(0, 3)
    assert Capture("a", views, [], nothing, nothing, torch.zeros(3)).extent == pytest.approx(2.2)
    assert Capture("a", views[:1], [], nothing, nothing, torch.zeros(3)).extent == 1.0
