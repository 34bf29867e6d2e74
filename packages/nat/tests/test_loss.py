import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from nat.loss import (
    CollapseError,
    check_batch,
    check_collapse,
    check_options,
    collapse_risk,
    kl_divergence,
    nasty_divergence,
    nat_loss,
)
from torch.autograd import gradcheck

TARGET = torch.tensor([[4.0, 1.0, 0.0]], dtype=torch.float64)
ADVERSARY = torch.tensor([[3.0, 2.0, -1.0]], dtype=torch.float64)

logits_lists = st.lists(st.floats(-50, 50), min_size=4, max_size=4)


def random_logits(seed, n=6, k=5):
    return 3 * torch.randn(n, k, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("p", "q", "temperature", "expected"),
    [
        (TARGET, ADVERSARY, 1.0, 0.1674535),
        (ADVERSARY, TARGET, 1.0, 0.2700971),
        (TARGET, ADVERSARY, 4.0, 0.0256800),
    ],
)
def test_kl_matches_the_hand_computed_numbers(p, q, temperature, expected):
    assert kl_divergence(p, q, temperature).item() == pytest.approx(expected, abs=5e-8)


def test_divergence_has_the_papers_orientation_and_tau_square():
    assert nasty_divergence(TARGET, ADVERSARY).item() == pytest.approx(0.1674535, abs=5e-8)
    assert nasty_divergence(TARGET, ADVERSARY, 4.0).item() == pytest.approx(0.4108799, abs=5e-8)
    plain = nasty_divergence(TARGET, ADVERSARY, 4.0, tau_square=False)
    assert plain.item() == pytest.approx(0.0256800, abs=5e-8)
    reverse = nasty_divergence(TARGET, ADVERSARY, direction="adversary_target")
    assert reverse.item() == pytest.approx(0.2700971, abs=5e-8)


def test_loss_is_cross_entropy_minus_weighted_divergence():
    parts = nat_loss(TARGET, torch.tensor([0]), ADVERSARY, 0.06, 4.0)
    assert parts.cross_entropy.item() == pytest.approx(0.0658839, abs=5e-8)
    assert parts.divergence.item() == pytest.approx(0.4108799, abs=5e-8)
    assert parts.loss.item() == pytest.approx(0.0658839 - 0.06 * 0.4108799, abs=1e-7)


def test_loss_is_the_mean_over_samples():
    target, adversary = random_logits(0), random_logits(1)
    labels = torch.tensor([0, 1, 2, 3, 4, 0])
    single = [nat_loss(target[i : i + 1], labels[i : i + 1], adversary[i : i + 1], 0.3, 2.0).loss for i in range(6)]
    torch.testing.assert_close(
        nat_loss(target, labels, adversary, 0.3, 2.0).loss, torch.stack(single).mean(), rtol=1e-12, atol=0
    )


