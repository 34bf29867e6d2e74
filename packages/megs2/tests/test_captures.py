from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from megs2.camera import Camera
from megs2.captures import load_capture
from megs2.colmap import Intrinsics, Pose, pinhole, split_names
from megs2.photographs import read_photograph
from PIL import Image

POSES = [  # name, quaternion w x y z, translation
    ("b.png", (0.5, 0.5, -0.5, 0.5), (0.1, -0.2, 3.0)),
    ("a.png", (1.0, 0.0, 0.0, 0.0), (0.0, 0.0, 4.0)),
    ("sub/c.png", (0.9, 0.1, 0.3, -0.2), (1.0, 0.5, 2.5)),
]
POINTS = [((0.5, -1.0, 2.0), (255, 0, 51)), ((0.0, 0.25, 0.0), (0, 102, 255))]
CAMERA = (40, 30, (50.0, 48.0, 21.0, 14.0))


def colmap(
    root: Path, binary: bool, model: int = 1, params: tuple[float, ...] = CAMERA[2], size: tuple[int, int] = (20, 15)
) -> Path:
    """Write a capture in COLMAP's format, byte by byte or line by line."""
    names = {0: "SIMPLE_PINHOLE", 1: "PINHOLE", 4: "OPENCV"}
    sparse = root / "sparse" / "0"
    sparse.mkdir(parents=True)
    if binary:
        cameras = struct.pack("<QiiQQ", 1, 7, model, CAMERA[0], CAMERA[1]) + struct.pack(f"<{len(params)}d", *params)
        images = struct.pack("<Q", len(POSES))
        for i, (name, quat, shift) in enumerate(POSES):
            images += struct.pack("<i7di", i + 1, *quat, *shift, 7) + name.encode() + b"\x00"
            images += struct.pack("<Q", i) + struct.pack("<ddq", 1.0, 2.0, -1) * i
        points = struct.pack("<Q", len(POINTS))
        for i, (place, rgb) in enumerate(POINTS):
            points += struct.pack("<Q3d3BdQ", i, *place, *rgb, 0.5, i + 1) + struct.pack("<ii", 1, 2) * (i + 1)
        for name, content in (("cameras", cameras), ("images", images), ("points3D", points)):
            (sparse / f"{name}.bin").write_bytes(content)
    else:
        line = f"# comment\n7 {names[model]} {CAMERA[0]} {CAMERA[1]} {' '.join(map(str, params))}\n"
        (sparse / "cameras.txt").write_text(line)
        rows = [
            f"{i + 1} {' '.join(map(str, (*q, *t)))} 7 {name}\n{'1.0 2.0 -1 ' * i}\n"
            for i, (name, q, t) in enumerate(POSES)
        ]
        (sparse / "images.txt").write_text("# comment\n" + "".join(rows))
        rows = [f"{i} {' '.join(map(str, (*p, *c)))} 0.5 1 2\n" for i, (p, c) in enumerate(POINTS)]
        (sparse / "points3D.txt").write_text("".join(rows))
    (root / "images" / "sub").mkdir(parents=True)
    for i, (name, _, _) in enumerate(POSES):
        Image.new("RGB", size, (51 * i, 102, 255)).save(root / "images" / name)
    return root


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "text"])
def test_a_capture_of_colmap_is_read(binary: bool, tmp_path: Path) -> None:
    found = load_capture(colmap(tmp_path / "room", binary), test_every=3)
    assert found.name == "room"
    assert [view.name for view in found.test] == ["a.png"]  # index 0 by name
    assert [view.name for view in found.train] == ["b.png", "sub/c.png"]
    assert found.points.tolist() == [list(p) for p, _ in POINTS]
    torch.testing.assert_close(found.colours * 255, torch.tensor([c for _, c in POINTS]).float())
    camera = found.test[0].camera
    # the images have half the camera's size
    assert (camera.fx, camera.fy, camera.cx, camera.cy, camera.width, camera.height) == (25, 24, 10.5, 7, 20, 15)
    torch.testing.assert_close(camera.rotation, torch.eye(3))
    assert camera.translation.tolist() == [0, 0, 4]
    torch.testing.assert_close(found.test[0].image[0, 0], torch.tensor([51.0, 102, 255]) / 255)


