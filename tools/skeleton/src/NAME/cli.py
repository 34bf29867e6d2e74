"""The command `NAME`: its verbs and what they take.

What a verb needs is imported when it runs, so that every `--help` answers at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from shared.cli import Paper
from shared.cli import main as run


def compare(
    methods: list[str] | None = None,
    seeds: int | list[int] | None = None,
    jobs: int = 1,
    out: Path | None = None,
    dry_run: bool = False,
) -> int:
    """Run the method and its baselines over seeds; finished cells are kept.

    Args:
        methods: only these.
        seeds: how many, or which; 6 when null.
        jobs: how many cells at a time.
        out: folder for the results; the package's own when null.
        dry_run: only print what would be run.
    """
    from shared.results import compare

    from NAME.comparison import study

    return compare(study(results_folder()), methods=methods, seeds=seeds, jobs=jobs, out=out, dry_run=dry_run)


def results_folder() -> Path:
    """Return the package's `results` in a checkout, or a folder of that name here if it is installed elsewhere."""
    spec = find_spec("NAME")
    assert spec is not None and spec.origin is not None
    package = Path(spec.origin).parents[2]
    return package / "results" if (package / "pyproject.toml").is_file() else Path("results")


PAPER = Paper(name="NAME", title="TODO what the paper does", cli="NAME.app:NameCLI", verbs={"compare": compare})


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return run(PAPER, argv)
