"""Robust accuracy under several attacks, and checks that gradient masking does not explain it.

PGD alone says too little: a network whose softmax saturates has vanishing cross-entropy gradients and looks
robust to PGD only. So the accuracies come with the worst case over all attacks and with a masking report.

Symbols: x (N, C, H, W) images in [0, 1]; labels (N,); K classes; eps radius of the l_inf ball.
All accuracies are fractions.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nat.attack import attack_mode, check_logits
from nat.attack_suite import attack_batch, check_attacks, parse_attacks, parse_eps

# Masking thresholds. Square and more steps: one point (Sec. 10). The others are ours: "about zero" is read as
# 5 points, and no baseline in the paper's table has a gap above 8 points.
SQUARE_THRESHOLD = 0.01
MORE_STEPS_THRESHOLD = 0.01
WIDE_BALL_THRESHOLD = 0.05
ZERO_GRADIENT_THRESHOLD = 0.10  # Sec. 10
GAP_THRESHOLD = 0.10


def robust_correct(
    model: nn.Module,
    x: Tensor,
    labels: Tensor,
    attacks: str | Sequence[str],
    eps: float,
    *,
    generator: torch.Generator,
    alpha: float | None = None,
    batch_size: int | None = None,
) -> dict[str, Tensor]:
    """Tell for each point whether it is classified correctly, clean and under each attack.

    A point that is wrong without an attack counts as wrong under every attack (Sec. 5), and is not attacked.
    All attacks start from one number drawn from the generator, so that the result of one does not depend on
    which others are run, and pgd20 and pgd100 share their random start.

    Args:
        model: (B, C, H, W) -> logits (B, K).
        x: (N, C, H, W) in [0, 1].
        labels: (N,).
        attacks: names, as for `parse_attacks`.
        eps: radius of the ball.
        generator: of all random starts.
        alpha: step size of pgdN and cwN; eps / 4 when None.
        batch_size: points per forward pass; all when None.

    Returns:
        "clean" and each attack -> (N,) bool. Average it with `summarise`.

    Raises:
        ValueError: for an unknown attack, a network that returns probabilities, a label that is no class, ...
    """
    names = parse_attacks(attacks) if attacks else ()
    if batch_size is not None:
        parts = [
            robust_correct(model, *batch, names, eps, generator=generator, alpha=alpha)
            for batch in batches(x, labels, batch_size)
        ]
        return {name: torch.cat([part[name] for part in parts]) for name in ("clean", *names)}
    seed = int(torch.randint(2**31, (), generator=generator, device=generator.device))
    with attack_mode(model), torch.no_grad():
        logits = model(x)
        check_logits(logits, labels)
        check_attacks(names, logits.shape[1])
        clean = logits.argmax(1) == labels
        correct = {"clean": clean}
        for name in names:
            correct[name] = clean.clone()
            if clean.any():
                start = torch.Generator(generator.device).manual_seed(seed)
                x_adv = attack_batch(
                    name, model, x[clean], labels[clean], eps=eps, alpha=alpha, generator=start, seed=seed
                )
                correct[name][clean] = model(x_adv).argmax(1) == labels[clean]
    return correct


def batches(x: Tensor, labels: Tensor, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield all points in order; the last batch may be smaller."""
    if batch_size < 1:
        raise ValueError(f"batch_size must be >= 1, got {batch_size}")
    for first in range(0, len(x), batch_size):
        yield x[first : first + batch_size], labels[first : first + batch_size]


def accuracy(correct: Tensor) -> float:
    """Return the share of True in (N,)."""
    return correct.double().mean().item()


