"""Running cells one after another, or several at a time in processes of their own."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool

from shared.paper import TRACEBACK_VARIABLE
from shared.records import Cell, one_line

THREADS_VARIABLE = "OMP_NUM_THREADS"

Runner = Callable[[str, str, int, list[str]], Mapping[str, float]]
# What a cell comes to: metrics, seconds and device, or one line about what went wrong.
Outcome = tuple[dict[str, float], float, str] | str
Task = tuple[Cell, list[str]]  # with the cell's command-line arguments


def outcomes(run: Runner, tasks: Sequence[Task], jobs: int) -> Generator[tuple[Cell, Outcome]]:
    """Run cells, and yield each with what it came to as it ends.

    Args:
        run: runs one cell.
        tasks: the cells and their arguments.
        jobs: how many run at a time; more than one means a process for each, the cores shared out.
    """
    if jobs > 1 and tasks:
        yield from _in_processes(run, tasks, min(jobs, len(tasks)))
    else:
        for cell, arguments in tasks:
            yield cell, _attempt(run, cell, arguments)


def _attempt(run: Runner, cell: Cell, arguments: list[str]) -> Outcome:
    start = time.perf_counter()
    try:
        metrics = run(cell.method, cell.setting, cell.seed, arguments)
        return {name: float(value) for name, value in metrics.items()}, time.perf_counter() - start, _device()
    except (Exception, SystemExit) as error:
        if os.environ.get(TRACEBACK_VARIABLE):
            traceback.print_exc()
        return one_line(error)


def _device() -> str:
    torch = sys.modules.get("torch")  # what never loaded torch ran on the CPU
    if torch is not None and torch.cuda.is_available():
        return str(torch.cuda.get_device_name())
    if torch is not None and torch.backends.mps.is_available():
        return "mps"
    return "cpu"


def _in_processes(run: Runner, tasks: Sequence[Task], jobs: int) -> Generator[tuple[Cell, Outcome]]:
    """Run cells in `jobs` pools of one process each: a process that dies takes no other cell with it."""
    threads = max(1, (os.cpu_count() or 1) // jobs)
    before = os.environ.get(THREADS_VARIABLE)
    os.environ[THREADS_VARIABLE] = str(threads)  # read by the libraries that a new process loads

    def new_pool() -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(1, mp_context=context, initializer=_start_worker, initargs=(threads,))

    waiting, idle = deque(tasks), [new_pool() for _ in range(jobs)]
    running: dict[Future[Outcome], tuple[Cell, ProcessPoolExecutor]] = {}
    try:
        while waiting or running:
            while waiting and idle:
                (cell, arguments), pool = waiting.popleft(), idle.pop()
                running[pool.submit(_attempt, run, cell, arguments)] = cell, pool
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                cell, pool = running.pop(future)
                error = future.exception()
                if isinstance(error, BrokenProcessPool):
                    pool.shutdown()
                    pool, error = new_pool(), RuntimeError("the process died (killed, or out of memory)")
                idle.append(pool)
                yield cell, future.result() if error is None else one_line(error)
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
