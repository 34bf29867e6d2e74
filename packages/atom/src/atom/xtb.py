"""One molecule's trajectory at constant energy, in a process that never imports torch: the worker of `simulate`.

    OMP_NUM_THREADS=1 python -m atom.xtb CH3CH2OH md_CH3CH2OH.npz '{"ps": 1}'

Relaxed geometry, Maxwell-Boltzmann momenta without translation and rotation, velocity Verlet (Sec. 7 of the
package's specification). The run goes chunk by chunk: each is a function of the positions and momenta that it starts
from and of nothing else, so that a run that is killed and goes on ends in the same bits as one that was not.
It reports on stdout, a JSON object a line: `frame` and `of`, `info`, `warning`, or `error`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms, units
from ase.calculators.calculator import CalculationFailed, Calculator, CalculatorError
from ase.md.velocitydistribution import Stationary, ZeroRotation
from ase.md.verlet import VelocityVerlet
from ase.optimize import BFGS
from numpy.typing import NDArray

from atom.recipe import Method, Recipe
from atom.structures import file_name, fragments, resolve, structure

# mypy: disable-error-code="no-untyped-call"
# ASE is annotated in part only.

FORCE_TOLERANCE = 0.02  # eV/Å, of the relaxed geometry
RELAX_STEPS = 1000
HALVINGS = 2  # of the step, where the electronic structure does not converge
DRIFTING = 1e-2  # eV per atom
UNITS = "R: Å, E and K: eV, F: eV/Å, drift: eV per atom and ps"
LABEL = {"gfn2": "GFN2-xTB", "gfn1": "GFN1-xTB", "pbe": "PBE/def2-SVP"}
HEAVIEST = {"gfn2": 86, "gfn1": 86, "pbe": 36}  # beyond krypton def2-SVP needs effective core potentials

Report = Callable[..., None]
MakeCalculator = Callable[[Method], Calculator]


class StepFailed(CalculatorError):
    """Energy or forces of a step could not be had; `frame` counts from the chunk's first."""

    def __init__(self, frame: int, reason: str) -> None:
        super().__init__(reason)
        self.frame = frame


def calculator(method: Method) -> Calculator:
    """Make a calculator that has seen no geometry yet.

    Raises:
        ValueError: if pyscf is missing for `pbe`.
    """
    if method == "pbe":
        if find_spec("pyscf") is None:
            raise ValueError("method pbe needs the package pyscf, which is not installed: install it, or use gfn2")
        from atom.pbe import PBE

        return PBE()
    from atom.tblite_forces import TBLiteForces

    return TBLiteForces(method=LABEL[method], verbosity=0)


def start(molecule: str, recipe: Recipe, make_calculator: MakeCalculator = calculator) -> Atoms:
    """Relax a molecule and give it momenta without translation or rotation.

    Returns:
        The atoms at the first step, centre of mass at the origin.

    Raises:
        ValueError: if an element is beyond the method's range, or the geometry does not relax.
    """
    atoms = structure(molecule, recipe.seed)
    heavy = atoms.numbers[(atoms.numbers > HEAVIEST[recipe.method]) | (atoms.numbers < 1)]
    if len(heavy):
        raise ValueError(
            f"{molecule} has an atom with Z = {heavy[0]}, "
            f"but method {recipe.method} covers Z = 1 to {HEAVIEST[recipe.method]}"
        )
    atoms.calc = make_calculator(recipe.method)
    try:
        converged = BFGS(atoms, logfile=None).run(fmax=FORCE_TOLERANCE, steps=RELAX_STEPS)
    except (CalculatorError, RuntimeError, np.linalg.LinAlgError) as error:
        raise ValueError(
            f"{molecule} cannot be relaxed with {recipe.method} ({error}): give a better geometry"
        ) from error
    if not converged:
        raise ValueError(
            f"{molecule} is not relaxed to {FORCE_TOLERANCE} eV/Å after {RELAX_STEPS} steps: give a better geometry"
        )
    atoms.positions -= atoms.get_center_of_mass()
    spread = np.sqrt(atoms.get_masses() * units.kB * recipe.temperature_k)[:, None]
    rng = np.random.default_rng([recipe.seed, zlib.crc32(file_name(molecule).encode())])  # molecules draw apart
    atoms.set_momenta(spread * rng.standard_normal((len(atoms), 3)))
    # Keeping the temperature would heat what is left: six of the 3N coordinates are gone.
    with np.errstate(invalid="ignore"):  # of a linear molecule, a moment of inertia is zero
        ZeroRotation(atoms, preserve_temperature=False)
    Stationary(atoms, preserve_temperature=False)
    return atoms


