"""What the comparison's tables and figures show."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from shared.claims import mean_interval
from shared.tables import Metric, Report, drawing

if TYPE_CHECKING:
    from shared.records import Results

BUDGETS = ("keep=0.1", "keep=0.3", "keep=0.5")
# Okabe and Ito's palette, with a marker each: told apart with every kind of colour vision, and in grey.
STYLES = {
    "orderdp": ("#0072B2", "o"),
    "random": ("#D55E00", "s"),
    "topq": ("#009E73", "^"),
    "infobatch": ("#CC79A7", "D"),
    "ucb": ("#E69F00", "v"),
    "eps_greedy": ("#56B4E9", "P"),
}


def draw_budgets(results: Results, path: Path) -> None:
    """Draw accuracy against the share of samples that was really seen, with the 95% interval of the mean.

    Static pruning is left out: it is far below the others.

    Args:
        results: the records.
        path: the PNG to write.
    """
    with drawing(path, (6.4, 4.0)) as image:
        axes = image.subplots()
        for method, (colour, marker) in STYLES.items():
            points = []
            for setting in BUDGETS:
                accuracy = [100 * v for v in results.values(method, setting, "accuracy").values()]
                if len(accuracy) > 1:
                    low, high = mean_interval(accuracy)
                    seen = fmean(results.values(method, setting, "seen").values())
                    points.append((100 * seen, fmean(accuracy), (high - low) / 2))
            if points:
                x, y, half = zip(*sorted(points), strict=True)
                axes.errorbar(x, y, half, color=colour, marker=marker, capsize=3, label=REPORT.label(method))
        full = [100 * v for v in results.values("full", BUDGETS[-1], "accuracy").values()]
        if len(full) > 1:
            axes.axhspan(*mean_interval(full), color="#9A9A9A", alpha=0.35, label=REPORT.label("full"), linewidth=0)
        axes.set(xlabel="samples seen, of all in every epoch (%)", ylabel="test accuracy (%)")
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, fontsize=9)


REPORT = Report(
    method="orderdp",
    baselines=["full", "random", "topq", "infobatch", "ucb", "eps_greedy", "static"],
    metrics=[
        Metric("accuracy", "accuracy", percent=True),
        Metric("seen", "samples seen", higher_is_better=False, percent=True),
        Metric("train_seconds", "training loop (s)", higher_is_better=False, digits=1),
        Metric("loss", "test loss (nats)", higher_is_better=False, digits=3),
    ],
    titles={
        "keep=0.3": "MNIST, 4,000 images, 70 % pruned",
        "keep=0.1": "MNIST, 4,000 images, 90 % pruned",
        "keep=0.5": "MNIST, 4,000 images, 50 % pruned",
        "noise": "70 % pruned, 20 % of the training labels random",
        "ablations": "One learning rate (0.1), 70 % pruned: ablations",
        "small-ablations": "One learning rate (0.1), 90 % pruned",
    },
    labels={
        "orderdp": "OrderDP",
        "full": "full training",
        "random": "dynamic random (s = q)",
        "topq": "top q of all (s = n)",
        "infobatch": "InfoBatch",
        "ucb": "UCB",
        "eps_greedy": "ε-greedy",
        "static": "static, scored once",
    },
    drawings={"budgets.png": draw_budgets},
)
