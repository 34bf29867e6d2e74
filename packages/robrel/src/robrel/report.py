"""What the comparison's tables and figures show."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from shared.tables import Metric, Report, drawing

if TYPE_CHECKING:
    from shared.records import Results

RATES = {
    "iterations": ("pd_error", ("T = 100", "T = 1000", "T = 10000"), "steps T of the primal-dual method"),
    "samples": ("interval_error", ("N = 100", "N = 1000", "N = 10000"), "episodes N of each policy"),
}


def draw_rates(results: Results, path: Path) -> None:
    """Draw how both errors fall, seed by seed and in the mean, beside the slope -1/2.

    Args:
        results: the records.
        path: the PNG to write.
    """
    with drawing(path, (7.6, 3.4)) as image:
        for axes, (setting, (metric, methods, label)) in zip(image.subplots(1, 2), RATES.items(), strict=True):
            x = [int(method.split(" = ")[1]) for method in methods]
            columns = [results.values(method, setting, metric) for method in methods]
            for seed in sorted(set.intersection(*(set(column) for column in columns))):
                axes.plot(x, [column[seed] for column in columns], color="#9A9A9A", linewidth=0.5, alpha=0.6)
            means = [fmean(column.values()) for column in columns if column]
            if len(means) == len(x) and min(means) > 0:
                slope = math.log(means[-1] / means[0]) / math.log(x[-1] / x[0])
                axes.plot(x, means, color="#0072B2", marker="o", label=f"mean, slope {slope:.2f}")
                half = [means[0] * math.sqrt(x[0] / value) for value in x]
                axes.plot(x, half, color="#D55E00", linestyle="--", label="slope -1/2")
                axes.legend(frameon=False, fontsize=9)
            axes.set(xscale="log", yscale="log", xlabel=label, ylabel="error of m and M (return)")
            axes.grid(alpha=0.3)


REPORT = Report(
    method="robust",
    baselines=["arbitrary", "mle", "chebyshev", "max_margin", "max_entropy"],
    metrics=[
        Metric("worst", "worst-case error", higher_is_better=False, digits=3),
        Metric("ratio", "over W*", higher_is_better=False, digits=2),
        Metric("error", "error on the truth", higher_is_better=False, digits=3),
        Metric("half_width", "half-width", higher_is_better=False, digits=3),
        Metric("coverage", "coverage", percent=True),
        Metric("sign", "right sign", percent=True),
        Metric("interval_error", "error of m, M", higher_is_better=False, digits=4),
        Metric("pd_error", "primal error", higher_is_better=False, digits=4),
        Metric("pd_gap", "computable gap", higher_is_better=False, digits=4),
        Metric("pd_violation", "violation", higher_is_better=False, digits=4),
    ],
    titles={
        "comparisons=20": "Grid world, 20 comparisons of policies",
        "comparisons=5": "Grid world, 5 comparisons",
        "comparisons=60": "Grid world, 60 comparisons",
        "expert, ε = 0": "Grid world, an optimal expert",
        "expert, ε = 0.5": "Grid world, an expert known to be 0.5-optimal",
        "frozenlake": "FrozenLake, 20 demonstrations",
        "cliffwalking": "CliffWalking, 20 demonstrations",
        "feedback": "Grid world, more feedback",
        "iterations": "Grid world, more steps of the primal-dual method",
        "samples": "Grid world, estimated occupancies",
    },
    labels={
        "robust": "robust (exact)",
        "robust, primal-dual": "robust (Rob-ReL, T = 10,000)",
        "robust, T = 2000": "robust (Rob-ReL, T = 2,000)",
        "arbitrary": "arbitrary feasible reward",
        "mle": "maximum likelihood",
        "chebyshev": "Chebyshev centre",
        "max_margin": "maximum margin",
        "max_entropy": "maximum entropy",
    },
    drawings={"rates.png": draw_rates},
)
