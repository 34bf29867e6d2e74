"""A scene of 3-D Gaussians, as raw parameters, and what it weighs (Sec. 3.1).

One container serves every colour model: a constant, spherical harmonics of degree 1 to 3 (3DGS), and spherical-Gaussian
lobes (MEGS²). What a scene does not use has width 0.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
import torch
import torch.nn.functional as F
from scipy.spatial import cKDTree
from torch import Tensor

C0 = 0.28209479177387814  # the constant spherical harmonic, 1 / (2 sqrt(pi)); colours are stored in its units
MAX_LOBES = 3
FLOATS = 14  # of a Gaussian without lobes: position 3, scale 3, rotation 4, opacity 1, base colour 3
LOBE_FLOATS = 7  # axis 3, sharpness 1, amplitude 3
SH_WIDTHS = (0, 3, 8, 15)  # coefficients of a channel beyond the constant, at degree 0 to 3


@dataclass(frozen=True)
class Gaussians:
    """N Gaussians; floating-point tensors of one type on one device, as they are optimised and stored.

    Attributes:
        means: (N, 3) positions.
        scales: (N, 3) logarithms of the standard deviations along the own axes.
        quats: (N, 4) rotations (w, x, y, z), of any length but 0.
        opacities: (N,) logits.
        base: (N, 3) constant colour, in units of `C0` around 0.5.
        rest: (N, M, 3) further coefficients of spherical harmonics, M in 0, 3, 8, 15.
        axes: (N, K, 3) of the lobes, of any length but 0.
        sharpness: (N, K) of the lobes; the absolute value counts.
        amplitudes: (N, K, 3) of the lobes, in units of `C0`; may be negative.
        counts: (N,) int64 in 0..K; a Gaussian's lobes are the first so many.
    """

    means: Tensor
    scales: Tensor
    quats: Tensor
    opacities: Tensor
    base: Tensor
    rest: Tensor
    axes: Tensor
    sharpness: Tensor
    amplitudes: Tensor
    counts: Tensor

    def __len__(self) -> int:
        return len(self.means)

    @property
    def sh_degree(self) -> int:
        """Degree of the spherical harmonics, 0 to 3."""
        return SH_WIDTHS.index(self.rest.shape[1])

    @property
    def max_lobes(self) -> int:
        """K, the lobes that there is room for."""
        return self.axes.shape[1]

    @property
    def active(self) -> Tensor:
        """Which lobes count (N, K), bool."""
        return torch.arange(self.max_lobes, device=self.counts.device) < self.counts[:, None]

    def select(self, index: Tensor) -> Gaussians:
        """Return the Gaussians of an index or a mask (N,), in its order."""
        return Gaussians(**{field.name: getattr(self, field.name)[index] for field in fields(self)})

    def to(self, target: torch.device | torch.dtype | str) -> Gaussians:
        """Return a copy on a device, or in a floating-point type (the counts stay integers)."""
        moved = {field.name: getattr(self, field.name).to(target) for field in fields(self)}
        return replace(Gaussians(**moved), counts=moved["counts"].long())

    def detach(self) -> Gaussians:
        """Return the same numbers without gradients."""
        return Gaussians(**{field.name: getattr(self, field.name).detach() for field in fields(self)})

    def static_bytes(self) -> int:
        """Return what the scene takes in memory in float32, with a byte for each count where there are lobes.

        4 (14 N + 7 sum n) + N with lobes; 236 N with spherical harmonics of degree 3 (Sec. 5).
        """
        floats = (FLOATS + 3 * self.rest.shape[1]) * len(self) + LOBE_FLOATS * int(self.counts.sum())
        return 4 * floats + (len(self) if self.max_lobes else 0)


def build(
    means: Tensor,
    scales: Tensor,
    quats: Tensor,
    opacities: Tensor,
    base: Tensor,
    *,
    rest: Tensor | None = None,
    axes: Tensor | None = None,
    sharpness: Tensor | None = None,
    amplitudes: Tensor | None = None,
    counts: Tensor | None = None,
) -> Gaussians:
    """Make a scene; colour that is not given has width 0, and without counts all lobes are active.

    Args:
        means: (N, 3); the others are shaped as in `Gaussians`.
        scales: (N, 3).
        quats: (N, 4).
        opacities: (N,).
        base: (N, 3).
        rest: (N, M, 3).
        axes: (N, K, 3).
        sharpness: (N, K).
        amplitudes: (N, K, 3).
        counts: (N,).

    Returns:
        The scene.

    Raises:
        ValueError: if shapes disagree.
    """
    n = len(means)
    rest = means.new_zeros(n, 0, 3) if rest is None else rest
    axes = means.new_zeros(n, 0, 3) if axes is None else axes
    lobes = axes.shape[1]
    sharpness = means.new_zeros(n, lobes) if sharpness is None else sharpness
    amplitudes = means.new_zeros(n, lobes, 3) if amplitudes is None else amplitudes
    counts = torch.full((n,), lobes, device=means.device) if counts is None else counts
    shapes = {
        "means": (means, (n, 3)), "scales": (scales, (n, 3)), "quats": (quats, (n, 4)),
        "opacities": (opacities, (n,)), "base": (base, (n, 3)), "rest": (rest, (n, rest.shape[1], 3)),
        "axes": (axes, (n, lobes, 3)), "sharpness": (sharpness, (n, lobes)),
        "amplitudes": (amplitudes, (n, lobes, 3)), "counts": (counts, (n,)),
    }  # fmt: skip
    for name, (tensor, shape) in shapes.items():
        if tensor.shape != shape:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}, expected {shape}")
    if rest.shape[1] not in SH_WIDTHS:
        raise ValueError(f"rest has {rest.shape[1]} coefficients for each channel, expected one of {SH_WIDTHS}")
    if n and not 0 <= int(counts.min()) <= int(counts.max()) <= lobes:
        raise ValueError(f"counts lie in {int(counts.min())}..{int(counts.max())}, expected 0..{lobes}")
    return Gaussians(means, scales, quats, opacities, base, rest, axes, sharpness, amplitudes, counts.long())


def neighbour_scales(points: Tensor, neighbours: int = 3) -> Tensor:
    """Return the log of the root mean square distance to the nearest points, (N, 3), all axes alike (Sec. 3.1).

    Args:
        points: (N, 3).
        neighbours: how many; fewer where there are fewer points.

    Returns:
        (N, 3) logarithms; distances are at least 1e-7, and 1 for a lone point.
    """
    if len(points) < 2:
        return torch.zeros_like(points)
    places = points.detach().cpu().double().numpy()
    distances = np.asarray(cKDTree(places).query(places, k=min(neighbours, len(places) - 1) + 1)[0])
    rms = np.sqrt(np.mean(np.square(distances[:, 1:]), axis=1)).clip(1e-7)
    return torch.as_tensor(np.log(rms), dtype=points.dtype, device=points.device)[:, None].repeat(1, 3)


def from_points(
    points: Tensor,
    colours: Tensor,
    *,
    sh_degree: int = 0,
    lobes: int = 0,
    opacity: float = 0.1,
    generator: torch.Generator | None = None,
) -> Gaussians:
    """Start a scene from coloured points (Sec. 3.1).

    Args:
        points: (N, 3).
        colours: (N, 3) in [0, 1].
        sh_degree: 0 to 3; the coefficients beyond the constant start at 0.
        lobes: K, room for lobes; their axes are random, none is active yet.
        opacity: of every Gaussian, in (0, 1).
        generator: of the lobes' axes and amplitudes.

    Returns:
        N Gaussians with unit rotations.
    """
    n = len(points)
    quats = points.new_zeros(n, 4)
    quats[:, 0] = 1
    axes, sharpness, amplitudes = initial_lobes(n, lobes, points, generator)
    return build(
        points.clone(),
        neighbour_scales(points),
        quats,
        torch.logit(points.new_full((n,), opacity)),
        (colours - 0.5) / C0,
        rest=points.new_zeros(n, SH_WIDTHS[sh_degree], 3),
        axes=axes,
        sharpness=sharpness,
        amplitudes=amplitudes,
        counts=torch.zeros(n, dtype=torch.long, device=points.device),
    )


def initial_lobes(
    n: int, lobes: int, like: Tensor, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw lobes to start from: random unit axes, sharpness 0.1, amplitudes 0.1 randn (Sec. 3.1).

    Args:
        n: number of Gaussians.
        lobes: K.
        like: gives type and device.
        generator: on the CPU.

    Returns:
        Axes (n, K, 3), sharpness (n, K), amplitudes (n, K, 3).
    """
    axes = F.normalize(torch.randn(n, lobes, 3, generator=generator), dim=-1).to(like)
    amplitudes = 0.1 * torch.randn(n, lobes, 3, generator=generator).to(like)
    return axes, like.new_full((n, lobes), 0.1), amplitudes
