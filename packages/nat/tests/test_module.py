"""The LightningModule in Lightning's own loops, on a few digits: what is trained, what stays, what is counted."""

import copy
import math

import nat.module
import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch import Callback, Trainer
from nat.attack import fgsm, pgd
from nat.data import NATDataModule
from nat.loss import CollapseError
from nat.module import Adversary, NATModule, Optimisation
from shared.seeding import generator

SGD = Optimisation(lr=0.05, momentum=0.9, weight_decay=0.0, schedule="constant")
METHODS = ["nat", "vanilla", "pgd_at", "at_mix", "trades", "mart", "entropy_penalty"]
OPTIONS = {"arch": "digits_cnn", "in_channels": 1, "eps": 0.15, "steps": 2, "val_steps": 2, "test_attacks": ""}


class Watch(Callback):
    """Calls functions of the module at Lightning's hooks and keeps what they return."""

    def __init__(self, **functions):
        self.seen = {hook: [] for hook in functions}
        for hook, function in functions.items():
            setattr(self, hook, lambda trainer, module, *_, h=hook, f=function: self.seen[h].append(f(module)))


def build(method="nat", init=0, **options):
    """A module whose networks are drawn from the seed `init`."""
    with torch.random.fork_rng():
        torch.manual_seed(init)
        return NATModule(method, **{**OPTIONS, "optim": SGD, **options})


def digits(train=48, batch=16, seed=0, **options):
    """The digits, cut down to a few training images."""
    data = NATDataModule("digits", batch_size=batch, seed=seed, **options)
    data.setup()
    data.parts["train"] = data.parts["train"].subset(torch.arange(train))
    data.parts["val"] = data.parts["val"].subset(torch.arange(20))
    return data


def trainer(epochs=1, **options):
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    settings = {"accelerator": "cpu", "logger": False, "num_sanity_val_steps": 0, "use_distributed_sampler": False}
    return Trainer(max_epochs=epochs, **{**quiet, **settings, **options})


def fit(module, data=None, epochs=1, **options):
    trainer(epochs, **options).fit(module, digits() if data is None else data)
    return module


def copy_of(module):
    return {name: value.clone() for name, value in module.state_dict().items()}


def assert_same(first, second):
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


def test_nat_with_omega_zero_trains_to_the_weights_of_at_mix_bit_for_bit():
    plain, zero, nasty = (
        copy_of(fit(build(method, omega=omega), epochs=2).model)
        for method, omega in (("at_mix", 0.06), ("nat", 0.0), ("nat", 0.06))
    )
    assert_same(plain, zero)
    assert not torch.equal(plain["head.weight"], nasty["head.weight"])
    assert build("nat", omega=0.0).adversary is None


def test_the_adversary_is_left_alone_by_training():
    module = build(arch="resnet18", steps=1, val_steps=1)  # with BatchNorm, whose statistics could drift
    before = copy_of(module.adversary)
    watch = Watch(on_train_batch_end=lambda m: [part.training for part in m.adversary.modules()])
    fit(module, digits(16, 8), callbacks=[watch], limit_val_batches=1)
    assert_same(before, module.adversary.state_dict())
    assert not any(p.requires_grad or p.grad is not None for p in module.adversary.parameters())
    assert len(watch.seen["on_train_batch_end"]) == 2
    assert not any(map(any, watch.seen["on_train_batch_end"]))


def test_train_mode_reaches_the_target_and_not_the_adversary():
    module = build(arch="resnet18").eval()
    module.train()
    assert all(part.training for part in module.model.modules())
    assert not any(part.training for part in module.adversary.modules())


@pytest.mark.parametrize("method", METHODS)
def test_gradients_reach_every_parameter_of_the_target_and_only_those(method):
    watch = Watch(on_after_backward=lambda m: {n: p.grad is not None and p.grad.any() for n, p in m.named_parameters()})
    module = fit(build(method), callbacks=[watch], limit_train_batches=1)
    assert {n for n, reached in watch.seen["on_after_backward"][0].items() if reached} == {
        f"model.{name}" for name, _ in module.model.named_parameters()
    }


def test_the_optimiser_holds_the_targets_parameters_only():
    module = build()
    with_optimiser = fit(module, epochs=0).configure_optimizers()["optimizer"]
    held = {id(p) for group in with_optimiser.param_groups for p in group["params"]}
    assert held == {id(p) for p in module.model.parameters()}


