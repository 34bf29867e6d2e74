"""The comparison behind the README: colour models and ways to prune at equal memory, settings, seeds, and tuning.

A seed stands for a scene and a repetition of it: 0 and 3 are the duck, 1 and 4 the mug, 2 and 5 the torus.
What the seed changes is the noise of the points to start from, the order of the views, and the random start of lobes.

Every colour model had as many candidates, three scales of the learning rates by two rates of the means, scored on
validation views of the duck and the torus with seeds that the comparison does not use, at 100 kB. The other budgets,
the unpruned scenes and the ablations take over what was chosen. Nothing else is tuned.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from shared.results import Study
from shared.tuning import Tuning, chosen, grid

from megs2.app import Megs2CLI
from megs2.report import BUDGETS, REPORT

SCENES = {"glossy": ["duck", "mug", "torus"], "diffuse": ["duck_diffuse"]}
UNPRUNED = ["--model.schedule.prune_from=null", "--model.schedule.prune_until=null"]
SH = "--model.colour=sh"

METHODS: dict[str, list[str]] = {
    "megs2": [],
    "gaussianspa": [SH],  # Gaussians alone are pruned
    "sh0": [SH, "--model.sh_degree=0"],
    "fixed axes": ["--model.colour=fixed_axes"],
    "3dgs": [SH, *UNPRUNED],
    "unpruned": UNPRUNED,
}
PRUNED = ["megs2", "gaussianspa", "sh0", "fixed axes"]
# One change each to the method.
ABLATIONS: dict[str, list[str]] = {
    "sequential": ["--model.pruning.choice=sequential"],
    "hard": ["--model.pruning.method=hard"],
    "no compensation": ["--model.pruning.compensate=false"],
    "no dual updates": ["--model.pruning.dual_updates=false"],
    "ratios": [
        "--model.pruning.choice=ratios", "--model.pruning.dual_updates=false",
        "--model.pruning.gaussian_share=0.7", "--model.pruning.lobe_share=0.88",  # about 100 kB
    ],
    "0 lobes": ["--model.lobes=0"],
    "1 lobe": ["--model.lobes=1"],
    "2 lobes": ["--model.lobes=2"],
}  # fmt: skip
SETTINGS: dict[str, list[str]] = {
    **{f"glossy-{budget}": [f"--model.pruning.budget_mb={budget / 1000}"] for budget in BUDGETS},
    "ablations": ["--model.pruning.budget_mb=0.1"],
    "diffuse": ["--model.pruning.budget_mb=0.1"],
}
RATES = {"model.lr_scale": [1.5, 3.0, 6.0], "model.means_lr": [4e-4, 1.6e-3]}
TUNING = Tuning(
    setting="glossy-100",
    candidates={method: grid(RATES) for method in PRUNED},
    arguments=["--data.test_on=val"],
    seeds=[102, 104],
    metric="psnr",
)
SAME_AS = {"3dgs": "gaussianspa", "unpruned": "megs2"}


def study(folder: Path) -> Study:
    """Describe the comparison.

    Args:
        folder: the package's `results`.
    """
    base = Study(
        package="megs2",
        folder=folder,
        methods=METHODS | ABLATIONS,
        settings=SETTINGS,
        seeds=range(6),
        run=run_cell,
        hash_of=Megs2CLI.hash_of,
        report=REPORT,
        only={
            "glossy-50": ["megs2", "gaussianspa"],
            "glossy-100": PRUNED,
            "glossy-200": ["megs2", "gaussianspa", "3dgs"],
            "ablations": ["megs2", *ABLATIONS],
            "diffuse": ["megs2", "gaussianspa", "sh0", "unpruned"],
        },
        tunings=[TUNING],
    )
    found = {method: arguments for (method, _), arguments in chosen(base, [TUNING]).items()}
    found |= {method: found[other] for method, other in SAME_AS.items() if other in found}
    found |= {method: found["megs2"] for method in ABLATIONS if "megs2" in found}
    return replace(base, tuned={(m, s): words for m, words in found.items() for s in SETTINGS if m in base.only[s]})


def run_cell(method: str, setting: str, seed: int, arguments: list[str]) -> dict[str, float]:
    """Train and test one cell in this process."""
    scenes = SCENES["diffuse" if setting == "diffuse" else "glossy"]
    return Megs2CLI.run_cell([f"--data.scene={scenes[seed % len(scenes)]}", *arguments], seed)
