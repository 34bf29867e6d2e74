"""The paper's `PaperCLI`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from shared.papercli import PaperCLI

from robrel.data import RobRelData
from robrel.module import RobRelModule


class RobRelCLI(PaperCLI):
    """Solves all instances, then measures the answers."""

    paper: ClassVar[str] = "robrel"
    model_type: ClassVar[type[LightningModule]] = RobRelModule
    data_type: ClassVar[type[LightningDataModule]] = RobRelData
    monitor: ClassVar[str | None] = None
    model: RobRelModule
    datamodule: RobRelData

    def make_trainer(self, checkpoints: Path | None, **overrides: Any) -> Trainer:
        """Build a trainer; refuses several processes, as all instances are one batch without gradients to share."""
        trainer = super().make_trainer(checkpoints, **overrides)
        if trainer.world_size > 1:
            raise ValueError("trainer.devices must be 1: all instances are solved as one batch on one device")
        return trainer
