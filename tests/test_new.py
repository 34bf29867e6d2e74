"""A new package: what is left for its author, and that it works before that."""

import json
import shutil
import subprocess
import sys

import pytest
from contract import faults
from new import camel_case, check_name, write
from readme import Package
from workspace import run

pytestmark = pytest.mark.xdist_group("new")  # the tests share a package that is written once
LEFT = {
    "README.md": 8,
    "pyproject.toml": 1,
    "results/claims.yaml": 1,
    "src/zebra_crossing/__init__.py": 1,
    "src/zebra_crossing/cli.py": 1,
    "src/zebra_crossing/method.py": 2,
}


@pytest.fixture(scope="module")
def workspace(root, install, tmp_path_factory):
    """A workspace with nothing but the new package, and an environment in which it is installed."""
    folder = tmp_path_factory.mktemp("new")
    for name in ("pyproject.toml", "conftest.py"):
        shutil.copy(root / name, folder)
    (folder / "README.md").write_text("<!-- papers:begin -->\n<!-- papers:end -->\n")
    package = write(folder, "zebra_crossing")  # a long name, so that lines have to be wrapped
    install(folder, package.folder, root / "shared")
    return folder


@pytest.fixture(scope="module")
def package_folder(workspace):
    return workspace / "packages" / "zebra_crossing"


def test_what_is_left_is_what_only_the_author_can_supply(package_folder):
    found = faults(Package(package_folder))
    blanks = [fault.split(": ")[0] for fault in found if ": TODO" in fault]
    assert {file: blanks.count(file) for file in blanks} == LEFT
    rest = [fault for fault in found if ": TODO" not in fault]
    assert rest == ["results/results.json: missing; `make compare PKG=zebra_crossing` writes it"]


def test_nothing_of_the_template_is_left(package_folder):
    files = [file for file in package_folder.rglob("*") if file.is_file() and file.suffix in (".py", ".toml", ".md")]
    assert len(files) == 16
    assert [file for file in files if "NAME" in file.read_text() or "NameM" in file.read_text()] == []
    assert "class ZebraCrossingModule(" in (package_folder / "src/zebra_crossing/module.py").read_text()


def test_its_code_is_formatted_and_keeps_the_rules(workspace):
    for arguments in (["check"], ["format", "--check"]):
        command = [sys.executable, "-m", "ruff", *arguments, "--no-cache", "packages"]
        result = subprocess.run(command, cwd=workspace, text=True, capture_output=True, check=False)
        assert result.returncode == 0, result.stdout


def test_it_trains_at_once(workspace):
    result = run(
        workspace, "train", "zebra_crossing", "--trainer.max_epochs=5", "--trainer.accelerator=cpu", "--run_dir=runs/x"
    )
    assert result.returncode == 0, result.stderr
    metrics = json.loads((workspace / "runs" / "x" / "test.json").read_text())
    assert metrics["n"] == 597
    assert metrics["accuracy"] > 0.85


@pytest.mark.slow
def test_its_own_tests_pass(workspace):
    python = str(workspace / ".venv" / "bin" / "python")
    result = run(workspace, python, "-m", "pytest", "-o", "pythonpath=", "-m", "", "packages/zebra_crossing")
    assert result.returncode == 0, result.stdout
    assert "passed" in result.stdout


@pytest.mark.slow
def test_once_it_is_compared_only_the_blanks_are_left(workspace):
    from readme import main

    result = run(workspace, "zebra_crossing", "compare")
    assert result.returncode == 0, result.stderr
    assert main(["--root", str(workspace)]) == 0
    found = faults(Package(workspace / "packages" / "zebra_crossing"))
    assert [fault for fault in found if ": TODO" not in fault] == []


@pytest.mark.parametrize("name", ["Foo", "foo-bar", "2foo", "foo__bar", "foo_", "", "../foo", "_foo", "fooé"])
def test_a_name_that_is_no_module_name_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match="expected lower-case letters"):
        check_name(tmp_path, name)


@pytest.mark.parametrize("name", ["shared", "torch", "random", "tests", "train"])
def test_the_name_of_another_module_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match="no other module's"):
        check_name(tmp_path, name)


def test_a_package_is_not_overwritten(workspace):
    with pytest.raises(ValueError, match="packages/zebra_crossing exists"):
        write(workspace, "zebra_crossing")


def test_class_names_follow_the_package():
    assert camel_case("my_paper2") == "MyPaper2"
