"""The LightningModule in Lightning's own loops, on a few digits: what is minimised, returned, logged and stepped."""

import math
import types

import orderdp.module
import pytest
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers.logger import DummyLogger
from orderdp.data import OrderDPData
from orderdp.module import Optimisation, OrderDPModule
from orderdp.pruning import Pruning
from timm.optim import Lars
from torch.optim.lr_scheduler import OneCycleLR

FULL = Pruning("full")
STEPS = 3  # of an epoch of 48 images in batches of 16


class Watch(Callback):
    """Calls functions of (module, hook's arguments) at Lightning's hooks and keeps what they return."""

    def __init__(self, **functions):
        self.seen = {hook: [] for hook in functions}
        for hook, function in functions.items():
            setattr(self, hook, lambda trainer, module, *a, h=hook, f=function: self.seen[h].append(f(module, *a)))


class Log(DummyLogger):
    """Keeps what is logged."""

    def __init__(self):
        super().__init__()
        self.rows = []

    def log_metrics(self, metrics, step=None):
        self.rows.append(metrics)

    def column(self, name):
        return [row[name] for row in self.rows if name in row]


def build(init=0, **options):
    """A module whose network is drawn from the seed `init`."""
    with torch.random.fork_rng():
        torch.manual_seed(init)
        return OrderDPModule(**{"image_size": 8, **options})


def digits(pruning=FULL, train=48, batch=16):
    """The digits, cut down to a few training images."""
    data = OrderDPData(pruning, dataset="digits", batch_size=batch, eval_batch_size=2)
    data.setup()
    for part, size in {"train": train, "val": 20, "test": 7}.items():
        views = data.parts[part]
        views.chosen, views.labels = views.chosen[:size], views.labels[:size]
    return data


def trainer(epochs=1, **options):
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    settings = {"accelerator": "cpu", "logger": False, "num_sanity_val_steps": 0, "log_every_n_steps": 1}
    return Trainer(max_epochs=epochs, reload_dataloaders_every_n_epochs=1, **{**quiet, **settings, **options})


def fit(module, data=None, epochs=1, **options):
    trainer(epochs, **options).fit(module, digits() if data is None else data)
    return module


def smoothed(logits, labels, a):
    """Cross-entropy with the target (1 - a) at the label and a / K everywhere, written out."""
    log_p = logits - logits.exp().sum(1, keepdim=True).log()
    return -(1 - a) * log_p[torch.arange(len(labels)), labels] - a * log_p.mean(1)


