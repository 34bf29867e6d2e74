"""The comparison behind the README: methods, settings, seeds, and how each method was tuned.

Within a setting every method gets the same tuning budget (twelve candidates and two seeds on the digits, six
candidates and one seed on MNIST). A candidate is scored by worst-case robust accuracy on a quarter of the
training set, held out; the seeds are not those of the comparison, and the test set takes no part.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from shared.results import Study
from shared.tuning import Tuning, chosen, grid

from nat.app import NATCLI
from nat.report import REPORT

METHODS: dict[str, list[str]] = {
    "nat": ["--model.method=nat"],
    "vanilla": ["--model.method=vanilla"],
    "pgd_at": ["--model.method=pgd_at"],
    "at_mix": ["--model.method=at_mix"],
    "trades": ["--model.method=trades"],
    "mart": ["--model.method=mart"],
    "pgd_at_awp": ["--model.method=pgd_at"],
}

SETTINGS: dict[str, list[str]] = {
    "digits": ["--config=default"],
    # All of AutoAttack takes five minutes a cell on 1,000 images of 28 x 28; its first part stands in for it.
    "mnist5k": ["--config=mnist5k", "--model.test_attacks=fgsm,pgd20,cw40,apgd-ce"],
    "ablations": ["--config=default", "--model.test_attacks=pgd20,cw40"],
}

# One change each to NAT at the default settings (omega 0.06, temperature 1), untuned.
ABLATIONS: dict[str, list[str]] = {
    "ω = 0": ["--model.method=at_mix"],
    "ω = 0.02": ["--model.omega=0.02"],
    "ω = 0.04": ["--model.omega=0.04"],
    "ω = 0.06 (default)": [],
    "ω = 0.08": ["--model.omega=0.08"],
    "ω = 0.12": ["--model.omega=0.12"],
    "τ = 4": ["--model.temperature=4"],
    "reversed KL": ["--model.kl_direction=adversary_target"],
    "nasty term on X' only": ["--model.nasty_on=adversarial"],
    "random adversary": ["--model.adversary.state=random"],
    "adversarially trained adversary": ["--model.adversary.state=adversarial"],
    "adversary of another architecture": ["--model.adversary.arch=mnist_cnn", "--model.image_size=8"],
    "entropy penalty 0.06": ["--model.method=entropy_penalty"],
}

SEEDS = range(6)


# The learning rate turned out to matter most, so it is half of the grid of a method that has an option of its own,
# and all of the grid of one that has none.
ALL_RATES = [1e-3, 2e-3, 4e-3, 6e-3, 8e-3, 1.2e-2, 1.6e-2, 2.4e-2, 3.2e-2, 4.8e-2, 6.4e-2, 9.6e-2]
RATES = [4e-3, 8e-3, 1.6e-2, 3.2e-2]
ON_VALIDATION = ["--data.test_on=val", "--data.val_fraction=0.25", "--model.test_attacks=pgd20,cw40"]
TUNINGS = [
    Tuning(
        setting="digits",
        candidates={
            "nat": grid({"model.optim.lr": RATES, "model.omega": (0.03, 0.06, 0.1)}),
            "vanilla": grid({"model.optim.lr": ALL_RATES}),
            "pgd_at": grid({"model.optim.lr": ALL_RATES}),
            "at_mix": grid({"model.optim.lr": ALL_RATES}),
            "trades": grid({"model.optim.lr": RATES, "model.beta": (1, 3, 6)}),
            "mart": grid({"model.optim.lr": RATES, "model.beta": (1, 3, 5)}),
            "pgd_at_awp": grid({"model.optim.lr": RATES, "model.awp_gamma": (1e-3, 3e-3, 1e-2)}),
        },
        arguments=ON_VALIDATION,
        seeds=(100, 101),
        metric="worst",
    ),
    Tuning(
        setting="mnist5k",
        candidates={
            "nat": grid({"model.optim.lr": [4e-3, 1e-2, 2e-2], "model.omega": (0.03, 0.1)}),
            "pgd_at": grid({"model.optim.lr": [2e-3, 4e-3, 1e-2, 2e-2, 4e-2, 8e-2]}),
            "at_mix": grid({"model.optim.lr": [2e-3, 4e-3, 1e-2, 2e-2, 4e-2, 8e-2]}),
            "trades": grid({"model.optim.lr": [4e-3, 1e-2, 2e-2], "model.beta": (1, 6)}),
        },
        arguments=ON_VALIDATION,
        seeds=(100,),
        metric="worst",
    ),
]


def study(folder: Path) -> Study:
    """Describe the comparison: NAT and the tuned baselines, and NAT's ablations at its default settings.

    Args:
        folder: the package's `results`.
    """
    base = Study(
        package="nat",
        folder=folder,
        methods=METHODS | ABLATIONS,
        settings=SETTINGS,
        seeds=SEEDS,
        run=run_cell,
        hash_of=NATCLI.hash_of,
        report=REPORT,
        only={"digits": list(METHODS), "mnist5k": list(TUNINGS[1].candidates), "ablations": list(ABLATIONS)},
        tunings=TUNINGS,
    )
    return replace(base, tuned=chosen(base, TUNINGS))


def run_cell(method: str, setting: str, seed: int, arguments: list[str]) -> dict[str, float]:
    """Train and test one cell of a comparison in this process.

    Validation is left out: the last weights are tested, which do not depend on it.
    """
    return NATCLI.run_cell([*arguments, "--trainer.limit_val_batches=0"], seed)
