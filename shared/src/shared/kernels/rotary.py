"""Rotary position embedding (RoPE): rotate interleaved pairs of features by given angles, in one pass.

Su et al. (2021, arXiv:2104.09864, Section 3.2.2) turn a query's or key's features (2k, 2k+1) by an angle
theta_k that is linear in the token's position. For x of d_h features and angles of d_h / 2,

    y_2k   = x_2k cos theta_k - x_2k+1 sin theta_k
    y_2k+1 = x_2k sin theta_k + x_2k+1 cos theta_k,

that is, y_2k + i y_2k+1 = (x_2k + i x_2k+1) exp(i theta_k). Lengths are kept, and the dot product of two
rotated vectors depends on the difference of their angles alone. A rotation's transpose is its inverse, so

    d L / d x = d L / d y, rotated by -theta
    d L / d theta_k = (d L / d y_2k+1) y_2k - (d L / d y_2k) y_2k+1.

Angles usually are shared, by attention heads or by the tokens of one time, and x may be repeated itself.
Both are addressed through their strides, so that neither is ever copied to the size of the result.

Forward: x is read once and y written once; the angles' cosines and sines are computed on the way. Backward: the
same kernel with the opposite sense of rotation, so the gradient can be differentiated again. Only the
angles are kept for it.
"""

from __future__ import annotations

import functools
import importlib.util
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

if TYPE_CHECKING:
    import triton.language as tl

__all__ = ["reference_rotary", "rotary"]

MAX_AXES = 4  # leading axes that the kernel tells apart, after those that can be walked as one are merged
MAX_PAIRS = 512  # pairs of one row that a program rotates
TILE = 1024  # pairs that a program rotates, of several rows where they are short
NARROW_ROWS = 2**30  # up to here 32 bits hold a row's number, also in the last and partly filled tile


def reference_rotary(x: Tensor, angles: Tensor) -> Tensor:
    """Compute `rotary` in plain torch, on any device and with autograd of any order, for the angles too.

    Arguments, result and errors are those of `rotary`. float64 is computed in float64, any other type in
    float32.
    """
    _check(x, angles)
    dtype = torch.promote_types(x.dtype, torch.float32)
    theta = angles.to(torch.promote_types(angles.dtype, dtype))  # (..., S, d_h / 2)
    turn = torch.complex(theta.cos().to(dtype), theta.sin().to(dtype))
    # One complex product is several times faster than products of strided halves on a CPU.
    pairs = x.to(dtype).unflatten(-1, (-1, 2))  # type: ignore[no-untyped-call]  # (..., S, d_h / 2, 2)
    turned = torch.view_as_real(torch.view_as_complex(_aligned(pairs)) * turn)
    if turned.requires_grad:
        # The backward of view_as_real takes a gradient for complex as it lies; in one of second order it may be None.
        turned.register_hook(lambda grad: grad if grad is None else _aligned(grad))  # type: ignore[no-untyped-call]
    return turned.flatten(-2).to(x.dtype)


def rotary(x: Tensor, angles: Tensor, *, backend: Literal["auto", "torch", "triton"] = "auto") -> Tensor:
    """Rotate each pair of features (x[..., 2k], x[..., 2k+1]) by angles[..., k].

    Differentiable any number of times with respect to `x`, and on the torch path to `angles` too. The
    Triton path refuses angles that require a gradient.

    Args:
        x: (..., S, d_h), d_h even and at least 2, any floating type, any strides.
        angles: (..., S, d_h / 2), rad, any floating type. Its axes before the last are broadcast against
            those of `x`, in either direction. In half precision an angle of 100 is off by up to 0.03 (float16)
            or 0.25 (bfloat16), so keep angles in float32.
        backend: `auto` is Triton for CUDA tensors of at most 32 bits where Triton is installed and the
            angles require no gradient, and otherwise torch.

    Returns:
        (..., S, d_h), of the type of `x`, with the broadcast shape. It is computed in float32, or in float64
        where `x` has that type.

    Raises:
        ValueError: if a shape, type, device or the backend is not as above, or if Triton is asked for where it
            cannot run.
    """
    if backend not in ("auto", "torch", "triton"):
        raise ValueError(f"backend must be 'auto', 'torch' or 'triton', got {backend!r}")
    double = torch.float64 in (x.dtype, angles.dtype)
    if backend == "auto":
        fits = x.is_cuda and not double and not angles.requires_grad
        backend = "triton" if fits and _triton_is_installed() else "torch"
    if backend == "torch":
        return reference_rotary(x, angles)
    shape = _check(x, angles)
    if double:
        raise ValueError("backend 'triton' computes in float32, got float64 x or angles")
    if angles.requires_grad:
        raise ValueError("backend 'triton' gives angles no gradient, got angles that require one")
    if not _triton_is_installed():
        raise ValueError("backend 'triton' needs the package triton, which is not installed")
    if not (x.is_cuda or _interpreted()):
        raise ValueError(
            f"backend 'triton' needs CUDA tensors, got x on {x.device} "
            "(TRITON_INTERPRET=1, set before triton is imported, runs it on the CPU)"
        )
    # Autograd sums the gradient over what is repeated here.
    return _Rotary.apply(x.expand(*shape, -1), angles.expand(*shape, -1), False)


