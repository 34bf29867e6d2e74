"""The comparison: its cells, that both operators are treated alike, and what a cell measures."""

from inspect import signature
from pathlib import Path

import pytest
from atom import ATOM, EGNO
from atom.app import AtomCLI
from atom.baselines import FITTED, FREE, TRIVIAL
from atom.cli import PAPER
from atom.comparison import EGNO_OPTIONS, METHODS, SAME_AS, SETTINGS, TUNINGS, run_cell, study
from atom.evaluate import trivial_scores
from shared.claims import load_claims
from shared.results import Record, Results

DATA = Path(__file__).parent / "data"
OPERATORS = ("atom", "egno")
COMPARED = [name for name in SETTINGS if not name.startswith(("ablations", "ten"))]
SMALL = [
    "--config=default", f"--data.root={DATA}", "--data.train=[CH3CH2OH]", "--data.test=[C5H5N,CH3CHO]",
    "--data.horizon=16", "--data.horizon_range=[8,20]", "--data.train_samples=30", "--data.test_samples=20",
    "--trainer.max_epochs=1", "--trainer.accelerator=cpu", "--model.operator.init_args.depth=1",
]  # fmt: skip


@pytest.fixture(scope="module")
def untuned(tmp_path_factory):
    return study(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="module")
def cells(untuned):
    return untuned.cells(list(untuned.methods), list(untuned.settings), untuned.seeds)


def settings_of(arguments):
    return AtomCLI(arguments, parse_only=True, quiet=True).config


def test_every_setting_has_its_methods_on_each_seed(untuned, cells):
    found = {(cell.setting, cell.method, cell.seed) for cell in cells}
    assert len(found) == len(cells)
    assert found == {
        (setting, method, seed) for setting in SETTINGS for method in untuned.only[setting] for seed in range(3)
    }
    for setting in COMPARED:
        assert set(OPERATORS) | set(FREE) <= set(untuned.only[setting])
        # Only one that was trained on has windows to fit to.
        one = len(settings_of(SETTINGS[setting]).data.train) == 1
        assert set(FITTED) <= set(untuned.only[setting]) if one else set(FITTED).isdisjoint(untuned.only[setting])
    for setting in ("ten", "ten-random"):
        assert set(untuned.only[setting]) == {*FREE, *FITTED}
    for setting in ("ablations", "ablations-unseen"):
        assert "default" in untuned.only[setting]
        assert len(untuned.only[setting]) > 3


def test_no_two_settings_of_operators_are_the_same(cells):
    hashes = {(cell.setting, cell.method): cell.config_hash for cell in cells if cell.method not in TRIVIAL}
    # An ablation's default is ATOM untuned, as in the setting of one molecule.
    assert len(set(hashes.values())) >= len(hashes) - 1
    for setting in SETTINGS:
        of_setting = [value for (at, _), value in hashes.items() if at == setting]
        assert len(set(of_setting)) == len(of_setting)


def test_a_hash_does_not_depend_on_the_seed(cells):
    of_seed = [{(c.setting, c.method): c.config_hash for c in cells if c.seed == seed} for seed in range(3)]
    assert of_seed[0] == of_seed[1] == of_seed[2]


def test_egno_gets_all_its_options_and_none_of_atoms():
    assert EGNO_OPTIONS.keys() == signature(EGNO).parameters.keys()
    found = settings_of([*SETTINGS["unseen"], *METHODS["egno"]]).model.operator
    assert found.class_path == "atom.EGNO"
    assert found.init_args.as_dict() == EGNO_OPTIONS
    assert (
        settings_of(SETTINGS["unseen"]).model.operator.init_args.as_dict().keys() == signature(ATOM).parameters.keys()
    )


def test_egno_has_the_published_sizes():
    published = {"depth": 5, "width": 64, "modes": 2, "time_width": 32, "radial": 0, "clamp": 100.0}
    assert {name: EGNO_OPTIONS[name] for name in published} == published


