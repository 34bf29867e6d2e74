"""The paper's `PaperCLI`."""

from __future__ import annotations

from typing import ClassVar

from lightning.pytorch import LightningDataModule, LightningModule
from shared.papercli import PaperCLI

from NAME.data import NameData
from NAME.module import NameModule


class NameCLI(PaperCLI):
    """Trains and tests the model."""

    paper: ClassVar[str] = "NAME"
    model_type: ClassVar[type[LightningModule]] = NameModule
    data_type: ClassVar[type[LightningDataModule]] = NameData
    monitor: ClassVar[str | None] = "val/accuracy"
