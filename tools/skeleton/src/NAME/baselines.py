"""What the paper is compared with, behind the interface of the method: logits (B, K), labels (B,) -> scalar."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from .method import smoothed_cross_entropy

Method = Literal["smoothed", "plain"]
Loss = Callable[[Tensor, Tensor], Tensor]


def plain_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Ordinary cross-entropy of logits (B, K) and labels (B,); the mean over the batch, in nats."""
    return F.cross_entropy(logits, labels)


def build_loss(method: Method, smoothing: float) -> Loss:
    """Choose the loss of a method.

    Args:
        method: `smoothed`, the paper's, or `plain`.
        smoothing: ε of `smoothed`, in [0, 1].

    Raises:
        ValueError: if the smoothing is out of range.
    """
    if not 0 <= smoothing <= 1:
        raise ValueError(f"smoothing must lie in [0, 1], got {smoothing}")
    return partial(smoothed_cross_entropy, smoothing=smoothing) if method == "smoothed" else plain_cross_entropy
