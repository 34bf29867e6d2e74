import csv
import json

import nat.evaluate as evaluate
import pytest
import torch
from nat.evaluate import (
    MaskingCheck,
    gradient_size,
    masking_report,
    robust_correct,
    robustness_curve,
    summarise,
    write_report,
)
from torch import nn

SIDE = 4
# Distances to the boundary of the eight points of `points`; the last two are labelled wrongly.
DISTANCES = torch.tensor([0.35, 0.25, 0.15, 0.05, -0.05, -0.15, 0.3, -0.1])
RIGHT = torch.tensor([True, True, True, True, True, True, False, False])


class Slab(nn.Module):
    """Logits (s, -s, -10, -10), s = scale * a . (x - 1/2), ||a||_1 = 1: a hyperplane between 0 and 1."""

    def __init__(self, scale=1.0):
        super().__init__()
        # Positive, so that the best perturbation is a uniform shift and Square finds it too.
        a = 0.5 + torch.rand(SIDE * SIDE, generator=torch.Generator().manual_seed(0))
        self.a = nn.Parameter(a / a.sum())
        self.scale = scale

    def forward(self, x):
        s = self.scale * ((x.flatten(1) - 0.5) @ self.a)
        others = torch.full_like(s, -10.0 * self.scale)
        return torch.stack([s, -s, others, others], dim=1)


def points():
    """Images at l_inf distance |d| from the boundary, and labels."""
    x = (0.5 + DISTANCES).view(-1, 1, 1, 1).expand(-1, 1, SIDE, SIDE).clone()
    return x, torch.where(RIGHT, DISTANCES < 0, DISTANCES > 0).long()


def make_generator(seed=0):
    return torch.Generator().manual_seed(seed)


def flags(text):
    return torch.tensor([letter == "1" for letter in text])


@pytest.mark.parametrize("eps", [0.02, 0.1, 0.2, 0.3, 1.0])
@pytest.mark.parametrize("name", ["fgsm", "pgd20", "cw", "apgd-ce"])
def test_robust_accuracy_on_a_hyperplane_is_the_share_farther_than_eps(name, eps):
    correct = robust_correct(Slab(), *points(), name, eps, generator=make_generator())
    assert torch.equal(correct["clean"], RIGHT)
    assert torch.equal(correct[name], RIGHT & (DISTANCES.abs() > eps))


def test_eps_zero_is_clean_accuracy():
    correct = robust_correct(Slab(), *points(), "fgsm,pgd20,aa", 0.0, generator=make_generator())
    assert all(torch.equal(values, RIGHT) for values in correct.values())


def test_points_wrong_without_attack_are_not_attacked_and_stay_wrong(monkeypatch):
    attacked = []

    def mirror(name, model, x, labels, **options):
        attacked.append(labels)
        return 1 - x  # changes every prediction: it would correct the wrong ones

    monkeypatch.setattr(evaluate, "attack_batch", mirror)
    x, labels = points()
    correct = robust_correct(Slab(), x, labels, ["pgd20"], 1.0, generator=make_generator())
    assert torch.equal(attacked[0], labels[RIGHT])
    assert not correct["pgd20"].any()


def test_nothing_is_attacked_if_nothing_is_right():
    x, labels = points()
    correct = robust_correct(Slab(), x[RIGHT], 1 - labels[RIGHT], "fgsm,aa", 0.1, generator=make_generator())
    assert {name: values.any().item() for name, values in correct.items()} == {
        "clean": False,
        "fgsm": False,
        "aa": False,
    }


def test_an_attacks_randomness_depends_on_the_generator_and_not_on_its_company(monkeypatch):
    def seeds(attacks, generator):
        seen = {}

        def spy(name, model, x, labels, *, generator, seed, **options):
            seen[name] = (generator.initial_seed(), seed)
            return x

        monkeypatch.setattr(evaluate, "attack_batch", spy)
        robust_correct(Slab(), *points(), attacks, 0.1, generator=generator)
        return seen

    alone, together = seeds("pgd20", make_generator()), seeds("fgsm,square,pgd20,pgd100", make_generator())
    assert alone["pgd20"] == together["pgd20"] == together["pgd100"] == together["square"]
    assert seeds("pgd20", make_generator(1)) != alone
    generator = make_generator()
    assert seeds("pgd20", generator) != seeds("pgd20", generator)


