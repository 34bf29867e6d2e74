"""TopoTune (Papillon et al., 2024, arXiv 2410.06530): a graph network for each neighbourhood of the cells (Sec. 3.7).

The cells of all ranks are the nodes of one graph, whose edges are the entries of the chosen neighbourhood matrices.
Each neighbourhood has a graph network of its own; a cell adds up what they give it.

    up_laplacian-r     offdiag(B_{r+1} B_{r+1}ᵀ): cells of rank r that share a cell of rank r + 1
    down_laplacian-r   offdiag(B_rᵀ B_r): cells of rank r that share a cell of rank r - 1
    down_incidence-r   B_r: from the cells of rank r to their boundaries
    up_incidence-r     B_{r+1}ᵀ: from the cells of rank r to the cells around them

An entry of a Laplacian is clamped to 1 (Sec. 3.4, item 7): it is whether the two share an included cell. Every entry is
scaled by the sender's inclusion s, and not by the receiver's (see `difflift.networks`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from difflift.complexes import Complex, block_offsets, gather, gather_sum
from difflift.networks import Network, inclusions, mlp, projection_sum

GNN = Literal["gat", "gin"]
KINDS = {"up_laplacian": (0, 1), "down_laplacian": (1, 2), "down_incidence": (1, 2), "up_incidence": (0, 1)}
NEIGHBOURHOODS = (
    "up_laplacian-0",
    "down_laplacian-1",
    "down_incidence-1",
    "up_laplacian-1",
    "down_incidence-2",
    "down_laplacian-2",
)
"""Those of the experiments (Sec. 3.4, item 9)."""
NEGATIVE_SLOPE = 0.2  # of the attention's leaky ReLU


@dataclass(frozen=True)
class Neighbourhood:
    """The edges of one neighbourhood.

    Attributes:
        source: sender of each edge (P,), int64, an index within its rank.
        target: receiver (P,), likewise.
        weight: how far it counts (P,), in [0, 1].
        ranks: rank of the senders and rank of the receivers.
    """

    source: Tensor
    target: Tensor
    weight: Tensor
    ranks: tuple[int, int]


def parse(name: str) -> tuple[str, int]:
    """Return kind and rank of a neighbourhood's name.

    Raises:
        ValueError: if there is no such neighbourhood.
    """
    kind, _, rank = name.rpartition("-")
    if kind not in KINDS or rank not in map(str, KINDS[kind]):
        names = ", ".join(f"{kind}-{rank}" for kind, ranks in KINDS.items() for rank in ranks)
        raise ValueError(f"neighbourhoods must be among {names}, got {name!r}")
    return kind, int(rank)


def neighbourhood(name: str, complex: Complex) -> Neighbourhood:
    """Return the edges of a neighbourhood, from its name."""
    kind, r = parse(name)
    s = inclusions(complex)
    b = (complex.b1, complex.b2)[r - 1 if kind.startswith("down") else r]
    if kind == "down_incidence":
        return Neighbourhood(b.col, b.row, b.value, (r, r - 1))
    if kind == "up_incidence":
        return Neighbourhood(b.row, b.col, b.member * gather(s[r], b.row), (r, r + 1))
    if kind == "up_laplacian":
        source, target, weight = adjacency(b.row, b.col, b.member, s[r + 1], s[r])
    else:
        source, target, weight = adjacency(b.col, b.row, b.member, s[r - 1], s[r])
    return Neighbourhood(source, target, weight, (r, r))


def adjacency(
    cell: Tensor, shared: Tensor, member: Tensor, through: Tensor, sent: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Find the ordered pairs of cells that share a cell, from the entries of an incidence matrix.

    They count by 1 - Π_k (1 - m_ik m_jk s_k). For s of 0 or 1 that is min(1, Σ_k m_ik m_jk s_k), but its gradient is
    clear where the sum is 1: what happens as a shared cell enters or leaves.

    Args:
        cell: the cell of each entry (nnz,).
        shared: the cell that it may share (nnz,).
        member: m of the entry (nnz,).
        through: s of the cells to share.
        sent: s of the cells (R,).

    Returns:
        Senders j (P,) and receivers i (P,), each pair once, and their weights (P,), scaled by s_j.
    """
    first, second = pairs_within(shared)
    key, place = torch.unique(cell[first] * len(sent) + cell[second], return_inverse=True)
    value = gather(member, first) * gather(member, second) * gather(through, shared[first])
    weight = 1 - value.new_ones(len(key)).scatter_reduce(0, place, 1 - value, "prod")
    height = max(len(sent), 1)
    source, target = key % height, key // height
    return source, target, weight * gather(sent, source)


def pairs_within(group: Tensor) -> tuple[Tensor, Tensor]:
    """Return all ordered pairs (i, j), i ≠ j, with group_i = group_j, as two index tensors (P,), of group (n,)."""
    order = group.argsort(stable=True)
    counts = torch.unique_consecutive(group[order], return_counts=True)[1]
    partners = counts.repeat_interleave(counts)  # (n,)
    first = torch.arange(len(group), device=group.device).repeat_interleave(partners)
    nth = torch.arange(len(first), device=group.device) - block_offsets(partners)[first]
    second = block_offsets(counts)[:-1].repeat_interleave(counts)[first] + nth
    different = first != second
    return order[first[different]], order[second[different]]


