"""Estimated occupancies: unbiased, of known variance, and within their bounds as often as promised."""

import math

import numpy as np
import pytest
from robrel.estimation import empirical_occupancies, estimate_transitions, estimated_mdp, hoeffding, slack
from robrel.mdp import MDP, occupancies, random_policies, returns, rollouts

S, A, H = 4, 2, 3


def random_mdp(seed, staged=False):
    rng = np.random.default_rng(seed)
    shape = (H, S, A) if staged else (S, A)
    return MDP(rng.dirichlet(np.ones(S), size=shape), rng.dirichlet(np.ones(S)), H)


MODEL = random_mdp(0)
POLICIES = random_policies(2, S, A, 1.0, np.random.default_rng(1))
TRUE = occupancies(MODEL, POLICIES)


def estimates(repetitions, episodes, seed):
    """d̂ of both policies from independent sets of episodes, (2, repetitions, H, S, A)."""
    states, actions = rollouts(MODEL, POLICIES, repetitions * episodes, np.random.default_rng(seed))
    shape = (2, repetitions, episodes, H)
    return empirical_occupancies(states.reshape(shape), actions.reshape(shape), S, A)


def test_frequencies_count_states_and_actions_by_stage():
    d = empirical_occupancies([[0, 1, 3], [0, 2, 3], [1, 1, 3], [0, 1, 3]], [[1, 0, 0]] * 3 + [[0, 0, 0]], S, A)
    expected = np.zeros((H, S, A))
    expected[0, 0], expected[0, 1, 1] = [0.25, 0.5], 0.25
    expected[1, 1, 0], expected[1, 2, 0] = 0.75, 0.25
    expected[2, 3, 0] = 1
    assert (d == expected).all()


def test_batches_of_episodes_equal_loops():
    states, actions = rollouts(MODEL, POLICIES, 10, np.random.default_rng(2))
    together = empirical_occupancies(states, actions, S, A)
    for i in range(2):
        assert (together[i] == empirical_occupancies(states[i], actions[i], S, A)).all()


def test_estimates_are_unbiased_with_the_binomial_variance():
    repetitions, n = 4000, 10
    d = estimates(repetitions, n, 3)
    variance = TRUE * (1 - TRUE) / n
    assert (np.abs(d.mean(1) - TRUE) <= 4.5 * np.sqrt(variance / repetitions)).all()
    np.testing.assert_allclose(d.var(1).sum((1, 2, 3)), variance.sum((1, 2, 3)), rtol=0.05)


def test_the_error_falls_as_one_over_the_root_of_the_number_of_episodes():
    errors = [np.abs(estimates(300, n, n) - TRUE[:, None]).sum((-1, -2)).mean() for n in (20, 80, 320)]
    ratios = np.array(errors[:-1]) / errors[1:]
    np.testing.assert_allclose(ratios, 2, rtol=0.08)
    # Its mean per stage is at most the root of S A / N.
    assert errors[0] <= math.sqrt(S * A / 20)


def test_transitions_are_shares_of_counts_and_uniform_where_nothing_was_seen():
    states, actions = np.array([[0, 1, 0], [0, 2, 0], [0, 1, 1]]), np.array([[1, 0, 0], [1, 0, 0], [1, 0, 1]])
    p = estimate_transitions(states, actions, S, A)
    np.testing.assert_allclose(p[0, 1], [0, 2 / 3, 1 / 3, 0])
    np.testing.assert_allclose(p[1, 0], [0.5, 0.5, 0, 0])
    np.testing.assert_allclose(p[2, 0], [1, 0, 0, 0])
    unseen = [(0, 0), (1, 1), (2, 1), (3, 0), (3, 1)]
    assert all((p[pair] == 0.25).all() for pair in unseen)
    staged = estimate_transitions(states, actions, S, A, stationary=False)
    np.testing.assert_allclose(staged[0, 0, 1], p[0, 1])
    np.testing.assert_allclose(staged[1, 1, 0], p[1, 0])
    assert (staged[0, 1, 0] == 0.25).all()
    assert (staged[2] == 0.25).all()


