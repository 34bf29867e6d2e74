"""The command `orderdp` as a user runs it: what each verb writes and says, and one sentence where it cannot."""

import csv
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import orderdp.data
import orderdp.module
import pytest
import torch
from orderdp.app import OrderDPCLI
from orderdp.cli import main
from orderdp.data import ImageData
from orderdp.datasets import ImageTensors, read_digits
from orderdp.models import SmallCNN
from orderdp.module import OrderDPModule
from PIL import Image
from shared.checkpoints import load, newest

QUIET = ["--trainer.enable_progress_bar", "false", "--trainer.accelerator", "cpu"]
DIGITS = ["--data.dataset", "digits", "--model.image_size", "8"]
TINY = [*QUIET, *DIGITS, "--trainer.max_epochs", "3"]
COMMAND = str(Path(sys.executable).with_name("orderdp"))  # Lightning starts further processes by the script's path

# 1,200 digits less a tenth for validation; 0.3 of them are kept, 0.5 are drawn.
N, Q = 1080, 324


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A working directory with the finished run `tiny`, trained long enough to know most digits."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["train", *TINY, "--trainer.max_epochs", "12", "--data.batch_size", "16", "--run_dir", "tiny"]) == 0
    return folder


@pytest.fixture(autouse=True)
def inside(home, monkeypatch):
    monkeypatch.chdir(home)


def checkpoint(run):
    return load(newest(Path(run) / "checkpoints"))


def state(run):
    """The pruner's state in a run's newest checkpoint."""
    return checkpoint(run)["OrderDPData"]["pruner"]


def results(run):
    return json.loads(Path(run, "test.json").read_text())


def train(*options):
    """A run without figures; its metrics and its pruner."""
    cli = OrderDPCLI([*TINY, *options], quiet=True)
    return cli.fit_and_test(), cli.datamodule.pruner


def same_tensors(first, second):
    return first.keys() == second.keys() and all(torch.equal(value, second[name]) for name, value in first.items())


def assert_same_run(first, second):
    assert same_tensors(checkpoint(first)["state_dict"], checkpoint(second)["state_dict"])
    one, other = state(first), state(second)
    for name in ("scores", "visits"):
        assert torch.equal(one[name], other[name]), name
    for name in ("skipped", "rounds_begun", "seen"):
        assert one[name] == other[name], name


def the_error(capsys):
    """The one sentence that a refusal says."""
    errors = [line for line in capsys.readouterr().err.splitlines() if "error: " in line]
    assert len(errors) == 1
    return errors[0]


def printed_rows(text):
    """The two columns of a table without heading, as a dictionary."""
    rows = [line.strip("│ ").split("│") for line in text.splitlines() if line.startswith("│")]
    return {name.strip(): value.strip() for name, value in rows}


