import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from nat.attack import pgd
from nat.awp import WeightPerturbation, ascent_step
from nat.baselines import (
    Threat,
    build_objective,
    entropy_penalty_loss,
    mart_loss,
    trades_loss,
)
from nat.loss import nasty_divergence
from torch import nn

THREAT = Threat(eps=0.1, alpha=0.03, steps=3)
METHODS = ["vanilla", "pgd_at", "at_mix", "trades", "mart", "entropy_penalty", "nat"]
LABELS = torch.tensor([0, 1, 2, 3, 0, 1])


class Net(nn.Module):
    """BatchNorm on the pixels, then a convolution and a linear head; notes mode and input of each call."""

    def __init__(self, seed=0, classes=4):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.norm = nn.BatchNorm2d(2)
            self.conv = nn.Conv2d(2, 3, 3)
            self.head = nn.Linear(12, classes)
        self.calls = []

    def forward(self, x):
        self.calls.append((self.training, x.detach().clone()))
        return self.head(self.conv(self.norm(x)).relu().flatten(1))


class Raises(nn.Module):
    def forward(self, x):
        raise AssertionError("the adversary must not be called")


def images(seed=0, n=6):
    return torch.rand(n, 2, 4, 4, generator=torch.Generator().manual_seed(seed))


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def frozen(seed=1, classes=4):
    return Net(seed, classes).eval().requires_grad_(False)


def build(method, **options):
    if method == "nat":
        options = {"adversary": frozen(), **options}
    return build_objective(method, THREAT, **options)


def random_logits(seed, n=5, k=4):
    return 3 * torch.randn(n, k, dtype=torch.float64, generator=seeded(seed))


def softmax(z):
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


@pytest.mark.parametrize("beta", [0.0, 1.0, 6.0])
def test_trades_equals_its_formula_in_numpy(beta):
    z, z_adv, y = random_logits(0), random_logits(1), np.array([0, 1, 2, 3, 0])
    p, q = softmax(z.numpy()), softmax(z_adv.numpy())
    expected = -np.log(p[range(5), y]).mean() + beta * (p * np.log(p / q)).sum() / 5
    assert trades_loss(z, z_adv, torch.tensor(y), beta).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("beta", [0.0, 1.0, 5.0])
def test_mart_equals_its_formula_in_numpy(beta):
    z, z_adv, y = random_logits(2), random_logits(3), np.array([0, 1, 2, 3, 0])
    p, q = softmax(z.numpy()), softmax(z_adv.numpy())
    total = 0.0
    for i in range(5):
        others = [q[i, c] for c in range(4) if c != y[i]]
        kl = sum(p[i, c] * (np.log(p[i, c]) - np.log(q[i, c])) for c in range(4))
        total += -np.log(q[i, y[i]]) - np.log(1 - max(others)) + beta * kl * (1 - p[i, y[i]])
    assert mart_loss(z, z_adv, torch.tensor(y), beta).item() == pytest.approx(total / 5, rel=1e-10)


@pytest.mark.parametrize("loss", [trades_loss, mart_loss])
def test_pair_losses_send_correct_gradients_to_clean_and_adversarial_logits(loss):
    z, z_adv = random_logits(4, 3).requires_grad_(), random_logits(5, 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: loss(a, b, LABELS[:3]), (z, z_adv))


def test_mart_of_extreme_float32_logits_is_exact_and_has_finite_gradients():
    z = torch.tensor([[1e4, -1e4, -1e4], [1e4, -1e4, -1e4]], requires_grad=True)
    z_adv = torch.tensor([[1e4, -1e4, -1e4], [-1e4, 1e4, -1e4]], requires_grad=True)
    # Sample 0 is right and sure: 0. Sample 1: −log p_y = 2e4, −log(1 − p_1) = −log(2 exp(−2e4)), and
    # 1 − p_y(x) = 0 cancels the divergence.
    loss = mart_loss(z, z_adv, torch.tensor([0, 0]))
    assert loss.item() == pytest.approx((4e4 - math.log(2)) / 2, rel=1e-7)
    loss.backward()
    assert z.grad.isfinite().all()
    assert z_adv.grad.isfinite().all()


def test_mart_for_two_classes_counts_cross_entropy_twice():
    z, y = random_logits(6, k=2), LABELS[:5] % 2
    assert mart_loss(z, z, y).item() == pytest.approx(2 * F.cross_entropy(z, y).item())


def test_entropy_penalty_adds_the_mean_entropy():
    logits = torch.tensor([[4.0, 1.0, 0.0]] * 2, dtype=torch.float64)
    loss = entropy_penalty_loss(logits, torch.tensor([0, 0]), beta=0.5)
    assert loss.item() == pytest.approx(0.0658839 + 0.5 * 0.2743131, abs=1e-7)


