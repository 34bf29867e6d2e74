"""Regenerate what the READMEs show of the results.

    python tools/readme.py           write what is out of date
    python tools/readme.py --check   name it, change nothing, and exit with 1

Made from `packages/NAME/results/{results.json,claims.yaml}` and from `REPORT`, a `shared.tables.Report`, in
`packages/NAME/src/NAME/report.py`, a file that imports nothing of its package:

- `results.md`, `results.png` and the report's drawings beside them, as `compare` writes them;
- the block `results` of the package's README;
- the block `papers` of the root README: a row for each package that has been measured.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from shared.checkpoints import atomic_write
from shared.claims import Claim, load_claims
from shared.results import Results
from shared.tables import Report, figure, markdown, summary_row, update_block

ROOT = Path(__file__).resolve().parents[1]
HEADER = "| paper | command | measured on the embedded data | claims |\n| --- | --- | --- | --- |"


@dataclass(frozen=True)
class Package:
    """A package's folder, and what its files say.

    Attributes:
        folder: `packages/NAME`.
    """

    folder: Path

    @property
    def name(self) -> str:
        """The package's name."""
        return self.folder.name

    @cached_property
    def project(self) -> dict[str, Any]:
        """The table `project` of its pyproject.toml."""
        project: dict[str, Any] = tomllib.loads(_read(self.folder / "pyproject.toml"))["project"]
        return project

    @cached_property
    def report(self) -> Report:
        """What its tables show; read from the file alone, so that the package need not be installed.

        Raises:
            FileNotFoundError: if there is no report.py.
            ValueError: if it defines no `REPORT`.
        """
        file = self.folder / "src" / self.name / "report.py"
        if not file.is_file():
            raise FileNotFoundError(f"{file}: no such file, expected one that defines REPORT")
        spec = spec_from_file_location(f"_report_of_{self.name}", file)
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        report = getattr(module, "REPORT", None)
        if not isinstance(report, Report):
            raise ValueError(f"{file}: REPORT is {report!r}, expected a shared.tables.Report")
        return report

    @cached_property
    def results(self) -> Results | None:
        """Its records; None as long as nothing has been measured."""
        file = self.folder / "results" / "results.json"
        return Results.load(file) if file.is_file() else None

    @cached_property
    def claims(self) -> list[Claim]:
        """Its claims."""
        return load_claims(self.folder / "results" / "claims.yaml")


def packages(root: Path) -> list[Package]:
    """List the packages of a checkout by name."""
    return [Package(file.parent) for file in sorted((root / "packages").glob("*/pyproject.toml"))]


def generated(root: Path) -> Iterator[tuple[Path, bytes]]:
    """Yield every generated file with the content that it should have.

    Args:
        root: the checkout.

    Raises:
        FileNotFoundError: if a package lacks its README, claims or report.
        ValueError: if a file is malformed or a README lacks the markers of its block.
    """
    for package in packages(root):
        yield from generated_of(package)
    readme = root / "README.md"
    yield readme, _with_block(readme, "papers", papers_table(packages(root)))


def generated_of(package: Package) -> Iterator[tuple[Path, bytes]]:
    """Yield the generated files of one package; see `generated`."""
    readme, folder = package.folder / "README.md", package.folder / "results"
    if package.results is None:
        body = f"Not measured yet; `make compare PKG={package.name}` does it."
    else:
        results = package.results
        body = markdown(results, package.claims, package.report)
        yield folder / "results.md", body.encode()
        yield folder / "results.png", _drawn(lambda file: figure(results, package.report, file))
        body += "\n![The main metric of each method, seed by seed](results/results.png)"
        for name, draw in package.report.drawings.items():
            yield folder / name, _drawn(partial(draw, results))
            body += f"\n![{Path(name).stem}](results/{name})"
    yield readme, _with_block(readme, "results", body)


def papers_table(all_packages: list[Package]) -> str:
    """Render the root README's table; a package without results is left out."""
    rows = []
    for package in all_packages:
        if package.results is None:
            continue
        row = summary_row(package.results, package.claims, package.report)
        verdicts = ", ".join(f"{count} {verdict}" for verdict, count in row["claims"].items() if count)
        cells = [
            f"[{package.name}](packages/{package.name}): {package.project['description']}",
            f"`uv run --package {package.name} train`",
            f"{row['headline']} ({row['seeds']} seeds)",
            verdicts or "none",
        ]
        escaped = [cell.replace("|", r"\|") for cell in cells]
        rows.append(f"| {' | '.join(escaped)} |")
    return "\n".join([HEADER, *rows])


def stale(root: Path) -> list[Path]:
    """List the generated files whose content is not what the results say."""
    return [file for file, content in generated(root) if not file.is_file() or file.read_bytes() != content]


def _with_block(file: Path, name: str, body: str) -> bytes:
    if not file.is_file():
        raise FileNotFoundError(f"{file}: no such file, expected one with the markers of the block {name}")
    try:
        return update_block(_read(file), name, body).encode()
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


def _drawn(draw: Callable[[Path], None]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "figure.png"
        draw(file)
        return file.read_bytes()


def _read(file: Path) -> str:
    return file.read_text(encoding="utf-8")


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(description="Regenerate what the READMEs show of the results.")
    parser.add_argument("--check", action="store_true", help="name what is out of date and exit with 1")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout")
    options = parser.parse_args(argv)
    try:
        # Everything is made before anything is written: an error leaves all files as they were.
        outdated = {
            file: content
            for file, content in generated(options.root)
            if not file.is_file() or file.read_bytes() != content
        }
    except (ValueError, OSError) as error:
        print(f"readme: {error}", file=sys.stderr)
        return 2
    for file, content in outdated.items():
        print(f"{'out of date' if options.check else 'wrote'}: {file.relative_to(options.root)}")
        if not options.check:
            with atomic_write(file) as out:
                out.write(content)
    return 1 if options.check and outdated else 0


if __name__ == "__main__":
    sys.exit(main())
