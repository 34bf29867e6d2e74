"""E_q and the rotation ratio: closed forms, ATOM and a strictly equivariant network."""

import math

import numpy as np
import pytest
import torch
from atom.egno import EGNO
from atom.equivariance import RotationErrors, random_rotations, rotation_errors, turn
from atom.transformer import ATOM

P = 4


def rotations(count=8, seed=0):
    return random_rotations(count, np.random.default_rng(seed))


def state(dtype=torch.float64):
    gen = torch.Generator().manual_seed(0)
    mask = torch.arange(4) < torch.tensor([[4], [3]])
    x = torch.randn(2, 4, 3, generator=gen, dtype=dtype) * mask[..., None]
    v = 0.1 * torch.randn(2, 4, 3, generator=gen, dtype=dtype) * mask[..., None]
    target = x[:, None] + torch.randn(2, P, 4, 3, generator=gen, dtype=dtype) * mask[:, None, :, None]
    return x, v, target, mask


def at_constant_velocity(x, v):
    return x[:, None] + torch.arange(1, P + 1, dtype=x.dtype)[:, None, None] * v[:, None]


def test_rotations_are_orthogonal_proper_and_of_no_preferred_axis():
    drawn = rotations(4000)
    torch.testing.assert_close(drawn @ drawn.mT, torch.eye(3).double().expand(4000, 3, 3))
    assert torch.allclose(torch.linalg.det(drawn), torch.ones(4000).double())
    assert drawn.mean(0).abs().max() < 4 / math.sqrt(3 * 4000)  # Haar: entries have mean 0 and variance 1/3
    assert (drawn.square().mean(0) - 1 / 3).abs().max() < 0.02
    assert torch.equal(drawn, rotations(4000))


def test_a_quarter_turn_about_z_takes_x_to_y():
    quarter = torch.tensor([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]]).double()
    u = torch.tensor([[1.0, 0, 5], [0, 2, 0]])
    assert turn(u, quarter).tolist() == [[0, 1, 5], [-2, 0, 0]]
    each = turn(torch.stack((u, u)), torch.stack((quarter, torch.eye(3).double())))
    assert each.tolist() == [[[0, 1, 5], [-2, 0, 0]], u.tolist()]


def test_one_matrix_for_each_sample_turns_as_it_would_alone():
    u = torch.randn(3, P, 4, 3, generator=torch.Generator().manual_seed(0)).double()
    drawn = rotations(3)
    expected = torch.stack([turn(sample, r) for sample, r in zip(u, drawn, strict=True)])
    torch.testing.assert_close(turn(u, drawn), expected)


def test_motion_at_constant_velocity_is_equivariant():
    x, v, target, mask = state()
    errors = rotation_errors([(at_constant_velocity, x, v, target, mask)], rotations())
    by_hand = (at_constant_velocity(x, v) - target)[:, :, :3].square()[mask[:, None, :3].expand(-1, P, -1)].sum()
    by_hand = by_hand + (at_constant_velocity(x, v) - target)[0, :, 3].square().sum()
    assert errors.e_q < 1e-28
    assert errors.ratio == pytest.approx(1, abs=1e-12)
    assert errors.plain == pytest.approx(float(by_hand) / (7 * P * 3), rel=1e-12)


def test_a_constant_displacement_errs_by_its_own_turns():
    x, v, _, mask = state()
    c = torch.tensor([0.3, -0.2, 0.9]).double()
    drawn = rotations()

    def predict(x, v):
        return at_constant_velocity(x, v) + c

    exact = at_constant_velocity(x, v)
    errors = rotation_errors([(predict, x, v, exact, mask)], drawn)
    by_hand = np.mean([np.sum((c - g @ c).numpy() ** 2) for g in drawn]) / 3
    assert errors.e_q == pytest.approx(by_hand, rel=1e-12)
    # F(g s) errs by c and F(s) by c, however they are turned.
    assert errors.plain == errors.rotated == pytest.approx(float(c.square().sum()) / 3, rel=1e-12)
    many = rotation_errors([(predict, x, v, exact, mask)], rotations(2000))
    assert many.e_q == pytest.approx(2 * float(c.square().sum()) / 3, rel=0.05)  # Haar: E ‖c - g c‖² = 2 ‖c‖²


