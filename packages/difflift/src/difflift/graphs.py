"""The vertices and edges of a batch of graphs, checked, with each edge once."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch_geometric.data import Data


@dataclass(frozen=True)
class Graphs:
    """A batch of undirected graphs without loops (Sec. 3).

    Attributes:
        x: features of the vertices, X (N, F), float.
        edges: ends of each edge (2, E), int64; each edge once, the lower vertex first, in lexicographic order.
        batch: graph of each vertex (N,), int64, ascending.
        graphs: number of graphs G.
    """

    x: Tensor
    edges: Tensor
    batch: Tensor
    graphs: int

    @cached_property
    def sizes(self) -> Tensor:
        """Number of vertices of each graph (G,)."""
        return torch.bincount(self.batch, minlength=self.graphs)

    @cached_property
    def directed(self) -> Tensor:
        """Both directions of every edge (2, 2E), as PyG's layers take them."""
        return torch.cat([self.edges, self.edges.flip(0)], dim=1)

    @classmethod
    def of(cls, data: Data) -> Graphs:
        """Read a PyG graph, or batch of graphs.

        Loops are dropped, repeated edges counted once. An edge that is given in one direction only is taken as
        undirected, with a warning.

        Args:
            data: `x` (N, F), `edge_index` (2, M) and, for several graphs, `batch` (N,).

        Raises:
            ValueError: if `x` is missing, not finite, or does not fit the edges or the batch; the graph is named.
        """
        x, edge_index = data.x, data.edge_index
        if x is None or x.ndim != 2:
            raise ValueError(f"data.x must be features (N, F), got {None if x is None else tuple(x.shape)}")
        if len(x) == 0:
            raise ValueError("data.x has no vertex, expected at least one")
        batch = data.batch if data.batch is not None else x.new_zeros(len(x), dtype=torch.long)
        if batch.shape != (len(x),):
            raise ValueError(f"data.batch must have one graph for each of {len(x)} vertices, got {tuple(batch.shape)}")
        if batch.is_floating_point() or (batch[1:] < batch[:-1]).any() or batch[0] < 0:
            raise ValueError("data.batch must be whole numbers >= 0, ascending, the vertices of a graph side by side")
        x = x if x.is_floating_point() else x.float()
        finite = x.isfinite().all(1)
        if not finite.all():
            vertex = int((~finite).nonzero()[0])
            raise ValueError(f"data.x of graph {int(batch[vertex])} is not finite at vertex {vertex} of the batch")
        if edge_index is None:
            if "adj_t" in data:
                raise ValueError("data.edge_index is missing, and adj_t is not read: leave out ToSparseTensor")
            edge_index = torch.empty(2, 0, dtype=torch.long, device=x.device)
        if edge_index.is_floating_point() and edge_index.numel():
            raise ValueError(f"data.edge_index must be whole numbers, got {edge_index.dtype}")
        edge_index = edge_index.long()
        graphs = getattr(data, "num_graphs", None) or int(batch[-1]) + 1
        if int(batch[-1]) >= graphs:
            raise ValueError(f"data.batch must lie in [0, {graphs}), the number of graphs, got {int(batch[-1])}")
        return cls(x, undirected(edge_index, batch), batch, graphs)


def undirected(edge_index: Tensor, batch: Tensor) -> Tensor:
    """Return each edge once (2, E), the lower vertex first, in lexicographic order, without loops.

    Args:
        edge_index: (2, M), in one direction or in both.
        batch: graph of each vertex (N,).

    Raises:
        ValueError: if an edge names a vertex that is not there or joins two graphs.
    """
    n = len(batch)
    if edge_index.ndim != 2 or len(edge_index) != 2:
        raise ValueError(f"data.edge_index must be (2, M), got {tuple(edge_index.shape)}")
    if edge_index.numel() and not 0 <= int(edge_index.min()) <= int(edge_index.max()) < n:
        raise ValueError(
            f"data.edge_index must lie in [0, {n}), got {int(edge_index.min())} to {int(edge_index.max())}"
        )
    if (batch[edge_index[0]] != batch[edge_index[1]]).any():
        raise ValueError("data.edge_index joins vertices of two graphs")
    u, v = edge_index[:, edge_index[0] != edge_index[1]]
    up, down = (torch.unique(a * n + b) for a, b in ((u[u < v], v[u < v]), (v[u > v], u[u > v])))
    if not torch.equal(up, down):
        warnings.warn("some edges are given in one direction only; they are taken as undirected", stacklevel=3)
        up = torch.unique(torch.cat([up, down]))
    return torch.stack([up // n, up % n])
