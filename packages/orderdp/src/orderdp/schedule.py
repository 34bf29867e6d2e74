"""The one-cycle learning rate, by the share of the training that is done.

The released code counts steps, so its schedule must be sized for ceil(q/B) steps an epoch, and InfoBatch, whose
epochs differ in length, cannot know their number in advance. The place in the training, in epochs, is right for every
policy: within an epoch it advances by one over the number of this epoch's steps.
"""

from __future__ import annotations

import math


def one_cycle(
    epoch: int,
    step: int,
    *,
    steps: int,
    epochs: int,
    pct_start: float = 0.3,
    div: float = 25.0,
    final_div: float = 1e4,
) -> float:
    """Compute the learning rate of a step as a multiple of its peak, with cosine annealing (Smith and Topin, 2019).

    Where all epochs are equally long this is torch's `OneCycleLR` with `total_steps` the steps that are taken.

    Args:
        epoch: from 0.
        step: of this epoch, from 0.
        steps: that this epoch has.
        epochs: of the training.
        pct_start: share of it that warms up, in (0, 1).
        div: peak over initial rate.
        final_div: initial over final rate.

    Returns:
        A factor in (0, 1].
    """
    place, last = epoch + step / steps, epochs - 1 / steps
    peak = pct_start * epochs - 1 / steps
    if place <= peak:
        return _cosine(1 / div, 1.0, place / peak if peak > 0 else 1.0)
    return _cosine(1.0, 1 / (div * final_div), (place - peak) / (last - peak))


def _cosine(start: float, end: float, share: float) -> float:
    return end + (start - end) / 2 * (1 + math.cos(math.pi * share))