@pytest.mark.parametrize("a", [0.0, 0.1, 0.4])
def test_the_loss_of_each_sample_is_its_smoothed_cross_entropy_and_the_loss_their_mean(a):
    watch = Watch(
        on_train_batch_start=lambda module, batch, index: module(batch[0]).detach(),
        on_train_batch_end=lambda module, outputs, batch, index: (outputs, batch[1]),
    )
    fit(build(label_smoothing=a), callbacks=[watch])
    for logits, (outputs, labels) in zip(*watch.seen.values(), strict=True):
        expected = smoothed(logits, labels, a)
        torch.testing.assert_close(outputs["losses"], expected, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(outputs["loss"], expected.mean(), rtol=1e-5, atol=1e-6)
        assert not outputs["losses"].requires_grad


def test_the_losses_of_the_samples_are_their_scores():
    watch = Watch(on_train_batch_end=lambda module, outputs, *_: (module.trainer.datamodule.indices, outputs["losses"]))
    data = digits(Pruning(keep=0.5, explore=0.75))
    fit(build(label_smoothing=0.1), data, callbacks=[watch])
    assert data.pruner.scores.visits.sum() == 24
    for indices, losses in watch.seen["on_train_batch_end"]:
        assert data.pruner.scores.values[indices].tolist() == losses.tolist()


def test_infobatch_minimises_the_weighted_losses_and_stores_them_unweighted():
    watch = Watch(
        on_train_batch_start=lambda module, batch, index: (module(batch[0]).detach(), batch[1]),
        on_train_batch_end=lambda module, outputs, *_: (
            outputs,
            module.trainer.datamodule.weights,
            module.trainer.datamodule.indices,
        ),
    )
    data = digits(Pruning("infobatch", prune=0.75, delta=1.0))
    fit(build(), data, epochs=3, callbacks=[watch])
    used = set()
    for (logits, labels), (outputs, weights, indices) in zip(*watch.seen.values(), strict=True):
        expected = smoothed(logits, labels, 0.0)
        torch.testing.assert_close(outputs["losses"], expected, rtol=1e-5, atol=1e-6)
        w = torch.ones(len(indices)) if weights is None else weights
        torch.testing.assert_close(outputs["loss"], (w * expected).mean(), rtol=1e-5, atol=1e-6)
        used |= set(w.tolist())
    assert used == {1.0, 4.0}  # 1 / (1 - r)


def test_the_logged_gradient_norm_has_the_mean_and_variance_of_its_steps():
    watch = Watch(
        on_before_optimizer_step=lambda module, _: (
            torch.cat([p.grad.flatten() for p in module.parameters()]).double().pow(2).sum().sqrt().item()
        )
    )
    fit(build(), epochs=4, logger=(log := Log()), callbacks=[watch])
    norms = torch.tensor(watch.seen["on_before_optimizer_step"]).view(4, STEPS)
    assert log.column("train/grad_norm") == pytest.approx(norms.mean(1).tolist(), rel=1e-5)
    squares = (norms**2).mean(1) - norms.mean(1) ** 2
    assert log.column("train/grad_norm_variance") == pytest.approx(squares.tolist(), rel=1e-2)


def test_the_logged_loss_and_rate_are_the_mean_of_the_epoch_and_its_last():
    watch = Watch(
        on_train_batch_end=lambda module, outputs, *_: (
            outputs["loss"].item(),
            module.trainer.optimizers[0].param_groups[0]["lr"],
        )
    )
    fit(build(), epochs=3, logger=(log := Log()), callbacks=[watch])
    steps = torch.tensor(watch.seen["on_train_batch_end"]).view(3, STEPS, 2)
    assert log.column("train/loss") == pytest.approx(steps[..., 0].mean(1).tolist(), rel=1e-5)
    assert log.column("train/lr") == pytest.approx(steps[:, -1, 1].tolist(), rel=1e-5)


@pytest.mark.parametrize("pruning", [FULL, Pruning(keep=0.5, explore=0.75)], ids=["full", "orderdp"])
@pytest.mark.parametrize("optimizer", ["sgd", "lars"])
def test_each_step_has_torchs_one_cycle_rate_over_the_steps_that_are_taken(pruning, optimizer):
    watch = Watch(on_before_optimizer_step=lambda module, optimizer: optimizer.param_groups[0]["lr"])
    optim = Optimisation(optimizer, max_lr=0.3, pct_start=0.4, div=10.0, final_div=100.0, momentum=0.0)
    module = fit(build(optim=optim), digits(pruning, batch=8), epochs=5, callbacks=[watch])
    total = 5 * (6 if pruning is FULL else 3)
    assert module.trainer.global_step == total
    other = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    schedule = OneCycleLR(
        other, 0.3, total_steps=total, pct_start=0.4, div_factor=10, final_div_factor=100, cycle_momentum=False
    )
    expected = []
    for _ in range(total):
        expected.append(other.param_groups[0]["lr"])
        other.step()
        schedule.step()
    assert watch.seen["on_before_optimizer_step"] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("optimizer", "kind", "momentum"), [("sgd", torch.optim.SGD, 0.9), ("lars", Lars, 0.0)])
def test_momentum_is_constant(optimizer, kind, momentum):
    watch = Watch(on_before_optimizer_step=lambda module, optimizer: optimizer.param_groups[0]["momentum"])
    optim = Optimisation(optimizer, momentum=momentum, weight_decay=1e-5, trust_coefficient=0.02)
    module = fit(build(optim=optim), epochs=4, callbacks=[watch])
    assert watch.seen["on_before_optimizer_step"] == [momentum] * 4 * STEPS
    (group,) = module.trainer.optimizers[0].param_groups
    assert type(module.trainer.optimizers[0]) is kind
    assert group["weight_decay"] == 1e-5
    if kind is Lars:
        assert group["trust_coeff"] == 0.02
    assert {id(p) for p in group["params"]} == {id(p) for p in module.parameters()}


def test_a_step_of_sgd_is_the_one_worked_out_from_its_gradients():
    watch = Watch(
        on_before_optimizer_step=lambda module, optimizer: (
            [p.detach().clone() for p in module.parameters()],
            [p.grad.clone() for p in module.parameters()],
            optimizer.param_groups[0]["lr"],
        ),
        on_train_batch_end=lambda module, *_: [p.detach().clone() for p in module.parameters()],
    )
    fit(build(optim=Optimisation(max_lr=0.2, weight_decay=0.01, div=2.0)), callbacks=[watch], epochs=2)
    # The first step has no momentum yet.
    (weights, gradients, lr), moved = watch.seen["on_before_optimizer_step"][0], watch.seen["on_train_batch_end"][0]
    assert lr > 0.05
    for weight, gradient, after in zip(weights, gradients, moved, strict=True):
        torch.testing.assert_close(after, weight - lr * (gradient + 0.01 * weight), rtol=1e-6, atol=1e-7)