def test_seven_points_in_batches_of_two_are_all_scored():
    x, labels = points()
    whole = robust_correct(Slab(), x[:7], labels[:7], "fgsm,cw", 0.2, generator=make_generator())
    parts = robust_correct(Slab(), x[:7], labels[:7], "fgsm,cw", 0.2, generator=make_generator(), batch_size=2)
    assert list(parts) == ["clean", "fgsm", "cw"]
    assert all(torch.equal(parts[name], whole[name]) for name in whole)
    assert summarise(parts)["n"] == 7


def test_flags_of_the_network_are_restored():
    model = nn.Sequential(nn.BatchNorm2d(1), Slab()).train()
    model[1].eval()
    mean = model[0].running_mean.clone()
    robust_correct(model, *points(), "fgsm,pgd5", 0.2, generator=make_generator())
    assert [module.training for module in model.modules()] == [True, True, False]
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    assert torch.equal(model[0].running_mean, mean)


def test_bad_input_is_refused():
    x, labels = points()
    softmax = nn.Sequential(Slab(), nn.Softmax(1))
    three = nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 3))
    cases = [
        (Slab(), labels, "deepfool", 0.1, "attacks must be names"),
        (Slab(), labels + 3, "fgsm", 0.1, "labels"),
        (softmax, labels, "fgsm", 0.1, "logits"),
        (three, labels, "pgd20,aa", 0.1, "at least 4 classes, got 3"),
        (Slab(), labels, "fgsm", 1.5, "eps must be"),
    ]
    for model, wrong, attacks, eps, message in cases:
        with pytest.raises(ValueError, match=message):
            robust_correct(model, x, wrong, attacks, eps, generator=make_generator())
    with pytest.raises(ValueError, match="batch_size must be >= 1, got 0"):
        robust_correct(Slab(), x, labels, "fgsm", 0.1, generator=make_generator(), batch_size=0)


def test_summary_is_the_mean_over_attacks_and_the_points_right_under_all():
    metrics = summarise({"clean": flags("1110"), "fgsm": flags("1010"), "aa": flags("1100")})
    assert metrics == {"clean": 0.75, "fgsm": 0.5, "aa": 0.5, "average": 0.5, "worst": 0.25, "n": 4}
    assert summarise({"clean": flags("10")}) == {"clean": 0.5, "n": 2}


@pytest.mark.parametrize(
    "correct",
    [{"fgsm": flags("10")}, {"clean": flags("10"), "fgsm": flags("1")}, {"clean": flags("")}, {}],
)
def test_summary_needs_every_attack_over_the_same_points(correct):
    with pytest.raises(ValueError, match="'clean' and attacks over the same points, got lengths"):
        summarise(correct)


def test_curve_on_a_hyperplane_counts_the_points_farther_than_each_eps():
    curve = robustness_curve(Slab(), *points(), [0.3, 0, 0.1, 1, 0.2], generator=make_generator())
    assert list(curve.items()) == [(0, 6 / 8), (0.1, 4 / 8), (0.2, 2 / 8), (0.3, 1 / 8), (1, 0)]


def test_a_point_broken_in_a_small_ball_stays_broken_in_larger_ones(monkeypatch):
    def only_small(name, model, x, labels, *, eps, **options):
        bright = x.mean((1, 2, 3), keepdim=True) > 0.5  # class 0: four of the six that are right
        return torch.where(bright, 1 - x, x) if eps == 0.1 else x

    monkeypatch.setattr(evaluate, "attack_batch", only_small)
    curve = robustness_curve(Slab(), *points(), [0.2, 0.05, 0.1], steps=3, generator=make_generator())
    assert curve == {0.05: 6 / 8, 0.1: 2 / 8, 0.2: 2 / 8}


def test_honest_network_passes_every_masking_check():
    checks = masking_report(Slab(), *points(), 0.2, make_generator())
    assert {check.name: check.value for check in checks} == {
        "square": 0,
        "wide_ball": 0,
        "more_steps": 0,
        "zero_gradients": 0,
        "average_gap": 0,
    }
    assert all(check.passed for check in checks)


