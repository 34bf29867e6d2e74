"""The paper's `PaperCLI`: the network's shape follows the data, and the test tells what the training cost."""

from __future__ import annotations

import logging
from typing import ClassVar

from lightning.pytorch import LightningDataModule, LightningModule
from shared.papercli import PaperCLI

from orderdp.data import OrderDPData
from orderdp.module import OrderDPModule
from orderdp.plots import draw_usage

log = logging.getLogger(__name__)


class OrderDPCLI(PaperCLI):
    """Trains on what the pruning keeps, then tests."""

    paper: ClassVar[str] = "orderdp"
    model_type: ClassVar[type[LightningModule]] = OrderDPModule
    data_type: ClassVar[type[LightningDataModule]] = OrderDPData
    monitor: ClassVar[str | None] = "val/accuracy"
    model: OrderDPModule
    datamodule: OrderDPData

    def before_fit(self) -> None:
        """Refuse a network whose shape is not that of the data, before anything is trained."""
        self.check_shapes()

    def run_test(self) -> dict[str, float]:
        """Test; the data may be another than that of the training."""
        self.check_shapes()
        return super().run_test()

    def check_shapes(self) -> None:
        """Raise ValueError unless the network takes the data's images and has its classes."""
        channels, side, _ = self.datamodule.image_shape
        needed = {"num_classes": self.datamodule.num_classes, "in_channels": channels, "image_size": side}
        for option, needs in needed.items():
            has = getattr(self.model, option)
            if has != needs:
                raise ValueError(f"model.{option} must be {needs} for {self.datamodule.dataset}, got {has}")

    def after_test(self) -> dict[str, float]:
        """Return what the training cost: the share of samples seen, exactly, and the seconds of its loop."""
        pruner, rounds = self.datamodule.pruner, self.datamodule.rounds
        if pruner is None or not rounds:
            return {}
        if pruner.scores.skipped:
            log.warning("%d losses were not finite: their samples kept their scores", pruner.scores.skipped)
        if self.trainer.is_global_zero and not self.quiet:
            draw_usage(pruner.scores.visits, rounds, self.run_dir / "figures" / "usage.png")
        return {
            "seen": pruner.seen / (pruner.n * rounds),
            "samples": float(pruner.seen),
            "steps": float(self.trainer.global_step),
            "train_seconds": self.model.train_seconds,
        }
