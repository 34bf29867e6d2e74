"""The LightningModule: wires scene, rasteriser, losses, pruning and optimisers; a step is one view."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.utilities import rank_zero_info
from shared.kernels.packed_sg import packed_sg
from shared.seeding import generator
from torch import Tensor
from torchmetrics import MeanMetric, SumMetric
from torchmetrics.functional.image import structural_similarity_index_measure

from megs2.admm import Proxy
from megs2.budget import Kept
from megs2.camera import Camera, View
from megs2.colours import colours
from megs2.densification import Densifier, simplify
from megs2.gaussians import MAX_LOBES, Gaussians, from_points
from megs2.importance import blending_weights, visible_colours
from megs2.loss import photometric
from megs2.pruning import Choice, Pruner, Worth, costs_of, cut
from megs2.rasterizer import Backend, Rendering, choose_backend, render
from megs2.scene import MEANS_DECAY, RATES, Scene, build_optimizers
from megs2.schedule import Schedule

if TYPE_CHECKING:
    from megs2.data import CaptureData

Colour = Literal["sg", "sh", "fixed_axes"]
Pruning = Literal["soft", "hard", "none"]


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


def psnr(image: Tensor, target: Tensor) -> float:
    """Return -10 log10 of the mean squared error of images in [0, 1], in dB."""
    error = float((image - target).square().mean())
    return -10 * math.log10(error) if error > 0 else math.inf


class SplattingModule(LightningModule):
    """Fit a scene to photographs, and prune it to a budget of memory.

    Args:
        colour: `sg` (lobes), `sh` (spherical harmonics), or `fixed_axes` (three orthogonal axes, the same for all).
        lobes: K, most lobes of a Gaussian; of `sg` and `fixed_axes`.
        sh_degree: 0 to 3; of `sh`.
        pruning: `soft` (draw what goes to zero first), `hard` (cut at once where soft pruning would begin), `none`.
        choice: what the budget decides: `joint` (Gaussians and lobes together), `sequential` (one after the other),
            `ratios` (fixed shares, as the release).
        budget_mb: megabytes (10^6 bytes) that the scene may take; for `joint` and `sequential`.
        gaussian_share: of the Gaussians to remove (`prune_ratio2`); for `ratios`.
        lobe_share: of the lobes to remove (`sharpness_ratio`); for `ratios`.
        sharpness_threshold: lobes below it go in the final cut too; the release has 1 with its `ratios`.
        dual_updates: project again and update the duals; the release never does.
        compensate: fold the mean of a removed lobe into the base colour.
        worth: what the value of a Gaussian is (Sec. 3.4, inferred): its blending weight times `colour` (the mean of
            what is seen), `contrast` (the distance of that from the background) or 1 (`weight`).
        gaussian_bytes: what a Gaussian without lobes costs; what it takes in memory when None.
        rho: weight of the penalty.
        simplify_share: of the Gaussians that the simplification removes (`prune_ratio1`).
        importance_views: views that blending weights are summed over at each projection, drawn anew; all when None.
        per_area: divide weights by projected areas (the release, outdoors).
        schedule: when what happens.
        gradient_threshold: of densification, in half pictures.
        cap: Gaussians at which growth stops.
        ssim_share: of the structural similarity in the loss.
        means_lr: rate of the means, times the scene's extent; falls to a hundredth by the end.
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
        pruning: Pruning = "soft",
        choice: Choice = "joint",
        budget_mb: float | None = None,
        gaussian_share: float = 0.5,
        lobe_share: float = 0.5,
        sharpness_threshold: float = 0.0,
        dual_updates: bool = True,
        compensate: bool = True,
        worth: Worth = "colour",
        gaussian_bytes: float | None = None,
        rho: float = 5e-4,
        simplify_share: float = 0.5,
        importance_views: int | None = 8,
        per_area: bool = False,
        schedule: Schedule = Schedule(),
        gradient_threshold: float = 2e-4,
        cap: int = 4_500_000,
        ssim_share: float = 0.2,
        means_lr: float = RATES["means"],
        lr_scale: float = 1.0,
        backend: Backend = "auto",
        tile_size: int = 16,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.save_hyperparameters(ignore=["schedule"])
        self.automatic_optimization = False
        self.options, self.schedule, self.seed = self.hparams, schedule, seed
        self.scene = Scene(fixed_axes=colour == "fixed_axes")
        self.pruner: Pruner | None = None
        self.densifier: Densifier | None = None
        self.resumed: dict[str, Any] = {}
        self.backend: Backend = backend
        self.val_psnr, self.val_ssim = MeanMetric(), MeanMetric()
        self.test_psnr, self.test_ssim, self.test_count = MeanMetric(), MeanMetric(), SumMetric()

    # What a run begins with

    def setup(self, stage: str) -> None:
        """Choose the rasteriser, and start from the capture's points where there is no scene yet."""
        if self.trainer.world_size > 1:
            raise ValueError("a scene is trained on one device, got trainer.devices for several: train a scene on each")
        device = self.trainer.strategy.root_device
        self.backend = choose_backend(self.options.backend, device)
        if stage != "fit" or len(self.scene):
            return
        capture = self.capture
        has_lobes = self.options.colour != "sh"
        start = from_points(
            capture.points, capture.colours,
            sh_degree=0 if has_lobes else self.options.sh_degree,
            lobes=self.options.lobes if has_lobes else 0,
            generator=generator(self.seed, "start"),
        )  # fmt: skip
        self.scene.replace(self.fixed(start))

    @property
    def capture(self) -> Any:
        """What the data module has read."""
        return cast("CaptureData", self.trainer.datamodule).capture  # type: ignore[attr-defined]

    def fixed(self, gaussians: Gaussians) -> Gaussians:
        """Give all Gaussians the same orthogonal axes, where axes are not trained."""
        if self.options.colour != "fixed_axes":
            return gaussians
        axes = torch.eye(3)[: gaussians.max_lobes].to(gaussians.axes)
        return replace(gaussians, axes=axes.expand(len(gaussians), -1, -1).clone())

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        """Build an Adam for each parameter (Sec. 3.1)."""
        rates = {name: rate * self.options.lr_scale for name, rate in RATES.items()} | {"means": self.options.means_lr}
        made = build_optimizers(self.scene, rates, self.capture.extent)
        self.names = list(made)
        return list(made.values())

    @property
    def adams(self) -> dict[str, torch.optim.Optimizer]:
        """The optimisers by the names of their parameters."""
        found = self.optimizers()
        wrapped = found if isinstance(found, list) else [found]
        return {
            name: each.optimizer if isinstance(each, LightningOptimizer) else each
            for name, each in zip(self.names, wrapped, strict=True)
        }

    def on_fit_start(self) -> None:
        """Begin densification, or go on with it."""
        stop = self.schedule.densify_until
        if stop is not None:
            self.densifier = Densifier(
                self.capture.extent, self.schedule.densify_from, stop, self.schedule.densify_every,
                self.options.gradient_threshold, cap=self.options.cap,
            )  # fmt: skip
            self.densifier.state |= self.resumed.get("densifier", {})
        if "proxies" in self.resumed:
            self.pruner = self.new_pruner()
            self.pruner.proxies = {name: Proxy(*pair) for name, pair in self.resumed["proxies"].items()}
        rank_zero_info(f"rasteriser: {self.backend}; {len(self.scene):,} Gaussians to start from")

    # Drawing

    def forward(self, camera: Camera) -> Rendering:
        """Draw the scene as a camera sees it."""
        return render(
            self.scene.gaussians, camera, self.capture.background.to(self.device), backend=self.backend,
            tile_size=self.options.tile_size, colour=fastest_colours,
        )  # fmt: skip

    # Training

    def training_step(self, view: View, batch_index: int) -> None:
        """Do what is due, then improve the scene by one view."""
        step = self.global_step
        self.before(step)
        adams = self.adams
        self.set_rate_of_means(adams, step)
        drawn = self(view.camera)
        loss = photometric(drawn.image, view.image, self.options.ssim_share)
        if not math.isfinite(value := float(loss.detach())):
            raise ValueError(f"the loss of step {step} is {value}: lower the rates, or look at the photographs")
        total = loss
        if self.pruner is not None and self.schedule.prunes_at(step):
            total = total + self.options.rho * self.pruner.penalty(self.scene.gaussians)
        if self.densifier is not None and step < self.densifier.stop:
            self.densifier.before_backward(drawn)
        if total.requires_grad:
            self.manual_backward(total)
        # Lightning counts the steps of its own wrappers: one of them shall count.
        first, *others = self.optimizers() if len(adams) > 1 else [self.optimizers()]
        first.step()
        for other in others:
            other.optimizer.step()
        for adam in adams.values():
            adam.zero_grad(set_to_none=True)
        if self.densifier is not None:
            self.densifier.after_step(self.scene, adams, step, drawn, view.camera)
        self.log("train/loss", value, batch_size=1)
        self.log("train/psnr", psnr(drawn.image.detach(), view.image), prog_bar=True, batch_size=1)
        self.log("gaussians", float(len(self.scene)), prog_bar=True, batch_size=1)

    def set_rate_of_means(self, adams: dict[str, torch.optim.Optimizer], step: int) -> None:
        """Let the rate of the means fall log-linearly (Sec. 3.1)."""
        last = max(1, self.trainer.max_steps if self.trainer.max_steps > 0 else self.trainer.estimated_stepping_batches)
        rate = self.options.means_lr * self.capture.extent * MEANS_DECAY ** min(1, step / last)
        adams["means"].param_groups[0]["lr"] = rate

    @torch.no_grad()
    def before(self, step: int) -> None:
        """Change the scene where the schedule says so, before the step is made."""
        schedule = self.schedule
        if step == schedule.simplify_at:
            self.simplify(step)
        pruned = schedule.prune_from is not None and step > schedule.prune_from
        if self.scene.gaussians.max_lobes and not pruned:
            self.scene.counts.fill_(schedule.lobes_at(step, self.options.lobes))
        if self.options.pruning == "none" or schedule.prune_from is None:
            return
        if self.options.pruning == "hard":
            if step == schedule.prune_from:
                self.pruner = self.new_pruner()
                cut(self.scene, self.adams, self.kept(step, every_view=True), compensate=self.options.compensate)
            return
        if step == schedule.prune_from:
            self.pruner = self.new_pruner()
        if self.pruner is None:
            return
        if schedule.projects_at(step):
            half = (schedule.prune_from + cast("int", schedule.prune_until)) // 2
            self.pruner.lobes_due = self.options.choice != "sequential" or step >= half
            gaussians = self.scene.gaussians
            if step == schedule.prune_from:
                self.pruner.start(gaussians, self.kept(step))
            elif self.options.dual_updates:
                self.pruner.update(gaussians, self.kept(step))
        if step == schedule.prune_until:
            self.pruner.lobes_due = True
            cut(self.scene, self.adams, self.kept(step, every_view=True), compensate=self.options.compensate)
            self.pruner = None

    def new_pruner(self) -> Pruner:
        """Make what chooses."""
        options, gaussians = self.options, self.scene.gaussians
        costs = costs_of(gaussians, options.colour == "fixed_axes")
        if options.gaussian_bytes is not None:
            costs = replace(costs, gaussian=options.gaussian_bytes)
        return Pruner(
            budget=math.inf if options.budget_mb is None else 1e6 * options.budget_mb, costs=costs,
            choice=options.choice, gaussian_share=options.gaussian_share, lobe_share=options.lobe_share,
            dual=options.dual_updates,
        )  # fmt: skip

    def kept(self, step: int, every_view: bool = False) -> Kept:
        """Choose what the budget keeps, by the blending weights in some training views, or in all."""
        assert self.pruner is not None
        views: list[View] = self.capture.train
        count = self.options.importance_views
        if not every_view and count is not None and count < len(views):
            chosen = torch.randperm(len(views), generator=generator(self.seed, "importance", step))[:count]
            views = [views[i] for i in chosen.tolist()]
        gaussians = self.scene.gaussians.detach()
        cameras = [view.camera.to(self.device) for view in views]
        weights = blending_weights(
            gaussians, cameras, backend=self.backend, tile_size=self.options.tile_size, per_area=self.options.per_area
        )
        values = weights
        if self.options.worth == "colour":
            values = weights * visible_colours(gaussians, cameras)
        gone = self.pruner.choose(gaussians, weights, values)
        if every_view and self.options.sharpness_threshold:
            sharp = gaussians.sharpness.abs() >= self.options.sharpness_threshold
            return gone[0], gone[1] & sharp
        return gone

    def simplify(self, step: int) -> None:
        """Keep a sample of the Gaussians, and start them anew."""
        gaussians = self.scene.gaussians
        cameras = [view.camera.to(self.device) for view in self.capture.train]
        weights = blending_weights(
            gaussians, cameras, backend=self.backend, tile_size=self.options.tile_size, per_area=self.options.per_area
        )
        fresh = simplify(gaussians, weights, self.options.simplify_share, generator(self.seed, "simplify"))
        self.scene.replace(self.fixed(fresh))
        self.trainer.strategy.setup_optimizers(self.trainer)

    # Evaluation

    def score(self, view: View, psnr_metric: MeanMetric, ssim_metric: MeanMetric) -> None:
        """Add a view's PSNR and SSIM."""
        image = self(view.camera).image.clamp(0, 1)
        psnr_metric.update(psnr(image, view.image))
        planes = [each.permute(2, 0, 1)[None] for each in (image, view.image)]
        ssim_metric.update(structural_similarity_index_measure(*planes, data_range=1.0))

    def validation_step(self, view: View, batch_index: int) -> None:
        """Score a view."""
        self.score(view, self.val_psnr, self.val_ssim)
        self.log("val/psnr", self.val_psnr, prog_bar=True, batch_size=1)
        self.log("val/ssim", self.val_ssim, batch_size=1)

    def test_step(self, view: View, batch_index: int) -> None:
        """Score a view, and weigh the scene."""
        self.score(view, self.test_psnr, self.test_ssim)
        self.test_count.update(1)
        gaussians = self.scene.gaussians
        self.log("test/psnr", self.test_psnr, batch_size=1)
        self.log("test/ssim", self.test_ssim, batch_size=1)
        self.log("test/n", self.test_count, batch_size=1)
        self.log("test/gaussians", float(len(gaussians)), batch_size=1)
        self.log("test/lobes", float(gaussians.counts.sum()) / max(1, len(gaussians)), batch_size=1)
        self.log("test/kilobytes", gaussians.static_bytes() / 1e3, batch_size=1)

    # Checkpoints

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the proxies of pruning and the statistics of densification."""
        if self.pruner is not None and self.pruner.proxies is not None:
            checkpoint["proxies"] = {name: (proxy.z, proxy.u) for name, proxy in self.pruner.proxies.items()}
        if self.densifier is not None:
            checkpoint["densifier"] = self.densifier.state

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take them over."""
        self.resumed = {name: checkpoint[name] for name in ("proxies", "densifier") if name in checkpoint}
