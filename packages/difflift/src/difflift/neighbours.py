"""Neighbourhoods of learned size among the vertices of each graph (Sec. 3.2).

Symbols:

    H     embeddings of the vertices (N, d)
    k_v   size of the neighbourhood of vertex v, v itself included
    o_v   one-hot choice of k_v among 2 .. k_max
    m_vj  whether the j-th nearest vertex of v belongs to its neighbourhood
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from difflift.complexes import block_offsets, gather
from difflift.options import check_number
from difflift.selection import one_hot_choice, straight_through

KGradient = Literal["cumulative", "none"]
CHUNK = 1 << 22  # distances that are held at a time, 16 MiB


@dataclass(frozen=True)
class Neighbourhoods:
    """The nearest vertices of each vertex, and which of them belong to its neighbourhood.

    Attributes:
        index: (N, K), int64; the vertex itself first, then by distance; -1 where the graph has fewer than K vertices.
        mask: m (N, K), 0 or 1; 0 where `index` is -1. Where sizes are learned it has their gradient.
        k: number of members (N,), int64: the chosen size, or the graph's where that is smaller.
    """

    index: Tensor
    mask: Tensor
    k: Tensor

    def mean(self, h: Tensor) -> Tensor:
        """Return z_v = Σ_j m_vj h_j / Σ_j m_vj (N, d) of h (N, d) (Sec. 3.3)."""
        members = gather(h, self.index.clamp(min=0))  # (N, K, d)
        return torch.einsum("nk,nkd->nd", self.mask, members) / self.mask.sum(1, keepdim=True)


def nearest(h: Tensor, sizes: Tensor, k: int) -> Tensor:
    """Find the k nearest vertices of each vertex in its own graph, by Euclidean distance.

    The vertex itself comes first; among distances that are equal in single precision the lower index does. What is
    found for a graph does not depend on the others of the batch. Time is O(Σ N_g² d), memory O(k N) and some megabytes.

    Args:
        h: (N, d), the vertices of each graph side by side.
        sizes: number of vertices of each graph (G,).
        k: how many, at least 1.

    Returns:
        Indices (N, k), int64; -1 where a graph has fewer than k vertices.
    """
    h = h.detach().float() if h.element_size() < 4 else h.detach()
    found = torch.full((len(h), k), -1, dtype=torch.long, device=h.device)
    starts = block_offsets(sizes)[:-1]
    for graphs, longest in similar_sizes(sizes.cpu()):
        place = torch.arange(longest, device=h.device)
        on = graphs.to(h.device)
        real = place < sizes[on, None]  # (g, n): n is the longest of these g graphs
        vertex = (starts[on, None] + place).where(real, 0)
        points = h[vertex]  # (g, n, d)
        rows = max(1, CHUNK // (len(graphs) * longest))
        for start in range(0, longest, rows):
            part = slice(start, start + rows)
            distance = torch.cdist(points[:, part], points, compute_mode="donot_use_mm_for_euclid_dist")
            order = ordered(distance, real, place[part], k)  # (g, rows, min(k, n))
            ok = real[:, part, None] & real.gather(1, order.flatten(1)).view_as(order)
            global_index = vertex.gather(1, order.flatten(1)).view_as(order).where(ok, -1)
            chosen = real[:, part]
            found[vertex[:, part][chosen], : order.shape[2]] = global_index[chosen]
    return found


def ordered(distance: Tensor, real: Tensor, own: Tensor, k: int) -> Tensor:
    """Return the places of the k nearest (g, r, min(k, n)), the row's own first, then by (distance, place).

    Args:
        distance: (g, r, n), float32 or float64, at least 0.
        real: which of the n are vertices (g, n).
        own: place of each row among the n (r,).
        k: how many.
    """
    n = distance.shape[2]
    distance = distance.float()
    distance[:, torch.arange(len(own), device=own.device), own] = -1.0
    # Bits of floats >= 0 are ordered as the floats are, so that one integer holds distance and place.
    bits = distance.view(torch.int32).long().where(distance >= 0, -1)
    bits = bits.masked_fill(~real[:, None], torch.iinfo(torch.int32).max)
    key = (bits << 32) + torch.arange(n, device=distance.device)
    return key.topk(min(k, n), dim=2, largest=False).values & 0xFFFFFFFF


def similar_sizes(sizes: Tensor) -> Iterator[tuple[Tensor, int]]:
    """Group graphs whose sizes differ by less than a factor of two, so that little is padded.

    Args:
        sizes: (G,), on the CPU.

    Yields:
        Indices of graphs, and the largest of their sizes; a group's distances are few enough to be held at once, if
        it has more than one graph.
    """
    order = sizes.argsort(stable=True)
    classes = sizes[order].clamp(min=1).log2().floor()
    for group in torch.unique_consecutive(classes, return_counts=True)[1].tolist():
        members, order = order[:group], order[group:]
        longest = int(sizes[members].max())
        if longest:
            yield from ((part, longest) for part in torch.split(members, max(1, CHUNK // longest**2)))


class NeighbourhoodSize(nn.Module):
    """Choose the size k_v of each neighbourhood from the vertex's embedding (Sec. 3.2).

    Args:
        dim: d of the embeddings.
        k_max: the largest size; the smallest is 2.
        learned: choose; otherwise every neighbourhood has k_max vertices.
        gradient: `cumulative` lets the loss reach the choice through m; `none`, as published, does not.
        tau: temperature of the Gumbel-softmax.
        distance_gradient: λ, strength of a gradient of m in the distances, see `closeness`; 0, as published, for none.

    Raises:
        ValueError: if k_max is below 2, tau not positive or λ negative.
    """

    def __init__(
        self,
        dim: int,
        k_max: int = 7,
        learned: bool = True,
        gradient: KGradient = "cumulative",
        tau: float = 1.0,
        distance_gradient: float = 0.0,
    ) -> None:
        super().__init__()
        if k_max < 2:
            raise ValueError(f"k_max must be at least 2, got {k_max}")
        check_number("tau", tau, above=0)
        check_number("distance_gradient", distance_gradient, least=0)
        self.k_max, self.learned, self.gradient, self.tau = k_max, learned, gradient, tau
        self.distance_gradient = distance_gradient
        if learned:
            self.logits = nn.Sequential(nn.Linear(dim, 64), nn.ReLU(), nn.Linear(64, k_max - 1))
            self.logits.requires_grad_(gradient == "cumulative")

    def forward(self, h: Tensor, index: Tensor) -> Neighbourhoods:
        """Choose sizes.

        Args:
            h: embeddings H (N, d).
            index: the k_max nearest vertices of each (N, k_max), -1 beyond the graph.

        Returns:
            The neighbourhoods; a size beyond the graph's is the graph's.
        """
        real = (index >= 0).to(h)
        mask = real
        if self.learned:
            o = one_hot_choice(self.logits(h), self.training, self.tau)
            mask = cumulative_mask(o if self.gradient == "cumulative" else o.detach()) * real
        k = mask.detach().sum(1).long()
        if self.distance_gradient and self.training:
            soft = self.distance_gradient * closeness(h, index)
            mask = mask * straight_through(torch.ones_like(soft), soft)
        return Neighbourhoods(index, mask, k)


def cumulative_mask(o: Tensor) -> Tensor:
    """Return m_vj = Σ over the sizes k > j of o_vk (N, k_max), of the choice o (N, k_max - 1) among 2 .. k_max.

    It is 0 or 1 if o is one-hot, and a gradient of m_vj says whether sizes beyond j are wanted (Sec. 3.2).
    """
    tail = o.flip(1).cumsum(1).flip(1)
    return torch.cat([torch.ones_like(tail[:, :1]), tail], dim=1)


def closeness(h: Tensor, index: Tensor) -> Tensor:
    """Return K · softmax over j of -d_vj² / (mean of d_v²) (N, K): how near each neighbour is among the K found.

    Which vertices are nearest is a step function of the embeddings, so that no gradient of the loss reaches a distance.
    Where a membership m has the gradient of this, what helps is drawn near and what harms is pushed away.

    Args:
        h: embeddings (N, d).
        index: the nearest vertices (N, K), -1 beyond the graph; those have closeness 0.
    """
    real = index >= 0
    squares = (h[:, None] - gather(h, index.clamp(min=0))).square().sum(2).masked_fill(~real, 0.0)
    scale = squares.detach().sum(1, keepdim=True) / real.sum(1, keepdim=True)
    logits = (-squares / scale.clamp(min=1e-12)).masked_fill(~real, -torch.inf)
    return index.shape[1] * torch.softmax(logits, dim=1)
