"""What the verbs of the command do; their options are explained in `cli`."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from rich.table import Table
from shared.checkpoints import atomic_write
from shared.claims import mean_sd
from shared.logs import console
from shared.runs import find_run
from torch_geometric.data import Batch, Data

from difflift.app import DiffLiftCLI
from difflift.comparison import HYPERGRAPH, METHODS
from difflift.data import GraphData, lean
from difflift.figures import draw_choices, draw_graph, draw_metrics, graph_of, lift_all, target_of_lifting
from difflift.inputs import class_names, read_graphs
from difflift.interop import to_json
from difflift.module import METRICS
from difflift.molecules import element_symbols

LIFTINGS = {method: METHODS[method] for method in HYPERGRAPH if method not in ("difflift+", "gin")}


def lift(input: str, out: Path, run: str, index: int | Literal["all"], select: str) -> None:
    """Lift graphs with a run's lifting; write the complex, or a list of complexes, as JSON."""
    check_out(out, input)
    cli = DiffLiftCLI.of_run(run, select=select)
    graphs = chosen(read_graphs(input, cli), input, index)
    lifting = cli.model.model.lifting
    target = target_of_lifting(lifting)
    found = [
        described | to_json(complex, graph, target)
        for described, (complex, graph) in zip(
            map(description, graphs),
            [(complex, g) for complex in lift_all(lifting, bare(graphs, cli)) for g in range(complex.graphs)],
            strict=True,
        )
    ]
    if not all(math.isfinite(cell["probability"]) for complex in found for cell in complex["cells"]):
        raise ValueError(
            f"{input}: the probabilities of its cells are not numbers; are its features like those of the run?"
        )
    content: Any = found if index == "all" else found[0]
    with atomic_write(out) as file:
        file.write((json.dumps(content, ensure_ascii=False, allow_nan=False) + "\n").encode())
    kinds = ["hyperedge"] if target == "hypergraph" else ["edge", "polygon"]
    table = Table(title=f"{len(found)} graph{'s' * (len(found) > 1)} with {sum(len(c['edges']) for c in found)} edges")
    for heading in ("added", "cells", "mean probability"):
        table.add_column(heading, justify="left" if heading == "added" else "right")
    for kind in kinds:
        p = [cell["probability"] for complex in found for cell in complex["cells"] if cell["kind"] == kind]
        table.add_row(kind, str(len(p)), f"{sum(p) / len(p):.3f}" if p else "–")
    console.print(table)
    say(f"written: {out}")


def predict(input: str, out: Path, run: str, select: str) -> None:
    """Predict classes, or values, with a run's network; write them as CSV."""
    check_out(out, input)
    cli = DiffLiftCLI.of_run(run, select=select)
    task, graphs = cli.model.task, read_graphs(input, cli)
    names, model = class_names(cli.datamodule), cli.model.eval()
    lines, batch_size = bare(graphs, cli), cli.datamodule.eval_batch_size
    with torch.no_grad():
        parts = [lines[start : start + batch_size] for start in range(0, len(lines), batch_size)]
        logits = torch.cat([model(Batch.from_data_list(part))[0] for part in parts]).double()
    if not logits.isfinite().all():
        raise ValueError(f"{input}: what is predicted is not a number; are its features like those of the run?")
    rows: list[list[Any]]
    if task == "node":
        places: list[list[Any]] = [[g, v] for g, graph in enumerate(graphs) for v in range(len(graph.x))]
        heading = ["graph", "vertex"]
    else:
        places = [[g, graph.get("name") or ""] for g, graph in enumerate(graphs)]
        heading = ["index", "name"]
    if task == "regression":
        heading += ["predicted"]
        rows = [[*place, f"{value:.6g}"] for place, value in zip(places, logits[:, 0].tolist(), strict=True)]
    else:
        heading += ["predicted", *(f"p_{name}" for name in names)]
        p = torch.softmax(logits, 1)
        rows = [
            [*place, names[best], *(f"{share:.6f}" for share in shares)]
            for place, best, shares in zip(places, p.argmax(1).tolist(), p.tolist(), strict=True)
        ]
    write_csv(out, heading, rows)
    if len(rows) == 1:
        console.print("  ".join(f"{name} {value}" for name, value in zip(heading[2:], rows[0][2:], strict=True)))
    say(f"{len(rows)} prediction{'s' * (len(rows) > 1)} written: {out}")


def compare_liftings(
    setting: str, seeds: int, out: Path, data: str | None, root: Path | None, epochs: int | None, jobs: int
) -> int:
    """Train with each lifting over seeds, on a setting of the package's comparison or on the user's data."""
    for option, value in (("seeds", seeds), ("epochs", epochs)):
        if value is not None and value < 1:
            raise ValueError(f"{option} must be at least 1, got {value}")
    if out.exists() and not out.is_dir():
        raise NotADirectoryError(f"out must name a folder, got the file {out}")
    if data is None:
        if root is not None or epochs is not None:
            raise ValueError("root and epochs go with data; a setting of the comparison has its own")
        from shared.results import compare

        from difflift.cli import PAPER

        return compare(PAPER.load_study(), settings=[setting], seeds=seeds, jobs=jobs, out=out)
    if jobs != 1:
        raise ValueError(f"jobs goes with settings of the comparison, expected 1 with data, got {jobs}")
    compare_on(data, root, seeds, epochs, out)
    return 0


