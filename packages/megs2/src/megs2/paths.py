"""Where cameras go when a scene is shown: orbits, and cameras from a file."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from shared.checkpoints import atomic_write
from torch import Tensor

from megs2.camera import Camera, look_at

FAR = 0.95  # share of the Gaussians, by distance from the middle, that an orbit has in view


def orbit(
    centre: Tensor, radius: float, frames: int, *, elevation: float = 20.0, up: Tensor | None = None, fov: float = 40.0,
    width: int = 512, height: int = 512,
) -> list[Camera]:  # fmt: skip
    """Return cameras on a circle that all look at its middle; the last is one step before the first.

    Args:
        centre: (3,) what they look at.
        radius: of their distance from it.
        frames: how many.
        elevation: above the horizon, degrees, in (-90, 90).
        up: (3,) the vertical; z when None.
        fov: horizontal angle of view, degrees.
        width: pixels.
        height: pixels.

    Returns:
        The cameras.

    Raises:
        ValueError: if an argument is out of range.
    """
    if frames < 1 or not radius > 0 or not -90 < elevation < 90:
        raise ValueError(f"expected frames >= 1, radius > 0, |elevation| < 90, got {frames}, {radius}, {elevation}")
    up = torch.tensor([0.0, 0.0, 1.0]).to(centre) if up is None else up / up.norm()
    aside = torch.eye(3).to(centre)[int(up.abs().argmin())]
    first = torch.linalg.cross(up, aside)
    first = first / first.norm()
    second = torch.linalg.cross(up, first)
    cameras = []
    for frame in range(frames):
        turn, rise = 2 * math.pi * frame / frames, math.radians(elevation)
        towards = math.cos(rise) * (math.cos(turn) * first + math.sin(turn) * second) + math.sin(rise) * up
        cameras.append(look_at(centre + radius * towards, centre, up, fov=fov, width=width, height=height))
    return cameras


def orbit_of(means: Tensor, frames: int, *, fov: float = 40.0, **options: Any) -> list[Camera]:
    """Return an orbit around a scene, which has nearly all of it in view.

    Args:
        means: (N, 3) centres of the Gaussians.
        frames: how many cameras.
        fov: horizontal angle of view, degrees.
        options: of `orbit`.

    Returns:
        The cameras; around the origin for an empty scene.
    """
    if not len(means):
        return orbit(torch.zeros(3), 3.0, frames, fov=fov, **options)
    centre = means.median(0).values
    distances = (means - centre).norm(dim=1).sort().values
    size = max(float(distances[min(len(distances) - 1, int(FAR * len(distances)))]), 1e-6)
    return orbit(centre, 1.1 * size / math.sin(math.radians(fov) / 2), frames, fov=fov, **options)


def write_cameras(path: Path, cameras: Sequence[Camera]) -> None:
    """Write cameras as JSON: rotation and translation from world to camera, intrinsics, size."""
    entries = [
        {
            "rotation": camera.rotation.tolist(), "translation": camera.translation.tolist(), "fx": camera.fx,
            "fy": camera.fy, "cx": camera.cx, "cy": camera.cy, "width": camera.width, "height": camera.height,
        }
        for camera in cameras
    ]  # fmt: skip
    with atomic_write(path) as file:
        file.write((json.dumps(entries, indent=1) + "\n").encode())


def read_cameras(path: Path) -> list[Camera]:
    """Read cameras from JSON: this package's own, or `cameras.json` as 3DGS writes it.

    Args:
        path: a list of objects. With `position`, `rotation` is camera to world and the principal point is in the
            middle, as in 3DGS; otherwise see `write_cameras`.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is not such a list; the message names the entry.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not JSON ({error})") from error
    if not isinstance(entries, list) or not entries:
        raise ValueError(f"{path}: expected a list of cameras")
    cameras = []
    for number, entry in enumerate(entries):
        try:
            cameras.append(_camera(entry))
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"{path}: entry {number} is no camera ({type(error).__name__}: {error})") from error
    return cameras


def _camera(entry: dict[str, Any]) -> Camera:
    rotation = torch.tensor(entry["rotation"], dtype=torch.float64)
    if rotation.shape != (3, 3) or not torch.allclose(rotation @ rotation.T, torch.eye(3).double(), atol=1e-3):
        raise ValueError("rotation is no rotation of 3 x 3 numbers")
    width, height = int(entry["width"]), int(entry["height"])
    fx, fy = float(entry["fx"]), float(entry["fy"])
    if not (width > 0 and height > 0 and 0 < fx < math.inf and 0 < fy < math.inf):
        raise ValueError("sizes and focal lengths must be positive")
    if "position" in entry:
        rotation = rotation.T
        translation = -rotation @ torch.tensor(entry["position"], dtype=torch.float64)
        cx, cy = width / 2, height / 2
    else:
        translation = torch.tensor(entry["translation"], dtype=torch.float64)
        cx, cy = float(entry["cx"]), float(entry["cy"])
    if translation.shape != (3,) or not bool(translation.isfinite().all()):
        raise ValueError("the place must be 3 finite numbers")
    return Camera(rotation.float(), translation.float(), fx, fy, cx, cy, width, height)
