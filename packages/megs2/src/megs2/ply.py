"""Scenes as PLY files: that of 3DGS, with spherical harmonics, and that of MEGS², with lobes (Sec. 5).

3DGS has one element `vertex`; MEGS² has `vertex_0` to `vertex_3`, whose rows have so many lobes. Scales are logarithms,
opacities logits, quaternions w x y z, colours in units of the constant harmonic.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from plyfile import PlyData, PlyElement, PlyParseError
from shared.checkpoints import atomic_write
from torch import Tensor

from megs2.gaussians import MAX_LOBES, SH_WIDTHS, Gaussians, build

log = logging.getLogger(__name__)

LARGEST_LOGIT = 15.0  # opacities of 0 and 1, infinite as logits, become this
PLACE = ("x", "y", "z")
NORMAL = ("nx", "ny", "nz")
SCALES = ("scale_0", "scale_1", "scale_2")
ROTATION = ("rot_0", "rot_1", "rot_2", "rot_3")
DC = ("f_dc_0", "f_dc_1", "f_dc_2")
BASE = ("rgb_base_0", "rgb_base_1", "rgb_base_2")
COUNT = "sg_axis_count"


def lobe_fields(k: int) -> tuple[str, ...]:
    """Return the names of lobe k: axis, sharpness, amplitude."""
    axis, amplitude = (tuple(f"sg_{name}_{k}_{i}" for i in range(3)) for name in ("dir", "rgb"))
    return (*axis, f"sg_sharp_{k}", *amplitude)


def rest_fields(width: int) -> tuple[str, ...]:
    """Return the names of the harmonics beyond the constant: all of red, then green, then blue."""
    return tuple(f"f_rest_{i}" for i in range(3 * width))


# Reading


def read_ply(path: Path) -> Gaussians:
    """Read a scene of either kind.

    Args:
        path: the file; little or big endian, or text.

    Returns:
        The scene, float32. With lobes there is room for three; what is not used is neutral.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is no PLY file, no scene of Gaussians, or has rows that are not finite.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    try:
        with path.open("rb") as stream:
            data = PlyData.read(stream)
    except (PlyParseError, ValueError, UnicodeDecodeError, IndexError, MemoryError) as error:
        raise ValueError(f"{path}: not a PLY file that can be read ({error})") from error
    elements = {element.name: element for element in data.elements}
    with_lobes = [f"vertex_{count}" for count in range(MAX_LOBES + 1) if f"vertex_{count}" in elements]
    if with_lobes:
        parts = [_with_lobes(elements[name].data, int(name[-1]), path) for name in with_lobes]
        scene = Gaussians(*(torch.cat(tensors) for tensors in zip(*map(_fields, parts), strict=True)))
    elif "vertex" in elements:
        scene = _with_harmonics(elements["vertex"].data, path)
    else:
        raise ValueError(
            f"{path}: expected an element vertex, or vertex_0 and so on, got {', '.join(elements) or 'none'}"
        )
    return sound(scene, path)


def _fields(scene: Gaussians) -> list[Tensor]:
    return [getattr(scene, name) for name in Gaussians.__dataclass_fields__]


def _columns(rows: NDArray[Any], names: Sequence[str], path: Path) -> Tensor:
    """Return named columns (N, len(names)), float32."""
    missing = [name for name in names if name not in (rows.dtype.names or ())]
    if missing:
        raise ValueError(f"{path}: no scene of Gaussians, it lacks {missing[0]}")
    columns = np.empty((len(rows), len(names)), np.float32)
    for place, name in enumerate(names):
        columns[:, place] = rows[name]
    return torch.from_numpy(columns)


def _with_harmonics(rows: NDArray[Any], path: Path) -> Gaussians:
    found = sum(name.startswith("f_rest_") for name in rows.dtype.names or ())
    if found % 3 or found // 3 not in SH_WIDTHS:
        raise ValueError(f"{path}: {found} properties f_rest, expected 0, 9, 24 or 45 (harmonics of degree 0 to 3)")
    width = found // 3
    rest = _columns(rows, rest_fields(width), path).view(len(rows), 3, width).transpose(1, 2).contiguous()
    return build(*_geometry(rows, path), _columns(rows, DC, path), rest=rest)


