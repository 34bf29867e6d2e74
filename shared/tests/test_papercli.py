"""`train` as a user runs it, on a tiny paper in a temporary workspace: run folders, resuming, processes, errors."""

import csv
import json
import logging
import signal
import subprocess
import time
from importlib import import_module

import pytest
import torch
import yaml
from shared.checkpoints import load
from shared.papercli import config_hash
from shared.runs import claimed, find_run, new_run_folder
from workspace import environment_of, make_workspace, run


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    return make_workspace(tmp_path_factory.mktemp("papercli"))


@pytest.fixture(scope="module")
def unbroken(workspace):
    result = run(workspace, "alpha", "train", "--run_dir", "unbroken")
    assert result.returncode == 0, result.stderr
    return workspace / "unbroken", result


@pytest.fixture
def alpha(workspace, monkeypatch):
    """The command `alpha` in this process, which is quicker than another one."""
    monkeypatch.chdir(workspace)
    monkeypatch.syspath_prepend(workspace / "packages" / "alpha" / "src")
    monkeypatch.delenv("PAPERS_RUN", raising=False)
    logger = logging.getLogger()
    kept = logger.handlers[:], logger.level
    yield import_module("alpha.cli").main
    logger.handlers[:], logger.level = kept


def weights(run_folder):
    return load(run_folder / "checkpoints" / "epoch=0003.ckpt")["state_dict"]


