"""The pruning for any LightningModule and any LightningDataModule.

    class MyPrunedData(PruningMixin, MyData):
        pruning = Pruning(keep=0.3)

    trainer = Trainer(
        callbacks=[ScoreUpdates()], reload_dataloaders_every_n_epochs=1, use_distributed_sampler=False
    )
    trainer.fit(model, MyPrunedData())

The model's `training_step` returns `{"loss": losses.mean(), "losses": losses}`, where `losses` holds one loss per
sample; where `self.trainer.datamodule.weights` is not None, the loss is `(weights * losses).mean()`. It receives its
batches as before: the indices of the samples stay between the mix-in and the callback. Scores and counters are in
every checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler, WeightedRandomSampler

from .baselines import Pruning
from .sampler import Pruner, Round, size_of

if TYPE_CHECKING:
    _Base = LightningDataModule
else:
    _Base = object


class IndexedBatch(NamedTuple):
    """A batch, and which samples it holds.

    Attributes:
        indices: (B,) int64.
        items: what the user's collate function made.
    """

    indices: Tensor
    items: Any


class IndexedItems(Dataset[Any]):
    """Fetches a batch from the user's dataset, keeping the indices beside it.

    Args:
        dataset: map-style.
        collate: makes a batch of a list of items, or of what the dataset's `__getitems__` returns.
    """

    def __init__(self, dataset: Any, collate: Callable[[Any], Any]) -> None:
        self.dataset, self.collate, self.size = dataset, collate, size_of(dataset)

    def __len__(self) -> int:
        return self.size

    def __getitems__(self, indices: list[int]) -> IndexedBatch:
        """Fetch a batch."""
        if hasattr(self.dataset, "__getitems__"):
            items = self.dataset.__getitems__(indices)
        else:
            items = [self.dataset[index] for index in indices]
        return IndexedBatch(torch.tensor(indices), self.collate(items))


def unchanged(batch: Any) -> Any:
    """Return a batch as it is: the collate function of what is collated already."""
    return batch


def pruned_loader(loader: DataLoader[Any], batches: Sampler[list[int]]) -> DataLoader[Any]:
    """Make a loader like another one, but over the batches of a `Pruner` or of one of its rounds.

    Args:
        loader: over the whole dataset; its sampler and `drop_last` are replaced.
        batches: indices of each batch.

    Returns:
        A loader of `IndexedBatch`.
    """
    return DataLoader(
        IndexedItems(loader.dataset, loader.collate_fn),
        batch_sampler=batches,
        collate_fn=unchanged,
        num_workers=loader.num_workers,
        pin_memory=loader.pin_memory,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        prefetch_factor=loader.prefetch_factor,
        timeout=loader.timeout,
        generator=loader.generator,
    )


class PruningMixin(_Base):
    """Prunes the training loader of the LightningDataModule that it is put before.

    Attributes:
        pruning: the settings; set it on the class or the instance.
        seed: of pools, ties and order.
        pruner: the sampler, once training has begun.
        indices: (B,) int64 samples of the current training batch.
        weights: (B,) what to multiply the losses of the current batch by, on its device; None for 1 each.
    """

    pruning: Pruning = Pruning()
    seed: int = 0
    pruner: Pruner | None = None
    indices: Tensor | None = None
    weights: Tensor | None = None
    _restored: dict[str, Any] | None = None
    _waiting: Round | None = None
    _trained_by: Any = None  # a trainer's fit goes on with the scores of its earlier one; another trainer begins anew

    @property
    def rounds(self) -> int:
        """Number of rounds that were trained on, the running one included."""
        return 0 if self.pruner is None else self.pruner.rounds_begun - (self._waiting is not None)

    def train_dataloader(self) -> DataLoader[Any]:
        """Return the batches of the next round.

        Raises:
            ValueError: if the loader has no batch size, or the trainer would change or not renew it.
        """
        loader = super().train_dataloader()
        if not isinstance(loader, DataLoader):
            raise ValueError(f"pruning needs one training DataLoader, got {type(loader).__name__}")
        if self.pruner is None or self.trainer is not self._trained_by:
            self.pruner, self._trained_by, self._waiting = self._new_pruner(loader), self.trainer, None
            if self._restored is not None:
                self.pruner.load_state_dict(self._restored)
        # A round of its own, because Lightning may iterate over the loader of an epoch more than once. It also asks
        # for two loaders before the first epoch of a resumed training: a round nobody has trained on is still the next.
        if self._waiting is None:
            self._waiting = self.pruner.next_round()
        return pruned_loader(loader, self._waiting)

    def _new_pruner(self, loader: DataLoader[Any]) -> Pruner:
        batch_size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
        if batch_size is None:
            raise ValueError("the training loader has no batch_size")
        n, trainer = size_of(loader.dataset), self.trainer
        check_sampler(loader, n, 1 if trainer is None else trainer.world_size)
        if trainer is None:
            return Pruner(n, batch_size, self.pruning, seed=self.seed)
        check_trainer(trainer)
        return Pruner(
            n, batch_size, self.pruning, seed=self.seed, rounds=trainer.max_epochs,
            rank=trainer.global_rank, world_size=trainer.world_size,
        )  # fmt: skip

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Take the indices off a training batch."""
        if not isinstance(batch, IndexedBatch):
            return super().on_before_batch_transfer(batch, dataloader_idx)
        assert self.pruner is not None and self.trainer is not None
        self._waiting = None
        self.indices = batch.indices
        weights = self.pruner.weights(batch.indices)
        self.weights = None if weights is None else weights.to(self.trainer.strategy.root_device)
        return super().on_before_batch_transfer(batch.items, dataloader_idx)

    def state_dict(self) -> dict[str, Any]:
        """Return the pruner's state, beside what the datamodule itself keeps."""
        own = super().state_dict()
        return own if self.pruner is None else {**own, "pruner": self.pruner.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the pruner's state."""
        rest = dict(state_dict)
        self._restored = rest.pop("pruner", None)
        self.pruner = self._waiting = None
        super().load_state_dict(rest)


def check_sampler(loader: DataLoader[Any], n: int, world_size: int) -> None:
    """Raise ValueError for a loader that draws from part of its dataset or not evenly: pruning takes its place."""
    sampler: Any = loader.sampler
    whole = not hasattr(sampler, "__len__") or len(sampler) * world_size >= n
    if not whole or isinstance(sampler, WeightedRandomSampler):
        raise ValueError(
            f"pruning replaces the training loader's sampler, a {type(sampler).__name__} that does not cover the "
            "dataset evenly: give it the samples to train on as a dataset, such as torch.utils.data.Subset"
        )


def check_trainer(trainer: Any) -> None:
    """Raise ValueError where a trainer's options would break the pruning."""
    if trainer.reload_dataloaders_every_n_epochs != 1:
        raise ValueError(
            "reload_dataloaders_every_n_epochs must be 1, because every epoch is a selection of its own; "
            f"got {trainer.reload_dataloaders_every_n_epochs}"
        )
    if trainer.world_size > 1 and trainer._accelerator_connector.use_distributed_sampler:
        raise ValueError("use_distributed_sampler must be False: the pruner itself divides a round among processes")


class ScoreUpdates(Callback):
    """Hands the losses of each training batch to the pruner of the datamodule."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check that there is a pruner."""
        if getattr(_data(trainer), "pruner", None) is None:
            raise ValueError("ScoreUpdates needs a datamodule with PruningMixin")

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Store the losses.

        Raises:
            ValueError: if the training step did not return them, or left the weights out.
        """
        data = _data(trainer)
        losses = outputs.get("losses") if isinstance(outputs, dict) else None
        if losses is None:
            raise ValueError('training_step must return {"loss": ..., "losses": ...} with the loss of each sample')
        data.pruner.update(data.indices, losses)
        if data.weights is not None and "loss" in outputs:
            loss = outputs["loss"] * trainer.accumulate_grad_batches  # which Lightning has divided by
            if not _is_weighted(loss, losses, data.weights):
                raise ValueError(
                    "the samples of this batch have weights (those of infobatch, or those that level unequal parts "
                    "of a batch on several processes): the loss must be (weights * losses).mean(), with the weights of "
                    "self.trainer.datamodule.weights where they are not None"
                )

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Exchange the scores before a checkpoint is written."""
        _data(trainer).pruner.synchronise()


def _data(trainer: Trainer) -> Any:
    return trainer.datamodule  # type: ignore[attr-defined]


def _is_weighted(loss: Tensor, losses: Tensor, weights: Tensor) -> bool:
    """Say whether a loss is not the plain mean, where that differs from the weighted one."""
    plain, weighted = losses.float().mean(), (weights * losses.float()).mean()
    tolerance = 1e-4 * weighted.abs().clamp(min=1e-8)
    return bool(((plain - weighted).abs() <= tolerance) | ((loss.float() - plain).abs() > tolerance))
