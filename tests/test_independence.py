"""The arrows of imports: papers know `shared` and not each other; method files know neither `shared` nor Lightning."""

import sys

import grimp
import pytest
from contract import names_in_equations_table
from readme import ROOT, packages

PAPERS = {package.name for package in packages(ROOT)}
# What wires a method to data and trainer; a row of the README's table may point into these, too.
WIRING = {"app", "cli", "comparison", "data", "module", "report", "verbs"}
ALWAYS_PURE = {"baselines", "models"}
FRAMEWORK = {"lightning", "pytorch_lightning", "jsonargparse", "shared"}


def build(*names):
    return grimp.build_graph(*names, include_external_packages=True, cache_dir=None)


@pytest.fixture(scope="module")
def graph():
    return build(*PAPERS, "shared")


def imports_of(graph, name, others):
    """List the imports that lead from a package into one of `others`, as (importer, imported)."""
    modules = graph.find_descendants(name) | {name}
    arrows = {(module, found) for module in modules for found in graph.find_modules_directly_imported_by(module)}
    return {(module, found) for module, found in arrows if found.split(".")[0] in others}


def reached_by(graph, module):
    """List the top-level names that a module imports, directly or through other modules."""
    return {found.split(".")[0] for found in graph.find_upstream_modules(module)}


def method_files(package):
    """List the modules that must be pure: baselines, models, and those of the equations table that wire nothing."""
    cited = {module for module, _ in names_in_equations_table(package)}
    there = {file.stem for file in (package.folder / "src" / package.name).glob("*.py")}
    return sorted((cited - WIRING) | (ALWAYS_PURE & there))


def test_no_package_imports_another(graph, package):
    assert imports_of(graph, package.name, PAPERS - {package.name}) == set()


def test_shared_imports_no_package(graph):
    assert imports_of(graph, "shared", PAPERS) == set()


def test_method_files_import_neither_lightning_nor_shared(graph, package):
    files = method_files(package)
    assert set(files) - ALWAYS_PURE, "the README's table names no method file"
    for name in files:
        assert reached_by(graph, f"{package.name}.{name}").isdisjoint(FRAMEWORK), name


def test_the_report_can_be_read_where_the_package_is_not_installed(graph, package):
    """The tables are made from the file alone: it imports the standard library and `shared`, nothing of its package."""
    roots = {name.partition(".")[0] for name in graph.find_modules_directly_imported_by(f"{package.name}.report")}
    assert roots - {"shared"} <= sys.stdlib_module_names


def test_these_checks_see_an_import_that_is_not_allowed(tmp_path, monkeypatch):
    for name, text in {"red": "", "blue": "from red import paint"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
        (tmp_path / name / "paint.py").write_text("import lightning")
        (tmp_path / name / "loss.py").write_text(text)
    (tmp_path / "red" / "loss.py").write_text("from . import paint")
    monkeypatch.syspath_prepend(tmp_path)
    graph = build("red", "blue")
    assert imports_of(graph, "blue", {"red"}) == {("blue.loss", "red.paint")}
    assert imports_of(graph, "red", {"blue"}) == set()
    assert "lightning" in reached_by(graph, "red.loss")
