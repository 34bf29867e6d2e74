"""Reading and writing scenes, whatever the format, and what of a scene takes how much memory."""

from __future__ import annotations

from pathlib import Path

from megs2.compact import read_compact, write_compact
from megs2.gaussians import Gaussians
from megs2.ply import read_ply, write_ply

SUFFIXES = (".ply", ".safetensors")


def load(path: str | Path) -> Gaussians:
    """Read a scene; the format is found by what the file begins with.

    Args:
        path: a PLY of 3DGS or of MEGS², or this package's safetensors.

    Returns:
        The scene, float32, on the CPU.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it holds no scene.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    with path.open("rb") as file:
        begins = file.read(3)
    return read_ply(path) if begins == b"ply" else read_compact(path)


def check_suffix(path: str | Path) -> Path:
    """Return the path of a scene that is to be written.

    Raises:
        ValueError: if its name does not say the format.
    """
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path}: expected a name that ends in {' or '.join(SUFFIXES)}")
    return path


def save(path: str | Path, gaussians: Gaussians, *, half: bool = False, extra: dict[str, str] | None = None) -> None:
    """Write a scene, in the format that the name ends in.

    Args:
        path: `.ply` (of MEGS² where there is room for lobes, else of 3DGS) or `.safetensors`.
        gaussians: the scene.
        half: half precision; of `.safetensors`.
        extra: what else shall be known of it; of `.safetensors`.

    Raises:
        ValueError: if the name ends otherwise, or half precision is asked of a PLY.
    """
    path = check_suffix(path)
    if path.suffix == ".safetensors":
        write_compact(path, gaussians, half=half, extra=extra)
    elif half:
        raise ValueError(f"{path}: a PLY has no half precision, expected .safetensors")
    else:
        write_ply(path, gaussians)


def bytes_by_part(gaussians: Gaussians) -> dict[str, int]:
    """Return the memory of each part of a scene in float32; they add up to `static_bytes`."""
    n, lobes = len(gaussians), int(gaussians.counts.sum())
    return {
        "positions": 12 * n,
        "scales": 12 * n,
        "rotations": 16 * n,
        "opacities": 4 * n,
        "base colours": 12 * n,
        "spherical harmonics": 12 * gaussians.rest.shape[1] * n,
        "lobes": 28 * lobes,
        "counts of lobes": n if gaussians.max_lobes else 0,
    }
