"""The baselines: what each keeps, with which weights, and which settings are refused."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from orderdp.baselines import UCB, EpsGreedy, InfoBatch, Pruning, Static, build_policy
from orderdp.selection import OrderDP, Scores
from scipy.stats import chisquare


def scored(*values, visits=None):
    """Scores with these values, each visited once unless told otherwise."""
    scores = Scores(len(values))
    scores.update(np.arange(len(values)), values)
    if visits is not None:
        scores.visits = np.array(visits, dtype=np.int64)
    return scores


def kept(policy, scores, t, seed=0):
    return set(policy.select(scores, t, np.random.default_rng(seed)).indices.tolist())


@pytest.mark.parametrize(
    ("policy", "s", "q"), [("orderdp", 50, 30), ("full", 100, 100), ("random", 30, 30), ("topq", 100, 30)]
)
def test_three_baselines_are_orderdp_of_other_sizes(policy, s, q):
    assert build_policy(Pruning(policy, keep=0.3, explore=0.5), 100) == OrderDP(100, s, q)


def test_full_is_a_permutation_in_random_order():
    policy = build_policy(Pruning("full"), 20)
    first, second = (policy.select(Scores(20), t, np.random.default_rng(t)).indices.tolist() for t in (0, 1))
    assert sorted(first) == sorted(second) == list(range(20))
    assert first != second


def test_random_chooses_every_set_equally_often_whatever_the_scores():
    policy, scores, rng = build_policy(Pruning("random", keep=0.4), 5), scored(9, 0, 5, 1, 3), np.random.default_rng(0)
    counts = Counter(frozenset(policy.select(scores, t, rng).indices.tolist()) for t in range(5000))
    pairs = [frozenset(pair) for pair in itertools.combinations(range(5), 2)]
    assert set(counts) == set(pairs)
    assert chisquare([counts[pair] for pair in pairs]).pvalue > 1e-3


def test_infobatch_is_unbiased_for_the_full_mean():
    n, draws, r = 40, 4000, 0.7
    losses = np.random.default_rng(1).exponential(size=n)
    scores, policy, rng = scored(*losses), InfoBatch(r, rounds=10, delta=0.9), np.random.default_rng(2)
    means = np.empty(draws)
    for draw in range(draws):
        chosen = policy.select(scores, 1, rng)
        means[draw] = chosen.weights @ losses[chosen.indices] / n
    error = means.std(ddof=1) / math.sqrt(draws)
    assert error < 0.004  # against a bias of 0.1 without the weights
    assert means.mean() == pytest.approx(losses.mean(), abs=4 * error)


def test_infobatch_drops_a_share_r_of_those_below_the_mean_and_weights_the_rest():
    n, r = 20_000, 0.3
    losses = np.arange(n, dtype=np.float32)  # the mean is n/2 - 1/2
    chosen = InfoBatch(r, rounds=10, delta=1.0).select(scored(*losses), 1, np.random.default_rng(3))
    assert len(set(chosen.indices.tolist())) == len(chosen.indices)
    above = chosen.indices >= n // 2
    assert above.sum() == n // 2
    assert (chosen.weights[above] == 1).all()
    np.testing.assert_allclose(chosen.weights[~above], 1 / 0.7, rtol=1e-6)
    deviation = math.sqrt(n / 2 * r * (1 - r))
    assert (~above).sum() == pytest.approx(0.7 * n / 2, abs=4 * deviation)
    assert (np.diff(chosen.indices[:100]) < 0).any()  # in random order


def test_infobatch_keeps_a_score_equal_to_the_mean():
    # 0.1 is no float32: a mean in single precision could fall above it.
    chosen = InfoBatch(0.9, rounds=10, delta=1.0).select(scored(*[0.1] * 1000), 1, np.random.default_rng(0))
    assert sorted(chosen.indices.tolist()) == list(range(1000))
    assert (chosen.weights == 1).all()


def test_infobatch_keeps_all_without_weights_at_first_and_in_the_last_rounds():
    policy = InfoBatch(0.5, rounds=8, delta=0.75)
    scores = scored(*range(100))
    for known, t in ((Scores(100), 0), (scores, 6), (scores, 7)):
        chosen = policy.select(known, t, np.random.default_rng(t))
        assert sorted(chosen.indices.tolist()) == list(range(100))
        assert chosen.weights is None
    assert len(policy.select(scores, 5, np.random.default_rng(0)).indices) < 90


def test_infobatch_keeps_what_it_never_saw_and_takes_the_mean_of_the_others():
    scores = Scores(30)
    scores.update(np.arange(20), np.repeat([1.0, 3.0], 10))
    chosen = InfoBatch(0.99, rounds=10, delta=1.0).select(scores, 1, np.random.default_rng(0))
    assert set(range(10, 30)) <= set(chosen.indices.tolist())
    assert len(chosen.indices) < 25
    assert (chosen.weights[chosen.indices >= 10] == 1).all()


def test_ucb_ranks_by_the_sum_worked_out_by_hand():
    # Round 7 is t = 8 from one: sqrt(ln 8 / visits) is 0.72, 1.44 and 0.48, so the sums are 1.72, 2.04, 1.68.
    scores = scored(1.0, 0.6, 5.0, 1.2, visits=[4, 1, 0, 9])
    assert kept(UCB(1, 1.0), scores, 7) == {2}  # never visited
    assert kept(UCB(2, 1.0), scores, 7) == {2, 1}
    assert kept(UCB(3, 1.0), scores, 7) == {2, 1, 0}
    assert kept(UCB(3, 0.0), scores, 7) == {2, 3, 0}
    assert kept(UCB(3, 1.0), scores, 0) == {2, 3, 0}  # ln 1 = 0


def test_ucb_stores_the_moving_average_of_the_loss_and_the_others_the_newest():
    for policy, expected in (("ucb", 0.8 * 1 + 0.2 * 2), ("orderdp", 2.0)):
        scores = Pruning(policy).new_scores(1)
        scores.update([0], [1.0])
        scores.update([0], [2.0])
        assert scores.values[0] == pytest.approx(expected, rel=1e-6)


def test_scores_take_the_settings_over():
    scores = Pruning(initial_score=3.0, non_finite="skip").new_scores(2)
    scores.update([0], [math.nan])
    assert scores.values.tolist() == [3.0, 3.0]
    assert scores.skipped == 1


@pytest.mark.parametrize(("epsilon", "greedy"), [(0.0, 10), (0.3, 7), (0.25, 8), (1.0, 0)])
def test_eps_greedy_keeps_the_exact_number_and_its_greedy_part_is_the_top(epsilon, greedy):
    scores = scored(*np.random.default_rng(0).permutation(20))
    order = np.argsort(-scores.values)
    for seed in range(30):
        chosen = EpsGreedy(10, epsilon).select(scores, 1, np.random.default_rng(seed)).indices.tolist()
        assert len(chosen) == len(set(chosen)) == 10
        assert set(order[:greedy].tolist()) <= set(chosen)
    assert kept(EpsGreedy(20, epsilon), scores, 1) == set(range(20))


def test_eps_greedy_draws_its_other_part_uniformly():
    scores, rng, policy = scored(*range(9)), np.random.default_rng(4), EpsGreedy(4, 0.25)
    extra = Counter()
    for _ in range(3000):
        extra.update(set(policy.select(scores, 1, rng).indices.tolist()) - {6, 7, 8})
    assert sorted(extra) == list(range(6))
    assert chisquare(list(extra.values())).pvalue > 1e-3


def test_static_trains_on_all_once_and_then_on_one_set():
    policy, scores = Static(3), scored(1, 5, 2, 2, 2, 2, 7, 2)
    assert kept(policy, scores, 0) == set(range(8))
    sets = {frozenset(kept(policy, scores, t, seed=t)) for t in range(1, 20)}
    assert len(sets) == 1
    assert {1, 6} < sets.pop()
    orders = {tuple(policy.select(scores, t, np.random.default_rng(t)).indices) for t in range(1, 20)}
    assert len(orders) > 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"policy": "best"}, "policy must be one of orderdp, full, .*, static, got 'best'"),
        ({"round": "batch"}, "round must be epoch or step, got 'batch'"),
        ({"round": "step", "policy": "ucb"}, "round must be epoch for the policy ucb, got step"),
        ({"round": "step", "policy": "infobatch"}, "round must be epoch for the policy infobatch, got step"),
        ({"keep": 0.0}, r"keep must lie in \(0, 1\], got 0.0"),
        ({"keep": 1.5}, r"keep must lie in \(0, 1\], got 1.5"),
        ({"keep": math.nan}, r"keep must lie in \(0, 1\], got nan"),
        ({"keep": 0.5, "explore": 0.4}, r"explore must lie in \[keep, 1\] = \[0.5, 1\], got 0.4"),
        ({"explore": 1.1}, r"explore must lie in \[keep, 1\] = \[0.3, 1\], got 1.1"),
        ({"prune": 1.0}, r"prune must lie in \[0, 1\), got 1.0"),
        ({"prune": -0.1}, r"prune must lie in \[0, 1\), got -0.1"),
        ({"delta": 1.1}, r"delta must lie in \[0, 1\], got 1.1"),
        ({"epsilon": -0.1}, r"epsilon must lie in \[0, 1\], got -0.1"),
        ({"ucb_c": -1.0}, "ucb_c must be a finite number >= 0, got -1.0"),
        ({"ucb_c": math.inf}, "ucb_c must be a finite number >= 0, got inf"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(settings, message):
    with pytest.raises(ValueError, match=message):
        Pruning(**settings)


def test_explore_matters_to_orderdp_only():
    assert build_policy(Pruning("topq", keep=0.6, explore=0.5), 10) == OrderDP(10, 10, 6)


@pytest.mark.parametrize(
    ("policy", "n", "rounds", "message"),
    [
        ("orderdp", 0, None, "the dataset is empty"),
        ("orderdp", 1, None, "keep 0.3 of 1 samples rounds to none"),
        ("infobatch", 10, None, "infobatch needs the number of rounds of the whole training, got None"),
        ("infobatch", 10, -1, "infobatch needs the number of rounds of the whole training, got -1"),
    ],
)
def test_a_policy_that_cannot_be_made_says_why(policy, n, rounds, message):
    with pytest.raises(ValueError, match=message):
        build_policy(Pruning(policy), n, rounds)
