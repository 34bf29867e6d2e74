"""The trivial baselines on a datamodule against direct computation, and the rotation test."""

from pathlib import Path

import numpy as np
import pytest
import torch
from atom import EGNO, SolutionOperator
from atom.baselines import TRIVIAL
from atom.data import MoleculeData
from atom.evaluate import ROTATED_WINDOWS, batches, rotation_test, trivial_scores
from atom.trajectories import read_trajectory
from sklearn.neighbors import NearestNeighbors
from torch import nn

DATA = Path(__file__).parent / "data"
HORIZON = 16
STEPS = np.arange(2, HORIZON + 1, 2)


@pytest.fixture(scope="module")
def data():
    found = MoleculeData(
        ["CH3CH2OH", "CH3CHO"], test=["C5H5N"], root=DATA, horizon=HORIZON, horizon_range=(8, 20), train_samples=60,
        test_samples=40,
    )  # fmt: skip
    found.setup()
    return found


@pytest.fixture(scope="module")
def scores(data):
    return trivial_scores(data)


def windows(data, part, m):
    """States and futures of a molecule's windows, read from its file: x, v (n, N, 3) and y (n, P, N, 3)."""
    found = data.parts[part]
    t = read_trajectory(DATA / f"md_{data.names[m]}.npz").heavy().positions
    starts = found.starts[found.molecule == m].numpy()
    return t[starts], t[starts + 1] - t[starts], t[starts[:, None] + STEPS]


def hundredths(squares):
    return 100 * float(np.square(squares.astype(np.float64)).mean())


def test_every_baseline_scores_what_it_can(data, scores):
    assert tuple(scores) == TRIVIAL
    for name in ("identity", "constant_velocity"):
        assert scores[name]["n"] == 3 * 40
        assert {"s2t", "s2s", "seen_s2t", "s2t/C5H5N"} <= scores[name].keys()
    for name in ("train_mean", "ridge", "nearest"):
        assert scores[name]["n"] == 2 * 40
        assert "s2t" not in scores[name]


@pytest.mark.parametrize("name", ["identity", "constant_velocity"])
def test_what_needs_no_training_is_the_formula_on_the_files_frames(data, scores, name):
    each = []
    for m, molecule in enumerate(data.names):
        x, v, y = windows(data, "test", m)
        guess = x[:, None] + (STEPS[:, None, None] * v[:, None] if name == "constant_velocity" else 0)
        assert scores[name][f"s2t/{molecule}"] == pytest.approx(hundredths(guess - y), rel=1e-4)
        each.append((hundredths(guess - y), hundredths((guess - y)[:, -1])))
    assert scores[name]["s2t"] == pytest.approx(each[2][0], rel=1e-4)
    assert scores[name]["s2s"] == pytest.approx(each[2][1], rel=1e-4)
    # Samples count alike, whatever the size of their molecule, and both have forty.
    assert scores[name]["seen_s2t"] == pytest.approx((each[0][0] + each[1][0]) / 2, rel=1e-4)


def test_the_train_mean_is_that_of_the_windows_trained_on_at_the_horizon_of_the_test(data, scores):
    for m in (0, 1):
        _, _, known = windows(data, "train", m)
        _, _, y = windows(data, "test", m)
        expected = hundredths(known.astype(np.float64).mean(0) - y)
        assert scores["train_mean"][f"s2t/{data.names[m]}"] == pytest.approx(expected, rel=1e-4)


def test_the_nearest_neighbour_is_sklearns(data, scores):
    for m in (0, 1):
        (x, v, y), (test_x, test_v, test_y) = (windows(data, part, m) for part in ("train", "test"))
        scale = [float(np.sqrt(np.square(part - part.mean(0)).mean())) for part in (x, v)]

        def features(x, v, scale=scale):
            return np.concatenate([part.reshape(len(part), -1) / s for part, s in zip((x, v), scale, strict=True)], 1)

        finder = NearestNeighbors(n_neighbors=1).fit(features(x, v))
        nearest = finder.kneighbors(features(test_x, test_v), return_distance=False)[:, 0]
        expected = hundredths(y[nearest] - test_y)
        assert scores["nearest"][f"s2t/{data.names[m]}"] == pytest.approx(expected, rel=1e-3)


