"""The grid world by hand, and Gymnasium's tables against known facts of the games."""

import numpy as np
import pytest
from robrel.environments import from_gym, gridworld, random_features
from robrel.mdp import occupancies, plan

RIGHT, LEFT, UP, DOWN, STAY = range(5)


def test_moves_lead_to_the_neighbouring_cell_and_walls_block():
    p = gridworld(size=3, slip=0).mdp.transitions
    assert p[4].argmax(1).tolist() == [5, 3, 1, 7, 4]  # the middle: right, left, up, down, stay
    assert p[0].argmax(1).tolist() == [1, 0, 0, 3, 0]  # top left
    assert p[8].argmax(1).tolist() == [8, 7, 5, 8, 8]  # bottom right
    assert (p.max(-1) == 1).all()


def test_slipping_spreads_its_probability_evenly_over_all_five_moves():
    env = gridworld(size=5, slip=0.1, horizon=7)
    row = env.mdp.transitions[12, RIGHT]
    np.testing.assert_allclose(row[[13, 11, 7, 17, 12]], [0.92, 0.02, 0.02, 0.02, 0.02], atol=1e-15)
    # In the corner, up and left and stay all end where they began.
    corner = env.mdp.transitions[0, DOWN]
    np.testing.assert_allclose(corner[[5, 1, 0]], [0.92, 0.02, 0.06], atol=1e-15)
    assert (env.mdp.states, env.mdp.actions, env.mdp.horizon) == (25, 5, 7)
    assert (env.action_names[RIGHT], env.action_names[UP], env.state_names[7]) == ("right", "up", "(1, 2)")
    assert env.reward is None
    sure = gridworld(slip=1).mdp.transitions
    assert (sure == sure[:, :1]).all()  # with slip 1 the action makes no difference


def test_the_uniform_start_stays_uniform_under_staying_without_slip():
    mdp = gridworld(size=2, slip=0).mdp
    d = occupancies(mdp, np.tile(np.eye(5)[STAY], (4, 1)))
    assert (d[..., STAY] == 0.25).all()


@pytest.mark.parametrize(
    ("options", "message"), [({"size": 0}, "size must be at least 1"), ({"slip": 1.1}, r"slip must lie in \[0, 1\]")]
)
def test_a_faulty_grid_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        gridworld(**options)


def test_features_are_uniform_and_the_same_for_every_action():
    phi = random_features(500, 4, 6, np.random.default_rng(0)).reshape(500, 4, 6)
    assert (phi == phi[:, :1]).all()
    assert phi.min() >= 0
    assert phi.max() <= 1
    assert abs(phi[:, 0].mean() - 0.5) < 5 / np.sqrt(12 * 3000)
    assert abs(phi[:, 0].var() - 1 / 12) < 0.005


def test_frozen_lake_slips_in_thirds_and_pays_one_at_the_goal_once():
    env = from_gym("FrozenLake-v1", 100)
    p = env.mdp.transitions
    assert p.shape == (17, 4, 17)
    assert (env.name, env.scale, env.state_names[16]) == ("FrozenLake-v1", 1.0, "end")
    # From 6, down (1) slips to left or right: 5 is a hole, 7 too, 10 is ice.
    np.testing.assert_allclose(p[6, 1, [5, 10, 7, 16]], [0, 1 / 3, 0, 2 / 3], atol=1e-15)
    # In the corner, left and up both stay: two listings of one next state, summed.
    np.testing.assert_allclose(p[0, 0, [0, 4]], [2 / 3, 1 / 3], atol=1e-15)
    # 14 lies left of the goal: right, and slipping off up or down, reach it once in three.
    np.testing.assert_allclose(env.reward[14], [0, 1 / 3, 1 / 3, 1 / 3], atol=1e-15)
    assert np.count_nonzero(env.reward) == 3
    assert (p[16, :, 16] == 1).all()
    assert (env.reward[16] == 0).all()
    assert env.mdp.initial.tolist() == [1.0] + [0.0] * 16
    # Holes and the goal are never entered: one is at the end instead.
    d = occupancies(env.mdp, np.full((17, 4), 0.25))
    assert d[:, [5, 7, 11, 12, 15]].sum() == 0


def test_frozen_lake_without_slip_is_solved_in_exactly_six_steps():
    for horizon, value in ((5, 0), (6, 1), (50, 1)):
        env = from_gym("FrozenLake", horizon, is_slippery=False)
        assert float(plan(env.mdp, env.reward).value) == value
    assert from_gym("FrozenLake", 5, map_name="8x8").mdp.states == 65
    # Rewards that fit into [-1, 1] keep their units.
    small = from_gym("FrozenLake", 6, is_slippery=False, reward_schedule=(0.5, 0, 0))
    assert (small.scale, float(plan(small.mdp, small.reward).value)) == (1.0, 0.5)


def test_cliff_walking_charges_a_hundred_at_the_cliff_and_thirteen_for_the_best_way():
    env = from_gym("CliffWalking-v1", 20)
    p, reward = env.mdp.transitions, env.reward * env.scale
    assert (env.mdp.states, env.scale) == (49, 100.0)
    assert reward.min() == -100
    assert env.reward.min() == -1
    # From the start, 36, right (1) falls off the cliff and begins again.
    assert (reward[36, 1], p[36, 1, 36]) == (-100, 1)
    # From 35, down (2) reaches the goal and ends the game.
    assert (reward[35, 2], p[35, 2, 48]) == (-1, 1)
    assert float(plan(env.mdp, env.reward).value) * env.scale == pytest.approx(-13, abs=1e-12)
    # Eleven steps do not reach the goal; waiting costs one each.
    short = from_gym("CliffWalking", 11)
    assert float(plan(short.mdp, short.reward).value) * short.scale == pytest.approx(-11, abs=1e-12)


def test_taxi_under_whatever_version_is_installed_has_its_rewards_and_starts():
    env = from_gym("Taxi", 30)
    assert env.name.startswith("Taxi-v")
    assert (env.mdp.states, env.mdp.actions, env.scale) == (501, 6, 20.0)
    reward = env.reward * env.scale
    # A passenger in the taxi may be put down at the destination only: the 4 destinations, and nothing else, end a game.
    np.testing.assert_allclose(np.unique(np.round(reward, 12)), [-10, -1, 0, 20])
    assert np.count_nonzero(np.isclose(reward, 20)) == 4
    # 25 cells, 4 places to wait, 3 destinations elsewhere.
    np.testing.assert_allclose(env.mdp.initial[env.mdp.initial > 0], np.full(300, 1 / 300))
    # The well-known average of the best play over all starts.
    assert float(plan(env.mdp, env.reward).value) * env.scale == pytest.approx(7.93, abs=1e-9)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("Frozen", {}, "no environment Frozen in gymnasium .* toy-text ones are .*FrozenLake-v1"),
        ("FrozenLake-v99", {}, "no environment FrozenLake-v99"),
        ("FrozenLake-v1", {"ice": 1}, r"FrozenLake-v1 could not be made with options \{'ice': 1\}"),
        ("CartPole-v0", {}, "CartPole-v0 has no table of transitions"),
        ("CartPole", {}, "CartPole-v1 has no table of transitions"),  # the newest of two
    ],
)
def test_an_environment_that_cannot_be_read_is_refused(name, options, message):
    with pytest.raises(ValueError, match=message):
        from_gym(name, 10, **options)
