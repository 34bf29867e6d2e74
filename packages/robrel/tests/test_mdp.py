"""Occupancies, planning and rollouts against hand calculation and enumeration of all trajectories and policies."""

import itertools
import time

import numpy as np
import pytest
from robrel.mdp import (
    MDP,
    check_policy,
    check_reward,
    occupancies,
    optimal_occupancy,
    plan,
    policy_of,
    random_policies,
    random_policy,
    returns,
    rollouts,
)
from scipy import sparse

STAY, GO = np.array([[1.0, 0], [1, 0]]), np.array([[0.0, 1], [1, 0]])


def chain(horizon=5):
    """Action 0 stays in state 0, action 1 moves to state 1, which is absorbing."""
    return MDP(np.array([[[1.0, 0], [0, 1]], [[0, 1], [0, 1]]]), np.array([1.0, 0]), horizon)


def random_mdp(seed, states, actions, horizon, staged=False):
    rng = np.random.default_rng(seed)
    shape = (horizon, states, actions) if staged else (states, actions)
    return MDP(rng.dirichlet(np.ones(states), size=shape), rng.dirichlet(np.ones(states)), horizon)


def random_staged(mdp, rng, *batch):
    return rng.dirichlet(np.ones(mdp.actions), size=(*batch, mdp.horizon, mdp.states))


def enumerated(mdp, policy):
    """The occupancy of (H, S, A) as a sum over all trajectories."""
    d = np.zeros((mdp.horizon, mdp.states, mdp.actions))
    pairs = list(itertools.product(range(mdp.states), range(mdp.actions)))
    for trajectory in itertools.product(pairs, repeat=mdp.horizon):
        p = mdp.initial[trajectory[0][0]]
        for h, (s, a) in enumerate(trajectory):
            p *= policy[h, s, a]
            if h + 1 < mdp.horizon:
                table = mdp.transitions if mdp.stationary else mdp.transitions[h]
                p *= table[s, a, trajectory[h + 1][0]]
        for h, (s, a) in enumerate(trajectory):
            d[h, s, a] += p
    return d


def test_two_state_chain_has_the_occupancies_of_hand_calculation():
    stay, go, half = occupancies(chain(), np.stack([STAY, GO, (STAY + GO) / 2])[:, None]).sum(1)
    assert stay[0, 0] == 5
    assert go[0, 1] == 1
    assert go[1, 0] == 4
    # The half-half mixture is in state 0 at stage h with probability 2^-h: (1 + ... + 1/16) / 2 = 0.96875 each.
    assert half[0].tolist() == [0.96875, 0.96875]
    assert occupancies(chain(), [[0.5, 0.5], [1, 0]]).sum(0)[1, 0] == 3.0625


@pytest.mark.parametrize("staged", [False, True])
def test_occupancies_are_the_sum_over_all_trajectories(staged):
    mdp = random_mdp(0, 2, 3, 3, staged)
    policy = random_staged(mdp, np.random.default_rng(1))
    np.testing.assert_allclose(occupancies(mdp, policy), enumerated(mdp, policy), atol=1e-14)


@pytest.mark.parametrize("staged", [False, True])
def test_occupancies_sum_to_one_at_each_stage_and_obey_the_flow(staged):
    mdp = random_mdp(2, 5, 3, 6, staged)
    d = occupancies(mdp, random_staged(mdp, np.random.default_rng(3), 4))
    np.testing.assert_allclose(d.sum((-1, -2)), 1, atol=1e-13)
    np.testing.assert_allclose(d[:, 0].sum(-1), np.broadcast_to(mdp.initial, (4, 5)), atol=1e-13)
    p = mdp.transitions if staged else np.broadcast_to(mdp.transitions, (6, 5, 3, 5))
    inflow = np.einsum("nhsa,hsat->nht", d[:, :-1], p[:-1])
    np.testing.assert_allclose(d[:, 1:].sum(-1), inflow, atol=1e-13)


