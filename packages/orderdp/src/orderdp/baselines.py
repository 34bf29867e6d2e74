"""What the paper compares with, behind the interface of `selection.OrderDP`.

A policy has `select(scores, t, rng) -> Selection` and keeps no state: all it knows is in `Scores`. Three of the
baselines are OrderDP itself with other sizes: `full` (s = q = n), `random` (s = q) and `topq` (s = n).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import numpy as np

from .selection import NonFinite, OrderDP, Scores, Selection, sizes, top

PolicyName = Literal["orderdp", "full", "random", "topq", "infobatch", "ucb", "eps_greedy", "static"]


POLICIES: tuple[PolicyName, ...] = get_args(PolicyName)
EMA_DECAY = 0.8  # of the scores of `ucb`


@dataclass(frozen=True)
class Pruning:
    """The settings of a pruning.

    Attributes:
        policy: `orderdp`, or a baseline: `full`, `random`, `topq`, `infobatch`, `ucb`, `eps_greedy`, `static`.
        keep: share q / n of the samples that an epoch trains on, in (0, 1]; nothing to `full` and `infobatch`.
        explore: share ρ = s / n drawn into OrderDP's pool, in [keep, 1]; the paper's κ is keep / explore.
        round: `epoch` selects once an epoch, as the released code does; `step` draws a pool of its own for
            every batch, of s B / q samples, as the theory is written (`orderdp` and `random` only).
        initial_score: of samples never trained on; inf (YAML: .inf) visits each once before any again. The
            released code has 3.0 on CIFAR and 1.0 on ImageNet.
        non_finite: `raise` an error for a loss that is NaN or infinite, or `skip` it: its sample keeps its score.
        prune: r of `infobatch`, in [0, 1).
        delta: δ of `infobatch`, in [0, 1]: the share of epochs that are pruned.
        ucb_c: c of `ucb`, >= 0.
        epsilon: ε of `eps_greedy`, in [0, 1].

    Raises:
        ValueError: if a setting is out of range.
    """

    policy: PolicyName = "orderdp"
    keep: float = 0.3
    explore: float = 0.5
    round: Literal["epoch", "step"] = "epoch"
    initial_score: float = math.inf
    non_finite: NonFinite = "raise"
    prune: float = 0.5
    delta: float = 0.875
    ucb_c: float = 1.0
    epsilon: float = 0.1

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise ValueError(f"policy must be one of {', '.join(POLICIES)}, got {self.policy!r}")
        if self.round not in ("epoch", "step"):
            raise ValueError(f"round must be epoch or step, got {self.round!r}")
        if self.round == "step" and self.policy not in ("orderdp", "random"):
            raise ValueError(f"round must be epoch for the policy {self.policy}, got step")
        if not 0 < self.keep <= 1:
            raise ValueError(f"keep must lie in (0, 1], got {self.keep}")
        if self.policy == "orderdp" and not self.keep <= self.explore <= 1:
            raise ValueError(f"explore must lie in [keep, 1] = [{self.keep}, 1], got {self.explore}")
        for option, value in {"delta": self.delta, "epsilon": self.epsilon}.items():
            if not 0 <= value <= 1:
                raise ValueError(f"{option} must lie in [0, 1], got {value}")
        if not 0 <= self.prune < 1:
            raise ValueError(f"prune must lie in [0, 1), got {self.prune}")
        if math.isnan(self.initial_score) or self.initial_score == -math.inf:
            raise ValueError(f"initial_score must be a number or inf, got {self.initial_score}")
        if self.non_finite not in ("raise", "skip"):
            raise ValueError(f"non_finite must be raise or skip, got {self.non_finite!r}")
        if not 0 <= self.ucb_c < math.inf:
            raise ValueError(f"ucb_c must be a finite number >= 0, got {self.ucb_c}")

    def new_scores(self, n: int) -> Scores:
        """Make the scores of n samples before the first round."""
        decay = EMA_DECAY if self.policy == "ucb" else 0.0
        return Scores(n, self.initial_score, decay, self.non_finite)


class Policy(Protocol):
    """What `sampler.Pruner` asks of a policy."""

    def select(self, scores: Scores, t: int, rng: np.random.Generator) -> Selection:
        """Select what round t, counted from 0, trains on."""
        ...


@dataclass(frozen=True)
class UCB:
    """Keep the q samples of highest upper confidence bound (Raju et al., 2021; details inferred).

    Priority: EMA of the loss + c · sqrt(log t / visits) in round t; samples never visited come first.

    Attributes:
        q: how many a round keeps.
        c: weight of the confidence term, >= 0.
    """

    q: int
    c: float

    def select(self, scores: Scores, t: int, rng: np.random.Generator) -> Selection:
        """Select by priority; the scores are the EMA, see `build_policy`."""
        visits = np.maximum(scores.visits, 1)
        bonus = self.c * np.sqrt(math.log(t + 1) / visits, dtype=np.float32)
        priority = np.where(scores.visits > 0, scores.values + bonus, np.float32(math.inf))
        return _shuffled(top(priority, self.q, rng), rng)


@dataclass(frozen=True)
class EpsGreedy:
    """Keep the q samples of largest score, but draw a share ε of them uniformly from the others.

    Attributes:
        q: how many a round keeps.
        epsilon: share ε in [0, 1] that is drawn.
    """

    q: int
    epsilon: float

    def select(self, scores: Scores, t: int, rng: np.random.Generator) -> Selection:
        """Select greedily, then fill up by chance."""
        drawn = round(self.epsilon * self.q)
        kept = np.zeros(len(scores), dtype=np.bool_)
        if drawn < self.q:
            kept = top(scores.values, self.q - drawn, rng)
        kept[rng.choice(np.flatnonzero(~kept), drawn, replace=False)] = True
        return _shuffled(kept, rng)


@dataclass(frozen=True)
class Static:
    """Train on everything once, then for ever on the q samples of largest loss in that first round.

    It shows why pruning has to be dynamic. `Pruner` stops updating the scores after the first round.

    Attributes:
        q: how many all rounds but the first keep.
    """

    q: int

    def select(self, scores: Scores, t: int, rng: np.random.Generator) -> Selection:
        """Select all samples in round 0, then the same q."""
        if t == 0:
            return Selection(rng.permutation(len(scores)))
        # Ties are broken the same way in every round.
        return _shuffled(top(scores.values, self.q, np.random.default_rng(0)), rng)


@dataclass(frozen=True)
class InfoBatch:
    """Drop samples below the mean score with probability r, and weight the rest of them by 1/(1-r) (Qin et al., 2024).

    Samples at or above the mean are always kept with weight 1. From round δT on everything is trained on with
    weight 1. How many samples a round has depends on the losses: about 1 - r · P[score < mean].

    Attributes:
        prune: r in [0, 1).
        rounds: T, the number of rounds of the training.
        delta: δ in [0, 1].
    """

    prune: float
    rounds: int
    delta: float

    def select(self, scores: Scores, t: int, rng: np.random.Generator) -> Selection:
        """Select by the mean of the scores; samples never trained on are kept."""
        n = len(scores)
        known = np.isfinite(scores.values)
        if t >= self.delta * self.rounds - 1e-9 or not known.any():
            return Selection(rng.permutation(n))
        # In double precision: the sum of a million float32 scores has lost several digits.
        below = known & (scores.values < scores.values[known].mean(dtype=np.float64))
        kept = np.flatnonzero(~below | (rng.random(n) >= self.prune))
        rng.shuffle(kept)
        weights = np.where(below[kept], 1 / (1 - self.prune), 1.0)
        return Selection(kept, weights.astype(np.float32))


def build_policy(pruning: Pruning, n: int, rounds: int | None = None) -> Policy:
    """Make the policy that the settings name.

    Args:
        pruning: the settings.
        n: number of samples.
        rounds: T of the whole training; only `infobatch` needs it.

    Raises:
        ValueError: if the dataset is empty, `keep` leaves no sample, or T is missing.
    """
    name = pruning.policy
    s, q = sizes(n, pruning.keep, pruning.explore if name == "orderdp" else 1.0)
    if name == "infobatch":
        if rounds is None or rounds < 1:
            raise ValueError(f"infobatch needs the number of rounds of the whole training, got {rounds}")
        return InfoBatch(pruning.prune, rounds, pruning.delta)
    if name == "ucb":
        return UCB(q, pruning.ucb_c)
    if name == "eps_greedy":
        return EpsGreedy(q, pruning.epsilon)
    if name == "static":
        return Static(q)
    return OrderDP(n, *{"orderdp": (s, q), "full": (n, n), "random": (q, q), "topq": (n, q)}[name])


def _shuffled(kept: np.ndarray, rng: np.random.Generator) -> Selection:
    indices = np.flatnonzero(kept)
    rng.shuffle(indices)
    return Selection(indices)
