"""The whole: features, lifting, topological network, readout; and GIN without lifting (Sec. 3.4, 3.5 and 4)."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Literal

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from difflift.complexes import Complex
from difflift.encoders import gin_layer
from difflift.lifting import Lifting
from difflift.networks import Network
from difflift.options import check_choice
from difflift.readout import Pooling, PropagateDown, pool

Level = Literal["graph", "node"]


class LiftedNetwork(nn.Module):
    """A topological network on lifted graphs.

    Args:
        features: F, of the vertices.
        outputs: classes, or 1 for a regression.
        lifting: makes a lifting, given F.
        network: makes a network, given its width.
        width: D of the network's signals.
        level: whether graphs or vertices are classified.
        pooling: of the vertices of a graph.
        propagate_down: carry the signals of cells back to the vertices before pooling, where the network has any.
        dropout: of the features' encoder.

    Raises:
        ValueError: if an option is out of range, or the network leaves the vertices alone and nothing is carried down.
    """

    def __init__(
        self,
        features: int,
        outputs: int,
        lifting: Callable[[int], Lifting],
        network: Callable[[int], Network],
        width: int = 64,
        level: Level = "graph",
        pooling: Pooling = "mean",
        propagate_down: bool = True,
        dropout: float = 0.3,
    ) -> None:
        super().__init__()
        for option, value in (("features", features), ("outputs", outputs), ("width", width)):
            if value < 1:
                raise ValueError(f"{option} must be at least 1, got {value}")
        check_choice("level", level, Level)
        check_choice("pooling", pooling, Pooling)
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must lie in [0, 1), got {dropout}")
        self.level: Level = level
        self.pooling: Pooling = pooling
        self.lifting, self.network = lifting(features), network(width)
        if not propagate_down and not self.network.updates_vertices:
            name = type(self.network).__name__
            raise ValueError(f"propagate_down must be true with {name}, which leaves the vertices alone, got false")
        self.features = nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Dropout(dropout))
        self.down = PropagateDown(width) if propagate_down and self.network.ranks == 3 else None
        self.head = nn.Linear(width, outputs)

    def forward(self, data: Data) -> tuple[Tensor, Complex]:
        """Lift and classify.

        Args:
            data: a PyG graph or batch; see `DiffLift.forward`.

        Returns:
            Logits (G, K) of the graphs, or (N, K) of the vertices; and the complexes.
        """
        if data.x is not None and data.x.dtype != self.head.weight.dtype:
            data = copy(data)  # the features may be integers, or of another precision
            data.x = data.x.to(self.head.weight.dtype)
        lifted = self.lifting(data)
        if not isinstance(lifted, Complex):
            raise ValueError(f"{type(self.lifting).__name__} must return a Complex, got {type(lifted).__name__}")
        signals = self.network(self.features(data.x), lifted)
        heights = lifted.b1.rows, *lifted.b2.shape
        if not isinstance(signals, tuple) or tuple(map(len, signals)) != heights[: self.network.ranks]:
            name = type(self.network).__name__
            raise ValueError(f"{name} must return {self.network.ranks} signals, with a row for each vertex or cell")
        vertices = signals[0] if self.down is None else self.down(signals, lifted)
        if self.level == "graph":
            vertices = pool(vertices, lifted.batch_0, lifted.graphs, self.pooling)
        return self.head(vertices), lifted


class GraphGIN(Network):
    """GIN on the graphs' own edges, whatever was added to them: the baseline without lifting.

    Args:
        width: D.
        layers: as many as the topological network has.
    """

    ranks = 1

    def __init__(self, width: int, layers: int = 2) -> None:
        super().__init__(width, layers, dropout=0.0)
        self.layers = nn.ModuleList(gin_layer(width, width) for _ in range(layers))

    def forward(self, x: Tensor, complex: Complex) -> tuple[Tensor, ...]:
        """Return (x_0,), (N, D), of x (N, D)."""
        own = complex.b1.col < complex.edges
        order = complex.b1.col[own].argsort(stable=True)
        ends = complex.b1.row[own][order].view(-1, 2).T
        edge_index = torch.cat([ends, ends.flip(0)], dim=1)
        for layer in self.layers:
            x = layer(x, edge_index)
        return (x,)
