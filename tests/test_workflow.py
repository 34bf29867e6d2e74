"""The workflow file: its schema, and that what it runs is what the README and the Makefile say."""

import re
import subprocess
import sys

import pytest
import yaml


@pytest.fixture(scope="module")
def file(root):
    return root / ".github" / "workflows" / "ci.yml"


@pytest.fixture(scope="module")
def jobs(file):
    return yaml.safe_load(file.read_text())["jobs"]


def check_schema(file):
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(file)]
    return subprocess.run(command, text=True, capture_output=True, check=False)


def test_the_workflow_fits_the_schema(file):
    result = check_schema(file)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_schema_sees_a_misspelt_key(file, tmp_path):
    broken = tmp_path / "ci.yml"
    broken.write_text(file.read_text().replace("runs-on: ubuntu-latest", "run-on: ubuntu-latest", 1))
    assert check_schema(broken).returncode == 1


def commands(jobs):
    return [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]


def test_its_make_targets_are_in_the_makefile(root, jobs):
    targets = set(re.findall(r"^([a-z-]+):", (root / "Makefile").read_text(), re.MULTILINE))
    used = {command.split()[1] for command in commands(jobs) if command.startswith("make ")}
    assert {"lint", "types", "test"} <= used
    assert used <= targets


def test_its_command_for_one_package_is_the_readmes(root, jobs):
    (command,) = (step["run"] for step in jobs["package"]["steps"] if "run" in step)
    readme = (root / "README.md").read_text()
    names = ["NAME", *(folder.name for folder in (root / "packages").iterdir())]
    assert any(command.replace("${{ matrix.package }}", name) in readme for name in names), command


def test_the_matrix_is_made_by_the_tool_and_the_tool_exists(root, jobs):
    (step,) = (step for step in jobs["matrix"]["steps"] if "run" in step)
    (tool,) = re.findall(r"python3 (tools/\w+\.py)", step["run"])
    assert (root / tool).is_file()
    assert f"steps.{step['id']}.outputs.packages" in jobs["matrix"]["outputs"]["packages"]
    assert "needs.matrix.outputs.packages" in jobs["package"]["strategy"]["matrix"]["package"]


def test_the_last_job_waits_for_all_others(jobs):
    *others, last = jobs
    assert sorted(jobs[last]["needs"]) == sorted(others)
    assert "always()" in jobs[last]["if"]  # a skipped job would otherwise skip it, and count as passed


def test_no_command_contains_text_of_whoever_opens_a_pull_request(jobs):
    inserted = {name for command in commands(jobs) for name in re.findall(r"\${{\s*(.*?)\s*}}", command)}
    assert inserted == {"matrix.package"}


def test_every_package_has_the_group_that_the_workflow_asks_for(package):
    import tomllib

    content = tomllib.loads((package.folder / "pyproject.toml").read_text())
    assert any(entry.startswith("pytest>") for entry in content["dependency-groups"]["test"])
