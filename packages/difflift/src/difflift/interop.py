"""Complexes as JSON and as TopoNetX's objects, and the sparse matrices that other libraries' networks take (Sec. 12).

The JSON of one graph:

    {
      "format": "difflift.complex", "version": 1,
      "target": "hypergraph",         # or cell, or simplicial
      "vertices": 4,                  # N; vertices are 0 .. N - 1
      "edges": [[0, 1], [1, 2]],      # the graph's own, the lower vertex first
      "cells": [                      # what the lifting added and included, 1-cells first
        {"kind": "hyperedge", "vertices": [1, 2, 3], "probability": 0.83, "inclusion": 1.0}
      ],
      "k": [3, 2, 2, 3]               # size of the neighbourhood chosen at each vertex; null where none is
    }

A cell's kind is `hyperedge`, `edge` (a 1-cell of two vertices) or `polygon` (a 2-cell, its vertices in the order of the
boundary, from the lowest towards its lower neighbour). Its inclusion s is 1, except under soft selection.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from difflift.complexes import Complex, Incidence
from difflift.lifting import Target

FORMAT, VERSION = "difflift.complex", 1

Described = tuple[list[int], float, float]  # vertices, p and s of a cell


def extract(complex: Complex, graph: int = 0) -> Complex:
    """Return the complex of one graph of a batch, without excluded cells.

    Args:
        complex: a batch of G graphs.
        graph: which, in [0, G).

    Raises:
        ValueError: if there is no such graph.
    """
    if not 0 <= graph < complex.graphs:
        raise ValueError(f"graph must lie in [0, {complex.graphs}), got {graph}")
    complex = complex.pruned()
    vertices, first, second = (batch == graph for batch in (complex.batch_0, complex.batch_1, complex.batch_2))
    return replace(
        complex,
        b1=complex.b1.select(vertices, first),
        b2=complex.b2.select(first, second),
        batch_0=complex.batch_0[vertices] * 0,
        batch_1=complex.batch_1[first] * 0,
        batch_2=complex.batch_2[second] * 0,
        graphs=1,
        edges=int(first[: complex.edges].sum()),
        p_1=complex.p_1[first],
        p_2=complex.p_2[second],
        k=None if complex.k is None else complex.k[vertices],
        candidates=0,
    )


def columns(b: Incidence) -> list[list[int]]:
    """List the rows of each column's entries, ascending."""
    found: list[list[int]] = [[] for _ in range(len(b.weight))]
    for row, col in zip(b.row.tolist(), b.col.tolist(), strict=True):
        found[col].append(row)
    return [sorted(rows) for rows in found]


def course(edges: Sequence[Sequence[int]]) -> list[int]:
    """Return the vertices of a cycle in order, from the lowest towards its lower neighbour.

    Args:
        edges: ends of each edge of the cycle, in any order.

    Raises:
        ValueError: if the edges are no simple cycle.
    """
    around: dict[int, list[int]] = {}
    for u, v in edges:
        around.setdefault(u, []).append(v)
        around.setdefault(v, []).append(u)
    if len(edges) > 2 and all(len(set(ends)) == 2 == len(ends) for ends in around.values()):
        path = [min(around), min(around[min(around)])]
        while path[-1] != path[0]:
            path.append(next(v for v in around[path[-1]] if v != path[-2]))
        if len(path) == len(edges) + 1:
            return path[:-1]
    raise ValueError(f"the boundary of a 2-cell must be one simple cycle, as with boundary='exact', got edges {edges}")


def target_of(complex: Complex) -> Target:
    """Guess the target of a lifting from its complexes: a hypergraph if there is no 2-cell.

    With 2-cells, `simplicial` if all are triangles, else `cell`.
    """
    if not complex.b2.shape[1]:
        return "hypergraph"
    return "simplicial" if bool((complex.b2.sizes == 3).all()) else "cell"


def to_json(complex: Complex, graph: int = 0, target: Target | None = None) -> dict[str, Any]:
    """Describe the complex of one graph by plain lists and numbers, as the module's docstring says.

    Args:
        complex: a batch of complexes.
        graph: which of its graphs.
        target: of the lifting; by `target_of` the graph's complex if None.

    Raises:
        ValueError: if there is no such graph, the complex has cells that the target has not, or the boundary of a
            2-cell is no simple cycle.
    """
    one = extract(complex, graph)
    target = target_of(one) if target is None else target
    members = columns(one.b1)
    if target == "hypergraph" and one.b2.shape[1]:
        raise ValueError(f"a hypergraph has no 2-cells, got {one.b2.shape[1]}")
    if target != "hypergraph" and any(len(vertices) != 2 for vertices in members):
        raise ValueError(f"the 1-cells of a {target} complex must have two vertices each")
    cells: list[tuple[str, list[int], float, float]] = []
    kind = "hyperedge" if target == "hypergraph" else "edge"
    for vertices, p, s in list(zip(members, one.p_1.tolist(), one.b1.weight.tolist(), strict=True))[one.edges :]:
        cells.append((kind, vertices, p, s))
    for boundary, p, s in zip(columns(one.b2), one.p_2.tolist(), one.b2.weight.tolist(), strict=True):
        cells.append(("polygon", course([members[e] for e in boundary]), p, s))
    return {
        "format": FORMAT,
        "version": VERSION,
        "target": target,
        "vertices": one.b1.rows,
        "edges": members[: one.edges],
        "cells": [
            {"kind": kind, "vertices": vertices, "probability": p, "inclusion": s} for kind, vertices, p, s in cells
        ],
        "k": None if one.k is None else one.k.tolist(),
    }


