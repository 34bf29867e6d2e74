"""From spherical harmonics to lobes and back, Gaussian by Gaussian (Sec. 12): least squares over the sphere.

Colours are compared before any clamp, in absolute units, at evenly spread directions. Base colour and amplitudes enter
linearly: for any axes and sharpness the best of them is a small linear system. So only axes and sharpness are searched,
by Adam, and the gradient goes through the solution.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from megs2.gaussians import C0, MAX_LOBES, SH_WIDTHS, Gaussians, build
from megs2.spherical_harmonics import sh_basis

DIRECTIONS = 96
CHUNK = 8192  # Gaussians that are fitted at a time
RIDGE = 1e-4  # of the linear system, which is singular where two lobes are alike
STARTS = 4.0  # sharpness to start from
RATE = 0.05  # of Adam


def sphere_directions(count: int = DIRECTIONS) -> Tensor:
    """Return evenly spread unit directions (count, 3), float64: a Fibonacci lattice."""
    place = torch.arange(count, dtype=torch.float64) + 0.5
    z = 1 - 2 * place / count
    angle = math.pi * (1 + math.sqrt(5)) * place
    r = torch.sqrt(1 - z * z)
    return torch.stack([r * torch.cos(angle), r * torch.sin(angle), z], 1)


def unclamped(gaussians: Gaussians, directions: Tensor) -> Tensor:
    """Evaluate colours without the clamp.

    Args:
        gaussians: N of them.
        directions: (D, 3) unit vectors from the Gaussians to the camera.

    Returns:
        (N, D, 3).
    """
    units = gaussians.base[:, None]
    if gaussians.rest.shape[1]:
        units = units + torch.einsum("dm,nmc->ndc", sh_basis(-directions, gaussians.sh_degree), gaussians.rest) / C0
    if gaussians.max_lobes:
        basis = _lobe_basis(directions, gaussians.axes, gaussians.sharpness) * gaussians.active[:, None]
        units = units + basis @ gaussians.amplitudes
    return 0.5 + C0 * units


def _lobe_basis(directions: Tensor, axes: Tensor, sharpness: Tensor) -> Tensor:
    """Return exp(s (mu . v - 1)), (N, D, K)."""
    cosine = torch.einsum("dc,nkc->ndk", directions, F.normalize(axes, dim=-1))
    return torch.exp(sharpness.abs()[:, None] * (cosine - 1))


def _solve(basis: Tensor, target: Tensor) -> Tensor:
    """Return the coefficients (N, K + 1, 3) of a constant and of lobes (N, D, K) that fit (N, D, 3) best."""
    design = torch.cat([torch.ones_like(basis[..., :1]), basis], -1)
    gram = design.transpose(1, 2) @ design / design.shape[1]
    ridge = RIDGE * torch.eye(gram.shape[-1]).to(gram)
    ridge[0, 0] = 0  # the constant is free
    return torch.linalg.solve(gram + ridge, design.transpose(1, 2) @ target / design.shape[1])


def _first_axes(target: Tensor, directions: Tensor, lobes: int) -> Tensor:
    """Choose axes one after the other where the most is left to explain, (N, K, 3)."""
    chosen: list[Tensor] = []
    left = target - target.mean(1, keepdim=True)
    for _ in range(lobes):
        place = left.square().sum(-1).argmax(1)
        chosen.append(directions[place])
        axes = torch.stack(chosen, 1)
        basis = _lobe_basis(directions, axes, torch.full_like(axes[..., 0], STARTS))
        coefficients = _solve(basis, target)
        left = target - coefficients[:, :1] - basis @ coefficients[:, 1:]
    return torch.stack(chosen, 1)


def _fit(target: Tensor, directions: Tensor, lobes: int, steps: int) -> tuple[Tensor, Tensor, Tensor]:
    """Fit lobes to (N, D, 3); returns axes (N, K, 3), sharpness (N, K), coefficients (N, K + 1, 3)."""
    axes = _first_axes(target, directions, lobes).requires_grad_()
    raw = torch.full(axes.shape[:2], math.log(STARTS)).to(axes).requires_grad_()
    adam = torch.optim.Adam([axes, raw], RATE)
    with torch.enable_grad():
        for _ in range(steps):
            basis = _lobe_basis(directions, axes, raw.exp())
            coefficients = _solve(basis, target)
            left = target - coefficients[:, :1] - basis @ coefficients[:, 1:]
            # The ridge is part of what the solution minimises, and so of what is descended.
            loss = left.square().mean(1).sum() + RIDGE * coefficients[:, 1:].square().sum()
            adam.zero_grad()
            torch.autograd.backward(loss)
            adam.step()
    axes, sharpness = F.normalize(axes.detach(), dim=-1), raw.detach().exp()
    return axes, sharpness, _solve(_lobe_basis(directions, axes, sharpness), target)


def rmse(wanted: Gaussians, found: Gaussians, directions: Tensor) -> Tensor:
    """Return the root mean squared error (N,) of the unclamped colours, over directions (D, 3) and channels."""
    return (unclamped(wanted, directions) - unclamped(found, directions)).square().mean((1, 2)).sqrt()


@torch.no_grad()
def to_lobes(
    gaussians: Gaussians, lobes: int = MAX_LOBES, steps: int = 200, *, progress: bool = True
) -> tuple[Gaussians, Tensor]:
    """Fit lobes to the spherical harmonics of each Gaussian.

    Args:
        gaussians: N of them; a scene with room for lobes is returned as it is.
        lobes: K of each Gaussian, 0 to 3.
        steps: of Adam.
        progress: show a bar on a terminal.

    Returns:
        The scene with lobes, all active (none where the colour is the same from all sides), and the root mean squared
        error of the unclamped colours over the sphere, (N,).

    Raises:
        ValueError: if the number of lobes is out of range, or that of steps negative.
    """
    if not 0 <= lobes <= MAX_LOBES or steps < 0:
        raise ValueError(f"expected lobes in 0..{MAX_LOBES} and steps >= 0, got {lobes} and {steps}")
    scene = gaussians.detach()
    directions = sphere_directions().to(scene.means)
    if scene.max_lobes:
        return scene, torch.zeros_like(scene.opacities)
    parts, errors = [], []
    starts = range(0, max(1, len(scene)), CHUNK)
    for first in tqdm(starts, desc="lobes", disable=None if progress else True, leave=False):
        part = scene.select(torch.arange(first, min(first + CHUNK, len(scene)), device=scene.means.device))
        if scene.rest.shape[1] and lobes and len(part):
            target = (unclamped(part, directions) - 0.5) / C0
            axes, sharpness, coefficients = _fit(target, directions, lobes, steps)
            constant = (part.rest == 0).flatten(1).all(1)
            base = torch.where(constant[:, None], part.base, coefficients[:, 0])
            amplitudes = coefficients[:, 1:].masked_fill(constant[:, None, None], 0)
            made = build(
                part.means, part.scales, part.quats, part.opacities, base, axes=axes, sharpness=sharpness,
                amplitudes=amplitudes, counts=torch.where(constant, 0, lobes),
            )  # fmt: skip
        else:
            axes = part.means.new_zeros(len(part), lobes, 3)
            axes[..., 2] = 1
            made = build(
                part.means, part.scales, part.quats, part.opacities, part.base, axes=axes,
                sharpness=torch.zeros_like(axes[..., 0]), amplitudes=torch.zeros_like(axes),
                counts=torch.zeros(len(part), dtype=torch.long, device=axes.device),
            )  # fmt: skip
        parts.append(made)
        errors.append(rmse(part, made, directions))
    return _joined(parts), torch.cat(errors)


@torch.no_grad()
def to_harmonics(gaussians: Gaussians, degree: int = 3) -> tuple[Gaussians, Tensor]:
    """Fit spherical harmonics to the lobes of each Gaussian, for viewers that know nothing else.

    Args:
        gaussians: N of them; a scene without room for lobes is returned as it is.
        degree: 0 to 3.

    Returns:
        The scene with harmonics, and the root mean squared error of the unclamped colours over the sphere, (N,).

    Raises:
        ValueError: if the degree is out of range.
    """
    if not 0 <= degree < len(SH_WIDTHS):
        raise ValueError(f"degree must lie in 0..3, got {degree}")
    scene = gaussians.detach()
    if not scene.max_lobes:
        return scene, torch.zeros_like(scene.opacities)
    directions = sphere_directions().to(scene.means)
    basis = torch.cat([torch.full_like(directions[:, :1], C0), sh_basis(-directions, degree)], 1)
    inverse = torch.linalg.pinv(basis)
    parts, errors = [], []
    for first in range(0, max(1, len(scene)), CHUNK):
        part = scene.select(torch.arange(first, min(first + CHUNK, len(scene)), device=scene.means.device))
        coefficients = torch.einsum("md,ndc->nmc", inverse, unclamped(part, directions) - 0.5)
        rest = coefficients[:, 1:].contiguous()
        made = build(part.means, part.scales, part.quats, part.opacities, coefficients[:, 0], rest=rest)
        parts.append(made)
        errors.append(rmse(part, made, directions))
    return _joined(parts), torch.cat(errors)


def _joined(parts: list[Gaussians]) -> Gaussians:
    names = Gaussians.__dataclass_fields__
    return Gaussians(**{name: torch.cat([getattr(part, name) for part in parts]) for name in names})
