"""The comparison behind the README: methods, amounts and kinds of feedback, and the rates of both errors.

Nothing is tuned: the exact methods have no settings, and the primal-dual method has those of its description.
"""

from __future__ import annotations

from pathlib import Path

from shared.results import Study

from robrel.app import RobRelCLI
from robrel.report import REPORT

EXACT = ["--model.solver=lp", "--trainer.max_epochs=1", "--data.blocks=1"]
METHODS: dict[str, list[str]] = {
    "robust": EXACT,
    "robust, primal-dual": ["--model.solver=pd"],
    "robust, T = 2000": ["--model.solver=pd", "--trainer.max_epochs=2"],  # a step with an expert plans
    **{
        name: [*EXACT, f"--model.method={name}"]
        for name in ("arbitrary", "mle", "chebyshev", "max_margin", "max_entropy")
    },
}
OF_COMPARISONS = ["robust", "robust, primal-dual", "arbitrary", "mle", "chebyshev", "max_margin"]
OF_EXPERTS = ["robust", "robust, T = 2000", "arbitrary", "chebyshev", "max_entropy"]

FEEDBACK = {f"{n} comparisons": [*EXACT, f"--data.comparisons={n}"] for n in (0, 5, 20, 60)}
ITERATIONS = {f"T = {10**e}": [f"--data.blocks={10 ** (e - 2)}", "--trainer.max_epochs=1"] for e in (2, 3, 4)}
SAMPLES = {f"N = {10**e}": [*EXACT, f"--data.problem.episodes={10**e}"] for e in (2, 3, 4)}
MODEL = {f"model, N = {10**e}": [*SAMPLES[f"N = {10**e}"], "--data.problem.estimate=model"] for e in (2, 3, 4)}
SLACK = {
    f"N = 1000, slack {name}": [*SAMPLES["N = 1000"], f"--data.problem.slack={name}"]
    for name in ("relax", "conservative")
}

EXPERT = ["--data.comparisons=0", "--data.problem.expert=exact"]
GYM = ["--data.comparisons=0", "--data.problem.reward=stationary", "--data.problem.expert=sampled"]
SETTINGS: dict[str, list[str]] = {
    "comparisons=20": ["--data.comparisons=20"],
    "comparisons=5": ["--data.comparisons=5"],
    "comparisons=60": ["--data.comparisons=60"],
    "expert, ε = 0": EXPERT,
    "expert, ε = 0.5": [*EXPERT, "--data.problem.epsilon=0.5"],
    "frozenlake": [*GYM, "--data.problem.environment=FrozenLake", "--data.problem.epsilon=0.2"],
    "cliffwalking": [*GYM, "--data.problem.environment=CliffWalking", "--data.problem.epsilon=0.2",
                     "--data.problem.horizon=15"],
    "feedback": [],
    "iterations": ["--data.comparisons=20"],
    "samples": ["--data.comparisons=20"],
}  # fmt: skip

SEEDS = range(30)


def study(folder: Path) -> Study:
    """Describe the comparison.

    Args:
        folder: the package's `results`.
    """
    common = ["--config=default", "--data.instances=1", "--model.compare=[]"]
    only = {name: OF_COMPARISONS if name.startswith("comparisons") else OF_EXPERTS for name in SETTINGS}
    only |= {name: ["robust", "arbitrary", "chebyshev", "max_entropy"] for name in ("frozenlake", "cliffwalking")}
    only |= {"feedback": list(FEEDBACK), "iterations": list(ITERATIONS), "samples": [*SAMPLES, *MODEL, *SLACK]}
    return Study(
        package="robrel",
        folder=folder,
        methods=METHODS | FEEDBACK | ITERATIONS | SAMPLES | MODEL | SLACK,
        settings={name: [*common, *arguments] for name, arguments in SETTINGS.items()},
        seeds=SEEDS,
        run=run_cell,
        hash_of=RobRelCLI.hash_of,
        report=REPORT,
        only=only,
    )


def run_cell(method: str, setting: str, seed: int, arguments: list[str]) -> dict[str, float]:
    """Solve and measure one cell of a comparison in this process."""
    return RobRelCLI.run_cell(arguments, seed)
