"""Tuning with the same budget for every method, on validation data.

A package lists as many candidates for each method; `tune` runs them all and keeps the records in
`results/tuning/results.json`; `chosen` tells a `Study` the best ones:

    TUNING = Tuning(
        setting="digits",
        candidates={"ours": [["--model.omega=0.03"], ["--model.omega=0.1"]], "plain": [["--model.lr=0.1"], ...]},
        arguments=["--data.test_on=val"],  # score validation data
        seeds=(100, 101),  # not those of the comparison
        metric="accuracy",
    )
    study = replace(study, tuned=chosen(study, [TUNING]))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import fmean

from shared.claims import Direction
from shared.results import Cell, Results, Study, load_results, locked, plan, run_cells


@dataclass(frozen=True)
class Tuning:
    """What is tried for each method in one setting.

    Attributes:
        setting: of the study.
        candidates: method -> argument lists, equally many for each method.
        arguments: added to every run, to make it score validation data.
        seeds: of every candidate; its score is its mean over them.
        metric: what is compared.
        direction: whether more of it is wanted.

    Raises:
        ValueError: if one method has more candidates than another.
    """

    setting: str
    candidates: Mapping[str, Sequence[Sequence[str]]]
    arguments: Sequence[str]
    seeds: Sequence[int]
    metric: str
    direction: Direction = "higher"

    def __post_init__(self) -> None:
        budgets = {method: len(candidates) for method, candidates in self.candidates.items()}
        if len(set(budgets.values())) > 1:
            raise ValueError(f"every method must have as many candidates, got {budgets}")


def grid(options: Mapping[str, Sequence[float | str]]) -> list[list[str]]:
    """List candidates: every combination of values, the last option varying fastest.

    Args:
        options: setting -> its values, such as `{"model.optim.lr": [0.1, 0.2], "model.omega": [0.06]}`.
    """
    return [
        [
            f"--{name}={value}" if isinstance(value, str) else f"--{name}={value:g}"
            for name, value in zip(options, values, strict=True)
        ]
        for values in product(*options.values())
    ]


def tune(study: Study, tunings: Sequence[Tuning], *, jobs: int = 1, dry_run: bool = False) -> int:
    """Run the candidates that have not been run, then print what was chosen.

    Args:
        study: what is to be compared.
        tunings: the candidates of each setting.
        jobs: how many run at a time.
        dry_run: only print what would be run.

    Returns:
        0, or 1 if a run failed.
    """
    trials = _trials(study, tunings)
    cells: list[Cell] = []
    for tuning in tunings:
        names = [_name(*pair) for pair in _candidates(tuning)]
        cells += trials.cells(names, [tuning.setting], tuning.seeds)
    path = trials.folder / "results.json"
    if dry_run:
        print(plan(cells, load_results(trials, path)))
        return 0
    with locked(trials.folder):
        results = load_results(trials, path)
        failures = run_cells(trials, plan(cells, results), results, jobs, path)
    for (method, setting), arguments in chosen(study, tunings).items():
        print(f"{setting}: {method}: {' '.join(arguments)}")
    return 1 if failures else 0


def chosen(study: Study, tunings: Sequence[Tuning]) -> dict[tuple[str, str], list[str]]:
    """Return (method, setting) -> the candidate with the best mean score, the first of equals.

    A method of which not every candidate has been run with every seed is left out.

    Args:
        study: what is compared.
        tunings: the candidates of each setting.
    """
    trials = _trials(study, tunings)
    results = load_results(trials, trials.folder / "results.json")
    best: dict[tuple[str, str], list[str]] = {}
    for tuning in tunings:
        for method, candidates in tuning.candidates.items():
            means = [_mean_score(results, tuning, method, candidate) for candidate in candidates]
            scores = [mean for mean in means if mean is not None]
            if len(scores) == len(candidates):
                top = max(scores) if tuning.direction == "higher" else min(scores)
                best[method, tuning.setting] = list(candidates[scores.index(top)])
    return best


def _mean_score(results: Results, tuning: Tuning, method: str, candidate: Sequence[str]) -> float | None:
    values = results.values(_name(method, candidate), tuning.setting, tuning.metric)
    return fmean(values[seed] for seed in tuning.seeds) if set(tuning.seeds) <= set(values) else None


def _candidates(tuning: Tuning) -> list[tuple[str, Sequence[str]]]:
    return [(method, candidate) for method, tried in tuning.candidates.items() for candidate in tried]


def _name(method: str, candidate: Sequence[str]) -> str:
    return " ".join([method, *candidate])


def _trials(study: Study, tunings: Sequence[Tuning]) -> Study:
    """Return the study whose methods are the candidates, each by its own arguments."""
    pairs = [(tuning, *pair) for tuning in tunings for pair in _candidates(tuning)]
    methods = {_name(method, candidate): [*study.methods[method], *candidate] for _, method, candidate in pairs}
    # By setting: two tunings may try the same candidate, each with arguments of its own.
    last = {(_name(method, candidate), tuning.setting): tuning.arguments for tuning, method, candidate in pairs}
    return replace(study, folder=study.folder / "tuning", methods=methods, only={}, tuned=last)
