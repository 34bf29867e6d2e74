from __future__ import annotations

import torch
from megs2.baselines import fixed_axes, start
from megs2.gaussians import Gaussians, from_points

POINTS = torch.randn(30, 3, generator=torch.Generator().manual_seed(0))
SEEN = torch.rand(30, 3, generator=torch.Generator().manual_seed(1))


def made(colour: str) -> Gaussians:
    g = torch.Generator().manual_seed(2)
    return start(colour, POINTS, SEEN, lobes=2, sh_degree=3, generator=g)  # type: ignore[arg-type]


def test_colour_models_differ_in_what_a_gaussian_stores_alone() -> None:
    sg, sh, axes = made("sg"), made("sh"), made("fixed_axes")
    assert (sg.max_lobes, sg.sh_degree, sh.max_lobes, sh.sh_degree, axes.max_lobes) == (2, 0, 0, 3, 2)
    for name in ("means", "scales", "quats", "opacities", "base"):
        assert torch.equal(getattr(sg, name), getattr(sh, name))
        assert torch.equal(getattr(sg, name), getattr(axes, name))
    assert torch.equal(sg.amplitudes, axes.amplitudes)


def test_fixed_axes_are_orthogonal_and_the_same_for_all() -> None:
    found = fixed_axes(from_points(POINTS, SEEN, lobes=3))
    assert torch.equal(found.axes, torch.eye(3).expand(30, 3, 3))
    assert torch.equal(made("fixed_axes").axes, torch.eye(3)[:2].expand(30, 2, 3))
