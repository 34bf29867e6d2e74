"""Occupancies from samples, and what the sampling error costs (Sec. 3.5, step 1).

(a) From N episodes of a policy: d̂_h(s, a) is the share of episodes in s, a at stage h.
(b) From one exploratory data set: p̂ from counts, then d̂ under p̂ by the usual recursion (`mdp.occupancies`).

Then β bounds the statistical slack of a return: relax each row of the feedback by β and widen [m, M] by β.
All of this is (inferred). NumPy, and `mdp.py`.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robrel.mdp import MDP

Array = NDArray[np.float64]
Indices = NDArray[np.int64]


def empirical_occupancies(states: ArrayLike, actions: ArrayLike, n_states: int, n_actions: int) -> Array:
    """Estimate occupancies as empirical frequencies; unbiased, with variance d (1 - d) / N of each entry.

    Args:
        states: (..., N, H) states of N episodes.
        actions: (..., N, H) likewise.
        n_states: S.
        n_actions: A.

    Returns:
        d̂ (..., H, S, A). A zero says that the pair was not seen, not that its reward is known.

    Raises:
        ValueError: if the shapes differ, there is no episode, or a state or action is out of range.
    """
    s, a = _episodes(states, actions, n_states, n_actions)
    *batch, episodes, horizon = s.shape
    size = n_states * n_actions
    cell = np.arange(math.prod(batch))[:, None, None] * horizon + np.arange(horizon)  # the policy and the stage
    pair = (s * n_actions + a).reshape(-1, episodes, horizon)
    counts = np.bincount((cell * size + pair).ravel(), minlength=math.prod(batch) * horizon * size)
    return (counts / episodes).reshape(*batch, horizon, n_states, n_actions)


def estimate_transitions(
    states: ArrayLike, actions: ArrayLike, n_states: int, n_actions: int, stationary: bool = True
) -> Array:
    """Estimate transitions by counting: p̂(s'|s, a) = n(s, a, s') / n(s, a), uniform where n(s, a) = 0.

    Args:
        states: (N, H) states of N exploratory episodes.
        actions: (N, H) likewise.
        n_states: S.
        n_actions: A.
        stationary: count over all stages together; otherwise each stage has its own table.

    Returns:
        p̂ (S, A, S), or (H, S, A, S), where the last stage, after which nothing is seen, is uniform. Dense.

    Raises:
        ValueError: as `empirical_occupancies`.
    """
    s, a = _episodes(states, actions, n_states, n_actions)
    if s.ndim != 2:
        raise ValueError(f"states and actions must have shape (N, H), got {s.shape}")
    stages = 1 if stationary else s.shape[1]
    stage = np.zeros(s.shape[1] - 1, dtype=np.int64) if stationary else np.arange(s.shape[1] - 1)
    cell = ((stage * n_states + s[:, :-1]) * n_actions + a[:, :-1]) * n_states + s[:, 1:]
    counts = np.bincount(cell.ravel(), minlength=stages * n_states * n_actions * n_states)
    n = counts.reshape(stages, n_states, n_actions, n_states).astype(np.float64)
    total = n.sum(-1, keepdims=True)
    p = np.divide(n, total, out=np.full_like(n, 1 / n_states), where=total > 0)
    return p[0] if stationary else p


def estimated_mdp(states: ArrayLike, actions: ArrayLike, n_states: int, n_actions: int, stationary: bool = True) -> MDP:
    """Estimate the whole MDP, p̂ and μ̂0, from exploratory episodes; arguments as in `estimate_transitions`."""
    p = estimate_transitions(states, actions, n_states, n_actions, stationary)
    s = np.asarray(states)
    return MDP(p, np.bincount(s[:, 0], minlength=n_states) / len(s), s.shape[1])


def slack(
    states: int, actions: int, horizon: int, episodes: int, comparisons: int, delta: float, bound: float = 1.0
) -> float:
    """Compute β, the statistical slack of estimated returns that holds for all rewards at once (Sec. 3.5).

        β = bound · Σ_h ( √(2 S A / N) + √(2 log(2 H (n_c + 2) / δ) / N) )

    The first term bounds the mean of ‖D̂_h - D_h‖₁ for a difference D of two occupancies, estimated apart. The second
    is the deviation from the mean (McDiarmid) of single occupancies, for all stages of 2 (n_c + 2) of them together:
    Σ_h ‖d̂_h - d_h‖₁ <= β holds with probability 1 - δ for all of these. For a difference the same argument has
    4 log in place of 2 log; β covers it far more often than promised, unless δ is tiny and S A is small.

    Args:
        states: S.
        actions: A.
        horizon: H.
        episodes: N of each policy; math.inf for exact occupancies.
        comparisons: n_c, rows of feedback.
        delta: δ in (0, 1), the probability of a miss.
        bound: ‖r‖_∞ of the rewards considered.

    Raises:
        ValueError: if an argument is out of range.
    """
    _check(episodes, delta, bound)
    if min(states, actions, horizon) < 1 or comparisons < 0:
        got = f"{states}, {actions}, {horizon} and {comparisons}"
        raise ValueError(f"expected states, actions and horizon of at least 1 and comparisons of at least 0, got {got}")
    mean = math.sqrt(2 * states * actions / episodes)
    deviation = math.sqrt(2 * math.log(2 * horizon * (comparisons + 2) / delta) / episodes)
    return bound * horizon * (mean + deviation)


def hoeffding(horizon: int, episodes: int, delta: float, bound: float = 1.0) -> float:
    """Bound the error of one estimated return under one fixed reward, H · bound · √(2 log(2/δ) / N) (Sec. 3.5).

    Args:
        horizon: H.
        episodes: N.
        delta: δ in (0, 1), the probability of a larger error.
        bound: ‖r‖_∞, so that returns lie in [-H · bound, H · bound].

    Raises:
        ValueError: if an argument is out of range.
    """
    _check(episodes, delta, bound)
    if horizon < 1:
        raise ValueError(f"horizon must be at least 1, got {horizon}")
    return bound * horizon * math.sqrt(2 * math.log(2 / delta) / episodes)


def _check(episodes: float, delta: float, bound: float) -> None:
    if not episodes >= 1:
        raise ValueError(f"episodes must be at least 1, got {episodes}")
    if not 0 < delta < 1:
        raise ValueError(f"delta must lie in (0, 1), got {delta}")
    if not 0 <= bound < math.inf:
        raise ValueError(f"bound must be a number of at least 0, got {bound}")


def _episodes(states: ArrayLike, actions: ArrayLike, n_states: int, n_actions: int) -> tuple[Indices, Indices]:
    s, a = np.asarray(states), np.asarray(actions)
    if s.shape != a.shape or s.ndim < 2 or s.size == 0:
        shapes = f"{s.shape}, {a.shape}"
        raise ValueError(f"states and actions must have one shape (..., N, H) and not be empty, got {shapes}")
    for name, values, count in (("states", s, n_states), ("actions", a, n_actions)):
        if values.dtype.kind not in "iu" or values.min() < 0 or values.max() >= count:
            span = f"{values.min()} to {values.max()}"
            raise ValueError(f"{name} must be whole numbers from 0 to {count - 1}, got {span}")
    return s.astype(np.int64), a.astype(np.int64)
