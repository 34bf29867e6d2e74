"""The command `atom`. What it needs is imported when it runs, so that every `--help` answers at once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from shared.cli import Paper
from shared.cli import main as run


def make_data(
    molecules: str,
    out: Path | None = None,
    ps: float = 5.0,
    temperature: float = 600.0,
    step_fs: float = 0.5,
    frame_fs: float = 1.0,
    seed: int = 0,
    method: Literal["gfn2", "gfn1", "pbe"] = "gfn2",
    workers: int | None = None,
) -> None:
    """Make trajectories of molecules in vacuum at constant energy; what is there already is kept.

    Args:
        molecules: ASE's names such as CH3CH2OH, SMILES, or structure files, joined by commas.
        out: folder of the files md_NAME.npz; that of the user's cache which `train` looks in when null.
        ps: length of each, picoseconds.
        temperature: of the initial momenta, kelvin; about half remains once the bonds have taken theirs.
        step_fs: step of the integrator, fs.
        frame_fs: time between two frames, fs; a multiple of the step.
        seed: of the initial momenta.
        method: of the forces: GFN2-xTB, GFN1-xTB, or PBE/def2-SVP, which needs pyscf and takes a hundred times longer.
        workers: processes at a time; as many as cores when null.
    """
    from atom.verbs import make_data

    make_data(molecules, out, ps, temperature, step_fs, frame_fs, seed, method, workers)


def predict(
    state: Path,
    out: Path = Path("traj.xyz"),
    run: str = "last",
    horizon_fs: float | None = None,
    steps: int | None = None,
    frame: int = -1,
    temperature: float = 300.0,
    seed: int = 0,
    select: str = "last",
) -> None:
    """Predict the future of one molecule's state in one forward pass, and write it as extended xyz.

    Where the run was trained on heavy atoms only, hydrogens are left out of the answer.

    Args:
        state: .xyz, .extxyz or ASE .traj. Velocities are taken from ASE's column `momenta`, and drawn without it.
            They are those of an instant; the differences of frames of the training agree to first order.
        out: the file to write, .xyz or .extxyz; each state has its `time_fs`.
        run: a run folder, or `last`.
        horizon_fs: time from the state to the last prediction, fs; that of the run's test when null.
        steps: number of states, evenly spaced up to the horizon; as many as the run was trained on when null.
        frame: which frame of the file, from 0; -1 is the last.
        temperature: of velocities that are drawn, kelvin.
        seed: of velocities that are drawn.
        select: which checkpoint: last, best, or a file.
    """
    from atom.verbs import predict

    predict(state, out, run, horizon_fs, steps, frame, temperature, seed, select)


def evaluate(
    data: str,
    run: str = "last",
    frame_fs: float | None = None,
    horizon_fs: float | None = None,
    samples: int | None = None,
    out: Path | None = None,
    select: str = "last",
) -> None:
    """Score a run's network on trajectories of your own, beside predictors that need no network.

    Args:
        data: trajectories (MD17, rMD17, MD22, TG80, .xyz, .extxyz or .traj), joined by commas.
        run: a run folder, or `last`.
        frame_fs: time between frames, fs, where the files do not tell.
        horizon_fs: time from a state to the last prediction, fs; that of the run's test when null.
        samples: windows of each trajectory; as many as in the run's test when null.
        out: folder for scores.csv, scores.json and lags.png; nothing is written when null.
        select: which checkpoint: last, best, or a file.
    """
    from atom.verbs import evaluate

    paths = [Path(word.strip()) for word in data.split(",") if word.strip()]
    evaluate(paths, run, frame_fs, horizon_fs, samples, out, select)


def rotate_test(run: str = "last", rotations: int = 8, seed: int = 0, select: str = "last") -> None:
    """Measure what rotating the test states does to a run's network: E_q and the ratio of errors.

    Args:
        run: a run folder, or `last`.
        rotations: random rotations of each state.
        seed: of the rotations.
        select: which checkpoint: last, best, or a file.
    """
    from atom.verbs import rotate_test

    rotate_test(run, rotations, seed, select)


def folds(
    root: Path,
    clusters: int = 10,
    count: int = 5,
    frame_fs: float | None = None,
    out: Path | None = None,
    base: str = "tg80_fold1",
) -> None:
    """Divide a folder's molecules into folds that share no compound, and write a config for each.

    Args:
        root: folder of trajectories, one molecule each.
        clusters: of alike molecules; a cluster lies in one fold.
        count: number of folds, 3 or more: each is tested on in turn, and the next one validated on.
        frame_fs: time between frames, fs, where the files do not tell.
        out: folder for fold1.yaml and so on, for `train --config`; nothing is written when null.
        base: config, or its file, whose other settings the folds take over.
    """
    from atom.crossval import folds

    folds(root, clusters, count, frame_fs, out, base)


PAPER = Paper(
    name="atom",
    title="ATOM: a molecule's future in one forward pass",
    cli="atom.app:AtomCLI",
    verbs={
        "make-data": make_data,
        "predict": predict,
        "evaluate": evaluate,
        "rotate-test": rotate_test,
        "folds": folds,
    },
    study="atom.comparison:study",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return run(PAPER, argv)
