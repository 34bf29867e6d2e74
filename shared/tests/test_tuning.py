"""Tuning: the same budget for every method, the best mean on validation data, and what the comparison makes of it."""

from dataclasses import replace

import pytest
from shared.results import Metric, Report, Study
from shared.tuning import Tuning, chosen, grid, tune

# Score of each candidate by seed. The best mean of `ours` is b (5.5), although c has the best single run.
SCORES = {
    ("ours", "a"): {7: 4.0, 8: 4.0},
    ("ours", "b"): {7: 5.0, 8: 6.0},
    ("ours", "c"): {7: 9.0, 8: 1.0},
    ("plain", "d"): {7: 3.0, 8: 3.0},
    ("plain", "e"): {7: 2.0, 8: 2.0},
    ("plain", "f"): {7: 3.0, 8: 3.0},
}
TUNING = Tuning(
    setting="easy",
    candidates={"ours": [["--x=a"], ["--x=b"], ["--x=c"]], "plain": [["--x=d"], ["--x=e"], ["--x=f"]]},
    arguments=["--on=val"],
    seeds=(7, 8),
    metric="score",
)


@pytest.fixture
def runs():
    return []


@pytest.fixture
def study(tmp_path, runs):
    def run(method, setting, seed, arguments):
        runs.append((setting, seed, arguments))
        _, kind, candidate, *_ = arguments
        key = kind.removeprefix("--kind="), candidate.removeprefix("--x=")
        value = SCORES[key][seed]
        if value is None:
            raise RuntimeError("the run failed")
        return {"score": value}

    return Study(
        package="paper",
        folder=tmp_path / "results",
        methods={"ours": ["--kind=ours"], "plain": ["--kind=plain"], "untuned": ["--kind=untuned"]},
        settings={"easy": ["--config=easy"], "hard": ["--config=hard"]},
        seeds=range(2),
        run=run,
        hash_of="|".join,
        report=Report("ours", ["plain"], [Metric("score", "score")]),
        only={"easy": ["ours", "plain"]},
    )


def test_a_grid_is_every_combination_the_last_option_fastest():
    assert grid({"model.lr": [0.1, 2e-5]}) == [["--model.lr=0.1"], ["--model.lr=2e-05"]]
    assert grid({"flag": ["false", "true"]}) == [["--flag=false"], ["--flag=true"]]
    assert grid({"a": [1, 2], "b": (0.5, 3)}) == [
        ["--a=1", "--b=0.5"], ["--a=1", "--b=3"], ["--a=2", "--b=0.5"], ["--a=2", "--b=3"],
    ]  # fmt: skip


@pytest.mark.parametrize("budget", [1, 2, 4])
def test_a_method_with_another_number_of_candidates_is_refused(budget):
    candidates = {"ours": [["--x=a"]] * 3, "plain": [["--x=d"]] * budget}
    with pytest.raises(ValueError, match=f"as many candidates, got {{'ours': 3, 'plain': {budget}}}"):
        replace(TUNING, candidates=candidates)


def test_every_candidate_runs_once_with_every_seed_of_the_tuning_and_its_arguments_last(study, runs):
    assert tune(study, [TUNING]) == 0
    expected = [
        ("easy", seed, ["--config=easy", f"--kind={method}", f"--x={x}", "--on=val"])
        for seed in (7, 8)
        for method, x in SCORES
    ]
    assert sorted(runs) == sorted(expected)


def test_the_best_mean_is_chosen_and_the_first_of_equals(study, capsys):
    tune(study, [TUNING])
    assert chosen(study, [TUNING]) == {("ours", "easy"): ["--x=b"], ("plain", "easy"): ["--x=d"]}
    assert "easy: ours: --x=b" in capsys.readouterr().out


def test_where_less_is_better_the_lowest_mean_is_chosen(study):
    lower = replace(TUNING, direction="lower")
    tune(study, [lower])
    assert chosen(study, [lower]) == {("ours", "easy"): ["--x=a"], ("plain", "easy"): ["--x=e"]}


