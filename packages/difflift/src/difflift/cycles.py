"""The cycles that may become 2-cells (Sec. 3.4): bases of the cycle space, chordless cycles, triangles.

Which set is meant by "the cycles of a graph" is a choice of the lifting:

    minimum    a basis of the least total length, what a chemist calls the smallest set of smallest rings
    basis      the fundamental cycles of a spanning forest; long cycles, which depend on the order of the vertices
    induced    every cycle without a chord, up to a length
    triangles  every three vertices that are joined pairwise, the 2-cells of a simplicial complex

A cycle is taken as the set of its edges, and the sum of two as their symmetric difference; a basis then has
|E| - |V| + components cycles. Nothing here is differentiable. What was found for a graph is remembered, for an epoch
brings the same molecules back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Literal

import numpy as np
import rustworkx as rx
import torch
from numpy.typing import NDArray
from torch import Tensor

from difflift.options import check_choice

CycleKind = Literal["basis", "minimum", "induced", "triangles"]
CACHED_EDGES = 512  # of the largest graph that is remembered; it bounds the memory of the caches
EDGE_BYTES = 8  # of an edge within a key: two int32


@dataclass(frozen=True)
class Cycles:
    """The cycles of a batch of graphs, as the entries of an incidence matrix of edges (rows) and cycles (columns).

    Those of a graph follow those of the graph before, the shorter first, then in lexicographic order of the vertices.
    The entries of a cycle follow its course, from its lowest vertex towards the lower neighbour: the edge of an entry
    joins its vertex to the next one's, and that of the last to the first.

    Attributes:
        edge: edge of each entry (nnz,), int64, a column of the edges that were given.
        vertex: vertex of each entry (nnz,), int64.
        cell: cycle of each entry (nnz,), int64, ascending.
        batch: graph of each cycle (C,), int64, ascending.
    """

    edge: Tensor
    vertex: Tensor
    cell: Tensor
    batch: Tensor


def find_cycles(
    edges: Tensor, sizes: Tensor, kind: CycleKind = "minimum", shortest: int = 3, longest: int | None = None
) -> Cycles:
    """Find the cycles of each graph of a batch.

    What is found for a graph depends neither on the others nor on the order in which its edges are given.

    Args:
        edges: ends of each edge (2, E), int64; each edge once, the lower vertex first, in any order.
        sizes: number of vertices of each graph (G,), int64.
        kind: which cycles, see the module's docstring.
        shortest: the fewest edges of a cycle that is kept, at least 3.
        longest: the most edges of a cycle that is kept; any when None, which does not go with `induced`. Bases are
            those of the whole graph; then cycles of other lengths are left out.

    Raises:
        ValueError: if an option is out of range, or an edge has the higher vertex first, is a loop or is given twice.
    """
    check_cycle_options(kind, shortest, longest)
    if kind == "triangles":
        return find_triangles(edges, sizes, shortest)
    found = []
    for graph, (first, key, column) in enumerate(edges_by_graph(edges, sizes)):
        solve = cycles_of_graph if len(key) <= CACHED_EDGES * EDGE_BYTES else cycles_of_graph.__wrapped__
        vertex, edge, length = solve(key, kind, shortest, longest)
        if len(length):
            found.append((vertex + first, column[edge], length, np.full_like(length, graph)))
    none = (np.empty(0, np.int64),) * 4
    joined = (np.concatenate(parts) for parts in zip(none, *found, strict=True))
    vertices, columns, length_of, batch = (torch.from_numpy(part).to(edges.device) for part in joined)
    cell = torch.arange(len(batch), device=edges.device).repeat_interleave(length_of)
    return Cycles(columns, vertices, cell, batch)


def check_cycle_options(kind: CycleKind, shortest: int = 3, longest: int | None = None) -> None:
    """Check the options of `find_cycles`.

    Raises:
        ValueError: if one is out of range.
    """
    check_choice("cycles", kind, CycleKind)
    if shortest < 3:
        raise ValueError(f"shortest must be at least 3, the length of a triangle, got {shortest}")
    if longest is None and kind == "induced":
        raise ValueError("longest must be given with induced cycles, which can be exponentially many, got None")
    if longest is not None and longest < shortest:
        raise ValueError(f"longest must be at least {shortest}, as shortest is, got {longest}")


def find_triangles(edges: Tensor, sizes: Tensor, shortest: int = 3) -> Cycles:
    """Find every three vertices that are joined pairwise; arguments and result are those of `find_cycles`.

    Without a loop over graphs or edges, on the device of the edges; the time is that of listing the paths u < v < w.
    """
    n = int(sizes.sum())
    key, order = lexicographic(edges, n)
    u, v = edges[:, order]
    degree = torch.bincount(u, minlength=n)
    start = degree.cumsum(0) - degree
    uv, vw = ragged_ranges(start[v], degree[v])
    closing = u[uv] * n + v[vw]
    uw = torch.searchsorted(key, closing).clamp(max=max(len(key) - 1, 0))
    closed = (key[uw] == closing) & (shortest == 3)
    uv, vw, uw = uv[closed], vw[closed], uw[closed]
    edge = torch.stack([order[uv], order[vw], order[uw]], dim=1).flatten()
    vertex = torch.stack([u[uv], v[uv], v[vw]], dim=1).flatten()
    cell = torch.arange(len(uv), device=edges.device).repeat_interleave(3)
    batch = torch.arange(len(sizes), device=edges.device).repeat_interleave(sizes)
    return Cycles(edge, vertex, cell, batch[u[uv]])


def ragged_ranges(start: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """Return the ranges start_i, start_i + 1, ... of count_i numbers, one after the other, each with its i.

    Args:
        start: (M,), int64.
        count: (M,), int64, at least 0.

    Returns:
        i (Σ count,) and the numbers (Σ count,).
    """
    owner = torch.arange(len(count), device=count.device).repeat_interleave(count)
    within = torch.arange(len(owner), device=count.device) - (count.cumsum(0) - count)[owner]
    return owner, start[owner] + within


def lexicographic(edges: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Return the numbers u n + v of the edges (E,), ascending, and which edge each belongs to (E,).

    Raises:
        ValueError: if an edge has the higher vertex first, is a loop or is given twice.
    """
    key, order = (edges[0] * n + edges[1]).sort()
    if (edges[0] >= edges[1]).any() or (key[1:] == key[:-1]).any():
        raise ValueError("edges must be given once each, the lower vertex first, got loops, repeated or reversed ones")
    return key, order


