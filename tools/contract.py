"""What is true of every package, as far as its files tell: each check returns what is wrong, in sentences.

    python tools/contract.py [NAME ...]

`make new` ends with this list for its skeleton: it is what is left for the author. What has to be run to be
known (the command, its configs) is in tests/test_contract.py.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from readme import ROOT, Package, generated_of
from shared.claims import judge
from shared.results import Results

FILES = (
    "README.md",
    "CHANGELOG.md",
    "pyproject.toml",
    "src/{name}/__init__.py",
    "src/{name}/baselines.py",
    "src/{name}/module.py",
    "src/{name}/data.py",
    "src/{name}/cli.py",
    "src/{name}/report.py",
    "src/{name}/configs/default.yaml",
    "results/claims.yaml",
    "tests/test_data.py",
    "tests/test_cli.py",
)
SECTIONS = (
    "The method",
    "Quick start",
    "What was measured",
    "Equations and code",
    "Implementation details",
    "Full-scale runs",
    "Data",
    "Taking it away",
)
README_LINES = 200
# Written so that it does not find itself: an index of packages, a folder of somebody's machine.
FOREIGN = re.compile(r"(?:index[-_]url|/(?:root|home|Users)/\w|\[\[tool\.uv\.index\]\])")
TEXT_SUFFIXES = {".py", ".md", ".toml", ".yaml", ".yml", ".json", ".txt", ".cfg", ".cff", ""}


def missing_files(package: Package) -> Iterator[str]:
    """Find files that every package has and this one lacks."""
    for pattern in FILES:
        name = pattern.format(name=package.name)
        if not (package.folder / name).is_file():
            yield f"{name}: missing"


def project_faults(package: Package) -> Iterator[str]:
    """Check pyproject.toml: name, entry points, classifier, the source of `shared`, the test group."""
    content = tomllib.loads(_text(package, "pyproject.toml"))
    project, name = content["project"], package.name
    command = f"{name}.cli:main"
    expected: dict[str, tuple[Any, Any]] = {
        "project.name": (project.get("name"), name),
        "project.entry-points.papers": (project.get("entry-points", {}).get("papers"), {name: command}),
        # `train` belongs to shared alone: members that each had one would overwrite each other
        "project.scripts": (project.get("scripts"), {name: command}),
        "tool.uv": (content.get("tool", {}).get("uv"), {"sources": {"shared": {"workspace": True}}}),
        "project.readme": (project.get("readme"), "README.md"),
    }
    for key, (got, wanted) in expected.items():
        if got != wanted:
            yield f"pyproject.toml: {key} is {got!r}, expected {wanted!r}"
    if "Private :: Do Not Upload" not in project.get("classifiers", []):
        yield "pyproject.toml: the classifier `Private :: Do Not Upload` is missing"
    if "shared" not in project.get("dependencies", []):
        yield "pyproject.toml: the dependency `shared` is missing"
    if "test" not in content.get("dependency-groups", {}):
        yield "pyproject.toml: the dependency group `test` is missing"


def changelog_faults(package: Package) -> Iterator[str]:
    """Check that the newest entry of the changelog is the package's version."""
    versions = changelog_versions(package)
    if versions[:1] != [package.project["version"]]:
        newest = versions[0] if versions else "nothing"
        yield f"CHANGELOG.md: begins with {newest}, expected version {package.project['version']}"


def changelog_versions(package: Package) -> list[str]:
    """List the versions that the changelog has an entry for (`## 0.1.0`), in its order."""
    return re.findall(r"^## \[?(\d+(?:\.\d+)+)\b", _text(package, "CHANGELOG.md"), re.MULTILINE)


def readme_faults(package: Package) -> Iterator[str]:
    """Check the README's sections, its length, its command, and that the configs it names are there."""
    text = _text(package, "README.md")
    headings = re.findall(r"^## (.+?)\s*$", text, re.MULTILINE)
    yield from (f"README.md: no section `## {name}`" for name in SECTIONS if name not in headings)
    # What the results add is not the author's to shorten.
    own = re.sub(r"<!-- results:begin -->.*?<!-- results:end -->", "", text, flags=re.DOTALL)
    if own.count("\n") >= README_LINES:
        yield f"README.md: {own.count(chr(10))} lines of its own, expected fewer than {README_LINES}"
    if f"uv run --package {package.name} train" not in text:
        yield f"README.md: the command `uv run --package {package.name} train` is missing"
    named = set(re.findall(r"--config[ =]([a-z]\w*)(?![\w./])", text))
    unknown = sorted(named - {file.stem for file in configs_of(package)})
    yield from (f"README.md: names the config {name}, which is not there" for name in unknown)


def config_faults(package: Package) -> Iterator[str]:
    """Check that each config begins with what it is, and says how it is started."""
    for file in configs_of(package):
        text = file.read_text(encoding="utf-8")
        command = rf"uv run --package {package.name} .*"
        command += r"\btrain\b" if file.stem == "default" else rf"--config {file.stem}\b"
        opening = "".join(line for line in text.splitlines(keepends=True) if line.startswith("#"))
        if not re.match(r"# \S", text):
            yield f"configs/{file.name}: line 1 is no comment, expected one that says what it is"
        if not re.search(command, opening):
            yield f"configs/{file.name}: its comments lack the command that uses it"