def test_awp_takes_the_gradient_at_perturbed_weights_and_steps_from_the_original_ones():
    gamma = 0.05
    watch = Watch(
        on_train_batch_start=lambda m: copy_of(m.model),
        on_before_backward=lambda m: copy_of(m.model),
        on_before_optimizer_step=lambda m: (
            copy_of(m.model),
            {name: p.grad.clone() for name, p in m.model.named_parameters()},
        ),
    )
    module, data = build(awp_gamma=gamma, awp_warmup=1), digits(16, 16)
    fit(module, data, epochs=2, callbacks=[watch])
    (first, second), (unmoved, moved) = watch.seen["on_train_batch_start"], watch.seen["on_before_backward"]
    assert_same(first, unmoved)  # epoch 0 is before awp_warmup
    for name, weight in second.items():
        change = (moved[name] - weight).norm() / weight.norm().clamp(min=1e-12)
        expected = gamma if weight.ndim > 1 and name not in ("mean", "std") else 0.0
        assert change.item() == pytest.approx(expected, abs=1e-5), name
    at_step, gradients = watch.seen["on_before_optimizer_step"][1]
    assert_same(second, at_step)

    model = copy.deepcopy(module.model)
    sampler = data.train_dataloader().batch_sampler
    sampler.sampler.set_epoch(1)
    x, labels = data.parts["train"][next(iter(sampler))]
    model.load_state_dict(second)
    x_adv = module.current.attack(model, x, labels, generator(0, "attack", 1, 0))
    model.load_state_dict(moved)
    module.current.outer(model, x, x_adv, labels).loss.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-4, atol=1e-6)


def test_eps_and_omega_rise_over_their_warmups(monkeypatch):
    module, asked = build(eps=0.12, alpha=0.06, eps_warmup=3, omega=0.08, omega_warmup=2), []
    built = nat.module.build_objective

    def note(method, threat, **options):
        asked.append((threat.eps, threat.alpha, options["omega"]))
        return built(method, threat, **options)

    monkeypatch.setattr(nat.module, "build_objective", note)
    fit(module, digits(16), epochs=4)
    expected = [(0.04, 0.02, 0.04), (0.08, 0.04, 0.08), (0.12, 0.06, 0.08), (0.12, 0.06, 0.08)]
    assert asked == [pytest.approx(values) for values in expected]


def test_training_attacks_stay_in_the_ball_of_their_epoch(monkeypatch):
    module, distances = build("at_mix", eps=0.1, eps_warmup=2), []
    built = nat.module.build_objective

    class Spy:
        def __init__(self, objective):
            self.attack = objective.attack
            self.inner = objective.outer

        def outer(self, model, x, x_adv, labels):
            distances.append((x_adv - x).abs().max().item())
            return self.inner(model, x, x_adv, labels)

    monkeypatch.setattr(nat.module, "build_objective", lambda *args, **options: Spy(built(*args, **options)))
    fit(module, digits(16), epochs=3)
    assert distances == pytest.approx([0.05, 0.1, 0.1], rel=1e-4)


def test_collapse_stops_the_run_with_a_message_that_says_what_to_do():
    module = build(omega=50.0)
    train_adversary(module)
    with pytest.raises(CollapseError, match=r"mean divergence .* exceeds max_divergence .* lower omega or temp"):
        fit(module, epochs=20)


def test_max_divergence_overrides_the_guard():
    with pytest.raises(CollapseError, match=r"mean divergence .* exceeds max_divergence 1e-09"):
        fit(build(max_divergence=1e-9))


def test_the_guard_lets_a_right_and_sure_target_pass_beside_an_untrained_adversary():
    module = build(adversary=Adversary(state="random"))
    x, labels = next(iter(digits().val_dataloader()))
    sure = 1e4 * F.one_hot(labels, 10).float()
    # KL(one-hot, f_a) is the adversary's own cross-entropy: about log 10.
    divergence = F.cross_entropy(module.adversary(x), labels).item()
    assert nat.module.nasty_divergence(sure, module.adversary(x)).mean().item() == pytest.approx(divergence, rel=1e-5)
    assert divergence == pytest.approx(math.log(10), rel=0.05)
    fit(module)
    assert module.divergence_bound == pytest.approx(1.25 * divergence, rel=1e-3)


def test_the_guard_of_a_trained_adversary_is_a_quarter_above_a_uniform_output():
    module = build()
    train_adversary(module)
    fit(module)
    x, _ = next(iter(digits().val_dataloader()))
    log_q = module.adversary(x).log_softmax(1)
    uniform = (-math.log(10) - log_q).mean().item()  # KL(uniform, q) = −log K − mean log q
    assert uniform > F.cross_entropy(module.adversary(x), next(iter(digits().val_dataloader()))[1])
    assert module.divergence_bound == pytest.approx(1.25 * uniform, rel=1e-5)


