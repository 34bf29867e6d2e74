"""The paper's `PaperCLI`: before the target is trained, its adversary is."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from lightning.pytorch import LightningDataModule, LightningModule
from shared.checkpoints import CheckpointError, Manifest, load_weights, newest, save_weights
from shared.papercli import PaperCLI

from nat.data import NATDataModule
from nat.module import NATModule

WEIGHTS = "weights.safetensors"

log = logging.getLogger(__name__)


class NATCLI(PaperCLI):
    """Trains the frozen adversary (or loads it), then the target, then tests the target."""

    paper: ClassVar[str] = "nat"
    model_type: ClassVar[type[LightningModule]] = NATModule
    data_type: ClassVar[type[LightningDataModule]] = NATDataModule
    monitor: ClassVar[str | None] = "val/pgd"
    model: NATModule
    datamodule: NATDataModule

    @classmethod
    def adversary_only(cls, argv: Sequence[str]) -> None:
        """Train the adversary alone and say where its weights are: the verb `train-adversary`."""
        cli = cls(argv)
        if cli.model.adversary is None:
            raise ValueError("these settings need no adversary: model.method must be nat and model.omega above 0")
        with cli.run_folder():
            cli.train_adversary(cli.run_dir)
        log.info("use it with: --model.adversary.checkpoint %s", cli.run_dir / WEIGHTS)

    def before_fit(self) -> None:
        """Give the target its adversary (Sec. 3.2, step 1)."""
        if self.model.adversary is None:
            return
        settings = self.model.adversary_settings
        if settings.checkpoint is not None:
            self.load_adversary(Path(settings.checkpoint))
        elif settings.state != "random":
            self.train_adversary(self.run_dir / "adversary")

    def load_adversary(self, path: Path) -> None:
        """Load the adversary's weights from a checkpoint of a run, or from safetensors."""
        assert self.model.adversary is not None
        weights = load_weights(path, package=self.paper, prefix="model.")
        try:
            self.model.adversary.load_state_dict(weights)
        except RuntimeError as error:
            raise CheckpointError(
                f"the adversary {path} does not fit: it has another architecture or number of classes than "
                f"{self.model.adversary_settings.arch or self.model.arch} with {self.model.num_classes}"
            ) from error

    def train_adversary(self, folder: Path) -> None:
        """Train the adversary on clean images (or on X and X' too), or take what an interrupted run left.

        Args:
            folder: for its checkpoints and metrics; its final weights go into `weights.safetensors`.
        """
        weights = folder / WEIGHTS
        if weights.is_file():
            self.load_adversary(weights)
            return
        target, settings = self.model, self.model.adversary_settings
        trainee = NATModule(
            method="vanilla" if settings.state == "vanilla" else "at_mix",
            arch=settings.arch or target.arch,
            num_classes=target.num_classes,
            in_channels=target.in_channels,
            image_size=target.image_size,
            eps=target.threat.eps,
            alpha=target.threat.alpha,
            steps=target.threat.steps,
            optim=settings.optim,
            val_steps=target.val_steps,
            test_attacks="",
            seed=target.seed,
        )
        checkpoints = folder / "checkpoints"
        resume_from = None
        if any(checkpoints.glob("*.ckpt")):
            resume_from = newest(checkpoints, package=self.paper, warn=log.warning)
        log.info("training the adversary (%s, %d epochs)", settings.state, settings.epochs)
        trainer = self.make_trainer(checkpoints, max_epochs=settings.epochs)
        trainer.fit(trainee, self.datamodule, ckpt_path=resume_from)
        if trainer.interrupted:
            raise KeyboardInterrupt
        assert target.adversary is not None
        target.adversary.load_state_dict(trainee.model.state_dict())
        if trainer.is_global_zero:
            save_weights(trainee.model.state_dict(), weights, Manifest.of(self.paper))
