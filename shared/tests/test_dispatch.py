"""Which paper does `train` mean? The rules one by one, then real processes."""

import re
import subprocess
import sys
import time

import pytest
from shared.cli import find_paper, package_of_uv_run, project_above
from workspace import environment_of, find_uv, make_workspace, run

from shared import cli

PAPERS = ("alpha", "beta")


@pytest.fixture
def alone(monkeypatch, tmp_path):
    """No environment variable, no uv among the ancestors, no project above."""
    monkeypatch.delenv(cli.PAPER_VARIABLE, raising=False)
    monkeypatch.setattr(cli, "_ancestors", list)
    monkeypatch.chdir(tmp_path)
    return monkeypatch


@pytest.mark.parametrize(
    ("words", "package"),
    [
        ("uv run --package beta train", "beta"),
        ("uv run --package=beta train", "beta"),
        ("/x/.uv/bin/uv run --no-sync --package beta -- timeout 5 train", "beta"),
        ("python3 -m uv run --package beta train", "beta"),
        ("uv --quiet run --package beta train", "beta"),
        ("uv run -- train --package beta", None),
        ("uv run train", None),
        ("uv sync --package beta", None),
        ("sh -c uv", None),
    ],
)
def test_the_package_is_read_off_every_spelling_of_uv_run(words, package):
    assert package_of_uv_run([["sh"], words.split()]) == package


def test_the_nearest_uv_run_counts():
    lines = [["uv", "run", "--package", "alpha", "bash"], ["uv", "run", "--package", "beta", "bash"]]
    assert package_of_uv_run(lines) == "alpha"
    assert package_of_uv_run([["uv", "run", "bash"], lines[1]]) is None


def test_the_rules_apply_in_their_order(alone, tmp_path):
    class Uv:
        def cmdline(self):
            return ["uv", "run", "--package", "beta", "train"]

    (tmp_path / "pyproject.toml").write_text('[project]\nname = "alpha"\n')
    assert find_paper(["--x"], PAPERS) == ("alpha", ["--x"])  # the project above
    alone.setattr(cli, "_ancestors", lambda: [Uv()])
    assert find_paper(["--x"], PAPERS) == ("beta", ["--x"])
    alone.setenv(cli.PAPER_VARIABLE, "alpha")
    assert find_paper(["--x"], PAPERS) == ("alpha", ["--x"])
    assert find_paper(["beta", "--x"], PAPERS) == ("beta", ["--x"])


def test_a_project_that_is_no_paper_is_passed_over_for_the_only_paper(alone, tmp_path):
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "thesis"\n')
    assert find_paper([], ["alpha"]) == ("alpha", [])
    with pytest.raises(LookupError, match="the names are: alpha, beta"):
        find_paper([], PAPERS)


def test_a_package_that_is_no_paper_is_an_error_even_if_there_is_one_paper(alone):
    class Uv:
        def cmdline(self):
            return ["uv", "run", "--package", "shared", "train"]

    alone.setattr(cli, "_ancestors", lambda: [Uv()])
    with pytest.raises(LookupError, match="shared is no paper; choose one of: alpha"):
        find_paper([], ["alpha"])


def test_without_papers_the_error_says_so(alone):
    with pytest.raises(LookupError, match="none is installed"):
        find_paper([], [])


def test_the_nearest_project_file_decides_even_when_it_is_broken(tmp_path):
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "alpha"\n')
    assert project_above(inner) == "alpha"
    (tmp_path / "a" / "pyproject.toml").write_text("[tool.x]\n")
    assert project_above(inner) is None
    (tmp_path / "a" / "pyproject.toml").write_text("not toml [")
    assert project_above(inner) is None


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    return make_workspace(tmp_path_factory.mktemp("dispatch"))


UV = find_uv()


def first_line(result):
    return (result.stdout + result.stderr).splitlines()[0]


@pytest.mark.parametrize(
    "words",
    [
        (UV, "run", "--no-sync", "--package", "beta", "train", "--help"),
        (UV, "run", "--no-sync", "--package=beta", "train", "--help"),
        (UV, "run", "--no-sync", "--package", "beta", "--", "timeout", "60", "train", "--help"),
        (UV, "run", "--no-sync", "--package", "beta", "sh", "-c", "train --help; exit 0"),
        ("train", "beta", "--help"),
        ("beta", "train", "--help"),
    ],
    ids=lambda words: " ".join(word.rsplit("/", 1)[-1] for word in words),
)
def test_every_spelling_reaches_the_paper_that_is_named(workspace, words):
    result = run(workspace, *words)
    assert result.returncode == 0, result.stderr
    assert "uv run --package beta train" in result.stdout


