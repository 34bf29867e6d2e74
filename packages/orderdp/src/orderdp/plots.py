"""Figures of one run or one plan; the comparison's are in `report`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from shared.tables import drawing

BLUE, VERMILION, GREY = "#0072B2", "#D55E00", "#9A9A9A"


def draw_weights(gamma: NDArray[np.float64], keep: float, path: Path) -> None:
    """Draw each rank's probability of being trained on in a round, beside that of random pruning.

    Args:
        gamma: (n,) γ_j of the ranks, largest loss first.
        keep: q / n.
        path: the PNG to write.
    """
    n = len(gamma)
    places = np.unique(np.linspace(0, n - 1, min(n, 2000)).astype(int))
    with drawing(path, (6.0, 3.4)) as image:
        axes = image.subplots()
        axes.plot((places + 1) / n, gamma[places], color=BLUE, label="OrderDP: γ_j")
        axes.axhline(keep, color=VERMILION, linestyle="--", label="random pruning: q / n")
        axes.set(xlabel="rank of the loss j / n, largest first", ylabel="probability of being kept in a round")
        axes.set(xlim=(0, 1), ylim=(0, None))
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)


def draw_usage(visits: NDArray[np.int64], rounds: int, path: Path) -> None:
    """Draw how often the samples were trained on.

    Args:
        visits: (n,) of each sample.
        rounds: how many there were.
        path: the PNG to write.
    """
    counts = np.bincount(visits, minlength=rounds + 1)
    with drawing(path, (6.0, 3.4)) as image:
        axes = image.subplots()
        axes.bar(range(len(counts)), counts, color=BLUE, width=0.9)
        axes.axvline(visits.mean(), color=VERMILION, linestyle="--", label=f"mean {visits.mean():.2f}")
        axes.set(xlabel=f"times trained on, in {rounds} rounds", ylabel="samples")
        axes.grid(axis="y", alpha=0.3)
        axes.legend(frameon=False)


def draw_stability(norms: Sequence[float], variances: Sequence[float], path: Path) -> None:
    """Draw the gradient norm epoch by epoch: its mean over the steps, and one standard deviation around it.

    Args:
        norms: mean of each epoch.
        variances: variance of each epoch.
        path: the PNG to write.
    """
    epochs, mean, deviation = range(1, len(norms) + 1), np.asarray(norms), np.sqrt(variances)
    with drawing(path, (6.0, 3.4)) as image:
        axes = image.subplots()
        axes.fill_between(epochs, mean - deviation, mean + deviation, color=GREY, alpha=0.35, linewidth=0)
        axes.plot(epochs, mean, color=BLUE)
        axes.set(xlabel="epoch", ylabel="norm of the gradient", ylim=(0, None))
        axes.grid(alpha=0.3)
