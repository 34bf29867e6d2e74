"""Label noise: how large it is, what it leaves alone, and that all streams see one noisy state."""

import pytest
import torch
from atom.features import rrwp
from atom.noise import add_noise
from atom.transformer import ATOM


def draws(seed=0):
    return torch.Generator().manual_seed(seed)


def state(batch=400):
    mask = torch.tensor([True, True, True, False]).expand(batch, 4)
    x = torch.randn(batch, 4, 3, generator=draws(1)) * mask[..., None]
    return x, 0.01 * x.flip(0), mask


def test_positions_and_velocities_are_perturbed_by_independent_normals_of_their_own_size():
    x, v, mask = state()
    noisy_x, noisy_v = add_noise(x, v, mask, 0.1, 0.002, draws())
    xi_x, xi_v = (noisy_x - x)[mask] / 0.1, (noisy_v - v)[mask] / 0.002
    for xi in (xi_x, xi_v):
        assert abs(xi.mean()) < 4 / xi.numel() ** 0.5
        assert abs(xi.square().mean() - 1) < 4 * (2 / xi.numel()) ** 0.5
    assert abs((xi_x * xi_v).mean()) < 4 / xi_x.numel() ** 0.5
    assert xi_x.unique().numel() > 0.99 * xi_x.numel()  # a draw for each atom and axis


def test_padded_atoms_keep_their_zeros_and_the_given_state_is_not_changed():
    x, v, mask = state()
    kept = x.clone(), v.clone()
    noisy_x, noisy_v = add_noise(x, v, mask, 0.1, 0.1, draws())
    assert not noisy_x[~mask].any()
    assert not noisy_v[~mask].any()
    assert torch.equal(x, kept[0])
    assert torch.equal(v, kept[1])


@pytest.mark.parametrize(("sigma_x", "sigma_v"), [(0.0, 0.0), (0.1, 0.0), (0.0, 0.1)])
def test_without_noise_the_given_tensors_come_back(sigma_x, sigma_v):
    x, v, mask = state()
    noisy_x, noisy_v = add_noise(x, v, mask, sigma_x, sigma_v, draws())
    assert (noisy_x is x) == (sigma_x == 0)
    assert (noisy_v is v) == (sigma_v == 0)


def test_the_noise_depends_on_its_generator_only():
    x, v, mask = state()
    torch.manual_seed(0)
    first = add_noise(x, v, mask, 0.1, 0.1, draws(3))
    torch.manual_seed(1)
    again, other = add_noise(x, v, mask, 0.1, 0.1, draws(3)), add_noise(x, v, mask, 0.1, 0.1, draws(4))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_targets_are_perturbed_in_every_slot_and_not_where_padded():
    x, _, mask = state()
    target = x[:, None].expand(-1, 5, -1, -1)
    noisy, _ = add_noise(target, target, mask[:, None], 0.1, 0.0, draws())
    xi = (noisy - target) / 0.1
    assert not xi[:, :, 3].any()
    assert abs(xi[:, :, :3].square().mean() - 1) < 0.05
    assert (xi[:, 0, :3] - xi[:, 1, :3]).abs().min() > 0  # slots are not perturbed alike


def test_all_streams_are_made_of_one_noisy_state_and_of_clean_atomic_numbers_and_walks():
    x, v, mask = state(batch=3)
    z = torch.tensor([6, 8, 7, 0]).expand(3, 4)
    bonds = torch.zeros(3, 4, 4)
    bonds[:, 0, 1] = bonds[:, 1, 0] = 1
    noisy_x, noisy_v = add_noise(x, v, mask, 0.1, 0.1, draws())
    network, seen = ATOM(depth=1, width=8, heads=2, rrwp_steps=2, lifting="none", center=False), []
    network.lift.register_forward_hook(lambda _, inputs, __: seen.extend(inputs))
    network(noisy_x, noisy_v, z, torch.tensor([[1.0, 2.0]] * 3), bonds, mask)
    for features, noisy in ((seen[0], noisy_x), (seen[1], noisy_v)):
        assert torch.equal(features[..., :3], noisy)
        assert torch.equal(features[..., 3], noisy.norm(dim=-1))
    assert torch.equal(seen[2], torch.cat((z[..., None], rrwp(bonds, 2)), dim=-1))
