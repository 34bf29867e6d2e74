"""The command `difflift`. What it needs is imported when it runs, so that every `--help` answers at once."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from shared.cli import Paper
from shared.cli import main as run


def lift(
    input: str,
    out: Path = Path("complex.json"),
    run: str = "last",
    index: int | Literal["all"] = 0,
    select: str = "last",
) -> None:
    """Lift a graph with a run's lifting, and write the cells with their probabilities as JSON.

    Args:
        input: a graph as .json, {"x": [[...], ...], "edges": [[u, v], ...]}; a folder in the TU format; or, for a run
            on solubility, a file of SMILES or one SMILES.
        out: the file to write; `difflift.interop` reads it, and converts to TopoNetX.
        run: a run folder, or `last`.
        index: which graph of the input, from 0, or `all`, for a list of complexes.
        select: which checkpoint: last, best, or a file.
    """
    from difflift.verbs import lift

    lift(input, out, run, index, select)


def predict(input: str, out: Path = Path("predictions.csv"), run: str = "last", select: str = "last") -> None:
    """Predict the classes of graphs with a run's network, and write them as CSV.

    Args:
        input: a folder in the TU format with the labels of the run's; a graph as .json; or, for a run on solubility, a
            file of SMILES or one SMILES.
        out: the file to write: a row for each graph, or vertex, with the probability of each class.
        run: a run folder, or `last`.
        select: which checkpoint: last, best, or a file.
    """
    from difflift.verbs import predict

    predict(input, out, run, select)


def compare_liftings(
    setting: str = "mutag",
    seeds: int = 3,
    out: Path = Path("liftings"),
    data: str | None = None,
    root: Path | None = None,
    epochs: int | None = None,
    jobs: int = 1,
) -> int:
    """Train with the learned lifting and with static ones over seeds, and print a table.

    Args:
        setting: one of those of `compare`, which keeps finished cells in the folder and goes on where it stopped.
        seeds: how many.
        out: folder for the results.
        data: in place of a setting, a data set by name or a folder of yours in the TU format.
        root: with data: folder of the named data sets.
        epochs: with data: at most so many; those of the default config when null.
        jobs: with a setting: how many cells run at a time.
    """
    from difflift.verbs import compare_liftings

    return compare_liftings(setting, seeds, out, data, root, epochs, jobs)


def plot(
    run: str = "last",
    out: Path | None = None,
    index: int = 0,
    split: Literal["train", "val", "test"] = "test",
    select: str = "last",
) -> None:
    """Draw a graph of a run's data with its cells, sizes of cells and neighbourhoods, and inclusion over epochs.

    Args:
        run: a run folder, or `last`.
        out: folder for the figures; that of the run when null.
        index: which graph of the part, from 0.
        split: which part of the data.
        select: which checkpoint: last, best, or a file.
    """
    from difflift.verbs import plot

    plot(run, out, index, split, select)


PAPER = Paper(
    name="difflift",
    title="DiffLift: learned liftings from graphs to hypergraphs, cell and simplicial complexes",
    cli="difflift.app:DiffLiftCLI",
    verbs={"lift": lift, "predict": predict, "compare-liftings": compare_liftings, "plot": plot},
    study="difflift.comparison:study",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    # torch-geometric calls it as it is imported; nobody who runs this can do anything about it.
    warnings.filterwarnings("ignore", "`torch.jit.script` is deprecated", FutureWarning)
    return run(PAPER, argv)
