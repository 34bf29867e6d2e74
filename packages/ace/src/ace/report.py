"""What the comparison's tables and figures show. Colours are those of Okabe and Ito; each method has its own marker."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from shared.tables import Metric, Report, drawing

if TYPE_CHECKING:
    from shared.records import Results

STYLES = {  # method: label, colour, marker
    "ace": ("ACE", "#0072B2", "o"),
    "rewrite": ("rewritten cheatsheet", "#D55E00", "s"),
    "icl": ("ICL", "#009E73", "^"),
    "history": ("full history", "#CC79A7", "D"),
    "base": ("model alone", "#767676", "v"),
}
PANELS = {"accuracy": "validation accuracy (%)", "tokens": "tokens of the context", "retention": "facts kept (%)"}


def curve(results: Results, method: str, setting: str, metric: str) -> dict[int, float]:
    """Return the mean over seeds of what was measured at steps of training, as `metric@step`.

    Args:
        results: the records.
        method: of the records.
        setting: of the records.
        metric: its name, without the step.
    """
    found: dict[int, list[float]] = {}
    for record in results.records:
        if (record.method, record.setting) == (method, setting):
            for name, value in record.metrics.items():
                kind, at, step = name.partition("@")
                if at and kind == metric:
                    found.setdefault(int(step), []).append(value)
    return {step: fmean(values) for step, values in sorted(found.items())}


def points_of(results: Results, setting: str) -> set[int]:
    """Return the steps at which something was measured in a setting."""
    return {step for method in STYLES for step in curve(results, method, setting, "accuracy")}


def draw_collapse(results: Results, path: Path, setting: str = "country") -> None:
    """Draw accuracy, size and retention of each method's context against steps.

    Args:
        results: the records.
        path: the PNG to write.
        setting: of the records.
    """
    with drawing(path, (10.5, 3.4)) as image:
        for axes, (metric, title) in zip(image.subplots(1, len(PANELS)), PANELS.items(), strict=True):
            for row, (method, (label, colour, marker)) in enumerate(STYLES.items()):
                points = curve(results, method, setting, metric)
                if points:
                    scale = 1 if metric == "tokens" else 100
                    values = [scale * value for value in points.values()]
                    # Lines that coincide stay visible: the later ones lie below and are wider.
                    look = {"linewidth": 1.4 + 0.5 * row, "markersize": 4 + 0.8 * row, "zorder": 10 - row}
                    axes.plot(list(points), values, color=colour, marker=marker, label=label, **look)
            axes.set_xticks(sorted(points_of(results, setting)))
            axes.set_xlabel("samples learned from")
            axes.set_title(title, fontsize=9)
            axes.set_ylim(bottom=0)
            axes.spines[["top", "right"]].set_visible(False)
        image.axes[0].legend(fontsize=7, frameon=False)


REPORT = Report(
    method="ace",
    baselines=["base", "icl", "history", "rewrite"],
    metrics=[
        Metric("accuracy", "accuracy", percent=True),
        Metric("final_retention", "of the facts learned, kept at the end", percent=True),
        Metric("learned", "facts learned", digits=1),
        Metric("tokens", "tokens of the context", digits=0),
        Metric("calls", "calls", digits=0),
        Metric("completion_tokens", "tokens written", digits=0),
    ],
    titles={
        "country": "Country desk, offline",
        "country-online": "Country desk, online",
        "ablations": "Ablations on the country desk",
    },
    labels={
        "ace": "ACE",
        "base": "the model alone",
        "icl": "labelled demonstrations (ICL)",
        "history": "full history",
        "rewrite": "rewritten cheatsheet",
    },
    drawings={"collapse.png": draw_collapse},
)
