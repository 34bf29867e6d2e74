from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from megs2.colours import colours
from megs2.fitting import rmse, sphere_directions, to_harmonics, to_lobes, unclamped
from megs2.gaussians import C0, Gaussians, build


def geometry(n: int) -> list[torch.Tensor]:
    return [torch.zeros(n, 3), torch.zeros(n, 3), torch.ones(n, 4), torch.zeros(n)]


def with_lobes(sharpness: list[float], seed: int = 0) -> Gaussians:
    n, g = len(sharpness), torch.Generator().manual_seed(seed)
    return build(
        *geometry(n), 0.2 * torch.randn(n, 3, generator=g), axes=torch.randn(n, 1, 3, generator=g),
        sharpness=torch.tensor(sharpness)[:, None], amplitudes=0.5 + torch.rand(n, 1, 3, generator=g),
    )  # fmt: skip


def with_harmonics(n: int = 6, degree: int = 3, size: float = 0.1) -> Gaussians:
    g = torch.Generator().manual_seed(n)
    rest = size * torch.randn(n, (degree + 1) ** 2 - 1, 3, generator=g)
    return build(*geometry(n), torch.randn(n, 3, generator=g), rest=rest)


def test_directions_are_spread_evenly() -> None:
    directions = sphere_directions()
    torch.testing.assert_close(directions.norm(dim=1), torch.ones(96).double())
    second = directions.T @ directions / 96
    torch.testing.assert_close(second, torch.eye(3).double() / 3, rtol=0, atol=2e-3)


def test_broad_lobes_become_harmonics_that_look_the_same_from_every_side() -> None:
    scene = with_lobes([0.2, 0.5, 1.0])
    found, error = to_harmonics(scene)
    assert found.sh_degree == 3
    assert float(error.max()) < 2e-3
    for place in torch.eye(3) * 5:
        for sign in (1, -1):
            a, b = colours(scene, sign * place), colours(found, sign * place)
            torch.testing.assert_close(b.clamp(max=1), a, rtol=0, atol=6e-3)


def test_the_constant_of_the_harmonics_is_the_mean_over_the_sphere() -> None:
    scene = with_lobes([2.0])
    found, _ = to_harmonics(scene, 0)
    mean = scene.amplitudes[:, 0] * (1 - math.exp(-4)) / 4
    torch.testing.assert_close(found.base, scene.base + mean, rtol=0, atol=5e-3)
    assert found.rest.shape == (1, 0, 3)


def test_a_lobe_in_harmonics_is_found_again() -> None:
    scene = with_lobes([1.5, 2.5, 2.0])
    harmonics, lost = to_harmonics(scene)
    found, error = to_lobes(harmonics, lobes=1, steps=200, progress=False)
    cosine = torch.nn.functional.cosine_similarity(found.axes[:, 0], scene.axes[:, 0])
    assert float(cosine.min()) > math.cos(math.radians(2))
    assert float(error.max()) < 2 * float(lost.max()) + 2e-3
    for place in torch.eye(3) * 5:
        torch.testing.assert_close(colours(found, place), colours(scene, place), rtol=0, atol=0.03)


def test_more_lobes_fit_harmonics_better_and_the_error_is_what_it_says() -> None:
    scene = with_harmonics()
    errors = []
    for lobes in (1, 3):
        found, error = to_lobes(scene, lobes=lobes, steps=150, progress=False)
        directions = sphere_directions().float()
        again = (unclamped(scene, directions) - unclamped(found, directions)).square().mean((1, 2)).sqrt()
        torch.testing.assert_close(error, again)
        errors.append(float(error.square().mean()))
    spread = float(unclamped(scene, directions).var(1, correction=0).mean())
    assert errors[1] < errors[0] < spread
    assert errors[1] < 0.5 * spread


def test_scenes_of_the_wanted_kind_and_constants_are_left_as_they_are() -> None:
    scene = with_lobes([1.0])
    assert to_lobes(scene)[0].axes is scene.axes or torch.equal(to_lobes(scene)[0].axes, scene.axes)
    flat = with_harmonics(degree=0)
    found, error = to_lobes(flat, progress=False)
    assert torch.equal(found.base, flat.base)
    assert found.counts.tolist() == [0] * 6
    assert float(error.max()) == 0
    assert torch.equal(to_harmonics(flat)[0].base, flat.base)
    with pytest.raises(ValueError, match=r"degree must lie in 0..3, got 4"):
        to_harmonics(scene, 4)


