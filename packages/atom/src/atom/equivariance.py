"""How far a map is from equivariance: E_q and the rotation ratio (Sec. 3.8)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import torch
from scipy.spatial.transform import Rotation
from torch import Tensor

Predict = Callable[[Tensor, Tensor], Tensor]


class RotationErrors(NamedTuple):
    """What rotating the states does to a map.

    Attributes:
        e_q: E_q, the mean squared difference between predicting from a rotated state and rotating the prediction, Å².
        plain: S2T of the states as they are, Å².
        rotated: S2T of rotated states against rotated targets, Å².
    """

    e_q: float
    plain: float
    rotated: float

    @property
    def ratio(self) -> float:
        """S2T(rotated) / S2T(plain); 1 for an equivariant map, NaN for a perfect one."""
        return self.rotated / self.plain if self.plain else float("nan")


def random_rotations(count: int, rng: np.random.Generator) -> Tensor:
    """Draw rotation matrices (count, 3, 3) uniformly (Haar), float64."""
    return torch.from_numpy(Rotation.random(count, rng=rng).as_matrix())


def turn(u: Tensor, rotation: Tensor) -> Tensor:
    """Rotate vectors (..., 3) by a matrix (3, 3), or by one for each of the first axis (B, 3, 3)."""
    r = rotation.to(u)
    with torch.autocast(u.device.type, enabled=False):  # half precision would round positions to hundredths of an Å
        return u @ r.mT if r.ndim == 2 else torch.einsum("b...i,bji->b...j", u, r)


@torch.no_grad()
def rotation_errors(
    cases: Iterable[tuple[Predict, Tensor, Tensor, Tensor, Tensor]], rotations: Tensor
) -> RotationErrors:
    """Measure E_q and both S2T.

    Args:
        cases: for each batch: the map from (x, v) to positions (B, P, N, 3) with everything else fixed, x (B, N, 3),
            v (B, N, 3), the targets (B, P, N, 3), and the atoms that count (B, N), bool.
        rotations: G matrices (G, 3, 3).

    Returns:
        Means over rotations, samples, lags, atoms and axes.

    Raises:
        ValueError: without a rotation or an atom that counts.
    """
    sums, count = torch.zeros(3, dtype=torch.float64), 0
    for predict, x, v, target, scored in cases:
        counted = scored[:, None, :, None]
        plain = predict(x, v)

        def total(difference: Tensor, counted: Tensor = counted) -> Tensor:
            return (difference.double().square() * counted).sum().cpu()

        for g in rotations:
            of_turned = predict(turn(x, g), turn(v, g))
            sums += torch.stack(
                (
                    total(of_turned - turn(plain, g)),  # E_q, Sec. 3.8
                    total(plain - target),
                    total(of_turned - turn(target, g)),
                )
            )
        count += int(scored.sum()) * target.shape[1] * 3 * len(rotations)
    if not count:
        raise ValueError("the rotation test needs a rotation and an atom that is scored")
    e_q, plain_error, rotated = (sums / count).tolist()
    return RotationErrors(e_q, plain_error, rotated)