def integrate(atoms: Atoms, frames: int, steps: int, step_fs: float) -> dict[str, NDArray[np.float64]]:
    """Run velocity Verlet from a state.

    Args:
        atoms: the state, with a calculator; left at the end of the last frame.
        frames: frames to record, F; the first is the state itself, and the run goes one frame beyond the last.
        steps: steps between two frames.
        step_fs: their length, fs.

    Returns:
        `R` (F, N, 3) Å, `E` (F,) eV, `F` (F, N, 3) eV/Å and the kinetic energy `K` (F,) eV.

    Raises:
        StepFailed: if energy or forces do not converge or are not finite.
    """
    dynamics = VelocityVerlet(atoms, timestep=step_fs * units.fs)
    rows: list[tuple[Any, ...]] = []
    try:
        for _ in range(frames):
            row = (atoms.positions.copy(), atoms.get_potential_energy(), atoms.get_forces(), atoms.get_kinetic_energy())
            if not all(np.isfinite(value).all() for value in row):
                raise CalculationFailed("energy or forces are not finite")
            rows.append(row)
            dynamics.run(steps)
        if not np.isfinite(atoms.positions).all():
            raise CalculationFailed("positions are not finite")
    except (CalculatorError, RuntimeError) as error:
        raise StepFailed(max(len(rows) - 1, 0), " ".join(str(error).split())) from error
    return {key: np.array(values) for key, values in zip("REFK", zip(*rows, strict=True), strict=True)}


def chunk(
    atoms: Atoms, frames: int, recipe: Recipe, make_calculator: MakeCalculator, report: Report
) -> tuple[dict[str, NDArray[np.float64]], Atoms, int]:
    """Run one chunk, with half the step where the electronic structure fails, at most twice.

    Returns:
        What `integrate` recorded, the state at the end, and how often the step was halved.

    Raises:
        StepFailed: if it fails at the smallest step too.
    """
    for halvings in range(HALVINGS + 1):
        state = atoms.copy()
        state.calc = make_calculator(recipe.method)  # knows no density of the chunk before
        step_fs = recipe.step_fs / 2**halvings
        try:
            recorded = integrate(state, frames, recipe.steps_per_frame * 2**halvings, step_fs)
        except StepFailed as error:
            if halvings == HALVINGS:
                raise
            report(info=f"step of {step_fs} fs failed ({error}): trying half of it")
        else:
            return recorded, state, halvings
    raise AssertionError("unreachable")


