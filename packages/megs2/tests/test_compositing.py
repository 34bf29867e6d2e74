from __future__ import annotations

import math

import pytest
import torch
from megs2.compositing import ALPHA_MAX, T_MIN, composite
from megs2.projection import ALPHA_MIN, Projection
from torch import Tensor


def flat(depths: list[float], width: int = 1) -> Projection:
    """Return Gaussians so wide that they are constant over a picture."""
    n = len(depths)
    means2d = torch.full((n, 2), 0.5 * width, dtype=torch.float64)
    conics = torch.tensor([[1e-12, 0, 1e-12]], dtype=torch.float64).expand(n, 3)
    return Projection(means2d, conics, torch.tensor(depths, dtype=torch.float64), torch.full((n, 2), 99).int())


def draw(
    depths: list[float], opacities: list[float], colours: list[float], background: float = 0.0
) -> tuple[float, float]:
    tensors = [torch.tensor(values, dtype=torch.float64) for values in (opacities, colours)]
    behind = torch.full((3,), background, dtype=torch.float64)
    image, coverage = composite(flat(depths), tensors[0], tensors[1][:, None].expand(-1, 3), behind, 1, 1)
    return float(image[0, 0, 0]), float(coverage[0, 0])


def slow(
    projected: Projection, opacities: Tensor, colours: Tensor, background: Tensor, width: int, height: int
) -> Tensor:
    """Composite pixel by pixel and Gaussian by Gaussian, in plain Python."""
    image = torch.zeros(height, width, 3, dtype=torch.float64)
    order = sorted(range(len(opacities)), key=lambda i: float(projected.depths[i]))
    for row in range(height):
        for column in range(width):
            remaining = 1.0
            for i in order:
                if int(projected.radii[i, 0]) == 0:
                    continue
                dx, dy = column + 0.5 - float(projected.means2d[i, 0]), row + 0.5 - float(projected.means2d[i, 1])
                xx, xy, yy = projected.conics[i].tolist()
                alpha = min(
                    ALPHA_MAX, float(opacities[i]) * math.exp(-0.5 * (xx * dx * dx + 2 * xy * dx * dy + yy * dy * dy))
                )
                if alpha < ALPHA_MIN:
                    continue
                if remaining * (1 - alpha) <= T_MIN:
                    break
                image[row, column] += remaining * alpha * colours[i]
                remaining *= 1 - alpha
            image[row, column] += remaining * background
    return image


def test_two_gaussians_are_composited_front_to_back() -> None:
    # 0.6 * 1 + 0.4 * 0.5 * 0.2 = 0.64
    assert draw([1, 2], [0.6, 0.5], [1.0, 0.2]) == pytest.approx((0.64, 0.8))
    assert draw([2, 1], [0.5, 0.6], [0.2, 1.0]) == pytest.approx((0.64, 0.8))


def test_what_remains_shows_the_background() -> None:
    assert draw([1, 2], [0.6, 0.5], [1.0, 0.2], background=1.0) == pytest.approx((0.64 + 0.2, 0.8))


def test_alpha_is_capped_and_faint_ones_are_skipped() -> None:
    assert draw([1], [1.0], [1.0]) == pytest.approx((0.999, 0.999))
    assert draw([1], [0.0039], [1.0]) == (0.0, 0.0)
    assert draw([1], [0.00393], [1.0])[0] == pytest.approx(0.00393)


def test_a_pixel_closes_before_the_gaussian_that_would_exhaust_it_and_stays_closed() -> None:
    # T after the first is 0.001; the second would leave 1e-6, and the faint third would leave 0.00099
    found, coverage = draw([1, 2, 3], [0.999, 0.999, 0.01], [0.5, 1.0, 1.0])
    assert found == pytest.approx(0.999 * 0.5)
    assert coverage == pytest.approx(0.999)


def test_oracle_equals_a_double_loop() -> None:
    g = torch.Generator().manual_seed(0)
    n, width, height = 30, 9, 7
    half = torch.randn(n, 2, 2, generator=g, dtype=torch.float64)
    conics = torch.linalg.inv(half @ half.transpose(1, 2) + 0.3 * torch.eye(2))
    projected = Projection(
        torch.rand(n, 2, generator=g, dtype=torch.float64) * 9,
        torch.stack([conics[:, 0, 0], conics[:, 0, 1], conics[:, 1, 1]], 1),
        torch.rand(n, generator=g, dtype=torch.float64),
        (torch.rand(n, 1, generator=g) < 0.9).int().expand(n, 2),
    )
    opacities, colours = torch.rand(n, generator=g).double(), torch.rand(n, 3, generator=g).double()
    background = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    found, _ = composite(projected, opacities, colours, background, width, height)
    torch.testing.assert_close(found, slow(projected, opacities, colours, background, width, height))


def test_nothing_drawn_is_the_background() -> None:
    empty = Projection(torch.zeros(0, 2), torch.zeros(0, 3), torch.zeros(0), torch.zeros(0, 2).int())
    image, coverage = composite(empty, torch.zeros(0), torch.zeros(0, 3), torch.tensor([0.2, 0.4, 0.6]), 3, 2)
    torch.testing.assert_close(image, torch.tensor([0.2, 0.4, 0.6]).expand(2, 3, 3))
    assert coverage.tolist() == [[0.0] * 3] * 2
