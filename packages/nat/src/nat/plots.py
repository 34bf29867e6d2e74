"""Figures: robust accuracy against eps, one attacked image, and the geometry of the output distribution.

Each function writes one PNG through matplotlib's object interface, without pyplot's global state or a
display. Several networks are told apart by colour (Okabe and Ito's palette, safe for colour-blind readers)
and by line style, in the order in which they are given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
LINES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)), (0, (1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
NEUTRAL = "#9A9A9A"
DPI = 150
PROBABILITY_FLOOR = 1e-5  # smaller ones have no bar in the diagnostics, whose scale is logarithmic
ENTROPY_FLOOR = 1e-6  # nats; smaller ones count as this in the histogram


def robustness_curve_figure(curves: Mapping[str, Mapping[float, float]], path: str | Path) -> Path:
    """Draw robust accuracy against the radius of the ball.

    Args:
        curves: network -> eps (in [0, 1]) -> accuracy (a fraction).
        path: the PNG to write.

    Returns:
        The path.

    Raises:
        ValueError: if there is no curve, or one is empty.
    """
    require_labels("curves", curves)
    figure = Figure(figsize=(5.6, 3.8), layout="constrained")
    axes = figure.subplots()
    for index, (label, curve) in enumerate(curves.items()):
        eps = sorted(curve)
        axes.plot(
            eps,
            [100 * curve[value] for value in eps],
            label=label,
            marker=MARKERS[index % len(MARKERS)],
            markersize=4.5,
            **line_style(index),
        )
    axes.set(xlabel="ε, radius of the ℓ∞ ball (pixels in [0, 1])", ylabel="accuracy under attack (%)")
    axes.set_ylim(-2, 102)
    axes.grid(alpha=0.3)
    place_legend(figure, axes)
    return save(figure, path)


def perturbation_figure(
    x: Tensor,
    x_adv: Tensor,
    p_before: Tensor,
    p_after: Tensor,
    class_names: Sequence[str],
    path: str | Path,
    max_classes: int = 10,
) -> Path:
    """Draw an image, its adversarial version, what was added, and both output distributions.

    Args:
        x: (C, H, W) in [0, 1], with 1 or 3 channels.
        x_adv: (C, H, W) in [0, 1].
        p_before: (K,) probabilities for x.
        p_after: (K,) probabilities for x_adv.
        class_names: K names.
        path: the PNG to write.
        max_classes: the bars drawn: the classes of highest probability in either distribution.

    Returns:
        The path.

    Raises:
        ValueError: if shapes do not agree.
    """
    if x.ndim != 3 or x.shape[0] not in (1, 3) or x.shape != x_adv.shape:
        raise ValueError(
            f"x and x_adv must be one image (C, H, W) with 1 or 3 channels each, got {tuple(x.shape)} "
            f"and {tuple(x_adv.shape)}"
        )
    before, after = to_numpy(p_before), to_numpy(p_after)
    if not before.shape == after.shape == (len(class_names),):
        raise ValueError(
            f"class_names must name each probability, got {len(class_names)} names, {before.shape} "
            f"probabilities before and {after.shape} after"
        )
    figure = Figure(figsize=(10.5, 3.0), layout="constrained")
    panels = figure.subplots(1, 4, width_ratios=(1, 1, 1, 1.7))
    delta = x_adv - x
    size = delta.abs().max().item()
    factor = 0.5 / size if size > 0 else 1.0
    amplified = 0.5 + factor * delta
    images = (
        (x, f"clean: {class_names[int(before.argmax())]} ({before.max():.0%})"),
        (x_adv, f"attacked: {class_names[int(after.argmax())]} ({after.max():.0%})"),
        (amplified, f"difference × {factor:.3g}" if size > 0 else "difference: none"),
    )
    for axes, (image, title) in zip(panels, images, strict=False):
        show_image(axes, image, title)
    panels[2].set_xlabel(f"grey is zero, max |δ| = {size:.3g}", fontsize=9)

    shown = np.sort(np.argsort(-np.maximum(before, after), kind="stable")[:max_classes])
    draw_bars(panels[3], {"clean": before[shown], "attacked": after[shown]}, [class_names[i] for i in shown])
    panels[3].legend(loc="lower center", bbox_to_anchor=(0.5, 1.1), ncols=2, frameon=False, fontsize=9)
    panels[3].set_title("output distribution", fontsize=10)
    return save(figure, path)


def diagnostics_figure(
    entropies: Mapping[str, Tensor],
    margins: Mapping[str, Tensor],
    probabilities: Mapping[str, Tensor],
    distances: Mapping[str, Tensor],
    path: str | Path,
    class_names: Sequence[str] | None = None,
) -> Path:
    """Compare the geometry of networks, as NAT with its control (Sec. 3.6).

    Above: the output distributions of up to four examples, one panel each. Below: the distributions over all
    points of the entropy, of the logit margin (negative where the prediction is wrong), and of the distance
    to the nearest decision boundary of the linear head.

    Args:
        entropies: network -> (N,) in nats.
        margins: network -> (N,), z_y minus the largest other logit.
        probabilities: network -> (E, K), the same E examples for each network.
        distances: network -> (N,), in units of the penultimate features.
        path: the PNG to write.
        class_names: K names; the numbers 0 to K - 1 when None.

    Returns:
        The path.

    Raises:
        ValueError: if the four do not name the same networks, or their examples differ in number.
    """
    require_labels("entropies", entropies)
    for name, values in (("margins", margins), ("probabilities", probabilities), ("distances", distances)):
        if list(values) != list(entropies):
            raise ValueError(f"{name} must be about {list(entropies)} as entropies are, got {list(values)}")
    bars = {label: to_numpy(values) for label, values in probabilities.items()}
    shapes = {values.shape for values in bars.values()}
    if len(shapes) != 1 or len(shape := shapes.pop()) != 2 or 0 in shape:
        raise ValueError(
            f"probabilities must be (E, K) alike for every network, got "
            f"{ {label: values.shape for label, values in bars.items()} }"
        )
    examples = min(4, shape[0])
    figure = Figure(figsize=(11, 5.6), layout="constrained")
    halves: Any = figure.subfigures(2, 1, height_ratios=(1, 1.15))
    above, below = halves
    names = list(class_names) if class_names is not None else [str(c) for c in range(shape[1])]
    top = above.subplots(1, examples, sharey=True, squeeze=False)[0]
    for index, axes in enumerate(top):
        # Logarithmic, because the small side peaks are what the nasty term reshapes.
        heights = {label: values[index] for label, values in bars.items()}
        draw_bars(axes, heights, names, floor=PROBABILITY_FLOOR)
        axes.set_title(f"example {index + 1}", fontsize=10)
        axes.set_ylabel("probability" if index == 0 else "")

    left, middle, right = below.subplots(1, 3)
    draw_histograms(left, entropies, f"output entropy (nats, at least {ENTROPY_FLOOR:.0e})", floor=ENTROPY_FLOOR)
    left.set_ylabel("share of the points (%)")
    draw_histograms(middle, margins, "logit margin")
    middle.axvline(0, color=NEUTRAL, linewidth=1, zorder=0)
    draw_histograms(right, distances, "distance to the boundary (feature units)")
    place_legend(figure, left)
    return save(figure, path)


def draw_bars(
    axes: Axes,
    groups: Mapping[str, NDArray[np.float64]],
    names: Sequence[str],
    floor: float | None = None,
) -> None:
    """Draw (K,) probabilities side by side for each label; on a logarithmic scale if there is a floor."""
    width = 0.8 / len(groups)
    positions = np.arange(len(names))
    for index, (label, values) in enumerate(groups.items()):
        offset = (index - (len(groups) - 1) / 2) * width
        axes.bar(positions + offset, values, width, label=label, color=COLOURS[index % len(COLOURS)])
    long = max(len(name) for name in names) > 3
    axes.set_xticks(positions, names, rotation=40 if long else 0, ha="right" if long else "center", fontsize=9)
    axes.set(xlabel="class", ylabel="probability")
    if floor is None:
        axes.set_ylim(0, 1.02)
    else:
        axes.set_yscale("log")
        axes.set_ylim(floor, 1.5)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)


def draw_histograms(axes: Axes, groups: Mapping[str, Tensor], xlabel: str, floor: float | None = None) -> None:
    """Draw histograms over common bins, as shares of each group, with a triangle at each median.

    With a floor the scale is logarithmic, and smaller values are counted in its first bin.
    """
    values = {label: to_numpy(tensor).ravel() for label, tensor in groups.items()}
    everything = np.concatenate(list(values.values()))
    low, high = float(everything.min()), float(everything.max())
    if floor is not None:
        axes.set_xscale("log")
        values = {label: points.clip(floor) for label, points in values.items()}
        low = max(low, floor)
        bins = np.geomspace(low, max(high, 10 * low), 31)
    else:
        bins = np.linspace(low, high if high > low else low + 1, 31)
    for index, (label, points) in enumerate(values.items()):
        shares = 100 * np.histogram(points, bins)[0] / len(points)
        axes.stairs(shares, bins, label=label, **line_style(index))
        axes.stairs(shares, bins, fill=True, alpha=0.12, color=COLOURS[index % len(COLOURS)])
        axes.plot(
            np.median(points),
            1.0,
            marker="v",
            markersize=7,
            color=COLOURS[index % len(COLOURS)],
            transform=axes.get_xaxis_transform(),
            clip_on=False,
            zorder=5,
        )
    axes.set(xlabel=xlabel)
    axes.set_title("▼ median", fontsize=9, loc="right", color="#555555")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)


def show_image(axes: Axes, image: Tensor, title: str) -> None:
    """Draw (C, H, W) in [0, 1] with pixels visible and without ticks."""
    pixels = to_numpy(image).transpose(1, 2, 0)
    axes.imshow(
        pixels.squeeze(2) if pixels.shape[2] == 1 else pixels.clip(0, 1),
        cmap="gray",
        vmin=0,
        vmax=1,
        interpolation="nearest",
    )
    axes.set_title(title, fontsize=10)
    axes.set_xticks([])
    axes.set_yticks([])


def line_style(index: int) -> dict[str, Any]:
    """Return colour and dashes of the network at this position."""
    return {"color": COLOURS[index % len(COLOURS)], "linestyle": LINES[index % len(LINES)], "linewidth": 1.8}


def place_legend(figure: Figure, axes: Axes) -> None:
    """Put the legend above the panels, where it covers no data."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=min(4, len(labels)), frameon=False)


def require_labels(name: str, groups: Mapping[str, object]) -> None:
    """Raise a ValueError if there is no network, or one without values."""
    if not groups or any(len(values) == 0 for values in groups.values()):  # type: ignore[arg-type]
        raise ValueError(f"{name} must hold at least one network, each with values, got {dict(groups)!r}")


def to_numpy(values: Tensor) -> NDArray[np.float64]:
    """Copy a tensor to a float64 array."""
    return values.detach().cpu().double().numpy()


def save(figure: Figure, path: str | Path) -> Path:
    """Write the PNG, without matplotlib's version in it, so that equal figures are equal files."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=DPI, metadata={"Software": None}, format="png")
    return path
