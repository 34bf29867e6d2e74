"""What every network of this package is: a map from one molecular state to its whole future (Sec. 3.1).

A network of your own that subclasses `SolutionOperator` trains and is scored like ATOM and EGNO:

    uv run --package atom train --model.operator my_package.MyOperator
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn


class SolutionOperator(nn.Module, ABC):
    """F: (x, v, z) at t_0 -> x at t_0 + Δ_1 .. t_0 + Δ_P, all in one forward pass."""

    @property
    def like(self) -> Tensor:
        """A tensor of the device and floating type that the network works in."""
        return next(self.parameters(), torch.empty(0)).detach()

    @abstractmethod
    def forward(self, x: Tensor, v: Tensor, z: Tensor, lags: Tensor, bonds: Tensor, mask: Tensor) -> Tensor:
        """Predict positions.

        Args:
            x: positions (B, N, 3), Å; 0 where padded.
            v: frame differences x(t_0 + 1) - x(t_0) (B, N, 3), Å per frame; 0 where padded.
            z: atomic numbers (B, N), int64; 0 where padded.
            lags: Δ_p (B, P), fs, increasing.
            bonds: adjacency (B, N, N), 0 or 1, zero on the diagonal and where padded.
            mask: (B, N) bool, True for the atoms that exist.

        Returns:
            Positions (B, P, N, 3), Å; 0 where padded.
        """