def test_train_leaves_settings_metrics_checkpoints_figures_and_results():
    files = {str(file.relative_to("tiny")) for file in Path("tiny").rglob("*") if file.is_file()}
    assert files == {
        "config.yaml", "metrics.csv", "test.json", "figures/training.png", "figures/usage.png",
        "checkpoints/best.ckpt", "checkpoints/epoch=0010.ckpt", "checkpoints/epoch=0011.ckpt",
    }  # fmt: skip
    with Path("tiny/metrics.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["val/accuracy"]]
    assert [int(row["step"]) for row in rows] == [21 * epoch + 20 for epoch in range(12)]
    assert all(row["train/grad_norm"] and row["train/grad_norm_variance"] and row["train/lr"] for row in rows)
    assert load(Path("tiny/checkpoints/best.ckpt"))["epoch"] == max(
        range(12), key=lambda epoch: float(rows[epoch]["val/accuracy"])
    )


def test_the_test_tells_the_exact_budget_beside_the_accuracy_on_all_597_images():
    metrics = results("tiny")
    assert metrics["n"] == 597
    assert metrics["accuracy"] > 0.8  # a tenth would be chance
    assert metrics["seen"] == Q / N == 0.3
    assert metrics["samples"] == 12 * Q
    assert metrics["steps"] == 12 * 21  # ceil(324 / 16)
    assert state("tiny")["visits"].sum() == 12 * Q


def test_test_measures_the_same_again(capsys):
    assert main(["test", "tiny", *QUIET]) == 0
    table = capsys.readouterr().err
    for name in ("accuracy", "loss", "n"):
        value = results("tiny")[name]
        assert re.search(rf"{name} +│ +{'597' if name == 'n' else f'{value:.4f}'}", table), name


def test_plan_prints_the_numbers_worked_out_by_hand(capsys):
    assert main(["plan", "50000", "--prune", "0.7", "--explore", "0.5", "--out", "plan.png"]) == 0
    rows = printed_rows(capsys.readouterr().err)
    # γ_1 = s/n, as nothing can outrank the first; the median is kept nearly always where κ = 0.6 of a pool is.
    assert rows == {
        "pool s": "25000",
        "kept q": "15000",
        "exploration ρ = s/n": "0.5",
        "exploitation κ = q/s": "0.6",
        "kept q/n": "0.3",
        "steps an epoch": "118 instead of 391",
        "steps in 200 epochs": "23600 instead of 78200",
        "never kept in a round": "10000 samples of lowest score",
        "chance of the highest score": "0.5, of the median 0.5, by chance 0.3",
    }
    assert Image.open("plan.png").size > (100, 100)


@pytest.mark.parametrize("prune", ["0.1", "0.2", "0.3", "0.4", "0.6", "0.7", "0.8", "0.9"])
def test_plan_takes_a_pool_that_is_just_what_is_kept(prune, capsys):
    explore = f"{1 - float(prune):.1f}"
    assert main(["plan", "1000", "--prune", prune, "--explore", explore]) == 0
    rows = printed_rows(capsys.readouterr().err)
    assert rows["pool s"] == rows["kept q"] == str(1000 - round(1000 * float(prune)))


@pytest.mark.parametrize("text", ["3\n1\n4\n1.5\n2\n", "index,score,visits\n0,3,2\n1,1,1\n2,4,5\n3,1.5,1\n4,2,0\n"])
def test_plan_compares_given_losses_with_the_mean_over_all_pools(text, capsys):
    Path("losses.csv").write_text(text)
    assert main(["plan", "5", "--prune", "0.6", "--explore", "0.6", "--losses", "losses.csv"]) == 0
    rows = printed_rows(capsys.readouterr().err)
    pools = list(itertools.combinations((3, 1, 4, 1.5, 2), 3))
    expected = sum(sum(sorted(pool)[-2:]) / 2 for pool in pools) / len(pools)
    assert rows["mean loss L"] == "2.3"
    assert rows["surrogate L_q"] == f"{expected:.6g}, {expected / 2.3:.4g} times L" == "2.825, 1.228 times L"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("0", "n must be at least 1, got 0"),
        ("10 --prune 1", "prune must lie in [0, 1), got 1.0"),
        ("10 --prune -0.1", "prune must lie in [0, 1), got -0.1"),
        ("10 --prune .nan", "prune must lie in [0, 1), got nan"),
        ("10 --explore 0.2", "explore must lie in [keep, 1] = [0.3, 1]: the pool holds what is kept; got 0.2"),
        ("10 --explore 1.1", "got 1.1"),
        ("10 --batch_size 0", "batch_size must be at least 1, got 0"),
        ("10 --epochs 0", "epochs must be at least 1, got 0"),
        ("1", "keep 0.3 of 1 samples rounds to none"),
        ("10 --losses nowhere.txt", "there is no file nowhere.txt"),
        ("10 --losses four.txt", "four.txt holds 4 losses, expected n = 10"),
        ("4 --losses words.txt", "words.txt must hold one loss a line or a column `score` or `loss`"),
        ("4 --losses infinite.txt", "infinite.txt: loss 2 is inf, as of a sample never trained on"),
        ("4 --losses empty.txt", "empty.txt must hold at least one loss"),
        ("2 --losses short.csv", "short.csv must hold one loss a line"),
        ("4 --losses picture.png", "picture.png must hold one loss a line"),
    ],
)
def test_a_plan_that_cannot_be_made_is_one_sentence_and_draws_nothing(words, message, capsys):
    Path("four.txt").write_text("1\n2\n3\n4\n")
    Path("words.txt").write_text("1\n2\nthree\n4\n")
    Path("infinite.txt").write_text("1\n2\ninf\n4\n")
    Path("empty.txt").write_text("")
    Path("short.csv").write_text("index,score\n0,1.5\n1\n")
    Image.new("L", (8, 8)).save("picture.png")
    assert main(["plan", *words.split(), "--out", "none.png"]) == 2
    error = the_error(capsys)
    assert error.startswith("orderdp plan: error: ")
    assert message in error
    assert not Path("none.png").exists()


