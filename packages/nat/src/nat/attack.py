"""The inner maximisation: untargeted ℓ∞ attacks on a network that maps images in [0, 1] to logits.

    x'_0 = clip(x + U(−ε, ε)),   x'_{k+1} = Π(x'_k + α · sign ∇ L(f(x'_k), y))

Π projects onto the ε-ball around x and onto [0, 1]. L is cross-entropy in PGD (Madry et al., 2018; the inner
problem of NAT, Sec. 3.2, step 2), KL(p(x) ‖ p(x')) in TRADES (Zhang et al., 2019) and max_{c≠y} z_c − z_y in
CW∞ (the margin of Carlini & Wagner, 2017, optimised by PGD). ε and α are in units of the pixel range.

Decision (the paper is silent): every attack sees the network in evaluation mode. BatchNorm then uses its
running statistics and does not update them, dropout is off, and an image's attack does not depend on its
neighbours in the batch. Modes and parameters are put back as they were found.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Per-sample loss (N,) to be maximised, from logits (N, K) and labels (N,).
LossFunction = Callable[[Tensor, Tensor], Tensor]
AttackLoss = Literal["ce", "kl", "margin"]

NORMAL_START_STD = 0.001  # TRADES, authors' code: x + 0.001 N(0, 1)


@contextmanager
def attack_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation mode and parameters without gradient, inside the `with` block only.

    Afterwards, an exception included, each sub-module has its own former `training` flag and each parameter
    its own former `requires_grad`. Frozen parameters save the weight gradients: about a third of the time.

    Args:
        model: any network.
    """
    modules = [(module, module.training) for module in model.modules()]
    parameters = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        model.eval()
        for parameter, _ in parameters:
            parameter.requires_grad_(False)
        yield
    finally:
        for module, training in modules:
            module.training = training
        for parameter, requires_grad in parameters:
            parameter.requires_grad_(requires_grad)


def margin(logits: Tensor, labels: Tensor) -> Tensor:
    """z_y − max_{c≠y} z_c: positive where the prediction is right.

    Args:
        logits: (N, K), K ≥ 2.
        labels: (N,) in [0, K).

    Returns:
        (N,).
    """
    true = labels.unsqueeze(1)
    others = logits.scatter(1, true, -math.inf)
    return logits.gather(1, true).squeeze(1) - others.amax(1)


def pgd(
    model: nn.Module,
    x: Tensor,
    labels: Tensor,
    *,
    eps: float,
    alpha: float,
    steps: int,
    loss: AttackLoss | LossFunction = "ce",
    random_start: bool | Literal["normal"] = True,
    generator: torch.Generator | None = None,
    restarts: int = 1,
) -> Tensor:
    """Projected gradient descent; always makes all its steps.

    Works under `no_grad` and `inference_mode` too. With one restart it costs `steps` forward and backward
    passes (and one forward more for "kl"), with R > 1 restarts R times that and R forward passes.

    Args:
        model: (N, ...) in [0, 1] -> logits (N, K); in any mode, see `attack_mode`.
        x: (N, ...) floating point in [0, 1].
        labels: (N,) int64 in [0, K).
        eps: radius ε in [0, 1] of the ℓ∞ ball; 0 returns a copy of x.
        alpha: step size > 0; not looked at when ε is 0.
        steps: number of steps; 0 returns the start.
        loss: "ce", "kl" (between p(x), held fixed, and p(x')), "margin", or a function of logits and labels
            that gives the per-sample loss (N,) to maximise.
        random_start: True for x + U(−ε, ε), "normal" for x + 0.001 N(0, 1) as in TRADES, False for x itself.
        generator: source of the start; on any device. None for torch's default one.
        restarts: runs from new starts; each sample keeps the point that is misclassified, if any is, and of
            highest loss among those.

    Returns:
        x', shaped and laid out in memory as x, without gradient.

    Raises:
        ValueError: for an argument outside its range, or a model whose output is no logits.
    """
    check_threat(eps, alpha, steps)
    check_inputs(x, labels)
    if loss not in ("ce", "kl", "margin") and not callable(loss):
        raise ValueError(f'loss must be "ce", "kl", "margin" or a function, got {loss!r}')
    if random_start not in (True, False, "normal"):
        raise ValueError(f'random_start must be True, False or "normal", got {random_start!r}')
    if restarts < 1 or (restarts > 1 and random_start is False):
        raise ValueError(f"restarts must be 1, or more with a random start, got {restarts} from x itself")
    with torch.inference_mode(False), torch.enable_grad():
        x = x.detach()
        # Autograd cannot save a tensor made under inference_mode, as in Lightning's evaluation loops.
        labels = labels.clone() if labels.is_inference() else labels
        if eps == 0:
            return x.clone()
        lower, upper = (x - eps).clamp_(min=0), (x + eps).clamp_(max=1)
        with attack_mode(model):
            objective = _objective(model, x, labels, loss)
            points = (
                _ascend(
                    model,
                    _start(x, eps, random_start, generator).clamp_(lower, upper),
                    labels,
                    objective,
                    bounds=(lower, upper),
                    alpha=alpha,
                    steps=steps,
                )
                for _ in range(restarts)
            )
            best = next(points)
            if restarts == 1:
                return best
            best_wrong, best_loss = _score(model, best, labels, objective)
            for x_adv in points:
                wrong, value = _score(model, x_adv, labels, objective)
                better = torch.where(wrong == best_wrong, value > best_loss, wrong)
                best = torch.where(better.view(-1, *[1] * (x.ndim - 1)), x_adv, best)
                best_wrong, best_loss = wrong | best_wrong, torch.where(better, value, best_loss)
    return best


