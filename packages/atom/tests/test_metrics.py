"""Errors of trajectories against torchmetrics, package rmsd and values by hand."""

import numpy as np
import pytest
import rmsd
import torch
from atom.metrics import TrajectoryErrors, bond_length_error, kabsch_rmsd, masked_mse, squared_errors
from scipy.spatial.transform import Rotation
from torchmetrics import MeanSquaredError

P = 3


def trajectories(count, atoms, seed=0):
    gen = torch.Generator().manual_seed(seed)
    shape = (count, P, atoms, 3)
    return torch.randn(shape, generator=gen), torch.randn(shape, generator=gen)


def reference(prediction, target, scored):
    """torchmetrics on the scored entries."""
    keep = scored[:, None, :, None].expand_as(prediction)
    metric = MeanSquaredError()
    metric.update(prediction[keep], target[keep])
    return metric.compute()


SCORED = torch.tensor([[True, True, False, False], [True, True, True, True], [False, True, False, True]])


def test_the_loss_is_the_mean_over_all_scored_entries():
    prediction, target = trajectories(3, 4)
    torch.testing.assert_close(masked_mse(prediction, target, SCORED), reference(prediction, target, SCORED))


def test_squared_errors_are_sums_by_hand():
    target = torch.zeros(1, 2, 3, 3)
    prediction = torch.zeros(1, 2, 3, 3)
    prediction[0, 0, 0] = torch.tensor([1.0, 2.0, 2.0])
    prediction[0, 1, 2] = 5.0  # not scored
    prediction[0, 1, 1, 0] = 3.0
    out = squared_errors(prediction, target, torch.tensor([[True, True, False]]))
    assert out.tolist() == [[9.0, 9.0]]


def test_nothing_scored_gives_zero_loss_and_zero_gradient():
    prediction, target = trajectories(2, 3)
    prediction.requires_grad_()
    loss = masked_mse(prediction, target, torch.zeros(2, 3, dtype=torch.bool))
    loss.backward()
    assert loss == 0 and (prediction.grad == 0).all()


def test_what_is_not_scored_may_be_nan():
    prediction, target = trajectories(3, 4)
    expected = masked_mse(prediction, target, SCORED)
    target = target.masked_fill(~SCORED[:, None, :, None], torch.nan)
    prediction.requires_grad_()
    loss = masked_mse(prediction, target, SCORED)
    loss.backward()
    assert loss == expected and prediction.grad.isfinite().all()


def test_one_molecules_errors_are_those_of_torchmetrics_over_uneven_batches():
    prediction, target = trajectories(7, 4)
    scored = torch.tensor([True, True, False, True]).expand(7, 4)
    metric = TrajectoryErrors(molecules=2, lags=P)
    for part in (slice(0, 2), slice(2, 4), slice(4, 6), slice(6, 7)):
        count = len(prediction[part])
        metric.update(prediction[part], target[part], scored[part], torch.ones(count, dtype=torch.int64))
    out = metric.compute()
    torch.testing.assert_close(out["s2t"], reference(prediction, target, scored))
    torch.testing.assert_close(out["s2s"], reference(prediction[:, -1:], target[:, -1:], scored))
    for p in range(P):
        torch.testing.assert_close(out["per_lag"][p], reference(prediction[:, p : p + 1], target[:, p : p + 1], scored))
    assert out["n"] == 7 and out["molecule_n"].tolist() == [0, 7]
    assert out["molecule_s2s"][1] == out["s2s"] != out["per_lag"][0]
    assert out["molecule_s2t"][1] == out["s2t"] and out["molecule_s2t"][0].isnan()


def constant_errors(sizes, errors):
    """Samples whose every scored coordinate is off by the root of its error."""
    scored = torch.arange(4) < torch.tensor(sizes).unsqueeze(1)
    prediction = torch.tensor(errors).sqrt().view(-1, 1, 1, 1).expand(-1, P, 4, 3)
    return prediction, torch.zeros(len(sizes), P, 4, 3), scored


def test_each_sample_counts_alike_whatever_the_size_of_its_molecule():
    prediction, target, scored = constant_errors([1, 4, 4, 2], [8.0, 1.0, 3.0, 100.0])
    metric = TrajectoryErrors(molecules=3, lags=P)
    metric.update(prediction, target, scored, torch.tensor([0, 1, 1, 2]))
    out = metric.compute()
    torch.testing.assert_close(out["molecule_s2t"], torch.tensor([8.0, 2.0, 100.0]))
    torch.testing.assert_close(out["molecule_s2s"], torch.tensor([8.0, 2.0, 100.0]))
    torch.testing.assert_close(out["s2t"], torch.tensor(28.0))  # (8 + 1 + 3 + 100) / 4
    group = metric.of(torch.tensor([True, True, False]))
    torch.testing.assert_close(group["s2t"], torch.tensor(4.0))  # (8 + 1 + 3) / 3
    torch.testing.assert_close(group["per_lag"], torch.full((P,), 4.0))
    assert group["n"] == 3
    assert metric.of(torch.zeros(3, dtype=torch.bool))["s2t"].isnan()