def compare_on(data: str, root: Path | None, seeds: int, epochs: int | None, out: Path) -> None:
    """Train the default config with each of `LIFTINGS` on one data set; write liftings.csv after each cell."""
    splits = GraphData(data, root).splits
    metric = METRICS[splits.task]
    base = ["--config=default", f"--data.name={data}", f"--model.features={splits.features}"]
    base += [f"--model.classes={splits.classes}", f"--model.task={splits.task}"]
    base += [] if root is None else [f"--data.root={root}"]
    base += [] if epochs is None else [f"--trainer.max_epochs={epochs}"]
    values: dict[str, list[float]] = {method: [] for method in LIFTINGS}
    for seed in range(seeds):
        for method, arguments in LIFTINGS.items():
            values[method].append(DiffLiftCLI.run_cell([*base, *arguments], seed)[metric])
            rows = [[name, s, f"{v:.6g}"] for name, found in values.items() for s, v in enumerate(found)]
            write_csv(out / "liftings.csv", ["lifting", "seed", metric], rows)
    table = Table(title=f"{data}: {metric}, mean ± standard deviation over {seeds} seed{'s' * (seeds > 1)}")
    for heading in ("lifting", *(f"seed {seed}" for seed in range(seeds)), "mean"):
        table.add_column(heading, justify="left" if heading == "lifting" else "right")
    for method, found in values.items():
        mean, sd = mean_sd(found)
        text = f"{mean:.4f}" if math.isnan(sd) else f"{mean:.4f} ± {sd:.4f}"
        table.add_row(method, *(f"{value:.4f}" for value in found), text)
    console.print(table)
    say(f"written: {out / 'liftings.csv'}")


def plot(run: str, out: Path | None, index: int, split: Literal["train", "val", "test"], select: str) -> None:
    """Draw one graph of a run's data with its cells, all that was chosen in its part, and inclusion over epochs."""
    if out is not None and out.exists() and not out.is_dir():
        raise NotADirectoryError(f"out must name a folder, got the file {out}")
    folder = find_run(DiffLiftCLI.paper, run)
    cli = DiffLiftCLI.of_run(folder, select=select)
    figures, lifting, data = folder / "figures" if out is None else out, cli.model.model.lifting, cli.datamodule
    graph = graph_of(data, split, index)
    picture = figures / f"{split}{index}.png"
    draw_graph(lifting, graph, picture, f"{split} graph {index}")
    written = [picture, *draw_choices(lifting, data.parts[split].graphs, figures)]
    if draw_metrics(folder / "metrics.csv", figures / "inclusion.png"):
        written.append(figures / "inclusion.png")
    say(f"written: {', '.join(map(str, written))}")


def bare(graphs: Sequence[Data], cli: DiffLiftCLI) -> list[Data]:
    """Return what the network sees of graphs: no edges where it was trained without them."""
    return [lean(graph, cli.datamodule.drop_edges) for graph in graphs]


def chosen(graphs: list[Data], input: str, index: int | Literal["all"]) -> list[Data]:
    """Return the graphs that an index means.

    Raises:
        ValueError: if there is no such graph.
    """
    if index == "all":
        return graphs
    if not 0 <= index < len(graphs):
        raise ValueError(f"index must lie in [0, {len(graphs)}) for {input}, or be all, got {index}")
    return [graphs[index]]


def description(graph: Data) -> dict[str, Any]:
    """Return what is known of a graph beside its cells: name, SMILES, labels of its vertices."""
    found = {key: graph[key] for key in ("name", "smiles") if graph.get(key)}
    if "z" in graph:
        found["labels"] = element_symbols(graph)
    elif "labels" in graph:
        found["labels"] = graph.labels
    return found


def check_out(out: Path, input: str) -> None:
    """Refuse a folder, the input's own file, and a place below a file, as the file to write."""
    for parent in out.parents:
        if parent.exists() and not parent.is_dir():
            raise NotADirectoryError(f"out must lie in a folder, got {out} below the file {parent}")
    if out.is_dir():
        raise IsADirectoryError(f"out must name a file, got the folder {out}")
    if out.resolve() == Path(input).resolve():
        raise ValueError(f"out must not be the input's own file, got {out}")


def write_csv(path: Path, heading: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Write a table, whole or not at all."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(heading)
    writer.writerows(rows)
    with atomic_write(path) as file:
        file.write(text.getvalue().encode())


def say(text: str) -> None:
    """Print a line that is not broken where the terminal ends."""
    console.print(text, soft_wrap=True, highlight=False, markup=False)
