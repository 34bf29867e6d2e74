"""What the verbs of the command do; their options are explained in `cli`."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from ase.data import chemical_symbols
from numpy.typing import NDArray
from rich.table import Table
from shared.logs import console
from shared.seeding import generator

from atom.app import AtomCLI
from atom.data import MoleculeData
from atom.evaluate import rotation_test
from atom.features import near_atoms
from atom.files import find_file
from atom.horizons import lags_of
from atom.molecules import canonical_smiles
from atom.plots import draw_lags
from atom.recipe import Method, Recipe, cache_folder
from atom.report import REPORT
from atom.samples import Molecule, choose, molecule_of, split_starts
from atom.scores import (
    ALL,
    Predictor,
    Scores,
    fitted_predictors,
    free_predictors,
    of_operator,
    pooled,
    score,
    score_table,
    windows_of,
    write_scores,
)
from atom.simulate import drift, make
from atom.states import maxwell, read_state, velocities, write_states
from atom.structures import file_name, structure
from atom.trajectories import Trajectory, read_trajectory

log = logging.getLogger(__name__)


def make_data(
    molecules: str,
    out: Path | None,
    ps: float,
    temperature: float,
    step_fs: float,
    frame_fs: float,
    seed: int,
    method: Method,
    workers: int | None,
) -> None:
    """Make trajectories; print where they are, how long, and how their energy drifts."""
    names = [name.strip() for name in molecules.split(",")]
    if not all(names) or len(set(map(file_name, names))) < len(names):
        raise ValueError(f"molecules must be different names, SMILES or files, joined by commas, got {molecules!r}")
    if not 0 < temperature < math.inf:
        raise ValueError(f"temperature must be positive and finite, got {temperature}")
    recipe = Recipe(ps=ps, temperature_k=temperature, step_fs=step_fs, frame_fs=frame_fs, seed=seed, method=method)
    if out is not None and out.exists() and not out.is_dir():
        raise NotADirectoryError(f"out must name a folder, got the file {out}")
    folder = cache_folder(recipe) if out is None else out
    table = Table()
    for heading in ("molecule", "frames", "drift, eV per atom and ps"):
        table.add_column(heading, justify="left" if heading == "molecule" else "right")
    paths = make(names, folder, recipe, workers)
    for name, path in zip(names, paths, strict=True):
        table.add_row(name, str(recipe.frames), f"{drift(path):.2g}")
    console.print(table)
    for path in paths:
        say(f"written: {path}")


def predict(
    state: Path,
    out: Path,
    run: str,
    horizon_fs: float | None,
    steps: int | None,
    frame: int,
    temperature: float,
    seed: int,
    select: str,
) -> None:
    """Predict a molecule's future states with a run's network, and write them."""
    if out.suffix not in (".xyz", ".extxyz"):
        raise ValueError(f"out must end in .xyz or .extxyz, got {out}")
    if out.is_dir():
        raise IsADirectoryError(f"out must name a file, got the folder {out}")
    if out.resolve() == state.resolve():
        raise ValueError(f"out must not be the state's own file, got {out}")
    atoms = read_state(state, frame)
    cli = AtomCLI.of_run(run, select=select)
    data, spacing = cli.datamodule, frame_fs_of(cli.datamodule)
    steps = data.lags if steps is None else steps
    lags = lags_of(horizon_frames(data, horizon_fs, spacing, steps), steps)
    v = velocities(atoms)
    if v is None:
        v = maxwell(atoms, temperature, np.random.default_rng(seed))
        log.info("%s has no momenta: velocities are drawn at %g K with seed %d", state, temperature, seed)
    kept = atoms.numbers > 1 if data.hydrogens == "drop" else np.ones(len(atoms), dtype=bool)
    numbers = atoms.numbers[kept].astype(np.int64)
    if len(numbers) < 2:
        raise ValueError(f"{state} has {len(numbers)} atom left of those that the run keeps, expected at least 2")
    if not kept.all():
        log.info("the run knows heavy atoms only: the %d hydrogens are left out", int((~kept).sum()))
    warn_of_unknown(trained_on(data), numbers, str(state))
    warn_of_horizon(data, int(lags[-1]), steps, spacing)
    x = torch.from_numpy(atoms.positions[kept]).float()
    try:
        bonds = near_atoms(x, data.cutoff)
    except ValueError as error:
        raise ValueError(f"{state}: {error}") from error
    z, mask = torch.from_numpy(numbers), torch.ones(len(numbers), dtype=torch.bool)
    times = lags * spacing
    operator = cli.model.operator.eval()
    with torch.no_grad():
        per_frame = torch.from_numpy(v[kept] * spacing).float()
        state_of = (x, per_frame, z, times.float(), bonds, mask)
        like = operator.like
        future = operator(*(u[None].to(like) if u.is_floating_point() else u[None] for u in state_of))[0]
    write_states(future.double().numpy(), numbers, times.double().numpy(), out)
    say(f"{steps} states of {len(numbers)} atoms, up to {float(times[-1]):g} fs; written: {out}")


def evaluate(
    data: Sequence[Path],
    run: str,
    frame_fs: float | None,
    horizon_fs: float | None,
    samples: int | None,
    out: Path | None,
    select: str,
) -> None:
    """Score a run's network and the trivial predictors on trajectories, and print, draw and write the errors."""
    if not data or len({path.resolve() for path in data}) < len(data):
        raise ValueError(f"data must be different files, got {', '.join(map(str, data)) or 'none'}")
    if samples is not None and samples < 1:
        raise ValueError(f"samples must be at least 1, got {samples}")
    if out is not None and out.exists() and not out.is_dir():
        raise NotADirectoryError(f"out must name a folder, got the file {out}")
    files = {str(path): read_trajectory(path, frame_fs=frame_fs) for path in data}
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)  # before the work, in case it cannot be made
    cli = AtomCLI.of_run(run, select=select)
    of_run, spacing = cli.datamodule, frame_fs_of(cli.datamodule)
    horizon = horizon_frames(of_run, horizon_fs, spacing, of_run.lags)
    warn_of_horizon(of_run, horizon, of_run.lags, spacing)
    # Without an option the windows are those of the run's test, which leave room for its longest horizon.
    longest = max(horizon, (of_run.horizon_range or (0, 0))[1]) if horizon_fs is None else horizon
    own = {type(cli.model.operator).__name__: of_operator(cli.model.operator)}
    trained = trained_on(of_run)
    whole, held_out = {}, {}
    for file, trajectory in files.items():
        molecule = molecule_of(trajectory, longest, of_run.hydrogens, of_run.cutoff, of_run.skip)
        if not math.isclose(molecule.frame_fs, spacing, rel_tol=1e-6):
            raise ValueError(
                f"{file}: frames are {molecule.frame_fs:g} fs apart, expected {spacing:g} fs as the run was trained on"
            )
        warn_of_unknown(trained, molecule.numbers.numpy(), file, trajectory)
        count = of_run.counts[2] if samples is None else samples
        draws = generator(of_run.split_seed, "windows", "test", molecule.name)
        starts = choose(molecule.starts, count, draws)
        whole[file] = score(own | free_predictors(), windows_of(molecule, starts, horizon, of_run.lags))
        held_out[file] = score_held_out(own, molecule, horizon, of_run, count)
    tables = {"whole": whole, "held out": {file: found for file, found in held_out.items() if found}}
    titles = {
        "whole": "whole trajectory",
        "held out": "last fifth; † fitted to the first 70% of this very trajectory",
    }
    for part, found in tables.items():
        if found:
            if len(found) > 1:
                methods = next(iter(found.values()))
                found[ALL] = {name: pooled([scores[name] for scores in found.values()]) for name in methods}
            console.print(score_table(found, titles[part], REPORT.labels))
    if out is not None:
        write_scores(tables, out)
        total = list(whole.values())[-1]
        curves = {REPORT.label(name): scores.per_lag.double().numpy() for name, scores in total.items()}
        draw_lags(curves, (lags_of(horizon, of_run.lags) * spacing).double().numpy(), out / "lags.png")
        say(f"written: {', '.join(str(out / name) for name in ('scores.csv', 'scores.json', 'lags.png'))}")


