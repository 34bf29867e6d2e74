"""Unified soft pruning of a scene in training (Sec. 3.4, 3.5): the budget, the proxies, and the final cut."""

from __future__ import annotations

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

Choice = Literal["joint", "sequential", "ratios"]
Worth = Literal["weight", "colour", "contrast"]


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


@dataclass
class Pruner:
    """Chooses what a budget keeps, and draws the rest to zero.

    Attributes:
        budget: bytes; of `joint` and `sequential`.
        costs: of the scene's entries.
        choice: `joint` is the paper's problem; `sequential` takes Gaussians in the first half and lobes in the second;
            `ratios` removes fixed shares, as the release does.
        gaussian_share: of the Gaussians to remove; of `ratios`.
        lobe_share: of the lobes to remove; of `ratios`.
        lobes_left: mean number of lobes that the first half of `sequential` reckons with.
        dual: update z and u; False is what the release amounts to.
        proxies: of opacities, and of sharpness where there are lobes; empty until `start`.
        lobes_due: whether lobes are chosen too; False in the first half of `sequential`.
    """

    budget: float
    costs: Costs
    choice: Choice = "joint"
    gaussian_share: float = 0.5
    lobe_share: float = 0.5
    lobes_left: float = 1.5
    dual: bool = True
    proxies: dict[str, Proxy] | None = None
    lobes_due: bool = True

    def choose(self, gaussians: Gaussians, weights: Tensor, values: Tensor) -> Kept:
        """Return what the budget keeps.

        Args:
            gaussians: N of them.
            weights: W (N,).
            values: v_i (N,), of the Gaussians without lobes.

        Returns:
            Gaussians (N,) and lobes (N, K), bool.
        """
        if self.choice == "ratios":
            return ratios(weights, lobe_scores(gaussians), gaussians.active, self.gaussian_share, self.lobe_share)
        lobes = lobe_values(gaussians, weights)
        if self.choice == "sequential" and not self.lobes_due:
            cost = self.costs.gaussian + self.lobes_left * self.costs.lobe
            kept, _ = joint(values, lobes[:, :0], cost, self.costs.lobe, self.budget)
            return kept, gaussians.active & kept[:, None]
        return joint(values, lobes, self.costs.gaussian, self.costs.lobe, self.budget)

    def start(self, gaussians: Gaussians, kept: Kept) -> None:
        """Set z to the first projection, and u to 0."""
        scene = gaussians.detach()
        self.proxies = {"opacities": Proxy.start(scene.opacities.sigmoid(), kept[0])}
        if scene.max_lobes:
            self.proxies["sharpness"] = Proxy.start(scene.sharpness.abs(), kept[1])

    def update(self, gaussians: Gaussians, kept: Kept) -> None:
        """Project, and update the duals."""
        assert self.proxies is not None
        self.proxies["opacities"].update(gaussians.opacities.detach().sigmoid(), kept[0], dual=self.dual)
        if gaussians.max_lobes:
            self.proxies["sharpness"].update(gaussians.sharpness.detach().abs(), kept[1], dual=self.dual)

    def penalty(self, gaussians: Gaussians) -> Tensor:
        """Return (|o - z_o + u_o|^2 + |s - z_s + u_s|^2) / 2, to be multiplied by rho."""
        assert self.proxies is not None
        penalty = self.proxies["opacities"].penalty(gaussians.opacities.sigmoid())
        if gaussians.max_lobes:
            proxy = self.proxies["sharpness"]
            apart = (gaussians.sharpness.abs() - proxy.z + proxy.u) * gaussians.active
            penalty = penalty + 0.5 * apart.square().sum()
        return penalty


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
