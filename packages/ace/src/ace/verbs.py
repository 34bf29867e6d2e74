"""What the verbs `predict`, `replay` and `cost` do; their options are explained in `cli`."""

from __future__ import annotations

import json
import math
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text
from shared.checkpoints import atomic_write
from shared.runs import checkpoint_of, find_run, run_config

from ace.adaptation import ACE, Learner
from ace.app import AceCLI, sources_of
from ace.book_verbs import tokenizer_counter
from ace.completion import Backend, Completion, Request, approximate_tokens
from ace.jsonl import FIELDS, field_text, read_rows
from ace.local_model import find_gguf
from ace.module import CALLS
from ace.playbook import load
from ace.recording import Recorder, Replay, Usage, read_log
from ace.roles import Attempt, Chat
from ace.tasks import Sample
from ace.transformers_backend import TransformersBackend

WRITTEN = ("id", "question", "answer", "bullet_ids", "error")  # fields of a prediction
REPEATED = ("playbook.json", "context.txt")  # files that a repetition must make again byte for byte
TESTED = "test.json"  # metrics of a run
MILLION = 1_000_000


class NoModel(Backend):
    """Stands where a run's backend cannot be made on this machine, for a replay; it answers nothing.

    Args:
        name: of the backend that it stands for.
    """

    def __init__(self, name: str = "none") -> None:
        self.name = name

    def complete(self, requests: Sequence[Request]) -> list[Completion]:
        """Refuse.

        Raises:
            ValueError: always.
        """
        raise ValueError(f"there is no model to answer {len(requests)} requests")

    def count_tokens(self, text: str) -> int:
        """Estimate the tokens of a text."""
        return approximate_tokens(text)


def predict(
    question: str | None, context: str, file: Path | None, run: str, playbook: Path | None, out: Path | None
) -> int:
    """Answer with a run's context in one batch; print answers to stdout, what they took to stderr."""
    if (question is None) == (file is None):
        raise ValueError(f"expected either --question or --file, got {'neither' if file is None else 'both'}")
    if question is not None and not question.strip():
        raise ValueError("question must not be blank")
    if file is not None and context:
        raise ValueError("context goes with question: the questions of a file have their own")
    out = Path("predictions.jsonl") if out is None and file is not None else out
    if out is not None and out.is_dir():
        raise IsADirectoryError(f"out must name a file, got the folder {out}")
    if out is not None and file is not None and out.resolve() == file.resolve():
        raise ValueError(f"out must not be the file of questions itself, got {out}")
    folder = find_run(AceCLI.paper, run)
    cli = AceCLI(started_from(folder), run=folder, quiet=True)
    if file is None:
        assert question is not None
        samples, more = [Sample("question", question, "", context)], list[dict[str, Any]]([{}])
    else:
        samples, more = read_questions(file, cli.datamodule.fields)
    recorder = Recorder(cli.model.backend)
    chat = Chat(recorder, cli.model.prompts, cli.datamodule.task, cli.model.seed)
    learner = cli.model.make_method(cli.model.make_roles(chat))
    contexts = contexts_of(learner, samples, cli, folder, playbook)
    attempts = learner.roles.answer(samples, contexts, step=0, role="evaluation")
    predictions = [prediction(s, a, fields) for s, a, fields in zip(samples, attempts, more, strict=True)]
    if out is not None:
        with atomic_write(out) as target:
            target.writelines(
                (json.dumps(each, ensure_ascii=False, default=float) + "\n").encode() for each in predictions
            )
    for sample, attempt in zip(samples, attempts, strict=True):
        shown = attempt.answer if attempt.error is None else f"error: {attempt.error}"
        print(shown if file is None else f"{sample.id}\t{' '.join(shown.split())}", flush=True)
    failed = sum(attempt.error is not None for attempt in attempts)
    for usage in recorder.usage.values():
        say(
            f"{usage.calls} calls, {usage.prompt_tokens} tokens read ({usage.cached_tokens} of them cached), "
            f"{usage.completion_tokens} written" + (f"; {failed} without an answer" if failed else "")
        )
    if out is not None:
        say(f"written: {out}")
    return int(failed > 0)


