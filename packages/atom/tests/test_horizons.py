"""Lags of a horizon, and the distribution of random horizons."""

import math

import pytest
import torch
from atom.horizons import lags_of, random_horizons
from scipy.stats import chisquare


def draws(seed):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(
    ("horizon", "lags"),
    [
        (3000, [375, 750, 1125, 1500, 1875, 2250, 2625, 3000]),
        (10, [1, 2, 3, 5, 6, 7, 8, 10]),
        (8, [1, 2, 3, 4, 5, 6, 7, 8]),
    ],
)
def test_lags_are_the_floors_of_equal_parts_of_the_horizon(horizon, lags):
    assert lags_of(horizon, 8).tolist() == lags


def test_lags_of_many_horizons_are_those_of_each():
    together = lags_of(torch.tensor([[10, 24], [9, 3000]]), 8)
    assert torch.equal(together[0, 0], lags_of(10, 8))
    assert torch.equal(together[1, 1], lags_of(3000, 8))
    assert (together.shape, together.dtype) == ((2, 2, 8), torch.int64)


def test_a_single_lag_is_the_horizon():
    assert lags_of(torch.tensor([1, 17]), 1).tolist() == [[1], [17]]


@pytest.mark.parametrize("horizon", [7, torch.tensor([3000, 7])])
def test_a_horizon_with_a_lag_of_zero_frames_is_refused(horizon):
    with pytest.raises(ValueError, match="the horizon must be at least 8 frames, one for each lag, got 7"):
        lags_of(horizon, 8)


def test_no_lag_is_refused():
    with pytest.raises(ValueError, match="the number of lags must be at least 1, got 0"):
        lags_of(8, 0)


def test_random_horizons_have_the_probabilities_of_a_floored_log_uniform_variable():
    low, high, count = 3, 9, 20_000
    drawn = random_horizons(count, low, high, draws(0))
    observed = torch.bincount(drawn, minlength=high + 1)[low:]
    expected = [count * math.log((n + 1) / n) / math.log((high + 1) / low) for n in range(low, high + 1)]
    assert int(observed.sum()) == count  # none outside of the range
    assert chisquare(observed.numpy(), expected).pvalue > 1e-3


def test_random_horizons_of_the_paper_fall_into_each_octave_alike():
    drawn = random_horizons(20_000, 8, 24_000, draws(1)).double()
    shares = torch.histogram(drawn.log2(), bins=11, range=(3.0, 14.0)).hist / 20_000
    expected = math.log(2) / math.log(24_001 / 8)
    assert (shares - expected).abs().max() < 4 * math.sqrt(expected / 20_000)  # four standard deviations


def test_a_range_of_one_horizon_gives_it():
    assert random_horizons(5, 12, 12, draws(0)).tolist() == [12] * 5


def test_random_horizons_depend_on_their_generator_only():
    torch.manual_seed(0)
    first = random_horizons(50, 8, 24_000, draws(3))
    torch.manual_seed(1)
    assert torch.equal(first, random_horizons(50, 8, 24_000, draws(3)))
    assert not torch.equal(first, random_horizons(50, 8, 24_000, draws(4)))


@pytest.mark.parametrize(("low", "high"), [(0, 5), (6, 5)])
def test_a_range_that_is_none_is_refused(low, high):
    with pytest.raises(ValueError, match=f"must satisfy 1 <= low <= high, got {low} and {high}"):
        random_horizons(1, low, high, draws(0))
