"""Captures as COLMAP leaves them: `sparse/0/{cameras,images,points3D}.{bin,txt}` and a folder of images (Sec. 5)."""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from megs2.camera import Camera, Capture, View
from megs2.photographs import read_photographs
from megs2.projection import rotation_matrices

log = logging.getLogger(__name__)

# The identifiers of COLMAP's models, and how many parameters each has.
MODELS = {
    0: ("SIMPLE_PINHOLE", 3), 1: ("PINHOLE", 4), 2: ("SIMPLE_RADIAL", 4), 3: ("RADIAL", 5), 4: ("OPENCV", 8),
    5: ("OPENCV_FISHEYE", 8), 6: ("FULL_OPENCV", 12), 7: ("FOV", 5), 8: ("SIMPLE_RADIAL_FISHEYE", 4),
    9: ("RADIAL_FISHEYE", 5), 10: ("THIN_PRISM_FISHEYE", 12), 11: ("RAD_TAN_THIN_PRISM_FISHEYE", 16),
}  # fmt: skip
ASPECT = 0.01  # by so much the sides of an image may be scaled apart, after rounding to whole pixels


@dataclass(frozen=True)
class Intrinsics:
    """A camera of COLMAP: model, size in pixels, parameters in the model's order."""

    model: str
    width: int
    height: int
    params: tuple[float, ...]


@dataclass(frozen=True)
class Pose:
    """An image of COLMAP: name, rotation (w, x, y, z) and translation from world to camera, number of its camera."""

    name: str
    quat: tuple[float, ...]
    translation: tuple[float, ...]
    camera: int


class _Bytes:
    """A binary file that is read from front to back."""

    def __init__(self, path: Path) -> None:
        self.path, self.data, self.place = path, path.read_bytes(), 0

    def take(self, form: str) -> tuple[int | float, ...]:
        """Read numbers, little endian, in `struct`'s notation."""
        size = struct.calcsize("<" + form)
        if self.place + size > len(self.data):
            raise ValueError(f"{self.path}: the file ends early, after {len(self.data)} bytes")
        numbers = struct.unpack_from("<" + form, self.data, self.place)
        self.place += size
        return numbers

    def skip(self, size: int) -> None:
        """Pass over bytes."""
        if size < 0 or self.place + size > len(self.data):
            raise ValueError(f"{self.path}: the file ends early, after {len(self.data)} bytes")
        self.place += size

    def text(self) -> str:
        """Read up to a zero byte."""
        end = self.data.find(b"\0", self.place)
        if end < 0:
            raise ValueError(f"{self.path}: the file ends early, after {len(self.data)} bytes")
        text = self.data[self.place : end].decode("utf-8", "surrogateescape")
        self.place = end + 1
        return text


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a text file that are no comments, with their numbers; empty ones too."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.startswith("#"):
            yield number, line.strip()


def read_cameras(path: Path) -> dict[int, Intrinsics]:
    """Read `cameras.bin` or `cameras.txt`; returns cameras by number.

    Raises:
        ValueError: if the file is damaged, or has a model that COLMAP does not.
    """
    cameras: dict[int, Intrinsics] = {}
    if path.suffix == ".bin":
        file = _Bytes(path)
        for _ in range(int(file.take("Q")[0])):
            number, model, width, height = map(int, file.take("iiQQ"))
            if model not in MODELS:
                raise ValueError(f"{path}: camera {number} has the unknown model {model}")
            name, count = MODELS[model]
            cameras[number] = Intrinsics(name, width, height, file.take(f"{count}d"))
        return cameras
    for place, line in _lines(path):
        if line:
            words = line.split()
            try:
                cameras[int(words[0])] = Intrinsics(
                    words[1], int(words[2]), int(words[3]), tuple(map(float, words[4:]))
                )
            except (ValueError, IndexError) as error:
                raise ValueError(f"{path}: line {place} is no camera: {line[:60]!r}") from error
    return cameras


