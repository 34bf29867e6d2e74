"""Alpha compositing of projected Gaussians, front to back, in torch alone (Sec. 3.3): every pixel meets every Gaussian.

It is the definition that the fast rasterisers are held against, and draws on any device that torch knows.

    alpha = min(0.999, o exp(-0.5 d^T S2^-1 d)), skipped below 1/255
    C = sum_k T_k alpha_k col_k + T_end background,   T_k = prod_{j<k} (1 - alpha_j)

A pixel is closed before the Gaussian that would make T fall to 1e-4 or below.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from megs2.projection import ALPHA_MIN, Projection

ALPHA_MAX = 0.999  # gsplat's (Inria's release: 0.99)
T_MIN = 1e-4
CHUNK = 2**22  # pixels times Gaussians that are held at a time


def weights_at(pixels: Tensor, projected: Projection, opacities: Tensor) -> tuple[Tensor, Tensor]:
    """Return what each Gaussian, ordered by depth, contributes to pixels.

    Args:
        pixels: (P, 2) centres.
        projected: N Gaussians in the order of depth, drawn ones alone.
        opacities: (N,).

    Returns:
        Weights T alpha (P, N), and the transmittance that remains (P,).
    """
    dx = projected.means2d[:, 0] - pixels[:, :1]
    dy = projected.means2d[:, 1] - pixels[:, 1:]
    xx, xy, yy = projected.conics.unbind(-1)
    exponent = 0.5 * (xx * dx * dx + yy * dy * dy) + xy * dx * dy
    alpha = (opacities * torch.exp(-exponent)).clamp(max=ALPHA_MAX)
    alpha = torch.where((alpha >= ALPHA_MIN) & (exponent >= 0), alpha, torch.zeros_like(alpha))
    after = torch.cumprod(1 - alpha, 1)
    # T falls monotonically, so what is open is a prefix.
    open_ = after.detach() > T_MIN
    alpha = torch.where(open_, alpha, torch.zeros_like(alpha))
    after = torch.cumprod(1 - alpha, 1)
    before = torch.cat([torch.ones_like(after[:, :1]), after[:, :-1]], 1)
    return before * alpha, after[:, -1]


def composite(
    projected: Projection, opacities: Tensor, colours: Tensor, background: Tensor, width: int, height: int
) -> tuple[Tensor, Tensor]:
    """Draw a picture; differentiable in everything but radii and depths.

    Args:
        projected: N Gaussians.
        opacities: (N,) in [0, 1].
        colours: (N, 3).
        background: (3,).
        width: pixels.
        height: pixels.

    Returns:
        Image (H, W, 3), and coverage 1 - T_end (H, W). Memory is that of `CHUNK` pairs, also with gradients.
    """
    like = projected.means2d
    drawn = (projected.radii > 0).all(1).nonzero().squeeze(1)
    order = drawn[torch.argsort(projected.depths.detach()[drawn], stable=True)]
    if not len(order):
        return background.expand(height, width, 3).clone() + 0 * colours.sum(), like.new_zeros(height, width)
    near_first = [tensor.index_select(0, order) for tensor in (projected.means2d, projected.conics, opacities, colours)]
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    pixels = torch.stack([x, y], -1).reshape(-1, 2).to(like) + 0.5

    def draw(chunk: Tensor, means2d: Tensor, conics: Tensor, opacities: Tensor, colours: Tensor) -> Tensor:
        part = Projection(means2d, conics, projected.depths, projected.radii)
        weights, remaining = weights_at(chunk, part, opacities)
        return torch.cat([weights @ colours + remaining[:, None] * background, 1 - remaining[:, None]], 1)

    chunks = torch.split(pixels, max(1, CHUNK // len(order)))
    parts = [checkpoint(draw, chunk, *near_first, use_reentrant=False) for chunk in chunks]
    drawn_image = torch.cat(parts).view(height, width, 4)
    return drawn_image[..., :3], drawn_image[..., 3]
