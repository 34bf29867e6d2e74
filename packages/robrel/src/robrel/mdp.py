"""Tabular episodic MDPs: occupancies, planning and rollouts (Sec. 3.1).

    d_1(s, a) = μ0(s) π_1(a|s),    d_{h+1}(s', a') = π_{h+1}(a'|s') Σ_{s,a} d_h(s, a) p_h(s'|s, a)
    J^π(r) = <d^π, r> = Σ_h Σ_{s,a} d_h(s, a) r_h(s, a)
    V_h(s) = max_a r_h(s, a) + Σ_{s'} p_h(s'|s, a) V_{h+1}(s'),    V_{H+1} = 0

Symbols: S states, A actions, H horizon. Stages are counted from 0 in code. Policies and rewards have the stage on
the third axis from the end, (..., H, S, A); length 1 there means the same at every stage, and a bare (S, A) is that
too. So a batch of N stationary policies is (N, 1, S, A): (N, S, A) could not be told from one policy with N stages.
A sweep costs O(H S² A) per policy or reward; stationary transitions are never repeated over stages.

NumPy, and SciPy for sparse transitions; the file can be copied alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

Array = NDArray[np.float64]
Indices = NDArray[np.int64]
if TYPE_CHECKING:
    Sparse: TypeAlias = sparse.csr_array[np.float64, tuple[int, int]]

TOLERANCE = 1e-6  # on the sum of a distribution


@dataclass(frozen=True, eq=False)
class MDP:
    """A tabular episodic MDP without reward.

    Attributes:
        transitions: p, probabilities (S, A, S) of the next state; (H, S, A, S) where they depend on the stage (that
            of the last stage is never used); or a sparse SciPy array (S * A, S), row s * A + a, for many states.
        initial: μ0, (S,) probabilities of the first state.
        horizon: H, number of stages, at least 1.

    Raises:
        ValueError: if a shape does not fit, or a row is not a distribution within 1e-6; the row is named.
    """

    transitions: Array | Sparse
    initial: Array
    horizon: int

    def __post_init__(self) -> None:
        if isinstance(self.horizon, bool) or not isinstance(self.horizon, (int, np.integer)) or self.horizon < 1:
            raise ValueError(f"horizon must be a whole number of at least 1, got {self.horizon!r}")
        initial = as_floats(self.initial, "initial")
        if initial.ndim != 1 or initial.size == 0:
            raise ValueError(f"initial must have shape (S,), got {initial.shape}")
        check_distributions(initial, "initial")
        object.__setattr__(self, "horizon", int(self.horizon))
        object.__setattr__(self, "initial", initial)
        object.__setattr__(self, "transitions", _checked_transitions(self.transitions, len(initial), self.horizon))

    @property
    def states(self) -> int:
        """S, the number of states."""
        return len(self.initial)

    @property
    def actions(self) -> int:
        """A, the number of actions."""
        shape = self.transitions.shape
        return shape[0] // self.states if len(shape) == 2 else shape[-2]

    @property
    def stationary(self) -> bool:
        """Whether the transitions are the same at every stage."""
        return self.transitions.ndim < 4

    def table(self, h: int) -> Array | Sparse:
        """Give the transitions at stage h as a matrix (S * A, S), without copying a dense array."""
        if isinstance(self.transitions, np.ndarray):
            return (self.transitions if self.stationary else self.transitions[h]).reshape(-1, self.states)
        return self.transitions


class Plan(NamedTuple):
    """An optimal policy.

    Attributes:
        value: (...) its return max_π J^π(r).
        policy: (..., H, S, A) one action of probability 1 in each state, the first of those that tie.
    """

    value: Array
    policy: Array


def occupancies(mdp: MDP, policies: ArrayLike) -> Array:
    """Compute the occupancies of policies, all at once (Sec. 3.1).

    Args:
        mdp: the MDP.
        policies: π, (..., H, S, A), (..., 1, S, A) or (S, A).

    Returns:
        d^π (..., H, S, A): probability of state s and action a at stage h; each stage sums to 1.

    Raises:
        ValueError: if the policies do not fit the MDP, or a row is not a distribution.
    """
    return _forward(mdp, check_policy(mdp, policies))


def plan(mdp: MDP, rewards: ArrayLike) -> Plan:
    """Find optimal policies by backward induction, one for each reward (Sec. 3.1).

    Args:
        mdp: the MDP.
        rewards: r, (..., H, S, A), (..., 1, S, A) or (S, A).

    Raises:
        ValueError: if the rewards do not fit the MDP or are not finite.
    """
    r = check_reward(mdp, rewards)
    batch = r.shape[:-3]
    policy = np.zeros((*batch, mdp.horizon, mdp.states, mdp.actions))
    v = np.zeros((*batch, mdp.states))
    for h in reversed(range(mdp.horizon)):
        ahead = (mdp.table(h) @ v.reshape(-1, mdp.states).T).T.reshape(*batch, mdp.states, mdp.actions)
        q = r[..., _stage(r, h), :, :] + ahead
        np.put_along_axis(policy[..., h, :, :], q.argmax(-1)[..., None], 1.0, axis=-1)
        v = q.max(-1)
    return Plan(np.asarray(v @ mdp.initial), policy)


def optimal_occupancy(mdp: MDP, rewards: ArrayLike) -> tuple[Array, Array]:
    """Plan and follow the plan: max_π J^π(r), (...), and the occupancy (..., H, S, A) that attains it.

    The second is a subgradient of the first in r.
    """
    value, policy = plan(mdp, rewards)
    return value, _forward(mdp, policy)


def policy_of(occupancy: Array) -> Array:
    """Find the policy π_h(a|s) = d_h(s, a) / Σ_a d_h(s, a) of occupancies (..., H, S, A), in the same shape.

    It is uniform where the state is never visited, of which the occupancy says nothing.
    """
    mass = occupancy.sum(-1, keepdims=True)
    uniform = np.full_like(occupancy, 1 / occupancy.shape[-1])
    return np.divide(occupancy, mass, out=uniform, where=mass > 0)


def returns(occupancy: Array, reward: Array) -> Array:
    """Compute J^π(r) = <d^π, r>, (...), of occupancies (..., H, S, A) and rewards (..., H, S, A) or (S, A)."""
    return np.asarray((occupancy * reward).sum((-3, -2, -1)))


def rollouts(mdp: MDP, policies: ArrayLike, episodes: int, rng: np.random.Generator) -> tuple[Indices, Indices]:
    """Sample episodes.

    Args:
        mdp: the MDP.
        policies: π, (..., H, S, A), (..., 1, S, A) or (S, A).
        episodes: N, how many of each policy.
        rng: source of the draws.

    Returns:
        States and actions, both (..., N, H).

    Raises:
        ValueError: if the policies do not fit the MDP, or a row is not a distribution.
    """
    pi = check_policy(mdp, policies)
    batch, stages = pi.shape[:-3], pi.shape[-3]
    act = _sampler(pi.reshape(-1, mdp.actions))
    which = np.repeat(np.arange(pi[..., 0, 0, 0].size), episodes)  # the policy of each episode
    states = np.empty((len(which), mdp.horizon), dtype=np.int64)
    actions = np.empty_like(states)
    s = _sampler(mdp.initial[None])(np.zeros(len(which), dtype=np.int64), rng)
    move = _sampler(mdp.table(0))
    for h in range(mdp.horizon):
        a = act((which * stages + _stage(pi, h)) * mdp.states + s, rng)
        states[:, h], actions[:, h] = s, a
        if h + 1 < mdp.horizon:
            if h > 0 and not mdp.stationary:
                move = _sampler(mdp.table(h))
            s = move(s * mdp.actions + a, rng)
    shape = (*batch, episodes, mdp.horizon)
    return states.reshape(shape), actions.reshape(shape)


def random_policy(states: int, actions: int, concentration: float, rng: np.random.Generator) -> Array:
    """Draw a stationary policy (S, A), each state's row from the symmetric Dirichlet distribution.

    Args:
        states: S.
        actions: A.
        concentration: its parameter, positive: 1 is uniform over all rows, near 0 they are nearly deterministic.
        rng: source of the draw.

    Raises:
        ValueError: if the concentration is not positive.
    """
    return random_policies(1, states, actions, concentration, rng)[0, 0]


def random_policies(count: int, states: int, actions: int, concentration: float, rng: np.random.Generator) -> Array:
    """Draw independent stationary policies as `random_policy` does, (count, 1, S, A)."""
    if not concentration > 0:
        raise ValueError(f"concentration must be positive, got {concentration}")
    return rng.dirichlet(np.full(actions, concentration), size=(count, 1, states))


def check_policy(mdp: MDP, policies: ArrayLike, name: str = "policy") -> Array:
    """Check policies against an MDP.

    Returns:
        (..., H, S, A) or (..., 1, S, A).

    Raises:
        ValueError: if the shape does not fit, or a row is not a distribution; `name` and the row are named.
    """
    array = as_floats(policies, name)
    check_distributions(array, name)
    return _staged(mdp, array, name)


def check_reward(mdp: MDP, rewards: ArrayLike, name: str = "reward") -> Array:
    """Check rewards against an MDP; returns (..., H, S, A) or (..., 1, S, A), raises ValueError as `check_policy`."""
    array = as_floats(rewards, name)
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite, got {array[~np.isfinite(array)][0]}")
    return _staged(mdp, array, name)


def as_floats(values: ArrayLike, name: str) -> Array:
    """Turn numbers into a float64 array; a ValueError names what holds anything else."""
    try:
        array = np.asarray(values)
    except ValueError:
        raise ValueError(f"{name} must be an array of numbers, got rows of different lengths") from None
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name} must be an array of real numbers, got one of type {array.dtype}")
    return array.astype(np.float64, copy=False)


def check_distributions(rows: Array, name: str) -> None:
    """Raise ValueError, with the first faulty row, unless all of (..., n) are distributions within 1e-6."""
    with np.errstate(invalid="ignore"):  # inf - inf
        sums = rows.sum(-1)
    faults = (
        (~np.isfinite(rows).all(-1), "holds a number that is not finite"),
        ((rows < 0).any(-1), "holds a negative probability"),
        (~(np.abs(sums - 1) <= TOLERANCE), f"must sum to 1 within {TOLERANCE:g}"),
    )
    for faulty, what in faults:
        if faulty.any():
            index = tuple(int(i) for i in np.argwhere(faulty)[0])
            place = f"{name}[{', '.join(map(str, index))}]" if index else name
            raise ValueError(f"{place} {what}, got a row that sums to {sums[index]:.6g}")


def _checked_transitions(transitions: Array | Sparse, states: int, horizon: int) -> Array | Sparse:
    if sparse.issparse(transitions):
        table = sparse.csr_array(transitions).astype(np.float64)
        if table.ndim != 2 or table.shape[1] != states or table.shape[0] % states or table.shape[0] == 0:
            raise ValueError(f"sparse transitions must have shape (S * A, S) with S = {states}, got {table.shape}")
        # What the dense check needs of a row: its smallest entry and the rest, in two columns.
        least = np.zeros(table.shape[0])
        np.minimum.at(least, np.repeat(np.arange(table.shape[0]), np.diff(table.indptr)), table.data)
        pairs = np.stack([least, np.asarray(table.sum(1)) - least], axis=1)
        check_distributions(pairs.reshape(states, -1, 2), "transitions")
        return table
    array = as_floats(transitions, "transitions")
    ours = array.ndim in (3, 4) and array.shape[-1] == array.shape[-3] == states and array.shape[-2] > 0
    if not ours or (array.ndim == 4 and array.shape[0] != horizon):
        expected = f"(S, A, S) or (H, S, A, S) with S = {states} as in initial and H = {horizon}"
        raise ValueError(f"transitions must have shape {expected}, got {array.shape}")
    check_distributions(array, "transitions")
    return array


def _staged(mdp: MDP, array: Array, name: str) -> Array:
    if array.ndim == 2:
        array = array[None]
    sizes = mdp.horizon, mdp.states, mdp.actions
    if array.ndim < 3 or array.shape[-2:] != sizes[1:] or array.shape[-3] not in (1, mdp.horizon):
        h, s, a = sizes
        shape = array.shape
        raise ValueError(f"{name} must have shape ({s}, {a}), (..., {h}, {s}, {a}) or (..., 1, {s}, {a}), got {shape}")
    return array


def _stage(array: Array, h: int) -> int:
    return h if array.shape[-3] > 1 else 0


def _forward(mdp: MDP, pi: Array) -> Array:
    batch = pi.shape[:-3]
    d = np.empty((*batch, mdp.horizon, mdp.states, mdp.actions))
    mass = np.broadcast_to(mdp.initial, (*batch, mdp.states))
    for h in range(mdp.horizon):
        d[..., h, :, :] = mass[..., None] * pi[..., _stage(pi, h), :, :]
        if h + 1 < mdp.horizon:
            flat = d[..., h, :, :].reshape(-1, mdp.states * mdp.actions)
            mass = (flat @ mdp.table(h)).reshape(*batch, mdp.states)
    return d


def _sampler(table: Array | Sparse) -> Callable[[Indices, np.random.Generator], Indices]:
    """Prepare drawing columns by the rows of a table (R, C) of distributions: O(log of its nonzeros) a draw."""
    nonzero = sparse.csr_array(table)
    row = np.repeat(np.arange(nonzero.shape[0]), np.diff(nonzero.indptr))
    sums: Array = np.asarray(nonzero.sum(1))
    before = np.concatenate([[0.0], np.cumsum(sums)[:-1]])
    # All rows' distribution functions in one ascending array: that of row i runs from i to i + 1.
    keys = row + (np.cumsum(nonzero.data) - before[row]) / sums[row]

    def draw(rows: Indices, rng: np.random.Generator) -> Indices:
        found = np.searchsorted(keys, rows + rng.random(len(rows)), side="right")
        # Rounding of a key may lead to a neighbouring row.
        found = np.clip(found, nonzero.indptr[rows], nonzero.indptr[rows + 1] - 1)
        return nonzero.indices[found].astype(np.int64)

    return draw
