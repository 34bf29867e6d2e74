"""The embedded scenes: glossy meshes of the pybullet wheel, photographed from all sides (Sec. 7 of the specification).

The pictures are made here and kept in a cache; nothing of the wheel is copied into the package.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from tqdm import tqdm

from megs2.camera import Camera, Capture, View, look_at
from megs2.meshes import (
    AMBIENT,
    BACKGROUND,
    DIFFUSE,
    GREY,
    Mesh,
    Shading,
    find_pybullet_data,
    read_mesh,
    render,
    surface_points,
)

log = logging.getLogger(__name__)

RADIUS = 3.0  # of the cameras' sphere; at 40 degrees the unit sphere just fits into the picture
FOV = 40.0  # degrees
# Azimuths of the first cameras, radians. A whole number of radians is no sum of turns and golden angles, which are
# algebraic multiples of pi: spheres of different offsets never share a camera, whatever their counts. These keep the
# default spheres 6 degrees or more apart, where neighbours of one sphere are 26 apart.
OFFSETS = {"train": 0.0, "val": 28.0, "test": 14.0}
RENDERER = 1  # raised when the same recipe gives other pictures
GOLDEN_ANGLE = math.pi * (3 - math.sqrt(5))


@dataclass(frozen=True)
class Recipe:
    """What a scene is made of.

    Attributes:
        file: of the mesh, in the wheel's folder.
        shading: lights and gloss.
        up: vertical axis of the file.
        colour: of meshes that bring none, RGB in [0, 1].
        crease: angle up to which edges look smooth, degrees.
    """

    file: str
    shading: Shading
    up: Literal["y", "z"] = "z"
    colour: tuple[float, float, float] = GREY
    crease: float = 45.0


GLOSSY, MATT = Shading(ks=0.5, power=32.0), Shading(ks=0.0)
SCENES = {
    "duck": Recipe("duck.obj", GLOSSY, up="y"),
    "mug": Recipe("objects/mug.obj", GLOSSY, colour=(0.75, 0.2, 0.15)),
    "torus": Recipe("torus/torus_textured.obj", GLOSSY),
    "duck_diffuse": Recipe("duck.obj", MATT, up="y"),
    "torus_diffuse": Recipe("torus/torus_textured.obj", MATT),
    "soccerball": Recipe("soccerball.obj", GLOSSY),
    "lego": Recipe("lego/lego.obj", GLOSSY, up="y", colour=(0.1, 0.35, 0.75)),
    "bunny": Recipe("bunny.obj", GLOSSY, colour=(0.55, 0.4, 0.3), crease=90.0),
}


def fibonacci_cameras(
    count: int, radius: float = RADIUS, offset: float = 0.0, *, fov: float = FOV, size: int = 96
) -> list[Camera]:
    """Place cameras evenly on a sphere around the origin, looking at it, z up.

    Args:
        count: N; camera i is at height (1 - (2 i + 1) / N) radius, so that none is at a pole.
        radius: of the sphere.
        offset: azimuth of the first camera, radians; each next one is a golden angle further.
        fov: angle of view, degrees.
        size: width and height of the pictures.

    Returns:
        N cameras in float32, from top to bottom.

    Raises:
        ValueError: if `count` is negative, or `size` or `radius` is not positive.
    """
    if count < 0 or size < 1 or not radius > 0:
        raise ValueError(
            f"count is {count}, size is {size} and radius is {radius}, expected count >= 0, size >= 1 and radius > 0"
        )
    index = torch.arange(count, dtype=torch.float64)
    z = 1 - (2 * index + 1) / max(count, 1)
    azimuth = offset + GOLDEN_ANGLE * index
    across = (1 - z**2).sqrt()
    eyes = radius * torch.stack([across * azimuth.cos(), across * azimuth.sin(), z], 1)
    up = torch.tensor([0.0, 0, 1], dtype=torch.float64)
    return [look_at(eye, torch.zeros_like(eye), up, fov=fov, width=size, height=size).to(torch.float32) for eye in eyes]


def mesh_scene(
    name: str,
    *,
    size: int = 96,
    train: int = 48,
    val: int = 8,
    test: int = 16,
    points: int = 4000,
    noise: float = 0.03,
    seed: int = 0,
    supersample: int = 4,
    cache: Path | None = None,
    progress: bool = True,
) -> Capture:
    """Photograph a mesh, or take the photographs from the cache.

    Args:
        name: one of `SCENES`.
        size: width and height of the photographs.
        train: number of photographs to train on, at least 1.
        val: number to choose settings by.
        test: number held out.
        points: number of points of the surface.
        noise: their standard deviation, as a share of the object's radius.
        seed: of the points; the photographs do not depend on it.
        supersample: a pixel is the mean of so many rays squared.
        cache: folder for the photographs, by default `default_cache()`.
        progress: whether to show a bar in a terminal while photographs are taken.

    Returns:
        The scene, within the unit sphere, before white. Photographs have 8 bits a channel, as from a camera.

    Raises:
        ValueError: if the name is unknown or a number out of range.
        FileNotFoundError: if the wheel with the meshes is not installed.
        ModuleNotFoundError: if Embree is needed and not installed.
    """
    if name not in SCENES:
        raise ValueError(f"data.name is {name!r}, expected one of {', '.join(SCENES)}")
    if train < 1 or val < 0 or test < 0 or supersample < 1:
        raise ValueError(
            f"train is {train}, val is {val}, test is {test} and supersample is {supersample}, "
            "expected train >= 1, val >= 0, test >= 0 and supersample >= 1"
        )
    recipe = SCENES[name]
    path = find_pybullet_data() / recipe.file
    mesh = read_mesh(path, up=recipe.up, colour=recipe.colour, crease=recipe.crease)
    counts = {"train": train, "val": val, "test": test}
    cameras = {part: fibonacci_cameras(n, offset=OFFSETS[part], size=size) for part, n in counts.items()}
    places, colours = surface_points(mesh, points, noise=noise, generator=torch.Generator().manual_seed(seed))
    images = photographs(
        mesh,
        [camera for part in counts for camera in cameras[part]],
        recipe.shading,
        supersample=supersample,
        cache=default_cache() if cache is None else cache,
        label=name,
        progress=progress,
    )
    taken = iter(images.float() / 255)
    views = {
        part: [View(camera, next(taken), f"{part}_{i:03d}") for i, camera in enumerate(cameras[part])]
        for part in counts
    }
    return Capture(name, views["train"], views["test"], places, colours, torch.full((3,), BACKGROUND), val=views["val"])


def default_cache() -> Path:
    """Return where photographs are kept: `$XDG_CACHE_HOME/megs2`, or `~/.cache/megs2`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "megs2"


