"""The objective of Nasty Adversarial Training (ICLR 2026), Sec. 3.2 and 3.3.

    min_θt  mean over X ∪ X' of  CE(σ(f_t(x)), y) − ω · τ² · KL(σ_τ(f_t(x)) ‖ σ_τ(f_a(x)))

Symbols: f_t target logits (N, K), trained; f_a logits (N, K) of the frozen adversary on the same inputs;
σ_τ(z) = softmax(z / τ); ω ≥ 0 weight; τ > 0 temperature; K classes; N = 2B, clean samples X and then one
adversarial sample each, X'. Divergences are in nats.

The paper fixes the orientation KL(target ‖ adversary) by its series expansion (Sec. 3.3). The factor τ² is
that of its predecessor, Nasty Teacher (Ma et al., ICLR 2021), and is not printed in the paper: `tau_square`.

The term is unbounded: mass m moved from the true class to one that the adversary finds impossible earns
about ω τ m times the adversary's logit range, and costs about m in cross-entropy. `collapse_risk` compares
the two before training, `check_collapse` stops a run that went over the edge, `kl_cap` limits the reward.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

Direction = Literal["target_adversary", "adversary_target"]


def kl_divergence(logits_p: Tensor, logits_q: Tensor, temperature: float = 1.0) -> Tensor:
    """KL(σ_τ(p) ‖ σ_τ(q)) of each sample; gradients flow through both arguments.

    Args:
        logits_p: (N, K).
        logits_q: (N, K).
        temperature: τ > 0, divides both.

    Returns:
        (N,) in nats, ≥ 0 up to rounding.

    Raises:
        ValueError: for logits that are no floats or differ in shape, or τ ≤ 0.
    """
    check_logit_pair(logits_p, logits_q)
    check_options(temperature=temperature)
    log_p = F.log_softmax(logits_p / temperature, dim=1)
    log_q = F.log_softmax(logits_q / temperature, dim=1)
    return (log_p.exp() * (log_p - log_q)).sum(1)


def nasty_divergence(
    target_logits: Tensor,
    adversary_logits: Tensor,
    temperature: float = 1.0,
    *,
    tau_square: bool = True,
    direction: Direction = "target_adversary",
    kl_cap: float | None = None,
) -> Tensor:
    """How far the target's output is from the adversary's, per sample: the quantity that NAT maximises.

    With the defaults its gradient with respect to f_t is τ · q_t ∘ (log(q_t / q_a) − KL), Sec. 3.3.

    Args:
        target_logits: f_t, (N, K).
        adversary_logits: f_a, (N, K), on the same inputs.
        temperature: τ > 0.
        tau_square: multiply by τ², as Nasty Teacher does (inferred for NAT).
        direction: `target_adversary` is the paper's KL(σ_τ(f_t) ‖ σ_τ(f_a)); `adversary_target`, the reverse,
            is an ablation.
        kl_cap: largest KL of a sample, in nats and before τ²; a sample beyond it adds a constant and no
            gradient. None for no cap.

    Returns:
        (N,).

    Raises:
        ValueError: as `kl_divergence`, and for an unknown direction or a cap ≤ 0.
    """
    check_options(temperature=temperature, direction=direction, kl_cap=kl_cap)
    if direction == "target_adversary":
        divergence = kl_divergence(target_logits, adversary_logits, temperature)  # Sec. 3.3
    else:
        divergence = kl_divergence(adversary_logits, target_logits, temperature)
    if kl_cap is not None:
        divergence = divergence.clamp(max=kl_cap)
    return temperature**2 * divergence if tau_square else divergence


def nat_loss(
    target_logits: Tensor,
    labels: Tensor,
    adversary_logits: Tensor | None,
    omega: float,
    temperature: float = 1.0,
    *,
    tau_square: bool = True,
    direction: Direction = "target_adversary",
    kl_cap: float | None = None,
    nasty_mask: Tensor | None = None,
) -> NATLoss:
    """The outer objective of NAT on one batch.

    Labels are not checked here, because that would wait for the device: see `check_batch`.

    Args:
        target_logits: f_t, (N, K): of the clean samples and then of the adversarial ones.
        labels: (N,) int64 in [0, K).
        adversary_logits: f_a, (N, K), on the same inputs; may be None when ω is 0.
        omega: ω ≥ 0. At 0 the loss is cross-entropy itself, bit for bit.
        temperature: τ > 0.
        tau_square: as in `nasty_divergence`.
        direction: as in `nasty_divergence`.
        kl_cap: as in `nasty_divergence`.
        nasty_mask: (N,) bool, the samples that carry the nasty term (an ablation: X' only); None for all. The
            others count as zero: the sum is still divided by N, so each carried term keeps its weight ω / N.

    Returns:
        The loss with its two parts.

    Raises:
        ValueError: for ω < 0, a missing adversary, or as `nasty_divergence`.
    """
    check_options(omega=omega, temperature=temperature, direction=direction, kl_cap=kl_cap)
    check_logit_tensor(target_logits)
    if labels.shape != target_logits.shape[:1]:
        raise ValueError(
            f"labels must have shape {tuple(target_logits.shape[:1])} to match the logits, got {tuple(labels.shape)}"
        )
    if nasty_mask is not None and (nasty_mask.dtype != torch.bool or nasty_mask.shape != labels.shape):
        raise ValueError(
            f"nasty_mask must be bool of shape {tuple(labels.shape)}, "
            f"got {nasty_mask.dtype} of shape {tuple(nasty_mask.shape)}"
        )
    cross_entropy = F.cross_entropy(target_logits, labels)
    if omega == 0:
        return NATLoss(cross_entropy, cross_entropy.detach(), None)
    if adversary_logits is None:
        raise ValueError(f"adversary_logits must be given when omega is not 0, got None with omega {omega}")
    divergence = nasty_divergence(
        target_logits,
        adversary_logits,
        temperature,
        tau_square=tau_square,
        direction=direction,
        kl_cap=kl_cap,
    )
    carriers: int | Tensor = len(labels)
    if nasty_mask is not None:
        divergence = torch.where(nasty_mask, divergence, 0.0)
        carriers = nasty_mask.sum().clamp(min=1)
    loss = cross_entropy - omega * divergence.mean()  # Eq. (Sec. 3.2)
    return NATLoss(loss, cross_entropy.detach(), divergence.detach().sum() / carriers)


def collapse_risk(adversary_logits: Tensor, omega: float, temperature: float = 1.0) -> float:
    """Reward for predicting wrong over its price: ω · τ · median over samples of the logit range of f_a.

    Above 1, cross-entropy no longer holds the true class (Sec. 3.4, with τ² in the loss): a warning sign.

    Args:
        adversary_logits: f_a, (N, K).
        omega: ω.
        temperature: τ.

    Returns:
        A number ≥ 0.
    """
    lowest, highest = adversary_logits.detach().float().aminmax(dim=1)
    return omega * temperature * (highest - lowest).quantile(0.5).item()


def check_collapse(divergence: float, loss: float, max_divergence: float) -> None:
    """Stop a run whose target has given up the true class to please the nasty term (Sec. 3.4).

    Args:
        divergence: mean nasty divergence, for instance of an epoch.
        loss: mean loss of the same samples.
        max_divergence: largest divergence accepted.

    Raises:
        CollapseError: when the divergence exceeds the cap or either number is not finite.
    """
    remedy = "lower omega or temperature, raise omega over a few epochs (omega_warmup), or set kl_cap"
    if not (math.isfinite(loss) and math.isfinite(divergence)):
        raise CollapseError(f"training diverged: loss {loss}, mean divergence {divergence}; {remedy}")
    if divergence > max_divergence:
        raise CollapseError(
            f"mean divergence {divergence:.4g} exceeds max_divergence {max_divergence:.4g}: the target earns "
            f"more by differing from the adversary than by predicting right; {remedy}"
        )


def check_options(
    *,
    omega: float = 0.0,
    temperature: float = 1.0,
    direction: str = "target_adversary",
    kl_cap: float | None = None,
) -> None:
    """Raise ValueError for ω < 0, τ ≤ 0, an unknown direction or a cap ≤ 0; for use before training, too."""
    if not 0 <= omega < math.inf:
        raise ValueError(f"omega must be a finite number >= 0, got {omega}")
    if not 0 < temperature < math.inf:
        raise ValueError(f"temperature must be a finite number > 0, got {temperature}")
    if direction not in get_args(Direction):
        raise ValueError(f"direction must be one of {', '.join(get_args(Direction))}, got {direction!r}")
    if kl_cap is not None and not kl_cap > 0:
        raise ValueError(f"kl_cap must be > 0, or None for no cap, got {kl_cap}")


def check_logit_tensor(logits: Tensor) -> None:
    """Raise ValueError unless the tensor is floating point of shape (N, K)."""
    if logits.ndim != 2 or not logits.is_floating_point():
        raise ValueError(
            f"logits must be floating point of shape (N, K), got {logits.dtype} of shape {tuple(logits.shape)}"
        )


def check_logit_pair(first: Tensor, second: Tensor) -> None:
    """Raise ValueError unless both are floating-point logits of one shape (N, K)."""
    check_logit_tensor(first)
    check_logit_tensor(second)
    if first.shape[1] != second.shape[1]:
        raise ValueError(
            f"target and adversary must have the same number of classes, got {first.shape[1]} and {second.shape[1]}"
        )
    if first.shape != second.shape:
        raise ValueError(f"logits must be of the same samples, got {first.shape[0]} and {second.shape[0]}")


def check_batch(x: Tensor, labels: Tensor, num_classes: int) -> None:
    """Check images and labels where they enter training; waits for the device once.

    Args:
        x: (N, C, H, W) floating point in [0, 1].
        labels: (N,) int64 in [0, K).
        num_classes: K.

    Raises:
        ValueError: for another rank, type or length, an empty batch, pixels that are not finite or lie
            outside [0, 1], or a label that is no class.
    """
    if x.ndim != 4 or not x.is_floating_point():
        raise ValueError(
            f"images must be floating point of shape (N, C, H, W), got {x.dtype} of shape {tuple(x.shape)}"
        )
    if labels.ndim != 1 or labels.dtype != torch.int64:
        raise ValueError(f"labels must be int64 of shape (N,), got {labels.dtype} of shape {tuple(labels.shape)}")
    if len(x) != len(labels):
        raise ValueError(f"images and labels must be equally many, got {len(x)} and {len(labels)}")
    if x.numel() == 0:
        raise ValueError(f"images must not be empty, got shape {tuple(x.shape)}")
    extremes = torch.stack([*x.detach().aminmax(), *(v.to(x.device) for v in labels.aminmax())])
    low, high, first, last = extremes.tolist()
    if not (low >= 0 and high <= 1):
        raise ValueError(f"images must be finite and lie in [0, 1], got values from {low:g} to {high:g}")
    if not (first >= 0 and last < num_classes):
        raise ValueError(
            f"labels must lie in [0, {num_classes}) for num_classes {num_classes}, got {first:g} to {last:g}"
        )


class NATLoss(NamedTuple):
    """The objective and its parts, all scalars.

    Attributes:
        loss: to be minimised; the only part that carries a gradient.
        cross_entropy: mean over all N samples, detached.
        divergence: mean nasty divergence (with τ² if asked) over the samples that carry the term, detached;
            None when ω is 0, because the adversary was not asked.
    """

    loss: Tensor
    cross_entropy: Tensor
    divergence: Tensor | None


class CollapseError(ArithmeticError):
    """The nasty term has overpowered cross-entropy, or the loss is no longer a number."""
