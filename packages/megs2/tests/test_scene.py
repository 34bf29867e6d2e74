from __future__ import annotations

import pytest
import torch
from megs2.gaussians import Gaussians, from_points
from megs2.scene import NAMES, RATES, Scene, begin_anew, build_optimizers, keep_gaussians, keep_lobes


def gaussians(n: int = 12, lobes: int = 3, degree: int = 0) -> Gaussians:
    g = torch.Generator().manual_seed(n)
    made = from_points(torch.randn(n, 3, generator=g), torch.rand(n, 3, generator=g), sh_degree=degree, lobes=lobes,
                       generator=g)  # fmt: skip
    made.counts[:] = torch.randint(0, lobes + 1, (n,), generator=g)
    return made


def trained(scene: Scene, steps: int = 2) -> dict[str, torch.optim.Optimizer]:
    """Make Adams and step them on a loss of all parameters."""
    adams = build_optimizers(scene, RATES, 2.0)
    descend(scene, adams, steps)
    return adams


def descend(scene: Scene, adams: dict[str, torch.optim.Optimizer], steps: int) -> None:
    for _ in range(steps):
        loss = sum((p * torch.linspace(1, 2, p[0].numel()).view_as(p[0])).square().sum() for p in adams_params(scene))
        loss.backward()
        for adam in adams.values():
            adam.step()
            adam.zero_grad()


def adams_params(scene: Scene) -> list[torch.Tensor]:
    return [p for p in scene.params.values() if p.requires_grad]


def test_gaussians_come_out_as_they_went_in() -> None:
    for made in (gaussians(), gaussians(lobes=0, degree=2), gaussians(lobes=0)):
        found = Scene(made).gaussians
        for name in (*NAMES, "counts"):
            assert torch.equal(getattr(found, name), getattr(made, name)), name
    assert "rest" not in Scene(gaussians()).params
    assert "axes" not in Scene(gaussians(lobes=0)).params


def test_training_leaves_the_gaussians_alone_that_it_began_with() -> None:
    made, same = gaussians(), gaussians()
    scene = Scene(made)
    trained(scene)
    scene.counts.add_(1)
    for name in (*NAMES, "counts"):
        assert torch.equal(getattr(made, name), getattr(same, name)), name


def test_a_state_of_another_size_and_kind_is_loaded() -> None:
    small, large = Scene(gaussians(5, lobes=0, degree=1)), Scene(gaussians(9))
    small.load_state_dict(large.state_dict())
    assert torch.equal(small.gaussians.axes, large.gaussians.axes)
    assert torch.equal(small.counts, large.counts)
    assert "rest" not in small.params
    whole = torch.nn.Module()
    whole.scene = Scene()
    whole.load_state_dict({f"scene.{name}": value for name, value in large.state_dict().items()})
    assert len(whole.scene) == 9


def test_rates_are_those_of_the_table_and_the_means_are_in_units_of_the_scene() -> None:
    adams = build_optimizers(Scene(gaussians()), RATES, 2.5)
    found = {name: adam.param_groups[0]["lr"] for name, adam in adams.items()}
    assert found == {name: rate * (2.5 if name == "means" else 1) for name, rate in RATES.items() if name != "rest"}
    assert all(adam.param_groups[0]["eps"] == 1e-15 for adam in adams.values())


def test_fixed_axes_are_not_trained() -> None:
    scene = Scene(gaussians(), fixed_axes=True)
    before = scene.params["axes"].clone()
    adams = trained(scene)
    assert "axes" not in adams
    assert torch.equal(scene.params["axes"], before)
    keep_gaussians(scene, adams, torch.arange(12) < 5)
    assert len(scene.params["axes"]) == 5
    assert not scene.params["axes"].requires_grad


def test_training_goes_on_as_if_the_removed_ones_had_never_been() -> None:
    made, kept = gaussians(), torch.arange(12) % 3 != 0
    whole, alone = Scene(made), Scene(made.select(kept))
    adams, others = trained(whole), trained(alone)
    keep_gaussians(whole, adams, kept)
    descend(whole, adams, 3)
    descend(alone, others, 3)
    for name in alone.params:
        torch.testing.assert_close(whole.params[name], alone.params[name], rtol=0, atol=0)
    assert torch.equal(whole.counts, alone.counts)


def test_lobes_that_stay_move_to_the_front_with_their_moments() -> None:
    scene = Scene(gaussians())
    scene.counts[:] = 3
    adams = trained(scene)
    for name in ("axes", "sharpness", "amplitudes"):
        state = adams[name].state[scene.params[name]]
        state["exp_avg"].copy_(scene.params[name].detach())
        state["exp_avg_sq"].copy_(-scene.params[name].detach())
    kept = torch.zeros(12, 3, dtype=torch.bool)
    kept[0], kept[1, 2], kept[2, 1:], kept[3, 0] = True, True, True, True
    before = scene.gaussians.detach().sharpness.clone()
    keep_lobes(scene, adams, kept)
    assert scene.counts.tolist() == [3, 1, 2, 1] + [0] * 8
    now = scene.gaussians.detach().sharpness
    assert torch.equal(now[0], before[0])
    assert torch.equal(now[1, :1], before[1, 2:])
    assert torch.equal(now[2, :2], before[2, 1:])
    for name in ("axes", "sharpness", "amplitudes"):
        state = adams[name].state[scene.params[name]]
        assert torch.equal(state["exp_avg"], scene.params[name])
        assert torch.equal(state["exp_avg_sq"], -scene.params[name])
        assert int(state["step"]) == 2


def test_lobes_that_were_not_active_do_not_come_back() -> None:
    scene = Scene(gaussians())
    scene.counts[:] = 1
    keep_lobes(scene, {}, torch.ones(12, 3, dtype=torch.bool))
    assert scene.counts.tolist() == [1] * 12


@pytest.mark.parametrize("count", [0, 1])
def test_a_scene_may_be_left_with_hardly_anything(count: int) -> None:
    scene = Scene(gaussians())
    adams = trained(scene)
    keep_gaussians(scene, adams, torch.arange(12) < count)
    descend(scene, adams, 1) if count else None
    assert len(scene.gaussians) == count


def test_a_new_start_trains_as_a_new_scene_does() -> None:
    scene, fresh = Scene(gaussians()), Scene(gaussians(7))
    adams, others = trained(scene), trained(fresh)
    begin_anew(scene, adams, gaussians(7))
    assert not any(adam.state for adam in adams.values())
    descend(scene, adams, 2)
    for name in fresh.params:
        torch.testing.assert_close(scene.params[name], fresh.params[name], rtol=0, atol=0)
    assert len(scene) == 7
    assert others.keys() == adams.keys()
