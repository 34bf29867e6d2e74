"""Pictures and films on disk, and pictures made to be looked at."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from shared.checkpoints import atomic_write
from torch import Tensor

FILMS = (".gif", ".mp4")


def to_bytes(image: Tensor) -> NDArray[np.uint8]:
    """Turn an image (H, W, 3) in [0, 1] into bytes, clamped and rounded."""
    return (image.detach().clamp(0, 1) * 255).round().to(torch.uint8).cpu().numpy()


def save_png(path: Path, image: Tensor) -> None:
    """Write an image (H, W, 3) in [0, 1] as PNG."""
    buffer = io.BytesIO()
    Image.fromarray(to_bytes(image)).save(buffer, format="PNG")
    with atomic_write(path) as file:
        file.write(buffer.getvalue())


def check_film(path: Path) -> None:
    """Refuse a film that could not be written, before its frames are drawn.

    Raises:
        ValueError: if the name ends otherwise, or MP4 is asked for and PyAV is not installed.
    """
    if path.suffix not in FILMS:
        raise ValueError(f"{path}: expected a film that ends in {' or '.join(FILMS)}")
    if path.suffix == ".mp4":
        try:
            import av  # noqa: F401
        except ImportError as error:
            raise ValueError(f"{path}: MP4 needs PyAV: install megs2[video], or write a .gif") from error


def save_film(path: Path, frames: Sequence[Tensor], fps: int = 30) -> None:
    """Write frames as an animated GIF or an MP4.

    Args:
        path: `.gif` or `.mp4`.
        frames: images (H, W, 3) in [0, 1] of one size. Of an MP4 a last odd row or column is cut off.
        fps: frames of a second.

    Raises:
        ValueError: if there are no frames, the name ends otherwise, or PyAV is missing.
    """
    check_film(path)
    if not frames:
        raise ValueError(f"{path}: a film needs at least one frame")
    pictures = [to_bytes(frame) for frame in frames]
    buffer = io.BytesIO()
    if path.suffix == ".gif":
        first, *others = [Image.fromarray(picture) for picture in pictures]
        first.save(buffer, format="GIF", save_all=True, append_images=others, duration=round(1000 / fps), loop=0)
    else:
        import av

        height, width = (size // 2 * 2 for size in pictures[0].shape[:2])
        with av.open(buffer, "w", format="mp4") as film:
            stream = film.add_stream("libx264", rate=fps)
            stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
            for picture in pictures:
                frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture[:height, :width]), format="rgb24")
                film.mux(stream.encode(frame))
            film.mux(stream.encode())
    with atomic_write(path) as file:
        file.write(buffer.getvalue())


def heat_map(values: Tensor, high: float) -> Tensor:
    """Colour values (H, W), 0 to `high`, by a map that is even to the eye; returns (H, W, 3)."""
    from matplotlib import colormaps

    shares = (values.detach().cpu() / high).clamp(0, 1).numpy()
    return torch.from_numpy(np.asarray(colormaps["viridis"](shares)[..., :3], np.float32))


def strip(truth: Tensor, drawn: Tensor, high: float = 0.3) -> Tensor:
    """Put a photograph, the picture drawn, and the error side by side, (H, 3 W, 3).

    Args:
        truth: (H, W, 3).
        drawn: (H, W, 3).
        high: mean absolute error of a pixel that is shown brightest.
    """
    truth, drawn = truth.detach().cpu(), drawn.detach().cpu().clamp(0, 1)
    return torch.cat([truth, drawn, heat_map((truth - drawn).abs().mean(-1), high)], 1)
