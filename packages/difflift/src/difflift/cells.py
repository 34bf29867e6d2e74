"""The branch that adds edges, and the cycles they close as 2-cells (Sec. 3.4).

Symbols:

    {v, u}  candidate edge: u is one of the neighbours of v
    p       probability that a cell is included, softmax(10 · logits)_1 of the mean embedding of its vertices
    B_1     incidence of vertices and edges (N, E'), the graph's own edges first
    B_2     incidence of edges and cycles (E', C)
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn

from difflift.complexes import Complex, Incidence, block_offsets, edge_incidence, gather
from difflift.cycles import CycleKind, find_cycles, ragged_ranges
from difflift.graphs import Graphs
from difflift.neighbours import Neighbourhoods
from difflift.selection import SHARPENING, Selection, include, sharpened

Boundary = Literal["exact", "projected"]


class CellBranch(nn.Module):
    """Include candidate edges, then cycles of the enlarged graph, by one scorer.

    Args:
        dim: d of the embeddings.
        hidden: width of the scorer.
        selection: how cells are chosen, see `selection.include`.
        sharpening: of the scorer's logits.
        cycles: which cycles are candidates, see `cycles.find_cycles`.
        shortest: length of a cycle, at least 3.
        longest: likewise at most; any when None.
        boundary: `exact`, or `projected` as published: an entry for every edge that touches the cycle, |B_1|ᵀ times
            the incidence of vertices and cycles.
    """

    def __init__(
        self,
        dim: int,
        hidden: int = 64,
        selection: Selection = "threshold",
        sharpening: float = SHARPENING,
        cycles: CycleKind = "minimum",
        shortest: int = 3,
        longest: int | None = None,
        boundary: Boundary = "exact",
    ) -> None:
        super().__init__()
        self.selection: Selection = selection
        self.sharpening, self.cycles, self.shortest, self.longest = sharpening, cycles, shortest, longest
        self.boundary: Boundary = boundary
        self.scorer = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, 2))

    def forward(self, h: Tensor, graphs: Graphs, hoods: Neighbourhoods) -> Complex:
        """Lift a batch; excluded edges and cycles stay, with s = 0.

        Args:
            h: embeddings H (N, d).
            graphs: the batch.
            hoods: the neighbourhoods, made of H.
        """
        n, own = len(h), graphs.edges.shape[1]
        candidates, m = candidate_edges(hoods, graphs.edges)
        starts = block_offsets(graphs.sizes)[graphs.batch]
        u, v = candidates
        p_1 = self.score((gather(h, u) + gather(h, v)) / 2)
        s_1 = include(p_1, self.selection, self.training, pair_label(u - starts[u], v - starts[v]))
        edges, ones = torch.cat([graphs.edges, candidates], dim=1), h.new_ones(own)
        s_1 = torch.cat([ones, s_1 * m])

        included = (s_1.detach() > 0.5).nonzero().squeeze(1)
        cycles = find_cycles(edges[:, included], graphs.sizes, self.cycles, self.shortest, self.longest)
        count = len(cycles.batch)
        around = Incidence(cycles.vertex, cycles.cell, h.new_ones(len(cycles.cell)), h.new_ones(count), n)
        p_2 = self.score(around.member_mean(h))
        label = cycles.batch.new_zeros(count).index_add(
            0, cycles.cell, (cycles.vertex - starts[cycles.vertex] + 1) ** 2
        )
        s_2 = include(p_2, self.selection, self.training, label)

        b1 = edge_incidence(edges, s_1, n)
        b2 = Incidence(included[cycles.edge], cycles.cell, around.member, s_2, edges.shape[1])
        if self.boundary == "projected":
            b2 = projected(b1, replace(around, weight=s_2))
        return Complex(
            b1=b1,
            b2=b2,
            batch_0=graphs.batch,
            batch_1=graphs.batch[edges[0]],
            batch_2=cycles.batch,
            graphs=graphs.graphs,
            edges=own,
            p_1=torch.cat([ones, p_1]),
            p_2=p_2,
            k=hoods.k,
            candidates=len(p_1) + len(p_2),
        )

    def score(self, z: Tensor) -> Tensor:
        """Return p (C,) of cells whose vertices have the mean embedding z (C, d)."""
        return sharpened(self.scorer(z), self.sharpening)


def candidate_edges(hoods: Neighbourhoods, edges: Tensor) -> tuple[Tensor, Tensor]:
    """List the pairs of a vertex and its neighbours that are no edges yet.

    Args:
        hoods: the neighbourhoods.
        edges: ends of the graph's own edges (2, E), the lower first, in lexicographic order.

    Returns:
        Pairs (2, M), each once, the lower vertex first, in lexicographic order; and whether one of the two proposed
        the other, m (M,), which is 1, with the gradient of the sole proposer's mask: where both did, neither matters.
    """
    n = len(hoods.index)
    proposed = (hoods.mask.detach() != 0) & (hoods.index >= 0)
    proposed[:, 0] = False  # the vertex itself
    v, j = proposed.nonzero().T
    u = hoods.index[v, j]
    key, pair = torch.unique(torch.minimum(u, v) * n + torch.maximum(u, v), return_inverse=True)
    proposers = torch.bincount(pair, minlength=len(key))
    m = hoods.mask.new_zeros(len(key)).index_add(0, pair, hoods.mask[v, j])
    m = torch.where(proposers > 1, 1.0, m)
    new = ~torch.isin(key, edges[0] * n + edges[1])
    return torch.stack([key[new] // n, key[new] % n]), m[new]


def pair_label(u: Tensor, v: Tensor) -> Tensor:
    """Number pairs u < v of vertices (M,), whatever the size of the graph."""
    return v * (v - 1) // 2 + u


def projected(b1: Incidence, around: Incidence) -> Incidence:
    """Return |B_1|ᵀ times the incidence of vertices and cycles: 2 for edges within a cycle, 1 for those that touch it.

    Args:
        b1: B_1 (N, E').
        around: vertices of the cycles (N, C), with the cycles' inclusion as weight.
    """
    n, cells = b1.rows, len(around.weight)
    kept = b1.weight.detach()[b1.col] > 0
    order = b1.row[kept].argsort(stable=True)
    edge, degree = b1.col[kept][order], torch.bincount(b1.row[kept], minlength=n)
    entry, place = ragged_ranges((degree.cumsum(0) - degree)[around.row], degree[around.row])
    key, count = torch.unique(edge[place] * cells + around.col[entry], return_counts=True)
    height = max(cells, 1)
    return Incidence(key // height, key % height, count.to(around.member), around.weight, b1.shape[1])
