"""Colours of Gaussians with a ragged number of spherical-Gaussian lobes, seen from one place.

Gaussian i at x_i has n_i lobes, which lie side by side with those of the others, P in all. Its colour as seen from c is

    v_i = (c - x_i) / |c - x_i|,   e_p = exp(|s_p| (m_p . v_i - 1)),   m_p = mu_p / |mu_p|
    y_i = 0.5 + C0 (base_i + sum_p a_p e_p),   col_i = min(max(y_i, 0), 1)

over its lobes p, C0 = 1 / (2 sqrt(pi)). Padding every Gaussian to the largest number of lobes computes, and keeps for
the backward, what nobody has. With g_i = C0 dL/dcol_i where 0 <= y_i <= 1, otherwise 0, d_p = |s_p| e_p (g_i . a_p):

    dbase_i = g_i,   da_p = g_i e_p,   ds_p = sign(s_p) e_p (m_p . v_i - 1) (g_i . a_p)
    dmu_p = d_p (v_i - (m_p . v_i) m_p) / |mu_p|,   dv_i = sum_p d_p m_p
    dx_i = -(dv_i - (v_i . dv_i) v_i) / |c - x_i|,   dc = -sum_i dx_i

A program takes a block of Gaussians and walks down their lobes, as many steps as the longest list of the block has. A
lobe belongs to one Gaussian, so nothing is added atomically. Each tensor is read once or written once, forward and
backward; the inputs are kept, and a byte a channel. A Gaussian at c has v = 0, and no gradient to x and c.
"""

from __future__ import annotations

import functools
import importlib.util
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

if TYPE_CHECKING:
    import triton.language as tl

__all__ = ["packed_sg", "reference_packed_sg"]

C0 = 0.28209479177387814  # 1 / (2 sqrt(pi))
TINY = 1e-12  # lengths are at least this, as in torch.nn.functional.normalize
BLOCK = 128  # Gaussians of a program
OPTIONS = {"num_warps": 4, "enable_fp_fusion": False}  # fused, 0.5 + C0 y of black and white would miss 0 and 1


def reference_packed_sg(
    means: Tensor, centre: Tensor, base: Tensor, axes: Tensor, sharpness: Tensor, amplitudes: Tensor, offsets: Tensor
) -> Tensor:
    """Compute `packed_sg` in plain torch, on any device.

    Arguments, result and errors are those of `packed_sg`; autograd of any order. Time and memory are O(N + P).
    """
    _check(means, centre, base, axes, sharpness, amplitudes, offsets)
    _check_offsets(offsets, len(axes))
    lengths = offsets[1:] - offsets[:-1]
    owner = torch.repeat_interleave(torch.arange(len(means), device=means.device), lengths, output_size=len(axes))
    apart = centre - means
    at_centre = apart.norm(dim=1, keepdim=True) <= TINY  # normalize would give these a gradient of 1 / TINY
    towards = torch.nn.functional.normalize(torch.where(at_centre, apart.detach(), apart), dim=1, eps=TINY)
    seen = towards.index_select(0, owner)  # x[owner] would sum its gradient in no fixed order
    cosine = (torch.nn.functional.normalize(axes, dim=1, eps=TINY) * seen).sum(1)
    lobes = amplitudes * torch.exp(sharpness.abs() * (cosine - 1))[:, None]
    units = base.index_add(0, owner, lobes)
    colour = 0.5 + C0 * units
    free = (colour >= 0) & (colour <= 1)  # versions of torch differ in what clamp does at its bounds
    return torch.where(free, colour, colour.detach().clamp(0, 1))