def test_usage_lists_the_most_used_samples_of_the_checkpoint(capsys):
    assert main(["usage", "--run", "tiny", "--top", "7", "--out", "usage.png"]) == 0
    said = capsys.readouterr().err
    visits, scores = state("tiny")["visits"], state("tiny")["scores"]
    listed = [[cell.strip() for cell in line.strip("│").split("│")] for line in said.splitlines() if line[:1] == "│"]
    ranked = sorted(range(N), key=lambda i: (visits[i].item(), scores[i].item()), reverse=True)[:7]
    assert listed == [[str(i), str(visits[i].item()), f"{scores[i].item():.4f}"] for i in ranked]
    summary = " ".join(said.split())
    assert f"{N} samples in 12 rounds: trained on {12 * Q} times, {(visits == 0).sum()} samples never" in summary
    assert f"the most used {visits.max()} times" in summary
    assert Image.open("usage.png").size > (100, 100)


def test_usage_replaces_the_runs_own_figure_with_the_same(capsys):
    figure = Path("tiny/figures/usage.png")
    drawn = figure.read_bytes()
    figure.unlink()
    assert main(["usage", "--run", "tiny"]) == 0
    assert figure.read_bytes() == drawn


def test_exported_scores_are_those_of_the_checkpoint():
    assert main(["export-scores", "scores.csv", "--run", "tiny"]) == 0
    with Path("scores.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    found = state("tiny")
    assert [int(row["index"]) for row in rows] == list(range(N))
    assert [int(row["visits"]) for row in rows] == found["visits"].tolist()
    scores = torch.tensor([float(row["score"]) for row in rows])
    torch.testing.assert_close(scores, found["scores"], rtol=1e-7, atol=0)
    assert sum(int(row["visits"]) for row in rows) == results("tiny")["samples"]
    assert 0 <= scores.min() < 0.1 < scores.max() < 20  # cross-entropies of a network that has learnt


def test_what_export_scores_writes_is_what_plan_reads(capsys):
    assert main(["export-scores", "again.csv", "--run", "tiny"]) == 0
    capsys.readouterr()
    assert main(["plan", str(N), "--losses", "again.csv"]) == 0
    rows = printed_rows(capsys.readouterr().err)
    scores = state("tiny")["scores"].double()
    assert float(rows["mean loss L"]) == pytest.approx(scores.mean().item(), rel=1e-5)
    assert float(rows["surrogate L_q"].split(",")[0]) > 1.1 * scores.mean()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("usage", "--run", "nowhere"), "nowhere is no run folder: it has no config.yaml"),
        (("usage", "--run", "tiny", "--top", "0"), "top must be at least 1, got 0"),
        (("usage", "--run", "tiny", "--select", "gone.ckpt"), "there is no checkpoint gone.ckpt"),
        (("export-scores", "out.csv", "--run", "nowhere"), "nowhere is no run folder"),
        (("export-scores", "tiny", "--run", "tiny"), "out must name a file, got the folder tiny"),
        (("compare", "--methods", "[magic]", "--dry_run", "true"), "unknown name 'magic', expected some of orderdp"),
    ],
    ids=" ".join,
)
def test_bad_input_to_a_verb_is_one_sentence_and_nothing_is_written(words, message, capsys):
    before = set(Path().rglob("*"))
    assert main(list(words)) == 2
    error = the_error(capsys)
    assert error.startswith(f"orderdp {words[0]}: error: ")
    assert message in error
    assert set(Path().rglob("*")) == before