def test_batches_equal_loops_and_dense_sparse_and_repeated_transitions_agree():
    mdp = random_mdp(4, 4, 2, 3)
    rng = np.random.default_rng(5)
    policies = random_staged(mdp, rng, 2, 3)
    rewards = rng.normal(size=(2, 3, 3, 4, 2))
    d, best = occupancies(mdp, policies), plan(mdp, rewards)
    for i, j in itertools.product(range(2), range(3)):
        np.testing.assert_allclose(occupancies(mdp, policies[i, j]), d[i, j], atol=1e-15)
        alone = plan(mdp, rewards[i, j])
        np.testing.assert_allclose(alone.value, best.value[i, j], atol=1e-14)
        assert (alone.policy == best.policy[i, j]).all()
    repeated = MDP(np.broadcast_to(mdp.transitions, (3, 4, 2, 4)), mdp.initial, 3)
    thin = MDP(sparse.csr_array(mdp.transitions.reshape(8, 4)), mdp.initial, 3)
    assert (thin.states, thin.actions, thin.stationary, repeated.stationary) == (4, 2, True, False)
    for other in (repeated, thin):
        np.testing.assert_allclose(occupancies(other, policies), d, atol=1e-15)
        np.testing.assert_allclose(plan(other, rewards).value, best.value, atol=1e-14)
        for ours, theirs in zip(
            rollouts(mdp, policies, 7, np.random.default_rng(6)),
            rollouts(other, policies, 7, np.random.default_rng(6)),
            strict=True,
        ):
            assert (ours == theirs).all()


def test_a_stationary_policy_is_the_same_table_at_every_stage():
    mdp = random_mdp(7, 3, 2, 4)
    pi = random_policy(3, 2, 1.0, np.random.default_rng(8))
    d = occupancies(mdp, pi)
    assert (d == occupancies(mdp, pi[None])).all()
    assert (d == occupancies(mdp, np.broadcast_to(pi, (4, 3, 2)))).all()


@pytest.mark.parametrize("staged", [False, True])
def test_plan_attains_the_best_return_of_all_deterministic_policies(staged):
    mdp = random_mdp(9, 2, 2, 3, staged)
    reward = np.random.default_rng(10).normal(size=(3, 2, 2))
    everything = np.array([np.eye(2)[list(choice)] for choice in itertools.product(range(2), repeat=6)])
    values = returns(occupancies(mdp, everything.reshape(-1, 3, 2, 2)), reward)
    value, policy = plan(mdp, reward)
    assert float(value) == pytest.approx(values.max(), abs=1e-13)
    assert returns(occupancies(mdp, policy), reward) == pytest.approx(values.max(), abs=1e-13)
    assert optimal_occupancy(mdp, reward)[0] == value
    np.testing.assert_array_equal(optimal_occupancy(mdp, reward)[1], occupancies(mdp, policy))


def test_ties_go_to_the_first_action():
    assert plan(chain(), np.zeros((2, 2))).policy.argmax(-1).tolist() == [[0, 0]] * 5
    # Only the last stage tells the actions apart in state 0: before it, waiting and going earn the same.
    reward = np.zeros((5, 2, 2))
    reward[4, 0] = [0, 1]
    reward[4, 1] = 1
    assert plan(chain(), reward).policy[:, 0].argmax(-1).tolist() == [0, 0, 0, 0, 1]


def test_potential_shaping_shifts_the_return_of_every_policy_by_the_same_constant():
    mdp = random_mdp(11, 4, 3, 5, staged=True)
    rng = np.random.default_rng(12)
    reward, potential = rng.normal(size=(5, 4, 3)), np.concatenate([rng.normal(size=(5, 4)), np.zeros((1, 4))])
    shaped = reward + np.einsum("hsat,ht->hsa", mdp.transitions, potential[1:]) - potential[:-1, :, None]
    d = occupancies(mdp, random_staged(mdp, rng, 20))
    np.testing.assert_allclose(returns(d, shaped) - returns(d, reward), -potential[0] @ mdp.initial, atol=1e-13)
    assert (plan(mdp, shaped).policy == plan(mdp, reward).policy).all()