def test_cameras_are_pycolmaps(tmp_path: Path) -> None:
    pycolmap = pytest.importorskip("pycolmap")
    for name, quat, shift in POSES:
        pose = Pose(name, quat, shift, 7)
        ours = pinhole(Intrinsics("PINHOLE", *CAMERA[:2], CAMERA[2]), pose, tmp_path, CAMERA[:2])
        w, x, y, z = quat
        theirs = pycolmap.Rigid3d(pycolmap.Rotation3d(np.array([x, y, z, w]) / math.hypot(x, y, z, w)), np.array(shift))
        lens = pycolmap.Camera(model="PINHOLE", width=40, height=30, params=list(CAMERA[2]))
        for place, _ in POINTS:
            t = theirs.matrix() @ np.array([*place, 1.0])
            expected = torch.from_numpy(np.asarray(lens.img_from_cam(t.reshape(1, 3)))).squeeze().float()
            seen = ours.intrinsics @ (ours.rotation @ torch.tensor(place) + ours.translation)
            torch.testing.assert_close(seen[:2] / seen[2], expected, rtol=1e-5, atol=1e-4)


def test_simple_pinhole_has_one_focal_length(tmp_path: Path) -> None:
    found = load_capture(colmap(tmp_path, True, model=0, params=(50.0, 20.0, 15.0)), test_every=3)
    assert (found.test[0].camera.fx, found.test[0].camera.fy) == (25, 25)


def test_every_eighth_image_is_for_testing_and_validation_is_taken_from_the_others() -> None:
    assert split_names(10, 8, 0) == ["test", *["train"] * 7, "test", "train"]
    assert split_names(10, 8, 3) == ["test", "val", "train", "train", "val", "train", "train", "val", "test", "train"]


def test_a_distorted_model_is_refused_with_the_remedy(tmp_path: Path) -> None:
    colmap(tmp_path, True, model=4, params=(50.0, 48.0, 20.0, 15.0, 0.1, 0.0, 0.0, 0.0))
    with pytest.raises(ValueError, match=r"camera 7 has the model OPENCV.*colmap image_undistorter"):
        load_capture(tmp_path)


def test_what_is_missing_or_damaged_in_a_colmap_capture_is_named(tmp_path: Path) -> None:
    root = colmap(tmp_path / "a", True)
    with pytest.raises(FileNotFoundError, match="images_4: no such folder of images, expected one of images"):
        load_capture(root, images="images_4")
    (root / "images" / "b.png").unlink()
    with pytest.raises(FileNotFoundError, match=r"1 registered images are not there, the first is b\.png"):
        load_capture(root)
    Image.new("RGB", (20, 20)).save(root / "images" / "b.png")
    with pytest.raises(ValueError, match=r"b\.png has 20 x 20 pixels, expected the shape of its camera, 40 x 30"):
        load_capture(root)
    with pytest.raises(ValueError, match="no image is left to train on"):
        (root / "images" / "b.png").unlink()
        Image.new("RGB", (20, 15)).save(root / "images" / "b.png")
        load_capture(root, test_every=1)
    for name in ("cameras", "images", "points3D"):
        whole = (root / f"sparse/0/{name}.bin").read_bytes()
        (root / f"sparse/0/{name}.bin").write_bytes(whole[:-5])
        with pytest.raises(ValueError, match=f"{name}.bin: the file ends early"):
            load_capture(root)
        (root / f"sparse/0/{name}.bin").write_bytes(whole)
    (root / "sparse/0/points3D.bin").write_bytes(struct.pack("<Q", 0))
    with pytest.raises(ValueError, match="the reconstruction has no points"):
        load_capture(root)


@pytest.mark.parametrize(("file", "line"), [("cameras", "1 PINHOLE"), ("images", "1 a b"), ("points3D", "1 2 3")])
def test_a_line_that_is_none_is_named_with_its_number(file: str, line: str, tmp_path: Path) -> None:
    colmap(tmp_path, False)
    (tmp_path / f"sparse/0/{file}.txt").write_text(f"# comment\n{line}\n")
    with pytest.raises(ValueError, match=f"{file}.txt: line 2 is no"):
        load_capture(tmp_path)


def nerf(root: Path, **more: Any) -> Path:
    """Write a capture of NeRF-synthetic: a camera at (0, 0, 4) that looks at the origin, in OpenGL's axes."""
    root.mkdir(exist_ok=True)
    matrix = [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 4], [0, 0, 0, 1]]
    pixels = np.zeros((6, 8, 4), np.uint8)
    pixels[0, 0] = (255, 0, 0, 51)
    Image.fromarray(pixels).save(root / "r_0.png")
    for part in ("train", "test"):
        content = {"camera_angle_x": 0.9, "frames": [{"file_path": "./r_0", "transform_matrix": matrix}]} | more
        (root / f"transforms_{part}.json").write_text(json.dumps(content))
    return root


def pixel(camera: Camera, place: tuple[float, float, float]) -> torch.Tensor:
    image = camera.intrinsics @ (camera.rotation @ torch.tensor(place).float() + camera.translation)
    return image[:2] / image[2]