def test_gradients_reach_every_parameter():
    watch = Watch(on_after_backward=lambda module: [p.grad is not None and bool(p.grad.any()) for p in
                                                    module.parameters()])  # fmt: skip
    fit(build(), callbacks=[watch])
    reached = torch.tensor(watch.seen["on_after_backward"])
    assert reached.any(0).all()


def test_each_of_seven_items_is_scored_once_in_batches_of_two():
    module, data = build(label_smoothing=0.3), digits()
    (found,) = trainer().test(module, data, verbose=False)
    x, labels = data.parts["test"].__getitems__(range(7))
    logits = module(x).detach()
    assert found["test/n"] == 7
    assert found["test/accuracy"] == pytest.approx((logits.argmax(1) == labels).float().mean().item())
    assert found["test/loss"] == pytest.approx(smoothed(logits, labels, 0.0).mean().item(), rel=1e-5)
    (found,) = trainer().validate(module, data, verbose=False)
    x, labels = data.parts["val"].__getitems__(range(20))
    assert found["val/accuracy"] == pytest.approx((module(x).argmax(1) == labels).float().mean().item())


def test_seconds_are_those_from_an_epochs_start_to_its_last_batch(monkeypatch):
    clock = {"now": 0.0}
    monkeypatch.setattr(orderdp.module, "time", types.SimpleNamespace(perf_counter=lambda: clock["now"]))

    def pass_time(seconds):
        return lambda *_: clock.update(now=clock["now"] + seconds)

    watch = Watch(on_train_batch_end=pass_time(1), on_validation_start=pass_time(100), on_train_end=pass_time(1000))
    module = fit(build(), epochs=4, callbacks=[watch])
    assert module.train_seconds == 4 * STEPS
    module.on_save_checkpoint(checkpoint := {})
    again = build()
    again.on_load_checkpoint(checkpoint)
    assert again.train_seconds == 4 * STEPS


def test_a_training_without_an_end_is_refused():
    with pytest.raises(ValueError, match=r"trainer.max_epochs must be set"):
        fit(build(), epochs=-1)


def test_two_modules_do_not_share_their_settings():
    first, second = build(), build()
    assert first.optim == second.optim == Optimisation()
    assert first.optim is not second.optim


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_lr": 0.0}, "optim.max_lr must be a finite number > 0, got 0.0"),
        ({"max_lr": math.nan}, "optim.max_lr must be a finite number > 0, got nan"),
        ({"max_lr": math.inf}, "optim.max_lr must be a finite number > 0, got inf"),
        ({"trust_coefficient": 0.0}, "optim.trust_coefficient must be a finite number > 0, got 0.0"),
        ({"div": -1.0}, "optim.div must be a finite number > 0, got -1.0"),
        ({"final_div": 0.0}, "optim.final_div must be a finite number > 0, got 0.0"),
        ({"momentum": 1.0}, r"optim.momentum must lie in \[0, 1\), got 1.0"),
        ({"momentum": -0.1}, r"optim.momentum must lie in \[0, 1\), got -0.1"),
        ({"weight_decay": -1e-4}, "optim.weight_decay must be a finite number >= 0, got -0.0001"),
        ({"weight_decay": math.inf}, "optim.weight_decay must be a finite number >= 0, got inf"),
        ({"pct_start": 0.0}, r"optim.pct_start must lie in \(0, 1\), got 0.0"),
        ({"pct_start": 1.0}, r"optim.pct_start must lie in \(0, 1\), got 1.0"),
        ({"optimizer": "adam"}, "optim.optimizer must be sgd or lars, got 'adam'"),
    ],
)
def test_settings_of_the_optimiser_out_of_range_are_refused_by_name(settings, message):
    with pytest.raises(ValueError, match=message):
        Optimisation(**settings)


@pytest.mark.parametrize("settings", [{"momentum": 0.0}, {"weight_decay": 0.0}, {"pct_start": 1e-6}, {"div": 0.5}])
def test_the_ends_of_the_ranges_are_allowed(settings):
    optim = Optimisation(**settings)
    assert {name: getattr(optim, name) for name in settings} == settings


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label_smoothing": 1.0}, r"label_smoothing must lie in \[0, 1\), got 1.0"),
        ({"label_smoothing": -0.1}, r"label_smoothing must lie in \[0, 1\), got -0.1"),
        ({"num_classes": 1}, "num_classes must be at least 2, got 1"),
        ({"arch": "resnet19"}, "arch must be small_cnn, .*, got 'resnet19'"),
    ],
)
def test_options_out_of_range_are_refused_when_the_module_is_made(options, message):
    with pytest.raises(ValueError, match=message):
        build(**options)
