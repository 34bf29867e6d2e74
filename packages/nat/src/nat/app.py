"""The paper's `PaperCLI`: before the target is trained, its adversary is."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import torch
from lightning.pytorch import LightningDataModule, LightningModule
from shared.checkpoints import CheckpointError, Manifest, load_weights, newest, save_weights
from shared.papercli import PaperCLI, ended_by_signals
from torch import Tensor

from nat.attack import attack_mode, margin
from nat.data import NATDataModule
from nat.geometry import boundary_distance, entropy
from nat.models import Classifier
from nat.module import NATModule
from nat.plots import diagnostics_figure

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
        cli = cls.of_arguments(argv)
        settings = cli.model.adversary_settings
        if cli.model.adversary is None:
            raise ValueError("these settings need no adversary: model.method must be nat and model.omega above 0")
        if settings.checkpoint is not None or settings.state == "random":
            raise ValueError("there is nothing to train: model.adversary names a checkpoint, or its state is random")
        cli.make_trainer(None)  # refuses bad options before the folder is made
        with cli.run_folder():
            cli.before_fit()
        log.info("use it with: --model.adversary.checkpoint %s", cli.run_dir / "adversary" / WEIGHTS)
        log.info("or go on to the target with: train --resume %s", cli.run_dir)

    def before_fit(self) -> None:
        """Give the target its adversary (Sec. 3.2, step 1)."""
        self.datamodule.setup()  # a missing file of the test set is noticed now, not after the training
        if self.model.adversary is None:
            return
        settings = self.model.adversary_settings
        if settings.checkpoint is not None:
            self.load_adversary(Path(settings.checkpoint))
        elif settings.state != "random":
            self.train_adversary(self.run_dir / "adversary")

    def after_test(self) -> dict[str, float]:
        """Draw the geometry of the output beside the adversary's (the figures of Sec. 3.6)."""
        if self.trainer.is_global_zero and hasattr(self, "run_dir") and not self.quiet:
            networks: dict[str, Classifier] = {str(self.model.method): self.model.model}
            if self.model.adversary is not None:
                networks["adversary"] = self.model.adversary
            batch = itertools.islice(self.datamodule.test_dataloader(), 1)
            draw_geometry(networks, batch, self.datamodule.class_names, self.run_dir / "figures" / "geometry.png")
        return {}

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
        # The user's callbacks have a state, and with the limits of the training they are meant for the target.
        no_limits = {"min_epochs": None, "max_steps": -1, "min_steps": None, "max_time": None}
        trainer = self.make_trainer(checkpoints, callbacks=None, max_epochs=settings.epochs, **no_limits)
        with ended_by_signals(trainer):
            trainer.fit(trainee, self.datamodule, ckpt_path=resume_from)
        assert target.adversary is not None
        target.adversary.load_state_dict(trainee.model.state_dict())
        if trainer.is_global_zero:
            save_weights(trainee.model.state_dict(), weights, Manifest.of(self.paper))


@torch.no_grad()
def draw_geometry(
    networks: Mapping[str, Classifier], batches: Iterable[tuple[Tensor, Tensor]], class_names: list[str], path: Path
) -> dict[str, dict[str, float]]:
    """Draw the output's geometry of several networks on the same images (Sec. 3.6).

    Args:
        networks: name -> network; each is evaluated where it is.
        batches: images (B, C, H, W) in [0, 1] and labels (B,).
        class_names: of the K classes.
        path: the PNG.

    Returns:
        Name of the network -> means of entropy (nats), logit margin and boundary distance.
    """
    outputs: dict[str, list[tuple[Tensor, Tensor, Tensor]]] = {name: [] for name in networks}
    for x, y in batches:
        for name, network in networks.items():
            with attack_mode(network):
                features = network.features(x.to(network.mean.device))
                outputs[name].append((features.cpu(), network.head(features).cpu(), y))
    entropies, margins, distances, examples = {}, {}, {}, {}
    for name, parts in outputs.items():
        features, logits, y = (torch.cat(column) for column in zip(*parts, strict=True))
        head = networks[name].head
        entropies[name], margins[name] = entropy(logits), margin(logits, y)
        distances[name] = boundary_distance(features, head.weight.cpu(), head.bias.cpu(), y)
        examples[name] = logits[:4].softmax(1)
    diagnostics_figure(entropies, margins, examples, distances, path, class_names)
    measured = {"entropy": entropies, "margin": margins, "boundary distance": distances}
    return {name: {key: values[name].mean().item() for key, values in measured.items()} for name in networks}
