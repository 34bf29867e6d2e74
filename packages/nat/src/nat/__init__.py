"""Nasty Adversarial Training (ICLR 2026): the method's public names; the README says where the rest is.

They are imported on first use, so that the command's `--help` need not wait for torch.
"""

from importlib import import_module
from typing import Any

_HOME = {
    "nat_loss": "loss",
    "nasty_divergence": "loss",
    "kl_divergence": "loss",
    "CollapseError": "loss",
    "pgd": "attack",
    "fgsm": "attack",
    "cw_inf": "attack",
    "margin": "attack",
    "attack_mode": "attack",
    "build_objective": "baselines",
    "Threat": "baselines",
    "WeightPerturbation": "awp",
    "entropy": "geometry",
    "effective_classes": "geometry",
    "hoyer_sparsity": "geometry",
    "boundary_distance": "geometry",
    "inter_boundary_distance": "geometry",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
