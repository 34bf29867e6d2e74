"""The verbs that every paper's command has, and their help, which imports nothing heavy."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.paper import Paper


@dataclass(frozen=True)
class Verb:
    """A verb of a command.

    Attributes:
        summary: one line.
        run: takes the arguments behind the verb; returns an exit code or nothing.
    """

    summary: str
    run: Callable[[list[str]], Any]


def verbs_of(paper: Paper) -> dict[str, Verb]:
    """List a paper's verbs by name: those of every paper, then its own."""
    verbs = {
        "train": _training_verb(paper, "train", lambda rest: paper.load_cli().main(rest)),
        "test": Verb("test the weights of a run again", lambda rest: _test(paper, rest)),
        "configs": Verb("list the configs that come with the package", lambda rest: _print_configs(paper, rest)),
        "info": Verb("print versions, devices and folders for a bug report", lambda rest: _print_info(paper, rest)),
    }
    for name, function in paper.training_verbs.items():
        verbs[name] = _training_verb(paper, name, function)
    typed = dict(paper.verbs)
    if paper.study is not None:
        typed |= {"tune": _tune_of(paper), "compare": _compare_of(paper)}
    return verbs | {name: _typed_verb(paper, name, function) for name, function in typed.items()}


def overview(paper: Paper, verbs: Mapping[str, Verb]) -> str:
    """Describe a command: its title and its verbs."""
    return f"""{paper.name}: {paper.title}

usage: {paper.name} VERB [OPTION ...]

verbs:
{_indented(_columns({name: verb.summary for name, verb in verbs.items()}))}

`{paper.name} VERB --help` says more."""


def _training_verb(paper: Paper, name: str, function: Callable[[list[str]], Any]) -> Verb:
    def run(arguments: list[str]) -> None:
        if "-h" in arguments or "--help" in arguments:
            print(_train_help(paper, name))
        else:
            function(arguments)

    return Verb("train, then test; takes any setting" if name == "train" else _summary(function), run)


def _typed_verb(paper: Paper, name: str, function: Callable[..., Any]) -> Verb:
    """Make a verb of a function: its signature and docstring become the options and their help."""

    def run(arguments: list[str]) -> int:
        from jsonargparse import auto_cli

        result = auto_cli(function, args=arguments, prog=f"{paper.name} {name}", as_positional=True)
        return result if isinstance(result, int) else 0

    return Verb(_summary(function), run)


def _summary(function: Callable[..., Any]) -> str:
    first = (function.__doc__ or "").strip().splitlines()[0].rstrip(".")
    return first[:1].lower() + first[1:]


def _compare_of(paper: Paper) -> Callable[..., int]:
    def compare(
        methods: list[str] | None = None,
        settings: list[str] | None = None,
        seeds: int | list[int] | None = None,
        jobs: int = 1,
        out: Path | None = None,
        dry_run: bool = False,
    ) -> int:
        """Run the method and its baselines over seeds; finished cells are kept.

        Args:
            methods: only these, as in [nat,trades].
            settings: only these.
            seeds: how many, or which; those of the published comparison when null.
            jobs: how many cells run at a time.
            out: folder for the results; the package's own when null.
            dry_run: only print what would be run.
        """
        from shared.results import compare

        return compare(
            paper.load_study(),
            methods=methods,
            settings=settings,
            seeds=seeds,
            jobs=jobs,
            out=out,
            dry_run=dry_run,
        )

    return compare


def _tune_of(paper: Paper) -> Callable[..., int]:
    def tune(jobs: int = 1, dry_run: bool = False) -> int:
        """Try each method's candidates on validation data; `compare` then uses the best.

        Args:
            jobs: how many cells run at a time.
            dry_run: only print what would be run.
        """
        from shared.tuning import tune

        study = paper.load_study()
        return tune(study, study.tunings, jobs=jobs, dry_run=dry_run)

    return tune


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
