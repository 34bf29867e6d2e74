from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from megs2.densification import Densifier, Growth, simplify, split_blurred
from megs2.gaussians import from_points, neighbour_scales
from megs2.scene import RATES, Scene, build_optimizers


def grown(
    scales: list[float],
    opacities: list[float],
    gradients: list[float],
    made_new: int,
    cap: int = 100,
    extent: float = 1.0,
) -> Scene:
    """Run one round of densification with gradients given by hand."""
    n = len(scales)
    made = from_points(torch.randn(n, 3), torch.rand(n, 3), lobes=2)
    made.scales.copy_(torch.tensor(scales).log()[:, None].expand(n, 3))
    made.opacities.copy_(torch.logit(torch.tensor(opacities)))
    scene = Scene(made)
    adams = build_optimizers(scene, RATES, 1.0)
    for p in scene.params.values():
        p.grad = torch.ones_like(p)
    for adam in adams.values():
        adam.step()
    densifier = Densifier(Growth(gradient=0.5, percent_dense=0.1, cap=cap), extent, 0, 100, 10)
    assert densifier.acts_at(10)
    assert not densifier.acts_at(15)
    assert not densifier.acts_at(100)
    # In half pictures a gradient counts times half the width.
    grad = torch.tensor(gradients)[:, None] * torch.tensor([1.0, 0.0]) / 10
    rendering = SimpleNamespace(means2d=SimpleNamespace(grad=grad), radii=torch.ones(n, 2))
    densifier.after_step(scene, adams, 10, rendering, SimpleNamespace(width=20, height=20))  # type: ignore[arg-type]
    for name, adam in adams.items():
        (parameter,) = adam.param_groups[0]["params"]
        assert parameter is scene.params[name]
        assert adam.state[parameter]["exp_avg"].shape == parameter.shape
        # After one step on a gradient of 1 the first moment is 0.1; that of new ones is 0.
        new = adam.state[parameter]["exp_avg"].flatten(1).eq(0).all(1) if parameter.dim() > 1 else None
        assert new is None or int(new.sum()) == made_new, name
    assert len(scene.counts) == len(scene.params["means"])
    return scene


def test_a_small_one_with_a_high_gradient_is_duplicated() -> None:
    scene = grown([0.05, 0.05], [0.5, 0.5], [0.9, 0.1], 1)
    means = scene.params["means"]
    assert len(scene) == 3
    assert torch.equal(means[2], means[0])


def test_a_large_one_is_split_into_two_smaller_ones() -> None:
    scene = grown([0.05, 0.8], [0.5, 0.5], [0.1, 0.9], 2)
    assert len(scene) == 3
    scales = scene.params["scales"].exp()[:, 0].sort().values
    torch.testing.assert_close(scales, torch.tensor([0.05, 0.5, 0.5]), rtol=0.02, atol=0.01)  # 0.8 / 1.6


def test_what_is_small_is_measured_by_the_extent() -> None:
    # 0.8 is more than a tenth of 1, and less than a tenth of 10: split in two, or duplicated as it is.
    largest = [
        float(grown([0.05, 0.8], [0.5, 0.5], [0.1, 0.9], new, extent=extent).params["scales"].detach().exp().max())
        for extent, new in ((1.0, 2), (10.0, 1))
    ]
    assert largest == pytest.approx([0.5, 0.8], rel=0.02)


def test_a_faint_one_is_removed() -> None:
    assert len(grown([0.05, 0.05, 0.05], [0.5, 0.001, 0.5], [0.1, 0.1, 0.1], 0)) == 2


def test_growth_stops_at_the_cap() -> None:
    assert len(grown([0.05, 0.05], [0.5, 0.5], [0.9, 0.9], 0, cap=2)) == 2


def test_what_dominates_too_many_pixels_is_split() -> None:
    scene = Scene(from_points(torch.randn(4, 3), torch.rand(4, 3)))
    adams = build_optimizers(scene, RATES, 1.0)
    for p in scene.params.values():
        p.grad = torch.ones_like(p)
    for adam in adams.values():
        adam.step()
    assert split_blurred(scene, adams, torch.tensor([1, 9, 5, 6]), 5.0) == 2
    assert len(scene) == 6
    assert split_blurred(scene, adams, torch.zeros(6), 5.0) == 0
    assert len(scene) == 6


def test_simplification_keeps_a_share_and_prefers_what_matters() -> None:
    g = torch.Generator().manual_seed(0)
    made = from_points(torch.randn(400, 3, generator=g), torch.rand(400, 3, generator=g), lobes=3, generator=g)
    made.opacities.fill_(3.0)
    weights = torch.zeros(400)
    weights[:200] = 9.0  # ten times as likely as the others
    found = simplify(made, weights, 0.6, torch.Generator().manual_seed(0))
    assert len(found) == 160
    places = (found.means[:, None] == made.means).all(-1).float().argmax(1)
    assert int((places < 200).sum()) > 125
    assert len(places.unique()) == 160
    torch.testing.assert_close(found.base, made.base[places])
    torch.testing.assert_close(found.scales, neighbour_scales(made.means[places]))
    torch.testing.assert_close(found.opacities.sigmoid(), torch.full((160,), 0.1))
    assert int(found.counts.sum()) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"simplify_share": 1.0}, r"simplify_share must lie in \[0, 1\), got 1.0"),
        ({"cap": 0}, "cap must be at least 1"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Growth(**options)  # type: ignore[arg-type]
