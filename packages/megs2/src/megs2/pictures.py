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
GIF_FPS = 50  # browsers slow down frames shorter than two hundredths of a second


def to_bytes(image: Tensor) -> NDArray[np.uint8]:
    """Turn an image (H, W, 3) in [0, 1] into bytes, clamped and rounded.

    Raises:
        ValueError: if it has another shape, or holds something that is not a number.
    """
    if image.dim() != 3 or image.shape[2] != 3 or not image.numel():
        raise ValueError(f"an image has shape {tuple(image.shape)}, expected (H, W, 3)")
    if bool(image.isnan().any()):
        raise ValueError(f"an image has {int(image.isnan().sum())} values that are no numbers")
    return (image.detach().clamp(0, 1) * 255).round().to(torch.uint8).cpu().numpy()


def save_png(path: Path, image: Tensor) -> None:
    """Write an image (H, W, 3) in [0, 1] as PNG."""
    buffer = io.BytesIO()
    Image.fromarray(to_bytes(image)).save(buffer, format="PNG")
    with atomic_write(path) as file:
        file.write(buffer.getvalue())


def check_film(path: Path, fps: int = 30) -> None:
    """Refuse a film that could not be written, before its frames are drawn.

    Raises:
        ValueError: if the name ends otherwise, `fps` is out of range, or MP4 is asked for and PyAV is not installed.
    """
    if path.suffix not in FILMS:
        raise ValueError(f"{path}: expected a film that ends in {' or '.join(FILMS)}")
    if fps < 1 or (path.suffix == ".gif" and fps > GIF_FPS):
        raise ValueError(f"{path}: fps is {fps}, expected at least 1, and at most {GIF_FPS} of a GIF")
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
        fps: frames of a second; a GIF keeps whole hundredths of a second, and at most 50.

    Raises:
        ValueError: if there are no frames, they differ in size, `fps` is out of range, the name ends otherwise, or PyAV
            is missing.
    """
    check_film(path, fps)
    if not frames:
        raise ValueError(f"{path}: a film needs at least one frame")
    pictures = [to_bytes(frame) for frame in frames]
    sizes = {picture.shape for picture in pictures}
    if len(sizes) > 1:
        raise ValueError(f"{path}: the frames of a film have one size, got {sorted(size[:2] for size in sizes)}")
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
    """Colour values by a map that is even to the eye.

    Args:
        values: (H, W); those outside 0 to `high` take the colour of the nearer end.
        high: the value shown brightest, positive.

    Returns:
        (H, W, 3) float32 in [0, 1], on the CPU.

    Raises:
        ValueError: if `high` is not positive.
    """
    if not high > 0:
        raise ValueError(f"high must be positive, got {high}")
    from matplotlib import colormaps

    shares = (values.detach().cpu() / high).clamp(0, 1).numpy()
    return torch.from_numpy(np.asarray(colormaps["viridis"](shares)[..., :3], np.float32))


def strip(truth: Tensor, drawn: Tensor, high: float = 0.3) -> Tensor:
    """Put a photograph, the picture drawn, and the error side by side, (H, 3 W, 3).

    Args:
        truth: (H, W, 3).
        drawn: (H, W, 3).
        high: mean absolute error of a pixel that is shown brightest.

    Raises:
        ValueError: if the two differ in shape, or `high` is not positive.
    """
    if truth.shape != drawn.shape:
        raise ValueError(f"the pictures have shapes {tuple(truth.shape)} and {tuple(drawn.shape)}, expected the same")
    truth, drawn = truth.detach().cpu(), drawn.detach().cpu().clamp(0, 1)
    return torch.cat([truth, drawn, heat_map((truth - drawn).abs().mean(-1), high)], 1)
