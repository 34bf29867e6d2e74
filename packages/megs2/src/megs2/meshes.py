"""Pictures of textured meshes: rays, a first hit for each, and a glossy shader (Sec. 7 of the specification).

The truth of a scene has to depend on the direction of view, or there is nothing for lobes to learn. Blinn-Phong
highlights move with the camera; the diffuse part stays. There are no shadows and no interreflections.

World coordinates have z up. Colours are display values in [0, 1], as photographs are; no gamma is applied anywhere.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import trimesh
from numpy.typing import NDArray
from torch import Tensor
from trimesh.resolvers import FilePathResolver

from megs2.camera import Camera

Array = NDArray[np.float64]

AMBIENT = 0.3
DIFFUSE = 0.7
CREASE = 45.0  # degrees; edges that are sharper than this stay sharp
GREY = (0.6, 0.6, 0.6)
BACKGROUND = 1.0
_TURN_UP = {"z": np.eye(3), "y": np.array([[1.0, 0, 0], [0, 0, -1], [0, 1, 0]])}


@dataclass(frozen=True)
class Light:
    """Light from infinitely far away.

    Attributes:
        direction: where it comes from, of any length but 0.
        weight: its share of the diffuse light; those of all lights add up to 1, so that a white surface stays below 1.
    """

    direction: tuple[float, float, float]
    weight: float


LIGHTS = (Light((0.5, -0.6, 0.62), 0.6), Light((-0.75, 0.35, 0.55), 0.4))


@dataclass(frozen=True)
class Shading:
    """How a surface shines.

    Attributes:
        ks: strength of the highlights, at least 0; 0 is a diffuse surface.
        power: Blinn's exponent, above 0; the larger, the smaller the highlight.
        lights: directional lights.
    """

    ks: float = 0.5
    power: float = 32.0
    lights: tuple[Light, ...] = LIGHTS

    def __post_init__(self) -> None:
        if not self.ks >= 0 or not self.power > 0:
            raise ValueError(f"ks is {self.ks} and power is {self.power}, expected ks >= 0 and power > 0")
        total = sum(light.weight for light in self.lights)
        if abs(total - 1) > 1e-6:
            raise ValueError(f"the weights of the lights add up to {total:g}, expected 1")


@dataclass(frozen=True)
class Mesh:
    """Triangles with smooth normals and textures.

    Attributes:
        vertices: (V, 3).
        faces: (F, 3) indices of vertices, int64.
        normals: (F, 3, 3) unit normals at the faces' corners.
        uv: (F, 3, 2) texture coordinates at the corners; (0, 0) is the lower left corner of a picture, which repeats.
        material: (F,) index of each face's texture, int64.
        textures: (h, w, 3) pictures in [0, 1], the first row on top; a plain colour is a picture of one pixel.
    """

    vertices: Array
    faces: NDArray[np.int64]
    normals: Array
    uv: Array
    material: NDArray[np.int64]
    textures: tuple[Array, ...]

    @cached_property
    def corners(self) -> Array:
        """Where the faces' corners are, (F, 3, 3)."""
        return self.vertices[self.faces]

    @cached_property
    def tracer(self) -> Any:
        """Embree's search tree of the triangles."""
        try:
            from trimesh.ray.ray_pyembree import RayMeshIntersector
        except ImportError as error:
            raise ModuleNotFoundError(
                f"pictures of meshes need Embree, which cannot be imported ({error}); pip install embreex, or name "
                "a capture of your own as data.root"
            ) from error
        return RayMeshIntersector(trimesh.Trimesh(self.vertices, self.faces, process=False))


class _NearbyFiles(FilePathResolver):
    """Reads the files that a mesh names, in other folders too: the torus's texture lies above it."""

    def __init__(self, source: str) -> None:
        super().__init__(source)
        self.missing: list[str] = []

    def get(self, name: str) -> bytes:
        try:
            return (Path(self.parent) / name.strip()).read_bytes()
        except OSError:
            self.missing.append(name.strip())  # trimesh goes on without
            raise