def test_uv_as_a_python_module_reaches_the_paper(workspace, tmp_path):
    # `python -m uv` execs the uv binary: stand in for the module where uv is no package of this environment
    (tmp_path / "uv.py").write_text(f"import os, sys\nos.execv({UV!r}, [{UV!r}, *sys.argv[1:]])\n")
    words = (sys.executable, "-m", "uv", "run", "--no-sync", "--package", "beta", "train", "--help")
    result = run(workspace, *words, PYTHONPATH=str(tmp_path))
    assert "uv run --package beta train" in result.stdout, result.stderr


def test_the_working_directory_chooses_without_a_name(workspace):
    result = run(workspace, "train", "--help", cwd=workspace / "packages" / "alpha" / "src")
    assert "uv run --package alpha train" in result.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("train",), "train: which paper?"),
        (("train", "--help"), "train: which paper?"),
        (("train", "gamma"), "train: there is no paper 'gamma'"),
    ],
)
def test_without_a_known_name_the_choices_are_listed(workspace, words, message):
    result = run(workspace, *words)
    assert result.returncode == 1
    assert result.stderr.startswith(message)
    assert {"alpha", "beta"} <= set(re.findall(r"\w+", result.stderr))


def test_uv_naming_a_package_that_is_no_paper_lists_the_choices(workspace):
    (workspace / "packages" / "tool").mkdir(exist_ok=True)
    (workspace / "packages" / "tool" / "pyproject.toml").write_text(
        '[project]\nname = "tool"\nversion = "0"\nrequires-python = ">=3.11"\n'
    )
    result = run(workspace, UV, "run", "--no-sync", "--package", "tool", "train")
    assert result.returncode == 1
    assert re.search(r"train: the package tool is no paper; choose one of: (.+, )?alpha, ", result.stderr)


def test_two_papers_started_at_the_same_moment_each_run_their_own(workspace):
    words = [(UV, "run", "--no-sync", "--package", name, "train", "--help") for name in PAPERS for _ in range(3)]
    environment = environment_of(workspace)
    started = [subprocess.Popen(w, cwd=workspace, env=environment, text=True, stdout=subprocess.PIPE) for w in words]
    for w, process in zip(words, started, strict=True):
        assert f"uv run --package {w[4]} train" in process.communicate(timeout=60)[0]


def test_help_is_there_within_two_seconds_and_imports_nothing_heavy(workspace):
    program = (
        "import sys; from alpha.cli import main; main(['train', '--help']); main([]); "
        "print({'torch', 'lightning', 'scipy', 'matplotlib'} & set(sys.modules))"
    )
    started = time.monotonic()
    result = run(workspace, str(workspace / ".venv/bin/python"), "-c", program)
    assert time.monotonic() - started < 2
    assert result.stdout.splitlines()[-1] == "set()"
    assert "  greet    say hello" in result.stdout


def test_verbs_take_their_options_from_their_signatures(workspace):
    assert run(workspace, "beta", "greet", "--name", "you").stdout == "beta greets you\n"
    assert "whom to greet" in run(workspace, "beta", "greet", "--help").stdout


def test_bad_input_is_one_sentence_and_a_code(workspace):
    result = run(workspace, "alpha", "fail")
    assert result.returncode == 2
    assert result.stderr.splitlines()[0] == "alpha fail: error: the option kind is bad"
    assert "Traceback" in run(workspace, "alpha", "fail", PAPERS_TRACEBACK="1").stderr
    result = run(workspace, "alpha", "fail", "--kind", "absent")  # an optional dependency
    assert (result.returncode, result.stderr.splitlines()[0]) == (2, "alpha fail: error: the option kind is bad")
    result = run(workspace, "alpha", "fly")
    assert result.returncode == 2
    assert (
        "alpha fly: error: there is no such verb; the verbs are: train, test, configs, info, greet, fail"
        in result.stderr
    )


def test_configs_are_listed_with_their_first_comment(workspace):
    assert run(workspace, "alpha", "configs").stdout == "default  The tiny default: seconds on a CPU.\n"
