"""The hypergraph lifting read literally: dense matrices over the whole batch and a loop over what they hold (Sec. 3.3).

It defines what `difflift.neighbours` and `difflift.hypergraph` compute, and is what they are raced against. Memory is
O((N + E) N) and time O(N² d + N² log N) of the N vertices of all graphs together.

Symbols:

    H     embeddings of the vertices (N, d)
    k_v   size of the neighbourhood N(v), v itself included
    s_v   inclusion of the candidate e_v = N(v), 0 or 1
    B     incidence (N, E + N): a column of two ones for each edge, then column E + v with s_v at the members of N(v)
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["dense_lift", "dense_neighbours"]

FAR = 1e7  # distance of vertices of different graphs


def dense_lift(h: Tensor, edges: Tensor, batch: Tensor, k: Tensor, include: Tensor) -> Tensor:
    """Lift a batch of graphs to hypergraphs.

    Args:
        h: embeddings H (N, d), at distances below 1e7.
        edges: ends of each edge (2, E), int64.
        batch: graph of each vertex (N,), int64.
        k: sizes k_v (N,), int64, at least 1; one beyond the graph's size stands for that size.
        include: inclusions s (N,), 0 or 1.

    Returns:
        B (N, E + N). Every candidate has its column, whether it is excluded, repeated or of one vertex only.
    """
    n, e = len(h), edges.shape[1]
    order, sizes = dense_neighbours(h, batch), torch.bincount(batch)
    incidence = h.new_zeros(n, e + n)
    for column in range(e):
        for end in edges[:, column].tolist():
            incidence[end, column] = 1.0
    for v in range(n):
        members = min(int(k[v]), int(sizes[batch[v]]))
        for u in order[v, :members].tolist():
            incidence[u, e + v] = include[v]
    return incidence


def dense_neighbours(h: Tensor, batch: Tensor) -> Tensor:
    """Sort all vertices of the batch for each vertex (N, N).

    The vertex itself comes first, then those of its graph by (distance, index), then all others.

    Args:
        h: embeddings H (N, d), at distances below 1e7.
        batch: graph of each vertex (N,), int64.
    """
    # Products of matrices would be quicker, but lose the digits of small distances.
    distance = torch.cdist(h, h, compute_mode="donot_use_mm_for_euclid_dist")
    distance = distance.masked_fill(batch[:, None] != batch, FAR)
    return distance.fill_diagonal_(-1.0).argsort(dim=1, stable=True)