def packed_sg(
    means: Tensor,
    centre: Tensor,
    base: Tensor,
    axes: Tensor,
    sharpness: Tensor,
    amplitudes: Tensor,
    offsets: Tensor,
    *,
    backend: Literal["auto", "torch", "triton"] = "auto",
) -> Tensor:
    """Evaluate the colours of Gaussians with packed lobes, from a camera's place.

    Differentiable once, not twice, with respect to all but the offsets. A channel that the
    clamp changes gets no gradient; one at exactly 0 or 1 does, so that black and white can be left. On the CPU colours
    and gradients are the same bits in every run, on several threads too.

    Args:
        means: (N, 3) places.
        centre: (3,) of the camera.
        base: (N, 3) constant part, in units of C0 around 0.5.
        axes: (P, 3) of the lobes, of any length but 0.
        sharpness: (P,); its absolute value counts, and at 0 it has no gradient.
        amplitudes: (P, 3) in units of C0.
        offsets: (N + 1,) int64; the lobes of Gaussian i are offsets[i] up to offsets[i + 1]. On the CPU they are
            checked. On a CUDA device that would mean waiting for it: there a list that does not lie within the P
            lobes gives its Gaussian NaN (Triton) or the error (torch, which waits).
        backend: `auto` is Triton for CUDA tensors of float32 where Triton is installed, and otherwise torch, with
            the gradients above in closed form.

    Returns:
        Colours (N, 3) in [0, 1].

    Raises:
        ValueError: if a shape, type, device, the offsets or the backend is not as above, or if Triton is asked for
            where it cannot run.
    """
    if backend not in ("auto", "torch", "triton"):
        raise ValueError(f"backend must be 'auto', 'torch' or 'triton', got {backend!r}")
    tensors = (means, centre, base, axes, sharpness, amplitudes, offsets)
    if backend == "auto":
        fits = means.is_cuda and means.dtype == torch.float32
        backend = "triton" if fits and _triton_is_installed() else "torch"
    _check(*tensors)
    if offsets.device.type == "cpu" or backend == "torch":
        _check_offsets(offsets, len(axes))
    if backend == "torch":
        return _InTorch.apply(*tensors)
    if means.dtype != torch.float32:
        raise ValueError(f"backend 'triton' computes in float32, got {means.dtype}")
    if not _triton_is_installed():
        raise ValueError("backend 'triton' needs the package triton, which is not installed")
    if not (means.is_cuda or _interpreted()):
        raise ValueError(
            f"backend 'triton' needs CUDA tensors, got means on {means.device} "
            "(TRITON_INTERPRET=1, set before triton is imported, runs it on the CPU)"
        )
    return _PackedSG.apply(*tensors)


def _check(
    means: Tensor, centre: Tensor, base: Tensor, axes: Tensor, sharpness: Tensor, amplitudes: Tensor, offsets: Tensor
) -> None:
    if means.ndim != 2 or means.shape[1] != 3:
        raise ValueError(f"means must have shape (N, 3), got {tuple(means.shape)}")
    if axes.ndim != 2 or axes.shape[1] != 3:
        raise ValueError(f"axes must have shape (P, 3), got {tuple(axes.shape)}")
    n, p = len(means), len(axes)
    shapes = {
        "centre": (centre, (3,)), "base": (base, (n, 3)), "sharpness": (sharpness, (p,)),
        "amplitudes": (amplitudes, (p, 3)), "offsets": (offsets, (n + 1,)),
    }  # fmt: skip
    for name, (tensor, shape) in shapes.items():
        if tensor.shape != shape:
            raise ValueError(f"{name} must have shape {shape}, got {tuple(tensor.shape)}")
    if means.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"means must have type torch.float32 or torch.float64, got {means.dtype}")
    floating = {"centre": centre, "base": base, "axes": axes, "sharpness": sharpness, "amplitudes": amplitudes}
    for name, tensor in floating.items():
        if tensor.dtype != means.dtype:
            raise ValueError(f"{name} must have the type of means, {means.dtype}, got {tensor.dtype}")
    if offsets.dtype != torch.int64:
        raise ValueError(f"offsets must have type torch.int64, got {offsets.dtype}")
    for name, tensor in (floating | {"offsets": offsets}).items():
        if tensor.device != means.device:
            raise ValueError(f"{name} must lie on the device of means, {means.device}, got {tensor.device}")


def _check_offsets(offsets: Tensor, lobes: int) -> None:
    if int(offsets[0]) != 0 or int(offsets[-1]) != lobes:
        raise ValueError(f"offsets must go from 0 to the {lobes} lobes, got {int(offsets[0])} to {int(offsets[-1])}")
    falls = (offsets.diff() < 0).nonzero()
    if len(falls):
        before, after = offsets[int(falls[0]) :][:2].tolist()
        raise ValueError(f"offsets must not fall, got {after} after {before}")


