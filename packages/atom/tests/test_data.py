"""The datamodule: which windows go where, files by name, trajectories made on the spot, and bad input."""

import logging
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from atom.data import MoleculeData
from atom.files import find_file, molecules_in
from atom.samples import Batch
from atom.simulate import Recipe, cache_folder
from atom.trajectories import read_trajectory, write_npz

DATA = Path(__file__).parent / "data"
ETHANOL, ACETALDEHYDE, PYRIDINE = "CH3CH2OH", "CH3CHO", "C5H5N"
FRAMES, HORIZON = 400, 16


def made(train=(ETHANOL, ACETALDEHYDE), test=(PYRIDINE,), **options):
    options = {"root": DATA, "horizon": HORIZON, **options}
    data = MoleculeData(train, test=test, **options)
    data.prepare_data()
    data.setup()
    return data


def starts_of(data, part):
    """Name -> the starts of its windows in a part."""
    windows = data.parts[part]
    return {name: windows.starts[windows.molecule == m].tolist() for m, name in enumerate(data.names)}


def trajectory(name=ETHANOL):
    return read_trajectory(DATA / f"md_{name}.npz")


@pytest.fixture
def folder(tmp_path):
    """A copy of the three trajectories."""
    for file in DATA.glob("*.npz"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def test_unseen_molecules_are_tested_on_and_their_trajectories_are_not_trained_on():
    data = made()
    assert data.unseen.tolist() == [False, False, True]
    assert data.present.tolist() == [True, True, True]
    train, val, test = (starts_of(data, part) for part in ("train", "val", "test"))
    assert train[PYRIDINE] == val[PYRIDINE] == []
    assert test[PYRIDINE] == list(range(FRAMES - HORIZON))


def test_the_blocks_of_a_molecule_trained_on_share_no_frame():
    data = made(train_samples=1000, val_samples=1000, test_samples=1000)
    parts = [starts_of(data, part)[ETHANOL] for part in ("train", "val", "test")]
    # 280, 40 and 80 frames, each holding so many windows of 17 frames.
    assert [len(part) for part in parts] == [280 - HORIZON, 40 - HORIZON, 80 - HORIZON]
    frames = [{start + k for start in part for k in range(HORIZON + 1)} for part in parts]
    assert sum(map(len, frames)) == len(set.union(*frames)) == FRAMES


def test_a_random_split_leaks_frames_and_uses_each_window_once():
    data = made(split="random", train_samples=1000, val_samples=1000, test_samples=1000)
    parts = [starts_of(data, part)[ETHANOL] for part in ("train", "val", "test")]
    assert sorted(sum(parts, [])) == list(range(FRAMES - HORIZON))
    near = [min(abs(start - known) for known in parts[0]) for start in parts[2]]
    assert sorted(near)[len(near) // 2] == 1


def test_molecules_to_validate_on_are_unseen_and_the_only_ones_that_validate():
    data = made(train=(ETHANOL,), val=(ACETALDEHYDE,))
    assert data.names == (ETHANOL, ACETALDEHYDE, PYRIDINE)
    assert data.unseen.tolist() == [False, True, True]
    counts = {name: len(found) for name, found in starts_of(data, "val").items()}
    assert counts == {ETHANOL: 0, ACETALDEHYDE: FRAMES - HORIZON, PYRIDINE: 0}
    assert starts_of(data, "test")[ACETALDEHYDE] == []
    assert data.present.tolist() == [True, False, True]
    tuned = made(train=(ETHANOL,), val=(ACETALDEHYDE,), test_on="val")
    assert tuned.present.tolist() == [False, True, False]
    assert tuned.scored is tuned.parts["val"]


def test_samples_are_limited_for_each_molecule_and_chosen_by_the_split_seed_alone():
    data = made(train_samples=30, val_samples=20, test_samples=10)
    for part, count in (("train", 30), ("val", 20), ("test", 10)):
        assert {len(found) for found in starts_of(data, part).values()} - {0} == {count}
    few = {"train_samples": 30, "val_samples": 20, "test_samples": 10}
    assert starts_of(made(seed=5, **few), "test") == starts_of(data, "test")
    assert starts_of(made(split_seed=1, **few), "test") != starts_of(data, "test")


def test_a_batch_holds_the_frames_of_the_files_without_hydrogens():
    data = made(test_samples=5)
    windows = data.parts["test"]
    batch = windows.__getitems__(range(len(windows)))
    for row, m in enumerate(batch.molecule.tolist()):
        t = trajectory(data.names[m]).heavy()
        start, n = int(windows.starts[row]), len(t.numbers)
        assert batch.mask[row].sum() == n
        np.testing.assert_array_equal(batch.x[row, :n], t.positions[start])
        np.testing.assert_array_equal(batch.v[row, :n], t.positions[start + 1] - t.positions[start])
        np.testing.assert_array_equal(batch.target[row, :, :n], t.positions[start + np.arange(2, 17, 2)])
        np.testing.assert_array_equal(batch.z[row, :n], t.numbers)
    assert batch.lags[0].tolist() == [2, 4, 6, 8, 10, 12, 14, 16]  # frames of 1 fs


@pytest.mark.parametrize(("hydrogens", "atoms", "scored"), [("drop", 3, 3), ("input", 9, 3), ("score", 9, 9)])
def test_hydrogens_are_dropped_or_given_or_scored(hydrogens, atoms, scored):
    batch = made((ETHANOL,), (), hydrogens=hydrogens).parts["train"][0]
    assert (int(batch.mask.sum()), int(batch.scored.sum())) == (atoms, scored)


def test_skip_leaves_frames_out_at_both_ends():
    found = starts_of(made(skip=50), "test")[PYRIDINE]
    assert found == list(range(50, FRAMES - 50 - HORIZON))


def test_the_longest_horizon_sets_which_windows_there_are():
    data = made(horizon_range=(8, 30))
    assert starts_of(data, "test")[PYRIDINE] == list(range(FRAMES - 30))
    horizons = data.parts["train"].__getitems__(range(200)).steps[:, -1]
    assert 8 <= horizons.min() < 12
    assert 25 < horizons.max() <= 30
    assert set(data.parts["test"].__getitems__(range(50)).steps[:, -1].tolist()) == {HORIZON}


def test_an_evaluation_meets_each_of_7_windows_once_at_batch_size_2_on_any_number_of_processes():
    data = made((ETHANOL,), (PYRIDINE,), test_samples=7, eval_batch_size=2)
    data.parts["test"].starts = data.parts["test"].starts[:7]
    data.parts["test"].molecule = data.parts["test"].molecule[:7]
    expected = sorted(data.parts["test"].starts.tolist())
    for processes in (1, 2, 3):
        sizes, found = [], []
        for rank in range(processes):
            data.trainer = SimpleNamespace(global_rank=rank, world_size=processes)
            batches = list(data.test_dataloader())
            sizes.append(len(batches))
            found += [x for batch in batches for x in batch.x[:, 0, 0].tolist()]
            assert all(len(batch.x) <= 2 for batch in batches) or processes == 3
        assert len(set(sizes)) == 1  # or a process would wait for another for ever
        of_start = {float(data.molecules[0].positions[s, 0, 0]): s for s in expected}
        assert sorted(of_start[x] for x in found) == expected
        assert len(expected) == 7


@pytest.mark.parametrize("workers", [1, 2])
def test_processes_that_make_batches_do_not_change_them(workers):
    options = {"horizon_range": (8, 20), "train_samples": 20, "batch_size": 16, "seed": 3}
    alone, together = (list(made(num_workers=n, **options).train_dataloader()) for n in (0, workers))
    assert [len(batch.x) for batch in alone] == [16, 16, 8]
    for one, other in zip(alone, together, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_the_order_of_training_is_a_function_of_the_seed():
    first, again, other = (
        Batch(*next(iter(made(seed=seed, horizon_range=(8, 20)).train_dataloader()))) for seed in (0, 0, 1)
    )
    assert torch.equal(first.x, again.x) and torch.equal(first.steps, again.steps)
    assert not torch.equal(first.steps, other.steps)


# Twins.


def write_twin(folder):
    """Acetaldehyde again, its atoms in another order and mirrored, under the name `ethanal`."""
    t = trajectory(ACETALDEHYDE)
    order = np.random.default_rng(0).permutation(len(t.numbers))
    write_npz(replace(t, positions=-t.positions[:, order], numbers=t.numbers[order]), folder / "md_ethanal.npz")


def test_a_compound_under_two_names_on_both_sides_of_the_split_is_told_or_refused(folder, caplog):
    write_twin(folder)
    with caplog.at_level(logging.WARNING, "atom.data"):
        made(test=("ethanal", PYRIDINE), root=folder)
    assert [record.getMessage() for record in caplog.records] == [
        "the same compound stands on both sides of a split (strict_split refuses it): CH3CHO and ethanal"
    ]
    for held_out in ({"test": ("ethanal",)}, {"val": ("ethanal",)}):
        with pytest.raises(ValueError, match="stands on both sides of a split: CH3CHO and ethanal"):
            made(root=folder, strict_split=True, **held_out)
    with pytest.raises(ValueError, match="stands on both sides of a split: CH3CHO and ethanal"):
        made(train=(ETHANOL,), val=(ACETALDEHYDE,), test=("ethanal",), root=folder, strict_split=True)
    assert made(train=(ACETALDEHYDE, "ethanal"), root=folder, strict_split=True).names[:2] == (ACETALDEHYDE, "ethanal")


# Files.


def test_a_molecule_is_found_by_its_name_with_a_data_sets_prefix_or_by_its_files_name(folder):
    for name in ("md17_uracil.npz", "tg80_1.3-butadiene.npz", "water.xyz", "md22_AT-AT.npz"):
        (folder / name).touch()
    for name, file in (
        (ETHANOL, "md_CH3CH2OH.npz"),
        ("uracil", "md17_uracil.npz"),
        ("1.3-butadiene", "tg80_1.3-butadiene.npz"),
        ("water", "water.xyz"),
        ("water.xyz", "water.xyz"),
        ("AT-AT", "md22_AT-AT.npz"),
    ):
        assert find_file(folder, name) == folder / file


def test_a_name_that_could_mean_two_files_is_refused(folder):
    (folder / "rmd17_uracil.npz").touch()
    (folder / "md17_uracil.npz").touch()
    with pytest.raises(ValueError, match=r"several trajectories of uracil: md17_uracil\.npz, rmd17_uracil\.npz"):
        find_file(folder, "uracil")
    assert find_file(folder, "md17_uracil.npz").name == "md17_uracil.npz"
    with pytest.raises(ValueError, match="several trajectories of uracil"):
        molecules_in(folder)


def test_a_missing_molecule_or_folder_is_named(folder):
    with pytest.raises(FileNotFoundError, match=r"has no trajectory of aspirin, such as md17_aspirin\.npz"):
        find_file(folder, "aspirin")
    with pytest.raises(FileNotFoundError, match=r"root is .*nowhere, expected a folder of trajectories"):
        made(root=folder / "nowhere")


def test_the_star_means_every_molecule_of_the_folder_that_is_not_held_out(folder):
    write_twin(folder)
    (folder / ".md_hidden.npz").touch()
    (folder / "md_other.npz.part.npz").touch()
    (folder / "README.md").touch()
    data = made(["*"], test=(PYRIDINE,), root=folder)
    assert data.train_names == (ETHANOL, ACETALDEHYDE, "ethanal")
    assert data.names == (*data.train_names, PYRIDINE)
    assert data.unseen.tolist() == [False, False, False, True]
    assert made(["*"], test=("md_C5H5N.npz",), root=folder).train_names == data.train_names  # by its file's name
    assert made(["*"], test=(PYRIDINE,), val=("ethanal",), root=folder).train_names == (ETHANOL, ACETALDEHYDE)
    named = made(data.train_names, test=(PYRIDINE,), root=folder)
    assert starts_of(named, "train") == starts_of(data, "train")


def test_the_star_needs_a_folder_with_something_left_to_train_on(folder):
    with pytest.raises(ValueError, match=r"train is '\*', all molecules of a folder: set root to it"):
        MoleculeData(["*"])
    for lists in ({"train": ["*", ETHANOL]}, {"train": [ETHANOL], "test": ["*"]}, {"train": ["*"], "val": ["*"]}):
        with pytest.raises(ValueError, match=r"'\*' stands alone in train and in no other list, got"):
            MoleculeData(**lists, root=folder)
    with pytest.raises(ValueError, match=r"has no trajectory beside C5H5N, CH3CH2OH, CH3CHO, expected one of \.npz"):
        made(["*"], test=(PYRIDINE, ETHANOL, ACETALDEHYDE), root=folder)
    with pytest.raises(FileNotFoundError, match="no trajectory of aspirin"):
        made(["*"], test=("aspirin",), root=folder)


def test_trajectories_with_other_spacings_are_refused(folder):
    write_npz(replace(trajectory(), frame_fs=2.0), folder / "md_CH3CH2OH.npz")
    with pytest.raises(ValueError, match=r"one spacing of frames.*CH3CH2OH 2\.0, CH3CHO 1\.0, C5H5N 1\.0"):
        made(root=folder)
    with pytest.raises(ValueError, match=r"md_CH3CH2OH\.npz: its frames are 2 fs apart, but frame_fs is 1"):
        made(root=folder, frame_fs=1.0)


def test_one_trajectory_under_two_names_is_refused(folder):
    with pytest.raises(ValueError, match=r"md_CH3CH2OH\.npz is named twice in train, val and test"):
        made(train=(ETHANOL,), test=("md_CH3CH2OH.npz",), root=folder)


def test_an_unknown_spacing_asks_for_frame_fs(folder):
    write_npz(replace(trajectory(), frame_fs=None), folder / "md_CH3CH2OH.npz")
    with pytest.raises(ValueError, match=r"md_CH3CH2OH\.npz: the time between frames is unknown; set frame_fs"):
        made((ETHANOL,), (), root=folder)


def test_a_position_that_is_no_number_is_named_by_file_and_frame(folder):
    t = trajectory()
    positions = t.positions.copy()
    positions[37, 2, 1] = np.nan
    np.savez(folder / "md_CH3CH2OH.npz", R=positions, z=t.numbers)
    with pytest.raises(ValueError, match=r"md_CH3CH2OH\.npz: frame 37 holds a position that is not finite"):
        made(root=folder)


def test_a_trajectory_that_is_too_short_says_how_many_frames_it_takes():
    with pytest.raises(ValueError, match=r"no window of 400 frames fits into its 400 frames.*at least 401"):
        made(horizon=400)
    with pytest.raises(ValueError, match="400 frames are too few for a block split with windows of 60 frames"):
        made(horizon=60)


# Trajectories made here.

QUICK = Recipe(ps=0.1, discard_ps=0.0, chunk_frames=50)


def test_trajectories_are_made_once_by_the_recipe_and_kept(tmp_path):
    options = {"root": None, "recipe": QUICK, "cache": tmp_path, "horizon": 8, "workers": 2}
    data = made(("CH3OH",), ("HCOOH",), hydrogens="input", **options)
    files = [cache_folder(QUICK, tmp_path) / f"md_{name}.npz" for name in ("CH3OH", "HCOOH")]
    assert [len(t) for t in data.trajectories] == [100, 100]
    assert [t.frame_fs for t in data.trajectories] == [1, 1]
    with np.load(files[0]) as made_here:
        np.testing.assert_array_equal(data.trajectories[0].positions, made_here["R"])
    times = [file.stat().st_mtime_ns for file in files]
    made(("CH3OH",), ("HCOOH",), hydrogens="input", **options)
    assert [file.stat().st_mtime_ns for file in files] == times


def test_a_damaged_file_in_the_cache_is_made_again_and_a_foreign_one_refused(tmp_path, caplog):
    options = {"root": None, "recipe": QUICK, "cache": tmp_path, "horizon": 8, "hydrogens": "input"}
    made(("CH3OH",), (), **options)
    (file,) = cache_folder(QUICK, tmp_path).glob("md_*.npz")
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with caplog.at_level(logging.WARNING, "atom.simulate"):
        made(("CH3OH",), (), **options)
    assert "md_CH3OH.npz is damaged and is made again" in caplog.text
    with np.load(file) as again:
        assert again["R"].shape == (100, 6, 3)
    write_npz(trajectory(), file)
    with pytest.raises(ValueError, match=r"md_CH3OH\.npz was not made here: move it away"):
        made(("CH3OH",), (), **options)


# Options.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train": ()}, "train must name at least one molecule, got none"),
        ({"test": (ETHANOL,)}, "named once in train, val and test, got CH3CH2OH again"),
        ({"val": (PYRIDINE,), "test": (PYRIDINE,)}, "got C5H5N again"),
        ({"horizon": 7}, "horizon must be at least 8 frames, one for each lag, got 7"),
        ({"horizon_range": (7, 20)}, r"8 \(lags\) <= low <= high, got 7 and 20"),
        ({"horizon_range": (20, 19)}, "got 20 and 19"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"eval_batch_size": 0}, "eval_batch_size must be at least 1, got 0"),
        ({"train_samples": 0}, "train_samples must be at least 1, got 0"),
        ({"val_samples": 0}, "val_samples must be at least 1, got 0"),
        ({"test_samples": -1}, "test_samples must be at least 1, got -1"),
        ({"workers": 0}, "workers must be at least 1, got 0"),
        ({"num_workers": -1}, "num_workers must be at least 0, got -1"),
        ({"skip": -1}, "skip must be at least 0, got -1"),
        ({"frame_fs": 0.0}, "frame_fs must be a positive number of femtoseconds, got 0.0"),
        ({"frame_fs": float("nan")}, "frame_fs must be a positive number"),
        ({"frame_fs": 1.0, "root": None}, "frame_fs is for the files of root"),
        ({"cutoff": 0.0}, r"cutoff must lie in \(0, 10\] Å, got 0.0"),
        ({"cutoff": 11.0}, r"cutoff must lie in \(0, 10\] Å, got 11.0"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_an_option_out_of_range_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        MoleculeData(**{"train": (ETHANOL,), "root": DATA, **options})