def rotate_test(run: str, rotations: int, seed: int, select: str) -> None:
    """Print E_q of a run's network, and its error before and after rotating the states."""
    if rotations < 1:
        raise ValueError(f"rotations must be at least 1, got {rotations}")
    cli = AtomCLI.of_run(run, select=select)
    cli.datamodule.prepare_data()
    cli.datamodule.setup("test")
    found = rotation_test(cli.model.operator, cli.datamodule, rotations, seed)
    table = Table(title=f"{rotations} random rotations of each state", show_header=False)
    for name, value in (
        ("E_q, 10⁻² Å²", found.e_q),
        ("S2T as it is, 10⁻² Å²", found.plain),
        ("S2T rotated, 10⁻² Å²", found.rotated),
        ("ratio", found.ratio),
    ):
        table.add_row(name, f"{value:.6g}")
    console.print(table)


def frame_fs_of(data: MoleculeData) -> float:
    """Return the time between the frames that a run was trained on, fs.

    Raises:
        FileNotFoundError: if only its files could tell and they are gone.
        ValueError: if they do not tell.
    """
    if data.root is None:
        return data.recipe.frame_fs
    if data.frame_fs is not None:
        return data.frame_fs
    found = read_trajectory(find_file(data.root, data.names[0])).frame_fs
    if found is None:
        raise ValueError(f"{data.root}: the time between frames of {data.names[0]} is unknown")
    return found


