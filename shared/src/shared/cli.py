"""The `train` command of the whole workspace, and the frame of each paper's own command.

Nothing heavy is imported here: which paper is meant, and what its `--help` says, is known before torch is.

Every package registers its `main` under the entry point group `papers`; the one script `train` finds out
which of them is meant (`find_paper`). Were each package to declare a script `train` of its own, they
would overwrite each other in the workspace's one environment.
"""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Iterable, Sequence
from importlib.metadata import entry_points
from pathlib import Path

import psutil

from shared.paper import TRACEBACK_VARIABLE, Paper
from shared.verbs import overview, verbs_of

__all__ = ["Paper", "find_paper", "main", "train"]

ENTRY_POINT_GROUP = "papers"
PAPER_VARIABLE = "PAPERS_NAME"  # tells the processes that Lightning starts for DDP which paper they belong to


def train(argv: Sequence[str] | None = None) -> None:
    """Run the training command of the paper that is meant (the script `train`).

    Args:
        argv: arguments, `sys.argv[1:]` by default; the first may be a paper's name.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    papers = {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}
    try:
        name, arguments = find_paper(arguments, papers)
    except LookupError as error:
        sys.exit(f"train: {error.args[0]}")
    os.environ[PAPER_VARIABLE] = name
    sys.exit(papers[name].load()(["train", *arguments]))


def find_paper(arguments: list[str], papers: Iterable[str]) -> tuple[str, list[str]]:
    """Decide which paper `train` means.

    The first of these that is a registered name wins: the first argument; the variable that `train` sets
    for its child processes; `--package NAME` of the nearest `uv run` among the ancestor processes; the
    project of the nearest pyproject.toml above the working directory; the only one there is.

    Args:
        arguments: the command's arguments.
        papers: the registered names.

    Returns:
        The name, and the arguments without it.

    Raises:
        LookupError: if none applies, or `uv run --package` names a package that is no paper.
    """
    names = sorted(papers)
    if arguments and arguments[0] in names:
        return arguments[0], arguments[1:]
    inherited = os.environ.get(PAPER_VARIABLE)
    if inherited in names:
        return inherited, arguments
    choices = ", ".join(names) or "none is installed"
    package = package_of_uv_run(process.cmdline() for process in _ancestors())
    if package is not None:
        if package not in names:
            raise LookupError(f"the package {package} is no paper; choose one of: {choices}")
        return package, arguments
    project = project_above(Path.cwd())
    if project in names:
        return project, arguments
    if len(names) == 1:
        return names[0], arguments
    if arguments and not arguments[0].startswith("-"):
        raise LookupError(f"there is no paper {arguments[0]!r}; choose one of: {choices}")
    raise LookupError(f"which paper? Use `uv run --package NAME train` or `train NAME`; the names are: {choices}")


def package_of_uv_run(command_lines: Iterable[Sequence[str]]) -> str | None:
    """Return NAME of `--package NAME` or `--package=NAME` in the first command line that is a `uv run`.

    Args:
        command_lines: of the ancestor processes, nearest first.
    """
    for words in command_lines:
        run = _after_uv_run(words)
        if run is None:
            continue
        for word, following in zip(run, [*run[1:], None], strict=True):
            if word == "--package":
                return following
            if word.startswith("--package="):
                return word.removeprefix("--package=")
            if word == "--":
                break
        return None
    return None


def _after_uv_run(words: Sequence[str]) -> Sequence[str] | None:
    """Return what follows `run` in `uv ... run ...` or `python -m uv ... run ...`, None if it is neither."""
    for place, word in enumerate(words[:4]):  # uv itself, or behind `python -X ... -m`
        if Path(word).stem == "uv" and "run" in words[place + 1 :]:
            return words[words.index("run", place + 1) + 1 :]
    return None


def project_above(folder: Path) -> str | None:
    """Return the project name of the nearest pyproject.toml at or above a folder, if it has one."""
    for parent in (folder, *folder.parents):
        file = parent / "pyproject.toml"
        if file.is_file():
            try:
                name = tomllib.loads(file.read_text()).get("project", {}).get("name")
            except (tomllib.TOMLDecodeError, OSError):
                return None
            return name if isinstance(name, str) else None
    return None


def _ancestors() -> Iterable[psutil.Process]:
    try:
        process = psutil.Process().parent()
        while process is not None:
            yield process
            process = process.parent()
    except psutil.Error:  # a parent that ended, or one of another user
        return


def main(paper: Paper, argv: Sequence[str] | None = None) -> int:
    """Run a paper's command.

    Bad input ends in one sentence on stderr; PAPERS_TRACEBACK=1 shows where it was noticed.

    Args:
        paper: the paper.
        argv: verb and arguments, `sys.argv[1:]` by default.

    Returns:
        The exit code: 0, or 2 after bad input, or 130 after an interrupt.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    verbs = verbs_of(paper)
    verb, *rest = arguments or ["--help"]
    try:
        if verb in ("-h", "--help"):
            print(overview(paper, verbs), flush=True)
            return 0
        if verb not in verbs:
            raise LookupError(f"there is no such verb; the verbs are: {', '.join(verbs)}")
        return verbs[verb].run(rest) or 0
    except BrokenPipeError:  # the reader of the output, such as `head`, has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError, LookupError, ArithmeticError, ImportError) as error:
        if os.environ.get(TRACEBACK_VARIABLE):
            raise
        print(f"{paper.name} {verb}: error: {_sentence(error)}", file=sys.stderr)
        print(f"({TRACEBACK_VARIABLE}=1 shows the traceback)", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{paper.name} {verb}: interrupted", file=sys.stderr)
        return 130


def _sentence(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, KeyError):
        return f"missing {error}"
    return " ".join(str(error).split()) or type(error).__name__
