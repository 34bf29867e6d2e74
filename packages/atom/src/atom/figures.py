"""The figures that a test of a run leaves in its folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from ase.data import chemical_symbols

from atom.attention import HeterogeneousAttention
from atom.data import MoleculeData
from atom.module import headline_of
from atom.operators import SolutionOperator
from atom.plots import STREAMS, draw_bonds, draw_gamma, draw_lags, draw_overlay
from atom.samples import Batch


def draw_run(
    operator: SolutionOperator, data: MoleculeData, scores: Mapping[str, Mapping[str, float]], folder: Path
) -> None:
    """Draw errors over time, one molecule's future and its bonds, and what attention takes from each stream.

    The molecule is the largest of those of the headline, in the window whose last error is the median.

    Args:
        operator: the network; it is left in evaluation mode.
        data: the datamodule, set up.
        scores: name -> metrics with `lag1` .. `lagP`; those without are left out. The network's own comes first.
        folder: where lags.png, bonds.png, overlay.png and, for ATOM, gamma.png go.
    """
    lags = np.array([data.horizon * p // data.lags for p in range(1, data.lags + 1)]) * data.molecules[0].frame_fs
    names = [f"lag{p}" for p in range(1, data.lags + 1)]
    curves = {
        label: np.array([metrics[name] for name in names])
        for label, metrics in scores.items()
        if all(name in metrics for name in names)
    }
    draw_lags(curves, lags, folder / "lags.png")
    draw_window(operator, data, folder)
    gammas = [part.gamma for part in operator.modules() if isinstance(part, HeterogeneousAttention)]
    if gammas and len(gammas[0]) == len(STREAMS):
        draw_gamma(torch.stack(gammas).detach().double().cpu().numpy(), folder / "gamma.png")


@torch.no_grad()
def draw_window(operator: SolutionOperator, data: MoleculeData, folder: Path) -> None:
    """Draw bonds.png, if the graph has a bond, and overlay.png of one window of a test molecule."""
    windows = data.scored
    sizes = torch.tensor([len(m.numbers) for m in data.molecules])
    chosen = int((sizes * headline_of(data)).argmax())
    batch = windows.__getitems__((windows.molecule == chosen).nonzero().flatten())
    operator.eval()
    predicted = operator(*batch.on(operator.like).state).cpu().to(batch.target)
    error = ((predicted - batch.target)[:, -1].square().sum(-1) * batch.scored).sum(1)
    middle = int(error.argsort()[(len(error) - 1) // 2])
    one = Batch(*(part[middle] for part in batch))
    guess, start, true = (u.double().numpy() for u in (predicted[middle], one.x, one.target))
    numbers, lags_fs, bonds = one.z.numpy(), one.lags.double().numpy(), one.bonds.double().numpy()
    i, j = np.nonzero(np.triu(bonds, 1))
    titles = [
        f"{chemical_symbols[numbers[a]]}{a} – {chemical_symbols[numbers[b]]}{b}" for a, b in zip(i, j, strict=True)
    ]
    if titles:
        lengths = [np.linalg.norm(u[..., i, :] - u[..., j, :], axis=-1) for u in (guess, true, start)]
        draw_bonds(lengths[0], lengths[1], lengths[2], lags_fs, folder / "bonds.png", titles)
    off = float(np.sqrt(np.square(guess - true)[-1][one.scored.numpy()].sum(-1).mean()))
    title = f"{data.molecules[chosen].name}, {lags_fs[-1]:g} fs later: atoms {off:.3f} Å off (root mean square)"
    draw_overlay(guess[-1], true[-1], start, numbers, bonds, folder / "overlay.png", title)