def read_images(path: Path) -> list[Pose]:
    """Read `images.bin` or `images.txt`, without the points that were seen.

    Raises:
        ValueError: if the file is damaged.
    """
    poses: list[Pose] = []
    if path.suffix == ".bin":
        file = _Bytes(path)
        for _ in range(int(file.take("Q")[0])):
            _, *numbers = file.take("i7d")
            (camera,) = file.take("i")
            poses.append(Pose(file.text(), tuple(numbers[:4]), tuple(numbers[4:]), int(camera)))
            file.skip(24 * int(file.take("Q")[0]))
        return poses
    lines = list(_lines(path))
    # Each image has a second line, of points, which may be empty.
    for place, line in lines[::2]:
        words = line.split(maxsplit=9)
        if not words:
            continue
        try:
            numbers = list(map(float, words[1:8]))
            poses.append(Pose(words[9], tuple(numbers[:4]), tuple(numbers[4:]), int(words[8])))
        except (ValueError, IndexError) as error:
            raise ValueError(f"{path}: line {place} is no image: {line[:60]!r}") from error
    return poses


def read_points(path: Path) -> tuple[Tensor, Tensor]:
    """Read `points3D.bin` or `points3D.txt`; returns places (P, 3) and colours (P, 3) in [0, 1], float32.

    Raises:
        ValueError: if the file is damaged.
    """
    places: list[tuple[float, ...]] = []
    colours: list[tuple[float, ...]] = []
    if path.suffix == ".bin":
        file = _Bytes(path)
        for _ in range(int(file.take("Q")[0])):
            numbers = file.take("Qddd3BdQ")
            places.append(numbers[1:4])
            colours.append(numbers[4:7])
            file.skip(8 * int(numbers[8]))
    else:
        for place, line in _lines(path):
            if line:
                words = line.split(maxsplit=8)
                try:
                    places.append(tuple(map(float, words[1:4])))
                    colours.append((int(words[4]), int(words[5]), int(words[6])))
                except (ValueError, IndexError) as error:
                    raise ValueError(f"{path}: line {place} is no point: {line[:60]!r}") from error
    found = torch.tensor(places, dtype=torch.float64).reshape(-1, 3).float()
    return found, torch.tensor(colours, dtype=torch.float32).reshape(-1, 3) / 255


def model_folder(root: Path) -> Path:
    """Return the folder of the reconstruction: `sparse/0`, or `sparse`.

    Raises:
        FileNotFoundError: if neither holds one.
    """
    for folder in (root / "sparse" / "0", root / "sparse"):
        if any((folder / f"cameras{suffix}").is_file() for suffix in (".bin", ".txt")):
            others = [other for other in folder.parent.iterdir() if other.is_dir() and other != folder]
            if folder.name == "0" and others:
                log.warning("%s holds %d reconstructions, of which 0 is read", folder.parent, len(others) + 1)
            return folder
    raise FileNotFoundError(f"{root}: expected a reconstruction in sparse/0, with cameras.bin or cameras.txt")


def _file(folder: Path, name: str) -> Path:
    for suffix in (".bin", ".txt"):
        if (folder / (name + suffix)).is_file():
            return folder / (name + suffix)
    raise FileNotFoundError(f"{folder}: expected {name}.bin or {name}.txt")


