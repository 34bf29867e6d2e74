"""Comparisons: methods over settings and seeds, every finished run kept in one JSON file.

A package declares its comparison once, and wraps `compare` as a verb of its command:

    STUDY = Study(
        package="my_paper",
        folder=Path("packages/my_paper/results"),  # holds claims.yaml, receives results.json
        methods={"ours": ["--model.omega=0.06"], "plain": ["--model.omega=0"]},
        settings={"digits": ["--config=default"]},
        seeds=range(6),
        run=run_cell,  # (method, setting, seed, arguments) -> metrics; trains and tests in this process
        hash_of=MyCLI.hash_of,  # arguments -> hash of what they resolve to, without running
        report=Report("ours", baselines=["plain"], metrics=[Metric("accuracy", "accuracy", percent=True)]),
    )

A cell is one method in one setting with one seed. What is measured is saved at once, so a comparison may
be stopped at any time; the next call goes on with the cells that are missing or whose settings changed.
"""

from __future__ import annotations

import math
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from shared.claims import load_claims
from shared.records import Cell, Record, Results, package_version, write_text
from shared.tables import Metric, Report, console_tables, figure, markdown
from shared.workers import Runner, outcomes

if TYPE_CHECKING:
    from shared.tuning import Tuning

__all__ = ["Cell", "Metric", "Plan", "Record", "Report", "Results", "Study", "compare", "plan"]


@dataclass(frozen=True)
class Study:
    """What a package compares.

    Attributes:
        package: the package's name.
        folder: where `claims.yaml` is, and where results go unless told otherwise.
        methods: method -> command-line arguments that select it.
        settings: setting -> command-line arguments; the method's come after them.
        seeds: the seeds of the published comparison.
        run: runs one cell in this process and returns its test metrics; a module-level function, so that
            another process can be told to call it.
        hash_of: returns the hash of the settings that arguments lead to, the seed left out.
        report: what the tables show.
        only: setting -> its methods, for settings that do not have all.
        tunings: what `shared.tuning.tune` tries.
        tuned: (method, setting) -> further arguments, such as what tuning chose.
    """

    package: str
    folder: Path
    methods: Mapping[str, Sequence[str]]
    settings: Mapping[str, Sequence[str]]
    seeds: Sequence[int]
    run: Runner
    hash_of: Callable[[list[str]], str]
    report: Report
    only: Mapping[str, Sequence[str]] = field(default_factory=dict)
    tunings: Sequence[Tuning] = ()
    tuned: Mapping[tuple[str, str], Sequence[str]] = field(default_factory=dict)

    def arguments(self, method: str, setting: str) -> list[str]:
        """Return the arguments of a cell, without its seed."""
        chosen = self.tuned.get((method, setting), ())
        return [*self.settings[setting], *self.methods[method], *chosen]

    def cells(self, methods: Sequence[str], settings: Sequence[str], seeds: Sequence[int]) -> list[Cell]:
        """List cells seed by seed, so that a comparison cut short has every method on the same seeds."""
        pairs = [(m, s) for s in settings for m in methods if m in self.only.get(s, self.methods)]
        hashes = {pair: self.hash_of(self.arguments(*pair)) for pair in pairs}
        return [Cell(m, s, seed, hashes[m, s]) for seed in seeds for m, s in pairs]


@dataclass(frozen=True)
class Plan:
    """What a comparison has and what it will run.

    Attributes:
        done: cells with a record of the same settings; they are skipped.
        stale: cells whose record was made with other settings; it is replaced once they are run again.
        todo: the cells to run, in order: the stale ones and those without a record.
    """

    done: list[Cell]
    stale: list[Cell]
    todo: list[Cell]

    def __str__(self) -> str:
        missing = len(self.todo) - len(self.stale)
        total = len(self.done) + len(self.todo)
        return f"{total} cells: {len(self.done)} done, {len(self.stale)} stale, {missing} to do"


def plan(cells: Sequence[Cell], results: Results) -> Plan:
    """Sort cells by what the records have of them.

    Args:
        cells: what is wanted, in the order of running.
        results: what is there.
    """
    found = {cell: results.find(cell.method, cell.setting, cell.seed) for cell in cells}
    done = [cell for cell, record in found.items() if record and record.config_hash == cell.config_hash]
    stale = [cell for cell, record in found.items() if record and record.config_hash != cell.config_hash]
    return Plan(done, stale, [cell for cell in cells if cell not in done])


