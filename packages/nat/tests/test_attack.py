import math
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from nat.attack import attack_mode, check_logits, cw_inf, fgsm, margin, pgd
from torch import nn

WEIGHT = torch.tensor([[0.7, -1.3, 0.2, 2.0], [-0.4, 0.5, 0.9, -1.1], [0.1, 0.3, -2.0, 0.6]])
BIAS = torch.tensor([0.1, -0.2, 0.3])


class Recorder(nn.Module):
    """A linear model that notes the mode and the points of each forward pass."""

    def __init__(self, weight=WEIGHT, bias=BIAS):
        super().__init__()
        self.head = nn.Linear(weight.shape[1], len(weight))
        self.head.weight.data, self.head.bias.data = weight.clone(), bias.clone()
        self.calls = []

    def forward(self, x):
        self.calls.append((self.training, x.detach().clone()))
        return self.head(x.flatten(1))


class ConvBN(nn.Sequential):
    def __init__(self, seed=0):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            super().__init__(
                nn.Conv2d(3, 4, 3, padding=1),
                nn.BatchNorm2d(4),
                nn.ReLU(),
                nn.Dropout(0.5),
                nn.Flatten(),
                nn.Linear(4 * 16, 5),
            )


def binary():
    return Recorder(WEIGHT[:2], BIAS[:2])


def points(n=6, shape=(4,), low=0.3, high=0.7, seed=0):
    return low + (high - low) * torch.rand((n, *shape), generator=torch.Generator().manual_seed(seed))


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


LABELS = torch.tensor([0, 1, 0, 1, 1, 0])


@pytest.mark.parametrize("attack", ["pgd-ce", "pgd-kl", "pgd-margin", "fgsm", "cw"])
def test_attacks_reach_the_closed_form_of_binary_logistic_regression(attack):
    model, x, eps = binary(), points(), 0.1
    w, b = WEIGHT[0] - WEIGHT[1], BIAS[0] - BIAS[1]
    sign = 1 - 2 * LABELS.float()  # +1 for class 0
    generator = seeded()
    if attack == "fgsm":
        x_adv = fgsm(model, x, LABELS, eps)
    elif attack == "cw":
        x_adv = cw_inf(model, x, LABELS, eps, generator=generator)
    else:
        loss = attack.removeprefix("pgd-")
        x_adv = pgd(model, x, LABELS, eps=eps, alpha=eps / 4, steps=20, loss=loss, generator=generator)
    attained = sign * (x_adv @ w + b)
    if attack == "pgd-kl":  # the divergence has a maximum at either end; both are corners of the ball
        torch.testing.assert_close((x_adv @ w - x @ w).abs(), (eps * w.abs().sum()).expand(6))
    else:
        torch.testing.assert_close(attained, sign * (x @ w + b) - eps * w.abs().sum())


def test_steps_follow_the_recurrence_with_projection_on_ball_and_box():
    model, eps, alpha = binary(), 0.05, 0.03
    x = torch.tensor([[0.5, 0.01, 0.98, 0.5]])
    direction = torch.sign(WEIGHT[1] - WEIGHT[0])  # (−, +, +, −): towards class 1
    expected = {
        0: [0.5, 0.01, 0.98, 0.5],
        1: [0.47, 0.04, 1.0, 0.47],
        2: [0.45, 0.06, 1.0, 0.45],
        9: [0.45, 0.06, 1.0, 0.45],
    }
    assert direction.tolist() == [-1, 1, 1, -1]
    for steps, values in expected.items():
        x_adv = pgd(model, x, torch.tensor([0]), eps=eps, alpha=alpha, steps=steps, random_start=False)
        torch.testing.assert_close(x_adv, torch.tensor([values]))


@pytest.mark.parametrize("loss", ["ce", "margin"])
def test_more_steps_never_lower_the_loss_of_a_linear_model(loss):
    model, x = binary(), points()
    losses = [
        F.cross_entropy(
            model(pgd(model, x, LABELS, eps=0.1, alpha=0.02, steps=k, loss=loss, generator=seeded())),
            LABELS,
            reduction="none",
        ).detach()
        for k in range(9)
    ]
    assert all((b >= a).all() for a, b in pairwise(losses))
    assert (losses[-1] > losses[0]).all()


