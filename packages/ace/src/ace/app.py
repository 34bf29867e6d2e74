"""The paper's `PaperCLI`: a run writes its completions, steps and playbook beside its checkpoints."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from shared.checkpoints import atomic_write, load
from shared.papercli import PaperCLI

from ace.adaptation import ACE
from ace.data import AceData
from ace.module import CALLS, ACEModule
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
        return cls.main([*(configs or ["--config=country_online"]), *ONLINE, *options])

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
        warnings.filterwarnings(
            "ignore", "You're resuming from a checkpoint that ended before the epoch"
        )  # data.Remaining
        return super().make_trainer(checkpoints, **overrides)

    def load_weights(self, checkpoint: Path) -> None:
        """Load the context of a checkpoint: there are no weights."""
        self.model.on_load_checkpoint(load(checkpoint, package=self.paper, map_location="cpu"))

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
