"""The branch that adds hyperedges: neighbourhoods, each with a learned probability of inclusion (Sec. 3.3).

Symbols:

    e_v   candidate hyperedge of vertex v: its neighbourhood N(v)
    z_v   embedding of e_v (N, d)
    p_v   probability that e_v is included
    B     incidence (N, E + candidates); the graph's own edges come first
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from difflift.complexes import Complex, Incidence, block_offsets, edge_incidence, empty_incidence
from difflift.graphs import Graphs
from difflift.neighbours import Neighbourhoods
from difflift.selection import Selection, include


class HyperedgeBranch(nn.Module):
    """Include neighbourhoods as hyperedges.

    Args:
        dim: d of the embeddings.
        hidden: h of the scorer.
        dropout: of the scorer.
        selection: how hyperedges are chosen, see `selection.include`.
    """

    def __init__(self, dim: int, hidden: int = 64, dropout: float = 0.5, selection: Selection = "sample") -> None:
        super().__init__()
        self.selection: Selection = selection
        self.scorer = nn.Sequential(
            nn.Linear(dim, 2 * hidden), nn.ReLU(), nn.Linear(2 * hidden, hidden), nn.ReLU(), nn.Dropout(dropout),
            nn.Linear(hidden, 1),
        )  # fmt: skip

    def forward(self, h: Tensor, graphs: Graphs, hoods: Neighbourhoods) -> Complex:
        """Lift a batch; excluded hyperedges stay, with s = 0.

        A neighbourhood of one vertex, or with the members of an edge or of a hyperedge before it, is no candidate.

        Args:
            h: embeddings H (N, d).
            graphs: the batch.
            hoods: the neighbourhoods N(v), made of H.
        """
        n, edges = len(h), graphs.edges.shape[1]
        candidates = distinct(hoods, graphs.edges)
        p = torch.sigmoid(self.scorer(hoods.mean(h)[candidates])).squeeze(1)
        label = candidates - block_offsets(graphs.sizes)[graphs.batch[candidates]]
        s = include(p, self.selection, self.training, label)
        index, mask = hoods.index[candidates], hoods.mask[candidates]
        own = edge_incidence(graphs.edges, h.new_ones(edges), n)
        column = torch.arange(edges, edges + len(candidates), device=h.device)
        entries = index >= 0
        b1 = Incidence(
            row=torch.cat([own.row, index[entries]]),
            col=torch.cat([own.col, column[:, None].expand_as(index)[entries]]),
            member=torch.cat([own.member, mask[entries]]),
            weight=torch.cat([own.weight, s]),
            rows=n,
        )
        batch_1 = torch.cat([graphs.batch[graphs.edges[0]], graphs.batch[candidates]])
        return Complex(
            b1=b1,
            b2=empty_incidence(b1.shape[1], h),
            batch_0=graphs.batch,
            batch_1=batch_1,
            batch_2=batch_1[:0],
            graphs=graphs.graphs,
            edges=edges,
            p_1=torch.cat([own.weight, p]),
            p_2=p[:0],
            k=hoods.k,
            candidates=len(p),
        )


def distinct(hoods: Neighbourhoods, edges: Tensor) -> Tensor:
    """Return the vertices (ascending) whose neighbourhood has two members or more and was not there before.

    Args:
        hoods: the neighbourhoods.
        edges: ends of the edges (2, E), which come before all neighbourhoods.
    """
    n, k = hoods.index.shape
    members = hoods.index.masked_fill(hoods.mask.detach() == 0, n).sort(1).values  # n stands for no member
    own = members.new_full((edges.shape[1], k), n)
    own[:, :2] = edges.T
    rows = torch.cat([own, members])
    key = rows[:, 0]
    for j in range(1, k):  # numbers the distinct beginnings of the rows, one more column each time
        key = torch.unique(key * (n + 1) + rows[:, j], return_inverse=True)[1]
    order = torch.arange(len(rows), device=rows.device)
    first = order.new_full((len(rows),), len(rows)).scatter_reduce(0, key, order, "amin")
    new = (first[key] == order)[len(own) :] & (members[:, 1] < n)
    return new.nonzero().squeeze(1)
