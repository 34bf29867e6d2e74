from __future__ import annotations

import sys
import types
from typing import Any

import pytest
import torch
from megs2.camera import look_at
from megs2.gaussians import from_points
from megs2.memory import drawing_bytes
from megs2.rasterizer import choose_backend, rasterize, render


@pytest.mark.parametrize(
    ("backend", "device", "expected"), [("auto", "cpu", "cpu"), ("torch", "cpu", "torch"), ("auto", "meta", "torch")]
)
def test_the_backend_is_chosen_by_the_device(backend: str, device: str, expected: str) -> None:
    assert choose_backend(backend, device) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("backend", "device", "message"),
    [
        ("gsplat", "cpu", "backend gsplat needs a CUDA device, got cpu: use backend auto, cpu or torch"),
        ("cpu", "cuda", "backend cpu draws on the CPU only, got cuda"),
        ("opengl", "cpu", "backend must be one of auto, cpu, gsplat, torch, got 'opengl'"),
    ],
)
def test_a_backend_that_cannot_work_is_refused_with_the_remedy(backend: str, device: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        choose_backend(backend, device)  # type: ignore[arg-type]


@pytest.mark.parametrize("failure", ["none found", "broken"])
def test_gsplat_that_cannot_be_compiled_is_refused_up_front(failure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = types.ModuleType("gsplat.cuda._backend")
    if failure == "none found":
        module._C = None
    else:  # without the name the import fails, as it does where the compiler does
        assert not hasattr(module, "_C")
    monkeypatch.setitem(sys.modules, "gsplat.cuda._backend", module)
    with pytest.raises(ValueError, match=r"gsplat could not compile its kernels \(.+\): install the CUDA toolkit"):
        choose_backend("auto", "cuda")


def camera(size: int = 24):
    return look_at(
        torch.tensor([0.0, -4, 1]), torch.zeros(3), torch.tensor([0.0, 0, 1]), fov=40, width=size, height=size
    )


def test_both_rasterisers_draw_the_same_picture_of_a_scene() -> None:
    g = torch.Generator().manual_seed(0)
    scene = from_points(torch.randn(80, 3, generator=g), torch.rand(80, 3, generator=g), lobes=2, generator=g)
    scene.counts[:] = torch.randint(0, 3, (80,), generator=g)
    a, b = (render(scene, camera(), torch.ones(3), backend=backend) for backend in ("cpu", "torch"))
    torch.testing.assert_close(a.image, b.image, rtol=0, atol=1e-5)
    torch.testing.assert_close(a.coverage, b.coverage, rtol=0, atol=1e-5)
    assert torch.equal(a.radii, b.radii)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gsplat_draws_the_same_picture() -> None:
    g = torch.Generator().manual_seed(0)
    scene = from_points(torch.randn(300, 3, generator=g), torch.rand(300, 3, generator=g))
    ours = render(scene, camera(64), torch.ones(3), backend="cpu")
    theirs = render(scene.to("cuda"), camera(64).to("cuda"), torch.ones(3, device="cuda"), backend="gsplat")
    torch.testing.assert_close(ours.image, theirs.image.cpu(), rtol=0, atol=1e-3)


def test_the_centres_carry_the_gradient_that_densification_asks_for() -> None:
    scene = from_points(torch.randn(20, 3, generator=torch.Generator().manual_seed(1)), torch.rand(20, 3))
    means = scene.means.requires_grad_()
    drawn = rasterize(
        means, scene.quats, scene.scales.exp(), scene.opacities.sigmoid(), torch.rand(20, 3), camera(), torch.zeros(3)
    )
    drawn.means2d.retain_grad()
    drawn.image.square().sum().backward()
    assert drawn.means2d.grad is not None
    assert float(drawn.means2d.grad.abs().sum()) > 0


def test_memory_of_drawing_grows_with_pixels_and_gaussians_but_not_with_their_product() -> None:
    g = torch.Generator().manual_seed(2)
    small = from_points(torch.randn(300, 3, generator=g), torch.rand(300, 3))
    large = from_points(torch.randn(3000, 3, generator=g), torch.rand(3000, 3))
    used = {
        (n, size): drawing_bytes(scene, camera(size))
        for n, scene in ((300, small), (3000, large))
        for size in (32, 128)
    }
    assert used[300, 32] < used[300, 128] < used[300, 32] + 80 * 128 * 128
    assert used[3000, 128] < 3000 * 128 * 128 / 20
    brute = drawing_bytes(large, camera(32), backend="torch")
    assert used[3000, 32] < brute / 5