def test_two_runs_of_one_seed_are_equal_and_of_another_are_not():
    metrics = {}
    for run, seed in (("first", "3"), ("second", "3"), ("other", "4")):
        metrics[run], _ = train("--seed_everything", seed, "--run_dir", run)
    assert_same_run("first", "second")
    assert {**metrics["first"], "train_seconds": 0} == {**metrics["second"], "train_seconds": 0}
    for name in ("scores", "visits"):
        assert not torch.equal(state("first")[name], state("other")[name])
    assert not same_tensors(checkpoint("first")["state_dict"], checkpoint("other")["state_dict"])


@pytest.mark.parametrize("policy", ["orderdp", pytest.param("infobatch", marks=pytest.mark.slow)])
def test_a_run_stopped_within_an_epoch_resumes_to_an_unbroken_ones_weights_scores_and_seconds(policy, monkeypatch):
    clock = itertools.count()
    monkeypatch.setattr(orderdp.module, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    arguments = ["train", *TINY, "--trainer.max_epochs", "5", "--data.pruning.policy", policy]
    whole, part = f"whole-{policy}", f"part-{policy}"
    seconds = train(*arguments[1:], "--run_dir", whole)[0]["train_seconds"]

    def stop(module, *args):
        if (module.current_epoch, args[-1]) == (3, 2):
            raise ValueError("stopped")
        return step(module, *args)

    with monkeypatch.context() as patch:
        step = OrderDPModule.training_step
        patch.setattr(OrderDPModule, "training_step", stop)
        assert main([*arguments, "--run_dir", part]) == 2
    assert state(part)["rounds_begun"] == 3
    assert not Path(part, "test.json").exists()
    assert main(["train", "--resume", part]) == 0
    assert_same_run(whole, part)
    assert Path(part, "metrics.csv").read_text() == Path(whole, "metrics.csv").read_text()
    # The clock ticks once a batch: an epoch lasts from its start to its last batch, and validation is no part of it.
    assert seconds == results(part)["train_seconds"] == results(part)["steps"]


@pytest.mark.parametrize(
    ("policy", "seen"),
    [
        ("orderdp", 0.3),
        ("random", 0.3),
        ("topq", 0.3),
        ("ucb", 0.3),
        ("eps_greedy", 0.3),
        ("full", 1.0),
        ("static", (N + 2 * Q) / (3 * N)),
        ("infobatch", None),
    ],
)
def test_every_policy_trains_and_sees_what_it_should(policy, seen):
    metrics, pruner = train("--data.pruning.policy", policy)
    visits = pruner.scores.visits
    assert metrics["samples"] == visits.sum()
    if seen is not None:
        assert metrics["seen"] == seen
    else:  # all at first, then what is not below the mean and about half of the rest
        assert (1 + 2 * (1 - 0.5)) / 3 < metrics["seen"] < 1
        assert metrics["seen"] == visits.sum() / (3 * N)
    assert visits.max() <= 3
    if policy == "full":
        assert (visits == 3).all()


def test_a_pool_for_every_step_costs_the_same():
    metrics, _ = train("--data.pruning.round", "step")
    assert (metrics["seen"], metrics["samples"], metrics["steps"]) == (0.3, 3 * Q, 3 * 6)


def test_no_forward_pass_is_made_for_the_selection(monkeypatch):
    passes = {True: [], False: []}
    forward = SmallCNN.forward

    def counted(network, x):
        passes[network.training].append(len(x))
        return forward(network, x)

    monkeypatch.setattr(SmallCNN, "forward", counted)
    train()
    assert passes[True] == 3 * [64, 64, 64, 64, 64, Q - 5 * 64]
    # One batch of 120 held-out images before training, all of them after each epoch, then the test set.
    assert passes[False] == [120, 120, 120, 120, 299, 298]


def test_training_on_all_images_needs_no_validation(capsys):
    metrics, _ = train("--data.val_fraction", "0", "--run_dir", "all")
    assert metrics["samples"] == 3 * 360  # 0.3 of 1,200
    assert sorted(file.name for file in Path("all/checkpoints").iterdir()) == ["epoch=0001.ckpt", "epoch=0002.ckpt"]
    assert main(["usage", "--run", "all", "--select", "best"]) == 2
    assert "there is no checkpoint all/checkpoints/best.ckpt" in the_error(capsys)


def nan_digits(index):
    """The digits, with an image of NaN at an index of the training part."""
    data = ImageData("digits")
    data.setup()
    digits = read_digits()
    images = digits.images.clone()
    images[data.parts["train"].chosen[index]] = torch.nan
    return lambda: ImageTensors(images, digits.labels, digits.class_names)


def test_a_loss_that_is_no_number_names_its_sample_and_leaves_no_run(monkeypatch, capsys):
    monkeypatch.setattr(orderdp.data, "read_digits", nan_digits(1005))
    assert main(["train", *TINY, "--data.pruning.policy", "full", "--run_dir", "nan"]) == 2
    assert the_error(capsys) == "orderdp train: error: the loss of sample 1005 is nan, expected a number"
    assert not Path("nan").exists()


def test_losses_that_are_no_numbers_are_skipped_and_counted_on_request(monkeypatch, capsys):
    monkeypatch.setattr(orderdp.data, "read_digits", nan_digits(1005))
    options = ["--data.pruning.policy", "full", "--data.pruning.non_finite", "skip"]
    _, pruner = train(*options)
    scores = pruner.scores
    assert scores.visits[1005] == 0
    assert scores.values[1005] == np.inf
    assert not np.isnan(scores.values).any()
    # The step after it spoils the weights, so that nothing is stored from then on.
    assert scores.skipped + scores.visits.sum() == 3 * N
    assert scores.skipped > 2 * N
    assert f"{scores.skipped} losses were not finite" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--data.pruning.keep 0", "keep must lie in (0, 1], got 0.0"),
        ("--data.pruning.keep 1.5", "keep must lie in (0, 1], got 1.5"),
        ("--data.pruning.keep 0.6", "explore must lie in [keep, 1] = [0.6, 1], got 0.5"),
        ("--data.pruning.keep 0.0001", "keep 0.0001 of 1080 samples rounds to none"),
        ("--data.pruning.policy nonsense", "data.pruning.policy"),
        ("--data.pruning.policy ucb --data.pruning.round step", "round must be epoch for the policy ucb, got step"),
        ("--data.pruning.initial_score .nan", "initial_score must be a number or inf, got nan"),
        ("--model.optim.max_lr 0", "optim.max_lr must be a finite number > 0, got 0.0"),
        ("--model.num_classes 7", "model.num_classes must be 10 for digits, got 7"),
        ("--model.in_channels 3", "model.in_channels must be 1 for digits, got 3"),
        ("--model.image_size 28", "model.image_size must be 8 for digits, got 28"),
        ("--model.label_smoothing 1", "label_smoothing must lie in [0, 1), got 1.0"),
        ("--trainer.max_epochs -1", "trainer.max_epochs must be set"),
        ("--trainer.max_epochs -1 --data.pruning.policy infobatch", "infobatch needs the number of rounds"),
        ("--trainer.reload_dataloaders_every_n_epochs 0", "reload_dataloaders_every_n_epochs must be 1"),
        ("--data.batch_size 0", "batch_size must be at least 1, got 0"),
        ("--data.dataset cifar10", "root must name the folder of cifar10, got null"),
        ("--data.dataset cifar10 --data.root nowhere --model.in_channels 3 --model.image_size 32", "nowhere"),
        ("--data.dataset imagefolder --data.root nowhere --model.in_channels 3 --model.image_size 224", "nowhere"),
        ("--config nowhere", "there is no config 'nowhere': give a YAML file or one of"),
    ],
)
def test_bad_settings_end_in_one_sentence_and_leave_no_run(options, message, capsys):
    before = set(Path().rglob("*"))
    assert main(["train", *TINY, *options.split(), "--run_dir", "bad"]) == 2
    error = the_error(capsys)
    assert error.startswith("orderdp train: error: ")
    assert message in error
    assert set(Path().rglob("*")) == before