def test_zero_steps_return_the_projected_random_start():
    x = points(low=0.0, high=1.0)
    uniform = pgd(binary(), x, LABELS, eps=0.2, alpha=0.1, steps=0, generator=seeded(3))
    noise = torch.empty(6, 4).uniform_(-0.2, 0.2, generator=seeded(3))
    torch.testing.assert_close(uniform, (x + noise).clamp(0, 1))
    normal = pgd(binary(), x, LABELS, eps=0.2, alpha=0.1, steps=0, random_start="normal", generator=seeded(3))
    noise = 0.001 * torch.randn(6, 4, generator=seeded(3))
    torch.testing.assert_close(normal, (x + noise).clamp(0, 1), rtol=0, atol=1e-7)
    assert torch.equal(pgd(binary(), x, LABELS, eps=0.2, alpha=0.1, steps=0, random_start=False), x)


def test_normal_start_stays_inside_a_ball_smaller_than_its_noise():
    x_adv = pgd(binary(), points(), LABELS, eps=1e-4, alpha=1e-4, steps=0, random_start="normal", generator=seeded())
    assert (x_adv - points()).abs().max() <= 1e-4 + 1e-6


def test_zero_eps_returns_x_in_memory_of_its_own():
    x = points()
    for x_adv in (
        pgd(binary(), x, LABELS, eps=0.0, alpha=0.0, steps=5),
        fgsm(binary(), x, LABELS, 0.0),
        cw_inf(binary(), x, LABELS, 0.0),
    ):
        assert torch.equal(x_adv, x)
        assert x_adv.data_ptr() != x.data_ptr()


@given(
    eps=st.floats(0.001, 1.0),
    ratio=st.floats(0.05, 3.0),
    steps=st.integers(0, 5),
    loss=st.sampled_from(["ce", "kl", "margin"]),
    start=st.sampled_from([True, False, "normal"]),
    seed=st.integers(0, 100),
)
@settings(max_examples=60, deadline=None)
def test_output_lies_in_ball_and_box_and_x_is_not_touched(eps, ratio, steps, loss, start, seed):
    x = points(low=0.0, high=1.0, seed=seed)
    before = x.clone()
    x_adv = pgd(
        Recorder(),
        x,
        LABELS,
        eps=eps,
        alpha=ratio * eps,
        steps=steps,
        loss=loss,
        random_start=start,
        generator=seeded(seed),
    )
    assert (x_adv - x).abs().max() <= eps + 1e-6
    assert x_adv.min() >= 0
    assert x_adv.max() <= 1
    assert torch.equal(x, before)
    assert not x_adv.requires_grad


def test_same_seed_gives_the_same_point_and_leaves_the_global_generator_alone():
    model, x = Recorder(), points()
    state = torch.get_rng_state()
    first, second, other = (
        pgd(model, x, LABELS, eps=0.1, alpha=0.03, steps=1, generator=seeded(seed)) for seed in (5, 5, 6)
    )
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_sample_is_attacked_as_if_it_were_alone():
    model, x = ConvBN(), points(6, (3, 4, 4))
    labels = torch.tensor([0, 1, 2, 3, 4, 0])
    options = {"eps": 0.1, "alpha": 0.03, "steps": 4, "random_start": False}
    together = pgd(model, x, labels, **options)
    alone = torch.cat([pgd(model, x[i : i + 1], labels[i : i + 1], **options) for i in range(6)])
    torch.testing.assert_close(together, alone)


def test_gradients_too_small_for_a_mean_over_the_batch_still_move_the_points():
    x = points(64)
    smallest = 1e-44  # about seven times the smallest float32: a mean over 64 would be zero
    x_adv = pgd(
        binary(),
        x,
        torch.zeros(64, dtype=int),
        eps=0.1,
        alpha=0.1,
        steps=1,
        loss=lambda logits, labels: logits[:, 1] * smallest,
        random_start=False,
    )
    assert ((x_adv - x).abs() > 0.09).all()


def test_attack_costs_one_forward_per_step():
    for options, expected in (
        ({"loss": "ce"}, 5),
        ({"loss": "margin"}, 5),
        ({"loss": "kl"}, 6),
        ({"restarts": 3}, 18),
    ):
        model = Recorder()
        pgd(model, points(), LABELS, eps=0.1, alpha=0.03, steps=5, generator=seeded(), **options)
        assert len(model.calls) == expected


