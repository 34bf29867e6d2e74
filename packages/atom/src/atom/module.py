"""The LightningModule: an operator, the loss of Sec. 3.1 and the optimisers of the paper's configs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import torch
from lightning.pytorch import LightningModule
from shared.kernels.rotary import rotary
from shared.seeding import derive, generator
from torch import Tensor

from atom.attention import HeterogeneousAttention
from atom.equivariance import random_rotations, turn
from atom.metrics import TrajectoryErrors, masked_mse
from atom.noise import add_noise
from atom.operators import SolutionOperator

if TYPE_CHECKING:
    from atom.data import MoleculeData
    from atom.samples import Batch

HUNDREDTHS = 100.0  # errors are told in 10^-2 Å², as in the paper's tables


@dataclass
class Optimisation:
    """Optimiser and schedule (Sec. 3.9).

    Attributes:
        optimizer: `adamw`, or `muon`: Muon for matrices and AdamW for the rest.
        lr: learning rate; with `muon`, of what is not a matrix.
        muon_lr: learning rate of the matrices with `muon`.
        weight_decay: decoupled.
        beta1: of AdamW.
        beta2: of AdamW.
        eps: of AdamW.
        amsgrad: of AdamW.
        schedule: `cosine` to 0 over the training, or `constant`.
        warmup_steps: over which the rate rises linearly.
    """

    optimizer: Literal["adamw", "muon"] = "adamw"
    lr: float = 1e-3
    muon_lr: float = 1e-3
    weight_decay: float = 1e-5
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-10
    amsgrad: bool = True
    schedule: Literal["cosine", "constant"] = "cosine"
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        for option in ("lr", "muon_lr", "eps"):
            if not 0 < getattr(self, option) < math.inf:
                raise ValueError(f"optim.{option} must be a finite number > 0, got {getattr(self, option)}")
        for option in ("beta1", "beta2"):
            if not 0 <= getattr(self, option) < 1:
                raise ValueError(f"optim.{option} must lie in [0, 1), got {getattr(self, option)}")
        if not 0 <= self.weight_decay < math.inf:
            raise ValueError(f"optim.weight_decay must be a finite number >= 0, got {self.weight_decay}")
        if self.warmup_steps < 0:
            raise ValueError(f"optim.warmup_steps must be at least 0, got {self.warmup_steps}")


class MoleculeModule(LightningModule):
    """Train an operator to map a state to its future; test it on seen and unseen molecules.

    Args:
        operator: the network: `atom.ATOM`, `atom.EGNO` or your own `atom.SolutionOperator`.
        optim: optimiser and schedule.
        sigma_x: label noise of positions while training, Å (Sec. 3.7).
        sigma_v: label noise of velocities, Å per frame.
        noise_targets: perturb the targets too, by sigma_x.
        augment: rotate each training window at random.
        seed: the run's seed: of noise and rotations.

    Raises:
        ValueError: if a σ is negative.
    """

    def __init__(
        self,
        operator: SolutionOperator,
        optim: Optimisation = Optimisation(),  # noqa: B008
        sigma_x: float = 0.0,
        sigma_v: float = 0.0,
        noise_targets: bool = False,
        augment: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__()
        for option, value in (("sigma_x", sigma_x), ("sigma_v", sigma_v)):
            if not 0 <= value < math.inf:
                raise ValueError(f"{option} must be a finite number >= 0, got {value}")
        self.operator, self.optim = operator, optim
        for part in operator.modules():
            if isinstance(part, HeterogeneousAttention):
                part.rotate = rotary
        self.sigma_x, self.sigma_v, self.noise_targets, self.augment = sigma_x, sigma_v, noise_targets, augment
        self.seed = seed
        self.errors: TrajectoryErrors | None = None  # of the loop that runs; its size is the data's
        self.step_losses: list[Tensor] = []

    @property
    def data(self) -> MoleculeData:
        """The datamodule of the trainer."""
        return cast("MoleculeData", self.trainer.datamodule)  # type: ignore[attr-defined]

    def forward(self, x: Tensor, v: Tensor, z: Tensor, lags: Tensor, bonds: Tensor, mask: Tensor) -> Tensor:
        """Predict positions (B, P, N, 3); see `SolutionOperator`."""
        return cast("Tensor", self.operator(x, v, z, lags, bonds, mask))

    def training_step(self, batch: Batch, batch_index: int) -> Tensor:
        """Return the mean squared error of the batch, Å²."""
        batch = self.perturbed(batch, batch_index)
        loss = masked_mse(self(*batch.state), batch.target, batch.scored)
        self.step_losses.append(loss.detach())
        return loss

    def perturbed(self, batch: Batch, batch_index: int = 0) -> Batch:
        """Rotate the windows and add noise, as the options say; random by (seed, step, rank)."""
        place = [self.trainer.global_step, self.trainer.global_rank]
        if self.trainer.accumulate_grad_batches > 1:
            place.append(batch_index)  # several batches make a step
        if self.augment:
            rng = np.random.default_rng(derive(self.seed, "rotation", *place))
            r = random_rotations(len(batch.x), rng).to(batch.x)
            batch = batch._replace(x=turn(batch.x, r), v=turn(batch.v, r), target=turn(batch.target, r))
        if self.sigma_x or self.sigma_v:
            draws = generator(self.seed, "noise", *place, device=self.device)
            x, v = add_noise(batch.x, batch.v, batch.mask, self.sigma_x, self.sigma_v, draws)
            target = batch.target
            if self.noise_targets:
                target, _ = add_noise(target, target, batch.mask[:, None], self.sigma_x, 0.0, draws)
            batch = batch._replace(x=x, v=v, target=target)
        return batch

    def on_train_epoch_end(self) -> None:
        """Log the mean loss in 10^-2 Å², and the last learning rate."""
        if self.step_losses:
            loss = HUNDREDTHS * torch.stack(self.step_losses).mean()
            self.step_losses.clear()
            if not loss.isfinite():
                raise ValueError("the training diverged: its loss is not finite; lower the learning rates of optim")
            self.log("train/loss", loss, sync_dist=True)
        self.log("train/lr", self.trainer.optimizers[0].param_groups[0]["lr"], rank_zero_only=True)

    def on_validation_epoch_start(self) -> None:
        """Begin to score."""
        self.errors = TrajectoryErrors(len(self.data.names), self.data.lags).to(self.device)

    def on_test_epoch_start(self) -> None:
        """Begin to score."""
        self.on_validation_epoch_start()

    def validation_step(self, batch: Batch, batch_index: int) -> None:
        """Score a batch."""
        assert self.errors is not None  # made when the epoch began
        self.errors.update(self(*batch.state), batch.target, batch.scored, batch.molecule)

    def test_step(self, batch: Batch, batch_index: int) -> None:
        """Score a batch."""
        self.validation_step(batch, batch_index)

    def on_validation_epoch_end(self) -> None:
        """Log S2T and S2S of all that was validated on, in 10^-2 Å²."""
        assert self.errors is not None
        found = self.errors.compute()  # of all processes
        self.log("val/s2t", HUNDREDTHS * found["s2t"], prog_bar=True, rank_zero_only=True)
        self.log("val/s2s", HUNDREDTHS * found["s2s"], rank_zero_only=True)

    def on_test_epoch_end(self) -> None:
        """Log what `summary` says."""
        assert self.errors is not None
        for name, value in summary(self.errors, self.data).items():
            self.log(f"test/{name}", value)

    def configure_optimizers(self) -> Any:
        """Build the optimiser and, for the cosine, its schedule by step."""
        o = self.optim
        parameters = [p for p in self.parameters() if p.requires_grad]
        if not parameters:
            raise ValueError(f"operator {type(self.operator).__name__} has no parameter to train")
        optimizer: torch.optim.Optimizer
        if o.optimizer == "adamw":
            optimizer = torch.optim.AdamW(
                parameters, o.lr, (o.beta1, o.beta2), o.eps, o.weight_decay, amsgrad=o.amsgrad
            )
        else:
            from pytorch_optimizer import Muon

            matrices = [p for p in parameters if p.ndim == 2]
            others = [p for p in parameters if p.ndim != 2]
            adamw = {"use_muon": False, "lr": o.lr, "betas": (o.beta1, o.beta2), "eps": o.eps}
            groups: list[dict[str, Any]] = [{"params": matrices, "use_muon": True}, {"params": others, **adamw}]
            optimizer = Muon(
                [group | {"weight_decay": o.weight_decay} for group in groups if group["params"]], lr=o.muon_lr
            )
        total = self.trainer.estimated_stepping_batches
        steps = int(total) if math.isfinite(total) else 0

        def factor(step: int) -> float:
            rise = min(1.0, (step + 1) / (o.warmup_steps + 1))
            if o.schedule == "constant" or not steps:
                return rise
            return rise * (1 + math.cos(math.pi * min(step / steps, 1.0))) / 2

        if o.schedule == "cosine" and not steps:
            raise ValueError("optim.schedule cosine needs an end: set trainer.max_epochs or trainer.max_steps")
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def headline_of(data: MoleculeData) -> Tensor:
    """Return which molecules the headline is about (M,), bool: the unseen where any are scored, else all scored."""
    unseen = data.unseen & data.present
    return unseen if unseen.any() else data.present


def summary(errors: TrajectoryErrors, data: MoleculeData) -> dict[str, float]:
    """Sum errors up, in 10^-2 Å²: of unseen molecules where the data score any, else of those trained on.

    Args:
        errors: of all molecules of the data; a predictor may have left molecules out.
        data: which of them are unseen.

    Returns:
        `s2t`, `s2s` and the error at each lag, `lag1` .. `lagP`, of the unseen; `seen_s2t` and `seen_s2s` of the others
        where both kinds are scored; `s2t/NAME` of each molecule where there are several; `n`, windows scored.
    """
    present, headline = data.present, headline_of(data)
    others = present & ~headline
    found: dict[str, float] = {}
    with errors.sync_context():  # the sums of all processes
        counts = errors.counts.cpu()
        if (counts[headline] > 0).any():
            of = errors.of(headline)
            found |= {"s2t": HUNDREDTHS * float(of["s2t"]), "s2s": HUNDREDTHS * float(of["s2s"])}
            found |= {f"lag{p}": HUNDREDTHS * float(value) for p, value in enumerate(of["per_lag"], start=1)}
        if (counts[others] > 0).any():
            of = errors.of(others)
            found |= {"seen_s2t": HUNDREDTHS * float(of["s2t"]), "seen_s2s": HUNDREDTHS * float(of["s2s"])}
        if int(present.sum()) > 1:
            for m in (counts > 0).nonzero().flatten().tolist():
                alone = torch.arange(len(counts)) == m
                found[f"s2t/{data.names[m]}"] = HUNDREDTHS * float(errors.of(alone)["s2t"])
    return found | {"n": float(counts.sum())}
