"""From signals on cells to one signal for each vertex or graph (Sec. 3.4, item 10, and Sec. 3.7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from difflift.complexes import Complex

Pooling = Literal["mean", "sum"]


def pool(x: Tensor, batch: Tensor, graphs: int, kind: Pooling = "mean") -> Tensor:
    """Return the mean or the sum over each graph's vertices (G, D); 0 for a graph without any.

    Args:
        x: (N, D).
        batch: graph of each vertex (N,), int64.
        graphs: G.
        kind: `mean` or `sum`.

    Raises:
        ValueError: if `kind` is neither.
    """
    if kind not in ("mean", "sum"):
        raise ValueError(f"pooling must be 'mean' or 'sum', got {kind!r}")
    total = x.new_zeros(graphs, x.shape[1]).index_add(0, batch, x)
    if kind == "sum":
        return total
    return total / torch.bincount(batch, minlength=graphs).clamp(min=1)[:, None]


class Direct(nn.Module):
    """Take the signals of the vertices as they are."""

    def forward(self, signals: Sequence[Tensor], complex: Complex) -> Tensor:
        """Return x_0 (N, D) of the signals (x_0, ...)."""
        return signals[0]


class PropagateDown(nn.Module):
    """Carry signals down rank by rank: x_{r-1} ← LayerNorm(Linear(x_{r-1} ‖ B_r x_r)), the highest r first.

    Args:
        width: D.
        ranks: of how many ranks there are signals, 1 to 3; with one there is nothing to carry.

    Raises:
        ValueError: if `ranks` is not 1 to 3.
    """

    def __init__(self, width: int, ranks: int = 3) -> None:
        super().__init__()
        if ranks not in (1, 2, 3):
            raise ValueError(f"ranks must be 1, 2 or 3, got {ranks}")
        self.steps = nn.ModuleList(
            nn.Sequential(nn.Linear(2 * width, width), nn.LayerNorm(width)) for _ in range(ranks - 1)
        )

    def forward(self, signals: Sequence[Tensor], complex: Complex) -> Tensor:
        """Return x_0 (N, D) of the signals x_0 (N, D), x_1 (E, D), x_2 (C, D), as many as there are ranks.

        Raises:
            ValueError: if there are more or fewer signals than ranks.
        """
        if len(signals) != len(self.steps) + 1:
            raise ValueError(f"signals must be of {len(self.steps) + 1} ranks, got {len(signals)}")
        x = signals[-1]
        for r in range(len(self.steps), 0, -1):
            x = self.steps[r - 1](torch.cat([signals[r - 1], (complex.b1, complex.b2)[r - 1].down(x)], dim=1))
        return x