def replay(run: str, out: Path | None) -> int:
    """Repeat a run with the answers of its log; print what came out equal.

    Returns:
        0 if all that the run has is equal, its test metrics included; 1 otherwise.
    """
    folder = find_run(AceCLI.paper, run)
    before = results_of(folder)
    if not before:
        raise ValueError(f"{folder} has no results to compare with: the run has not ended")
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise FileExistsError(f"out must be a new or empty folder, got {out}")
    with nullcontext(str(out)) if out is not None else tempfile.TemporaryDirectory(prefix="ace-replay-") as place:
        target = Path(place) if out is not None else Path(place) / "run"
        arguments = ["--config", str(run_config(folder)), *sources_of(folder), f"--run_dir={target}"]
        arguments.append("--trainer.enable_checkpointing=false")
        cli, name = repetition(arguments)
        backend = cli.model.backend
        cli.model.backend = Replay(folder / CALLS, name, counter(backend))  # type: ignore[assignment]
        metrics = cli.fit_and_test()
        after = results_of(target) | {f"test {name}": value for name, value in metrics.items()}
    table = Table(title=Text(str(folder)), title_justify="left")
    for heading in ("result", "run", "replay", "verdict"):
        table.add_column(heading)
    differing = [key for key in before if before[key] != after.get(key)]
    for key, value in before.items():
        verdict = "differs" if key in differing else "equal"
        table.add_row(key, described(value), described(after.get(key)), verdict)
    Console(file=sys.stdout).print(table)
    print(f"{len(before) - len(differing)} results are equal, {len(differing)} differ", flush=True)
    tested = (folder / TESTED).is_file()
    if not tested:
        print(f"the run has no {TESTED}: metrics were not compared", flush=True)
    return int(bool(differing) or not tested)


def cost(run: str, price_in: float | None, price_cached: float | None, price_out: float | None) -> None:
    """Print calls, tokens and their price, role by role, of what was sent and not answered from the log."""
    prices = {"price_in": price_in, "price_cached": price_cached, "price_out": price_out}
    for option, value in prices.items():
        if value is not None and not 0 <= value < math.inf:
            raise ValueError(f"{option} must be a finite number >= 0, got {value}")
    path = Path(run)
    path = path if path.suffix == ".jsonl" else find_run(AceCLI.paper, run) / CALLS
    usage = usage_of(path)
    priced = any(value is not None for value in prices.values())
    table = Table(title=Text(str(path)), title_justify="left")
    headings = ("role", "calls", "failed", "from the log", "read", "of it cached", "written", "seconds")
    for heading in (*headings, *(("price",) if priced else ())):
        table.add_column(heading, justify="left" if heading == "role" else "right")
    total = Usage()
    for role, part in sorted(usage.items()):
        for name, value in vars(part).items():
            setattr(total, name, getattr(total, name) + value)
        table.add_row(Text(role or "-"), *cells(part, price_in, price_cached, price_out))
    table.add_section()
    table.add_row("all", *cells(total, price_in, price_cached, price_out))
    Console(file=sys.stdout).print(table)


def usage_of(log: Path) -> dict[str, Usage]:
    """Add up a log of completions, role by role; tokens are those of completions that were asked for.

    Raises:
        FileNotFoundError: if there is no such log.
        ValueError: if a line is no entry.
    """
    usage: dict[str, Usage] = {}
    for entry in read_log(log):
        part, replayed = usage.setdefault(str(entry.get("role", "")), Usage()), bool(entry.get("cached"))
        if replayed:
            part.calls, part.replayed = part.calls + 1, part.replayed + 1
        else:
            part.add(entry["completion"], float(entry.get("seconds", 0.0)), False)
    return usage


def price(usage: Usage, price_in: float | None, price_cached: float | None, price_out: float | None) -> float:
    """Return what completions cost.

    Args:
        usage: calls and tokens.
        price_in: of a million tokens read.
        price_cached: of a million that were cached; `price_in` when None.
        price_out: of a million tokens written.
    """
    each = price_in or 0.0
    cached = each if price_cached is None else price_cached
    fresh = usage.prompt_tokens - usage.cached_tokens
    return (fresh * each + usage.cached_tokens * cached + usage.completion_tokens * (price_out or 0.0)) / MILLION


def cells(usage: Usage, price_in: float | None, price_cached: float | None, price_out: float | None) -> list[str]:
    """Return a row of `cost`, without its role."""
    shown = (usage.calls, usage.failed, usage.replayed)
    tokens = (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens)
    row = [*map(str, shown), *map(str, tokens), f"{usage.seconds:.1f}"]
    if price_in is None and price_cached is None and price_out is None:
        return row
    return [*row, f"{price(usage, price_in, price_cached, price_out):.4f}"]


