"""The paper's `PaperCLI`: a run ends with its scene as files that viewers read, and figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from shared.papercli import PaperCLI

from megs2.data import CaptureData
from megs2.figures import draw_scene
from megs2.formats import save
from megs2.module import SplattingModule, check_one_process


class Megs2CLI(PaperCLI):
    """Trains a scene, and tests it."""

    paper: ClassVar[str] = "megs2"
    model_type: ClassVar[type[LightningModule]] = SplattingModule
    data_type: ClassVar[type[LightningDataModule]] = CaptureData
    monitor: ClassVar[str | None] = None  # the scene of the last step is the result: the best may be before the cut
    model: SplattingModule
    datamodule: CaptureData

    def make_trainer(self, checkpoints: Path | None, **overrides: Any) -> Trainer:
        """Build a trainer for one device.

        Raises:
            ValueError: if there are to be several processes, before any is started.
        """
        trainer = super().make_trainer(checkpoints, **overrides)
        check_one_process(trainer)
        return trainer

    def after_test(self) -> dict[str, float]:
        """Write the scene and figures into the run's folder; no further metrics."""
        if self.trainer.is_global_zero and not self.quiet and hasattr(self, "run_dir"):
            scene = self.model.scene.gaussians.detach().to("cpu")
            save(self.run_dir / "scene.ply", scene)
            save(self.run_dir / "scene.safetensors", scene)
            draw_scene(scene, self.datamodule.capture, self.run_dir / "figures")
        return {}
