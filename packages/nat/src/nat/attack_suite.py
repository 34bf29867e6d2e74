"""Attacks by name, as a user lists them: `fgsm,pgd20,cw,aa`.

`fgsm`, `pgdN` (N steps on cross-entropy) and `cwN` (N steps on the margin; `cw` has 40) are the package's
own. `apgd-ce`, `apgd-t`, `fab-t`, `square` and their ensemble `aa` are the standard version of AutoAttack
(Croce and Hein, 2020), as the library pyautoattack has it.

Symbols: x (B, C, H, W) images in [0, 1]; labels (B,); K classes; eps radius of the l_inf ball.
"""

from __future__ import annotations

import logging
import math
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction

import torch
from pyautoattack import AutoAttack
from torch import Tensor, nn

from nat.attack import attack_mode, check_inputs, check_logits, cw_inf, fgsm, pgd

LIBRARY_ATTACKS = ("aa", "apgd-ce", "apgd-t", "fab-t", "square")
STEPPED_ATTACK = re.compile(r"(pgd|cw)([1-9]\d*)")
CW_STEPS = 40


def parse_eps(eps: str | float) -> float:
    """Read the radius of an l_inf ball on images in [0, 1].

    Args:
        eps: a fraction ("8/255"), a decimal ("0.03"), or a number.

    Returns:
        The radius, in [0, 1].

    Raises:
        ValueError: if it is no number, or outside [0, 1].
    """
    try:
        value = float(Fraction(eps.replace(" ", ""))) if isinstance(eps, str) else float(eps)
    except (ValueError, ZeroDivisionError, OverflowError):
        value = math.nan
    if not 0 <= value <= 1:
        raise ValueError(f"eps must be a number or fraction in [0, 1] such as 8/255, got {eps!r}")
    return value


def parse_attacks(attacks: str | Sequence[str]) -> tuple[str, ...]:
    """Read a list of attacks.

    Args:
        attacks: names separated by commas ("fgsm,pgd20,cw,aa"), or a sequence of names.

    Returns:
        The names in their order, lower case, each once.

    Raises:
        ValueError: if a name is unknown or none is given.
    """
    listed = attacks.split(",") if isinstance(attacks, str) else attacks
    names = tuple(dict.fromkeys(name.strip().lower() for name in listed))
    for name in names or ("",):
        if name not in ("fgsm", "cw", *LIBRARY_ATTACKS) and not STEPPED_ATTACK.fullmatch(name):
            raise ValueError(
                f"attacks must be names out of fgsm, pgdN (N steps, as in pgd20), cw, cwN, "
                f"{', '.join(LIBRARY_ATTACKS)}, got {name!r}"
            )
    return names


def check_attacks(names: Sequence[str], num_classes: int) -> None:
    """Raise a ValueError if an attack cannot be run on K classes (the targeted DLR loss needs 4)."""
    for name in names:
        if name in ("aa", "apgd-t") and num_classes < 4:
            raise ValueError(
                f"attack {name!r} uses the targeted DLR loss, which needs at least 4 classes, got "
                f"{num_classes}; use apgd-ce, fab-t and square"
            )


def attack_batch(
    name: str,
    model: nn.Module,
    x: Tensor,
    labels: Tensor,
    *,
    eps: float,
    alpha: float | None = None,
    generator: torch.Generator,
    seed: int = 0,
    verbose: bool = False,
) -> Tensor:
    """Attack one batch.

    Args:
        name: one attack, as `parse_attacks` knows it.
        model: (B, C, H, W) -> logits (B, K); attacked in evaluation mode, its flags are restored.
        x: (B, C, H, W) in [0, 1].
        labels: (B,).
        eps: radius of the ball; with 0 the result is a copy of x.
        alpha: step size of pgdN and cwN; eps / 4 when None, which crosses the ball in 8 steps.
        generator: of the random starts of pgdN and cwN.
        seed: of AutoAttack's attacks, which seed the global generators (restored afterwards).
        verbose: let AutoAttack log what it does (logger "auto-attack").

    Returns:
        x_adv (B, C, H, W), within eps of x and in [0, 1]. A point that an attack of AutoAttack could not
        break may come back unchanged.

    Raises:
        ValueError: for an unknown attack, or one that the images or the number of classes do not allow.
        RuntimeError: if the attack left the ball or the box: its result would be worthless.
    """
    (name,) = parse_attacks([name])
    eps = parse_eps(eps)
    if eps == 0:
        return x.clone()
    if name == "fgsm":
        x_adv = fgsm(model, x, labels, eps)
    elif name in LIBRARY_ATTACKS:
        x_adv = auto_attack(name, model, x, labels, eps, seed, verbose)
    else:
        kind, steps = read_steps(name)
        alpha = eps / 4 if alpha is None else alpha
        if kind == "pgd":
            x_adv = pgd(model, x, labels, eps=eps, alpha=alpha, steps=steps, generator=generator)
        else:
            x_adv = cw_inf(model, x, labels, eps, steps=steps, alpha=alpha, generator=generator)
    check_threat(name, x, x_adv, eps)
    return x_adv


