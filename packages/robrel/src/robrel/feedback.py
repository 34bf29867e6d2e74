"""Feedback about a reward as convex constraints on its parameters x (Sec. 3.2).

    trajectory comparison   <1_ω1 - 1_ω2, r> >= t              one row
    policy comparison       t_lo <= <d^πa - d^πb, r> <= t_hi   one row
    demonstration           max_π <d^π, r> - <d^E, r> <= ε     convex, known through planning: a cut

1_ω counts the visits of trajectory ω. An anchor, J^π(r) = v, is a policy comparison with nothing: it fixes the scale,
without which r = 0 agrees with every plain comparison and no strict certificate exists (Sec. 3.4).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from robrel.feasible import Cut, FeasibleSet, Lifting
from robrel.mdp import MDP, as_floats, occupancies, optimal_occupancy, random_policies, rollouts
from robrel.space import RewardSpace

Array = NDArray[np.float64]
Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class TrajectoryComparison:
    """One trajectory is preferred to another, by a margin: <1_better - 1_worse, r> >= margin.

    Attributes:
        better: (T, 2) pairs of state and action, 1 <= T <= H; a shorter one earns nothing after its end.
        worse: likewise, of any length.
        margin: t.
    """

    better: ArrayLike
    worse: ArrayLike
    margin: float = 0.0


@dataclass(frozen=True, eq=False)
class PolicyComparison:
    """One policy is preferred to another: margin_low <= <d^better - d^worse, r> <= margin_high.

    Attributes:
        better: its occupancy (H, S, A).
        worse: likewise.
        margin_low: t_lo; 0 is the plain preference.
        margin_high: t_hi; finite for quantitative feedback.
    """

    better: Array
    worse: Array
    margin_low: float = 0.0
    margin_high: float = math.inf


@dataclass(frozen=True, eq=False)
class Demonstration:
    """An expert is ε-optimal: max_π <d^π, r> - <d^E, r> <= ε.

    Attributes:
        occupancy: d^E (H, S, A).
        epsilon: ε, at least 0, in units of the return.
    """

    occupancy: Array
    epsilon: float = 0.0


Item: TypeAlias = TrajectoryComparison | PolicyComparison | Demonstration


def anchor(occupancy: Array, value: float = 1.0) -> PolicyComparison:
    """Fix the return of a reference policy, J^π_ref(r) = value, given its occupancy (H, S, A) (Sec. 3.4)."""
    return PolicyComparison(occupancy, np.zeros_like(occupancy), value, value)


def check_trajectory(mdp: MDP, trajectory: ArrayLike, name: str = "trajectory") -> Indices:
    """Check a trajectory against an MDP.

    Returns:
        (T, 2) pairs of state and action.

    Raises:
        ValueError: if it is empty, longer than H, not made of pairs of whole numbers, or one is out of range.
    """
    pairs = as_floats(trajectory, name)
    if pairs.ndim != 2 or pairs.shape[1] != 2 or len(pairs) == 0:
        raise ValueError(f"{name} must hold at least one pair [state, action], got shape {pairs.shape}")
    if len(pairs) > mdp.horizon:
        raise ValueError(f"{name} has {len(pairs)} steps, more than the horizon {mdp.horizon}")
    for column, what, count in ((0, "state", mdp.states), (1, "action", mdp.actions)):
        values = pairs[:, column]
        good = (values >= 0) & (values < count) & (values == np.floor(values))
        if not good.all():
            step = int(np.flatnonzero(~good)[0])
            raise ValueError(f"{name} has {what} {values[step]:g} at step {step}, expected 0 to {count - 1}")
    return pairs.astype(np.int64)


def visits(mdp: MDP, trajectory: ArrayLike, name: str = "trajectory") -> Array:
    """Count the visits of a trajectory, 1_ω (H, S, A); raises ValueError as `check_trajectory`."""
    pairs = check_trajectory(mdp, trajectory, name)
    counts = np.zeros((mdp.horizon, mdp.states, mdp.actions))
    counts[np.arange(len(pairs)), pairs[:, 0], pairs[:, 1]] = 1.0
    return counts


def optimality_gap(space: RewardSpace, mdp: MDP, expert: Array) -> Callable[[Array], tuple[Array, Array]]:
    """Give the function f(x) = max_π <d^π, r> - <d^E, r> of reward parameters (Sec. 3.2).

    It is convex and positively homogeneous, f(x) = g @ x: one sweep of planning finds f and the subgradient
    g = d^{π*(r)} - d^E, in parameters.

    Args:
        space: what the parameters stand for.
        mdp: where to plan.
        expert: d^E (H, S, A).

    Returns:
        A function of x (..., dim), which returns f (...) and g (..., dim).
    """
    own = space.coefficients(expert)

    def gap(x: Array) -> tuple[Array, Array]:
        _, best = optimal_occupancy(mdp, space.reward(x))
        subgradient = space.coefficients(best) - own
        return np.asarray((subgradient * x).sum(-1)), subgradient

    return gap


def values_lifting(space: RewardSpace, mdp: MDP, expert: Array) -> Lifting:
    """Write the optimality gap of an expert as a linear program over value functions (Sec. 3.2, item 3).

        f(x) = min_V { <μ0, V_1> - <d^E, r> : V_h(s) >= r_h(s, a) + Σ_s' p_h(s'|s, a) V_{h+1}(s'), V_{H+1} = 0 }

    Args:
        space: what the parameters stand for.
        mdp: where to plan.
        expert: d^E (H, S, A).

    Returns:
        H S variables V and H S A rows.
    """
    states, actions, horizon = mdp.states, mdp.actions, mdp.horizon
    stage = states * actions
    if space.kind == "stage":
        rewards = sparse.eye_array(horizon * stage, format="csr")
    else:
        own = sparse.eye_array(stage) if space.features is None else sparse.csr_array(space.features)
        rewards = sparse.vstack([own] * horizon, format="csr")
    now = sparse.kron(sparse.eye_array(states), np.ones((actions, 1)))  # (S A, S), V_h(s) in the row of each action
    blocks: list[list[Any]] = [[None] * horizon for _ in range(horizon)]
    for h in range(horizon):
        blocks[h][h] = -now
        if h + 1 < horizon:
            blocks[h][h + 1] = sparse.csr_array(mdp.table(h))
    values = sparse.block_array(blocks, format="csr")
    first = np.zeros(horizon * states)
    first[:states] = mdp.initial
    return Lifting(rewards, values, -space.coefficients(expert), first)


def build(
    space: RewardSpace,
    mdp: MDP,
    items: Sequence[Item],
    low: ArrayLike = -1.0,
    high: ArrayLike = 1.0,
    radius: float | None = None,
    labels: Sequence[str] | None = None,
) -> FeasibleSet:
    """Collect feedback into the feasible set R_F (Sec. 3.2).

    Args:
        space: what the parameters x stand for.
        mdp: where trajectories lie and experts act.
        items: the feedback; none at all is allowed.
        low: smallest value of each parameter, a number or (dim,).
        high: largest.
        radius: of an l2 ball that x lies in besides; None for none.
        labels: names of the items for messages; by default "feedback 1" and so on.

    Returns:
        Comparisons are its rows and demonstrations its cuts, both in the order of the items.

    Raises:
        ValueError: if an item does not fit the MDP (it is named), or the space is another MDP's.
    """
    if (space.states, space.actions, space.horizon) != (mdp.states, mdp.actions, mdp.horizon):
        ours, theirs = (mdp.states, mdp.actions, mdp.horizon), (space.states, space.actions, space.horizon)
        raise ValueError(f"the space of rewards is one of (S, A, H) = {theirs}, the MDP has {ours}")
    names = [f"feedback {i + 1}" for i in range(len(items))] if labels is None else list(labels)
    if len(names) != len(items):
        raise ValueError(f"got {len(names)} labels for {len(items)} items of feedback")
    rows, bounds, row_names, cuts = [np.zeros((0, space.dim))], [], [], []
    for name, item in zip(names, items, strict=True):
        try:
            if isinstance(item, Demonstration):
                cuts.append(_cut(space, mdp, item, name))
                continue
            difference, lower, upper = _comparison(mdp, item)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        rows.append(space.coefficients(difference)[None])
        bounds.append((lower, upper))
        row_names.append(name)
    lower_upper = np.array(bounds, dtype=np.float64).reshape(-1, 2)
    return FeasibleSet(
        rows=np.concatenate(rows),
        lower=lower_upper[:, 0],
        upper=lower_upper[:, 1],
        labels=tuple(row_names),
        low=np.broadcast_to(np.asarray(low, dtype=np.float64), space.dim),
        high=np.broadcast_to(np.asarray(high, dtype=np.float64), space.dim),
        radius=radius,
        cuts=tuple(cuts),
    )


def simulate_comparisons(
    mdp: MDP,
    space: RewardSpace,
    x_true: Array,
    count: int,
    rng: np.random.Generator,
    kind: Literal["policy", "trajectory"] = "policy",
    *,
    concentration: float = 0.2,
    temperature: float = 0.0,
    flip: float = 0.0,
) -> list[Item]:
    """Let a simulated judge compare random pairs under the true reward; margins are 0.

    Args:
        mdp: the MDP.
        space: what the parameters stand for.
        x_true: parameters (dim,) of the true reward.
        count: n_c, number of comparisons.
        rng: source of all draws.
        kind: compare random stationary `policy` pairs, or one `trajectory` of each.
        concentration: of the policies' Dirichlet rows.
        temperature: T of a Bradley-Terry judge, who prefers a to b with probability 1 / (1 + exp((J_b - J_a) / T));
            0 never errs.
        flip: probability in [0, 1] that an answer is turned round afterwards.

    Raises:
        ValueError: if an option is out of range.
    """
    if kind not in ("policy", "trajectory"):
        raise ValueError(f'kind must be "policy" or "trajectory", got {kind!r}')
    if not temperature >= 0:
        raise ValueError(f"temperature must be at least 0, got {temperature}")
    if not 0 <= flip <= 1:
        raise ValueError(f"flip must lie in [0, 1], got {flip}")
    policies = random_policies(2 * count, mdp.states, mdp.actions, concentration, rng)
    if kind == "policy":
        d = occupancies(mdp, policies)
        gains = space.coefficients(d) @ x_true
    else:
        walks = np.stack([side[:, 0] for side in rollouts(mdp, policies, 1, rng)], axis=-1)  # (2 n_c, H, 2)
        reward = space.reward(x_true)
        gains = reward[np.arange(mdp.horizon), walks[..., 0], walks[..., 1]].sum(1)
    items: list[Item] = []
    for first, second in zip(range(0, 2 * count, 2), range(1, 2 * count, 2), strict=True):
        lead = gains[first] - gains[second]
        # tanh, because exp overflows for sure answers.
        sure = 0.5 + 0.5 * math.tanh(lead / (2 * temperature)) if temperature > 0 else float(lead >= 0)
        prefers_first = (rng.random() < sure) != (rng.random() < flip)
        a, b = (first, second) if prefers_first else (second, first)
        items.append(PolicyComparison(d[a], d[b]) if kind == "policy" else TrajectoryComparison(walks[a], walks[b]))
    return items


def _comparison(mdp: MDP, item: TrajectoryComparison | PolicyComparison) -> tuple[Array, float, float]:
    if isinstance(item, TrajectoryComparison):
        difference = visits(mdp, item.better, "better") - visits(mdp, item.worse, "worse")
        low, high = item.margin, math.inf
    else:
        difference = _occupancy(mdp, item.better, "better") - _occupancy(mdp, item.worse, "worse")
        low, high = item.margin_low, item.margin_high
    if not (low <= high and low < math.inf and high > -math.inf):
        raise ValueError(f"the margin must be a number, and its lower bound not above the upper, got {low} to {high}")
    return difference, float(low), float(high)


def _cut(space: RewardSpace, mdp: MDP, item: Demonstration, name: str) -> Cut:
    if not 0 <= item.epsilon < math.inf:
        raise ValueError(f"epsilon must be a number of at least 0, got {item.epsilon}")
    gap = optimality_gap(space, mdp, _occupancy(mdp, item.occupancy, "occupancy"))

    def oracle(x: Array) -> tuple[float, Array]:
        value, subgradient = gap(x)
        return float(value), subgradient

    expert = np.asarray(item.occupancy, dtype=np.float64)
    return Cut(name, oracle, float(item.epsilon), partial(values_lifting, space, mdp, expert))


def _occupancy(mdp: MDP, occupancy: ArrayLike, name: str) -> Array:
    array = as_floats(occupancy, name)
    sizes = mdp.horizon, mdp.states, mdp.actions
    if array.shape != sizes:
        raise ValueError(f"{name} must be an occupancy of shape {sizes}, got {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} holds a number that is not finite")
    return array