def run(
    molecule: str,
    path: Path,
    recipe: Recipe,
    make_calculator: MakeCalculator = calculator,
    report: Report = lambda **_: None,
) -> None:
    """Make a molecule's trajectory and write it; go on from `PATH.part.npz` if an earlier run left one.

    Args:
        molecule: a name, a SMILES or a structure file.
        path: the file to write, with MD17's keys `R`, `z`, `E`, `F`; units are in its key `units`.
        recipe: the settings.
        make_calculator: makes a fresh calculator of a method.
        report: called with `frame` and `of`, `info` or `warning`.

    Raises:
        ValueError: if the molecule is unknown or cannot be run.
        FileNotFoundError: if a structure file is not there.
    """
    # The name holds a hash of the geometry, so that a part made from another structure file does not fit.
    settings = json.dumps(asdict(recipe) | {"molecule": file_name(molecule)}, sort_keys=True)
    part = path.with_name(f"{path.name}.part.npz")
    done = _read_part(part, settings, report)
    if done is None:
        atoms = start(molecule, recipe, make_calculator)
        done = {"z": atoms.numbers.astype(np.int64), "frame": np.array(-recipe.discarded), "halved": np.array(0)}
        done |= {"charges": atoms.get_initial_charges(), "magmoms": atoms.get_initial_magnetic_moments()}
        done |= {"positions": atoms.positions, "momenta": atoms.get_momenta(), "settings": np.array(settings)}
    frame, total = int(done["frame"]), recipe.discarded + recipe.frames
    report(frame=frame + recipe.discarded, of=total)
    began, first = time.perf_counter(), frame
    while frame < recipe.frames:
        # The discarded frames are chunks of their own: the frames kept then start at a chunk's first.
        stop = min(frame + recipe.chunk_frames, 0 if frame < 0 else recipe.frames)
        atoms = Atoms(done["z"], done["positions"], charges=done["charges"], magmoms=done["magmoms"])
        atoms.set_momenta(done["momenta"])
        try:
            recorded, atoms, halvings = chunk(atoms, stop - frame, recipe, make_calculator, report)
        except StepFailed as error:
            raise ValueError(
                f"{molecule}: {recipe.method} failed at frame {frame + error.frame} even with a step of "
                f"{recipe.step_fs / 2**HALVINGS} fs ({error}): "
                "try a lower temperature_k, a smaller step_fs or another seed"
            ) from error
        if frame >= 0:
            done |= {key: np.concatenate([done[key], new]) if frame else new for key, new in recorded.items()}
        frame = stop
        done |= {"frame": np.array(frame), "halved": done["halved"] + (halvings > 0)}
        done |= {"positions": atoms.positions, "momenta": atoms.get_momenta()}
        _write(part, done)
        report(frame=frame + recipe.discarded, of=total)
    final = _finished(molecule, done, recipe, report)
    _write(path, final)
    speed = (frame - first) * recipe.steps_per_frame / max(time.perf_counter() - began, 1e-9)
    report(info=f"{frame} frames at {speed:.0f} steps/s, energy drift {final['drift']:.1e} eV per atom and ps")
    part.unlink(missing_ok=True)


def _finished(molecule: str, done: dict[str, Any], recipe: Recipe, report: Report) -> dict[str, Any]:
    """Return the arrays of the final file, and warn where the run is not to be trusted."""
    kind, text = resolve(molecule)
    per_atom = (done["E"] + done["K"]) / len(done["z"])
    times_ps = np.arange(recipe.frames) * recipe.frame_fs / 1000
    wander = float(np.abs(per_atom - per_atom[0]).max())
    if wander > DRIFTING:
        report(warning=f"the total energy moves by {wander:.2g} eV per atom: use a smaller step_fs")
    if fragments(done["R"][-1], done["z"]) > fragments(done["R"][0], done["z"]):
        report(warning="the molecule falls apart: use a lower temperature_k")
    library = "pyscf" if recipe.method == "pbe" else "tblite"
    return {
        **{key: done[key] for key in ("R", "z", "E", "F", "K", "halved", "settings")},
        "units": UNITS,
        "name": file_name(molecule).removeprefix("md_").removesuffix(".npz"),
        "method": f"{LABEL[recipe.method]} ({library} {version(library)})",
        "frame_fs": recipe.frame_fs,
        "temperature_k": recipe.temperature_k,
        "seed": recipe.seed,
        "drift": np.polyfit(times_ps, per_atom, 1)[0],
    } | ({"smiles": text} if kind == "smiles" else {})


def _read_part(part: Path, settings: str, report: Report) -> dict[str, Any] | None:
    """Return the state that an earlier run left, or None to start over."""
    if not part.is_file():
        return None
    try:
        with np.load(part) as data:
            done = {key: data[key] for key in data.files}
    except (zipfile.BadZipFile, ValueError, EOFError, OSError) as error:
        report(warning=f"{part} is damaged: starting over ({error})")
        return None
    if str(done.get("settings")) != settings:
        report(warning=f"{part} is of other settings: starting over")
        return None
    return done


def _write(path: Path, arrays: dict[str, Any]) -> None:
    """Write an npz in one step."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            np.savez(file, **arrays)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def main(arguments: list[str]) -> int:
    """Run the worker's command: MOLECULE FILE SETTINGS, the last a JSON object of `Recipe`'s options."""

    def report(**line: object) -> None:
        print(json.dumps(line), flush=True)

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that no temporary file is left
    try:
        molecule, path, settings = arguments
        run(molecule, Path(path), Recipe(**json.loads(settings)), report=report)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the parent is gone: its next run goes on from the last state
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ValueError, TypeError, OSError) as error:
        report(error=" ".join(str(error).split()))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
