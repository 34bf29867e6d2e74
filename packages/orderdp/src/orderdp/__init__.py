"""OrderDP (ICLR 2026): dynamic data pruning; the method's public names. The README says where the rest is.

They are imported on first use, so that the command's `--help` need not wait for torch.
"""

from importlib import import_module
from typing import Any

_HOME = {
    "OrderDP": "selection",
    "Scores": "selection",
    "Selection": "selection",
    "select": "selection",
    "sizes": "selection",
    "order_weights": "surrogate",
    "surrogate_loss": "surrogate",
    "surrogate_weights": "surrogate",
    "limit_weights": "surrogate",
    "Pruning": "baselines",
    "build_policy": "baselines",
    "Indexed": "sampler",
    "Pruner": "sampler",
    "PruningMixin": "pruning",
    "ScoreUpdates": "pruning",
    "pruned_loader": "pruning",
    "one_cycle": "schedule",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
