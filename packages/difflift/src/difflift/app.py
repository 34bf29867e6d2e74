"""The paper's `PaperCLI`: what a run is used for are the weights of its best epoch."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from lightning.pytorch import LightningDataModule, LightningModule
from shared.checkpoints import load
from shared.papercli import PaperCLI

from difflift.data import GraphData
from difflift.module import LiftingModule


class DiffLiftCLI(PaperCLI):
    """Trains a network on lifted graphs, and tests it."""

    paper: ClassVar[str] = "difflift"
    model_type: ClassVar[type[LightningModule]] = LiftingModule
    data_type: ClassVar[type[LightningDataModule]] = GraphData
    monitor: ClassVar[str | None] = "val/score"
    model: LiftingModule
    datamodule: GraphData

    def load_weights(self, checkpoint: Path) -> None:
        """Load the weights of a checkpoint's best epoch, or its own if there has been no validation."""
        super().load_weights(checkpoint)
        self.model.best = load(checkpoint, package=self.paper, map_location="cpu").get("best", {})
        self.model.restore_best()
