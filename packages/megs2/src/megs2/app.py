"""The paper's `PaperCLI`."""

from __future__ import annotations

from typing import ClassVar

from lightning.pytorch import LightningDataModule, LightningModule
from shared.papercli import PaperCLI

from megs2.data import Megs2Data
from megs2.module import Megs2Module


class Megs2CLI(PaperCLI):
    """Trains and tests the model."""

    paper: ClassVar[str] = "megs2"
    model_type: ClassVar[type[LightningModule]] = Megs2Module
    data_type: ClassVar[type[LightningDataModule]] = Megs2Data
    monitor: ClassVar[str | None] = "val/accuracy"