def pinhole(intrinsics: Intrinsics, pose: Pose, where: Path, size: tuple[int, int]) -> Camera:
    """Turn a camera and an image of COLMAP into a pinhole camera for an image of some size.

    Args:
        intrinsics: of the camera.
        pose: of the image.
        where: file, for messages.
        size: width and height of the image as it was read.

    Raises:
        ValueError: if the model has distortion, or the image is not a scaled one of this camera.
    """
    width, height = size
    if intrinsics.model == "SIMPLE_PINHOLE":
        (fx, cx, cy), fy = intrinsics.params, intrinsics.params[0]
    elif intrinsics.model == "PINHOLE":
        fx, fy, cx, cy = intrinsics.params
    else:
        raise ValueError(
            f"{where}: camera {pose.camera} has the model {intrinsics.model}, expected PINHOLE or SIMPLE_PINHOLE: "
            "remove the distortion with `colmap image_undistorter`"
        )
    x, y = width / intrinsics.width, height / intrinsics.height
    # Sizes are whole pixels, so that each may be off by one.
    if abs(x / y - 1) > ASPECT + 1 / min(width, height):
        raise ValueError(
            f"{pose.name} has {width} x {height} pixels, expected the shape of its camera, "
            f"{intrinsics.width} x {intrinsics.height}"
        )
    quat = torch.tensor(pose.quat, dtype=torch.float64)
    if not 0 < float(quat.norm()) < float("inf"):
        raise ValueError(f"{where}: the rotation of {pose.name} is {pose.quat}, expected a quaternion that is not 0")
    translation = torch.tensor(pose.translation, dtype=torch.float64)
    rotation = rotation_matrices(quat)
    return Camera(rotation.float(), translation.float(), fx * x, fy * y, cx * x, cy * y, width, height)


def split_names(count: int, test_every: int, val_every: int) -> list[str]:
    """Say of the images in the order of their names which part they are of.

    Args:
        count: number of images.
        test_every: those at indices that it divides are for testing.
        val_every: of the others, every so many are for validation; 0 for none.

    Returns:
        `train`, `val` or `test` for each.
    """
    parts, others = [], 0
    for index in range(count):
        if index % test_every == 0:
            parts.append("test")
            continue
        parts.append("val" if val_every and others % val_every == 0 else "train")
        others += 1
    return parts


def read_colmap(
    root: Path, *, images: str | None = None, test_every: int = 8, val_every: int = 0, downscale: int = 1
) -> Capture:
    """Read a capture of COLMAP.

    Args:
        root: its folder.
        images: name of the folder of images; `images` when None. Intrinsics are scaled to what is in it.
        test_every: images, sorted by name, at indices that it divides are for testing.
        val_every: of the others, every so many are for choosing settings; 0 for none.
        downscale: shrink the images further.

    Returns:
        The capture, on a black background.

    Raises:
        FileNotFoundError: if a file or folder is missing.
        ValueError: if a file is damaged, a camera has distortion, or no image, no training image or no point is left.
    """
    model, folder = model_folder(root), root / (images or "images")
    if not folder.is_dir():
        there = sorted(each.name for each in root.iterdir() if each.is_dir() and each.name.startswith("images"))
        raise FileNotFoundError(
            f"{folder}: no such folder of images, expected one of {', '.join(there) or 'none here'}"
        )
    where = _file(model, "cameras")
    cameras, poses = read_cameras(where), sorted(read_images(_file(model, "images")), key=lambda pose: pose.name)
    points, colours = read_points(_file(model, "points3D"))
    if not len(points):
        raise ValueError(f"{model}: the reconstruction has no points, and a scene starts from points")
    good = points.isfinite().all(1)
    if not bool(good.all()):
        raise ValueError(f"{model}: {int((~good).sum())} points are not finite")
    for pose in poses:
        if pose.camera not in cameras:
            raise ValueError(f"{model}: {pose.name} has camera {pose.camera}, which is not in {where.name}")
    missing = [pose.name for pose in poses if not (folder / pose.name).is_file()]
    if missing:
        raise FileNotFoundError(f"{folder}: {len(missing)} registered images are not there, the first is {missing[0]}")
    background = torch.zeros(3)
    pictures = read_photographs([folder / pose.name for pose in poses], background, downscale)
    parts: dict[str, list[View]] = {"train": [], "val": [], "test": []}
    for pose, picture, part in zip(poses, pictures, split_names(len(poses), test_every, val_every), strict=True):
        camera = pinhole(cameras[pose.camera], pose, where, (picture.shape[1], picture.shape[0]))
        parts[part].append(View(camera, picture, pose.name))
    if not parts["train"]:
        raise ValueError(f"{root}: no image is left to train on, of {len(poses)}, with test_every {test_every}")
    return Capture(root.name, parts["train"], parts["test"], points, colours, background, parts["val"])