def fgsm(model: nn.Module, x: Tensor, labels: Tensor, eps: float) -> Tensor:
    """Fast gradient sign method (Goodfellow et al., 2015): x' = clip(x + ε · sign ∇ CE), from x itself.

    Args:
        model: as in `pgd`.
        x: as in `pgd`.
        labels: as in `pgd`.
        eps: ε in [0, 1].

    Returns:
        x', shaped as x.

    Raises:
        ValueError: as `pgd`.
    """
    return pgd(model, x, labels, eps=eps, alpha=eps, steps=1, random_start=False)


def cw_inf(
    model: nn.Module,
    x: Tensor,
    labels: Tensor,
    eps: float,
    steps: int = 40,
    alpha: float | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """CW∞: PGD on the logit margin, whose gradient does not vanish where softmax saturates.

    Args:
        model: as in `pgd`.
        x: as in `pgd`.
        labels: as in `pgd`.
        eps: ε in [0, 1].
        steps: number of steps.
        alpha: step size; ε / 4 when None, the 2/255 that goes with ε = 8/255.
        generator: source of the random start.

    Returns:
        x', shaped as x.

    Raises:
        ValueError: as `pgd`.
    """
    alpha = eps / 4 if alpha is None else alpha
    return pgd(model, x, labels, eps=eps, alpha=alpha, steps=steps, loss="margin", generator=generator)


def check_threat(eps: float, alpha: float, steps: int) -> None:
    """Raise ValueError unless 0 ≤ ε ≤ 1, α > 0 (or ε = 0) and steps ≥ 0."""
    if not 0 <= eps <= 1:
        raise ValueError(f"eps must lie in [0, 1], the pixel range, got {eps}")
    if eps > 0 and not 0 < alpha < math.inf:
        raise ValueError(f"alpha must be a finite number > 0, got {alpha}")
    if steps < 0:
        raise ValueError(f"steps must be >= 0, got {steps}")


def check_inputs(x: Tensor, labels: Tensor) -> None:
    """Raise ValueError unless x is a batch of floats in [0, 1] with one int64 label each."""
    if x.ndim < 2 or x.numel() == 0 or not x.is_floating_point():
        raise ValueError(
            f"x must be floating point of shape (N, ...), not empty, got {x.dtype} of shape {tuple(x.shape)}"
        )
    if labels.shape != x.shape[:1] or labels.dtype != torch.int64:
        raise ValueError(
            f"labels must be int64 of shape ({len(x)},), got {labels.dtype} of shape {tuple(labels.shape)}"
        )
    low, high = torch.stack(x.detach().aminmax()).tolist()
    if not (low >= 0 and high <= 1):
        raise ValueError(f"x must be finite and lie in [0, 1], got values from {low:g} to {high:g}")


def check_logits(logits: Tensor, labels: Tensor) -> None:
    """Check what a model returned; waits for the device once.

    Args:
        logits: should be (N, K), K ≥ 2, finite.
        labels: should be (N,) in [0, K).

    Raises:
        ValueError: if not, or if the rows are probabilities: softmax of softmax hides the true gradient.
    """
    if logits.ndim != 2 or len(logits) != len(labels) or logits.shape[1] < 2:
        raise ValueError(
            f"the model must return logits of shape ({len(labels)}, K) with K >= 2, got {tuple(logits.shape)}"
        )
    values = logits.detach().float()
    low, high = values.aminmax()
    sum_error = (values.sum(1) - 1).abs().amax()
    low, high, sum_error, first, last = torch.stack([low, high, sum_error, *labels.aminmax()]).tolist()
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError(f"the model must return finite logits, got values from {low:g} to {high:g}")
    if low >= 0 and high <= 1 and sum_error < 1e-4:
        raise ValueError("the attack expects logits, got rows in [0, 1] that sum to 1: remove the model's softmax")
    if not (first >= 0 and last < logits.shape[1]):
        raise ValueError(f"labels must lie in [0, {logits.shape[1]}), got {first:g} to {last:g}")


def _start(x: Tensor, eps: float, random_start: bool | Literal["normal"], generator: torch.Generator | None) -> Tensor:
    """A new tensor laid out as x: x plus the noise of the start, not yet projected."""
    if random_start is False:
        return x.clone()
    # Drawn where the generator lives, so that a CPU generator gives the same start on every device.
    noise = torch.empty_like(x, device=x.device if generator is None else generator.device)
    if random_start == "normal":
        noise.normal_(0, NORMAL_START_STD, generator=generator)
    else:
        noise.uniform_(-eps, eps, generator=generator)
    return noise.to(x.device).add_(x)


def _ascend(
    model: nn.Module,
    x_adv: Tensor,
    labels: Tensor,
    objective: LossFunction,
    *,
    bounds: tuple[Tensor, Tensor],
    alpha: float,
    steps: int,
) -> Tensor:
    """Move the points `x_adv`, in place, by projected sign steps; `bounds` are those of ball and box."""
    for step in range(steps):
        logits = model(x_adv.requires_grad_())
        if step == 0:
            check_logits(logits, labels)
        # A sum: the gradient of a mean would shrink with the batch, down to underflow.
        (gradient,) = torch.autograd.grad(objective(logits, labels).sum(), x_adv)
        x_adv.requires_grad_(False)
        x_adv.add_(gradient.sign_(), alpha=alpha).clamp_(*bounds)  # Sec. 3.2, step 2
    return x_adv


def _score(model: nn.Module, x_adv: Tensor, labels: Tensor, objective: LossFunction) -> tuple[Tensor, Tensor]:
    """Whether each point is misclassified, (N,) bool, and its loss, (N,)."""
    with torch.no_grad():
        logits = model(x_adv)
        check_logits(logits, labels)
        return logits.argmax(1) != labels, objective(logits, labels)


def _objective(model: nn.Module, x: Tensor, labels: Tensor, loss: AttackLoss | LossFunction) -> LossFunction:
    """The per-sample loss to maximise, as a function of the logits of x' and the labels."""
    if loss == "ce":
        return lambda logits, labels: F.cross_entropy(logits, labels, reduction="none")
    if loss == "margin":
        return lambda logits, labels: -margin(logits, labels)
    if loss == "kl":
        with torch.no_grad():
            clean = F.log_softmax(model(x), dim=1)
        return lambda logits, _: F.kl_div(F.log_softmax(logits, dim=1), clean, reduction="none", log_target=True).sum(1)
    return loss
