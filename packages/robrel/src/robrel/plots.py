"""Pictures of intervals, rewards and convergence (Sec. 3.4, 3.5, 6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from shared.tables import drawing

from robrel.framework import Assessment

Array = NDArray[np.float64]

BLUE, VERMILION, GREY = "#0072B2", "#D55E00", "#9A9A9A"
MARKS = ("s", "^", "D", "v", "P", "X")  # of other answers, in turn


def draw_interval(assessment: Assessment, answers: Mapping[str, float], path: Path) -> None:
    """Draw [m, M], its midpoint ŷ* and other answers, each with its worst-case error in the legend.

    Args:
        assessment: the interval.
        answers: ŷ of others, by name.
        path: the PNG to write.
    """
    robust, half_width = assessment.answer, assessment.half_width
    with drawing(path, (6.4, 2.2)) as image:
        axes = image.subplots()
        axes.axvline(0, color=GREY, linewidth=1)
        axes.plot([assessment.m, assessment.M], [0, 0], color=BLUE, linewidth=6, alpha=0.4, solid_capstyle="butt")
        axes.plot(robust, 0, "o", color=BLUE, label=f"robust: {robust:z.4g}, at most {half_width:.4g} off")
        for i, (name, answer) in enumerate(answers.items()):
            label = f"{name}: {answer:z.4g}, at most {assessment.W(answer):.4g} off"
            axes.plot(answer, 0, MARKS[i % len(MARKS)], color=VERMILION, markerfacecolor="none", label=label)
        axes.set(xlabel="advantage of the first policy, <d, r>", yticks=[], ylim=(-1, 1))
        axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(0, 1), ncols=2)


def draw_intervals(intervals: Mapping[int, Sequence[tuple[float, float, float]]], path: Path) -> None:
    """Draw how feedback narrows the interval: every seed's, around its truth, and the half-widths with their mean.

    Args:
        intervals: number of comparisons n_c -> (m, M, true <d, r>) of each seed.
        path: the PNG to write.

    Raises:
        ValueError: if there is no number of comparisons, or one has no seed.
    """
    counts = sorted(intervals)
    if not counts or not all(len(intervals[count]) for count in counts):
        raise ValueError("intervals must hold at least one (m, M, truth) for each number of comparisons")
    half_widths = [np.array([(M - m) / 2 for m, M, _ in intervals[count]]) for count in counts]
    with drawing(path, (8.0, 3.4)) as image:
        left, right = image.subplots(1, 2)
        left.axhline(0, color=GREY, linewidth=1)
        for place, count in enumerate(counts):
            m, M, truth = np.array(intervals[count], dtype=np.float64).T
            seeds = place + _spread(len(m))
            covered = (m <= truth) & (truth <= M)
            for inside, colour in ((covered, BLUE), (~covered, VERMILION)):
                left.vlines(seeds[inside], (m - truth)[inside], (M - truth)[inside], color=colour, linewidth=1)
            right.plot(seeds, half_widths[place], ".", color=GREY, markersize=4)
        right.plot(range(len(counts)), [w.mean() for w in half_widths], "o-", color=BLUE, label="mean over seeds")
        left.set(ylabel="[m, M] - truth, a line a seed")
        right.set(ylabel="half-width W*", ylim=(0, None))
        right.legend(frameon=False)
        for axes in (left, right):
            axes.set_xticks(range(len(counts)), list(map(str, counts)))
            axes.set_xlabel("comparisons")
            axes.grid(axis="y", alpha=0.3)


def draw_rewards(rewards: Mapping[str, Array], shape: tuple[int, int], path: Path) -> None:
    """Draw rewards of a grid world as heat-maps on one scale, symmetric around 0.

    Args:
        rewards: r (S,) of each state, by title; row by row from the top.
        shape: rows and columns of the grid.
        path: the PNG to write.

    Raises:
        ValueError: if there is no reward, or one does not fill the grid.
    """
    rows, columns = shape
    if not rewards:
        raise ValueError("rewards are empty, expected at least one")
    for name, reward in rewards.items():
        if reward.shape != (rows * columns,):
            raise ValueError(f"reward {name!r} must have shape ({rows * columns},), got {reward.shape}")
    limit = max(float(np.abs(reward).max()) for reward in rewards.values()) or 1.0
    with drawing(path, (2.6 * len(rewards) + 0.8, 2.9)) as image:
        panels = image.subplots(1, len(rewards), squeeze=False)[0]
        for axes, (name, reward) in zip(panels, rewards.items(), strict=True):
            picture = axes.imshow(reward.reshape(shape), cmap="PuOr", vmin=-limit, vmax=limit)
            axes.set(xticks=[], yticks=[])
            axes.set_title(name, fontsize=10)
        image.colorbar(picture, ax=list(panels), shrink=0.8, label="reward")


def draw_convergence(T: Array, gap: Array, path: Path) -> None:
    """Draw the primal-dual gap against the number of steps, with the slope -1/2 that theory gives.

    Args:
        T: (n,) numbers of steps.
        gap: (seeds, n) what is left of the gap after as many, positive on average.
        path: the PNG to write.

    Raises:
        ValueError: as `fitted_slope`.
    """
    _draw_power_law(T, gap, path, "steps T", "primal-dual gap")


def draw_rate(N: Array, error: Array, path: Path) -> None:
    """Draw the error of estimated answers against the number of episodes, with the slope -1/2 that theory gives.

    Args:
        N: (n,) episodes of each policy.
        error: (seeds, n), positive on average.
        path: the PNG to write.

    Raises:
        ValueError: as `fitted_slope`.
    """
    _draw_power_law(N, error, path, "episodes N of each policy", "error of the answer")


def fitted_slope(x: Array, y: Array) -> float:
    """Fit the exponent b of y = a x^b by least squares on the logarithms.

    Args:
        x: (n,) positive, at least two different ones.
        y: (n,) positive.

    Raises:
        ValueError: if a number is not positive, or fewer than two values of x differ.
    """
    if x.ndim != 1 or x.shape != y.shape or len(np.unique(x)) < 2:
        raise ValueError(f"a slope needs two different values of x, and as many of y, got {x.shape} and {y.shape}")
    if not (np.isfinite(x).all() and np.isfinite(y).all() and (x > 0).all() and (y > 0).all()):
        raise ValueError("a slope between logarithms needs positive numbers")
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def _draw_power_law(x: Array, values: Array, path: Path, xlabel: str, ylabel: str) -> None:
    if values.ndim != 2 or values.shape[1:] != x.shape or len(values) == 0:
        raise ValueError(f"expected values of shape (seeds, {len(x)}), got {values.shape}")
    mean = values.mean(0)
    slope = fitted_slope(x, mean)
    with drawing(path, (5.0, 3.6)) as image:
        axes = image.subplots()
        for seed in values:
            # A single seed can hit 0, which has no logarithm.
            axes.plot(x[seed > 0], seed[seed > 0], color=GREY, alpha=0.4, linewidth=0.8)
        axes.plot(x, mean, "o-", color=BLUE, label=f"mean over seeds, fitted slope {slope:.2f}")
        axes.plot(x, mean[0] * (x / x[0]) ** -0.5, "--", color=VERMILION, label="slope -1/2")
        axes.set(xscale="log", yscale="log", xlabel=xlabel, ylabel=ylabel)
        axes.grid(alpha=0.3, which="both")
        axes.legend(frameon=False)


def _spread(count: int) -> Array:
    """Place `count` seeds side by side around 0."""
    return np.linspace(-0.35, 0.35, count) if count > 1 else np.zeros(count)
