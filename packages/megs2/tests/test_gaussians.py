from __future__ import annotations

import math

import pytest
import torch
from megs2.colours import colours
from megs2.formats import bytes_by_part
from megs2.gaussians import build, from_points, neighbour_scales


def test_scales_are_the_rms_distance_to_the_three_nearest_points() -> None:
    points = torch.tensor([[0.0, 0, 0], [1, 0, 0], [0, 2, 0], [0, 0, 3], [50, 50, 50]])
    found = neighbour_scales(points)
    assert found[0].tolist() == pytest.approx([math.log(math.sqrt((1 + 4 + 9) / 3))] * 3)
    assert neighbour_scales(points[:1]).tolist() == [[0.0] * 3]
    assert neighbour_scales(torch.zeros(4, 3))[0, 0] == pytest.approx(math.log(1e-7))


def test_a_scene_from_points_has_their_colours_and_no_active_lobe() -> None:
    rgb = torch.rand(10, 3, generator=torch.Generator().manual_seed(0))
    scene = from_points(torch.randn(10, 3), rgb, lobes=3, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(colours(scene, torch.tensor([0.0, 0, 9])), rgb)
    torch.testing.assert_close(scene.opacities.sigmoid(), torch.full((10,), 0.1))
    assert scene.counts.tolist() == [0] * 10
    torch.testing.assert_close(scene.axes.norm(dim=-1), torch.ones(10, 3))
    assert scene.sharpness.unique().tolist() == pytest.approx([0.1])
    assert float(scene.amplitudes.std()) == pytest.approx(0.1, rel=0.3)


def test_static_bytes_are_those_of_the_formulas() -> None:
    sh3 = from_points(torch.randn(100, 3), torch.rand(100, 3), sh_degree=3)
    assert sh3.static_bytes() == 236 * 100
    sg = from_points(torch.randn(100, 3), torch.rand(100, 3), lobes=3)
    sg.counts[:30], sg.counts[30:40] = 2, 1
    assert sg.static_bytes() == 4 * (14 * 100 + 7 * 70) + 100
    for scene in (sh3, sg):
        assert sum(bytes_by_part(scene).values()) == scene.static_bytes()


def test_shapes_that_disagree_are_refused_by_name() -> None:
    means = torch.zeros(4, 3)
    with pytest.raises(ValueError, match=r"opacities has shape \(3,\), expected \(4,\)"):
        build(means, means, torch.zeros(4, 4), torch.zeros(3), means)
    with pytest.raises(ValueError, match="rest has 4 coefficients"):
        build(means, means, torch.zeros(4, 4), torch.zeros(4), means, rest=torch.zeros(4, 4, 3))
    with pytest.raises(ValueError, match=r"counts lie in 0..2, expected 0..1"):
        build(means, means, torch.zeros(4, 4), torch.zeros(4), means, axes=torch.ones(4, 1, 3),
              counts=torch.tensor([0, 1, 2, 0]))  # fmt: skip


def test_points_that_coincide_get_no_scale_of_minus_infinity_and_few_points_the_neighbours_that_there_are() -> None:
    points = torch.tensor([[0.0, 0, 0], [0, 0, 0], [0, 0, 4]])
    found = neighbour_scales(points)
    assert found[0, 0] == pytest.approx(math.log(4 / math.sqrt(2)))
    assert found[2, 0] == pytest.approx(math.log(4))
    assert torch.equal(found[:, :1].expand(3, 3), found)


def test_a_start_is_the_same_for_the_same_generator_and_leaves_the_callers_points_alone() -> None:
    points, rgb = torch.randn(6, 3), torch.rand(6, 3)
    a, b, c = (from_points(points, rgb, lobes=2, generator=torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    assert torch.equal(a.axes, b.axes)
    assert torch.equal(a.amplitudes, b.amplitudes)
    assert not torch.equal(a.axes, c.axes)
    before = points.clone()
    a.means.add_(1)
    assert torch.equal(points, before)


def test_a_selection_keeps_rows_together_in_its_order() -> None:
    made = from_points(torch.randn(5, 3), torch.rand(5, 3), lobes=2, generator=torch.Generator().manual_seed(0))
    made.counts.copy_(torch.arange(5) % 3)
    found = made.select(torch.tensor([4, 1]))
    assert found.counts.tolist() == [1, 1]
    assert torch.equal(found.means, made.means[[4, 1]])
    assert torch.equal(found.amplitudes, made.amplitudes[[4, 1]])
    half = made.to(torch.float16)
    assert half.counts.dtype == torch.int64
    assert half.axes.dtype == torch.float16
