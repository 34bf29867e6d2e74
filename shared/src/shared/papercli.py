"""`PaperCLI`: Lightning's CLI with run folders, resuming, configs by name, and the testing that follows training.

A package subclasses it once, names its LightningModule and datamodule, and gets `train` and `test`:

    class MyCLI(PaperCLI):
        paper = "my_paper"
        model_type, data_type = MyModule, MyData
        monitor, monitor_mode = "val/accuracy", "max"
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import Any, ClassVar, Self

import yaml
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint, ProgressBar
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.utilities import rank_zero_only
from lightning.pytorch.utilities.exceptions import MisconfigurationException, SIGTERMException

from shared import logs, seeding
from shared.checkpoints import (
    AtomicCheckpointIO,
    CheckpointError,
    Manifest,
    atomic_write,
    load,
    newest,
    remove_leftovers,
)
from shared.records import package_version, read_yaml
from shared.runs import checkpoint_of, claimed, dated, find_run, new_run_folder, run_config

RUN_VARIABLE = "PAPERS_RUN"  # tells the processes that Lightning starts for DDP the run folder of rank zero
TERMINATED = 128 + signal.SIGTERM
KEPT_EPOCHS = 2  # checkpoints of the last epochs; the second is what a run falls back to if the first is damaged
# What a result does not depend on, or what is recorded beside it.
UNHASHED = {"seed_everything", "run_dir", "logger", "config"}
UNHASHED_TRAINER = {
    "logger", "callbacks", "plugins", "profiler", "default_root_dir", "enable_progress_bar", "barebones",
    "enable_checkpointing", "enable_model_summary", "log_every_n_steps",
}  # fmt: skip

log = logging.getLogger(__name__)


class StepSeed(Callback):
    """Seed the global generators before each training batch by (seed, step, rank): see `shared.seeding`."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def on_train_batch_start(self, trainer: Trainer, *args: Any) -> None:
        """Seed for the batch that begins."""
        seeding.seed_step(self.seed, trainer.global_step, trainer.global_rank)


class EndTestOnSigterm(Callback):
    """Let SIGTERM end a test at once: Lightning looks for it between training batches only."""

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Replace Lightning's handler, which it puts back when the test ends."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))


@contextmanager
def ended_by_signals(trainer: Trainer) -> Iterator[None]:
    """Turn Lightning's exits after Ctrl-C and SIGTERM into KeyboardInterrupt and 143, bad options into a ValueError."""
    try:
        yield
    except SIGTERMException:
        sys.exit(TERMINATED)
    except MisconfigurationException as error:
        raise ValueError(f"trainer: {' '.join(str(error).split())}") from error
    except SystemExit as ending:
        if trainer.interrupted and ending.code != TERMINATED:
            raise KeyboardInterrupt from None
        raise
    if trainer.interrupted:
        raise KeyboardInterrupt