def start_and_kill(workspace, folder, after):
    """Start a slow run and kill -9 it in the epoch that follows the checkpoint `after`."""
    words, slow = ("alpha", "train", "--run_dir", folder), environment_of(workspace, TINY_SECONDS_A_STEP="0.1")
    process = subprocess.Popen(words, cwd=workspace, env=slow, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not (workspace / folder / "checkpoints" / after).exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(0.25)  # a few of the next epoch's eight steps
    process.send_signal(signal.SIGKILL)
    process.wait()


def test_a_run_leaves_settings_metrics_checkpoints_and_results(unbroken):
    folder, result = unbroken
    names = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
    assert names == {
        "config.yaml", "metrics.csv", "test.json", "figures/training.png",
        "checkpoints/best.ckpt", "checkpoints/epoch=0002.ckpt", "checkpoints/epoch=0003.ckpt",
    }  # fmt: skip
    assert yaml.safe_load((folder / "config.yaml").read_text())["trainer"]["max_epochs"] == 4
    metrics = json.loads((folder / "test.json").read_text())
    assert metrics["n"] == 7
    assert f"{metrics['loss']:.4f}" in result.stderr
    assert "run folder: unbroken" in result.stderr
    with (folder / "metrics.csv").open(newline="") as file:
        logged = [float(row["val/loss"]) for row in csv.DictReader(file) if row["val/loss"]]
    assert len(logged) == 4
    assert logged[-1] == pytest.approx(metrics["loss"], rel=1e-5)  # the same seven items


def test_a_killed_run_resumes_to_the_weights_of_an_unbroken_one(workspace, unbroken):
    start_and_kill(workspace, "killed", after="epoch=0001.ckpt")
    result = run(workspace, "alpha", "train", "--resume", "killed")
    assert result.returncode == 0, result.stderr
    assert "epoch 3/4" in result.stderr
    assert "epoch 2/4" not in result.stderr
    expected, found = weights(unbroken[0]), weights(workspace / "killed")
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert (workspace / "killed/metrics.csv").read_text() == (unbroken[0] / "metrics.csv").read_text()


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_run_that_is_asked_to_stop_says_how_to_go_on_and_does_not_count_as_done(workspace, sent, code):
    folder = f"stopped{code}"
    words, slow = ("alpha", "train", "--run_dir", folder), environment_of(workspace, TINY_SECONDS_A_STEP="0.1")
    process = subprocess.Popen(words, cwd=workspace, env=slow, stderr=subprocess.PIPE, text=True)
    while not (workspace / folder / "checkpoints" / "epoch=0000.ckpt").exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(sent)
    printed = process.communicate(timeout=60)[1]
    assert process.returncode == code, printed
    assert f"go on with: train --resume {folder}" in printed
    assert not (workspace / folder / ".lock").exists()


def test_resuming_passes_over_a_damaged_checkpoint(workspace, unbroken):
    start_and_kill(workspace, "damaged", after="epoch=0001.ckpt")
    for name in ("epoch=0001.ckpt", "best.ckpt"):
        file = workspace / "damaged" / "checkpoints" / name
        file.write_bytes(file.read_bytes()[:-200])
    result = run(workspace, "alpha", "train", "--resume", "damaged")
    assert result.returncode == 0, result.stderr
    said = " ".join(result.stderr.split())
    assert "epoch=0001.ckpt is truncated" in said
    assert "falling back to damaged/checkpoints/epoch=0000.ckpt" in said
    expected, found = weights(unbroken[0]), weights(workspace / "damaged")
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_two_processes_train_and_score_each_test_item_once(workspace, unbroken):
    two = ("--trainer.devices", "2", "--trainer.strategy", "ddp")
    result = run(workspace, "train", "alpha", *two, "--run_dir", "two")
    assert result.returncode == 0, result.stderr
    metrics = json.loads((workspace / "two" / "test.json").read_text())
    assert metrics["n"] == 7
    alone = run(workspace, "alpha", "test", "two", "--trainer.devices", "1", "--trainer.strategy", "auto")
    assert f"{metrics['loss']:.4f}" in alone.stderr
    assert not torch.equal(weights(workspace / "two")["net.weight"], weights(unbroken[0])["net.weight"])


def test_two_runs_at_once_have_folders_of_their_own(workspace, unbroken):
    words = ("alpha", "train", "--trainer.max_epochs", "1", "--seed_everything", "77")
    started = [
        subprocess.Popen(words, cwd=workspace, env=environment_of(workspace), stderr=subprocess.PIPE) for _ in range(2)
    ]
    assert [process.wait(120) for process in started if process.communicate()] == [0, 0]
    folders = [f for f in (workspace / "runs" / "alpha").iterdir() if "-77" in f.name]
    assert len(folders) == 2
    a, b = (load(f / "checkpoints" / "epoch=0000.ckpt")["state_dict"]["net.weight"] for f in folders)
    assert torch.equal(a, b)  # one seed, one machine, one result


def test_wandb_without_a_key_writes_offline_and_asks_nothing(workspace):
    words = ("alpha", "train", "--logger", "wandb", "--trainer.max_epochs", "1", "--run_dir", "wandb_run")
    result = run(workspace, *words, HOME=str(workspace), NETRC=str(workspace / "netrc"))
    assert result.returncode == 0, result.stderr
    assert len(list((workspace / "wandb_run" / "wandb").glob("offline-run-*/*.wandb"))) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--model.nope", "3"), "unrecognized arguments: --model.nope 3"),
        (("--data.n", "many"), 'Parser key "data.n"'),
        (("--config", "nope"), "there is no config 'nope': give a YAML file or one of default"),
        (("--resume", "nowhere"), "nowhere is no run folder: it has no config.yaml"),
        (("--run_dir", "/dev/null/run"), "/dev/null/run: Not a directory"),
        (("--seed_everything", "-1"), "seed must lie in"),
        (("--model.fail_at", "0", "--run_dir", "failed"), "the data of this epoch is bad"),
        (("--resume", "unbroken", "--model.lr", "1"), "a resumed run keeps its settings"),
        (("--trainer.devices", "0"), "trainer: "),
        (("--run_dir", "unbroken"), "the run folder unbroken is not empty; resume it with --resume unbroken"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_bad_options_are_one_sentence_and_leave_nothing_behind(workspace, unbroken, alpha, capfd, options, message):
    before = {file for file in workspace.rglob("*") if "__pycache__" not in file.parts}
    assert alpha(["train", *options]) == 2
    printed = capfd.readouterr().err
    error = [line for line in printed.splitlines() if line.startswith("alpha train: error: ")]
    assert len(error) == 1, printed
    assert message in error[0]
    assert "Traceback" not in printed
    assert {file for file in workspace.rglob("*") if "__pycache__" not in file.parts} == before


def test_a_failing_run_that_has_a_checkpoint_keeps_it_and_says_how_to_go_on(workspace, alpha, capfd):
    assert alpha(["train", "--model.fail_at", "2", "--run_dir", "half"]) == 2
    assert "go on with: train --resume half" in capfd.readouterr().err
    assert (workspace / "half" / "checkpoints" / "epoch=0001.ckpt").exists()


def test_an_unknown_key_in_a_config_file_is_named(workspace, alpha, capfd):
    (workspace / "mine.yaml").write_text("model:\n  learning_rate: 1\n")
    assert alpha(["train", "--config", "mine.yaml"]) == 2
    assert "learning_rate" in capfd.readouterr().err.splitlines()[0]


def test_info_prints_the_hash_that_checkpoints_carry(workspace, unbroken):
    printed = run(workspace, "alpha", "info").stdout
    facts = dict(line.split(maxsplit=1) for line in printed.splitlines())
    carried = load(unbroken[0] / "checkpoints" / "best.ckpt")["manifest"]
    assert facts["alpha"] == carried["version"] == "0.1.0"
    assert printed.splitlines()[-1].split() == ["settings", "hash", carried["config_hash"]]


def test_the_hash_ignores_the_seed_and_what_only_concerns_output():
    config = {"seed_everything": 0, "model": {"lr": 1}, "trainer": {"max_epochs": 4}}
    other = {"seed_everything": 1, "run_dir": "x", "model": {"lr": 1}, "trainer": {"max_epochs": 4}}
    assert config_hash(config, "alpha") == config_hash(other, "alpha")
    other["trainer"]["enable_progress_bar"] = False
    assert config_hash(config, "alpha") == config_hash(other, "alpha")
    other["model"]["lr"] = 2
    assert config_hash(config, "alpha") != config_hash(other, "alpha")
    assert config_hash(config, "alpha") != config_hash(config, "beta")


def test_the_hash_changes_with_a_minor_release_and_not_with_a_patch(monkeypatch):
    hashes = []
    for release in ("0.1.0", "0.1.7", "0.2.0"):
        monkeypatch.setattr("shared.papercli.package_version", lambda _, release=release: release)
        hashes.append(config_hash({"model": {"lr": 1}}, "alpha"))
    assert hashes[0] == hashes[1] != hashes[2]


def test_a_run_folder_belongs_to_one_process_at_a_time(tmp_path):
    with claimed(tmp_path):
        assert new_run_folder("alpha", 0, tmp_path) == tmp_path  # the lock alone does not make it taken
        with pytest.raises(ValueError, match="another process is writing to this run"), claimed(tmp_path):
            pass
    with claimed(tmp_path):
        pass
    assert not list(tmp_path.iterdir())


def test_a_taken_folder_name_gets_a_counter_and_last_is_the_newest(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = [new_run_folder("alpha", 3) for _ in range(3)]
    assert len(set(folders)) == 3
    with pytest.raises(FileNotFoundError, match="there is no run under"):
        find_run("alpha", "last")
    for name in ("20260101-000000-0", "20260102-000000-0"):
        (tmp_path / "runs/alpha" / name).mkdir()
        (tmp_path / "runs/alpha" / name / "config.yaml").write_text("{}")
    assert find_run("alpha", "last").name == "20260102-000000-0"
