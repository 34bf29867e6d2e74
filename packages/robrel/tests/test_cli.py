"""The command `robrel` as a user runs it: what training writes and measures, resuming, one sentence where it cannot."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from robrel.app import RobRelCLI
from robrel.cli import main
from robrel.comparison import METHODS, run_cell, study
from robrel.module import RobRelModule
from robrel.report import RATES
from shared.checkpoints import load, newest

QUIET = ["--trainer.enable_progress_bar", "false", "--trainer.accelerator", "cpu"]
SMALL = ["--data.problem.size", "3", "--data.problem.horizon", "4", "--data.problem.features", "4"]
TINY = [
    *QUIET, *SMALL, "--data.comparisons", "[0,6]", "--data.instances", "4", "--data.blocks", "2",
    "--model.block", "25", "--trainer.max_epochs", "3",
]  # fmt: skip
COMMAND = [sys.executable, "-c", "from robrel.cli import main; raise SystemExit(main())"]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A working directory with the finished run `tiny`."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["train", *TINY, "--run_dir", "tiny"]) == 0
    return folder


@pytest.fixture(autouse=True)
def inside(home, monkeypatch):
    monkeypatch.chdir(home)


def state(run):
    """The iteration in a run's newest checkpoint."""
    return load(newest(Path(run) / "checkpoints"))["state_dict"]["_extra_state"]


def results(run):
    return json.loads(Path(run, "test.json").read_text())


def assert_same_run(first, second):
    one, other = state(first), state(second)
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name
    assert results(first) == results(second)
    assert Path(first, "metrics.csv").read_text() == Path(second, "metrics.csv").read_text()


def the_error(capsys):
    """The one sentence that a refusal says."""
    errors = [line for line in capsys.readouterr().err.splitlines() if "error: " in line]
    assert len(errors) == 1
    return errors[0]


def test_train_leaves_settings_metrics_checkpoints_figure_and_results():
    files = {str(file.relative_to("tiny")) for file in Path("tiny").rglob("*") if file.is_file()}
    assert files == {
        "config.yaml", "metrics.csv", "test.json", "figures/training.png",
        "checkpoints/epoch=0001.ckpt", "checkpoints/epoch=0002.ckpt",
    }  # fmt: skip
    with Path("tiny/metrics.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["train/gap"]]
    assert [float(row["train/steps"]) for row in rows] == [50, 100, 150]
    assert float(rows[-1]["train/gap"]) < float(rows[0]["train/gap"])
    assert state("tiny")["steps"] == state("tiny")["planned"] == 150


def test_each_instance_is_measured_once_and_the_truth_always_covered():
    metrics = results("tiny")
    assert metrics["n"] == 8
    assert metrics["coverage"] == 1
    for name, value in metrics.items():
        if name.startswith("ratio"):
            assert value >= 1 - 1e-6, name
    assert metrics["ratio_arbitrary_6"] > metrics["ratio_6"]
    assert metrics["half_width_6"] < metrics["half_width_0"]
    assert metrics["half_width"] == pytest.approx((metrics["half_width_0"] + metrics["half_width_6"]) / 2, rel=1e-6)


def test_test_measures_the_same_again(capsys):
    assert main(["test", "tiny", *QUIET]) == 0
    table = capsys.readouterr().err
    for name in ("worst_6", "pd_gap", "ratio_chebyshev"):
        assert re.search(rf"{name} +│ +{results('tiny')[name]:.4f}", table), name


def test_the_table_of_the_specification_in_small():
    options = ["--model.solver=lp", "--data.comparisons=[0,5,20]", "--data.instances=8", "--data.blocks=1"]
    found = RobRelCLI.run_cell([*QUIET, *options, "--trainer.max_epochs=1"], 0)
    assert found["n"] == 24
    assert found["coverage"] == 1
    assert found["ratio"] == pytest.approx(1)
    # Sec. 7 has 3.08, 2.13 and 1.03 over 30 instances.
    for n, half_width in ((0, 3.08), (5, 2.13), (20, 1.03)):
        assert found[f"half_width_{n}"] == pytest.approx(half_width, rel=0.3)
        assert found[f"ratio_arbitrary_{n}"] > 1.25
    for n in (5, 20):
        assert found[f"ratio_chebyshev_{n}"] > 1.05
        assert found[f"ratio_mle_{n}"] > 1.2


def test_two_runs_of_one_seed_are_equal_and_of_another_are_not():
    for run, seed in (("first", "3"), ("second", "3"), ("other", "4")):
        assert main(["train", *TINY, "--seed_everything", seed, "--run_dir", run]) == 0
    assert_same_run("first", "second")
    assert not torch.equal(state("first")["x"], state("other")["x"])
    assert results("first")["worst"] != results("other")["worst"]


def test_a_run_stopped_within_an_epoch_resumes_to_an_unbroken_ones_average_and_measures(monkeypatch, capsys):
    def stop(module, batch, index):
        if (module.current_epoch, index) == (2, 1):
            raise ValueError("stopped")
        return step(module, batch, index)

    with monkeypatch.context() as patch:
        step = RobRelModule.training_step
        patch.setattr(RobRelModule, "training_step", stop)
        assert main(["train", *TINY, "--run_dir", "part"]) == 2
    assert state("part")["steps"] == 100
    assert main(["test", "part", *QUIET]) == 0  # as far as it came
    assert main(["train", "--resume", "part"]) == 0
    assert_same_run("tiny", "part")
    capsys.readouterr()
    assert main(["train", "--resume", "part", "--trainer.max_epochs", "5"]) == 2
    assert "belongs to a run with another step size: rows, steps and step_size must agree" in the_error(capsys)


@pytest.mark.parametrize("method", ["chebyshev", "max_margin"])
def test_a_baseline_is_trained_by_the_same_command(method):
    options = ["--data.comparisons", "6", "--model.method", method, "--model.compare", "[]", "--run_dir", method]
    assert main(["train", *TINY, *options]) == 0
    metrics = results(method)
    assert 1 <= metrics["ratio"] <= 2
    assert metrics["n"] == 4
    assert not any(name.startswith("pd_") for name in metrics)
    assert main(["test", method, *QUIET]) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--model.block 0", "block must be at least 1, got 0"),
        ("--model.step_size -1", "step_size must be a finite number > 0, got -1.0"),
        ("--model.method best", "model.method"),
        (
            "--model.method max_entropy",
            "max_entropy needs demonstrations: data.problem.expert must be exact or sampled",
        ),
        ("--model.compare [max_margin]", "max_margin needs comparisons: data.comparisons must be at least 1, got 0"),
        ("--model.compare [best]", "model.compare"),
        ("--data.comparisons [5,5]", "comparisons must be different numbers of at least 0, got [5, 5]"),
        ("--data.instances 0", "instances must be at least 1, got 0"),
        ("--data.problem.flip 2", "flip must lie in [0, 1], got 2.0"),
        ("--data.problem.radius 0", "radius must be a finite number > 0 or null, got 0.0"),
        ("--data.problem.slack some", "data.problem.slack"),
        ("--data.problem.sise 4", "data.problem.sise"),
        ("--data.problem.environment Taxi", "reward must be stationary for Taxi, which has its own, got linear"),
        ("--data.problem.environment Tetris --data.problem.reward stationary", "no environment Tetris in gymnasium"),
        ("--trainer.max_epochs -1", "trainer.max_epochs must be at least 1"),
        ("--trainer.devices 2", "trainer.devices must be 1: all instances are solved as one batch on one device"),
        ("--config nowhere", "there is no config 'nowhere': give a YAML file or one of"),
    ],
)
def test_bad_settings_end_in_one_sentence_and_leave_no_run(options, message, capsys):
    before = set(Path().rglob("*"))
    small = [*TINY, "--data.instances", "1", "--trainer.max_epochs", "1"]
    assert main(["train", *small, *options.split(), "--run_dir", "bad"]) == 2
    error = the_error(capsys)
    assert error.startswith("robrel train: error: ")
    assert message in error
    assert set(Path().rglob("*")) == before


