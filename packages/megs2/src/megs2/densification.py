"""Growing a scene: 3DGS's densification, the splitting of blurred Gaussians, simplification (Sec. 3.5).

Duplication, splitting and pruning by opacity are gsplat's `DefaultStrategy`, which works with any rasteriser. The rest
follows Mini-Splatting, on which the release builds; its constants are the release's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from gsplat import DefaultStrategy
from gsplat.strategy.ops import split
from torch import Tensor

from megs2.camera import Camera
from megs2.gaussians import C0, Gaussians, from_points
from megs2.rasterizer import Rendering
from megs2.scene import Optimizers, Scene


@dataclass(frozen=True)
class Growth:
    """How a scene grows, and is simplified.

    Attributes:
        gradient: mean gradient of a centre, in half pictures, above which a Gaussian is duplicated or split.
        percent_dense: size, as a share of the extent, up to which it is duplicated rather than split.
        min_opacity: below which it is removed.
        blur_share: of a picture's pixels; what dominates more of them is split; None for no such splitting.
        reinit_points: Gaussians that a re-initialisation from depth starts with.
        cap: Gaussians at which growth stops.
        simplify_share: of the Gaussians that the simplification removes (`prune_ratio1`).

    Raises:
        ValueError: if a value is out of range.
    """

    gradient: float = 2e-4
    percent_dense: float = 0.01
    min_opacity: float = 0.005
    blur_share: float | None = 1 / 5000
    reinit_points: int = 3_500_000
    cap: int = 4_500_000
    simplify_share: float = 0.5

    def __post_init__(self) -> None:
        for name in ("gradient", "percent_dense", "min_opacity", "blur_share"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise ValueError(f"growth.{name} must be a finite number of at least 0, got {value}")
        for name in ("reinit_points", "cap"):
            if getattr(self, name) < 1:
                raise ValueError(f"growth.{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.simplify_share < 1:
            raise ValueError(f"growth.simplify_share must lie in [0, 1), got {self.simplify_share}")


class Densifier:
    """3DGS's adaptive density control.

    Args:
        growth: its constants.
        extent: of the scene, in its unit of length.
        start: first step after which it acts.
        stop: step at which it ends.
        every: steps between two rounds.
    """

    def __init__(self, growth: Growth, extent: float, start: int, stop: int, every: int) -> None:
        self.growth, self.start, self.stop, self.every = growth, start, stop, every
        self.strategy = DefaultStrategy(
            prune_opa=growth.min_opacity, grow_grad2d=growth.gradient, grow_scale3d=growth.percent_dense,
            refine_start_iter=start, refine_stop_iter=stop, refine_every=every,
            reset_every=2**62,  # opacities are never reset
        )  # fmt: skip
        self.extent = extent
        self.forget()

    def forget(self) -> None:
        """Begin the statistics anew, as the Gaussians are others now."""
        self.state: dict[str, Any] = self.strategy.initialize_state(scene_scale=self.extent)

    def acts_at(self, step: int) -> bool:
        """Whether Gaussians are added and removed after this step."""
        return self.start < step < self.stop and step % self.every == 0

    def after_step(self, scene: Scene, optimizers: Optimizers, step: int, rendering: Rendering, camera: Camera) -> None:
        """Collect the gradients, and grow and prune when it is time."""
        gradient = rendering.means2d.grad
        assert gradient is not None
        info = {
            "means2d": _Centres(gradient.reshape(1, -1, 2)),
            "radii": rendering.radii.reshape(1, -1, 2), "width": camera.width, "height": camera.height,
            "n_cameras": 1, "gaussian_ids": None,
        }  # fmt: skip
        self.strategy.grow_grad2d = self.growth.gradient if len(scene) < self.growth.cap else math.inf
        self.strategy.step_post_backward(scene.params, optimizers, self.state, step, info)
        scene.counts = scene.counts.new_zeros(len(scene.params["means"]))


@dataclass
class _Centres:
    """What the strategy reads of the centres in a picture: their gradient (1, N, 2)."""

    grad: Tensor


@torch.no_grad()
def split_blurred(scene: Scene, optimizers: Optimizers, areas: Tensor, limit: float) -> int:
    """Split Gaussians that are the largest part of too many pixels of a view; returns how many.

    Args:
        scene: changed in place.
        optimizers: by name.
        areas: (N,) the most pixels of a view that each dominates.
        limit: of the pixels.
    """
    blurred = areas > limit
    if bool(blurred.any()):
        split(scene.params, optimizers, {}, blurred)
        scene.counts = scene.counts.new_zeros(len(scene.params["means"]))
    return int(blurred.sum())


def simplify(gaussians: Gaussians, weights: Tensor, share: float, generator: torch.Generator) -> Gaussians:
    """Keep a sample of the Gaussians, and start them anew as points (Sec. 3.5).

    Args:
        gaussians: N of them.
        weights: W (N,); the probability of staying is proportional to W + 1.
        share: of the Gaussians to remove (`prune_ratio1`), in [0, 1).
        generator: on the CPU.

    Returns:
        About (1 - share) N Gaussians, at least one, with their centres and base colours; scales are from the
        neighbours' distances, opacities 0.1, lobes random and none active.
    """
    if not len(gaussians):
        return gaussians
    scene = gaussians.detach()
    count = max(1, round((1 - share) * len(scene)))
    chosen = torch.multinomial((weights + 1).double().cpu(), count, generator=generator).sort().values
    chosen = chosen.to(scene.means.device)
    return from_points(
        scene.means[chosen], 0.5 + C0 * scene.base[chosen], sh_degree=scene.sh_degree, lobes=scene.max_lobes,
        generator=generator,
    )  # fmt: skip
