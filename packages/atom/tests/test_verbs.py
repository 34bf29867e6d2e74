"""The package's own verbs as a user runs them, on one tiny run: what they compute, write and refuse."""

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import ase.io
import atom.figures
import numpy as np
import pytest
import torch
from ase import Atoms, units
from ase.build import molecule
from atom.app import AtomCLI
from atom.cli import main
from atom.data import MoleculeData
from atom.evaluate import trivial_scores
from atom.features import near_atoms
from atom.simulate import Recipe, drift
from atom.states import maxwell, velocities
from atom.trajectories import read_trajectory, write_npz
from atom.verbs import frame_fs_of, trained_on

DATA = Path(__file__).parent / "data"
SMALL = ["--model.operator.init_args.width=20", "--model.operator.init_args.depth=2"]
SMALL += ["--model.operator.init_args.heads=2", "--trainer.max_epochs=2", "--trainer.check_val_every_n_epoch=1"]
QUIET = ["--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false"]
MOLECULES = [
    "--data.train=[CH3CH2OH]",
    "--data.test=[C5H5N,CH3CHO]",
    "--data.horizon=16",
    "--data.horizon_range=[8,20]",
    "--data.train_samples=60",
    "--data.test_samples=40",
]
KNOWN = "CH3CH2OH"


