"""The paper's `PaperCLI`."""

from __future__ import annotations

from typing import ClassVar

from lightning.pytorch import LightningDataModule, LightningModule
from shared.papercli import PaperCLI

from robrel.data import RobrelData
from robrel.module import RobrelModule


class RobrelCLI(PaperCLI):
    """Trains and tests the model."""

    paper: ClassVar[str] = "robrel"
    model_type: ClassVar[type[LightningModule]] = RobrelModule
    data_type: ClassVar[type[LightningDataModule]] = RobrelData
    monitor: ClassVar[str | None] = "val/accuracy"
