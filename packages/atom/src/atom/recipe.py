"""The settings of a trajectory that is made here (spec Sec. 7), and the folder that is kept for each of them."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, get_args

Method = Literal["gfn2", "gfn1", "pbe"]

DEFAULT_MOLECULES = (
    "CH3CH2OH",
    "C6H6",
    "CH3COCH3",
    "C4H4O",
    "CH3CONH2",
    "isobutane",
    "C5H5N",
    "HCOOH",
    "CH3CHO",
    "CH3OH",
)


@dataclass(frozen=True)
class Recipe:
    """How a trajectory is made.

    Args:
        ps: length of the trajectory that is kept, picoseconds.
        temperature_k: of the initial momenta, kelvin. The molecule starts at a minimum of the energy, so that
            half of it goes into the bonds: 600 K settles near 300 K.
        step_fs: step of velocity Verlet, femtoseconds.
        frame_fs: time between two frames, a multiple of the step.
        discard_ps: run before the first frame, a multiple of `frame_fs`.
        seed: of the initial momenta, and of the first geometry of a SMILES.
        method: `gfn2` or `gfn1` (tblite), or `pbe` (PBE/def2-SVP, needs pyscf and a hundred times longer).
        chunk_frames: frames between two saves of the state. The guess of the electron density starts afresh
            there, so it changes the last digits.

    Raises:
        ValueError: if an option is out of range.
    """

    ps: float = 5.0
    temperature_k: float = 600.0
    step_fs: float = 0.5
    frame_fs: float = 1.0
    discard_ps: float = 0.25
    seed: int = 0
    method: Method = "gfn2"
    chunk_frames: int = 250

    def __post_init__(self) -> None:
        for option in ("ps", "temperature_k", "step_fs", "frame_fs", "discard_ps"):
            object.__setattr__(self, option, float(getattr(self, option)))  # 1 and 1.0 are one recipe
        for option in ("ps", "temperature_k", "step_fs", "frame_fs"):
            value = getattr(self, option)
            if not 0 < value < float("inf"):
                raise ValueError(f"{option} must be positive and finite, got {value}")
        if not 0 <= self.discard_ps < float("inf"):
            raise ValueError(f"discard_ps must be at least 0 and finite, got {self.discard_ps}")
        if self.method not in get_args(Method):
            raise ValueError(f"method must be one of {', '.join(get_args(Method))}, got {self.method!r}")
        if not 0 <= self.seed < 2**31:
            raise ValueError(f"seed must be in 0 .. 2^31 - 1, got {self.seed}")
        if self.chunk_frames < 1:
            raise ValueError(f"chunk_frames must be at least 1, got {self.chunk_frames}")
        if not _is_multiple(self.frame_fs, self.step_fs):
            raise ValueError(f"frame_fs must be a multiple of step_fs = {self.step_fs}, got {self.frame_fs}")
        for option in ("ps", "discard_ps"):
            value = getattr(self, option)
            if not _is_multiple(1000 * value, self.frame_fs):
                raise ValueError(f"{option} must be a multiple of frame_fs = {self.frame_fs} fs, got {value}")
        if self.frames < 2:
            raise ValueError(f"ps must be at least two frames of frame_fs = {self.frame_fs} fs, got {self.ps}")

    @property
    def frames(self) -> int:
        """Frames kept."""
        return round(1000 * self.ps / self.frame_fs)

    @property
    def discarded(self) -> int:
        """Frames run before the first that is kept."""
        return round(1000 * self.discard_ps / self.frame_fs)

    @property
    def steps_per_frame(self) -> int:
        """Steps of the integrator between two frames."""
        return round(self.frame_fs / self.step_fs)


def cache_folder(recipe: Recipe, root: str | Path | None = None) -> Path:
    """Return the folder for trajectories of one recipe.

    Args:
        recipe: the settings; those that differ in any get different folders.
        root: what it lies in; by default `atom` in `$XDG_CACHE_HOME`, or in `~/.cache`.
    """
    if root is None:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "atom"
    settings = json.dumps(asdict(recipe), sort_keys=True).encode()
    return Path(root) / f"{recipe.method}-{short_hash(settings, 12)}"


def short_hash(content: bytes, count: int) -> str:
    """Return the first `count` hexadecimal digits of a content's SHA-256."""
    return hashlib.sha256(content).hexdigest()[:count]


def _is_multiple(value: float, unit: float) -> bool:
    return abs(value / unit - round(value / unit)) < 1e-6 and (value == 0 or value >= unit * (1 - 1e-6))