class WeightedGAT(nn.Module):
    """GAT (Veličković et al., 2018) whose edges count by weight w: α_ij = w_ij exp(a_ij) / Σ_k w_ik exp(a_ik).

    Each receiver is also a neighbour of itself, with w = 1. So an edge of weight 0 is the same as none, and the sum is
    never 0. For the gradient in a weight of 0, exp(a_ij) is at most that of the strongest edge that counts: an edge
    that enters could at most replace what is heard, while exp knows no bound.

    Args:
        width: D of inputs and outputs.
        heads: a divisor of D.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.linear = nn.Linear(width, width, bias=False)
        self.att_source = nn.Parameter(torch.empty(heads, width // heads))
        self.att_target = nn.Parameter(torch.empty(heads, width // heads))
        self.bias = nn.Parameter(torch.zeros(width))
        for weight in (self.linear.weight, self.att_source, self.att_target):
            nn.init.xavier_uniform_(weight)

    def forward(self, senders: Tensor, receivers: Tensor, edges: Neighbourhood) -> Tensor:
        """Return what the receivers hear (T, D), from the signals of senders (S, D) and receivers (T, D)."""
        source, target, weight = edges.source, edges.target, edges.weight
        h_s, h_t = (self.linear(x).unflatten(1, (self.heads, -1)) for x in (senders, receivers))  # (S | T, H, D / H)
        from_s, from_t, to_t = (
            (h_s * self.att_source).sum(2),
            (h_t * self.att_source).sum(2),
            (h_t * self.att_target).sum(2),
        )
        own = F.leaky_relu(from_t + to_t, NEGATIVE_SLOPE)  # (T, H)
        other = F.leaky_relu(gather(from_s, source) + gather(to_t, target), NEGATIVE_SLOPE)  # (P, H)
        peak = highest(own.detach(), other.detach().masked_fill(weight.detach()[:, None] <= 0, -torch.inf), target)
        exponent = other - peak[target]
        exponent = torch.where(weight[:, None] > 0, exponent, exponent.clamp(max=0))
        own, other = torch.exp(own - peak), weight[:, None] * torch.exp(exponent)
        total = own.index_add(0, target, other)
        heard = (own[..., None] * h_t).index_add(0, target, other[..., None] * gather(h_s, source))
        return (heard / total[..., None]).flatten(1) + self.bias


def highest(own: Tensor, other: Tensor, target: Tensor) -> Tensor:
    """Return the largest of each row of `own` (T, H) and the rows of `other` (P, H) that are sent to it."""
    return own.scatter_reduce(0, target[:, None].expand_as(other), other, "amax")


class WeightedGIN(nn.Module):
    """GIN (Xu et al., 2019) whose edges count by weight w: x_i' = MLP(x_i + Σ_j w_ij x_j).

    Args:
        width: D of inputs and outputs.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mlp = mlp(width, width)

    def forward(self, senders: Tensor, receivers: Tensor, edges: Neighbourhood) -> Tensor:
        """Return what the receivers hear (T, D), from the signals of senders (S, D) and receivers (T, D)."""
        heard = gather_sum(senders, edges.source, edges.target, edges.weight, len(receivers))
        return self.mlp(receivers + heard)


class TopoTune(Network):
    """A network on vertices, 1-cells and 2-cells: x' = x + ReLU(Σ of the neighbourhoods' graph networks).

    Args:
        width: D.
        layers: L.
        gnn: the graph network, `gat` or `gin`.
        heads: of the attention of `gat`, a divisor of `width`.
        neighbourhoods: names such as `down_laplacian-1`; see the top of this file.
        dropout: probability that a value that is added is dropped while training.

    Raises:
        ValueError: if an option is outside its range, or there is no such neighbourhood.
    """

    ranks = 3

    def __init__(
        self,
        width: int,
        layers: int = 2,
        gnn: GNN = "gat",
        heads: int = 1,
        neighbourhoods: Sequence[str] = NEIGHBOURHOODS,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(width, layers, dropout)
        if gnn not in ("gat", "gin"):
            raise ValueError(f"gnn must be 'gat' or 'gin', got {gnn!r}")
        if heads < 1 or width % heads:
            raise ValueError(f"heads must divide the width {width}, got {heads}")
        if not neighbourhoods or len(set(neighbourhoods)) < len(neighbourhoods):
            raise ValueError(f"neighbourhoods must be different names, at least one, got {list(neighbourhoods)}")
        for name in neighbourhoods:
            parse(name)
        self.neighbourhoods = tuple(neighbourhoods)
        self.layers = nn.ModuleList(
            nn.ModuleList(WeightedGAT(width, heads) if gnn == "gat" else WeightedGIN(width) for _ in neighbourhoods)
            for _ in range(layers)
        )

    def forward(self, x: Tensor, complex: Complex) -> tuple[Tensor, ...]:
        """Return x_0 (N, D), x_1 (E, D) and x_2 (C, D) from the hidden features of the vertices (N, D)."""
        edges = [neighbourhood(name, complex) for name in self.neighbourhoods]
        signals: tuple[Tensor, ...] = projection_sum(x, complex)
        for layer in self.layers:
            heard = [torch.zeros_like(signal) for signal in signals]
            assert isinstance(layer, nn.ModuleList)
            for network, edge in zip(layer, edges, strict=True):
                i, j = edge.ranks
                heard[j] = heard[j] + network(signals[i], signals[j], edge)
            signals = tuple(old + self.dropout(torch.relu(new)) for old, new in zip(signals, heard, strict=True))
        return signals