def summarise(correct: Mapping[str, Tensor]) -> dict[str, float]:
    """Turn the result of `robust_correct`, over all points, into accuracies.

    Args:
        correct: "clean" and each attack -> (N,) bool.

    Returns:
        The accuracy under each key; and, if there are attacks, `average`, the mean of their accuracies (the
        paper's "Avg."; clean is not among them), and `worst`, the share of points correct under all; and `n`,
        the number of points scored.
    """
    lengths = {name: len(values) for name, values in correct.items()}
    if "clean" not in correct or len(set(lengths.values())) != 1 or lengths["clean"] == 0:
        raise ValueError(f"correct must hold 'clean' and attacks over the same points, got lengths {lengths}")
    metrics = {name: accuracy(values) for name, values in correct.items()}
    robust = [value for name, value in metrics.items() if name != "clean"]
    if robust:
        metrics["average"] = sum(robust) / len(robust)
        metrics["worst"] = accuracy(torch.stack(list(correct.values())).all(0))
    return metrics | {"n": float(lengths["clean"])}


def robustness_curve(
    model: nn.Module,
    x: Tensor,
    labels: Tensor,
    eps_values: Sequence[float],
    steps: int = 20,
    *,
    generator: torch.Generator,
    batch_size: int | None = None,
) -> dict[float, float]:
    """Measure PGD accuracy for several radii.

    A point broken within a ball is broken within every larger one, so each radius attacks only those that
    have survived the smaller ones, and the curve cannot rise.

    Args:
        model: (B, C, H, W) -> logits (B, K).
        x: (N, C, H, W) in [0, 1].
        labels: (N,).
        eps_values: radii in [0, 1]; 0 is the clean accuracy.
        steps: of PGD.
        generator: of the random starts.
        batch_size: points per forward pass; all when None.

    Returns:
        eps -> accuracy, by rising eps.
    """
    alive = torch.ones(len(x), dtype=torch.bool, device=x.device)
    attack, curve = f"pgd{steps}", {}
    for eps in sorted({parse_eps(value) for value in eps_values}):
        if alive.any():
            points = x[alive], labels[alive]
            survived = robust_correct(model, *points, (attack,), eps, generator=generator, batch_size=batch_size)
            alive[alive.clone()] = survived[attack]
        curve[eps] = accuracy(alive)
    return curve


@dataclass(frozen=True)
class MaskingCheck:
    """One symptom of gradient masking.

    Attributes:
        name: of the check.
        value: what was measured, a fraction of the points or a difference of accuracies.
        threshold: the largest value that passes.
        passed: value <= threshold.
        message: one sentence that tells what was measured and, if it fails, what it means.
    """

    name: str
    value: float
    threshold: float
    passed: bool
    message: str


def masking_report(
    model: nn.Module,
    x: Tensor,
    labels: Tensor,
    eps: float,
    generator: torch.Generator,
    *,
    correct: Mapping[str, Tensor] | None = None,
    batch_size: int | None = None,
) -> list[MaskingCheck]:
    """Look for signs that the robust accuracy is owed to gradients that mislead the attack (Sec. 10).

    Args:
        model: (B, C, H, W) -> logits (B, K).
        x: (N, C, H, W) in [0, 1].
        labels: (N,).
        eps: radius of the ball, > 0.
        generator: of the random starts.
        correct: what `robust_correct` found for these points and this eps; pgd20, pgd100 and square are run
            if they are not in it. With "aa" in it, the gap of the attacks' average to AutoAttack is reported;
            else the gap to their worst case.
        batch_size: points per forward pass; all when None.

    Returns:
        Five checks: `square`, `wide_ball`, `more_steps`, `zero_gradients` and `average_gap`.

    Raises:
        ValueError: if eps is not in (0, 1], or `correct` is not about these points.
    """
    if parse_eps(eps) == 0:
        raise ValueError("eps must be > 0 for the masking report, got 0")
    known = dict(correct or {})
    if any(len(values) != len(x) for values in known.values()):
        raise ValueError(f"correct must hold {len(x)} points, got {len(next(iter(known.values())))}")
    missing = [name for name in ("pgd20", "pgd100", "square") if name not in known]
    if missing:
        known |= robust_correct(model, x, labels, missing, eps, generator=generator, batch_size=batch_size)
    wide_eps = min(4 * eps, 1.0)
    wide = robust_correct(model, x, labels, ["pgd20"], wide_eps, generator=generator, batch_size=batch_size)["pgd20"]
    gradients = torch.cat([gradient_size(model, *batch) for batch in batches(x, labels, batch_size or len(x))])
    white_box = [name for name in known if name not in ("clean", "square", "aa")]
    survivors = torch.stack([known[name] for name in white_box]).all(0)
    metrics = summarise(known)
    reference = "aa" if "aa" in known else "worst"
    return [
        judge(
            "square",
            accuracy(survivors) - metrics["square"],
            SQUARE_THRESHOLD,
            f"accuracy under Square, which sees no gradient, is {{}} below that under {', '.join(white_box)}",
            "the white-box attacks are misled",
        ),
        judge(
            "wide_ball",
            accuracy(wide),
            WIDE_BALL_THRESHOLD,
            f"PGD at eps {wide_eps:.4g} leaves {{}} of the points correct",
            "in so large a ball an honest attack should succeed",
        ),
        judge(
            "more_steps",
            metrics["pgd100"] - metrics["pgd20"],
            MORE_STEPS_THRESHOLD,
            "accuracy under PGD with 100 steps minus that with 20 is {}",
            "a longer attack should not be weaker",
        ),
        judge(
            "zero_gradients",
            accuracy(gradients == 0),
            ZERO_GRADIENT_THRESHOLD,
            "the gradient of the cross-entropy is exactly zero at {} of the points",
            "PGD on cross-entropy cannot move there (saturated logits?); trust cw, aa and square",
        ),
        judge(
            "average_gap",
            metrics["average"] - metrics[reference],
            GAP_THRESHOLD,
            f"the average over the attacks minus {reference} is {{}}",
            "weak attacks hold the average up",
        ),
    ]


