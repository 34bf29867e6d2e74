"""The figures of a run: some lifted graphs, and what was chosen in all of them."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Batch, Data

from difflift.complexes import Complex
from difflift.data import GraphData
from difflift.interop import columns, to_json
from difflift.lifting import Lifting, Target
from difflift.molecules import element_symbols
from difflift.plots import draw_cell_sizes, draw_complex, draw_inclusion, draw_k, molecule_positions, positions

MUTAG = (6, 7, 8, 9, 53, 17, 35)  # atomic numbers that its features stand for
LARGEST = 200  # vertices of a graph that is drawn without being asked for


def target_of_lifting(lifting: Lifting) -> Target:
    """Return what a lifting makes of graphs; `simplicial` where its 2-cells are triangles."""
    if lifting.rank == 1:
        return "hypergraph"
    kind = getattr(getattr(lifting, "branch", lifting), "cycles", "triangles")  # cliques are triangles too
    return "simplicial" if kind == "triangles" else "cell"


@torch.no_grad()
def lift_all(lifting: Lifting, graphs: Sequence[Data], batch_size: int = 128) -> list[Complex]:
    """Lift graphs in evaluation mode, batch by batch; the lifting's mode is put back."""
    mode, device = lifting.training, next((p.device for p in lifting.parameters()), torch.device("cpu"))
    lifting.eval()
    try:
        parts = [graphs[start : start + batch_size] for start in range(0, len(graphs), batch_size)]
        return [lifting(Batch.from_data_list(list(part)).to(device)) for part in parts]
    finally:
        lifting.train(mode)


def with_elements(graph: Data, dataset: str) -> Data:
    """Return a graph with the atomic numbers `z` of its vertices, where the data set is known to be of molecules."""
    if "z" not in graph and dataset.lower() == "mutag" and graph.x.shape[1] == len(MUTAG):
        return Data(x=graph.x, edge_index=graph.edge_index, z=torch.tensor(MUTAG)[graph.x.cpu().argmax(1)])
    return graph


def layout_edges(content: dict[str, Any]) -> list[list[int]]:
    """Return the edges that vertices are placed by: the graph's own, or those a point cloud was given."""
    if content["edges"]:
        return list(content["edges"])
    pairs = [cell["vertices"] for cell in content["cells"] if cell["kind"] != "polygon"]
    return [[members[0], v] for members in pairs for v in members[1:]]


def draw_graph(lifting: Lifting, graph: Data, path: Path, title: str = "") -> None:
    """Draw one graph with its cells; a graph with atomic numbers `z` as a molecule.

    Raises:
        ValueError: if the boundary of a 2-cell is no cycle, as with boundary='projected'.
    """
    bare = Data(x=graph.x, edge_index=graph.edge_index)
    content = to_json(lift_all(lifting, [bare])[0], 0, target_of_lifting(lifting))
    symbols = element_symbols(graph) if "z" in graph else []
    if symbols and content["edges"]:
        points = molecule_positions(graph.z.tolist(), content["edges"])
    else:
        points = positions(content["vertices"], layout_edges(content))
    draw_complex(content, points, path, symbols, title)


def draw_choices(lifting: Lifting, graphs: Sequence[Data], folder: Path) -> list[Path]:
    """Draw the sizes of the cells in all graphs, cells.png, and of the neighbourhoods, k.png, where there are any.

    Returns:
        The files that were written.
    """
    target = target_of_lifting(lifting)
    kind = "hyperedge" if target == "hypergraph" else "edge"
    sizes: dict[str, list[int]] = {kind: [], "polygon": []}
    k: list[int] = []
    for complex in lift_all(lifting, graphs):
        sizes[kind] += [len(members) for members in columns(complex.b1)[complex.edges :]]
        if not projected(lifting):  # its columns hold more edges than the sides
            sizes["polygon"] += [len(sides) for sides in columns(complex.b2)]
        k += [] if complex.k is None else complex.k.tolist()
    draw_cell_sizes(sizes, folder / "cells.png")
    if not k:
        return [folder / "cells.png"]
    draw_k(k, folder / "k.png")
    return [folder / "cells.png", folder / "k.png"]


def draw_metrics(metrics: Path, path: Path) -> bool:
    """Draw inclusion over the epochs from a run's metrics.csv; nothing where none was logged.

    Returns:
        Whether a figure was written.

    Raises:
        ValueError: if the file is damaged.
    """
    if not metrics.is_file():
        return False
    try:
        with metrics.open(newline="", encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if row.get("train/p") and row.get("train/included")]
        values = [(int(float(row["epoch"])), float(row["train/p"]), float(row["train/included"])) for row in rows]
    except (csv.Error, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{metrics} is damaged: {error}") from error
    if values:
        epochs, p, included = zip(*values, strict=True)
        draw_inclusion(epochs, p, included, path)
    return bool(values)


def draw_run(lifting: Lifting, data: GraphData, folder: Path, metrics: Path) -> None:
    """Draw the figures that a test leaves: two of the graphs tested, the choices in all, and the training.

    The graphs are that of median size and one that a tenth exceeds.

    Args:
        lifting: of the run.
        data: the datamodule.
        folder: where they go.
        metrics: the run's metrics.csv.
    """
    part = data.test_on
    sizes = [len(graph.x) for graph in data.parts[part].graphs]
    by_size = sorted(range(len(sizes)), key=sizes.__getitem__)
    for number, share in enumerate((0.5, 0.9)):
        index = by_size[int(share * (len(sizes) - 1))]
        if sizes[index] <= LARGEST and not projected(lifting):
            draw_graph(lifting, graph_of(data, part, index), folder / f"graph{number}.png", f"{part} graph {index}")
    draw_choices(lifting, data.parts[part].graphs, folder)
    draw_metrics(metrics, folder / "inclusion.png")


def projected(lifting: Lifting) -> bool:
    """Say whether a lifting's boundaries are projected, from which no polygon can be read."""
    return getattr(getattr(lifting, "branch", None), "boundary", "exact") == "projected"


def graph_of(data: GraphData, part: str, index: int) -> Data:
    """Return a graph of a part as the network sees it, with the atomic numbers where they are known.

    Raises:
        ValueError: if there is no such graph.
    """
    graphs = data.parts[part].graphs
    if not 0 <= index < len(graphs):
        raise ValueError(f"index must lie in [0, {len(graphs)}), the {part} graphs, got {index}")
    lean = graphs[index]
    graph = Data(x=lean.x, edge_index=lean.edge_index)
    if data.splits.task != "node":
        z = data.splits.graphs[data.indices[part][index]].get("z")
        if z is not None:
            graph.z = z
    return with_elements(graph, data.dataset)
