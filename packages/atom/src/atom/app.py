"""The paper's `PaperCLI`: the test prints the trivial baselines too, and measures what rotations do."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

from lightning.pytorch import LightningDataModule, LightningModule
from rich.table import Table
from shared.papercli import PaperCLI

from atom.baselines import FREE
from atom.data import MoleculeData
from atom.evaluate import rotation_test, trivial_scores
from atom.figures import draw_run
from atom.module import MoleculeModule
from atom.report import REPORT
from shared import logs


class AtomCLI(PaperCLI):
    """Trains an operator on several molecules and tests it on those it has not seen."""

    paper: ClassVar[str] = "atom"
    model_type: ClassVar[type[LightningModule]] = MoleculeModule
    data_type: ClassVar[type[LightningDataModule]] = MoleculeData
    monitor: ClassVar[str | None] = "val/s2t"
    monitor_mode: ClassVar[str] = "min"
    model: MoleculeModule
    datamodule: MoleculeData

    def after_test(self) -> dict[str, float]:
        """Print the trivial baselines, and return what a random rotation of the states does to the errors."""
        if not self.trainer.is_global_zero:
            return {}
        trivial = trivial_scores(self.datamodule)
        rotated = rotation_test(self.model.operator, self.datamodule)
        if not self.quiet:
            logs.console.print(trivial_table(trivial))
            if hasattr(self, "run_dir"):
                scores = {type(self.model.operator).__name__: self.test_metrics()}
                scores |= {REPORT.label(name): trivial[name] for name in FREE}
                draw_run(self.model.operator, self.datamodule, scores, self.run_dir / "figures")
        return {
            "relative": relative(self.test_metrics().get("s2t", math.nan), trivial),
            "e_q": rotated.e_q,
            "rotated_s2t": rotated.rotated,
            "rotation_ratio": rotated.ratio,
        }

    def test_metrics(self) -> dict[str, float]:
        """Return what the test loop logged, without its prefix."""
        logged = self.trainer.callback_metrics
        return {name.removeprefix("test/"): float(value) for name, value in logged.items() if name.startswith("test/")}


def relative(s2t: float, trivial: Mapping[str, Mapping[str, float]]) -> float:
    """Divide an S2T by that of the better of the two predictors that need no training; NaN where theirs is 0."""
    best = min(trivial[name]["s2t"] for name in FREE)
    return s2t / best if best else math.nan


def trivial_table(scores: Mapping[str, Mapping[str, float]]) -> Table:
    """Lay the scores of the trivial baselines out."""
    table = Table(title="trivial baselines, 10⁻² Å²")
    keys = [key for key in ("s2t", "s2s", "seen_s2t", "seen_s2s") if any(key in found for found in scores.values())]
    table.add_column("")
    for key in keys:
        table.add_column(key, justify="right")
    for name, found in scores.items():
        cells = [found.get(key, math.nan) for key in keys]
        table.add_row(REPORT.label(name), *("–" if math.isnan(value) else f"{value:.4g}" for value in cells))
    return table