@pytest.mark.parametrize("method", METHODS)
def test_each_method_evaluates_its_own_formula(method):
    model, x = Net().eval(), images()
    terms = build(method)(model, x, LABELS, seeded())
    z = model(x)
    if method == "vanilla":
        assert terms.x_adv is None
        expected = F.cross_entropy(z, LABELS)
    else:
        z_adv = model(terms.x_adv)
        both, labels = torch.cat([z, z_adv]), torch.cat([LABELS, LABELS])
        ce, ce_adv = F.cross_entropy(z, LABELS), F.cross_entropy(z_adv, LABELS)
        adversary = frozen()
        divergence = nasty_divergence(both, adversary(torch.cat([x, terms.x_adv]))).mean()
        expected = {
            "pgd_at": ce_adv,
            "at_mix": (ce + ce_adv) / 2,
            "trades": trades_loss(z, z_adv, LABELS, 6.0),
            "mart": mart_loss(z, z_adv, LABELS, 5.0),
            "entropy_penalty": entropy_penalty_loss(both, labels, 0.06),
            "nat": (ce + ce_adv) / 2 - 0.06 * divergence,
        }[method]
        torch.testing.assert_close(terms.adv_logits, z_adv.detach())
        if method == "nat":
            torch.testing.assert_close(terms.divergence, divergence.detach())
    torch.testing.assert_close(terms.loss, expected)
    if method == "pgd_at":
        assert terms.logits is None
    else:
        torch.testing.assert_close(terms.logits, z.detach())


@pytest.mark.parametrize(
    ("method", "loss", "start"),
    [
        ("pgd_at", "ce", True),
        ("at_mix", "ce", True),
        ("entropy_penalty", "ce", True),
        ("nat", "ce", True),
        ("mart", "ce", "normal"),
        ("trades", "kl", "normal"),
    ],
)
def test_each_method_maximises_its_own_inner_loss(method, loss, start):
    model, x = Net(), images()
    expected = pgd(
        model,
        x,
        LABELS,
        eps=0.1,
        alpha=0.03,
        steps=3,
        loss=loss,
        random_start=start,
        generator=seeded(4),
    )
    assert torch.equal(build(method).attack(model, x, LABELS, seeded(4)), expected)
    assert torch.equal(build(method)(model, x, LABELS, seeded(4)).x_adv, expected)


@pytest.mark.parametrize("method", METHODS)
def test_the_attack_sees_evaluation_mode_and_the_loss_the_given_mode(method):
    outer = {"trades": 2, "mart": 2}.get(method, 1)
    inner = {"vanilla": 0, "trades": 4}.get(method, 3)
    for training in (True, False):
        model = Net().train(training)
        model.conv.eval()
        build(method)(model, images(), LABELS, seeded())
        assert [mode for mode, _ in model.calls] == [False] * inner + [training] * outer
        assert (model.training, model.norm.training, model.conv.training) == (training, training, False)


@pytest.mark.parametrize("method", ["at_mix", "entropy_penalty", "nat"])
def test_batchnorm_sees_the_union_of_clean_and_adversarial_images_once(method):
    model, x = Net().train(), images()
    terms = build(method)(model, x, LABELS, seeded())
    union = torch.cat([x, terms.x_adv])
    assert model.norm.num_batches_tracked == 1
    torch.testing.assert_close(model.norm.running_mean, 0.1 * union.mean((0, 2, 3)))


@pytest.mark.parametrize("method", ["trades", "mart"])
def test_batchnorm_sees_clean_and_then_adversarial_images(method):
    model, x = Net().train(), images()
    terms = build(method)(model, x, LABELS, seeded())
    assert model.norm.num_batches_tracked == 2
    expected = 0.9 * 0.1 * x.mean((0, 2, 3)) + 0.1 * terms.x_adv.mean((0, 2, 3))
    torch.testing.assert_close(model.norm.running_mean, expected)


def test_nat_with_zero_omega_never_calls_the_adversary_and_is_at_mix_bit_for_bit():
    for adversary in (Raises().eval(), None):
        trained = []
        for objective in (
            build_objective("at_mix", THREAT),
            build_objective("nat", THREAT, omega=0.0, adversary=adversary),
        ):
            model, generator = Net().train(), seeded()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            for step in range(3):
                terms = objective(model, images(step), LABELS, generator)
                optimizer.zero_grad()
                terms.loss.backward()
                optimizer.step()
            gradients = [parameter.grad for parameter in model.parameters()]
            trained.append([terms.loss, *terms[1:4], *model.state_dict().values(), *gradients])
        assert all(torch.equal(a, b) for a, b in zip(*trained, strict=True))


def test_the_adversary_is_called_once_on_the_inputs_of_the_target():
    model, adversary, x = Net().train(), frozen(), images()
    terms = build("nat", adversary=adversary)(model, x, LABELS, seeded())
    ((training, inputs),) = adversary.calls
    assert not training
    assert torch.equal(inputs, torch.cat([x, terms.x_adv]))
    assert torch.equal(inputs, model.calls[-1][1])