@given(logits_lists, logits_lists, st.floats(0.5, 20), st.floats(-100, 100))
@settings(max_examples=100, deadline=None)
def test_kl_is_nonnegative_and_ignores_a_constant_added_to_either_side(p, q, temperature, shift):
    p, q = torch.tensor([p], dtype=torch.float64), torch.tensor([q], dtype=torch.float64)
    kl = kl_divergence(p, q, temperature)
    assert kl.item() >= -1e-12
    torch.testing.assert_close(kl_divergence(p + shift, q, temperature), kl, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(kl_divergence(p, q - shift, temperature), kl, rtol=1e-9, atol=1e-10)


def test_equal_networks_have_no_divergence_and_no_gradient_from_it():
    target = random_logits(2).requires_grad_()
    divergence = nasty_divergence(target, target.detach(), 2.0)
    assert divergence.abs().max() < 1e-14
    (gradient,) = torch.autograd.grad(divergence.sum(), target)
    assert gradient.abs().max() < 1e-14


@pytest.mark.parametrize("temperature", [1.0, 4.0, 20.0])
def test_gradient_is_the_closed_form_of_section_3_3(temperature):
    target, adversary = random_logits(3).requires_grad_(), random_logits(4)
    divergence = nasty_divergence(target, adversary, temperature)
    (gradient,) = torch.autograd.grad(divergence.sum(), target)
    q_t, q_a = (target.detach() / temperature).softmax(1), (adversary / temperature).softmax(1)
    log_ratio = (q_t / q_a).log()
    kl = (q_t * log_ratio).sum(1, keepdim=True)
    torch.testing.assert_close(gradient, temperature * q_t * (log_ratio - kl), rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("direction", ["target_adversary", "adversary_target"])
def test_gradients_flow_through_both_arguments(direction):
    target, adversary = random_logits(5, 2).requires_grad_(), random_logits(6, 2).requires_grad_()
    assert gradcheck(lambda t, a: nasty_divergence(t, a, 3.0, direction=direction), (target, adversary))


def test_second_order_series_predicts_a_small_divergence():
    q_t = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64)
    difference = 0.01 * torch.tensor([[1.0, -0.4, -0.6]], dtype=torch.float64)
    exact = -kl_divergence(q_t.log(), (q_t + difference).log())
    second_order = -0.5 * (difference**2 / q_t).sum(1)
    third_order = second_order + (difference**3 / q_t**2).sum(1) / 3
    assert second_order.item() == pytest.approx(exact.item(), rel=0.01)
    assert abs(third_order - exact) < 0.1 * abs(second_order - exact)


def test_zero_omega_is_cross_entropy_bit_for_bit_with_or_without_adversary():
    labels = torch.tensor([0, 1, 2, 3, 4, 0])
    a, b, c = (random_logits(7).float().requires_grad_() for _ in range(3))
    plain = F.cross_entropy(a, labels)
    without = nat_loss(b, labels, None, 0.0)
    impossible = torch.full((6, 5), math.nan)  # 0 · KL would be NaN
    with_adversary = nat_loss(c, labels, impossible, 0.0)
    for loss in (plain, without.loss, with_adversary.loss):
        loss.backward()
    assert torch.equal(plain, without.loss)
    assert torch.equal(plain, with_adversary.loss)
    assert torch.equal(a.grad, b.grad)
    assert torch.equal(a.grad, c.grad)
    assert without.divergence is None


def test_mask_leaves_the_gradient_of_other_samples_to_cross_entropy():
    labels = torch.tensor([0, 1, 2, 3, 4, 0])
    mask = torch.arange(6) >= 3
    target, adversary = random_logits(8).requires_grad_(), random_logits(9)
    parts = nat_loss(target, labels, adversary, 0.5, nasty_mask=mask)
    (gradient,) = torch.autograd.grad(parts.loss, target)
    (plain,) = torch.autograd.grad(F.cross_entropy(target, labels), target)
    (full,) = torch.autograd.grad(nat_loss(target, labels, adversary, 0.5).loss, target)
    torch.testing.assert_close(gradient[:3], plain[:3], rtol=0, atol=1e-15)
    torch.testing.assert_close(gradient[3:], full[3:], rtol=0, atol=1e-15)
    carried = nasty_divergence(target, adversary).detach()[3:]
    assert parts.divergence.item() == pytest.approx(carried.mean().item(), rel=1e-12)
    assert parts.loss.item() == pytest.approx(parts.cross_entropy.item() - 0.5 * carried.sum().item() / 6, rel=1e-12)


def test_mask_without_any_sample_gives_cross_entropy():
    labels = torch.tensor([0, 1, 2, 3, 4, 0])
    parts = nat_loss(random_logits(8), labels, random_logits(9), 0.5, nasty_mask=torch.zeros(6, dtype=bool))
    assert parts.loss == parts.cross_entropy
    assert parts.divergence == 0


def test_cap_acts_per_sample_on_the_kl_before_tau_square():
    target = torch.cat([TARGET, TARGET]).requires_grad_()
    adversary = torch.cat([ADVERSARY, torch.tensor([[-30.0, 0.0, 0.0]], dtype=torch.float64)])
    divergence = nasty_divergence(target, adversary, 2.0, kl_cap=1.0)
    assert divergence[0] == nasty_divergence(TARGET, ADVERSARY, 2.0)[0]
    assert divergence[1].item() == 4.0
    (gradient,) = torch.autograd.grad(divergence.sum(), target)
    assert gradient[0].abs().min() > 0
    assert torch.equal(gradient[1], torch.zeros(3, dtype=torch.float64))


@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_extreme_float32_logits_give_the_exact_value_and_finite_gradients(temperature):
    target = torch.tensor([[1e4, -1e4, -1e4], [-1e4, 1e4, -1e4]], requires_grad=True)
    adversary = torch.tensor([[-1e4, 1e4, -1e4], [-1e4, 1e4, -1e4]])
    # One-hot against the other one-hot: log(1 / q_a) = 2e4 / τ. One-hot against itself: 0.
    divergence = nasty_divergence(target, adversary, temperature)
    assert divergence.tolist() == [2e4 * temperature, 0.0]
    parts = nat_loss(target, torch.tensor([1, 1]), adversary, 0.06, temperature)
    assert parts.loss.item() == pytest.approx(1e4 - 0.06 * 1e4 * temperature)
    parts.loss.backward()
    assert target.grad.isfinite().all()


def test_parts_for_logging_carry_no_gradient():
    parts = nat_loss(random_logits(1).requires_grad_(), torch.zeros(6, dtype=int), random_logits(2), 0.1)
    assert (parts.loss.requires_grad, parts.cross_entropy.requires_grad) == (True, False)
    assert not parts.divergence.requires_grad


def test_collapse_risk_is_omega_tau_times_the_median_range():
    logits = torch.tensor([[0.0, 1.0, 5.0], [-2.0, 8.0, 0.0], [3.0, 3.0, 3.0], [1.0, 0.0, 7.0]])
    assert collapse_risk(logits, 0.1, 4.0) == pytest.approx(0.1 * 4.0 * 6.0)  # ranges 5, 10, 0, 7


def test_collapse_is_reported_above_the_cap_and_for_lost_numbers_only():
    check_collapse(8.0, -1.0, max_divergence=8.0)
    with pytest.raises(CollapseError, match=r"12\.6 exceeds max_divergence 8:.*omega_warmup.*kl_cap"):
        check_collapse(12.6, 0.1, max_divergence=8.0)
    for divergence, loss in ((math.nan, 0.1), (math.inf, 0.1), (0.1, math.nan), (0.1, -math.inf)):
        with pytest.raises(CollapseError, match="training diverged"):
            check_collapse(divergence, loss, max_divergence=8.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"omega": -0.1}, "omega must be a finite number >= 0, got -0.1"),
        ({"omega": math.nan}, "omega must be .*, got nan"),
        ({"temperature": 0.0}, "temperature must be a finite number > 0, got 0.0"),
        ({"temperature": math.inf}, "temperature must be .*, got inf"),
        ({"direction": "forward"}, "direction must be one of target_adversary, .*, got 'forward'"),
        ({"kl_cap": 0.0}, "kl_cap must be > 0, or None for no cap, got 0.0"),
    ],
)
def test_options_outside_their_range_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        check_options(**options)
    with pytest.raises(ValueError, match=message):
        nat_loss(TARGET, torch.tensor([0]), ADVERSARY, **{"omega": 0.1, **options})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"adversary_logits": None}, "adversary_logits must be given when omega is not 0"),
        ({"adversary_logits": torch.zeros(1, 4)}, "same number of classes, got 3 and 4"),
        ({"adversary_logits": torch.zeros(2, 3)}, "of the same samples, got 1 and 2"),
        ({"target_logits": torch.tensor([[4, 1, 0]])}, "logits must be floating point.*int64"),
        ({"labels": torch.tensor([0, 1])}, r"labels must have shape \(1,\).*got \(2,\)"),
        ({"nasty_mask": torch.tensor([1])}, "nasty_mask must be bool"),
        ({"nasty_mask": torch.tensor([True, True])}, r"nasty_mask must be bool of shape \(1,\)"),
    ],
)
def test_mismatched_tensors_are_named(changes, message):
    arguments = {
        "target_logits": TARGET,
        "labels": torch.tensor([0]),
        "adversary_logits": ADVERSARY,
        "omega": 0.1,
    }
    with pytest.raises(ValueError, match=message):
        nat_loss(**{**arguments, **changes})