def find_pybullet_data() -> Path:
    """Return the folder of meshes in the wheel of pybullet; the simulator is not imported.

    Raises:
        FileNotFoundError: if the wheel is not installed.
    """
    spec = importlib.util.find_spec("pybullet_data")
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(
            "the meshes of pybullet are not installed; pip install pybullet==3.2.7 (it has wheels for Python 3.11 on "
            "Linux), or name another kind of scene as data.name"
        )
    return Path(spec.submodule_search_locations[0])


def corner_normals(corners: Array, *, crease: float = CREASE) -> Array:
    """Return smooth normals that leave sharp edges sharp.

    The normal at a face's corner is the mean, by area, of the normals of the faces that meet there and are inclined to
    this one by less than `crease`. Faces that are wound the wrong way are thereby left out of the mean.

    Args:
        corners: (F, 3, 3); equal places are one vertex, whatever the texture does there. No face has area 0.
        crease: degrees.

    Returns:
        (F, 3, 3) unit vectors.
    """
    count = len(corners)
    weighted = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    unit = _normalised(weighted)
    # Every pair of corners at one place, as the two flat lists `one` and `other`.
    place = np.unique(corners.reshape(-1, 3).round(9), axis=0, return_inverse=True)[1].reshape(-1)
    order, degree = np.argsort(place, kind="stable"), np.bincount(place)
    start, repeats = np.cumsum(degree) - degree, degree[place]
    one = np.repeat(np.arange(3 * count), repeats)
    within = np.arange(len(one)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
    other = order[start[place[one]] + within]
    alike = (unit[one // 3] * unit[other // 3]).sum(1) > np.cos(np.deg2rad(crease))
    one, normals = one[alike], weighted[other[alike] // 3]
    total: Array = np.stack([np.bincount(one, normals[:, axis], 3 * count) for axis in range(3)], 1)
    return _normalised(total).reshape(count, 3, 3)


def read_mesh(
    path: Path, *, up: Literal["y", "z"] = "y", colour: Sequence[float] = GREY, crease: float = CREASE
) -> Mesh:
    """Read a mesh in any format of trimesh, turn it upright and fit it into the unit sphere.

    A texture replaces the material's diffuse colour; where there is neither, or the file of materials is not there,
    `colour` is taken.

    Args:
        path: of the file; its materials and textures lie where it says.
        up: the file's vertical axis; it becomes z.
        colour: of faces without material, RGB in [0, 1].
        crease: see `corner_normals`.

    Returns:
        The mesh; the centre of its bounding box is the origin and its farthest vertex is at distance 1.

    Raises:
        FileNotFoundError: if the file, or a texture that it names, is not there.
        ValueError: if `up` is no axis, or the file cannot be read or has no faces.
    """
    if up not in _TURN_UP:
        raise ValueError(f"up is {up!r}, expected one of {', '.join(_TURN_UP)}")
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist, expected a mesh")
    nearby = _NearbyFiles(str(path))
    try:
        scene: Any = trimesh.load_scene(path, process=False, resolver=nearby)
        parts = [part for part in scene.dump() if isinstance(part, trimesh.Trimesh) and len(part.faces)]
    except Exception as error:
        raise ValueError(f"{path} cannot be read as a mesh ({error})") from error
    missing = [name for name in nearby.missing if not name.lower().endswith(".mtl")]
    if missing:
        raise FileNotFoundError(f"{path} has {missing[0]} as a texture, which cannot be read")
    if not parts:
        raise ValueError(f"{path} has no faces, expected a mesh")
    offsets = np.cumsum([0] + [len(part.vertices) for part in parts])
    vertices = np.concatenate([np.asarray(part.vertices, np.float64) for part in parts]) @ _TURN_UP[up].T
    faces = np.concatenate([part.faces + start for part, start in zip(parts, offsets, strict=False)]).astype(np.int64)
    material = np.repeat(np.arange(len(parts)), [len(part.faces) for part in parts])
    uv = np.concatenate([_texture_coordinates(part) for part in parts])
    vertices = vertices - (vertices.min(0) + vertices.max(0)) / 2
    vertices = vertices / np.linalg.norm(vertices, axis=1).max()
    corners = vertices[faces]
    area = np.linalg.norm(np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]), axis=1)
    solid = area > 1e-12  # a face without area has no normal, and nothing hits it
    textures = tuple(_texture(part, colour) for part in parts)
    return Mesh(
        vertices, faces[solid], corner_normals(corners[solid], crease=crease), uv[solid], material[solid], textures
    )


def albedo(mesh: Mesh, face: NDArray[np.int64], weights: Array) -> Array:
    """Look up the colour at points of the surface, bilinearly between the centres of a texture's pixels.

    Args:
        mesh: the mesh.
        face: (R,) indices of faces.
        weights: (R, 3) barycentric coordinates on them.

    Returns:
        (R, 3) in [0, 1].
    """
    colours = np.empty((len(face), 3))
    uv = np.einsum("rc,rck->rk", weights, mesh.uv[face])
    for index in np.unique(mesh.material[face]):
        here = mesh.material[face] == index
        colours[here] = _bilinear(mesh.textures[index], uv[here])
    return colours


def shade(colour: Array, normals: Array, towards: Array, shading: Shading) -> Array:
    """Light a surface: I = albedo (0.3 + 0.7 sum_l w_l max(n.l, 0)) + k_s sum_l max(n.h_l, 0)^p, clamped to [0, 1].

    A light gives no highlight where it does not shine (n.l <= 0); flat faces would else glow from behind.

    Args:
        colour: (R, 3) albedo.
        normals: (R, 3) unit vectors on the viewer's side.
        towards: (R, 3) unit vectors to the viewer; h_l halves the angle between it and light l.
        shading: lights and gloss.

    Returns:
        (R, 3).
    """
    diffuse = np.full(len(colour), AMBIENT)
    highlight = np.zeros(len(colour))
    for light in shading.lights:
        direction = _normalised(np.asarray(light.direction, np.float64))
        cosine = normals @ direction
        diffuse += DIFFUSE * light.weight * np.maximum(cosine, 0)
        if shading.ks > 0:
            half = _normalised(direction + towards)
            highlight += np.where(cosine > 0, np.maximum((normals * half).sum(1), 0) ** shading.power, 0)
    return (colour * diffuse[:, None] + shading.ks * highlight[:, None]).clip(0, 1)


def render(mesh: Mesh, camera: Camera, shading: Shading, *, supersample: int = 4) -> Tensor:
    """Take a picture of a mesh before a white background.

    Args:
        mesh: the mesh.
        camera: where from; its width and height are the picture's.
        shading: lights and gloss.
        supersample: s; a pixel is the mean of s x s rays through the centres of its parts.

    Returns:
        (H, W, 3) float32 in [0, 1].

    Raises:
        ValueError: if `supersample` is below 1.
        ModuleNotFoundError: if Embree is not there.
    """
    if supersample < 1:
        raise ValueError(f"supersample is {supersample}, expected at least 1")
    origin = camera.centre.double().numpy()
    directions = _rays(camera, supersample)
    face = mesh.tracer.intersects_first(np.broadcast_to(origin, directions.shape), directions)
    hit = face >= 0
    face, towards = face[hit], -directions[hit]
    weights = _barycentric(mesh.corners[face], origin, directions[hit])
    normals = _normalised(np.einsum("rc,rck->rk", weights, mesh.normals[face]))
    corners = mesh.corners[face]
    seen = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    # Thin walls, and files whose faces are wound both ways, are seen from behind.
    normals = np.where((seen * towards).sum(1, keepdims=True) < 0, -normals, normals)
    samples = np.full((len(directions), 3), BACKGROUND)
    samples[hit] = shade(albedo(mesh, face, weights), normals, towards, shading)
    grid = samples.reshape(camera.height, supersample, camera.width, supersample, 3)
    return torch.from_numpy(grid.mean((1, 3)).astype(np.float32))


def surface_points(
    mesh: Mesh, count: int, *, noise: float = 0.0, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Draw points of the surface, evenly by area: they stand for the points of structure from motion.

    Args:
        mesh: the mesh.
        count: P, at least 1.
        noise: standard deviation in each direction, in units of the mesh (whose radius is 1 if `read_mesh` made it).
        generator: of places and noise, on the CPU.

    Returns:
        Points (P, 3) and their albedo (P, 3) in [0, 1], float32.

    Raises:
        ValueError: if `count` is below 1 or `noise` below 0.
    """
    if count < 1 or not noise >= 0:
        raise ValueError(f"points is {count} and noise is {noise}, expected points >= 1 and noise >= 0")
    corners = mesh.corners
    area = np.linalg.norm(np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]), axis=1)
    draws = torch.rand(count, 3, generator=generator, dtype=torch.float64).numpy()
    cumulative = np.cumsum(area)
    face = np.searchsorted(cumulative, draws[:, 0] * cumulative[-1], side="right").clip(max=len(area) - 1)
    root = np.sqrt(draws[:, 1])
    weights = np.stack([1 - root, root * (1 - draws[:, 2]), root * draws[:, 2]], 1)
    points = torch.from_numpy(np.einsum("rc,rck->rk", weights, corners[face]))
    points = points + noise * torch.randn(count, 3, generator=generator, dtype=torch.float64)
    return points.float(), torch.from_numpy(albedo(mesh, face, weights)).float()


def _normalised(vectors: Array) -> Array:
    length = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(length > 0, length, 1)


def _rays(camera: Camera, supersample: int) -> Array:
    """Unit directions in the world, row by row of the enlarged picture."""
    x = ((np.arange(camera.width * supersample) + 0.5) / supersample - camera.cx) / camera.fx
    y = ((np.arange(camera.height * supersample) + 0.5) / supersample - camera.cy) / camera.fy
    seen = np.stack([np.tile(x, len(y)), np.repeat(y, len(x)), np.ones(len(x) * len(y))], 1)
    return _normalised(seen @ camera.rotation.double().numpy())


def _barycentric(corners: Array, origin: Array, directions: Array) -> Array:
    """Where rays meet the planes of their triangles; Embree's own answer has only single precision."""
    edge_1, edge_2 = corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]
    across = np.cross(directions, edge_2)
    offset = origin - corners[:, 0]
    determinant = (edge_1 * across).sum(1)
    determinant = np.where(determinant == 0, np.inf, determinant)  # edge on: the first corner stands for the line
    v = (offset * across).sum(1) / determinant
    w = (directions * np.cross(offset, edge_1)).sum(1) / determinant
    weights = np.stack([1 - v - w, v, w], 1).clip(0, 1)
    return weights / weights.sum(1, keepdims=True)


def _bilinear(texture: Array, uv: Array) -> Array:
    height, width = texture.shape[:2]
    x, y = uv[:, 0] * width - 0.5, (1 - uv[:, 1]) * height - 0.5
    left, top = np.floor(x).astype(np.int64), np.floor(y).astype(np.int64)
    right_share, lower_share = (x - left)[:, None], (y - top)[:, None]
    columns, rows = (left % width, (left + 1) % width), (top % height, (top + 1) % height)
    upper, lower = (
        texture[row, columns[0]] * (1 - right_share) + texture[row, columns[1]] * right_share for row in rows
    )
    return upper * (1 - lower_share) + lower * lower_share


def _texture_coordinates(part: Any) -> Array:
    uv = getattr(part.visual, "uv", None)
    return np.zeros((len(part.faces), 3, 2)) if uv is None else np.asarray(uv, np.float64)[part.faces]


def _texture(part: Any, colour: Sequence[float]) -> Array:
    material = getattr(part.visual, "material", None)
    image = getattr(material, "image", None)
    if image is not None and getattr(part.visual, "uv", None) is not None:
        return np.asarray(image.convert("RGB"), np.float64) / 255
    if material is None:
        return np.asarray(colour, np.float64).reshape(1, 1, 3)
    return np.asarray(material.main_color, np.float64)[None, None, :3] / 255
