"""The contract of every package: its files (tools/contract.py), its command and its configs."""

import importlib
import json
import shutil
import subprocess
import sys
from importlib.metadata import entry_points, version

import pytest
import yaml
from contract import CHECKS, FOREIGN, SECTIONS, TEXT_SUFFIXES, faults, names_in_equations_table, text_files
from readme import Package
from shared.results import Record, Results


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_files_keep_the_contract(package, check):
    assert list(check(package)) == []


def test_the_installed_version_and_command_are_those_of_the_project_file(package):
    assert version(package.name) == package.project["version"]
    (entry,) = entry_points(group="papers", name=package.name)
    assert entry.value == f"{package.name}.cli:main"


def test_help_names_every_config_and_waits_for_nothing_heavy(package):
    program = (
        f"import sys; from {package.name}.cli import main; main(['train', '--help']); main([]);"
        "print([m for m in ('torch', 'lightning') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], text=True, capture_output=True, check=True)
    lines = result.stdout.splitlines()
    assert lines[-1] == "[]"
    listed = [line.split()[0] for line in lines if line.startswith("  ")]
    assert set(config_names(package)) <= set(listed)
    assert package_module(package, "cli").PAPER.name == package.name


def test_every_config_prints_settings_that_lead_to_themselves(package, capsys, tmp_path):
    cli = package_module(package, "cli").PAPER.load_cli()
    assert cli.paper == package.name
    for name in config_names(package):
        with pytest.raises(SystemExit) as stop:
            cli(["--config", name, "--print_config"], parse_only=True, quiet=True)
        assert not stop.value.code
        printed = tmp_path / f"{name}.yaml"
        printed.write_text(capsys.readouterr().out)
        settings = yaml.safe_load(printed.read_text())
        assert {"model", "data", "trainer"} <= set(settings)
        assert cli.hash_of(["--config", str(printed)]) == cli.hash_of(["--config", name]), name


def test_public_names_are_there(package):
    module = importlib.import_module(package.name)
    assert module.__all__
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


def test_every_name_in_the_equations_table_is_in_the_code(package):
    names = names_in_equations_table(package)
    assert names
    for module_name, path in names:
        found = package_module(package, module_name)
        for part in path:
            found = getattr(found, part)


def test_nothing_of_this_machine_is_in_the_checkout(root):
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, text=True, capture_output=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        file = root / name
        if name != "uv.lock" and file.suffix in TEXT_SUFFIXES and file.is_file():
            assert not FOREIGN.search(file.read_text(encoding="utf-8")), name


def config_names(package):
    return [file.stem for file in (package.folder / "src" / package.name / "configs").glob("*.yaml")]


def package_module(package, name):
    return importlib.import_module(f"{package.name}.{name}")


# The checks themselves, on a package that breaks one rule at a time.


@pytest.fixture(scope="module")
def complete(root, tmp_path_factory):
    """A package that keeps the contract: the skeleton, its blanks filled and its results made up."""
    from new import write
    from readme import main

    workspace = tmp_path_factory.mktemp("contract")
    (workspace / "README.md").write_text("<!-- papers:begin -->\n<!-- papers:end -->\n")
    shutil.copy(root / "pyproject.toml", workspace)
    folder = write(workspace, "toy").folder
    for file in text_files(folder):
        file.write_text(file.read_text().replace("TODO", "what"))
    results = Results("toy", "0.1.0")
    for method, accuracy in (("smoothed", 0.9), ("plain", 0.8)):
        for seed in range(6):
            values = {"accuracy": accuracy + seed / 1000, "n": 597.0}
            results.add(Record(method, seed, "digits", values, 1.0, method, {"toy": "0.1.0"}, "cpu"))
    results.save(folder / "results" / "results.json")
    assert main(["--root", str(workspace)]) == 0
    assert faults(Package(folder)) == []
    return folder


@pytest.fixture
def written(complete, tmp_path):
    """A copy of it, to be broken."""
    return shutil.copytree(complete, tmp_path / "toy")


def edit(file, old, new):
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("file", "old", "new", "fault"),
    [
        ("pyproject.toml", "{ workspace = true }", '{ path = "x" }', "pyproject.toml: tool.uv is"),
        ("pyproject.toml", '["Private :: Do Not Upload"]', "[]", "pyproject.toml: the classifier"),
        ("pyproject.toml", 'toy = "toy.cli:main"', 'train = "toy.cli:main"', "pyproject.toml: project.scripts is"),
        ("pyproject.toml", '    "shared",\n', "", "pyproject.toml: the dependency `shared`"),
        ("pyproject.toml", 'version = "0.1.0"', 'version = "0.2.0"', "CHANGELOG.md: begins with 0.1.0"),
        ("CHANGELOG.md", "## 0.1.0", "## 0.3.0", "CHANGELOG.md: begins with 0.3.0"),
        ("README.md", "## Data\n", "", "README.md: no section `## Data`"),
        ("README.md", "## Data\n", "## Data\n" + "x\n" * 200, "lines of its own, expected fewer than 200"),
        ("README.md", "## Data\n", "## Data\n`--config gone`\n", "README.md: names the config gone"),
        ("README.md", "Mean ±", "mean ±", "README.md: out of date"),
        ("README.md", "## Data\n", "## Data\nTODO\n", "README.md: TODO"),
        ("README.md", "## Data\n", "## Data\n/" + "home/me\n", "README.md: names /" + "home/m"),
        ("results/results.json", '"n": 597.0', '"m": 597.0', "no metric `n`"),
        ("results/claims.yaml", "min_seeds: 6", "min_seeds: 7", "better-than-plain is not measured on 7 seeds"),
        ("results/claims.yaml", "direction: higher", "direction: up", "direction is 'up'"),
        ("src/toy/configs/default.yaml", "uv run --package toy train", "train", "configs/default.yaml: its comments"),
        ("src/toy/configs/default.yaml", "# The", "The", "configs/default.yaml: line 1 is no comment"),
    ],
)  # fmt: skip
def test_a_broken_rule_is_named(written, file, old, new, fault):
    edit(written / file, old, new)
    assert any(fault in found for found in faults(Package(written))), faults(Package(written))


def test_a_missing_file_is_named_once(written):
    (written / "CHANGELOG.md").unlink()
    assert faults(Package(written)).count("CHANGELOG.md: missing") == 1


@pytest.mark.parametrize(
    ("key", "value", "fault"),
    [
        ("config_hash", "other", "plain in digits: the settings differ between seeds"),
        ("metrics", {"accuracy": 0.8, "n": 500.0}, "digits was scored on [500.0, 597.0] items"),
        ("versions", {"toy": "0.0.9"}, "plain in digits, seed 0: measured by version 0.0.9"),
    ],
)
def test_results_on_unequal_terms_are_named(written, key, value, fault):
    file = written / "results" / "results.json"
    content = json.loads(file.read_text())
    content["records"][0][key] = value
    file.write_text(json.dumps(content))
    assert any(fault in found for found in faults(Package(written)))


def test_the_sections_are_those_of_the_skeleton(written):
    headings = [line[3:] for line in (written / "README.md").read_text().splitlines() if line.startswith("## ")]
    assert tuple(headings) == SECTIONS
