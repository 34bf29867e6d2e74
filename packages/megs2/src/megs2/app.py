"""The paper's `PaperCLI`."""

from __future__ import annotations

from typing import ClassVar

from lightning.pytorch import LightningDataModule, LightningModule
from shared.papercli import PaperCLI

from megs2.data import CaptureData
from megs2.module import SplattingModule


class Megs2CLI(PaperCLI):
    """Trains and tests the model."""

    paper: ClassVar[str] = "megs2"
    model_type: ClassVar[type[LightningModule]] = SplattingModule
    data_type: ClassVar[type[LightningDataModule]] = CaptureData
    monitor: ClassVar[str | None] = "val/psnr"
