"""What learned liftings are compared with: static liftings, behind the same interface (Sec. 4).

    NoLifting          the graph itself
    CycleLifting       cycles, as 2-cells or as hyperedges
    CliqueLifting      maximal cliques as hyperedges, or triangles as 2-cells
    KHopLifting        balls around each vertex, as hyperedges
    FeatureKNNLifting  nearest vertices by raw features, as hyperedges or as edges with the cycles they close

They have no parameters. As with the learned lifting, the graph's own edges are always kept, a hyperedge has at least
two members, and one with the members of an edge or of a hyperedge before it is left out.
"""

from __future__ import annotations

from functools import lru_cache

import networkx as nx
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch_geometric.data import Data

from difflift.cells import candidate_edges
from difflift.complexes import Complex, Incidence, edge_incidence, empty_incidence
from difflift.cycles import (
    CACHED_EDGES,
    EDGE_BYTES,
    CycleKind,
    check_cycle_options,
    edges_by_graph,
    edges_of_key,
    find_cycles,
    ragged_ranges,
)
from difflift.graphs import Graphs
from difflift.lifting import Lifting
from difflift.neighbours import Neighbourhoods, nearest


def cell_complex(graphs: Graphs, added: Tensor, cycles: CycleKind, shortest: int, longest: int | None) -> Complex:
    """Return graphs with edges added, and the cycles of the result as 2-cells.

    Args:
        graphs: the batch.
        added: ends of the edges to add (2, M), none of them the graphs' own.
        cycles: which cycles, see `find_cycles`.
        shortest: likewise.
        longest: likewise.
    """
    edges = torch.cat([graphs.edges, added], dim=1)
    found = find_cycles(edges, graphs.sizes, cycles, shortest, longest)
    ones_1, ones_2 = graphs.x.new_ones(edges.shape[1]), graphs.x.new_ones(len(found.batch))
    b2 = Incidence(found.edge, found.cell, graphs.x.new_ones(len(found.cell)), ones_2, edges.shape[1])
    return Complex(
        b1=edge_incidence(edges, ones_1, len(graphs.x)),
        b2=b2,
        batch_0=graphs.batch,
        batch_1=graphs.batch[edges[0]],
        batch_2=found.batch,
        graphs=graphs.graphs,
        edges=graphs.edges.shape[1],
        p_1=ones_1,
        p_2=ones_2,
    )


def hypergraph(graphs: Graphs, vertex: Tensor, hyperedge: Tensor) -> Complex:
    """Return graphs with hyperedges added; those of fewer than two members, and repeated ones, are left out.

    Args:
        graphs: the batch.
        vertex: members (nnz,), int64.
        hyperedge: of which hyperedge each is a member (nnz,), int64, ascending; no pair occurs twice.
    """
    n, own = len(graphs.x), graphs.edges.shape[1]
    vertex = (hyperedge * n + vertex).sort().values % n
    kept = new_member_sets(graphs.edges, vertex, hyperedge)
    inside = kept[hyperedge]
    vertex, column = vertex[inside], (kept.cumsum(0) - 1)[hyperedge[inside]]
    first = torch.ones_like(column, dtype=torch.bool)
    first[1:] = column[1:] != column[:-1]
    batch_1 = graphs.batch[torch.cat([graphs.edges[0], vertex[first]])]
    ones = graphs.x.new_ones(len(batch_1))
    edges = edge_incidence(graphs.edges, ones[:own], n)
    b1 = Incidence(
        row=torch.cat([edges.row, vertex]),
        col=torch.cat([edges.col, column + own]),
        member=ones.new_ones(2 * own + len(vertex)),
        weight=ones,
        rows=n,
    )
    b2 = empty_incidence(len(ones), graphs.x)
    return Complex(b1, b2, graphs.batch, batch_1, batch_1[:0], graphs.graphs, own, p_1=ones, p_2=ones[:0])


