"""The compiled rasteriser as an operation of torch, with gradients."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from megs2 import tiles
from megs2.projection import ALPHA_MIN, Projection


@lru_cache(maxsize=4)
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="tiles")


def _shares(starts: NDArray[np.int64], threads: int) -> list[tuple[int, int]]:
    """Cut the tiles into runs of about as many pairs, (first, last)."""
    pieces = 1 if threads == 1 else 4 * threads
    load = starts + np.arange(len(starts))  # an empty tile is some work too
    cuts = np.searchsorted(load, np.linspace(0, load[-1], pieces + 1)[1:-1])
    edges = [0, *cuts.tolist(), len(starts) - 1]
    return [(first, last) for first, last in pairwise(edges) if first < last]


def _over_tiles(work: Any, starts: NDArray[np.int64], arguments: tuple[Any, ...]) -> None:
    """Call `work` for all tiles, on as many threads as torch uses."""
    threads = torch.get_num_threads()
    shares = _shares(starts, threads)
    if len(shares) == 1:
        work(*shares[0], *arguments)
        return
    jobs = [_pool(threads).submit(work, *share, *arguments) for share in shares]
    wait(jobs)
    for job in jobs:
        job.result()


class _Composite(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, means2d: Tensor, conics: Tensor, opacities: Tensor, colours: Tensor, background: Tensor,
        depths: Tensor, radii: Tensor, width: int, height: int, tile_size: int,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        arrays = [tensor.detach().contiguous().numpy() for tensor in (means2d, conics, opacities, colours)]
        kind = arrays[0].dtype
        across, down = -(-width // tile_size), -(-height // tile_size)
        order = torch.argsort(depths.detach(), stable=True).numpy()
        starts, ids = tiles.list_pairs(arrays[0], radii.contiguous().numpy(), order, across, down, tile_size)
        # Rounding of the logarithm must not cut a pixel that alpha >= 1/255 would keep.
        reaches = 2 * np.log(np.maximum(arrays[2] / kind.type(ALPHA_MIN), 1)) + kind.type(1e-4)
        centres = np.arange(max(height, width)).astype(kind) + kind.type(0.5)
        image, transmittance = np.zeros((3, height, width), kind), np.ones((height, width), kind)
        ends = np.empty((height, width), np.int32)
        common = (across, tile_size, starts, ids, *arrays[:3], reaches, arrays[3], centres, *tiles.constants(kind))
        _over_tiles(tiles.forward, starts, (*common, image, transmittance, ends))
        ctx.common, ctx.ends, ctx.transmittance, ctx.background = common, ends, transmittance, background
        remaining = torch.from_numpy(transmittance)
        planes = torch.from_numpy(image) + remaining * background[:, None, None]
        return planes.permute(1, 2, 0), 1 - remaining

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_image: Tensor, grad_coverage: Tensor) -> tuple[Tensor | None, ...]:
        _, _, starts, ids, means2d, *_ = ctx.common
        behind = torch.from_numpy(ctx.transmittance) * (grad_image @ ctx.background - grad_coverage)
        grads = np.empty((len(ids), 9), means2d.dtype)
        total = np.zeros((len(means2d), 9), means2d.dtype)
        planes = grad_image.permute(2, 0, 1).contiguous().numpy()
        rest = (planes, ctx.transmittance.copy(), ctx.ends, behind.numpy(), grads)
        _over_tiles(tiles.backward, starts, (*ctx.common, *rest))
        tiles.sum_pairs(ids, grads, total)
        summed = torch.from_numpy(total)
        return summed[:, :2], summed[:, 2:5], summed[:, 5], summed[:, 6:], *(None,) * 6


def composite(
    projected: Projection,
    opacities: Tensor,
    colours: Tensor,
    background: Tensor,
    width: int,
    height: int,
    tile_size: int = 32,
) -> tuple[Tensor, Tensor]:
    """Draw a picture as `compositing.composite` does, by compiled code.

    Args:
        projected: N Gaussians on the CPU, float32 or float64.
        opacities: (N,) in [0, 1].
        colours: (N, 3).
        background: (3,); gets no gradient.
        width: pixels.
        height: pixels.
        tile_size: edge of a tile, pixels; the picture does not depend on it.

    Returns:
        Image (H, W, 3), and coverage 1 - T_end (H, W). Memory is that of the list of pairs: 4 bytes each, and 9
        numbers each for the gradients.
    """
    return _Composite.apply(
        projected.means2d, projected.conics, opacities, colours, background, projected.depths, projected.radii,
        width, height, tile_size,
    )  # fmt: skip
