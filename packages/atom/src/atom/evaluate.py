"""Scores of any predictor on a datamodule's windows: the trivial baselines, and the rotation test."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from atom.baselines import FITTED, FREE, TRIVIAL, Fitted
from atom.data import MoleculeData
from atom.equivariance import RotationErrors, random_rotations, rotation_errors
from atom.metrics import TrajectoryErrors
from atom.module import HUNDREDTHS, headline_of, summary
from atom.operators import SolutionOperator
from atom.samples import Batch, Windows

ROTATIONS = 8  # G of the rotation test
ROTATED_WINDOWS = 512  # that it uses, evenly chosen


def batches(windows: Windows, indices: Tensor | None = None, size: int = 256) -> Iterator[Batch]:
    """Yield the windows in batches."""
    for part in torch.split(torch.arange(len(windows)) if indices is None else indices, size):
        yield windows.__getitems__(part)


def trivial_scores(data: MoleculeData, names: Sequence[str] = TRIVIAL) -> dict[str, dict[str, float]]:
    """Score the trivial baselines on the windows that the test loop scores.

    Those that are fitted, to the windows to train on of each molecule, have nothing to say of an unseen one.

    Args:
        data: the datamodule, set up.
        names: of `baselines.TRIVIAL`.

    Returns:
        name -> metrics, as `module.summary` gives them.
    """
    return {name: summary(_trivial_errors(data, name), data) for name in names}


def _trivial_errors(data: MoleculeData, name: str) -> TrajectoryErrors:
    errors = TrajectoryErrors(len(data.names), data.lags)
    if name in FREE:
        for batch in batches(data.scored):
            errors.update(FREE[name](batch.x, batch.v, batch.steps), batch.target, batch.scored, batch.molecule)
        return errors
    trained = data.parts["train"]
    fixed = Windows(data.molecules, data.chosen("train"), data.horizon, data.lags)  # at the horizon that is scored
    for m in (data.present & ~data.unseen).nonzero().flatten().tolist():
        members = (trained.molecule == m).nonzero().flatten()
        if len(members) < 2:
            continue  # too few to fit to
        predictor: Fitted = FITTED[name]()
        known = fixed.__getitems__(members)
        predictor.fit(known.x, known.v, known.target)
        for batch in batches(data.scored, (data.scored.molecule == m).nonzero().flatten()):
            errors.update(predictor.predict(batch.x, batch.v), batch.target, batch.scored, batch.molecule)
    return errors


def rotation_test(
    operator: SolutionOperator, data: MoleculeData, rotations: int = ROTATIONS, seed: int = 0
) -> RotationErrors:
    """Measure how far an operator is from equivariance (Sec. 3.8) on windows of the molecules of the headline.

    Args:
        operator: the network; it is left in evaluation mode.
        data: the datamodule, set up.
        rotations: G.
        seed: of the rotations.

    Returns:
        E_q and both S2T, in 10^-2 Å².
    """
    windows = data.scored
    members = headline_of(data)[windows.molecule].nonzero().flatten()
    few = members[torch.linspace(0, len(members) - 1, min(len(members), ROTATED_WINDOWS)).round().long()]
    operator.eval()

    def cases() -> Iterator[tuple[Callable[[Tensor, Tensor], Tensor], Tensor, Tensor, Tensor, Tensor]]:
        for cpu_batch in batches(windows, few):
            batch = cpu_batch.on(operator.like)

            def predict(x: Tensor, v: Tensor, batch: Batch = batch) -> Tensor:
                return operator(x, v, *batch.state[2:])

            yield predict, batch.x, batch.v, batch.target, batch.scored

    found = rotation_errors(cases(), random_rotations(rotations, np.random.default_rng(seed)))
    return RotationErrors(*(HUNDREDTHS * value for value in found))
