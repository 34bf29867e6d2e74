"""The networks, where the paper has its own; this one is logistic regression."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LogisticRegression(nn.Module):
    """One linear layer on the flattened input, with zeros as weights at the start.

    Args:
        features: number of inputs D.
        classes: number of classes K.
    """

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(classes, features))
        self.bias = nn.Parameter(torch.zeros(classes))

    def forward(self, x: Tensor) -> Tensor:
        """Map inputs (B, ...) with D numbers each to logits (B, K)."""
        return x.flatten(1) @ self.weight.T + self.bias
