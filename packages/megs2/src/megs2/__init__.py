"""MEGS² (ICLR 2026): memory-efficient Gaussian splatting by spherical Gaussians and unified pruning.

They are imported on first use, so that the command's `--help` need not wait for torch.
"""

from importlib import import_module
from typing import Any

_HOME = {
    "Gaussians": "gaussians",
    "Camera": "camera",
    "View": "camera",
    "Capture": "camera",
    "Schedule": "schedule",
    "render": "rasterizer",
    "rasterize": "rasterizer",
    "colours": "colours",
    "joint": "budget",
    "load": "formats",
    "save": "formats",
    "SplattingModule": "module",
    "CaptureData": "data",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
