"""The comparison behind the README: liftings and networks, settings, seeds, and how each was tuned.

Every method had as many candidates: three learning rates, or four with CWN, where the learned lifting had two rates and
two ways to decide. They were scored on validation graphs with seeds that the comparison does not use; settings without
a tuning of their own take over what another one chose. The epoch is chosen by validation everywhere. Nothing else is
tuned, neither of the learned lifting nor of the static ones. Ablations are at the default settings.

Seeds are five. MUTAG's are the folds of cross-validation, five for each division, so that ten make two divisions:
`difflift compare --settings "[mutag]" --seeds 10`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from shared.results import Study
from shared.tuning import Tuning, chosen, grid

from difflift.app import DiffLiftCLI
from difflift.report import REPORT

_LIFTING = "--model.lifting"
_OF_LIFTING = f"{_LIFTING}.init_args"
NONE = f"{_LIFTING}=difflift.NoLifting"

# A static lifting is named by its class, at its own defaults.
METHODS: dict[str, list[str]] = {
    "difflift": [],
    "difflift+": [f"{_OF_LIFTING}.distance_gradient=5"],
    "random": [f"{_OF_LIFTING}.selection=random"],
    "none": [NONE],
    "gin": [NONE, "--model.network=difflift.GraphGIN"],
    "cycle": [f"{_LIFTING}=difflift.CycleLifting", f"{_OF_LIFTING}.cells=false"],
    "clique": [f"{_LIFTING}=difflift.CliqueLifting"],
    "khop": [f"{_LIFTING}=difflift.KHopLifting"],
    "knn": [f"{_LIFTING}=difflift.FeatureKNNLifting"],
    "cycle cells": [f"{_LIFTING}=difflift.CycleLifting"],
    "knn cells": [f"{_LIFTING}=difflift.FeatureKNNLifting", f"{_OF_LIFTING}.cells=true"],
}
HYPERGRAPH = ["difflift", "difflift+", "random", "none", "gin", "cycle", "clique", "khop", "knn"]
CELLS = ["difflift", "random", "none", "gin", "cycle cells", "knn cells"]
CLOUD = ["difflift", "difflift+", "random", "none", "gin", "knn"]  # without edges there are no cycles, cliques and hops
FEW = ["difflift", "none", "cycle", "khop"]

SETTINGS: dict[str, list[str]] = {
    "solubility": ["--config=default"],
    "solubility-cwn": ["--config=solubility_cells"],
    "mutag": ["--config=mutag"],
    "mutag-topomodelx": ["--config=mutag", "--model.network=difflift.TopoModelX"],
    "mutag-cwn": ["--config=mutag_cells"],
    "planted": ["--config=planted"],
    "planted-cloud": ["--config=planted_cloud"],
    "planted-less-noise": ["--config=planted_cloud", "--data.planted_noise=0.5"],
    "ablations": ["--config=default"],
    "ablations-cwn": ["--config=solubility_cells"],
}
# One change each to the learned lifting.
ABLATIONS: dict[str, list[str]] = {
    "default": [],
    "fixed k": [f"{_OF_LIFTING}.learn_k=false"],
    "no gradient to k": [f"{_OF_LIFTING}.k_gradient=none"],
    "soft weights": [f"{_OF_LIFTING}.selection=soft"],
    "everything included": [f"{_OF_LIFTING}.selection=all"],
    "excluded dropped": [f"{_OF_LIFTING}.keep_excluded=false"],
    "raw features": [f"{_OF_LIFTING}.encoder=none"],
}
HYPERGRAPH_ABLATIONS = ABLATIONS | {"thresholded": [f"{_OF_LIFTING}.selection=threshold"]}
CELL_ABLATIONS = {
    **{name: ABLATIONS[name] for name in ("default", "fixed k", "soft weights", "everything included")},
    "sampled": [f"{_OF_LIFTING}.selection=sample", f"{_OF_LIFTING}.sharpening=1"],
    "projected boundary": [f"{_OF_LIFTING}.boundary=projected"],
}

RATES = {"model.lr": [0.002, 0.005, 0.0125]}
DECISIONS = [  # as in the released code, and as in the paper's text with probabilities that draws can explore
    [f"{_OF_LIFTING}.selection=threshold"],
    CELL_ABLATIONS["sampled"],
]


def tuning(setting: str, methods: list[str], seeds: list[int]) -> Tuning:
    """Describe a tuning of the learning rate on validation data."""
    candidates = {method: grid(RATES) for method in methods}
    return Tuning(setting, candidates, arguments=["--data.test_on=val"], seeds=seeds, metric="accuracy")


TUNINGS = [
    tuning("solubility", HYPERGRAPH, [100, 101]),
    tuning("planted-less-noise", [*CLOUD, "khop"], [100]),
    Tuning(
        setting="solubility-cwn",
        candidates={
            **{method: grid({"model.lr": [0.001, 0.002, 0.005, 0.0125]}) for method in CELLS},
            "difflift": [[*how, *rate] for how in DECISIONS for rate in grid({"model.lr": [0.002, 0.005]})],
        },
        arguments=["--data.test_on=val"],
        seeds=[100],
        metric="accuracy",
    ),
]
SAME_AS = {  # setting -> where its methods were tuned
    **dict.fromkeys(("mutag", "mutag-topomodelx"), "solubility"),
    "mutag-cwn": "solubility-cwn",
    **dict.fromkeys(("planted", "planted-cloud"), "planted-less-noise"),
}


def study(folder: Path) -> Study:
    """Describe the comparison.

    Args:
        folder: the package's `results`.
    """
    base = Study(
        package="difflift",
        folder=folder,
        methods=METHODS | HYPERGRAPH_ABLATIONS | CELL_ABLATIONS,
        settings=SETTINGS,
        seeds=range(5),
        run=run_cell,
        hash_of=DiffLiftCLI.hash_of,
        report=REPORT,
        only={
            **dict.fromkeys(("solubility", "mutag"), HYPERGRAPH),
            "planted": [*CLOUD, "khop"],  # a tree has no cycles, and no cliques but its edges
            **dict.fromkeys(("solubility-cwn", "mutag-cwn"), CELLS),
            "mutag-topomodelx": FEW,
            **dict.fromkeys(("planted-cloud", "planted-less-noise"), CLOUD),
            "ablations": list(HYPERGRAPH_ABLATIONS),
            "ablations-cwn": list(CELL_ABLATIONS),
        },
        tunings=TUNINGS,
    )
    tuned = chosen(base, TUNINGS)
    for setting, other in SAME_AS.items():
        tuned |= {(method, setting): found for (method, at), found in tuned.items() if at == other}
    return replace(base, tuned=tuned)


def run_cell(method: str, setting: str, seed: int, arguments: list[str]) -> dict[str, float]:
    """Train and test one cell in this process."""
    return DiffLiftCLI.run_cell(arguments, seed)
