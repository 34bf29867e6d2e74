"""Exact answers about a feasible set: extremes, conflicts and centres, by linear programming (Sec. 3.5, 3.7).

    m = min_{x in R_F} c @ x                                              `extreme`, `interval`
    τ = min { τ >= 0 : lower - τ <= rows x <= upper + τ, f(x) <= bound + τ, x in the box }     `conflict` (phase 1)
    the centre of the largest ball inside R_F                             `chebyshev_center`
    the reward of largest normalised margin                               `margin_center`

All are one program with one extra variable, which `program.py` solves: HiGHS does it, or Clarabel with an l2 ball.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import null_space

from .feasible import Array, FeasibleSet
from .program import Infeasible, Pool, Slack, Solver, Weights, minimise, no_weight, unit_weight

__all__ = [
    "Conflict", "Extreme", "Infeasible", "Interval", "Pool", "chebyshev_center", "check_direction", "conflict",
    "extreme", "interval", "margin_center", "relaxed",
]  # fmt: skip
DUAL_TOLERANCE = 1e-7  # below it a multiplier is rounding


@dataclass(frozen=True, eq=False)
class Extreme:
    """The smallest value of a linear objective over a feasible set.

    Attributes:
        value: c @ x. With oracles it is the minimum over an outer approximation, so never above the true one.
        x: (k,) where it is attained; breaks no oracle's bound by more than 1e-7.
        duals: (m,) change of `value` per unit that a row's active bound is raised: positive where `lower` holds it,
            negative where `upper` does.
        cut_duals: (number of cuts,) the same for the bounds of the oracles; never positive.
        active: indices of rows with a non-zero dual. Without all the others the value would be the same.
        cuts: number of rows from oracles that the last program had.
    """

    value: float
    x: Array
    duals: Array
    cut_duals: Array
    active: tuple[int, ...]
    cuts: int


@dataclass(frozen=True, eq=False)
class Interval:
    """The range [m, M] of <d, r> over the feasible set (Sec. 3.4).

    Attributes:
        m: smallest value.
        M: largest value.
        x_min: (k,) reward that attains m.
        x_max: (k,) reward that attains M.
        duals_min: (m,) change of m per unit that a row's active bound is raised.
        duals_max: (m,) the same for M.
        cut_duals: (2, number of cuts) the same for the bounds of the oracles; of m, then of M.
        active: indices of rows that hold m or M. Without all the others both would be the same.
        cuts: number of rows from oracles that the last program had.
    """

    m: float
    M: float
    x_min: Array
    x_max: Array
    duals_min: Array
    duals_max: Array
    cut_duals: Array
    active: tuple[int, ...]
    cuts: int


@dataclass(frozen=True, eq=False)
class Conflict:
    """Feedback that no reward satisfies.

    Attributes:
        tau: smallest amount by which all of it must give way, in units of a return.
        labels: names of the rows and oracles that need it; the others could stay as they are.
        x: (k,) a reward that satisfies everything up to `tau`.
    """

    tau: float
    labels: tuple[str, ...]
    x: Array


def extreme(
    objective: ArrayLike,
    feasible: FeasibleSet,
    *,
    solver: Solver = "auto",
    pool: Pool | None = None,
    rounds: int = 2000,
) -> Extreme:
    """Minimise a linear objective over a feasible set.

    Args:
        objective: c (k,), finite.
        feasible: the set.
        solver: `lp` (HiGHS; no l2 ball), `cone` (cvxpy with Clarabel, to about 1e-8), or `auto`: `cone` if the set has
            a ball.
        pool: rows from oracles found before; extended in place by those found now. None starts without.
        rounds: most programs to solve.

    Raises:
        Infeasible: if the set is empty.
        ValueError: if the objective is no finite (k,), or `lp` is asked for with an l2 ball.
        Unsolved: if the oracles are not satisfied after `rounds`, or the solver breaks down.
    """
    c = check_direction(objective, feasible)
    found = minimise(c, feasible, Slack(0.0, no_weight), solver, pool, rounds)
    # + 0.0 turns -0.0, the value of a zero objective, into 0.0.
    return Extreme(
        float(c @ found.x) + 0.0, found.x, found.duals, found.cut_duals, _nonzero(found.duals), found.pool_size
    )


def interval(
    d: ArrayLike,
    feasible: FeasibleSet,
    *,
    solver: Solver = "auto",
    pool: Pool | None = None,
    rounds: int = 2000,
) -> Interval:
    """Compute m = min <d, r> and M = max <d, r> over the feasible set (Sec. 3.4).

    Args:
        d: (k,) difference of the coefficients of two policies.
        feasible: the set.
        solver: as in `extreme`.
        pool: as in `extreme`; the two directions share their rows in any case.
        rounds: as in `extreme`.

    Raises:
        Infeasible: if the set is empty.
        ValueError: as in `extreme`.
        Unsolved: as in `extreme`.
    """
    c = check_direction(d, feasible)
    shared = Pool() if pool is None else pool
    least = extreme(c, feasible, solver=solver, pool=shared, rounds=rounds)
    most = extreme(-c, feasible, solver=solver, pool=shared, rounds=rounds)
    ends = sorted([least.value, -most.value + 0.0])  # rounding can swap those of a single point
    return Interval(
        m=ends[0],
        M=ends[1],
        x_min=least.x,
        x_max=most.x,
        duals_min=least.duals,
        duals_max=-most.duals,
        cut_duals=np.stack([least.cut_duals, -most.cut_duals]),
        active=tuple(sorted({*least.active, *most.active})),
        cuts=most.cuts,
    )


def conflict(
    feasible: FeasibleSet, *, tolerance: float = 1e-7, solver: Solver = "auto", pool: Pool | None = None
) -> Conflict | None:
    """Find out whether the feedback conflicts, and which of it (phase 1; Sec. 3.7, step 2).

    Args:
        feasible: the set. Its rows and oracles may give way, its box and ball may not.
        tolerance: largest uniform slack τ that still counts as none.
        solver: as in `extreme`.
        pool: as in `extreme`.

    Returns:
        None if the set is not empty.

    Raises:
        Infeasible: if the box and the ball have no point in common.
        Unsolved: as in `extreme`.
    """
    found = minimise(np.zeros(feasible.dim), feasible, Slack(1.0, unit_weight), solver, pool)
    if found.s <= tolerance:
        return None
    rows = [feasible.labels[i] for i in _nonzero(found.duals)]
    cuts = [feasible.cuts[i].name for i in _nonzero(found.cut_duals)]
    return Conflict(found.s, tuple(rows + cuts), found.x)


def relaxed(feasible: FeasibleSet, tau: float) -> FeasibleSet:
    """Let every row and oracle give way by τ >= 0: lower - τ, upper + τ, bound + τ."""
    if not tau >= 0:
        raise ValueError(f"tau must be at least 0, got {tau}")
    cuts = tuple(replace(cut, bound=cut.bound + tau) for cut in feasible.cuts)
    return replace(feasible, lower=feasible.lower - tau, upper=feasible.upper + tau, cuts=cuts)


def chebyshev_center(
    feasible: FeasibleSet, *, solver: Solver = "auto", pool: Pool | None = None
) -> tuple[Array, float]:
    """Find the centre of the largest l2 ball inside the feasible set.

    Equality rows and parameters with low = high leave no room across them: the ball lies in the subspace they leave,
    and is the largest in it.

    Args:
        feasible: the set. Of a constraint known through an oracle, the ball keeps clear of the rows that the oracle
            gave at the centre and at the ball's foremost point; the centre itself is feasible in any case.
        solver: as in `extreme`.
        pool: as in `extreme`.

    Returns:
        The centre (k,) and the radius; the centre is not unique in general.

    Raises:
        Infeasible: if the set is empty.
        Unsolved: as in `extreme`.
    """
    names = [f"parameter {j}" for j in range(feasible.dim)]
    walls = feasible.with_rows(np.eye(feasible.dim), feasible.low, feasible.high, names)
    found = minimise(np.zeros(walls.dim), walls, Slack(-1.0, _norm_weight(walls), -1.0, probe=True), solver, pool)
    return found.x, found.s


def margin_center(feasible: FeasibleSet, *, solver: Solver = "auto", pool: Pool | None = None) -> tuple[Array, float]:
    """Find the feasible reward whose smallest normalised margin over the rows is largest.

    The margin of a row is (row @ x - lower) / ‖row‖₂, or that to `upper`. Equality rows, the box, the ball and the
    oracles must hold but have no part in it.

    Returns:
        The reward (k,) and its margin.

    Raises:
        ValueError: if no row has a margin.
        Infeasible: if the set is empty.
        Unsolved: as in `extreme`.
    """
    norms = np.linalg.norm(feasible.rows, axis=1)
    open_rows = ~feasible.equalities & (norms > 0) & (np.isfinite(feasible.lower) | np.isfinite(feasible.upper))
    if not open_rows.any():
        raise ValueError("the largest margin needs at least one comparison, got none")
    slack = Slack(-1.0, lambda rows: -np.linalg.norm(rows, axis=1), of_cuts=no_weight)
    found = minimise(np.zeros(feasible.dim), feasible, slack, solver, pool)
    return found.x, found.s


def check_direction(d: ArrayLike, feasible: FeasibleSet) -> Array:
    """Return d as an array, or raise ValueError unless it is a finite (k,)."""
    array = np.asarray(d, dtype=np.float64)
    if array.shape != (feasible.dim,):
        raise ValueError(f"the objective must have shape ({feasible.dim},), got {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError("the objective must be finite")
    return array


def _norm_weight(feasible: FeasibleSet) -> Weights:
    """Weigh a row by minus its norm within the subspace that the equality rows leave."""
    free = null_space(feasible.rows[feasible.equalities]) if feasible.equalities.any() else np.eye(feasible.dim)
    return lambda rows: -np.linalg.norm(rows @ free, axis=1)


def _nonzero(duals: Array) -> tuple[int, ...]:
    return tuple(np.flatnonzero(np.abs(duals) > DUAL_TOLERANCE).tolist())