def horizon_frames(data: MoleculeData, horizon_fs: float | None, spacing: float, steps: int) -> int:
    """Return the horizon in frames, that of the run's test without `horizon_fs`.

    Raises:
        ValueError: if it is no multiple of the spacing (fs), or less than a frame for each step.
    """
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    frames = float(data.horizon) if horizon_fs is None else horizon_fs / spacing
    if not math.isfinite(frames) or abs(frames - round(frames)) > 1e-6:
        raise ValueError(f"horizon_fs must be a multiple of the run's {spacing:g} fs between frames, got {horizon_fs}")
    if round(frames) < steps:
        raise ValueError(
            f"horizon_fs must be at least {steps * spacing:g}, a frame of {spacing:g} fs for each of {steps} steps, "
            f"got {frames * spacing:g}"
        )
    return round(frames)


def trained_on(data: MoleculeData) -> dict[str, Trajectory]:
    """Return the molecules that a run was trained on, with a geometry each; none, with a warning, if they are gone."""
    found = {}
    try:
        for name in data.train_names:
            if data.root is None:
                atoms = structure(name, data.recipe.seed)
                numbers = atoms.numbers.astype(np.int64)
                found[name] = Trajectory(name, atoms.positions[None], numbers, data.recipe.frame_fs, name)
            else:
                found[name] = read_trajectory(find_file(data.root, name), frame_fs=data.frame_fs)
    except (FileNotFoundError, ValueError) as error:
        log.warning("cannot tell what the run was trained on: %s", error)
        return {}
    return found


def warn_of_unknown(
    trained: Mapping[str, Trajectory], numbers: NDArray[np.int64], where: str, trajectory: Trajectory | None = None
) -> None:
    """Warn if elements or the size are new to a run, or if a trajectory is of a compound that it was trained on.

    Args:
        trained: the molecules it was trained on, with their hydrogens.
        numbers: atomic numbers that its network is given (N,).
        where: the file, for messages.
        trajectory: the file's trajectory with its hydrogens, if it is one.
    """
    if not trained:
        return
    new = set(numbers.tolist()).difference(*(t.numbers.tolist() for t in trained.values()))
    if new:
        symbols = ", ".join(chemical_symbols[z] for z in sorted(new))
        log.warning("%s has elements that the run was not trained on: %s", where, symbols)
    sizes = sorted({int((t.numbers > 1).sum()) for t in trained.values()})
    size = int((numbers > 1).sum())
    if not sizes[0] <= size <= sizes[-1]:
        known = f"{sizes[0]}" + (f" to {sizes[-1]}" if len(sizes) > 1 else "")
        log.warning("%s has %d heavy atoms; the molecules that the run was trained on have %s", where, size, known)
    if trajectory is not None:
        compound = canonical_smiles(trajectory.numbers, trajectory.positions[0])
        same = [name for name, t in trained.items() if canonical_smiles(t.numbers, t.positions[0]) == compound]
        if same:
            log.warning("%s is of a compound that the run was trained on (%s): it is not unseen", where, same[0])


def warn_of_horizon(data: MoleculeData, frames: int, steps: int, spacing: float) -> None:
    """Warn if a horizon, or a number of states, is not what a run was trained on."""
    low, high = data.horizon_range or (data.horizon, data.horizon)
    if not low <= frames <= high:
        trained = f"{low * spacing:g}" + (f" to {high * spacing:g}" if high > low else "")
        log.warning("the horizon of %g fs lies outside what the run was trained on, %s fs", frames * spacing, trained)
    if steps != data.lags:
        log.warning("%d states are asked for; the run was trained on %d", steps, data.lags)


def score_held_out(
    own: Mapping[str, Predictor], molecule: Molecule, horizon: int, data: MoleculeData, count: int
) -> dict[str, Scores]:
    """Score all predictors on a trajectory's last block, some fitted to its first; nothing where it is too short."""
    try:
        first, _, last = split_starts(molecule, "block", generator(data.split_seed, "split", molecule.name))
    except ValueError as error:
        log.warning("no predictor is fitted: %s", error)
        return {}
    known, scored = (
        choose(starts, n, generator(data.split_seed, "windows", part, molecule.name))
        for starts, n, part in ((first, data.counts[0], "train"), (last, count, "test"))
    )
    if len(known) < 2:
        log.warning("no predictor is fitted: %s has %d window to fit it to", molecule.name, len(known))
        return {}
    of_known = windows_of(molecule, known, horizon, data.lags)
    fitted = fitted_predictors(of_known.__getitems__(torch.arange(len(known))))
    return score(dict(own) | free_predictors() | fitted, windows_of(molecule, scored, horizon, data.lags))


def say(sentence: str) -> None:
    """Print a sentence, unbroken."""
    console.print(sentence, markup=False, highlight=False, soft_wrap=True)
