"""A return is linear in the parameters: <d, r> = coefficients(d) @ x, in each of the three spaces."""

import numpy as np
import pytest
from robrel.mdp import returns
from robrel.space import RewardSpace

S, A, H, K = 3, 2, 4, 5
PHI = np.random.default_rng(0).normal(size=(S * A, K))
SPACES = {
    "stage": RewardSpace("stage", S, A, H),
    "stationary": RewardSpace("stationary", S, A, H),
    "linear": RewardSpace("linear", S, A, H, PHI),
}


@pytest.mark.parametrize(("kind", "dim"), [("stage", H * S * A), ("stationary", S * A), ("linear", K)])
def test_coefficients_times_parameters_are_the_return(kind, dim):
    space = SPACES[kind]
    rng = np.random.default_rng(1)
    d, x = rng.normal(size=(2, 3, H, S, A)), rng.normal(size=(2, 3, dim))
    assert space.dim == dim
    by_parameters = (space.coefficients(d) * x).sum(-1)
    np.testing.assert_allclose(by_parameters, returns(d, space.reward(x)), atol=1e-12)
    np.testing.assert_allclose(space.coefficients(d[1, 2]), space.coefficients(d)[1, 2], atol=1e-14)
    np.testing.assert_allclose(space.reward(x[1, 2]), space.reward(x)[1, 2], atol=1e-14)


def test_rewards_are_laid_out_by_stage_then_state_then_action():
    x = np.arange(H * S * A, dtype=float)
    assert SPACES["stage"].reward(x)[2, 1, 1] == 2 * S * A + 1 * A + 1
    reward = SPACES["stationary"].reward(x[: S * A])
    assert (reward == np.arange(S * A).reshape(S, A)).all()
    np.testing.assert_allclose(SPACES["linear"].reward(np.eye(K)[3])[1], PHI[:, 3].reshape(S, A))


def test_visits_at_different_stages_count_alike_only_if_the_reward_is_stationary():
    d = np.zeros((H, S, A))
    d[0, 1, 0], d[3, 1, 0] = 1.0, -1.0  # in state 1 early against late
    assert not SPACES["stationary"].coefficients(d).any()
    assert not SPACES["linear"].coefficients(d).any()
    assert SPACES["stage"].coefficients(d)[[0 * S * A + 2, 3 * S * A + 2]].tolist() == [1, -1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("staged", S, A, H), 'kind must be "stage", "stationary" or "linear", got \'staged\''),
        (("linear", S, A, H), 'features belong to kind "linear"'),
        (("stage", S, A, H, PHI), "features belong to kind \"linear\" and to no other, got kind 'stage'"),
        (("linear", S, A, H, PHI[:5]), r"features must have shape \(S \* A, k\) = \(6, k\), got \(5, 5\)"),
        (("linear", S, A, H, np.where(PHI[4, 1] == PHI, np.nan, PHI)), r"features\[4\] holds a number that is not"),
        (("stage", S, 0, H), "at least 1, got 3, 0 and 4"),
    ],
)
def test_a_faulty_space_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        RewardSpace(*arguments)


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"shape \(..., 4, 3, 2\), got \(3, 2\)"):
        SPACES["stage"].coefficients(np.zeros((S, A)))
    with pytest.raises(ValueError, match=r"shape \(..., 6\), got \(5,\)"):
        SPACES["stationary"].reward(np.zeros(5))
