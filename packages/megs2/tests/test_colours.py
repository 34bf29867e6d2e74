from __future__ import annotations

from dataclasses import replace

import torch
from gsplat.cuda._torch_impl import _spherical_harmonics
from megs2.colours import colours, directions_to
from megs2.fitting import sphere_directions
from megs2.gaussians import C0, build
from megs2.module import fastest_colours
from megs2.spherical_harmonics import sh_basis

FRONT = torch.tensor([0.0, 0.0, 4.0])


def geometry(n: int) -> tuple[torch.Tensor, ...]:
    means = torch.randn(n, 3, generator=torch.Generator().manual_seed(n))
    return means, torch.zeros(n, 3), torch.ones(n, 4), torch.zeros(n)


def test_harmonics_are_gsplats() -> None:
    g = torch.Generator().manual_seed(0)
    directions = torch.nn.functional.normalize(torch.randn(40, 3, generator=g, dtype=torch.float64), dim=1)
    coefficients = torch.randn(40, 16, 3, generator=g, dtype=torch.float64)
    for degree, width in enumerate((1, 4, 9, 16)):
        expected = _spherical_harmonics(degree, directions, coefficients[:, :width])
        beyond = torch.einsum("nm,nmc->nc", sh_basis(directions, degree), coefficients[:, 1:width])
        torch.testing.assert_close(C0 * coefficients[:, 0] + beyond, expected)


def test_harmonics_are_orthonormal() -> None:
    basis = sh_basis(sphere_directions(20_000), 3)
    gram = 4 * torch.pi * basis.T @ basis / len(basis)
    torch.testing.assert_close(gram, torch.eye(15).double(), rtol=0, atol=1e-3)


def test_colour_of_harmonics_is_that_of_3dgs_seen_from_the_camera() -> None:
    means, scales, quats, opacities = geometry(30)
    rest, base = torch.randn(30, 15, 3), torch.randn(30, 3)
    found = colours(build(means, scales, quats, opacities, base, rest=rest), FRONT)
    from_camera = torch.nn.functional.normalize(means - FRONT, dim=1)
    expected = _spherical_harmonics(3, from_camera, torch.cat([base[:, None], rest], 1)) + 0.5
    torch.testing.assert_close(found, expected.clamp(min=0))


def test_a_lobe_that_points_at_the_camera_is_bright_from_there_alone() -> None:
    means, scales, quats, opacities = (t[:1] for t in geometry(1))
    means = torch.zeros(1, 3)
    scene = build(
        means, scales, quats, opacities, torch.full((1, 3), -1.0), axes=torch.tensor([[[0.0, 0, 2]]]),
        sharpness=torch.tensor([[20.0]]), amplitudes=torch.full((1, 1, 3), 1.5),
    )  # fmt: skip
    torch.testing.assert_close(colours(scene, FRONT), torch.full((1, 3), 0.5 + C0 * 0.5))
    torch.testing.assert_close(colours(scene, -FRONT), torch.full((1, 3), 0.5 - C0))


def test_without_lobes_it_is_harmonics_of_degree_0_up_to_the_clamp_at_1() -> None:
    means, scales, quats, opacities = geometry(20)
    base = 3 * torch.randn(20, 3)
    none = build(means, scales, quats, opacities, base)
    room = build(
        means, scales, quats, opacities, base, axes=torch.ones(20, 3, 3), sharpness=torch.ones(20, 3),
        amplitudes=torch.ones(20, 3, 3), counts=torch.zeros(20, dtype=torch.long),
    )  # fmt: skip
    assert float(colours(none, FRONT).max()) > 1
    torch.testing.assert_close(colours(room, FRONT), colours(none, FRONT).clamp(max=1), rtol=0, atol=0)


def ragged(n: int = 50):
    g = torch.Generator().manual_seed(5)
    return build(
        *geometry(n), 0.3 * torch.randn(n, 3, generator=g), axes=torch.randn(n, 3, 3, generator=g),
        sharpness=torch.randn(n, 3, generator=g), amplitudes=0.5 * torch.randn(n, 3, 3, generator=g),
        counts=torch.randint(0, 4, (n,), generator=g),
    )  # fmt: skip


def test_packed_evaluation_equals_the_definition_with_gradients() -> None:
    scene, names = ragged(), ("means", "base", "axes", "sharpness", "amplitudes")
    results = []
    for function in (colours, fastest_colours):
        leaves = {name: getattr(scene, name).clone().requires_grad_() for name in names}
        found = function(replace(scene, **leaves), FRONT)
        grads = torch.autograd.grad((found * torch.arange(1.0, 4.0)).sum(), list(leaves.values()))
        results.append([found.detach(), *grads])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_slots_that_are_not_active_reach_neither_colour_nor_gradient() -> None:
    scene = ragged()
    poisoned = replace(scene, amplitudes=torch.where(scene.active[..., None], scene.amplitudes, torch.nan))
    leaf = poisoned.amplitudes.clone().requires_grad_()
    found = fastest_colours(replace(poisoned, amplitudes=leaf), FRONT)
    torch.testing.assert_close(found, colours(scene, FRONT))
    (grad,) = torch.autograd.grad(found.sum(), leaf)
    assert float(grad[~scene.active].abs().sum()) == 0
    assert float(grad[scene.active].abs().sum()) > 0


def test_what_stands_in_slots_that_are_not_active_changes_neither_colour_nor_gradient() -> None:
    scene, names = ragged(), ("axes", "sharpness", "amplitudes")
    assert int((scene.counts == 0).sum()) > 5
    results = []
    for filling in (1.0, -7.0):
        leaves = {}
        for name in names:
            value = getattr(scene, name)
            active = scene.active if value.dim() == 2 else scene.active[..., None]
            leaves[name] = torch.where(active, value, filling).requires_grad_()
        found = colours(replace(scene, **leaves), FRONT)
        grads = torch.autograd.grad(found.sum(), list(leaves.values()))
        assert all(float(grad[~scene.active].abs().max()) == 0 for grad in grads)
        results.append([found.detach(), *grads])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_clamped_channels_get_no_gradient() -> None:
    base = torch.tensor([[-5.0, 0.0, 5.0]], requires_grad=True)
    flat = torch.zeros(1, 3)
    scene = build(
        flat, flat, torch.ones(1, 4), torch.zeros(1), base, axes=torch.ones(1, 1, 3), sharpness=torch.ones(1, 1),
        amplitudes=torch.zeros(1, 1, 3),
    )  # fmt: skip
    (grad,) = torch.autograd.grad(colours(scene, FRONT).sum(), base)
    torch.testing.assert_close(grad, torch.tensor([[0.0, C0, 0.0]]))


def test_directions_are_unit_vectors_towards_the_camera() -> None:
    found = directions_to(torch.tensor([1.0, 0, 0]), torch.tensor([[1.0, 0, -3], [4, 4, 0]]))
    torch.testing.assert_close(found, torch.tensor([[0.0, 0, 1], [-0.6, -0.8, 0]]))
