"""The comparison behind the README: policies, budgets, seeds, and how each policy was tuned.

At every budget each policy gets the same tuning: eight candidates and two seeds (four at the smallest budget, where
some runs diverge), scored by accuracy on a quarter of the training set, held out; those seeds are not the comparison's,
and the test set takes no part.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from shared.results import Study
from shared.tuning import Tuning, chosen, grid

from orderdp.app import OrderDPCLI
from orderdp.report import REPORT

METHODS: dict[str, list[str]] = {
    name: [f"--data.pruning.policy={name}"]
    for name in ("orderdp", "full", "random", "topq", "infobatch", "ucb", "eps_greedy", "static")
}

# `explore` is at least `keep`, so half the data needs a larger pool. InfoBatch has no budget to set. Its `prune` brings
# it near 0.5; nearer to 0.3 and 0.1 than with 0.8 and 0.9 its weights, 1 / (1 - r), made it diverge.
SETTINGS: dict[str, list[str]] = {
    "keep=0.5": ["--data.pruning.keep=0.5", "--data.pruning.explore=0.75", "--data.pruning.prune=0.65"],
    "keep=0.3": ["--data.pruning.keep=0.3", "--data.pruning.explore=0.5", "--data.pruning.prune=0.8"],
    "keep=0.1": ["--data.pruning.keep=0.1", "--data.pruning.explore=0.5", "--data.pruning.prune=0.9"],
    "noise": ["--data.pruning.keep=0.3", "--data.pruning.explore=0.5", "--data.pruning.prune=0.8",
              "--data.label_noise=0.2"],
    "ablations": [],
    "small-ablations": ["--data.pruning.keep=0.1"],
}  # fmt: skip

# One change each to OrderDP at the default settings, untuned.
ABLATIONS: dict[str, list[str]] = {
    "ρ = 0.3 (random)": ["--data.pruning.explore=0.3"],
    "ρ = 0.4": ["--data.pruning.explore=0.4"],
    "ρ = 0.5 (default)": [],
    "ρ = 0.75": ["--data.pruning.explore=0.75"],
    "ρ = 1 (top q)": ["--data.pruning.explore=1"],
    "initial score 3": ["--data.pruning.initial_score=3"],
    "initial score 0": ["--data.pruning.initial_score=0"],
    "a pool for every step": ["--data.pruning.round=step"],
}

SMALL_ABLATIONS: dict[str, list[str]] = {
    "ρ = 0.1 (random)": ["--data.pruning.explore=0.1"],
    "ρ = 0.3": ["--data.pruning.explore=0.3"],
    "ρ = 0.5 (default)": [],
    "ρ = 1 (top q)": ["--data.pruning.explore=1"],
}

SEEDS = range(12)

# Half of the grid of a policy with an option of its own, all of the grid of one without. InfoBatch's weights make its
# gradients larger by about n over the number kept, so its rates are lower.
ALL_RATES = [0.00625, 0.0125, 0.025, 0.0375, 0.05, 0.075, 0.1, 0.15]
RATES = [0.0125, 0.025, 0.05, 0.1]
INFOBATCH_RATES = [0.00625, 0.0125, 0.025, 0.05]
ON_VALIDATION = ["--data.test_on=val", "--data.val_fraction=0.25"]


def _tuning(setting: str, pools: tuple[float, float], seeds: int = 2) -> Tuning:
    return Tuning(
        setting=setting,
        candidates={
            "orderdp": grid({"model.optim.max_lr": RATES, "data.pruning.explore": pools}),
            "full": grid({"model.optim.max_lr": ALL_RATES}),
            "random": grid({"model.optim.max_lr": ALL_RATES}),
            "topq": grid({"model.optim.max_lr": ALL_RATES}),
            "infobatch": grid({"model.optim.max_lr": INFOBATCH_RATES, "data.pruning.delta": (0.875, 1.0)}),
            "ucb": grid({"model.optim.max_lr": RATES, "data.pruning.ucb_c": (0.1, 1.0)}),
            "eps_greedy": grid({"model.optim.max_lr": RATES, "data.pruning.epsilon": (0.1, 0.5)}),
            "static": grid({"model.optim.max_lr": ALL_RATES}),
        },
        arguments=ON_VALIDATION,
        seeds=range(100, 100 + seeds),
        metric="accuracy",
    )


TUNINGS = [
    _tuning("keep=0.5", (0.6, 0.75)),
    _tuning("keep=0.3", (0.5, 0.75)),
    _tuning("keep=0.1", (0.3, 0.5), seeds=4),
    _tuning("noise", (0.5, 0.75)),
]


def study(folder: Path) -> Study:
    """Describe the comparison: the tuned policies, and OrderDP's ablations at its default settings.

    Args:
        folder: the package's `results`.
    """
    base = Study(
        package="orderdp",
        folder=folder,
        methods=METHODS | ABLATIONS | SMALL_ABLATIONS,
        settings={name: ["--config=default", *arguments] for name, arguments in SETTINGS.items()},
        seeds=SEEDS,
        run=run_cell,
        hash_of=OrderDPCLI.hash_of,
        report=REPORT,
        only={name: list(METHODS) for name in SETTINGS}
        | {"ablations": list(ABLATIONS), "small-ablations": list(SMALL_ABLATIONS)},
        tunings=TUNINGS,
    )
    return replace(base, tuned=chosen(base, TUNINGS))


def run_cell(method: str, setting: str, seed: int, arguments: list[str]) -> dict[str, float]:
    """Train and test one cell of a comparison in this process.

    All training images are trained on, unless the cell is scored on held-out ones.
    """
    if not any(word.startswith("--data.val_fraction") for word in arguments):
        arguments = [*arguments, "--data.val_fraction=0"]
    return OrderDPCLI.run_cell([*arguments, "--trainer.limit_val_batches=0"], seed)
