"""The comparison behind the README: methods, settings and seeds."""

from __future__ import annotations

from pathlib import Path

from shared.results import Study

from atom.app import AtomCLI
from atom.report import REPORT


def study(folder: Path) -> Study:
    """Describe the comparison.

    Args:
        folder: the package's `results`.
    """
    return Study(
        package="atom",
        folder=folder,
        methods={"smoothed": ["--model.method=smoothed"], "plain": ["--model.method=plain"]},
        settings={"digits": ["--config=default"]},
        seeds=range(6),
        run=run_cell,
        hash_of=AtomCLI.hash_of,
        report=REPORT,
    )


def run_cell(method: str, setting: str, seed: int, arguments: list[str]) -> dict[str, float]:
    """Train and test one cell in this process."""
    return AtomCLI.run_cell(arguments, seed)