def test_training_changes_nothing_in_the_adversary():
    # Its parameters would take gradients if the objective let them.
    model, adversary = Net().train(), Net(1).eval()
    before = copy.deepcopy(adversary.state_dict())
    objective = build("nat", adversary=adversary)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        objective(model, images(step), LABELS, seeded(step)).loss.backward()
        optimizer.step()
    assert all(torch.equal(value, before[name]) for name, value in adversary.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in adversary.parameters())
    assert not any(module.training for module in adversary.modules())


def test_nasty_term_on_adversarial_samples_only():
    model, adversary, x = Net().eval(), frozen(), images()
    terms = build("nat", adversary=adversary, omega=0.5, nasty_on="adversarial")(model, x, LABELS, seeded())
    divergence = nasty_divergence(model(terms.x_adv), adversary(terms.x_adv))
    ce = (F.cross_entropy(model(x), LABELS) + F.cross_entropy(model(terms.x_adv), LABELS)) / 2
    torch.testing.assert_close(terms.divergence, divergence.mean().detach())
    torch.testing.assert_close(terms.loss, ce - 0.5 * divergence.sum() / 12)


def test_every_option_of_the_nasty_term_arrives():
    model, adversary, x = Net().eval(), frozen(), images()
    options = {"tau_square": False, "direction": "adversary_target", "kl_cap": 0.007}
    objective = build("nat", adversary=adversary, omega=0.5, temperature=3.0, **options)
    terms = objective(model, x, LABELS, seeded())
    both = torch.cat([x, terms.x_adv])
    divergence = nasty_divergence(model(both), adversary(both), 3.0, **options)
    assert (divergence == 0.007).any()  # the cap is reached, and not everywhere
    assert (divergence < 0.007).any()
    torch.testing.assert_close(terms.divergence, divergence.mean().detach())
    ce = F.cross_entropy(model(both), torch.cat([LABELS, LABELS]))
    torch.testing.assert_close(terms.loss, ce - 0.5 * divergence.mean())


@pytest.mark.parametrize("method", ["trades", "mart", "entropy_penalty"])
def test_beta_weighs_the_second_term(method):
    model, x = Net().eval(), images()
    losses = [build(method, beta=beta)(model, x, LABELS, seeded()).loss for beta in (0.0, 1.0, 3.0)]
    torch.testing.assert_close(losses[2] - losses[0], 3 * (losses[1] - losses[0]))
    assert losses[1] - losses[0] > 1e-4


@pytest.mark.parametrize("method", METHODS)
def test_same_seed_gives_the_same_terms_and_every_parameter_a_gradient(method):
    losses = []
    for _ in range(2):
        model = Net().train()
        terms = build(method)(model, images(), LABELS, seeded(7))
        terms.loss.backward()
        losses.append(terms.loss)
        assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
    assert torch.equal(losses[0], losses[1])


def test_a_batch_of_one_image_is_trained_on():
    terms = build("nat")(Net().train(), images(n=1), LABELS[:1], seeded())
    assert terms.loss.isfinite()
    assert terms.logits.shape == terms.adv_logits.shape == (1, 4)


def test_threat_scales_radius_and_step():
    assert THREAT.scaled(0.5) == Threat(eps=0.05, alpha=0.015, steps=3)
    x = images()
    nothing = build_objective("pgd_at", THREAT.scaled(0.0))
    assert torch.equal(nothing.attack(Net(), x, LABELS, seeded()), x)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Threat(1.5, 0.1, 3), r"eps must lie in \[0, 1\].*got 1.5"),
        (lambda: Threat(0.1, -0.1, 3), "alpha must be .* > 0, got -0.1"),
        (lambda: Threat(0.1, 0.1, -3), "steps must be >= 0, got -3"),
        (lambda: build_objective("fat", THREAT), "method must be one of vanilla, .*nat, got 'fat'"),
        (lambda: build_objective("nat", THREAT), "adversary must be given .* omega 0.06, got None"),
        (lambda: build("nat", omega=-1.0), "omega must be .* >= 0, got -1.0"),
        (lambda: build("nat", temperature=0.0), "temperature must be .* > 0, got 0.0"),
        (lambda: build("nat", nasty_on="clean"), "nasty_on must be one of both, adversarial, got 'clean'"),
        (lambda: build("nat", direction="back"), "direction must be one of .*, got 'back'"),
        (lambda: build("nat", kl_cap=-1.0), "kl_cap must be > 0, or None for no cap, got -1.0"),
        (lambda: build("trades", beta=-6.0), "beta must be .* >= 0, got -6.0"),
        (
            lambda: build("nat", adversary=Net().train())(Net(), images(), LABELS, seeded()),
            "adversary must be in evaluation mode",
        ),
        (
            lambda: build("nat", adversary=frozen(classes=3))(Net(), images(), LABELS, seeded()),
            "same number of classes, got 4 and 3",
        ),
        (lambda: WeightPerturbation(gamma=-1.0), "gamma must be .* >= 0, got -1.0"),
    ],
)
def test_impossible_options_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_adversary_whose_batchnorm_alone_is_in_training_mode_is_refused():
    adversary = frozen()
    adversary.norm.train()
    with pytest.raises(ValueError, match="adversary must be in evaluation mode"):
        build("nat", adversary=adversary)(Net(), images(), LABELS, seeded())


