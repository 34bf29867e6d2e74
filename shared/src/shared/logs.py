"""Where a run's messages and numbers go: the console, `metrics.csv`, and Weights & Biases on request."""

from __future__ import annotations

import csv
import io
import logging
import math
import netrc
import os
import socket
import sys
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlparse

from lightning.pytorch.callbacks import Callback, RichProgressBar
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only
from rich.console import Console
from rich.logging import RichHandler
from rich.table import Table

from shared.checkpoints import atomic_write

LoggerName = Literal["csv", "wandb"]

# True for the settings of this collection, and of no help to whoever reads the console.
EXPECTED_WARNINGS = (
    ".*does not have many workers.*",
    ".*The number of training batches.*is smaller than the logging interval.*",
    ".*Checkpoint directory .* exists and is not empty.*",
    ".*Found .* module\\(s\\) in eval mode at the start of training.*",
    ".*LeafSpec.*is deprecated.*",
    ".*LightningCLI's args parameter is intended.*",
    ".*`isinstance\\(treespec, LeafSpec\\)`.*",
)

SECONDS_BETWEEN_WRITES = 10.0

console = Console(stderr=True)


def setup_console(level: int = logging.INFO) -> None:
    """Send log records to the console through rich, each line once, and silence Lightning's small talk.

    Changes global state: the handlers of the root logger, the level of Lightning's loggers and the
    warning filters named in `EXPECTED_WARNINGS`.

    Args:
        level: the lowest level shown for this collection's own records.
    """
    if console.is_terminal:
        handler: logging.Handler = RichHandler(console=console, show_path=False)
    else:  # rich would break the lines of a log file at 80 columns
        handler = logging.StreamHandler()
    style = "%(message)s" if console.is_terminal else "%(asctime)s %(message)s"
    logging.basicConfig(level=level, format=style, datefmt="%H:%M:%S", handlers=[handler], force=True)
    for name in (
        "lightning",
        "lightning.pytorch",
        "lightning.fabric",
        "torch",
        "matplotlib",
        "fsspec",
        "PIL",
    ):
        logging.getLogger(name).setLevel(logging.WARNING)
    for message in EXPECTED_WARNINGS:
        warnings.filterwarnings("ignore", message=message)


class CSVMetrics(Logger):
    """Metrics as one CSV table, a row for each step that logged something, readable while the run goes on.

    Unlike Lightning's own CSV logger it goes on with the file of the run that it resumes: rows that the
    interrupted run wrote after the checkpoint are dropped.

    Args:
        folder: the run folder; the file is `metrics.csv`.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.path = folder / "metrics.csv"
        self._rows: dict[int, dict[str, str]] = {}
        self._columns = ["step"]
        self._continued = False
        self._written = 0.0  # time.monotonic() of the last write

    @property
    def name(self) -> str:
        """The logger's name."""
        return "csv"

    @property
    def version(self) -> str:
        """Nothing: Lightning would show it in the progress bar, where the run's name is no help."""
        return ""

    @property
    def save_dir(self) -> str:
        """The run folder."""
        return str(self.path.parent)

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the resolved settings are in the run's `config.yaml`."""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Add values to the row of a step."""
        step = step or 0
        if not self._continued:
            self._continued = True
            self._read(before=step)
        row = self._rows.setdefault(step, {"step": str(step)})
        row.update({name: f"{float(value):.6g}" for name, value in metrics.items()})
        self._columns += [name for name in row if name not in self._columns]

    def save(self) -> None:
        """Write the file if the last write is a while ago; Lightning calls this after every logged step."""
        if time.monotonic() - self._written > SECONDS_BETWEEN_WRITES:
            self.write()

    def after_save_checkpoint(self, checkpoint_callback: Any) -> None:
        """Write the file, so that a run resumed from the checkpoint finds all rows before it."""
        self.write()
        self._written = 0.0  # an epoch's training means are logged right after its checkpoint: write them too

    @rank_zero_only
    def write(self) -> None:
        """Write the file now."""
        if not self._rows:
            return
        self._written = time.monotonic()
        text = io.StringIO()
        writer = csv.DictWriter(text, self._columns)
        writer.writeheader()
        writer.writerows(self._rows[step] for step in sorted(self._rows))
        with atomic_write(self.path) as file:
            file.write(text.getvalue().encode())

    def finalize(self, status: str) -> None:
        """Write what is left."""
        self.write()

    def _read(self, before: int) -> None:
        if not self.path.is_file():
            return
        try:
            with self.path.open(newline="", encoding="utf-8") as file:
                reader = csv.DictReader(file)
                rows = [{name: value for name, value in row.items() if value} for row in reader]
            self._rows = {int(row["step"]): row for row in rows if int(row["step"]) < before}
        except (csv.Error, ValueError, KeyError) as error:
            raise ValueError(f"{self.path} is damaged: move it away to go on without it ({error})") from error
        self._columns = list(reader.fieldnames or ["step"])


