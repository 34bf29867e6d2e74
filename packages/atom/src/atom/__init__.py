"""ATOM (ICLR 2026): a quasi-equivariant transformer operator for molecular dynamics.

They are imported on first use, so that the command's `--help` need not wait for torch.
"""

from importlib import import_module
from typing import Any

_HOME = {
    "ATOM": "transformer",
    "EGNO": "egno",
    "SolutionOperator": "operators",
    "HeterogeneousAttention": "attention",
    "heterogeneous_attention": "attention",
    "Lifting": "lifting",
    "rotation_errors": "equivariance",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
