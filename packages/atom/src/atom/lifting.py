"""Equivariant lifting of a state into the three streams X, V and Z (Sec. 3.3).

A hidden width d holds d // 3 vectors (1o) and d - 3 (d // 3) scalars (0e), in this order. The lifts are linear and
without biases, so that a rotated state is lifted to rotated vectors; what follows them is not constrained. The
scalars are what lets the tensor product of Z reach a vector: two vectors multiply to something else than a 1o. A
width that is divisible by 3 has none, its Z would be 0, and is refused.

Symbols: X = (x, ‖x‖), V = (v, ‖v‖), z atomic number (perhaps scaled), RRWP_1..K; ⊗ the weighted tensor product.
"""

from __future__ import annotations

from typing import Literal

import torch
from e3nn import o3
from torch import Tensor, nn

LiftingKind = Literal["equivariant", "no_tensor_product", "none"]
VECTOR = o3.Irreps("1x1o + 1x0e")  # a vector and its norm


def hidden_irreps(width: int) -> o3.Irreps:
    """Return what a hidden width holds: d // 3 vectors 1o, then d - 3 (d // 3) scalars 0e."""
    return o3.Irreps([(width // 3, (1, -1)), (width % 3, (0, 1))]).remove_zero_multiplicities()


class Lifting(nn.Module):
    """Lift X, V and the phase-space feature Z to the width of the network.

    Args:
        width: d.
        scalars: number of scalars beside x and v that Z has: 1 + K.
        kind: `equivariant`, the method's; `no_tensor_product`, Z by one equivariant linear map; `none`, plain linear
            maps with biases, the ablation that loses the robustness to rotations.

    Raises:
        ValueError: if an equivariant width is less than 4 or divisible by 3.
    """

    def __init__(self, width: int, scalars: int, kind: LiftingKind = "equivariant") -> None:
        super().__init__()
        if kind == "equivariant" and (width < 4 or width % 3 == 0):
            raise ValueError(
                f"width must be at least 4 and not divisible by 3 (without scalars the tensor product of the lifting "
                f"has no path to a vector), got {width}"
            )
        self.kind = kind
        hidden = hidden_irreps(width)
        extra = o3.Irreps([(scalars, (0, 1))])
        if kind == "none":
            self.x, self.v, self.z = nn.Linear(4, width), nn.Linear(4, width), nn.Linear(8 + scalars, width)
            return
        self.x, self.v = o3.Linear(VECTOR, hidden), o3.Linear(VECTOR, hidden)
        if kind == "no_tensor_product":
            self.z = o3.Linear(VECTOR + VECTOR + extra, hidden)
        else:
            self.vz = o3.Linear(VECTOR + extra, hidden)
            self.product = o3.FullyConnectedTensorProduct(hidden, hidden, hidden)

    def forward(self, x: Tensor, v: Tensor, scalars: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Lift the features of each atom.

        Args:
            x: positions and their norms (..., 4).
            v: velocities and their norms (..., 4).
            scalars: atomic number and RRWP (..., 1 + K).

        Returns:
            The streams X, V and Z, each (..., d).
        """
        lifted_x, lifted_v = self.x(x), self.v(v)
        if self.kind != "equivariant":
            return lifted_x, lifted_v, self.z(torch.cat((x, v, scalars), dim=-1))
        return lifted_x, lifted_v, self.product(lifted_x, self.vz(torch.cat((v, scalars), dim=-1)))