def images(value=0.5, n=2):
    return torch.full((n, 1, 2, 2), value)


@pytest.mark.parametrize(
    ("x", "labels", "message"),
    [
        (images(1.5), torch.tensor([0, 1]), r"images must be finite and lie in \[0, 1\], got .* 1.5"),
        (images(-0.1), torch.tensor([0, 1]), r"images must .* from -0.1"),
        (images(math.nan), torch.tensor([0, 1]), "images must be finite .* nan"),
        (images(math.inf), torch.tensor([0, 1]), "images must be finite .* inf"),
        (images()[:, 0], torch.tensor([0, 1]), r"images must be .* shape \(N, C, H, W\)"),
        (images().to(torch.uint8), torch.tensor([0, 1]), "images must be floating point.*uint8"),
        (images(n=0), torch.tensor([], dtype=int), "images must not be empty"),
        (images(), torch.tensor([0]), "equally many, got 2 and 1"),
        (images(), torch.tensor([0, 3]), r"labels must lie in \[0, 3\) .*got 0 to 3"),
        (images(), torch.tensor([-100, 1]), r"labels must lie in \[0, 3\) .*got -100 to 1"),
        (images(), torch.tensor([0.0, 1.0]), "labels must be int64"),
        (images(), torch.tensor([[0], [1]]), r"labels must be int64 of shape \(N,\)"),
    ],
)
def test_a_bad_batch_is_refused(x, labels, message):
    with pytest.raises(ValueError, match=message):
        check_batch(x, labels, num_classes=3)


def test_a_batch_at_the_limits_of_its_ranges_is_accepted():
    x = torch.tensor([0.0, 1.0, 0.5, 0.5]).view(1, 1, 2, 2)
    check_batch(x, torch.tensor([2]), num_classes=3)


def test_one_wrong_pixel_in_a_batch_is_found():
    x = images(n=5)
    x[3, 0, 1, 1] = math.nan
    with pytest.raises(ValueError, match="images must be finite"):
        check_batch(x, torch.zeros(5, dtype=int), num_classes=3)
