"""The command `nat`."""

from __future__ import annotations

from collections.abc import Sequence

from shared.cli import Paper
from shared.cli import main as run

PAPER = Paper("nat", "Nasty Adversarial Training: robustness from sparse output distributions", "nat.app:NATCLI")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return run(PAPER, argv)
