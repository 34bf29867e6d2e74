"""The paper's `PaperCLI`: a run writes its completions, steps and playbook beside its checkpoints."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any, ClassVar

from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from shared.checkpoints import CheckpointError, atomic_write, load
from shared.papercli import PaperCLI

from ace.adaptation import ACE
from ace.data import AceData
from ace.module import CALLS, START, TEMPLATES, ACEModule
from ace.plots import draw_run

ONLINE = ["--data.protocol=online", "--trainer.max_epochs=0"]


class AceCLI(PaperCLI):
    """Adapts a context, and tests it."""

    paper: ClassVar[str] = "ace"
    model_type: ClassVar[type[LightningModule]] = ACEModule
    data_type: ClassVar[type[LightningDataModule]] = AceData
    monitor: ClassVar[str | None] = "val/accuracy"
    worth_keeping: ClassVar[tuple[str, ...]] = ("*.ckpt", CALLS)
    model: ACEModule
    datamodule: AceData

    @classmethod
    def online(cls, argv: Sequence[str]) -> dict[str, float]:
        """Go through the test samples online: the verb `online`.

        Args:
            argv: as of `train`; the config is `country_online` where none is named. Options can ask for epochs of
                training first, configs cannot.

        Returns:
            The test metrics.
        """
        if any(word.partition("=")[0] == "--resume" for word in argv):  # such a run has these settings already
            return cls.main(argv)
        configs: list[str] = []
        options: list[str] = []
        words = iter(argv)
        for word in words:
            named = word in ("--config", "-c")
            (configs if named or word.startswith("--config=") else options).append(word)
            configs += [next(words, "")] if named else []
        cli = cls.of_arguments([*(configs or ["--config=country_online"]), *ONLINE, *options])
        if cli.datamodule.protocol != "online":
            raise ValueError(f"data.protocol must be online for this verb, got {cli.datamodule.protocol}")
        return cli.fit_and_test()

    def __init__(self, args: Sequence[str], *, run: Path | None = None, **more: Any) -> None:
        super().__init__([*([] if run is None else sources_of(run)), *args], run=run, **more)

    def instantiate_classes(self) -> None:
        """Build model and data, unless an option of theirs is null that must not be."""
        for part in ("method", "roles", "backend"):
            refuse_nulls(f"model.{part}", self.config.model[part])
        super().instantiate_classes()

    def fit_and_test(self) -> dict[str, float]:
        """Train, then test. Online with no epoch of training, all of the learning is in the test loop."""
        if self.datamodule.protocol != "online" or self.config.trainer.max_epochs != 0:
            return super().fit_and_test()
        self.make_trainer(None)  # refuses bad options before a folder is made
        with self.run_folder():
            self.trainer = self.make_trainer(self.checkpoint_folder)
            return self.run_test()

    def make_trainer(self, checkpoints: Path | None, **overrides: Any) -> Trainer:
        """Build a trainer, and tell the model the run's folder."""
        if checkpoints is not None:
            self.model.folder = checkpoints.parent
        warnings.filterwarnings("ignore", "`LightningModule.configure_optimizers` returned `None`")  # as it should
        warnings.filterwarnings("ignore", "You're resuming from a checkpoint that ended")  # `data.Remaining` sees to it
        return super().make_trainer(checkpoints, **overrides)

    def load_weights(self, checkpoint: Path) -> None:
        """Load the context of a checkpoint: there are no weights."""
        loaded = load(checkpoint, package=self.paper, map_location="cpu")
        try:
            self.model.on_load_checkpoint(loaded)
        except ValueError as error:
            raise CheckpointError(f"{checkpoint}: {error}") from error

    def after_test(self) -> dict[str, float]:
        """Write the playbook, or what else the method has in the context, into the run's folder, and draw figures."""
        folder = self.model.folder
        if self.trainer.is_global_zero and folder is not None:
            method, usage = self.model.method, self.model.recorder.state()
            playbook = method.playbook if isinstance(method, ACE) else None
            texts = {"context.txt": method.text() + "\n"}
            if playbook is not None:
                texts |= {"playbook.json": playbook.to_json(), "playbook.md": playbook.to_text()}
            if not self.quiet:
                texts["usage.json"] = json.dumps(usage, indent=2) + "\n"
            for name, text in texts.items():
                with atomic_write(folder / name) as file:
                    file.write(text.encode())
            if not self.quiet:
                draw_run(folder, self.model.history, playbook, usage)
        return {}


def sources_of(run: Path) -> list[str]:
    """Return the settings by which a run starts from its own copies of playbook and templates.

    Args:
        run: its folder.
    """
    start, templates = run / START, run / TEMPLATES
    return [
        *([f"--model.method.init_args.playbook={start}"] if start.is_file() else []),
        *([f"--model.templates={templates}"] if templates.is_dir() else []),
    ]


def refuse_nulls(name: str, settings: Any) -> None:
    """Refuse null for options of a class that do not take it; the parser lets it through.

    Args:
        name: of the setting, for the message.
        settings: with `class_path` and `init_args`.

    Raises:
        ValueError: if there is such an option.
    """
    given = settings.get("init_args") or {}
    module, _, kind = settings.class_path.rpartition(".")
    parameters = signature(getattr(import_module(module), kind).__init__).parameters
    for option, value in vars(given).items() if hasattr(given, "__dict__") else given.items():
        if value is None and option in parameters and "None" not in str(parameters[option].annotation):
            raise ValueError(f"{name}.init_args.{option} must not be null")