def _forward_kernel(
    means: tl.tensor,
    centre: tl.tensor,
    base: tl.tensor,
    axes: tl.tensor,
    sharpness: tl.tensor,
    amplitudes: tl.tensor,
    offsets: tl.tensor,
    colours: tl.tensor,
    free: tl.tensor,  # (N, 3), where the clamp changes nothing; for the backward
    n: int,
    p: int,
    C0: tl.constexpr,
    TINY: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = i < n
    first = tl.load(offsets + i, mask=here, other=0)
    last = tl.load(offsets + i + 1, mask=here, other=0)
    sound = (first >= 0) & (first <= last) & (last <= p)
    last = tl.where(sound, last, first)
    dx = tl.load(centre) - tl.load(means + 3 * i, mask=here, other=0.0)
    dy = tl.load(centre + 1) - tl.load(means + 3 * i + 1, mask=here, other=0.0)
    dz = tl.load(centre + 2) - tl.load(means + 3 * i + 2, mask=here, other=0.0)
    near = 1.0 / tl.maximum(tl.sqrt(dx * dx + dy * dy + dz * dz), TINY)
    vx, vy, vz = dx * near, dy * near, dz * near
    red = tl.load(base + 3 * i, mask=here, other=0.0)
    green = tl.load(base + 3 * i + 1, mask=here, other=0.0)
    blue = tl.load(base + 3 * i + 2, mask=here, other=0.0)
    for step in range(0, tl.max(last - first, axis=0)):
        lobe = first + step
        there = lobe < last
        mx = tl.load(axes + 3 * lobe, mask=there, other=0.0)
        my = tl.load(axes + 3 * lobe + 1, mask=there, other=0.0)
        mz = tl.load(axes + 3 * lobe + 2, mask=there, other=0.0)
        short = 1.0 / tl.maximum(tl.sqrt(mx * mx + my * my + mz * mz), TINY)
        cosine = (mx * vx + my * vy + mz * vz) * short
        s = tl.abs(tl.load(sharpness + lobe, mask=there, other=0.0))
        e = tl.exp(s * (cosine - 1.0))
        red += e * tl.load(amplitudes + 3 * lobe, mask=there, other=0.0)
        green += e * tl.load(amplitudes + 3 * lobe + 1, mask=there, other=0.0)
        blue += e * tl.load(amplitudes + 3 * lobe + 2, mask=there, other=0.0)
    lost = tl.where(sound, 0.0, float("nan"))
    red, green, blue = 0.5 + C0 * red + lost, 0.5 + C0 * green + lost, 0.5 + C0 * blue + lost
    tl.store(free + 3 * i, (red >= 0.0) & (red <= 1.0), mask=here)
    tl.store(free + 3 * i + 1, (green >= 0.0) & (green <= 1.0), mask=here)
    tl.store(free + 3 * i + 2, (blue >= 0.0) & (blue <= 1.0), mask=here)
    # A NaN is neither below 0 nor above 1, and stays.
    red = tl.where(red < 0.0, 0.0, tl.where(red > 1.0, 1.0, red))
    green = tl.where(green < 0.0, 0.0, tl.where(green > 1.0, 1.0, green))
    blue = tl.where(blue < 0.0, 0.0, tl.where(blue > 1.0, 1.0, blue))
    tl.store(colours + 3 * i, red, mask=here)
    tl.store(colours + 3 * i + 1, green, mask=here)
    tl.store(colours + 3 * i + 2, blue, mask=here)


def _backward_kernel(
    means: tl.tensor,
    centre: tl.tensor,
    axes: tl.tensor,
    sharpness: tl.tensor,
    amplitudes: tl.tensor,
    offsets: tl.tensor,
    free: tl.tensor,  # (N, 3), from the forward
    grad: tl.tensor,  # (N, 3), dL/dcol
    d_means: tl.tensor,
    d_base: tl.tensor,
    d_axes: tl.tensor,
    d_sharpness: tl.tensor,
    d_amplitudes: tl.tensor,
    n: int,
    p: int,
    C0: tl.constexpr,
    TINY: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = i < n
    first = tl.load(offsets + i, mask=here, other=0)
    last = tl.load(offsets + i + 1, mask=here, other=0)
    sound = (first >= 0) & (first <= last) & (last <= p)
    last = tl.where(sound, last, first)
    dx = tl.load(centre) - tl.load(means + 3 * i, mask=here, other=0.0)
    dy = tl.load(centre + 1) - tl.load(means + 3 * i + 1, mask=here, other=0.0)
    dz = tl.load(centre + 2) - tl.load(means + 3 * i + 2, mask=here, other=0.0)
    length = tl.sqrt(dx * dx + dy * dy + dz * dz)
    near = 1.0 / tl.maximum(length, TINY)
    vx, vy, vz = dx * near, dy * near, dz * near
    g_red = C0 * tl.load(grad + 3 * i, mask=here & (tl.load(free + 3 * i, mask=here, other=0) != 0), other=0.0)
    g_green = C0 * tl.load(
        grad + 3 * i + 1, mask=here & (tl.load(free + 3 * i + 1, mask=here, other=0) != 0), other=0.0
    )
    g_blue = C0 * tl.load(grad + 3 * i + 2, mask=here & (tl.load(free + 3 * i + 2, mask=here, other=0) != 0), other=0.0)
    tl.store(d_base + 3 * i, g_red, mask=here)
    tl.store(d_base + 3 * i + 1, g_green, mask=here)
    tl.store(d_base + 3 * i + 2, g_blue, mask=here)
    wx = tl.zeros([BLOCK], dtype=tl.float32)
    wy = tl.zeros([BLOCK], dtype=tl.float32)
    wz = tl.zeros([BLOCK], dtype=tl.float32)
    for step in range(0, tl.max(last - first, axis=0)):
        lobe = first + step
        there = lobe < last
        mx = tl.load(axes + 3 * lobe, mask=there, other=0.0)
        my = tl.load(axes + 3 * lobe + 1, mask=there, other=0.0)
        mz = tl.load(axes + 3 * lobe + 2, mask=there, other=0.0)
        short = 1.0 / tl.maximum(tl.sqrt(mx * mx + my * my + mz * mz), TINY)
        mx, my, mz = mx * short, my * short, mz * short
        cosine = mx * vx + my * vy + mz * vz
        raw = tl.load(sharpness + lobe, mask=there, other=0.0)
        s = tl.abs(raw)
        e = tl.exp(s * (cosine - 1.0))
        a_red = tl.load(amplitudes + 3 * lobe, mask=there, other=0.0)
        a_green = tl.load(amplitudes + 3 * lobe + 1, mask=there, other=0.0)
        a_blue = tl.load(amplitudes + 3 * lobe + 2, mask=there, other=0.0)
        along = e * (g_red * a_red + g_green * a_green + g_blue * a_blue)
        tl.store(d_amplitudes + 3 * lobe, g_red * e, mask=there)
        tl.store(d_amplitudes + 3 * lobe + 1, g_green * e, mask=there)
        tl.store(d_amplitudes + 3 * lobe + 2, g_blue * e, mask=there)
        sign = tl.where(raw > 0.0, 1.0, tl.where(raw < 0.0, -1.0, 0.0))
        tl.store(d_sharpness + lobe, sign * along * (cosine - 1.0), mask=there)
        d = s * along
        tl.store(d_axes + 3 * lobe, d * (vx - cosine * mx) * short, mask=there)
        tl.store(d_axes + 3 * lobe + 1, d * (vy - cosine * my) * short, mask=there)
        tl.store(d_axes + 3 * lobe + 2, d * (vz - cosine * mz) * short, mask=there)
        wx += d * mx
        wy += d * my
        wz += d * mz
    radial = vx * wx + vy * wy + vz * wz
    near = tl.where(length > TINY, near, 0.0)
    tl.store(d_means + 3 * i, (radial * vx - wx) * near, mask=here)
    tl.store(d_means + 3 * i + 1, (radial * vy - wy) * near, mask=here)
    tl.store(d_means + 3 * i + 2, (radial * vz - wz) * near, mask=here)


@functools.cache
def _triton_is_installed() -> bool:
    return importlib.util.find_spec("triton") is not None


@functools.cache
def _kernels() -> tuple[Any, Any]:
    global tl  # the kernels' names are looked up in this module
    import triton
    import triton.language as tl

    return triton.jit(_forward_kernel), triton.jit(_backward_kernel)


def _interpreted() -> bool:
    from triton import JITFunction

    return not isinstance(_kernels()[0], JITFunction)


def _launch(kernel: Any, tensors: tuple[Tensor, ...], n: int, p: int) -> None:
    if n:
        with torch.cuda.device(tensors[0].get_device()):  # Triton launches on the current device
            kernel[(-(-n // BLOCK),)](*tensors, n, p, C0=C0, TINY=TINY, BLOCK=BLOCK, **OPTIONS)


class _InTorch(torch.autograd.Function):
    """`packed_sg` on the torch path, with fewer passes over memory than autograd makes of the reference."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> Tensor:
        means, centre, base, axes, sharpness, amplitudes, offsets = (tensor.detach() for tensor in tensors)
        owner = torch.repeat_interleave(offsets.diff(), output_size=len(axes))
        apart = centre - means
        near = apart.norm(dim=1, keepdim=True).clamp(min=TINY).reciprocal_()
        towards = apart.mul_(near)
        short = axes.norm(dim=1, keepdim=True).clamp(min=TINY).reciprocal_()
        units = axes * short
        seen = towards.index_select(0, owner)
        below = torch.linalg.vecdot(units, seen).sub_(1)  # cosine - 1
        falls = (sharpness.abs() * below).exp_()
        colour = base.index_add(0, owner, amplitudes * falls[:, None]).mul_(C0).add_(0.5)
        free = (colour >= 0) & (colour <= 1)
        ctx.save_for_backward(owner, towards, near, units, short, seen, below, falls, sharpness, amplitudes, free)
        return colour.clamp_(0, 1)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        owner, towards, near, units, short, seen, below, falls, sharpness, amplitudes, free = ctx.saved_tensors
        d_base = (C0 * grad).mul_(free)
        of_lobes = d_base.index_select(0, owner)
        along = torch.linalg.vecdot(of_lobes, amplitudes).mul_(falls)
        d_sharpness = sharpness.sign().mul_(along).mul_(below)
        along.mul_(sharpness.abs())
        d_axes = torch.addcmul(seen, units, (below + 1)[:, None], value=-1).mul_(short * along[:, None])
        turned = torch.zeros_like(towards).index_add_(0, owner, units * along[:, None])
        d_means = torch.addcmul(-turned, towards, torch.linalg.vecdot(towards, turned)[:, None])
        d_means.mul_(near.masked_fill(near >= 1 / TINY, 0))
        d_centre = -d_means.sum(0) if ctx.needs_input_grad[1] else None
        return d_means, d_centre, d_base, d_axes, d_sharpness, of_lobes.mul_(falls[:, None]), None


class _PackedSG(torch.autograd.Function):
    """`packed_sg` on the Triton path."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> Tensor:
        inputs = tuple(tensor.detach().contiguous() for tensor in tensors)
        colours = torch.empty_like(inputs[0])
        free = torch.empty_like(colours, dtype=torch.uint8)
        _launch(_kernels()[0], (*inputs, colours, free), len(colours), len(inputs[3]))
        ctx.save_for_backward(*inputs, free)
        return colours

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        means, centre, base, axes, sharpness, amplitudes, offsets, free = ctx.saved_tensors
        # Zeros, because no program may reach a lobe where offsets that nothing checked do not fit.
        d_means, d_base, d_axes, d_sharpness, d_amplitudes = (
            torch.zeros_like(tensor) for tensor in (means, base, axes, sharpness, amplitudes)
        )
        inputs = (means, centre, axes, sharpness, amplitudes, offsets, free, grad.contiguous())
        outputs = (d_means, d_base, d_axes, d_sharpness, d_amplitudes)
        _launch(_kernels()[1], (*inputs, *outputs), len(means), len(axes))
        d_centre = -d_means.sum(0) if ctx.needs_input_grad[1] else None
        return d_means, d_centre, d_base, d_axes, d_sharpness, d_amplitudes, None
