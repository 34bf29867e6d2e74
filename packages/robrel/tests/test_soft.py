"""Maximum-entropy control against all trajectories of a small MDP written out, and in its limits."""

import itertools

import numpy as np
import pytest
from robrel.environments import gridworld
from robrel.mdp import MDP, occupancies, plan
from robrel.soft import soft_policy

S, A, H = 3, 2, 4


def deterministic(seed):
    """An MDP whose actions lead where they lead for sure, and a random reward (H, S, A)."""
    rng = np.random.default_rng(seed)
    to = rng.integers(S, size=(S, A))
    return MDP(np.eye(S)[to], np.eye(S)[0], H), to, rng.standard_normal((H, S, A))


def random_mdp(seed):
    rng = np.random.default_rng(seed)
    mdp = MDP(rng.dirichlet(np.ones(S), size=(S, A)), rng.dirichlet(np.ones(S)), H)
    return mdp, rng.standard_normal((H, S, A))


def soft_value(mdp, rewards):
    """The largest return plus entropy, from the policy that attains it."""
    policy = soft_policy(mdp, rewards)
    return float((occupancies(mdp, policy) * (rewards - np.log(policy))).sum())


def paths(to, rewards):
    """Every sequence of actions from state 0: its states, its actions and its return."""
    for actions in itertools.product(range(A), repeat=H):
        states = [0]
        for a in actions[:-1]:
            states.append(int(to[states[-1], a]))
        yield states, actions, rewards[np.arange(H), states, actions].sum()


@pytest.mark.parametrize("seed", range(3))
def test_trajectories_are_taken_in_proportion_to_the_exponential_of_their_return(seed):
    mdp, to, rewards = deterministic(seed)
    d = np.zeros((H, S, A))
    total = sum(np.exp(gain) for *_, gain in paths(to, rewards))
    for states, actions, gain in paths(to, rewards):
        d[np.arange(H), states, actions] += np.exp(gain) / total
    np.testing.assert_allclose(occupancies(mdp, soft_policy(mdp, rewards)), d, rtol=0, atol=1e-12)
    assert soft_value(mdp, rewards) == pytest.approx(np.log(total), rel=1e-12)


def test_no_other_policy_has_a_larger_return_plus_entropy():
    mdp, rewards = random_mdp(0)
    best, rng = soft_value(mdp, rewards), np.random.default_rng(1)
    for scale in (1e-3, 1e-1, 1.0):
        policy = soft_policy(mdp, rewards) * np.exp(scale * rng.standard_normal((50, H, S, A)))
        policy /= policy.sum(-1, keepdims=True)
        values = (occupancies(mdp, policy) * (rewards - np.log(policy))).sum((1, 2, 3))
        assert (values < best).all()


def test_the_limit_of_large_rewards_is_the_optimal_policy_and_that_of_small_ones_is_chance():
    mdp, rewards = random_mdp(2)
    np.testing.assert_allclose(soft_policy(mdp, 1e5 * rewards), plan(mdp, rewards).policy, atol=1e-9)
    # The entropy to come is the same from every state.
    np.testing.assert_allclose(soft_policy(mdp, 1e-9 * rewards), 1 / A, atol=1e-8)


def test_rewards_of_any_size_stay_finite():
    mdp, rewards = random_mdp(3)
    policy = soft_policy(mdp, 1e300 * rewards)
    np.testing.assert_allclose(policy.sum(-1), 1)
    np.testing.assert_array_equal(policy.max(-1), 1)


def test_the_gradient_of_the_soft_value_is_the_occupancy_of_its_policy():
    mdp, rewards = random_mdp(4)
    d, step = occupancies(mdp, soft_policy(mdp, rewards)), 1e-5
    gradient = np.empty_like(d)
    for index in np.ndindex(d.shape):
        e = np.zeros_like(d)
        e[index] = step
        gradient[index] = (soft_value(mdp, rewards + e) - soft_value(mdp, rewards - e)) / (2 * step)
    np.testing.assert_allclose(gradient, d, rtol=0, atol=1e-8)


def test_a_reward_without_stages_and_sparse_transitions_mean_the_same():
    from scipy.sparse import csr_array

    mdp = gridworld(3, 0.2, 5).mdp
    reward = np.random.default_rng(5).standard_normal((9, 5))
    expected = soft_policy(mdp, np.broadcast_to(reward, (5, 9, 5)))
    np.testing.assert_array_equal(soft_policy(mdp, reward), expected)
    thin = MDP(csr_array(mdp.transitions.reshape(45, 9)), mdp.initial, 5)
    np.testing.assert_allclose(soft_policy(thin, reward), expected, atol=1e-12)


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        (np.zeros((S, A + 1)), r"reward must have shape \(3, 2\)"),
        (np.full((S, A), np.nan), "reward must be finite, got nan"),
    ],
)
def test_a_reward_that_does_not_fit_is_refused(reward, message):
    with pytest.raises(ValueError, match=message):
        soft_policy(random_mdp(0)[0], reward)
