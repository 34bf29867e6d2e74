"""A package on its own: what is copied, its project file, its lock, and that it runs there."""

import json
import os
import subprocess
import tomllib

import pytest
from export import closure, export, find_uv, standalone_pyproject, tables
from readme import ROOT, packages
from workspace import run

pytestmark = pytest.mark.xdist_group("export")  # the tests share a project that is written once
NAME = packages(ROOT)[0].name  # the one that is exported for real
# The shortest training of each package that its default config does not make short.
SHORT = {"nat": ["--model.adversary.epochs=1", "--model.max_divergence=10", "--model.test_attacks=fgsm"]}


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    destination = tmp_path_factory.mktemp("export") / "mine"
    export(ROOT, NAME, destination)
    return destination


@pytest.fixture(scope="module")
def content(project):
    return tomllib.loads((project / "pyproject.toml").read_text())


def tracked(folder):
    listed = subprocess.run(["git", "ls-files", "-z", folder], cwd=ROOT, text=True, capture_output=True, check=True)
    return {name.removeprefix(f"{folder}/") for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()}


def test_exactly_the_tracked_files_are_there(project):
    beside = {"LICENSE", ".gitignore", ".python-version", "conftest.py", "uv.lock"}
    shared = {f"shared/{name}" for name in tracked("shared")}
    there = {str(file.relative_to(project)) for file in project.rglob("*") if file.is_file()}
    assert there == tracked(f"packages/{NAME}") | shared | beside
    for name in tracked(f"packages/{NAME}") - {"pyproject.toml"}:
        assert (project / name).read_bytes() == (ROOT / "packages" / NAME / name).read_bytes()


def test_the_lock_takes_shared_from_the_folder_and_from_no_registry(project):
    lock = tomllib.loads((project / "uv.lock").read_text())
    sources = {entry["name"]: entry["source"] for entry in lock["package"]}
    assert sources["shared"] == {"editable": "shared"}
    assert sources[NAME] == {"editable": "."}
    assert [name for name, source in sources.items() if "registry" not in source] == sorted({NAME, "shared"})


def test_the_lock_keeps_the_versions_of_the_workspace(project):
    locked = [tomllib.loads((folder / "uv.lock").read_text())["package"] for folder in (project, ROOT)]
    own, workspace = ({(entry["name"], entry.get("version")) for entry in lock} for lock in locked)
    assert own < workspace


def test_the_lock_is_up_to_date(project):
    variables = {k: v for k, v in os.environ.items() if k != "VIRTUAL_ENV"}
    command = [find_uv(), "lock", "--check", "--quiet", "--project", str(project)]
    result = subprocess.run(command, cwd=project, env=variables, text=True, capture_output=True, check=False)
    assert result.returncode == 0, result.stderr


def test_the_roots_settings_travel_and_its_workspace_does_not(content):
    root = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    own = content["tool"]
    assert own["uv"]["sources"] == {"shared": {"path": "shared", "editable": True}}
    assert "workspace" not in own["uv"]
    assert own["uv"]["required-version"] == root["uv"]["required-version"]
    assert own["ruff"] == root["ruff"]
    assert own["mypy"] == root["mypy"]
    pytest_options = own["pytest"]["ini_options"]
    assert pytest_options["addopts"] == root["pytest"]["ini_options"]["addopts"]
    assert pytest_options["markers"] == root["pytest"]["ini_options"]["markers"]
    assert (pytest_options["testpaths"], pytest_options["pythonpath"]) == (["tests", "shared/tests"], ["shared/tests"])


def test_the_rest_of_the_project_file_is_the_members(package):
    file = package.folder / "pyproject.toml"
    member = tomllib.loads(file.read_text())
    own = tomllib.loads(standalone_pyproject(ROOT, file.read_text()))
    for key in ("project", "dependency-groups", "build-system"):
        assert own[key] == member[key]
    assert own["tool"]["hatch"] == member["tool"]["hatch"]


