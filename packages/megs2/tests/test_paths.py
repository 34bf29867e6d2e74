from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from megs2.paths import orbit, orbit_of, read_cameras, write_cameras
from megs2.pictures import heat_map, save_film, save_png, strip, to_bytes
from PIL import Image


def test_an_orbit_is_a_circle_around_what_it_looks_at() -> None:
    centre = torch.tensor([1.0, 2.0, 3.0])
    cameras = orbit(centre, 5.0, 8, elevation=30, width=64, height=48)
    places = torch.stack([camera.centre for camera in cameras])
    torch.testing.assert_close((places - centre).norm(dim=1), torch.full((8,), 5.0))
    torch.testing.assert_close(places[:, 2], torch.full((8,), 3.0 + 2.5))
    steps = (places - places.roll(1, 0)).norm(dim=1)
    torch.testing.assert_close(steps, steps[:1].expand(8))  # the last is one step before the first
    for camera in cameras:
        t = camera.rotation @ centre + camera.translation
        torch.testing.assert_close(t, torch.tensor([0.0, 0, 5.0]), rtol=0, atol=1e-5)


def test_an_orbit_of_a_scene_has_nearly_all_of_it_in_view_in_spite_of_strays() -> None:
    g = torch.Generator().manual_seed(0)
    means = torch.nn.functional.normalize(torch.randn(1000, 3, generator=g), dim=1) + torch.tensor([5.0, 0, 0])
    means[:20] *= 1000
    camera = orbit_of(means, 1, width=100, height=100)[0]
    assert 2.5 < float((camera.centre - torch.tensor([5.0, 0, 0])).norm()) < 4.5
    pixels = (means[20:] @ camera.rotation.T + camera.translation) @ camera.intrinsics.T
    inside = ((pixels[:, :2] / pixels[:, 2:] > 0) & (pixels[:, :2] / pixels[:, 2:] < 100)).all(1)
    assert float(inside.float().mean()) > 0.99
    assert len(orbit_of(means[:0], 3)) == 3


@pytest.mark.parametrize("arguments", [(0.0, 3, {}), (1.0, 0, {}), (1.0, 3, {"elevation": 90.0})])
def test_orbits_out_of_range_are_refused(arguments: tuple[float, int, dict[str, float]]) -> None:
    with pytest.raises(ValueError, match="expected frames >= 1, radius > 0"):
        orbit(torch.zeros(3), arguments[0], arguments[1], **arguments[2])


def test_cameras_are_read_as_they_were_written(tmp_path: Path) -> None:
    cameras = orbit(torch.zeros(3), 2.0, 3, width=30, height=20)
    write_cameras(tmp_path / "a.json", cameras)
    for found, camera in zip(read_cameras(tmp_path / "a.json"), cameras, strict=True):
        torch.testing.assert_close(found.view_matrix, camera.view_matrix)
        assert (found.fx, found.cy, found.width, found.height) == pytest.approx((camera.fx, camera.cy, 30, 20))


def test_cameras_of_3dgs_are_camera_to_world_with_a_position(tmp_path: Path) -> None:
    camera = orbit(torch.zeros(3), 2.0, 3, width=30, height=20)[1]
    entry = {"id": 0, "img_name": "a", "width": 30, "height": 20, "position": camera.centre.tolist(),
             "rotation": camera.rotation.T.tolist(), "fy": camera.fy, "fx": camera.fx}  # fmt: skip
    (tmp_path / "a.json").write_text(json.dumps([entry]))
    torch.testing.assert_close(read_cameras(tmp_path / "a.json")[0].view_matrix, camera.view_matrix)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not JSON"),
        ("[]", "expected a list of cameras"),
        ("[{}]", "entry 0 is no camera"),
        ('[{"rotation": [[1,0,0],[0,1,0],[0,0,2]]}]', "rotation is no rotation"),
        ('[{"rotation": [[1,0,0],[0,1,0],[0,0,1]], "width": 0, "height": 2, "fx": 1, "fy": 1}]', "must be positive"),
    ],
)
def test_what_is_no_camera_is_named(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        read_cameras(tmp_path / "a.json")


def test_pictures_are_clamped_and_rounded(tmp_path: Path) -> None:
    image = torch.tensor([[[-1.0, 0.5, 2.0], [0.2, 0.1999, 0.0]]])
    assert to_bytes(image).tolist() == [[[0, 128, 255], [51, 51, 0]]]
    save_png(tmp_path / "a.png", image)
    assert np.asarray(Image.open(tmp_path / "a.png")).tolist() == to_bytes(image).tolist()


def test_a_film_has_its_frames(tmp_path: Path) -> None:
    save_film(tmp_path / "a.gif", [torch.full((8, 10, 3), i / 4) for i in range(5)], fps=10)
    with Image.open(tmp_path / "a.gif") as film:
        assert (film.n_frames, film.size, film.info["duration"], film.info["loop"]) == (5, (10, 8), 100, 0)  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="at least one frame"):
        save_film(tmp_path / "b.gif", [])
    with pytest.raises(ValueError, match=r"expected a film that ends in .gif or .mp4"):
        save_film(tmp_path / "b.avi", [torch.zeros(2, 2, 3)])


