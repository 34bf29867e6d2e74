"""Unified soft pruning of a scene in training (Sec. 3.4, 3.5): the budget, the proxies, and the final cut."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from megs2.admm import Proxy
from megs2.budget import Kept, joint, ratios
from megs2.gaussians import FLOATS, LOBE_FLOATS, Gaussians
from megs2.importance import lobe_scores, lobe_values
from megs2.scene import Scene, keep_gaussians, keep_lobes
from megs2.spherical_gaussians import compensation


@dataclass(frozen=True)
class Pruning:
    """How a scene is brought down to a budget.

    Attributes:
        method: `soft` draws what goes to zero before it is cut, `hard` cuts at once where soft pruning would begin.
        choice: `joint` is the paper's problem; `sequential` takes Gaussians in the first half and lobes in the second;
            `ratios` removes fixed shares, as the release does.
        budget_mb: megabytes (10^6 bytes) that the scene may take, for `joint` and `sequential`; None for all.
        gaussian_share: of the Gaussians to remove (`prune_ratio2`), for `ratios`.
        lobe_share: of the lobes to remove (`sharpness_ratio`), for `ratios`.
        lobes_left: mean number of lobes that the first half of `sequential` reckons with.
        sharpness_threshold: lobes below it go in the final cut too; the release has 1 with its `ratios`.
        dual_updates: project again and update the duals; the release never does.
        compensate: fold the mean of a removed lobe into the base colour.
        worth: of a Gaussian (Sec. 3.4, inferred): its blending weight times the mean `colour` that is seen, or the
            `weight` alone.
        gaussian_bytes: what a Gaussian without lobes costs; what it takes in memory when None.
        rho: weight of the penalty.
        importance_views: training views that blending weights are summed over at a projection, drawn anew for each;
            all when None, as for the final cut.
        per_area: divide weights by projected areas (the release, outdoors).

    Raises:
        ValueError: if a value is out of range.
    """

    method: Literal["soft", "hard"] = "soft"
    choice: Literal["joint", "sequential", "ratios"] = "joint"
    budget_mb: float | None = None
    gaussian_share: float = 0.5
    lobe_share: float = 0.5
    lobes_left: float = 1.5
    sharpness_threshold: float = 0.0
    dual_updates: bool = True
    compensate: bool = True
    worth: Literal["colour", "weight"] = "colour"
    gaussian_bytes: float | None = None
    rho: float = 5e-4
    importance_views: int | None = 8
    per_area: bool = False

    def __post_init__(self) -> None:
        for name in ("gaussian_share", "lobe_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"pruning.{name} must lie in [0, 1], got {getattr(self, name)}")
        for name in ("lobes_left", "sharpness_threshold", "rho"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"pruning.{name} must be a finite number of at least 0, got {getattr(self, name)}")
        for name in ("budget_mb", "gaussian_bytes"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"pruning.{name} must be a finite number above 0, got {value}")
        if self.importance_views is not None and self.importance_views < 1:
            raise ValueError(f"pruning.importance_views must be at least 1, got {self.importance_views}")


@dataclass(frozen=True)
class Costs:
    """Memory in bytes.

    Attributes:
        gaussian: of a Gaussian without lobes.
        lobe: of a lobe.
    """

    gaussian: float
    lobe: float


def costs_of(gaussians: Gaussians, fixed_axes: bool = False) -> Costs:
    """Return what the scene's entries take in float32 (Sec. 5): 57 and 28 with lobes, 236 with harmonics of degree 3.

    Args:
        gaussians: the scene.
        fixed_axes: whether the lobes' axes are one set for all, which need not be stored.
    """
    count = 1 if gaussians.max_lobes else 0
    gaussian = 4 * (FLOATS + 3 * gaussians.rest.shape[1]) + count
    return Costs(gaussian, 4 * (LOBE_FLOATS - 3 * fixed_axes))


class Pruner:
    """Chooses what the budget keeps, and draws the rest to zero.

    Args:
        options: how.
        costs: of the scene's entries; `options.gaussian_bytes` replaces that of a Gaussian.

    Attributes:
        proxies: of opacities, and of sharpness where there are lobes; empty until `start`.
        lobes_due: whether lobes are chosen too; False in the first half of `sequential`.
    """

    def __init__(self, options: Pruning, costs: Costs) -> None:
        gaussian = costs.gaussian if options.gaussian_bytes is None else options.gaussian_bytes
        self.options, self.costs = options, Costs(gaussian, costs.lobe)
        self.budget = math.inf if options.budget_mb is None else 1e6 * options.budget_mb
        self.proxies: dict[str, Proxy] = {}
        self.lobes_due = True

    def choose(self, gaussians: Gaussians, weights: Tensor, values: Tensor) -> Kept:
        """Return what the budget keeps.

        Args:
            gaussians: N of them.
            weights: W (N,).
            values: v_i (N,), of the Gaussians without lobes.

        Returns:
            Gaussians (N,) and lobes (N, K), bool.
        """
        options, costs = self.options, self.costs
        if options.choice == "ratios":
            scores = lobe_scores(gaussians)
            return ratios(weights, scores, gaussians.active, options.gaussian_share, options.lobe_share)
        lobes = lobe_values(gaussians, weights)
        if not self.lobes_due:
            cost = costs.gaussian + options.lobes_left * costs.lobe
            kept, _ = joint(values, lobes[:, :0], cost, costs.lobe, self.budget)
            return kept, gaussians.active & kept[:, None]
        return joint(values, lobes, costs.gaussian, costs.lobe, self.budget)

    def start(self, gaussians: Gaussians, kept: Kept) -> None:
        """Set z to the first projection, and u to 0."""
        scene = gaussians.detach()
        self.proxies = {"opacities": Proxy.start(scene.opacities.sigmoid(), kept[0])}
        if scene.max_lobes:
            self.proxies["sharpness"] = Proxy.start(scene.sharpness.abs(), kept[1])

    def update(self, gaussians: Gaussians, kept: Kept) -> None:
        """Project, and update the duals."""
        scene = gaussians.detach()
        self.proxies["opacities"].update(scene.opacities.sigmoid(), kept[0])
        if scene.max_lobes:
            self.proxies["sharpness"].update(scene.sharpness.abs(), kept[1])

    def penalty(self, gaussians: Gaussians) -> Tensor:
        """Return rho / 2 (|o - z_o + u_o|^2 + |s - z_s + u_s|^2)."""
        penalty = self.proxies["opacities"].penalty(gaussians.opacities.sigmoid())
        if gaussians.max_lobes:
            penalty = penalty + self.proxies["sharpness"].penalty(gaussians.sharpness.abs(), gaussians.active)
        return self.options.rho * penalty


@torch.no_grad()
def cut(scene: Scene, optimizers: Mapping[str, torch.optim.Optimizer], kept: Kept, *, compensate: bool = True) -> None:
    """Remove Gaussians and lobes for good, and fold the removed lobes' means into the base colour (Sec. 3.5, 3.6).

    Args:
        scene: changed in place.
        optimizers: by name; moments stay with their parameters.
        kept: Gaussians (N,) and lobes (N, K), bool.
        compensate: fold the means in.
    """
    gaussians = scene.gaussians.detach()
    if compensate and gaussians.max_lobes:
        removed = gaussians.active & ~kept[1]
        lost = compensation(gaussians.sharpness, gaussians.amplitudes) * removed[..., None]
        scene.params["base"].data.add_(lost.sum(1))
    if gaussians.max_lobes:
        keep_lobes(scene, optimizers, kept[1])
    keep_gaussians(scene, optimizers, kept[0])
