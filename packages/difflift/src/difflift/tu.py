"""TU data sets: collections of labelled graphs in plain text (Sec. 5), MUTAG's own copy among them.

A folder holds, for a data set NAME, one line per edge, vertex or graph; vertices and graphs count from 1:

    NAME_A.txt                "u, v" of each directed edge
    NAME_graph_indicator.txt  graph of each vertex, ascending
    NAME_graph_labels.txt     class of each graph
    NAME_node_labels.txt      optional: one or more integers of each vertex
    NAME_node_attributes.txt  optional: numbers of each vertex

Other files, such as NAME_edge_labels.txt, are not read: the method does not look at edges' labels.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import remove_self_loops, to_undirected

Features = Literal["labels", "degree", "random", "constant"]

REQUIRED = ("A", "graph_indicator", "graph_labels")
RANDOM_DIMS, RANDOM_STD = 10, 0.1  # the authors' features of REDDIT (Sec. 5)


def symmetric(edge_index: Tensor, vertices: int) -> Tensor:
    """Return both directions of every edge (2, M'), coalesced and without loops, of edge_index (2, M)."""
    return to_undirected(remove_self_loops(edge_index)[0], num_nodes=vertices)


def separate(features: Sequence[Tensor], edge_index: Tensor, y: Tensor) -> list[Data]:
    """Take a collection apart into its graphs.

    Args:
        features: x (N_g, F) of each of G graphs, whose vertices are numbered through.
        edge_index: (2, M) over all graphs, sorted by its first row; no edge joins two graphs.
        y: target of each graph (G,).

    Returns:
        G graphs with x, edge_index and y (1,).
    """
    sizes = torch.tensor([len(x) for x in features])
    starts = (sizes.cumsum(0) - sizes).tolist()
    graph = torch.arange(len(sizes)).repeat_interleave(sizes)
    edges = torch.bincount(graph[edge_index[0]], minlength=len(sizes)).tolist()
    parts = torch.split(edge_index, edges, dim=1)
    return [
        Data(x=x, edge_index=part - start, y=target.clone())
        for x, part, start, target in zip(features, parts, starts, torch.split(y, 1), strict=True)
    ]


def read_numbers(path: Path, columns: int | None = None, integers: bool = True, rows: int | None = None) -> Any:
    """Read a text file of numbers separated by commas, compressed if its name ends in .gz.

    Args:
        path: the file; lines without text are skipped.
        columns: numbers a line; None for as many as the first line has.
        integers: whether they must be whole.
        rows: lines expected; None for any.

    Returns:
        numpy array (rows, columns), int64 or float64.

    Raises:
        ValueError: if a line is anything else, which is named, or there are not so many.
    """
    try:
        values = pd.read_csv(path, header=None, dtype=np.float64, skipinitialspace=True).to_numpy()
    except pd.errors.EmptyDataError:
        values = np.empty((0, columns or 1))
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is no complete gzip file: {error}") from error
    except ValueError as error:  # text in place of a number, or a line that is too long
        raise _fault(path, columns, integers) from error
    whole = not integers or bool((values == np.rint(values)).all())
    if not np.isfinite(values).all() or not whole or values.shape[1] != (columns or values.shape[1]):
        raise _fault(path, columns, integers)
    if rows is not None and len(values) != rows:
        raise ValueError(f"{path} has {len(values)} lines, expected {rows}")
    return values.astype(np.int64) if integers else values


def _fault(path: Path, columns: int | None, integers: bool) -> ValueError:
    """Find the first line of a file that `read_numbers` refuses."""
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    for number, line in enumerate(content.decode(errors="replace").splitlines(), 1):
        if not line.strip():
            continue
        fields = line.split(",")
        columns = columns or len(fields)
        try:
            values = [float(field) for field in fields]
            good = len(values) == columns and all(np.isfinite(v) and (not integers or v == int(v)) for v in values)
        except ValueError:
            good = False
        if not good:
            kind = "whole numbers" if integers else "finite numbers"
            return ValueError(f"{path}, line {number}: expected {columns} {kind}, got {line.strip()!r}")
    return ValueError(f"{path} cannot be read as numbers separated by commas")


def tu_folder(root: Path, name: str) -> Path:
    """Return the folder of NAME_A.txt: root/NAME/raw, as PyG lays it out, else root/NAME, else root.

    Raises:
        FileNotFoundError: if it is in none of them.
    """
    folders = [root / name / "raw", root / name, root]
    for folder in folders:
        if (folder / f"{name}_A.txt").is_file():
            return folder
    raise FileNotFoundError(f"{root} holds no data set {name}, expected {_files(name)} in {folders[0]} or {folders[1]}")


def _files(name: str) -> str:
    required = ", ".join(f"{name}_{kind}.txt" for kind in REQUIRED)
    return f"{required} (and, if there are any, {name}_node_labels.txt, {name}_node_attributes.txt)"


def _name(folder: Path, name: str | None) -> str:
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is no folder, expected one with the files {_files(name or 'NAME')}")
    if name is None:
        found = sorted(path.name.removesuffix("_A.txt") for path in folder.glob("*_A.txt"))
        if len(found) > 1:
            raise ValueError(f"{folder} holds several data sets, {', '.join(found)}: give each a folder of its own")
        name = found[0] if found else "NAME"
    missing = [f"{name}_{kind}.txt" for kind in REQUIRED if not (folder / f"{name}_{kind}.txt").is_file()]
    if missing:
        raise FileNotFoundError(f"{folder} lacks {', '.join(missing)}; expected are {_files(name)}")
    return name


def node_kinds(folder: Path, name: str | None = None) -> list[list[int]]:
    """Return the values of each column of NAME_node_labels.txt, ascending: what one-hot features stand for.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: if a line is not made of whole numbers.
    """
    path = folder / f"{_name(folder, name)}_node_labels.txt"
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing, expected the label of each vertex")
    return [np.unique(column).tolist() for column in read_numbers(path).T]


def read_tu(
    folder: Path,
    name: str | None = None,
    features: Features = "labels",
    seed: int = 0,
    kinds: list[list[int]] | None = None,
) -> list[Data]:
    """Read the graphs of a TU data set.

    An edge that is given in one direction only is taken as undirected; loops are dropped, repeated edges counted once.

    Args:
        folder: holds the files.
        name: NAME; None for the only one in the folder.
        features: x is, of each vertex,
            `labels`: its labels one-hot, column by column, then its attributes;
            `degree`: its number of neighbours, one-hot from 0 to the largest in the data set (IMDB);
            `random`: 10 draws of N(0, 0.1²), a function of seed and of the graph's index (REDDIT);
            `constant`: 1.
        seed: of the random features.
        kinds: values that the one-hot columns stand for, of each column of labels, as `node_kinds` returns them; None
            for those in the folder. With the kinds of another folder, x has that folder's columns.

    Returns:
        Graphs with x (N, F) float32, edge_index (2, M) and y (1,) int64: the classes 0..K-1 in the order of the labels.

    Raises:
        FileNotFoundError: if a file is missing; all that are expected are named.
        ValueError: if a file is malformed, or does not fit another; the file, and where possible the line, is named.
    """
    name = _name(folder, name)
    indicator_path = folder / f"{name}_graph_indicator.txt"
    graph = read_numbers(indicator_path, 1)[:, 0]
    labels = read_numbers(folder / f"{name}_graph_labels.txt", 1)[:, 0]
    _check_indicator(indicator_path, graph, len(labels))
    n, sizes = len(graph), np.bincount(graph - 1)

    edges = _read_edges(folder / f"{name}_A.txt", graph)
    edge_index = symmetric(torch.from_numpy(edges).t().contiguous(), n)
    y = torch.from_numpy(np.unique(labels, return_inverse=True)[1])
    if features == "labels":
        x = _label_features(folder, name, n, kinds)
    elif features == "degree":
        x = torch.nn.functional.one_hot(torch.bincount(edge_index[0], minlength=n)).float()
    elif features == "random":
        draws = [np.random.default_rng([seed, g]).normal(0, RANDOM_STD, (s, RANDOM_DIMS)) for g, s in enumerate(sizes)]
        x = torch.from_numpy(np.concatenate(draws)).float()
    elif features == "constant":
        x = torch.ones(n, 1)
    else:
        raise ValueError(f"features must be labels, degree, random or constant, got {features!r}")
    # A view would take the whole collection along whenever one graph is pickled.
    return separate([part.clone() for part in torch.split(x, sizes.tolist())], edge_index, y)


def _check_indicator(path: Path, graph: NDArray[np.int64], graphs: int) -> None:
    if not len(graph):
        raise ValueError(f"{path} is empty, expected the graph of each vertex")
    steps = np.diff(graph, prepend=0)
    wrong = np.flatnonzero((steps < 0) | (steps > 1) | ((steps == 0) & (graph < 1)))
    if len(wrong):
        raise ValueError(
            f"{path}, line {wrong[0] + 1}: graphs must ascend from 1 and none may be without a vertex, "
            f"got {graph[wrong[0]]}"
        )
    if graph[-1] != graphs:
        raise ValueError(f"{path} names {graph[-1]} graphs, expected {graphs}, one a line of the graph labels")


def _read_edges(path: Path, graph: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the directed edges (M, 2), from 0."""
    edges: NDArray[np.int64] = read_numbers(path, 2) - 1
    outside = np.flatnonzero(((edges < 0) | (edges >= len(graph))).any(1))
    if len(outside):
        first = outside[0]
        raise ValueError(f"{path}, line {first + 1}: vertices must lie in 1..{len(graph)}, got {edges[first] + 1}")
    joins = np.flatnonzero(graph[edges[:, 0]] != graph[edges[:, 1]])
    if len(joins):
        u, v = edges[joins[0]]
        raise ValueError(f"{path}, line {joins[0] + 1}: edge {u + 1}, {v + 1} joins graphs {graph[u]} and {graph[v]}")
    return edges


def _label_features(folder: Path, name: str, n: int, kinds: list[list[int]] | None) -> Tensor:
    label_path, attribute_path = (folder / f"{name}_node_{kind}.txt" for kind in ("labels", "attributes"))
    parts: list[NDArray[Any]] = []
    if label_path.is_file():
        columns = read_numbers(label_path, rows=n).T
        known = kinds if kinds is not None else [np.unique(column).tolist() for column in columns]
        if len(known) != len(columns):
            raise ValueError(f"{label_path} has {len(columns)} labels a line, expected {len(known)}")
        for column, values in zip(columns, known, strict=True):
            other = np.flatnonzero(~np.isin(column, values))
            if len(other):
                raise ValueError(f"{label_path}, line {other[0] + 1}: label {column[other[0]]} is none of {values}")
            parts.append(column[:, None] == np.array(values))
    if attribute_path.is_file():
        parts.append(read_numbers(attribute_path, integers=False, rows=n))
    if not parts:
        raise FileNotFoundError(
            f"{folder} lacks {label_path.name} and {attribute_path.name}, which features='labels' needs; "
            "without them features can be degree, random or constant"
        )
    return torch.from_numpy(np.concatenate([part.astype(np.float32) for part in parts], axis=1))


def mutag() -> list[Data]:
    """Return MUTAG from the files in the wheel of grakel, whose code is not imported.

    188 nitroaromatic compounds of 10 to 28 atoms: 125 of class 1, which are mutagenic, 63 of class 0. The features are
    the atom's kind, one-hot: C, N, O, F, I, Cl, Br.

    Raises:
        ImportError: if grakel is not installed; it has no wheel for Python 3.13.
    """
    try:
        wheel = metadata.distribution("grakel")
    except metadata.PackageNotFoundError as error:
        raise ImportError(
            "mutag is read from the wheel grakel, which is not installed (it has none for Python 3.13); "
            "MUTAG with a root is the same data set from its own files"
        ) from error
    return read_tu(Path(str(wheel.locate_file("grakel/tests/data/MUTAG"))), "MUTAG")
