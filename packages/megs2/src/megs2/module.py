"""The LightningModule: wires method, network, optimiser and metrics."""

from __future__ import annotations

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torchmetrics import MeanMetric, SumMetric

from megs2.baselines import Method, build_loss
from megs2.models import LogisticRegression

Batch = tuple[Tensor, Tensor]  # images (B, 8, 8) in [0, 1], labels (B,)


class Megs2Module(LightningModule):
    """Train a classifier by the method, or by the baseline.

    Args:
        method: `smoothed`, or the baseline `plain`.
        smoothing: ε of the method, in [0, 1].
        lr: learning rate of Adam.
    """

    def __init__(self, method: Method = "smoothed", smoothing: float = 0.1, lr: float = 0.03) -> None:
        super().__init__()
        if lr <= 0:
            raise ValueError(f"lr must be positive, got {lr}")
        self.lr = lr
        self.loss = build_loss(method, smoothing)
        self.model = LogisticRegression(features=64, classes=10)
        self.val_accuracy, self.test_accuracy, self.test_count = MeanMetric(), MeanMetric(), SumMetric()

    def forward(self, x: Tensor) -> Tensor:
        """Map images (B, 8, 8) to logits (B, 10)."""
        return self.model(x)

    def training_step(self, batch: Batch, batch_index: int) -> Tensor:
        """Return the loss of a batch."""
        x, labels = batch
        loss = self.loss(self(x), labels)
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch: Batch, batch_index: int) -> None:
        """Count what is classified right."""
        x, labels = batch
        self.val_accuracy.update((self(x).argmax(1) == labels).float())
        self.log("val/accuracy", self.val_accuracy, prog_bar=True)

    def test_step(self, batch: Batch, batch_index: int) -> None:
        """Count what is classified right, and how many were scored."""
        x, labels = batch
        self.test_accuracy.update((self(x).argmax(1) == labels).float())
        self.test_count.update(len(x))
        self.log("test/accuracy", self.test_accuracy)
        self.log("test/n", self.test_count)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Build Adam."""
        return torch.optim.Adam(self.parameters(), self.lr)
