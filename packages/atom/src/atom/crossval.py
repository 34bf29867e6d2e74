"""Folds of a folder's molecules that share no compound and no cluster of compounds, and their configs.

Each fold is tested on in turn, and the next one is validated on (inferred). The paper's five folds are disjoint by
name only: numbered names of one compound stand on both sides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import yaml
from rich.table import Table
from shared.checkpoints import atomic_write
from shared.logs import console
from shared.records import read_yaml

from atom.app import AtomCLI
from atom.data import EVERY
from atom.files import find_file, molecules_in
from atom.molecules import canonical_smiles, cluster
from atom.molecules import folds as divide
from atom.trajectories import read_trajectory
from atom.verbs import say

LEAST = 3  # folds: to test on, to validate on, and to train on


def folds(root: Path, clusters: int, count: int, frame_fs: float | None, out: Path | None, base: str) -> None:
    """Print each fold's test molecules and the names of one compound; write a config of each fold to `out`.

    Raises:
        FileNotFoundError: if the folder or the base config is missing.
        ValueError: if a file is not a trajectory, or an option is out of range.
    """
    if count < LEAST:
        raise ValueError(f"count must be at least {LEAST}, folds to test, validate and train on, got {count}")
    if out is not None and out.exists() and not out.is_dir():
        raise NotADirectoryError(f"out must name a folder, got the file {out}")
    settings = read_yaml(AtomCLI.config_path(base))
    smiles: dict[str, str] = {}
    for name in molecules_in(root):
        trajectory = read_trajectory(find_file(root, name), frame_fs=frame_fs)
        if out is not None and trajectory.frame_fs is None:
            raise ValueError(f"{trajectory.source}: the time between frames is unknown; give --frame_fs")
        smiles[name] = canonical_smiles(trajectory.numbers, trajectory.positions[0])
    tests = divide(list(smiles), cluster(list(smiles.values()), clusters), count)
    table = Table(title=f"{len(smiles)} molecules in {clusters} clusters")
    table.add_column("fold", justify="right")
    table.add_column("test molecules")
    for number, test in enumerate(tests, start=1):
        table.add_row(str(number), ", ".join(test))
    console.print(table)
    for one, other in twins(smiles):
        say(f"one compound: {one} and {other}")
    if out is None:
        return
    out.mkdir(parents=True, exist_ok=True)
    for number, test in enumerate(tests, start=1):
        text = fold_config(settings, root, test, tests[number % count], frame_fs)
        path = out / f"fold{number}.yaml"
        with atomic_write(path) as file:
            file.write(
                f"# Fold {number} of {count} of {root}, {clusters} clusters; settings of {base}.\n{text}".encode()
            )
        say(f"written: {path}")


def twins(smiles: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the pairs of names that are one compound, in the order of the mapping.

    Args:
        smiles: name -> canonical SMILES.
    """
    return [(one, other) for one, other in combinations(smiles, 2) if smiles[one] == smiles[other]]


def fold_config(
    settings: Mapping[str, Any], root: Path, test: Sequence[str], val: Sequence[str], frame_fs: float | None
) -> str:
    """Return the YAML of one fold.

    Args:
        settings: of the base config; its molecules and folder are replaced.
        root: folder of the trajectories.
        test: molecules to test on.
        val: molecules to validate on; all others are trained on.
        frame_fs: time between frames, fs, where the files do not tell.
    """
    kept = {key: value for key, value in settings.get("data", {}).items() if key != "frame_fs"}
    data = kept | {"root": str(root), "train": [EVERY], "val": list(val), "test": list(test)}
    if frame_fs is not None:
        data["frame_fs"] = frame_fs
    return yaml.safe_dump({**settings, "data": data}, sort_keys=False, allow_unicode=True)