def read_steps(name: str) -> tuple[str, int]:
    """Split "pgd20" into "pgd" and 20; "cw" has its default number of steps."""
    match = STEPPED_ATTACK.fullmatch(name if name != "cw" else f"cw{CW_STEPS}")
    if match is None:
        raise ValueError(f"attack must be pgdN, cw or cwN, got {name!r}")
    return match[1], int(match[2])


def check_threat(name: str, x: Tensor, x_adv: Tensor, eps: float) -> None:
    """Raise a RuntimeError unless x_adv is within eps (and rounding, 1e-6) of x, and in [0, 1]."""
    distance = (x_adv - x).abs().max().item()
    low, high = x_adv.min().item(), x_adv.max().item()
    if not (distance <= eps + 1e-6 and low >= 0 and high <= 1):  # "not", so that NaN is caught
        raise RuntimeError(
            f"attack {name!r} left its threat model: distance {distance:.6g} (eps {eps:.6g}), "
            f"pixels in [{low:.6g}, {high:.6g}]"
        )


def auto_attack(
    name: str, model: nn.Module, x: Tensor, labels: Tensor, eps: float, seed: int, verbose: bool = False
) -> Tensor:
    """Run AutoAttack's standard version ("aa"), or one of its four attacks with the same settings.

    The library's budget is fixed: 100 steps of APGD on cross-entropy; 100 steps of targeted APGD and of
    targeted FAB for each of the 9 likeliest wrong classes (all K - 1 if there are fewer); 5000 queries of
    Square. On a small network the number of calls costs, not their size, so the batch goes in whole.

    Args:
        name: one of `LIBRARY_ATTACKS`.
        model: (B, C, H, W) -> logits (B, K).
        x: (B, C, H, W) in [0, 1].
        labels: (B,).
        eps: radius of the ball, > 0.
        seed: of all its attacks.
        verbose: let the library log.

    Returns:
        x_adv (B, C, H, W); points that survive are returned unchanged.

    Raises:
        ValueError: if K < 4 and the attack needs more, or x is no batch of images, or not in [0, 1].
    """
    if x.ndim != 4:
        raise ValueError(f"attack {name!r} needs images (B, C, H, W), got shape {tuple(x.shape)}")
    check_inputs(x, labels)

    def forward(images: Tensor) -> Tensor:
        return model(images.to(x.dtype))  # the library computes in float32, whatever the network does

    # Autograd cannot save a tensor that was made under inference_mode, as in Lightning's evaluation loops.
    with torch.inference_mode(False), torch.no_grad(), attack_mode(model), library_guard(verbose):
        images, labels = x.detach().float().clone(), labels.clone()
        logits = model(x)
        check_logits(logits, labels)
        num_classes = logits.shape[1]
        check_attacks([name], num_classes)
        library = AutoAttack(forward, eps=eps, norm="Linf", version="standard", seed=seed, device=x.device)
        library.verbose = verbose
        targets = min(9, num_classes - 1)
        library.apgd_targeted.n_target_classes = library.fab.n_target_classes = targets
        if name != "aa":
            library.attacks_to_run = [name]
        x_adv, _ = library.run_standard_evaluation(images, labels, batch_size=len(x))
    return x_adv.to(x.dtype)


@contextmanager
def library_guard(verbose: bool) -> Iterator[None]:
    """Undo AutoAttack's side effects: it seeds torch's global generators, unsets a tracer, and logs."""
    logger = logging.getLogger("auto-attack")
    disabled, tracer = logger.disabled, sys.gettrace()
    devices = range(torch.cuda.device_count())
    logger.disabled = disabled or not verbose
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        logger.disabled = disabled
        sys.settrace(tracer)
