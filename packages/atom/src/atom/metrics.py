"""Errors of predicted trajectories (Sec. 3.1, and S2S / S2T of the experiments).

Axes: B samples, P lags, N atoms (padded). `scored` (B, N) marks the atoms that count: real ones, and heavy ones only
where hydrogens are input but not scored. Squared errors are in Å²; the paper prints them times 100.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics import Metric


def _check(prediction: Tensor, target: Tensor, scored: Tensor) -> None:
    if prediction.ndim != 4 or prediction.shape[3] != 3 or target.shape != prediction.shape:
        raise ValueError(
            f"prediction and target must both be (B, P, N, 3), got {tuple(prediction.shape)} and {tuple(target.shape)}"
        )
    if scored.dtype != torch.bool or tuple(scored.shape) != (prediction.shape[0], prediction.shape[2]):
        raise ValueError(
            f"scored must be bool of shape {(prediction.shape[0], prediction.shape[2])}, "
            f"got {scored.dtype} of shape {tuple(scored.shape)}"
        )


def squared_errors(prediction: Tensor, target: Tensor, scored: Tensor) -> Tensor:
    """Σ over scored atoms and xyz of (x̂ − x)², per sample and lag.

    Args:
        prediction: (B, P, N, 3), Å.
        target: (B, P, N, 3), Å.
        scored: (B, N), bool. What stands in other places, NaN included, changes neither the value nor the gradient.

    Returns:
        (B, P), Å².

    Raises:
        ValueError: where the shapes do not fit together.
    """
    _check(prediction, target, scored)
    # Masked before the square: 0 · NaN is NaN, also in the gradient.
    return (prediction - target).masked_fill(~scored[:, None, :, None], 0).square().sum((2, 3))


def masked_mse(prediction: Tensor, target: Tensor, scored: Tensor) -> Tensor:
    """The training loss (Sec. 3.1): mean squared error over B, P, scored atoms and xyz.

    Each coordinate counts alike, so in a mixed batch a larger molecule weighs more. 0, with zero gradient, where
    nothing is scored.

    Args:
        prediction: (B, P, N, 3), Å.
        target: (B, P, N, 3), Å.
        scored: (B, N), bool.

    Returns:
        Scalar, Å².

    Raises:
        ValueError: where the shapes do not fit together.
    """
    entries = 3 * prediction.shape[1] * scored.sum()
    return squared_errors(prediction, target, scored).sum() / entries.clamp(min=1)


class TrajectoryErrors(Metric):
    """S2T, S2S and the error at each lag, per molecule and over groups of molecules.

    A sample's error at a lag is the mean over its scored atoms and xyz; everything else is a plain mean of these over
    samples (and lags), so each sample counts alike, whatever the size of its molecule. For one molecule this is the
    mean over all entries, as in the paper. The states are sums, so they add up over processes.

    Args:
        molecules: M, number of molecules of the data set.
        lags: P.

    Raises:
        ValueError: for M or P below 1.
    """

    full_state_update = False
    sums: Tensor
    counts: Tensor

    def __init__(self, molecules: int, lags: int) -> None:
        super().__init__()
        if molecules < 1 or lags < 1:
            raise ValueError(f"molecules and lags must be at least 1, got {molecules} and {lags}")
        self.add_state("sums", torch.zeros(molecules, lags), dist_reduce_fx="sum")
        self.add_state("counts", torch.zeros(molecules, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, prediction: Tensor, target: Tensor, scored: Tensor, molecule: Tensor) -> None:
        """Add a batch.

        Args:
            prediction: (B, P, N, 3), Å.
            target: (B, P, N, 3), Å.
            scored: (B, N), bool, with at least one atom in each sample.
            molecule: index of each sample's molecule (B,), int64 in [0, M).

        Raises:
            ValueError: for another number of lags, an index out of range or a sample without a scored atom.
        """
        molecules, lags = self.sums.shape
        _check(prediction, target, scored)
        if prediction.shape[1] != lags:
            raise ValueError(f"prediction must have {lags} lags, got {prediction.shape[1]}")
        if tuple(molecule.shape) != (len(prediction),) or ((molecule < 0) | (molecule >= molecules)).any():
            raise ValueError(f"molecule must be {len(prediction)} indices in [0, {molecules}), got {molecule.tolist()}")
        atoms = scored.sum(1)
        if (atoms == 0).any():
            raise ValueError(f"scored must mark an atom of each sample, got none in {int((atoms == 0).sum())} of them")
        errors = squared_errors(prediction.detach(), target, scored) / (3 * atoms).unsqueeze(1)
        self.sums.index_add_(0, molecule, errors.to(self.sums))
        self.counts.index_add_(0, molecule, torch.ones_like(molecule))

    def compute(self) -> dict[str, Tensor]:
        """All molecules together, see `of`, and `molecule_s2t`, `molecule_s2s`, `molecule_n` (M,) one by one.

        A molecule without samples has NaN errors.
        """
        alone = self.sums / self.counts.unsqueeze(1)
        one_by_one = {"molecule_s2t": alone.mean(1), "molecule_s2s": alone[:, -1], "molecule_n": self.counts.clone()}
        return self._group(self.sums.sum(0), self.counts.sum()) | one_by_one

    def of(self, molecules: Tensor) -> dict[str, Tensor]:
        """The errors of a group of molecules, such as those unseen in training.

        Args:
            molecules: mask (M,), bool.

        Returns:
            `s2t`, mean over samples and lags, and `s2s`, at the last lag only, Å²; `per_lag` (P,), Å²; `n`, the number
            of samples. NaN without samples.

        Raises:
            ValueError: where the mask is not a bool tensor of M entries.
        """
        if molecules.dtype != torch.bool or molecules.shape != self.counts.shape:
            raise ValueError(
                f"molecules must be a bool mask of {len(self.counts)} entries, "
                f"got {molecules.dtype} of shape {tuple(molecules.shape)}"
            )
        chosen = molecules.to(self.counts.device)
        return self._group(self.sums[chosen].sum(0), self.counts[chosen].sum())

    @staticmethod
    def _group(sums: Tensor, count: Tensor) -> dict[str, Tensor]:
        per_lag = sums / count
        return {"s2t": per_lag.mean(), "s2s": per_lag[-1], "per_lag": per_lag, "n": count}


def kabsch_rmsd(a: Tensor, b: Tensor) -> Tensor:
    """Root mean square deviation after the best translation and proper rotation (Kabsch, 1976).

    With P = Aᵀ B of the centred coordinates and its singular values s_1 ≥ s_2 ≥ s_3,
    N · RMSD² = ‖A‖² + ‖B‖² − 2 (s_1 + s_2 + sign(det P) s_3); the sign forbids a reflection.

    Args:
        a: (..., N, 3), all of them real atoms; any unit.
        b: (..., N, 3), in the same unit; leading axes broadcast.

    Returns:
        (...), in that unit. Computed in float64, so that equal structures give about 1e-8 times their size.

    Raises:
        ValueError: where the last two axes are not the same (N, 3) with N of at least 1.
    """
    if a.ndim < 2 or b.ndim < 2 or a.shape[-2:] != b.shape[-2:] or a.shape[-1] != 3 or a.shape[-2] < 1:
        raise ValueError(f"a and b must both end in (N, 3), got {tuple(a.shape)} and {tuple(b.shape)}")
    p, q = (points.double() - points.double().mean(-2, keepdim=True) for points in (a, b))
    covariance = p.transpose(-1, -2) @ q
    s = torch.linalg.svdvals(covariance)
    overlap = s[..., 0] + s[..., 1] + torch.linalg.det(covariance).sign() * s[..., 2]
    total = p.square().sum((-1, -2)) + q.square().sum((-1, -2)) - 2 * overlap
    return (total.clamp(min=0) / a.shape[-2]).sqrt().to(a.dtype)  # rounding can take a zero below 0


def bond_length_error(prediction: Tensor, target: Tensor, bonds: Tensor) -> Tensor:
    """Mean absolute error of the distances between bonded (1-hop) atoms.

    Args:
        prediction: (B, P, N, 3), Å.
        target: (B, P, N, 3), Å.
        bonds: adjacency (B, N, N), symmetric, 0 or 1, zero where padded.

    Returns:
        Scalar, Å: the mean over samples, lags and bonds. NaN where there is no bond.

    Raises:
        ValueError: where the shapes do not fit together.
    """
    if prediction.ndim != 4 or prediction.shape[3] != 3 or target.shape != prediction.shape:
        raise ValueError(
            f"prediction and target must both be (B, P, N, 3), got {tuple(prediction.shape)} and {tuple(target.shape)}"
        )
    batch, _, atoms, _ = prediction.shape
    if tuple(bonds.shape) != (batch, atoms, atoms):
        raise ValueError(f"bonds must be {(batch, atoms, atoms)}, got {tuple(bonds.shape)}")
    sample, i, j = bonds.triu(1).nonzero(as_tuple=True)
    lengths = (
        torch.linalg.vector_norm(points[sample, :, i] - points[sample, :, j], dim=-1) for points in (prediction, target)
    )
    return (next(lengths) - next(lengths)).abs().mean()
