"""Write the skeleton of a new paper: a package that trains, tests and compares, to be filled with the method.

    python tools/new.py foo

The templates in tools/skeleton are a working package: `NAME` stands for the package's name, and `Name` before
`Module`, `Data` and `CLI` for the same in capitals. What they leave to the author is marked TODO.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

from contract import faults
from readme import ROOT, Package, generated_of

SKELETON = Path(__file__).resolve().parent / "skeleton"
CLASSES = re.compile(r"\bName(?=(?:Module|Data|CLI)\b)")
# Import names that a package of the same name would hide, beside those of the standard library.
TAKEN = {
    "conftest", "data", "datasets", "diffusers", "lightning", "matplotlib", "mypy", "numpy", "packages", "pytest",
    "ruff", "scipy", "shared", "sklearn", "tests", "timm", "tools", "torch", "torchmetrics", "torchvision", "train",
    "transformers", "triton", "wandb", "workspace", "yaml",
}  # fmt: skip


def check_name(root: Path, name: str) -> None:
    """Raise a ValueError unless a name can become a package of this checkout."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or name.endswith("_") or "__" in name:
        raise ValueError(f"NAME is {name!r}, expected lower-case letters, digits and single underscores")
    if name in TAKEN or name in sys.stdlib_module_names:
        raise ValueError(f"NAME is {name!r}, expected one that is no other module's")
    if (root / "packages" / name).exists():
        raise ValueError(f"NAME is {name!r}, but packages/{name} exists")


def write(root: Path, name: str) -> Package:
    """Write `packages/NAME`.

    Args:
        root: the checkout.
        name: of the package: lower-case letters, digits, underscores.

    Returns:
        The new package.

    Raises:
        ValueError: if the name is taken or not valid.
    """
    check_name(root, name)
    folder = root / "packages" / name
    for source in sorted(file for file in SKELETON.rglob("*") if file.is_file()):
        if "__pycache__" in source.parts:
            continue
        target = folder / str(source.relative_to(SKELETON)).replace("NAME", name)
        target.parent.mkdir(parents=True, exist_ok=True)
        text = re.sub(r"\bNAME\b", name, source.read_text(encoding="utf-8"))
        target.write_text(CLASSES.sub(camel_case(name), text), encoding="utf-8")
    # With a longer name than the template's some lines have to be wrapped.
    subprocess.run([sys.executable, "-m", "ruff", "format", "--quiet", str(folder)], cwd=root, check=True)
    package = Package(folder)
    for file, content in generated_of(package):
        file.write_bytes(content)
    return package


def camel_case(name: str) -> str:
    """Turn `my_paper` into `MyPaper`."""
    return "".join(part.capitalize() for part in name.split("_"))


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(description="Write the skeleton of a new paper.")
    parser.add_argument("name", metavar="NAME", help="lower-case letters, digits, underscores")
    options = parser.parse_args(argv)
    try:
        package = write(ROOT, options.name)
    except ValueError as error:
        print(f"new: {error}", file=sys.stderr)
        return 2
    print(f"wrote packages/{package.name}; the next `uv run` adds it to uv.lock. It works:\n")
    print(f"    uv run --package {package.name} train\n\nLeft to you (python tools/contract.py {package.name}):\n")
    print(*(f"  {fault}" for fault in faults(package)), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