@pytest.mark.parametrize("staged", [False, True])
def test_the_estimated_mdp_gives_occupancies_that_converge_to_the_truth(staged):
    mdp = random_mdp(4, staged)
    explore = np.full((S, A), 1 / A)
    truth = occupancies(mdp, POLICIES)
    errors = []
    for n in (500, 8000):
        found = []
        for seed in range(12):
            model = estimated_mdp(*rollouts(mdp, explore, n, np.random.default_rng(seed)), S, A, not staged)
            assert model.stationary is not staged
            found.append(np.abs(occupancies(model, POLICIES) - truth).sum((-1, -2)).mean())
        errors.append(np.mean(found))
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.25)  # √16


def test_slack_has_the_value_of_hand_calculation():
    # S A = 8, N = 100, n_c = 3, δ = 0.1: 3 (0.4 + √(2 log 300 / 100)).
    assert slack(4, 2, 3, 100, 3, 0.1) == pytest.approx(3 * (0.4 + math.sqrt(0.02 * math.log(300))), abs=1e-14)
    assert slack(4, 2, 3, 400, 3, 0.1, bound=2) == pytest.approx(slack(4, 2, 3, 100, 3, 0.1), abs=1e-14)
    assert slack(4, 2, 3, math.inf, 3, 0.1) == 0
    assert hoeffding(3, 200, 2 / math.e**4) == pytest.approx(3 * 0.2, abs=1e-14)


def test_slack_covers_the_worst_reward_for_single_policies_and_for_differences():
    n, delta = 25, 0.1
    d = estimates(2000, n, 5)
    beta = slack(S, A, H, n, 0, delta)
    # The largest error of a return over all rewards with |r| <= 1 is the l1 distance.
    single = np.abs(d - TRUE[:, None]).sum((-1, -2, -3)).max(0)
    difference = np.abs((d[0] - d[1]) - (TRUE[0] - TRUE[1])).sum((-1, -2, -3))
    assert (single > beta).mean() <= delta
    assert (difference > beta).mean() <= delta
    # Not vacuous: 0.4 of it would not do.
    assert (difference > 0.4 * beta).mean() > delta


def test_hoeffding_covers_one_reward_and_is_met_by_a_fair_coin():
    # The return is H or -H with equal probability, the widest distribution on [-H, H].
    n, delta, horizon = 50, 0.1, 4
    coin = MDP(np.tile(np.eye(2)[:, None], (1, 1, 1)), [0.5, 0.5], horizon)
    policy, reward = np.ones((2, 1)), np.array([[1.0], [-1.0]])
    states, actions = rollouts(coin, policy, 4000 * n, np.random.default_rng(6))
    shape = 4000, n, horizon
    d = empirical_occupancies(states.reshape(shape), actions.reshape(shape), 2, 1)
    error = np.abs(returns(d, reward) - returns(occupancies(coin, policy), reward))
    assert (error > hoeffding(horizon, n, delta)).mean() <= delta
    assert (error > 0.6 * hoeffding(horizon, n, delta)).mean() > delta


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: slack(4, 2, 3, 0, 1, 0.1), "episodes must be at least 1, got 0"),
        (lambda: slack(4, 2, 3, 10, 1, 1.0), r"delta must lie in \(0, 1\), got 1.0"),
        (lambda: slack(4, 2, 3, 10, -1, 0.1), "comparisons of at least 0, got 4, 2, 3 and -1"),
        (lambda: slack(4, 2, 3, 10, 1, 0.1, math.inf), "bound must be a number of at least 0, got inf"),
        (lambda: hoeffding(0, 10, 0.1), "horizon must be at least 1, got 0"),
        (lambda: empirical_occupancies([[0, 1]], [[0]], S, A), r"got \(1, 2\), \(1, 1\)"),
        (
            lambda: empirical_occupancies([[0, 4]], [[0, 0]], S, A),
            "states must be whole numbers from 0 to 3, got 0",
        ),
        (lambda: empirical_occupancies([[0, 1]], [[0.5, 0]], S, A), "actions must be whole numbers from 0 to 1"),
        (lambda: estimate_transitions([[[0, 1]]], [[[0, 0]]], S, A), r"shape \(N, H\), got \(1, 1, 2\)"),
    ],
)
def test_arguments_out_of_range_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
