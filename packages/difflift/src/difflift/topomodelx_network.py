"""TopoModelX's networks on our complexes: the library's own code, behind the interface of `difflift.networks`.

    difflift train --model.network difflift.topomodelx_network.TopoModelX --model.network.name unisage

The library takes one matrix B = m · s. An excluded 1-cell would have an empty column there, by whose degree UniGCNII
divides; so networks on hypergraphs see the complex without excluded cells, which means the same. Those cells then get
no gradient, unlike in the networks of this package.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Literal

import torch
from torch import Tensor, nn

from difflift.complexes import Complex
from difflift.networks import Network, projection_sum

TopoModelXName = Literal["unigcn", "unigcnii", "unigin", "unisage", "cwn", "ccxn"]
HOMES = {
    "unigcn": "hypergraph.unigcn.UniGCN",
    "unigcnii": "hypergraph.unigcnii.UniGCNII",
    "unigin": "hypergraph.unigin.UniGIN",
    "unisage": "hypergraph.unisage.UniSAGE",
    "cwn": "cell.cwn.CWN",
    "ccxn": "cell.ccxn.CCXN",
}
CELLS = ("cwn", "ccxn")
LOOPS = ("unigcnii", "unisage")  # divide by the number of hyperedges at a vertex


def with_loops(b: Tensor) -> Tensor:
    """Append a hyperedge of each vertex alone to B (N, E): sparse (N, E + N)."""
    n, e = b.shape
    own = torch.arange(n, device=b.device)
    indices = torch.cat([b.indices(), torch.stack([own, own + e])], dim=1)
    values = torch.cat([b.values(), b.values().new_ones(n)])
    return torch.sparse_coo_tensor(indices, values, (n, e + n), check_invariants=False).coalesce()


def neighbours_by(b: Tensor) -> Tensor:
    """Return the adjacency of the rows of B (R, C) that share a column, sparse (R, R).

    It is B Bᵀ without its diagonal, its entries at most 1 (Sec. 3.4, item 7).
    """
    product = torch.sparse.mm(b, b.t()).coalesce()
    apart = product.indices()[0] != product.indices()[1]
    values = product.values()[apart].clamp(max=1.0)
    return torch.sparse_coo_tensor(
        product.indices()[:, apart], values, product.shape, check_invariants=False
    ).coalesce()


class TopoModelX(Network):
    """A network of TopoModelX 0.0.1.

    Args:
        width: D.
        name: `unigcn`, `unigcnii`, `unigin` or `unisage`, on hypergraphs; `cwn` or `ccxn`, on cell complexes. UniGCNII
            and UniSAGE get a hyperedge of each vertex alone besides, as they divide by the number around it.
        layers: L.
        dropout: probability that a value of the network's input is dropped while training.

    Raises:
        ImportError: if TopoModelX is not installed.
        ValueError: if an option is out of range.
    """

    ranks = 1  # those of networks on hypergraphs

    def __init__(self, width: int, name: TopoModelXName = "unigin", layers: int = 2, dropout: float = 0.0) -> None:
        super().__init__(width, layers, dropout)
        if name not in HOMES:
            raise ValueError(f"name must be one of {', '.join(HOMES)}, got {name!r}")
        self.name = name
        self.ranks = 3 if name in CELLS else 1
        module, kind = HOMES[name].rsplit(".", 1)
        try:
            home = import_module(f"topomodelx.nn.{module}")
        except ImportError as error:
            raise ImportError(f"the network {name} is TopoModelX's, which is not installed: {error}") from error
        options: dict[str, Any]
        if name in CELLS:
            options = {f"in_channels_{rank}": width for rank in range(3)}
            options |= {"hid_channels": width} if name == "cwn" else {}
        else:
            options = {"in_channels": width, "hidden_channels": width}
            options |= {} if name == "unigcn" else {"input_drop": 0.0, "layer_drop": 0.0}
        self.network: nn.Module = getattr(home, kind)(n_layers=layers, **options)

    def forward(self, x: Tensor, complex: Complex) -> tuple[Tensor, ...]:
        """Return x_0 (N, D) and, of cell complexes, x_1 (E, D) and x_2 (C, D), from signals of vertices (N, D)."""
        x = self.dropout(x)
        if self.name in CELLS:
            return self.on_cells(x, complex)
        b = complex.pruned().b1.to_sparse()
        return (self.network(x, with_loops(b) if self.name in LOOPS else b)[0],)

    def on_cells(self, x: Tensor, complex: Complex) -> tuple[Tensor, ...]:
        """Call a network on cell complexes; its signals start as sums over members (Sec. 3.4, item 8)."""
        b1, b2 = complex.b1.to_sparse(), complex.b2.to_sparse()
        x_0, x_1, x_2 = projection_sum(x, complex)
        if self.name == "cwn":  # it calls the adjacency of 1-cells that share a 2-cell "adjacency_0"
            found: tuple[Tensor, ...] = self.network(x_0, x_1, x_2, neighbours_by(b2), b2, b1.t())
        else:
            found = self.network(x_0, x_1, neighbours_by(b1), b2.t())
        return found