def test_ridge_beats_the_identity_on_molecules_it_was_fitted_to(scores):
    assert scores["ridge"]["seen_s2t"] < 0.5 * scores["identity"]["seen_s2t"]


def test_chosen_baselines_are_scored_alone(data, scores):
    assert trivial_scores(data, ["identity"]) == {"identity": scores["identity"]}


def test_batches_cover_the_windows_asked_for_once_and_in_order(data):
    scored = data.scored
    sizes = [len(batch.x) for batch in batches(scored, size=50)]
    assert sizes == [50, 50, 20]
    chosen = torch.tensor([5, 3, 80])
    (batch,) = batches(scored, chosen)
    assert torch.equal(batch.molecule, scored.molecule[chosen])


class Still(SolutionOperator):
    """The identity, times an optional fixed matrix."""

    def __init__(self, matrix=None):
        super().__init__()
        self.matrix = nn.Parameter(torch.eye(3) if matrix is None else matrix)
        self.seen = []

    def forward(self, x, v, z, lags, bonds, mask):
        self.seen.append(len(x))
        return (x @ self.matrix)[:, None].expand(-1, lags.shape[1], -1, -1)


def test_an_equivariant_operator_has_ratio_one_and_no_error_of_rotation(data, scores):
    found = rotation_test(Still(), data)
    assert found.ratio == pytest.approx(1, abs=1e-5)
    assert found.e_q < 1e-9
    assert found.plain == pytest.approx(scores["identity"]["s2t"], rel=1e-5)  # of the unseen molecule, all 40 windows
    egno = EGNO(depth=2, width=8)
    for parameter in egno.parameters():
        nn.init.normal_(parameter, std=0.1, generator=torch.Generator().manual_seed(parameter.numel()))
    found = rotation_test(egno, data)
    assert found.plain > 1.1 * scores["identity"]["s2t"]  # it does something
    assert found.ratio == pytest.approx(1, abs=1e-4)


def test_e_q_of_a_projection_is_its_mean_over_all_rotations(data):
    """F drops the coordinate along z: g F(x) - F(g x) = z (z·gx) - gz (z·x), of squared norm, averaged over Haar's g,

    (z·x)² + ‖x‖²/3 - 2 (z·x)²/3.
    """
    found = rotation_test(Still(torch.diag(torch.tensor([1.0, 1.0, 0.0]))), data, rotations=400)
    batch = next(batches(data.scored, (data.scored.molecule == 2).nonzero().flatten()))
    x = batch.x.double()
    z2, r2 = float(x[..., 2].square().mean()), float(x.square().sum(-1).mean())
    expected = 100 * (z2 + r2 / 3 - 2 * z2 / 3) / 3
    assert found.e_q == pytest.approx(expected, rel=0.05)


def test_the_rotations_depend_on_their_seed_and_the_operator_is_left_in_evaluation_mode(data):
    operator = Still(torch.diag(torch.tensor([1.0, 1.0, 0.9]))).train()
    first = rotation_test(operator, data, rotations=2)
    assert not operator.training
    assert rotation_test(operator, data, rotations=2) == first
    assert rotation_test(operator, data, rotations=2, seed=1).e_q != first.e_q


def test_at_most_512_windows_are_rotated():
    data = MoleculeData(["CH3CH2OH"], test=["C5H5N", "CH3CHO"], root=DATA, horizon=HORIZON, test_samples=1000)
    data.setup()
    assert (data.unseen[data.scored.molecule]).sum() == 2 * (400 - HORIZON)
    operator = Still()
    rotation_test(operator, data, rotations=1)
    assert sum(operator.seen) == 2 * ROTATED_WINDOWS  # as it is, and rotated


def test_molecules_trained_on_are_rotated_where_there_are_no_others():
    data = MoleculeData(["CH3CH2OH"], root=DATA, horizon=HORIZON, test_samples=30)
    data.setup()
    assert rotation_test(Still(), data).plain == pytest.approx(trivial_scores(data)["identity"]["s2t"], rel=1e-5)
