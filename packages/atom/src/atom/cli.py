"""The command `atom`. What it needs is imported when it runs, so that every `--help` answers at once."""

from __future__ import annotations

from collections.abc import Sequence

from shared.cli import Paper
from shared.cli import main as run

PAPER = Paper(
    name="atom",
    title="ATOM: a molecule's future in one forward pass",
    cli="atom.app:AtomCLI",
    study="atom.comparison:study",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return run(PAPER, argv)
