"""Temporal rotary position embedding, T-RoPE (Sec. 3.5).

All atoms of slot p are rotated by angles that are proportional to the time t_p, so that a query of time t_p and a
key of time t_p' meet in a score that depends on t_p - t_p' alone, whatever the atoms.

Symbols: d_h width of a head; pair k = (2k, 2k + 1); ω_k = base^(-2k / d_h); τ unit of time; B batch, P slots.
Training replaces `rotate` by `shared.kernels.rotary`, the same with a Triton kernel on CUDA.
"""

from __future__ import annotations

import torch
from torch import Tensor


def angles(times: Tensor, head_width: int, base: float = 1000.0, tau: float = 1.0) -> Tensor:
    """Return θ_{p,k} = ω_k (t_p - t_0) / τ.

    Args:
        times: t_p - t_0 (..., P), in the unit of τ.
        head_width: d_h, even.
        base: of the frequencies.
        tau: τ, the time that turns the first pair by one radian.

    Returns:
        Angles (..., P, d_h / 2), radians.

    Raises:
        ValueError: if d_h is odd.
    """
    if head_width < 2 or head_width % 2:
        raise ValueError(f"a head's width must be even for its pairs to rotate, got {head_width}")
    k = torch.arange(head_width // 2, device=times.device, dtype=times.dtype)
    omega = base ** (-2 * k / head_width)
    return times[..., None] / tau * omega  # Sec. 3.5


def rotate(x: Tensor, theta: Tensor) -> Tensor:
    """Rotate each pair (2k, 2k + 1) of the last axis by θ_k.

    Args:
        x: (..., d_h).
        theta: angles, broadcastable to (..., d_h / 2).

    Returns:
        The rotated vectors, of the shape that x and θ broadcast to; their norms are those of x.
    """
    # As complex numbers: one product, several times faster on a CPU than products of the even and the odd places.
    dtype = torch.promote_types(x.dtype, torch.float32)
    turn = torch.polar(torch.ones_like(theta), theta).to(torch.promote_types(dtype, torch.complex64))
    pairs = torch.view_as_complex(x.to(dtype).contiguous().view(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turn).flatten(-2).to(x.dtype)
