"""Decisions of 0 or 1 with straight-through gradients: values, gradients, frequencies."""

import pytest
import torch
from difflift.selection import coin, include, one_hot_choice, sharpened, straight_through

NONE = torch.zeros(0, dtype=torch.long)


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def labels(p):
    return torch.arange(len(p))


def test_straight_through_has_the_value_of_the_one_and_the_gradient_of_the_other():
    soft = torch.rand(10_000, generator=rng()).requires_grad_()
    hard = (torch.rand(10_000, generator=rng(1)) < 0.5).float().requires_grad_()
    s = straight_through(hard, soft)
    assert torch.equal(s, hard)  # exactly, whatever was added and taken away
    weight = torch.randn(10_000, generator=rng(2))
    (s * weight).sum().backward()
    assert torch.equal(soft.grad, weight)
    assert hard.grad is None


@pytest.mark.parametrize("selection", ["sample", "threshold"])
@pytest.mark.parametrize("training", [True, False])
def test_inclusion_is_0_or_1_with_a_derivative_of_1(selection, training):
    p = torch.rand(1000, generator=rng()).requires_grad_()
    s = include(p, selection, training, labels(p), rng(1))
    assert set(s.tolist()) == {0.0, 1.0}
    s.sum().backward()
    assert p.grad.tolist() == [1.0] * 1000


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_mean_of_many_draws_is_the_probability(p):
    s = include(torch.full((10_000,), p), "sample", True, NONE, rng())
    assert s.mean().item() == pytest.approx(p, abs=0.015)  # three standard errors at p = 1/2


def test_draws_are_never_against_certainty():
    p = torch.tensor([0.0, 1.0]).repeat(10_000)
    assert torch.equal(include(p, "sample", True, NONE, rng()), p)


@pytest.mark.parametrize(("selection", "training"), [("threshold", True), ("threshold", False), ("sample", False)])
def test_threshold_is_a_probability_above_one_half(selection, training):
    p = torch.tensor([0.0, 0.49, 0.5, 0.51, 1.0])
    assert include(p, selection, training, labels(p)).tolist() == [0, 0, 0, 1, 1]


@pytest.mark.parametrize("training", [True, False])
def test_all_none_and_soft(training):
    p = torch.rand(100, generator=rng()).requires_grad_()
    assert include(p, "all", training, labels(p)).tolist() == [1.0] * 100
    assert include(p, "none", training, labels(p)).tolist() == [0.0] * 100
    assert include(p, "soft", training, labels(p)) is p


def test_draws_are_a_function_of_the_generator_or_of_the_global_seed():
    p = torch.full((100,), 0.5)
    for selection in ("sample", "random"):
        first, again, other = (include(p, selection, True, labels(p), rng(seed)) for seed in (0, 0, 1))
        assert torch.equal(first, again)
        assert not torch.equal(first, other)
        torch.manual_seed(0)
        assert torch.equal(include(p, selection, True, labels(p)), first)


def test_random_selection_does_not_look_at_the_probability():
    for training in (True, False):
        low, high = (include(torch.full((100,), p), "random", training, torch.arange(100), rng()) for p in (0.1, 0.9))
        assert torch.equal(low, high)


def test_random_selection_tosses_a_fair_coin_while_training():
    s = include(torch.full((10_000,), 0.1), "random", True, torch.arange(10_000), rng())
    assert set(s.tolist()) == {0.0, 1.0}
    assert s.mean().item() == pytest.approx(0.5, abs=0.015)


def test_random_selection_is_fixed_by_the_label_otherwise():
    p, label = torch.full((500,), 0.9), torch.randint(1000, (500,), generator=rng())
    s = include(p, "random", False, label)
    order = torch.randperm(500, generator=rng(1))
    assert torch.equal(include(p, "random", False, label[order]), s[order])
    assert torch.equal(include(p[:1], "random", False, label[:1]), s[:1])


@pytest.mark.parametrize("labels", [torch.arange(10_000), torch.arange(10_000) ** 2, 7 * torch.arange(10_000)])
def test_coins_of_different_labels_look_fair_and_independent(labels):
    bits = coin(labels).float()
    assert bits.mean().item() == pytest.approx(0.5, abs=0.02)
    for lag in (1, 2, 3):
        assert (bits[lag:] == bits[:-lag]).float().mean().item() == pytest.approx(0.5, abs=0.02)


def test_sharpened_probability_is_the_logistic_function_of_ten_times_the_difference():
    logits = torch.tensor([[0.3, 0.5], [1.0, 1.0], [0.2, -0.1]], dtype=torch.float64)
    expected = 1 / (1 + torch.exp(-10 * torch.tensor([0.2, 0.0, -0.3], dtype=torch.float64)))
    torch.testing.assert_close(sharpened(logits), expected)
    torch.testing.assert_close(sharpened(logits, 1.0), 1 / (1 + (1 / expected - 1) ** 0.1))


def test_choice_is_the_most_probable_one_in_evaluation():
    o = one_hot_choice(torch.tensor([[0.1, 0.3, 0.2], [5.0, 1.0, 5.0]]), training=False)
    assert o.tolist() == [[0, 1, 0], [1, 0, 0]]


def test_choices_are_as_frequent_as_the_softmax_says():
    logits = torch.tensor([0.0, 1.0, -0.5, 0.3])
    o = one_hot_choice(logits.repeat(20_000, 1), True, tau=0.3, generator=rng())
    assert o.sum(1).tolist() == [1.0] * 20_000
    assert set(o.unique().tolist()) == {0.0, 1.0}
    torch.testing.assert_close(o.mean(0), torch.softmax(logits, 0), atol=0.015, rtol=0)


@pytest.mark.parametrize("tau", [0.5, 1.0, 2.0])
def test_gradient_of_a_choice_is_that_of_the_softmax(tau):
    logits = torch.randn(6, 4, generator=rng(), dtype=torch.float64)
    weight = torch.randn(6, 4, generator=rng(1), dtype=torch.float64)
    for training in (False, True):
        leaf = logits.clone().requires_grad_()
        (one_hot_choice(leaf, training, tau, rng(2)) * weight).sum().backward()
        noise = torch.empty_like(logits).exponential_(generator=rng(2)).log() if training else 0
        q = torch.softmax((logits - noise) / tau, dim=1)
        torch.testing.assert_close(leaf.grad, q * (weight - (q * weight).sum(1, keepdim=True)) / tau)


def test_choice_is_a_function_of_the_generator():
    logits = torch.zeros(50, 4)
    first, again, other = (one_hot_choice(logits, True, generator=rng(seed)) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert logits.count_nonzero() == 0
