"""The LightningModule: wires lifting, network, optimiser and metrics, and keeps the best epoch's weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from shared.kernels.segment_knn import segment_knn
from torch import Tensor
from torch.optim import Adam
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch_geometric.data import Data
from torchmetrics import Accuracy, MeanAbsoluteError, MeanMetric, Metric, SumMetric
from torchmetrics.classification import BinaryAUROC

from difflift.complexes import Complex
from difflift.datasets import Task
from difflift.lifting import DiffLift, Lifting
from difflift.models import LiftedNetwork, Pooling
from difflift.neighbours import nearest
from difflift.networks import Network
from difflift.options import check_choice, check_number

if TYPE_CHECKING:
    from difflift.data import GraphData

METRICS = {"graph": "accuracy", "node": "accuracy", "regression": "mae", "binary": "auroc"}


def fastest_nearest(h: Tensor, sizes: Tensor, k: int) -> Tensor:
    """Do what `neighbours.nearest` does, on a GPU by the kernel."""
    return segment_knn(h.detach(), sizes, k) if h.is_cuda else nearest(h, sizes, k)


def build_metric(task: Task, classes: int) -> Metric:
    """Return accuracy, ROC-AUC or mean absolute error."""
    if task == "binary":
        return BinaryAUROC()
    if task == "regression":
        return MeanAbsoluteError()
    return Accuracy(task="multiclass", num_classes=classes, average="micro")


class LiftingModule(LightningModule):
    """Train a network on lifted graphs; test the weights of the epoch that was best on validation data.

    Args:
        lifting: `difflift.DiffLift`, a static one such as `difflift.CycleLifting`, or your own `difflift.Lifting`.
        network: `difflift.UniGCNII`, `difflift.UniGIN`, `difflift.CWN`, `difflift.TopoTune`, `difflift.GraphGIN`, or
            your own `difflift.Network`.
        features: F, of the data's vertices.
        classes: of the data; 1 for a regression.
        task: `graph` or `node` (classes, judged by accuracy), `regression` of graphs (mean absolute error), `binary`
            (two classes of graphs, judged by ROC-AUC).
        width: D of the network.
        pooling: of the vertices of a graph.
        propagate_down: carry the signals of cells back to the vertices before pooling, where there are any.
        dropout: of the features' encoder.
        lr: learning rate of Adam.
        weight_decay: of Adam.
        sparsity: λ, weight of the mean probability of inclusion in the loss.
        lr_patience: epochs without a better validation score before the learning rate is halved.
        patience: epochs without a better validation score before training stops; None never to stop.

    Raises:
        ValueError: if an option is out of range.
    """

    def __init__(
        self,
        lifting: Callable[[int], Lifting],
        network: Callable[[int], Network],
        features: int,
        classes: int,
        task: Task = "graph",
        width: int = 64,
        pooling: Pooling = "mean",
        propagate_down: bool = True,
        dropout: float = 0.3,
        lr: float = 0.005,
        weight_decay: float = 0.0,
        sparsity: float = 0.0,
        lr_patience: int = 10,
        patience: int | None = 15,
    ) -> None:
        super().__init__()
        check_number("lr", lr, above=0)
        check_number("weight_decay", weight_decay, least=0)
        check_number("sparsity", sparsity, least=0)
        if lr_patience < 0 or (patience is not None and patience < 1):
            raise ValueError(
                f"patience must be at least 1 and lr_patience at least 0, got {patience} and {lr_patience}"
            )
        check_choice("task", task, Task)
        if (classes == 1) != (task == "regression"):
            raise ValueError(f"classes must be 1 for a regression and at least 2 otherwise, got {classes} for {task}")
        if task == "binary" and classes != 2:
            raise ValueError(f"classes must be 2 for the task binary, got {classes}")
        self.features, self.classes, self.task, self.sparsity = features, classes, task, sparsity
        self.lr, self.weight_decay, self.lr_patience, self.patience = lr, weight_decay, lr_patience, patience
        level: Literal["graph", "node"] = "node" if task == "node" else "graph"
        self.model = LiftedNetwork(features, classes, lifting, network, width, level, pooling, propagate_down, dropout)
        if isinstance(self.model.lifting, DiffLift):
            self.model.lifting.nearest = fastest_nearest
            if sparsity and not self.model.lifting.keep_excluded:
                raise ValueError(f"sparsity needs keep_excluded, to see p of what is excluded; got {sparsity} without")
        self.val_metric, self.test_metric = build_metric(task, classes), build_metric(task, classes)
        self.test_count, self.test_added, self.test_k = SumMetric(), MeanMetric(), MeanMetric()
        self.test_share = MeanMetric()
        self.best: dict[str, Any] = {}  # score, epoch and weights of the best epoch
        self.plateau: ReduceLROnPlateau | None = None
        self.plateau_state: dict[str, Any] = {}  # of a run that is resumed
        self.chooses = isinstance(self.model.lifting, DiffLift)

    def setup(self, stage: str) -> None:
        """Refuse data that the network was not made for.

        Raises:
            ValueError: if features, classes or task are not the data's; the message says what to set.
        """
        found = cast("GraphData", self.trainer.datamodule).splits  # type: ignore[attr-defined]
        if found.classes < 2 and found.task != "regression":
            raise ValueError("the data has one class alone, expected two or more")
        for option in ("features", "classes", "task"):
            if getattr(self, option) != getattr(found, option):
                wanted = f"--model.features={found.features} --model.classes={found.classes} --model.task={found.task}"
                raise ValueError(f"model.{option} is {getattr(self, option)}, but the data asks for {wanted}")

    def forward(self, batch: Data) -> tuple[Tensor, Complex]:
        """Return logits of graphs (G, K) or vertices (N, K), and the complexes."""
        return cast("tuple[Tensor, Complex]", self.model(batch))

    def scored(self, batch: Data) -> tuple[Tensor, Tensor, Complex]:
        """Return logits and targets of what counts, a row each, and the complexes."""
        logits, lifted = self(batch)
        if "scored" in batch:
            return logits[batch.scored], batch.y[batch.scored], lifted
        return logits, batch.y, lifted

    def training_step(self, batch: Data, batch_index: int) -> Tensor:
        """Return the loss of a batch (Sec. 3.5)."""
        logits, y, lifted = self.scored(batch)
        loss = F.l1_loss(logits.squeeze(1), y) if self.task == "regression" else F.cross_entropy(logits, y)
        penalty = lifted.penalty
        self.log("train/loss", loss, on_step=False, on_epoch=True, batch_size=len(y))
        if self.chooses:
            candidates = max(lifted.candidates, 1)
            self.log("train/p", penalty, on_step=False, on_epoch=True, batch_size=candidates)
            self.log("train/included", lifted.added / candidates, on_step=False, on_epoch=True, batch_size=candidates)
        return loss + self.sparsity * penalty

    def on_train_epoch_end(self) -> None:
        """Stop with an error once the loss is not a number.

        Raises:
            ValueError: if the epoch's mean loss is not finite.
        """
        loss = float(self.trainer.callback_metrics.get("train/loss", 0.0))
        if not math.isfinite(loss):
            raise ValueError(f"the loss of epoch {self.current_epoch} is {loss}: lower lr, or look at the features")

    def update(self, metric: Metric, logits: Tensor, y: Tensor) -> None:
        """Count predictions."""
        if self.task == "regression":
            metric.update(logits.squeeze(1), y)
        elif self.task == "binary":
            metric.update(torch.softmax(logits, 1)[:, 1], y)
        else:
            metric.update(logits, y)

    def validation_step(self, batch: Data, batch_index: int) -> None:
        """Count predictions."""
        logits, y, _ = self.scored(batch)
        self.update(self.val_metric, logits, y)

    def on_validation_epoch_end(self) -> None:
        """Log the score, keep the weights if it is the best so far, and stop if it has long been better."""
        value = self.val_metric.compute()
        self.val_metric.reset()
        score = -value if self.task == "regression" else value
        self.log(f"val/{METRICS[self.task]}", value, prog_bar=True)
        self.log("val/score", score)
        if self.trainer.sanity_checking:
            return
        # Lightning would step it after the epoch's checkpoint has been written, and a resumed run would lose the step.
        if self.plateau is not None:
            self.plateau.step(float(score))
        # Nothing is greater than a score that is no number.
        if not self.best or math.isnan(self.best["score"]) or float(score) > self.best["score"]:
            weights = {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}
            self.best = {"score": float(score), "epoch": self.current_epoch, "weights": weights}
        elif self.patience is not None and self.current_epoch - self.best["epoch"] >= self.patience:
            self.trainer.should_stop = True

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the best epoch's weights, and when the learning rate was last halved."""
        checkpoint["best"] = self.best
        checkpoint["plateau"] = self.plateau_state if self.plateau is None else self.plateau.state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take both over."""
        self.best, self.plateau_state = checkpoint.get("best", {}), checkpoint.get("plateau", {})

    def restore_best(self) -> None:
        """Give the network the weights of the best epoch, where there has been one."""
        if self.best:
            self.model.load_state_dict(self.best["weights"])

    def on_test_start(self) -> None:
        """Test the best epoch's weights."""
        self.restore_best()

    def test_step(self, batch: Data, batch_index: int) -> None:
        """Count predictions, and what was lifted."""
        logits, y, lifted = self.scored(batch)
        self.update(self.test_metric, logits, y)
        self.test_count.update(len(y))
        self.log(f"test/{METRICS[self.task]}", self.test_metric)
        self.log("test/n", self.test_count)
        self.test_added.update(lifted.added / lifted.graphs, lifted.graphs)
        self.log("test/added", self.test_added)
        if self.chooses:
            self.test_share.update(lifted.added / max(lifted.candidates, 1), lifted.candidates)
            self.log("test/included", self.test_share)
        if self.chooses and lifted.k is not None:
            self.test_k.update(lifted.k.float())
            self.log("test/k", self.test_k)

    def configure_optimizers(self) -> Adam:
        """Build Adam, whose rate is halved when the validation score has stopped rising (Sec. 3.5)."""
        adam = Adam(self.parameters(), self.lr, weight_decay=self.weight_decay)
        # A relative threshold would take equal scores below 0 for better ones.
        self.plateau = ReduceLROnPlateau(
            adam, mode="max", factor=0.5, patience=self.lr_patience, min_lr=1e-6, threshold=0, threshold_mode="abs"
        )
        if self.plateau_state:
            self.plateau.load_state_dict(self.plateau_state)
        return adam
