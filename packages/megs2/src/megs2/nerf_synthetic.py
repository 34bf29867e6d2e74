"""Captures in the format of NeRF-synthetic: `transforms_{train,val,test}.json` and images beside them (Sec. 5)."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch

from megs2.camera import Camera, Capture, View
from megs2.photographs import read_photographs

BOX = 1.3  # points to start from are drawn in [-1.3, 1.3]^3
SUFFIXES = ("", ".png", ".jpg", ".jpeg")
DISTORTIONS = ("k1", "k2", "k3", "k4", "p1", "p2")


def read_transforms(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Read one of the files; returns what it says of all frames, and the frames.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is not of this format, or a camera has distortion.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not JSON ({error})") from error
    frames = found.get("frames") if isinstance(found, dict) else None
    if not isinstance(frames, list) or not frames:
        raise ValueError(f"{path}: expected an object with a list of frames")
    for key in DISTORTIONS:
        if found.get(key):
            raise ValueError(f"{path}: the cameras have distortion ({key} = {found[key]}), expected none")
    return found, frames


def camera_of(whole: dict[str, Any], frame: dict[str, Any], size: tuple[int, int], where: str) -> Camera:
    """Build the camera of a frame, whose matrix is camera to world with OpenGL's axes: y up, z backward.

    Args:
        whole: what the file says of all frames: `camera_angle_x`, or `fl_x` and more with `w` and `h`.
        frame: the frame.
        size: width and height of the image as it was read.
        where: file and frame, for messages.

    Raises:
        ValueError: if the matrix or the angle is missing or not usable.
    """
    width, height = size
    try:
        matrix = torch.tensor(frame["transform_matrix"], dtype=torch.float64)
        sound = matrix.shape in ((4, 4), (3, 4)) and bool(matrix.isfinite().all())
    except (KeyError, TypeError, ValueError):
        sound = False
    if not sound:
        raise ValueError(f"{where}: expected transform_matrix, 4 x 4 finite numbers")
    axes = matrix[:3, :3] / matrix[:3, :3].norm(dim=0)
    if not torch.allclose(axes.T @ axes, torch.eye(3, dtype=torch.float64), atol=1e-3) or torch.det(axes) < 0:
        raise ValueError(f"{where}: transform_matrix holds no rotation")
    if "fl_x" in whole:
        x, y = width / whole.get("w", width), height / whole.get("h", height)
        fx, fy = whole["fl_x"] * x, whole.get("fl_y", whole["fl_x"]) * y
        cx, cy = whole.get("cx", width / 2 / x) * x, whole.get("cy", height / 2 / y) * y
    else:
        angle = whole.get("camera_angle_x")
        if not isinstance(angle, int | float) or not 0 < angle < math.pi:
            raise ValueError(f"{where}: expected camera_angle_x in (0, pi), got {angle!r}")
        fx = fy = 0.5 * width / math.tan(0.5 * angle)
        cx, cy = width / 2, height / 2
    rotation = (axes * torch.tensor([1.0, -1.0, -1.0], dtype=torch.float64)).T
    translation = -rotation @ matrix[:3, 3]
    return Camera(rotation.float(), translation.float(), fx, fy, cx, cy, width, height)


def _image_file(root: Path, name: str, where: str) -> Path:
    for suffix in SUFFIXES:
        path = root / (name + suffix)
        if path.is_file():
            return path
    raise FileNotFoundError(f"{where}: {root / name}: no such image")


def read_views(path: Path, background: torch.Tensor, downscale: int) -> list[View]:
    """Read the frames of one file with their images."""
    whole, frames = read_transforms(path)
    files: list[Path] = []
    for index, frame in enumerate(frames):
        where = f"{path}: frame {index}"
        if not isinstance(frame, dict) or not isinstance(frame.get("file_path"), str):
            raise ValueError(f"{where}: expected an object with file_path")
        files.append(_image_file(path.parent, frame["file_path"], where))
    pictures = read_photographs(files, background, downscale, label=path.stem)
    return [
        View(
            camera_of(whole, frame, (picture.shape[1], picture.shape[0]), f"{path}: frame {index}"), picture, file.name
        )
        for index, (frame, picture, file) in enumerate(zip(frames, pictures, files, strict=True))
    ]


def read_nerf_synthetic(root: Path, *, downscale: int = 1, points: int = 100_000, seed: int = 0) -> Capture:
    """Read a capture of NeRF-synthetic's format; transparency becomes white.

    Args:
        root: its folder.
        downscale: shrink the images.
        points: to start from, drawn uniformly in a box, of random grey colours: the format has none.
        seed: of these points.

    Returns:
        The capture, on a white background; without `transforms_val.json` it has no views to choose settings by.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: if a file is not of this format.
    """
    white = torch.ones(3)
    train = read_views(root / "transforms_train.json", white, downscale)
    test = read_views(root / "transforms_test.json", white, downscale)
    has_val = (root / "transforms_val.json").is_file()
    val = read_views(root / "transforms_val.json", white, downscale) if has_val else []
    generator = torch.Generator().manual_seed(seed)
    places = BOX * (2 * torch.rand(points, 3, generator=generator) - 1)
    grey = torch.rand(points, 1, generator=generator).repeat(1, 3)
    return Capture(root.resolve().name, train, test, places, grey, white, val)
