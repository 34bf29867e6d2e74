"""The LightningModule of the paper: wires method, network, adversary, optimiser and metrics."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import torch
import torch.distributed as dist
from lightning.pytorch import LightningDataModule, LightningModule
from shared.seeding import generator
from torch import Tensor
from torchmetrics import MeanMetric, SumMetric

from nat.attack import attack_mode, margin, pgd
from nat.attack_suite import parse_attacks, parse_eps
from nat.awp import WeightPerturbation
from nat.baselines import Method, NastyOn, Objective, Terms, Threat, build_objective
from nat.evaluate import robust_correct
from nat.geometry import boundary_distance, effective_classes, entropy, hoyer_sparsity
from nat.loss import Direction, check_batch, check_collapse, check_options, collapse_risk, nasty_divergence
from nat.models import Arch, create_model

log = logging.getLogger(__name__)

Batch = tuple[Tensor, Tensor]  # images (B, C, H, W) in [0, 1], labels (B,)


def check_range(
    name: str, value: float, *, least: float = -math.inf, above: float = -math.inf, below: float = math.inf
) -> None:
    """Raise ValueError unless least <= value, above < value < below, which excludes infinity and NaN."""
    if not (least <= value and above < value < below):
        bounds = [f">= {least:g}"] * (least > -math.inf) + [f"> {above:g}"] * (above > -math.inf)
        bounds += [f"< {below:g}"] * (below < math.inf)
        raise ValueError(f"{name} must be a finite number {' and '.join(bounds)}, got {value}")


@dataclass
class Optimisation:
    """Optimiser and learning-rate schedule.

    Attributes:
        optimizer: `sgd` (with momentum) or `adam`.
        lr: learning rate; the peak of `onecycle`.
        momentum: of SGD.
        weight_decay: L2 penalty.
        schedule: `multistep` multiplies by `decay` at each milestone; `onecycle` warms up and anneals.
        milestones: epochs at which `multistep` decays.
        decay: its factor.
    """

    optimizer: Literal["sgd", "adam"] = "sgd"
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    schedule: Literal["multistep", "onecycle", "constant"] = "multistep"
    milestones: list[int] = field(default_factory=lambda: [100, 105])
    decay: float = 0.1

    def __post_init__(self) -> None:
        check_range("optim.lr", self.lr, above=0)
        check_range("optim.momentum", self.momentum, least=0, below=1)
        check_range("optim.weight_decay", self.weight_decay, least=0)
        check_range("optim.decay", self.decay, above=0)
        if any(epoch < 1 for epoch in self.milestones):
            raise ValueError(f"optim.milestones must be epochs of at least 1, got {self.milestones}")


@dataclass
class Adversary:
    """The frozen network that the target must differ from (Sec. 3.2, step 1).

    Attributes:
        checkpoint: weights to reuse (`.ckpt` of a run, or `.safetensors`); trained anew when null.
        state: `vanilla` (the paper's choice), `random` (untrained) or `adversarial` (trained on X and X').
        arch: its network; the target's when null.
        epochs: of its training.
        optim: of its training.
    """

    checkpoint: str | None = None
    state: Literal["vanilla", "random", "adversarial"] = "vanilla"
    arch: Arch | None = None
    epochs: int = 160
    optim: Optimisation = field(default_factory=lambda: Optimisation(milestones=[80, 120]))

    def __post_init__(self) -> None:
        check_range("adversary.epochs", self.epochs, least=1)


class NATModule(LightningModule):
    """Train a network by nasty adversarial training, or by a method it is compared with.

    Args:
        method: `nat`, or a baseline: `vanilla`, `pgd_at` (CE on X'), `at_mix` (CE on X and X': NAT with
            omega 0), `trades`, `mart`, `entropy_penalty`.
        arch: the network.
        num_classes: K.
        in_channels: colour channels of the images.
        image_size: their side; the network's usual one when null.
        omega: weight of the nasty term.
        temperature: its softmax temperature.
        tau_square: multiply the divergence by temperature squared, as the predecessor does (inferred).
        kl_direction: `target_adversary` is the paper's; the reverse is an ablation.
        kl_cap: per-sample cap on the divergence; null for none.
        nasty_on: the samples that carry the nasty term: `both` X and X', or `adversarial` only (ablation).
        omega_warmup: epochs over which omega rises to its value.
        max_divergence: abort when an epoch's mean divergence exceeds this (collapse); when null, 1.25 times that
            of a uniform output, where a target starts, or of a sure and right one, if that is more.
        beta: weight of the second term of `trades` (6), `mart` (5) or `entropy_penalty` (0.06); that value
            when null.
        awp_gamma: size of adversarial weight perturbations relative to the weights; 0 switches them off.
        awp_warmup: epochs before they begin.
        eps: radius of the l_inf ball in pixels of [0, 1]; a number or a fraction such as 8/255.
        alpha: step size of the attack; eps / 4 when null.
        steps: of the attack in training.
        eps_warmup: epochs over which eps rises to its value.
        optim: optimiser and schedule.
        adversary: the frozen network, for `nat`.
        channels_last: lay images and weights out with channels last, which GPUs convolve faster.
        val_steps: of PGD in validation.
        test_attacks: attacks of the test, comma-separated: fgsm, pgdN, cwN, aa, square, ...; none when empty
        seed: the run's seed.
    """

    def __init__(
        self,
        method: Method = "nat",
        arch: Arch = "resnet18",
        num_classes: int = 10,
        in_channels: int = 3,
        image_size: int | None = None,
        omega: float = 0.06,
        temperature: float = 1.0,
        tau_square: bool = True,
        kl_direction: Direction = "target_adversary",
        kl_cap: float | None = None,
        nasty_on: NastyOn = "both",
        omega_warmup: int = 0,
        max_divergence: float | None = None,
        beta: float | None = None,
        awp_gamma: float = 0.0,
        awp_warmup: int = 10,
        eps: float | str = "8/255",
        alpha: float | str | None = None,
        steps: int = 10,
        eps_warmup: int = 0,
        optim: Optimisation = Optimisation(),  # noqa: B008 - never changed
        adversary: Adversary = Adversary(),  # noqa: B008
        channels_last: bool = False,
        val_steps: int = 10,
        test_attacks: str = "fgsm,pgd20,pgd100,cw40,aa",
        seed: int = 0,
    ) -> None:
        super().__init__()
        eps = parse_eps(eps)
        alpha = parse_eps(alpha) if alpha is not None else eps / 4
        check_options(omega=omega, temperature=temperature, kl_cap=kl_cap)
        check_range("num_classes", num_classes, least=2)
        check_range("image_size", 1 if image_size is None else image_size, least=1)
        check_range("max_divergence", 1 if max_divergence is None else max_divergence, above=0)
        for name, value in (("omega_warmup", omega_warmup), ("eps_warmup", eps_warmup), ("awp_warmup", awp_warmup)):
            check_range(name, value, least=0)
        check_range("val_steps", val_steps, least=0)
        check_range("awp_gamma", awp_gamma, least=0)
        self.method, self.arch, self.seed = method, arch, seed
        self.num_classes, self.in_channels, self.image_size = num_classes, in_channels, image_size
        self.omega, self.temperature, self.omega_warmup = omega, temperature, omega_warmup
        self.tau_square, self.kl_direction = tau_square, kl_direction
        self.kl_cap, self.nasty_on, self.beta = kl_cap, nasty_on, beta
        self.max_divergence = max_divergence
        self.threat, self.eps_warmup = Threat(eps, alpha, steps), eps_warmup
        self.val_steps = val_steps
        self.attacks = parse_attacks(test_attacks) if test_attacks else ()
        self.optim, self.adversary_settings = optim, adversary
        self.weight_perturbation = WeightPerturbation(awp_gamma, mean_over_processes) if awp_gamma > 0 else None
        self.awp_warmup = awp_warmup
        self.divergence_bound = math.inf  # set when the adversary is known
        self.model = create_model(arch, num_classes, in_channels, image_size)
        self.memory_format = torch.channels_last if channels_last else torch.contiguous_format
        self.model.to(memory_format=self.memory_format)
        self.adversary = None
        if self.needs_adversary:
            network = create_model(adversary.arch or arch, num_classes, in_channels, image_size)
            self.adversary = network.to(memory_format=self.memory_format).eval().requires_grad_(False)
        self.objective(omega)  # refuses options outside their range before any data is read
        self.train_means = mean_metrics(("loss", "divergence"))
        self.val_means = mean_metrics(self.validation_metrics)
        names = ("clean", *self.attacks, *(("average", "worst") if self.attacks else ()), *GEOMETRY)
        self.test_means = mean_metrics(names)
        self.test_count = SumMetric()

    @property
    def needs_adversary(self) -> bool:
        """Whether the method looks at an adversary at all."""
        return self.method == "nat" and self.omega > 0

    @property
    def validation_metrics(self) -> tuple[str, ...]:
        """Names of what validation measures."""
        return ("clean", "pgd", "entropy") + (("divergence",) if self.needs_adversary else ())

    def forward(self, x: Tensor) -> Tensor:
        """Map images (B, C, H, W) in [0, 1] to logits (B, K)."""
        return self.model(x)

    def train(self, mode: bool = True) -> NATModule:
        """Set the training mode of everything but the adversary, whose BatchNorm must not drift."""
        super().train(mode)
        if self.adversary is not None:
            self.adversary.eval()
        return self

    def objective(self, omega: float, eps_factor: float = 1.0) -> Objective:
        """Assemble the method for one value of omega and a fraction of eps."""
        return build_objective(
            self.method,
            self.threat.scaled(eps_factor),
            omega=omega,
            temperature=self.temperature,
            tau_square=self.tau_square,
            direction=self.kl_direction,
            kl_cap=self.kl_cap,
            nasty_on=self.nasty_on,
            beta=self.beta,
            adversary=self.adversary,
        )

    def setup(self, stage: str) -> None:
        """Refuse data of another number of classes or channels than the network's."""
        data = getattr(self.trainer, "datamodule", None)
        for name in ("num_classes", "in_channels"):
            ours, theirs = getattr(self, name), getattr(data, name, None)
            if theirs is not None and ours != theirs:
                raise ValueError(f"model.{name} is {ours}, but the data has {theirs}: set --model.{name} {theirs}")
        if (shape := getattr(data, "image_shape", None)) is not None:
            try:
                with attack_mode(self.model), torch.no_grad():
                    self.model(torch.zeros(1, *shape, device=self.device))
            except (RuntimeError, AssertionError) as error:  # a linear layer's, or timm's own check
                raise ValueError(
                    f"model.arch {self.arch} does not take images of {shape[1]} x {shape[2]}: set --model.image_size "
                    "to their side, or choose another network"
                ) from error

    def prepare(self, batch: Batch) -> Batch:
        """Check a batch where it enters, and lay its images out as the network's weights are."""
        x, labels = batch
        check_batch(x, labels, self.num_classes)
        return x.contiguous(memory_format=self.memory_format), labels

    def on_train_epoch_start(self) -> None:
        """Set this epoch's omega and eps."""
        omega = self.omega * warmup(self.current_epoch, self.omega_warmup)
        self.current = self.objective(omega, warmup(self.current_epoch, self.eps_warmup))

    def training_step(self, batch: Batch, batch_index: int) -> Tensor:
        """Attack the batch, then return the outer loss."""
        x, labels = self.prepare(batch)
        noise = generator(self.seed, "attack", self.global_step, self.global_rank, device=self.device)
        x_adv = self.current.attack(self.model, x, labels, noise)
        perturbation = self.weight_perturbation
        if perturbation is not None and self.current_epoch >= self.awp_warmup:
            perturbation.perturb(self.model, lambda: self.current.outer(self.model, x, x_adv, labels).loss)
        terms: Terms = self.current.outer(self.model, x, x_adv, labels)
        self.train_means["loss"].update(terms.loss.detach(), len(x))
        if terms.divergence is not None:
            self.train_means["divergence"].update(terms.divergence, len(x))
        self.log("loss", terms.loss.detach(), prog_bar=True, logger=False)
        return terms.loss

    def on_after_backward(self) -> None:
        """Take the weight perturbation off before the optimiser steps."""
        if self.weight_perturbation is not None:
            self.weight_perturbation.restore(self.model)

    def on_train_epoch_end(self) -> None:
        """Log the epoch's means and stop if the nasty term has taken over."""
        means = {name: metric.compute() for name, metric in self.train_means.items() if metric.update_called}
        for name, metric in self.train_means.items():
            metric.reset()
            if name in means:
                self.log(f"train/{name}", means[name])
        divergence = float(means.get("divergence", 0.0))
        check_collapse(divergence, float(means["loss"]), self.divergence_bound)

    @torch.no_grad()
    def validation_step(self, batch: Batch, batch_index: int) -> None:
        """Measure clean and PGD accuracy, entropy, and how far the target is from the adversary."""
        x, labels = self.prepare(batch)
        noise = generator(self.seed, "validation", batch_index, self.global_rank, device=self.device)
        threat = self.threat
        x_adv = pgd(self.model, x, labels, eps=threat.eps, alpha=threat.alpha, steps=self.val_steps, generator=noise)
        logits = self.model(x)
        clean = logits.argmax(1) == labels
        values = {
            "clean": clean,
            "pgd": clean & (self.model(x_adv).argmax(1) == labels),
            "entropy": entropy(logits),
        }
        if self.adversary is not None:
            values["divergence"] = nasty_divergence(
                logits, self.adversary(x), self.temperature, tau_square=self.tau_square
            )
        for name, value in values.items():
            self.val_means[name].update(value.float())
            self.log(f"val/{name}", self.val_means[name], prog_bar=name in ("clean", "pgd"))

    def on_test_start(self) -> None:
        """Name the attacks, whose time dominates the test."""
        if self.attacks and self.trainer.is_global_zero:
            log.info("testing at eps %.4g with %s", self.threat.eps, ", ".join(self.attacks))

    def test_step(self, batch: Batch, batch_index: int) -> None:
        """Measure accuracy under every attack and the geometry of the output, over all points once."""
        x, labels = self.prepare(batch)
        noise = generator(self.seed, "test", batch_index, self.global_rank, device=self.device)
        correct = robust_correct(
            self.model, x, labels, self.attacks, self.threat.eps, generator=noise, alpha=self.threat.alpha
        )
        values = {name: hits.float() for name, hits in correct.items()}
        if self.attacks:
            robust = torch.stack([values[name] for name in self.attacks])
            values |= {"average": robust.mean(0), "worst": robust.amin(0)}
        values |= self.geometry(x, labels)
        for name, value in values.items():
            self.test_means[name].update(value)
            self.log(f"test/{name}", self.test_means[name], batch_size=len(x))
        self.test_count.update(len(x))
        self.log("test/n", self.test_count)

    @torch.no_grad()
    def geometry(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Measure sparsity and margins of the output on clean images (Sec. 3.6), each (B,)."""
        features = self.model.features(x)
        head = self.model.head
        logits = head(features)
        return {
            "entropy": entropy(logits),
            "hoyer": hoyer_sparsity(logits),
            "effective_classes": effective_classes(logits),
            "margin": margin(logits, labels),
            "boundary_distance": boundary_distance(features, head.weight, head.bias, labels),
        }

    def configure_optimizers(self) -> Any:
        """Build the optimiser and schedule of `optim`."""
        o = self.optim
        if o.optimizer == "adam":
            optimizer: torch.optim.Optimizer = torch.optim.Adam(
                self.model.parameters(), o.lr, weight_decay=o.weight_decay
            )
        else:
            optimizer = torch.optim.SGD(
                self.model.parameters(), o.lr, o.momentum, weight_decay=o.weight_decay, nesterov=False
            )
        match o.schedule:
            case "onecycle":
                planned = self.trainer.estimated_stepping_batches
                if not math.isfinite(planned):
                    raise ValueError("optim.schedule onecycle needs an end: set --trainer.max_epochs")
                steps = int(planned)
                scheduler: Any = torch.optim.lr_scheduler.OneCycleLR(optimizer, o.lr, total_steps=steps)
                return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}
            case "multistep":
                scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, o.milestones, o.decay)
                return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "epoch"}}
        return {"optimizer": optimizer}

    def on_train_start(self) -> None:
        """Refuse to go on beyond the end that a one-cycle schedule was made for."""
        schedule = self.lr_schedulers()
        planned = int(getattr(schedule, "total_steps", 0))
        if planned and planned < self.trainer.estimated_stepping_batches:
            raise ValueError(
                f"the one-cycle schedule of this run ends after {planned} steps, so it cannot be made longer: start a "
                "new run with the larger --trainer.max_epochs"
            )

    def on_fit_start(self) -> None:
        """Look at the adversary: set the collapse guard, and warn if the nasty term is too strong (Sec. 3.4)."""
        if self.adversary is None:
            return
        data = cast("LightningDataModule", getattr(self.trainer, "datamodule", None))
        x, labels = (tensor.to(self.device) for tensor in next(iter(data.val_dataloader())))
        with torch.no_grad():
            logits = self.adversary(x)
        certain = CERTAIN * torch.nn.functional.one_hot(labels, self.num_classes).to(logits)
        # Both are innocent: how a target starts, and how it ends. An untrained adversary is near the first.
        innocent = [
            nasty_divergence(output, logits, self.temperature, tau_square=self.tau_square).mean().item()
            for output in (torch.zeros_like(logits), certain)
        ]
        risk = collapse_risk(logits, self.omega, self.temperature)
        # Every process must hold the same bound, or one would stop and the others wait for it.
        start, risk = self.trainer.strategy.broadcast((max(innocent), risk))
        bound = self.max_divergence
        self.divergence_bound = COLLAPSE_FACTOR * start if bound is None else bound
        if risk > 1 and self.trainer.is_global_zero:
            log.warning(
                "omega %g at temperature %g may overpower cross-entropy: its reward for a wrong prediction is "
                "%.1f times the price", self.omega, self.temperature, risk,
            )  # fmt: skip


COLLAPSE_FACTOR = 1.25  # of the divergence of an innocent output; a collapse on digits reached 1.5
CERTAIN = 20.0  # logit of the true class, the others 0, in an output that is right and sure
GEOMETRY = ("entropy", "hoyer", "effective_classes", "margin", "boundary_distance")


def mean_metrics(names: Iterable[str]) -> dict[str, MeanMetric]:
    """Return a mean for each name; as a module, so that Lightning moves and synchronises them."""
    return cast("dict[str, MeanMetric]", torch.nn.ModuleDict({name: MeanMetric() for name in names}))


def warmup(epoch: int, epochs: int) -> float:
    """Return the fraction of a value that rises linearly over `epochs` epochs: 1/epochs in epoch 0."""
    return min(1.0, (epoch + 1) / epochs) if epochs > 0 else 1.0


def mean_over_processes(gradient: Tensor) -> Tensor:
    """Average a tensor over the processes of a run; the tensor itself where there is one process."""
    if dist.is_available() and dist.is_initialized():
        gradient = gradient.contiguous()
        dist.all_reduce(gradient, op=dist.ReduceOp.SUM)
        gradient /= dist.get_world_size()
    return gradient
