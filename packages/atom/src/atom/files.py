"""Which file of a folder is the trajectory of which molecule."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

PREFIXES = ("", "md_", "md17_", "rmd17_", "md22_", "tg80_")
SUFFIXES = (".npz", ".extxyz", ".xyz", ".traj")
UNFINISHED = ".part.npz"  # what is left of a trajectory whose making was interrupted


def find_file(root: Path, molecule: str) -> Path:
    """Return the trajectory of a molecule: a file's name in the folder, or a molecule's with a data set's prefix.

    Raises:
        FileNotFoundError: if there is none.
        ValueError: if there are several.
    """
    if not root.is_dir():
        raise FileNotFoundError(f"root is {root}, expected a folder of trajectories")
    if (root / molecule).is_file():
        return root / molecule
    names = [f"{prefix}{molecule}{suffix}" for prefix in PREFIXES for suffix in SUFFIXES]
    found = [root / name for name in names if (root / name).is_file()]
    if not found:
        raise FileNotFoundError(f"{root} has no trajectory of {molecule}, such as md17_{molecule}.npz")
    if len(found) > 1:
        raise ValueError(f"{root} has several trajectories of {molecule}: {', '.join(p.name for p in found)}")
    return found[0]


def molecules_in(root: Path, without: Collection[str] = ()) -> list[str]:
    """Return the molecules of a folder, sorted by name.

    Args:
        root: the folder; hidden files, unfinished trajectories and files of other kinds are passed over.
        without: molecules that are left out, named as for `find_file`.

    Returns:
        Names that `find_file` finds.

    Raises:
        FileNotFoundError: if there is no folder, or none of a molecule that is to be left out.
        ValueError: if no molecule is left, or a name could mean several files.
    """
    left_out = {find_file(root, name) for name in without}
    if not root.is_dir():
        raise FileNotFoundError(f"root is {root}, expected a folder of trajectories")
    names = sorted(
        _molecule(path.stem)
        for path in root.iterdir()
        if path.suffix in SUFFIXES and not path.name.startswith(".") and not path.name.endswith(UNFINISHED)
        if path.is_file() and path not in left_out
    )
    if not names:
        beside = f" beside {', '.join(without)}" if without else ""
        raise ValueError(f"{root} has no trajectory{beside}, expected one of {', '.join(SUFFIXES)}")
    for name in names:
        find_file(root, name)  # refuses what could mean several
    return names


def _molecule(stem: str) -> str:
    prefix = next(prefix for prefix in sorted(PREFIXES, key=len, reverse=True) if stem.startswith(prefix))
    return stem.removeprefix(prefix) or stem
