import logging
import random
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from nat.attack_suite import (
    LIBRARY_ATTACKS,
    attack_batch,
    auto_attack,
    check_attacks,
    check_threat,
    parse_attacks,
    parse_eps,
)
from torch import nn

SIDE = 4
STANDARD = ["apgd-ce", "apgd-t", "fab-t", "square"]
DISTANCES = torch.tensor([0.35, 0.25, 0.15, 0.05, -0.05, -0.15, -0.25, -0.35])


class Slab(nn.Module):
    """Logits (s, -s, -10, ...) with s = a . (x - 1/2): the boundary between 0 and 1 is a hyperplane."""

    def __init__(self, num_classes=4):
        super().__init__()
        a = torch.randn(SIDE * SIDE, generator=torch.Generator().manual_seed(0))
        self.a = nn.Parameter(a / a.abs().sum())
        self.num_classes = num_classes

    def forward(self, x):
        s = (x.flatten(1) - 0.5) @ self.a
        others = s.new_full((len(x), self.num_classes - 2), -10.0)
        return torch.cat([s[:, None], -s[:, None], others], dim=1)


def points(model):
    """Images at l_inf distance |d| from the boundary, d > 0 in class 0: broken exactly if eps > |d|."""
    direction = model.a.detach().sign().view(1, 1, SIDE, SIDE)
    return 0.5 + DISTANCES.view(-1, 1, 1, 1) * direction, (DISTANCES < 0).long()


