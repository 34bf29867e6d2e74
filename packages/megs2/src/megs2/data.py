"""The LightningDataModule: scikit-learn's 1,797 digits of 8 x 8 pixels.

A batch is a pair of images (B, 8, 8), float32 in [0, 1], and labels (B,), int64.
"""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import LightningDataModule
from shared.seeding import EvalBatchSampler, TrainSampler, coming_epoch, generator
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

TRAIN_SIZE = 1200  # the other 597 are the test set


class Megs2Data(LightningDataModule):
    """Batches of the digits for training, validation and test.

    Validation images are part of the training set, never of the test set. The splits do not depend on the
    run's seed. Every image is scored once, over all processes.

    Args:
        batch_size: images of a training batch on each process.
        eval_batch_size: likewise of validation and test.
        val_fraction: share of the training set held out for validation, in (0, 1).
        seed: the run's seed: of the order of training.

    Raises:
        ValueError: if an option is out of range.
    """

    def __init__(
        self, batch_size: int = 128, eval_batch_size: int = 256, val_fraction: float = 0.1, seed: int = 0
    ) -> None:
        super().__init__()
        for option, value in {"batch_size": batch_size, "eval_batch_size": eval_batch_size}.items():
            if value < 1:
                raise ValueError(f"{option} must be at least 1, got {value}")
        if not 0 < val_fraction < 1:
            raise ValueError(f"val_fraction must lie in (0, 1), got {val_fraction}")
        self.batch_size, self.eval_batch_size = batch_size, eval_batch_size
        self.val_fraction, self.seed = val_fraction, seed
        self.parts: dict[str, Dataset[Any]] = {}

    def setup(self, stage: str | None = None) -> None:
        """Read and split the digits."""
        digits = load_digits()
        images = torch.tensor(digits.images, dtype=torch.float32) / 16
        whole = TensorDataset(images, torch.tensor(digits.target))
        order = torch.randperm(len(whole), generator=generator(0, "split")).tolist()
        val_size = max(1, round(self.val_fraction * TRAIN_SIZE))
        self.parts = {
            "val": Subset(whole, order[:val_size]),
            "train": Subset(whole, order[val_size:TRAIN_SIZE]),
            "test": Subset(whole, order[TRAIN_SIZE:]),
        }

    @property
    def _shard(self) -> dict[str, int]:
        if self.trainer is None:
            return {"rank": 0, "world_size": 1}
        return {"rank": self.trainer.global_rank, "world_size": self.trainer.world_size}

    def train_dataloader(self) -> DataLoader[Any]:
        """Return shuffled batches; their order depends on seed and epoch only."""
        part = self.parts["train"]
        epoch = coming_epoch(self.trainer)
        sampler = TrainSampler(len(part), self.seed, epoch=epoch, **self._shard)  # type: ignore[arg-type]
        return DataLoader(part, self.batch_size, sampler=sampler)

    def val_dataloader(self) -> DataLoader[Any]:
        """Return the validation images, each once."""
        return self._evaluation_loader("val")

    def test_dataloader(self) -> DataLoader[Any]:
        """Return the test images, each once."""
        return self._evaluation_loader("test")

    def _evaluation_loader(self, name: str) -> DataLoader[Any]:
        part = self.parts[name]
        batches = EvalBatchSampler(len(part), self.eval_batch_size, **self._shard)  # type: ignore[arg-type]
        return DataLoader(part, batch_sampler=batches)
