"""Run folders: making one, finding one, and keeping other processes out of it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from shared.checkpoints import newest

LOCK = ".lock"  # held while a process writes to the folder; the system frees it when the process ends

log = logging.getLogger(__name__)


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Keep other runs out of a folder inside the `with` block.

    Raises:
        ValueError: if another process is writing there.
    """
    lock = FileLock(folder / LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise ValueError(f"{folder}: another process is writing to this run") from error
    try:
        yield
    finally:
        with suppress(OSError):  # the folder may be gone, and Windows does not remove an open file
            (folder / LOCK).unlink()
        lock.release()


def new_run_folder(paper: str, seed: int, given: str | Path | None = None) -> Path:
    """Make a folder that no other run has: `given`, or `runs/PAPER/DATE-TIME-SEED` with a counter if taken.

    Raises:
        FileExistsError: if `given` exists and is not empty.
        OSError: if the folder cannot be made.
    """
    if given is not None:
        folder = Path(given)
        folder.mkdir(parents=True, exist_ok=True)
        if any(file.name != LOCK for file in folder.iterdir()):
            raise FileExistsError(f"the run folder {folder} is not empty; resume it with --resume {folder}")
        return folder
    first = dated(paper, seed)
    first.parent.mkdir(parents=True, exist_ok=True)
    counter = 1
    while True:
        folder = first if counter == 1 else first.with_name(f"{first.name}.{counter}")
        try:
            folder.mkdir()
        except FileExistsError:
            counter += 1
        else:
            return folder


def dated(paper: str, seed: int) -> Path:
    """Return `runs/PAPER/DATE-TIME-SEED` of this second."""
    return Path("runs", paper, f"{datetime.now():%Y%m%d-%H%M%S}-{seed}")


def find_run(paper: str, run: str | Path) -> Path:
    """Find a run folder.

    Args:
        paper: the package's name.
        run: a folder, or `last` for the newest under `runs/PAPER`.

    Raises:
        FileNotFoundError: if it is no run folder.
    """
    if str(run) == "last":
        runs = sorted(file.parent for file in Path("runs", paper).glob("*/config.yaml"))
        if not runs:
            raise FileNotFoundError(f"there is no run under {Path('runs', paper)}")
        return runs[-1]
    run_config(Path(run))
    return Path(run)


def run_config(run: Path) -> Path:
    """Return the settings file of a run folder; FileNotFoundError if it has none."""
    file = run / "config.yaml"
    if not file.is_file():
        raise FileNotFoundError(f"{run} is no run folder: it has no config.yaml")
    return file


def checkpoint_of(run: Path, paper: str, select: str = "last") -> Path:
    """Choose a checkpoint of a run: `last` (the newest readable), `best`, or a file of the user's.

    Raises:
        FileNotFoundError: if it is not there.
    """
    if select == "last":
        return newest(run / "checkpoints", package=paper, warn=log.warning)
    return run / "checkpoints" / "best.ckpt" if select == "best" else Path(select)
