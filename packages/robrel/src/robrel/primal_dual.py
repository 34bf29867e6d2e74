"""Rob-ReL's solver: the primal-dual subgradient method, for a batch of instances at once (Sec. 3.5, 3.7; inferred).

    minimise c @ x  over x in X = box, or l2 ball, or both,  subject to  lower <= D x <= upper  and  f(x) <= bound

    ℒ(x, λ) = c @ x + Σ_i λ_i (t_i - G_i @ x) + Σ_j μ_j (f_j(x) - b_j)     G, t: both sides of the rows as G x >= t
    x  <- Π_X(x - α ∂_x ℒ)
    λ_i <- clip(λ_i + α (t_i - G_i @ x), 0, Λ), and μ_j alike, with the new x
    α = step_size √(1000 / T) / ‖D‖₂

The answer is the average of the iterates: they themselves circle around the solution and do not converge. The averaged
multipliers give a lower bound of the minimum, which holds after any number of steps by weak duality: for X = [-1, 1]^k
it is Σ_i λ̄_i t_i - ‖c - Gᵀλ̄‖₁. Its distance to the value of the average is a computable gap. For the maximum negate c.
The multipliers see the new x. Seeing the old one, the same number of steps leaves a gap several times as large.

Symbols: B instances, k parameters (x is r in the paper), m rows, q oracles. Torch only; the file can be copied alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

BISECTIONS = 60  # of the scale in a box and a ball that cut each other
STEP_SIZE = 0.5  # c of α in Sec. 3.6
# Ours, with oracles: the subgradient jumps between the pieces of f, x overshoots unless α μ ‖g‖² is below the slack
# that the constraint can have, and the multipliers then climb to Λ. On random polytopes 0.02 to 0.05 did best.
STEP_SIZE_WITH_CUTS = 0.03


class BatchCut(NamedTuple):
    """A convex constraint f(x) <= bound of every instance, known through an oracle; one call per step.

    Attributes:
        oracle: x (B, k) -> f(x) (B,) and subgradients (B, k), each instance by itself. With demonstrations, one batched
            planning sweep. It must be deterministic for resumed runs to equal unbroken ones.
        bound: one number, or (B,).
    """

    oracle: Callable[[Tensor], tuple[Tensor, Tensor]]
    bound: float | Tensor


class Domain(NamedTuple):
    """The simple set X: a box, an l2 ball around 0, or their intersection.

    Attributes:
        low: (..., k) smallest parameters.
        high: (..., k) largest parameters.
        radius: of the ball; None for none.
        kind: which of them matter.
    """

    low: Tensor
    high: Tensor
    radius: float | None
    kind: Literal["box", "ball", "both"]

    @classmethod
    def of(cls, low: Tensor, high: Tensor, radius: float | None = None) -> Domain:
        """Build X and find out whether one of box and ball holds the other."""
        if radius is None or bool((torch.maximum(low.abs(), high.abs()).norm(dim=-1) <= radius).all()):
            return cls(low, high, radius, "box")
        inside = bool((low <= -radius).all() and (high >= radius).all())
        return cls(low, high, radius, "ball" if inside else "both")

    def project(self, z: Tensor) -> Tensor:
        """Project z (..., k) onto X, in the l2 norm."""
        if self.kind == "box":
            return torch.clamp(z, self.low, self.high)
        assert self.radius is not None
        if self.kind == "ball":
            return z * (self.radius / z.norm(dim=-1, keepdim=True)).clamp(max=1.0)
        # The optimality conditions make it clip(s z) with the largest s in [0, 1] that keeps it in the ball.
        return self._scaled(z, torch.ones_like(z[..., :1]))

    def least(self, q: Tensor) -> Tensor:
        """Compute min q @ x over x in X; q (..., k) -> (...). Never above the true minimum."""
        of_box = torch.minimum(q * self.low, q * self.high).sum(-1)
        if self.kind == "box":
            return of_box
        assert self.radius is not None
        of_ball = -self.radius * q.norm(dim=-1)
        if self.kind == "ball":
            return of_ball
        # Dualise the ball with a multiplier 1 / s > 0; every s gives a valid bound, attained at clip(-s q).
        largest = torch.maximum(self.low.abs(), self.high.abs()) / q.abs().clamp(min=1e-12)
        s = self._scale(-q, largest.amax(-1, keepdim=True)).clamp(min=1e-12)
        x = torch.clamp(-s * q, self.low, self.high)
        of_both = (q * x).sum(-1) + (x.square().sum(-1) - self.radius**2) / (2 * s[..., 0])
        return torch.maximum(torch.maximum(of_box, of_ball), of_both)

    def _scale(self, z: Tensor, largest: Tensor) -> Tensor:
        """Bisect for the largest s in [0, largest] (..., 1) with ‖clip(s z)‖₂ <= radius; the norm never falls in s."""
        assert self.radius is not None
        fits, breaks = torch.zeros_like(largest), largest
        inside = torch.clamp(largest * z, self.low, self.high).norm(dim=-1, keepdim=True) <= self.radius
        for _ in range(BISECTIONS):
            middle = (fits + breaks) / 2
            good = torch.clamp(middle * z, self.low, self.high).norm(dim=-1, keepdim=True) <= self.radius
            fits, breaks = torch.where(good, middle, fits), torch.where(good, breaks, middle)
        return torch.where(inside, largest, fits)

    def _scaled(self, z: Tensor, largest: Tensor) -> Tensor:
        return torch.clamp(self._scale(z, largest) * z, self.low, self.high)


@dataclass(frozen=True, eq=False)
class Solution:
    """What a run has found, for each instance.

    Attributes:
        x: (B, k) average x̄ of the iterates; in X, and near the rows' bounds.
        value: (B,) c @ x̄. It can lie on either side of the minimum, because x̄ can break a bound a little.
        violation: (B,) largest amount by which x̄ breaks a row or an oracle's bound; 0 if none.
        dual_bound: (B,) never above the minimum. This, not `value`, is the certificate.
        gap: (B,) value - dual_bound; negative only if x̄ is not feasible.
        duals: (B, m) averaged multipliers: positive for `lower`, negative for `upper`.
        cut_duals: (B, q) the same of the oracles; never positive.
        steps: number of steps T in the average.
    """

    x: Tensor
    value: Tensor
    violation: Tensor
    dual_bound: Tensor
    gap: Tensor
    duals: Tensor
    cut_duals: Tensor
    steps: int


class PrimalDual:
    """The state of a run: iterates, multipliers, their sums, and how many steps are in them.

    Two-sided rows have two multipliers. All tensors have the dtype and the device of `c`; float64 is advised.

    Args:
        c: (B, k) objectives to minimise.
        rows: D (m, k), or (B, m, k) if the instances differ.
        lower: (m,) or (B, m); -inf for none.
        upper: (m,) or (B, m); inf for none.
        low: (k,) or (B, k) smallest parameters, finite.
        high: (k,) or (B, k) largest parameters, finite.
        radius: of an l2 ball that x must lie in as well; if box and ball cut each other, a step needs a bisection.
        steps: T that α is chosen for.
        step_size: c of α = c √(1000 / T) / ‖D‖₂; the norm counts the oracles' first subgradients as rows. None for 0.5,
            or 0.03 with oracles.
        multiplier_bound: Λ > 0, one number or (B,). Below the true multipliers the answer breaks the rows.
        cuts: constraints known through oracles.

    Raises:
        ValueError: if a shape, a number or an option is out of range.
    """

    def __init__(
        self,
        c: Tensor,
        rows: Tensor,
        lower: Tensor,
        upper: Tensor,
        low: Tensor,
        high: Tensor,
        radius: float | None = None,
        *,
        steps: int = 10_000,
        step_size: float | None = None,
        multiplier_bound: float | Tensor = 20.0,
        cuts: Sequence[BatchCut] = (),
    ) -> None:
        check_problem(c, rows, lower, upper, low, high)
        if step_size is None:
            step_size = STEP_SIZE_WITH_CUTS if cuts else STEP_SIZE
        if steps < 1 or not step_size > 0 or (radius is not None and not radius > 0):
            raise ValueError(f"steps, step_size and radius must be positive, got {steps}, {step_size} and {radius}")
        batch = len(c)
        self.c = c[:, None]  # (B, 1, k), as all vectors here: the products are batched ones of matrices
        self.cap = torch.as_tensor(multiplier_bound, dtype=c.dtype, device=c.device).expand(batch)[:, None, None]
        if not bool((self.cap > 0).all()):
            raise ValueError(f"multiplier_bound must be positive, got {float(self.cap.min())}")
        self.domain = Domain.of(_per_instance(low), _per_instance(high), radius)
        self.m, self.planned, self.done = rows.shape[-2], steps, 0
        self.g, self.t, self.owner, self.sign = _one_sided(rows, lower, upper)
        self.oracles = [cut.oracle for cut in cuts]
        bounds = [torch.as_tensor(cut.bound, dtype=c.dtype, device=c.device).expand(batch) for cut in cuts]
        self.bounds = torch.stack(bounds, 1)[:, None] if cuts else c.new_zeros(batch, 1, 0)
        self.x = self.domain.project(torch.zeros_like(self.c))
        self.lam = c.new_zeros(batch, 1, self.g.shape[-2])
        self.mu = torch.zeros_like(self.bounds)
        self.f, self.df = self._ask(self.x)
        self.sums = {"x": torch.zeros_like(self.x), "lam": torch.zeros_like(self.lam), "mu": torch.zeros_like(self.mu)}
        # Σ μ_j (f_j(x_t) + ∂f_j(x_t) @ (x - x_t) - b_j) over steps: slope and constant of a function of x.
        self.sums |= {"slope": torch.zeros_like(self.c), "constant": c.new_zeros(batch)}
        stacked = torch.cat([self.g.expand(batch, -1, -1), self.df], 1) if cuts else self.g
        norm = torch.linalg.matrix_norm(stacked, 2) if stacked.shape[-2] else c.new_zeros(1)  # (B,) or (1,)
        norm = torch.where(norm > 0, norm, torch.ones_like(norm))  # no rows: any step finds the corner
        self.alpha = (step_size * math.sqrt(1000 / steps) / norm)[:, None, None]
        self._zero = c.new_zeros(())

    @torch.no_grad()
    def run(self, steps: int | None = None) -> PrimalDual:
        """Take steps, by default all that are left of those planned; returns itself."""
        a, zero = self.alpha, self._zero
        g, c, t = (a * self.g).expand(len(self.c), -1, -1).contiguous(), a * self.c, a * self.t
        sums, gt = self.sums, g.mT
        for _ in range(max(self.planned - self.done, 0) if steps is None else steps):
            x = torch.baddbmm(self.x, self.lam, g).sub_(c)  # x - α (c - Gᵀλ)
            if self.oracles:
                x.baddbmm_(self.mu, a * self.df, alpha=-1)
            self.x = self.domain.project(x)
            self.lam = torch.baddbmm(self.lam, self.x, gt, alpha=-1).add_(t).clamp_(zero, self.cap)
            if self.oracles:
                self.f, self.df = self._ask(self.x)
                excess = self.f - self.bounds
                self.mu = (self.mu + a * excess).clamp_(zero, self.cap)
                slope = self.mu @ self.df
                sums["mu"] += self.mu
                sums["slope"] += slope
                sums["constant"] += (self.mu * excess).sum((1, 2)) - (slope * self.x).sum((1, 2))
            sums["x"] += self.x
            sums["lam"] += self.lam
            self.done += 1
        return self

    @torch.no_grad()
    def result(self) -> Solution:
        """Average the steps so far, and bound the minimum from below (Sec. 3.7, step 3).

        Raises:
            ValueError: before the first step.
        """
        if not self.done:
            raise ValueError("the average needs at least one step, got none: call run first")
        mean = {name: total / self.done for name, total in self.sums.items()}
        x, lam = mean["x"], mean["lam"]
        value = (self.c * x).sum((1, 2))
        broken = [self.t - x @ self.g.mT, self._ask(x)[0] - self.bounds, self.x.new_zeros(len(x), 1, 1)]
        violation = torch.cat([b.expand(len(x), -1, -1) for b in broken], 2).amax((1, 2))
        # Every step's linearisation lies below f, so the averaged ones bound ℒ(., λ̄, μ̄) from below.
        reduced = self.c - lam @ self.g + mean["slope"]
        dual_bound = (lam * self.t).sum((1, 2)) + mean["constant"] + self.domain.least(reduced)[:, 0]
        duals = x.new_zeros(len(x), self.m).index_add_(1, self.owner, lam[:, 0] * self.sign)
        return Solution(x[:, 0], value, violation, dual_bound, value - dual_bound, duals, -mean["mu"][:, 0], self.done)

    def state_dict(self) -> dict[str, Tensor]:
        """Return copies of all that a resumed run needs beside the constructor's arguments."""
        state = {"x": self.x, "lam": self.lam, "mu": self.mu, "f": self.f, "df": self.df, "alpha": self.alpha}
        state |= {f"sum_{name}": total for name, total in self.sums.items()}
        return {name: tensor.clone() for name, tensor in state.items()} | {"steps": torch.tensor(self.done)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue from a saved state; with the same arguments, as if the run had never stopped.

        Raises:
            ValueError: if the state is that of a problem of another size, or of other steps or step size.
        """
        mine = self.state_dict()
        if state.keys() != mine.keys() or any(state[name].shape != mine[name].shape for name in mine):
            raise ValueError("the saved state belongs to a problem of another size")
        saved = {name: tensor.to(mine[name]) for name, tensor in state.items()}
        if not torch.equal(saved["alpha"], self.alpha):
            raise ValueError(
                "the saved state belongs to a run with another step size: rows, steps and step_size must agree"
            )
        self.x, self.lam, self.mu, self.f, self.df = (saved[name].clone() for name in ("x", "lam", "mu", "f", "df"))
        self.sums = {name: saved[f"sum_{name}"].clone() for name in self.sums}
        self.done = int(saved["steps"])

    def _ask(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Ask the oracles at x (B, 1, k): values (B, 1, q) and subgradients (B, q, k)."""
        if not self.oracles:
            return x.new_zeros(len(x), 1, 0), x.new_zeros(len(x), 0, x.shape[-1])
        values, subgradients = zip(*(oracle(x[:, 0]) for oracle in self.oracles), strict=True)
        return torch.stack(values, 1)[:, None].to(x), torch.stack(subgradients, 1).to(x)


def solve(
    c: Tensor,
    rows: Tensor,
    lower: Tensor,
    upper: Tensor,
    low: Tensor,
    high: Tensor,
    radius: float | None = None,
    *,
    steps: int = 10_000,
    step_size: float | None = None,
    multiplier_bound: float | Tensor = 20.0,
    cuts: Sequence[BatchCut] = (),
    tolerance: float | None = None,
    check_every: int = 1000,
    doublings: int = 0,
) -> Solution:
    """Minimise c @ x for B instances at once; shapes and limits as in `PrimalDual`.

    Args:
        c: (B, k) objectives.
        rows: (m, k) or (B, m, k).
        lower: (m,) or (B, m).
        upper: (m,) or (B, m).
        low: (k,) or (B, k).
        high: (k,) or (B, k).
        radius: of an l2 ball, or None.
        steps: T.
        step_size: c of α, or None for its default.
        multiplier_bound: Λ.
        cuts: constraints known through oracles.
        tolerance: ε. Stop once gap and violation of every instance are at most ε; None takes all steps.
        check_every: steps between two looks at the tolerance.
        doublings: how often the run may be repeated with Λ doubled for those instances whose average still breaks a
            bound by more than ε. Of use where the true multipliers are not known to lie below Λ.

    Raises:
        ValueError: as `PrimalDual`, or if `doublings` lacks a tolerance.
    """
    if doublings and tolerance is None:
        raise ValueError("doublings need a tolerance: the violation from which Λ is doubled")
    if tolerance is not None and (not tolerance > 0 or check_every < 1):
        raise ValueError(f"tolerance and check_every must be positive, got {tolerance} and {check_every}")
    cap = torch.as_tensor(multiplier_bound, dtype=c.dtype, device=c.device).expand(len(c)).clone()
    for attempt in range(doublings + 1):
        state = PrimalDual(
            c, rows, lower, upper, low, high, radius,
            steps=steps, step_size=step_size, multiplier_bound=cap, cuts=cuts,
        )  # fmt: skip
        if tolerance is None:
            return state.run().result()
        while True:
            found = state.run(min(check_every, steps - state.done)).result()
            if state.done == steps or bool(((found.gap <= tolerance) & (found.violation <= tolerance)).all()):
                break
        broken = found.violation > tolerance
        if not bool(broken.any()) or attempt == doublings:
            break
        cap = torch.where(broken, 2 * cap, cap)
    return found


def check_problem(c: Tensor, rows: Tensor, lower: Tensor, upper: Tensor, low: Tensor, high: Tensor) -> None:
    """Raise ValueError unless the tensors are a batch of instances as `PrimalDual` takes them."""
    if c.ndim != 2 or len(c) == 0 or not c.is_floating_point():
        raise ValueError(f"c must be floating point of shape (B, k), got {c.dtype} of {tuple(c.shape)}")
    b, k, m = *c.shape, rows.shape[-2] if rows.ndim > 1 else -1
    of_rows = {"rows": (rows, (m, k)), "lower": (lower, (m,)), "upper": (upper, (m,))}
    of_box = {"low": (low, (k,)), "high": (high, (k,))}
    for name, (tensor, shape) in (of_rows | of_box).items():
        if tensor.shape not in (shape, (b, *shape)):
            raise ValueError(f"{name} must have shape {shape} or {(b, *shape)}, got {tuple(tensor.shape)}")
        if tensor.dtype != c.dtype or tensor.device != c.device:
            raise ValueError(f"{name} must be {c.dtype} on {c.device} as c, got {tensor.dtype} on {tensor.device}")
    if not all(bool(tensor.isfinite().all()) for tensor in (c, rows, low, high)):
        raise ValueError("c, rows, low and high must be finite")
    if not bool((low <= high).all()) or not bool((lower <= upper).all()):  # a NaN fails it too
        raise ValueError("low and lower must not lie above high and upper")


def _per_instance(tensor: Tensor) -> Tensor:
    """(k,) -> (1, 1, k) and (B, k) -> (B, 1, k)."""
    return tensor[:, None] if tensor.ndim == 2 else tensor[None, None]


def _one_sided(rows: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Write both sides of the rows as G x >= t, without those that no instance has.

    Returns:
        G (1 or B, n, k), t (1 or B, 1, n), and of each of the n the row it is a side of and its sign.
    """
    m = rows.shape[-2]
    below, above = _per_instance(lower), _per_instance(upper)
    instances = max(len(below), len(above))
    t = torch.cat([below.expand(instances, -1, -1), -above.expand(instances, -1, -1)], -1)
    kept = t.isfinite().any(0).any(0).nonzero()[:, 0]
    t = t[..., kept]
    g = torch.cat([rows, -rows], -2)
    g = (g if g.ndim == 3 else g[None])[:, kept]
    # A side that only some instances have is the harmless 0 @ x >= 0 in the others.
    absent = ~t.isfinite()
    if bool(absent.any()):
        g, t = g.masked_fill(absent.mT, 0.0), t.masked_fill(absent, 0.0)
    sign = torch.ones_like(kept, dtype=rows.dtype)
    sign[kept >= m] = -1.0
    return g, t, kept % max(m, 1), sign