def _with_lobes(rows: NDArray[Any], count: int, path: Path) -> Gaussians:
    n = len(rows)
    axes, amplitudes = torch.zeros(n, MAX_LOBES, 3), torch.zeros(n, MAX_LOBES, 3)
    axes[..., 2], sharpness = 1, torch.zeros(n, MAX_LOBES)
    for k in range(count):
        lobe = _columns(rows, lobe_fields(k), path)
        axes[:, k], sharpness[:, k], amplitudes[:, k] = lobe[:, :3], lobe[:, 3], lobe[:, 4:]
    return build(
        *_geometry(rows, path), _columns(rows, BASE, path), axes=axes, sharpness=sharpness, amplitudes=amplitudes,
        counts=torch.full((n,), count),
    )  # fmt: skip


def _geometry(rows: NDArray[Any], path: Path) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return (
        _columns(rows, PLACE, path),
        _columns(rows, SCALES, path),
        _columns(rows, ROTATION, path),
        _columns(rows, ("opacity",), path).squeeze(1),
    )


def sound(scene: Gaussians, path: Path) -> Gaussians:
    """Refuse rows that cannot be drawn, and make infinite logits of opacity finite.

    Args:
        scene: as it was read.
        path: for messages.

    Returns:
        The scene; how many opacities were changed is a warning.

    Raises:
        ValueError: if a number is NaN or, but for opacities, infinite, or a rotation or an active axis is 0.
    """
    n = len(scene)
    bad = scene.opacities.isnan() | (scene.quats.norm(dim=1) == 0)
    for tensor in (scene.means, scene.scales, scene.quats, scene.base, scene.rest):
        bad |= ~tensor.isfinite().flatten(1).all(1)
    lobes = torch.cat([scene.axes, scene.sharpness[..., None], scene.amplitudes], -1).isfinite().all(-1)
    bad |= (scene.active & ~(lobes & (scene.axes.norm(dim=-1) > 0))).any(1)
    if bool(bad.any()):
        raise ValueError(
            f"{path}: {int(bad.sum())} of {n} Gaussians are not finite, the first is {int(bad.nonzero()[0])}"
        )
    infinite = scene.opacities.isinf()
    if bool(infinite.any()):
        log.warning("%s: %d infinite opacities were made finite", path, int(infinite.sum()))
        scene.opacities.clamp_(-LARGEST_LOGIT, LARGEST_LOGIT)
    return scene


# Writing


def write_ply(path: Path, gaussians: Gaussians) -> None:
    """Write a scene: with room for lobes as MEGS²'s file, otherwise as that of 3DGS.

    Args:
        path: the file; it is replaced when the new one is whole.
        gaussians: the scene. Rows of MEGS²'s file are ordered by the number of lobes.

    Raises:
        ValueError: if there is room for more lobes than the format has, or the scene has both lobes and harmonics.
    """
    scene = gaussians.detach().to("cpu").to(torch.float32)
    if scene.max_lobes > MAX_LOBES or (scene.max_lobes and scene.rest.shape[1]):
        raise ValueError(
            f"a PLY holds up to {MAX_LOBES} lobes, or harmonics, got {scene.max_lobes} and {scene.sh_degree}"
        )
    if scene.max_lobes:
        elements = [
            _element(f"vertex_{count}", _lobe_columns(scene.select(scene.counts == count), count))
            for count in range(scene.max_lobes + 1)
        ]
    else:
        width = scene.rest.shape[1]
        rest = scene.rest.transpose(1, 2).reshape(len(scene), 3 * width)
        columns = {PLACE: scene.means, NORMAL: torch.zeros_like(scene.means), DC: scene.base, rest_fields(width): rest}
        tail = {("opacity",): scene.opacities[:, None], SCALES: scene.scales, ROTATION: scene.quats}
        elements = [_element("vertex", columns | tail)]
    with atomic_write(path) as file:
        PlyData(elements, byte_order="<").write(file)


def _lobe_columns(scene: Gaussians, count: int) -> dict[tuple[str, ...], Tensor]:
    normals = torch.zeros_like(scene.means)
    columns: dict[tuple[str, ...], Tensor] = {PLACE: scene.means, NORMAL: normals, BASE: scene.base}
    columns[(COUNT,)] = torch.full((len(scene), 1), float(count))
    for k in range(count):
        lobe = [scene.axes[:, k], scene.sharpness[:, k, None], scene.amplitudes[:, k]]
        columns[lobe_fields(k)] = torch.cat(lobe, 1)
    return columns | {SCALES: scene.scales, ROTATION: scene.quats, ("opacity",): scene.opacities[:, None]}


def _element(name: str, columns: dict[tuple[str, ...], Tensor]) -> PlyElement:
    n = len(next(iter(columns.values())))
    rows = np.empty(n, [(field, "<f4") for fields in columns for field in fields])
    for fields, values in columns.items():
        for place, field in enumerate(fields):
            rows[field] = values[:, place].numpy()
    return PlyElement.describe(rows, name)