def read_questions(file: Path, fields: Mapping[str, str] | None) -> tuple[list[Sample], list[dict[str, Any]]]:
    """Read questions to answer; targets are not needed, and not shown to anyone.

    Args:
        file: JSONL.
        fields: names of `question`, `context` and `id` in it, where they are others (`data.fields` of the run).

    Returns:
        The samples, and the fields of each that are none of these.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if a line is no JSON object with a question, or an id comes twice.
    """
    names = FIELDS | dict(fields or {})
    samples: list[Sample] = []
    more: list[dict[str, Any]] = []
    lines: dict[str, int] = {}
    for number, row in read_rows(file):
        place = f"{file}, line {number}"
        text = field_text(row, names["question"], place)
        context = field_text(row, names["context"], place, blank=True) if names["context"] in row else ""
        name = field_text(row, names["id"], place, numbers=True) if names["id"] in row else f"{file.stem}-{number}"
        if (earlier := lines.setdefault(name, number)) != number:
            raise ValueError(f"{place}: id {name!r} must be unique, but line {earlier} has it too")
        samples.append(Sample(name, text, "", context))
        more.append({key: value for key, value in row.items() if key not in (names["question"], names["id"])})
    return samples, more


def prediction(sample: Sample, attempt: Attempt, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the object that is written for a question."""
    found = {
        "id": sample.id,
        "question": sample.question,
        "answer": attempt.answer,
        "bullet_ids": list(attempt.bullet_ids),
        "error": attempt.error,
    }
    return found | {f"given_{key}" if key in WRITTEN else key: value for key, value in fields.items()}


def started_from(folder: Path) -> list[str]:
    """Return the settings by which a run of ACE starts from its own last playbook; none for other methods."""
    file = folder / "playbook.json"
    return [f"--model.method.init_args.playbook={file}"] if file.is_file() else []


def contexts_of(
    learner: Learner, samples: Sequence[Sample], cli: AceCLI, folder: Path, playbook: Path | None
) -> list[str]:
    """Return each question's context: of the playbook that is given, else what the run kept.

    Raises:
        FileNotFoundError: if the run has kept nothing.
    """
    if playbook is not None:
        book = load(playbook)
        if not isinstance(learner, ACE):
            return [learner.roles.render(book)] * len(samples)
        learner.playbook = book
    elif not (folder / "playbook.json").is_file():
        if (file := folder / "context.txt").is_file():
            return [file.read_bytes().decode().removesuffix("\n")] * len(samples)
        cli.load_weights(checkpoint_of(folder, AceCLI.paper))  # of a run that has not ended
        loaded = cli.model.loaded
        best = cli.model.keep == "best" and loaded["best"]
        learner.load_state(loaded["best"]["state"] if best else loaded["context"])
    return learner.contexts(samples) if isinstance(learner, ACE) else [learner.text()] * len(samples)


def repetition(arguments: Sequence[str]) -> tuple[AceCLI, str | None]:
    """Build a run again, without its backend where this machine lacks that; return it and the backend's name."""
    try:
        cli = AceCLI(arguments, quiet=True)
    except (ImportError, FileNotFoundError):  # a run's data are read later: what is missing here belongs to the model
        return AceCLI([*arguments, "--model.backend=ace.verbs.NoModel"], quiet=True), None
    return cli, cli.model.backend.name


def counter(backend: Backend) -> Callable[[str], int]:
    """Return what counts tokens as a backend does, with no weights; an estimate where its tokeniser is missing."""
    try:
        if isinstance(backend, TransformersBackend):
            return tokenizer_counter(backend.path or find_gguf())
        backend.count_tokens("")
    except (ImportError, OSError, ValueError) as error:
        say(f"tokens are estimated, which can change what fits the budget: {error}")
        return approximate_tokens
    return backend.count_tokens


def results_of(folder: Path) -> dict[str, Any]:
    """Read what a run came to: its files as bytes, and its test metrics.

    Raises:
        ValueError: if the metrics are no JSON object of numbers.
    """
    found: dict[str, Any] = {name: (folder / name).read_bytes() for name in REPEATED if (folder / name).is_file()}
    if (file := folder / TESTED).is_file():
        try:
            metrics = json.loads(file.read_bytes())
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{file}: not the metrics of a run: {error}") from None
        if not isinstance(metrics, dict) or not all(type(value) in (int, float) for value in metrics.values()):
            raise ValueError(
                f"{file}: not the metrics of a run: expected a JSON object of numbers, got {metrics!r:.60}"
            )
        found |= {f"test {name}": value for name, value in metrics.items()}
    return found


def described(value: Any) -> str:
    """Return a cell of `replay`'s table."""
    if value is None:
        return "missing"
    return f"{len(value)} bytes" if isinstance(value, bytes) else f"{value:g}"


def say(text: str) -> None:
    """Print a line to stderr, so that stdout holds the answers alone."""
    print(text, file=sys.stderr, flush=True)