def edges_by_graph(edges: Tensor, sizes: Tensor) -> Iterator[tuple[int, bytes, NDArray[np.int64]]]:
    """Split the edges (2, E) of a batch among its graphs of `sizes` (G,) vertices.

    Yields:
        For each graph: its first vertex; a key, which is its edges in lexicographic order and numbered within the
        graph, as pairs of int32; and the column of each of them in `edges`.
    """
    edges, sizes = edges.cpu(), sizes.cpu()
    order = lexicographic(edges, int(sizes.sum()))[1]
    ends = sizes.cumsum(0)
    first = (ends - sizes).tolist()
    graph = torch.searchsorted(ends, edges[0, order], right=True)
    bounds = np.searchsorted(graph.numpy(), np.arange(len(sizes) + 1)).tolist()
    local = (edges[:, order] - (ends - sizes)[graph]).T.contiguous().numpy().astype(np.int32)
    columns = order.numpy()
    for g, (start, end) in enumerate(pairwise(bounds)):
        yield first[g], local[start:end].tobytes(), columns[start:end]


@lru_cache(maxsize=8192)
def cycles_of_graph(
    key: bytes, kind: CycleKind, shortest: int, longest: int | None
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Find the cycles of one graph.

    Args:
        key: the graph, see `edges_by_graph`.
        kind: any but `triangles`.
        shortest: see `find_cycles`.
        longest: likewise.

    Returns:
        Vertices (nnz,) and edges (nnz,) of the cycles, in the order of `Cycles`, and their lengths (C,).
    """
    edges = edges_of_key(key)
    if kind == "basis":
        cycles = fundamental_cycles(edges)
    elif kind == "minimum":
        cycles = minimum_cycles(edges, longest)
    else:
        cycles = chordless_cycles(edges, longest or len(edges))
    kept = (turned(c) for c in cycles if shortest <= len(c) <= (longest or len(c)))
    ordered = sorted(kept, key=lambda cycle: (len(cycle), cycle))
    column = {edge: i for i, edge in enumerate(edges)}
    pairs = ((min(u, v), max(u, v)) for c in ordered for u, v in zip(c, c[1:] + c[:1], strict=True))
    vertices = [v for cycle in ordered for v in cycle]
    lengths = [len(cycle) for cycle in ordered]
    return np.array(vertices, np.int64), np.array([column[p] for p in pairs], np.int64), np.array(lengths, np.int64)


def edges_of_key(key: bytes) -> list[tuple[int, int]]:
    """Return the edges of a key of `edges_by_graph`."""
    return [(u, v) for u, v in np.frombuffer(key, np.int32).reshape(-1, 2).tolist()]


def turned(cycle: list[int]) -> list[int]:
    """Return the vertices of a cycle from the lowest one on, towards the lower of its neighbours."""
    i = cycle.index(min(cycle))
    cycle = cycle[i:] + cycle[:i]
    return cycle if cycle[1] < cycle[-1] else [cycle[0], *cycle[:0:-1]]


def fundamental_cycles(edges: list[tuple[int, int]]) -> list[list[int]]:
    """Return the cycles that the edges outside of a spanning forest close, as vertices in the order of their course.

    Args:
        edges: pairs u < v.
    """
    graph = rx.PyGraph()
    graph.extend_from_edge_list(edges)
    cycles = []
    for component in rx.connected_components(graph):
        # With several components, or no root, rustworkx begins at one that differs from call to call.
        names = sorted(component)
        if len(names) > 2:
            cycles += [[names[v] for v in cycle] for cycle in rx.cycle_basis(graph.subgraph(names), 0)]
    return cycles


def minimum_cycles(edges: list[tuple[int, int]], longest: int | None = None) -> list[list[int]]:
    """Return a cycle basis of the least total length, each cycle as vertices in the order of their course.

    Horton (SIAM J. Comput. 16, 1987): the basis can be picked greedily, the shortest first, among the cycles made of
    an edge and the shortest paths from a root to its ends. Two savings, by which the result stays minimal: what hangs
    on the cycles as a tree is cut off, and a root is cut off too once it has served, for its candidates span, together
    with shorter cycles, whatever passes through it. Of several minimal bases the order of the edges decides.

    Args:
        edges: pairs u < v.
        longest: leave the cycles of the basis with more edges out; finds the others sooner than without.
    """
    graph = rx.PyGraph()
    graph.extend_from_edge_list(edges)
    rank = len(edges) - graph.num_nodes() + rx.number_connected_components(graph)
    if not rank:
        return []
    around: dict[int, dict[int, int]] = {v: {} for v in range(graph.num_nodes())}  # neighbour -> bit of the edge
    for i, (u, v) in enumerate(edges):
        around[u][v] = around[v][u] = 1 << i
    longest = longest or len(edges)
    candidates: set[tuple[int, int]] = set()
    cut_off(around, [v for v in around if len(around[v]) < 2])
    for root in sorted(around, key=lambda v: (-len(around[v]), v)):
        if root in around:
            candidates |= rooted_cycles(around, root, longest)
            cut_off(around, [root])

    basis: list[int] = []
    pivots: dict[int, int] = {}  # highest bit -> a reduced row of the basis
    for _, cycle in sorted(candidates):
        rest = cycle
        while rest and (pivot := pivots.get(rest.bit_length())):
            rest ^= pivot
        if rest:
            pivots[rest.bit_length()] = rest
            basis.append(cycle)
            if len(basis) == rank:
                break
    return [course([edges[i] for i in bits(cycle)]) for cycle in basis]


def cut_off(around: dict[int, dict[int, int]], vertices: list[int]) -> None:
    """Remove the vertices, and then those with fewer than two neighbours, from the graph `around`, in place."""
    while vertices:
        removed = vertices.pop()
        for neighbour in around.pop(removed, {}):
            del around[neighbour][removed]
            if len(around[neighbour]) < 2:
                vertices.append(neighbour)


def rooted_cycles(around: dict[int, dict[int, int]], root: int, longest: int) -> set[tuple[int, int]]:
    """Return the cycles through the root that an edge closes with the shortest paths from the root to its ends.

    Args:
        around: edges at each vertex, as neighbour -> bit.
        root: a vertex.
        longest: leave out cycles of more edges.

    Returns:
        Length and edges, as a sum of bits, of each cycle.
    """
    found = set()
    depth, path, branch = {root: 0}, {root: 0}, {root: root}
    queue = [root]
    for u in queue:
        for v, bit in around[u].items():
            if v not in depth:
                if 2 * depth[u] + 2 <= longest:
                    depth[v], path[v], branch[v] = depth[u] + 1, path[u] | bit, branch[u] if depth[u] else v
                    queue.append(v)
            # The paths to two branches of the tree meet at the root only, so that the cycle is simple.
            elif u < v and depth[u] and depth[v] and branch[u] != branch[v]:
                length = depth[u] + depth[v] + 1
                if length <= longest:
                    found.add((length, path[u] | path[v] | bit))
    return found


def course(edges: list[tuple[int, int]]) -> list[int]:
    """Return the vertices of a cycle, given as its edges in any order, in the order of its course."""
    around: dict[int, list[int]] = {}
    for u, v in edges:
        around.setdefault(u, []).append(v)
        around.setdefault(v, []).append(u)
    before, here = edges[0]
    cycle = [before]
    while here != cycle[0]:
        cycle.append(here)
        a, b = around[here]
        before, here = here, b if a == before else a
    return cycle


def chordless_cycles(edges: list[tuple[int, int]], longest: int) -> list[list[int]]:
    """Return every cycle of at most `longest` edges none of whose vertices are joined but along the cycle.

    Grows paths from the lowest vertex of a cycle. Sets of vertices are the bits of integers.

    Args:
        edges: pairs u < v.
        longest: at least 3.
    """
    around = [0] * (max(map(max, edges), default=-1) + 1)
    for u, v in edges:
        around[u] |= 1 << v
        around[v] |= 1 << u
    cycles = []
    for lowest, ends in enumerate(around):
        paths = [([lowest, second], (2 << lowest) - 1) for second in bits(ends >> lowest << lowest)]
        while paths:
            path, barred = paths.pop()
            onward = around[path[-1]] & ~barred
            cycles += [[*path, last] for last in bits(onward & ends) if last > path[1]]
            if len(path) + 1 < longest:
                # A later vertex that is joined to one before the last would be the end of a chord.
                paths += [([*path, v], barred | around[path[-1]] | 1 << path[-1]) for v in bits(onward & ~ends)]
    return cycles


def bits(number: int) -> list[int]:
    """Return the places of the ones of a number, ascending."""
    return [i for i, bit in enumerate(bin(number)[:1:-1]) if bit == "1"]