@pytest.fixture(scope="session")
def home(tmp_path_factory):
    """A working directory with the finished run `tiny`, and states `known.xyz` and `moving.xyz`."""
    folder = tmp_path_factory.mktemp("verbs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        command = ["train", *SMALL, *QUIET, *MOLECULES, f"--data.root={DATA}", "--run_dir=tiny"]
        assert main(command) == 0
    ase.io.write(folder / "known.xyz", molecule(KNOWN))
    t = read_trajectory(DATA / "md_CH3CHO.npz")
    moving = Atoms(t.numbers, positions=t.positions[50])
    moving.set_velocities((t.positions[51] - t.positions[50]).astype(float) / units.fs)  # frames are 1 fs apart
    ase.io.write(folder / "moving.xyz", [Atoms("HO", positions=np.eye(2, 3)), moving])
    return folder


@pytest.fixture(autouse=True)
def inside(home, monkeypatch):
    monkeypatch.chdir(home)


def results():
    return json.loads(Path("tiny/test.json").read_text())


def run(*words):
    assert main(list(words)) == 0


def the_error(capsys):
    """The one sentence that a refusal says."""
    errors = [line for line in capsys.readouterr().err.splitlines() if "error: " in line]
    assert len(errors) == 1
    return errors[0]


def predicted(*options, out="out.xyz"):
    run("predict", *options, "--out", out, "--run", "tiny")
    frames = ase.io.read(out, ":")
    return np.stack([f.positions for f in frames]), [f.info["time_fs"] for f in frames], frames[0].numbers


def operator_on(x, v, numbers, lags):
    """The run's network on one state, hydrogens left out."""
    heavy = numbers > 1
    x, v = (torch.tensor(u[heavy], dtype=torch.float32) for u in (x, v))
    z, mask = torch.tensor(numbers[heavy]), torch.ones(int(heavy.sum()), dtype=torch.bool)
    state = x, v, z, torch.tensor(lags), near_atoms(x, 1.6), mask
    with torch.no_grad():
        return AtomCLI.of_run("tiny").model.operator.eval()(*(part[None] for part in state))[0].numpy()


def test_a_test_leaves_its_figures():
    names = {file.name for file in Path("tiny/figures").iterdir()}
    assert names == {"training.png", "lags.png", "bonds.png", "overlay.png", "gamma.png"}


def test_the_overlay_is_the_window_of_median_error_of_the_largest_unseen_molecule(tmp_path, monkeypatch):
    cli = AtomCLI.of_run("tiny")
    cli.datamodule.setup("test")
    taken = []
    monkeypatch.setattr(atom.figures, "draw_overlay", lambda *args: taken.append(args))
    atom.figures.draw_window(cli.model.operator, cli.datamodule, tmp_path)
    guess, true, start, numbers, _, _, title = taken[0]
    t = read_trajectory(DATA / "md_C5H5N.npz").heavy()
    np.testing.assert_array_equal(numbers, t.numbers)
    assert title.startswith("C5H5N, 16 fs later")
    moments = np.flatnonzero((np.abs(t.positions - start).max((1, 2))) == 0)
    np.testing.assert_array_equal(t.positions[moments[0] + 16], true.astype(np.float32))
    batch = cli.datamodule.scored.__getitems__((cli.datamodule.scored.molecule == 1).nonzero().flatten())
    with torch.no_grad():
        off = (cli.model.operator(*batch.state) - batch.target)[:, -1].square().sum((1, 2))
    own = np.square(guess - true).sum()
    assert abs(int((off < own * (1 - 1e-5)).sum()) - int((off > own * (1 + 1e-5)).sum())) <= 1
    assert f"{np.sqrt(own / 6):.3f} Å" in title


def test_a_prediction_is_the_network_on_the_files_state_without_hydrogens():
    x, times, numbers = predicted("moving.xyz")
    t = read_trajectory(DATA / "md_CH3CHO.npz")
    assert times == [2, 4, 6, 8, 10, 12, 14, 16]
    assert numbers.tolist() == [z for z in t.numbers.tolist() if z > 1]
    expected = operator_on(t.positions[50], t.positions[51] - t.positions[50], t.numbers, times)
    np.testing.assert_allclose(x, expected, atol=2e-7 + 1e-8)  # eight decimals in the file, float32 velocities
    still = operator_on(t.positions[50], np.zeros_like(t.positions[50]), t.numbers, times)
    assert np.abs(still - expected).max() > 1e-6  # so the velocities were used


def test_the_horizon_and_the_number_of_states_can_be_chosen():
    x, times, _ = predicted("moving.xyz", "--horizon_fs", "10", "--steps", "4")
    assert times == [2, 5, 7, 10]  # floor(10 p / 4)
    assert x.shape == (4, 3, 3)


def test_without_momenta_velocities_are_drawn_by_temperature_and_seed():
    first, again, other = (predicted("known.xyz", "--seed", seed)[0] for seed in "334")
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    x, times, _ = predicted("known.xyz", "--temperature", "0")
    atoms = molecule(KNOWN)
    still = operator_on(atoms.positions, 0 * atoms.positions, atoms.numbers, times)
    np.testing.assert_allclose(x, still, atol=2e-7)


def test_what_the_run_does_not_know_is_said(caplog):
    warnings = warnings_of(caplog, "known.xyz", molecule(KNOWN))
    assert warnings == []
    warnings = warnings_of(caplog, "new.xyz", molecule("C6H6"), "--horizon_fs", "24", "--steps", "6")
    assert warnings == [
        "new.xyz has 6 heavy atoms; the molecules that the run was trained on have 3",
        "the horizon of 24 fs lies outside what the run was trained on, 8 to 20 fs",
        "6 states are asked for; the run was trained on 8",
    ]
    (warning,) = warnings_of(caplog, "chloride.xyz", molecule("CH3CH2Cl"))
    assert warning == "chloride.xyz has elements that the run was not trained on: Cl"


def warnings_of(caplog, name, atoms, *options):
    import atom.verbs

    ase.io.write(name, atoms)
    said = []
    with pytest.MonkeyPatch.context() as patch:  # the command replaces the handlers that caplog relies on
        patch.setattr(atom.verbs.log, "warning", lambda message, *args: said.append(message % args))
        predicted(name, *options)
    return said


def test_a_run_on_trajectories_made_here_is_known_without_their_files(tmp_path):
    data = MoleculeData(["CH3CH2OH", "CC#N"], recipe=Recipe(frame_fs=2.0), cache=tmp_path)
    assert frame_fs_of(data) == 2.0
    trained = trained_on(data)
    assert {name: sorted(t.numbers[t.numbers > 1].tolist()) for name, t in trained.items()} == {
        "CH3CH2OH": [6, 6, 8],
        "CC#N": [6, 6, 7],
    }
    assert trained_on(MoleculeData(["CH3CH2OH"], root=tmp_path)) == {}  # its files are gone


def test_velocities_are_momenta_over_masses_in_angstrom_per_fs():
    atoms = Atoms("CO", positions=[[0, 0, 0], [0, 0, 1.1]], momenta=[[12.011, 0, 0], [0, 2 * 15.999, 0]])
    expected = 0.09822694788 * np.array([[1, 0, 0], [0, 2, 0]])  # sqrt(eV / amu) in Å/fs
    np.testing.assert_allclose(velocities(atoms), expected, rtol=1e-7)
    assert velocities(Atoms("CO", positions=atoms.positions)) is None


def test_drawn_velocities_have_the_energy_of_the_temperature_and_neither_drift_nor_spin():
    atoms = molecule("H2O")
    m, energies = atoms.get_masses()[:, None], []
    for seed in range(2000):
        v = maxwell(atoms, 300, np.random.default_rng(seed)) / units.fs
        energies.append(0.5 * (m * v**2).sum())
    arms = atoms.positions - atoms.get_center_of_mass()
    np.testing.assert_allclose((m * v).sum(0), 0, atol=1e-12)
    np.testing.assert_allclose(np.cross(arms, m * v).sum(0), 0, atol=1e-12)
    # Three of nine degrees of freedom vibrate; the deviation of the mean is sqrt(2 / (3 * 2000)) of it, 1.8%.
    assert np.mean(energies) == pytest.approx(1.5 * units.kB * 300, rel=0.06)


def test_scores_of_the_unseen_molecules_are_those_of_the_runs_own_test():
    run("evaluate", f"{DATA}/md_C5H5N.npz,{DATA}/md_CH3CHO.npz", "--run", "tiny", "--out", "unseen")
    records = json.loads(Path("unseen/scores.json").read_text())
    (ours,) = [r for r in records if (r["windows"], r["file"], r["method"]) == ("whole", "all files", "ATOM")]
    test = results()
    for name in ("s2t", "s2s", *(f"lag{p}" for p in range(1, 9))):
        assert ours[name] == pytest.approx(test[name], rel=1e-5), name
    assert ours["n"] == 2 * 40
    with Path("unseen/scores.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["rmsd"]) for row in rows] == [r["rmsd"] for r in records]
    assert Path("unseen/lags.png").read_bytes().startswith(b"\x89PNG")


def test_scores_of_a_molecule_trained_on_are_those_of_the_baselines_that_the_test_prints():
    run("evaluate", f"{DATA}/md_{KNOWN}.npz", "--run", "tiny", "--out", "seen")
    records = json.loads(Path("seen/scores.json").read_text())
    found = {r["method"]: r for r in records if r["windows"] == "held out"}
    cli = AtomCLI.of_run("tiny")
    cli.datamodule.setup("test")
    trivial = trivial_scores(cli.datamodule)
    for name, metrics in trivial.items():
        assert found[name]["s2t"] == pytest.approx(metrics["seen_s2t"], rel=1e-4), name
        assert found[name]["s2s"] == pytest.approx(metrics["seen_s2s"], rel=1e-4), name
    assert found["ATOM"]["s2t"] == pytest.approx(results()["seen_s2t"], rel=1e-5)


def test_rmsd_and_bond_errors_of_identity_are_those_computed_frame_by_frame():
    from rmsd import kabsch_rmsd

    whole = read_trajectory(DATA / "md_CH3CHO.npz")
    write_npz(replace(whole, positions=whole.positions[:60]), "md_begin.npz")
    run("evaluate", "md_begin.npz", "--run", "tiny", "--horizon_fs", "16", "--samples", "100", "--out", "all")
    records = json.loads(Path("all/scores.json").read_text())
    (ours,) = [r for r in records if (r["windows"], r["method"]) == ("whole", "identity")]
    x = read_trajectory("md_begin.npz").heavy().positions.astype(float)
    near = np.triu(np.linalg.norm(x[0][:, None] - x[0], axis=-1) < 1.6, 1)
    lengths = np.linalg.norm(x[:, :, None] - x[:, None], axis=-1)[:, near]
    pairs = [(start, start + lag) for start in range(44) for lag in range(2, 17, 2)]
    assert ours["n"] == 44  # 60 frames, 16 of them the horizon
    off = np.mean([np.abs(lengths[a] - lengths[b]).mean() for a, b in pairs])
    assert ours["bond_mae"] == pytest.approx(off, rel=1e-4)
    rmsd = np.mean([kabsch_rmsd(x[a], x[b], translate=True) for a, b in pairs])
    assert ours["rmsd"] == pytest.approx(rmsd, rel=1e-3)


def test_a_short_trajectory_is_scored_without_fitted_predictors(capsys):
    t = read_trajectory(DATA / "md_CH3CHO.npz")
    ase.io.write("short.xyz", [Atoms(t.numbers, positions=x) for x in t.positions[:40]])
    run("evaluate", "short.xyz", "--run", "tiny", "--frame_fs", "1", "--out", "short")
    printed = capsys.readouterr().err
    assert "no predictor is fitted: short: 40 frames are too few for a block split" in printed
    assert "†" not in printed
    assert {r["windows"] for r in json.loads(Path("short/scores.json").read_text())} == {"whole"}


def test_the_rotation_test_prints_what_the_test_found(capsys):
    run("rotate-test", "--run", "tiny")
    rows = dict(re.findall(r"│ ([^│]+?) +│ (\S+) +│", capsys.readouterr().err))
    test = results()
    assert float(rows["E_q, 10⁻² Å²"]) == pytest.approx(test["e_q"], rel=1e-4)
    assert float(rows["S2T rotated, 10⁻² Å²"]) == pytest.approx(test["rotated_s2t"], rel=1e-5)
    assert float(rows["ratio"]) == pytest.approx(test["rotation_ratio"], rel=1e-5)


def test_data_that_are_made_are_where_they_are_said_to_be(capsys):
    run("make-data", "H2O", "--out", "made", "--ps", "0.02", "--frame_fs", "0.5", "--temperature", "300")
    printed = capsys.readouterr().err
    t = read_trajectory("made/md_H2O.npz")
    assert (len(t), t.frame_fs, t.numbers.tolist()) == (40, 0.5, [8, 1, 1])
    assert "written: made/md_H2O.npz" in printed
    slope = re.escape(f"{drift('made/md_H2O.npz'):.2g}")
    assert re.search(rf"H2O +│ +40 │ +{slope}", printed)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("predict gone.xyz --run tiny", "there is no file gone.xyz, expected a molecule's state"),
        ("predict empty.xyz --run tiny", "empty.xyz is empty"),
        ("predict nan.xyz --run tiny", "nan.xyz: frame -1 has positions that are not finite"),
        ("predict words.xyz --run tiny", "words.xyz is no .xyz, .extxyz or ASE .traj file"),
        ("predict cut.xyz --run tiny", "cut.xyz cannot be read by ASE as extxyz"),
        ("predict foreign.xyz --run tiny", "the unit of its column vel is unknown, expected ASE's column momenta"),
        ("predict methane.xyz --run tiny", "methane.xyz has 1 atom left of those that the run keeps"),
        ("predict known.xyz --run tiny --frame 3", "frame must lie in [-1, 0] for known.xyz, got 3"),
        ("predict known.xyz --run nowhere", "nowhere is no run folder: it has no config.yaml"),
        ("predict known.xyz --run tiny --select gone.ckpt", "there is no checkpoint gone.ckpt"),
        ("predict known.xyz --run tiny --steps 1", "a single lag is invisible to relative times"),
        ("predict known.xyz --run tiny --steps 0", "steps must be at least 1, got 0"),
        ("predict known.xyz --run tiny --horizon_fs 4", "horizon_fs must be at least 8, a frame of 1 fs for each of 8"),
        ("predict known.xyz --run tiny --horizon_fs 9.5", "horizon_fs must be a multiple of the run's 1 fs"),
        ("predict known.xyz --run tiny --horizon_fs .nan", "horizon_fs must be a multiple of the run's 1 fs"),
        ("predict known.xyz --run tiny --temperature -1", "temperature must be a finite number of kelvin"),
        ("predict known.xyz --run tiny --out t.npz", "out must end in .xyz or .extxyz, got t.npz"),
        ("predict known.xyz --run tiny --out known.xyz/t.xyz", "known.xyz"),
        ("evaluate gone.npz --run tiny", "gone.npz is missing"),
        ("evaluate known.xyz --run tiny --frame_fs 1", "no window of 20 frames fits into its 1 frames"),
        ("evaluate known.xyz --run tiny", "the time between frames is unknown; set frame_fs"),
        ("evaluate known.xyz,known.xyz --run tiny", "data must be different files"),
        (f"evaluate {DATA}/md_CH3CHO.npz --run tiny --frame_fs 2", "its frames are 1 fs apart, but frame_fs is 2"),
        (f"evaluate {DATA}/md_CH3CHO.npz --run tiny --samples 0", "samples must be at least 1, got 0"),
        (f"evaluate {DATA}/md_CH3CHO.npz --run tiny --out known.xyz", "out must name a folder, got the file known.xyz"),
        ("rotate-test --run tiny --rotations 0", "rotations must be at least 1, got 0"),
        ("rotate-test --run nowhere", "nowhere is no run folder"),
        ("make-data H2O,,CO", "molecules must be different names, SMILES or files, joined by commas, got 'H2O,,CO'"),
        ("make-data nonsense --out made2", "molecule 'nonsense' is unknown"),
        ("make-data H2O --temperature 0", "temperature must be positive and finite, got 0.0"),
        ("make-data H2O --out known.xyz", "out must name a folder, got the file known.xyz"),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_written(words, message, capsys):
    Path("empty.xyz").write_text("")
    Path("words.xyz").write_text("no molecule\n")
    Path("cut.xyz").write_text("3\n\nO 0 0 0\n")
    ase.io.write("methane.xyz", molecule("CH4"))
    Path("nan.xyz").write_text("2\n\nC 0 0 0\nO nan 0 0\n")
    Path("foreign.xyz").write_text("2\nProperties=species:S:1:pos:R:3:vel:R:3\nC 0 0 0 1 1 1\nO 1.2 0 0 1 1 1\n")
    before = set(Path().rglob("*"))
    assert main(words.split()) == 2
    error = the_error(capsys)
    assert error.startswith(f"atom {words.split()[0]}: error: ")
    assert message in error
    assert set(Path().rglob("*")) == before