def config_hash(config: Mapping[str, Any], package: str) -> str:
    """Hash the settings that a result depends on: what differs from the defaults, seed and output left out.

    Defaults are part of the code, which the package's version stands for: 0.1.3 counts as 0.1. So a new
    option leaves the hash alone, and a release that changes results must raise the minor version.

    Args:
        config: nested settings that differ from the defaults.
        package: the package's name.

    Returns:
        Twelve hexadecimal digits.
    """
    kept = {name: value for name, value in config.items() if name not in UNHASHED}
    trainer = config.get("trainer", {})
    kept["trainer"] = {name: value for name, value in trainer.items() if name not in UNHASHED_TRAINER}
    release = package_version(package).rsplit(".", 1)[0]
    text = json.dumps([package, release, kept], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


class PaperCLI(LightningCLI):
    """The settings, the run folder and the trainer of one paper.

    Constructing it parses the arguments and builds model, data and trainer; `fit_and_test` runs them. A
    subclass sets the class variables, and overrides `before_fit` where the paper has a first phase.

    Args:
        args: command-line arguments; without `--config` the package's `default` config is read.
        run: folder of an existing run whose settings are the base (resuming, testing); None for a new one.
        parse_only: stop after parsing: `config` is there, model and data are not.
        quiet: no console output below warnings and no progress bar.
    """

    paper: ClassVar[str]
    model_type: ClassVar[type[LightningModule]]
    data_type: ClassVar[type[LightningDataModule]]
    monitor: ClassVar[str | None] = None  # the validation metric that chooses best.ckpt
    monitor_mode: ClassVar[str] = "max"
    worth_keeping: ClassVar[tuple[str, ...]] = ("*.ckpt",)  # files that make an unfinished run worth resuming

    def __init__(
        self, args: Sequence[str], *, run: Path | None = None, parse_only: bool = False, quiet: bool = False
    ) -> None:
        self.resumed_run, self.parse_only, self.quiet = run, parse_only, quiet
        logs.setup_console(logging.WARNING if quiet else logging.INFO)
        base = [] if run is None else ["--config", str(run_config(run))]
        named = [] if base or _has_config(args) else ["--config", "default"]
        super().__init__(
            self.model_type,
            self.data_type,
            args=self._resolve_configs([*base, *named, *args]),
            run=False,
            save_config_callback=None,
            seed_everything_default=0,
            auto_configure_optimizers=False,
            parser_kwargs={"prog": "train", "exit_on_error": False},
        )

    @classmethod
    def main(cls, argv: Sequence[str]) -> dict[str, float]:
        """Train, or go on with a run, and test: the verb `train`.

        Args:
            argv: arguments, among them `--resume RUN` and `--help_all`.

        Returns:
            The test metrics.
        """
        return cls.of_arguments(argv).fit_and_test()

    @classmethod
    def of_arguments(cls, argv: Sequence[str]) -> Self:
        """Build a new run, or with `--resume RUN` an earlier one, which keeps its model, data and seed.

        Raises:
            ValueError: if a resumed run is given other settings than those of the trainer and logger.
        """
        arguments, options = _take(argv, "--resume")
        arguments = ["--help" if word == "--help_all" else word for word in arguments]
        if "--resume" not in options:
            return cls(arguments)
        for word in arguments:
            if word.startswith(("--", "-c")) and not word.startswith(("--trainer.", "--logger", "--print_c", "--help")):
                raise ValueError(
                    f"a resumed run keeps its settings; only --trainer.KEY and --logger can change: {word}"
                )
        return cls(arguments, run=find_run(cls.paper, os.environ[RUN_VARIABLE] if _is_child() else options["--resume"]))

    @classmethod
    def test(cls, argv: Sequence[str]) -> dict[str, float]:
        """Test a run's weights again: the verb `test`.

        Args:
            argv: the run (a folder or `last`), then `--select last|best|FILE` and settings.

        Returns:
            The test metrics.
        """
        run, *rest = argv
        arguments, options = _take(rest, "--select")
        cli = cls.of_run(run, select=options.get("--select", "last"), args=arguments)
        return cli.run_test()

    @classmethod
    def of_run(cls, run: str | Path, *, select: str = "last", args: Sequence[str] = ()) -> Self:
        """Build the model and data of a finished run, its weights loaded.

        Args:
            run: a run folder, or `last`.
            select: `last` for the newest readable checkpoint, `best` for the best on validation data, or
                a checkpoint file.
            args: settings that differ from the run's.

        Returns:
            The CLI; its `model` and `datamodule` are ready for `trainer.test`, or for use alone.

        Raises:
            FileNotFoundError: if there is no such run or checkpoint.
            CheckpointError: if the checkpoint cannot be read.
        """
        folder = find_run(cls.paper, run)
        cli = cls(args, run=folder)
        cli.load_weights(checkpoint_of(folder, cls.paper, select))
        return cli

    @classmethod
    def hash_of(cls, args: Sequence[str]) -> str:
        """Return the hash of the settings that arguments lead to (see `config_hash`)."""
        return cls(args, parse_only=True, quiet=True).settings_hash()

    @classmethod
    def run_cell(cls, args: Sequence[str], seed: int) -> dict[str, float]:
        """Train and test once, quietly and in a temporary run folder, for a comparison.

        Args:
            args: settings.
            seed: the run's seed.

        Returns:
            The test metrics.
        """
        with tempfile.TemporaryDirectory(prefix=f"{cls.paper}-") as folder:
            run = Path(folder) / "run"
            cell = [*args, f"--seed_everything={seed}", f"--run_dir={run}", "--trainer.enable_checkpointing=false"]
            return cls(cell, quiet=True).fit_and_test()

    def add_default_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add what concerns the run: seed, folder, logger."""
        parser.add_argument("--seed_everything", type=int, default=0, help="the run's seed")
        parser.add_argument(
            "--run_dir", type=str | None, default=None, help="where to write; made from the date otherwise"
        )
        parser.add_argument("--logger", type=logs.LoggerName, default="csv", help="where metrics go beside the console")

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Give the run's seed to the model and data that ask for one."""
        for section, kind in (("model", self.model_type), ("data", self.data_type)):
            if "seed" in signature(kind.__init__).parameters:
                parser.link_arguments("seed_everything", f"{section}.seed")

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse; an unknown or malformed setting is a ValueError of one sentence."""
        from jsonargparse import ArgumentError

        try:
            self.config = parser.parse_args(args)
        except (ArgumentError, TypeError) as error:
            raise ValueError(_first_cause(str(error))) from error

    def _set_seed(self) -> None:
        deterministic = self.config.trainer.deterministic is True
        seeding.seed_everything(self.config.seed_everything, deterministic=deterministic)

    def instantiate_classes(self) -> None:
        """Build model and data; the trainer waits until the run folder is there."""
        if self.parse_only:
            return
        try:
            self.config_init = self.parser.instantiate_classes(self.config)
        except TypeError as error:  # a section that is null, or of another type than the class takes
            raise ValueError(f"the settings do not fit the model or data: {error}") from error
        self.datamodule, self.model = self.config_init["data"], self.config_init["model"]

    def settings_hash(self) -> str:
        """Return the hash of the settings (see `config_hash`)."""
        text = self.parser.dump(self.config, skip_default=True, format="yaml")
        return config_hash(yaml.safe_load(text) or {}, self.paper)

    @property
    def checkpoint_folder(self) -> Path:
        """Where the run keeps its checkpoints."""
        return self.run_dir / "checkpoints"

    def before_fit(self) -> None:
        """Do what comes before the main training, such as training a network that it needs; nothing here."""

    def fit_and_test(self) -> dict[str, float]:
        """Train the model (from the newest good checkpoint of a resumed run), then test it.

        Returns:
            The test metrics; they are also printed, and written to `test.json` in the run folder.
        """
        self.make_trainer(None)  # refuses bad options before a folder is made and a first phase is trained
        with self.run_folder():
            resume_from = None
            if self.resumed_run is not None and any(self.checkpoint_folder.glob("*.ckpt")):
                resume_from = newest(self.checkpoint_folder, package=self.paper, warn=log.warning)
                log.info("resuming from %s", resume_from)
            if resume_from is None:
                self.before_fit()
            self.trainer = self.make_trainer(self.checkpoint_folder)
            with ended_by_signals(self.trainer):
                self.trainer.fit(self.model, self.datamodule, ckpt_path=resume_from)
            if self.trainer.fit_loop.epoch_loop.total_batch_idx < 0:
                log.warning("the settings of the trainer left no step to make: the network is untrained")
            return self.run_test()

    def run_test(self) -> dict[str, float]:
        """Test the model as it is; print the metrics and, in a run folder, write them to `test.json`."""
        if not hasattr(self, "trainer"):
            self.trainer = self.make_trainer(None)
        with ended_by_signals(self.trainer):
            found = self.trainer.test(self.model, self.datamodule, verbose=False)
        results = found[0] if found else {}
        metrics = {name.removeprefix("test/"): float(value) for name, value in results.items()}
        metrics |= self.after_test()
        self._report(metrics)
        return metrics

    def after_test(self) -> dict[str, float]:
        """Draw figures into `run_dir / "figures"`, or measure more; returns further metrics (none here)."""
        return {}

    @rank_zero_only
    def _report(self, metrics: Mapping[str, float]) -> None:
        if self.quiet:
            return
        logs.console.print(logs.metrics_table(metrics, title=f"{self.paper}: test metrics"))
        if hasattr(self, "run_dir"):
            with atomic_write(self.run_dir / "test.json") as file:
                file.write((json.dumps(metrics, indent=2) + "\n").encode())
            logs.training_figure(self.run_dir / "metrics.csv", self.run_dir / "figures" / "training.png")
            logs.console.print(f"run folder: {self.run_dir}", soft_wrap=True)

    def load_weights(self, checkpoint: Path) -> None:
        """Load the model's weights, whole, from a checkpoint of this package."""
        state = load(checkpoint, package=self.paper, map_location="cpu").get("state_dict")
        try:
            self.model.load_state_dict(state)
        except (RuntimeError, TypeError, AttributeError) as error:
            reason = str(error).split("\n\t")[1].strip() if "\n\t" in str(error) else str(error)
            raise CheckpointError(f"{checkpoint} does not fit the model: {reason}") from error

    def make_trainer(self, checkpoints: Path | None, **overrides: Any) -> Trainer:
        """Build a trainer from the settings, with this collection's checkpoints, loggers and seeding.

        Args:
            checkpoints: folder for checkpoints; None writes nothing at all.
            overrides: trainer arguments that replace those of the settings.
        """
        settings = {**self.config_init["trainer"], **overrides}
        callbacks = [
            *(settings.pop("callbacks", None) or []),
            StepSeed(self.config.seed_everything),
            EndTestOnSigterm(),
        ]
        plugins = settings.pop("plugins", None) or []
        plugins = [*plugins] if isinstance(plugins, list) else [plugins]
        manifest = Manifest.of(self.paper, self.settings_hash())
        settings["use_distributed_sampler"] = False  # the datamodules shard without repeating test items
        settings["enable_model_summary"] = False
        if not self.quiet and settings.get("enable_progress_bar") is not False:
            callbacks.append(logs.progress_callback())
        settings["enable_progress_bar"] = any(isinstance(c, ProgressBar) for c in callbacks)
        if checkpoints is None:
            settings |= {"enable_checkpointing": False, "logger": False}
        else:
            settings["logger"] = settings.get("logger") or logs.make_loggers(
                checkpoints.parent, self.paper, self.config.logger
            )
            if settings.get("enable_checkpointing") is not False:
                callbacks += self._checkpoint_callbacks(checkpoints)
        root = str(checkpoints.parent if checkpoints is not None else Path.cwd())
        settings |= {
            "default_root_dir": root,
            "callbacks": callbacks,
            "plugins": [*plugins, AtomicCheckpointIO(manifest)],
        }
        try:
            trainer = Trainer(**settings)
        except (MisconfigurationException, TypeError, RuntimeError) as error:
            raise ValueError(f"trainer: {' '.join(str(error).split())}") from error
        # Where `max_steps` is set, a run that is resumed after a whole epoch would go through that epoch once more,
        # without a batch, and then draw the order of the epoch after the next.
        trainer.fit_loop._iteration_based_training = lambda: False  # type: ignore[method-assign]
        return trainer

    def _checkpoint_callbacks(self, folder: Path) -> list[Callback]:
        last = ModelCheckpoint(
            folder, "epoch={epoch:04d}", monitor="epoch", mode="max", save_top_k=KEPT_EPOCHS,
            auto_insert_metric_name=False, save_on_train_epoch_end=True,
        )  # fmt: skip
        if self.monitor is None:
            return [last]
        best = ModelCheckpoint(
            folder, "best", monitor=self.monitor, mode=self.monitor_mode, save_top_k=1,
            enable_version_counter=False,
        )  # fmt: skip
        return [best, last]

    @contextmanager
    def run_folder(self) -> Iterator[None]:
        """Make the run folder (or take the resumed run's) and write the settings into it.

        A new folder is removed again if the run fails before it has anything `worth_keeping`.
        """
        given, seed = self.config.run_dir, self.config.seed_everything
        if _is_child():
            self.run_dir = Path(os.environ[RUN_VARIABLE])
        elif self.resumed_run is not None:
            self.run_dir = self.resumed_run
        elif _is_first():
            self.run_dir = new_run_folder(self.paper, seed, given)
        else:
            self.run_dir = Path(given) if given else dated(self.paper, seed)
        if _is_child() or not _is_first():
            yield
            return
        with claimed(self.run_dir):
            os.environ[RUN_VARIABLE] = str(self.run_dir.resolve())
            try:
                remove_leftovers(self.checkpoint_folder)
                with atomic_write(self.run_dir / "config.yaml") as file:
                    file.write(self.parser.dump(self.config, skip_none=False, format="yaml").encode())
                yield
            except BaseException:
                kept = (file for pattern in self.worth_keeping for file in self.run_dir.rglob(pattern))
                if self.resumed_run is None and not any(kept):
                    shutil.rmtree(self.run_dir, ignore_errors=True)
                elif not self.quiet:
                    log.warning("unfinished; go on with: train --resume %s", self.run_dir)
                raise
            finally:
                os.environ.pop(RUN_VARIABLE, None)

    def _resolve_configs(self, args: Sequence[str]) -> list[str]:
        """Replace the bare names behind `--config` with the package's files."""
        resolved: list[str] = []
        for place, word in enumerate(args):
            if place and args[place - 1] in ("--config", "-c"):
                word = str(self.config_path(word))
            elif word.startswith("--config="):
                word = f"--config={self.config_path(word.removeprefix('--config='))}"
            resolved.append(word)
        return resolved

    @classmethod
    def config_path(cls, name: str) -> Path:
        """Find a config: a file of the user's, or the bare name of one of the package's own.

        Raises:
            FileNotFoundError: if there is neither; the message lists the package's names.
            ValueError: if the file holds no settings.
        """
        from importlib.resources import files

        folder = Path(str(files(cls.paper))) / "configs"
        own = folder / f"{name}.yaml"
        if own.is_file():
            return own
        if Path(name).is_file():
            check_config(Path(name))
            return Path(name)
        names = ", ".join(sorted(file.stem for file in folder.glob("*.yaml")))
        raise FileNotFoundError(f"there is no config {name!r}: give a YAML file or one of {names}")


def check_config(file: Path) -> None:
    """Raise ValueError unless a file is YAML that maps names to settings."""
    content = read_yaml(file)
    if not isinstance(content, dict):
        raise ValueError(f"{file} must map names to settings, got {type(content).__name__}")


def _is_child() -> bool:
    """Say whether this process was started by Lightning as a further rank of a run on this machine."""
    return RUN_VARIABLE in os.environ and os.environ.get("LOCAL_RANK", "0") != "0"


def _is_first() -> bool:
    """Say whether this process is rank zero, also where something else than Lightning started the processes."""
    return not getattr(rank_zero_only, "rank", None)


def _has_config(args: Sequence[str]) -> bool:
    return any(word in ("--config", "-c") or word.startswith("--config=") for word in args)


def _take(argv: Sequence[str], *names: str) -> tuple[list[str], dict[str, str]]:
    """Split options `NAME VALUE` or `NAME=VALUE` off a list of arguments."""
    rest: list[str] = []
    found: dict[str, str] = {}
    words = iter(argv)
    for word in words:
        name, equals, value = word.partition("=")
        if name not in names:
            rest.append(word)
            continue
        value = value if equals else next(words, "")
        if not value:
            raise ValueError(f"{name} needs a value")
        found[name] = value
    return rest, found


def _first_cause(message: str) -> str:
    """Cut jsonargparse's nested report down to the setting and the reason."""
    lines = [line.strip(" -") for line in message.splitlines() if line.strip()]
    return " ".join(lines[:3])