def bent_network():
    """A network with curvature, four random images, and its predictions."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 16), nn.Tanh(), nn.Linear(16, 4))
    x = torch.rand(4, 1, SIDE, SIDE)
    return model, x, model(x).argmax(1)


def make_generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(
    ("text", "value"),
    [("8/255", 8 / 255), (" 8 / 255 ", 8 / 255), ("0.03", 0.03), ("1e-2", 0.01), ("0", 0), (1, 1)],
)
def test_eps_is_a_fraction_a_decimal_or_a_number(text, value):
    assert parse_eps(text) == value


@pytest.mark.parametrize("text", ["8", "-1/255", "8/0", "eight", "", "nan", float("nan"), float("inf"), 1.01, -0.1])
def test_eps_that_is_no_number_in_the_unit_interval_is_refused(text):
    with pytest.raises(ValueError, match=r"eps must be .* in \[0, 1\] .*got "):
        parse_eps(text)


def test_attacks_keep_their_order_and_come_once():
    assert parse_attacks("fgsm, PGD20,cw,aa,pgd20") == ("fgsm", "pgd20", "cw", "aa")
    assert parse_attacks(["square", "cw10"]) == ("square", "cw10")


@pytest.mark.parametrize("text", ["", "pgd", "pgd0", "pgd20x", "fgsm,", "deepfool"])
def test_unknown_attack_is_refused_with_the_list(text):
    with pytest.raises(ValueError, match=r"fgsm, pgdN .*square, got"):
        parse_attacks(text)
    with pytest.raises(ValueError, match="got ''"):
        parse_attacks([])


@pytest.mark.parametrize("name", ["fgsm", "pgd20", "pgd8", "cw", "cw10", "apgd-ce", "apgd-t", "fab-t"])
def test_every_attack_breaks_exactly_the_points_nearer_than_eps(name):
    model = Slab()
    x, labels = points(model)
    x_adv = attack_batch(name, model, x, labels, eps=0.2, generator=make_generator())
    assert ((model(x_adv).argmax(1) == labels) == (DISTANCES.abs() > 0.2)).all()


def test_square_finds_the_best_uniform_shift():
    model = Slab()
    model.a.data.abs_()  # now the best perturbation is one square as large as the image
    x, labels = points(model)
    near = DISTANCES.abs() < 0.2
    x_adv = attack_batch("square", model, x[near], labels[near], eps=0.2, generator=make_generator())
    assert (model(x_adv).argmax(1) != labels[near]).all()


def test_autoattack_breaks_exactly_the_points_nearer_than_eps():
    model = Slab()
    x, labels = points(model)
    x_adv = attack_batch("aa", model, x, labels, eps=0.2, generator=make_generator())
    robust = DISTANCES.abs() > 0.2
    assert ((model(x_adv).argmax(1) == labels) == robust).all()
    assert torch.equal(x_adv[robust], x[robust])


@pytest.mark.parametrize("name", ["apgd-ce", "fab-t"])
def test_two_classes_are_enough_without_the_targeted_dlr_loss(name):
    model = Slab(num_classes=2)
    x, labels = points(model)
    x_adv = attack_batch(name, model, x, labels, eps=0.2, generator=make_generator())
    assert ((model(x_adv).argmax(1) == labels) == (DISTANCES.abs() > 0.2)).all()


@pytest.mark.parametrize("name", ["aa", "apgd-t"])
def test_three_classes_are_refused_by_the_targeted_dlr_loss(name):
    model = Slab(num_classes=3)
    with pytest.raises(ValueError, match="at least 4 classes, got 3; use apgd-ce"):
        attack_batch(name, model, *points(model), eps=0.2, generator=make_generator())
    check_attacks(["pgd20", "square", "fab-t"], 3)


@pytest.mark.parametrize("name", ["fgsm", "pgd20", "cw", "aa"])
def test_eps_zero_returns_a_copy(name):
    model = Slab()
    x, labels = points(model)
    x_adv = attack_batch(name, model, x, labels, eps=0, generator=make_generator())
    assert torch.equal(x_adv, x)
    assert x_adv.data_ptr() != x.data_ptr()


def test_alpha_is_a_quarter_of_eps_by_default_and_reaches_pgd_and_cw():
    model = Slab()
    x, labels = points(model)
    for name in ("pgd3", "cw3"):

        def run(name=name, **options):
            return attack_batch(name, model, x, labels, eps=0.2, generator=make_generator(), **options)

        assert torch.equal(run(), run(alpha=0.05))
        assert not torch.equal(run(), run(alpha=0.01))


@pytest.mark.parametrize("name", ["pgd20", "aa", "square"])
def test_softmax_output_is_refused(name):
    model = Slab()
    with pytest.raises(ValueError, match="logits"):
        attack_batch(name, nn.Sequential(model, nn.Softmax(1)), *points(model), eps=0.2, generator=make_generator())


def test_bad_images_are_refused_by_the_library_attacks():
    model = Slab()
    x, labels = points(model)
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        attack_batch("square", model, x + 1, labels, eps=0.2, generator=make_generator())
    with pytest.raises(ValueError, match=r"\(B, C, H, W\), got shape \(8, 16\)"):
        attack_batch("square", model, x.flatten(1), labels, eps=0.2, generator=make_generator())


@pytest.mark.parametrize("shift", [0.21, -0.21, float("nan")])
def test_leaving_the_ball_or_the_box_is_an_error(shift):
    x = torch.full((1, 1, 2, 2), 0.5)
    with pytest.raises(RuntimeError, match="'toy' left its threat model"):
        check_threat("toy", x, x + shift, 0.2)
    with pytest.raises(RuntimeError, match="pixels in"):
        check_threat("toy", x + 0.45, x + 0.55, 0.2)
    check_threat("toy", x, x + 0.2, 0.2)


@pytest.mark.parametrize("name", LIBRARY_ATTACKS)
def test_library_attack_depends_on_its_seed_only_and_leaves_all_generators_alone(name):
    model, x, labels = bent_network()
    results = []
    for global_seed in (1, 2):
        torch.manual_seed(global_seed)
        before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
        results.append(auto_attack(name, model, x, labels, 0.9, seed=3))
        assert torch.equal(torch.get_rng_state(), before[0])
        assert random.getstate() == before[1]
        assert (np.random.get_state()[1] == before[2]).all()
    assert torch.equal(*results)


@pytest.mark.parametrize("name", ["fgsm", "pgd5", "cw5", "aa"])
def test_network_is_left_as_it_was(name):
    slab = Slab()
    model = nn.Sequential(nn.BatchNorm2d(1), nn.Dropout(0.5), slab).train()
    model[1].eval()
    model[0].weight.requires_grad_(False)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    attack_batch(name, model, *points(slab), eps=0.5, generator=make_generator())
    assert [module.training for module in model.modules()] == [True, True, False, True]
    assert [p.requires_grad for p in model.parameters()] == [False, True, True]
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())


def test_library_is_silent_unless_asked(capfd, caplog):
    model = Slab()
    x, labels = points(model)
    with caplog.at_level(logging.DEBUG):
        auto_attack("aa", model, x, labels, 0.5, 0)
        assert not caplog.records
        auto_attack("aa", model, x, labels, 0.5, 0, verbose=True)
        assert any("apgd-ce" in record.getMessage() for record in caplog.records)
    assert capfd.readouterr() == ("", "")
    assert not logging.getLogger("auto-attack").disabled


def test_a_debuggers_tracer_survives():
    def tracer(frame, event, argument):
        return None

    model, outer = Slab(), sys.gettrace()
    sys.settrace(tracer)
    try:
        auto_attack("apgd-ce", model, *points(model), 0.5, 0)
        kept = sys.gettrace()
    finally:
        sys.settrace(outer)
    assert kept is tracer


def test_double_precision_networks_are_attacked_too():
    model = Slab().double()
    x, labels = points(model)
    x_adv = attack_batch("aa", model, x, labels, eps=0.5, generator=make_generator())
    assert x_adv.dtype == torch.float64
    assert (model(x_adv).argmax(1) != labels).all()


def test_library_runs_its_standard_version_with_as_many_targets_as_there_are(monkeypatch):
    seen = []

    class Recorder:
        def __init__(self, model, **options):
            self.apgd_targeted, self.fab = SimpleNamespace(), SimpleNamespace()
            self.attacks_to_run, self.options = STANDARD, options

        def run_standard_evaluation(self, x, labels, batch_size):
            assert self.options | {"version": "standard", "norm": "Linf", "eps": 0.2} == self.options
            targets = self.apgd_targeted.n_target_classes, self.fab.n_target_classes
            seen.append((*targets, self.attacks_to_run, batch_size, self.options["seed"]))
            return x, labels

    monkeypatch.setattr("nat.attack_suite.AutoAttack", Recorder)
    for num_classes, name, seed in ((4, "aa", 1), (10, "aa", 2), (100, "square", 3)):
        model = Slab(num_classes)
        auto_attack(name, model, *points(model), 0.2, seed)
    assert seen == [(3, 3, STANDARD, 8, 1), (9, 9, STANDARD, 8, 2), (9, 9, ["square"], 8, 3)]


def test_attacks_work_inside_inference_mode():
    model = Slab()
    with torch.inference_mode():
        x, labels = points(model)
        for name in ("fgsm", "pgd10", "aa"):
            x_adv = attack_batch(name, model, x, labels, eps=0.5, generator=make_generator())
            assert (model(x_adv).argmax(1) != labels).all()