def judge(name: str, value: float, threshold: float, text: str, meaning: str) -> MaskingCheck:
    """Compare a value with its threshold; `text` has a place for it, `meaning` is what a failure tells."""
    passed = value <= threshold + 1e-9  # a difference of two accuracies rounds
    measured = f"{text.format(f'{value:.1%}')} (at most {threshold:.0%} expected)"
    return MaskingCheck(name, value, threshold, passed, measured if passed else f"{measured}: {meaning}")


def gradient_size(model: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
    """Return the mean of |dCE/dx| over the pixels of each image: (B, C, H, W), (B,) -> (B,)."""
    with torch.inference_mode(False), torch.enable_grad(), attack_mode(model):
        x, labels = x.detach().clone().requires_grad_(), labels.clone()
        loss = F.cross_entropy(model(x), labels, reduction="sum")  # a mean would shrink it with the batch
        (gradient,) = torch.autograd.grad(loss, x)
    return gradient.abs().flatten(1).mean(1)


def write_report(
    folder: str | Path,
    metrics: Mapping[str, float],
    curve: Mapping[float, float] | None = None,
    checks: Sequence[MaskingCheck] = (),
) -> list[Path]:
    """Write `metrics.json` (everything), `metrics.csv` and, if there is a curve, `curve.csv`.

    Args:
        folder: made if it does not exist.
        metrics: name -> number, as from `summarise`.
        curve: eps -> accuracy.
        checks: from `masking_report`.

    Returns:
        The files written.

    Raises:
        ValueError: if a metric is not finite; nothing is written then.
    """
    for name, value in metrics.items():
        if not math.isfinite(value):
            raise ValueError(f"metric {name!r} must be finite, got {value}")
    report = {
        "metrics": dict(metrics),
        "curve": [{"eps": eps, "accuracy": value} for eps, value in (curve or {}).items()],
        "checks": [asdict(check) for check in checks],
    }
    texts = {
        "metrics.json": json.dumps(report, indent=2, allow_nan=False) + "\n",
        "metrics.csv": to_csv(("metric", "value"), metrics),
    }
    if curve:
        texts["curve.csv"] = to_csv(("eps", "accuracy"), curve)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        partial = folder / f".{name}.partial"
        partial.write_text(text, encoding="utf-8")
        partial.replace(folder / name)
    return [folder / name for name in texts]


def to_csv(header: tuple[str, str], rows: Mapping[str, float] | Mapping[float, float]) -> str:
    """Format two columns as CSV."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerows([header, *rows.items()])
    return buffer.getvalue()
