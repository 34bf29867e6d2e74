"""The comparison behind the README: methods, settings and seeds."""

from __future__ import annotations

from pathlib import Path

from shared.results import Study

from megs2.app import Megs2CLI
from megs2.report import REPORT


def study(folder: Path) -> Study:
    """Describe the comparison.

    Args:
        folder: the package's `results`.
    """
    return Study(
        package="megs2",
        folder=folder,
        methods={"smoothed": ["--model.method=smoothed"], "plain": ["--model.method=plain"]},
        settings={"digits": ["--config=default"]},
        seeds=range(6),
        run=run_cell,
        hash_of=Megs2CLI.hash_of,
        report=REPORT,
    )


def run_cell(method: str, setting: str, seed: int, arguments: list[str]) -> dict[str, float]:
    """Train and test one cell in this process."""
    return Megs2CLI.run_cell(arguments, seed)
