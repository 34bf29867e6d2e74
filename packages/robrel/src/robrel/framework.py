"""From a feasible set to a robust answer: the framework (Sec. 3.3) and the paper's application of it (Sec. 3.4).

    W(ŷ) = max_{r in R_F} L(ŷ, g(r))          worst-case loss of an answer
    W*   = min_ŷ W(ŷ)                         un-informativeness: what partial identifiability costs

A learned reward serves an application g: R -> Y, and L says what an answer ŷ costs when g(r) is the truth. The robust
answer attains W*. For a metric L, any feasible reward's own answer has W <= 2 W*, and no better bound.

The paper's application asks how much better one policy is than another, g(r) = <d, r> with L = |ŷ - g(r)|. Then

    ŷ* = (m + M) / 2,   W* = (M - m) / 2,   r̂ = (r_min + r_max) / 2, which is feasible because R_F is convex.

Other applications: `minimax` over a table of losses, for any finite list of answers and feasible rewards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike

from .exact import DUAL_TOLERANCE, Infeasible, Pool, check_direction, interval
from .feasible import Array, Cut, FeasibleSet

Loss = Literal["absolute", "squared", "sign"]
Solver = Literal["lp", "cone", "pd"]
Decision = Literal["first", "second", "undetermined"]
Certificate = Literal["strict", "weak", "none"]


class Application(Protocol):
    """What a learned reward is used for. Implement it to have another one than the preference between policies."""

    def loss(self, answer: Any, x: Array) -> float:
        """Compute L(ŷ, g(x)) >= 0 of an answer when the true reward has parameters x (k,)."""
        ...


class Minimax(NamedTuple):
    """The robust one of some answers.

    Attributes:
        position: which one; the first of ties.
        value: its worst-case loss W*.
        worst: (n,) worst-case loss W of each answer.
    """

    position: int
    value: float
    worst: Array


@dataclass(frozen=True, eq=False)
class Assessment:
    """What the feedback says about <d, r> (Sec. 3.4, 3.7 step 5).

    Attributes:
        m: smallest value of <d, r> over the feasible set; with `pd` a lower bound of it.
        M: largest value; with `pd` an upper bound.
        answer: ŷ* = (m + M) / 2.
        half_width: W* = (M - m) / 2.
        x: (k,) a robust reward; <d, x> is the answer, with `pd` up to `gap`.
        x_min: (k,) reward that attains m.
        x_max: (k,) reward that attains M.
        decision: which policy is better for every feasible reward.
        certificate: `strict` if its advantage is positive for every feasible reward, `weak` if non-negative up to the
            tolerance, else `none`. `undetermined` and `weak` together: the policies are equal for every one.
        tolerance: from which size a number counts as different from 0.
        zero_feasible: r = 0 satisfies the feedback, as it does all plain comparisons. No certificate can be strict
            then: give the comparisons margins, or anchor a return.
        active: names of the feedback that holds m or M; without the rest both would be the same.
        duals_min: (m rows,) change of m per unit that a row's active bound is raised.
        duals_max: (m rows,) the same for M.
        violation: largest amount by which `x` or one of the two extreme rewards breaks a constraint.
        gap: largest distance between primal and dual value of the two problems; 0 if solved exactly.
    """

    m: float
    M: float
    answer: float
    half_width: float
    x: Array
    x_min: Array
    x_max: Array
    decision: Decision
    certificate: Certificate
    tolerance: float
    zero_feasible: bool
    active: tuple[str, ...]
    duals_min: Array
    duals_max: Array
    violation: float
    gap: float

    def W(self, answer: float) -> float:
        """Compute the worst-case absolute error of another answer."""
        return worst_case_loss(answer, self.m, self.M)


class Question(NamedTuple):
    """A comparison that could be asked next.

    Attributes:
        position: which of the candidates it is.
        label: its name.
        half_width: W* after the less helpful one of the two answers.
        if_first: W* after the answer that the first is at least as good; nan if that answer is impossible.
        if_second: the same of the second.
    """

    position: int
    label: str
    half_width: float
    if_first: float
    if_second: float


def worst_case_loss(answer: float, m: float, M: float, loss: Loss = "absolute") -> float:
    """Compute W(ŷ) for a linear application, whose values fill the interval [m, M] (Sec. 3.3, 3.4).

    Args:
        answer: ŷ; of `sign` only its sign matters.
        m: smallest value of g.
        M: largest value of g.
        loss: L(ŷ, y): `absolute` |ŷ - y|, `squared` (ŷ - y)², or `sign`: 1 if y ≠ 0 and ŷ has another sign than y,
            else 0. A tie y = 0 makes no call wrong.

    Raises:
        ValueError: unless m <= M, or if the loss is unknown.
    """
    if not m <= M:
        raise ValueError(f"an interval needs m <= M, got {m} and {M}")
    if loss == "absolute":
        return max(M - answer, answer - m)
    if loss == "squared":
        return max(M - answer, answer - m) ** 2
    if loss == "sign":
        return float((m < 0 and answer >= 0) or (M > 0 and answer <= 0))
    raise ValueError(f'loss must be "absolute", "squared" or "sign", got {loss!r}')


def robust_answer(
    values: ArrayLike, loss: Callable[[float, float], float] | Loss = "absolute", *, restrict_to_feasible: bool = False
) -> tuple[float, float]:
    """Find a number ŷ of smallest worst-case loss against finitely many possible truths.

    Args:
        values: (n,) g(r) of rewards that stand for the feasible set: sampled ones, or all of a finite set.
        loss: L(ŷ, y). A function of one's own is minimised over the answers `values` only.
        restrict_to_feasible: only answers that one of the rewards has. For a convex set and a linear g the robust
            answer is one of them anyway (Sec. 3.4); for feedback that is not convex, requiring it can cost up to a
            factor of 2.

    Returns:
        ŷ, and its worst-case loss against `values`: a lower bound of W* if they are samples.

    Raises:
        ValueError: if there is no value, or one is not finite.
    """
    truths = np.asarray(values, dtype=np.float64)
    if truths.ndim != 1 or truths.size == 0 or not np.isfinite(truths).all():
        raise ValueError(f"values must be finite numbers (n,) with n >= 1, got shape {truths.shape}")
    if callable(loss):
        found = minimax([[loss(float(y), float(truth)) for truth in truths] for y in truths])
        return float(truths[found.position]), found.value
    m, M = float(truths.min()), float(truths.max())
    if not restrict_to_feasible:
        return (m + M) / 2, worst_case_loss((m + M) / 2, m, M, loss)
    losses = np.array([worst_case_loss(float(y), m, M, loss) for y in truths])
    best = int(losses.argmin())
    return float(truths[best]), float(losses[best])


def minimax(losses: ArrayLike) -> Minimax:
    """Choose the answer whose largest loss is smallest (Sec. 3.3).

    Args:
        losses: (answers, rewards) L(ŷ_i, g(r_j)), finite.

    Raises:
        ValueError: if the table is empty or not finite.
    """
    table = np.asarray(losses, dtype=np.float64)
    if table.ndim != 2 or table.size == 0 or not np.isfinite(table).all():
        raise ValueError(f"losses must be finite numbers (answers, rewards), got shape {table.shape}")
    worst = table.max(1)
    index = int(worst.argmin())
    return Minimax(index, float(worst[index]), worst)


def assess_application(application: Application, answers: Iterable[Any], rewards: Iterable[Array]) -> Minimax:
    """Choose the robust one of some answers of any application, against sampled feasible rewards.

    Args:
        application: has the loss.
        answers: candidates ŷ.
        rewards: feasible parameters (k,), such as those of `baselines.hit_and_run` and `baselines.arbitrary`. The more
            of them, the closer the worst cases get to the true ones, from below.
    """
    drawn = list(rewards)
    return minimax([[application.loss(answer, x) for x in drawn] for answer in answers])


def assess(
    d: ArrayLike,
    feasible: FeasibleSet,
    solver: Solver = "lp",
    *,
    tolerance: float = 1e-6,
    pool: Pool | None = None,
    steps: int = 10_000,
    step_size: float | None = None,
    multiplier_bound: float = 20.0,
) -> Assessment:
    """Say how much better the first policy is than the second under every feasible reward (Sec. 3.4).

    Args:
        d: (k,) coefficients of the first policy's return minus those of the second's.
        feasible: the rewards that the feedback allows.
        solver: `lp` (exact; no l2 ball), `cone` (exact to about 1e-8; with a ball), or `pd`, the paper's primal-dual
            method: m and M are then its certified bounds, outside the true interval by at most `gap` (if `violation`
            is 0).
        tolerance: from which size m and M count as different from 0.
        pool: rows from oracles found before, of `lp` and `cone`; extended in place.
        steps: T of `pd`.
        step_size: c of α of `pd`; None for its default.
        multiplier_bound: Λ of `pd`.

    Raises:
        Infeasible: if the set is empty; `pd` notices only if its bounds contradict each other, and otherwise shows a
            violation that stays.
        ValueError: if `d` is no finite (k,), or an option is out of range.
        Unsolved: if a solver breaks down.
    """
    c = check_direction(d, feasible)
    if not tolerance >= 0:
        raise ValueError(f"tolerance must be at least 0, got {tolerance}")
    gap, smallest_dual = 0.0, DUAL_TOLERANCE
    if solver == "pd":
        m, M, x_min, x_max, duals, cut_duals, gap = _primal_dual(
            c, feasible, steps=steps, step_size=step_size, multiplier_bound=multiplier_bound
        )
        if m > M + tolerance:
            raise Infeasible(
                "no reward satisfies all of the feedback: the certified bounds of <d, r> contradict each other"
            )
        # Averaged multipliers of idle rows fade like 1 / T and never vanish.
        smallest_dual = 0.01 * max(np.abs(duals).max(initial=0.0), np.abs(cut_duals).max(initial=0.0), DUAL_TOLERANCE)
    elif solver in ("lp", "cone"):
        found = interval(c, feasible, solver=solver, pool=pool)
        m, M, x_min, x_max = found.m, found.M, found.x_min, found.x_max
        duals, cut_duals = np.stack([found.duals_min, found.duals_max]), found.cut_duals
    else:
        raise ValueError(f'solver must be "lp", "cone" or "pd", got {solver!r}')
    x = (x_min + x_max) / 2
    names = [*feasible.labels, *(cut.name for cut in feasible.cuts)]
    held = np.abs(np.concatenate([duals, cut_duals], 1)).max(0) > smallest_dual
    decision, certificate = decide(m, M, tolerance)
    return Assessment(
        m=m,
        M=M,
        answer=(m + M) / 2,
        half_width=(M - m) / 2,
        x=x,
        x_min=x_min,
        x_max=x_max,
        decision=decision,
        certificate=certificate,
        tolerance=tolerance,
        zero_feasible=feasible.contains(np.zeros(feasible.dim), tolerance),
        active=tuple(names[i] for i in np.flatnonzero(held)),
        duals_min=duals[0],
        duals_max=duals[1],
        violation=max(feasible.violation(point) for point in (x, x_min, x_max)),
        gap=gap,
    )


def decide(m: float, M: float, tolerance: float = 1e-6) -> tuple[Decision, Certificate]:
    """Say which policy is better for every reward with <d, r> in [m, M] (Sec. 3.4).

    Returns:
        The decision and how certain it is, as in `Assessment`.
    """
    least: dict[Decision, float] = {"first": m, "second": -M}  # smallest advantage of each
    for policy, advantage in least.items():
        if advantage > tolerance:
            return policy, "strict"
    weakly = [policy for policy, advantage in least.items() if advantage >= -tolerance]
    if len(weakly) == 1:
        return weakly[0], "weak"
    return "undetermined", "weak" if weakly else "none"


def next_question(
    d: ArrayLike,
    feasible: FeasibleSet,
    candidates: ArrayLike,
    labels: Sequence[str] | None = None,
    *,
    solver: Literal["lp", "cone"] = "lp",
    pool: Pool | None = None,
) -> list[Question]:
    """Rank comparisons by how much they would narrow [m, M] in the worse of their two answers (inferred extension).

    Args:
        d: (k,) as in `assess`.
        feasible: what is known already.
        candidates: (n, k) coefficients of the first option minus those of the second, one row per question.
        labels: n names; None for "question 0" and so on.
        solver: as in `assess`.
        pool: as in `assess`.

    Returns:
        All candidates, the most useful first; ties in the given order. An answer that the feedback rules out counts
        as never given.

    Raises:
        Infeasible: if the set is empty.
        ValueError: if a shape is wrong.
    """
    rows = np.asarray(candidates, dtype=np.float64)
    if rows.ndim != 2 or rows.shape[1] != feasible.dim:
        raise ValueError(f"candidates must have shape (n, {feasible.dim}), got {rows.shape}")
    names = [f"question {i}" for i in range(len(rows))] if labels is None else list(labels)
    if len(names) != len(rows):
        raise ValueError(f"expected {len(rows)} labels for as many candidates, got {len(names)}")
    shared = Pool() if pool is None else pool
    interval(d, feasible, solver=solver, pool=shared)  # an empty set must not pass as one that rules out all answers

    def half_width(row: Array) -> float:
        try:
            found = interval(d, feasible.with_rows(row), solver=solver, pool=shared)
        except Infeasible:
            return float("nan")
        return (found.M - found.m) / 2

    pairs = [(half_width(row), half_width(-row)) for row in rows]
    questions = [Question(i, names[i], float(np.nanmax(pair)), *pair) for i, pair in enumerate(pairs)]
    return sorted(questions, key=lambda question: question.half_width)


def _primal_dual(
    c: Array, feasible: FeasibleSet, *, steps: int, step_size: float | None, multiplier_bound: float
) -> tuple[float, float, Array, Array, Array, Array, float]:
    """Solve both directions as a batch of two (Sec. 3.5, step 2)."""
    import torch
    from torch import Tensor

    from .primal_dual import BatchCut, solve

    def batched(cut: Cut) -> BatchCut:
        def oracle(x: Tensor) -> tuple[Tensor, Tensor]:
            values, subgradients = zip(*(cut.oracle(row) for row in x.numpy()), strict=True)
            return torch.tensor(values, dtype=x.dtype), torch.from_numpy(np.stack(subgradients))

        return BatchCut(oracle, cut.bound)

    found = solve(
        torch.tensor(np.stack([c, -c])),
        torch.tensor(feasible.rows),
        torch.tensor(feasible.lower),
        torch.tensor(feasible.upper),
        torch.tensor(feasible.low),
        torch.tensor(feasible.high),
        feasible.radius,
        steps=steps,
        step_size=step_size,
        multiplier_bound=multiplier_bound,
        cuts=[batched(cut) for cut in feasible.cuts],
    )
    x, duals, cut_duals = found.x.numpy(), found.duals.numpy(), found.cut_duals.numpy()
    m, M = float(found.dual_bound[0]), -float(found.dual_bound[1])
    return m, M, x[0], x[1], duals * [[1], [-1]], cut_duals * [[1], [-1]], float(found.gap.abs().max())
