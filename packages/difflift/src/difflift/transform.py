"""A trained lifting as a transform of PyG: graphs that carry their incidence matrices."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.transforms import BaseTransform

from difflift.lifting import Lifting


class LiftedData(Data):
    """A graph, or in a PyG batch several, with the cells of its complex.

    Attributes:
        incidence_1_index: vertex and 1-cell of each entry of B_1 (2, nnz), int64.
        incidence_1_value: m · s of each entry (nnz,).
        incidence_2_index: 1-cell and 2-cell of each entry of B_2 (2, nnz), int64.
        incidence_2_value: likewise (nnz,).
        p_1: probability of each 1-cell (E,); 1 for the graph's own edges.
        p_2: probability of each 2-cell (C,).
        learned_1: whether the lifting added each 1-cell (E,), bool.
        cells_1: E, a tensor (1,); in a batch (G,), one for each graph.
        cells_2: C, likewise.
        k: size of the neighbourhood chosen at each vertex (N,), int64; missing where none is chosen.

    A loader's `follow_batch=["p_1", "p_2"]` adds the graph of each cell, `p_1_batch` and `p_2_batch`.
    """

    def __inc__(self, key: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        if key == "incidence_1_index":
            return torch.tensor([[self.num_nodes], [int(self.cells_1)]])
        if key == "incidence_2_index":
            return torch.tensor([[int(self.cells_1)], [int(self.cells_2)]])
        return super().__inc__(key, value, *args, **kwargs)

    @property
    def incidence_1(self) -> Tensor:
        """B_1, a coalesced sparse tensor (N, E)."""
        shape = (int(self.num_nodes or 0), len(self.p_1))
        return torch.sparse_coo_tensor(self.incidence_1_index, self.incidence_1_value, shape).coalesce()

    @property
    def incidence_2(self) -> Tensor:
        """B_2, a coalesced sparse tensor (E, C)."""
        shape = (len(self.p_1), len(self.p_2))
        return torch.sparse_coo_tensor(self.incidence_2_index, self.incidence_2_value, shape).coalesce()


class LiftTransform(BaseTransform):
    """Lift each graph by a trained lifting: `transform=` or `pre_transform=` of a data set of PyG.

    The lifting is copied and set to evaluation: the same graph always gives the same cells, and no gradient passes.

    Args:
        lifting: `difflift.DiffLift`, or a static lifting.
    """

    def __init__(self, lifting: Lifting) -> None:
        self.lifting = copy.deepcopy(lifting).eval().requires_grad_(False)

    @torch.no_grad()
    def forward(self, data: Data) -> LiftedData:
        """Return the graph with its cells, all that it had kept.

        Args:
            data: one graph: `x` (N, F) and `edge_index` (2, M).

        Raises:
            ValueError: if `data` is malformed, see `Graphs.of`, or holds several graphs.
        """
        if getattr(data, "num_graphs", 1) > 1:
            raise ValueError(f"LiftTransform takes one graph at a time, got a batch of {data.num_graphs}")
        complex = self.lifting(data).pruned()
        lifted = LiftedData.from_dict(data.to_dict())
        for rank, b in ((1, complex.b1), (2, complex.b2)):
            matrix = b.to_sparse()
            lifted[f"incidence_{rank}_index"], lifted[f"incidence_{rank}_value"] = matrix.indices(), matrix.values()
            lifted[f"cells_{rank}"] = torch.tensor([b.shape[1]])
        lifted.p_1, lifted.p_2 = complex.p_1, complex.p_2
        lifted.learned_1 = torch.arange(len(complex.p_1), device=complex.p_1.device) >= complex.edges
        if complex.k is not None:
            lifted.k = complex.k
        elif isinstance(data, LiftedData) and "k" in data:
            del lifted.k  # of the lifting before
        return lifted

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self.lifting).__name__})"
