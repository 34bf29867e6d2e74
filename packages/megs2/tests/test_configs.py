"""Every config that comes with the package: found by globbing, parsed by the real command, and run a step."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import megs2
import pytest
import torch
import yaml
from megs2.app import Megs2CLI
from megs2.cli import PAPER
from PIL import Image
from shared.verbs import config_summaries

CONFIGS = sorted((Path(megs2.__file__).parent / "configs").glob("*.yaml"))
EMBEDDED = {"default", "diffuse", "full_pipeline"}
PRESETS = {"hq", "lm"}
SCALED = [config for config in CONFIGS if config.stem not in EMBEDDED | PRESETS]
every_config = pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.stem)

# What the release's tables say: simplification, Gaussians, lobes.
SHARES = {
    "bicycle": (0.75, 0.65, 0.65), "garden": (0.6, 0.55, 0.55), "room": (0.6, 0.7, 0.7), "playroom": (0.5, 0.65, 0.65),
    "drjohnson": (0.55, 0.65, 0.65), **dict.fromkeys(("stump", "treehill", "bonsai", "counter"), (0.55, 0.68, 0.68)),
    **dict.fromkeys(("flowers", "kitchen", "train", "truck"), (0.5, 0.68, 0.68)),
}  # fmt: skip
OUTDOORS = {"bicycle", "flowers", "garden", "stump", "treehill", "train", "truck"}


def words(config: Path) -> list[str]:
    """Return the arguments that name a config; a preset stands behind another."""
    return [*(["--config", "mip360_garden"] if config.stem in PRESETS else []), "--config", config.stem]


@cache
def parse(*arguments: str) -> Any:
    return Megs2CLI(arguments, parse_only=True, quiet=True).config


def test_there_is_one_for_each_scene_of_the_paper() -> None:
    scenes = {
        f"mip360_{s}"
        for s in ("bicycle", "flowers", "garden", "stump", "treehill", "room", "counter", "kitchen", "bonsai")
    }
    scenes |= {"tandt_train", "tandt_truck", "db_drjohnson", "db_playroom", "nerf_synthetic"}
    assert {config.stem for config in CONFIGS} == EMBEDDED | PRESETS | scenes


@every_config
def test_a_config_begins_with_what_it_is_and_how_it_is_run(config: Path) -> None:
    text, summary = config.read_text(), config_summaries(PAPER)[config.stem]
    assert len(summary.split()) >= 8
    assert summary.endswith(".")
    if config.stem == "default":
        assert "#   uv run --package megs2 train\n" in text
    elif config.stem in PRESETS:
        assert f"#   uv run --package megs2 train --config mip360_garden --config {config.stem}\n" in text
    else:
        assert f"#   uv run --package megs2 train --config {config.stem}" in text
    assert ("Not run here." in text) == (config.stem not in EMBEDDED)


@every_config
def test_every_value_of_a_config_arrives(config: Path) -> None:
    given, parsed = yaml.safe_load(config.read_text()), parse(*words(config))

    def check(part: dict[str, Any], found: Any, path: str) -> None:
        for key, value in part.items():
            if isinstance(value, dict):
                check(value, found[key], f"{path}{key}.")
            else:
                assert found[key] == value, path + key

    check(given, parsed, "")


@pytest.mark.parametrize("config", [c for c in SCALED if c.stem != "nerf_synthetic"], ids=lambda config: config.stem)
def test_scenes_of_the_paper_have_the_releases_values(config: Path) -> None:
    found, scene = parse("--config", config.stem), config.stem.rpartition("_")[2]
    pruning, schedule = found.model.pruning, found.model.schedule
    assert (found.model.growth.simplify_share, pruning.gaussian_share, pruning.lobe_share) == SHARES[scene]
    assert (schedule.prune_from, schedule.prune_until, schedule.prune_every, found.trainer.max_steps) == (
        25_200, 35_200, 50, 40_000,
    )  # fmt: skip
    assert (pruning.choice, pruning.sharpness_threshold, pruning.rho) == ("ratios", 1, 5e-4)
    assert pruning.per_area == (scene in OUTDOORS)
    assert found.model.growth.cap == 4_500_000
    assert found.data.root.endswith(f"/{scene}")
    if config.stem.startswith("mip360"):
        assert found.data.images == ("images_4" if scene in OUTDOORS else "images_2")


@pytest.mark.parametrize(("preset", "megabytes"), [("hq", 55), ("lm", 40)])
def test_presets_put_the_joint_budget_in_the_place_of_shares(preset: str, megabytes: float) -> None:
    found = parse("--config", "mip360_room", "--config", preset)
    assert (found.model.pruning.choice, found.model.pruning.budget_mb) == ("joint", megabytes)
    assert found.model.schedule.prune_from == 25_200
    assert found.data.images == "images_2"


def capture(folder: Path, images: str) -> None:
    """Write a small COLMAP capture in text."""
    (folder / "sparse" / "0").mkdir(parents=True)
    (folder / images).mkdir()
    (folder / "sparse/0/cameras.txt").write_text("1 PINHOLE 40 32 40 40 20 16\n")
    lines = []
    for i in range(9):
        lines.append(f"{i + 1} 1 0 0 0 {0.1 * i} 0 0 1 {i}.png\n\n")
        Image.new("RGB", (20, 16), (20 * i, 90, 120)).save(folder / images / f"{i}.png")
    (folder / "sparse/0/images.txt").write_text("".join(lines))
    g = torch.Generator().manual_seed(0)
    points = torch.rand(60, 3, generator=g) * 2 - torch.tensor([1.5, 1.0, -3.0])
    rows = (f"{i} {x} {y} {z} 200 100 50 0.1\n" for i, (x, y, z) in enumerate(points.tolist()))
    (folder / "sparse/0/points3D.txt").write_text("".join(rows))


@pytest.mark.parametrize("stem", ["mip360_garden", "mip360_room", "db_playroom"])
def test_a_config_of_the_paper_runs_all_of_its_phases_on_a_shrunken_capture(stem: str, tmp_path: Path) -> None:
    found = parse("--config", stem)
    capture(tmp_path / "scene", found.data.images or "images")
    steps = {"densify_from": 2, "densify_until": 12, "densify_every": 3, "reinit_every": 5, "simplify_at": 12,
             "lobes_from": 13, "lobes_every": 2, "prune_from": 18, "prune_until": 26, "prune_every": 4}  # fmt: skip
    shrunk = [f"--model.schedule.{name}={step}" for name, step in steps.items()]
    metrics = Megs2CLI.run_cell(
        ["--config", stem, *shrunk, f"--data.root={tmp_path / 'scene'}", "--trainer.max_steps=30",
         "--model.growth.reinit_points=80", "--model.growth.cap=200", "--trainer.accelerator=cpu"], 0,
    )  # fmt: skip
    assert metrics["n"] == 2  # images 0 and 8 of nine
    assert 0 < metrics["gaussians"] < 200
