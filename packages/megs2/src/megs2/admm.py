"""Soft pruning by the alternating direction method of multipliers, with scaled duals (Sec. 3.4).

penalty     (rho / 2) (|o - z_o + u_o|^2 + |s - z_s + u_s|^2), added to the loss, on activated values
projection  (z_o, z_s) = Proj_kappa(o + u_o, s + u_s): kept entries keep their value, the others become 0
dual        u_o += o - z_o,   u_s += s - z_s
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Proxy:
    """z and u of one kind of variable.

    Attributes:
        z: what the variable is drawn to.
        u: scaled dual.
    """

    z: Tensor
    u: Tensor

    @classmethod
    def start(cls, value: Tensor, kept: Tensor) -> Proxy:
        """Begin with the first projection of the value, and u = 0."""
        value = value.detach()
        return cls(torch.where(kept, value, torch.zeros_like(value)), torch.zeros_like(value))

    def penalty(self, value: Tensor, there: Tensor | None = None) -> Tensor:
        """Return |x - z + u|^2 / 2 of a variable's activated value, over the entries that are there (all when None)."""
        apart = value - self.z + self.u
        return 0.5 * (apart if there is None else apart * there).square().sum()

    def update(self, value: Tensor, kept: Tensor) -> None:
        """Project x + u to what is kept, then let u follow.

        Args:
            value: x.
            kept: where z keeps the value, bool.
        """
        shifted = value.detach() + self.u
        self.z = torch.where(kept, shifted, torch.zeros_like(shifted))
        self.u = shifted - self.z