@pytest.mark.parametrize("setting", COMPARED)
def test_both_operators_make_the_same_steps_on_the_same_windows(untuned, setting):
    atom, egno = (settings_of(untuned.arguments(method, setting)) for method in OPERATORS)
    assert atom.data.as_dict() == egno.data.as_dict()
    assert atom.trainer.as_dict() == egno.trainer.as_dict()


def test_unseen_molecules_are_the_same_whatever_is_trained_on():
    unseen, corpus = (settings_of([f"--config={name}"]).data for name in ("default", "corpus"))
    assert unseen.test == corpus.test
    assert set(unseen.train) < set(corpus.train)
    assert set(corpus.train).isdisjoint(corpus.test)


def test_nothing_that_is_tested_on_takes_part_in_tuning():
    for tuning in TUNINGS:
        default = settings_of(SETTINGS[tuning.setting]).data
        for method in OPERATORS:
            for candidate in tuning.candidates[method]:
                found = settings_of([*SETTINGS[tuning.setting], *METHODS[method], *candidate, *tuning.arguments]).data
                assert found.test_on == "val"
                assert {*found.train, *found.val} == set(default.train)
                assert not found.test
    assert {tuning.setting for tuning in TUNINGS} | SAME_AS.keys() == set(COMPARED)


def test_both_operators_have_as_many_candidates_and_seeds_that_are_not_compared_on(untuned):
    for tuning in TUNINGS:
        assert len(tuning.candidates["atom"]) == len(tuning.candidates["egno"])
        assert set(tuning.seeds).isdisjoint(untuned.seeds)
        for candidates in tuning.candidates.values():
            assert len({tuple(candidate) for candidate in candidates}) == len(candidates)


def test_what_is_tuned_on_one_setting_serves_its_sibling_too(tmp_path):
    records = [
        Record(" ".join([method, *candidate]), seed, tuning.setting, {"s2t": abs(place - 1.0)}, 1.0, "0", {}, "cpu")
        for tuning in TUNINGS
        for method, candidates in tuning.candidates.items()
        for place, candidate in enumerate(candidates)
        for seed in tuning.seeds
    ]
    (tmp_path / "tuning").mkdir()
    Results("atom", "0.1.0", records).save(tmp_path / "tuning" / "results.json")
    found = study(tmp_path)
    for tuning in TUNINGS:
        for method, candidates in tuning.candidates.items():
            assert found.tuned[method, tuning.setting] == candidates[1]  # the lowest error
    for setting, other in SAME_AS.items():
        for method in OPERATORS:
            assert found.tuned[method, setting] == found.tuned[method, other]
    assert not {setting for _, setting in found.tuned} & {"ablations", "ablations-unseen"}


def test_the_claims_are_about_what_is_compared(untuned):
    metrics = [metric.name for metric in untuned.report.metrics]
    claims = load_claims(
        PAPER.results / "claims.yaml", methods=untuned.methods, settings=untuned.settings, metrics=metrics
    )
    assert len(claims) >= 5
    for claim in claims:
        others = [claim.than] if isinstance(claim.than, str) else claim.than
        assert {claim.better, *others} <= set(untuned.only[claim.setting])


def test_a_cell_of_a_trivial_predictor_is_its_scores_beside_the_better_of_two():
    data = AtomCLI(SMALL, quiet=True).datamodule
    data.setup()
    scores = trivial_scores(data)
    best = min(scores[name]["s2t"] for name in FREE)
    relative = {}
    for name in FREE:
        found = run_cell(name, "small", 0, SMALL)
        relative[name] = found.pop("relative")
        assert found == scores[name]
        assert relative[name] == pytest.approx(found["s2t"] / best)
    assert min(relative.values()) == 1


def test_a_cell_of_an_operator_is_a_run_scored_on_each_window_once():
    found = run_cell("atom", "small", 0, SMALL)
    assert found["n"] == 3 * 20
    assert {"s2t", "s2s", "seen_s2t", "relative", "rotation_ratio", "lag1", "lag8", "s2t/C5H5N"} <= found.keys()
    identity = run_cell("identity", "small", 0, SMALL)
    assert found["s2t"] < 2 * identity["s2t"]  # one step from the identity
    assert found["s2t"] != identity["s2t"]
