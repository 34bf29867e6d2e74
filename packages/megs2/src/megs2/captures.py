"""A capture from disk, its format found by what is in the folder."""

from __future__ import annotations

from pathlib import Path

from megs2.camera import Capture
from megs2.colmap import read_colmap
from megs2.nerf_synthetic import read_nerf_synthetic


def load_capture(
    root: Path, *, images: str | None = None, test_every: int = 8, val_every: int = 0, downscale: int = 1, seed: int = 0
) -> Capture:
    """Read a capture of COLMAP or of NeRF-synthetic.

    Args:
        root: its folder.
        images: of a COLMAP capture: name of the folder of images; `images` when None.
        test_every: of a COLMAP capture: images, sorted by name, at indices that it divides are for testing.
        val_every: likewise: of the others, every so many are for choosing settings; 0 for none.
        downscale: shrink images by this factor.
        seed: of the random points that a NeRF-synthetic capture starts from.

    Returns:
        The capture.

    Raises:
        FileNotFoundError: if the folder is of neither format, or a file is missing.
        ValueError: if an option is out of range or a file is damaged.
    """
    for name, value, least in (("test_every", test_every, 1), ("val_every", val_every, 0), ("downscale", downscale, 1)):
        if value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")
    if not root.is_dir():
        raise FileNotFoundError(f"{root}: no such folder")
    if (root / "transforms_train.json").is_file():
        return read_nerf_synthetic(root, downscale=downscale, seed=seed)
    if (root / "sparse").is_dir():
        return read_colmap(root, images=images, test_every=test_every, val_every=val_every, downscale=downscale)
    raise FileNotFoundError(f"{root}: expected sparse/0 (COLMAP) or transforms_train.json (NeRF-synthetic)")
