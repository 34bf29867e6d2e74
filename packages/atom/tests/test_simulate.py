"""Trajectories made on the spot: what a run conserves, repeats and survives. Real ones are a few steps of H2O."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
from ase import Atoms, units
from ase.calculators.calculator import CalculationFailed, Calculator, all_changes
from atom import simulate, xtb
from atom.recipe import Recipe, cache_folder
from atom.simulate import DEFAULT_MOLECULES, drift, file_name
from atom.structures import fragments, resolve, structure

SHORT = Recipe(ps=0.04, discard_ps=0.01, chunk_frames=10, seed=3)
WATER = file_name("H2O")
STIFFNESS, LENGTH = 30.0, 0.75  # eV/Å² and Å, of a bond like that of H2


class Springs(Calculator):
    """Every pair of atoms is a spring; stiffness 0 is no force at all. Some calls fail."""

    implemented_properties = ["energy", "forces"]  # noqa: RUF012

    def __init__(self, stiffness=STIFFNESS, fails_at=None, with_nan=False):
        super().__init__()
        self.stiffness, self.fails_at, self.with_nan, self.calls = stiffness, fails_at, with_nan, 0

    def calculate(self, atoms=None, properties=None, system_changes=all_changes):
        super().calculate(atoms, properties, system_changes)
        self.calls += 1
        if self.calls == self.fails_at and not self.with_nan:
            raise CalculationFailed("SCF not converged")
        apart = self.atoms.positions[:, None] - self.atoms.positions
        distance = np.linalg.norm(apart, axis=-1) + np.eye(len(self.atoms))
        pull = self.stiffness * (distance - LENGTH) * (1 - np.eye(len(self.atoms)))
        forces = -(pull / distance)[..., None] * apart
        energy = self.stiffness / 4 * ((distance - LENGTH) ** 2 * (1 - np.eye(len(self.atoms)))).sum()
        wrong = np.nan if self.calls == self.fails_at else 0.0
        self.results = {"energy": energy + wrong, "forces": forces.sum(1) + wrong}


def springs(_method):
    return Springs()


def free(_method):
    return Springs(stiffness=0.0)


def make(molecules, folder, recipe=SHORT, **options):
    """Without bars: the shared console brings lightning with it."""
    return simulate.make(molecules, folder, recipe, progress=False, **options)


def load(path):
    with np.load(path) as data:
        return {key: data[key] for key in data.files}


def momentum(data):
    """Total momentum at the middle of each step between frames, amu Å per frame."""
    masses = Atoms(data["z"]).get_masses()
    return np.einsum("n,fnk->fk", masses, np.diff(data["R"], axis=0))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Water and ethanol, 40 fs each, from the real worker."""
    folder = tmp_path_factory.mktemp("a folder with spaces")
    return dict(zip(("H2O", "CH3CH2OH"), make(["H2O", "CH3CH2OH"], folder, SHORT, workers=2), strict=True))


@pytest.mark.parametrize("molecule", ["H2O", "CH3CH2OH"])
def test_energy_momentum_and_centre_of_mass_are_conserved(made, molecule):
    data = load(made[molecule])
    total = (data["E"] + data["K"]) / len(data["z"])
    assert np.abs(total - total[0]).max() < 1e-3
    assert np.ptp(data["K"]) > 0.01  # or nothing moved
    assert np.abs(momentum(data)).max() < 1e-10
    masses = Atoms(data["z"]).get_masses()
    assert np.abs(masses @ data["R"][-1]).max() / masses.sum() < 1e-12


def test_recorded_forces_and_energies_are_those_of_the_frames(made):
    """One step of velocity Verlet per half frame: x(t+1) - 2 x(t) + x(t-1) = F dt²/m, here dt = two steps of 0.5 fs."""
    data = load(made["CH3CH2OH"])
    masses = Atoms(data["z"]).get_masses()[:, None]
    acceleration = (data["R"][2:] - 2 * data["R"][1:-1] + data["R"][:-2]) / units.fs**2
    heavy = data["z"] > 1  # the second difference of a frame is exact to the fourth order in dt only
    error = (masses * acceleration - data["F"][1:-1])[:, heavy]
    assert np.abs(error).max() < 0.05 * np.abs(data["F"][:, heavy]).max()
    slope = np.diff(data["E"]) + (np.diff(data["R"], axis=0) * (data["F"][1:] + data["F"][:-1]) / 2).sum((1, 2))
    # dE = -F dx by trapezoids: off by (ω dt)²/12, 3 % for the 10 fs of a bond to hydrogen.
    assert np.abs(slope).max() < 0.05 * np.abs(np.diff(data["E"])).max()


