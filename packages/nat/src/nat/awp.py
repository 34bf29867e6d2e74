"""Adversarial weight perturbation (Wu, Xia & Wang, NeurIPS 2020), for any objective.

    min_w  max_{v ∈ V} L(w + v),   v = γ ‖w‖ · g / ‖g‖ layer by layer, g = ∇_w L

The inner maximisation is one step, as in the authors' code, where it is written as an SGD step of a proxy
network: rescaled to γ ‖w‖, its learning rate cancels. Parameters with one axis (biases, BatchNorm) stay.

    perturbation = WeightPerturbation(gamma=5e-3)
    perturbation.perturb(model, lambda: loss(model))
    loss(model).backward()
    perturbation.restore(model)
    optimizer.step()
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn


def perturbed_weights(model: nn.Module) -> dict[str, nn.Parameter]:
    """The trained parameters of more than one axis, by name: those that AWP moves."""
    return {
        name: parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and parameter.ndim > 1
    }


def ascent_step(weight: Tensor, gradient: Tensor, gamma: float) -> Tensor:
    """γ ‖w‖ · g / ‖g‖, of w's shape; 0 where the gradient is 0.

    Args:
        weight: w of any shape.
        gradient: g, of the same shape.
        gamma: γ ≥ 0.

    Returns:
        v, of Frobenius norm γ ‖w‖.
    """
    norm = gradient.norm().clamp(min=torch.finfo(gradient.dtype).tiny)
    return gamma * weight.norm() * (gradient / norm)


class WeightPerturbation:
    """Moves the weights to where the loss is higher, and takes them back exactly.

    Args:
        gamma: γ ≥ 0, size of the move relative to each weight's norm (5e-3 in the paper).
        reduce: applied to each gradient, for instance to average it over processes; None for one process.

    Raises:
        ValueError: for γ < 0.
    """

    def __init__(self, gamma: float = 5e-3, reduce: Callable[[Tensor], Tensor] | None = None) -> None:
        if not 0 <= gamma < math.inf:
            raise ValueError(f"gamma must be a finite number >= 0, got {gamma}")
        self.gamma = gamma
        self.reduce = reduce
        self._originals: dict[str, Tensor] = {}

    def perturb(self, model: nn.Module, closure: Callable[[], Tensor]) -> None:
        """Add v to the weights. Buffers (BatchNorm's statistics) and `.grad` are left as they were.

        Args:
            model: the network, in the mode of its training.
            closure: returns the scalar loss to maximise; called once.

        Raises:
            RuntimeError: when the last perturbation was not taken off.
        """
        if self._originals:
            raise RuntimeError("the weights are perturbed already: call restore before the next perturb")
        weights = perturbed_weights(model)
        buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
        try:
            with torch.enable_grad():
                gradients = torch.autograd.grad(closure(), list(weights.values()), allow_unused=True)
        finally:
            with torch.no_grad():
                for buffer, value in buffers:
                    buffer.copy_(value)
        with torch.no_grad():
            for (name, weight), gradient in zip(weights.items(), gradients, strict=True):
                # A weight that this process's loss does not use still takes part in the reduction.
                gradient = torch.zeros_like(weight) if gradient is None else gradient
                gradient = gradient if self.reduce is None else self.reduce(gradient)
                self._originals[name] = weight.detach().clone()
                weight.add_(ascent_step(weight, gradient, self.gamma))

    def restore(self, model: nn.Module) -> None:
        """Put the original weights back, bit for bit; their `.grad` stays for the optimiser.

        Args:
            model: the network given to `perturb`.
        """
        parameters = dict(model.named_parameters())
        with torch.no_grad():
            for name, original in self._originals.items():
                parameters[name].copy_(original)
        self._originals.clear()
