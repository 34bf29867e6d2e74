"""The command `megs2 train` as a user runs it: what it writes and says, and one sentence where it cannot."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from megs2.app import Megs2CLI
from megs2.cli import main
from megs2.formats import load as load_scene
from megs2.mesh_scenes import mesh_scene
from megs2.module import psnr
from megs2.rasterizer import render
from shared.checkpoints import load, newest

QUIET = ["--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu", "--trainer.check_val_every_n_epoch=1"]
# 48 views of 20 x 20 and 300 Gaussians; pruning is in full swing where the first epoch ends, at step 48.
PHASES = ["--model.schedule.lobes_from=5", "--model.schedule.lobes_every=5", "--model.schedule.prune_from=30",
          "--model.schedule.prune_until=72", "--model.schedule.prune_every=6"]  # fmt: skip
TINY = [*QUIET, *PHASES, "--data.size=20", "--data.points=300", "--model.pruning.budget_mb=0.012",
        "--model.pruning.importance_views=2", "--trainer.max_steps=96"]  # fmt: skip
# Densification, a new start from depth and simplification are all within the first two epochs, and after each there
# is a checkpoint.
GROWING = ["--model.schedule.densify_from=5", "--model.schedule.densify_until=60", "--model.schedule.densify_every=10",
           "--model.schedule.reinit_every=25", "--model.schedule.simplify_at=70", "--model.schedule.lobes_from=75",
           "--model.schedule.prune_from=100", "--model.schedule.prune_until=130", "--model.growth.reinit_points=350",
           "--model.growth.blur_share=0.02", "--model.growth.cap=500", "--trainer.max_steps=144"]  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A working directory with the finished run `tiny`, and a cache of pictures of its own."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        assert main(["train", *TINY, "--run_dir=tiny"]) == 0
        yield folder


@pytest.fixture(autouse=True)
def inside(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)


def results(run: str) -> dict[str, float]:
    return json.loads(Path(run, "test.json").read_text())


def train(*options: str) -> dict[str, float]:
    """Train without a checkpoint or figures; returns the metrics."""
    return Megs2CLI([*TINY, *options, "--trainer.enable_checkpointing=false"], quiet=True).fit_and_test()


def weights(run: str) -> dict[str, torch.Tensor]:
    return load(newest(Path(run) / "checkpoints"))["state_dict"]


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(value, second[name]) for name, value in first.items())


def the_error(capsys: pytest.CaptureFixture[str]) -> str:
    """Return the one sentence that a refusal says."""
    errors = [line for line in capsys.readouterr().err.splitlines() if "error: " in line]
    assert len(errors) == 1
    return errors[0]


def test_train_leaves_the_scene_settings_metrics_figures_and_checkpoints() -> None:
    files = {str(file.relative_to("tiny")) for file in Path("tiny").rglob("*") if file.is_file()}
    assert files >= {
        "config.yaml", "metrics.csv", "test.json", "scene.ply", "scene.safetensors", "figures/training.png",
        "figures/views.png", "figures/lobes.png", "figures/lobe-map.png", "checkpoints/epoch=0001.ckpt",
    }  # fmt: skip


def test_the_scene_meets_its_budget_and_every_test_view_is_scored_once() -> None:
    metrics = results("tiny")
    assert metrics["n"] == 16
    assert 0.9 * 12 < metrics["kilobytes"] <= 12
    assert 0 < metrics["gaussians"] < 300
    assert metrics["psnr"] > 14  # an empty picture has about 8


@pytest.mark.parametrize("file", ["scene.ply", "scene.safetensors"])
def test_the_files_of_a_run_draw_what_was_tested(file: str) -> None:
    scene, capture = load_scene(Path("tiny", file)), mesh_scene("duck", size=20, points=300)
    scores = [psnr(render(scene, v.camera, capture.background).image.clamp(0, 1), v.image) for v in capture.test]
    assert sum(scores) / 16 == pytest.approx(results("tiny")["psnr"], abs=1e-3)
    assert scene.static_bytes() / 1e3 == pytest.approx(results("tiny")["kilobytes"])


def test_two_runs_of_one_seed_are_equal_and_those_of_two_seeds_are_not() -> None:
    first = results("tiny")
    assert train() == {name: pytest.approx(value, abs=0) for name, value in first.items()}
    assert train("--seed_everything=1") != first


@pytest.mark.parametrize("phases", [[], GROWING], ids=["pruning", "growing"])
def test_a_resumed_run_ends_with_the_weights_of_an_unbroken_one(phases: list[str]) -> None:
    name = "growing" if phases else "tiny"
    if phases:
        assert main(["train", *TINY, *phases, f"--run_dir={name}"]) == 0
    assert main(["train", *TINY, *phases, f"--run_dir={name}-broken", "--trainer.max_steps=48"]) == 0
    last = "144" if phases else "96"
    assert main(["train", "--resume", f"{name}-broken", f"--trainer.max_steps={last}"]) == 0
    assert results(name) == results(f"{name}-broken")
    assert same(weights(name), weights(f"{name}-broken"))


def test_growth_adds_gaussians_and_simplification_takes_them_away() -> None:
    if not Path("growing").exists():
        assert main(["train", *TINY, *GROWING, "--run_dir=growing"]) == 0
    import csv

    with Path("growing/metrics.csv").open(newline="") as file:
        sizes = [float(row["train/gaussians"]) for row in csv.DictReader(file) if row["train/gaussians"]]
    assert max(sizes) > 300
    assert results("growing")["kilobytes"] <= 12


@pytest.mark.parametrize(
    ("options", "check"),
    [
        (["--model.colour=sh"], lambda m: m["lobes"] == 0 and m["gaussians"] <= 12_000 / 236),
        (["--model.colour=sh", "--model.sh_degree=0"], lambda m: m["lobes"] == 0 and m["gaussians"] <= 12_000 / 56),
        (["--model.colour=fixed_axes"], lambda m: m["kilobytes"] <= 12),
        (["--model.lobes=0"], lambda m: m["lobes"] == 0),
        (["--model.pruning.method=hard"], lambda m: m["kilobytes"] <= 12),
        (["--model.pruning.choice=sequential"], lambda m: m["kilobytes"] <= 12),
        (["--model.pruning.choice=ratios", "--model.pruning.gaussian_share=0.7"], lambda m: m["gaussians"] == 90),
        (["--model.pruning.dual_updates=false", "--model.pruning.compensate=false"], lambda m: m["kilobytes"] <= 12),
        (["--model.pruning.sharpness_threshold=1e9"], lambda m: m["lobes"] == 0),
        (["--model.schedule.prune_from=null", "--model.schedule.prune_until=null"], lambda m: m["gaussians"] == 300),
        (["--model.pruning.budget_mb=1e-5"], lambda m: m["gaussians"] == 0 and 5 < m["psnr"] < 12),
        (["--model.backend=torch", "--trainer.max_steps=4"], lambda m: m["gaussians"] == 300),
    ],
    ids=lambda value: "" if callable(value) else " ".join(word.rpartition(".")[2] for word in value),
)
def test_baselines_and_ablations_run_and_keep_to_the_budget(options: list[str], check) -> None:
    metrics = train(*options)
    assert check(metrics), metrics
    assert metrics["n"] == 16


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--trainer.devices=2"], "trainer.devices must be 1 for a scene"),
        (["--data.scene=teapot"], "teapot"),
        (["--data.root=nowhere"], "nowhere: no such folder"),
        (["--data.root=tiny"], "tiny: expected sparse/0 (COLMAP) or transforms_train.json (NeRF-synthetic)"),
        (["--model.colour=paint"], "paint"),
        (["--model.lobes=4"], "lobes must lie in 0..3, got 4"),
        (["--model.backend=gsplat"], "backend gsplat needs a CUDA device, got cpu"),
        (["--model.schedule.prune_until=null"], "prune_from and prune_until go together"),
        (["--model.pruning.budget_mb=-1"], "budget_mb must be a finite number above 0, got -1"),
        (["--data.points=0"], "points must be at least 1, got 0"),
        (["--data.test_on=train"], "train"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_what_cannot_work_is_one_sentence_and_leaves_nothing(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *TINY, *options, "--run_dir=refused"]) == 2
    assert message in the_error(capsys)
    assert not Path("refused").exists()


def test_a_photograph_that_is_no_number_ends_the_run_with_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    from megs2 import data

    def damaged(*args: object, **options: object):
        capture = mesh_scene("duck", size=20, points=300)
        capture.train[5].image[3, 3] = float("nan")
        return capture

    monkeypatch.setattr(data, "mesh_scene", damaged)
    with pytest.raises(ValueError, match=r"the loss of step \d+ is nan: lower the rates, or look at the photographs"):
        train()


def test_a_run_can_be_tested_again() -> None:
    assert main(["test", "tiny", "--trainer.accelerator=cpu"]) == 0


@pytest.mark.slow
def test_a_run_that_is_killed_goes_on_from_its_last_checkpoint() -> None:
    command = [sys.executable, "-c", "import sys; from megs2.cli import main; sys.exit(main(sys.argv[1:]))", "train"]
    process = subprocess.Popen([*command, *TINY, "--run_dir=killed"], env=os.environ | {"OMP_NUM_THREADS": "1"})
    while not list(Path("killed/checkpoints").glob("*.ckpt")):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert main(["train", "--resume", "killed"]) == 0
    assert same(weights("tiny"), weights("killed"))


@pytest.mark.slow
def test_the_default_reaches_its_quality() -> None:
    metrics = Megs2CLI(["--trainer.accelerator=cpu", "--trainer.enable_checkpointing=false"], quiet=True).fit_and_test()
    assert metrics["kilobytes"] <= 100
    assert metrics["psnr"] > 27