def results_faults(package: Package) -> Iterator[str]:
    """Check claims and records: all is measured, on equal terms, and the generated files show it."""
    if not package.claims:
        yield "results/claims.yaml: no claim"
    results = package.results
    if results is None:
        yield f"results/results.json: missing; `make compare PKG={package.name}` writes it"
        return
    if results.package != package.name:
        yield f"results/results.json: holds results of {results.package!r}"
    known = changelog_versions(package)
    for record in results.records:
        cell = f"results/results.json: {record.method} in {record.setting}, seed {record.seed}"
        if record.versions.get(package.name) not in known:
            yield f"{cell}: measured by version {record.versions.get(package.name)}, not in CHANGELOG.md"
        if not record.metrics.get("n", 0) >= 1:
            yield f"{cell}: no metric `n`, the number of items scored"
    yield from _unequal(results)
    for claim in package.claims:
        if judge(claim, results).verdict == "not measured":
            yield f"results/claims.yaml: {claim.id} is not measured on {claim.min_seeds} seeds"


def _unequal(results: Results) -> Iterator[str]:
    """Find methods that were tested on other items, or settings that changed between seeds."""
    for setting in sorted({record.setting for record in results.records}):
        records = [record for record in results.records if record.setting == setting]
        for seed in sorted({record.seed for record in records}):  # another seed may test another fold
            sizes = sorted({record.metrics.get("n", 0) for record in records if record.seed == seed})
            if len(sizes) > 1:
                yield f"results/results.json: seed {seed} of {setting} was scored on {sizes} items, expected one number"
        for method in sorted({record.method for record in records}):
            if len({record.config_hash for record in records if record.method == method}) > 1:
                yield f"results/results.json: {method} in {setting}: the settings differ between seeds"


def stale_files(package: Package) -> Iterator[str]:
    """Find generated files that do not show the results."""
    for file, content in generated_of(package):
        if not file.is_file() or file.read_bytes() != content:
            yield f"{file.relative_to(package.folder)}: out of date; `make readme` regenerates it"


def unwritten(package: Package) -> Iterator[str]:
    """Find what the skeleton left for the author."""
    for file in text_files(package.folder):
        for line in file.read_text(encoding="utf-8").splitlines():
            _, mark, text = line.partition("TODO")
            if mark:
                yield f"{file.relative_to(package.folder)}: TODO{text}".rstrip('"|. ')


def foreign_places(package: Package) -> Iterator[str]:
    """Find package indexes and absolute paths of a machine."""
    for file in text_files(package.folder):
        for found in FOREIGN.finditer(file.read_text(encoding="utf-8")):
            yield f"{file.relative_to(package.folder)}: names {found[0]}"


CHECKS: tuple[Callable[[Package], Iterator[str]], ...] = (
    missing_files,
    project_faults,
    changelog_faults,
    readme_faults,
    config_faults,
    results_faults,
    stale_files,
    unwritten,
    foreign_places,
)


def faults(package: Package) -> list[str]:
    """Run all checks on a package.

    Args:
        package: the package; its folder may be outside this checkout.

    Returns:
        What is wrong; a file that is missing or malformed is reported once and ends its own check only.
    """
    found: list[str] = []
    for check in CHECKS:
        try:
            found.extend(check(package))
        except (OSError, ValueError, KeyError) as error:
            found.append(str(error))
    return list(dict.fromkeys(found))


def names_in_equations_table(package: Package) -> list[tuple[str, list[str]]]:
    """Read `module` and `module.name` off the README's table `Equations and code`.

    Returns:
        For each name in the table's last column the module, and the attributes behind it.
    """
    text = _text(package, "README.md")
    section = re.search(r"^## Equations and code\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    rows = [line for line in section[1].splitlines() if line.startswith("|")] if section else []
    words = [word for row in rows for word in re.findall(r"`([A-Za-z_][\w.]*)`", row.rsplit("|", 2)[1])]
    return [(module, rest.split(".") if rest else []) for module, _, rest in (w.partition(".") for w in words)]


def configs_of(package: Package) -> list[Path]:
    """List the package's configs."""
    return sorted((package.folder / "src" / package.name / "configs").glob("*.yaml"))


def text_files(folder: Path) -> list[Path]:
    """List the text files below a folder, without what runs, builds and caches leave there."""
    ignored = {"__pycache__", "runs", "dist", ".venv", ".pytest_cache", ".ruff_cache", ".mypy_cache"}
    return [
        file
        for file in sorted(folder.rglob("*"))
        if file.is_file()
        and file.suffix in TEXT_SUFFIXES
        and not ignored & set(file.relative_to(folder).parts)
        and not any(part.endswith(".egg-info") for part in file.parts)
    ]


def _text(package: Package, name: str) -> str:
    file = package.folder / name
    if not file.is_file():
        raise FileNotFoundError(f"{name}: missing")
    return file.read_text(encoding="utf-8")


def main(names: list[str]) -> int:
    """Print what is wrong with packages (all, where none is named); returns 1 if anything is."""
    folders = [ROOT / "packages" / name for name in names] or sorted((ROOT / "packages").glob("*/"))
    found = [f"{folder.name}: {fault}" for folder in folders for fault in faults(Package(folder))]
    print(*(found or ["nothing is left to do"]), sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
