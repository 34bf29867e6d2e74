"""The vector x that stands for an unknown reward, in one of three spaces (Sec. 3.1).

    stage        r_h(s, a) = x[h, s, a]         H * S * A numbers
    stationary   r_h(s, a) = x[s, a]            S * A numbers
    linear       r_h(s, a) = (Φ x)[s, a]        k numbers, x = θ

Each is linear in x, so that a return is <d, r> = coefficients(d) @ x: sum d over the stages first where the reward
has none, then multiply by Φ. All that is known of a reward can so be said about x alone.

NumPy only; the file can be copied alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Kind = Literal["stage", "stationary", "linear"]


@dataclass(frozen=True, eq=False)
class RewardSpace:
    """The space of rewards that are considered.

    Attributes:
        kind: `stage`, `stationary` or `linear`.
        states: S.
        actions: A.
        horizon: H.
        features: Φ (S * A, k), row s * A + a; for `linear` only.

    Raises:
        ValueError: if the kind is unknown, or the features do not fit it.
    """

    kind: Kind
    states: int
    actions: int
    horizon: int
    features: Array | None = None

    def __post_init__(self) -> None:
        if self.kind not in ("stage", "stationary", "linear"):
            raise ValueError(f'kind must be "stage", "stationary" or "linear", got {self.kind!r}')
        if min(self.states, self.actions, self.horizon) < 1:
            sizes = f"{self.states}, {self.actions} and {self.horizon}"
            raise ValueError(f"states, actions and horizon must be at least 1, got {sizes}")
        if (self.features is None) == (self.kind == "linear"):
            raise ValueError(f'features belong to kind "linear" and to no other, got kind {self.kind!r}')
        if self.features is not None:
            features = np.asarray(self.features, dtype=np.float64)
            rows = self.states * self.actions
            if features.ndim != 2 or features.shape[0] != rows or features.shape[1] == 0:
                raise ValueError(f"features must have shape (S * A, k) = ({rows}, k), got {features.shape}")
            if not np.isfinite(features).all():
                row = int(np.flatnonzero(~np.isfinite(features).all(1))[0])
                raise ValueError(f"features[{row}] holds a number that is not finite")
            object.__setattr__(self, "features", features)

    @property
    def dim(self) -> int:
        """The length of x."""
        if self.features is not None:
            return self.features.shape[1]
        return self.states * self.actions * (self.horizon if self.kind == "stage" else 1)

    def coefficients(self, occupancy: Array) -> Array:
        """Compute c with <d, r> = c @ x for every x.

        Args:
            occupancy: d (..., H, S, A), or a difference of occupancies.

        Returns:
            (..., dim).

        Raises:
            ValueError: if the shape does not fit.
        """
        d = np.asarray(occupancy, dtype=np.float64)
        sizes = self.horizon, self.states, self.actions
        if d.shape[-3:] != sizes:
            raise ValueError(f"an occupancy must have shape (..., {', '.join(map(str, sizes))}), got {d.shape}")
        if self.kind == "stage":
            return d.reshape(*d.shape[:-3], self.dim)
        visits = d.sum(-3).reshape(*d.shape[:-3], self.states * self.actions)
        return visits if self.features is None else visits @ self.features

    def reward(self, x: Array) -> Array:
        """Give the reward that x stands for.

        Args:
            x: (..., dim).

        Returns:
            r (..., H, S, A); a read-only view where it is the same at every stage.

        Raises:
            ValueError: if the shape does not fit.
        """
        x = np.asarray(x, dtype=np.float64)
        if x.ndim == 0 or x.shape[-1] != self.dim:
            raise ValueError(f"reward parameters must have shape (..., {self.dim}), got {x.shape}")
        shape = (*x.shape[:-1], self.horizon, self.states, self.actions)
        if self.kind == "stage":
            return x.reshape(shape)
        values = x if self.features is None else x @ self.features.T
        return np.broadcast_to(values.reshape(*x.shape[:-1], 1, self.states, self.actions), shape)