def test_restarts_keep_a_misclassified_point_and_among_those_the_highest_loss():
    # The loss rises with the margin, so that misclassified points have the lower losses.
    x = torch.full((40, 4), 0.5)
    labels = torch.zeros(40, dtype=int)
    model, generator = Recorder(WEIGHT[:2], torch.tensor([-0.5 * 1.7, 0.0])), seeded(1)
    options = {"eps": 0.1, "alpha": 0.03, "steps": 0, "loss": margin}
    best = pgd(model, x, labels, restarts=4, generator=seeded(1), **options)
    runs = [pgd(model, x, labels, generator=generator, **options) for _ in range(4)]
    kinds = set()
    for i in range(40):
        rows = [run[i] for run in runs]
        margins = [margin(model(row[None]), labels[:1]).item() for row in rows]
        wrong = [m for m in margins if m < 0]
        kinds.add(min(len(wrong), 2) if len(wrong) < 4 else 4)
        assert torch.equal(best[i], rows[margins.index(max(wrong or margins))])
    assert kinds >= {0, 1, 2}


def test_kl_restarts_keep_the_start_farthest_from_the_clean_prediction():
    model, x = Recorder(), points(20)
    labels = model(x).argmax(1)
    options = {"eps": 0.01, "alpha": 0.01, "steps": 0, "loss": "kl"}
    best = pgd(model, x, labels, restarts=4, generator=seeded(1), **options)
    generator = seeded(1)
    starts = torch.stack([pgd(model, x, labels, generator=generator, **options) for _ in range(4)])
    p, q = (model(z).softmax(-1).detach() for z in (x, starts.flatten(0, 1)))
    kl = (p * (p / q.view(4, 20, 3)).log()).sum(2)
    stays = (q.view(4, 20, 3).argmax(2) == labels).all(0)  # else misclassification decides
    assert stays.sum() > 10
    assert torch.equal(best[stays], starts[kl.argmax(0), torch.arange(20)][stays])


def test_restarts_never_lower_the_loss():
    model, x = ConvBN(), points(6, (3, 4, 4))
    labels = torch.tensor([0, 1, 2, 3, 4, 0])
    options = {"eps": 0.1, "alpha": 0.05, "steps": 2}
    one = pgd(model, x, labels, generator=seeded(2), **options)
    many = pgd(model, x, labels, generator=seeded(2), restarts=4, **options)
    model.eval()
    wrong = model(one).argmax(1) != labels
    assert (model(many).argmax(1) != labels)[wrong].all()
    loss_one, loss_many = (F.cross_entropy(model(p), labels, reduction="none") for p in (one, many))
    assert (loss_many >= loss_one)[~wrong].all()


def test_networks_modes_statistics_and_gradients_are_left_as_they_were():
    model = ConvBN().train()
    model[3].eval()
    model[0].bias.requires_grad_(False)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    x = points(6, (3, 4, 4))
    for loss in ("ce", "kl", "margin"):
        pgd(model, x, LABELS, eps=0.1, alpha=0.03, steps=3, loss=loss, restarts=2, generator=seeded())
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert [module.training for module in model] == [True, True, True, False, True, True]
    assert [p.requires_grad for p in model.parameters()] == [True, False, True, True, True, True]
    assert all(p.grad is None for p in model.parameters())


def test_attack_mode_restores_each_flag_after_an_exception():
    model = ConvBN().train()
    model[1].eval()
    model[5].weight.requires_grad_(False)

    def interrupted():
        with attack_mode(model):
            assert not any(module.training for module in model.modules())
            assert not any(p.requires_grad for p in model.parameters())
            raise KeyError

    with pytest.raises(KeyError):
        interrupted()
    assert [module.training for module in model] == [True, False, True, True, True, True]
    assert [p.requires_grad for p in model.parameters()] == [True, True, True, True, False, True]
    assert model.training


def test_the_network_is_attacked_in_evaluation_mode():
    model = Recorder().train()
    pgd(model, points(), LABELS, eps=0.1, alpha=0.03, steps=3, generator=seeded())
    assert [training for training, _ in model.calls] == [False] * 3
    assert model.training


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_attack_is_the_same_where_gradients_are_switched_off(context):
    options = {"eps": 0.1, "alpha": 0.03, "steps": 3}
    expected = pgd(Recorder(), points(), LABELS, generator=seeded(), **options)
    model = Recorder()
    with context():
        x, labels = points(), LABELS.clone()
        for loss in ("ce", "margin", "kl"):
            pgd(model, x, labels, generator=seeded(), loss=loss, restarts=2, **options)
        assert torch.equal(pgd(model, x, labels, generator=seeded(), **options), expected)


