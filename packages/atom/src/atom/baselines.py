"""Trivial predictors, printed beside every network: what there is to beat.

`identity` and `constant_velocity` know nothing but the state, so they exist for unseen molecules too. `TrainMean`,
`Ridge` and `NearestNeighbour` are fitted to the training samples of ONE molecule and serve that molecule only. Axes:
B or n samples, P lags, N atoms. Positions in Å, velocities v = x(t_0 + 1) − x(t_0) in Å per frame.
"""

from __future__ import annotations

from typing import Protocol, Self

import numpy as np
import torch
from sklearn.linear_model import RidgeCV
from torch import Tensor

ALPHAS = np.logspace(-8, 4, 25)
"""Grid of the ridge penalty λ, for standardised features and a sum (not a mean) of squared errors."""


def identity(x: Tensor, v: Tensor, steps: Tensor) -> Tensor:
    """x(t_0 + Δ) = x(t_0).

    Args:
        x: (B, N, 3), Å.
        v: (B, N, 3), Å per frame; unused.
        steps: lags Δ_p (B, P), frames; only P is used.

    Returns:
        (B, P, N, 3), Å; a new tensor.
    """
    return x.unsqueeze(1).repeat(1, steps.shape[1], 1, 1)


def constant_velocity(x: Tensor, v: Tensor, steps: Tensor) -> Tensor:
    """x(t_0 + Δ) = x(t_0) + Δ v(t_0): free flight.

    Args:
        x: (B, N, 3), Å.
        v: (B, N, 3), Å per frame.
        steps: lags Δ_p (B, P), frames.

    Returns:
        (B, P, N, 3), Å.
    """
    return x.unsqueeze(1) + steps.to(x.dtype)[:, :, None, None] * v.unsqueeze(1)


class Fitted(Protocol):
    """A predictor of one molecule at the lags it was fitted to."""

    def fit(self, x: Tensor, v: Tensor, y: Tensor) -> Self:
        """Learn from states x, v (n, N, 3) and their futures y (n, P, N, 3)."""
        ...

    def predict(self, x: Tensor, v: Tensor) -> Tensor:
        """Predict (B, P, N, 3) from states (B, N, 3)."""
        ...


def _check_fit(x: Tensor, v: Tensor, y: Tensor) -> None:
    if x.ndim != 3 or x.shape[2] != 3 or v.shape != x.shape or len(x) == 0:
        raise ValueError(f"x and v must both be (n, N, 3) with n of at least 1, got {tuple(x.shape)}, {tuple(v.shape)}")
    if y.ndim != 4 or (y.shape[0], *y.shape[2:]) != tuple(x.shape):
        raise ValueError(f"y must be ({x.shape[0]}, P, {x.shape[1]}, 3) to go with x, got {tuple(y.shape)}")


def _ready(predictor: object, fitted: Tensor | None, x: Tensor, v: Tensor) -> Tensor:
    """`fitted`, whose axis -2 is that of the atoms, after a check of the states."""
    name = type(predictor).__name__
    if fitted is None:
        raise ValueError(f"{name} must be fitted before it predicts")
    atoms = fitted.shape[-2]
    if x.ndim != 3 or tuple(x.shape[1:]) != (atoms, 3) or v.shape != x.shape:
        raise ValueError(
            f"{name} was fitted to a molecule of {atoms} atoms: x and v must both be (B, {atoms}, 3), "
            f"got {tuple(x.shape)} and {tuple(v.shape)}"
        )
    return fitted


class TrainMean:
    """The mean training position at each lag, whatever the state."""

    def __init__(self) -> None:
        self._mean: Tensor | None = None

    def fit(self, x: Tensor, v: Tensor, y: Tensor) -> Self:
        """Average the futures y (n, P, N, 3) of the states x, v (n, N, 3).

        Raises:
            ValueError: where the shapes do not fit together.
        """
        _check_fit(x, v, y)
        self._mean = y.mean(0)
        return self

    def predict(self, x: Tensor, v: Tensor) -> Tensor:
        """Repeat the mean for each of the states x, v (B, N, 3): (B, P, N, 3), Å.

        Raises:
            ValueError: before `fit`, or for another number of atoms.
        """
        return _ready(self, self._mean, x, v).to(x).repeat(len(x), 1, 1, 1)


