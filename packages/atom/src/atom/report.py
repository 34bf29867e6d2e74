"""What the comparison's tables and figures show."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from shared.tables import Metric, Report, drawing

if TYPE_CHECKING:
    from shared.records import Results

LAGS = 8
# Okabe and Ito's palette, with a marker each: told apart with every kind of colour vision, and in grey.
STYLES = {
    "atom": ("#0072B2", "o"),
    "egno": ("#D55E00", "s"),
    "identity": ("#767676", "v"),
    "ridge": ("#009E73", "^"),
}
PANELS = ("unseen", "ethanol", "ethanol-random")


def draw_lags(results: Results, path: Path) -> None:
    """Draw the error at each lag, the mean over seeds.

    Args:
        results: the records.
        path: the PNG to write.
    """
    with drawing(path, (10.5, 3.4)) as image:
        panels = image.subplots(1, len(PANELS))
        for axes, setting in zip(panels, PANELS, strict=True):
            for method, (colour, marker) in STYLES.items():
                lags = [results.values(method, setting, f"lag{p}").values() for p in range(1, LAGS + 1)]
                if all(lags):
                    means = [fmean(values) for values in lags]
                    axes.plot(
                        range(1, LAGS + 1), means, color=colour, marker=marker, markersize=4, label=REPORT.label(method)
                    )
            axes.set(xlabel="lag (eighths of 32 fs)", title=REPORT.title(setting), ylim=(0, None))
            axes.title.set_fontsize(9)
            axes.grid(alpha=0.3)
        panels[0].set_ylabel("mean squared error (10⁻² Å²)")
        panels[0].legend(frameon=False, fontsize=8)


REPORT = Report(
    method="atom",
    baselines=["egno", "identity", "constant_velocity", "train_mean", "ridge", "nearest"],
    metrics=[
        Metric("s2t", "S2T (10⁻² Å²)", higher_is_better=False, digits=4),
        Metric("s2s", "S2S (10⁻² Å²)", higher_is_better=False, digits=4),
        Metric("seen_s2t", "S2T, molecules trained on", higher_is_better=False, digits=4),
        Metric("relative", "S2T / best of identity and constant velocity", higher_is_better=False, digits=2),
        Metric("rotation_ratio", "rotation ratio", higher_is_better=False, digits=2),
    ],
    titles={
        "unseen": "Trained on 7 molecules, tested on 3 unseen",
        "ethanol": "Ethanol alone, later times",
        "ethanol-random": "Ethanol alone, published random split",
        "ten": "All ten molecules, later times: predictors without a network",
        "ten-random": "All ten molecules, published random split",
        "ablations": "Ethanol alone: ablations",
        "ablations-unseen": "7 molecules, a third of the steps: ablations",
    },
    labels={
        "atom": "ATOM",
        "egno": "EGNO",
        "constant_velocity": "constant velocity",
        "train_mean": "train mean",
        "nearest": "1 nearest neighbour",
    },
    drawings={"lags.png": draw_lags},
)
