"""Trajectories of molecules and the files in which they are published (Sec. 3.1).

The format is recognised by a file's content, never by its suffix, and no reader runs code from a file:

    MD17, MD22       npz with `R` (F, N, 3) Å and `z` (N,); `E` (F,) or (F, 1) and `F` (F, N, 3) are checked, not kept
    ours             md_NAME.npz: the keys of MD17, and `frame_fs` ()
    rMD17            npz with `coords`, `nuclear_charges` and `old_indices` (F,), the places in the MD17 run
    TG80             npz with `coords` and `nuclear_charges`
    ASE              .xyz, .extxyz (MD22 is also published so) and .traj

F frames, N atoms. A trajectory bears the name of its file, without the data set's prefix: md17_uracil.npz is
`uracil`. So names are unique in a folder, which the `name` inside the archives is not.
"""

from __future__ import annotations

import logging
import math
import os
import re
import zipfile
import zlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

Order = Literal["original", "file"]

MD17_FRAME_FS = 0.5  # the spacing of MD17, of which rMD17's `old_indices` are multiples

KNOWN_NAMES = {  # data set -> the NAMEs of its files DATASET_NAME.npz
    "md17": ("aspirin", "benzene2017", "ethanol", "malonaldehyde", "naphthalene", "salicylic", "toluene", "uracil"),
    "rmd17": (
        *("aspirin", "azobenzene", "benzene", "ethanol", "malonaldehyde"),
        *("naphthalene", "paracetamol", "salicylic", "toluene", "uracil"),
    ),
    "md22": (
        *("Ac-Ala3-NHMe", "DHA", "stachyose", "AT-AT", "AT-AT-CG-CG", "buckyball-catcher"),
        "double-walled_nanotube",
    ),
    "tg80": (  # the test and the validation molecules of fold 1
        *("2-butanone", "cyclopropane", "propylene", "uracil", "benzene2", "cyclohexane", "biphenyl"),
        *("1.3-cyclohexadiene", "benzylamine", "nitrobenzene", "uracil1", "1.3-butadiene", "trimethylamine"),
        *("acetonitrile", "naphthalene", "coumarin"),
    ),
}

log = logging.getLogger(__name__)

_POSITIONS = {"R": "z", "coords": "nuclear_charges"}  # key of the positions -> key of the atomic numbers
_PER_FRAME = ("E", "energies", "old_energies", "old_indices")
_FORCES = ("F", "forces", "old_forces")
_LOADED = {*_POSITIONS, *_POSITIONS.values(), "old_indices", "frame_fs"}
_DAMAGE = (zipfile.BadZipFile, zlib.error, OSError, EOFError, KeyError, ValueError, NotImplementedError)