def compare(
    study: Study,
    *,
    methods: Sequence[str] | None = None,
    settings: Sequence[str] | None = None,
    seeds: int | Sequence[int] | None = None,
    jobs: int = 1,
    out: Path | None = None,
    dry_run: bool = False,
) -> int:
    """Run the cells that are not done yet, then write and print the tables.

    Writes `results.json` after each cell, and at the end `results.md`, `results.png` and the report's own
    drawings. A cell that fails leaves no record and does not keep the others from running.

    Args:
        study: what is compared.
        methods: run only these methods.
        settings: run only these settings.
        seeds: a number n for the seeds 0 to n - 1, or the seeds; the study's own if not given.
        jobs: how many cells run at a time, each in a process of its own if more than one.
        out: folder for the results; the study's if not given.
        dry_run: only print what would be run.

    Returns:
        0, or 1 if a cell failed.

    Raises:
        FileNotFoundError: if the study's folder has no `claims.yaml`.
        ValueError: if a method, setting, seed or number of jobs is not valid, a file of the results or
            claims is not, or another comparison is writing to the same folder.
    """
    if jobs < 1:
        raise ValueError(f"jobs is {jobs}, expected at least 1")
    chosen_methods = _choose("methods", methods, study.methods)
    chosen_settings = _choose("settings", settings, study.settings)
    chosen_seeds = _seeds(study.seeds if seeds is None else seeds)
    claims = load_claims(
        study.folder / "claims.yaml",
        methods=study.methods,
        settings=study.settings,
        metrics=[metric.name for metric in study.report.metrics],
    )
    cells = study.cells(chosen_methods, chosen_settings, chosen_seeds)
    folder = study.folder if out is None else out
    if dry_run:
        planned = plan(cells, load_results(study, folder / "results.json"))
        print(planned, *(f"  {cell}" for cell in planned.todo), sep="\n")
        return 0
    with locked(folder):
        results = load_results(study, folder / "results.json")
        failures = run_cells(study, plan(cells, results), results, jobs, folder / "results.json")
        if results.records:
            text = markdown(results, claims, study.report)
            write_text(folder / "results.md", text)
            figure(results, study.report, folder / "results.png")
            for name, draw in study.report.drawings.items():
                draw(results, folder / name)
            for table in console_tables(results, claims, study.report):
                Console().print(table)
    for cell, error in failures.items():
        print(f"failed: {cell}: {error}", file=sys.stderr)
    return 1 if failures else 0


def _choose(option: str, given: Sequence[str] | None, choices: Mapping[str, Any]) -> list[str]:
    for name in given or ():
        if name not in choices:
            raise ValueError(f"{option}: unknown name {name!r}, expected some of {', '.join(choices)}")
    return list(choices) if given is None else list(dict.fromkeys(given))


def _seeds(given: int | Sequence[int]) -> list[int]:
    seeds = list(range(given)) if isinstance(given, int) else list(dict.fromkeys(given))
    if not seeds or min(seeds) < 0:
        raise ValueError(f"seeds is {given}, expected a positive number of seeds or a list of seeds >= 0")
    return seeds


def load_results(study: Study, path: Path) -> Results:
    results = Results.load(path) if path.exists() else Results(study.package, package_version(study.package))
    if results.package != study.package:
        raise ValueError(f"{path}: holds results of {results.package!r}, expected those of {study.package!r}")
    return results


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep a second comparison out of a folder; the system frees the lock when the process ends."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".compare.lock", timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise ValueError(f"{folder}: another comparison is writing there; wait for it, or use --out") from error
    try:
        yield
    finally:
        with suppress(OSError):  # Windows does not remove an open file
            Path(lock.lock_file).unlink()  # before the release: nobody else holds it yet
        lock.release()


def run_cells(study: Study, planned: Plan, results: Results, jobs: int, path: Path) -> dict[Cell, str]:
    """Run what is not done, save each record as it comes, and return what went wrong."""
    cells, failures = planned.todo, {}
    tasks = [(cell, study.arguments(cell.method, cell.setting)) for cell in cells]
    versions = {name: package_version(name) for name in ("torch", study.package)}
    versions["python"] = platform.python_version()
    progress = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"), console=Console(stderr=True),
    )  # fmt: skip

    def say(line: str) -> None:
        progress.console.print(line, markup=False, highlight=False, soft_wrap=True)

    with progress, closing(outcomes(study.run, tasks, jobs)) as ended:
        say(f"{study.package}: {planned}")
        bar = progress.add_task("compare", total=len(cells), left=_time_left(results, len(cells), jobs))
        for count, (cell, outcome) in enumerate(ended, start=1):
            try:
                if isinstance(outcome, str):
                    raise ValueError(outcome)
                record = _record(study, cell, versions, *outcome)
            except ValueError as error:
                failures[cell] = str(error)
                say(f"{cell}: failed: {error}")
            else:
                results.add(record)
                results.version = versions[study.package]
                results.save(path)
                main = study.report.metrics[0]
                say(f"{cell}: {main.heading} {main.text(record.metrics[main.name])}, {record.seconds:.1f} s")
            progress.update(bar, completed=count, left=_time_left(results, len(cells) - count, jobs))
    return failures


def _record(
    study: Study, cell: Cell, versions: dict[str, str], metrics: dict[str, float], seconds: float, device: str
) -> Record:
    main = study.report.metrics[0].name
    if main not in metrics:
        raise ValueError(f"the run gave no metric {main!r}, only {', '.join(metrics) or 'none'}")
    return Record(cell.method, cell.seed, cell.setting, metrics, seconds, cell.config_hash, versions, device)


def _time_left(results: Results, cells: int, jobs: int) -> str:
    if not results.records or not cells:
        return ""
    mean = sum(record.seconds for record in results.records) / len(results.records)
    return f"about {math.ceil(mean * cells / jobs / 60)} min left"