def from_json(content: dict[str, Any]) -> Complex:
    """Build the complex of one graph from what `to_json` returns; more keys than those are ignored.

    Raises:
        ValueError: if the content is malformed; what is wrong is named.
    """
    if not isinstance(content, dict) or content.get("format") != FORMAT or content.get("version") != VERSION:
        raise ValueError(f"expected a complex with format {FORMAT!r} and version {VERSION}")
    n, k = content.get("vertices"), content.get("k")
    if type(n) is not int or n < 1:
        raise ValueError(f"vertices must be a number of at least 1, got {n!r}")
    if k is not None and not (isinstance(k, list) and len(k) == n and all(type(size) is int for size in k)):
        raise ValueError(f"k must be null or {n} whole numbers, one for each vertex")
    if not isinstance(content.get("edges"), list) or not isinstance(content.get("cells"), list):
        raise ValueError("edges and cells must be lists")
    edges = [_vertices(edge, n, f"edge {i}") for i, edge in enumerate(content["edges"])]
    if any(len(edge) != 2 for edge in edges):
        raise ValueError("edges must have two vertices each")
    first: list[Described] = [(sorted(edge), 1.0, 1.0) for edge in edges]
    second: list[Described] = []
    for i, cell in enumerate(content["cells"]):
        if not isinstance(cell, dict) or cell.get("kind") not in ("hyperedge", "edge", "polygon"):
            raise ValueError(f"cell {i} must have the kind hyperedge, edge or polygon")
        vertices = _vertices(cell.get("vertices"), n, f"cell {i}")
        p, s = (_number(cell.get(key, 1.0), f"cell {i}: {key}") for key in ("probability", "inclusion"))
        if cell["kind"] == "polygon":
            second.append((vertices, p, s))
        else:
            first.append((sorted(vertices), p, s))
    return _assemble(n, len(edges), first, second, k)


def _vertices(value: Any, n: int, what: str) -> list[int]:
    good = isinstance(value, list | tuple) and all(type(v) is int and 0 <= v < n for v in value)
    if not good or not value or len(set(value)) < len(value):
        raise ValueError(f"{what} must list different vertices in [0, {n}), got {value!r}")
    return list(value)


