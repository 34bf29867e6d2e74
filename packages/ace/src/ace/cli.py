"""The command `ace`. What it needs is imported when it runs, so that every `--help` answers at once."""

from __future__ import annotations

from collections.abc import Sequence

from shared.cli import Paper
from shared.cli import main as run

PAPER = Paper(
    name="ace",
    title="ACE: language models that improve through an evolving playbook",
    cli="ace.app:AceCLI",
    study="ace.comparison:study",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return run(PAPER, argv)