def test_a_test_on_other_instances_or_processes_than_the_runs_is_refused(capsys):
    assert main(["test", "tiny", *QUIET, "--data.instances", "5"]) == 2
    assert "the saved state belongs to a problem of another size" in the_error(capsys)
    assert main(["test", "tiny", *QUIET, "--trainer.devices", "2"]) == 2
    assert "trainer.devices must be 1" in the_error(capsys)


def test_the_comparison_names_only_methods_and_settings_that_there_are():
    folder = Path(__file__).parents[1] / "results"
    described = study(folder)
    assert set(described.only) == set(described.settings)
    for name, methods in described.only.items():
        assert set(methods) <= set(described.methods), name
        RobRelCLI.hash_of([*described.settings[name], *described.methods[methods[-1]]])  # parses
    for name, (_, methods, _) in RATES.items():
        assert set(methods) <= set(described.only[name])
    for claim in yaml.safe_load((folder / "claims.yaml").read_text()):
        others = claim["than"] if isinstance(claim["than"], list) else [claim["than"]]
        assert {claim["better"], *others} <= set(described.only[claim["setting"]]), claim["id"]
        assert claim["metric"] in {metric.name for metric in described.report.metrics}
        assert claim["min_seeds"] <= len(described.seeds)


def test_cells_of_one_seed_share_their_instance_and_the_exact_answer_is_the_best():
    described = study(Path("results"))
    names = ["robust", "robust, primal-dual", "arbitrary", "chebyshev"]
    arguments = [*described.settings["comparisons=20"], *SMALL, *QUIET]
    cells = {}
    for name in names:
        extra = ["--data.blocks=2"] if "primal" in name else []
        cells[name] = run_cell(name, "comparisons=20", 7, [*arguments, *METHODS[name], *extra])
        assert cells[name]["n"] == 1
    half_widths = {round(cell["half_width"], 6) for name, cell in cells.items() if "primal" not in name}
    assert len(half_widths) == 1
    worst = np.array([cells[name]["worst"] for name in names])
    assert (worst[1:] > worst[0]).all()
    assert worst[1] < worst[0] + 0.05 < worst[2]


def command(*words):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    return subprocess.Popen(
        [*COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )


def finish(process):
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output


@pytest.mark.slow
def test_a_run_killed_within_an_epoch_resumes_to_the_average_of_an_unbroken_one():
    # Many steps make an epoch last long enough to be hit.
    longer = ["train", *TINY, "--data.blocks", "100", "--model.block", "100", "--trainer.max_epochs", "4"]
    finish(command(*longer, "--run_dir", "unbroken"))
    process = command(*longer, "--run_dir", "killed")
    deadline = time.monotonic() + 180
    while not Path("killed/checkpoints/epoch=0001.ckpt").exists():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.005)
    time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert state("killed")["steps"] == 20_000
    finish(command("train", "--resume", "killed"))
    assert_same_run("unbroken", "killed")
