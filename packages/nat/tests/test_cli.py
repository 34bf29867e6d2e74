"""The command `nat` as a user runs it: what each verb writes and says, and one sentence where it cannot."""

import csv
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from nat.app import NATCLI
from nat.attack_suite import parse_eps
from nat.cli import main
from nat.models import create_model
from nat.module import NATModule
from PIL import Image
from safetensors.torch import load_file, save_file
from shared.checkpoints import load, newest
from sklearn.datasets import load_digits

QUIET = ["--trainer.enable_progress_bar", "false", "--trainer.accelerator", "cpu"]
TINY = [
    *QUIET, "--trainer.max_epochs", "1", "--trainer.limit_train_batches", "2", "--model.adversary.epochs", "1",
    "--model.steps", "1", "--model.val_steps", "1", "--model.test_attacks", "fgsm",
]  # fmt: skip
COMMAND = str(Path(sys.executable).with_name("nat"))  # Lightning starts further processes by the script's path


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A working directory with the finished run `tiny`, trained long enough to know most digits."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        longer = ["--trainer.max_epochs", "6", "--trainer.limit_train_batches", "9"]
        assert main(["train", *TINY, *longer, "--run_dir", "tiny"]) == 0
    return folder


@pytest.fixture(autouse=True)
def inside(home, monkeypatch):
    monkeypatch.chdir(home)


def weights(run):
    return load(newest(Path(run) / "checkpoints"))["state_dict"]


def target_weights(run):
    return {name: w for name, w in weights(run).items() if name.startswith("model.")}


def assert_same(first, second):
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


def model_of(run):
    return NATCLI.of_run(run, args=QUIET).model.model.eval()


def digit(number=3, index=0):
    """A test picture of 8 x 8 pixels as 8-bit grey, and its label."""
    digits = load_digits()
    place = np.flatnonzero(digits.target == number)[index]
    return Image.fromarray((digits.images[place] / 16 * 255).round().astype(np.uint8)), number


def values(picture):
    return torch.from_numpy(np.array(picture)).float()[None, None] / 255


def test_train_leaves_settings_metrics_checkpoints_adversary_and_results():
    files = {str(file.relative_to("tiny")) for file in Path("tiny").rglob("*") if file.is_file()}
    assert files == {
        "config.yaml", "metrics.csv", "test.json", "adversary/weights.safetensors", "adversary/metrics.csv",
        "adversary/checkpoints/best.ckpt", "adversary/checkpoints/epoch=0000.ckpt",
        "checkpoints/best.ckpt", "checkpoints/epoch=0004.ckpt", "checkpoints/epoch=0005.ckpt",
        "figures/training.png", "figures/geometry.png",
    }  # fmt: skip
    metrics = json.loads(Path("tiny/test.json").read_text())
    assert metrics["n"] == 597
    assert 0.1 < metrics["worst"] == metrics["fgsm"] < metrics["clean"]
    assert metrics["clean"] > 0.7
    with Path("tiny/metrics.csv").open(newline="") as file:
        logged = [row for row in csv.DictReader(file) if row["val/pgd"]]
    assert len(logged) == 6
    kept = load_file("tiny/adversary/weights.safetensors")
    assert_same({f"adversary.{name}": w for name, w in kept.items()},
                {name: w for name, w in weights("tiny").items() if name.startswith("adversary.")})  # fmt: skip


def test_the_best_checkpoint_has_the_highest_validation_pgd_accuracy_and_not_the_last_or_cleanest(monkeypatch):
    scores = {"val/pgd": [0.2, 0.9, 0.5], "val/clean": [0.1, 0.2, 0.9]}

    def validation_step(module, batch, index):
        for name, value in scores.items():
            module.log(name, value[module.current_epoch])

    monkeypatch.setattr(NATModule, "validation_step", validation_step)
    arguments = [*TINY, "--trainer.max_epochs", "3", "--trainer.num_sanity_val_steps", "0", "--run_dir", "best"]
    assert main(["train", "--model.method", "at_mix", *arguments]) == 0
    assert load(Path("best/checkpoints/best.ckpt"))["epoch"] == 1
    assert load(newest(Path("best/checkpoints")))["epoch"] == 2


