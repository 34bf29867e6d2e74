"""What the networks on complexes share (Sec. 3.7): their interface, and the rule by which inclusions enter.

The rule: a cell receives by membership m, included or not, and sends by inclusion s. Of an excluded cell, s = 0,
nothing reaches any other, so the complex without it gives the same outputs. Yet the excluded cell has the signal that
it would have if it were included, and the gradient of the loss in its s tells what including it would do. With m · s on
the receiving side as well, cells that differ would have equal signals while excluded, and their gradients would know
nothing of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn

from difflift.complexes import Complex, Incidence, gather_sum


def member_sum(b: Incidence, x: Tensor) -> Tensor:
    """Return Σ_r m_rc x_r (C, D) of x (R, D): what each column's cell receives, whatever its inclusion."""
    return gather_sum(x, b.row, b.col, b.member, len(b.weight))


def inclusions(complex: Complex) -> tuple[Tensor, Tensor, Tensor]:
    """Return s of the vertices (N,), which is 1, of the 1-cells (E,) and of the 2-cells (C,)."""
    s_1, s_2 = complex.b1.weight, complex.b2.weight
    return s_1.new_ones(complex.b1.rows), s_1, s_2


def projection_sum(x: Tensor, complex: Complex) -> tuple[Tensor, Tensor, Tensor]:
    """Give each cell the sum of its members' signals: x_1 = |B_1|ᵀ x_0 and x_2 = |B_2|ᵀ x_1 (Sec. 3.4, item 8).

    Args:
        x: signals x_0 of the vertices (N, D).
        complex: N vertices, E 1-cells, C 2-cells.

    Returns:
        x_0 (N, D), x_1 (E, D) and x_2 (C, D). The rows of excluded cells are what they would be if included.
    """
    x_1 = member_sum(complex.b1, x)
    return x, x_1, member_sum(complex.b2, complex.b1.weight[:, None] * x_1)


def mlp(inputs: int, outputs: int) -> nn.Sequential:
    """Return Linear, ReLU, Linear, with as many hidden units as outputs."""
    return nn.Sequential(nn.Linear(inputs, outputs), nn.ReLU(), nn.Linear(outputs, outputs))


class Network(nn.Module, ABC):
    """A network on complexes.

    Attributes:
        width: D, of the signals it takes and returns.
        ranks: of how many ranks it returns signals: 1 for a network on hypergraphs, 3 for one on cell complexes.
        updates_vertices: whether x_0 is not the input alone; else a readout must carry other ranks down.

    Args:
        width: D.
        layers: number of layers.
        dropout: probability that a hidden value is dropped while training.

    Raises:
        ValueError: if width or layers is below 1, or dropout outside [0, 1).
    """

    ranks: int
    updates_vertices: bool = True

    def __init__(self, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        if width < 1:
            raise ValueError(f"width must be at least 1, got {width}")
        if layers < 1:
            raise ValueError(f"layers must be at least 1, got {layers}")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must lie in [0, 1), got {dropout}")
        if getattr(self, "ranks", None) not in (1, 3):
            raise ValueError(f"{type(self).__name__} must have a class attribute `ranks` of 1 or 3")
        self.width = width
        self.dropout = nn.Dropout(dropout)

    @abstractmethod
    def forward(self, x: Tensor, complex: Complex) -> tuple[Tensor, ...]:
        """Compute signals on the cells.

        Args:
            x: hidden features of the vertices (N, D).
            complex: N vertices, E 1-cells, C 2-cells.

        Returns:
            x_0 (N, D) and, for three ranks, x_1 (E, D) and x_2 (C, D).
        """