def test_a_capture_of_nerf_synthetic_has_opengls_cameras_on_white(tmp_path: Path) -> None:
    found = load_capture(nerf(tmp_path / "lego"))
    camera = found.train[0].camera
    assert camera.fx == camera.fy == pytest.approx(0.5 * 8 / math.tan(0.45))
    torch.testing.assert_close(camera.centre, torch.tensor([0.0, 0, 4]))
    torch.testing.assert_close(pixel(camera, (0, 0, 0)), torch.tensor([4.0, 3.0]))
    right, up = pixel(camera, (0.5, 0, 0)), pixel(camera, (0, 0.5, 0))
    assert right[0] > 4
    assert up[1] < 3
    torch.testing.assert_close(right[0] - 4, torch.tensor(camera.fx * 0.5 / 4))
    image = found.train[0].image
    torch.testing.assert_close(image[0, 0], torch.tensor([1.0, 0.8, 0.8]))  # a fifth of red on white
    torch.testing.assert_close(image[3, 3], torch.ones(3))
    assert found.background.tolist() == [1, 1, 1]
    assert found.points.shape == (100_000, 3)
    assert float(found.points.abs().max()) <= 1.3
    assert found.val == []
    assert torch.equal(load_capture(tmp_path / "lego").points, found.points)
    assert not torch.equal(load_capture(tmp_path / "lego", seed=1).points, found.points)


def test_intrinsics_in_pixels_are_scaled_to_the_image(tmp_path: Path) -> None:
    found = load_capture(nerf(tmp_path, fl_x=20.0, fl_y=22.0, cx=9.0, cy=5.0, w=16, h=12))
    camera = found.train[0].camera
    assert (camera.fx, camera.fy, camera.cx, camera.cy) == (10, 11, 4.5, 2.5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"camera_angle_x": "wide"}, r"expected camera_angle_x in \(0, pi\), got 'wide'"),
        ({"frames": []}, "expected an object with a list of frames"),
        ({"frames": [{"transform_matrix": [[1]]}]}, "frame 0: expected an object with file_path"),
        ({"frames": [{"file_path": "r_9"}]}, "r_9: no such image"),
        ({"frames": [{"file_path": "r_0", "transform_matrix": [[1, 2]]}]}, "expected transform_matrix"),
        (
            {"frames": [{"file_path": "r_0", "transform_matrix": [[1.0, 1, 0, 0]] * 4}]},
            "transform_matrix holds no rotation",
        ),
        ({"k1": 0.1}, r"the cameras have distortion \(k1 = 0.1\)"),
    ],
    ids=["angle", "frames", "file", "image", "matrix", "rotation", "distortion"],
)
def test_what_is_wrong_in_a_nerf_capture_is_named(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    nerf(tmp_path, **change)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        load_capture(tmp_path)


def test_a_folder_of_neither_format_and_bad_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"expected sparse/0 \(COLMAP\) or transforms_train.json"):
        load_capture(tmp_path)
    (tmp_path / "sparse").mkdir()
    with pytest.raises(FileNotFoundError, match="expected a reconstruction in sparse/0"):
        load_capture(tmp_path)
    with pytest.raises(ValueError, match="downscale must be at least 1, got 0"):
        load_capture(tmp_path, downscale=0)
    (tmp_path / "transforms_train.json").write_text("{")
    with pytest.raises(ValueError, match="not JSON"):
        load_capture(tmp_path)


def test_images_of_every_kind_are_read_and_shrunk_by_averaging(tmp_path: Path) -> None:
    white = torch.ones(3)
    Image.fromarray(np.array([[0, 51], [102, 255]], np.uint8)).save(tmp_path / "grey.png")
    torch.testing.assert_close(
        read_photograph(tmp_path / "grey.png", white)[:, :, 0], torch.tensor([[0, 0.2], [0.4, 1]])
    )
    torch.testing.assert_close(read_photograph(tmp_path / "grey.png", white, 2), torch.full((1, 1, 3), 0.4))
    Image.fromarray(np.array([[0, 65535], [13107, 0]], np.uint16)).save(tmp_path / "deep.png")
    torch.testing.assert_close(read_photograph(tmp_path / "deep.png", white)[:, :, 1], torch.tensor([[0, 1], [0.2, 0]]))
    (tmp_path / "no.png").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="not an image that can be read"):
        read_photograph(tmp_path / "no.png", white)
    with pytest.raises(ValueError, match="2 x 2 pixels cannot be downscaled by 3"):
        read_photograph(tmp_path / "grey.png", white, 3)
