"""Choosing cells: 0/1 decisions that pass gradients straight through (Sec. 3.2, 3.3 and 3.4).

Symbols:

    p   probability that a candidate is included, in [0, 1]
    b   the decision, 0 or 1
    s   the decision with the gradient of p
    o   one-hot choice of a neighbourhood's size
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Selection = Literal["sample", "threshold", "soft", "all", "none", "random"]
SHARPENING = 10.0  # of the logits of edges and cycles


def straight_through(hard: Tensor, soft: Tensor) -> Tensor:
    """Return a tensor with the value of `hard`, exactly, and the gradient of `soft`, of the same shape."""
    return hard.detach() + (soft - soft.detach())  # Sec. 3.3: s = b + p - stop_grad(p)


def include(
    p: Tensor, selection: Selection, training: bool, label: Tensor, generator: torch.Generator | None = None
) -> Tensor:
    """Decide which candidates are included, s.

    Args:
        p: probabilities (C,).
        selection: `sample` draws b ~ Bernoulli(p) while training and thresholds otherwise; `threshold` always takes
            b = 1 where p > 1/2; `soft` is s = p, without a decision; `all` and `none` take every candidate or no one,
            whatever p; `random` tosses a fair coin, afresh while training and fixed by the label otherwise.
        training: whether draws are allowed; without, the result is a function of p and label.
        label: a number of each candidate (C,), int64, that depends on its own graph alone; for `random`.
        generator: of the draws; torch's global one when None.

    Returns:
        s (C,), 0 or 1 except for `soft`.
    """
    if selection in ("all", "none"):
        return torch.full_like(p, float(selection == "all"))
    if selection == "soft":
        return p
    if selection == "random":
        return (
            torch.rand(p.shape, generator=generator, device=p.device).lt(0.5).to(p) if training else coin(label).to(p)
        )
    if selection == "sample" and training:
        b = (torch.rand(p.shape, generator=generator, dtype=p.dtype, device=p.device) < p).to(p)
    else:
        b = (p > 0.5).to(p)
    return straight_through(b, p)


def coin(label: Tensor) -> Tensor:
    """Return a fair-looking bit for each label (C,), int64, always the same for the same label."""
    mixed = (label + 1) * 0x9E3779B97F4A7C1  # products wrap around
    mixed = (mixed ^ (mixed >> 29)) * 0xBF58476D1CE4E5
    return ((mixed ^ (mixed >> 32)) & 1).bool()


def sharpened(logits: Tensor, sharpening: float = SHARPENING) -> Tensor:
    """Return p (C,) = softmax(sharpening · logits)_1 of logits (C, 2) (Sec. 3.4)."""
    return torch.softmax(sharpening * logits, dim=1)[:, 1]


def one_hot_choice(
    logits: Tensor, training: bool, tau: float = 1.0, generator: torch.Generator | None = None
) -> Tensor:
    """Choose one of K, o (N, K): by Gumbel noise while training, the most probable otherwise (Sec. 3.2).

    Args:
        logits: (N, K).
        training: add Gumbel noise.
        tau: temperature of the softmax whose gradient passes.
        generator: of the noise; torch's global one when None.

    Returns:
        One-hot rows with the gradient of softmax((logits + noise) / τ).
    """
    if training:
        logits = logits - torch.empty_like(logits).exponential_(generator=generator).log()
    soft = torch.softmax(logits / tau, dim=1)
    return straight_through(torch.zeros_like(soft).scatter(1, soft.argmax(1, keepdim=True), 1.0), soft)