def test_resuming_with_more_epochs_gives_the_weights_of_an_unbroken_run():
    constant = ["--model.optim.schedule", "constant", *TINY]
    assert main(["train", *constant, "--trainer.max_epochs", "3", "--run_dir", "whole"]) == 0
    assert main(["train", *constant, "--run_dir", "part"]) == 0
    first = target_weights("part")
    assert main(["train", "--resume", "part", "--trainer.max_epochs", "3"]) == 0
    assert_same(weights("whole"), weights("part"))
    assert not torch.equal(first["model.head.weight"], target_weights("part")["model.head.weight"])


def test_test_measures_the_same_again(capsys):
    assert main(["test", "tiny", *QUIET]) == 0
    table = capsys.readouterr().err
    for name, value in json.loads(Path("tiny/test.json").read_text()).items():
        assert re.search(rf"{name} +│ +{'597' if name == 'n' else f'{value:.4f}'}", table), name


def test_last_is_the_newest_run_and_select_takes_its_best_checkpoint(capsys):
    assert main(["train", *TINY, "--model.method", "vanilla"]) == 0
    (run,) = Path("runs/nat").iterdir()
    expected = f"{json.loads((run / 'test.json').read_text())['clean']:.4f}"
    capsys.readouterr()
    for select in ("last", "best", str(run / "checkpoints" / "best.ckpt")):  # one epoch: all the same
        assert main(["test", "last", "--select", select, *QUIET]) == 0
        assert expected in capsys.readouterr().err


def test_evaluate_writes_metrics_and_a_falling_curve():
    options = ["--attacks", "fgsm,pgd20", "--masking", "false", "--accelerator", "cpu"]
    assert main(["evaluate", "tiny", *options]) == 0
    report = json.loads(Path("tiny/evaluation/metrics.json").read_text())
    tested = json.loads(Path("tiny/test.json").read_text())
    assert report["metrics"]["clean"] == pytest.approx(tested["clean"])
    assert report["metrics"]["fgsm"] == pytest.approx(tested["fgsm"])  # it has no random start
    assert report["metrics"]["pgd20"] < tested["fgsm"]
    assert report["metrics"]["n"] == 597
    accuracies = [point["accuracy"] for point in report["curve"]]
    assert accuracies == sorted(accuracies, reverse=True)
    assert accuracies[0] == pytest.approx(tested["clean"])
    assert [point["eps"] for point in report["curve"]][4] == pytest.approx(0.15)
    with Path("tiny/evaluation/metrics.csv").open(newline="") as file:
        assert {row["metric"]: float(row["value"]) for row in csv.DictReader(file)} == report["metrics"]
    assert Image.open("tiny/evaluation/curve.png").size > (100, 100)


@pytest.mark.slow
def test_evaluate_reports_the_checks_for_masking(capsys):
    options = ["--attacks", "fgsm,pgd20,pgd100,square", "--accelerator", "cpu", "--out", "masking"]
    assert main(["evaluate", "tiny", *options]) == 0
    said = capsys.readouterr().err
    report = json.loads(Path("masking/metrics.json").read_text())
    assert [check["name"] for check in report["checks"]] == [
        "square", "wide_ball", "more_steps", "zero_gradients", "average_gap",
    ]  # fmt: skip
    assert all(check["message"] in said for check in report["checks"])


def test_evaluate_takes_a_fraction_and_another_folder():
    options = ["--attacks", "fgsm", "--eps", "0/255", "--masking", "false", "--out", "elsewhere"]
    assert main(["evaluate", "tiny", *options]) == 0
    report = json.loads(Path("elsewhere/metrics.json").read_text())
    assert report["metrics"]["fgsm"] == report["metrics"]["clean"]
    assert report["checks"] == []