def test_it_trains_there_from_its_own_files(project, install):
    install(project, project, project / "shared")
    short = ["--trainer.max_epochs=1", "--trainer.limit_train_batches=2", "--trainer.accelerator=cpu"]
    result = run(project, "train", *short, "--run_dir=runs/x", *SHORT.get(NAME, []))
    assert result.returncode == 0, result.stderr
    assert json.loads((project / "runs" / "x" / "test.json").read_text())["n"] > 0
    python = str(project / ".venv" / "bin" / "python")
    program = f"import {NAME}.cli, shared.cli; print({NAME}.__file__, shared.__file__)"
    for file in run(project, python, "-c", program).stdout.split():
        assert file.startswith(str(project))


@pytest.mark.slow
def test_its_own_tests_and_train_pass_in_an_environment_of_its_lock(tmp_path):
    destination = tmp_path / "mine"
    export(ROOT, NAME, destination)
    uv = find_uv()
    commands = [
        [uv, "run", "--locked", "--group", "test", "pytest", "tests"],
        [uv, "run", "--locked", "--package", NAME, "train", "--trainer.max_epochs=1", *SHORT.get(NAME, [])],
        [uv, "run", "--locked", NAME, "configs"],
    ]
    variables = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "PYTHONPATH")}
    for command in commands:
        result = subprocess.run(command, cwd=destination, env=variables, text=True, capture_output=True, check=False)
        assert result.returncode == 0, result.stdout + result.stderr


def test_a_destination_that_is_not_empty_is_refused_and_left_alone(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    with pytest.raises(FileExistsError, match=r"DEST .*mine exists and is not empty"):
        export(ROOT, NAME, tmp_path / "mine")
    assert [file.name for file in tmp_path.rglob("*")] == ["mine", "thesis.tex"]


def test_an_unknown_package_is_refused(tmp_path):
    with pytest.raises(ValueError, match="PKG is 'shared', expected one of"):
        export(ROOT, "shared", tmp_path / "mine")


def test_nothing_is_left_behind_when_uv_fails(tmp_path, monkeypatch):
    monkeypatch.setenv("UV", "false")
    with pytest.raises(RuntimeError, match="uv cannot lock"):
        export(ROOT, NAME, tmp_path / "mine")
    assert list(tmp_path.iterdir()) == []


def test_a_member_that_takes_shared_from_elsewhere_is_refused():
    with pytest.raises(ValueError, match=r"expected the line `shared = \{ workspace = true \}` once"):
        standalone_pyproject(ROOT, '[project]\nname = "x"\n')


def test_tables_keep_their_comments_and_lose_nothing():
    text = "# top\n\n[a]\nx = [\n  1,\n]\n\n# of b\n# too\n[[b.c]] # why\ny = 2\n\n[[b.c]]\ny = 3\n"
    assert tables(text) == [
        ("a", "[a]\nx = [\n  1,\n]\n"),
        ("b.c", "# of b\n# too\n[[b.c]] # why\ny = 2\n"),
        ("b.c", "[[b.c]]\ny = 3\n"),
    ]


def test_only_metadata_of_what_the_package_needs_travels(tmp_path):
    (tmp_path / "pyproject.toml").write_text(
        "".join(f'[[tool.uv.dependency-metadata]]\nname = "{name}"\n' for name in ("deep", "other"))
    )
    (tmp_path / "uv.lock").write_text(
        '[[package]]\nname = "x"\ndev-dependencies = {t = [{name = "near"}]}\n'
        '[[package]]\nname = "near"\noptional-dependencies = {e = [{name = "deep"}]}\n'
        '[[package]]\nname = "other"\n'
    )
    member = '[project]\nname = "x"\n[tool.uv.sources]\nshared = { workspace = true }\n'
    own = tomllib.loads(standalone_pyproject(tmp_path, member))
    assert own["tool"]["uv"]["dependency-metadata"] == [{"name": "deep"}]
    lock = tomllib.loads((tmp_path / "uv.lock").read_text())
    assert closure(lock, ["near"]) == {"near", "deep"}
