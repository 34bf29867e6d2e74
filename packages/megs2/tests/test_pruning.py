from __future__ import annotations

import math

import pytest
import torch
from megs2.gaussians import C0, Gaussians, from_points
from megs2.importance import lobe_scores, lobe_values
from megs2.pruning import Costs, Pruner, Pruning, costs_of, cut
from megs2.scene import RATES, Scene, build_optimizers
from megs2.spherical_gaussians import sphere_mean, sphere_variance


def gaussians(n: int = 40, lobes: int = 3, degree: int = 0) -> Gaussians:
    g = torch.Generator().manual_seed(n)
    made = from_points(torch.randn(n, 3, generator=g), torch.rand(n, 3, generator=g), sh_degree=degree, lobes=lobes,
                       generator=g)  # fmt: skip
    made.counts[:] = lobes
    made.sharpness.copy_(3 * torch.rand(n, lobes, generator=g))
    return made


def test_costs_are_what_the_entries_take() -> None:
    assert costs_of(gaussians()) == Costs(57, 28)
    assert costs_of(gaussians(), fixed_axes=True) == Costs(57, 16)
    assert costs_of(gaussians(lobes=0, degree=3)).gaussian == 236
    assert costs_of(gaussians(lobes=0)).gaussian == 56
    scene = gaussians()
    costs = costs_of(scene)
    assert scene.static_bytes() == len(scene) * costs.gaussian + int(scene.counts.sum()) * costs.lobe


def test_what_a_budget_keeps_takes_no_more() -> None:
    scene, pruner = gaussians(), Pruner(Pruning(budget_mb=0.002), Costs(57, 28))
    weights = torch.rand(40, generator=torch.Generator().manual_seed(1))
    kept, lobes = pruner.choose(scene, weights, weights)
    module = Scene(scene)
    cut(module, {}, (kept, lobes))
    assert 1900 < module.gaussians.static_bytes() <= 2000


def test_the_first_half_of_sequential_chooses_gaussians_alone() -> None:
    scene, options = gaussians(), Pruning(budget_mb=0.002, choice="sequential", lobes_left=1.0)
    pruner, weights = Pruner(options, Costs(57, 28)), torch.arange(40.0)
    pruner.lobes_due = False
    kept, lobes = pruner.choose(scene, weights, weights)
    assert kept.tolist() == [False] * 17 + [True] * 23  # 2000 / (57 + 28) = 23.5
    assert torch.equal(lobes, kept[:, None].expand(40, 3))
    pruner.lobes_due = True
    assert int(pruner.choose(scene, weights, weights)[1].sum()) < 69


def test_ratios_take_the_lowest_weights_and_scores() -> None:
    scene, options = gaussians(), Pruning(choice="ratios", gaussian_share=0.25, lobe_share=0.5)
    weights = torch.arange(40.0)
    kept, lobes = Pruner(options, Costs(57, 28)).choose(scene, weights, weights)
    assert kept.tolist() == [False] * 10 + [True] * 30
    scores = lobe_scores(scene)
    median = scores.flatten().sort().values[60]
    assert torch.equal(lobes, (scores >= median) & kept[:, None])


def test_the_value_of_a_lobe_is_its_weight_times_the_spread_of_its_colour() -> None:
    scene, weights = gaussians(5), torch.arange(5.0)
    scene.counts[:] = 2
    found = lobe_values(scene, weights)
    a, s = scene.amplitudes[3, 1].abs().mean() * C0, scene.sharpness[3, 1]
    assert float(found[3, 1]) == pytest.approx(float(3 * a * sphere_variance(s).sqrt()), rel=1e-5)
    assert float(found[:, 2].sum()) == 0
    assert float(lobe_scores(scene)[3, 1]) == pytest.approx(float(a / C0 * (1 - math.exp(-2 * float(s)))), rel=1e-4)


def test_the_penalty_counts_active_lobes_alone() -> None:
    scene = gaussians(6)
    pruner = Pruner(Pruning(rho=0.5), Costs(57, 28))
    nothing = torch.zeros(6, dtype=torch.bool)
    pruner.start(scene, (nothing, nothing[:, None].expand(6, 3)))
    opacities, sharpness = scene.opacities.sigmoid(), scene.sharpness
    expected = 0.25 * (opacities.square().sum() + sharpness.square().sum())
    torch.testing.assert_close(pruner.penalty(scene), expected)
    scene.counts[:] = 1
    expected = 0.25 * (opacities.square().sum() + sharpness[:, 0].square().sum())
    torch.testing.assert_close(pruner.penalty(scene), expected)


