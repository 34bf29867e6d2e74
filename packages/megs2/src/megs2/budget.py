"""Which Gaussians and lobes a memory budget keeps (Sec. 3.4): the projections of unified pruning.

    max sum of the kept values   s. t.   cost_o #{Gaussians} + cost_s #{lobes} <= kappa,  no lobe without its Gaussian

At a price lambda for a unit of memory, lobe j of Gaussian i stays iff v_ij > lambda cost_s, and Gaussian i stays iff
v_i + sum of its kept (v_ij - lambda cost_s) > lambda cost_o. So each entry has a critical price, up to which it stays:

    lambda_i  = max_m (v_i + v_i(1) + ... + v_i(m)) / (cost_o + m cost_s),   v_i(1) >= v_i(2) >= ...
    lambda_ij = min(v_ij / cost_s, lambda_i)

and the budget is met by the largest price at which what stays fits.
"""

from __future__ import annotations

import torch
from torch import Tensor

Kept = tuple[Tensor, Tensor]  # Gaussians (N,) and lobes (N, K), bool


def critical_prices(gaussians: Tensor, lobes: Tensor, gaussian_cost: float, lobe_cost: float) -> tuple[Tensor, Tensor]:
    """Return the price up to which each entry is worth its memory.

    Args:
        gaussians: v_i (N,), at least 0.
        lobes: v_ij (N, K), at least 0; 0 for what is not there.
        gaussian_cost: memory of a Gaussian without lobes.
        lobe_cost: memory of a lobe.

    Returns:
        Prices of Gaussians (N,) and of lobes (N, K).
    """
    prices = gaussians / gaussian_cost
    total = gaussians
    for m, best in enumerate(lobes.sort(dim=1, descending=True).values.unbind(1), start=1):
        total = total + best
        prices = torch.maximum(prices, total / (gaussian_cost + m * lobe_cost))
    return prices, torch.minimum(lobes / lobe_cost, prices[:, None])


def joint(gaussians: Tensor, lobes: Tensor, gaussian_cost: float, lobe_cost: float, budget: float) -> Kept:
    """Choose Gaussians and lobes together under one budget (Sec. 3.4, inferred).

    Exact for the Lagrangian relaxation: no choice of the same or less memory has a larger sum of values. What is left
    of the budget is less than the entries at the last price cost; among equal prices all go, or none.

    Args:
        gaussians: v_i (N,), at least 0.
        lobes: v_ij (N, K), at least 0; 0 for what is not there, which is never kept.
        gaussian_cost: memory of a Gaussian without lobes.
        lobe_cost: memory of a lobe.
        budget: kappa, in the costs' unit.

    Returns:
        What to keep. Entries without value are kept only if all that there is fits.

    Raises:
        ValueError: if a value is negative or not finite, a cost not positive, or the budget negative or no number.
    """
    if not (gaussian_cost > 0 and lobe_cost > 0 and budget >= 0):
        given = f"{gaussian_cost}, {lobe_cost} and {budget}"
        raise ValueError(f"costs must be positive and the budget at least 0, got {given}")
    if not all(bool(((values >= 0) & values.isfinite()).all()) for values in (gaussians, lobes)):
        raise ValueError("values must be finite numbers of at least 0")
    there = lobes > 0
    if len(gaussians) * gaussian_cost + int(there.sum()) * lobe_cost <= budget:
        return torch.ones_like(gaussians, dtype=torch.bool), there
    of_gaussians, of_lobes = critical_prices(gaussians, lobes, gaussian_cost, lobe_cost)

    def cost(price: Tensor) -> float:
        return gaussian_cost * int((of_gaussians > price).sum()) + lobe_cost * int((of_lobes > price).sum())

    # The answer is one of the prices, or 0: bisect by value until no price lies between the ends.
    low, high = of_gaussians.new_zeros(()), torch.cat([of_gaussians, of_lobes.flatten()]).max()
    if cost(low) <= budget:
        return of_gaussians > low, of_lobes > low
    while True:
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (middle, high) if cost(middle) > budget else (low, middle)
    return of_gaussians > high, of_lobes > high


def ratios(weights: Tensor, scores: Tensor, active: Tensor, gaussian_share: float, lobe_share: float) -> Kept:
    """Remove fixed shares of Gaussians and lobes, each by its own score, as the release does (Sec. 3.4).

    Args:
        weights: of Gaussians (N,).
        scores: of lobes (N, K).
        active: which lobes there are (N, K), bool.
        gaussian_share: of the Gaussians to remove, in [0, 1].
        lobe_share: of the active lobes to remove, in [0, 1].

    Returns:
        What to keep; a lobe of a removed Gaussian goes with it.
    """
    kept = torch.ones_like(weights, dtype=torch.bool)
    kept[torch.argsort(weights, stable=True)[: round(gaussian_share * len(weights))]] = False
    places = active.flatten().nonzero().squeeze(1)
    order = torch.argsort(scores.flatten()[places], stable=True)
    lobes = active.clone().flatten()
    lobes[places[order[: round(lobe_share * len(places))]]] = False
    return kept, lobes.view_as(active) & kept[:, None]
