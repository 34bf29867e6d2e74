"""Figures of a run: errors and bond lengths over time, molecules, shares of the streams.

Axes: P lags, N atoms, E bonds, L blocks. Colours are those of Okabe and Ito; lines differ in their marks too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from shared.tables import drawing

from atom.rendering import Ball, Stick, View, compose, render

Array = NDArray[np.float64]

BLUE, VERMILION, GREEN, PURPLE, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#767676"
SKY, ORANGE, YELLOW = "#56B4E9", "#E69F00", "#F0E442"
LINES = (  # colour, line and mark, in the order of the curves
    (BLUE, "-", "o"),
    (GREY, "--", "s"),
    (VERMILION, "--", "^"),
    (GREEN, ":", "D"),
    (PURPLE, ":", "v"),
    (ORANGE, ":", "P"),
)
STREAMS = (("X", BLUE, ""), ("V", ORANGE, "//"), ("Z", SKY, ".."))
ELEMENTS = {1: "#E8E8E8", 6: "#4A4A4A", 7: BLUE, 8: VERMILION, 9: SKY, 16: YELLOW, 17: SKY}
OTHER = PURPLE
PREDICTED, START = GREEN, GREY
BONDS_SHOWN = 6
SMOOTH = 2


def draw_lags(curves: Mapping[str, Array], lags_fs: Array, path: Path) -> None:
    """Draw the squared error at each lag, on a logarithmic scale.

    Args:
        curves: (P,) of each predictor, 10^-2 Å², by name; the method first.
        lags_fs: (P,), fs after the state.
        path: the PNG to write.

    Raises:
        ValueError: if there is no curve, there are more than six, or one has another length than the lags.
    """
    if not 1 <= len(curves) <= len(LINES):
        raise ValueError(f"curves must be 1 to {len(LINES)}, got {len(curves)}")
    for name, curve in curves.items():
        if np.shape(curve) != np.shape(lags_fs):
            raise ValueError(f"curve {name!r} has shape {np.shape(curve)}, expected that of lags_fs")
    with drawing(path, (5.4, 3.6)) as image:
        axes = image.subplots()
        for (name, curve), (colour, line, mark) in zip(curves.items(), LINES, strict=False):
            shown = np.where(np.asarray(curve) > 0, curve, np.nan)  # 0 has no logarithm
            axes.plot(lags_fs, shown, linestyle=line, marker=mark, color=colour, markersize=5, label=name)
        axes.set(xlabel="time after the state, fs", ylabel="mean squared error, 10⁻² Å²", yscale="log")
        axes.grid(alpha=0.3, which="both")
        axes.legend(frameon=False)


def draw_bonds(
    predicted: Array, true: Array, start: Array, lags_fs: Array, path: Path, names: Sequence[str] = ()
) -> None:
    """Draw the lengths of bonds over time, a panel a bond; of many bonds those that vary most.

    Args:
        predicted: (P, E), Å.
        true: (P, E), Å.
        start: lengths in the state (E,), Å.
        lags_fs: (P,), fs after the state.
        path: the PNG to write.
        names: E titles of the panels; none by default.

    Raises:
        ValueError: if there is no bond, or shapes do not fit together.
    """
    lags, bonds = np.shape(true)
    if not bonds or np.shape(predicted) != (lags, bonds) or np.shape(start) != (bonds,) or len(lags_fs) != lags:
        raise ValueError(
            f"predicted and true must be (P, E), start (E,) and lags_fs (P,) with a bond at least, got "
            f"{np.shape(predicted)}, {np.shape(true)}, {np.shape(start)} and {np.shape(lags_fs)}"
        )
    if names and len(names) != bonds:
        raise ValueError(f"names must be one for each of {bonds} bonds, got {len(names)}")
    most = np.argsort(-np.ptp(np.vstack((start, true)), axis=0), kind="stable")[:BONDS_SHOWN]
    shown, times = np.sort(most), np.concatenate(([0.0], lags_fs))
    columns = min(len(shown), 3)
    rows = -(-len(shown) // columns)
    with drawing(path, (2.5 * columns + 0.6, 1.9 * rows + 0.7)) as image:
        panels = image.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).flatten()
        for panel, bond in zip(panels, shown, strict=False):
            series = ((true, BLUE, "-", "o", "true"), (predicted, VERMILION, "--", "^", "predicted"))
            for lengths, colour, line, mark, label in series:
                y = np.concatenate(([start[bond]], lengths[:, bond]))
                panel.plot(times, y, linestyle=line, marker=mark, color=colour, markersize=4, label=label)
            panel.set_title(names[bond] if names else "", fontsize=9, loc="left")
            panel.grid(alpha=0.3)
        for panel in panels[len(shown) :]:
            panel.set_axis_off()
        image.supxlabel("time after the state, fs", fontsize=10)
        image.supylabel("bond length, Å", fontsize=10)
        image.legend(*panels[0].get_legend_handles_labels(), loc="outside upper right", ncols=2, frameon=False)


def principal_axes(points: Array) -> Array:
    """Return the axes (3, 3), one a row, of largest to smallest spread; right-handed, so nothing is mirrored.

    Args:
        points: (N, 3).
    """
    _, _, axes = np.linalg.svd(points - points.mean(0), full_matrices=True)
    biggest = np.abs(axes).argmax(axis=1)
    axes = axes * np.sign(axes[np.arange(3), biggest])[:, None]  # the decomposition leaves the signs open
    axes[2] *= np.linalg.det(axes)
    return np.asarray(axes)


def draw_overlay(
    predicted: Array, true: Array, start: Array, numbers: NDArray[np.int64], bonds: Array, path: Path, title: str = ""
) -> None:
    """Draw a molecule as it became, the prediction as a translucent shell around it, and where it came from.

    It is seen along the axis of its smallest extent. What is behind the true molecule is hidden by it.

    Args:
        predicted: (N, 3), Å.
        true: (N, 3), Å.
        start: (N, 3), Å.
        numbers: atomic numbers (N,).
        bonds: adjacency (N, N).
        path: the PNG to write.
        title: of the picture.

    Raises:
        ValueError: if the shapes do not fit together.
    """
    from ase.data import chemical_symbols, covalent_radii
    from matplotlib.colors import to_rgb
    from matplotlib.lines import Line2D

    count = len(numbers)
    for name, points in (("predicted", predicted), ("true", true), ("start", start)):
        if np.shape(points) != (count, 3) or not count:
            raise ValueError(f"{name} must be ({count}, 3), positions of {count} atoms, got {np.shape(points)}")
    if np.shape(bonds) != (count, count):
        raise ValueError(f"bonds must be ({count}, {count}), got {np.shape(bonds)}")
    axes, origin = principal_axes(true), true.mean(0)
    elements = [np.array(to_rgb(ELEMENTS.get(int(z), OTHER))) for z in numbers]
    radii = 0.45 * covalent_radii[numbers]
    pairs = np.argwhere(np.triu(bonds, 1) > 0)
    models = []
    for points, colours, grown, thick in (
        (true, elements, 1.0, 0.10),
        (start, [np.array(to_rgb(START))] * count, 0.4, 0.05),
        (predicted, [np.array(to_rgb(PREDICTED))] * count, 1.22, 0.15),
    ):
        places = (points - origin) @ axes.T
        balls = [Ball(p, grown * r, c) for p, r, c in zip(places, radii, colours, strict=True)]
        models.append((balls, [Stick(places[i], places[j], thick, (colours[i], colours[j])) for i, j in pairs]))
    edges = np.array([(*(b.centre - b.radius)[:2], *(b.centre + b.radius)[:2]) for balls, _ in models for b in balls])
    (left, bottom), (right, top) = edges[:, :2].min(0) - 0.25, edges[:, 2:].max(0) + 0.25
    width, height = right - left, top - bottom
    inches = 5.0 / max(width, height)  # of an Å
    view = View(left, right, bottom, top, SMOOTH * 150 * inches)
    truth, origin_layer, guess = (render(*model, view) for model in models)
    picture = compose(truth, [(origin_layer, 0.45), (guess, 0.5)], SMOOTH)
    present = dict(sorted((int(z), c) for z, c in zip(numbers, map(tuple, elements), strict=True)))
    marks = [(chemical_symbols[z], colour, 1.0) for z, colour in present.items()]
    marks += [("predicted", to_rgb(PREDICTED), 0.5), ("at the start", to_rgb(START), 0.45)]
    with drawing(path, (width * inches + 0.3, height * inches + 1.0)) as image:
        panel = image.subplots()
        panel.imshow(picture, extent=(left, right, bottom, top), interpolation="antialiased")
        panel.plot([left + 0.1, left + 1.1], [bottom + 0.12] * 2, color="black", linewidth=2, solid_capstyle="butt")
        panel.text(left + 0.6, bottom + 0.17, "1 Å", ha="center", va="bottom", fontsize=9)
        panel.set_axis_off()
        panel.set_title(title, fontsize=10)
        handles = [
            Line2D([], [], marker="o", linestyle="", markersize=9, color=colour, alpha=alpha, label=label)
            for label, colour, alpha in marks
        ]
        image.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=9)


def draw_gamma(gammas: Array, path: Path) -> None:
    """Draw γ_F, how much each block's attention takes from the streams X, V and Z (Sec. 3.4).

    Args:
        gammas: (L, 3), rows of sum 1.
        path: the PNG to write.

    Raises:
        ValueError: if the shape is another.
    """
    if np.ndim(gammas) != 2 or np.shape(gammas)[1] != len(STREAMS) or not len(gammas):
        raise ValueError(f"gammas must be (L, {len(STREAMS)}), one share for each stream, got {np.shape(gammas)}")
    edges = np.concatenate((np.zeros((len(gammas), 1)), np.cumsum(gammas, axis=1)), axis=1)
    rows: Any = range(1, len(gammas) + 1)
    with drawing(path, (5.4, 0.4 * len(gammas) + 1.2)) as image:
        axes = image.subplots()
        for (name, colour, hatch), (low, high) in zip(STREAMS, pairwise(edges.T), strict=True):
            axes.barh(rows, high - low, left=low, color=colour, hatch=hatch, edgecolor="white", label=f"γ of {name}")
        axes.axvline(1 / 3, color="black", linewidth=0.8, linestyle=":")
        axes.axvline(2 / 3, color="black", linewidth=0.8, linestyle=":")
        axes.set(xlabel="share of the stream; dotted: equal shares", ylabel="block", xlim=(0, 1), yticks=list(rows))
        axes.invert_yaxis()
        image.legend(loc="outside upper right", ncols=len(STREAMS), frameon=False)