@pytest.mark.parametrize("staged", [False, True])
def test_rollouts_visit_as_often_as_the_occupancy_says(staged):
    mdp = random_mdp(13, 3, 2, 4, staged)
    policies = random_staged(mdp, np.random.default_rng(14), 2)
    n = 20000
    states, actions = rollouts(mdp, policies, n, np.random.default_rng(15))
    assert states.shape == actions.shape == (2, n, 4)
    d = occupancies(mdp, policies)
    for i, h, s, a in np.ndindex(d.shape):
        share = ((states[i, :, h] == s) & (actions[i, :, h] == a)).mean()
        assert abs(share - d[i, h, s, a]) < 4.5 * np.sqrt(d[i, h, s, a] * (1 - d[i, h, s, a]) / n)
    # Successive states, which the occupancy does not show.
    p = mdp.transitions[1] if staged else mdp.transitions
    from_first = (states[0, :, 1] == 0) & (actions[0, :, 1] == 1)
    share = (states[0, from_first, 2] == 2).mean()
    assert abs(share - p[0, 1, 2]) < 4.5 * np.sqrt(p[0, 1, 2] * (1 - p[0, 1, 2]) / from_first.sum())


class Extreme:
    """A generator that only returns the ends of [0, 1)."""

    def __init__(self, value):
        self.value = value

    def random(self, size):
        return np.full(size, self.value)


@pytest.mark.parametrize(("value", "column"), [(0.0, 1), (np.nextafter(1.0, 0), 3)])
def test_rollouts_never_take_what_has_probability_zero(value, column):
    states, actions = 400, 5  # rounding grows with the number of rows
    p = np.zeros((states, actions, states))
    p[:, :, 1:4] = [0.1, 0.2, 0.7]
    initial = np.eye(states)[column]
    policy = np.tile([0, 0.3, 0.3, 0.4, 0], (states, 1))
    visited, taken = rollouts(MDP(p, initial, 3), policy, 2, Extreme(value))
    assert (visited == column).all()
    assert (taken == column).all()


def test_deterministic_chain_rolls_out_one_trajectory():
    states, actions = rollouts(chain(), GO, 3, np.random.default_rng(0))
    assert states.tolist() == [[0, 1, 1, 1, 1]] * 3
    assert actions.tolist() == [[1, 0, 0, 0, 0]] * 3


def test_random_policies_have_the_mean_and_variance_of_the_dirichlet_distribution():
    pi = random_policies(4000, 5, 4, 0.2, np.random.default_rng(16))
    assert pi.shape == (4000, 1, 5, 4)
    np.testing.assert_allclose(pi.sum(-1), 1, atol=1e-12)
    np.testing.assert_allclose(pi.mean((0, 1, 2)), 0.25, atol=0.01)
    np.testing.assert_allclose(pi.var((0, 1, 2)), 0.25 * 0.75 / (4 * 0.2 + 1), rtol=0.03)
    with pytest.raises(ValueError, match="concentration must be positive, got 0"):
        random_policy(2, 2, 0, np.random.default_rng(0))


def test_the_policy_of_an_occupancy_has_that_occupancy():
    mdp = random_mdp(17, 4, 3, 5)
    policy = random_staged(mdp, np.random.default_rng(18), 2)
    np.testing.assert_allclose(policy_of(occupancies(mdp, policy)), policy, atol=1e-12)
    # State 1 of the chain is not visited by staying: uniform there.
    assert policy_of(occupancies(chain(), STAY))[2].tolist() == [[1, 0], [0.5, 0.5]]