def photographs(
    mesh: Mesh,
    cameras: Sequence[Camera],
    shading: Shading,
    *,
    supersample: int = 4,
    cache: Path,
    label: str = "mesh",
    progress: bool = True,
) -> Tensor:
    """Take photographs from cameras of one size, or find them in a cache.

    A cache file is written under another name first, so that one which is there is whole; two processes that make the
    same one do the work twice and agree. One that is damaged or of another recipe is replaced with a warning.

    Args:
        mesh: the object.
        cameras: N of them, all of one size.
        shading: lights and gloss.
        supersample: see `render`.
        cache: folder; made if it is not there. Where it cannot be written, the photographs are made each time.
        label: start of the file's name and title of the bar.
        progress: whether to show a bar in a terminal.

    Returns:
        (N, H, W, 3) uint8.
    """
    key = recipe_key(mesh, cameras, shading, supersample)
    path = cache / f"{label}-{key[:16]}.safetensors"
    shape = (len(cameras), cameras[0].height, cameras[0].width, 3)
    if path.exists():
        try:
            return _read(path, key, shape)
        except (OSError, ValueError, SafetensorError) as error:
            log.warning("%s is not what was put there (%s); the photographs are taken again", path, error)
    bar = tqdm(cameras, desc=f"photographs of {label}", unit="view", disable=None if progress else True, leave=False)
    images = torch.stack(
        [(render(mesh, camera, shading, supersample=supersample) * 255).round().to(torch.uint8) for camera in bar]
    )
    try:
        with _replacing(path) as unfinished:
            save_file({"images": images}, unfinished, metadata={"recipe": key, "digest": _digest(images)})
    except OSError as error:
        log.warning("the photographs of %s cannot be kept in %s (%s)", label, cache, error)
    return images


def recipe_key(mesh: Mesh, cameras: Sequence[Camera], shading: Shading, supersample: int) -> str:
    """Return a hash of everything that photographs depend on, 64 hexadecimal digits.

    Args:
        mesh: hashed number by number, textures included, so that a file read differently counts as another.
        cameras: theirs too.
        shading: lights and gloss.
        supersample: rays along a pixel's side.
    """
    constants = {"renderer": RENDERER, "ambient": AMBIENT, "diffuse": DIFFUSE, "background": BACKGROUND}
    recipe = json.dumps([constants, asdict(shading), supersample], sort_keys=True)
    found = hashlib.sha256(recipe.encode())
    arrays: list[np.ndarray] = [mesh.vertices, mesh.faces, mesh.normals, mesh.uv, mesh.material, *mesh.textures]
    for camera in cameras:
        numbers = [camera.fx, camera.fy, camera.cx, camera.cy, camera.width, camera.height]
        arrays += [camera.rotation.numpy(), camera.translation.numpy(), np.array(numbers, np.float64)]
    for array in arrays:
        found.update(f"{array.dtype.str}{array.shape}".encode())
        found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()


def _read(path: Path, key: str, shape: tuple[int, ...]) -> Tensor:
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        if metadata.get("recipe") != key or "images" not in list(file.keys()):
            raise ValueError("it has photographs of another recipe")
        images: Tensor = file.get_tensor("images")
    if images.shape != shape or images.dtype != torch.uint8 or metadata.get("digest") != _digest(images):
        raise ValueError("its pictures are damaged")
    return images


def _digest(images: Tensor) -> str:
    return hashlib.sha256(images.contiguous().numpy().data).hexdigest()


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.stem}-", suffix=".part", dir=path.parent)
    os.close(handle)
    unfinished = Path(name)
    try:
        yield unfinished
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
