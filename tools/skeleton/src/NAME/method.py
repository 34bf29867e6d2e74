"""TODO the paper, its sections, and the equations that this file holds; rename it for what it is.

As an example, label smoothing. Symbols:

    z   logits (B, K)
    y   labels (B,), in [0, K)
    ε   share of the target that is spread evenly over all K classes, in [0, 1]
"""

from __future__ import annotations

import torch
from torch import Tensor


def smoothed_cross_entropy(logits: Tensor, labels: Tensor, smoothing: float = 0.1) -> Tensor:
    """Cross-entropy with a target of 1 - ε on the label and ε spread evenly over all classes.

    Args:
        logits: z (B, K).
        labels: y (B,), integers in [0, K).
        smoothing: ε in [0, 1].

    Returns:
        The mean over the batch, a scalar, in nats.

    Raises:
        ValueError: if a shape or the smoothing is out of range.
    """
    check_batch(logits, labels)
    if not 0 <= smoothing <= 1:
        raise ValueError(f"smoothing must lie in [0, 1], got {smoothing}")
    log_p = torch.log_softmax(logits, dim=1)  # (B, K)
    of_label = log_p.gather(1, labels[:, None]).squeeze(1)  # (B,)
    return -((1 - smoothing) * of_label + smoothing * log_p.mean(1)).mean()  # Eq. TODO


def check_batch(logits: Tensor, labels: Tensor) -> None:
    """Raise a ValueError unless logits are (B, K) and labels (B,) with B > 0."""
    if logits.ndim != 2 or labels.shape != logits.shape[:1] or len(logits) == 0:
        raise ValueError(f"expected logits (B, K) and labels (B,), got {tuple(logits.shape)} and {tuple(labels.shape)}")
