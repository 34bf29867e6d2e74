"""Lifted graphs as weighted incidence matrices (Sec. 3.3 and 3.4): what a lifting returns and a network takes.

Symbols:

    B_r   incidence of cells of rank r - 1 (rows) and rank r (columns); rank 0 are the vertices
    m     membership of a cell in a cell, 0 or 1 (the entry without the cell's inclusion)
    s     inclusion of a cell, 0 or 1; its gradient is that of a straight-through estimate
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Incidence:
    """A sparse matrix B (R, C) whose entry is m · s: a membership times the inclusion of the column's cell.

    Both factors are kept, so that what a cell looks like (a mean over its members, for instance) is defined where the
    cell is excluded, s = 0, and the gradient of the loss tells what including it would do.

    Attributes:
        row: rows of the entries (nnz,), int64.
        col: their columns (nnz,), int64; each (row, column) at most once.
        member: m of the entries (nnz,), float.
        weight: s of the columns (C,), float.
        rows: R.
    """

    row: Tensor
    col: Tensor
    member: Tensor
    weight: Tensor
    rows: int

    @property
    def shape(self) -> tuple[int, int]:
        """(R, C)."""
        return self.rows, len(self.weight)

    @property
    def value(self) -> Tensor:
        """The entries m · s (nnz,)."""
        return self.member * gather(self.weight, self.col)

    def up(self, x: Tensor) -> Tensor:
        """Return |B|ᵀ x (C, D), the sum over the members of each cell, of x (R, D)."""
        return gather_sum(x, self.row, self.col, self.value, len(self.weight))

    def down(self, y: Tensor) -> Tensor:
        """Return |B| y (R, D), the sum over the cells around each row, of y (C, D)."""
        return gather_sum(y, self.col, self.row, self.value, self.rows)

    def member_mean(self, x: Tensor) -> Tensor:
        """Return Σ_r B_rc x_r / Σ_r B_rc (C, D) of x (R, D), in which s cancels; 0 for a cell without members."""
        total = gather_sum(x, self.row, self.col, self.member, len(self.weight))
        return total / self.sizes.clamp(min=1e-6)[:, None]

    @property
    def sizes(self) -> Tensor:
        """Number of members of each cell, Σ_r m_rc (C,), whether it is included or not."""
        return self.member.new_zeros(len(self.weight)).index_add(0, self.col, self.member)

    @property
    def degrees(self) -> Tensor:
        """Number of included cells around each row, Σ_c B_rc (R,)."""
        return self.member.new_zeros(self.rows).index_add(0, self.row, self.value)

    def to_dense(self) -> Tensor:
        """Return B (R, C)."""
        return self.member.new_zeros(self.shape).index_put((self.row, self.col), self.value, accumulate=True)

    def to_sparse(self) -> Tensor:
        """Return B (R, C) as a coalesced sparse COO tensor."""
        indices = torch.stack([self.row, self.col])
        return torch.sparse_coo_tensor(indices, self.value, self.shape, check_invariants=False).coalesce()

    def select(self, rows: Tensor | None = None, cols: Tensor | None = None) -> Incidence:
        """Return the matrix of the rows (R,) and columns (C,) whose mask is True, without entries of m = 0."""
        kept = self.member != 0
        row, col, weight, height = self.row, self.col, self.weight, self.rows
        if rows is not None:
            kept = kept & rows[row]
            row, height = (rows.cumsum(0) - 1)[row], int(rows.sum())
        if cols is not None:
            kept = kept & cols[col]
            col, weight = (cols.cumsum(0) - 1)[col], weight[cols]
        return Incidence(row[kept], col[kept], self.member[kept], weight, height)


def gather(x: Tensor, index: Tensor) -> Tensor:
    """Return x[index] (*I, ...), of x (N, ...) and indices of any shape I.

    The gradient of x[index] itself is summed in no fixed order on several threads of a CPU: two runs would differ.
    """
    return x.index_select(0, index.flatten()).view(*index.shape, *x.shape[1:])


def gather_sum(x: Tensor, source: Tensor, target: Tensor, value: Tensor, size: int) -> Tensor:
    """Return Σ over the entries i of value_i x[source_i] at target_i (size, D).

    Args:
        x: (N, D).
        source: rows of x (nnz,).
        target: rows of the result (nnz,).
        value: (nnz,).
        size: rows of the result.
    """
    return x.new_zeros(size, x.shape[1]).index_add(0, target, gather(x, source) * value[:, None])


@dataclass(frozen=True)
class Complex:
    """A batch of lifted graphs, block-diagonal over the graphs.

    1-cells are the graphs' own edges, which come first, then what the lifting added: hyperedges or edges.

    Attributes:
        b1: vertices and 1-cells (N, E).
        b2: 1-cells and 2-cells (E, C); (E, 0) for a hypergraph.
        batch_0: graph of each vertex (N,), int64.
        batch_1: graph of each 1-cell (E,).
        batch_2: graph of each 2-cell (C,).
        graphs: number of graphs G.
        edges: how many of the first 1-cells are the graphs' own edges; they are always included.
        p_1: probability that a 1-cell is included (E,); 1 for the graphs' own edges.
        p_2: likewise of each 2-cell (C,).
        k: size of the neighbourhood that was chosen at each vertex (N,), int64; None where none is chosen.
        candidates: how many cells there were to choose from; 0 where nothing is chosen.
    """

    b1: Incidence
    b2: Incidence
    batch_0: Tensor
    batch_1: Tensor
    batch_2: Tensor
    graphs: int
    edges: int
    p_1: Tensor
    p_2: Tensor
    k: Tensor | None = None
    candidates: int = 0

    @property
    def added(self) -> int:
        """Number of included cells beyond the graphs' own edges."""
        return int(self.b1.weight.count_nonzero() + self.b2.weight.count_nonzero()) - self.edges

    @property
    def penalty(self) -> Tensor:
        """Mean probability of the cells that may be left out, a scalar; 0 without any (Sec. 3.5)."""
        learned = torch.cat([self.p_1[self.edges :], self.p_2])
        return learned.mean() if len(learned) else learned.sum()

    def pruned(self) -> Complex:
        """Return the complex without excluded cells, and without entries of m = 0; what it means is the same."""
        kept_1, kept_2 = self.b1.weight != 0, self.b2.weight != 0
        return replace(
            self,
            b1=self.b1.select(cols=kept_1),
            b2=self.b2.select(rows=kept_1, cols=kept_2),
            batch_1=self.batch_1[kept_1],
            batch_2=self.batch_2[kept_2],
            p_1=self.p_1[kept_1],
            p_2=self.p_2[kept_2],
        )


def empty_incidence(rows: int, like: Tensor) -> Incidence:
    """Return a matrix (rows, 0) on the device and of the type of `like`."""
    none = torch.empty(0, dtype=torch.long, device=like.device)
    return Incidence(none, none, like.new_empty(0), like.new_empty(0), rows)


def edge_incidence(edges: Tensor, weight: Tensor, vertices: int) -> Incidence:
    """Return B_1 (N, E) of edges: two members a column.

    Args:
        edges: ends of each edge (2, E), int64.
        weight: s of each edge (E,).
        vertices: N.
    """
    col = torch.arange(edges.shape[1], device=edges.device)
    return Incidence(edges.flatten(), col.repeat(2), weight.new_ones(2 * len(col)), weight, vertices)


def block_offsets(sizes: Tensor) -> Tensor:
    """Return where each block begins, and where the last one ends (G + 1,), of the blocks' sizes (G,)."""
    return torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
