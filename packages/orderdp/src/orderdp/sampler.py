"""The pruning for any PyTorch loop: a batch sampler that is told the losses.

    pruner = Pruner(len(dataset), batch_size=64, pruning=Pruning(keep=0.3))
    loader = DataLoader(Indexed(dataset), batch_sampler=pruner)
    for epoch in range(epochs):
        for indices, (x, y) in loader:
            losses = F.cross_entropy(model(x), y, reduction="none")
            losses.mean().backward()  # with weights: (pruner.weights(indices) * losses).mean()
            ...
            pruner.update(indices, losses)

Each iteration over the loader is one round with its own selection. On several processes each gets a disjoint part of
the same selection, and the scores are exchanged once a round, with integer indices.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, Sampler

from .baselines import Pruning, Static, build_policy
from .selection import Floats, Indices, as_indices, as_losses, select

T = TypeVar("T")
P = TypeVar("P")


class Indexed(Dataset[tuple[int, T]], Generic[T]):
    """A map-style dataset whose items come with their index; the item itself stays as it is.

    Args:
        dataset: has `__getitem__` and `__len__`.

    Raises:
        ValueError: if the dataset is iterable, empty, or has no length: its samples cannot be chosen by index.
    """

    def __init__(self, dataset: Dataset[T]) -> None:
        self.dataset, self.size = dataset, size_of(dataset)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[int, T]:
        return index, self.dataset[index]


def size_of(dataset: Any) -> int:
    """Return the length of a map-style dataset; ValueError for one that cannot be pruned."""
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise ValueError(
            f"the dataset must be map-style, with __getitem__ and __len__, got {type(dataset).__name__}: "
            "pruning chooses samples by their index"
        )
    if len(dataset) == 0:
        raise ValueError("the dataset is empty")
    return len(dataset)


class Round(Sampler[list[int]]):
    """The batches of one round on one process.

    Args:
        parts: one for each batch.
        draw: makes the batch's indices of its part, when it is its turn.
    """

    def __init__(self, parts: Sequence[P], draw: Callable[[P], list[int]]) -> None:
        self.parts, self.draw = parts, draw

    def __len__(self) -> int:
        return len(self.parts)

    def __iter__(self) -> Iterator[list[int]]:
        return map(self.draw, self.parts)


class Pruner(Sampler[list[int]]):
    """Batches of the samples that a policy keeps.

    Every random number is a function of (seed, round), so a state needs no generator.

    Args:
        n: number of samples of the dataset.
        batch_size: samples of a batch on each process; a round's last batch may be smaller.
        pruning: policy and settings.
        seed: of pools, ties and order.
        rounds: T, the number of rounds of the whole training; `infobatch` needs it.
        rank: this process, in [0, world_size).
        world_size: number of processes.

    Attributes:
        scores: the stored losses and visits.
        rounds_begun: number of selections made.
        current: the newest round.
        seen: number of samples trained on so far, by all processes.

    Raises:
        ValueError: if an argument is out of range, or fewer samples are kept than there are processes.
    """

    def __init__(
        self,
        n: int,
        batch_size: int,
        pruning: Pruning | None = None,
        *,
        seed: int = 0,
        rounds: int | None = None,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        if seed < 0:
            raise ValueError(f"seed must be at least 0, got {seed}")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank must lie in [0, {world_size}), got {rank}")
        self.pruning = Pruning() if pruning is None else pruning
        self.policy = build_policy(self.pruning, n, rounds)
        self.n, self.batch_size, self.seed = n, batch_size, seed
        self.rank, self.world_size = rank, world_size
        self.scores = self.pruning.new_scores(n)
        self.rounds_begun = self.seen = 0
        self._seen_before = -1
        self.current: Round | None = None
        self._weights: Floats | None = None
        self._unshared: list[tuple[Indices, Floats]] = []
        kept = getattr(self.policy, "q", n)  # `static` keeps more in its first round, `infobatch` what it finds
        if kept < world_size:
            raise ValueError(f"a round keeps {kept} samples, too few for {world_size} processes")

    @property
    def size(self) -> int | None:
        """Number of samples of every round; None where it varies (`infobatch`, and `static` in its first round)."""
        q = getattr(self.policy, "q", None)
        return None if isinstance(self.policy, Static) else q

    def __len__(self) -> int:
        """Return the number of batches of a round: where rounds differ, of the newest, or the most there can be."""
        if self.size is not None:
            return len(self._bounds(self.size))
        return len(self._bounds(self.n)) if self.current is None else len(self.current)

    def __iter__(self) -> Iterator[list[int]]:
        """Begin a round and yield this process's batches."""
        # A generator begins with its first batch; a loader with workers calls `iter` twice for one pass.
        yield from self.next_round()

    def next_round(self) -> Round:
        """Make the selection of the next round; on all processes at once.

        Returns:
            Its batches on this process. They may be iterated over more than once, as some loops do.
        """
        self.synchronise()
        if self.rounds_begun and self.seen == self._seen_before:
            warnings.warn(
                "the last round told no losses: call update (or use ScoreUpdates) after each step", stacklevel=2
            )
        self._seen_before = self.seen
        t, self.rounds_begun = self.rounds_begun, self.rounds_begun + 1
        self._weights = None
        if self.pruning.round == "step":
            assert self.size is not None
            self.current = Round(self._bounds(self.size), partial(self._draw_step, t))
            return self.current
        indices, weights = self.policy.select(self.scores, t, self._rng(t))
        if weights is not None:
            self._weights = np.ones(self.n, dtype=np.float32)
            self._weights[indices] = weights
        shards = [self._shard(indices[start:stop]) for start, stop in self._bounds(len(indices))]
        self.current = Round(shards, np.ndarray.tolist)
        return self.current

    def weights(self, indices: Any) -> Tensor | None:
        """Return the weights of a batch's losses; their mean is `(weights * losses).mean()`.

        Args:
            indices: (B,) the batch's.

        Returns:
            (B,) float32 on the CPU, or None where all are 1: for every policy but `infobatch`, except in a
            round's last batch when processes get unequal parts of it.
        """
        return None if self._weights is None else torch.from_numpy(self._weights[as_indices(indices)])

    def update(self, indices: Any, losses: Any) -> None:
        """Store the losses of a batch that this process was trained on.

        Args:
            indices: (B,) the batch's, integers.
            losses: (B,) unweighted losses of the forward pass, on any device, with or without gradient.

        Raises:
            ValueError: as `Scores.update`.
        """
        where, loss = as_indices(indices), as_losses(losses)
        if self.world_size == 1:
            self._store(where, loss)
            return
        self.scores.check(where, loss)
        self._unshared.append((where, loss))
        if self.pruning.round == "step":
            self.synchronise()

    def synchronise(self) -> None:
        """Exchange what the processes were told; all must call it. A new round does so by itself."""
        if self.world_size == 1:
            return
        parts = self._unshared or [(np.empty(0, np.int64), np.empty(0, np.float32))]
        indices, losses = (np.concatenate(column) for column in zip(*parts, strict=True))
        self._unshared = []
        for where, loss in gather(indices, losses):
            self._store(where, loss)

    def state_dict(self) -> dict[str, Any]:
        """Return scores and counters; on several processes call `synchronise` first, on all of them."""
        return {
            "scores": torch.from_numpy(self.scores.values.copy()),
            "visits": torch.from_numpy(self.scores.visits.copy()),
            "skipped": self.scores.skipped,
            "rounds_begun": self.rounds_begun,
            "seen": self.seen,
            "policy": self.pruning.policy,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over scores and counters.

        Raises:
            ValueError: if they belong to another dataset or policy.
        """
        if len(state["scores"]) != self.n or state["policy"] != self.pruning.policy:
            raise ValueError(
                f"the saved scores are those of {state['policy']} on {len(state['scores'])} samples, "
                f"expected {self.pruning.policy} on {self.n}"
            )
        self.scores.values = state["scores"].numpy().copy()
        self.scores.visits = state["visits"].numpy().copy()
        self.scores.skipped = state["skipped"]
        self.rounds_begun, self.seen = state["rounds_begun"], state["seen"]
        self._seen_before = -1
        self._unshared = []

    def _rng(self, *place: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, *place])

    def _bounds(self, size: int) -> list[tuple[int, int]]:
        """Cut a round into global batches; a rest of fewer samples than processes joins the batch before."""
        step = self.batch_size * self.world_size
        starts = list(range(0, size, step))
        if len(starts) > 1 and size - starts[-1] < self.world_size:
            starts.pop()
        return list(zip(starts, [*starts[1:], size], strict=True))

    def _shard(self, batch: Indices) -> Indices:
        """Take this process's part of a global batch, and level its weights out where the parts are unequal."""
        part = batch[self.rank :: self.world_size]
        if len(batch) % self.world_size:
            if self._weights is None:
                self._weights = np.ones(self.n, dtype=np.float32)
            # Processes average their gradients: a mean over b samples must count as b / (B / world_size) of one.
            self._weights[part] *= len(part) * self.world_size / len(batch)
        return part

    def _draw_step(self, t: int, bounds: tuple[int, int]) -> list[int]:
        """Draw a batch from a pool of its own, as large in proportion as that of the whole budget q."""
        start, stop = bounds
        self._weights = None
        s, q = self.policy.s, self.policy.q  # type: ignore[attr-defined]
        pool = min(self.n, round((stop - start) * s / q))
        return self._shard(select(self.scores.values, pool, stop - start, self._rng(t, start))).tolist()

    def _store(self, indices: Indices, losses: Floats) -> None:
        if isinstance(self.policy, Static) and self.rounds_begun > 1:
            self.scores.check(indices, losses)
            self.scores.visit(indices)
        else:
            self.scores.update(indices, losses)
        self.seen += len(indices)


def gather(indices: Indices, losses: Floats) -> list[tuple[Indices, Floats]]:
    """Exchange indices, as integers, and losses between all processes; each may have a different number.

    Returns:
        One pair for each process, in the order of their ranks.
    """
    world_size = dist.get_world_size()
    device = torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")
    count = torch.tensor([len(indices)], device=device)
    counts = [torch.zeros_like(count) for _ in range(world_size)]
    dist.all_gather(counts, count)
    longest = max(int(c) for c in counts)
    columns = []
    for values in (torch.from_numpy(indices), torch.from_numpy(losses)):
        padded = torch.zeros(longest, dtype=values.dtype, device=device)
        padded[: len(values)] = values
        received = [torch.empty_like(padded) for _ in range(world_size)]
        dist.all_gather(received, padded)
        columns.append([r[: int(c)].cpu().numpy() for r, c in zip(received, counts, strict=True)])
    return list(zip(*columns, strict=True))
