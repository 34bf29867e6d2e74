"""The comparison: its cells, that all methods are treated alike, and what a cell measures."""

from pathlib import Path

import pytest
from difflift.app import DiffLiftCLI
from difflift.comparison import ABLATIONS, CELLS, HYPERGRAPH, METHODS, SAME_AS, SETTINGS, TUNINGS, run_cell, study
from difflift.report import REPORT
from shared.claims import load_claims
from shared.results import Record, Results

STATIC = {"none", "gin", "cycle", "clique", "khop", "knn", "cycle cells", "knn cells"}
COMPARED = [name for name in SETTINGS if not name.startswith("ablations")]


@pytest.fixture(scope="module")
def untuned(tmp_path_factory):
    return study(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="module")
def cells(untuned):
    return untuned.cells(list(untuned.methods), list(untuned.settings), range(2))


def settings_of(arguments):
    return DiffLiftCLI(arguments, parse_only=True, quiet=True).config


def test_every_setting_has_its_methods_on_each_seed(untuned, cells):
    found = {(cell.setting, cell.method, cell.seed) for cell in cells}
    assert found == {(s, method, seed) for s in SETTINGS for method in untuned.only[s] for seed in range(2)}
    for setting in COMPARED:
        assert "difflift" in untuned.only[setting]
        assert "none" in untuned.only[setting]
        assert len(STATIC & set(untuned.only[setting])) >= 3
    assert set(ABLATIONS) <= set(untuned.only["ablations"])
    assert "default" in untuned.only["ablations-cwn"]


def test_no_two_methods_of_a_setting_are_the_same(cells):
    for setting in SETTINGS:
        hashes = {cell.method: cell.config_hash for cell in cells if cell.setting == setting}
        assert len(set(hashes.values())) == len(hashes), setting


def test_a_static_lifting_takes_no_option_over_from_the_learned_one(untuned):
    for setting in COMPARED:
        for method in STATIC & set(untuned.only[setting]):
            found = settings_of(untuned.arguments(method, setting)).model.lifting
            given = {option.split("=")[0].rsplit(".", 1)[1] for option in METHODS[method] if "init_args" in option}
            alone = settings_of([*SETTINGS["solubility"], *METHODS[method]]).model.lifting
            assert found == alone, (setting, method)
            assert found.class_path != "difflift.DiffLift"
            assert given <= {"cells"}


def test_methods_of_a_setting_differ_in_lifting_and_network_alone(untuned):
    for setting in COMPARED:
        ours = settings_of(untuned.arguments("difflift", setting))
        for method in untuned.only[setting]:
            other = settings_of(untuned.arguments(method, setting))
            assert other.data == ours.data
            assert other.trainer.max_epochs == ours.trainer.max_epochs
            differing = {key for key in vars(ours.model) if ours.model[key] != other.model[key]}
            assert differing <= ({"lifting", "network"} if method == "gin" else {"lifting"}), (setting, method)


def test_tuning_scores_validation_graphs_of_other_seeds_with_one_budget(untuned):
    for tuning in TUNINGS:
        assert tuning.arguments == ["--data.test_on=val"]
        assert not set(tuning.seeds) & set(range(10))
        assert len({len(candidates) for candidates in tuning.candidates.values()}) == 1
        assert set(untuned.only[tuning.setting]) <= set(tuning.candidates)


def test_what_one_setting_tunes_serves_those_that_say_so(untuned, tmp_path):
    trials = Results("difflift", "0.1.0")
    for tuning in TUNINGS:
        for method, candidates in tuning.candidates.items():
            for rank, candidate in enumerate(candidates):
                for seed in tuning.seeds:
                    name = " ".join([method, *candidate])
                    score = {"accuracy": 0.5 + 0.1 * (rank == 1), "n": 1.0}
                    trials.add(Record(name, seed, tuning.setting, score, 1.0, "0", {}, "cpu"))
    (tmp_path / "tuning").mkdir()
    trials.save(tmp_path / "tuning" / "results.json")
    tuned = study(tmp_path).tuned
    for setting, other in SAME_AS.items():
        for method in untuned.only[setting]:
            assert tuned[method, setting] == tuned[method, other]
    assert tuned["knn", "mutag"] == ["--model.lr=0.005"]
    assert not [key for key in tuned if key[1].startswith("ablations")]


def test_claims_name_what_is_compared(untuned):
    claims = load_claims(
        Path(__file__).parents[1] / "results" / "claims.yaml",
        methods=untuned.methods,
        settings=untuned.settings,
        metrics=[metric.name for metric in REPORT.metrics],
    )
    for claim in claims:
        assert {claim.better, *claim.than} <= set(untuned.only[claim.setting])


def test_labels_and_titles_are_complete():
    assert set(REPORT.titles) == set(SETTINGS)
    assert set(REPORT.labels) == set(METHODS)
    assert set(HYPERGRAPH) | set(CELLS) == set(METHODS)


def test_a_cell_trains_and_scores_each_graph_of_a_fold():
    fast = ["--config=mutag", "--trainer.max_epochs=1", "--trainer.accelerator=cpu"]
    found = [run_cell("none", "mutag", seed, [*fast, *METHODS["none"]]) for seed in range(5)]
    assert sum(metrics["n"] for metrics in found) == 188
    assert all(metrics["added"] == 0 for metrics in found)
    assert all(metrics["accuracy"] * metrics["n"] == pytest.approx(round(metrics["accuracy"] * metrics["n"]), abs=1e-4)
               for metrics in found)  # fmt: skip
