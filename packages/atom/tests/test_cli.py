"""The command `atom train` as a user runs it: what it writes and says, and one sentence where it cannot."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import atom.app
import numpy as np
import pytest
import torch
from atom.app import AtomCLI
from atom.baselines import constant_velocity
from atom.cli import main
from atom.module import MoleculeModule
from atom.trajectories import read_trajectory
from shared.checkpoints import load, newest

DATA = Path(__file__).parent / "data"
QUIET = ["--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu"]
SMALL = ["--model.operator.init_args.width=16", "--model.operator.init_args.depth=1"]
SMALL += ["--model.operator.init_args.heads=2"]
MOLECULES = [
    f"--data.root={DATA}", "--data.train=[CH3CH2OH]", "--data.test=[C5H5N,CH3CHO]", "--data.horizon=16",
    "--data.horizon_range=[8,20]", "--data.train_samples=64", "--data.val_samples=20", "--data.test_samples=40",
    "--data.batch_size=16",
]  # fmt: skip
TINY = [*QUIET, *SMALL, *MOLECULES, "--trainer.max_epochs=3", "--trainer.check_val_every_n_epoch=1"]
STEPS = 4  # an epoch
EPOCHS = 6  # of the run `tiny`
COMMAND = str(Path(sys.executable).with_name("atom"))  # Lightning starts further processes by the script's path


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A working directory with the finished run `tiny`, and its output `said`."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(str(folder))
        (folder / "my_operators.py").write_text(OWN)
        assert main(["train", *TINY, f"--trainer.max_epochs={EPOCHS}", "--run_dir=tiny"]) == 0
        yield folder


OWN = '''
import torch
from atom import SolutionOperator


class Flight(SolutionOperator):
    """Flies on at a learnt share of the velocity, which is 1 at first."""

    def __init__(self, share: float = 1.0) -> None:
        super().__init__()
        self.share = torch.nn.Parameter(torch.tensor(share))

    def forward(self, x, v, z, lags, bonds, mask):
        return x[:, None] + self.share * lags[:, :, None, None] * v[:, None]
'''


@pytest.fixture(autouse=True)
def inside(home, monkeypatch):
    monkeypatch.chdir(home)


def results(run):
    return json.loads(Path(run, "test.json").read_text())


def weights(run):
    return load(newest(Path(run) / "checkpoints"))["state_dict"]


def train(*options):
    """A run without figures; its metrics."""
    return AtomCLI([*TINY, *options], quiet=True).fit_and_test()


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(value, second[name]) for name, value in first.items())


def the_error(capsys):
    """The one sentence that a refusal says."""
    errors = [line for line in capsys.readouterr().err.splitlines() if "error: " in line]
    assert len(errors) == 1
    return errors[0]


def windows(name, starts):
    """x, v and the futures of windows, read from a molecule's file, with its heavy atoms alone."""
    t = read_trajectory(DATA / f"md_{name}.npz").heavy().positions.astype(np.float64)
    return t[starts], t[starts + 1] - t[starts], t[starts[:, None] + np.arange(2, 17, 2)]