@pytest.mark.parametrize("compensate", [True, False])
def test_the_cut_folds_the_means_of_removed_lobes_into_the_base(compensate: bool) -> None:
    made = gaussians(4)
    made.counts[:] = torch.tensor([3, 2, 3, 0])
    module = Scene(made)
    kept, lobes = torch.tensor([True, True, False, True]), torch.zeros(4, 3, dtype=torch.bool)
    lobes[0, 1] = True
    cut(module, {}, (kept, lobes), compensate=compensate)
    found = module.gaussians.detach()
    assert found.counts.tolist() == [1, 0, 0]
    torch.testing.assert_close(found.axes[0, 0], made.axes[0, 1])
    lost = made.amplitudes * sphere_mean(made.sharpness)[..., None]
    expected = made.base[[0, 1, 3]].clone()
    if compensate:
        expected[0] += lost[0, 0] + lost[0, 2]
        expected[1] += lost[1, 0] + lost[1, 1]  # its third slot was not active
    torch.testing.assert_close(found.base, expected)


def test_moments_follow_their_parameters_through_the_cut() -> None:
    module = Scene(gaussians(6))
    adams = build_optimizers(module, RATES, 1.0)
    for name, adam in adams.items():
        module.params[name].grad = torch.ones_like(module.params[name])
        adam.step()
        for moment in ("exp_avg", "exp_avg_sq"):
            adam.state[module.params[name]][moment].copy_(module.params[name].detach())
    g = torch.Generator().manual_seed(2)
    kept, lobes = torch.tensor([True, False, True, True, False, True]), torch.rand(6, 3, generator=g) < 0.5
    before = module.gaussians.detach().base.clone()
    cut(module, adams, (kept, lobes & kept[:, None]))
    assert module.counts.tolist() == lobes[kept].sum(1).tolist()
    for name, adam in adams.items():
        assert adam.state.keys() == {module.params[name]}
        expected = before[kept] if name == "base" else module.params[name].detach()
        for moment in ("exp_avg", "exp_avg_sq"):
            assert torch.equal(adam.state[module.params[name]][moment], expected), name


def test_duals_collect_what_the_projection_removes_of_activated_values() -> None:
    scene, pruner = gaussians(6), Pruner(Pruning(rho=1.0), Costs(57, 28))
    scene.sharpness.neg_()
    kept, lobes = torch.arange(6) < 3, torch.zeros(6, 3, dtype=torch.bool)
    pruner.start(scene, (kept, lobes))
    pruner.update(scene, (kept, lobes))
    removed = scene.opacities.sigmoid() * ~kept
    torch.testing.assert_close(pruner.proxies["opacities"].u, removed)
    torch.testing.assert_close(pruner.proxies["sharpness"].u, scene.sharpness.abs())
    expected = 0.5 * ((2 * removed).square().sum() + (2 * scene.sharpness).square().sum())
    torch.testing.assert_close(pruner.penalty(scene), expected)


def test_a_given_cost_of_a_gaussian_replaces_what_it_takes() -> None:
    scene, weights = gaussians(lobes=0), torch.arange(1.0, 41.0)
    for given, count in ((None, 35), (100.0, 20)):  # 2000 / 57, 2000 / 100
        kept, _ = Pruner(Pruning(budget_mb=0.002, gaussian_bytes=given), Costs(57, 28)).choose(scene, weights, weights)
        assert int(kept.sum()) == count
        assert bool(kept[-count:].all())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget_mb": 0.0}, "budget_mb must be a finite number above 0, got 0.0"),
        ({"budget_mb": float("nan")}, "budget_mb"),
        ({"rho": -1.0}, "rho must be"),
        ({"gaussian_share": 1.5}, r"gaussian_share must lie in \[0, 1\], got 1.5"),
        ({"importance_views": 0}, "importance_views must be at least 1"),
    ],
)
def test_options_out_of_range_are_refused_by_name(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Pruning(**options)  # type: ignore[arg-type]
