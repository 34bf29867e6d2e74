"""The LightningModule: wires scene, rasteriser, loss, growth, pruning and optimisers; a step is one view."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast, get_args

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.core.optimizer import LightningOptimizer
from shared.kernels.packed_sg import packed_sg
from shared.seeding import generator
from torch import Tensor
from torchmetrics import MeanMetric, SumMetric
from torchmetrics.functional.image import structural_similarity_index_measure

from megs2.admm import Proxy
from megs2.baselines import Colour, fixed_axes, start
from megs2.budget import Kept
from megs2.camera import Camera, Capture, View
from megs2.colours import colours
from megs2.densification import Densifier, Growth, simplify, split_blurred
from megs2.dominance import largest_areas
from megs2.gaussians import MAX_LOBES, Gaussians
from megs2.importance import blending_weights, visible_colours
from megs2.loss import photometric
from megs2.pruning import Pruner, Pruning, costs_of, cut
from megs2.rasterizer import TILE, Backend, Rendering, choose_backend, render
from megs2.reinitialisation import points_from_depth
from megs2.scene import MEANS_DECAY, RATES, Optimizers, Scene, begin_anew, build_optimizers
from megs2.schedule import Schedule

if TYPE_CHECKING:
    from megs2.data import CaptureData

log = logging.getLogger(__name__)

NO_PHASES, NO_PRUNING, PAPER_GROWTH = Schedule(), Pruning(), Growth()


def fastest_colours(gaussians: Gaussians, centre: Tensor) -> Tensor:
    """Do what `colours.colours` does; lobes by the packed kernel, whose cost is that of those that are active."""
    if not gaussians.max_lobes:
        return colours(gaussians, centre)
    active = gaussians.active
    offsets = torch.cat([gaussians.counts.new_zeros(1), gaussians.counts.cumsum(0)])
    return packed_sg(
        gaussians.means, centre, gaussians.base, gaussians.axes[active], gaussians.sharpness[active],
        gaussians.amplitudes[active], offsets,
    )  # fmt: skip


def check_one_process(trainer: Trainer) -> None:
    """Refuse a trainer of several processes, which would each change the number of Gaussians.

    Raises:
        ValueError: if it has more than one.
    """
    if trainer.world_size > 1:
        raise ValueError(f"trainer.devices must be 1 for a scene, got {trainer.world_size} processes")


def psnr(image: Tensor, target: Tensor) -> float:
    """Return -10 log10 of the mean squared error of images in [0, 1], in dB."""
    error = float((image - target).square().mean())
    return -10 * math.log10(error) if error > 0 else math.inf


class SplattingModule(LightningModule):
    """Fit a scene to photographs, and prune it to a budget of memory.

    Args:
        colour: `sg` (lobes), `sh` (spherical harmonics), or `fixed_axes` (three orthogonal axes, the same for all).
        lobes: K, most lobes of a Gaussian, 0 to 3; of `sg` and `fixed_axes`.
        sh_degree: 0 to 3; of `sh`.
        schedule: when what happens.
        growth: how the scene grows, where the schedule lets it.
        pruning: how it is brought down to a budget, where the schedule says when.
        ssim_share: of the structural similarity in the loss.
        means_lr: rate of the means, times the scene's extent, to begin with.
        decay_steps: within which it falls to a hundredth, log-linearly.
        lr_scale: multiplies every other rate of Sec. 3.1.
        backend: `auto`, `cpu`, `gsplat` or `torch`; see `megs2.rasterizer`.
        tile_size: edge of a tile in pixels.
        seed: the run's seed.

    Raises:
        ValueError: if an option is out of range.
    """

    def __init__(
        self,
        colour: Colour = "sg",
        lobes: int = MAX_LOBES,
        sh_degree: int = 3,
        schedule: Schedule = NO_PHASES,
        growth: Growth = PAPER_GROWTH,
        pruning: Pruning = NO_PRUNING,
        ssim_share: float = 0.2,
        means_lr: float = RATES["means"],
        decay_steps: int = 30_000,
        lr_scale: float = 1.0,
        backend: Backend = "auto",
        tile_size: int = TILE,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if colour not in get_args(Colour):
            raise ValueError(f"colour must be one of {', '.join(get_args(Colour))}, got {colour!r}")
        for name, value in {"lobes": lobes, "sh_degree": sh_degree}.items():
            if not 0 <= value <= 3:
                raise ValueError(f"{name} must lie in 0..3, got {value}")
        for name, rate in {"means_lr": means_lr, "lr_scale": lr_scale}.items():
            if not 0 < rate < math.inf:
                raise ValueError(f"{name} must be a finite number above 0, got {rate}")
        if not 0 <= ssim_share <= 1:
            raise ValueError(f"ssim_share must lie in [0, 1], got {ssim_share}")
        if decay_steps < 1:
            raise ValueError(f"decay_steps must be at least 1, got {decay_steps}")
        if not 1 <= tile_size <= 256:
            raise ValueError(f"tile_size must lie in 1..256, got {tile_size}")
        self.automatic_optimization = False
        self.colour, self.schedule, self.growth, self.pruning = colour, schedule, growth, pruning
        self.lobes, self.sh_degree = (0, sh_degree) if colour == "sh" else (lobes, 0)
        self.ssim_share, self.means_lr, self.lr_scale, self.seed = ssim_share, means_lr, lr_scale, seed
        self.backend, self.tile_size, self.decay_steps = backend, tile_size, decay_steps
        self.scene = Scene(fixed_axes=colour == "fixed_axes")
        self.pruner: Pruner | None = None
        self.densifier: Densifier | None = None
        self.resumed: dict[str, Any] = {}
        self.val_psnr, self.val_ssim = MeanMetric(), MeanMetric()
        self.test_psnr, self.test_ssim, self.test_count = MeanMetric(), MeanMetric(), SumMetric()

    @property
    def capture(self) -> Capture:
        """What the datamodule has read."""
        return cast("CaptureData", self.trainer.datamodule).capture  # type: ignore[attr-defined]

    @property
    def drawing(self) -> dict[str, Any]:
        """What says how to rasterise."""
        return {"backend": self.backend, "tile_size": self.tile_size}

    # How a run begins

    def setup(self, stage: str) -> None:
        """Choose the rasteriser, and start from the capture's points where there is no scene yet.

        Raises:
            ValueError: if there are several devices, or the rasteriser cannot work on the one there is.
        """
        check_one_process(self.trainer)
        self.backend = choose_backend(self.backend, self.trainer.strategy.root_device)
        if stage == "fit" and not self.scene.params:
            self.scene.replace(self.start_from(self.capture.points, self.capture.colours, 0))

    def start_from(self, points: Tensor, seen: Tensor, step: int) -> Gaussians:
        """Start a scene of this colour model from points (P, 3) and their colours (P, 3)."""
        return start(
            self.colour, points, seen, lobes=self.lobes, sh_degree=self.sh_degree,
            generator=generator(self.seed, "start", step),
        )  # fmt: skip

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        """Build an Adam for each parameter (Sec. 3.1)."""
        rates = {name: rate * self.lr_scale for name, rate in RATES.items()} | {"means": self.means_lr}
        made = build_optimizers(self.scene, rates, self.capture.extent)
        self.names = list(made)
        return list(made.values())

    @property
    def adams(self) -> Optimizers:
        """The optimisers by the names of their parameters."""
        wrapped = cast("list[LightningOptimizer]", self.optimizers())
        return {name: each.optimizer for name, each in zip(self.names, wrapped, strict=True)}

    def on_fit_start(self) -> None:
        """Begin growth and pruning, or go on with them."""
        schedule = self.schedule
        if schedule.densify_until is not None:
            self.densifier = Densifier(
                self.growth, self.capture.extent, schedule.densify_from, schedule.densify_until, schedule.densify_every
            )
            self.densifier.state |= self.resumed.get("densifier", {})
        if "proxies" in self.resumed:
            self.pruner = self.new_pruner()
            self.pruner.proxies = {name: Proxy(*pair) for name, pair in self.resumed["proxies"].items()}
        log.info("rasteriser: %s; %s Gaussians to start from", self.backend, f"{len(self.scene):,}")

    # A step

    def forward(self, camera: Camera) -> Rendering:
        """Draw the scene as a camera sees it."""
        background = self.capture.background.to(self.device)
        return render(self.scene.gaussians, camera, background, colour=fastest_colours, **self.drawing)

    def training_step(self, view: View, batch_index: int) -> None:
        """Do what is due, then improve the scene by one view.

        Raises:
            ValueError: if the loss is not finite.
        """
        step = self.global_step
        self.before(step)
        adams = self.adams
        self.set_rate_of_means(adams, step)
        drawn = self(view.camera)
        loss = photometric(drawn.image, view.image, self.ssim_share)
        value = float(loss.detach())
        if not math.isfinite(value):
            raise ValueError(f"the loss of step {step} is {value}: lower the rates, or look at the photographs")
        if self.pruner is not None and step in self.schedule.pruning:
            loss = loss + self.pruner.penalty(self.scene.gaussians)
        grows = self.densifier is not None and step < self.densifier.stop
        if grows:
            drawn.means2d.retain_grad()
        self.manual_backward(loss)
        # Lightning counts the steps of its wrappers, and one view shall count once.
        first, *others = cast("list[LightningOptimizer]", self.optimizers())
        first.step()
        for other in others:
            other.optimizer.step()
        for adam in adams.values():
            adam.zero_grad(set_to_none=True)
        if self.densifier is not None and grows:
            self.grow(self.densifier, step, drawn, view.camera)
        self.log("train/loss", value, batch_size=1)
        self.log("train/psnr", psnr(drawn.image.detach(), view.image), prog_bar=True, batch_size=1)
        self.log("train/gaussians", float(len(self.scene)), prog_bar=True, batch_size=1)
        self.log("train/lobes", self.mean_lobes(), batch_size=1)

    def set_rate_of_means(self, adams: Optimizers, step: int) -> None:
        """Let the rate of the means fall log-linearly (Sec. 3.1)."""
        share = min(1.0, step / self.decay_steps)
        adams["means"].param_groups[0]["lr"] = self.means_lr * self.capture.extent * MEANS_DECAY**share

    @torch.no_grad()
    def before(self, step: int) -> None:
        """Change the scene where the schedule says so, before a step is made (Sec. 3.5)."""
        schedule, soft = self.schedule, self.pruning.method == "soft"
        if step == schedule.simplify_at:
            gaussians = self.scene.gaussians
            weights = self.weights(gaussians, self.cameras(self.capture.train))
            random = generator(self.seed, "simplify")
            fresh = simplify(gaussians, weights, self.growth.simplify_share, random)
            begin_anew(self.scene, self.adams, fixed_axes(fresh) if self.colour == "fixed_axes" else fresh)
        first = schedule.prune_from
        if self.lobes and (first is None or step <= first):
            self.scene.counts.fill_(schedule.lobes_at(step, self.lobes))
        if first is None or not self.scene.params:
            return
        if step == first:
            self.pruner = self.new_pruner()
            if not soft:
                self.cut(step)
        elif self.pruner is not None and step == schedule.prune_until:
            self.cut(step)
        if soft and self.pruner is not None and schedule.projects_at(step):
            gaussians = self.scene.gaussians.detach()
            middle = (schedule.pruning.start + schedule.pruning.stop) // 2
            self.pruner.lobes_due = self.pruning.choice != "sequential" or step >= middle
            if step == first:
                self.pruner.start(gaussians, self.kept(self.pruner, gaussians, self.views_at(step, "importance")))
            elif self.pruning.dual_updates:
                self.pruner.update(gaussians, self.kept(self.pruner, gaussians, self.views_at(step, "importance")))

    # Growth

    def grow(self, densifier: Densifier, step: int, drawn: Rendering, camera: Camera) -> None:
        """Add and remove Gaussians after a step of densification (Sec. 3.5)."""
        adams, every, blur = self.adams, self.schedule.reinit_every, self.growth.blur_share
        densifier.after_step(self.scene, adams, step, drawn, camera)
        if densifier.acts_at(step) and blur is not None and len(self.scene) < self.growth.cap:
            areas = largest_areas(self.scene.gaussians, self.cameras(self.views_at(step, "blur")))
            if split_blurred(self.scene, adams, areas, blur * camera.width * camera.height):
                densifier.forget()
        if every is not None and step > 0 and step % every == 0:
            views = [
                replace(view, camera=view.camera.to(self.device), image=view.image.to(self.device))
                for view in self.capture.train
            ]
            points, seen = points_from_depth(
                self.scene.gaussians, views, self.growth.reinit_points, generator(self.seed, "depth", step),
                **self.drawing,
            )  # fmt: skip
            if len(points):
                begin_anew(self.scene, self.adams, self.start_from(points, seen, step))
                densifier.forget()

    # Pruning

    def new_pruner(self) -> Pruner:
        """Make what chooses."""
        return Pruner(self.pruning, costs_of(self.scene.gaussians, self.colour == "fixed_axes"))

    def cut(self, step: int) -> None:
        """Remove what the budget does not keep, by the weights in all training views, and end pruning."""
        assert self.pruner is not None
        self.pruner.lobes_due = True
        gaussians = self.scene.gaussians.detach()
        kept, lobes = self.kept(self.pruner, gaussians, self.capture.train)
        if self.pruning.sharpness_threshold:
            lobes = lobes & (gaussians.sharpness.abs() >= self.pruning.sharpness_threshold)
        cut(self.scene, self.adams, (kept, lobes), compensate=self.pruning.compensate)
        self.pruner = None

    def kept(self, pruner: Pruner, gaussians: Gaussians, views: Sequence[View]) -> Kept:
        """Choose what the budget keeps, by what some training views show."""
        cameras = self.cameras(views)
        weights = self.weights(gaussians, cameras)
        values = weights * visible_colours(gaussians, cameras) if self.pruning.worth == "colour" else weights
        return pruner.choose(gaussians, weights, values)

    def weights(self, gaussians: Gaussians, cameras: Sequence[Camera]) -> Tensor:
        """Return the blending weights W (N,)."""
        return blending_weights(gaussians, cameras, per_area=self.pruning.per_area, **self.drawing)

    def views_at(self, step: int, purpose: str) -> list[View]:
        """Return `importance_views` of the training views, drawn anew for each step and purpose."""
        views, count = self.capture.train, self.pruning.importance_views
        if count is None or count >= len(views):
            return views
        chosen = torch.randperm(len(views), generator=generator(self.seed, purpose, step))[:count]
        return [views[i] for i in chosen.tolist()]

    def cameras(self, views: Sequence[View]) -> list[Camera]:
        """Return the cameras of views on the scene's device."""
        return [view.camera.to(self.device) for view in views]

    # Evaluation

    def mean_lobes(self) -> float:
        """Return the mean number of active lobes of a Gaussian; 0 for an empty scene."""
        return float(self.scene.counts.sum()) / max(1, len(self.scene))

    def score(self, view: View, of_psnr: MeanMetric, of_ssim: MeanMetric) -> None:
        """Add a view's PSNR and SSIM."""
        image = self(view.camera).image.clamp(0, 1)
        of_psnr.update(psnr(image, view.image))
        drawn, target = image.permute(2, 0, 1)[None], view.image.permute(2, 0, 1)[None]
        of_ssim.update(cast("Tensor", structural_similarity_index_measure(drawn, target, data_range=1.0)))

    def validation_step(self, view: View, batch_index: int) -> None:
        """Score a view."""
        self.score(view, self.val_psnr, self.val_ssim)
        self.log("val/psnr", self.val_psnr, prog_bar=True, batch_size=1)
        self.log("val/ssim", self.val_ssim, batch_size=1)

    def test_step(self, view: View, batch_index: int) -> None:
        """Score a view, and weigh the scene."""
        self.score(view, self.test_psnr, self.test_ssim)
        self.test_count.update(1)
        self.log("test/psnr", self.test_psnr, batch_size=1)
        self.log("test/ssim", self.test_ssim, batch_size=1)
        self.log("test/n", self.test_count, batch_size=1)
        self.log("test/gaussians", float(len(self.scene)), batch_size=1)
        self.log("test/lobes", self.mean_lobes(), batch_size=1)
        self.log("test/kilobytes", self.static_bytes() / 1e3, batch_size=1)

    def static_bytes(self) -> float:
        """Return what the scene takes in memory, in bytes; shared axes are not counted."""
        costs = costs_of(self.scene.gaussians, self.colour == "fixed_axes")
        return len(self.scene) * costs.gaussian + int(self.scene.counts.sum()) * costs.lobe

    # Checkpoints

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the proxies of pruning and the statistics of densification."""
        if self.pruner is not None:
            checkpoint["proxies"] = {name: (proxy.z, proxy.u) for name, proxy in self.pruner.proxies.items()}
        if self.densifier is not None:
            checkpoint["densifier"] = self.densifier.state

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep them until training goes on."""
        self.resumed = {name: checkpoint[name] for name in ("proxies", "densifier") if name in checkpoint}