def test_train_leaves_settings_metrics_checkpoints_and_figures():
    files = {str(file.relative_to("tiny")) for file in Path("tiny").rglob("*") if file.is_file()}
    assert files == {
        "config.yaml", "metrics.csv", "test.json", "figures/training.png", "figures/lags.png", "figures/bonds.png",
        "figures/overlay.png", "figures/gamma.png", "checkpoints/best.ckpt", "checkpoints/epoch=0004.ckpt",
        "checkpoints/epoch=0005.ckpt",
    }  # fmt: skip
    with Path("tiny/metrics.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["val/s2t"]]
    assert [int(row["step"]) for row in rows] == [STEPS * epoch + STEPS - 1 for epoch in range(EPOCHS)]
    assert all(row["train/loss"] and row["train/lr"] and row["val/s2s"] for row in rows)
    best = min(range(EPOCHS), key=lambda epoch: float(rows[epoch]["val/s2t"]))
    assert load(Path("tiny/checkpoints/best.ckpt"))["epoch"] == best


def test_the_test_scores_each_window_once_and_its_metrics_fit_together():
    metrics = results("tiny")
    assert metrics["n"] == 3 * 40
    assert metrics["s2t"] == pytest.approx((metrics["s2t/C5H5N"] + metrics["s2t/CH3CHO"]) / 2, rel=1e-5)
    assert metrics["s2t"] == pytest.approx(np.mean([metrics[f"lag{p}"] for p in range(1, 9)]), rel=1e-5)
    assert metrics["s2s"] == metrics["lag8"]
    assert metrics["seen_s2t"] == pytest.approx(metrics["s2t/CH3CH2OH"])
    assert metrics["rotation_ratio"] > 0.5
    assert metrics["e_q"] > 0


@pytest.mark.slow
def test_training_beats_staying_put_on_later_times_of_the_molecule_trained_on():
    larger = ["--model.operator.init_args.width=56", "--model.operator.init_args.depth=2", "--data.test=[]"]
    metrics = train(*larger, "--data.horizon_range=null", "--data.train_samples=500", "--trainer.max_epochs=40")
    assert metrics["relative"] < 0.7  # of the better of staying put and flying on


def test_the_test_prints_the_trivial_baselines_and_measures_the_same_again(capsys):
    assert main(["test", "tiny", *QUIET]) == 0
    said = capsys.readouterr().err
    for label in ("identity", "constant velocity", "train mean", "ridge", "1 nearest neighbour"):
        assert re.search(rf"│ {label} +│", said), label
    for name in ("s2t", "s2s", "relative", "rotation_ratio"):
        assert re.search(rf"{name} +│ +{results('tiny')[name]:.4f}", said), name


def test_seven_windows_in_batches_of_two_are_scored_as_in_one():
    seven = ["--data.test=[]", "--data.test_samples=7", "--trainer.max_epochs=1"]
    two, whole = (train(*seven, f"--data.eval_batch_size={size}") for size in (2, 256))
    assert two["n"] == whole["n"] == 7
    assert two == pytest.approx(whole, rel=1e-5)


def test_two_runs_of_one_seed_are_equal_and_of_another_are_not():
    noisy = ["--model.sigma_x=0.01", "--model.augment=true", "--model.operator.init_args.dropout=0.1"]
    noisy += ["--trainer.max_epochs=2"]
    for run, seed in (("first", 3), ("second", 3), ("other", 4)):
        train(f"--seed_everything={seed}", f"--run_dir={run}", *noisy)
    assert same(weights("first"), weights("second"))
    assert Path("first/metrics.csv").read_text() == Path("second/metrics.csv").read_text()
    assert not same(weights("first"), weights("other"))


@pytest.mark.parametrize("optimizer", ["muon", pytest.param("adamw", marks=pytest.mark.slow)])
def test_a_run_stopped_within_an_epoch_resumes_to_an_unbroken_ones_weights(optimizer, monkeypatch):
    monkeypatch.setattr(atom.app, "draw_run", lambda *args: None)  # it takes as long as the training
    random = ["--model.sigma_x=0.01", "--model.augment=true", "--model.operator.init_args.attention_dropout=0.2"]
    arguments = ["train", *TINY, *random, f"--model.optim.optimizer={optimizer}"]
    assert main([*arguments, f"--run_dir=whole-{optimizer}"]) == 0

    def stop(module, batch, index):
        if (module.current_epoch, index) == (2, 1):
            raise ValueError("stopped")
        return step(module, batch, index)

    part = f"part-{optimizer}"
    with monkeypatch.context() as patch:
        step = MoleculeModule.training_step
        patch.setattr(MoleculeModule, "training_step", stop)
        assert main([*arguments, f"--run_dir={part}"]) == 2
    assert not Path(part, "test.json").exists()
    assert main(["train", "--resume", part]) == 0
    assert same(weights(f"whole-{optimizer}"), weights(part))
    assert Path(part, "metrics.csv").read_text() == Path(f"whole-{optimizer}", "metrics.csv").read_text()
    assert results(part) == results(f"whole-{optimizer}")


def test_egno_is_trained_by_the_same_command():
    egno = ["--model.operator=atom.EGNO", "--model.operator.init_args.depth=2", "--model.operator.init_args.width=16"]
    metrics = train(*egno, "--model.optim.optimizer=adamw", "--trainer.max_epochs=1", "--run_dir=egno")
    assert metrics["n"] == 3 * 40
    assert metrics["rotation_ratio"] == pytest.approx(1, abs=1e-3)
    assert metrics["e_q"] < 1e-8
    assert any(name.startswith("operator.layers.0.") for name in weights("egno"))


def test_an_operator_of_ones_own_is_given_by_its_class():
    fixed = ["--model.optim.lr=1e-30", "--model.optim.optimizer=adamw", "--run_dir=own"]
    metrics = train("--model.operator=my_operators.Flight", "--model.operator.init_args.share=1.0", *fixed)
    cli = AtomCLI.of_run("own")
    cli.datamodule.setup("test")
    scored = cli.datamodule.scored
    x, v, y = (torch.from_numpy(part) for part in windows("C5H5N", scored.starts[scored.molecule == 1].numpy()))
    expected = 100 * (constant_velocity(x, v, torch.arange(2, 17, 2).expand(40, -1)) - y).square().mean()
    assert metrics["s2t/C5H5N"] == pytest.approx(float(expected), rel=1e-4)
    assert metrics["rotation_ratio"] == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--data.train=[aspirin]",), "has no trajectory of aspirin, such as md17_aspirin.npz"),
        (("--data.root=null", "--data.train=[unobtainium]"), "unobtainium"),
        (("--data.root=nowhere",), "root is nowhere, expected a folder of trajectories"),
        (("--data.horizon=4",), "the horizon must be at least 8 frames, one for each lag, got 4"),
        (("--data.horizon=500",), "no window of 500 frames fits into its 400 frames"),
        (("--data.batch_size=0",), "batch_size must be at least 1, got 0"),
        (("--data.frame_fs=-1",), "frame_fs must be a positive number of femtoseconds, got -1.0"),
        (("--data.train=[C5H5N]",), "named once in train, val and test, got C5H5N again"),
        (("--data.split=middle",), "data.split"),
        (("--model.sigma_x=-1",), "sigma_x must be a finite number >= 0, got -1.0"),
        (("--model.optim.lr=0",), "optim.lr must be a finite number > 0, got 0.0"),
        (("--model.optim.optimizer=sgd",), "model.optim.optimizer"),
        (("--model.operator.init_args.width=15",), "width must be an even multiple of heads, 2, for pairs to rotate"),
        (("--model.operator.init_args.width=24",), "width must be at least 4 and not divisible by 3"),
        (("--model.operator.init_args.depth=0",), "depth must be at least 1, got 0"),
        (("--model.operator=atom.Nothing",), "atom.Nothing"),
        (("--model.operator=torch.nn.Linear",), "torch.nn.Linear"),
        (("--model.temprature=1",), "temprature"),
        (("--trainer.devices=0",), "trainer: "),
        (("--trainer.max_epochs=-1", "--trainer.max_steps=-1"), "optim.schedule cosine needs an end"),
        (("--config", "nowhere"), "there is no config 'nowhere': give a YAML file or one of"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_settings_end_in_one_sentence_and_leave_no_run(options, message, capsys):
    before = set(Path().rglob("*"))
    assert main(["train", *TINY, *options, "--run_dir=bad"]) == 2
    error = the_error(capsys)
    assert error.startswith("atom train: error: ")
    assert message in error
    assert {path for path in Path().rglob("*") if path not in before} <= {Path("runs")}


@pytest.mark.parametrize("option", ["--data.horizon=400", "--data.test=[]"])
def test_a_resumed_run_keeps_its_settings(option, capsys):
    assert main(["train", "--resume", "tiny", option]) == 2
    assert "a resumed run keeps its settings" in the_error(capsys)


def test_comparing_an_unknown_method_is_refused(capsys):
    assert main(["compare", "--methods", "[magic]", "--dry_run", "true"]) == 2
    assert "unknown name 'magic', expected some of atom, egno" in the_error(capsys)


def command(*words):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    return subprocess.Popen(
        [COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )


def finish(process):
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_weights_of_an_unbroken_one():
    longer = ["train", *TINY, "--model.sigma_x=0.01", "--model.augment=true", "--trainer.max_epochs=12"]
    finish(command(*longer, "--run_dir=unbroken"))
    process = command(*longer, "--run_dir=killed")
    deadline = time.monotonic() + 180
    while not Path("killed/checkpoints/epoch=0002.ckpt").exists():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not Path("killed/checkpoints/epoch=0011.ckpt").exists()
    finish(command("train", "--resume", "killed"))
    assert same(weights("unbroken"), weights("killed"))
    assert Path("killed/metrics.csv").read_text() == Path("unbroken/metrics.csv").read_text()
    assert results("killed") == results("unbroken")


@pytest.mark.slow
def test_two_processes_score_each_window_once_and_as_one_does():
    two = ["--trainer.devices=2", "--trainer.strategy=ddp", "--data.test_samples=7", "--data.eval_batch_size=2"]
    finish(command("train", *TINY, *two, "--run_dir=two"))
    together = results("two")
    assert together["n"] == 3 * 7
    alone = AtomCLI.of_run("two", args=[*QUIET, "--trainer.devices=1", "--trainer.strategy=auto"]).run_test()
    assert alone == pytest.approx(together, rel=1e-4)
    # Each process has made half of the steps' windows: 64 / (2 * 16) steps an epoch.
    assert load(newest(Path("two/checkpoints")))["global_step"] == 3 * 2