def broken(change):
    p = np.array([[[1.0, 0], [0, 1]], [[0, 1], [0, 1]]])
    change(p)
    return p


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"transitions": broken(lambda p: p.__setitem__((1, 0, 1), 0.9))},
            r"transitions\[1, 0\] must sum to 1 .* 0.9$",
        ),
        (
            {"transitions": broken(lambda p: p.__setitem__((0, 1), [-0.5, 1.5]))},
            r"transitions\[0, 1\] holds a negative",
        ),
        ({"transitions": broken(lambda p: p.__setitem__((0, 0, 0), np.nan))}, r"transitions\[0, 0\] .* not finite"),
        ({"transitions": np.full((2, 2, 3), 1 / 3)}, r"transitions must have shape .* S = 2 .*got \(2, 2, 3\)"),
        ({"transitions": np.full((4, 2, 2, 2), 0.5)}, r"H = 5, got \(4, 2, 2, 2\)"),
        ({"transitions": np.array("p")}, "transitions must be an array of real numbers"),
        ({"initial": [0.5, 0.4]}, r"initial must sum to 1 within 1e-06, got a row that sums to 0.9"),
        ({"initial": [np.inf, -np.inf]}, "initial holds a number that is not finite"),
        ({"initial": [[1, 0]]}, r"initial must have shape \(S,\)"),
        ({"horizon": 0}, "horizon must be a whole number of at least 1, got 0"),
        ({"horizon": 2.5}, "horizon must be a whole number of at least 1, got 2.5"),
        ({"transitions": sparse.csr_array([[1.0, 0], [0, 1], [0, 1], [0, 0.9]])}, r"transitions\[1, 1\] must sum to 1"),
        (
            {"transitions": sparse.csr_array([[1.0, 0], [-1, 2], [0, 1], [0, 1]])},
            r"transitions\[0, 1\] holds a negative",
        ),
        ({"transitions": sparse.csr_array([[1.0, 0], [0, 1], [0, 1]])}, r"sparse transitions must have shape"),
    ],
)
def test_a_faulty_mdp_is_refused_with_the_row_named(arguments, message):
    good = {"transitions": chain().transitions, "initial": [1, 0], "horizon": 5}
    with pytest.raises(ValueError, match=message):
        MDP(**{**good, **arguments})


def test_sums_within_the_tolerance_are_accepted_and_others_are_not():
    p = chain().transitions
    assert MDP(p * (1 + 9e-7), [1, 0], 5).states == 2
    with pytest.raises(ValueError, match=r"transitions\[0, 0\]"):
        MDP(p * (1 + 2e-6), [1, 0], 5)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (np.full((3, 2, 2), 0.5), r"mine must have shape \(2, 2\), \(..., 5, 2, 2\) or .*got \(3, 2, 2\)"),
        (np.full((2, 3), 1 / 3), r"got \(1, 2, 3\)"),
        ([[0.5, 0.5], [0.5, 0.4]], r"mine\[1\] must sum to 1"),
        ([[0.5, 0.5], [0.5]], "mine must be an array of numbers, got rows of different lengths"),
    ],
)
def test_a_policy_that_does_not_fit_is_refused(policy, message):
    with pytest.raises(ValueError, match=message):
        check_policy(chain(), policy, "mine")


def test_a_reward_that_is_not_finite_is_refused():
    with pytest.raises(ValueError, match="reward must be finite, got -inf"):
        check_reward(chain(), [[0, -np.inf], [0, 0]])


def test_nothing_that_was_given_is_changed():
    p, initial, policy = chain().transitions.copy(), np.array([1.0, 0]), STAY.copy()
    for array in (p, initial, policy):
        array.setflags(write=False)
    mdp = MDP(p, initial, 5)
    plan(mdp, policy), occupancies(mdp, policy), rollouts(mdp, policy, 2, np.random.default_rng(0))


def test_two_hundred_policies_on_25_states_take_less_than_50_ms():
    mdp = random_mdp(19, 25, 5, 10)
    policies = random_policies(200, 25, 5, 0.2, np.random.default_rng(20))
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        occupancies(mdp, policies)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.05