class EpochLine(Callback):
    """One line of metrics after each epoch, for consoles that are no terminal (a job's log file).

    Lightning calls a callback before the module at the end of an epoch, so the line is printed when the next
    epoch starts, or training ends.
    """

    def __init__(self) -> None:
        self.ended: int | None = None

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Remember that a line is due."""
        self.ended = trainer.current_epoch

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Print the line of the epoch before."""
        self.print_line(trainer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Print the last line."""
        self.print_line(trainer)

    def print_line(self, trainer: Any) -> None:
        """Print the ended epoch's metrics, once, on rank zero."""
        if self.ended is None or not trainer.is_global_zero:
            return
        values = {name: float(value) for name, value in trainer.callback_metrics.items() if "/" in name}
        text = "  ".join(f"{name} {value:.4g}" for name, value in sorted(values.items()))
        logging.getLogger(__name__).info("epoch %d/%s  %s", self.ended + 1, epochs_of(trainer) or "?", text)
        self.ended = None


def epochs_of(trainer: Any) -> int | None:
    """Return how many epochs a training has, by its limits on epochs and steps; None if they do not say."""
    limits = [trainer.max_epochs] if trainer.max_epochs and trainer.max_epochs > 0 else []
    if trainer.max_steps > 0 and 0 < trainer.num_training_batches < math.inf:
        batches = trainer.num_training_batches / trainer.accumulate_grad_batches
        limits.append(math.ceil(trainer.max_steps / math.ceil(batches)))
    return min(limits, default=None)


def progress_callback() -> Callback:
    """Return a progress bar for a terminal, or a line for each epoch elsewhere."""
    return RichProgressBar(leave=False) if sys.stderr.isatty() and sys.stdout.isatty() else EpochLine()


def make_loggers(folder: Path, project: str, kind: LoggerName = "csv") -> list[Logger]:
    """Make a run's metric loggers.

    Args:
        folder: the run folder.
        project: the paper's name, Weights & Biases' project.
        kind: `csv`, or `wandb` for both. Without a key or without a way to the server Weights & Biases
            writes offline into the run folder (`wandb sync` uploads it later); it never asks or waits.

    Returns:
        Lightning loggers, the CSV one first.
    """
    loggers: list[Logger] = [CSVMetrics(folder)]
    if kind == "wandb":
        from lightning.pytorch.loggers import WandbLogger

        mode = "online" if wandb_reachable() else "offline"
        os.environ.setdefault("WANDB_SILENT", "true")
        loggers.append(WandbLogger(project=project, name=folder.name, save_dir=str(folder), mode=mode))
    return loggers


def wandb_reachable(timeout: float = 2.0) -> bool:
    """Say whether Weights & Biases can be used online: not switched off, a key is known, and the server answers.

    Args:
        timeout: seconds to wait for the server.
    """
    if os.environ.get("WANDB_MODE", "online") not in ("online", "shared"):
        return False
    url = urlparse(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai"))
    host = url.hostname or ""
    if not (os.environ.get("WANDB_API_KEY") or _in_netrc(host)):
        return False
    port = url.port or (443 if url.scheme == "https" else 80)
    try:
        with socket.create_connection((host, port), timeout=timeout):
            return True
    except OSError:
        return False


def _in_netrc(host: str) -> bool:
    """Say whether the user's netrc file, where `wandb login` puts the key, has an entry for a host."""
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def training_figure(metrics: Path, path: Path) -> None:
    """Draw a run's metrics over its steps, a panel for each kind of metric, training and validation together.

    Args:
        metrics: the run's `metrics.csv`; nothing is drawn without it, or before training has logged anything.
        path: the PNG.
    """
    from matplotlib.figure import Figure

    if not metrics.is_file():
        return
    with metrics.open(newline="") as file:
        rows = list(csv.DictReader(file))
    panels: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for row in rows:
        for name, value in row.items():
            stage, _, kind = name.partition("/")
            if stage in ("train", "val") and value:
                panels.setdefault(kind, {}).setdefault(stage, []).append((int(row["step"]), float(value)))
    if not panels:
        return
    columns = min(3, len(panels))
    lines = -(-len(panels) // columns)
    figure = Figure(figsize=(3.4 * columns, 2.6 * lines), layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False).flatten()
    for axis, (kind, stages) in zip(axes, sorted(panels.items()), strict=False):
        for stage, colour in (("train", "#767676"), ("val", "#0072B2")):
            if stage in stages:
                axis.plot(*zip(*stages[stage], strict=True), color=colour, label=stage, linewidth=1.5)
        axis.set_title(kind, fontsize=10)
        axis.set_xlabel("step", fontsize=9)
        axis.grid(alpha=0.3)
        axis.legend(frameon=False, fontsize=8)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120, metadata={"Software": None})


def metrics_table(metrics: Mapping[str, float], title: str) -> Table:
    """Lay out metrics for the console, one a row.

    Args:
        metrics: name -> value.
        title: above the table.
    """
    table = Table(title=title, title_justify="left")
    table.add_column("metric")
    table.add_column("value", justify="right")
    for name, value in metrics.items():
        table.add_row(name, f"{value:.0f}" if float(value).is_integer() and abs(value) > 1 else f"{value:.4f}")
    return table