def test_file_says_how_it_was_made(made):
    data = load(made["H2O"])
    assert data["R"].shape == (40, 3, 3)
    assert data["R"].dtype == np.float64
    assert data["z"].tolist() == [8, 1, 1]
    assert (float(data["frame_fs"]), float(data["temperature_k"]), int(data["seed"])) == (1.0, 600.0, 3)
    assert str(data["name"]) == "H2O"
    assert str(data["method"]).startswith("GFN2-xTB (tblite ")
    total = (data["E"] + data["K"]) / 3
    centred = np.arange(40) - 19.5
    assert drift(made["H2O"]) == pytest.approx((centred @ total) / (centred @ centred) * 1000, rel=1e-6)


def test_two_seeds_differ(tmp_path):
    xtb.run("H2O", tmp_path / "a.npz", SHORT, springs)
    xtb.run("H2O", tmp_path / "b.npz", replace(SHORT, seed=4), springs)
    assert np.abs(load(tmp_path / "a.npz")["R"][0] - load(tmp_path / "b.npz")["R"][0]).max() > 1e-3


def test_same_seed_is_bit_identical_in_a_relative_folder(made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (again,) = make(["h2o"], "some where", SHORT)
    assert again == Path("some where", WATER)
    assert again.read_bytes() == made["H2O"].read_bytes()
    assert sorted(file.name for file in Path("some where").iterdir()) == [WATER]  # no part, no lock


def worker(path, recipe, molecule="H2O"):
    settings = json.dumps({name: getattr(recipe, name) for name in recipe.__dataclass_fields__})
    return [sys.executable, "-m", "atom.xtb", molecule, str(path), settings]


def test_killed_worker_goes_on_to_the_same_bits(made, tmp_path):
    path = tmp_path / WATER
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(worker(path, SHORT), stdout=subprocess.PIPE, text=True, env=environment) as process:
        for line in process.stdout:
            if json.loads(line).get("frame") == 30:
                process.kill()
                break
    part = path.with_name(f"{WATER}.part.npz")
    assert int(load(part)["frame"]) in (20, 30)  # ten of the frames reported are discarded ones
    assert not path.exists()
    make(["H2O"], tmp_path, SHORT)
    assert path.read_bytes() == made["H2O"].read_bytes()
    assert not part.exists()


def test_chunks_start_from_their_state_alone(tmp_path):
    """A run broken off in process after any chunk gives the file of an unbroken one."""
    xtb.run("H2", tmp_path / "whole.npz", SHORT, springs)
    for last in (0, 10, 20, 40):

        def stop(frame=None, last=last, **_):
            if frame == last:
                raise KeyboardInterrupt

        path = tmp_path / f"{last}.npz"
        with pytest.raises(KeyboardInterrupt):
            xtb.run("H2", path, SHORT, springs, stop)
        frames = []
        xtb.run("H2", path, SHORT, springs, lambda frame=None, frames=frames, **_: frames.append(frame))
        assert frames[0] == last
        assert path.read_bytes() == (tmp_path / "whole.npz").read_bytes()


def test_part_of_other_settings_is_started_over(tmp_path):
    def stop(frame=None, **_):
        if frame == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        xtb.run("H2", tmp_path / "a.npz", replace(SHORT, seed=1), springs, stop)
    warnings = []
    xtb.run("H2", tmp_path / "a.npz", SHORT, springs, lambda warning=None, **_: warnings.append(warning))
    assert "other settings: starting over" in " ".join(filter(None, warnings))
    xtb.run("H2", tmp_path / "b.npz", SHORT, springs)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_integrator_is_velocity_verlet():
    """From rest, a spring of frequency ω has x(n) = A cos(n θ) with cos θ = 1 - ω² dt²/2."""
    atoms = Atoms("H2", positions=[[0, 0, 0], [LENGTH + 0.05, 0, 0]], calculator=Springs())
    recorded = xtb.integrate(atoms, frames=20, steps=2, step_fs=0.5)
    omega_dt = np.sqrt(STIFFNESS * 2 / atoms.get_masses()[0]) * 0.5 * units.fs
    expected = LENGTH + 0.05 * np.cos(2 * np.arange(20) * np.arccos(1 - omega_dt**2 / 2))
    length = np.linalg.norm(recorded["R"][:, 1] - recorded["R"][:, 0], axis=-1)
    np.testing.assert_allclose(length, expected, atol=1e-12)
    np.testing.assert_allclose(recorded["E"], STIFFNESS / 2 * (length - LENGTH) ** 2, atol=1e-12)


def test_momenta_are_maxwells_projected_off_translation_and_rotation():
    """In mass-weighted coordinates p/√m, of variance k T, what is left is orthogonal to the six rigid motions."""
    for seed in range(3):
        atoms = xtb.start("CH3CH2OH", Recipe(seed=seed), free)
        root = np.sqrt(atoms.get_masses())
        rng = np.random.default_rng([seed, zlib.crc32(b"md_CH3CH2OH.npz")])  # molecules draw apart
        drawn = np.sqrt(units.kB * 600) * rng.standard_normal((9, 3))
        shifts = [root[:, None] * axis for axis in np.eye(3)]
        turns = [root[:, None] * np.cross(axis, atoms.positions) for axis in np.eye(3)]
        rigid = np.stack([motion.ravel() for motion in shifts + turns], axis=1)  # (3N, 6)
        expected = drawn.ravel() - rigid @ np.linalg.lstsq(rigid, drawn.ravel(), rcond=None)[0]
        np.testing.assert_allclose((atoms.get_momenta() / root[:, None]).ravel(), expected, atol=1e-12)
        assert np.abs(atoms.get_momenta().sum(0)).max() < 1e-10
        assert np.abs(atoms.get_angular_momentum()).max() < 1e-10
        assert np.abs(atoms.get_center_of_mass()).max() < 1e-12


@pytest.mark.parametrize("with_nan", [False, True])
def test_chunk_that_fails_is_run_again_with_half_the_step(with_nan):
    calculators = iter([Springs(fails_at=8, with_nan=with_nan), Springs(fails_at=20), Springs()])
    atoms = Atoms("H2", positions=[[0, 0, 0], [LENGTH + 0.05, 0, 0]])
    recorded, state, halvings = xtb.chunk(atoms, 10, Recipe(), lambda _: next(calculators), lambda **_: None)
    assert halvings == 2
    atoms.calc = Springs()
    expected = xtb.integrate(atoms, frames=10, steps=8, step_fs=0.125)
    for key in "REFK":
        assert np.array_equal(recorded[key], expected[key])
    assert np.array_equal(state.positions, atoms.positions)
    assert np.array_equal(state.get_momenta(), atoms.get_momenta())


def test_run_that_fails_at_every_step_names_molecule_and_frame_and_keeps_its_part(tmp_path):
    made = []

    def failing(_method):
        made.append(Springs(fails_at=20 if len(made) >= 3 else None))  # after relaxing and two chunks
        return made[-1]

    # Steps of the frames: two, four and eight each, and a call for the first frame: the 20th is in frame 9, 4 and 2.
    with pytest.raises(ValueError, match=r"H2: gfn2 failed at frame 12 even with a step of 0\.125 fs .*temperature_k"):
        xtb.run("H2", tmp_path / "a.npz", SHORT, failing)
    assert int(load(tmp_path / "a.npz.part.npz")["frame"]) == 10
    assert not (tmp_path / "a.npz").exists()


def test_number_of_halved_chunks_is_recorded(tmp_path):
    made = []

    def once(_method):
        made.append(Springs(fails_at=5 if len(made) == 2 else None))
        return made[-1]

    xtb.run("H2", tmp_path / "a.npz", SHORT, once)
    assert int(load(tmp_path / "a.npz")["halved"]) == 1


def test_molecule_that_flies_apart_and_energy_that_moves_are_warned_of(tmp_path):
    warnings = []

    def report(warning=None, **_):
        warnings.append(warning or "")

    xtb.run("H2", tmp_path / "calm.npz", SHORT, springs, report)
    assert not any(warnings)
    fast = replace(SHORT, ps=1.0, temperature_k=3000.0, step_fs=1.0)
    xtb.run("H2", tmp_path / "free.npz", fast, free, report)
    assert [text for text in warnings if text] == ["the molecule falls apart: use a lower temperature_k"]
    warnings.clear()
    coarse = replace(SHORT, temperature_k=3000.0, step_fs=2.5, frame_fs=2.5)
    xtb.run("H2", tmp_path / "coarse.npz", coarse, springs, report)
    assert "total energy moves" in "".join(warnings)


def test_fragments_counts_pieces_apart_by_two_bond_lengths():
    h2 = np.array([[0, 0, 0], [0.74, 0, 0]])  # twice the sum of the radii of H and H is 1.24 Å
    assert fragments(h2, np.array([1, 1])) == 1
    assert fragments(1.8 * h2, np.array([1, 1])) == 2
    assert fragments(np.concatenate([h2, h2 + 5]), np.array([1, 1, 1, 1])) == 2


def test_worker_never_imports_torch(tmp_path):
    code = "import sys; from atom.xtb import main; print(main(sys.argv[1:]), 'torch' in sys.modules)"
    command = [sys.executable, "-c", code, *worker(tmp_path / WATER, replace(SHORT, ps=0.01))[3:]]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert output.splitlines()[-1] == "0 False"
    assert json.loads(output.splitlines()[0]) == {"frame": 0, "of": 20}


def test_workers_run_on_one_thread(tmp_path, monkeypatch):
    seen = {}

    class Done:
        stdout = ()

        def __init__(self, _command, env, **_):
            seen.update(env)

        def wait(self):
            return 0

        def terminate(self):
            pass

    monkeypatch.setattr(simulate.subprocess, "Popen", Done)
    make(["H2O"], tmp_path, SHORT)
    assert {seen[name] for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")} == {"1"}


def test_two_calls_at_once_make_a_molecule_once(tmp_path, monkeypatch):
    runs, real = [], simulate._worker

    def counted(path, *rest):
        runs.append(path)
        return real(path, *rest)

    monkeypatch.setattr(simulate, "_worker", counted)
    calls = [threading.Thread(target=make, args=(["H2O"], tmp_path, SHORT)) for _ in range(2)]
    for call in calls:
        call.start()
    for call in calls:
        call.join()
    assert runs == [tmp_path / WATER]
    assert sorted(file.name for file in tmp_path.iterdir()) == [WATER]


def test_finished_files_are_kept_and_damaged_ones_are_made_again(made, tmp_path, monkeypatch):
    path = tmp_path / WATER
    whole = made["H2O"].read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    monkeypatch.setattr(simulate, "_worker", lambda path, *_: path.write_bytes(whole) and None)
    make(["H2O"], tmp_path, SHORT)
    assert path.read_bytes() == whole
    monkeypatch.setattr(simulate, "_worker", None)  # calling it would fail
    assert make(["H2O", "h2o"], tmp_path, SHORT) == [path, path]


def test_file_of_another_recipe_is_refused_and_left(made, tmp_path):
    with pytest.raises(ValueError, match=r"was made with ps = 0\.04, not 0\.05; seed = 3, not 5: move it away"):
        make(["H2O"], made["H2O"].parent, replace(SHORT, seed=5, ps=0.05))
    np.savez(tmp_path / WATER, R=np.zeros((2, 3, 3)))
    with pytest.raises(ValueError, match="was not made here"):
        make(["H2O"], tmp_path, SHORT)
    assert list(load(tmp_path / WATER)) == ["R"]


def test_one_failure_does_not_lose_the_others(made, tmp_path):
    radium = tmp_path / "rad ium.xyz"
    radium.write_text("2\n\nRa 0 0 0\nF 0 0 2.2\n")
    with pytest.raises(
        ValueError, match=r"^1 of 2 trajectories failed: .*rad ium\.xyz has an atom with Z = 88, .* 86$"
    ):
        make([str(radium), "H2O"], tmp_path, SHORT, workers=1)
    assert (tmp_path / WATER).read_bytes() == made["H2O"].read_bytes()


@pytest.mark.slow
def test_interrupt_ends_the_workers_and_leaves_a_state_to_go_on_from(tmp_path):
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from atom.simulate import *\n"
        "make(['H2O'], sys.argv[1], Recipe(ps=20, discard_ps=0, chunk_frames=5), progress=False)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        part = tmp_path / f"{WATER}.part.npz"
        deadline = time.monotonic() + 60
        while not part.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        children = psutil.Process(process.pid).children()
        process.send_signal(signal.SIGINT)
        assert process.wait(20) != 0
    assert len(children) == 1
    assert not psutil.wait_procs(children, timeout=5)[1]
    assert int(load(part)["frame"]) >= 5
    assert [file.name for file in tmp_path.iterdir()] == [part.name]


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("CO", "name", "CO"),  # carbon monoxide, as ASE has it
        ("smiles:CO", "smiles", "CO"),
        ("C", "smiles", "C"),  # methane, not the atom
        ("ch3oh", "name", "CH3OH"),
        ("OCC", "smiles", "CCO"),
    ],
)
def test_molecules_are_told_apart(text, kind, value):
    assert resolve(text) == (kind, value)