def train_adversary(module):
    """Fit the adversary to all digits, so that it is sure of its answers."""
    data = NATDataModule("digits")
    data.setup()
    x, labels = data.parts["train"][range(1080)]
    network = module.adversary.requires_grad_(True)
    optimizer = torch.optim.Adam(network.parameters(), 0.01)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(network(x), labels).backward()
        optimizer.step()
    network.requires_grad_(False).zero_grad(set_to_none=True)


@pytest.fixture(scope="module")
def seven():
    """A trained module, and a datamodule of 7 images in batches of 2 of which some are right and some are not."""
    module = fit(build("at_mix", eps=0.08, test_attacks="fgsm,pgd3,cw3"), NATDataModule("digits"), epochs=6)
    data = NATDataModule("digits", eval_batch_size=2)
    data.setup()
    x, labels = data.parts["test"][range(597)]
    with torch.no_grad():
        clean = module.model(x).argmax(1) == labels
        hit = module.model(fgsm(module.model, x, labels, 0.08)).argmax(1) == labels
    groups = (~clean, clean & ~hit, clean & hit)
    chosen = torch.cat([group.nonzero()[:n, 0] for group, n in zip(groups, (2, 2, 3), strict=True)])
    data.parts["test"] = data.parts["test"].subset(chosen[torch.tensor([6, 0, 3, 1, 4, 2, 5])])
    data.parts["val"] = data.parts["test"]
    assert len(data.parts["test"]) == 7
    return module.eval(), data


def test_the_test_scores_each_of_seven_items_once_in_batches_of_two(seven):
    module, data = seven
    (found,) = trainer().test(module, data, verbose=False)
    metrics = {name.removeprefix("test/"): value for name, value in found.items()}
    x, labels = data.parts["test"][range(7)]
    logits = module.model(x)
    p = logits.softmax(1)
    true = logits.gather(1, labels[:, None])[:, 0]
    others = logits.scatter(1, labels[:, None], -math.inf).amax(1)
    hit = module.model(fgsm(module.model, x, labels, 0.08)).argmax(1) == labels
    assert metrics["n"] == 7
    assert metrics["clean"] == pytest.approx(5 / 7)
    assert metrics["fgsm"] == pytest.approx(hit.float().mean().item()) == pytest.approx(3 / 7)
    entropy = -(p * p.log()).sum(1)
    assert metrics["entropy"] == pytest.approx(entropy.mean().item(), rel=1e-5)
    assert metrics["effective_classes"] == pytest.approx(entropy.exp().mean().item(), rel=1e-5)
    assert metrics["margin"] == pytest.approx((true - others).mean().item(), rel=1e-5)
    attacks = [metrics[name] for name in ("fgsm", "pgd3", "cw3")]
    assert metrics["average"] == pytest.approx(sum(attacks) / 3)
    assert metrics["worst"] <= min(attacks) + 1e-6
    assert max(attacks) <= metrics["clean"]


def test_validation_scores_each_of_seven_items_once_in_batches_of_two(seven):
    module, data = seven
    (found,) = trainer().validate(module, data, verbose=False)
    model, correct, clean, entropies = module.model, [], [], []
    for number, batch in enumerate(data.val_dataloader()):
        x, labels = batch
        noise = generator(0, "validation", number, 0)
        x_adv = pgd(model, x, labels, eps=0.08, alpha=0.02, steps=2, generator=noise)
        logits = model(x).detach()
        clean.append(logits.argmax(1) == labels)
        correct.append(clean[-1] & (model(x_adv).argmax(1) == labels))
        entropies.append(torch.distributions.Categorical(logits=logits).entropy())
    assert [len(part) for part in correct] == [2, 2, 2, 1]
    assert found["val/pgd"] == pytest.approx(torch.cat(correct).float().mean().item())
    assert found["val/clean"] == pytest.approx(5 / 7)
    assert 0 < found["val/pgd"] < 5 / 7
    assert found["val/entropy"] == pytest.approx(torch.cat(entropies).mean().item(), rel=1e-5)


def test_a_point_that_is_wrong_without_attack_counts_as_wrong_even_where_the_attack_puts_it_right(seven, monkeypatch):
    module, data = seven
    whole = NATDataModule("digits")
    whole.setup()
    x, labels = whole.parts["train"][range(1080)]
    with torch.no_grad():
        right = module.model(x).argmax(1) == labels
    example = torch.stack([x[right & (labels == digit)][0] for digit in range(10)])
    monkeypatch.setattr(nat.module, "pgd", lambda model, x, labels, **options: example[labels])
    (found,) = trainer().validate(module, data, verbose=False)
    assert found["val/pgd"] == found["val/clean"] == pytest.approx(5 / 7)


