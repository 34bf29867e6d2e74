"""Diagnostics of the paper's claim (Sec. 3.6): sparse outputs, wide margins, samples far from the boundaries.

Symbols: z logits (N, K), p = softmax(z), h penultimate features (N, D), and the linear head z = W h + b with
rows w_c of W (K, D) and b (K,). Entropies are in nats, distances in units of the features.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def entropy(logits: Tensor) -> Tensor:
    """Entropy H(p) = −Σ_c p_c log p_c of the predicted distribution.

    Args:
        logits: (N, K).

    Returns:
        (N,) in nats, from 0 (one class) to log K (uniform).
    """
    log_p = F.log_softmax(logits, dim=1)
    return -(log_p.exp() * log_p).sum(1)


def effective_classes(logits: Tensor) -> Tensor:
    """exp(H(p)), the size of a uniform distribution of the same entropy.

    Args:
        logits: (N, K).

    Returns:
        (N,) from 1 to K.
    """
    return entropy(logits).exp()


def hoyer_sparsity(logits: Tensor) -> Tensor:
    """(√K − ‖p‖₁ / ‖p‖₂) / (√K − 1) (Hoyer, 2004): 0 for uniform p, 1 for one-hot p.

    Args:
        logits: (N, K), K ≥ 2.

    Returns:
        (N,) in [0, 1].

    Raises:
        ValueError: for fewer than two classes.
    """
    classes = logits.shape[1]
    if classes < 2:
        raise ValueError(f"logits must have at least 2 classes, got {classes}")
    p = logits.softmax(1)
    return (math.sqrt(classes) - 1 / p.norm(dim=1)) / (math.sqrt(classes) - 1)  # ‖p‖₁ = 1


def logit_margin(logits: Tensor, labels: Tensor) -> Tensor:
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


def boundary_distance(features: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> Tensor:
    """Distance in feature space to the nearest boundary between the true class and another one.

    min over c ≠ y of |(w_y − w_c)·h + b_y − b_c| / ‖w_y − w_c‖. The numerator is |z_y − z_c|, so no tensor of
    size N K D is made. Two classes with the same row have no boundary: their distance is infinite, or 0 if
    their biases agree too, since they then tie everywhere.

    Args:
        features: h, (N, D).
        weight: W, (K, D), K ≥ 2.
        bias: b, (K,).
        labels: y, (N,) in [0, K).

    Returns:
        (N,), ≥ 0.

    Raises:
        ValueError: for shapes that do not fit together.
    """
    check_head(features, weight, bias)
    if labels.shape != features.shape[:1]:
        raise ValueError(f"labels must have shape ({len(features)},), got {tuple(labels.shape)}")
    logits = F.linear(features, weight, bias)
    true = labels.unsqueeze(1)
    gap = (logits.gather(1, true) - logits).abs()  # (N, K)
    # Through differences, not scalar products, which lose the digits of rows that nearly agree.
    norm = torch.cdist(weight, weight, compute_mode="donot_use_mm_for_euclid_dist")[labels]  # (N, K)
    distance = torch.where(gap == 0, 0.0, gap / norm)
    return distance.scatter(1, true, math.inf).amin(1)


def hyperplane_distance(features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Distance |w_c·h + b_c| / ‖w_c‖ to each class's own hyperplane, the form that the paper prints.

    Args:
        features: h, (N, D).
        weight: W, (K, D), without zero rows.
        bias: b, (K,).

    Returns:
        (N, K), ≥ 0.

    Raises:
        ValueError: for shapes that do not fit together, or a zero row.
    """
    check_head(features, weight, bias)
    return F.linear(features, weight, bias).abs() / row_norms(weight)


def inter_boundary_distance(weight: Tensor) -> Tensor:
    """Distance ‖γ − (γ·d) d‖ between the hyperplanes' normals of classes i and j.

    γ = w_j − w_i, and d = w_i / ‖w_i‖; the paper does not say what d is, this is inferred. Not symmetric.

    Args:
        weight: W, (K, D), without zero rows.

    Returns:
        (K, K); entry (i, j) belongs to d along w_i. The diagonal is 0.

    Raises:
        ValueError: for a zero row.
    """
    d = weight / row_norms(weight).unsqueeze(1)  # (K, D)
    gamma = weight.unsqueeze(0) - weight.unsqueeze(1)  # (i, j, D)
    along = torch.einsum("ijd,id->ij", gamma, d)
    return (gamma - along.unsqueeze(2) * d.unsqueeze(1)).norm(dim=2)


def row_norms(weight: Tensor) -> Tensor:
    """‖w_c‖ of each row, (K,); raises ValueError for a zero row, whose direction is undefined."""
    norms = weight.norm(dim=1)
    zero = (norms == 0).nonzero().flatten().tolist()
    if zero:
        raise ValueError(f"weight must have no zero rows, got zeros for classes {zero}")
    return norms


def check_head(features: Tensor, weight: Tensor, bias: Tensor) -> None:
    """Raise ValueError unless features (N, D), weight (K, D) and bias (K,) fit together and K ≥ 2."""
    shapes = (tuple(features.shape), tuple(weight.shape), tuple(bias.shape))
    fits = features.ndim == weight.ndim == 2 and features.shape[1] == weight.shape[1] and len(weight) > 1
    if not fits or bias.shape != weight.shape[:1]:
        raise ValueError(f"features, weight and bias must have shapes (N, D), (K, D) and (K,), K >= 2, got {shapes}")
