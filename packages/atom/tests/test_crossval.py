"""Folds of a folder: no compound on two sides, and configs that train."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from atom.app import AtomCLI
from atom.cli import main
from atom.crossval import fold_config, twins
from atom.trajectories import read_trajectory, write_npz

DATA = Path(__file__).parent / "data"
NAMES = ("C5H5N", "CH3CH2OH", "CH3CHO", "ethanal")


@pytest.fixture
def folder(tmp_path):
    """The three trajectories, and acetaldehyde again under another name."""
    root = tmp_path / "data"
    root.mkdir()
    for file in DATA.glob("*.npz"):
        (root / file.name).write_bytes(file.read_bytes())
    t = read_trajectory(DATA / "md_CH3CHO.npz")
    order = np.random.default_rng(0).permutation(len(t.numbers))
    write_npz(replace(t, positions=-t.positions[:, order], numbers=t.numbers[order]), root / "md_ethanal.npz")
    return root


def the_error(capsys):
    errors = [line for line in capsys.readouterr().err.splitlines() if "error: " in line]
    assert len(errors) == 1
    return errors[0]


def made(folder, *options):
    out = folder.parent / "folds"
    words = ["folds", str(folder), "--clusters", "3", "--count", "3", "--out", str(out), "--base", "default", *options]
    assert main(words) == 0
    return [yaml.safe_load((out / f"fold{number}.yaml").read_text()) for number in (1, 2, 3)]


def test_folds_hold_each_molecule_once_and_keep_names_of_one_compound_together(folder, capsys):
    found = made(folder)
    said = capsys.readouterr().err
    tests = [fold["data"]["test"] for fold in found]
    assert sorted(sum(tests, [])) == sorted(NAMES)
    assert ["CH3CHO", "ethanal"] in tests
    assert [fold["data"]["val"] for fold in found] == [*tests[1:], tests[0]]
    assert "one compound: CH3CHO and ethanal" in said
    assert said.count("one compound") == 1
    rows = re.findall(r"│\s+(\d)\s+│ (.+?)\s+│", said)
    assert rows == [(str(number), ", ".join(test)) for number, test in enumerate(tests, start=1)]


def test_a_folds_config_has_the_settings_of_its_base_and_trains_on_all_others(folder):
    for fold in made(folder):
        (base,) = (yaml.safe_load(AtomCLI.config_path("default").read_text()),)
        assert fold["model"] == base["model"] and fold["trainer"] == base["trainer"]
        own = {"root", "train", "val", "test"}
        assert {k: v for k, v in fold["data"].items() if k not in own} == {
            k: v for k, v in base["data"].items() if k not in own
        }
        assert fold["data"]["train"] == ["*"] and fold["data"]["root"] == str(folder)


def test_train_takes_a_folds_config(folder):
    (one, *_) = made(folder)
    small = ["--data.horizon=16", "--data.horizon_range=null", "--data.test_samples=9", "--data.strict_split=true"]
    small += ["--trainer.max_steps=2", "--trainer.accelerator=cpu", "--model.operator.init_args.depth=1"]
    config = str(folder.parent / "folds" / "fold1.yaml")
    cli = AtomCLI(["--config", config, *small], quiet=True)
    held_out = {*one["data"]["test"], *one["data"]["val"]}
    assert set(cli.datamodule.train_names) == set(NAMES) - held_out
    trained = AtomCLI.run_cell(["--config", config, *small], 0)
    assert trained["n"] == 9 * len([*cli.datamodule.train_names, *cli.datamodule.test_names])


def test_the_spacing_is_passed_on_and_that_of_the_base_is_not(folder):
    assert all("frame_fs" not in fold["data"] for fold in made(folder, "--base", "tg80_fold1"))
    assert [fold["data"]["frame_fs"] for fold in made(folder, "--frame_fs", "1")] == [1.0] * 3


def test_without_an_out_nothing_is_written(folder, capsys):
    before = set(folder.parent.rglob("*"))
    assert main(["folds", str(folder), "--clusters", "3", "--count", "3"]) == 0
    assert "CH3CHO, ethanal" in capsys.readouterr().err
    assert set(folder.parent.rglob("*")) == before


def test_twins_are_all_pairs_of_one_compound():
    smiles = {"a": "[CH4]", "b": "[OH2]", "c": "[CH4]", "d": "[CH4]"}
    assert twins(smiles) == [("a", "c"), ("a", "d"), ("c", "d")]


def test_a_config_without_data_gets_some():
    text = fold_config({"model": {"seed": 1}}, Path("there"), ["1.3-butadiene"], ["uracil"], None)
    assert yaml.safe_load(text) == {
        "model": {"seed": 1},
        "data": {"root": "there", "train": ["*"], "val": ["uracil"], "test": ["1.3-butadiene"]},
    }


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "root is nowhere, expected a folder of trajectories"),
        (["data", "--count", "2"], "count must be at least 3, folds to test, validate and train on, got 2"),
        (["data", "--clusters", "4"], "clusters must lie between 1 and the 3 distinct molecules, got 4"),
        (["data", "--clusters", "3", "--count", "4"], "count must lie between 1 and the 3 clusters, got 4"),
        (["data", "--base", "magic"], "there is no config 'magic'"),
        (["data", "--out", "file"], "out must name a folder, got the file file"),
        (["data", "--frame_fs", "-1"], "frame_fs must be a positive number of femtoseconds, got -1.0"),
        (["bare", "--out", "folds"], "the time between frames is unknown; give --frame_fs"),
        (["empty"], "empty has no trajectory, expected one of .npz"),
    ],
    ids=" ".join,
)
def test_bad_input_is_one_sentence_and_nothing_is_written(folder, words, message, capsys, monkeypatch):
    monkeypatch.chdir(folder.parent)
    Path("file").touch()
    Path("empty").mkdir()
    write_npz(replace(read_trajectory(DATA / "md_CH3CHO.npz"), frame_fs=None), Path("bare/a.npz"))
    before = set(Path().rglob("*"))
    assert main(["folds", *words]) == 2
    error = the_error(capsys)
    assert error.startswith("atom folds: error: ")
    assert message in error
    assert set(Path().rglob("*")) == before
