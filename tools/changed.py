"""Print, as JSON, the packages that a change touches: the matrix of the workflow.

    python3 tools/changed.py BASE

BASE is the commit that was last tested. Needs nothing but python and git.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]
# What every package is built from or tested with.
COMMON = ("shared", "tools", ".github", "uv.lock", "pyproject.toml", "conftest.py", ".python-version")


def package_names(root: Path) -> list[str]:
    """List the folders under `packages` that hold a project, sorted."""
    return sorted(file.parent.name for file in (root / "packages").glob("*/pyproject.toml"))


def changed_packages(root: Path, base: str) -> list[str]:
    """List the packages whose tests a change can affect.

    Args:
        root: the checkout; its HEAD is what is to be tested.
        base: a commit; where it is unknown (a first push, a forced one, a shallow clone), all are listed.

    Returns:
        Sorted names.
    """
    names = package_names(root)
    files = _changed_files(root, base)
    if files is None or any(file.parts[0] in COMMON for file in files):
        return names
    touched = {file.parts[1] for file in files if file.parts[0] == "packages" and len(file.parts) > 2}
    return [name for name in names if name in touched]


def _changed_files(root: Path, base: str) -> list[PurePosixPath] | None:
    """Return the files that differ between two commits, those moved away included; None without a base."""
    if not base or base.startswith("-"):
        return None
    # Without --no-renames a file that moved from one package to another would count for the second only.
    command = ["git", "diff", "--name-only", "--no-renames", "-z", base, "HEAD", "--"]
    result = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        return None
    return [PurePosixPath(name) for name in result.stdout.split("\0") if name]


if __name__ == "__main__":
    print(json.dumps(changed_packages(ROOT, sys.argv[1] if len(sys.argv) > 1 else "")))