def test_channels_last_images_stay_channels_last():
    x = points(6, (3, 4, 4)).to(memory_format=torch.channels_last)
    for restarts in (1, 3):
        x_adv = pgd(ConvBN(), x, LABELS, eps=0.1, alpha=0.03, steps=2, generator=seeded(), restarts=restarts)
        assert x_adv.is_contiguous(memory_format=torch.channels_last)


def test_margin_is_to_the_best_other_class():
    logits = torch.tensor([[4.0, 1.0, 0.0], [4.0, 1.0, 0.0], [-1.0, -2.0, -5.0]])
    assert margin(logits, torch.tensor([0, 2, 1])).tolist() == [3.0, -4.0, -1.0]


def test_saturated_softmax_stops_cross_entropy_but_not_the_margin():
    model = Recorder(1e4 * WEIGHT[:2], 1e4 * BIAS[:2])
    x = points()
    labels = model(x).argmax(1)
    options = {"eps": 0.1, "alpha": 0.1, "steps": 1, "random_start": False}
    assert torch.equal(pgd(model, x, labels, **options), x)
    moved = cw_inf(model, x, labels, 0.1, steps=1, alpha=0.2, generator=seeded())
    assert ((moved - x).abs() > 0.09).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"eps": -0.1}, r"eps must lie in \[0, 1\].*got -0.1"),
        ({"eps": 8.0}, r"eps must lie in \[0, 1\].*got 8.0"),
        ({"eps": math.nan}, "eps must lie .*nan"),
        ({"alpha": 0.0}, "alpha must be a finite number > 0, got 0.0"),
        ({"steps": -1}, "steps must be >= 0, got -1"),
        ({"x": points() + 1}, r"x must be finite and lie in \[0, 1\], got values from 1.3"),
        ({"x": points() * math.nan}, "x must be finite .*nan"),
        ({"x": torch.ones(6, 4, dtype=torch.uint8)}, "x must be floating point.*uint8"),
        ({"x": torch.ones(0, 4), "labels": LABELS[:0]}, "x must .*not empty"),
        ({"labels": LABELS[:2]}, r"labels must be int64 of shape \(6,\).*\(2,\)"),
        ({"labels": LABELS.float()}, "labels must be int64"),
        ({"labels": LABELS + 2}, r"labels must lie in \[0, 3\), got 2 to 3"),
        ({"labels": LABELS - 1}, r"labels must lie in \[0, 3\), got -1 to 0"),
        ({"loss": "dlr"}, 'loss must be "ce", "kl", "margin" or a function, got \'dlr\''),
        ({"random_start": "uniform"}, "random_start must be True, False"),
        ({"restarts": 0}, "restarts must be 1, or more with a random start, got 0"),
        ({"restarts": 2, "random_start": False}, "restarts must be 1, or more with a random start, got 2"),
        ({"model": nn.Sequential(Recorder(), nn.Softmax(1))}, "expects logits"),
        ({"model": nn.Flatten(0)}, r"logits of shape \(6, K\) with K >= 2, got \(24,\)"),
        ({"model": Recorder(WEIGHT * math.inf, BIAS)}, "must return finite logits"),
    ],
)
def test_impossible_input_is_named_and_the_network_left_in_its_mode(changes, message):
    arguments = {
        "model": Recorder(),
        "x": points(),
        "labels": LABELS,
        "eps": 0.1,
        "alpha": 0.03,
        "steps": 2,
        "generator": seeded(),
        **changes,
    }
    with pytest.raises(ValueError, match=message):
        pgd(arguments.pop("model"), arguments.pop("x"), arguments.pop("labels"), **arguments)
    if "model" in changes:
        assert changes["model"].training


def test_logits_that_happen_to_lie_in_the_unit_interval_are_accepted():
    check_logits(torch.tensor([[0.2, 0.8], [0.2, 0.9]]), torch.tensor([0, 1]))
    check_logits(torch.tensor([[1.5, -0.5]]), torch.tensor([0]))
    with pytest.raises(ValueError, match="expects logits"):
        check_logits(torch.tensor([[0.2, 0.8], [0.1, 0.9]]), torch.tensor([0, 1]))
