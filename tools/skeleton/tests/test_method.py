"""The loss against closed forms and against torch's own."""

import math

import pytest
import torch
import torch.nn.functional as F
from NAME.baselines import plain_cross_entropy
from NAME.method import smoothed_cross_entropy


def draw(batch=5, classes=4):
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(batch, classes, generator=g, dtype=torch.float64)
    return logits, torch.randint(classes, (batch,), generator=g)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
def test_the_loss_of_uniform_logits_is_the_log_of_the_number_of_classes(smoothing):
    loss = smoothed_cross_entropy(torch.zeros(3, 4, dtype=torch.float64), torch.tensor([0, 1, 3]), smoothing)
    assert loss.item() == pytest.approx(math.log(4))


@pytest.mark.parametrize("smoothing", [0.1, 0.7])
def test_the_loss_is_that_of_torch(smoothing):
    logits, labels = draw()
    expected = F.cross_entropy(logits, labels, label_smoothing=smoothing)
    torch.testing.assert_close(smoothed_cross_entropy(logits, labels, smoothing), expected)


def test_without_smoothing_it_is_the_baseline():
    logits, labels = draw()
    torch.testing.assert_close(smoothed_cross_entropy(logits, labels, 0.0), plain_cross_entropy(logits, labels))


def test_the_gradient_is_softmax_minus_target():
    logits, labels = draw()
    logits.requires_grad_()
    (gradient,) = torch.autograd.grad(smoothed_cross_entropy(logits, labels, 0.2), logits)
    target = 0.8 * F.one_hot(labels, 4) + 0.2 / 4
    torch.testing.assert_close(gradient, (logits.softmax(1) - target) / len(labels))


def test_a_smoothing_out_of_range_is_refused():
    with pytest.raises(ValueError, match=r"smoothing must lie in \[0, 1\], got 1.5"):
        smoothed_cross_entropy(*draw(), 1.5)


def test_labels_of_another_length_are_refused():
    logits, labels = draw()
    with pytest.raises(ValueError, match=r"got \(5, 4\) and \(4,\)"):
        smoothed_cross_entropy(logits, labels[1:])