def test_attack_changes_a_picture_within_eps_and_lowers_its_probability():
    picture, label = digit()
    picture.save("three.png")
    assert main(["attack", "three.png", "--run", "tiny", "--label", str(label), "--out", "attacked"]) == 0
    before, after = values(picture), values(Image.open("attacked/adversarial.png"))
    assert after.shape == before.shape
    change = (after - before).abs().max().item()
    assert 0.14 < change <= parse_eps("0.15") + 0.5 / 255 + 1e-6  # rounded to 8 bits
    model = model_of("tiny")
    with torch.no_grad():
        p, p_adv = model(before).softmax(1), model(after).softmax(1)
    assert p_adv[0, label] < p[0, label]
    assert Image.open("attacked/attack.png").size > (100, 100)


def test_predict_gives_the_models_output_for_each_picture_below_a_folder(capsys):
    Path("pictures/deep").mkdir(parents=True)
    for place, number in (("a.png", 3), ("deep/b.PNG", 7)):
        digit(number)[0].save(Path("pictures", place), format="png")
    Path("pictures/notes.txt").write_text("no picture")
    capsys.readouterr()
    assert main(["predict", "pictures", "--run", "tiny"]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [row["file"] for row in rows] == ["pictures/a.png", "pictures/deep/b.PNG"]
    model = model_of("tiny")
    for row, number in zip(rows, (3, 7), strict=True):
        with torch.no_grad():
            logits = model(values(digit(number)[0]))[0]
        p = logits.softmax(0)
        first, second = logits.topk(2).values
        assert row["label"] == str(logits.argmax().item()) == str(number)
        assert float(row["probability"]) == pytest.approx(p.max().item(), rel=1e-4)
        assert float(row["entropy"]) == pytest.approx(-(p * p.log()).sum().item(), rel=1e-4)
        assert float(row["margin"]) == pytest.approx((first - second).item(), rel=1e-4)
    Path("pictures/broken.png").write_text("no picture either")
    assert main(["predict", "pictures", "--run", "tiny", "--out", "table.csv"]) == 2
    assert list(csv.DictReader(Path("table.csv").read_text().splitlines())) == rows
    assert "1 of 3 pictures were left out: pictures/broken.png" in capsys.readouterr().err
    assert main(["predict", "pictures", "--run", "tiny", "--out", "pictures"]) == 2
    assert "out must name a file, got the folder pictures" in capsys.readouterr().err


def test_diagnose_compares_runs(capsys):
    assert main(["train", *TINY, "--model.method", "at_mix", "--run_dir", "control"]) == 0
    capsys.readouterr()
    assert main(["diagnose", "[tiny,control]", "--labels", "[NAT,control]", "--out", "both.png"]) == 0
    said = capsys.readouterr().err
    for label, run in (("NAT", "tiny"), ("control", "control")):
        (line,) = [line for line in said.splitlines() if line.startswith(f"{label}: ")]
        metrics = json.loads(Path(run, "test.json").read_text())
        for name in ("entropy", "margin", "boundary_distance"):
            printed = re.search(rf"{name.replace('_', ' ')} (-?[\d.e-]+)", line)
            assert float(printed[1]) == pytest.approx(metrics[name], rel=2e-3)
    assert Image.open("both.png").size > (100, 100)
    assert main(["diagnose", "[tiny,control]", "--labels", "[one]", "--out", "none.png"]) == 2
    assert "labels must be 2 different names, got one" in capsys.readouterr().err
    assert not Path("none.png").exists()


def test_exported_weights_and_torchscript_return_the_logits_of_the_run():
    x = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    assert main(["export", "tiny", "model.safetensors"]) == 0
    assert main(["export", "tiny", "model.pt", "--format", "torchscript"]) == 0
    with torch.no_grad():
        expected = model_of("tiny")(x)
        again = create_model("digits_cnn", 10, 1)
        again.load_state_dict(load_file("model.safetensors"))
        assert torch.equal(again.eval()(x), expected)
        traced = torch.jit.load("model.pt")
        for batch in (5, 1):  # it is not tied to the batch that it was traced with
            torch.testing.assert_close(traced(x[:batch]), expected[:batch])


def test_torchscript_runs_without_this_package():
    assert main(["export", "tiny", "alone.pt", "--format", "torchscript"]) == 0
    code = (
        "import sys, torch; out = torch.jit.load('alone.pt')(torch.full((2, 1, 8, 8), 0.5)); "
        "assert 'nat' not in sys.modules; print(out[0].tolist())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    with torch.no_grad():
        expected = model_of("tiny")(torch.full((2, 1, 8, 8), 0.5))[0]
    torch.testing.assert_close(torch.tensor(json.loads(done.stdout)), expected)


def test_an_adversary_trained_beforehand_gives_the_run_that_trains_it_itself():
    assert main(["train", *TINY, "--run_dir", "itself"]) == 0
    assert main(["train-adversary", *TINY, "--run_dir", "before"]) == 0
    assert not Path("before/test.json").exists()  # there is no target to test
    given = Path("before/adversary/weights.safetensors")
    assert given.read_bytes() == Path("itself/adversary/weights.safetensors").read_bytes()
    assert main(["train", *TINY, "--model.adversary.checkpoint", str(given), "--run_dir", "given"]) == 0
    assert not Path("given/adversary").exists()
    assert_same(weights("itself"), weights("given"))
    assert main(["train", "--resume", "before"]) == 0  # the second phase of the same run
    assert_same(weights("itself"), weights("before"))


@pytest.mark.parametrize("option", ["--model.adversary.state=random", "--model.adversary.checkpoint=w.safetensors"])
def test_there_is_nothing_to_train_for_an_adversary_that_is_given(option, capsys):
    assert main(["train-adversary", *TINY, option]) == 2
    assert "there is nothing to train" in capsys.readouterr().err


def test_a_users_callbacks_and_limits_are_for_the_target():
    stop = "[{class_path: EarlyStopping, init_args: {monitor: train/loss, mode: min, patience: 0}}]"
    assert main(["train", *TINY, "--trainer.callbacks", stop, "--trainer.max_steps", "1", "--run_dir", "limited"]) == 0
    reference = [*TINY, "--run_dir", "unlimited"]
    assert main(["train", *reference]) == 0
    files = [Path(run, "adversary/weights.safetensors").read_bytes() for run in ("limited", "unlimited")]
    assert files[0] == files[1]


def test_a_runs_checkpoint_serves_as_adversary():
    checkpoint = newest(Path("tiny/checkpoints"))
    assert main(["train", *TINY, "--model.adversary.checkpoint", str(checkpoint), "--run_dir", "of_run"]) == 0
    taken = {n.removeprefix("adversary."): w for n, w in weights("of_run").items() if n.startswith("adversary.")}
    assert_same(taken, {n.removeprefix("model."): w for n, w in target_weights("tiny").items()})


class Attack:
    """Unpickled by a careless loader, it leaves a folder behind."""

    def __reduce__(self):
        return os.mkdir, ("code-was-run",)


def write_pickle():
    Path("evil.ckpt").write_bytes(pickle.dumps({"state_dict": Attack()}, protocol=2))
    torch.save({"state_dict": Attack(), "manifest": {"package": "nat"}}, "evil.pt.ckpt")


def write_other_adversaries():
    save_file(create_model("digits_cnn", 7, 1).state_dict(), "classes.safetensors")
    save_file(create_model("mnist_cnn", 10, 1, 8).state_dict(), "network.safetensors")


GIVEN = "--model.adversary.checkpoint"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--model.omega", "-0.1"), "omega must be a finite number >= 0, got -0.1"),
        (("--model.temperature", "0"), "temperature must be a finite number > 0, got 0.0"),
        (("--model.eps", "nonsense"), "eps must be a number or fraction in [0, 1] such as 8/255, got 'nonsense'"),
        (("--model.test_attacks", "pgd20,fog"), "attacks must be names out of fgsm, pgdN"),
        (("--model.method", "magic"), "model.method"),
        (("--model.arch", "resnet19"), "model.arch"),
        (("--model.num_classes", "7"), "model.num_classes is 7, but the data has 10"),
        (("--model.in_channels", "3"), "model.in_channels is 3, but the data has 1"),
        (("--data.batch_size", "0"), "batch_size must be at least 1, got 0"),
        (("--data.dataset", "cifar10"), "root must name the folder of cifar10, got null"),
        (("--data.dataset", "cifar10", "--data.root", "nowhere"), "nowhere"),
        ((GIVEN, "nowhere.ckpt"), "there is no checkpoint nowhere.ckpt"),
        ((GIVEN, "nowhere.safetensors"), "there is no weights file nowhere.safetensors"),
        ((GIVEN, "evil.ckpt"), "mkdir, which could run code"),
        ((GIVEN, "evil.pt.ckpt"), "evil.pt.ckpt is refused: it holds"),
        ((GIVEN, "classes.safetensors"), "the adversary classes.safetensors does not fit"),
        ((GIVEN, "network.safetensors"), "the adversary network.safetensors does not fit"),
        (("--model.optim.lr", "-1"), "optim.lr must be a finite number > 0, got -1.0"),
        (("--model.adversary.epochs", "-1"), "adversary.epochs must be a finite number >= 1, got -1"),
        (("--model.awp_gamma", "-1"), "awp_gamma must be a finite number >= 0, got -1.0"),
        (("--model.max_divergence", "0"), "max_divergence must be a finite number > 0, got 0"),
        (("--model.val_steps", "-1"), "val_steps must be a finite number >= 0, got -1"),
        (("--model.num_classes", "-1"), "num_classes must be a finite number >= 2, got -1"),
        (("--trainer.devices", "0"), "trainer: "),
        (("--config", "nowhere"), "there is no config 'nowhere': give a YAML file or one of"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_settings_end_in_one_sentence_and_leave_no_run(options, message, capsys):
    write_pickle()
    write_other_adversaries()
    before = set(Path().rglob("*"))
    assert main(["train", *TINY, *options, "--run_dir", "bad"]) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if "error: " in line]
    assert len(errors) == 1
    assert errors[0].startswith("nat train: error: ")
    assert message in errors[0]
    assert not Path("code-was-run").exists()
    assert {path for path in Path().rglob("*") if path not in before} <= {Path("runs")}
    assert not Path("bad").exists()


def test_a_run_that_collapses_says_so_and_leaves_an_adversary_to_reuse(capsys):
    assert main(["train", *TINY, "--model.max_divergence", "1e-9", "--run_dir", "stopped"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "exceeds max_divergence 1e-09: the target earns more by differing from the adversary" in said
    assert "go on with: train --resume stopped" in said
    assert not Path("stopped/test.json").exists()
    assert main(["train", "--resume", "stopped", "--model.max_divergence", "100"]) == 2
    assert "a resumed run keeps its settings" in capsys.readouterr().err
    reuse = ["--model.adversary.checkpoint", "stopped/adversary/weights.safetensors"]
    assert main(["train", *TINY, *reuse, "--run_dir", "again"]) == 0
    assert main(["train", *TINY, "--run_dir", "unstopped"]) == 0
    assert_same(weights("unstopped"), weights("again"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("predict", "empty", "--run", "tiny"), "empty holds no pictures"),
        (("predict", "absent", "--run", "tiny"), "there is no folder absent"),
        (("predict", "fakes", "--run", "tiny"), "fakes/fake.png"),
        (("attack", "fakes/fake.png", "--run", "tiny"), "fakes/fake.png"),
        (("attack", "absent.png", "--run", "tiny"), "there is no picture absent.png"),
        (("attack", "three.png", "--run", "tiny", "--label", "10"), "label must lie in [0, 10), got 10"),
        (("attack", "three.png", "--run", "tiny", "--eps", "2"), "eps must be a number or fraction in [0, 1]"),
        (("evaluate", "nowhere"), "nowhere is no run folder: it has no config.yaml"),
        (("evaluate", "tiny", "--attacks", "fog"), "attacks must be names out of"),
        (("evaluate", "tiny", "--accelerator", "abacus"), "accelerator must be auto or, on this machine, cpu"),
        (("evaluate", "tiny", "--select", "nowhere.ckpt"), "there is no checkpoint nowhere.ckpt"),
        (("export", "nowhere", "out.pt"), "nowhere is no run folder"),
        (("test", "tiny", "--select", "evil.ckpt"), "evil.ckpt is refused"),
        (("train-adversary", *TINY, "--model.method", "trades"), "these settings need no adversary"),
        (("compare", "--methods", "[magic]", "--dry_run", "true"), "unknown name 'magic', expected some of nat"),
    ],
    ids=lambda value: " ".join(value[:4]) if isinstance(value, tuple) else "",
)
def test_bad_input_to_a_verb_is_one_sentence_and_nothing_is_written(words, message, capsys):
    Path("empty").mkdir(exist_ok=True)
    Path("fakes").mkdir(exist_ok=True)
    Path("fakes/fake.png").write_text("this is a text\n")
    digit()[0].save("three.png")
    write_pickle()
    before = set(Path().rglob("*"))
    assert main(list(words)) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if "error: " in line]
    assert len(errors) == 1
    assert errors[0].startswith(f"nat {words[0]}: error: ")
    assert message in errors[0]
    assert set(Path().rglob("*")) == before
    assert not Path("code-was-run").exists()


def command(*words, **options):
    return subprocess.Popen([COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)


def finish(process):
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    return output


# Fifteen steps of PGD and small batches make an epoch last long enough to be hit.
LONGER = [
    "train", *QUIET, "--model.test_attacks", "fgsm", "--model.val_steps", "1", "--model.steps", "15",
    "--model.adversary.epochs", "15", "--trainer.max_epochs", "4", "--data.batch_size", "32",
]  # fmt: skip


@pytest.fixture(scope="module")
def unbroken(home):
    finish(command(*LONGER, "--run_dir", "unbroken", cwd=home, env=one_thread()))
    return home / "unbroken"


def one_thread():
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["adversary", "target"])
def test_a_run_killed_in_either_phase_resumes_to_the_weights_of_an_unbroken_one(phase, unbroken):
    folder = Path(f"killed-{phase}")
    checkpoints = folder / ("checkpoints" if phase == "target" else "adversary/checkpoints")
    process = command(*LONGER, "--run_dir", str(folder), env=one_thread())
    deadline = time.monotonic() + 180
    while not (checkpoints / "epoch=0001.ckpt").exists():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.005)
    time.sleep(0.3 if phase == "target" else 0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert (folder / "checkpoints").exists() == (phase == "target")
    assert (folder / "adversary/weights.safetensors").exists() == (phase == "target")
    assert not (folder / "checkpoints/epoch=0003.ckpt").exists()
    finish(command("train", "--resume", str(folder), env=one_thread()))
    assert_same(weights(unbroken), weights(folder))
    kept = "adversary/weights.safetensors"
    assert_same(load_file(unbroken / kept), load_file(folder / kept))
    assert (folder / "metrics.csv").read_text() == (unbroken / "metrics.csv").read_text()


@pytest.mark.slow
def test_two_processes_train_nat_and_score_each_test_image_once(capsys):
    two = ["--trainer.devices", "2", "--trainer.strategy", "ddp", "--trainer.max_epochs", "6"]
    whole = ["--trainer.limit_train_batches", "1.0", "--run_dir", "two"]
    finish(command("train", *TINY, *two, *whole, env=one_thread()))
    together = json.loads(Path("two/test.json").read_text())
    assert together["n"] == 597
    assert main(["test", "two", *QUIET, "--trainer.devices", "1", "--trainer.strategy", "auto"]) == 0
    alone = capsys.readouterr().err
    cli = NATCLI.of_run("two", args=[*QUIET, "--trainer.devices", "1", "--trainer.strategy", "auto"])
    again = cli.run_test()
    assert 0.3 < together["clean"] < 1
    for name in ("clean", "fgsm", "worst", "n"):
        assert again[name] == together[name]
    assert f"{together['clean']:.4f}" in alone
