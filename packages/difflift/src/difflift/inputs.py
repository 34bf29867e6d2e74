"""What users hand to a run's lifting or network: folders in the TU format, graphs as JSON, SMILES."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Data

from difflift.app import DiffLiftCLI
from difflift.data import GraphData
from difflift.datasets import TU, TU_FEATURES
from difflift.molecules import SOLUBILITY_CLASSES, molecule_graph, read_smiles_file
from difflift.tu import node_kinds, read_numbers, read_tu, tu_folder

FILES = (".csv", ".json", ".smi", ".smiles", ".tsv", ".txt")  # endings by which a missing file is told from SMILES
LARGEST = float(torch.finfo(torch.float32).max)
MUTAG_KINDS, MUTAG_LABELS = [[0, 1, 2, 3, 4, 5, 6]], ["-1", "1"]  # of the embedded copy


def read_graphs(input: str, cli: DiffLiftCLI) -> list[Data]:
    """Read graphs whose features are those that a run was trained on.

    Args:
        input: a folder in the TU format, a graph as JSON, a file of SMILES, or one SMILES.
        cli: of the run.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: if the input is malformed, or its features are others than the run's.
    """
    if not input.strip():
        raise ValueError("input must be a file, a folder or a SMILES, got nothing")
    path, data, wanted = Path(input), cli.datamodule, cli.model.features
    if path.is_dir():
        graphs = read_like(path, data)
    elif path.suffix == ".json":
        graphs = [read_graph_json(path)]
    elif data.dataset != "solubility":
        known = path.is_file() or path.suffix in FILES
        raise ValueError(
            f"{input}: a run on {data.dataset} takes a folder in the TU format or a graph as .json, "
            f"got {'a file' if known else 'neither'}; molecules as SMILES need one on solubility"
        )
    elif path.is_file() or path.suffix in FILES:
        graphs = read_smiles_file(path)
    else:
        graphs = [molecule_graph(input)]
    found = graphs[0].x.shape[1]
    if found != wanted:
        raise ValueError(f"{input}: vertices have {found} features, expected {wanted} as the run was trained on")
    return graphs


def read_like(folder: Path, data: GraphData) -> list[Data]:
    """Read a TU folder with the columns of the data that a run was trained on."""
    home, kinds = home_of(data), MUTAG_KINDS if data.dataset == "mutag" else None
    if home is not None and any(home.glob("*_node_labels.txt")):
        kinds = node_kinds(home, data.dataset if data.dataset in TU else None)
    return read_tu(folder, features=TU_FEATURES.get(data.dataset, data.own_features), kinds=kinds)


def home_of(data: GraphData) -> Path | None:
    """Return the TU folder that a run was trained on; None for other data."""
    if data.own_folder is None and data.dataset in TU and data.root is not None:
        return tu_folder(data.root, data.dataset)
    return data.own_folder


def class_names(data: GraphData) -> list[str]:
    """Return what the classes of a run's data are called: the labels in the files, or 0, 1 and so on."""
    if data.dataset == "solubility":
        return [name.split()[-1] for name in SOLUBILITY_CLASSES]
    if data.dataset == "mutag":
        return MUTAG_LABELS
    home = home_of(data)
    if home is None:
        return [str(number) for number in range(data.splits.classes)]
    name = data.dataset if data.dataset in TU else "*"
    labels = read_numbers(next(home.glob(f"{name}_graph_labels.txt")), 1)[:, 0].tolist()
    return [str(label) for label in sorted(set(labels))]


def read_graph_json(path: Path) -> Data:
    """Read {"x": [[...], ...], "edges": [[u, v], ...], "labels": [...]}; the labels of the vertices may be missing.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file is anything else.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}, expected a graph as JSON")
    form = 'expected {"x": [[numbers of a vertex], ...], "edges": [[u, v], ...]}'
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no JSON, {form}") from error
    if not isinstance(content, dict) or not isinstance(content.get("x"), list):
        raise ValueError(f"{path} is no graph, {form}")
    rows, edges = content["x"], content.get("edges", [])
    width = len(rows[0]) if rows and isinstance(rows[0], list) else 0

    if not width or not all(isinstance(row, list) and len(row) == width and all(map(is_number, row)) for row in rows):
        raise ValueError(f"{path}: x must hold as many numbers for each vertex, for one at least; {form}")
    for v, row in enumerate(rows):
        if any(not abs(value) <= LARGEST for value in row):
            raise ValueError(f"{path}: x must be finite in single precision, which vertex {v} is not")
    whole = isinstance(edges, list) and all(
        isinstance(edge, list) and len(edge) == 2 and all(type(v) is int and 0 <= v < len(rows) for v in edge)
        for edge in edges
    )
    if not whole:
        raise ValueError(f"{path}: edges must be pairs of vertices in [0, {len(rows)}); {form}")
    ends = torch.tensor(edges, dtype=torch.long).reshape(-1, 2).t()
    data = Data(x=torch.tensor(rows, dtype=torch.float32), edge_index=torch.cat([ends, ends.flip(0)], dim=1))
    labels = content.get("labels")
    if labels is not None:
        if not isinstance(labels, list) or len(labels) != len(rows):
            raise ValueError(f"{path}: labels must be {len(rows)}, one for each vertex")
        data.labels = [str(label) for label in labels]
    return data


def is_number(value: Any) -> bool:
    """Say whether a value of JSON is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)