def test_mp4_needs_pyav_and_says_so(tmp_path: Path) -> None:
    frames = [torch.rand(9, 11, 3) for _ in range(3)]
    try:
        import av
    except ImportError:
        with pytest.raises(ValueError, match=r"install megs2\[video\], or write a .gif"):
            save_film(tmp_path / "a.mp4", frames)
        assert not (tmp_path / "a.mp4").exists()
        return
    save_film(tmp_path / "a.mp4", frames)
    with av.open(tmp_path / "a.mp4") as film:
        assert (film.streams.video[0].width, film.streams.video[0].height) == (10, 8)


def test_a_strip_shows_truth_picture_and_error() -> None:
    truth, drawn = torch.zeros(2, 3, 3), torch.full((2, 3, 3), 0.3)
    found = strip(truth, drawn)
    assert found.shape == (2, 9, 3)
    assert torch.equal(found[:, :3], truth)
    torch.testing.assert_close(found[:, 3:6], drawn)
    torch.testing.assert_close(found[:, 6:], heat_map(torch.full((2, 3), 9.0), 1.0))  # the brightest
    assert not torch.equal(heat_map(torch.zeros(1, 1), 1.0), heat_map(torch.ones(1, 1), 1.0))


@pytest.mark.parametrize("up", [torch.tensor([0.0, 2.0, 0.0]), torch.tensor([1.0, -1.0, 0.5])])
def test_an_orbit_turns_about_any_vertical_and_shows_it_upwards(up: torch.Tensor) -> None:
    cameras = orbit(torch.ones(3), 3.0, 5, elevation=-40, up=up)
    vertical = up / up.norm()
    for camera in cameras:
        height = (camera.centre - 1) @ vertical
        torch.testing.assert_close(height, torch.tensor(-3 * math.sin(math.radians(40))), rtol=0, atol=1e-5)
        assert float((camera.rotation @ vertical)[1]) < 0


@pytest.mark.parametrize(
    "options", [{"radius": math.inf}, {"fov": 180.0}, {"fov": 0.0}, {"width": 0}, {"up": torch.zeros(3)}]
)
def test_orbits_without_a_picture_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"expected|must be a direction"):
        orbit(torch.zeros(3), **{"radius": 1.0, "frames": 3, **options})


@pytest.mark.parametrize(("width", "height"), [(160, 90), (90, 160)])
def test_an_orbit_has_a_ball_in_view_along_both_sides_of_the_picture(width: int, height: int) -> None:
    ball = torch.nn.functional.normalize(torch.randn(500, 3, generator=torch.Generator().manual_seed(0)), dim=1) + 7
    for camera in orbit_of(ball, 3, width=width, height=height):
        pixels = (ball @ camera.rotation.T + camera.translation) @ camera.intrinsics.T
        shares = pixels[:, :2] / pixels[:, 2:] / torch.tensor([width, height])
        assert float(shares.min()) > 0
        assert float(shares.max()) < 1
        # It is not far away either: it fills most of the narrower side.
        assert float((shares.amax(0) - shares.amin(0)).max()) > 0.8


@pytest.mark.parametrize("points", [torch.zeros(0, 3), torch.ones(4, 3)])
def test_a_scene_without_size_is_seen_from_a_distance_of_3(points: torch.Tensor) -> None:
    middle = points.mean(0) if len(points) else torch.zeros(3)
    for camera in orbit_of(points, 2):
        torch.testing.assert_close((camera.centre - middle).norm(), torch.tensor(3.0))


def released(**changes: Any) -> dict[str, Any]:
    # A quarter turn about z: the camera's x axis is the world's y, and its y axis the world's -x.
    turn = [[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    entry = {"id": 0, "img_name": "a", "width": 40, "height": 30, "position": [1.0, 2.0, 3.0], "rotation": turn}
    return {**entry, "fy": 50.0, "fx": 60.0, **changes}


def test_a_camera_of_3dgs_by_hand(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps([released()]))
    camera = read_cameras(tmp_path / "a.json")[0]
    torch.testing.assert_close(camera.centre, torch.tensor([1.0, 2.0, 3.0]))
    # One along the world's y and two ahead of the camera is one to its right.
    seen = camera.rotation @ torch.tensor([1.0, 3.0, 5.0]) + camera.translation
    torch.testing.assert_close(seen, torch.tensor([1.0, 0.0, 2.0]))
    assert (camera.fx, camera.fy, camera.cx, camera.cy) == (60, 50, 20, 15)


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({key: value for key, value in released().items() if key != "fx"}, "lacks 'fx'"),
        ({key: value for key, value in released().items() if key != "position"}, "lacks 'translation'"),
        (released(rotation=[[-1.0, 0, 0], [0, 1, 0], [0, 0, 1]]), "rotation mirrors"),
        (released(rotation="north"), "entry 1 is no camera: "),
        (released(width=40.5), "whole numbers, got 40.5"),
        (released(width=math.inf), "whole numbers, got inf"),
        (released(fx=0), "focal lengths must be positive, got 0.0"),
        (released(position=[0.0, math.nan, 0.0]), "3 finite numbers"),
        ([1, 2], "expected an object, got list"),
    ],
)
def test_the_entry_that_is_no_camera_is_named_with_the_reason(entry: Any, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps([released(), entry]))
    with pytest.raises(ValueError, match=re.escape(reason)) as caught:
        read_cameras(path)
    assert str(caught.value).startswith(f"{path}: entry 1 is no camera")


def test_a_missing_file_of_cameras_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.json: no such file"):
        read_cameras(tmp_path / "none.json")
