"""Take one package away: write it and `shared` as a project of their own.

    python tools/export.py nat ../mine

The copy has the package at its top (src, tests, configs, results) and `shared` in a folder of that name,
which its pyproject.toml takes `shared` from. It starts with the versions of this workspace's lock.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BESIDE = ("LICENSE", ".gitignore", ".python-version", "conftest.py")  # root files that the copy needs as well
WORKSPACE_SOURCE = re.compile(r"^shared = \{ workspace = true \}$", re.MULTILINE)
# Editable, as it is in the workspace: who changes shared sees the change without installing again.
PATH_SOURCE = 'shared = { path = "shared", editable = true }'
CARRIED = ("tool.ruff", "tool.mypy", "tool.pytest", "tool.uv")  # root tables that travel, with their children
LEFT = ("tool.uv.workspace", "tool.uv.sources")  # but not these
TABLE = re.compile(r"^\[\[?([^\[\]]+)\]\]?\s*(?:#.*)?$")


def export(root: Path, package: str, destination: Path) -> None:
    """Write a package and `shared` as a self-contained project with its own lock.

    Args:
        root: the checkout; only files that git tracks are taken from it.
        package: a folder of `packages`.
        destination: the new project's folder; must not exist, or be empty.

    Raises:
        ValueError: if there is no such package or its pyproject.toml is not of the expected form.
        FileExistsError: if the destination is a file or a folder that is not empty.
        RuntimeError: if uv cannot lock the project; nothing is left behind.
    """
    choices = sorted(file.parent.name for file in (root / "packages").glob("*/pyproject.toml"))
    if package not in choices:
        raise ValueError(f"PKG is {package!r}, expected one of {', '.join(choices)}")
    destination = destination.expanduser().absolute()
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        raise FileExistsError(f"DEST {destination} exists and is not empty, expected a new folder")
    destination.parent.mkdir(parents=True, exist_ok=True)
    # Written beside the destination and renamed, so that a failure leaves nothing half-written.
    with tempfile.TemporaryDirectory(prefix=".export-", dir=destination.parent) as folder:
        project = Path(folder) / destination.name
        copy_tracked(root, f"packages/{package}", project)
        copy_tracked(root, "shared", project / "shared")
        for name in BESIDE:
            if (root / name).is_file():
                shutil.copyfile(root / name, project / name)
        file = project / "pyproject.toml"
        file.write_text(standalone_pyproject(root, file.read_text(encoding="utf-8")), encoding="utf-8")
        shutil.copyfile(root / "uv.lock", project / "uv.lock")  # uv keeps the versions that still fit
        lock(project)
        if destination.is_dir():
            destination.rmdir()
        project.rename(destination)


def copy_tracked(root: Path, folder: str, destination: Path) -> None:
    """Copy the files of a folder that git tracks, with their permissions."""
    command = ["git", "ls-files", "-z", "--", folder]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        raise ValueError(f"{root}: git cannot list its files ({listed.stderr.strip()})")
    for name in filter(None, listed.stdout.split("\0")):
        source = root / name
        if source.is_file():  # a file deleted since is still listed
            target = destination / source.relative_to(root / folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


def standalone_pyproject(root: Path, member: str) -> str:
    """Turn a member's pyproject.toml into that of a project on its own.

    Args:
        root: the checkout, whose settings for uv, ruff, mypy and pytest are added.
        member: text of the member's file.

    Returns:
        Text of the new file; everything in the member's but the source of `shared` stays as it is.

    Raises:
        ValueError: if the member does not take `shared` from the workspace, or sets what would be added.
    """
    text, found = WORKSPACE_SOURCE.subn(PATH_SOURCE, member)
    if found != 1:
        raise ValueError("pyproject.toml: expected the line `shared = { workspace = true }` once")
    lock = tomllib.loads((root / "uv.lock").read_text(encoding="utf-8"))
    needed = closure(lock, [tomllib.loads(member)["project"]["name"], "shared"])
    root_text = (root / "pyproject.toml").read_text(encoding="utf-8")
    carried = [block for name, block in tables(root_text) if _concerns(name, block, needed)]
    text = "\n".join([text.rstrip() + "\n", *carried])
    text = re.sub(r"^testpaths = .*$", 'testpaths = ["tests", "shared/tests"]', text, flags=re.MULTILINE)
    text = re.sub(r"^pythonpath = .*$", 'pythonpath = ["shared/tests"]', text, flags=re.MULTILINE)
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"pyproject.toml: cannot add the root's settings to it ({error})") from error
    return text


def tables(text: str) -> list[tuple[str, str]]:
    """Split a TOML file into its tables: name and text, with the comment lines just above the header.

    Args:
        text: the file; a line that begins with a bracket in the first column is a header.
    """
    found: list[tuple[str, list[str]]] = []
    comment: list[str] = []
    for line in text.splitlines():
        header = TABLE.match(line)
        if header:
            found.append((header[1].strip(), [*comment, line]))
            comment = []
        elif line.startswith("#"):
            comment.append(line)
        elif found:
            found[-1][1].extend([*comment, line])
            comment = []
        else:
            comment = []
    return [(name, "\n".join(lines).rstrip() + "\n") for name, lines in found]


def _concerns(name: str, block: str, needed: set[str]) -> bool:
    if not any(name == table or name.startswith(f"{table}.") for table in CARRIED) or name in LEFT:
        return False
    if name == "tool.uv.dependency-metadata":
        entry: dict[str, Any] = tomllib.loads(block)["tool"]["uv"]["dependency-metadata"][0]
        return entry["name"] in needed
    return True


def closure(lock: dict[str, Any], names: list[str]) -> set[str]:
    """Return everything that packages of a lock need, directly or not, for any group or extra."""
    dependencies: dict[str, set[str]] = {}
    for entry in lock["package"]:
        extras, groups = entry.get("optional-dependencies", {}), entry.get("dev-dependencies", {})
        lists = [entry.get("dependencies", []), *extras.values(), *groups.values()]
        dependencies.setdefault(entry["name"], set()).update(d["name"] for entries in lists for d in entries)
    needed: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed.add(name)
            waiting.extend(dependencies.get(name, ()))
    return needed


def lock(project: Path) -> None:
    """Bring a project's uv.lock up to date; RuntimeError with uv's own words if that fails."""
    # Names the environment of the process that runs this, which is not the project's.
    variables = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "UV_PROJECT", "UV_PYTHON")}
    command = [find_uv(), "lock", "--quiet", "--project", str(project)]
    result = subprocess.run(command, cwd=project, env=variables, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise RuntimeError(f"uv cannot lock the project: {' '.join(result.stderr.split())}")


def find_uv() -> str:
    """Return uv: the one that runs this process, the one on the path, or the checkout's private one."""
    private = ROOT / ".uv" / "bin" / "uv"
    found = os.environ.get("UV") or shutil.which("uv") or (str(private) if private.is_file() else None)
    if found is None:
        raise FileNotFoundError("uv: not found on the path; `make` puts one into the checkout")
    return found


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(description="Write a package and `shared` as a project of their own.")
    parser.add_argument("package", metavar="PKG", help="a folder of packages/")
    parser.add_argument("destination", metavar="DEST", type=Path, help="a new folder")
    options = parser.parse_args(argv)
    try:
        export(ROOT, options.package, options.destination)
    except (ValueError, OSError, RuntimeError) as error:
        print(f"export: {error}", file=sys.stderr)
        return 2
    print(f"cd {options.destination}\nuv run train\nuv run --group test pytest")
    return 0


if __name__ == "__main__":
    sys.exit(main())