def new_member_sets(edges: Tensor, vertex: Tensor, hyperedge: Tensor) -> Tensor:
    """Tell which hyperedges have two members or more, and are neither an edge nor equal to one before.

    Args:
        edges: (2, E), the lower vertex first.
        vertex: members (nnz,), ascending within a hyperedge.
        hyperedge: of each member (nnz,), ascending.

    Returns:
        (H,), bool, with H one more than the last hyperedge.
    """
    members = vertex.cpu().numpy()
    bounds = torch.bincount(hyperedge).cumsum(0).tolist()
    seen = {pair.tobytes() for pair in edges.T.contiguous().cpu().numpy()}
    new, start = [], 0
    for end in bounds:
        key = members[start:end].tobytes()
        new.append(end - start > 1 and key not in seen)
        seen.add(key)
        start = end
    return torch.tensor(new, dtype=torch.bool, device=vertex.device)


def balls(graphs: Graphs, hops: int) -> tuple[Tensor, Tensor]:
    """Find the vertices at a distance of at most `hops` edges from each vertex.

    Returns:
        Members (nnz,) and the vertex whose ball they belong to (nnz,), in lexicographic order of (centre, member).
    """
    n = len(graphs.x)
    source, target = graphs.directed
    target = target[source.argsort(stable=True)]
    degree = torch.bincount(source, minlength=n)
    start = degree.cumsum(0) - degree
    reached = frontier = torch.arange(n, device=graphs.x.device) * (n + 1)  # centre n + member
    for _ in range(hops):
        owner, at = ragged_ranges(start[frontier % n], degree[frontier % n])
        found = torch.unique(frontier[owner] // n * n + target[at])
        frontier = found[~torch.isin(found, reached)]
        if not len(frontier):
            break
        reached = torch.cat([reached, frontier])
    reached = reached.sort().values
    return reached % n, reached // n


@lru_cache(maxsize=8192)
def cliques_of_graph(key: bytes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find the maximal cliques of three vertices or more of one graph.

    Args:
        key: the graph, see `edges_by_graph`.

    Returns:
        Members (nnz,) of the cliques, ascending within a clique, and sizes (H,); the smaller cliques come first, then
        in lexicographic order.
    """
    found = (sorted(clique) for clique in nx.find_cliques(nx.Graph(edges_of_key(key))) if len(clique) > 2)
    cliques = sorted(found, key=lambda clique: (len(clique), clique))
    members = [v for clique in cliques for v in clique]
    return np.array(members, np.int64), np.array([len(clique) for clique in cliques], np.int64)


def maximal_cliques(graphs: Graphs, largest: int | None = None) -> tuple[Tensor, Tensor]:
    """Find the maximal cliques of three up to `largest` vertices of each graph.

    Returns:
        Members (nnz,) and the clique that they belong to (nnz,), ascending.
    """
    members, sizes = [], []
    for first, key, _ in edges_by_graph(graphs.edges, graphs.sizes):
        solve = cliques_of_graph if len(key) <= CACHED_EDGES * EDGE_BYTES else cliques_of_graph.__wrapped__
        vertex, size = solve(key)
        kept = size <= (largest or len(graphs.x))
        members.append(vertex[np.repeat(kept, size)] + first)
        sizes.append(size[kept])
    count = torch.from_numpy(np.concatenate(sizes))
    clique = torch.arange(len(count)).repeat_interleave(count)
    device = graphs.x.device
    return torch.from_numpy(np.concatenate(members)).to(device), clique.to(device)


class NoLifting(Lifting):
    """The graph itself, its edges the only 1-cells.

    Args:
        features: F, not used.
    """

    rank = 1

    def __init__(self, features: int) -> None:
        super().__init__()

    def forward(self, data: Data) -> Complex:
        """Lift a PyG graph or batch, see `Lifting`."""
        graphs = Graphs.of(data)
        none = graphs.edges.new_empty(0)
        return hypergraph(graphs, none, none)


class CycleLifting(Lifting):
    """Adds the cycles of the graph.

    Args:
        features: F, not used.
        cells: add them as 2-cells; otherwise as hyperedges of their vertices.
        cycles: which: `minimum`, `basis`, `induced` or `triangles`, see `find_cycles`.
        shortest: length of a cycle, at least 3.
        longest: likewise at most; any when None.

    Raises:
        ValueError: if an option is out of range.
    """

    def __init__(
        self,
        features: int,
        cells: bool = True,
        cycles: CycleKind = "minimum",
        shortest: int = 3,
        longest: int | None = None,
    ) -> None:
        super().__init__()
        check_cycle_options(cycles, shortest, longest)
        self.rank = 2 if cells else 1
        self.cells, self.cycles, self.shortest, self.longest = cells, cycles, shortest, longest

    def forward(self, data: Data) -> Complex:
        """Lift a PyG graph or batch, see `Lifting`."""
        graphs = Graphs.of(data)
        if self.cells:
            return cell_complex(graphs, graphs.edges[:, :0], self.cycles, self.shortest, self.longest)
        found = find_cycles(graphs.edges, graphs.sizes, self.cycles, self.shortest, self.longest)
        return hypergraph(graphs, found.vertex, found.cell)


class CliqueLifting(Lifting):
    """Adds the cliques of the graph.

    Args:
        features: F, not used.
        cells: add all triangles as 2-cells, the clique complex up to rank 2; otherwise maximal cliques of at least
            three vertices as hyperedges.
        largest: leave hyperedges of more members out; any when None, as it must be with `cells`.

    Raises:
        ValueError: if `largest` is below 3 or goes with `cells`.
    """

    def __init__(self, features: int, cells: bool = False, largest: int | None = None) -> None:
        super().__init__()
        if largest is not None and (cells or largest < 3):
            raise ValueError(f"largest must be at least 3, and None with cells, got {largest} and cells={cells}")
        self.rank = 2 if cells else 1
        self.cells, self.largest = cells, largest

    def forward(self, data: Data) -> Complex:
        """Lift a PyG graph or batch, see `Lifting`."""
        graphs = Graphs.of(data)
        if self.cells:
            return cell_complex(graphs, graphs.edges[:, :0], "triangles", 3, 3)
        return hypergraph(graphs, *maximal_cliques(graphs, self.largest))


class KHopLifting(Lifting):
    """Adds a hyperedge for each vertex: those at most `hops` edges away, itself included.

    Args:
        features: F, not used.
        hops: at least 1.

    Raises:
        ValueError: if `hops` is below 1.
    """

    rank = 1

    def __init__(self, features: int, hops: int = 1) -> None:
        super().__init__()
        if hops < 1:
            raise ValueError(f"hops must be at least 1, got {hops}")
        self.hops = hops

    def forward(self, data: Data) -> Complex:
        """Lift a PyG graph or batch, see `Lifting`."""
        graphs = Graphs.of(data)
        return hypergraph(graphs, *balls(graphs, self.hops))


class FeatureKNNLifting(Lifting):
    """Adds the k nearest vertices of each vertex, by the Euclidean distance of raw features within its graph.

    Args:
        features: F, not used.
        k: number of nearest vertices, itself included; at least 2. A smaller graph is one neighbourhood.
        cells: add the pairs of a vertex and its neighbours as edges, and the cycles of the enlarged graph as 2-cells,
            as the learned lifting does if it accepts everything; otherwise the neighbourhoods as hyperedges.
        cycles: which cycles, with `cells`: see `find_cycles`.
        shortest: length of a cycle, at least 3.
        longest: likewise at most; any when None.

    Raises:
        ValueError: if an option is out of range.
    """

    def __init__(
        self,
        features: int,
        k: int = 5,
        cells: bool = False,
        cycles: CycleKind = "minimum",
        shortest: int = 3,
        longest: int | None = None,
    ) -> None:
        super().__init__()
        if k < 2:
            raise ValueError(f"k must be at least 2, the vertex itself being one, got {k}")
        check_cycle_options(cycles, shortest, longest)
        self.rank = 2 if cells else 1
        self.k, self.cells, self.cycles, self.shortest, self.longest = k, cells, cycles, shortest, longest

    def forward(self, data: Data) -> Complex:
        """Lift a PyG graph or batch, see `Lifting`."""
        graphs = Graphs.of(data)
        index = nearest(graphs.x, graphs.sizes, self.k)
        real = index >= 0
        if not self.cells:
            return hypergraph(graphs, index[real], real.nonzero()[:, 0])
        hoods = Neighbourhoods(index, real.to(graphs.x), real.sum(1))
        pairs, _ = candidate_edges(hoods, graphs.edges)
        return cell_complex(graphs, pairs, self.cycles, self.shortest, self.longest)
