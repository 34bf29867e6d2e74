"""Label-noise regularisation (Sec. 3.7)."""

from __future__ import annotations

import torch
from torch import Tensor


def add_noise(
    x: Tensor, v: Tensor, mask: Tensor, sigma_x: float, sigma_v: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Perturb a state by ξ ~ N(0, σ²), once: norms and every stream are then made from the same noisy state.

    Atomic numbers and random walks are left alone. Targets are perturbed by the same function, with v = 0 ignored.

    Args:
        x: positions (..., N, 3), Å.
        v: frame differences of the same shape, Å per frame.
        mask: atoms that exist, broadcastable to (..., N); the others keep their zeros.
        sigma_x: of the positions, Å.
        sigma_v: of the velocities, Å per frame; these are about a hundredth of an Å.
        generator: on the device of x.

    Returns:
        New x and v; the given ones where their σ is 0.
    """
    kept = mask[..., None]
    if sigma_x:
        x = x + sigma_x * kept * torch.randn(x.shape, generator=generator, device=x.device, dtype=x.dtype)
    if sigma_v:
        v = v + sigma_v * kept * torch.randn(v.shape, generator=generator, device=v.device, dtype=v.dtype)
    return x, v
