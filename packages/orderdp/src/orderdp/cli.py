"""The command `orderdp`. What it needs is imported when it runs, so that every `--help` answers at once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shared.cli import Paper
from shared.cli import main as run


def plan(
    n: int,
    prune: float = 0.7,
    explore: float = 0.5,
    batch_size: int = 128,
    epochs: int = 200,
    losses: Path | None = None,
    out: Path | None = None,
) -> None:
    """Print what a pruning costs and favours before anything is trained.

    Args:
        n: number of samples.
        prune: share that is left out of an epoch, in [0, 1).
        explore: share s / n that is drawn into the pool, in [1 - prune, 1].
        batch_size: samples of a batch.
        epochs: of the training.
        losses: one loss per sample, to compare the surrogate objective with the mean: a CSV as `export-scores`
            writes it, or one number a line.
        out: PNG of the probability with which each rank is kept.
    """
    from orderdp.verbs import plan

    plan(n, prune, explore, batch_size, epochs, losses, out)


def usage(run: str = "last", top: int = 20, select: str = "last", out: Path | None = None) -> None:
    """Draw how often each sample was trained on, and list those most used: they may be mislabelled.

    Args:
        run: a run folder, or `last`.
        top: how many to list.
        select: which checkpoint: last, best, or a file.
        out: the PNG; RUN/figures/usage.png when null.
    """
    from orderdp.verbs import usage

    usage(run, top, select, out)


def export_scores(out: Path, run: str = "last", select: str = "last") -> None:
    """Write index, score and visits of every training sample as CSV.

    Args:
        out: the CSV.
        run: a run folder, or `last`.
        select: which checkpoint: last, best, or a file.
    """
    from orderdp.verbs import export_scores

    export_scores(run, out, select)


PAPER = Paper(
    name="orderdp",
    title="OrderDP: dynamic data pruning that is unbiased for an order-statistic surrogate",
    cli="orderdp.app:OrderDPCLI",
    verbs={"plan": plan, "usage": usage, "export-scores": export_scores},
    study="orderdp.comparison:study",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return run(PAPER, argv)
