"""The comparison behind the README: methods, settings and seeds.

Every method has the same model, the same prompt around its context, the same budget of tokens and the same feedback.
The prompts were written by looking at seeds from 100 on, which the comparison does not use: that of the Generator for
all methods alike, four forms of the demonstrations of ICL, and three of the rewriting prompt; the best form of each was
kept. Nothing else was tuned, neither of the method nor of a baseline.
"""

from __future__ import annotations

from pathlib import Path

from shared.results import Study

from ace.app import AceCLI
from ace.report import REPORT

_METHOD = "--model.method"
_OF_METHOD = f"{_METHOD}.init_args"
_OF_ROLES = "--model.roles.init_args"
BUDGET = [f"{_OF_METHOD}.budget=300"]

METHODS: dict[str, list[str]] = {
    "ace": [f"{_METHOD}=ace.ACE", *BUDGET],
    "base": [f"{_METHOD}=ace.NoContext"],
    "icl": [f"{_METHOD}=ace.InContext", *BUDGET],
    "history": [f"{_METHOD}=ace.FullHistory", *BUDGET],
    "rewrite": [f"{_METHOD}=ace.Rewrite", *BUDGET],
}
# One change each to the default.
ABLATIONS: dict[str, list[str]] = {
    "default": [*METHODS["ace"]],
    "no reflector": [*METHODS["ace"], f"{_OF_METHOD}.reflector=false", f"{_OF_ROLES}.verify=false"],
    "every lesson": [*METHODS["ace"], f"{_OF_ROLES}.verify=false"],
    "one round": [*METHODS["ace"], f"{_OF_METHOD}.rounds=1"],
    "three epochs": [*METHODS["ace"], "--trainer.max_epochs=3"],
    "last context": [*METHODS["ace"], "--model.keep=last"],
    "retrieval of 5": [*METHODS["ace"], f"{_OF_METHOD}.retrieve=5"],
    "deltas of 5": [*METHODS["ace"], "--data.batch_size=5"],
    "proactive": [*METHODS["ace"], f"{_OF_METHOD}.refinement=proactive"],
}
SETTINGS: dict[str, list[str]] = {
    "country": ["--config=default"],
    "country-online": ["--config=country_online"],
    "ablations": ["--config=default"],
}


def study(folder: Path) -> Study:
    """Describe the comparison.

    Args:
        folder: the package's `results`.
    """
    return Study(
        package="ace",
        folder=folder,
        methods=METHODS | ABLATIONS,
        settings=SETTINGS,
        seeds=range(6),
        run=run_cell,
        hash_of=AceCLI.hash_of,
        report=REPORT,
        only={"country": list(METHODS), "country-online": ["ace", "base", "rewrite"], "ablations": list(ABLATIONS)},
    )


def run_cell(method: str, setting: str, seed: int, arguments: list[str]) -> dict[str, float]:
    """Train and test one cell in this process."""
    return AceCLI.run_cell(arguments, seed)
