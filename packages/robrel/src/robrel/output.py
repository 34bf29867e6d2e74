"""What the verbs print and write. Nothing here imports torch before a file is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

Array = NDArray[np.float64]

console = Console(stderr=True)  # that of `shared.logs` takes seconds to import, because of torch


def require_folder(path: Path, option: str) -> None:
    """Raise NotADirectoryError if there is something else than a folder in this place."""
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(f"{option} must name a folder, got the file {path}")


def write_arrays(path: Path, **arrays: Array) -> None:
    """Write arrays by name as an .npz file."""
    from shared.checkpoints import atomic_write  # slow to import

    named: dict[str, Any] = dict(arrays)
    with atomic_write(path) as file:
        np.savez_compressed(file, **named)


def say(sentence: str) -> None:
    """Print a sentence, unbroken."""
    console.print(sentence, markup=False, highlight=False, soft_wrap=True)