class Ridge:
    """Ridge regression from (x_0, v_0, 1) to the displacements x(t_0 + Δ_p) − x_0 at all lags.

    Exact for harmonic vibrations, hence hard to beat for stiff molecules. The features are standardised one by one,
    the constant is not penalised, and all outputs share the λ that generalised cross-validation picks on the training
    samples (by leave-one-out errors in closed form). Works in float64.

    Args:
        alphas: candidates for λ, positive; `ALPHAS` by default.

    Raises:
        ValueError: for a λ that is not positive, or none at all.
    """

    def __init__(self, alphas: np.ndarray = ALPHAS) -> None:
        if len(alphas) == 0 or not (np.asarray(alphas) > 0).all():
            raise ValueError(f"alphas must be one or more positive numbers, got {np.asarray(alphas).tolist()}")
        self.alphas = np.asarray(alphas, dtype=float)
        self._constant: Tensor | None = None

    def fit(self, x: Tensor, v: Tensor, y: Tensor) -> Self:
        """Solve for the map; `alpha` is then the λ chosen.

        Args:
            x: (n, N, 3), Å.
            v: (n, N, 3), Å per frame.
            y: (n, P, N, 3), Å.

        Raises:
            ValueError: where the shapes do not fit together, or there are fewer than 2 samples.
        """
        _check_fit(x, v, y)
        if len(x) < 2:
            raise ValueError(f"Ridge needs at least 2 samples to choose its penalty, got {len(x)}")
        features = torch.cat((x.flatten(1), v.flatten(1)), 1).double()
        deviation = features.std(0, correction=0)
        self._centre, self._deviation = features.mean(0), torch.where(deviation > 0, deviation, 1.0)
        displacement = (y - x.unsqueeze(1)).flatten(1).double()
        solver = RidgeCV(alphas=self.alphas)
        solver.fit(((features - self._centre) / self._deviation).cpu().numpy(), displacement.cpu().numpy())
        self.alpha = float(solver.alpha_)
        self._weights = torch.from_numpy(np.atleast_2d(solver.coef_)).to(features).T
        self._constant = torch.from_numpy(np.atleast_1d(solver.intercept_)).to(features).view(y.shape[1:])
        return self

    def predict(self, x: Tensor, v: Tensor) -> Tensor:
        """Apply the map to the states x, v (B, N, 3): (B, P, N, 3), Å, in the dtype of x.

        Raises:
            ValueError: before `fit`, or for another number of atoms.
        """
        constant = _ready(self, self._constant, x, v)
        features = torch.cat((x.flatten(1), v.flatten(1)), 1).to(self._weights)
        linear = ((features - self._centre) / self._deviation @ self._weights).view(-1, *constant.shape)
        return (x.to(features).unsqueeze(1) + linear + constant).to(x)


class NearestNeighbour:
    """The future of the training state nearest in (x_0 / σ_x, v_0 / σ_v).

    σ_x and σ_v are one number each, the deviation of all coordinates of the training states from their means.

    Args:
        chunk: states compared with the training set at a time; bounds the memory.

    Raises:
        ValueError: for a chunk below 1.
    """

    def __init__(self, chunk: int = 512) -> None:
        if chunk < 1:
            raise ValueError(f"chunk must be at least 1, got {chunk}")
        self.chunk = chunk
        self._futures: Tensor | None = None

    def fit(self, x: Tensor, v: Tensor, y: Tensor) -> Self:
        """Keep the states x, v (n, N, 3) and their futures y (n, P, N, 3).

        Raises:
            ValueError: where the shapes do not fit together.
        """
        _check_fit(x, v, y)
        self._scales = tuple(_overall_deviation(part) for part in (x, v))
        self._states, self._futures = self._standardise(x, v), y.clone()
        return self

    def predict(self, x: Tensor, v: Tensor) -> Tensor:
        """Look up the states x, v (B, N, 3): (B, P, N, 3), Å.

        Raises:
            ValueError: before `fit`, or for another number of atoms.
        """
        futures = _ready(self, self._futures, x, v)
        states = self._standardise(x, v).to(self._states)
        nearest = [torch.cdist(part, self._states).argmin(1) for part in torch.split(states, self.chunk)]
        return futures[torch.cat(nearest)].to(x)

    def _standardise(self, x: Tensor, v: Tensor) -> Tensor:
        return torch.cat([part.double().flatten(1) / s for part, s in zip((x, v), self._scales, strict=True)], 1)


def _overall_deviation(part: Tensor) -> float:
    deviation = float((part - part.mean(0)).double().square().mean().sqrt())
    return deviation if deviation > 0 else 1.0


FREE = {"identity": identity, "constant_velocity": constant_velocity}
"""Predictors that need no training, by name: (x, v, steps) -> (B, P, N, 3)."""

FITTED: dict[str, type[Fitted]] = {"train_mean": TrainMean, "ridge": Ridge, "nearest": NearestNeighbour}
"""Predictors fitted to one molecule, by name."""

TRIVIAL = (*FREE, *FITTED)
"""All names, in the order of the tables."""
