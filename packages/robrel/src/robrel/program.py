"""The program behind every exact answer, by cutting planes (Sec. 3.7, step 4).

    minimise    c @ x + γ s
    subject to  lower - w s <= rows x <= upper + w s        w: a weight per row, of either sign
                f(x) <= bound + w s                         f known through an oracle
                low <= x <= high,  ‖x‖₂ <= radius + w s,  s >= 0

s is what all constraints give way by (w > 0) or how far the solution keeps clear of them (w < 0). Without γ it is 0.
Constraints known through an oracle are met one row at a time: solve, ask the oracle at the solution, add the row that
it breaks, repeat. Rows found so are kept in a `Pool`. Where f is a linear program of its own (`Lifting`), HiGHS takes
its variables and rows instead, which is one program for hundreds. HiGHS solves the programs, or Clarabel (cvxpy) with
an l2 ball.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy import sparse
from scipy.optimize import linprog

from .feasible import Array, Cut, FeasibleSet, Lifting

Solver = Literal["auto", "lp", "cone"]
Weights = Callable[[Array], Array]
CUT_TOLERANCE = 1e-7  # Sec. 3.7, step 4
TIGHT = {"primal_feasibility_tolerance": 1e-9, "dual_feasibility_tolerance": 1e-9}
# HiGHS gives up on a few sets that are nearly flat, such as those of an expert with ε = 0.
ATTEMPTS: tuple[dict[str, Any], ...] = (
    {"method": "highs", "options": TIGHT},
    {"method": "highs", "options": TIGHT | {"presolve": False}},
    {"method": "highs", "options": {}},
    {"method": "highs-ipm", "options": {}},
)


class Unsolved(RuntimeError, ArithmeticError):
    """A solver broke down, or oracles were not satisfied in time."""


class Infeasible(ValueError):
    """No reward satisfies all of the feedback."""


@dataclass
class Pool:
    """Rows that the oracles of a set have given so far, so that later programs over the set start with them.

    They hold for every set whose `cuts` begin with the same oracles in the same order, whatever its rows and bounds
    are: for both directions of an interval, after `with_rows`, and after `relaxed`.

    Attributes:
        entries: for each row the position of its oracle in `cuts`, g (k,), and how far the limit of g @ x lies above
            the oracle's bound.
    """

    entries: list[tuple[int, Array, float]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.entries)


class Slack(NamedTuple):
    """What the extra variable s does.

    Attributes:
        gamma: γ, its price; 0 fixes s = 0. If γ <= 0, equality rows do not take part.
        of_rows: rows (n, k) -> their weights w (n,).
        of_ball: weight of the l2 ball.
        of_cuts: weights of the oracles' rows; None for those of `of_rows`.
        probe: ask the oracles not only at x but also where the ball of radius s around it leans on their row.
    """

    gamma: float
    of_rows: Weights
    of_ball: float = 0.0
    of_cuts: Weights | None = None
    probe: bool = False


class Found(NamedTuple):
    """The solution: x (k,), s, multipliers of rows (m,) and of oracles (q,), and the size of the pool."""

    x: Array
    s: float
    duals: Array
    cut_duals: Array
    pool_size: int


class _Program(NamedTuple):
    """Minimise c @ z subject to a z <= b, e z = h, low <= z <= high, ‖z[:-1]‖₂ <= radius + of_ball z[-1]."""

    c: Array
    a: Any
    b: Array
    e: Array
    h: Array
    low: Array
    high: Array
    radius: float | None
    of_ball: float


def no_weight(rows: Array) -> Array:
    """Weigh no row: all hold as they are."""
    return np.zeros(len(rows))


def unit_weight(rows: Array) -> Array:
    """Weigh all rows 1: all give way by s."""
    return np.ones(len(rows))


def minimise(
    c: Array, feasible: FeasibleSet, slack: Slack, solver: Solver, pool: Pool | None, rounds: int = 2000
) -> Found:
    """Solve the program by cutting planes (Sec. 3.7, step 4).

    Args:
        c: (k,).
        feasible: rows, bounds, box, ball and oracles.
        slack: what s does.
        solver: `lp` (HiGHS; no l2 ball), `cone` (Clarabel) or `auto`: `cone` if the set has a ball.
        pool: rows from oracles found before; those found now are added to it.
        rounds: most programs to solve.

    Raises:
        Infeasible: if no x and s satisfy the constraints.
        ValueError: if `solver` is none of these, or `lp` with an l2 ball.
        Unsolved: if the oracles are not satisfied after `rounds`, or the solver breaks down.
    """
    if solver not in ("auto", "lp", "cone"):
        raise ValueError(f'solver must be "auto", "lp" or "cone", got {solver!r}')
    if solver == "lp" and feasible.radius is not None:
        raise ValueError('solver "lp" cannot hold an l2 ball: use "cone", or no radius')
    solve = _solve_lp if solver == "lp" or (solver == "auto" and feasible.radius is None) else _solve_cone
    pool = Pool() if pool is None else pool
    weigh_cut = slack.of_cuts or slack.of_rows
    lifted = _lifted(feasible, slack) if solve is _solve_lp else {}
    weight = np.where(feasible.equalities & (slack.gamma <= 0), 0.0, slack.of_rows(feasible.rows))
    for _ in range(rounds):
        found = _solve(c, feasible, slack, weight, weigh_cut, pool, solve, lifted)
        asked = ((i, cut) for i, cut in enumerate(feasible.cuts) if i not in lifted)
        broken = [_separate(i, cut, found, slack.probe, weigh_cut, pool) for i, cut in asked]
        if not any(broken):
            return found
    raise Unsolved(f"cutting planes did not satisfy {', '.join(cut.name for cut in feasible.cuts)} in {rounds} rounds")


def _lifted(feasible: FeasibleSet, slack: Slack) -> dict[int, Lifting]:
    """Make the linear programs of those oracles that have one; a ball around x needs rows in x alone."""
    if slack.probe:
        return {}
    return {i: cut.lifting() for i, cut in enumerate(feasible.cuts) if cut.lifting is not None}


def _extended(p: _Program, feasible: FeasibleSet, lifted: dict[int, Lifting], weigh: Weights) -> _Program:
    """Add the variables v and the rows of liftings, that of the bound last in each; z becomes (x, s, v, ...)."""
    blocks: list[list[Any]] = [[sparse.csr_array(p.a), *[None] * len(lifted)]]
    limits, sizes = [p.b], [len(lift.h) for lift in lifted.values()]
    for place, (i, lift) in enumerate(lifted.items()):
        row: list[Any] = [None] * len(lifted)
        row[place] = sparse.vstack([lift.b, sparse.csr_array(lift.h[None])])
        yields = np.append(np.zeros(lift.a.shape[0]), -weigh(lift.g[None]))
        of_x = sparse.vstack([lift.a, sparse.csr_array(lift.g[None])])
        blocks.append([sparse.hstack([of_x, sparse.csr_array(yields[:, None])]), *row])
        limits.append(np.append(np.zeros(lift.a.shape[0]), feasible.cuts[i].bound))
    free = np.full(sum(sizes), np.inf)
    return p._replace(
        c=np.append(p.c, np.zeros(sum(sizes))),
        a=sparse.block_array(blocks, format="csr"),
        b=np.concatenate(limits),
        e=sparse.hstack([sparse.csr_array(p.e), sparse.csr_array((len(p.h), sum(sizes)))], format="csr"),
        low=np.append(p.low, -free),
        high=np.append(p.high, free),
    )


def _separate(i: int, cut: Cut, found: Found, probe: bool, weigh: Weights, pool: Pool) -> bool:
    """Add to the pool the rows that an oracle gives at a solution and that the solution breaks; whether there were."""
    added, point = False, found.x
    for _ in range(2 if probe else 1):
        _, g, limit = cut.row(point)
        # A row that is in the pool already is broken by the solver's rounding only.
        known = any(j == i and np.array_equal(row, g) for j, row, _ in pool.entries)
        if not known and float(g @ found.x - weigh(g[None])[0] * found.s) - limit > CUT_TOLERANCE:
            pool.entries.append((i, g, limit - cut.bound))
            added = True
        # Where f is smallest, no direction is foremost: any will do.
        ahead = g if g.any() else np.ones_like(g)
        point = found.x + found.s * ahead / np.linalg.norm(ahead)
    return added


def _solve(
    c: Array,
    feasible: FeasibleSet,
    slack: Slack,
    weight: Array,
    weigh_cut: Weights,
    pool: Pool,
    solve: Callable[[_Program], tuple[Array, Array, Array]],
    lifted: dict[int, Lifting],
) -> Found:
    """Solve one program and give its multipliers back to rows and oracles."""
    k = feasible.dim
    fixed = feasible.equalities & (weight == 0)
    below = np.flatnonzero(np.isfinite(feasible.upper) & ~fixed)
    above = np.flatnonzero(np.isfinite(feasible.lower) & ~fixed)
    owners = np.array([i for i, _, _ in pool.entries], dtype=np.intp)
    g = np.array([row for _, row, _ in pool.entries]).reshape(-1, k)
    limits = np.array([feasible.cuts[i].bound + offset for i, _, offset in pool.entries])
    rows = feasible.rows
    # A negated row gives way by its own weight, not by the negated one.
    yields = np.concatenate([weight[below], weight[above], weigh_cut(g)])
    program = _Program(
        c=np.append(c, slack.gamma),
        a=np.column_stack([np.concatenate([rows[below], -rows[above], g]), -yields]),
        b=np.concatenate([feasible.upper[below], -feasible.lower[above], limits]),
        e=np.column_stack([rows[fixed], np.zeros(fixed.sum())]),
        h=feasible.upper[fixed],
        low=np.append(feasible.low, 0.0),
        high=np.append(feasible.high, np.inf if slack.gamma else 0.0),
        radius=feasible.radius,
        of_ball=slack.of_ball,
    )
    own = len(program.b)
    found, by_inequality, by_equality = solve(_extended(program, feasible, lifted, weigh_cut) if lifted else program)
    lifts, by_inequality = by_inequality[own:], by_inequality[:own]
    duals, cut_duals = np.zeros(len(rows)), np.zeros(len(feasible.cuts))
    duals[below] += by_inequality[: len(below)]
    duals[above] -= by_inequality[len(below) : len(below) + len(above)]
    duals[fixed] = by_equality
    np.add.at(cut_duals, owners, by_inequality[len(below) + len(above) :])
    for i, lift in lifted.items():
        size = lift.a.shape[0] + 1
        cut_duals[i] += lifts[size - 1]
        lifts = lifts[size:]
    return Found(found[:k], float(found[k]), duals, cut_duals, len(pool))


def _solve_lp(p: _Program) -> tuple[Array, Array, Array]:
    """Solve a linear program with HiGHS; returns z and the change of the minimum per unit of b and of h."""
    bounds: Any = np.column_stack([p.low, p.high])
    for options in ATTEMPTS:
        answer: Any = linprog(p.c, p.a, p.b, p.e, p.h, bounds, **options)
        if answer.status in (0, 2):
            break
    if answer.status == 2:
        raise Infeasible("no reward satisfies all of the feedback; conflict() names the rows that disagree")
    if answer.status != 0:
        raise Unsolved(f"HiGHS could not solve the linear program: {answer.message}")
    return answer.x, answer.ineqlin.marginals, answer.eqlin.marginals


def _solve_cone(p: _Program) -> tuple[Array, Array, Array]:
    """Solve the program with its ball through cvxpy; returns as `_solve_lp`."""
    import cvxpy as cp

    z = cp.Variable(len(p.c))
    inequality, equality = p.a @ z <= p.b, p.e @ z == p.h
    bounded = np.isfinite(p.high)
    constraints = [z >= p.low, z[bounded] <= p.high[bounded]]
    constraints += [inequality] if len(p.b) else []
    constraints += [equality] if len(p.h) else []
    if p.radius is not None:
        constraints.append(cp.norm(z[:-1], 2) <= p.radius + p.of_ball * z[-1])
    problem: Any = cp.Problem(cp.Minimize(p.c @ z), constraints)
    problem.solve(solver=cp.CLARABEL)
    if problem.status in ("infeasible", "infeasible_inaccurate"):
        raise Infeasible("no reward satisfies all of the feedback; conflict() names the rows that disagree")
    if problem.status != "optimal":
        raise Unsolved(f"cvxpy could not solve the cone program: {problem.status}")
    by_inequality = -np.asarray(inequality.dual_value) if len(p.b) else np.zeros(0)
    by_equality = -np.asarray(equality.dual_value) if len(p.h) else np.zeros(0)
    return np.asarray(z.value), by_inequality, by_equality
