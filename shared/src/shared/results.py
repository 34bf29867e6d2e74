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

import json
import math
import multiprocessing
import os
import platform
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from shared.claims import load_claims
from shared.cli import TRACEBACK_VARIABLE
from shared.tables import Metric, Report, console_tables, figure, markdown

__all__ = ["Cell", "Metric", "Plan", "Record", "Report", "Results", "Study", "compare", "plan"]

DIGITS = 6  # significant, of every number kept
THREADS_VARIABLE = "OMP_NUM_THREADS"

Runner = Callable[[str, str, int, list[str]], Mapping[str, float]]
# What a cell comes to: metrics, seconds and device, or one line about what went wrong.
Outcome = tuple[dict[str, float], float, str] | str


@dataclass(frozen=True)
class Record:
    """One finished cell. Numbers are kept to six significant digits, in memory as in the file.

    Attributes:
        method: name of the method.
        seed: the run's seed.
        setting: name of the setting.
        metrics: metric -> value.
        seconds: wall-clock time of training and testing.
        config_hash: hash of the settings without the seed.
        versions: of python, torch and the package.
        device: what the cell ran on.

    Raises:
        ValueError: if a number is not finite; the message names the cell.
    """

    method: str
    seed: int
    setting: str
    metrics: Mapping[str, float]
    seconds: float
    config_hash: str
    versions: Mapping[str, str]
    device: str

    def __post_init__(self) -> None:
        for name, value in {**self.metrics, "seconds": self.seconds}.items():
            if not math.isfinite(value):
                cell = f"{self.method} in {self.setting}, seed {self.seed}"
                raise ValueError(f"{cell}: {name} is {value}, expected a finite number")
        object.__setattr__(self, "metrics", {k: _rounded(v) for k, v in self.metrics.items()})
        object.__setattr__(self, "seconds", _rounded(self.seconds))


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


@dataclass
class Results:
    """The records of a package, in the order setting, method, seed.

    Attributes:
        package: the package's name.
        version: the package's version when it last measured.
        records: one per cell.
    """

    package: str
    version: str
    records: list[Record] = field(default_factory=list)

    @classmethod
    def load(cls, path: Path) -> Results:
        """Read `results.json`.

        Raises:
            FileNotFoundError: if there is no such file.
            ValueError: if it is something else, or damaged; the message names it.
        """
        if not path.is_file():
            raise FileNotFoundError(f"{path}: no such file; `compare` writes it")
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            results = cls(str(content["package"]), str(content["version"]))
            for entry in content["records"]:
                _check_types(entry)
                record = Record(**entry)
                if results.find(record.method, record.setting, record.seed):
                    raise ValueError(
                        f"{record.method} in {record.setting}, seed {record.seed} is there twice"
                    )
                results.add(record)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(
                f"{path}: not a results file that `compare` wrote ({_one_line(error)})"
            ) from error
        return results

    def save(self, path: Path) -> None:
        """Write `results.json` in one step: a reader finds the old file or the new one."""
        text = json.dumps(asdict(self), indent=2, sort_keys=True, allow_nan=False, ensure_ascii=False)
        _write(path, f"{text}\n")

    def add(self, record: Record) -> None:
        """Add a record, in place of an earlier one of the same cell."""
        key = (record.setting, record.method, record.seed)
        others = [r for r in self.records if (r.setting, r.method, r.seed) != key]
        self.records = sorted([*others, record], key=lambda r: (r.setting, r.method, r.seed))

    def find(self, method: str, setting: str, seed: int) -> Record | None:
        """Return the record of a cell, if there is one."""
        return next(
            (r for r in self.records if (r.method, r.setting, r.seed) == (method, setting, seed)), None
        )

    def values(self, method: str, setting: str, metric: str) -> dict[int, float]:
        """Return seed -> value of a metric, over the records that have it."""
        return {
            r.seed: r.metrics[metric]
            for r in self.records
            if (r.method, r.setting) == (method, setting) and metric in r.metrics
        }


def _write(path: Path, text: str) -> None:
    from shared.checkpoints import atomic_write  # brings torch with it, which reading does without

    with atomic_write(path) as file:
        file.write(text.encode())


def _check_types(entry: dict[str, Any]) -> None:
    kinds: dict[str, Any] = {"seed": int, "metrics": dict, "seconds": (int, float), "versions": dict}
    for item in fields(Record):
        if not isinstance(entry[item.name], kinds.get(item.name, str)):
            raise TypeError(f"a record's {item.name} is {entry[item.name]!r}")


