"""The paper's `PaperCLI`: what a run is used for are the weights of its best epoch."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from lightning.pytorch import LightningDataModule, LightningModule
from shared.checkpoints import CheckpointError, load
from shared.papercli import PaperCLI

from difflift.data import GraphData
from difflift.figures import draw_run
from difflift.module import LiftingModule
from difflift.transform import LiftTransform


class DiffLiftCLI(PaperCLI):
    """Trains a network on lifted graphs, and tests it."""

    paper: ClassVar[str] = "difflift"
    model_type: ClassVar[type[LightningModule]] = LiftingModule
    data_type: ClassVar[type[LightningDataModule]] = GraphData
    monitor: ClassVar[str | None] = "val/score"
    model: LiftingModule
    datamodule: GraphData

    def load_weights(self, checkpoint: Path) -> None:
        """Load the weights of a checkpoint's best epoch, or its own if there has been no validation."""
        super().load_weights(checkpoint)
        self.model.best = load(checkpoint, package=self.paper, map_location="cpu").get("best", {})
        try:
            self.model.restore_best()
        except (RuntimeError, TypeError, KeyError) as error:
            raise CheckpointError(f"{checkpoint}: the weights of the best epoch are damaged: {error}") from error

    def after_test(self) -> dict[str, float]:
        """Draw some lifted graphs and what was chosen in all; no further metrics."""
        if self.trainer.is_global_zero and not self.quiet and hasattr(self, "run_dir"):
            lifting, run = self.model.model.lifting, self.run_dir
            draw_run(lifting, self.datamodule, run / "figures", run / "metrics.csv")
        return {}

    @classmethod
    def transform_of(cls, run: str | Path = "last", *, select: str = "last") -> LiftTransform:
        """Return the lifting of a finished run as a transform of PyG.

        Args:
            run: a run folder, or `last`.
            select: which checkpoint: `last`, `best`, or a file.

        Raises:
            FileNotFoundError: if there is no such run or checkpoint.
            CheckpointError: if the checkpoint cannot be read.
        """
        return LiftTransform(cls.of_run(run, select=select).model.model.lifting)