@dataclass(frozen=True, eq=False)
class Trajectory:
    """One molecule over time.

    Args:
        name: what the molecule is called in splits, tables and messages.
        positions: (F, N, 3) float, Å, finite.
        numbers: atomic numbers (N,), integers from 1 to 118.
        frame_fs: time from one frame to the next, fs; None if unknown.
        source: the file or the method that it comes from, for messages.
        breaks: frames f, increasing, for which the step from f to f + 1 does not take `frame_fs`: there
            x[f+1] - x[f] is no velocity.

    Raises:
        ValueError: if an argument is not as described; the message names the source and the first bad frame.
    """

    name: str
    positions: NDArray[np.floating[Any]]
    numbers: NDArray[np.int64]
    frame_fs: float | None
    source: str
    breaks: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    def __post_init__(self) -> None:
        shape = self.positions.shape
        if self.positions.dtype.kind != "f" or len(shape) != 3 or shape[2] != 3 or 0 in shape:
            kind = f"{self.positions.dtype} {shape}"
            raise ValueError(f"{self.source}: positions must be floats of shape (frames, atoms, 3), got {kind}")
        if self.numbers.shape != shape[1:2]:
            raise ValueError(
                f"{self.source}: expected one atomic number for each of the {shape[1]} atoms, "
                f"got an array of shape {self.numbers.shape}"
            )
        wrong = np.flatnonzero((self.numbers < 1) | (self.numbers > 118))
        if len(wrong):
            raise ValueError(
                f"{self.source}: atomic numbers must lie in 1..118, "
                f"got {int(self.numbers[wrong[0]])} for atom {int(wrong[0])}"
            )
        bad = np.flatnonzero(~np.isfinite(self.positions).all(axis=(1, 2)))
        if len(bad):
            raise ValueError(
                f"{self.source}: frame {int(bad[0])} holds a position that is not finite "
                f"({len(bad)} of {shape[0]} frames do)"
            )
        if self.frame_fs is not None and not 0 < self.frame_fs < float("inf"):
            raise ValueError(f"{self.source}: frame_fs must be a positive number of femtoseconds, got {self.frame_fs}")

    def __len__(self) -> int:
        """Return the number of frames F."""
        return len(self.positions)

    def starts(self, horizon: int) -> NDArray[np.int64]:
        """Return the frames from which a window of evenly spaced frames begins.

        Args:
            horizon: ΔT >= 1, frames.

        Returns:
            Every t, increasing, for which frames t, ..., t + ΔT exist and no step between them is a break; so
            v[t] = x[t+1] - x[t] is a velocity too. Empty if the trajectory has no such window.

        Raises:
            ValueError: if the horizon is below 1.
        """
        if horizon < 1:
            raise ValueError(f"horizon must be at least 1 frame, got {horizon}")
        earlier = np.zeros(len(self), np.int64)
        earlier[self.breaks + 1] = 1
        earlier = earlier.cumsum()  # breaks before each frame
        first = np.arange(max(len(self) - horizon, 0))
        return first[earlier[first + horizon] == earlier[first]]

    def heavy(self) -> Trajectory:
        """Return the trajectory without its hydrogens, as in every experiment of the paper (Sec. 3.2).

        Raises:
            ValueError: if nothing else remains.
        """
        kept = self.numbers != 1
        if not kept.any():
            raise ValueError(f"{self.source}: {self.name} has no atom but hydrogen, expected a heavy one")
        return replace(self, positions=self.positions[:, kept], numbers=self.numbers[kept])


def read_trajectory(path: str | Path, *, frame_fs: float | None = None, order: Order = "original") -> Trajectory:
    """Read one molecule's trajectory from any of the formats above.

    Args:
        path: the file.
        frame_fs: time from one frame to the next, fs, for a file that does not tell. Without it, it is
            `frame_fs` of our files, 0.5 fs for md17_NAME.npz and NAME_dft.npz, 0.5 fs times the usual spacing of
            `old_indices` for rMD17, and otherwise unknown.
        order: `original` sorts a file that has `old_indices` by them, which alone makes frame differences velocities;
            `file` leaves its frames as stored, which is not their order in time, so that `frame_fs` is unknown.

    Returns:
        The trajectory, float32 if stored so or shorter, else float64. Where the spacing of `old_indices` differs from
        the usual one, its `breaks` say so, and a warning how many there are.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file is none of these formats, is damaged, tells another spacing than `frame_fs`, or holds
            arrays that do not fit each other.
    """
    path = Path(path)
    if order not in get_args(Order):
        raise ValueError(f"order must be one of {', '.join(get_args(Order))}, got {order!r}")
    if frame_fs is not None and not 0 < frame_fs < float("inf"):
        raise ValueError(f"frame_fs must be a positive number of femtoseconds, got {frame_fs}")
    if path.is_dir():
        raise ValueError(f"{path} is a folder, expected the file of one trajectory")
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing, expected the file of one trajectory")
    with path.open("rb") as file:
        head = file.read(256)
    if not head:
        raise ValueError(f"{path} is empty, expected a trajectory")
    if head.startswith(b"PK"):
        trajectory = _read_npz(path, order)
    elif head.startswith(b"- of Ulm"):
        trajectory = _read_ase(path, "traj")
    elif head.split(b"\n", 1)[0].strip().isdigit():
        trajectory = _read_ase(path, "extxyz")
    else:
        raise ValueError(f"{path} is neither an npz archive nor an .xyz, .extxyz or ASE .traj file")
    if frame_fs is None:
        return trajectory
    if trajectory.frame_fs is not None and not math.isclose(trajectory.frame_fs, frame_fs, rel_tol=1e-6):
        raise ValueError(f"{path}: its frames are {trajectory.frame_fs:g} fs apart, but frame_fs is {frame_fs:g}")
    return replace(trajectory, frame_fs=float(frame_fs))


