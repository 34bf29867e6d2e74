"""The surrogate objective L_q that OrderDP's rounds are unbiased for (Sec. 3.3, Theorem 1).

With losses sorted in descending order, L_(1) >= ... >= L_(n),

    L_q(θ) = (1/q) Σ_j γ_j L_(j)(θ)

where γ_j is the probability that the sample of rank j is drawn into the pool and is among its q largest.
Then E[mean loss of a round] = L_q and E[gradient of a round] = ∂L_q. L_q >= L, with equality iff s = q or
all losses are equal: the selection is biased for L, and unbiased for L_q.

NumPy and SciPy; the file can be copied alone.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import binom, hypergeom

Array = NDArray[np.float64]


def order_weights(n: int, s: int, q: int) -> Array:
    """Compute γ_1, ..., γ_n, in a form that is stable for n in the millions.

    The paper's sum Σ_l C(j-1, l-1) C(n-j, s-l) / C(n, s) counts pools by the rank l that sample j has in them.
    Given that j is in the pool, the other s - 1 members are drawn from the other n - 1 samples, j - 1 of which
    have larger losses; j is kept if at most q - 1 of these are drawn. Hence (inferred; equal to the sum)

        γ_j = (s/n) P[Hypergeometric(n-1, j-1, s-1) <= q-1].

    Args:
        n: number of samples.
        s: size of the pool.
        q: how many a round keeps.

    Returns:
        (n,) non-increasing, of sum q; exactly 0 for j > n - s + q.

    Raises:
        ValueError: unless 1 <= q <= s <= n.
    """
    _check(n, s, q)
    if s == q:  # all of the pool is kept; for n = 1 the library would have an empty population
        return np.full(n, q / n)
    j = np.arange(1, n + 1)
    gamma = s / n * np.asarray(hypergeom.cdf(q - 1, n - 1, j - 1, s - 1))  # Theorem 1
    gamma[n - s + q :] = 0.0  # the library leaves rounding errors there
    return gamma


def surrogate_loss(losses: ArrayLike, s: int, q: int) -> float:
    """Compute L_q of given losses.

    Args:
        losses: (n,) in any order.
        s: size of the pool.
        q: how many a round keeps.

    Raises:
        ValueError: unless 1 <= q <= s <= n and all losses are finite.
    """
    ordered = _sorted(losses)
    return float(order_weights(len(ordered), s, q) @ ordered / q)


def surrogate_weights(losses: ArrayLike, s: int, q: int) -> Array:
    """Compute the weight of each sample in L_q = Σ_i w_i L_i, and so in its gradient Σ_i w_i ∂L_i.

    Args:
        losses: (n,) in any order. Samples of equal loss share the mean of their weights, as random ties do.
        s: size of the pool.
        q: how many a round keeps.

    Returns:
        (n,) w_i = γ_rank(i) / q, of sum 1; that of uniform sampling would be 1/n each.

    Raises:
        ValueError: unless 1 <= q <= s <= n and all losses are finite.
    """
    array = np.asarray(losses, dtype=np.float64)
    ordered = _sorted(array)
    gamma = order_weights(len(array), s, q) / q
    values, counts = np.unique(-ordered, return_counts=True)
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    means = np.add.reduceat(gamma, starts) / counts
    return means[np.searchsorted(values, -array)]


def limit_weights(z: ArrayLike, s: int, q: int) -> Array:
    """Compute the limit of n γ_j for n -> inf at fixed s and q, where j/n -> z (Proposition 2; closed form inferred).

    Args:
        z: quantiles of the loss in [0, 1], 0 for the largest.
        s: size of the pool.
        q: how many a round keeps.

    Returns:
        s P[Binomial(s-1, z) <= q-1], shaped as z; its integral over [0, 1] is q.

    Raises:
        ValueError: unless 1 <= q <= s and z lies in [0, 1].
    """
    quantiles = np.asarray(z, dtype=np.float64)
    if not ((quantiles >= 0) & (quantiles <= 1)).all():
        raise ValueError(f"z must lie in [0, 1], got {quantiles.min()} to {quantiles.max()}")
    if not 1 <= q <= s:
        raise ValueError(f"q must lie in [1, s] = [1, {s}], got {q}")
    return s * np.asarray(binom.cdf(q - 1, s - 1, quantiles))


def never_kept(s: int, q: int) -> int:
    """Count the samples of lowest score that one round cannot keep: those of rank above n - s + q.

    They get their turn only when other scores have fallen below theirs.
    """
    return s - q


def _sorted(losses: ArrayLike) -> Array:
    array = np.asarray(losses, dtype=np.float64)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"losses must have shape (n,) with n >= 1, got {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError("losses must be finite")
    return np.sort(array)[::-1]


def _check(n: int, s: int, q: int) -> None:
    if not 1 <= q <= s <= n:
        raise ValueError(f"expected 1 <= q <= s <= n, got q = {q}, s = {s}, n = {n}")
