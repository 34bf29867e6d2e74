"""Figures: accuracy and size of the context against steps, counters of bullets, tokens of roles (Sec. 12).

Colours are those of Okabe and Ito; each method has a marker of its own too.
"""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from shared.tables import drawing

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


def draw_collapse(results: Results, path: Path, setting: str = "country") -> None:
    """Draw accuracy, size and retention of each method's context against steps.

    Args:
        results: the records.
        path: the PNG to write.
        setting: of the records.
    """
    with drawing(path, (10.5, 3.4)) as image:
        for axes, (metric, title) in zip(image.subplots(1, len(PANELS)), PANELS.items(), strict=True):
            for method, (label, colour, marker) in STYLES.items():
                points = curve(results, method, setting, metric)
                if points:
                    scale = 1 if metric == "tokens" else 100
                    values = [scale * value for value in points.values()]
                    axes.plot(list(points), values, color=colour, marker=marker, markersize=4, label=label)
            axes.set_xlabel("samples learned from")
            axes.set_title(title, fontsize=9)
            axes.set_ylim(bottom=0)
            axes.spines[["top", "right"]].set_visible(False)
        image.axes[0].legend(fontsize=7, frameon=False)
