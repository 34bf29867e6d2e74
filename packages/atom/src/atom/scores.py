"""Errors of several predictors on one trajectory's windows, for the verb `evaluate`."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from rich.table import Table
from shared.records import write_text
from torch import Tensor

from atom.baselines import FITTED, FREE
from atom.metrics import TrajectoryErrors, bond_length_error, kabsch_rmsd
from atom.module import HUNDREDTHS
from atom.operators import SolutionOperator
from atom.samples import Batch, Molecule, Windows

Predictor = Callable[[Batch], Tensor]
CHUNK = 256
ALL = "all files"


@dataclass(frozen=True, eq=False)
class Scores:
    """Mean errors over windows.

    Attributes:
        n: number of windows.
        per_lag: mean squared error at each lag (P,), 10^-2 Å².
        rmsd: after the best superposition, mean over windows and lags, Å.
        bond_mae: of the lengths of bonds, mean over windows, lags and bonds, Å; NaN without a bond.
    """

    n: int
    per_lag: Tensor
    rmsd: float
    bond_mae: float

    @property
    def s2t(self) -> float:
        """Mean over the lags, 10^-2 Å²."""
        return float(self.per_lag.mean())

    @property
    def s2s(self) -> float:
        """At the last lag, 10^-2 Å²."""
        return float(self.per_lag[-1])


def of_operator(operator: SolutionOperator) -> Predictor:
    """Make a predictor of a network, in evaluation mode."""
    operator.eval()
    return lambda batch: operator(*batch.on(operator.like).state).to(batch.target)


def free_predictors() -> dict[str, Predictor]:
    """Return the predictors that need no training, by name."""

    def of(name: str) -> Predictor:
        return lambda batch: FREE[name](batch.x, batch.v, batch.steps)

    return {name: of(name) for name in FREE}


def fitted_predictors(known: Batch) -> dict[str, Predictor]:
    """Fit the others to windows of one molecule, and return them by name."""

    def of(name: str) -> Predictor:
        fitted = FITTED[name]().fit(known.x, known.v, known.target)
        return lambda batch: fitted.predict(batch.x, batch.v)

    return {name: of(name) for name in FITTED}


def windows_of(molecule: Molecule, starts: Tensor, horizon: int, lags: int) -> Windows:
    """Return the windows of `horizon` frames of one molecule that begin at `starts`."""
    return Windows([molecule], [starts], horizon, lags)


@torch.no_grad()
def score(predictors: Mapping[str, Predictor], windows: Windows) -> dict[str, Scores]:
    """Score predictors on windows of one molecule.

    Args:
        predictors: by name.
        windows: of one molecule, at least one.
    """
    errors = {name: TrajectoryErrors(1, windows.lags) for name in predictors}
    rmsd, bonds = (dict.fromkeys(predictors, 0.0) for _ in range(2))
    for part in torch.split(torch.arange(len(windows)), CHUNK):
        batch = windows.__getitems__(part)
        kept = batch.scored[0]
        pairs = batch.bonds * (batch.scored[:, :, None] & batch.scored[:, None, :])
        for name, predict in predictors.items():
            predicted = predict(batch)
            errors[name].update(predicted, batch.target, batch.scored, batch.molecule)
            rmsd[name] += float(kabsch_rmsd(predicted[:, :, kept], batch.target[:, :, kept]).mean(1).double().sum())
            bonds[name] += len(part) * float(bond_length_error(predicted, batch.target, pairs))
    n = len(windows)
    return {
        name: Scores(n, HUNDREDTHS * errors[name].compute()["per_lag"], rmsd[name] / n, bonds[name] / n)
        for name in predictors
    }


def pooled(scores: Sequence[Scores]) -> Scores:
    """Average over several molecules, each window counting alike."""
    total = sum(s.n for s in scores)
    per_lag = sum((s.n * s.per_lag for s in scores), torch.zeros_like(scores[0].per_lag)) / total
    rmsd, bond_mae = (sum(s.n * getattr(s, name) for s in scores) / total for name in ("rmsd", "bond_mae"))
    return Scores(total, per_lag, rmsd, bond_mae)


def score_table(found: Mapping[str, Mapping[str, Scores]], title: str, labels: Mapping[str, str]) -> Table:
    """Lay scores out: file -> method -> scores."""
    table = Table(title=f"{title}; S2T and S2S in 10⁻² Å², RMSD and error of bond lengths in Å", title_justify="left")
    for heading in ("file", "windows", "method", "S2T", "S2S", "RMSD", "bonds"):
        side: Literal["left", "right"] = "left" if heading in ("file", "method") else "right"
        table.add_column(heading, justify=side, overflow="fold", no_wrap=heading != "file")
    for file, methods in found.items():
        for row, (name, s) in enumerate(methods.items()):
            label = labels.get(name, name) + (" †" if name in FITTED else "")
            first = (Path(file).stem, str(s.n)) if row == 0 else ("", "")
            cells = (f"{value:.4g}" for value in (s.s2t, s.s2s, s.rmsd, s.bond_mae))
            table.add_row(*first, label, *cells, end_section=row == len(methods) - 1)
    return table


def write_scores(tables: Mapping[str, Mapping[str, Mapping[str, Scores]]], folder: Path) -> None:
    """Write scores.csv and scores.json: a record for each part, file and method."""
    records = [
        {
            "windows": part, "file": file, "method": name, "n": s.n, "s2t": s.s2t, "s2s": s.s2s, "rmsd": s.rmsd,
            "bond_mae": None if math.isnan(s.bond_mae) else s.bond_mae,
        }
        | {f"lag{p}": value for p, value in enumerate(s.per_lag.tolist(), start=1)}
        for part, files in tables.items()
        for file, methods in files.items()
        for name, s in methods.items()
    ]  # fmt: skip
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    write_text(folder / "scores.csv", text.getvalue())
    write_text(folder / "scores.json", json.dumps(records, indent=2) + "\n")