def test_the_size_of_a_chunk_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    from megs2 import fitting

    whole, _ = to_lobes(with_harmonics(), lobes=2, steps=20, progress=False)
    monkeypatch.setattr(fitting, "CHUNK", 4)
    parts, _ = to_lobes(with_harmonics(), lobes=2, steps=20, progress=False)
    torch.testing.assert_close(parts.axes, whole.axes, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(parts.base, whole.base, rtol=1e-3, atol=1e-4)


def test_an_empty_scene_stays_empty() -> None:
    nothing = with_harmonics().select(torch.zeros(6, dtype=torch.bool))
    assert len(to_lobes(nothing, progress=False)[0]) == 0
    assert len(to_harmonics(with_lobes([1.0]).select(torch.tensor([False])))[0]) == 0


def test_unclamped_is_the_colour_before_the_clamp() -> None:
    scene = with_lobes([3.0])
    direction = torch.tensor([[0.0, 0.6, 0.8]])
    lobe = scene.amplitudes[0, 0] * torch.exp(
        3 * (torch.nn.functional.normalize(scene.axes[0, 0], dim=0) @ direction[0] - 1)
    )
    torch.testing.assert_close(unclamped(scene, direction)[0, 0], 0.5 + C0 * (scene.base[0] + lobe))


def test_a_colour_alike_from_all_sides_needs_no_lobe() -> None:
    scene = with_harmonics(4)
    rest = scene.rest.clone()
    rest[1:3] = 0
    found, error = to_lobes(replace(scene, rest=rest), 2, 5, progress=False)
    assert found.counts.tolist() == [2, 0, 0, 2]
    assert torch.equal(found.base[1:3], scene.base[1:3])
    assert not found.amplitudes[1:3].any()
    assert error[1:3].max() < 1e-6 < error[[0, 3]].min()


def test_harmonics_of_degree_1_are_the_projection_of_the_lobe() -> None:
    # Funk and Hecke: the best fit is m_0 + 3 m_1 cos, m_l the mean over [-1, 1] of x^l exp(s (x - 1)).
    scene = with_lobes([1.5]).to(torch.float64)
    found, _ = to_harmonics(scene, 1)
    x = torch.linspace(-1, 1, 20001, dtype=torch.float64)
    weight = torch.exp(1.5 * (x - 1))
    mean, slope = torch.trapezoid(weight, x) / 2, 3 * torch.trapezoid(weight * x, x) / 2
    directions = sphere_directions(50)
    cosine = directions @ torch.nn.functional.normalize(scene.axes[0, 0], dim=0)
    expected = 0.5 + C0 * (scene.base + (mean + slope * cosine)[:, None] * scene.amplitudes[0])
    torch.testing.assert_close(unclamped(found, directions)[0], expected, atol=2e-3, rtol=0)


def test_the_error_of_a_shift_of_one_channel_is_the_shift_by_the_root_of_3() -> None:
    scene = with_harmonics(2)
    shifted = replace(scene, base=scene.base + torch.tensor([[0.3, 0, 0], [0, 0, 0]]) / C0)
    error = rmse(scene, shifted, sphere_directions().float())
    torch.testing.assert_close(error, torch.tensor([0.3 / math.sqrt(3), 0.0]))


def test_the_error_between_the_directions_is_that_at_them() -> None:
    scene = with_harmonics(degree=2)
    found, error = to_lobes(scene, 2, 20, progress=False)
    torch.testing.assert_close(error, rmse(scene, found, sphere_directions(3000).float()), rtol=0.1, atol=1e-4)


def test_geometry_is_kept_and_the_scene_given_is_not_touched() -> None:
    scene = replace(with_harmonics(3), means=torch.arange(9.0).view(3, 3), opacities=torch.tensor([1.0, 2.0, 3.0]))
    before = scene.rest.clone()
    found, _ = to_lobes(scene, 1, 3, progress=False)
    for made in (found, to_harmonics(found)[0]):
        assert torch.equal(made.means, scene.means)
        assert torch.equal(made.opacities, scene.opacities)
    assert torch.equal(scene.rest, before)


@pytest.mark.parametrize(("lobes", "steps"), [(4, 10), (-1, 10), (1, -1)])
def test_lobes_and_steps_out_of_range_are_refused(lobes: int, steps: int) -> None:
    with pytest.raises(ValueError, match=rf"lobes in 0\.\.3 and steps >= 0, got {lobes} and {steps}"):
        to_lobes(with_harmonics(1), lobes, steps)
