"""Nearest neighbours within each graph of a ragged batch, without the matrix of all distances.

The points of a batch of graphs (or clouds, or sequences) lie side by side, N in all, n_g of graph g. Neighbours
count within a graph only. One matrix of distances over the batch is (sum n_g)^2, nearly all of it between graphs;
padding to the largest graph is no better where sizes differ. For points x_q and x_p of one graph,

    D_qp = sum_f (x_qf - x_pf)^2,

and the neighbours of q are q itself and then the p of smallest (D_qp, p). Differences are squared, rather than
expanded into |x_q|^2 + |x_p|^2 - 2 x_q x_p, so that equal points are at exactly 0 and a graph's result does not
depend on the shape of the batch. The choice is discrete and has no gradient.

A float that is not negative is ordered as its bits are, so one 64-bit integer, the bits of D before p, holds both
and orders them. A program takes a few points of one graph and walks over that graph's points. Of each block it
moves the smallest numbers into the k best while any is smaller than the worst of these, so that a block of distant
points costs one comparison. No distance is stored; x is copied once, with the features as rows. The k best leave
the kernel unordered and are sorted by torch.
"""

from __future__ import annotations

import functools
import importlib.util
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

if TYPE_CHECKING:
    import triton.language as tl

__all__ = ["reference_segment_knn", "segment_knn"]

CHUNK = 1 << 22  # numbers that the reference holds at a time
MAX_K = 64  # of the kernel, which holds the k best of each point in registers
QUERIES = 16  # points that a program finds the neighbours of
KEYS = 64  # points that they are compared with at a time
FEATURES = 8  # that are loaded at a time
NONE = 0x7FFFFFFF << 32  # above the number of every point