def test_file_names_are_safe_and_stand_for_one_molecule(tmp_path):
    assert file_name("C/C=C/C#N").startswith("md_C4H5N-")
    assert file_name("OCC") == file_name("CCO") != file_name("COC")
    names = []
    for folder, length in (("a", 0.7), ("b", 0.8)):
        file = tmp_path / folder / "my H2.xyz"
        file.parent.mkdir()
        file.write_text(f"2\n\nH 0 0 0\nH 0 0 {length}\n")
        names.append(file_name(str(file)))
    assert names[0] != names[1]
    assert all(name.startswith("md_my_H2-") for name in names)
    assert all(len({*name} & {*" /\\#="}) == 0 for name in names)


def test_structures_carry_charge_and_unpaired_electrons():
    ammonium = structure("[NH4+]")
    assert sorted(ammonium.numbers) == [1, 1, 1, 1, 7]
    assert ammonium.get_initial_charges().sum() == 1
    assert structure("[CH3]").get_initial_magnetic_moments().sum() == 1
    assert structure("O2").get_initial_magnetic_moments().sum() == 2
    assert np.array_equal(structure("CCO", 1).positions, structure("CCO", 1).positions)


@pytest.mark.parametrize(
    ("molecule", "sentence"),
    [
        ("unobtainium", "molecule 'unobtainium' is unknown: expected a name"),
        ("", "molecule '' is unknown"),
        ("[He]", "has 1 atom, expected at least 2"),
        ("nan.xyz", "positions that are not finite"),
        ("bad.xyz", r"bad\.xyz cannot be read as a structure"),
    ],
)
def test_bad_molecules_are_named(molecule, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("nan.xyz").write_text("2\n\nH 0 0 0\nH 0 0 nan\n")
    Path("bad.xyz").write_text("2\n\nH 0 0\n")
    with pytest.raises(ValueError, match=sentence):
        structure(molecule)
    with pytest.raises(FileNotFoundError, match=r"none\.xyz: there is no such structure file"):
        make(["none.xyz"], tmp_path)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"ps": 0}, "ps must be positive"),
        ({"temperature_k": float("nan")}, "temperature_k must be positive"),
        ({"step_fs": 0.3}, r"frame_fs must be a multiple of step_fs = 0\.3, got 1\.0"),
        ({"step_fs": 2}, "frame_fs must be a multiple"),
        ({"ps": 0.0005}, "ps must be a multiple of frame_fs"),
        ({"ps": 0.001}, "ps must be at least two frames"),
        ({"discard_ps": -1}, "discard_ps must be at least 0"),
        ({"discard_ps": 0.0015}, "discard_ps must be a multiple"),
        ({"seed": -1}, "seed must be in"),
        ({"method": "gfn0"}, "method must be one of gfn2, gfn1, pbe"),
        ({"chunk_frames": 0}, "chunk_frames must be at least 1"),
    ],
)
def test_bad_options_are_named(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        Recipe(**options)


def test_pbe_without_pyscf_says_so(monkeypatch):
    monkeypatch.setattr(xtb, "find_spec", lambda _: None)
    with pytest.raises(ValueError, match="method pbe needs the package pyscf"):
        xtb.calculator("pbe")


def test_cache_folder_is_of_the_recipe(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = cache_folder(Recipe())
    assert first.parent == tmp_path / "atom"
    assert first.name.startswith("gfn2-")
    assert len(first.name) == len("gfn2-") + 12
    assert cache_folder(Recipe(ps=5, seed=0)) == first
    others = {cache_folder(replace(Recipe(), **change)) for change in ({"seed": 1}, {"method": "gfn1"}, {"ps": 4})}
    assert len(others | {first}) == 4
    assert cache_folder(Recipe(), "here").parent == Path("here")


def test_default_recipe_is_the_specified_one():
    recipe = Recipe()
    assert (recipe.frames, recipe.discarded, recipe.steps_per_frame) == (5000, 250, 2)
    assert len({file_name(molecule) for molecule in DEFAULT_MOLECULES}) == 10
    assert {resolve(molecule)[0] for molecule in DEFAULT_MOLECULES} == {"name"}
