"""The paper's `PaperCLI`: a run ends with its scene as files that viewers read, and figures."""

from __future__ import annotations

from typing import ClassVar

from lightning.pytorch import LightningDataModule, LightningModule
from shared.papercli import PaperCLI

from megs2.data import CaptureData
from megs2.figures import draw_scene
from megs2.formats import save
from megs2.module import SplattingModule


class Megs2CLI(PaperCLI):
    """Trains a scene, and tests it."""

    paper: ClassVar[str] = "megs2"
    model_type: ClassVar[type[LightningModule]] = SplattingModule
    data_type: ClassVar[type[LightningDataModule]] = CaptureData
    monitor: ClassVar[str | None] = None  # the scene of the last step is the result: the best may be before the cut
    model: SplattingModule
    datamodule: CaptureData

    def after_test(self) -> dict[str, float]:
        """Write the scene and figures into the run's folder; no further metrics."""
        if self.trainer.is_global_zero and not self.quiet and hasattr(self, "run_dir"):
            scene = self.model.scene.gaussians.detach().to("cpu")
            save(self.run_dir / "scene.ply", scene)
            save(self.run_dir / "scene.safetensors", scene)
            draw_scene(scene, self.datamodule.capture, self.run_dir / "figures")
        return {}