def reference_segment_knn(x: Tensor, sizes: Tensor, k: int) -> Tensor:
    """Compute `segment_knn` in plain torch, on any device, graph by graph.

    Arguments, result and errors are those of `segment_knn`. float64 is computed in float64, any other type in
    float32. Memory is O(k N) and some megabytes.
    """
    _check(x, sizes, k)
    _check_sizes(sizes, len(x))
    x = x.detach().to(torch.promote_types(x.dtype, torch.float32))
    found = torch.full((len(x), k), -1, dtype=torch.int64, device=x.device)
    start = 0
    for size in sizes.tolist():
        points = x[start : start + size]  # (n, d)
        rows = max(1, CHUNK // max(1, points.numel()))
        for first in range(0, size, rows):
            queries = points[first : first + rows]  # (r, d)
            distance = (queries[:, None] - points).square().sum(-1)  # (r, n)
            distance.diagonal(first).fill_(-1.0)  # a point comes before those that equal it
            order = distance.sort(dim=1, stable=True).indices[:, :k]
            found[start + first : start + first + len(queries), : order.shape[1]] = start + order
        start += size
    return found


def segment_knn(x: Tensor, sizes: Tensor, k: int, *, backend: Literal["auto", "torch", "triton"] = "auto") -> Tensor:
    """Find the k nearest points of each point in its own graph, by Euclidean distance.

    The point itself comes first; among equal distances the lower index does. What is found for a graph does not
    depend on the others of the batch. There is no gradient. Time is O(sum n_g^2 d).

    Args:
        x: (N, d), finite, any floating type, any strides, the points of each graph side by side.
        sizes: number of points of each graph (G,), int64, at least 0, with sum N. On the CPU they are checked. On
            a CUDA device that would mean waiting for it: there sizes that do not fit yield -1 throughout
            (Triton) or the error (torch, which waits).
        k: how many, at least 1. The Triton path holds up to 64.
        backend: `auto` is Triton for CUDA tensors of at most 32 bits and k up to 64 where Triton is installed, and
            otherwise torch.

    Returns:
        Rows of `x` (N, k), int64; -1 where a graph has fewer than k points.

    Raises:
        ValueError: if a shape, type, device, k, the sizes or the backend is not as above, or if Triton is asked
            for where it cannot run.
    """
    if backend not in ("auto", "torch", "triton"):
        raise ValueError(f"backend must be 'auto', 'torch' or 'triton', got {backend!r}")
    double = x.dtype == torch.float64
    if backend == "auto":
        fits = x.is_cuda and not double and k <= MAX_K
        backend = "triton" if fits and _triton_is_installed() else "torch"
    if backend == "torch":
        return reference_segment_knn(x, sizes, k)
    _check(x, sizes, k)
    if sizes.device.type == "cpu":
        _check_sizes(sizes, len(x))
    if double:
        raise ValueError("backend 'triton' computes in float32, got float64 x")
    if k > MAX_K:
        raise ValueError(f"backend 'triton' takes k up to {MAX_K}, got {k}")
    if not _triton_is_installed():
        raise ValueError("backend 'triton' needs the package triton, which is not installed")
    if not (x.is_cuda or _interpreted()):
        raise ValueError(
            f"backend 'triton' needs CUDA tensors, got x on {x.device} "
            "(TRITON_INTERPRET=1, set before triton is imported, runs it on the CPU)"
        )
    return _launch(x.detach(), sizes, k)


def _check(x: Tensor, sizes: Tensor, k: int) -> None:
    if x.ndim != 2:
        raise ValueError(f"x must have shape (N, d), got {tuple(x.shape)}")
    if sizes.ndim != 1:
        raise ValueError(f"sizes must have shape (G,), got {tuple(sizes.shape)}")
    if not x.is_floating_point():
        raise ValueError(f"x must have a floating type, got {x.dtype}")
    if sizes.dtype != torch.int64:
        raise ValueError(f"sizes must have type torch.int64, got {sizes.dtype}")
    if sizes.device != x.device:
        raise ValueError(f"sizes must lie on the device of x, {x.device}, got {sizes.device}")
    if len(x) >= 2**31:
        raise ValueError(f"x must have fewer than 2^31 points, got {len(x)}")
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")


def _check_sizes(sizes: Tensor, points: int) -> None:
    if (sizes < 0).any():
        raise ValueError(f"sizes must be at least 0, got {int(sizes.min())}")
    if int(sizes.sum()) != points:
        raise ValueError(f"sizes must sum to the {points} points of x, got {int(sizes.sum())}")


def _kernel(
    points: tl.tensor,  # (d, N), contiguous, d padded to a multiple of FEATURES with zeros
    programs: tl.tensor,  # (P, 3): first point of the program, first of its graph, first after its graph
    best_keys: tl.tensor,  # (N, k), contiguous
    n: int,
    d: int,
    k: int,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    FEATURES: tl.constexpr,
    SLOTS: tl.constexpr,  # a power of two, at least k
) -> None:
    program = programs + tl.program_id(0).to(tl.int64) * 3
    begin = tl.load(program + 1)
    end = tl.load(program + 2)
    query = tl.load(program) + tl.arange(0, QUERIES)  # int64, as all numbers of points
    query_inside = query < end
    slot = tl.arange(0, SLOTS)
    # Slots without a point differ, so that the worst of the best is one slot. Those beyond k are never the worst.
    empty = tl.where(slot < k, 0x7FFFFFFF7FFFFFFF - slot.to(tl.int64), -0x7FFFFFFFFFFFFFFF)
    best = tl.where(query_inside[:, None], empty[None, :], -0x7FFFFFFFFFFFFFFF)
    for start in range(begin, end, KEYS):
        key = start + tl.arange(0, KEYS)
        key_inside = key < end
        distance = tl.zeros([QUERIES, KEYS], dtype=tl.float32)
        query_at = points + query
        key_at = points + key
        for _feature in range(0, d, FEATURES):
            for _i in tl.static_range(FEATURES):
                a = tl.load(query_at, mask=query_inside, other=0.0).to(tl.float32)
                b = tl.load(key_at, mask=key_inside, other=0.0).to(tl.float32)
                difference = a[:, None] - b[None, :]
                distance += difference * difference
                query_at += n
                key_at += n
        bits = distance.to(tl.int32, bitcast=True) & 0x7FFFFFFF  # a NaN may have a sign
        bits = tl.minimum(bits, 0x7FC00000)  # the largest of its patterns means no point
        bits = tl.where(query[:, None] == key[None, :], -1, bits)
        numbers = bits.to(tl.int64) * 4294967296 + key[None, :]
        numbers = tl.where(key_inside[None, :], numbers, 0x7FFFFFFFFFFFFFFF)
        least = tl.min(numbers, axis=1)
        worst = tl.max(best, axis=1)
        while tl.max((least < worst).to(tl.int32), axis=0) > 0:
            replaced = (best == worst[:, None]) & (least < worst)[:, None]
            best = tl.where(replaced, least[:, None], best)
            numbers = tl.where(numbers == least[:, None], 0x7FFFFFFFFFFFFFFF, numbers)
            least = tl.min(numbers, axis=1)
            worst = tl.max(best, axis=1)
    best_at = best_keys + query[:, None] * k + slot[None, :]
    tl.store(best_at, best, mask=query_inside[:, None] & (slot < k)[None, :])


@functools.cache
def _triton_is_installed() -> bool:
    return importlib.util.find_spec("triton") is not None


@functools.cache
def _compiled() -> Any:
    global tl  # the kernel's names are looked up in this module
    import triton
    import triton.language as tl

    return triton.jit(_kernel)


def _interpreted() -> bool:
    from triton import JITFunction

    return not isinstance(_compiled(), JITFunction)


def _programs(sizes: Tensor, points: int) -> Tensor:
    """Share the points out among programs, without waiting for the device.

    Returns:
        (P, 3): a program's first point, and where its graph begins and ends. How many are needed only the device
        knows, so there are as many as may be; those in excess have a graph without points.
    """
    fit = (sizes >= 0).all() & (sizes.sum() == points)
    sizes = sizes.where(fit, 0)
    blocks = (sizes + QUERIES - 1) // QUERIES
    block_end, end = blocks.cumsum(0), sizes.cumsum(0)
    number = torch.arange(points // QUERIES + min(len(sizes), points), device=sizes.device)
    graph = torch.searchsorted(block_end, number, right=True).clamp(max=len(sizes) - 1)
    begin, block, end = (end - sizes)[graph], number - (block_end - blocks)[graph], end[graph]
    first = begin + QUERIES * block
    return torch.stack([first, begin.where(first < end, end), end], dim=1)


def _slots(k: int) -> int:
    return max(2, 1 << (k - 1).bit_length())


def _launch(x: Tensor, sizes: Tensor, k: int) -> Tensor:
    n, d = x.shape
    keys = torch.full((n, k), NONE, dtype=torch.int64, device=x.device)
    if n and len(sizes):
        programs = _programs(sizes, n)
        rows = -(-d // FEATURES) * FEATURES
        points = x.new_zeros(rows, n)
        points[:d] = x.T
        tile = {"QUERIES": QUERIES, "KEYS": KEYS, "FEATURES": FEATURES, "SLOTS": _slots(k)}
        with torch.cuda.device(x.get_device()):  # Triton launches on the current device
            _compiled()[(len(programs),)](points, programs, keys, n, rows, k, **tile, num_warps=4)
    keys = keys.sort(dim=1).values
    return (keys & 0xFFFFFFFF).where(keys < NONE, -1)