def closure_of(model, x=None):
    x = images() if x is None else x
    return lambda: F.cross_entropy(model(x), LABELS)


def test_weights_move_by_gamma_times_their_norm_and_come_back_bit_for_bit():
    model = Net().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    perturbation = WeightPerturbation(gamma=0.01)
    perturbation.perturb(model, closure_of(model))
    for name, value in model.state_dict().items():
        moved = (value - before[name]).norm() if value.is_floating_point() else value - before[name]
        if name in ("conv.weight", "head.weight"):
            torch.testing.assert_close(moved, 0.01 * before[name].norm(), rtol=1e-4, atol=0)
        else:
            assert moved == 0  # biases, BatchNorm's weights and its statistics
    assert all(p.grad is None for p in model.parameters())
    closure_of(model)().backward()
    statistics = model.norm.running_mean.clone()
    perturbation.restore(model)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert all(p.grad is not None for p in model.parameters())
    assert torch.equal(model.norm.running_mean, statistics)
    assert not torch.equal(statistics, before["norm.running_mean"])


def test_perturbation_is_the_closed_form_of_a_linear_loss():
    model = nn.Linear(3, 2)
    slope = torch.tensor([[1.0, -2.0, 0.5], [0.0, 3.0, 1.0]])
    weight = model.weight.detach().clone()
    WeightPerturbation(gamma=0.1).perturb(model, lambda: (model.weight * slope).sum())
    expected = weight + 0.1 * weight.norm() * slope / slope.norm()
    torch.testing.assert_close(model.weight.detach(), expected)


def test_perturbation_raises_the_loss():
    model = Net().train()
    with torch.no_grad():
        before = closure_of(model)()
    WeightPerturbation(gamma=0.01).perturb(model, closure_of(model))
    assert closure_of(model)() > before


def test_gradients_of_all_processes_are_reduced_before_the_step():
    model, opposite = Net(), Net()
    WeightPerturbation(0.01).perturb(model, closure_of(model))
    WeightPerturbation(0.01, reduce=torch.neg).perturb(opposite, closure_of(opposite))
    original = Net().head.weight
    torch.testing.assert_close(model.head.weight - original, original - opposite.head.weight)


def test_a_weight_without_gradient_stays():
    assert torch.equal(ascent_step(torch.ones(2, 2), torch.zeros(2, 2), 0.1), torch.zeros(2, 2))
    model = Net()
    WeightPerturbation(0.1).perturb(model, lambda: model.head.weight.square().sum())
    assert torch.equal(model.conv.weight, Net().conv.weight)
    assert not torch.equal(model.head.weight, Net().head.weight)


def test_frozen_weights_are_not_perturbed():
    model = Net()
    model.conv.weight.requires_grad_(False)
    WeightPerturbation(0.1).perturb(model, closure_of(model))
    assert torch.equal(model.conv.weight, Net().conv.weight)


def test_a_failing_closure_leaves_weights_and_statistics_and_a_second_perturbation_is_refused():
    model = Net().train()
    before = copy.deepcopy(model.state_dict())
    perturbation = WeightPerturbation()

    def failing():
        model(images())
        raise KeyError

    with pytest.raises(KeyError):
        perturbation.perturb(model, failing)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    perturbation.perturb(model, closure_of(model))
    with pytest.raises(RuntimeError, match="call restore"):
        perturbation.perturb(model, closure_of(model))
    perturbation.restore(model)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    perturbation.perturb(model, closure_of(model))
    assert not torch.equal(model.head.weight, before["head.weight"])


@pytest.mark.parametrize("method", METHODS)
def test_weight_perturbation_wraps_any_objective_on_one_set_of_adversarial_images(method):
    model, x = Net().train(), images()
    objective, perturbation = build(method), WeightPerturbation(0.05)
    x_adv = objective.attack(model, x, LABELS, seeded())
    plain = copy.deepcopy(model)
    perturbation.perturb(model, lambda: objective.outer(model, x, x_adv, LABELS).loss)
    terms = objective.outer(model, x, x_adv, LABELS)
    assert terms.loss > objective.outer(plain, x, x_adv, LABELS).loss
    perturbation.restore(model)