def test_an_error_that_is_larger_for_turned_states_gives_its_ratio():
    x, v, _, mask = state()
    half_turn = torch.diag(torch.tensor([-1.0, -1.0, 1.0])).double()

    def predict(s, _):  # errs by 1 along z, and by 3 where the state is turned
        away = 1.0 if torch.equal(s, x) else 3.0
        return s[:, None].expand(-1, P, -1, -1) + away * torch.tensor([0.0, 0.0, 1.0]).double()

    errors = rotation_errors([(predict, x, v, x[:, None].expand(-1, P, -1, -1), mask)], half_turn[None])
    assert errors == RotationErrors(e_q=pytest.approx(4 / 3), plain=pytest.approx(1 / 3), rotated=pytest.approx(3))
    assert errors.ratio == pytest.approx(9)


def test_batches_are_weighted_by_their_scored_atoms_and_unscored_ones_do_not_count():
    x, v, target, mask = state()

    def predict(x, v):
        return at_constant_velocity(x, v) + torch.tensor([0.3, -0.2, 0.9]).double()

    wrong = target.clone()
    wrong[1, :, 3] = 1e3  # padded
    whole = rotation_errors([(predict, x, v, target, mask)], rotations())
    halves = [(predict, x[b : b + 1], v[b : b + 1], wrong[b : b + 1], mask[b : b + 1]) for b in range(2)]
    for a, b in zip(whole, rotation_errors(halves, rotations()), strict=True):
        assert a == pytest.approx(b, rel=1e-12)


def networks_case(network, dtype):
    x, v, target, mask = state(dtype)
    z = torch.tensor([[6, 6, 8, 7], [8, 7, 6, 0]])
    lags = torch.tensor([[2.0, 4.0, 6.0, 8.0]] * 2, dtype=dtype)
    bonds = torch.zeros(2, 4, 4, dtype=dtype)
    bonds[:, [0, 1, 1, 2], [1, 0, 2, 1]] = 1
    network = network.to(dtype).eval()
    return (lambda x, v: network(x, v, z, lags, bonds, mask)), x, v, target, mask


def test_a_strictly_equivariant_network_has_no_error_but_rounding():
    torch.manual_seed(0)
    network = EGNO(depth=2, width=16, time_width=8)
    with torch.no_grad():
        for layer in network.layers:
            layer.phi_x[-1].weight.normal_(std=0.3)
    assert rotation_errors([networks_case(network, torch.float32)], rotations()).e_q < 1e-10
    errors = rotation_errors([networks_case(network, torch.float64)], rotations())
    assert errors.e_q < 1e-24
    assert errors.ratio == pytest.approx(1, abs=1e-10)


@pytest.mark.parametrize("lifting", ["equivariant", "no_tensor_product", "none"])
def test_atom_is_not_equivariant_even_behind_an_equivariant_lifting(lifting):
    torch.manual_seed(0)
    network = ATOM(depth=1, width=16, heads=2, lifting=lifting, delta_update=False)
    assert rotation_errors([networks_case(network, torch.float64)], rotations()).e_q > 1e-4


def test_the_untrained_atom_that_predicts_displacements_is_equivariant_as_the_identity_is():
    torch.manual_seed(0)
    network = ATOM(depth=1, width=16, heads=2, lifting="equivariant", delta_update=True)
    assert rotation_errors([networks_case(network, torch.float64)], rotations()).e_q < 1e-28


@pytest.mark.parametrize("nothing", ["rotation", "atom", "batch"])
def test_a_test_of_nothing_is_refused(nothing):
    x, v, target, mask = state()
    case = (at_constant_velocity, x, v, target, mask & (nothing != "atom"))
    with pytest.raises(ValueError, match="the rotation test needs a rotation and an atom that is scored"):
        rotation_errors([] if nothing == "batch" else [case], rotations(0 if nothing == "rotation" else 2))
