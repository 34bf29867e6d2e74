"""Photographs from disk."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor
from tqdm import tqdm

THREADS = 8


def read_photograph(path: Path, background: Tensor, downscale: int = 1) -> Tensor:
    """Read an image of 8 or 16 bits; transparency shows the background.

    Args:
        path: anything that Pillow reads: RGB, RGBA, grey, with or without alpha.
        background: (3,) in [0, 1].
        downscale: average blocks of so many pixels; what does not fill a block is cut off.

    Returns:
        (H, W, 3) float32 in [0, 1].

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is no image, or smaller than a block.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such image")
    try:
        with Image.open(path) as file:
            if file.mode.startswith("I;16") or file.mode == "I":
                grey = np.asarray(file, np.float32) / 65535
                pixels = np.stack([grey, grey, grey, np.ones_like(grey)], -1)
            else:
                pixels = np.asarray(file.convert("RGBA"), np.float32) / 255
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError) as error:
        raise ValueError(f"{path}: not an image that can be read ({error})") from error
    height, width = pixels.shape[0] // downscale, pixels.shape[1] // downscale
    if not height or not width:
        raise ValueError(f"{path}: {pixels.shape[1]} x {pixels.shape[0]} pixels cannot be downscaled by {downscale}")
    # Colour and alpha are averaged after compositing, since a transparent pixel's colour means nothing.
    image = torch.from_numpy(pixels[..., :3] * pixels[..., 3:]) + (1 - torch.from_numpy(pixels[..., 3:])) * background
    cut = image[: height * downscale, : width * downscale]
    return cut.reshape(height, downscale, width, downscale, 3).mean((1, 3))


def read_photographs(
    paths: Sequence[Path], background: Tensor, downscale: int = 1, *, label: str = "photographs"
) -> list[Tensor]:
    """Read images by several threads, in the order given; with a progress bar on a terminal.

    Args:
        paths: of the images.
        background: (3,), where they are transparent.
        downscale: see `read_photograph`.
        label: of the progress bar.

    Returns:
        Images (H, W, 3).
    """
    with ThreadPoolExecutor(THREADS) as pool:
        jobs = [pool.submit(read_photograph, path, background, downscale) for path in paths]
        try:
            return [job.result() for job in tqdm(jobs, desc=label, disable=None, leave=False)]
        except BaseException:
            for job in jobs:
                job.cancel()
            raise