def test_saturated_softmax_is_found_out():
    # At 10^4 times the margin softmax is one-hot in float32: no gradient where the prediction is right.
    model = Slab(scale=1e4)
    checks = {check.name: check for check in masking_report(model, *points(), 0.2, make_generator())}
    assert checks["zero_gradients"].value == 6 / 8
    # PGD stays at its random start, so all six survive it; two lie farther than eps and survive Square.
    assert checks["square"].value == (6 - 2) / 8
    assert checks["average_gap"].value == pytest.approx((6 / 8 + 6 / 8 + 2 / 8) / 3 - 2 / 8)
    assert checks["wide_ball"].value > 0.05
    assert [name for name, check in checks.items() if check.passed] == ["more_steps"]
    assert "exactly zero at 75.0% of the points (at most 10% expected): PGD" in checks["zero_gradients"].message
    assert "Square, which sees no gradient, is 50.0% below" in checks["square"].message


def test_report_uses_the_results_it_is_given():
    known = {
        "clean": flags("11111100"),
        "pgd20": flags("11100000"),
        "pgd100": flags("11110000"),
        "cw40": flags("01110000"),
        "square": flags("01000000"),
        "aa": flags("01000000"),
    }
    checks = {c.name: c for c in masking_report(Slab(), *points(), 0.2, make_generator(), correct=known)}
    assert checks["more_steps"].value == 1 / 8
    assert checks["square"].value == 1 / 8  # two survive all of pgd20, pgd100 and cw40; one survives Square
    assert checks["average_gap"].value == pytest.approx((3 + 4 + 3 + 1 + 1) / 40 - 1 / 8)
    assert "minus aa is" in checks["average_gap"].message
    assert not checks["more_steps"].passed


def test_report_refuses_results_about_other_points_and_an_empty_ball():
    with pytest.raises(ValueError, match="correct must hold 8 points, got 2"):
        masking_report(Slab(), *points(), 0.2, make_generator(), correct={"clean": flags("10")})
    with pytest.raises(ValueError, match="eps must be > 0"):
        masking_report(Slab(), *points(), 0.0, make_generator())


def test_gradient_size_is_that_of_each_image_alone():
    model, (x, labels) = Slab(), points()
    p = model(x).softmax(1).detach()
    # dCE/ds = (p_0 - [y = 0]) - (p_1 - [y = 1]), and the weights have mean 1 / 16.
    slope = (p[:, 0] - (labels == 0).float()) - (p[:, 1] - (labels == 1).float())
    torch.testing.assert_close(gradient_size(model, x, labels), slope.abs() / SIDE**2)
    torch.testing.assert_close(gradient_size(model, x[:1], labels[:1]), slope[:1].abs() / SIDE**2)


def test_everything_works_inside_inference_mode():
    model = Slab()
    with torch.inference_mode():
        checks = masking_report(model, *points(), 0.4, make_generator(), batch_size=3)
    assert all(check.passed for check in checks)


def test_written_report_reads_back(tmp_path):
    check = MaskingCheck("square", 0.0, 0.01, True, "fine")
    written = write_report(tmp_path / "a" / "b", {"clean": 0.75, "n": 8.0}, {0.0: 0.75, 0.1: 0.5}, [check])
    assert [path.name for path in written] == ["metrics.json", "metrics.csv", "curve.csv"]
    assert sorted(path.name for path in (tmp_path / "a" / "b").iterdir()) == sorted(p.name for p in written)
    report = json.loads(written[0].read_text())
    assert report["metrics"] == {"clean": 0.75, "n": 8}
    assert report["curve"] == [{"eps": 0, "accuracy": 0.75}, {"eps": 0.1, "accuracy": 0.5}]
    assert report["checks"] == [{"name": "square", "value": 0, "threshold": 0.01, "passed": True, "message": "fine"}]
    with written[1].open(newline="") as file:
        assert list(csv.reader(file)) == [["metric", "value"], ["clean", "0.75"], ["n", "8.0"]]
    assert written[2].read_text() == "eps,accuracy\n0.0,0.75\n0.1,0.5\n"


def test_report_with_a_missing_number_is_refused_and_nothing_written(tmp_path):
    with pytest.raises(ValueError, match="metric 'aa' must be finite, got nan"):
        write_report(tmp_path / "out", {"clean": 1.0, "aa": float("nan")})
    assert not (tmp_path / "out").exists()
