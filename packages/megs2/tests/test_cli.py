"""The command as a user runs it."""

import json

import pytest
from megs2.cli import main


def train(folder, *options):
    fast = ["--trainer.max_epochs=5", "--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false"]
    assert main(["train", f"--run_dir={folder}", *fast, *options]) == 0
    return json.loads((folder / "test.json").read_text())


def test_training_learns_the_digits_and_scores_each_of_the_597_test_images_once(tmp_path):
    metrics = train(tmp_path / "run")
    assert metrics["n"] == 597
    assert metrics["accuracy"] > 0.85  # a tenth would be chance


@pytest.mark.slow
def test_two_runs_of_one_seed_are_equal_and_those_of_two_seeds_are_not(tmp_path):
    runs = [train(tmp_path / str(i), f"--seed_everything={seed}") for i, seed in enumerate((3, 3, 4))]
    weights = [torch_weights(tmp_path / str(i)) for i in range(3)]
    assert runs[0] == runs[1]
    assert weights[0].equal(weights[1])
    assert not weights[0].equal(weights[2])


def torch_weights(run):
    from shared.runs import checkpoint_of
    from torch import load

    return load(checkpoint_of(run, "megs2"), weights_only=True)["state_dict"]["model.weight"]


def test_a_bad_option_is_one_sentence(tmp_path, capsys):
    assert main(["train", "--model.smoothing=2", f"--run_dir={tmp_path / 'run'}"]) == 2
    assert "smoothing must lie in [0, 1], got 2" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
