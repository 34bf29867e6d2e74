"""One round of OrderDP and its scores: exact counts, exact probabilities, and what is refused."""

import itertools
import math
import shutil
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from orderdp import selection
from orderdp.selection import OrderDP, Scores, as_indices, as_losses, draw_pool, select, sizes, top
from orderdp.surrogate import order_weights
from scipy.stats import chisquare

INF = math.inf
score_lists = st.lists(st.one_of(st.integers(0, 3).map(float), st.just(INF)), min_size=1, max_size=12)


def array(*values):
    return np.array(values, dtype=np.float32)


def fits(counts, probabilities, rounds):
    """Whether observed counts of disjoint events agree with their probabilities (chi-square, p > 1e-3)."""
    assert sum(counts.values()) == rounds
    assert set(counts) <= {event for event, p in probabilities.items() if p > 0}
    events = [event for event, p in probabilities.items() if p > 0]
    if len(events) == 1:
        return True
    expected = [rounds * probabilities[event] for event in events]
    return chisquare([counts[event] for event in events], expected).pvalue > 1e-3


@given(score_lists, st.integers(0, 2**32), st.data())
@settings(max_examples=200, deadline=None)
def test_a_round_keeps_q_different_samples_of_the_pool_and_none_left_behind_is_larger(values, seed, data):
    scores = array(*values)
    s = data.draw(st.integers(1, len(values)))
    q = data.draw(st.integers(1, s))
    kept = select(scores, s, q, np.random.default_rng(seed))
    pool = np.flatnonzero(draw_pool(len(values), s, np.random.default_rng(seed)))  # the first draw of a round
    left = np.setdiff1d(pool, kept)
    assert len(kept) == len(set(kept.tolist())) == q
    assert len(pool) == s
    assert set(kept.tolist()) <= set(pool.tolist())
    assert scores[kept].min() >= scores[left].max(initial=-INF)


@given(score_lists, st.data())
@settings(max_examples=200, deadline=None)
def test_top_marks_exactly_k_of_the_largest(values, data):
    k = data.draw(st.integers(1, len(values)))
    marked = top(array(*values), k, np.random.default_rng(0))
    assert sorted(array(*values)[marked], reverse=True) == sorted(values, reverse=True)[:k]


@pytest.mark.parametrize(("n", "s", "q"), [(6, 4, 2), (7, 5, 1), (6, 6, 3), (5, 2, 2)])
def test_sets_and_samples_are_chosen_as_often_as_the_theory_says(n, s, q):
    rng = np.random.default_rng(11)
    ranking = rng.permutation(n)  # ranking[j] has rank j + 1
    scores = np.empty(n, dtype=np.float32)
    scores[ranking] = np.arange(n, 0, -1)
    exact = Counter()
    for pool in itertools.combinations(range(n), s):
        exact[frozenset(ranking[list(pool[:q])].tolist())] += 1 / math.comb(n, s)

    rounds = [select(scores, s, q, rng).tolist() for _ in range(20_000)]
    assert fits(Counter(frozenset(kept) for kept in rounds), exact, 20_000)
    gamma = dict(zip(ranking.tolist(), order_weights(n, s, q) / q, strict=True))
    assert fits(Counter(kept[0] for kept in rounds), gamma, 20_000)  # the order is random: a draw from γ/q


@pytest.mark.parametrize("value", [2.5, INF])
def test_equal_scores_are_chosen_equally_often(value):
    rng = np.random.default_rng(1)
    pairs = {frozenset(pair): 1 / 10 for pair in itertools.combinations(range(5), 2)}
    counts = Counter(frozenset(select(np.full(5, value, np.float32), 4, 2, rng).tolist()) for _ in range(5000))
    assert fits(counts, pairs, 5000)


def test_ties_at_the_threshold_are_drawn_uniformly_and_the_larger_always_stay():
    rng = np.random.default_rng(2)
    scores = array(1, 3, 1, 0, 1, 1)
    sets = {frozenset({1, *pair}): 1 / 6 for pair in itertools.combinations([0, 2, 4, 5], 2)}
    counts = Counter(frozenset(select(scores, 6, 3, rng).tolist()) for _ in range(5000))
    assert fits(counts, sets, 5000)


def test_pools_are_uniform_without_replacement():
    rng = np.random.default_rng(3)
    pools = dict.fromkeys(itertools.combinations(range(6), 3), 1 / 20)
    counts = Counter(tuple(np.flatnonzero(draw_pool(6, 3, rng)).tolist()) for _ in range(5000))
    assert fits(counts, pools, 5000)
    assert draw_pool(4, 4, rng).tolist() == [True] * 4


