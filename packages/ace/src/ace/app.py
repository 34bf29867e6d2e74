"""The paper's `PaperCLI`: a run writes its completions, steps and playbook beside its checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from shared.checkpoints import atomic_write, load
from shared.papercli import PaperCLI

from ace.adaptation import ACE
from ace.data import AceData
from ace.module import ACEModule


class AceCLI(PaperCLI):
    """Adapts a context, and tests it."""

    paper: ClassVar[str] = "ace"
    model_type: ClassVar[type[LightningModule]] = ACEModule
    data_type: ClassVar[type[LightningDataModule]] = AceData
    monitor: ClassVar[str | None] = "val/accuracy"
    model: ACEModule
    datamodule: AceData

    def make_trainer(self, checkpoints: Path | None, **overrides: Any) -> Trainer:
        """Build a trainer, and tell the model the run's folder."""
        if checkpoints is not None:
            self.model.folder = checkpoints.parent
        return super().make_trainer(checkpoints, **overrides)

    def load_weights(self, checkpoint: Path) -> None:
        """Load the context of a checkpoint: there are no weights."""
        self.model.on_load_checkpoint(load(checkpoint, package=self.paper, map_location="cpu"))

    def after_test(self) -> dict[str, float]:
        """Write the playbook, or what else the method has in the context, into the run's folder."""
        folder = self.model.folder
        if self.trainer.is_global_zero and folder is not None:
            method = self.model.method
            texts = {"context.txt": method.text() + "\n"}
            if isinstance(method, ACE):
                texts |= {"playbook.json": method.playbook.to_json(), "playbook.md": method.playbook.to_text()}
            for name, text in texts.items():
                with atomic_write(folder / name) as file:
                    file.write(text.encode())
        return {}
