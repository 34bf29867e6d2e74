"""The photometric loss 0.8 L1 + 0.2 (1 - SSIM) (Sec. 3.7)."""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

WINDOW, SIGMA = 11, 1.5
K1, K2 = 0.01, 0.03


DENSE = 512  # up to this edge a product with a banded matrix is faster than a convolution of single channels


def _bell(dtype: torch.dtype, device: torch.device) -> Tensor:
    places = torch.arange(WINDOW, dtype=torch.float64) - WINDOW // 2
    bell = torch.exp(-0.5 * (places / SIGMA) ** 2)
    return (bell / bell.sum()).to(device=device, dtype=dtype)


@lru_cache(maxsize=8)
def _band(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the window as a symmetric banded matrix (size, size)."""
    bell = _bell(dtype, device)
    apart = (torch.arange(size, device=device)[:, None] - torch.arange(size, device=device)).abs()
    near = apart <= WINDOW // 2
    return torch.where(near, bell[(WINDOW // 2 - apart).clamp(min=0)], torch.zeros((), dtype=dtype, device=device))


def _blur(planes: Tensor) -> Tensor:
    """Average planes (P, H, W) under a Gaussian window, by columns and by rows; outside is 0."""
    height, width = planes.shape[-2:]
    kind = (planes.dtype, planes.device)
    if max(height, width) <= DENSE:
        return _band(height, *kind) @ planes @ _band(width, *kind)
    bell, half = _bell(*kind), WINDOW // 2
    columns = F.conv2d(planes[:, None], bell.view(1, 1, -1, 1), padding=(half, 0))
    return F.conv2d(columns, bell.view(1, 1, 1, -1), padding=(0, half)).squeeze(1)


def ssim(image: Tensor, target: Tensor) -> Tensor:
    """Return the mean structural similarity of images in [0, 1], with the window of 3DGS (zeros outside).

    Args:
        image: (H, W, 3).
        target: (H, W, 3).

    Returns:
        Scalar, 1 for equal images.
    """
    x, y = image.permute(2, 0, 1), target.permute(2, 0, 1)
    mean_x, mean_y, xx, yy, xy = _blur(torch.cat([x, y, x * x, y * y, x * y])).chunk(5)
    variance_x, variance_y, covariance = xx - mean_x**2, yy - mean_y**2, xy - mean_x * mean_y
    c1, c2 = K1**2, K2**2
    upper = (2 * mean_x * mean_y + c1) * (2 * covariance + c2)
    return (upper / ((mean_x**2 + mean_y**2 + c1) * (variance_x + variance_y + c2))).mean()


def photometric(image: Tensor, target: Tensor, ssim_share: float = 0.2) -> Tensor:
    """Return (1 - share) L1 + share (1 - SSIM) of images (H, W, 3)."""
    return (1 - ssim_share) * (image - target).abs().mean() + ssim_share * (1 - ssim(image, target))