def test_states_of_two_processes_add_up():
    """A copy per process; what torchmetrics reduces with `sum` is summed here by hand."""
    prediction, target, scored = constant_errors([1, 4, 4, 2], [8.0, 1.0, 3.0, 100.0])
    molecule = torch.tensor([0, 1, 1, 2])
    whole, first, second = (TrajectoryErrors(3, P) for _ in range(3))
    whole.update(prediction, target, scored, molecule)
    first.update(prediction[:1], target[:1], scored[:1], molecule[:1])
    second.update(prediction[1:], target[1:], scored[1:], molecule[1:])
    for name, reduce in first._reductions.items():
        setattr(first, name, reduce(torch.stack((getattr(first, name), getattr(second, name)))))
    expected = whole.compute()
    for name, value in first.compute().items():
        torch.testing.assert_close(value, expected[name], equal_nan=True)
    whole.reset()
    assert (whole.counts == 0).all() and (whole.sums == 0).all()


@pytest.mark.parametrize("atoms", [1, 2, 3, 9])
def test_kabsch_rmsd_equals_the_package_rmsd(atoms):
    rng = np.random.default_rng(atoms)
    a, b = rng.normal(size=(2, 5, atoms, 3))
    expected = [rmsd.kabsch_rmsd(p, q, translate=True) for p, q in zip(a, b, strict=True)]
    out = kabsch_rmsd(torch.from_numpy(a), torch.from_numpy(b))
    np.testing.assert_allclose(out, expected, atol=1e-7)


def test_kabsch_rmsd_is_blind_to_a_rigid_motion_but_sees_a_mirror():
    a = torch.tensor([[0.0, 0, 0], [1, 0, 0], [0, 2, 0], [0, 0, 3]], dtype=torch.float64)
    rotation = torch.from_numpy(Rotation.from_rotvec([0.3, -1.0, 2.0]).as_matrix())
    assert kabsch_rmsd(a, a @ rotation.T + 5) < 1e-7
    assert kabsch_rmsd(a, a * torch.tensor([-1.0, 1, 1])) > 0.1
    flat = a[:3]
    assert kabsch_rmsd(flat, flat * torch.tensor([-1.0, 1, 1])) < 1e-7  # in a plane a mirror is a rotation


def test_stretching_a_pair_by_d_gives_an_rmsd_of_half_d():
    a = torch.tensor([[0.0, 0, 0], [1, 0, 0]])
    b = torch.tensor([[0.0, 0, 0], [0, 1.5, 0]])
    torch.testing.assert_close(kabsch_rmsd(a, b), torch.tensor(0.25))
    assert kabsch_rmsd(a.expand(2, 3, 2, 3), b).tolist() == [[0.25] * 3] * 2


def test_the_bond_length_error_counts_each_bond_once():
    """Sample 0 has one bond, 0.5 Å too long, and a far atom; sample 1 has two, right and 0.25 Å too short."""
    line = torch.tensor([[0.0, 0, 0], [1, 0, 0], [2, 0, 0]])
    target = line.expand(2, 1, 3, 3)
    prediction = target.clone()
    prediction[0, 0, 1:] = torch.tensor([[0.0, 1.5, 0], [9, 9, 9]])
    prediction[1, 0, 2, 0] = 1.75
    bonds = torch.zeros(2, 3, 3)
    bonds[0, 0, 1] = bonds[0, 1, 0] = 1
    bonds[1] = torch.tensor([[0.0, 1, 0], [1, 0, 1], [0, 1, 0]])
    torch.testing.assert_close(bond_length_error(prediction, target, bonds), torch.tensor(0.25))  # (.5 + 0 + .25) / 3
    assert bond_length_error(prediction, target, 0 * bonds).isnan()


def test_bad_input_is_refused():
    prediction, target = trajectories(2, 3)
    scored, molecule = torch.ones(2, 3, dtype=torch.bool), torch.tensor([0, 1])
    with pytest.raises(ValueError, match=r"must both be \(B, P, N, 3\), got \(2, 3, 3, 3\) and \(2, 3, 2, 3\)"):
        masked_mse(prediction, target[:, :, :2], scored)
    with pytest.raises(ValueError, match=r"scored must be bool of shape \(2, 3\), got torch.float32"):
        squared_errors(prediction, target, scored.float())
    metric = TrajectoryErrors(2, P)
    with pytest.raises(ValueError, match=r"molecule must be 2 indices in \[0, 2\), got \[0, 2\]"):
        metric.update(prediction, target, scored, torch.tensor([0, 2]))
    with pytest.raises(ValueError, match="prediction must have 3 lags, got 2"):
        metric.update(prediction[:, :2], target[:, :2], scored, molecule)
    with pytest.raises(ValueError, match="scored must mark an atom of each sample, got none in 2 of them"):
        metric.update(prediction, target, ~scored, molecule)
    with pytest.raises(ValueError, match="molecules must be a bool mask of 2 entries"):
        metric.of(torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="molecules and lags must be at least 1, got 0 and 3"):
        TrajectoryErrors(0, P)
    with pytest.raises(ValueError, match=r"a and b must both end in \(N, 3\), got \(2, 3\) and \(3, 3\)"):
        kabsch_rmsd(torch.zeros(2, 3), torch.zeros(3, 3))
    with pytest.raises(ValueError, match=r"bonds must be \(2, 3, 3\), got \(2, 2, 2\)"):
        bond_length_error(prediction, target, torch.zeros(2, 2, 2))
