from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from megs2 import loss
from megs2.loss import photometric, ssim
from scipy.ndimage import correlate1d
from torchmetrics.functional.image import structural_similarity_index_measure


def images(size: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    target = torch.rand(size, size + 7, 3, generator=g)
    return (target + 0.2 * torch.rand(target.shape, generator=g)).clamp(0, 1), target


def test_equal_images_have_similarity_1_and_no_loss() -> None:
    image, _ = images()
    assert float(ssim(image, image)) == pytest.approx(1)
    assert float(photometric(image, image)) == pytest.approx(0, abs=1e-6)
    leaf = image.clone().requires_grad_()
    (grad,) = torch.autograd.grad(photometric(leaf, image), leaf)
    assert bool(grad.isfinite().all())


def test_similarity_is_that_of_windowed_moments_with_zeros_outside() -> None:
    bell = np.exp(-0.5 * (np.arange(-5, 6) / 1.5) ** 2)
    bell /= bell.sum()

    def blur(plane: np.ndarray) -> np.ndarray:
        for axis in (0, 1):
            plane = correlate1d(plane, bell, axis=axis, mode="constant")
        return plane

    image, target = images()
    x, y = image.double().numpy(), target.double().numpy()
    mx, my = blur(x), blur(y)
    vx, vy, c = blur(x * x) - mx**2, blur(y * y) - my**2, blur(x * y) - mx * my
    expected = (2 * mx * my + 1e-4) * (2 * c + 9e-4) / ((mx**2 + my**2 + 1e-4) * (vx + vy + 9e-4))
    assert float(ssim(image.double(), target.double())) == pytest.approx(expected.mean(), rel=1e-9)
    assert float(ssim(image, target)) == pytest.approx(expected.mean(), abs=1e-5)


def test_moments_of_one_window_by_hand() -> None:
    # The middle pixel of an 11 x 11 image has the whole window; the others' windows run over the edge.
    g = torch.Generator().manual_seed(3)
    x, y = torch.rand(11, 11, generator=g).double(), torch.rand(11, 11, generator=g).double()
    bell = torch.tensor([math.exp(-0.5 * (i / 1.5) ** 2) for i in range(-5, 6)]).double()
    window = torch.outer(bell / bell.sum(), bell / bell.sum())
    mx, my = (window * x).sum(), (window * y).sum()
    vx, vy, c = (window * x * x).sum() - mx**2, (window * y * y).sum() - my**2, (window * x * y).sum() - mx * my
    blurred = loss._blur(torch.stack([x, y, x * x, y * y, x * y]))[:, 5, 5]
    torch.testing.assert_close(blurred, torch.stack([mx, my, vx + mx**2, vy + my**2, c + mx * my]))


def test_similarity_is_torchmetrics_but_for_the_edges() -> None:
    image, target = images(200)
    theirs = structural_similarity_index_measure(
        image.permute(2, 0, 1)[None], target.permute(2, 0, 1)[None], data_range=1.0, sigma=1.5
    )
    assert float(ssim(image, target)) == pytest.approx(float(theirs), abs=3e-3)


def test_the_banded_product_and_the_convolution_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    image, target = images()
    image.requires_grad_()
    results = []
    for dense in (512, 0):
        monkeypatch.setattr(loss, "DENSE", dense)
        value = ssim(image, target)
        results.append((value.detach(), *torch.autograd.grad(value, image)))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-7)


def test_shares_mix_the_two_parts() -> None:
    image, target = images()
    l1 = float((image - target).abs().mean())
    assert float(photometric(image, target, 0.0)) == pytest.approx(l1)
    assert float(photometric(image, target)) == pytest.approx(0.8 * l1 + 0.2 * (1 - float(ssim(image, target))))
