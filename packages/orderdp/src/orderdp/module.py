"""The LightningModule: a classifier that gives the loss of each sample, and its optimiser."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from lightning.pytorch import Callback, LightningModule
from torch import Tensor
from torchmetrics import MeanMetric, SumMetric
from torchmetrics.classification import MulticlassAccuracy

from orderdp.models import create_model
from orderdp.pruning import PruningMixin, ScoreUpdates
from orderdp.schedule import one_cycle

Batch = tuple[Tensor, Tensor]  # images (B, C, H, W), labels (B,)


@dataclass
class Optimisation:
    """Optimiser and one-cycle schedule (Sec. 3.4).

    Attributes:
        optimizer: `sgd`, or `lars` (timm's).
        max_lr: peak of the learning rate.
        momentum: constant; the released script has 0.1 as its default, although its help says 0.9, and
            torch's one-cycle schedule would cycle it.
        weight_decay: L2 penalty.
        trust_coefficient: of LARS.
        pct_start: share of the training that warms up.
        div: peak over initial rate.
        final_div: initial over final rate.
    """

    optimizer: Literal["sgd", "lars"] = "sgd"
    max_lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    trust_coefficient: float = 1e-3
    pct_start: float = 0.3
    div: float = 25.0
    final_div: float = 1e4

    def __post_init__(self) -> None:
        if self.optimizer not in ("sgd", "lars"):
            raise ValueError(f"optim.optimizer must be sgd or lars, got {self.optimizer!r}")
        positive = ("max_lr", "trust_coefficient", "div", "final_div")
        for option in positive:
            if not 0 < getattr(self, option) < math.inf:
                raise ValueError(f"optim.{option} must be a finite number > 0, got {getattr(self, option)}")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"optim.momentum must lie in [0, 1), got {self.momentum}")
        if not 0 <= self.weight_decay < math.inf:
            raise ValueError(f"optim.weight_decay must be a finite number >= 0, got {self.weight_decay}")
        if not 0 < self.pct_start < 1:
            raise ValueError(f"optim.pct_start must lie in (0, 1), got {self.pct_start}")


class OrderDPModule(LightningModule):
    """Train a classifier on what the datamodule's pruning keeps.

    Args:
        arch: the network, see `models.create_model`.
        num_classes: K.
        in_channels: colour channels of the images.
        image_size: their side.
        label_smoothing: of the training loss, and so of the scores, in [0, 1).
        optim: optimiser and schedule; their defaults when null.
    """

    def __init__(
        self,
        arch: str = "small_cnn",
        num_classes: int = 10,
        in_channels: int = 1,
        image_size: int = 28,
        label_smoothing: float = 0.0,
        optim: Optimisation | None = None,
    ) -> None:
        super().__init__()
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"label_smoothing must lie in [0, 1), got {label_smoothing}")
        if num_classes < 2:
            raise ValueError(f"num_classes must be at least 2, got {num_classes}")
        self.label_smoothing = label_smoothing
        self.optim = Optimisation() if optim is None else optim
        self.num_classes, self.in_channels, self.image_size = num_classes, in_channels, image_size
        self.model = create_model(arch, num_classes, in_channels, image_size)
        self.val_accuracy = MulticlassAccuracy(num_classes, average="micro")
        self.test_accuracy = MulticlassAccuracy(num_classes, average="micro")
        self.test_loss, self.test_count = MeanMetric(), SumMetric()
        # Kept here and logged once an epoch: `log` in every step would cost more than a small network's forward pass.
        self.step_losses: list[Tensor] = []
        self.norms: list[Tensor] = []
        self.train_seconds = 0.0

    def forward(self, x: Tensor) -> Tensor:
        """Map images (B, C, H, W) to logits (B, K)."""
        return self.model(x)

    def training_step(self, batch: Batch, batch_index: int) -> dict[str, Tensor]:
        """Return the loss of a batch, and of each of its samples; there is one forward pass for both."""
        x, labels = batch
        losses = F.cross_entropy(self(x), labels, label_smoothing=self.label_smoothing, reduction="none")
        weights = self._data.weights
        loss = losses.mean() if weights is None else (weights * losses).mean()
        self.step_losses.append(loss.detach())
        return {"loss": loss, "losses": losses.detach()}

    def validation_step(self, batch: Batch, batch_index: int) -> None:
        """Count what is classified right."""
        x, labels = batch
        self.val_accuracy.update(self(x), labels)
        self.log("val/accuracy", self.val_accuracy, prog_bar=True)

    def test_step(self, batch: Batch, batch_index: int) -> None:
        """Count what is classified right, and how many were scored."""
        x, labels = batch
        logits = self(x)
        self.test_accuracy.update(logits, labels)
        self.test_loss.update(F.cross_entropy(logits, labels, reduction="none"))
        self.test_count.update(len(x))
        self.log("test/accuracy", self.test_accuracy)
        self.log("test/loss", self.test_loss)
        self.log("test/n", self.test_count)

    def on_train_start(self) -> None:
        """Refuse a training without an end: the schedule needs one."""
        if (self.trainer.max_epochs or -1) < 0:
            raise ValueError("trainer.max_epochs must be set: the learning rate follows the share of the training done")
        self.epoch_began = time.perf_counter()  # of an epoch that is resumed in its middle, Lightning tells no start

    def on_train_epoch_start(self) -> None:
        """Note the time."""
        self.epoch_began = time.perf_counter()

    def on_train_batch_end(self, outputs: Any, batch: Batch, batch_index: int) -> None:
        """Note the time: validation comes after an epoch's last batch, and is no part of the training loop."""
        self.batch_ended = time.perf_counter()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the seconds of the epochs so far, which a resumed run goes on from."""
        checkpoint["train_seconds"] = self.train_seconds

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take the seconds over."""
        self.train_seconds = checkpoint["train_seconds"]

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Note the norm of the gradient, which the paper watches for stability; it stays on its device."""
        gradients = [p.grad for p in self.parameters() if p.grad is not None]
        self.norms.append(torch.nn.utils.get_total_norm(gradients))

    def on_train_epoch_end(self) -> None:
        """Log the mean loss, the last learning rate, and the mean and variance of the gradient's norm."""
        self.train_seconds += self.batch_ended - self.epoch_began
        losses, norms = torch.stack(self.step_losses), torch.stack(self.norms)
        self.step_losses.clear()
        self.norms.clear()
        self.log("train/loss", losses.mean(), sync_dist=True)
        self.log("train/lr", self.trainer.optimizers[0].param_groups[0]["lr"], rank_zero_only=True)
        self.log("train/grad_norm", norms.mean(), rank_zero_only=True)
        self.log("train/grad_norm_variance", norms.var(correction=0), rank_zero_only=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Build the optimiser; `on_train_batch_start` sets its rate."""
        o = self.optim
        if o.optimizer == "sgd":
            return torch.optim.SGD(self.parameters(), o.max_lr, momentum=o.momentum, weight_decay=o.weight_decay)
        from timm.optim import Lars

        return Lars(
            self.parameters(), o.max_lr, momentum=o.momentum, weight_decay=o.weight_decay,
            trust_coeff=o.trust_coefficient,
        )  # fmt: skip

    def on_train_batch_start(self, batch: Batch, batch_index: int) -> None:
        """Set the learning rate, a function of the place in the training (see `schedule`)."""
        o, trainer = self.optim, self.trainer
        factor = one_cycle(
            trainer.current_epoch, batch_index, steps=int(trainer.num_training_batches), epochs=trainer.max_epochs or 0,
            pct_start=o.pct_start, div=o.div, final_div=o.final_div,
        )  # fmt: skip
        for group in trainer.optimizers[0].param_groups:
            group["lr"] = factor * o.max_lr

    def configure_callbacks(self) -> Sequence[Callback] | Callback:
        """Hand the losses to the pruner."""
        return [ScoreUpdates()]

    @property
    def _data(self) -> PruningMixin:
        return self.trainer.datamodule  # type: ignore[attr-defined]
