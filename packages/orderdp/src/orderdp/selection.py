"""One round of OrderDP: draw a random pool, keep its samples of largest stored loss (Sec. 3.2).

    S_t: s of the n samples, uniform without replacement
    Q_t: the q samples of S_t with the largest score H, ties broken at random
    train on Q_t, each sample with weight 1; H_i <- the loss of that forward pass for i in Q_t, unchanged elsewhere

NumPy only; the file can be copied alone. A round costs O(n): partitions and comparisons of whole arrays,
no sort. s = q is uniform random subsampling, s = n is deterministic top-q.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Indices = NDArray[np.int64]
NonFinite = Literal["raise", "skip"]


class Selection(NamedTuple):
    """What a round trains on.

    Attributes:
        indices: (q,) the samples, in the order of training.
        weights: (q,) what to multiply their losses by before the mean; None for 1 each.
    """

    indices: Indices
    weights: Floats | None = None


def sizes(n: int, keep: float, explore: float) -> tuple[int, int]:
    """Turn ratios into counts, exactly: rounded, never cut off (int(0.29 * 100) would be 28).

    Args:
        n: number of samples.
        keep: share q / n of the samples that a round trains on, in (0, 1].
        explore: share ρ = s / n that it draws into the pool, in [keep, 1]. The paper's κ = q / s is keep / explore.

    Returns:
        s and q, with 1 <= q <= s <= n.

    Raises:
        ValueError: if a ratio is out of range, or leaves no sample.
    """
    if n < 1:
        raise ValueError("the dataset is empty")
    if not 0 < keep <= 1:
        raise ValueError(f"keep must lie in (0, 1], got {keep}")
    if not keep <= explore <= 1:
        raise ValueError(f"explore must lie in [keep, 1] = [{keep}, 1]: the pool holds what is kept; got {explore}")
    s, q = round(explore * n), round(keep * n)
    if q < 1:
        raise ValueError(f"keep {keep} of {n} samples rounds to none")
    return s, q


def top(values: NDArray[Any], k: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Mark the k largest values; those equal to the k-th are drawn at random, each with the same probability.

    Args:
        values: (n,) of any ordered type, without NaN.
        k: how many, in [1, n].
        rng: breaks ties.

    Returns:
        (n,) true at k places.
    """
    n = len(values)
    threshold = np.partition(values, n - k)[n - k]
    marked = values > threshold
    wanted = k - np.count_nonzero(marked)
    tied = np.flatnonzero(values == threshold)
    marked[rng.choice(tied, wanted, replace=False, shuffle=False) if wanted < len(tied) else tied] = True
    return marked