def write_npz(trajectory: Trajectory, path: str | Path, **extra: ArrayLike) -> None:
    """Write a trajectory with the keys of MD17 and `frame_fs`; the file appears whole or not at all.

    Args:
        trajectory: its positions keep their precision.
        path: where to; missing folders are made, an existing file is replaced.
        **extra: further entries, such as `method` and `seed`.

    Raises:
        ValueError: if the path is a folder, an extra entry is a key of its own or would have to be pickled, or the
            trajectory has breaks, for which MD17 has no key.
    """
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"{path} is a folder, expected the name of a file to write")
    if len(trajectory.breaks):
        raise ValueError(f"{trajectory.source}: MD17 has no key for {len(trajectory.breaks)} breaks")
    entries = {"R": trajectory.positions, "z": trajectory.numbers, "name": np.asarray(trajectory.name)}
    if trajectory.frame_fs is not None:
        entries["frame_fs"] = np.asarray(trajectory.frame_fs)
    for key, value in extra.items():
        array = np.asarray(value)
        if key in {*entries, "frame_fs"} or array.dtype.hasobject:
            reason = "holds Python objects" if array.dtype.hasobject else "is a key of the trajectory itself"
            raise ValueError(f"{path}: entry {key!r} {reason}, expected further plain arrays")
        entries[key] = array
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with unfinished.open("wb") as file:
            np.savez(file, **entries)  # type: ignore[arg-type]  # the stubs take `entries` for allow_pickle
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _name(path: Path) -> str:
    return re.sub(r"^(md17|rmd17|md22|tg80|md)_(?=.)", "", path.stem)


def _read_npz(path: Path, order: Order) -> Trajectory:
    arrays, shapes = _plain_arrays(path)
    key = next((key for key, numbers in _POSITIONS.items() if {key, numbers} <= arrays.keys()), None)
    if key is None:
        raise ValueError(
            f"{path} holds the keys {sorted(shapes)}, expected R and z (MD17, MD22) "
            "or coords and nuclear_charges (rMD17, TG80)"
        )
    positions, numbers = arrays[key], _whole(arrays[_POSITIONS[key]], _POSITIONS[key], path)
    for other, shape in shapes.items():
        expected = positions.shape if other in _FORCES else positions.shape[:1]
        if other in (*_PER_FRAME, *_FORCES) and shape[: len(expected)] != expected:
            raise ValueError(f"{path}: {other} has shape {shape} but {key} has {positions.shape}, expected as many")
    single = positions.dtype.kind == "f" and positions.dtype.itemsize <= 4
    if positions.dtype.kind in "iuf":
        positions = positions.astype(np.float32 if single else np.float64, copy=False)
    trajectory = Trajectory(_name(path), positions, numbers, _frame_fs(path, arrays), str(path))
    if "old_indices" in arrays:
        return _in_time_order(trajectory, _whole(arrays["old_indices"], "old_indices", path), order)
    return trajectory