def test_the_order_of_training_is_uniform():
    rng = np.random.default_rng(4)
    orders = dict.fromkeys(itertools.permutations([1, 3, 4]), 1 / 6)
    counts = Counter(tuple(select(array(0, 5, 1, 7, 6), 5, 3, rng).tolist()) for _ in range(5000))
    assert fits(counts, orders, 5000)


def test_one_seed_repeats_bit_for_bit_and_another_differs():
    scores = np.random.default_rng(0).random(1000, dtype=np.float32)
    first, second, other = (select(scores, 500, 300, np.random.default_rng(seed)) for seed in (5, 5, 6))
    assert first.tolist() == second.tolist()
    assert set(first.tolist()) != set(other.tolist())


def test_permuting_the_dataset_permutes_the_selection():
    rng = np.random.default_rng(7)
    scores = rng.permutation(50).astype(np.float32)
    permutation = rng.permutation(50)
    kept = select(scores, 50, 20, rng)
    moved = select(scores[permutation], 50, 20, rng)
    assert set(permutation[moved].tolist()) == set(kept.tolist()) == set(np.argsort(-scores)[:20].tolist())


def test_full_sizes_give_a_permutation_of_everything():
    chosen = OrderDP(9, 9, 9).select(Scores(9), 0, np.random.default_rng(0))
    assert sorted(chosen.indices.tolist()) == list(range(9))
    assert chosen.weights is None


def test_selection_leaves_the_scores_as_they_are():
    scores = array(3, INF, 1, 2)
    select(scores, 3, 2, np.random.default_rng(0))
    assert scores.tolist() == [3, INF, 1, 2]


@pytest.mark.parametrize("bad", [math.nan, -INF])
def test_a_score_that_cannot_be_ordered_is_refused(bad):
    with pytest.raises(ValueError, match="scores must be neither NaN nor -inf"):
        select(array(1, bad, 2), 3, 1, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("n", "s", "q", "message"),
    [
        (5, 3, 0, r"q, the number kept, must lie in \[1, s\] = \[1, 3\], got 0"),
        (5, 3, 4, r"q, the number kept, must lie in \[1, s\] = \[1, 3\], got 4"),
        (5, 6, 4, r"s, the size of the pool, must lie in \[1, 5\], got 6"),
        (5, 0, 0, r"s, the size of the pool, must lie in \[1, 5\], got 0"),
        (0, 1, 1, "the dataset is empty"),
    ],
)
def test_sizes_out_of_range_are_refused_by_name(n, s, q, message):
    with pytest.raises(ValueError, match=message):
        select(np.zeros(n, np.float32), s, q, np.random.default_rng(0))
    with pytest.raises(ValueError, match=message):
        OrderDP(n, s, q)


def test_ratios_become_counts_by_rounding():
    assert sizes(100, 0.29, 0.57) == (57, 29)  # cut off they would be 56 and 28
    assert sizes(50_000, 0.3, 0.5) == (25_000, 15_000)
    assert sizes(7, 1.0, 1.0) == (7, 7)
    assert sizes(10, 0.3, 0.3) == (3, 3)
    assert all(sizes(1000, k / 1000, 1.0) == (1000, k) for k in range(1, 1001))


@pytest.mark.parametrize(
    ("n", "keep", "explore", "message"),
    [
        (10, 0.0, 0.5, r"keep must lie in \(0, 1\], got 0.0"),
        (10, 1.1, 1.0, r"keep must lie in \(0, 1\], got 1.1"),
        (10, math.nan, 1.0, r"keep must lie in \(0, 1\], got nan"),
        (10, 0.5, 0.4, r"explore must lie in \[keep, 1\] = \[0.5, 1\]: .* got 0.4"),
        (10, 0.5, 1.2, r"explore must lie in \[keep, 1\] = \[0.5, 1\]: .* got 1.2"),
        (10, 0.04, 0.5, "keep 0.04 of 10 samples rounds to none"),
        (0, 0.5, 0.5, "the dataset is empty"),
    ],
)
def test_ratios_out_of_range_are_refused_by_name(n, keep, explore, message):
    with pytest.raises(ValueError, match=message):
        sizes(n, keep, explore)


def test_an_update_changes_the_given_samples_only():
    scores = Scores(6, initial=3.0)
    scores.update([4, 1], [0.5, 2.0])
    scores.update(np.array([4]), np.array([0.25]))
    assert scores.values.tolist() == [3, 2, 3, 3, 0.25, 3]
    assert scores.visits.tolist() == [0, 1, 0, 0, 2, 0]
    scores.visit([0, 4])
    assert scores.values.tolist() == [3, 2, 3, 3, 0.25, 3]
    assert scores.visits.tolist() == [1, 1, 0, 0, 3, 0]


