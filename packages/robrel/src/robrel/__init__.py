"""Rob-ReL (ICLR 2026): robust answers from partially identified rewards. The README says where the rest is.

They are imported on first use, so that the command's `--help` need not wait for torch.
"""

from importlib import import_module
from typing import Any

_HOME = {
    "MDP": "mdp",
    "occupancies": "mdp",
    "plan": "mdp",
    "RewardSpace": "space",
    "TrajectoryComparison": "feedback",
    "PolicyComparison": "feedback",
    "Demonstration": "feedback",
    "anchor": "feedback",
    "build": "feedback",
    "FeasibleSet": "feasible",
    "Cut": "feasible",
    "interval": "exact",
    "conflict": "exact",
    "relaxed": "exact",
    "PrimalDual": "primal_dual",
    "solve": "primal_dual",
    "assess": "framework",
    "assess_application": "framework",
    "next_question": "framework",
    "worst_case_loss": "framework",
    "slack": "estimation",
    "gridworld": "environments",
    "from_gym": "environments",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
