"""CWN (Bodnar et al., 2021, arXiv 2106.12575), a network on cell complexes, with inclusions (Sec. 3.7).

A cell hears from the cells of its rank that share a cell of the next rank with it, and from its boundary:

    x_e' = ELU(U[x_e ‖ Σ_{c ∋ e} Σ_{e' ∈ c, e' ≠ e} s_c s_e' MLP(x_e' ‖ x_c) ‖ Σ_{v ∈ e} B_ve MLP(x_v)])

written here for 1-cells e, their vertices v and the 2-cells c around them. s is a cell's inclusion; what a cell sends
is scaled by it, what it receives is not (see `difflift.networks`).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from difflift.complexes import Complex, Incidence, gather
from difflift.networks import Network, inclusions, member_sum, mlp, projection_sum

CWNUpdate = Literal["edges", "all"]


def upper_sum(b: Incidence, sent: Tensor, message: Tensor) -> Tensor:
    """Sum over the triples (e, e', c) of two different cells e, e' in a cell c: Σ_c B_ec Σ_{e' ≠ e} m_e'c s_e' M_e'c.

    A message does not depend on its receiver, so the sum over e' ≠ e is the cell's total less the receiver's own part.
    The Σ_c |c|² triples need not be listed, only the Σ_c |c| entries of B.

    Args:
        b: B, cells (rows) in cells of the next rank (columns); nnz entries.
        sent: s of the rows (R,).
        message: M of each entry (nnz, D).

    Returns:
        (R, D).
    """
    own = (b.member * gather(sent, b.row))[:, None] * message
    total = message.new_zeros(len(b.weight), message.shape[1]).index_add(0, b.col, own)
    return message.new_zeros(b.rows, message.shape[1]).index_add(
        0, b.row, b.value[:, None] * (gather(total, b.col) - own)
    )


class RankUpdate(nn.Module):
    """New signals of the cells of one rank, from those of its rank and of the two beside it.

    Args:
        width: D.
        rank: 0, 1 or 2; vertices have no boundary, and 2-cells share no cell of a higher rank.
    """

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.rank = rank
        self.upper = mlp(2 * width, width) if rank < 2 else None
        self.lower = mlp(width, width) if rank > 0 else None
        self.join = nn.Linear((3 if rank == 1 else 2) * width, width)

    def forward(self, x: tuple[Tensor, ...], complex: Complex) -> Tensor:
        """Return the new signals of this rank, from (x_0, x_1, x_2)."""
        r, s, matrices = self.rank, inclusions(complex), (complex.b1, complex.b2)
        parts = [x[r]]
        if self.upper is not None:
            b = matrices[r]
            message = self.upper(torch.cat([gather(x[r], b.row), gather(x[r + 1], b.col)], dim=1))
            parts.append(upper_sum(b, s[r], message))
        if self.lower is not None:
            parts.append(member_sum(matrices[r - 1], s[r - 1][:, None] * self.lower(x[r - 1])))
        return F.elu(self.join(torch.cat(parts, dim=1)))


class CWN(Network):
    """A network on vertices, 1-cells and 2-cells; signals start as sums over members.

    Args:
        width: D.
        layers: L.
        update: `edges` updates the 1-cells only, as published; vertices and 2-cells keep their first signals, and the
            readout has to carry those of the 1-cells to the vertices. `all` updates every rank.
        dropout: probability that an updated value is dropped while training.

    Raises:
        ValueError: if an option is outside its range.
    """

    ranks = 3

    def __init__(self, width: int, layers: int = 2, update: CWNUpdate = "edges", dropout: float = 0.0) -> None:
        super().__init__(width, layers, dropout)
        if update not in ("edges", "all"):
            raise ValueError(f"update must be 'edges' or 'all', got {update!r}")
        self.updates_vertices = update == "all"
        ranks = (1,) if update == "edges" else (0, 1, 2)
        self.layers = nn.ModuleList(
            nn.ModuleDict({str(rank): RankUpdate(width, rank) for rank in ranks}) for _ in range(layers)
        )

    def forward(self, x: Tensor, complex: Complex) -> tuple[Tensor, ...]:
        """Return x_0 (N, D), x_1 (E, D) and x_2 (C, D) from the hidden features of the vertices (N, D)."""
        signals: tuple[Tensor, ...] = projection_sum(x, complex)
        for layer in self.layers:
            assert isinstance(layer, nn.ModuleDict)
            new = {rank: self.dropout(update(signals, complex)) for rank, update in layer.items()}
            signals = tuple(new.get(str(rank), old) for rank, old in enumerate(signals))
        return signals
