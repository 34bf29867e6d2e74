"""The comparison behind the README: what is trained on what, seeds, and how each operator was tuned.

ATOM and EGNO make the same steps on the same windows, and were tuned alike: six candidates each for seven molecules,
scored on two of them that were held out of the tuning's training, and four for one molecule, scored on a later block
of its trajectory. Nothing that is tested on takes part. The trivial predictors have nothing to tune but the ridge's
penalty, which generalised cross-validation chooses.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from shared.results import Study
from shared.tuning import Tuning, chosen, grid

from atom.app import AtomCLI, relative
from atom.baselines import FITTED, FREE, TRIVIAL
from atom.evaluate import trivial_scores
from atom.report import REPORT

# Every option of EGNO is given: those of ATOM that it has too would otherwise stay.
EGNO_OPTIONS = {
    "depth": 5, "width": 64, "modes": 2, "time_width": 32, "tau": 8.0, "time": "lag", "velocity_scale": 8.0,
    "radial": 0, "clamp": 100.0,
}  # fmt: skip
EGNO = [
    "--model.operator=atom.EGNO",
    "--model.augment=false",  # an equivariant network has nothing to learn from rotations
    *(f"--model.operator.init_args.{k}={v}" for k, v in EGNO_OPTIONS.items()),
]
METHODS: dict[str, list[str]] = {"atom": [], "egno": EGNO, **{name: [] for name in TRIVIAL}}

# The same steps for both: 18 epochs of 110 for several molecules, 60 of 16 for one.
_OPERATOR = "--model.operator.init_args"
ONE = [
    "--config=default", "--data.train=[CH3CH2OH]", "--data.test=[]", "--data.horizon_range=null",
    f"{_OPERATOR}.tau=4.0", f"{_OPERATOR}.output_heads=1", f"{_OPERATOR}.rrwp_steps=0", "--model.augment=false",
    "--trainer.max_epochs=60",
]  # fmt: skip
TEN = [
    "--config=default", "--data.train=[CH3CH2OH,C6H6,CH3COCH3,C4H4O,CH3CONH2,isobutane,C5H5N,HCOOH,CH3CHO,CH3OH]",
    "--data.test=[]",
]  # fmt: skip
SETTINGS: dict[str, list[str]] = {
    "unseen": ["--config=default"],
    "ethanol": ONE,
    "ethanol-random": [*ONE, "--data.split=random"],
    "ten": TEN,
    "ten-random": [*TEN, "--data.split=random"],
    "ablations": ONE,
    "ablations-unseen": ["--config=default", "--model.augment=false", "--trainer.max_epochs=6"],
}

# One change each to ATOM's default settings, untuned: on one molecule, and what needs several on the seven.
ABLATIONS: dict[str, list[str]] = {
    "default": [],
    "no lifting": [f"{_OPERATOR}.lifting=none"],
    "no tensor product": [f"{_OPERATOR}.lifting=no_tensor_product"],
    "self-attention on X": [f"{_OPERATOR}.heterogeneous=false"],
    "no rotary positions": [f"{_OPERATOR}.rope_time=none"],
    "no value residual": [f"{_OPERATOR}.value_residual=none"],
    "label noise": ["--model.sigma_x=0.01", "--model.noise_targets=true"],
    "norm without lengths": [f"{_OPERATOR}.norm_eps=1e-6"],
}
UNSEEN_ABLATIONS: dict[str, list[str]] = {
    "default": [],
    "no lifting": ABLATIONS["no lifting"],
    "rotary by slot": [f"{_OPERATOR}.rope_time=index"],
    "no random walks": [f"{_OPERATOR}.rrwp_steps=0"],
    "one output head": [f"{_OPERATOR}.output_heads=1"],
    "rotations": ["--model.augment=true"],
}

SEEDS = range(3)

ADAMW: dict[str, list[float | str]] = {"model.optim.optimizer": ["adamw"], "model.optim.beta2": [0.999]}
TUNINGS = [
    Tuning(
        setting="unseen",
        candidates={
            "atom": grid({"model.optim.muon_lr": [0.005, 0.01, 0.02], "model.augment": ["false", "true"]}),
            "egno": grid({**ADAMW, "model.optim.lr": [3e-5, 1e-4, 3e-4], "model.sigma_x": [0.0, 0.01]}),
        },
        arguments=[
            "--data.train=[C6H6,C4H4O,CH3CONH2,HCOOH,CH3OH]",
            "--data.val=[CH3CH2OH,CH3COCH3]",
            "--data.test=[]",
            "--data.test_on=val",
            "--trainer.max_epochs=12",
        ],
        seeds=[100],
        metric="s2t",
        direction="lower",
    ),
    Tuning(
        setting="ethanol",
        candidates={
            "atom": grid({"model.optim.muon_lr": [0.005, 0.01, 0.02, 0.04]}),
            "egno": grid({**ADAMW, "model.optim.lr": [1e-3, 3e-3], f"{_OPERATOR[2:]}.radial": [0, 32]}),
        },
        arguments=["--data.test_on=val"],
        seeds=[100],
        metric="s2t",
        direction="lower",
    ),
]
SAME_AS = {"ethanol-random": "ethanol"}  # takes over what was tuned there


def study(folder: Path) -> Study:
    """Describe the comparison: the tuned operators, the trivial predictors, and ATOM's ablations at its defaults.

    Args:
        folder: the package's `results`.
    """
    base = Study(
        package="atom",
        folder=folder,
        methods=METHODS | ABLATIONS | UNSEEN_ABLATIONS,
        settings=SETTINGS,
        seeds=SEEDS,
        run=run_cell,
        hash_of=AtomCLI.hash_of,
        report=REPORT,
        only={
            "unseen": ["atom", "egno", *FREE],
            "ethanol": ["atom", "egno", *FREE, *FITTED],
            "ethanol-random": ["atom", "egno", *FREE, *FITTED],
            "ten": [*FREE, *FITTED],
            "ten-random": [*FREE, *FITTED],
            "ablations": list(ABLATIONS),
            "ablations-unseen": list(UNSEEN_ABLATIONS),
        },
        tunings=TUNINGS,
    )
    tuned = chosen(base, TUNINGS)
    for setting, other in SAME_AS.items():
        tuned |= {(method, setting): found for (method, at), found in tuned.items() if at == other}
    return replace(base, tuned=tuned)


def run_cell(method: str, setting: str, seed: int, arguments: list[str]) -> dict[str, float]:
    """Train and test an operator, or score a trivial predictor, in this process."""
    if method not in TRIVIAL:
        return AtomCLI.run_cell([*arguments, "--trainer.limit_val_batches=0"], seed)
    data = AtomCLI([*arguments, f"--seed_everything={seed}"], quiet=True).datamodule
    data.prepare_data()
    data.setup("test")
    scores = trivial_scores(data, [*FREE, method])
    return {**scores[method], "relative": relative(scores[method]["s2t"], scores)}