def test_two_tunings_that_try_the_same_candidate_keep_their_own_arguments(study, runs):
    other = replace(TUNING, setting="hard", arguments=["--on=another"])
    tune(replace(study, only={}), [TUNING, other])
    assert len(runs) == 24
    assert {(setting, arguments[0], arguments[-1]) for setting, _, arguments in runs} == {
        ("easy", "--config=easy", "--on=val"),
        ("hard", "--config=hard", "--on=another"),
    }


def test_the_comparison_runs_with_the_chosen_arguments_and_without_those_of_the_tuning(study):
    tune(study, [TUNING])
    tuned = replace(study, tuned=chosen(study, [TUNING]))
    assert tuned.arguments("ours", "easy") == ["--config=easy", "--kind=ours", "--x=b"]
    assert tuned.arguments("plain", "easy") == ["--config=easy", "--kind=plain", "--x=d"]
    assert tuned.arguments("ours", "hard") == ["--config=hard", "--kind=ours"]
    assert {cell.config_hash for cell in tuned.cells(["ours"], ["easy"], [0])} == {"--config=easy|--kind=ours|--x=b"}


def test_a_second_call_runs_nothing(study, runs):
    tune(study, [TUNING])
    runs.clear()
    assert tune(study, [TUNING]) == 0
    assert runs == []


def test_a_new_candidate_runs_alone(study, runs):
    first = replace(TUNING, candidates={"ours": [["--x=a"]], "plain": [["--x=d"]]})
    tune(study, [first])
    runs.clear()
    second = replace(TUNING, candidates={"ours": [["--x=a"], ["--x=b"]], "plain": [["--x=d"], ["--x=e"]]})
    tune(study, [second])
    assert sorted({arguments[2] for _, _, arguments in runs}) == ["--x=b", "--x=e"]
    assert len(runs) == 4


def test_a_candidate_is_run_again_when_what_scores_it_changes(study, runs):
    tune(study, [TUNING])
    runs.clear()
    tune(study, [replace(TUNING, arguments=["--on=other"])])
    assert len(runs) == 12


def test_a_method_with_a_missing_seed_or_a_failed_candidate_is_left_out(study, monkeypatch):
    assert chosen(study, [TUNING]) == {}
    monkeypatch.setitem(SCORES, ("ours", "a"), {7: 4.0, 8: None})
    assert tune(study, [TUNING]) == 1
    assert chosen(study, [TUNING]) == {("plain", "easy"): ["--x=d"]}
    monkeypatch.setitem(SCORES, ("ours", "a"), {7: 4.0, 8: 4.0})
    assert tune(study, [TUNING]) == 0  # the failed one only
    assert chosen(study, [TUNING])["ours", "easy"] == ["--x=b"]
    assert chosen(study, [replace(TUNING, seeds=(7, 8, 9))]) == {}


def test_records_of_further_seeds_have_no_say(study, monkeypatch):
    monkeypatch.setitem(SCORES, ("ours", "a"), {7: 4.0, 8: 4.0, 9: 100.0})
    tune(study, [replace(TUNING, candidates={"ours": [["--x=a"]]}, seeds=(9,))])
    tune(study, [TUNING])
    assert chosen(study, [TUNING])["ours", "easy"] == ["--x=b"]


def test_settings_are_tuned_apart(study, runs):
    hard = replace(TUNING, setting="hard", candidates={"ours": [["--x=a"]], "untuned": [["--x=d"]]}, seeds=(7,))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SCORES, ("untuned", "d"), {7: 1.0})
        tune(study, [TUNING, hard])
    assert {setting: sum(s == setting for s, _, _ in runs) for setting in ("easy", "hard")} == {"easy": 12, "hard": 2}
    assert chosen(study, [TUNING, hard])["ours", "hard"] == ["--x=a"]
    assert chosen(study, [TUNING, hard])["ours", "easy"] == ["--x=b"]


def test_a_dry_run_only_tells_what_would_be_run(study, runs, tmp_path, capsys):
    assert tune(study, [TUNING], dry_run=True) == 0
    assert capsys.readouterr().out == "12 cells: 0 done, 0 stale, 12 to do\n"
    assert runs == []
    assert list(tmp_path.iterdir()) == []


def test_records_are_kept_apart_from_those_of_the_comparison(study, tmp_path):
    tune(study, [TUNING])
    assert [str(f.relative_to(tmp_path)) for f in tmp_path.rglob("*.json")] == ["results/tuning/results.json"]
