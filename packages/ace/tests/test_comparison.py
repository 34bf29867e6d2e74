"""The comparison: its cells, that all methods are treated alike, and what a cell measures."""

from pathlib import Path

import pytest
from ace.app import AceCLI
from ace.comparison import ABLATIONS, METHODS, SETTINGS, run_cell, study
from ace.report import REPORT
from shared.claims import load_claims

from .openai_server import OpenAIServer

COMPARED = [name for name in SETTINGS if name != "ablations"]


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    return study(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="module")
def cells(compared):
    return compared.cells(list(compared.methods), list(compared.settings), range(2))


def settings_of(arguments):
    return AceCLI(arguments, parse_only=True, quiet=True).config


def test_every_setting_has_its_methods_on_each_seed(compared, cells):
    found = {(cell.setting, cell.method, cell.seed) for cell in cells}
    assert found == {(s, method, seed) for s in SETTINGS for method in compared.only[s] for seed in range(2)}
    assert set(compared.only["country"]) == set(METHODS)
    assert {"ace", "base", "rewrite"} <= set(compared.only["country-online"])
    assert set(compared.only["ablations"]) == set(ABLATIONS)
    assert len(compared.seeds) >= 5  # one seed is some 15 questions


def test_no_two_methods_of_a_setting_are_the_same(cells):
    for setting in SETTINGS:
        hashes = {cell.method: cell.config_hash for cell in cells if cell.setting == setting}
        assert len(set(hashes.values())) == len(hashes), setting


def test_the_seed_is_no_part_of_a_methods_hash(cells):
    for setting in SETTINGS:
        for method in {cell.method for cell in cells if cell.setting == setting}:
            assert len({c.config_hash for c in cells if (c.setting, c.method) == (setting, method)}) == 1


def test_methods_of_a_setting_differ_in_what_is_adapted_alone(compared):
    for setting in COMPARED:
        ours = settings_of(compared.arguments("ace", setting))
        for method in compared.only[setting]:
            other = settings_of(compared.arguments(method, setting))
            assert other.data == ours.data and other.trainer == ours.trainer
            assert {key for key in vars(ours.model) if ours.model[key] != other.model[key]} <= {"method"}


def test_every_method_with_a_context_has_the_same_budget_and_feedback(compared):
    for setting in COMPARED:
        for method in compared.only[setting]:
            options = settings_of(compared.arguments(method, setting)).model.method.get("init_args", {})
            if method != "base":
                assert options.get("budget") == 300, (setting, method)
            assert options.get("feedback", "label") == "label"
            assert "playbook" not in options or options.playbook is None  # nothing is brought along


def test_an_ablation_changes_one_thing_of_the_default(compared):
    def flat(namespace):
        kept = ("model", "data", "trainer")
        return {key: value for key, value in namespace.items() if key.split(".")[0] in kept}

    default = flat(settings_of(compared.arguments("default", "ablations")))
    for name in ABLATIONS:
        other = flat(settings_of(compared.arguments(name, "ablations")))
        changed = {key for key in default.keys() | other.keys() if default.get(key) != other.get(key)}
        # Without a Reflector there is nothing to verify.
        assert len(changed) == {"default": 0, "no reflector": 2}.get(name, 1), (name, changed)


def test_claims_name_what_is_compared(compared):
    claims = load_claims(
        Path(__file__).parents[1] / "results" / "claims.yaml",
        methods=compared.methods,
        settings=compared.settings,
        metrics=[metric.name for metric in REPORT.metrics],
    )
    assert claims
    for claim in claims:
        assert {claim.better, *claim.than} <= set(compared.only[claim.setting])
        assert claim.min_seeds <= len(compared.seeds)


def test_titles_and_labels_are_complete():
    assert set(REPORT.titles) == set(SETTINGS)
    assert set(METHODS) <= set(REPORT.labels) | {REPORT.method}
    assert {REPORT.method, *REPORT.baselines} == set(METHODS)


def test_a_cell_scores_each_country_once_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with OpenAIServer(lambda body: "I do not know.") as server:
        fast = [
            "--config=default", "--data.countries=3", "--trainer.accelerator=cpu", "--model.backend=ace.OpenAIBackend",
            f"--model.backend.init_args.base_url={server.url}", "--trainer.enable_progress_bar=false",
            "--trainer.val_check_interval=1",
        ]  # fmt: skip
        found = {name: run_cell(name, "country", 0, [*fast, *METHODS[name]]) for name in ("ace", "base")}
    assert all((metrics["n"], metrics["accuracy"]) == (3, 0) for metrics in found.values())
    # No lesson mends an answer, so none is learned: three rounds each of a lesson and an answer with it.
    assert found["ace"]["bullets"] == 0
    assert found["base"]["completion_tokens"] > 0 and found["base"]["calls"] < found["ace"]["calls"]
    assert not list(tmp_path.iterdir())
