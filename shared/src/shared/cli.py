"""The `train` command of the whole workspace, and the frame of each paper's own command.

Nothing heavy is imported here: which paper is meant, and what its `--help` says, is known before torch is.

Every package registers its `main` under the entry point group `papers`; the one script `train` finds out
which of them is meant (`find_paper`). Were each package to declare a script `train` of its own, they
would overwrite each other in the workspace's one environment.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from shared.papercli import PaperCLI

ENTRY_POINT_GROUP = "papers"
PAPER_VARIABLE = "PAPERS_NAME"  # tells the processes that Lightning starts for DDP which paper they belong to
TRACEBACK_VARIABLE = "PAPERS_TRACEBACK"


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


@dataclass(frozen=True)
class Paper:
    """What a package tells about its command.

    Attributes:
        name: the package's name, which is also the command's.
        title: one line: what the paper does.
        cli: `module:Class` of its `PaperCLI`, imported only when a run starts.
        verbs: further verbs; name -> function whose typed signature and docstring become its options.
        training_verbs: further verbs that take the options of `train`; name -> function of the arguments.
    """

    name: str
    title: str
    cli: str
    verbs: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    training_verbs: Mapping[str, Callable[[list[str]], Any]] = field(default_factory=dict)

    @property
    def configs(self) -> Path:
        """Folder of the package's own configs."""
        spec = importlib.util.find_spec(self.name)
        assert spec is not None and spec.origin is not None
        return Path(spec.origin).parent / "configs"

    def load_cli(self) -> type[PaperCLI]:
        """Import the package's `PaperCLI`, and with it torch and Lightning."""
        module, name = self.cli.split(":")
        loaded: type[PaperCLI] = getattr(importlib.import_module(module), name)
        return loaded


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
    verbs: dict[str, Callable[[list[str]], Any]] = {
        name: partial(_train, paper, name, function)
        for name, function in {"train": _train_and_test(paper), **paper.training_verbs}.items()
    }
    verbs |= {
        "test": lambda rest: _test(paper, rest),
        "configs": lambda rest: _print_configs(paper, rest),
        "info": lambda rest: _print_info(paper, rest),
    }
    verbs |= {name: _typed_verb(paper, name, function) for name, function in paper.verbs.items()}
    verb, *rest = arguments or ["--help"]
    try:
        if verb in ("-h", "--help"):
            print(_overview(paper), flush=True)
            return 0
        if verb not in verbs:
            raise LookupError(f"there is no such verb; the verbs are: {', '.join(verbs)}")
        return verbs[verb](rest) or 0
    except BrokenPipeError:  # the reader of the output, such as `head`, has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError, LookupError, ArithmeticError) as error:
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


def _typed_verb(paper: Paper, name: str, function: Callable[..., Any]) -> Callable[[list[str]], Any]:
    def run(arguments: list[str]) -> Any:
        from jsonargparse import auto_cli

        result = auto_cli(function, args=arguments, prog=f"{paper.name} {name}", as_positional=True)
        return result if isinstance(result, int) else 0

    return run


def _train_and_test(paper: Paper) -> Callable[[list[str]], Any]:
    """Train, then test; `train --help` lists the settings."""
    return lambda arguments: paper.load_cli().main(arguments)


def _train(paper: Paper, verb: str, function: Callable[[list[str]], Any], arguments: list[str]) -> None:
    if "-h" in arguments or "--help" in arguments:
        print(_train_help(paper, verb))
    else:
        function(arguments)


def _test(paper: Paper, arguments: list[str]) -> None:
    if not arguments or "-h" in arguments or "--help" in arguments:
        print(
            f"usage: {paper.name} test RUN [--select last|best|FILE] [OPTION ...]\n\n"
            "Test the weights of a run again, with its settings and any that are given.\n\n"
            f"  RUN       a run folder, or `last` for the newest under runs/{paper.name}\n"
            "  --select  which checkpoint: the newest (default), the best on validation data, or a file\n"
            "  OPTION    as in train, for example --trainer.accelerator cpu"
        )
        return
    paper.load_cli().test(arguments)


def config_summaries(paper: Paper) -> dict[str, str]:
    """Map each of the package's configs to the first line of its opening comment."""
    return {
        file.stem: file.read_text().splitlines()[0].lstrip("# ")
        for file in sorted(paper.configs.glob("*.yaml"), key=lambda file: (file.stem != "default", file.stem))
    }


def _overview(paper: Paper) -> str:
    described = {
        "train": "train, then test; `train --help` lists the settings",
        "test": "test the weights of a run again",
        "configs": "list the configs that come with the package",
        "info": "print versions, devices and folders for a bug report",
    }
    for name, function in {**paper.training_verbs, **paper.verbs}.items():
        described[name] = (function.__doc__ or "").strip().splitlines()[0].rstrip(".")
    width = max(map(len, described))
    lines = [f"{paper.name}: {paper.title}", "", f"usage: {paper.name} VERB [OPTION ...]", "", "verbs:"]
    lines += [f"  {name:<{width}}  {text}" for name, text in described.items()]
    return "\n".join([*lines, "", f"`{paper.name} VERB --help` says more."])


def _train_help(paper: Paper, verb: str) -> str:
    command = f"uv run --package {paper.name} {'' if verb == 'train' else paper.name + ' '}{verb}"
    return f"""usage: {command} [--config NAME_OR_FILE] [--resume RUN] [OPTION ...]

{paper.title}

  --config NAME_OR_FILE   one of the package's configs (below) or a YAML file; may be given more than
                          once, the later one wins; `default` when none is given
  --resume RUN            go on with a run: its folder, or `last`
  --run_dir FOLDER        where to write; runs/{paper.name}/DATE-TIME-SEED by default
  --seed_everything N     the run's seed
  --logger csv|wandb      where metrics go beside the console
  --print_config          print the resolved settings and stop
  --model.KEY, --data.KEY, --trainer.KEY
                          any setting; `train --help_all` lists every one with its meaning

configs:
{_indented(_columns(config_summaries(paper)))}

the default config ({paper.name}/configs/default.yaml):

{_indented((paper.configs / "default.yaml").read_text().rstrip())}"""


def _columns(rows: Mapping[str, str]) -> str:
    width = max(map(len, rows), default=0)
    return "\n".join(f"{name:<{width}}  {text}" for name, text in rows.items())


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" if line else "" for line in text.splitlines())


def _print_configs(paper: Paper, arguments: list[str]) -> None:
    _refuse(arguments)
    print(_columns(config_summaries(paper)))


def _print_info(paper: Paper, arguments: list[str]) -> None:
    """Print what a bug report needs; with options of `train`, the hash of those settings."""
    import torch

    from shared.records import package_version

    packages = (paper.name, "shared", "torch", "lightning", "numpy")
    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    facts = {name: package_version(name) for name in packages} | {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu threads": str(torch.get_num_threads()),
        "cuda devices": ", ".join(devices) or "none",
        "configs": str(paper.configs),
        "runs": str(Path("runs", paper.name).resolve()),
        "settings": " ".join(arguments) or "those of the default config",
        "settings hash": paper.load_cli().hash_of(arguments),
    }
    print(_columns(facts))


def _refuse(arguments: list[str]) -> None:
    if arguments:
        raise ValueError(f"takes no arguments, got {' '.join(arguments)}")
