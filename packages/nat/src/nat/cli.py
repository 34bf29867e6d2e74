"""The command `nat`: its verbs and what they take.

What a verb needs is imported when it runs, so that every `--help` answers at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from shared.cli import Paper
from shared.cli import main as run


def train_adversary(arguments: list[str]) -> None:
    """Train the adversary alone; takes the options of `train`."""
    from nat.app import NATCLI

    NATCLI.adversary_only(arguments)


def evaluate(
    run: str,
    attacks: str = "fgsm,pgd20,pgd100,cw40,aa",
    eps: str | None = None,
    select: str = "last",
    out: Path | None = None,
    masking: bool = True,
    accelerator: str = "auto",
) -> None:
    """Attack a trained network: accuracies, robustness curve and checks for gradient masking.

    Args:
        run: a run folder, or `last`.
        attacks: comma-separated: fgsm, pgdN, cwN, aa, apgd-ce, apgd-t, fab-t, square.
        eps: radius of the l_inf ball, such as 8/255; that of the training when null.
        select: which checkpoint: last, best, or a file.
        out: folder for the report; RUN/evaluation when null.
        masking: check whether gradient masking explains the robustness.
        accelerator: cpu, cuda, mps, or auto.
    """
    from nat.verbs import evaluate

    evaluate(run, attacks, eps, select, out, masking, accelerator)


def attack(
    image: Path,
    run: str = "last",
    label: int | None = None,
    eps: str | None = None,
    steps: int = 100,
    select: str = "last",
    out: Path = Path("attack"),
    seed: int = 0,
) -> None:
    """Attack one picture and draw what changed.

    Args:
        image: a picture file; resized to the network's input.
        run: a run folder, or `last`.
        label: the true class; the predicted one when null.
        eps: radius of the l_inf ball, such as 8/255; that of the training when null.
        steps: of PGD.
        select: which checkpoint: last, best, or a file.
        out: folder for adversarial.png and attack.png.
        seed: of the random start.
    """
    from nat.verbs import attack

    attack(image, run, label, eps, steps, select, out, seed)


def predict(folder: Path, run: str = "last", select: str = "last", out: Path | None = None) -> None:
    """Classify the pictures of a folder: label, probability, entropy and margin of each.

    Args:
        folder: holds picture files; its sub-folders are searched too.
        run: a run folder, or `last`.
        select: which checkpoint: last, best, or a file.
        out: CSV file; printed when null.
    """
    from nat.verbs import predict

    predict(folder, run, select, out)


def diagnose(
    runs: list[str], labels: list[str] | None = None, select: str = "last", out: Path = Path("diagnosis.png")
) -> None:
    """Compare the geometry of runs: probabilities, entropy, margins, boundary distances.

    Args:
        runs: run folders, such as NAT's and its baseline's.
        labels: their names in the figure; those of the folders when null.
        select: which checkpoint of each: last or best.
        out: the PNG.
    """
    from nat.verbs import diagnose

    diagnose(runs, labels, select, out)


def export(
    run: str, out: Path, format: Literal["safetensors", "torchscript"] = "safetensors", select: str = "last"
) -> None:
    """Write the network alone: takes images in [0, 1], returns logits.

    Args:
        run: a run folder, or `last`.
        out: the file.
        format: weights for `nat.models.create_model`, or a TorchScript module that needs no code.
        select: which checkpoint: last, best, or a file.
    """
    from nat.verbs import export

    export(run, out, format, select)


PAPER = Paper(
    name="nat",
    title="Nasty Adversarial Training: robustness from sparse output distributions",
    cli="nat.app:NATCLI",
    verbs={
        "evaluate": evaluate,
        "attack": attack,
        "predict": predict,
        "diagnose": diagnose,
        "export": export,
    },
    training_verbs={"train-adversary": train_adversary},
    study="nat.comparison:study",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return run(PAPER, argv)
