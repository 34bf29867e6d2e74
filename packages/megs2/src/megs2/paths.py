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
MARGIN = 1.1  # between them and the edge of the picture
EMPTY = 3.0  # distance from a scene without size


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
    if frames < 1 or not 0 < radius < math.inf or not -90 < elevation < 90:
        raise ValueError(f"expected frames >= 1, radius > 0, |elevation| < 90, got {frames}, {radius}, {elevation}")
    if not 0 < fov < 180 or width < 1 or height < 1:
        raise ValueError(f"expected fov in (0, 180) and a size of at least 1 x 1, got {fov} and {width} x {height}")
    if up is not None and not 0 < float(up.norm()) < math.inf:
        raise ValueError(f"up must be a direction, got {up.tolist()}")
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


def orbit_of(
    means: Tensor, frames: int, *, fov: float = 40.0, width: int = 512, height: int = 512, **options: Any
) -> list[Camera]:
    """Return an orbit around a scene, which has nearly all of it in view, in the narrower direction of the picture.

    Args:
        means: (N, 3) centres of the Gaussians.
        frames: how many cameras.
        fov: horizontal angle of view, degrees.
        width: pixels.
        height: pixels.
        options: of `orbit`.

    Returns:
        The cameras; at a distance of 3 where the scene has no size, and around the origin where it is empty.

    Raises:
        ValueError: if an argument is out of range.
    """
    options |= {"fov": fov, "width": width, "height": height}
    if not len(means):
        return orbit(torch.zeros(3), EMPTY, frames, **options)
    centre = means.median(0).values
    distances = (means - centre).norm(dim=1).sort().values
    size = float(distances[min(len(distances) - 1, int(FAR * len(distances)))])
    half = math.atan(math.tan(math.radians(fov) / 2) * min(1, height / max(1, width)))
    return orbit(centre, MARGIN * size / math.sin(half) if size else EMPTY, frames, **options)


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
        except KeyError as error:
            raise ValueError(f"{path}: entry {number} is no camera, it lacks {error}") from error
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"{path}: entry {number} is no camera: {error}") from error
    return cameras


def _camera(entry: Any) -> Camera:
    if not isinstance(entry, dict):
        raise ValueError(f"expected an object, got {type(entry).__name__}")
    rotation = torch.tensor(entry["rotation"], dtype=torch.float64)
    if rotation.shape != (3, 3) or not torch.allclose(rotation @ rotation.T, torch.eye(3).double(), atol=1e-3):
        raise ValueError("rotation is no rotation of 3 x 3 numbers")
    if torch.det(rotation) < 0:
        raise ValueError("rotation mirrors")
    width, height = entry["width"], entry["height"]
    if not all(type(side) is int and side > 0 for side in (width, height)):
        raise ValueError(f"width and height must be positive whole numbers, got {width!r} and {height!r}")
    fx, fy = float(entry["fx"]), float(entry["fy"])
    if not (0 < fx < math.inf and 0 < fy < math.inf):
        raise ValueError(f"focal lengths must be positive, got {fx} and {fy}")
    if "position" in entry:
        rotation = rotation.T
        translation = -rotation @ torch.tensor(entry["position"], dtype=torch.float64)
        cx, cy = width / 2, height / 2
    else:
        translation = torch.tensor(entry["translation"], dtype=torch.float64)
        cx, cy = float(entry["cx"]), float(entry["cy"])
    if translation.shape != (3,) or not bool(translation.isfinite().all()):
        raise ValueError("the place must be 3 finite numbers")
    if not (math.isfinite(cx) and math.isfinite(cy)):
        raise ValueError(f"the principal point must be finite, got {cx} and {cy}")
    return Camera(rotation.float(), translation.float(), fx, fy, cx, cy, width, height)