def _number(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1 or math.isnan(value):
        raise ValueError(f"{what} must lie in [0, 1], got {value!r}")
    return float(value)


def _assemble(
    n: int,
    edges: int,
    first: Sequence[Described],
    second: Sequence[Described],
    k: list[int] | None = None,
) -> Complex:
    """Build a complex from its 1-cells (members, p, s), the graph's own edges first, and its polygons likewise."""
    number = {tuple(vertices): e for e, (vertices, _, _) in enumerate(first)}
    if len(number) < len(first):
        raise ValueError("two 1-cells have the same vertices, expected each once")
    sides: list[list[int]] = []
    for vertices, _, _ in second:
        ends = [tuple(sorted(pair)) for pair in pairwise([*vertices, vertices[0]])]
        missing = [pair for pair in ends if pair not in number]
        if len(vertices) < 3 or missing:
            raise ValueError(f"polygon {vertices} must have three vertices or more, all its sides among the 1-cells")
        sides.append(sorted(number[pair] for pair in ends))
    b1, b2 = (
        Incidence(
            row=torch.tensor([row for members in rows for row in members], dtype=torch.long),
            col=torch.tensor([col for col, members in enumerate(rows) for _ in members], dtype=torch.long),
            member=torch.ones(sum(map(len, rows))),
            weight=torch.tensor([s for _, _, s in cells], dtype=torch.float32),
            rows=height,
        )
        for rows, cells, height in (([cell[0] for cell in first], first, n), (sides, second, len(first)))
    )
    batch_0, batch_1, batch_2 = (torch.zeros(size, dtype=torch.long) for size in (n, len(first), len(second)))
    p_1, p_2 = (torch.tensor([p for _, p, _ in cells], dtype=torch.float32) for cells in (first, second))
    chosen = None if k is None else torch.tensor(k)
    return Complex(b1, b2, batch_0, batch_1, batch_2, 1, edges, p_1, p_2, chosen)


def _toponetx() -> Any:
    try:
        import toponetx
    except ImportError as error:
        raise ImportError("TopoNetX is not installed, install difflift[toponetx]") from error
    return toponetx


def to_toponetx(complex: Complex, graph: int = 0, target: Target | None = None) -> Any:
    """Convert the complex of one graph to TopoNetX.

    Vertices are 0 .. N - 1. Edges, hyperedges and 2-cells have the attributes `learned`, `probability` and `inclusion`
    (see the module's docstring), vertices `k` where sizes are chosen. TopoNetX orders cells in its own way: ask for
    `index=True` beside an incidence matrix.

    Args:
        complex: a batch of complexes.
        graph: which of its graphs.
        target: of the lifting; by `target_of` the graph's complex if None.

    Returns:
        `ColoredHyperGraph` with hyperedges of rank 1, `CellComplex`, or `SimplicialComplex`, by the target.

    Raises:
        ImportError: if TopoNetX is not installed.
        ValueError: as `to_json` does.
    """
    tnx, content = _toponetx(), to_json(complex, graph, target)
    cells = [(edge, {"learned": False, "probability": 1.0, "inclusion": 1.0}) for edge in content["edges"]]
    for cell in content["cells"]:
        attributes = {"learned": True, "probability": cell["probability"], "inclusion": cell["inclusion"]}
        cells.append((cell["vertices"], attributes))
    kinds = {"hypergraph": "ColoredHyperGraph", "cell": "CellComplex", "simplicial": "SimplicialComplex"}
    result = getattr(tnx, kinds[content["target"]])()
    for v in range(content["vertices"]):
        result.add_node(v, **({} if content["k"] is None else {"k": content["k"][v]}))
    for vertices, attributes in cells:
        if content["target"] == "hypergraph":
            result.add_cell(vertices, rank=1, **attributes)
        elif content["target"] == "simplicial":
            result.add_simplex(vertices, **attributes)
        elif len(vertices) == 2:
            result.add_edge(*vertices, **attributes)
        else:
            result.add_cell(vertices, rank=2, **attributes)
    return result


def from_toponetx(source: Any) -> Complex:
    """Convert a complex of TopoNetX of rank 2 at most, or a hypergraph of its with hyperedges of rank 1.

    Vertices are numbered in their sorted order, or in the order of the source where they cannot be sorted. 1-cells with
    a true attribute `learned` count as added by the lifting, the others as the graph's own edges; where it is missing,
    those of two vertices are the graph's own. `probability` and `inclusion` are 1 where an attribute is missing.

    Args:
        source: a `CellComplex`, `SimplicialComplex` or `ColoredHyperGraph`.

    Raises:
        ImportError: if TopoNetX is not installed.
        ValueError: if the source is of another kind, is without vertices, or has cells of another rank.
    """
    tnx = _toponetx()
    nodes: list[Any]
    ones: Iterable[tuple[Any, dict[str, Any]]]
    twos: Iterable[tuple[Any, dict[str, Any]]] = []
    if isinstance(source, tnx.CellComplex):
        nodes = list(source.nodes)
        ones = [((u, v), attributes) for u, v, attributes in source.edges(data=True)]
        twos = [(cell.elements, source.cells[cell]) for cell in source.cells]
    elif isinstance(source, tnx.SimplicialComplex):
        if source.dim > 2:
            raise ValueError(f"the simplices must be of rank 2 at most, got rank {source.dim}")
        nodes = [next(iter(simplex)) for simplex in source.skeleton(0)]
        ones, twos = ([(s, source[s]) for s in source.skeleton(r)] if r <= source.dim else [] for r in (1, 2))
    elif isinstance(source, tnx.ColoredHyperGraph):
        ranks = sorted({int(rank) for rank in source.ranks} - {0})
        if ranks not in ([], [1]):
            raise ValueError(f"the hyperedges must be of rank 1, got ranks {ranks}")
        nodes = [next(iter(node)) for node in source.nodes]
        ones = [(cell[0], source.cells[cell]) for cell in source.cells]
    else:
        raise ValueError(f"expected a CellComplex, SimplicialComplex or ColoredHyperGraph, got {type(source).__name__}")
    if not nodes:
        raise ValueError("the complex has no vertex, expected at least one")
    with suppress(TypeError):
        nodes = sorted(nodes)
    number = {node: v for v, node in enumerate(nodes)}
    own: list[Described] = []
    added: list[Described] = []
    polygons: list[Described] = []
    for members, attributes in ones:
        vertices = sorted(number[node] for node in members)
        part = added if attributes.get("learned", len(vertices) != 2) else own
        part.append((vertices, *_attributes(attributes)))
    for members, attributes in twos:
        if isinstance(attributes, list):  # TopoNetX keeps what is added twice
            raise ValueError(f"the 2-cell {tuple(members)} occurs {len(attributes)} times, expected once")
        polygons.append(([number[node] for node in members], *_attributes(attributes)))
    return _assemble(len(nodes), len(own), [*sorted(own), *sorted(added)], sorted(polygons))


def _attributes(attributes: dict[str, Any]) -> tuple[float, float]:
    p, s = (_number(attributes.get(key, 1.0), key) for key in ("probability", "inclusion"))
    return p, s


def sparse_matrices(complex: Complex) -> tuple[Tensor, Tensor]:
    """Return B_1 (N, E) and B_2 (E, C) without excluded cells, as coalesced sparse tensors that pass the gradient."""
    pruned = complex.pruned()
    return pruned.b1.to_sparse(), pruned.b2.to_sparse()
