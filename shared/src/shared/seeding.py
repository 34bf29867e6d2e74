"""One seed for everything that is random in a run.

A run is reproducible, and resumes to the same weights, when each random number is a function of where
in the run it is drawn rather than of what was drawn before it. So nothing here saves generator states:

- `generator(seed, "attack", step, rank)` gives a fresh generator for one place in a run;
- `TrainSampler` orders an epoch by (seed, epoch), on any number of processes;
- `seed_step` sets the global generators by (seed, step, rank) before each training batch, which covers
  dropout and every library that draws from global state.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import Sampler

MAX_SEED = 2**32 - 1  # the largest that numpy accepts


def derive(seed: int, *path: int | str) -> int:
    """Hash a seed and a place into a new seed.

    Args:
        seed: the run's seed.
        path: what the new seed is for, such as `("attack", step, rank)`. Different paths give
            unrelated seeds.

    Returns:
        An integer in [0, 2**32).
    """
    text = "/".join(map(str, (seed, *path)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


def generator(seed: int, *path: int | str, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a torch generator that depends on nothing but its arguments (see `derive`)."""
    return torch.Generator(device).manual_seed(derive(seed, *path))


def seed_everything(seed: int, *, deterministic: bool = False) -> None:
    """Seed python's, numpy's and torch's global generators, on every device.

    Changes global state: the three generators, and `PL_GLOBAL_SEED`, which tells Lightning's child
    processes the seed. With `deterministic` also `torch.use_deterministic_algorithms`, cuDNN's
    benchmark mode and `CUBLAS_WORKSPACE_CONFIG`; an operation without a deterministic form then raises.

    Args:
        seed: in [0, 2**32).
        deterministic: forbid nondeterministic algorithms for the rest of the process.

    Raises:
        ValueError: if the seed is out of range.
    """
    if not 0 <= seed <= MAX_SEED:
        raise ValueError(f"seed must lie in [0, {MAX_SEED}], got {seed}")
    os.environ["PL_GLOBAL_SEED"] = str(seed)
    _seed_global(seed)
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False


def seed_step(seed: int, step: int, rank: int = 0) -> None:
    """Seed the global generators for one training step, so that a resumed run draws what an unbroken one does."""
    _seed_global(derive(seed, "step", step, rank))


def _seed_global(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - libraries that draw from numpy's global state are the reason
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:
        # torch.manual_seed would queue a call for each kind of device that is not there, with a traceback and for
        # ever: a millisecond and some kilobytes at every training step.
        torch.default_generator.manual_seed(seed)


def worker_init(worker_id: int) -> None:
    """Seed python and numpy in a dataloader worker from torch's worker seed (`DataLoader(worker_init_fn=...)`)."""
    seed = torch.initial_seed() % (MAX_SEED + 1)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002


def coming_epoch(trainer: Any) -> int:
    """Return the epoch that a training loader is being made for.

    Lightning sets a sampler's epoch only after a loader's worker processes have begun to read, so that the first
    epoch of a resumed run would repeat the order of epoch 0: `TrainSampler(epoch=coming_epoch(trainer))`.

    Args:
        trainer: Lightning's, or None outside a training.
    """
    # `trainer.current_epoch` is still that of the checkpoint when the loaders of a resumed run are made.
    return 0 if trainer is None else int(trainer.fit_loop.epoch_progress.current.processed)


class TrainSampler(Sampler[int]):
    """Indices of one rank in an order that is a function of (seed, epoch).

    Ranks get disjoint shards of one global permutation and the same number of indices each, so that
    gradients can be averaged; where the size does not divide, the permutation wraps around (or, with
    `drop_last`, is cut). Lightning calls `set_epoch`.

    Args:
        size: number of items in the dataset.
        seed: the run's seed.
        shuffle: permute; otherwise the dataset's order.
        rank: this process, in [0, world_size).
        world_size: number of processes.
        drop_last: cut the permutation to a multiple of `world_size` instead of wrapping it.
        epoch: whose order is drawn first (see `coming_epoch`).
    """

    def __init__(
        self,
        size: int,
        seed: int,
        *,
        shuffle: bool = True,
        rank: int = 0,
        world_size: int = 1,
        drop_last: bool = False,
        epoch: int = 0,
    ) -> None:
        _check_shard(size, rank, world_size)
        self.size, self.seed, self.shuffle = size, seed, shuffle
        self.rank, self.world_size = rank, world_size
        self.length = size // world_size if drop_last else -(-size // world_size)
        self.epoch = epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order is drawn next."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        if self.shuffle:
            order = torch.randperm(self.size, generator=generator(self.seed, "order", self.epoch))
        else:
            order = torch.arange(self.size)
        wrapped = torch.arange(self.length * self.world_size) % self.size
        yield from order[wrapped][self.rank :: self.world_size].tolist()


class EvalBatchSampler(Sampler[list[int]]):
    """Batches that hold each item exactly once over all ranks, in as many batches on every rank.

    Lightning's own distributed sampler repeats items to fill the last batch, which biases a metric. Equal
    numbers of batches matter because DistributedDataParallel synchronises buffers in every forward:
    ranks with fewer batches would leave the others waiting. Batches may therefore differ by one in size.

    Args:
        size: number of items in the dataset, at least one for each rank.
        batch_size: the largest batch, except that a rank which would otherwise run out of items
            receives them in fewer, one larger, batches.
        rank: this process, in [0, world_size).
        world_size: number of processes.
    """

    def __init__(self, size: int, batch_size: int, *, rank: int = 0, world_size: int = 1) -> None:
        _check_shard(size, rank, world_size)
        if size < world_size:
            raise ValueError(f"cannot share {size} evaluation items among {world_size} processes")
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        self.indices = range(rank, size, world_size)
        smallest, largest = size // world_size, -(-size // world_size)
        self.batches = min(-(-largest // batch_size), smallest)

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[list[int]]:
        size, larger = divmod(len(self.indices), self.batches)
        start = 0
        for batch in range(self.batches):
            stop = start + size + (batch < larger)
            yield list(self.indices[start:stop])
            start = stop


def _check_shard(size: int, rank: int, world_size: int) -> None:
    if size < 1:
        raise ValueError("the dataset is empty")
    if not 0 <= rank < world_size:
        raise ValueError(f"rank must lie in [0, {world_size}), got {rank}")