def test_a_decay_averages_from_the_first_loss_on():
    scores = Scores(2, decay=0.8)
    scores.update([1], [1.0])  # the initial inf is no loss and does not enter
    scores.update([1], [2.0])
    scores.update([1], [4.0])
    assert scores.values[0] == INF
    assert scores.values[1] == pytest.approx(0.8 * (0.8 * 1 + 0.2 * 2) + 0.2 * 4, rel=1e-6)


def test_losses_that_are_no_numbers_are_skipped_and_counted_if_asked_for():
    scores = Scores(4, initial=1.0, non_finite="skip")
    scores.update([0, 1, 2, 3], [math.nan, 5.0, INF, -INF])
    assert scores.values.tolist() == [1, 5, 1, 1]
    assert scores.visits.tolist() == [0, 1, 0, 0]
    assert scores.skipped == 3


@pytest.mark.parametrize(
    ("indices", "losses", "message"),
    [
        ([0, 2], [9.0, math.nan], "the loss of sample 2 is nan, expected a number"),
        ([0, 2], [9.0, INF], "the loss of sample 2 is inf, expected a number"),
        ([0, 1, 2], [9.0, 9.0], "got 3 indices and 2 losses, expected one loss per index"),
        ([0, 5], [9.0, 9.0], r"indices must lie in \[0, 5\), got 0 to 5"),
        ([0, -1], [9.0, 9.0], r"indices must lie in \[0, 5\), got -1 to 0"),
        ([0.0, 1.0], [9.0, 9.0], "indices must be integers, got float64"),
        ([True, False], [9.0, 9.0], "indices must be integers, got bool"),
        (torch.tensor([0.0, 1.0]), [9.0, 9.0], "indices must be integers, got float32"),
        ([0, 1], torch.tensor(9.0), 'shape .B,., got shape .*: compute the loss with reduction="none"'),
        ([0, 1], torch.ones(2, 1), 'got shape .2, 1.: compute the loss with reduction="none"'),
    ],
)
def test_a_refused_update_says_why_and_stores_nothing(indices, losses, message):
    scores = Scores(5, initial=3.0)
    with pytest.raises(ValueError, match=message):
        scores.update(indices, losses)
    assert scores.values.tolist() == [3.0] * 5
    assert scores.visits.tolist() == [0] * 5
    assert scores.skipped == 0


def test_losses_of_half_precision_and_with_gradient_are_taken():
    scores = Scores(3)
    losses = torch.tensor([1.5, 0.25], dtype=torch.bfloat16, requires_grad=True)
    scores.update(torch.tensor([2, 0], dtype=torch.int32), losses)
    assert scores.values.tolist() == [0.25, INF, 1.5]
    assert as_losses(torch.tensor([2.0], dtype=torch.float64)).dtype == np.float32
    scores.update([], [])  # a process that had nothing to do
    assert scores.visits.tolist() == [1, 0, 1]


def test_an_index_above_2_to_24_stays_exact():
    index = 2**24 + 1  # float32 would make it 2**24
    for given_ in ([index], torch.tensor([index]), np.array([index], dtype=np.uint32)):
        assert as_indices(given_).tolist() == [index]
        assert as_indices(given_).dtype == np.int64


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 0}, "the dataset is empty"),
        ({"n": 2, "initial": math.nan}, "the initial score must be a number or inf, got nan"),
        ({"n": 2, "initial": -INF}, "the initial score must be a number or inf, got -inf"),
        ({"n": 2, "decay": 1.0}, r"decay must lie in \[0, 1\), got 1.0"),
        ({"n": 2, "decay": -0.1}, r"decay must lie in \[0, 1\), got -0.1"),
        ({"n": 2, "non_finite": "ignore"}, 'non_finite must be "raise" or "skip", got \'ignore\''),
    ],
)
def test_bad_options_of_the_scores_are_refused_by_name(options, message):
    with pytest.raises(ValueError, match=message):
        Scores(**options)


def test_the_file_works_alone_with_numpy_only(tmp_path):
    shutil.copy(selection.__file__, tmp_path / "borrowed.py")
    code = """
import sys, numpy, borrowed
scores = numpy.arange(20, dtype=numpy.float32)
print(borrowed.select(scores, 10, 5, numpy.random.default_rng(0)).tolist())
print(sorted({"torch", "scipy", "lightning", "orderdp"} & set(sys.modules)))
"""
    out = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    expected = select(np.arange(20, dtype=np.float32), 10, 5, np.random.default_rng(0)).tolist()
    assert out.splitlines() == [str(expected), "[]"]
