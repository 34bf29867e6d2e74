"""The paper's `PaperCLI`."""

from __future__ import annotations

from typing import ClassVar

from lightning.pytorch import LightningDataModule, LightningModule
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

    def before_fit(self) -> None:
        """Refuse several processes: all instances are one batch, and there are no gradients to share."""
        if self.make_trainer(None).world_size > 1:
            raise ValueError("trainer.devices must be 1: all instances are solved as one batch on one device")
