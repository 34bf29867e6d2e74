from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from megs2 import compositing, cpu_rasterizer
from megs2.camera import Camera, look_at
from megs2.projection import project
from torch import Tensor

WIDTH, HEIGHT = 45, 38  # no multiples of a tile
NAMES = ("means", "quats", "scales", "opacities", "colours")


def scene(n: int, dtype: torch.dtype = torch.float64, size: float = 0.1) -> list[Tensor]:
    g = torch.Generator().manual_seed(n)
    means = torch.nn.functional.normalize(torch.randn(n, 3, generator=g), dim=1)
    scales = size * torch.exp(0.5 * torch.randn(n, 3, generator=g))
    made = (means, torch.randn(n, 4, generator=g), scales, torch.rand(n, generator=g), torch.rand(n, 3, generator=g))
    return [t.to(dtype).requires_grad_() for t in made]


def seen_from(dtype: torch.dtype = torch.float64, width: int = WIDTH, height: int = HEIGHT) -> Camera:
    up = torch.tensor([0.0, 0.0, 1.0])
    return look_at(torch.tensor([0.3, -3.0, 1.0]), torch.zeros(3), up, fov=40, width=width, height=height).to(dtype)


def evaluate(inputs: list[Tensor], tile: int | None, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """Return picture, coverage and gradients of a weighted sum; by the oracle where `tile` is None."""
    camera, background = seen_from(dtype), torch.tensor([1.0, 0.5, 0.2], dtype=dtype)
    g = torch.Generator().manual_seed(1)
    weights = torch.randn(HEIGHT, WIDTH, 4, generator=g).to(dtype)
    projected = project(*inputs[:4], camera)
    projected.means2d.retain_grad()
    if tile is None:
        image, coverage = compositing.composite(projected, inputs[3], inputs[4], background, WIDTH, HEIGHT)
    else:
        image, coverage = cpu_rasterizer.composite(projected, inputs[3], inputs[4], background, WIDTH, HEIGHT, tile)
    total = (image * weights[..., :3]).sum() + (coverage * weights[..., 3]).sum()
    grads = torch.autograd.grad(total, [*inputs, projected.means2d])
    return {"image": image.detach(), "coverage": coverage.detach()} | dict(zip([*NAMES, "means2d"], grads, strict=True))


@pytest.mark.parametrize("tile", [8, 16, 32, 64])
def test_any_tile_size_equals_the_oracle_with_gradients(tile: int) -> None:
    expected = evaluate(scene(150), None)
    for name, value in evaluate(scene(150), tile).items():
        torch.testing.assert_close(
            value, expected[name], rtol=1e-9, atol=1e-9 * float(expected[name].abs().max()), msg=name
        )


@pytest.mark.parametrize("size", [0.02, 0.4])
def test_float32_equals_the_oracle_for_small_and_large_gaussians(size: float) -> None:
    expected = evaluate(scene(120, size=size), None)
    found = evaluate(scene(120, torch.float32, size), 32, torch.float32)
    for name, value in found.items():
        scale = float(expected[name].abs().max())
        # a pixel at the edge of alpha = 1/255 may fall on either side
        assert float((value.double() - expected[name]).abs().max()) < 0.02 * scale, name
        assert float((value.double() - expected[name]).abs().mean()) < 1e-5 * scale, name


def test_lone_gaussian_has_the_closed_form_alpha() -> None:
    camera = Camera(torch.eye(3), torch.zeros(3), 100.0, 100.0, 8.5, 8.5, 17, 17)
    opacity = torch.tensor([0.8])
    projected = project(
        torch.tensor([[0.0, 0, 5]]), torch.tensor([[1.0, 0, 0, 0]]), torch.full((1, 3), 0.1), opacity, camera
    )
    _, alpha = cpu_rasterizer.composite(projected, opacity, torch.ones(1, 3), torch.zeros(3), 17, 17)
    assert float(alpha[8, 8]) == pytest.approx(0.8, abs=1e-6)
    assert float(alpha[8, 11]) == pytest.approx(0.28093, abs=1e-5)  # 0.8 exp(-4.5 / 4.3)
    assert float(alpha[8, 16]) == 0.0  # 8 pixels away alpha is below 1/255


def test_gradients_of_the_whole_pipeline_are_right() -> None:
    inputs = [t.detach().requires_grad_() for t in scene(5, size=0.3)]
    inputs[3] = (0.2 + 0.5 * inputs[3].detach()).requires_grad_()
    camera, background = seen_from(width=8, height=8), torch.zeros(3).double()

    def pictures(*tensors: Tensor) -> Tensor:
        projected = project(*tensors[:4], camera)
        image, coverage = cpu_rasterizer.composite(projected, tensors[3], tensors[4], background, 8, 8)
        return torch.cat([image, coverage[..., None]], -1)

    assert torch.autograd.gradcheck(pictures, inputs, atol=1e-5)


def test_order_of_the_gaussians_does_not_matter() -> None:
    inputs = scene(100, torch.float32)
    order = torch.randperm(100, generator=torch.Generator().manual_seed(2))
    a = evaluate(inputs, 32, torch.float32)
    b = evaluate([t.detach()[order].requires_grad_() for t in inputs], 32, torch.float32)
    torch.testing.assert_close(a["image"], b["image"], rtol=0, atol=1e-6)
    torch.testing.assert_close(a["means"][order], b["means"], rtol=1e-4, atol=1e-5)


def test_a_capped_alpha_gives_opacity_and_shape_no_gradient_but_colour() -> None:
    camera = Camera(torch.eye(3), torch.zeros(3), 100.0, 100.0, 0.5, 0.5, 1, 1)
    opacity, colour = torch.ones(1, requires_grad=True), torch.ones(1, 3, requires_grad=True)
    projected = project(torch.tensor([[0.0, 0, 5]]), torch.tensor([[1.0, 0, 0, 0]]), torch.ones(1, 3), opacity, camera)
    image, _ = cpu_rasterizer.composite(projected, opacity, colour, torch.zeros(3), 1, 1)
    image.sum().backward()
    assert opacity.grad is not None
    assert colour.grad is not None
    assert opacity.grad.tolist() == [0.0]
    torch.testing.assert_close(colour.grad, torch.full((1, 3), 0.999))


def test_picture_is_linear_in_the_colours() -> None:
    inputs = [t.detach() for t in scene(60, torch.float32)]
    camera, black = seen_from(torch.float32), torch.zeros(3)
    projected = project(*inputs[:4], camera)

    def draw(colours: Tensor) -> Tensor:
        return cpu_rasterizer.composite(projected, inputs[3], colours, black, WIDTH, HEIGHT)[0]

    a, b = inputs[4], inputs[4].flip(0)
    torch.testing.assert_close(draw(2 * a - 3 * b), 2 * draw(a) - 3 * draw(b), rtol=0, atol=1e-5)


def test_rigid_motion_of_scene_and_camera_changes_nothing() -> None:
    means, quats, scales, opacities, colours = (t.detach() for t in scene(100, torch.float32))
    camera, black = seen_from(torch.float32), torch.zeros(3)
    half = torch.tensor(0.35)
    turn = torch.stack([half.cos(), half.sin() * 0.6, torch.zeros(()), half.sin() * 0.8])
    from megs2.projection import rotation_matrices

    matrix, shift = rotation_matrices(turn), torch.tensor([0.4, -0.2, 0.7])
    w, x, y, z = turn
    left = torch.stack([
        torch.stack([w, -x, -y, -z]), torch.stack([x, w, -z, y]), torch.stack([y, z, w, -x]), torch.stack([z, -y, x, w])
    ])  # fmt: skip
    moved = Camera(
        camera.rotation @ matrix.T, camera.translation - camera.rotation @ matrix.T @ shift, camera.fx, camera.fy,
        camera.cx, camera.cy, WIDTH, HEIGHT,
    )  # fmt: skip
    pictures = []
    for places, turns, eye in ((means, quats, camera), (means @ matrix.T + shift, quats @ left.T, moved)):
        projected = project(places, turns, scales, opacities, eye)
        pictures.append(cpu_rasterizer.composite(projected, opacities, colours, black, WIDTH, HEIGHT)[0])
    torch.testing.assert_close(pictures[0], pictures[1], rtol=0, atol=1e-4)


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_bits_are_the_same_on_any_number_of_threads(threads: None) -> None:
    results = []
    for count in (1, 2, 4, 4):
        torch.set_num_threads(count)
        results.append(evaluate(scene(200, torch.float32), 8, torch.float32))
    for other in results[1:]:
        for name, value in other.items():
            assert torch.equal(value, results[0][name]), name


@pytest.mark.parametrize("what", ["no Gaussians", "all behind"])
def test_an_empty_picture_is_the_background_with_zero_gradients(what: str) -> None:
    inputs = scene(0 if what == "no Gaussians" else 5)
    if what == "all behind":
        inputs[0] = (inputs[0].detach() + torch.tensor([0.0, -50.0, 0.0])).requires_grad_()
    found = evaluate(inputs, 16)
    torch.testing.assert_close(found["image"], torch.tensor([1.0, 0.5, 0.2]).double().expand(HEIGHT, WIDTH, 3))
    assert all(float(found[name].abs().sum()) == 0 for name in NAMES)


def test_numbers_out_of_all_bounds_do_no_harm() -> None:
    inputs = [t.detach() for t in scene(6, torch.float32)]
    inputs[0][0, 0], inputs[0][1, 1], inputs[2][2], inputs[2][3] = float("nan"), float("inf"), 1e8, 1e-12
    inputs[3][4] = float("nan")
    projected = project(*inputs[:4], seen_from(torch.float32))
    image, _ = cpu_rasterizer.composite(projected, inputs[3], inputs[4], torch.zeros(3), WIDTH, HEIGHT)
    assert image.shape == (HEIGHT, WIDTH, 3)
    for index in (0, 1, 4):
        assert projected.radii[index].tolist() == [0, 0]


def test_a_picture_of_one_pixel() -> None:
    inputs = [t.detach() for t in scene(50)]
    camera = seen_from(width=1, height=1)
    projected = project(*inputs[:4], camera)
    expected = compositing.composite(projected, inputs[3], inputs[4], torch.zeros(3).double(), 1, 1)[0]
    found = cpu_rasterizer.composite(projected, inputs[3], inputs[4], torch.zeros(3).double(), 1, 1)[0]
    torch.testing.assert_close(found, expected)
