"""Real spherical harmonics of degree 1 to 3 in the convention of 3DGS: the colour model that MEGS² replaces.

3DGS evaluates them in the direction from the camera to the Gaussian, and lobes in the opposite one (Sec. 3.2).
"""

from __future__ import annotations

from math import pi, sqrt

import torch
from torch import Tensor

C1 = sqrt(3 / (4 * pi))
C2 = (sqrt(15 / (4 * pi)), sqrt(5 / (16 * pi)), sqrt(15 / (16 * pi)))
C3 = (sqrt(35 / (32 * pi)), sqrt(105 / (4 * pi)), sqrt(21 / (32 * pi)), sqrt(7 / (16 * pi)), sqrt(105 / (16 * pi)))


def sh_basis(directions: Tensor, degree: int) -> Tensor:
    """Evaluate the harmonics beyond the constant.

    Args:
        directions: (..., 3) unit vectors from the camera to the Gaussian.
        degree: 0 to 3.

    Returns:
        (..., M), M = (degree + 1)^2 - 1.
    """
    x, y, z = directions.unbind(-1)
    basis: list[Tensor] = []
    if degree >= 1:
        basis += [-C1 * y, C1 * z, -C1 * x]
    if degree >= 2:
        basis += [C2[0] * x * y, -C2[0] * y * z, C2[1] * (3 * z * z - 1), -C2[0] * x * z, C2[2] * (x * x - y * y)]
    if degree >= 3:
        basis += [
            -C3[0] * y * (3 * x * x - y * y),
            C3[1] * x * y * z,
            -C3[2] * y * (5 * z * z - 1),
            C3[3] * z * (5 * z * z - 3),
            -C3[2] * x * (5 * z * z - 1),
            C3[4] * z * (x * x - y * y),
            -C3[0] * x * (x * x - 3 * y * y),
        ]
    return torch.stack(basis, -1) if basis else directions.new_zeros(*directions.shape[:-1], 0)
