"""Random walks on graphs of near atoms, norms and centres."""

from pathlib import Path

import numpy as np
import pytest
import torch
from atom.features import centre, near_atoms, rrwp, with_norm
from atom.trajectories import read_trajectory

DATA = Path(__file__).parent / "data"
PATH = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 0.0]])


def in_a_line(*places):
    return torch.tensor([[place, 0.0, 0.0] for place in places])


def test_a_walk_on_a_triangle_returns_with_the_probabilities_of_the_closed_form():
    triangle = 1 - torch.eye(3, dtype=torch.float64)
    expected = [0, 0.5, 0.25, 0.375, 0.3125, 0.34375] + [(1 + 2 * (-0.5) ** k) / 3 for k in (7, 8)]
    torch.testing.assert_close(rrwp(triangle, 8), torch.tensor([expected] * 3).double(), rtol=0, atol=1e-15)


def test_a_walk_on_a_path_returns_at_even_steps_only():
    expected = torch.tensor([[0, 0.5, 0, 0.5], [0, 1, 0, 1], [0, 0.5, 0, 0.5]])
    assert torch.equal(rrwp(PATH, 4), expected)


def test_isolated_and_padded_atoms_have_zeros_and_leave_the_others_alone():
    padded = torch.zeros(5, 5)
    padded[:3, :3] = PATH
    walks = rrwp(padded, 4)
    assert torch.equal(walks[:3], rrwp(PATH, 4))
    assert not walks[3:].any()


def test_walks_of_a_batch_are_the_diagonals_of_matrix_powers():
    edges = (torch.rand(4, 6, 6, generator=torch.Generator().manual_seed(0)) < 0.4).double().triu(1)
    bonds = edges + edges.mT
    degrees = bonds.sum(-1, keepdim=True).numpy()
    walk = bonds.numpy() / np.where(degrees > 0, degrees, 1)
    powers = [np.diagonal(np.linalg.matrix_power(walk, k), axis1=1, axis2=2) for k in range(1, 9)]
    torch.testing.assert_close(rrwp(bonds, 8), torch.from_numpy(np.stack(powers, -1)), rtol=0, atol=1e-14)


def test_no_step_gives_no_feature():
    assert rrwp(PATH, 0).shape == (3, 0)


def test_near_atoms_of_ethanol_are_its_bonds():
    ethanol = read_trajectory(DATA / "md_CH3CH2OH.npz").heavy()
    order = np.argsort(ethanol.numbers == 8, kind="stable")  # the oxygen last
    bonds = near_atoms(torch.from_numpy(ethanol.positions[0]))[order][:, order]
    assert sorted(bonds.sum(0).tolist()) == [1, 1, 2]
    assert bonds[2].sum() == 1  # the oxygen is an end


def test_atoms_at_the_cutoff_are_not_near():
    bonds = near_atoms(in_a_line(0.0, 1.5, 3.25), cutoff=1.75)
    assert bonds.tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 0]]


def test_the_cutoff_grows_by_half_until_there_is_an_edge():
    far = near_atoms(in_a_line(0.0, 3.0, 6.5, 10.2))  # 1.6, 2.4, then 3.6
    assert far.tolist() == [[0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]]
    assert near_atoms(in_a_line(0.0, 8.09)).sum() == 2  # 5.4, then 8.1


@pytest.mark.parametrize("places", [(0.0, 8.2), (0.0,)])
def test_atoms_without_an_edge_up_to_10_angstrom_are_refused(places):
    message = f"the graph of {len(places)} atoms needs two within 8.1 Å of each other"
    with pytest.raises(ValueError, match=message):
        near_atoms(in_a_line(*places))


def test_a_norm_follows_its_vector():
    u = torch.tensor([[3.0, 0.0, 4.0], [0.0, 0.0, 0.0]])
    assert with_norm(u).tolist() == [[3, 0, 4, 5], [0, 0, 0, 0]]


def test_the_gradient_of_the_norm_of_a_padded_atom_is_finite():
    u = torch.zeros(1, 3, requires_grad=True)
    with_norm(u).sum().backward()
    assert u.grad is not None
    assert u.grad.tolist() == [[1, 1, 1]]


def test_the_centre_is_the_mean_of_the_atoms_that_exist():
    x = torch.tensor([[[1.0, 2, 3], [3, 4, 5], [0, 0, 0]], [[7, 8, 9], [0, 0, 0], [0, 0, 0]], [[0.0] * 3] * 3])
    mask = torch.tensor([[True, True, False], [True, False, False], [False, False, False]])
    assert centre(x, mask).tolist() == [[[2, 3, 4]], [[7, 8, 9]], [[0, 0, 0]]]
