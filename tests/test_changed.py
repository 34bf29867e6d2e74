"""Which packages a change touches, in a small git repository."""

import subprocess

import pytest
from changed import changed_packages

ZERO = "0" * 40  # what a first push names as the commit before it


def git(repository, *words):
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false", *words]
    result = subprocess.run(command, cwd=repository, text=True, capture_output=True, check=True)
    return result.stdout.strip()


def commit(repository, *names):
    for name in names:
        file = repository / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{file.read_text() if file.exists() else ''}x\n")
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "-m", "x")
    return git(repository, "rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path):
    git(tmp_path, "init", "-q")
    members = [f"packages/{name}/{file}" for name in ("a", "ab", "c") for file in ("pyproject.toml", f"src/{name}.py")]
    commit(tmp_path, *members, "shared/x.py", "uv.lock", "README.md", "tests/test_x.py")
    return tmp_path


@pytest.mark.parametrize(
    ("files", "touched"),
    [
        (["packages/a/src/a.py"], ["a"]),
        (["packages/ab/new/file with blanks é"], ["ab"]),
        (["packages/c/README.md", "packages/a/README.md"], ["a", "c"]),
        (["README.md", "tests/test_x.py", "packages/notes.md"], []),
        (["shared/src/shared/new.py"], ["a", "ab", "c"]),
        (["uv.lock"], ["a", "ab", "c"]),
        ([".github/workflows/ci.yml"], ["a", "ab", "c"]),
        (["tools/x.py", "packages/a/src/a.py"], ["a", "ab", "c"]),
        (["shared.md", "docs/uv.lock"], []),
    ],
)
def test_a_change_lists_what_it_touches(repository, files, touched):
    base = git(repository, "rev-parse", "HEAD")
    commit(repository, *files)
    assert changed_packages(repository, base) == touched


@pytest.mark.parametrize("base", [ZERO, "", "no-such-commit", "--output=x"])
def test_without_a_known_base_all_are_listed(repository, base):
    assert changed_packages(repository, base) == ["a", "ab", "c"]
    assert not (repository / "x").exists()


def test_a_file_that_moves_touches_the_package_it_leaves(repository):
    base = git(repository, "rev-parse", "HEAD")
    git(repository, "mv", "packages/a/src/a.py", "packages/c/src/a.py")
    commit(repository)
    assert changed_packages(repository, base) == ["a", "c"]


def test_a_package_that_is_removed_is_not_listed(repository):
    base = git(repository, "rev-parse", "HEAD")
    git(repository, "rm", "-q", "-r", "packages/a")
    commit(repository, "packages/c/src/c.py")
    assert changed_packages(repository, base) == ["c"]


def test_changes_of_several_commits_add_up(repository):
    base = git(repository, "rev-parse", "HEAD")
    commit(repository, "packages/a/src/a.py")
    commit(repository, "packages/c/src/c.py")
    assert changed_packages(repository, base) == ["a", "c"]
