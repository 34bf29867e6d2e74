"""Embeddings of the vertices from which neighbourhoods and candidates are made (Sec. 3.1)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import GINConv, GPSConv

from difflift.complexes import block_offsets
from difflift.graphs import Graphs
from difflift.neighbours import similar_sizes

Encoder = Literal["gin", "gps", "none"]
POSITION = 8  # of the embedding's dimensions that GPS gives to the positional encoding
WALK_LENGTH = 20
HEADS = 4


class VertexNorm(nn.BatchNorm1d):
    """BatchNorm over the vertices of a batch; a lone vertex, which has no variance, is normalised as in evaluation."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalise (N, d)."""
        if self.training and len(input) == 1:
            return F.batch_norm(input, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        return super().forward(input)


def gin_layer(dim_in: int, dim: int) -> GINConv:
    """Return GINConv with ε = 0 around Linear, ReLU, Linear, ReLU, BatchNorm."""
    perceptron = nn.Sequential(
        nn.Linear(dim_in, dim), nn.ReLU(), nn.Linear(dim, dim), nn.ReLU(), VertexNorm(dim)
    )  # fmt: skip
    return GINConv(perceptron, eps=0.0, train_eps=False)


class GIN(nn.Module):
    """L layers of GIN.

    Args:
        features: F.
        dim: d.
        layers: L, at least 1.
    """

    def __init__(self, features: int, dim: int = 32, layers: int = 2) -> None:
        super().__init__()
        self.layers = nn.ModuleList(gin_layer(dim if i else features, dim) for i in range(layers))

    def forward(self, graphs: Graphs) -> Tensor:
        """Return H (N, d)."""
        h = graphs.x
        for layer in self.layers:
            h = layer(h, graphs.directed)
        return h


class GPS(nn.Module):
    """L layers of GPS: GIN and attention over the graph, on features and random-walk return probabilities.

    Args:
        features: F.
        dim: d, of which 8 are the positional encoding's; a multiple of the 4 heads.
        layers: L, at least 1.
        walk_length: number of return probabilities.

    Raises:
        ValueError: if d does not allow that.
    """

    def __init__(self, features: int, dim: int = 32, layers: int = 2, walk_length: int = WALK_LENGTH) -> None:
        super().__init__()
        if dim <= POSITION or dim % HEADS:
            raise ValueError(
                f"embedding must be a multiple of {HEADS} above {POSITION} with the encoder gps, got {dim}"
            )
        self.walk_length = walk_length
        self.features = nn.Linear(features, dim - POSITION)
        self.norm, self.position = VertexNorm(walk_length), nn.Linear(walk_length, POSITION)
        self.layers = nn.ModuleList(GPSConv(dim, gin_layer(dim, dim), heads=HEADS) for _ in range(layers))

    def forward(self, graphs: Graphs) -> Tensor:
        """Return H (N, d)."""
        walks = return_probabilities(graphs, self.walk_length)
        h = torch.cat([self.features(graphs.x), self.position(self.norm(walks))], dim=1)
        for layer in self.layers:
            h = layer(h, graphs.directed, batch=graphs.batch)
        return h


@torch.no_grad()
def return_probabilities(graphs: Graphs, length: int) -> Tensor:
    """Return the probability of being back after 1 .. length steps of a random walk (N, length).

    Time and memory are O(Σ N_g³) and O(max N_g²): for molecules, not for graphs of thousands of vertices.

    A walk from a vertex without edges never returns.
    """
    out = graphs.x.new_zeros(len(graphs.x), length)
    starts = block_offsets(graphs.sizes)[:-1]
    u, v = graphs.directed
    for members, n in similar_sizes(graphs.sizes.cpu()):
        members = members.to(u.device)
        place = torch.full_like(starts, -1)
        place[members] = torch.arange(len(members), device=u.device)
        of_edge = place[graphs.batch[u]]
        u_in, v_in, g = u[of_edge >= 0], v[of_edge >= 0], of_edge[of_edge >= 0]
        adjacency = out.new_zeros(len(members), n, n)
        adjacency[g, u_in - starts[members][g], v_in - starts[members][g]] = 1
        step = adjacency / adjacency.sum(2, keepdim=True).clamp(min=1)
        walk, real = step, torch.arange(n, device=u.device) < graphs.sizes[members, None]
        vertex = (starts[members, None] + torch.arange(n, device=u.device))[real]
        for i in range(length):
            out[vertex, i] = walk.diagonal(dim1=1, dim2=2)[real].to(out)
            walk = walk @ step
    return out


class Raw(nn.Module):
    """The features themselves, H = X."""

    def forward(self, graphs: Graphs) -> Tensor:
        """Return X (N, F)."""
        return graphs.x


def build_encoder(kind: Encoder, features: int, dim: int, layers: int) -> tuple[nn.Module, int]:
    """Return an encoder and the dimension of its embeddings.

    Args:
        kind: `gin`, `gps`, or `none` for the features themselves.
        features: F.
        dim: d.
        layers: L.

    Raises:
        ValueError: if an option is out of range.
    """
    if layers < 1 or dim < 1:
        raise ValueError(f"embedding and encoder_layers must be at least 1, got {dim} and {layers}")
    if kind == "none":
        return Raw(), features
    return (GIN if kind == "gin" else GPS)(features, dim, layers), dim