def command(*words):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    return subprocess.Popen(
        [COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )


def finish(process):
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output


@pytest.mark.parametrize("policy", ["orderdp", "static"])
def test_resuming_a_finished_run_changes_none_of_its_results(policy):
    run = f"finished-{policy}"
    assert main(["train", *TINY, "--data.pruning.policy", policy, "--run_dir", run]) == 0
    before = results(run)
    assert main(["train", "--resume", run]) == 0
    assert results(run) == before


def test_a_run_with_a_checkpoint_within_its_first_epoch_only_can_be_resumed(monkeypatch):
    validate = ["--trainer.val_check_interval", "0.5", "--data.batch_size", "64"]

    def stop(module, *rest):
        if module.global_step == 5:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(OrderDPModule, "on_train_batch_end", stop)
        assert main(["train", *TINY, *validate, "--run_dir", "early"]) == 130
    assert [file.name for file in Path("early/checkpoints").iterdir()] == ["best.ckpt"]
    assert main(["train", "--resume", "early"]) == 0
    assert results("early")["n"] == 597


def test_testing_on_images_of_another_shape_is_one_sentence(capsys):
    assert main(["test", "tiny", "--data.dataset", "mnist5k"]) == 2
    assert "model.image_size must be 28 for mnist5k, got 8" in the_error(capsys)


@pytest.mark.slow
def test_a_run_killed_within_an_epoch_resumes_to_the_weights_and_scores_of_an_unbroken_one():
    # Small batches make an epoch last long enough to be hit.
    longer = ["train", *QUIET, "--trainer.max_epochs", "4", "--data.batch_size", "4"]
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
    assert state("killed")["rounds_begun"] == 2
    finish(command("train", "--resume", "killed"))
    assert_same_run("unbroken", "killed")
    assert Path("killed/metrics.csv").read_text() == Path("unbroken/metrics.csv").read_text()
    assert {**results("killed"), "train_seconds": 0} == {**results("unbroken"), "train_seconds": 0}


@pytest.mark.slow
def test_two_processes_divide_the_selection_of_one_and_score_each_test_image_once():
    two = [*TINY, "--trainer.max_epochs", "2", "--trainer.devices", "2", "--trainer.strategy", "ddp"]
    finish(command("train", *two, "--run_dir", "two"))
    assert main(["train", *TINY, "--trainer.max_epochs", "2", "--run_dir", "one"]) == 0
    metrics = results("two")
    assert metrics["n"] == 597
    assert metrics["seen"] == 0.3
    assert metrics["samples"] == 2 * Q
    assert metrics["steps"] == 2 * 3  # ceil(324 / (2 * 64))
    # The second round still takes images never seen: whatever the losses, it is the one that a single process makes.
    together, alone = state("two"), state("one")
    assert together["visits"].sum() == 2 * Q
    assert torch.equal(together["visits"], alone["visits"])
    assert torch.equal(together["scores"].isfinite(), together["visits"] > 0)
    assert main(["test", "two", *QUIET, "--trainer.devices", "1", "--trainer.strategy", "auto"]) == 0