def _check(x: Tensor, angles: Tensor) -> torch.Size:
    if x.ndim == 0 or x.shape[-1] == 0 or x.shape[-1] % 2:
        raise ValueError(f"x must have shape (..., d_h) with d_h even and at least 2, got {tuple(x.shape)}")
    if angles.ndim == 0 or 2 * angles.shape[-1] != x.shape[-1]:
        raise ValueError(f"angles must have shape (..., {x.shape[-1] // 2}), got {tuple(angles.shape)}")
    for name, tensor in (("x", x), ("angles", angles)):
        if not tensor.is_floating_point():
            raise ValueError(f"{name} must have a floating type, got {tensor.dtype}")
    if angles.device != x.device:
        raise ValueError(f"angles must lie on the device of x, {x.device}, got {angles.device}")
    try:
        return torch.broadcast_shapes(x.shape[:-1], angles.shape[:-1])  # type: ignore[no-untyped-call]
    except RuntimeError:
        raise ValueError(
            f"axes of angles before the last must broadcast with those of x, {tuple(x.shape[:-1])}, "
            f"got {tuple(angles.shape[:-1])}"
        ) from None


def _aligned(pairs: Tensor) -> Tensor:
    """Return pairs (..., 2), copied where they do not lie as complex numbers do."""
    if pairs.stride(-1) == 1 and not any(place % 2 for place in (*pairs.stride()[:-1], pairs.storage_offset())):
        return pairs
    return pairs.clone(memory_format=torch.contiguous_format)


def _kernel(
    x: tl.tensor,
    angles: tl.tensor,
    y: tl.tensor,  # contiguous
    rows: int,
    half: int,  # d_h / 2
    n1: int,
    n2: int,
    n3: int,
    x0: int,  # strides of the leading axes, then of the last
    x1: int,
    x2: int,
    x3: int,
    x_column: int,
    a0: int,
    a1: int,
    a2: int,
    a3: int,
    a_column: int,
    INVERSE: tl.constexpr,
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
    PAIRS: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    pair = tl.program_id(1) * PAIRS + tl.arange(0, PAIRS)
    column = tl.program_id(1) * (2 * PAIRS) + tl.arange(0, 2 * PAIRS)
    inside = (row < rows)[:, None]
    # A row's number in mixed radix gives its place on each axis. Division of 64 bits is slow on a GPU.
    i = row if WIDE else row.to(tl.int32)
    i3 = (i % n3).to(tl.int64)
    i = i // n3
    i2 = (i % n2).to(tl.int64)
    i = i // n2
    i1 = (i % n1).to(tl.int64)
    i0 = (i // n1).to(tl.int64)
    x_row = i0 * x0 + i1 * x1 + i2 * x2 + i3 * x3
    a_row = i0 * a0 + i1 * a1 + i2 * a2 + i3 * a3

    theta_mask = inside & (pair < half)[None, :]
    theta_at = a_row[:, None] + (pair.to(tl.int64) * a_column)[None, :]
    theta = tl.load(angles + theta_at, mask=theta_mask, other=0.0).to(tl.float32)
    mask = inside & (column < 2 * half)[None, :]
    x_at = x_row[:, None] + (column.to(tl.int64) * x_column)[None, :]
    # Whole rows are loaded and split in registers: a load of every second number wastes half its width.
    pairs = tl.reshape(tl.load(x + x_at, mask=mask, other=0.0).to(tl.float32), (ROWS, PAIRS, 2))
    re, im = tl.split(pairs)
    cos = tl.cos(theta)
    sin = -tl.sin(theta) if INVERSE else tl.sin(theta)
    turned = tl.reshape(tl.join(re * cos - im * sin, re * sin + im * cos), (ROWS, 2 * PAIRS))
    tl.store(y + row[:, None] * (2 * half) + column[None, :], turned, mask=mask)


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


def _merged(x: Tensor, angles: Tensor) -> list[tuple[int, int, int]]:
    """Return (size, stride of x, stride of angles) of the leading axes, those that can be walked as one merged."""
    axes: list[tuple[int, int, int]] = []
    for size, *strides in zip(x.shape[:-1], x.stride()[:-1], angles.stride()[:-1], strict=True):
        if size == 1:
            continue
        if axes and axes[-1][1:] == tuple(size * stride for stride in strides):
            size *= axes.pop()[0]
        axes.append((size, strides[0], strides[1]))
    return axes


def _rotate(x: Tensor, angles: Tensor, inverse: bool) -> Tensor:
    """Launch the kernel on x (..., S, d_h) and angles (..., S, d_h / 2) of the same leading shape."""
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    axes = _merged(x, angles)
    if len(axes) > MAX_AXES:
        x, angles = x.contiguous(), angles.contiguous()
        axes = _merged(x, angles)
    axes = [(1, 0, 0)] * (MAX_AXES - len(axes)) + axes
    sizes, x_strides, a_strides = zip(*axes, strict=True)
    rows, half = y.numel() // y.shape[-1], angles.shape[-1]
    pairs = min(MAX_PAIRS, 1 << (half - 1).bit_length())
    tile = TILE // pairs
    grid = (-(-rows // tile), -(-half // pairs))
    numbers = (rows, half, *sizes[1:], *x_strides, x.stride(-1), *a_strides, angles.stride(-1))
    options = {"INVERSE": inverse, "WIDE": rows > NARROW_ROWS, "ROWS": tile, "PAIRS": pairs}
    with torch.cuda.device(x.get_device()):  # Triton launches on the current device
        _compiled()[grid](x, angles, y, *numbers, **options, num_warps=4)
    return y


class _Rotary(torch.autograd.Function):
    """`rotary` on the Triton path, or its inverse."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, angles: Tensor, inverse: bool) -> Tensor:
        ctx.save_for_backward(angles)
        ctx.inverse = inverse
        return _rotate(x, angles, inverse)

    @staticmethod
    def backward(ctx: Any, y_grad: Tensor) -> tuple[Tensor, None, None]:
        (angles,) = ctx.saved_tensors
        return _Rotary.apply(y_grad, angles, not ctx.inverse), None, None