def draw_pool(n: int, s: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Draw the pool S_t: every set of s samples is equally likely.

    Args:
        n: number of samples.
        s: size of the pool, in [1, n].
        rng: source of the draw.

    Returns:
        (n,) which samples are in it.
    """
    if s == n:
        return np.ones(n, dtype=np.bool_)
    # The s largest of n independent keys, which may be short because `top` treats ties fairly. Several times
    # faster than a permutation, which jumps through memory.
    return top(rng.integers(0, 2**32, n, dtype=np.uint32), s, rng)


def select(scores: Floats, s: int, q: int, rng: np.random.Generator) -> Indices:
    """Select what a round trains on (Sec. 3.2, steps 1 to 3).

    Args:
        scores: (n,) stored losses H; +inf for samples never trained on puts them first. No NaN, no -inf.
        s: size of the pool, q <= s <= n.
        q: how many are kept, >= 1.
        rng: source of the pool, of ties and of the order.

    Returns:
        (q,) different indices in random order.

    Raises:
        ValueError: if s or q is out of range, or a score is NaN or -inf.
    """
    check_sizes(len(scores), s, q)
    # A NaN makes every comparison false, so the minimum finds it as well as -inf.
    if not scores.min() > -math.inf:
        raise ValueError("scores must be neither NaN nor -inf: a sample would win or lose every comparison")
    pool = draw_pool(len(scores), s, rng)
    kept = np.flatnonzero(top(np.where(pool, scores, np.float32(-math.inf)), q, rng))
    rng.shuffle(kept)
    return kept


def check_sizes(n: int, s: int, q: int) -> None:
    """Raise ValueError unless 1 <= q <= s <= n."""
    if n < 1:
        raise ValueError("the dataset is empty")
    if not 1 <= s <= n:
        raise ValueError(f"s, the size of the pool, must lie in [1, {n}], got {s}")
    if not 1 <= q <= s:
        raise ValueError(f"q, the number kept, must lie in [1, s] = [1, {s}], got {q}")


@dataclass(frozen=True)
class OrderDP:
    """The paper's policy. `s = q` is dynamic random pruning, `s = n` top-q, `s = q = n` full training.

    Attributes:
        n: number of samples.
        s: size of the pool.
        q: how many a round keeps.

    Raises:
        ValueError: unless 1 <= q <= s <= n.
    """

    n: int
    s: int
    q: int

    def __post_init__(self) -> None:
        check_sizes(self.n, self.s, self.q)

    def select(self, scores: Scores, t: int, rng: np.random.Generator) -> Selection:
        """Select what a round trains on."""
        return Selection(select(scores.values, self.s, self.q, rng))


class Scores:
    """The last known loss of every sample (H in the paper), and how often each was trained on.

    Args:
        n: number of samples.
        initial: score of samples never trained on: inf visits each once before any again; the released code
            has 3.0 on CIFAR and 1.0 on ImageNet.
        decay: share of the old score that an update keeps, in [0, 1); 0 stores the newest loss.
        non_finite: what to do with a loss that is NaN or infinite: `raise`, or `skip` it and count it in
            `skipped`. It is never stored.

    Attributes:
        values: (n,) float32.
        visits: (n,) int64.
        skipped: number of losses that were not stored.

    Raises:
        ValueError: if an argument is out of range.
    """

    def __init__(self, n: int, initial: float = math.inf, decay: float = 0.0, non_finite: NonFinite = "raise") -> None:
        if n < 1:
            raise ValueError("the dataset is empty")
        if math.isnan(initial) or initial == -math.inf:
            raise ValueError(f"the initial score must be a number or inf, got {initial}")
        if not 0 <= decay < 1:
            raise ValueError(f"decay must lie in [0, 1), got {decay}")
        if non_finite not in ("raise", "skip"):
            raise ValueError(f'non_finite must be "raise" or "skip", got {non_finite!r}')
        self.initial, self.decay, self.non_finite = initial, decay, non_finite
        self.values = np.full(n, initial, dtype=np.float32)
        self.visits = np.zeros(n, dtype=np.int64)
        self.skipped = 0

    def __len__(self) -> int:
        return len(self.values)

    def update(self, indices: Any, losses: Any) -> None:
        """Store the losses of a forward pass; the scores of all other samples stay (lazy refresh; Sec. 3.2, step 4).

        Args:
            indices: (B,) integers in [0, n), an array or tensor; different from each other.
            losses: (B,) unweighted losses, an array or tensor on any device, with or without gradient.

        Raises:
            ValueError: if the shapes differ, an index is out of range or no integer, or a loss is not finite
                and `non_finite` is `raise`. Nothing is stored then.
        """
        where, loss = as_indices(indices), as_losses(losses)
        self.check(where, loss)
        finite = np.isfinite(loss)
        if not finite.all():
            self.skipped += int((~finite).sum())
            where, loss = where[finite], loss[finite]
        if self.decay:
            averaged = self.decay * self.values[where] + (1 - self.decay) * loss
            loss = np.where(self.visits[where] > 0, averaged, loss)
        self.values[where] = loss
        self.visits[where] += 1

    def visit(self, indices: Any) -> None:
        """Count samples as trained on, without storing a loss."""
        self.visits[as_indices(indices)] += 1

    def check(self, indices: Indices, losses: Floats) -> None:
        """Raise ValueError unless `update` would take these, (B,) and (B,)."""
        if losses.ndim != 1:
            raise ValueError(
                f"losses must hold one loss per sample, shape (B,), got shape {losses.shape}: "
                'compute the loss with reduction="none"'
            )
        if indices.shape != losses.shape:
            raise ValueError(f"got {indices.size} indices and {losses.size} losses, expected one loss per index")
        if indices.size and not 0 <= indices.min() <= indices.max() < len(self):
            raise ValueError(f"indices must lie in [0, {len(self)}), got {indices.min()} to {indices.max()}")
        finite = np.isfinite(losses)
        if self.non_finite == "raise" and not finite.all():
            raise ValueError(f"the loss of sample {indices[~finite][0]} is {losses[~finite][0]}, expected a number")


def as_indices(indices: Any) -> Indices:
    """Turn integers (array, tensor or list) into int64; refuse floats, which are wrong above 2**24."""
    array = np.asarray(indices.detach().cpu() if hasattr(indices, "detach") else indices)
    if array.size and not np.issubdtype(array.dtype, np.integer):
        raise ValueError(f"indices must be integers, got {array.dtype}")
    return array.astype(np.int64, copy=False)


def as_losses(losses: Any) -> Floats:
    """Turn losses (array, tensor of any floating type and device, or list) into float32 on the CPU."""
    if hasattr(losses, "detach"):  # bfloat16 has no NumPy type
        losses = losses.detach().float().cpu().numpy()
    return np.asarray(losses, dtype=np.float32)