def test_validation_tells_how_far_the_target_is_from_its_adversary():
    module = build(temperature=2.0)
    train_adversary(module)
    data = digits(eval_batch_size=7)
    (found,) = trainer().validate(module, data, verbose=False)
    x, _ = data.parts["val"][range(20)]
    with torch.no_grad():
        log_p, log_q = ((network(x) / 2).log_softmax(1) for network in (module.model, module.adversary))
    expected = 4 * (log_p.exp() * (log_p - log_q)).sum(1).mean().item()
    assert found["val/divergence"] == pytest.approx(expected, rel=1e-4)


def test_two_runs_of_one_seed_are_equal_and_of_another_are_not():
    first, second, other = (copy_of(fit(build(seed=seed), digits(seed=seed)).model) for seed in (3, 3, 4))
    assert_same(first, second)
    assert not torch.equal(first["head.weight"], other["head.weight"])


class Batches(torch.utils.data.Dataset):
    """Two good batches and then a bad one, already collated."""

    def __init__(self, spoil=None):
        self.spoil = spoil

    def __len__(self):
        return 3

    def __getitem__(self, index):
        x, labels = torch.full((4, 1, 8, 8), 0.5), torch.arange(4)
        if index == 2 and self.spoil == "label":
            labels[1] = 10
        elif index == 2 and self.spoil is not None:
            x[2, 0, 3, 3] = self.spoil
        return x, labels


@pytest.mark.parametrize("stage", ["fit", "validate", "test"])
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (float("nan"), r"images must be finite and lie in \[0, 1\], got values from nan to nan"),
        (1.5, r"images must be finite and lie in \[0, 1\], got values from 0.5 to 1.5"),
        (-0.25, r"images must be finite and lie in \[0, 1\], got values from -0.25 to 0.5"),
        ("label", r"labels must lie in \[0, 10\) for num_classes 10, got 0 to 10"),
    ],
)
def test_a_bad_batch_stops_every_stage_and_is_named(stage, spoil, message):
    module = build("at_mix")
    good = torch.utils.data.DataLoader(Batches(), batch_size=None)
    bad = torch.utils.data.DataLoader(Batches(spoil), batch_size=None)
    with pytest.raises(ValueError, match=message):
        getattr(trainer(), stage)(module, bad, *([good] if stage == "fit" else []))
    if stage == "fit":
        assert module.trainer.global_step == 2  # the good batches were trained on


@pytest.mark.parametrize(("option", "value"), [("num_classes", 7), ("in_channels", 3)])
def test_a_network_for_other_data_is_refused_before_training(option, value):
    theirs = {"num_classes": 10, "in_channels": 1}[option]
    message = f"model.{option} is {value}, but the data has {theirs}: set --model.{option} {theirs}"
    with pytest.raises(ValueError, match=message):
        fit(build("at_mix", arch="resnet18", **{option: value}))


def test_onecycle_ends_with_the_last_step():
    module = build("at_mix", optim=Optimisation(optimizer="adam", lr=0.01, schedule="onecycle"))
    watch = Watch(on_train_batch_start=lambda m: m.optimizers().param_groups[0]["lr"])
    fit(module, epochs=4, callbacks=[watch])
    rates = watch.seen["on_train_batch_start"]
    assert len(rates) == 12
    assert max(rates) == pytest.approx(0.01, rel=0.05)
    assert rates[0] == pytest.approx(0.01 / 25)
    assert rates[-1] < rates[0]


def test_multistep_decays_at_its_milestones():
    module = build("at_mix", optim=Optimisation(lr=0.08, milestones=[1, 3], decay=0.5))
    watch = Watch(on_train_epoch_start=lambda m: m.optimizers().param_groups[0]["lr"])
    fit(module, digits(16), epochs=4, callbacks=[watch])
    assert watch.seen["on_train_epoch_start"] == pytest.approx([0.08, 0.04, 0.04, 0.02])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"omega": -0.1}, "omega must be a finite number >= 0, got -0.1"),
        ({"temperature": 0.0}, "temperature must be a finite number > 0, got 0.0"),
        ({"kl_cap": 0.0}, "kl_cap must be > 0, or None for no cap, got 0.0"),
        ({"eps": "8/0"}, "eps must be a number or fraction"),
        ({"steps": -1}, "steps must be >= 0, got -1"),
        ({"test_attacks": "pgd20,nope"}, "attacks must be names out of .*, got 'nope'"),
        ({"beta": -1.0}, "beta must be a finite number >= 0, got -1.0"),
        ({"awp_gamma": math.inf}, "gamma must be a finite number >= 0, got inf"),
    ],
)
def test_options_outside_their_range_are_refused_when_the_module_is_made(options, message):
    with pytest.raises(ValueError, match=message):
        build(**options)
