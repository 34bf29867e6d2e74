from __future__ import annotations

from pathlib import Path

import pytest
from megs2 import comparison
from megs2.app import Megs2CLI
from megs2.comparison import METHODS, PRUNED, run_cell, study
from megs2.report import BUDGETS, REPORT, draw_curve
from shared.records import Record, Results

RESULTS = Path(comparison.__file__).parents[2] / "results"


def options_of(words: list[str]):
    return Megs2CLI(words, parse_only=True, quiet=True).config


def test_everything_at_a_budget_has_that_budget_and_the_same_steps() -> None:
    found = study(RESULTS)
    for budget in BUDGETS:
        for method in PRUNED:
            config = options_of(found.arguments(method, f"glossy-{budget}"))
            assert config.trainer.max_steps == 1296
            assert config.model.pruning.budget_mb == pytest.approx(budget / 1000)
            assert config.model.schedule.prune_from == 528
            assert config.data.test_on == "test"


def test_an_ablation_changes_one_thing() -> None:
    found = study(RESULTS)
    default = options_of(found.arguments("megs2", "ablations")).model
    changed = {
        "sequential": ("choice",), "hard": ("method",), "no compensation": ("compensate",),
        "no dual updates": ("dual_updates",), "ratios": ("choice", "dual_updates", "gaussian_share", "lobe_share"),
    }  # fmt: skip
    for method, names in changed.items():
        pruning = options_of(found.arguments(method, "ablations")).model.pruning
        different = {name for name in vars(pruning) if pruning[name] != default.pruning[name]}
        assert different == set(names), method
    for method, lobes in (("0 lobes", 0), ("1 lobe", 1), ("2 lobes", 2)):
        assert options_of(found.arguments(method, "ablations")).model.lobes == lobes


def test_every_method_was_tuned_over_as_many_candidates_on_validation_views() -> None:
    (tuning,) = study(RESULTS).tunings
    assert {len(candidates) for candidates in tuning.candidates.values()} == {6}
    assert set(tuning.candidates) == set(PRUNED)
    assert "--data.test_on=val" in tuning.arguments
    assert not set(tuning.seeds) & set(range(9))


def test_a_seed_stands_for_a_scene(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(Megs2CLI, "run_cell", classmethod(lambda cls, words, seed: seen.append((words[0], seed)) or {}))
    for seed in range(4):
        run_cell("megs2", "glossy-100", seed, [])
    run_cell("megs2", "diffuse", 2, [])
    scenes = ["duck", "mug", "torus", "duck", "duck_diffuse"]
    assert seen == [(f"--data.scene={scene}", seed) for scene, seed in zip(scenes, [0, 1, 2, 3, 2], strict=True)]


def test_all_that_is_shown_has_a_label() -> None:
    assert {REPORT.method, *REPORT.baselines} == set(METHODS)
    assert set(REPORT.titles) == set(study(RESULTS).settings)


def test_the_curve_is_drawn_from_the_records(tmp_path: Path) -> None:
    records = [
        Record("megs2", seed, f"glossy-{b}", {"psnr": 20.0 + b / 50, "kilobytes": float(b)}, 1.0, "0", {}, "cpu")
        for b in BUDGETS
        for seed in range(2)
    ]
    draw_curve(Results("megs2", "0.1.0", records), tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 5000
