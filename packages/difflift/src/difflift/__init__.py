"""DiffLift (ICLR 2026): learned liftings from graphs to hypergraphs, cell and simplicial complexes.

They are imported on first use, so that the command's `--help` need not wait for torch.
"""

from importlib import import_module
from typing import Any

_HOME = {
    "DiffLift": "lifting",
    "Lifting": "lifting",
    "Complex": "complexes",
    "Incidence": "complexes",
    "Graphs": "graphs",
    "NoLifting": "baselines",
    "CycleLifting": "baselines",
    "CliqueLifting": "baselines",
    "KHopLifting": "baselines",
    "FeatureKNNLifting": "baselines",
    "Network": "networks",
    "UniGCNII": "unignn",
    "UniGIN": "unignn",
    "CWN": "cwn",
    "TopoTune": "topotune",
    "TopoModelX": "topomodelx_network",
    "GraphGIN": "models",
    "LiftedNetwork": "models",
    "LiftTransform": "transform",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
