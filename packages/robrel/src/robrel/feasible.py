"""The feasible set R_F: every reward that agrees with the feedback (Sec. 3.2).

    lower <= rows x <= upper      comparisons of trajectories or policies, anchors: one row each
    f(x) <= bound                 demonstrations: a convex f that is known through an oracle only
    low <= x <= high, ‖x‖₂ <= radius

x (k,) are the parameters of a reward: one number per stage, state and action, per state and action, or per feature.
The set is compact and convex; it is empty only if the feedback conflicts. Nothing here knows of decision processes.
NumPy only; the file can be copied alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Oracle = Callable[[Array], tuple[float, Array]]


class Lifting(NamedTuple):
    """A convex f as a linear program of its own, f(x) = min_v { g @ x + h @ v : A x + B v <= 0 }.

    A solver can then hold f(x) <= bound by p further variables and n rows, instead of asking an oracle many times.

    Attributes:
        a: A (n, k), a sparse SciPy array.
        b: B (n, p), likewise.
        g: (k,).
        h: (p,).
    """

    a: Any
    b: Any
    g: Array
    h: Array


@dataclass(frozen=True)
class Cut:
    """A convex constraint f(x) <= bound that is known through an oracle.

    The paper's case is a demonstration: f(x) = max_π <d^π, x> - <d^E, x>, whose subgradient d^{π*(x)} - d^E one sweep
    of dynamic programming finds, and whose bound is the expert's ε (Sec. 3.2, item 3).

    Attributes:
        name: what messages call it, such as "feedback.jsonl line 3".
        oracle: x (k,) -> f(x) and a subgradient g (k,): f(y) >= f(x) + g @ (y - x) for every y.
        bound: the largest f(x) that is feasible.
        lifting: makes f's linear program, where it has one.
    """

    name: str
    oracle: Oracle
    bound: float
    lifting: Callable[[], Lifting] | None = None

    def row(self, x: Array) -> tuple[float, Array, float]:
        """Ask the oracle at x (k,).

        Returns:
            The excess f(x) - bound, and the row g (k,) and limit b of the implied constraint g @ y <= b, which every
            feasible y satisfies and x does not if its excess is positive.

        Raises:
            ValueError: if the oracle's answer is not finite or its subgradient not (k,).
        """
        value, subgradient = self.oracle(x)
        g = np.asarray(subgradient, dtype=np.float64)
        if g.shape != x.shape or not np.isfinite(g).all() or not math.isfinite(value):
            raise ValueError(f"the oracle of {self.name} must return a number and a finite subgradient {x.shape}")
        excess = float(value) - self.bound
        return excess, g, float(g @ x) - excess


@dataclass(frozen=True, eq=False)
class FeasibleSet:
    """A compact convex set of reward parameters. Arrays are copied and cannot be written to.

    Attributes:
        rows: (m, k).
        lower: (m,) smallest value of each row, -inf for none; equal to `upper` for an equality.
        upper: (m,) largest value of each row, inf for none.
        labels: m names of the rows, for messages.
        low: (k,) smallest parameters, finite.
        high: (k,) largest parameters, finite.
        radius: of an l2 ball around 0 that the parameters must lie in as well; None for none.
        cuts: constraints known through an oracle.

    Raises:
        ValueError: if shapes disagree, a number is NaN, a bound is above its opposite or the box is not finite.
    """

    rows: Array
    lower: Array
    upper: Array
    labels: tuple[str, ...]
    low: Array
    high: Array
    radius: float | None = None
    cuts: tuple[Cut, ...] = ()

    def __post_init__(self) -> None:
        for name in ("rows", "lower", "upper", "low", "high"):
            array = np.array(getattr(self, name), dtype=np.float64)
            array.setflags(write=False)
            object.__setattr__(self, name, array)
        object.__setattr__(self, "labels", tuple(self.labels))
        object.__setattr__(self, "cuts", tuple(self.cuts))
        self._check()

    def _check(self) -> None:
        if self.rows.ndim != 2 or self.low.shape != self.rows.shape[1:] or self.high.shape != self.low.shape:
            raise ValueError(
                f"expected rows (m, k) and a box (k,), got rows {self.rows.shape}, low {self.low.shape} "
                f"and high {self.high.shape}"
            )
        if self.dim == 0:
            raise ValueError("a reward needs at least one parameter, got k = 0")
        m = len(self.rows)
        if self.lower.shape != (m,) or self.upper.shape != (m,) or len(self.labels) != m:
            raise ValueError(
                f"expected bounds ({m},) and {m} labels for {m} rows, got lower {self.lower.shape}, "
                f"upper {self.upper.shape} and {len(self.labels)} labels"
            )
        if not (np.isfinite(self.low).all() and np.isfinite(self.high).all() and (self.low <= self.high).all()):
            raise ValueError("the box must be finite with low <= high in every coordinate")
        for i, label in enumerate(self.labels):
            if not np.isfinite(self.rows[i]).all():
                raise ValueError(f"row {i} ({label}) holds a number that is not finite")
            # Written so that a NaN fails it too.
            if not (self.lower[i] <= self.upper[i] and self.lower[i] < math.inf and self.upper[i] > -math.inf):
                raise ValueError(f"row {i} ({label}) needs lower <= upper, got {self.lower[i]} and {self.upper[i]}")
        if self.radius is not None and not 0 < self.radius < math.inf:
            raise ValueError(f"radius must be positive and finite, or None, got {self.radius}")

    @property
    def dim(self) -> int:
        """Number k of parameters."""
        return self.rows.shape[1]

    @property
    def equalities(self) -> NDArray[np.bool_]:
        """(m,) which rows are equalities."""
        return self.lower == self.upper

    def with_rows(
        self, rows: ArrayLike, lower: ArrayLike = 0.0, upper: ArrayLike = math.inf, labels: Sequence[str] | None = None
    ) -> FeasibleSet:
        """Extend the set's constraints; it can only shrink.

        Args:
            rows: (n, k) or a single (k,).
            lower: (n,) or one number for all; the default 0 with no `upper` is that of plain comparisons.
            upper: (n,) or one number for all.
            labels: n names; None for "row 7" and so on, counted from 0 over all rows.

        Raises:
            ValueError: as the class.
        """
        new = np.atleast_2d(np.asarray(rows, dtype=np.float64))
        if new.shape[1:] != self.low.shape:
            raise ValueError(f"new rows must have {self.dim} numbers each, got shape {new.shape}")
        n, m = len(new), len(self.rows)
        names = [f"row {m + i}" for i in range(n)] if labels is None else labels
        return replace(
            self,
            rows=np.concatenate([self.rows, new]),
            lower=np.concatenate([self.lower, np.broadcast_to(np.asarray(lower, dtype=np.float64), n)]),
            upper=np.concatenate([self.upper, np.broadcast_to(np.asarray(upper, dtype=np.float64), n)]),
            labels=(*self.labels, *names),
        )

    def with_cuts(self, *cuts: Cut) -> FeasibleSet:
        """Extend the set's constraints by some that are known through an oracle."""
        return replace(self, cuts=(*self.cuts, *cuts))

    def violation(self, x: ArrayLike) -> float:
        """Compute the largest amount by which x (k,) breaks a constraint; 0 if it breaks none.

        Rows and cuts count in their own units (those of a return), the box and the ball in those of the parameters.
        """
        point = np.asarray(x, dtype=np.float64)
        if point.shape != self.low.shape:
            raise ValueError(f"expected x ({self.dim},), got {point.shape}")
        values = self.rows @ point
        worst = [0.0]
        worst += [float(v.max(initial=0.0)) for v in (self.lower - values, values - self.upper)]
        worst += [float(v.max()) for v in (self.low - point, point - self.high)]
        worst += [cut.row(point)[0] for cut in self.cuts]
        if self.radius is not None:
            worst.append(float(np.linalg.norm(point)) - self.radius)
        return max(worst)

    def contains(self, x: ArrayLike, tol: float = 1e-6) -> bool:
        """Whether x (k,) breaks no constraint by more than `tol`."""
        return self.violation(x) <= tol


def box(k: int, low: float = -1.0, high: float = 1.0) -> FeasibleSet:
    """Build the set before any feedback: k parameters in [low, high] each."""
    return FeasibleSet(np.zeros((0, k)), np.zeros(0), np.zeros(0), (), np.full(k, low), np.full(k, high))


def ball(k: int, radius: float = 1.0) -> FeasibleSet:
    """Build the set before any feedback: k parameters with ‖x‖₂ <= radius."""
    return replace(box(k, -radius, radius), radius=radius)
