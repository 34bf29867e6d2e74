"""This package's own compact file of a scene: safetensors, Gaussians ordered by their number of lobes (Sec. 5).

Lobes lie side by side without padding; a Gaussian's number of them is one byte. In half precision the means stay in
float32: a scene of extent 100 would otherwise move by a twentieth of its unit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from shared.checkpoints import atomic_write
from torch import Tensor

from megs2.gaussians import MAX_LOBES, SH_WIDTHS, Gaussians, build
from megs2.ply import sound

FORMAT, VERSION = "megs2", "1"
FLAT = ("means", "scales", "quats", "opacities", "base", "rest")
LOBES = ("axes", "sharpness", "amplitudes")
SHAPES = {"means": (3,), "scales": (3,), "quats": (4,), "opacities": (), "base": (3,)}
LOBE_SHAPES = {"axes": (3,), "sharpness": (), "amplitudes": (3,)}


def write_compact(
    path: Path, gaussians: Gaussians, *, half: bool = False, extra: Mapping[str, str] | None = None
) -> None:
    """Write a scene.

    Args:
        path: the file; it is replaced when the new one is whole.
        gaussians: the scene; its order is lost.
        half: float16 for all but the means.
        extra: what else shall be known of it, such as the budget.
    """
    scene = gaussians.detach().to("cpu").to(torch.float32)
    scene = scene.select(torch.argsort(scene.counts, stable=True))
    active = scene.active
    tensors: dict[str, Tensor] = {name: getattr(scene, name) for name in FLAT}
    tensors |= {name: getattr(scene, name)[active] for name in LOBES}
    if half:
        tensors = {name: tensor if name == "means" else tensor.half() for name, tensor in tensors.items()}
        lost = sum(int(tensor.isinf().sum()) for tensor in tensors.values())
        if lost:
            raise ValueError(f"{lost} numbers are too large for half precision")
    tensors["counts"] = scene.counts.to(torch.uint8)
    about = {
        "format": FORMAT,
        "version": VERSION,
        "max_lobes": str(scene.max_lobes),
        "extra": json.dumps(dict(extra or {})),
    }
    with atomic_write(path) as file:
        file.write(save({name: tensor.contiguous() for name, tensor in tensors.items()}, about))


def read_compact(path: Path) -> Gaussians:
    """Read a scene; float32, whatever the file has.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file is damaged, of another format, or has rows that are not finite.
    """
    about, tensors = _read(path)
    n, lobes = _rows(tensors, path), int(about.get("max_lobes", "0"))
    counts = tensors["counts"].long()
    if not 0 <= lobes <= MAX_LOBES or (n and int(counts.max()) > lobes):
        raise ValueError(f"{path}: expected up to {lobes} lobes of a Gaussian, at most {MAX_LOBES}")
    packed = int(counts.sum())
    for name, shape in LOBE_SHAPES.items():
        if tensors[name].shape != (packed, *shape):
            raise ValueError(f"{path}: {name} has shape {tuple(tensors[name].shape)}, expected {(packed, *shape)}")
    active = torch.arange(lobes) < counts[:, None]
    padded: dict[str, Tensor] = {}
    for name, shape in LOBE_SHAPES.items():
        padded[name] = torch.zeros(n, lobes, *shape)
        if name == "axes":
            padded[name][..., 2] = 1
        padded[name][active] = tensors[name].float()
    flat = {name: tensors[name].float() for name in FLAT}
    return sound(build(**flat, **padded, counts=counts), path)


def extra_of(path: Path) -> dict[str, str]:
    """Return what was written beside a scene.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file is damaged or of another format.
    """
    found = json.loads(_read(path)[0].get("extra", "{}"))
    return {str(key): str(value) for key, value in found.items()}


def _read(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path}: not a safetensors file that can be read ({error})") from error
    if about.get("format") != FORMAT:
        raise ValueError(f"{path}: no scene of this package, its format is {about.get('format')!r}")
    if about.get("version") != VERSION:
        raise ValueError(f"{path}: version {about.get('version')} of the format, expected {VERSION}")
    missing = [name for name in (*FLAT, *LOBES, "counts") if name not in tensors]
    if missing:
        raise ValueError(f"{path}: the scene lacks {missing[0]}")
    return about, tensors


def _rows(tensors: Mapping[str, Tensor], path: Path) -> int:
    n = len(tensors["counts"])
    for name, shape in SHAPES.items():
        if tensors[name].shape != (n, *shape):
            raise ValueError(f"{path}: {name} has shape {tuple(tensors[name].shape)}, expected {(n, *shape)}")
    rest = tensors["rest"]
    if rest.dim() != 3 or len(rest) != n or rest.shape[1] not in SH_WIDTHS or rest.shape[2] != 3:
        raise ValueError(f"{path}: rest has shape {tuple(rest.shape)}, expected ({n}, M, 3), M in {SH_WIDTHS}")
    return n
