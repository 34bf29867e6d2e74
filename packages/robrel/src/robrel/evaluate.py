"""The answers of the methods, and how bad each can be (Sec. 3.4, 4 and 5)."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from robrel.baselines import arbitrary, chebyshev, max_margin, maximum_entropy, maximum_likelihood
from robrel.exact import interval
from robrel.mdp import occupancies
from robrel.problems import Problem
from robrel.soft import soft_policy

Array = NDArray[np.float64]
Method = Literal["robust", "arbitrary", "mle", "chebyshev", "max_margin", "max_entropy"]
METHODS: tuple[Method, ...] = get_args(Method)
TOLERANCE = 1e-6  # of coverage, in units of the return


class Bounds(NamedTuple):
    """An interval for g(r*), as a method knows it."""

    m: float
    M: float


def rewards_of(method: Method, problem: Problem, rng: np.random.Generator) -> Array:
    """Return the rewards (n, k) that a baseline would return; more than one where it leaves a choice.

    Raises:
        ValueError: if the method needs feedback that the problem has not.
    """
    if method == "arbitrary":
        return arbitrary(problem.feasible, rng, pool=problem.pool)
    if method == "mle":
        return maximum_likelihood(problem.feasible.rows, problem.feasible)[None]
    if method == "chebyshev":
        return chebyshev(problem.feasible, pool=problem.pool)[None]
    if method == "max_margin":
        return max_margin(problem.feasible, pool=problem.pool)[None]
    if method == "max_entropy":
        if problem.expert is None:
            raise ValueError("max_entropy needs demonstrations: data.problem.expert must be exact or sampled")

        def expected(x: Array) -> Array:
            policy = soft_policy(problem.planning, problem.space.reward(x))
            return problem.space.coefficients(occupancies(problem.planning, policy))

        return maximum_entropy(expected, problem.expert, problem.feasible)[None]
    raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")


def known_interval(problem: Problem) -> Bounds:
    """Compute [m, M] from what the methods know, widened where the slack is conservative."""
    found = interval(problem.d, problem.feasible, pool=problem.pool)
    return Bounds(found.m - problem.widening, found.M + problem.widening)


def exact_interval(problem: Problem) -> Bounds:
    """Compute [m, M] from exact occupancies: what worst cases are measured by."""
    if problem.feasible is problem.exact_feasible:
        return known_interval(problem)
    found = interval(problem.exact_d, problem.exact_feasible, pool=problem.exact_pool)
    return Bounds(found.m, found.M)


def measure(answers: Array, known: Bounds, exact: Bounds, truth: float) -> dict[str, float]:
    """Measure answers.

    Args:
        answers: (n,) ŷ; measures are means over them.
        known: the interval that was reported.
        exact: [m, M] from exact occupancies.
        truth: g(r*).

    Returns:
        `worst`: worst-case error W(ŷ); `ratio`: W(ŷ) / W*; `error`: |ŷ - g(r*)|; `half_width` of the reported
        interval; `coverage`: whether it holds the truth; `sign`: whether ŷ has the sign of the truth; `interval_error`:
        mean distance of its ends from the exact ones.
    """
    worst = np.maximum(exact.M - answers, answers - exact.m).mean()
    half_width = (exact.M - exact.m) / 2
    return {
        "worst": float(worst),
        "ratio": float(worst / half_width) if half_width > 1e-9 else 1.0,
        "error": float(np.abs(answers - truth).mean()),
        "half_width": (known.M - known.m) / 2,
        "coverage": float(known.m - TOLERANCE <= truth <= known.M + TOLERANCE),
        "sign": float((np.sign(answers) == np.sign(truth)).mean()),
        "interval_error": (abs(known.m - exact.m) + abs(known.M - exact.M)) / 2,
    }