def _plain_arrays(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, tuple[int, ...]]]:
    """Load the arrays that are used, and of the others (forces can be larger than all else) only the shapes."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            shapes: dict[str, tuple[int, ...]] = dict.fromkeys(archive.files, ())
            pickled = []
            for key in {*_LOADED, *_PER_FRAME, *_FORCES} & shapes.keys():
                with archive.zip.open(f"{key}.npy") as file:
                    first = np.lib.format.read_magic(file) == (1, 0)
                    header = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
                    shapes[key], _, dtype = header(file)
                    pickled += [key] if dtype.hasobject else []
            arrays = {key: archive[key] for key in _LOADED & shapes.keys()} if not pickled else {}
    except _DAMAGE as error:
        raise ValueError(f"{path} cannot be read as an npz archive: {error}") from error
    if pickled:
        raise ValueError(f"{path}: {sorted(pickled)} hold pickled Python objects, which are never loaded")
    return arrays, shapes


def _whole(values: NDArray[Any], key: str, path: Path) -> NDArray[np.int64]:
    """Return values (n,), integers of whichever type, as int64."""
    if values.dtype.kind not in "iuf" or values.ndim != 1 or not (np.isfinite(values) & (values % 1 == 0)).all():
        raise ValueError(f"{path}: {key} must be a list of integers, got {values.dtype} of shape {values.shape}")
    return values.astype(np.int64)


def _frame_fs(path: Path, arrays: dict[str, NDArray[Any]]) -> float | None:
    if "frame_fs" in arrays:
        stored = arrays["frame_fs"]
        if stored.dtype.kind not in "iuf" or stored.size != 1:
            raise ValueError(f"{path}: frame_fs must be one number, got {stored.dtype} of shape {stored.shape}")
        return float(stored.item())
    # Other archives with MD17's keys need not be spaced so: MD22 is not, the CCSD(T) sets are no trajectories.
    published = "R" in arrays and re.fullmatch("md17_.+|.+_dft", path.stem)
    return MD17_FRAME_FS if published else None


def _in_time_order(trajectory: Trajectory, indices: NDArray[np.int64], order: Order) -> Trajectory:
    """Sort the frames of an rMD17 file by their places `indices` (F,) in the MD17 run, and look at their spacing."""
    if order == "file" and (np.diff(indices) <= 0).any():
        log.warning(
            "%s: the frames stay in file order, which is not that of time: frame differences are no velocities",
            trajectory.source,
        )
        return replace(trajectory, frame_fs=None)
    by_time = np.argsort(indices, kind="stable")
    gaps = np.diff(indices[by_time])
    spacings, counts = np.unique(gaps[gaps > 0], return_counts=True)
    if not len(spacings):
        return replace(trajectory, frame_fs=None, breaks=np.arange(len(gaps)))
    usual = int(spacings[counts.argmax()])
    breaks = np.flatnonzero(gaps != usual)
    if len(breaks):
        log.warning(
            "%s: %d of %d steps are not the usual %d frames of the MD17 run apart: "
            "frame differences there are no velocities, and windows must not cross them",
            *(trajectory.source, len(breaks), len(gaps), usual),
        )
    frame_fs = trajectory.frame_fs or usual * MD17_FRAME_FS
    return replace(trajectory, positions=trajectory.positions[by_time], frame_fs=frame_fs, breaks=breaks)


def _read_ase(path: Path, kind: Literal["extxyz", "traj"]) -> Trajectory:
    import ase.io

    try:
        frames = list(ase.io.iread(path, index=":", format=kind, do_not_split_by_at_sign=True))
    except Exception as error:  # whatever a damaged file makes the parser raise
        raise ValueError(f"{path} cannot be read by ASE as {kind}: {type(error).__name__}: {error}") from error
    if not frames:
        raise ValueError(f"{path} holds no frame, expected a trajectory")
    symbols = [str(atoms.symbols) for atoms in frames]
    other = next((number for number, found in enumerate(symbols) if found != symbols[0]), None)
    if other is not None:
        raise ValueError(f"{path}: frame {other} has atoms {symbols[other]} but frame 0 has {symbols[0]}")
    positions = np.stack([atoms.positions for atoms in frames])
    return Trajectory(_name(path), positions, frames[0].numbers.astype(np.int64), None, str(path))
