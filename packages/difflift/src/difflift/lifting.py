"""`DiffLift`: a graph, or batch of graphs, to a hypergraph, cell complex or simplicial complex, by learned decisions.

    lifting = DiffLift(features=7, target="cell")
    complex = lifting(batch)  # a PyG batch; complex.b1 (N, E) and complex.b2 (E, C) are weighted incidence matrices

While training, cells that were left out stay as columns of weight 0, which the gradient passes. In evaluation they are
dropped, and the result is a deterministic function of each graph alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from torch import Tensor, nn
from torch_geometric.data import Data

from difflift.cells import Boundary, CellBranch
from difflift.complexes import Complex
from difflift.cycles import CycleKind, check_cycle_options
from difflift.encoders import Encoder, build_encoder
from difflift.graphs import Graphs
from difflift.hypergraph import HyperedgeBranch
from difflift.neighbours import KGradient, NeighbourhoodSize, nearest
from difflift.options import check_choice, check_number
from difflift.selection import SHARPENING, Selection

Target = Literal["hypergraph", "cell", "simplicial"]


class Lifting(nn.Module, ABC):
    """What turns a batch of graphs into complexes.

    Attributes:
        rank: the highest rank of its cells: 1 for hypergraphs, 2 for complexes.
    """

    rank: int = 1

    @abstractmethod
    def forward(self, data: Data) -> Complex:
        """Lift a PyG graph or batch: `x` (N, F), `edge_index` (2, M), `batch` (N,)."""


class DiffLift(Lifting):
    """Learned lifting (Sec. 3).

    Args:
        features: F, of the vertices.
        target: `hypergraph` adds hyperedges; `cell` adds edges and cycles; `simplicial` adds edges and triangles.
        encoder: of the vertices: `gin`, `gps`, or `none` to measure distances between raw features.
        embedding: d.
        encoder_layers: L of the encoder.
        k_max: the largest neighbourhood.
        learn_k: choose each vertex's size; otherwise it is k_max.
        k_gradient: `cumulative` lets the loss reach that choice; `none` is as published.
        tau: temperature of the choice.
        distance_gradient: strength of a gradient to the distances between embeddings; 0 is as published: none.
        selection: how cells are chosen: `sample` (the hypergraph's when None), `threshold` (the others' when None),
            `soft`, `all`, `none` or `random`; see `selection.include`.
        hidden: of the scorer.
        scorer_dropout: of the scorer of hyperedges.
        sharpening: of the scorer of edges and cycles.
        cycles: which cycles of the enlarged graph are candidates: `minimum`, `basis` or `induced`.
        shortest: length of a cycle, at least 3.
        longest: likewise at most; any when None.
        boundary: of cycles: `exact`, or `projected` as published.
        keep_excluded: keep cells of weight 0 while training, for their gradient; dropped as published otherwise.

    Raises:
        ValueError: if an option is out of range.
    """

    def __init__(
        self,
        features: int,
        target: Target = "hypergraph",
        encoder: Encoder = "gin",
        embedding: int = 32,
        encoder_layers: int = 2,
        k_max: int = 7,
        learn_k: bool = True,
        k_gradient: KGradient = "cumulative",
        tau: float = 1.0,
        distance_gradient: float = 0.0,
        selection: Selection | None = None,
        hidden: int = 64,
        scorer_dropout: float = 0.5,
        sharpening: float = SHARPENING,
        cycles: CycleKind = "minimum",
        shortest: int = 3,
        longest: int | None = None,
        boundary: Boundary = "exact",
        keep_excluded: bool = True,
    ) -> None:
        super().__init__()
        check_choice("target", target, Target)
        check_choice("encoder", encoder, Encoder)
        check_choice("k_gradient", k_gradient, KGradient)
        if selection is not None:
            check_choice("selection", selection, Selection)
        check_choice("boundary", boundary, Boundary)
        if not 0 <= scorer_dropout < 1:
            raise ValueError(f"scorer_dropout must lie in [0, 1), got {scorer_dropout}")
        if hidden < 1:
            raise ValueError(f"hidden must be at least 1, got {hidden}")
        if features < 1:
            raise ValueError(f"features must be at least 1, got {features}")
        check_number("sharpening", sharpening, above=0)
        if cycles == "triangles":
            raise ValueError("cycles must be minimum, basis or induced; triangles are those of target simplicial")
        kind: CycleKind = "triangles" if target == "simplicial" else cycles
        check_cycle_options(kind, shortest, longest)
        if target == "simplicial" and shortest > 3:
            raise ValueError(f"shortest must be 3 for target simplicial, whose 2-cells are triangles, got {shortest}")
        self.features = features
        self.rank = 1 if target == "hypergraph" else 2
        self.keep_excluded = keep_excluded
        self.encoder, dim = build_encoder(encoder, features, embedding, encoder_layers)
        self.size = NeighbourhoodSize(dim, k_max, learn_k, k_gradient, tau, distance_gradient)
        self.nearest: Callable[[Tensor, Tensor, int], Tensor] = nearest
        self.branch: HyperedgeBranch | CellBranch
        if target == "hypergraph":
            self.branch = HyperedgeBranch(dim, hidden, scorer_dropout, selection or "sample")
        else:
            self.branch = CellBranch(
                dim, hidden, selection or "threshold", sharpening, kind, shortest, longest, boundary
            )

        decided = self.branch.selection in ("sample", "threshold", "soft")
        self.branch.scorer.requires_grad_(decided)  # nothing reaches it otherwise, and data parallelism asks
        self.encoder.requires_grad_(
            decided or (learn_k and k_gradient == "cumulative" and selection != "none") or distance_gradient > 0
        )

    def forward(self, data: Data) -> Complex:
        """Lift a PyG graph or batch.

        Args:
            data: `x` (N, F), `edge_index` (2, M) and, for several graphs, `batch` (N,).

        Returns:
            The complexes of the batch.

        Raises:
            ValueError: if `data` is malformed, see `Graphs.of`, or its features are not F.
        """
        graphs = Graphs.of(data)
        if graphs.x.shape[1] != self.features:
            raise ValueError(f"data.x must have {self.features} features, as the lifting does, got {graphs.x.shape[1]}")
        graphs = replace(graphs, x=graphs.x.to(next(self.branch.parameters()).dtype))
        h = self.encoder(graphs)
        hoods = self.size(h, self.nearest(h, graphs.sizes, self.size.k_max))
        lifted: Complex = self.branch(h, graphs, hoods)
        return lifted if self.training and self.keep_excluded else lifted.pruned()
