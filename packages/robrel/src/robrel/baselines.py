"""What the robust answer is compared with: rewards that other methods would return (spec. 4).

Each gives parameters x (k,) of one reward; its answer to the application is <d, x>, and its worst-case loss
W = max(M - <d, x>, <d, x> - m) can be set against the robust W* = (M - m) / 2.

    arbitrary            a random vertex of the feasible set: what "any reward that fits" comes to
    maximum_likelihood   Bradley-Terry on the comparisons, clipped to the box: reward learning from human feedback
    chebyshev            the centre of the largest ball in the feasible set
    max_margin           the largest normalised margin over the comparisons
    maximum_entropy      feature matching by a soft-optimal policy: for demonstrations
    hit_and_run          uniform samples of the feasible set, to look at the worst case empirically

NumPy and SciPy.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import null_space
from scipy.optimize import minimize
from scipy.special import expit

from .exact import Pool, chebyshev_center, extreme, margin_center
from .feasible import Array, FeasibleSet

BISECTIONS = 40  # of a chord, for constraints known through an oracle, and of a scale into box and ball


def arbitrary(feasible: FeasibleSet, rng: np.random.Generator, draws: int = 30, *, pool: Pool | None = None) -> Array:
    """Draw vertices of the feasible set, each the minimiser of a Gaussian objective.

    Args:
        feasible: the set.
        rng: source of the objectives.
        draws: how many.
        pool: rows from oracles found before; extended in place.

    Returns:
        (draws, k).

    Raises:
        ValueError: unless draws >= 1.
        Infeasible: if the set is empty.
    """
    if draws < 1:
        raise ValueError(f"draws must be at least 1, got {draws}")
    shared = Pool() if pool is None else pool
    objectives = rng.standard_normal((draws, feasible.dim))
    return np.stack([extreme(c, feasible, pool=shared).x for c in objectives])


def maximum_likelihood(rows: ArrayLike, feasible: FeasibleSet, ridge: float = 1e-3) -> Array:
    """Fit the Bradley-Terry model P(better wins) = σ(row @ x), then clip to the box, or project to box and ball.

    Minimises Σ_i log(1 + exp(-row_i @ x)) + ridge / 2 ‖x‖². The result need not be feasible.

    Args:
        rows: (n, k) coefficients of the preferred option minus those of the other; n = 0 gives 0.
        feasible: has the box and the ball.
        ridge: weight of the penalty, positive: without it comparisons that agree have no finite optimum.

    Raises:
        ValueError: if `ridge` is not positive or the rows have another length.
    """
    d = np.asarray(rows, dtype=np.float64)
    if d.ndim != 2 or d.shape[1] != feasible.dim:
        raise ValueError(f"rows must have shape (n, {feasible.dim}), got {d.shape}")
    if not ridge > 0:
        raise ValueError(f"ridge must be positive, got {ridge}")

    def objective(x: Array) -> tuple[float, Array]:
        z = d @ x
        value = float(np.logaddexp(0.0, -z).sum() + ridge / 2 * x @ x)
        return value, ridge * x - d.T @ expit(-z)

    options = {"maxiter": 10_000, "maxfun": 100_000, "ftol": 1e-15, "gtol": 1e-9}
    start = np.zeros(feasible.dim)
    fit = minimize(objective, start, jac=True, method="L-BFGS-B", options=options)  # type: ignore[call-overload]
    return _into_base(np.asarray(fit.x, dtype=np.float64), feasible)


def chebyshev(feasible: FeasibleSet, *, pool: Pool | None = None) -> Array:
    """Return the centre of the largest ball inside the feasible set; see `exact.chebyshev_center`."""
    return chebyshev_center(feasible, pool=pool)[0]


def max_margin(feasible: FeasibleSet, *, pool: Pool | None = None) -> Array:
    """Return the feasible reward of largest normalised margin over the rows; see `exact.margin_center`."""
    return margin_center(feasible, pool=pool)[0]


def maximum_entropy(
    expected: Callable[[Array], Array],
    target: ArrayLike,
    feasible: FeasibleSet,
    *,
    tolerance: float = 1e-6,
    iterations: int = 10_000,
) -> Array:
    """Match the expert's features by a soft-optimal policy (maximum-entropy inverse reinforcement learning).

    Minimises the convex dual V(x) - target @ x over box and ball, where V is the soft value of the start and its
    gradient the features that the soft-optimal policy of reward x expects. Only this gradient is needed: a projected
    gradient step is accepted if the gradient changes by no more than its length allows, and halved otherwise.

    Args:
        expected: x (k,) -> expected features (k,) under the soft-optimal policy, the gradient of a convex function.
        target: (k,) features of the expert, such as the coefficients of its occupancy.
        feasible: has the box and the ball; comparisons play no part.
        tolerance: stop when a step of length 1 along the gradient would move x by at most this, per coordinate.
        iterations: most steps.

    Raises:
        ValueError: if a shape is wrong.
        RuntimeError: if the tolerance is not met.
    """
    goal = np.asarray(target, dtype=np.float64)
    if goal.shape != (feasible.dim,):
        raise ValueError(f"target must have shape ({feasible.dim},), got {goal.shape}")

    def gradient(x: Array) -> Array:
        features = np.asarray(expected(x), dtype=np.float64)
        if features.shape != goal.shape or not np.isfinite(features).all():
            raise ValueError(f"expected must return finite features {goal.shape}, got shape {features.shape}")
        return features - goal

    x = _into_base(np.zeros(feasible.dim), feasible)
    g, eta = gradient(x), 1.0
    for _ in range(iterations):
        if np.abs(_into_base(x - g, feasible) - x).max() <= tolerance:
            return x
        while True:
            y = _into_base(x - eta * g, feasible)
            h, step = gradient(y), y - x
            # 1 / eta bounds the curvature along the step, which makes it one of descent; the slack is rounding.
            if (h - g) @ step <= step @ step / eta + 1e-15:
                break
            eta /= 2
        x, g, eta = y, h, 1.5 * eta
    raise RuntimeError(f"maximum entropy did not meet the tolerance {tolerance} in {iterations} iterations")


def hit_and_run(
    feasible: FeasibleSet, rng: np.random.Generator, n: int, *, thin: int = 1, start: ArrayLike | None = None
) -> Array:
    """Sample the feasible set: from each point, a uniform point of the chord in a random direction.

    The chain's limit is uniform in the set, or in the subspace that its equality rows leave.

    Args:
        feasible: the set; a set that comparisons have made flat without an equality row yields copies of one point.
        rng: source of directions and points.
        n: number of samples.
        thin: steps from one sample to the next.
        start: (k,) a feasible point; None for the Chebyshev centre.

    Returns:
        (n, k), correlated from one to the next.

    Raises:
        ValueError: if n or thin is less than 1, or the start is not feasible.
        Infeasible: if the set is empty.
    """
    if n < 1 or thin < 1:
        raise ValueError(f"n and thin must be at least 1, got {n} and {thin}")
    x = chebyshev(feasible) if start is None else np.array(start, dtype=np.float64)
    if not feasible.contains(x):
        raise ValueError(f"the start of hit-and-run breaks a constraint by {feasible.violation(x)}")
    fixed = np.concatenate([feasible.rows[feasible.equalities], np.eye(feasible.dim)[feasible.low == feasible.high]])
    free = null_space(fixed) if len(fixed) else np.eye(feasible.dim)
    walls = np.concatenate([feasible.rows, -feasible.rows, np.eye(feasible.dim), -np.eye(feasible.dim)])
    limits = np.concatenate([feasible.upper, -feasible.lower, feasible.high, -feasible.low])
    samples = np.empty((n, feasible.dim))
    for i in range(n):
        for _ in range(thin):
            direction = free @ rng.standard_normal(free.shape[1])
            norm = float(np.linalg.norm(direction))
            if norm > 0:
                u = direction / norm
                slope, slack = walls @ u, limits - walls @ x
                back, ahead = _reach(feasible, slack, -slope, x, -u), _reach(feasible, slack, slope, x, u)
                x = x + rng.uniform(-back, ahead) * u
        samples[i] = x
    return samples


def _reach(feasible: FeasibleSet, slack: Array, slope: Array, x: Array, u: Array) -> float:
    """Compute how far one can go from a feasible x (k,) along u (k,) of length 1; 0 at a wall.

    The walls leave `slack` at x, which shrinks by `slope` per unit of length.
    """
    ahead = slope > 1e-12  # equality rows have slope 0 up to rounding
    reach = float((slack[ahead] / slope[ahead]).min(initial=math.inf))
    if feasible.radius is not None:
        along = float(x @ u)
        reach = min(reach, -along + math.sqrt(max(along**2 + feasible.radius**2 - float(x @ x), 0.0)))
    reach = max(reach, 0.0)
    for cut in feasible.cuts:
        if cut.row(x + reach * u)[0] > 0:  # f is convex along the chord, so the part inside is an interval from 0
            inside, outside = 0.0, reach
            for _ in range(BISECTIONS):
                middle = (inside + outside) / 2
                inside, outside = (middle, outside) if cut.row(x + middle * u)[0] <= 0 else (inside, middle)
            reach = inside
    return reach


def _into_base(z: Array, feasible: FeasibleSet) -> Array:
    """Project z (k,) onto the box and the ball."""
    clipped = np.clip(z, feasible.low, feasible.high)
    if feasible.radius is None or np.linalg.norm(clipped) <= feasible.radius:
        return clipped
    # The optimality conditions make it clip(s z) with the largest s in [0, 1] that keeps it in the ball.
    fits, breaks = 0.0, 1.0
    for _ in range(BISECTIONS):
        middle = (fits + breaks) / 2
        inside = np.linalg.norm(np.clip(middle * z, feasible.low, feasible.high)) <= feasible.radius
        fits, breaks = (middle, breaks) if inside else (fits, middle)
    return np.clip(fits * z, feasible.low, feasible.high)
