"""Trajectories made on the spot: the processes that run `atom.xtb`, and their files.

One molecule in vacuum at constant energy, with forces from the tight-binding method GFN2-xTB (spec Sec. 7). Each
molecule is made by a process of its own that never imports torch, because the OpenMP runtimes of tblite and torch
clash; this module only starts these processes and may be used beside torch.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from atom.recipe import DEFAULT_MOLECULES, Recipe, cache_folder
from atom.structures import file_name

__all__ = ["DEFAULT_MOLECULES", "Recipe", "cache_folder", "drift", "file_name", "is_finished", "make"]

ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")  # ten atoms: more only slow it

log = logging.getLogger(__name__)


def is_finished(path: Path, recipe: Recipe) -> bool:
    """Say whether a trajectory of this recipe is there and whole; a damaged file counts as none, with a warning.

    Raises:
        ValueError: if the file is of another recipe, or was not made here.
    """
    if not path.is_file():
        return False
    try:
        with np.load(path) as data:
            arrays = {key: data[key] for key in data.files}  # reads everything, and so checks the checksums
    except (zipfile.BadZipFile, ValueError, EOFError, OSError) as error:
        log.warning("%s is damaged and is made again (%s)", path, error)
        return False
    if "settings" not in arrays:
        raise ValueError(f"{path} was not made here: move it away or give another folder")
    made, wanted = json.loads(str(arrays["settings"])), asdict(recipe)
    other = [f"{key} = {made.get(key)}, not {value}" for key, value in wanted.items() if made.get(key) != value]
    if other:
        raise ValueError(f"{path} was made with {'; '.join(other)}: move it away or give another folder")
    return True


def drift(path: str | Path) -> float:
    """Return the energy drift of a trajectory made here: the slope of its total energy, eV per atom and ps."""
    with np.load(path) as data:
        return float(data["drift"])


def make(
    molecules: Sequence[str],
    folder: str | Path,
    recipe: Recipe | None = None,
    workers: int | None = None,
    progress: bool = True,
) -> list[Path]:
    """Make the trajectories that are missing; interrupted ones go on from their last saved state.

    Ctrl-C ends the workers and leaves states to go on from. A second call for the same folder waits for molecules
    that the first is at.

    Args:
        molecules: names that `ase.build.molecule` knows, SMILES, or structure files.
        folder: where the files go; made if it is missing.
        recipe: the settings; None for the defaults.
        workers: processes at a time; by default one for each core, and no more than molecules.
        progress: show a bar for each molecule if the console is a terminal.

    Returns:
        The files, in the order of `molecules`.

    Raises:
        ValueError: if a molecule is unknown, a file there is of another recipe, or molecules failed (once all others
            are made).
        FileNotFoundError: if a structure file is not there.
    """
    recipe = recipe or Recipe()
    if workers is not None and workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    paths = [Path(folder) / file_name(molecule) for molecule in molecules]
    todo = {path: molecule for path, molecule in zip(paths, molecules, strict=True) if not is_finished(path, recipe)}
    if todo:
        Path(folder).mkdir(parents=True, exist_ok=True)
        failures = _run(todo, recipe, min(workers or os.cpu_count() or 1, len(todo)), progress)
        if failures:
            reasons = "; ".join(why if name in why else f"{name}: {why}" for name, why in failures.items())
            raise ValueError(f"{len(failures)} of {len(paths)} trajectories failed: {reasons}")
    return paths


def _run(todo: dict[Path, str], recipe: Recipe, workers: int, progress: bool) -> dict[str, str]:
    """Run a worker for each molecule; return what failed, molecule -> reason."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    stop = threading.Event()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"))
    if progress:
        from shared.logs import console  # the one that log records go to, or they would break the bars
    else:
        console = Console(stderr=True)
    shown = progress and console.is_terminal
    with (
        Progress(*columns, TimeRemainingColumn(), console=console, disable=not shown) as bars,
        ThreadPoolExecutor(workers) as pool,
    ):

        def one(path: Path, molecule: str) -> str | None:
            total = recipe.discarded + recipe.frames
            bar = bars.add_task(path.stem.removeprefix("md_"), total=total, rate="", start=False)
            began: list[float] = []

            def advance(frame: int) -> None:
                if not began:  # the first report comes from the state it goes on from
                    bars.start_task(bar)
                    began.extend((time.monotonic(), frame))
                rate = (frame - began[1]) / max(time.monotonic() - began[0], 1e-9)
                bars.update(bar, completed=frame, rate=f"{rate:.0f} frames/s")

            try:
                return _work(path, molecule, recipe, stop, advance)
            except (ValueError, OSError) as error:  # as with a worker's own errors, the others go on
                return str(error)

        futures = {pool.submit(one, path, molecule): molecule for path, molecule in todo.items()}
        try:
            wait(futures)
            return {molecule: reason for future, molecule in futures.items() if (reason := future.result())}
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)


def _work(
    path: Path, molecule: str, recipe: Recipe, stop: threading.Event, advance: Callable[[int], None]
) -> str | None:
    """Make one trajectory in a process of its own, unless another process does meanwhile; return why it failed."""
    from filelock import FileLock, Timeout

    lock = FileLock(path.with_name(f".{path.name}.lock"))  # freed by the system when its process dies
    while not stop.is_set():
        try:
            with lock.acquire(timeout=0.2):
                try:
                    return None if is_finished(path, recipe) else _worker(path, molecule, recipe, stop, advance)
                finally:
                    with suppress(OSError):  # Windows does not remove an open file
                        Path(lock.lock_file).unlink()
        except Timeout:
            continue
    return "interrupted"


def _worker(
    path: Path, molecule: str, recipe: Recipe, stop: threading.Event, advance: Callable[[int], None]
) -> str | None:
    command = [sys.executable, "-m", "atom.xtb", molecule, str(path), json.dumps(asdict(recipe))]
    process = subprocess.Popen(
        command,
        env=os.environ | dict.fromkeys(ONE_THREAD, "1"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
    )
    assert process.stdout is not None  # it is a pipe
    reason, last = None, ""
    ended = threading.Event()

    def end_early() -> None:
        while not ended.wait(0.1):
            if stop.is_set():
                process.terminate()
                return

    watch = threading.Thread(target=end_early, daemon=True)
    watch.start()
    try:
        for line in process.stdout:
            report = _report(line)
            if report is None:
                last = line.strip() or last
            elif "frame" in report:
                advance(int(report["frame"]))
            elif "error" in report:
                reason = str(report["error"])
            else:
                level = logging.WARNING if "warning" in report else logging.INFO
                log.log(level, "%s: %s", path.stem.removeprefix("md_"), report.get("warning") or report.get("info"))
        code = process.wait()
    finally:
        ended.set()
        watch.join()
        process.terminate()  # does nothing to one that has ended
    if code == 0:
        return None
    return reason or f"its process ended with status {code}" + (f" ({last})" if last else "")


def _report(line: str) -> dict[str, Any] | None:
    """Read a worker's line; None for what is none of its reports, such as a library's own words."""
    try:
        report = json.loads(line)
    except ValueError:
        return None
    return report if isinstance(report, dict) else None
