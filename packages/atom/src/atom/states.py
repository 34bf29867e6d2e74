"""A molecule's state for `predict`: read from a file, with velocities of its own or drawn, and the answer as a file."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from ase import Atoms, units
from ase.io import iread, write
from ase.md.velocitydistribution import Stationary, ZeroRotation
from numpy.typing import NDArray
from shared.records import one_line, write_text

Array = NDArray[np.float64]


def read_state(path: Path, frame: int = -1) -> Atoms:
    """Read one frame of an .xyz, .extxyz or ASE .traj file, with ASE's momenta where it has them.

    Args:
        path: the file; its content tells the format.
        frame: which, from 0, or from the end if negative.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it cannot be read, lacks the frame, or holds a number that is not finite.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}, expected a molecule's state")
    with path.open("rb") as file:
        head = file.read(256)
    if not head.strip():
        raise ValueError(f"{path} is empty, expected a molecule's state")
    if not head.startswith(b"- of Ulm") and not head.split(b"\n", 1)[0].strip().isdigit():
        raise ValueError(f"{path} is no .xyz, .extxyz or ASE .traj file, expected a molecule's state in one of them")
    kind = "traj" if head.startswith(b"- of Ulm") else "extxyz"
    try:
        frames = list(iread(path, index=":", format=kind, do_not_split_by_at_sign=True))
    except Exception as error:  # whatever a damaged file makes the parser raise
        raise ValueError(f"{path} cannot be read by ASE as {kind}: {one_line(error)}") from error
    if not -len(frames) <= frame < len(frames):
        raise ValueError(f"frame must lie in [{-len(frames)}, {len(frames) - 1}] for {path}, got {frame}")
    atoms = frames[frame]
    if not len(atoms):
        raise ValueError(f"{path}: frame {frame} has no atoms")
    if (atoms.numbers < 1).any():
        raise ValueError(f"{path}: atom {int((atoms.numbers < 1).argmax())} of frame {frame} is of no known element")
    for name in ("positions", "momenta"):
        if name in atoms.arrays and not np.isfinite(atoms.arrays[name]).all():
            raise ValueError(f"{path}: frame {frame} has {name} that are not finite")
    foreign = sorted({"vel", "velo", "velocities", "velocity"} & atoms.arrays.keys())
    if foreign:
        raise ValueError(f"{path}: the unit of its column {foreign[0]} is unknown, expected ASE's column momenta")
    return atoms


def velocities(atoms: Atoms) -> Array | None:
    """Return the velocities (N, 3) of a state, Å/fs; None where it has no momenta."""
    return per_fs(atoms) if "momenta" in atoms.arrays else None


def per_fs(atoms: Atoms) -> Array:
    """Return momenta over masses (N, 3), Å/fs."""
    return np.asarray(atoms.arrays["momenta"] / atoms.get_masses()[:, None] * units.fs)


def maxwell(atoms: Atoms, temperature: float, rng: np.random.Generator) -> Array:
    """Draw velocities from the Maxwell-Boltzmann distribution, then stop the molecule's drift and rotation.

    Args:
        atoms: all N atoms, hydrogens too.
        temperature: kelvin, at least 0.
        rng: of the draws.

    Returns:
        (N, 3), Å/fs.

    Raises:
        ValueError: if the temperature is out of range.
    """
    if not 0 <= temperature < float("inf"):
        raise ValueError(f"temperature must be a finite number of kelvin, at least 0, got {temperature}")
    moving = Atoms(atoms.numbers, positions=atoms.positions, masses=atoms.get_masses())
    spread = np.sqrt(moving.get_masses() * units.kB * temperature)[:, None]
    moving.arrays["momenta"] = spread * rng.standard_normal((len(moving), 3))
    with np.errstate(invalid="ignore"):  # of a linear molecule, a moment of inertia is zero
        ZeroRotation(moving, preserve_temperature=False)
    Stationary(moving, preserve_temperature=False)
    return per_fs(moving)


def write_states(positions: Array, numbers: NDArray[np.int64], times_fs: Array, path: Path) -> None:
    """Write states as extended xyz, each with `time_fs`; the file appears whole or not at all.

    Args:
        positions: (P, N, 3), Å.
        numbers: atomic numbers (N,).
        times_fs: (P,), fs after the initial state.
        path: where to.

    Raises:
        ValueError: if a position is not finite.
        OSError: if the file cannot be written.
    """
    if not np.isfinite(positions).all():
        raise ValueError("the network predicts positions that are not finite, so nothing is written")
    frames = [
        Atoms(numbers, positions=x, info={"time_fs": float(time)}) for x, time in zip(positions, times_fs, strict=True)
    ]
    text = io.StringIO()
    write(text, frames, format="extxyz")
    write_text(path, text.getvalue())