@dataclass(frozen=True)
class Cell:
    """One run of a comparison: a method in a setting with a seed, and the hash of its settings."""

    method: str
    setting: str
    seed: int
    config_hash: str

    def __str__(self) -> str:
        return f"{self.method} in {self.setting}, seed {self.seed}"


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

    Writes `results.json` after each cell, and `results.md` and `results.png` at the end. A cell that
    fails leaves no record and does not keep the others from running.

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
            _write(folder / "results.md", text)
            figure(results, study.report, folder / "results.png")
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
    results = Results.load(path) if path.exists() else Results(study.package, _version(study.package))
    if results.package != study.package:
        raise ValueError(f"{path}: holds results of {results.package!r}, expected those of {study.package!r}")
    return results


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep a second comparison out of a folder; the system frees the lock when the process ends."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".compare.lock", timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise ValueError(
            f"{folder}: another comparison is writing there; wait for it, or use --out"
        ) from error
    try:
        yield
    finally:
        with suppress(OSError):  # Windows does not remove an open file
            Path(lock.lock_file).unlink()  # before the release: nobody else holds it yet
        lock.release()


def run_cells(study: Study, planned: Plan, results: Results, jobs: int, path: Path) -> dict[Cell, str]:
    """Run what is not done, save each record as it comes, and return what went wrong."""
    cells, failures = planned.todo, {}
    versions = {name: _version(name) for name in ("torch", study.package)}
    versions["python"] = platform.python_version()
    progress = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"), console=Console(stderr=True),
    )  # fmt: skip

    def say(line: str) -> None:
        progress.console.print(line, markup=False, highlight=False, soft_wrap=True)

    with progress, closing(_outcomes(study, cells, jobs)) as outcomes:
        say(f"{study.package}: {planned}")
        bar = progress.add_task("compare", total=len(cells), left=_time_left(results, len(cells), jobs))
        for count, (cell, outcome) in enumerate(outcomes, start=1):
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


def _attempt(run: Runner, cell: Cell, arguments: list[str]) -> Outcome:
    start = time.perf_counter()
    try:
        metrics = run(cell.method, cell.setting, cell.seed, arguments)
        return {name: float(value) for name, value in metrics.items()}, time.perf_counter() - start, _device()
    except (Exception, SystemExit) as error:
        if os.environ.get(TRACEBACK_VARIABLE):
            traceback.print_exc()
        return _one_line(error)


def _device() -> str:
    torch = sys.modules.get("torch")  # what never loaded torch ran on the CPU
    if torch is not None and torch.cuda.is_available():
        return str(torch.cuda.get_device_name())
    if torch is not None and torch.backends.mps.is_available():
        return "mps"
    return "cpu"


def _outcomes(study: Study, cells: Sequence[Cell], jobs: int) -> Generator[tuple[Cell, Outcome]]:
    if jobs > 1 and cells:
        yield from _in_processes(study, cells, min(jobs, len(cells)))
    else:
        for cell in cells:
            yield cell, _attempt(study.run, cell, study.arguments(cell.method, cell.setting))


def _in_processes(study: Study, cells: Sequence[Cell], jobs: int) -> Generator[tuple[Cell, Outcome]]:
    """Run cells in `jobs` pools of one process each: a process that dies takes no other cell with it."""
    threads = max(1, (os.cpu_count() or 1) // jobs)
    before = os.environ.get(THREADS_VARIABLE)
    os.environ[THREADS_VARIABLE] = str(threads)  # read by the libraries that a new process loads

    def new_pool() -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(1, mp_context=context, initializer=_start_worker, initargs=(threads,))

    waiting, idle = deque(cells), [new_pool() for _ in range(jobs)]
    running: dict[Future[Outcome], tuple[Cell, ProcessPoolExecutor]] = {}
    try:
        while waiting or running:
            while waiting and idle:
                cell, pool = waiting.popleft(), idle.pop()
                arguments = study.arguments(cell.method, cell.setting)
                running[pool.submit(_attempt, study.run, cell, arguments)] = cell, pool
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                cell, pool = running.pop(future)
                error = future.exception()
                if isinstance(error, BrokenProcessPool):
                    pool.shutdown()
                    pool, error = new_pool(), RuntimeError("the process died (killed, or out of memory)")
                idle.append(pool)
                yield cell, future.result() if error is None else _one_line(error)
    finally:
        if before is None:
            del os.environ[THREADS_VARIABLE]
        else:
            os.environ[THREADS_VARIABLE] = before
        for pool in [*idle, *(pool for _, pool in running.values())]:
            # An interrupted comparison does not wait for the cells in flight; Python 3.14 has kill_workers.
            workers = list((pool._processes or {}).values())
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in workers:
                worker.kill()


def _start_worker(threads: int) -> None:
    """Share the cores between the workers; leave interrupts to the parent, and end when it ends."""
    import torch

    torch.set_num_threads(threads)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if text and isinstance(error, ValueError) else f"{type(error).__name__}: {text}".rstrip(": ")
