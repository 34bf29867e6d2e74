"""The command `megs2`. What it needs is imported when it runs, so that every `--help` answers at once."""

from __future__ import annotations

from collections.abc import Sequence

from shared.cli import Paper
from shared.cli import main as run

PAPER = Paper(name="megs2", title="TODO what the paper does", cli="megs2.app:Megs2CLI", study="megs2.comparison:study")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return run(PAPER, argv)
