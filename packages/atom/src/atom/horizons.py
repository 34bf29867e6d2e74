"""When the future states lie: the lags of a horizon, and random horizons (Sec. 3.1).

Symbols: ΔT horizon, P number of future states, Δ_p the lag of state p; all in frames.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def lags_of(horizon: Tensor | int, count: int) -> Tensor:
    """Return Δ_p = floor(ΔT p / P), p = 1 .. P.

    Args:
        horizon: ΔT (...), whole frames.
        count: P.

    Returns:
        Lags (..., P), int64, increasing; the last is ΔT.

    Raises:
        ValueError: if P is less than 1, or a horizon less than P: a lag would be zero.
    """
    horizons = torch.as_tensor(horizon, dtype=torch.int64)
    if count < 1:
        raise ValueError(f"the number of lags must be at least 1, got {count}")
    if horizons.numel() and int(horizons.min()) < count:
        raise ValueError(f"the horizon must be at least {count} frames, one for each lag, got {int(horizons.min())}")
    return horizons[..., None] * torch.arange(1, count + 1, device=horizons.device) // count  # Sec. 3.1


def random_horizons(count: int, low: int, high: int, generator: torch.Generator) -> Tensor:
    """Draw ΔT ~ LogUniform(low, high), rounded down to whole frames (Sec. 3.1, multi-task).

    Args:
        count: how many to draw.
        low: smallest, in frames, at least 1.
        high: largest, in frames; it is drawn as often as the others of its size.
        generator: of the draws.

    Returns:
        Horizons (count,), int64, in [low, high].

    Raises:
        ValueError: unless 1 <= low <= high.
    """
    if not 1 <= low <= high:
        raise ValueError(f"the range of horizons must satisfy 1 <= low <= high, got {low} and {high}")
    u = torch.rand(count, generator=generator, dtype=torch.float64)
    drawn = torch.exp(math.log(low) + u * (math.log(high + 1) - math.log(low))).floor().to(torch.int64)
    return drawn.clamp(low, high)  # only rounding of exp can leave the range
