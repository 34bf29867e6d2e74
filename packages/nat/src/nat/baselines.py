"""NAT and what it is compared with, behind one interface: `objective(model, x, labels, generator)`.

| method            | inner maximisation | outer minimisation                                             |
|-------------------|--------------------|----------------------------------------------------------------|
| `vanilla`         | none               | CE(x)                                                          |
| `pgd_at`          | CE                 | CE(x')                                                         |
| `at_mix`          | CE                 | mean of CE over X ∪ X': NAT with ω = 0, its fair control       |
| `entropy_penalty` | CE                 | `at_mix` + β · mean entropy over X ∪ X': NAT without adversary |
| `trades`          | KL(p(x) ‖ p(x'))   | CE(x) + β · KL(p(x) ‖ p(x'))                                   |
| `mart`            | CE                 | BCE(x') + β · KL(p(x) ‖ p(x')) · (1 − p_y(x))                  |
| `nat`             | CE                 | `nat_loss` over X ∪ X'                                         |

Symbols: x clean (B, ...), x' adversarial, one per x; z = f(x) and z' = f(x') logits (B, K); p = softmax(z).

The attack sees the model in evaluation mode (`attack.attack_mode`); the outer loss sees it in the mode it was
given in, which is training mode in training. `at_mix`, `entropy_penalty` and `nat` send x and x' through the
model in one forward pass, so that BatchNorm normalises both by the statistics of their union; `trades` and
`mart` use one pass each, as their authors' code does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .attack import AttackLoss, check_threat, pgd
from .geometry import entropy
from .loss import Direction, NATLoss, check_options, kl_divergence, nat_loss

Method = Literal["vanilla", "pgd_at", "at_mix", "trades", "mart", "entropy_penalty", "nat"]
NastyOn = Literal["both", "adversarial"]
LogitsLoss = Callable[[Tensor, Tensor], Tensor]  # (N, K), (N,) -> scalar
PairLoss = Callable[[Tensor, Tensor, Tensor], Tensor]  # (B, K), (B, K), (B,) -> scalar

# Weights of the second terms: TRADES and MART as published, the entropy penalty as NAT's ω.
DEFAULT_BETA = {"trades": 6.0, "mart": 5.0, "entropy_penalty": 0.06}


def trades_loss(logits: Tensor, adv_logits: Tensor, labels: Tensor, beta: float = 6.0) -> Tensor:
    """CE(z, y) + β · KL(p(x) ‖ p(x')), means over the batch (Zhang et al., ICML 2019, with β = 1/λ).

    Args:
        logits: z, (B, K).
        adv_logits: z', (B, K).
        labels: (B,).
        beta: β ≥ 0.

    Returns:
        Scalar; gradients flow through both z and z'.
    """
    return F.cross_entropy(logits, labels) + beta * kl_divergence(logits, adv_logits).mean()


def mart_loss(logits: Tensor, adv_logits: Tensor, labels: Tensor, beta: float = 5.0) -> Tensor:
    """BCE(z', y) + β · KL(p(x) ‖ p(x')) · (1 − p_y(x)), means over the batch (Wang et al., ICLR 2020).

    BCE(z', y) = −log p_y(x') − log(1 − max_{c≠y} p_c(x')). The authors' code adds small constants inside its
    logarithms; here all are taken from log-softmax instead. They write λ for β.

    Args:
        logits: z, (B, K).
        adv_logits: z', (B, K).
        labels: (B,).
        beta: β ≥ 0; 5 in the paper's experiments, 6 as the default of its loss function's code.

    Returns:
        Scalar; gradients flow through both z and z'.
    """
    true = labels.unsqueeze(1)
    log_p, adv_log_p = F.log_softmax(logits, dim=1), F.log_softmax(adv_logits, dim=1)
    runner_up = adv_log_p.scatter(1, true, -math.inf).argmax(1, keepdim=True)
    log_one_minus = adv_log_p.scatter(1, runner_up, -math.inf).logsumexp(1)  # of all other classes
    bce = F.nll_loss(adv_log_p, labels, reduction="none") - log_one_minus
    doubt = -log_p.gather(1, true).squeeze(1).expm1()  # 1 − p_y(x)
    return (bce + beta * kl_divergence(logits, adv_logits) * doubt).mean()


def entropy_penalty_loss(logits: Tensor, labels: Tensor, beta: float = 0.06) -> Tensor:
    """CE + β · H(p), means over the batch: asks for sparsity directly (the ablation of Sec. 4).

    Args:
        logits: (N, K), of X and X'.
        labels: (N,).
        beta: β ≥ 0.

    Returns:
        Scalar.
    """
    return F.cross_entropy(logits, labels) + beta * entropy(logits).mean()


def vanilla(model: nn.Module, x: Tensor, x_adv: Tensor | None, labels: Tensor) -> Terms:
    """Outer loss of ordinary training; x_adv is not used."""
    logits = model(x)
    return Terms(F.cross_entropy(logits, labels), logits=logits.detach())


def pgd_at(model: nn.Module, x: Tensor, x_adv: Tensor, labels: Tensor) -> Terms:
    """Outer loss of Madry et al. (2018): x' only, so the clean logits are not known."""
    logits = model(x_adv)
    return Terms(F.cross_entropy(logits, labels), x_adv, adv_logits=logits.detach())


def joint_pass(model: nn.Module, x: Tensor, x_adv: Tensor, labels: Tensor, *, loss: LogitsLoss) -> Terms:
    """Outer `loss(logits, labels)` over X ∪ X', from one forward pass: `at_mix`, `entropy_penalty`."""
    logits = model(torch.cat([x, x_adv]))
    clean, adv = logits.detach().chunk(2)
    return Terms(loss(logits, torch.cat([labels, labels])), x_adv, clean, adv)


def separate_passes(model: nn.Module, x: Tensor, x_adv: Tensor, labels: Tensor, *, loss: PairLoss) -> Terms:
    """Outer `loss(logits, adv_logits, labels)`, from a pass over x and then one over x': `trades`, `mart`."""
    logits, adv_logits = model(x), model(x_adv)
    return Terms(loss(logits, adv_logits, labels), x_adv, logits.detach(), adv_logits.detach())


def nat(
    model: nn.Module,
    x: Tensor,
    x_adv: Tensor,
    labels: Tensor,
    *,
    adversary: nn.Module | None,
    loss: Callable[..., NATLoss],
    nasty_on: NastyOn = "both",
) -> Terms:
    """Outer loss of NAT (Sec. 3.2, step 3): the adversary sees the very inputs of the target, x and x'.

    Args:
        model: f_t.
        x: (B, ...).
        x_adv: x', (B, ...).
        labels: (B,).
        adversary: f_a, wholly in evaluation mode; None when ω is 0.
        loss: `nat_loss` with its options filled in.
        nasty_on: samples that carry the nasty term: `both` X and X', or the `adversarial` ones only.

    Returns:
        The terms, with the mean divergence over the samples that carry the nasty term.

    Raises:
        ValueError: for an adversary in training mode, whose BatchNorm would drift, or as `nat_loss`.
    """
    both = torch.cat([x, x_adv])
    adversary_logits = mask = None
    if adversary is not None:
        if any(module.training for module in adversary.modules()):
            raise ValueError("adversary must be in evaluation mode, got training mode: call adversary.eval()")
        with torch.no_grad():
            adversary_logits = adversary(both)
    if nasty_on == "adversarial":
        mask = torch.arange(len(both), device=x.device) >= len(x)
    logits = model(both)
    clean, adv = logits.detach().chunk(2)
    parts = loss(logits, torch.cat([labels, labels]), adversary_logits, nasty_mask=mask)
    return Terms(parts.loss, x_adv, clean, adv, parts.divergence)


def build_objective(
    method: Method,
    threat: Threat,
    *,
    omega: float = 0.06,
    temperature: float = 1.0,
    tau_square: bool = True,
    direction: Direction = "target_adversary",
    kl_cap: float | None = None,
    nasty_on: NastyOn = "both",
    beta: float | None = None,
    adversary: nn.Module | None = None,
) -> Objective:
    """Assemble a method. It costs nothing: build anew when ω or ε changes, as in their warm-up.

    Args:
        method: one of the table above.
        threat: of the inner maximisation.
        omega: ω of `nat`.
        temperature: τ of `nat`.
        tau_square: of `nat`, see `nat_loss`.
        direction: of `nat`, see `nat_loss`.
        kl_cap: of `nat`, see `nat_loss`.
        nasty_on: of `nat`.
        beta: β of `trades`, `mart` or `entropy_penalty`; None for 6, 5 or 0.06.
        adversary: f_a, frozen; needed by `nat` when ω > 0.

    Returns:
        The objective.

    Raises:
        ValueError: for an unknown method, an option outside its range or a missing adversary.
    """
    if method not in get_args(Method):
        raise ValueError(f"method must be one of {', '.join(get_args(Method))}, got {method!r}")
    if nasty_on not in get_args(NastyOn):
        raise ValueError(f"nasty_on must be one of {', '.join(get_args(NastyOn))}, got {nasty_on!r}")
    check_options(omega=omega, temperature=temperature, direction=direction, kl_cap=kl_cap)
    beta = DEFAULT_BETA.get(method, 0.0) if beta is None else beta
    if not 0 <= beta < math.inf:
        raise ValueError(f"beta must be a finite number >= 0, got {beta}")
    if method == "nat" and omega > 0 and adversary is None:
        raise ValueError(f"adversary must be given for method nat with omega {omega}, got None")
    match method:
        case "vanilla":
            return Objective(threat, None, False, vanilla)
        case "pgd_at":
            return Objective(threat, "ce", True, pgd_at)
        case "at_mix":
            return Objective(threat, "ce", True, partial(joint_pass, loss=F.cross_entropy))
        case "entropy_penalty":
            penalised = partial(entropy_penalty_loss, beta=beta)
            return Objective(threat, "ce", True, partial(joint_pass, loss=penalised))
        case "trades":
            loss = partial(trades_loss, beta=beta)
            return Objective(threat, "kl", "normal", partial(separate_passes, loss=loss))
        case "mart":
            loss = partial(mart_loss, beta=beta)
            return Objective(threat, "ce", "normal", partial(separate_passes, loss=loss))
        case "nat":
            nasty = partial(
                nat_loss,
                omega=omega,
                temperature=temperature,
                tau_square=tau_square,
                direction=direction,
                kl_cap=kl_cap,
            )
            adversary = adversary if omega > 0 else None
            outer = partial(nat, adversary=adversary, loss=nasty, nasty_on=nasty_on)
            return Objective(threat, "ce", True, outer)


class Terms(NamedTuple):
    """What an objective returns; None for what the method does not compute.

    Attributes:
        loss: scalar to be minimised, differentiable.
        x_adv: x', (B, ...).
        logits: z, (B, K), detached.
        adv_logits: z', (B, K), detached.
        divergence: mean nasty divergence, scalar, detached; of `nat` with ω > 0 only.
    """

    loss: Tensor
    x_adv: Tensor | None = None
    logits: Tensor | None = None
    adv_logits: Tensor | None = None
    divergence: Tensor | None = None


@dataclass(frozen=True)
class Threat:
    """The ℓ∞ adversary of the inner maximisation.

    Attributes:
        eps: radius ε in [0, 1].
        alpha: step size > 0 (any when ε is 0).
        steps: number of steps ≥ 0.

    Raises:
        ValueError: for a value outside its range.
    """

    eps: float
    alpha: float
    steps: int

    def __post_init__(self) -> None:
        check_threat(self.eps, self.alpha, self.steps)

    def scaled(self, factor: float) -> Threat:
        """The threat with ε and α multiplied by `factor`, for a warm-up of ε."""
        return replace(self, eps=factor * self.eps, alpha=factor * self.alpha)


@dataclass(frozen=True)
class Objective:
    """An inner maximisation and an outer minimisation.

    Calling it does both. Adversarial weight perturbation, which evaluates the outer loss twice on one x',
    calls `attack` and `outer` itself.

    Attributes:
        threat: of the attack.
        inner: loss that the attack maximises; None for no attack.
        random_start: of the attack, see `attack.pgd`.
        outer: `(model, x, x_adv, labels) -> Terms`.
    """

    threat: Threat
    inner: AttackLoss | None
    random_start: bool | Literal["normal"]
    outer: Callable[..., Terms]

    def attack(
        self, model: nn.Module, x: Tensor, labels: Tensor, generator: torch.Generator | None = None
    ) -> Tensor | None:
        """Return x' (B, ...) for x, or None if the method needs none; the model is left as it was."""
        if self.inner is None:
            return None
        return pgd(
            model,
            x,
            labels,
            eps=self.threat.eps,
            alpha=self.threat.alpha,
            steps=self.threat.steps,
            loss=self.inner,
            random_start=self.random_start,
            generator=generator,
        )

    def __call__(self, model: nn.Module, x: Tensor, labels: Tensor, generator: torch.Generator | None = None) -> Terms:
        """Attack x (B, ...) in [0, 1] with labels (B,), then evaluate the outer loss."""
        return self.outer(model, x, self.attack(model, x, labels, generator), labels)
