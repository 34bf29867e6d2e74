"""The command `orderdp`. What it needs is imported when it runs, so that every `--help` answers at once."""

from __future__ import annotations

from collections.abc import Sequence

from shared.cli import Paper
from shared.cli import main as run

PAPER = Paper(
    name="orderdp",
    title="OrderDP: dynamic data pruning that is unbiased for an order-statistic surrogate",
    cli="orderdp.app:OrderDPCLI",
    study="orderdp.comparison:study",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return run(PAPER, argv)
