"""A run's log of completions: what was asked and answered, what it cost, and how to run it again at no cost.

The log is one JSON object a line. It is also a cache: a request that it holds is not sent a second time, so that a run
that was killed goes on without paying twice, and `Replay` runs the whole again with no model at all.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

from ace.completion import Backend, BackendError, Completion, FinishReason, Request, approximate_tokens

MOST = 10**12  # tokens or seconds of an entry


@dataclass
class Usage:
    """What the completions of one role amount to.

    Calls and tokens are what the run needs, whether or not an answer came from the log, so that a resumed run reports
    what an unbroken one does; `replayed` says how many were free.

    Attributes:
        calls: completions.
        prompt_tokens: tokens read.
        completion_tokens: tokens written.
        cached_tokens: of the tokens read, those that the backend had processed before.
        failed: completions that are errors.
        seconds: wall time of the backend.
        replayed: completions that came from the log, or from an equal request before.
    """

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    failed: int = 0
    seconds: float = 0.0
    replayed: int = 0

    def add(self, completion: Completion, seconds: float, replayed: bool) -> None:
        """Count a completion."""
        self.calls += 1
        self.prompt_tokens += completion.prompt_tokens
        self.completion_tokens += completion.completion_tokens
        self.cached_tokens += completion.cached_tokens
        self.failed += completion.finish_reason == "error"
        self.seconds += seconds
        self.replayed += replayed


def request_key(request: Request, backend: str) -> str:
    """Return the SHA-256 of a request in a canonical form, together with the backend's name."""
    canonical = {"backend": backend, "messages": _messages(request), **_parameters(request)}
    return hashlib.sha256(json.dumps(canonical, sort_keys=True).encode()).hexdigest()


def read_log(path: Path) -> Iterator[dict[str, Any]]:
    """Read the entries of a log, one after the other. A last line that a kill has cut is left out.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if another line is no entry; it names file and line.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no log of completions {path}")
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                entry = _parse(line)
            except ValueError as error:
                if not line.endswith(b"\n"):
                    return
                raise ValueError(f"{path}, line {number}: no entry of a log of completions ({error})") from None
            yield entry


class Recorder:
    """A backend that logs, meters and remembers the completions of another.

    Errors are logged but not remembered: an equal request is sent again. One process at a time may write to a log.

    Args:
        backend: the model.
        log: file to append to, made with its folder if needed. What it holds already is remembered. None for no log.
        cache: whether a request equal to one before is answered from memory.

    Attributes:
        usage: role -> what its completions amount to.

    Raises:
        ValueError: if the log has a line that is no entry.
    """

    def __init__(self, backend: Backend, log: Path | None = None, cache: bool = True) -> None:
        self.backend = backend
        self.name = backend.name
        self.log = log
        self.cache = cache
        self.usage: dict[str, Usage] = {}
        self._known: dict[str, Completion] = {}
        if log is not None and log.exists():
            for entry in read_log(log):
                self._remember(entry["key"], entry["completion"])
            _mend_end(log)

    def complete(self, requests: Sequence[Request], *, role: str = "", step: int = 0) -> list[Completion]:
        """Answer requests, in their order.

        Args:
            requests: what is asked.
            role: on whose behalf, for the log and the meter.
            step: of the run, for the log.

        Raises:
            BackendError: if no request can succeed; it names role and step.
            ValueError: if the backend returns something else than a completion for each request.
        """
        keys = [request_key(request, self.name) for request in requests]
        if self.cache:
            first = dict(reversed([(key, number) for number, key in enumerate(keys)]))
            numbers = sorted(number for key, number in first.items() if key not in self._known)
        else:
            numbers = list(range(len(keys)))
        start = time.perf_counter()
        answers = self._ask([requests[number] for number in numbers], role, step)
        seconds = (time.perf_counter() - start) / max(len(numbers), 1)
        new = dict(zip(numbers, answers, strict=True))
        fresh = {keys[number]: answer for number, answer in new.items()}
        completions = [
            new[number] if number in new else fresh.get(key) or self._known[key] for number, key in enumerate(keys)
        ]
        usage = self.usage.setdefault(role, Usage())
        lines = []
        for number, (key, request, completion) in enumerate(zip(keys, requests, completions, strict=True)):
            share = seconds if number in new else 0.0
            usage.add(completion, share, number not in new)
            self._remember(key, completion)
            entry = {"key": key, "backend": self.name, "role": role, "step": step, "messages": _messages(request)}
            entry |= {"parameters": _parameters(request), "completion": asdict(completion)}
            lines.append(json.dumps(entry | {"seconds": round(share, 6), "cached": number not in new}) + "\n")
        self._write(lines)
        return completions

    def count_tokens(self, text: str) -> int:
        """Count the tokens of a text as the backend does."""
        return self.backend.count_tokens(text)

    def state(self) -> dict[str, dict[str, Any]]:
        """Return the meter as plain containers, for a checkpoint."""
        return {role: asdict(usage) for role, usage in self.usage.items()}

    def load_state(self, state: dict[str, dict[str, Any]]) -> None:
        """Set the meter to what `state` returned."""
        self.usage = {role: Usage(**usage) for role, usage in state.items()}

    def _ask(self, requests: list[Request], role: str, step: int) -> list[Completion]:
        try:
            answers: Any = self.backend.complete(requests) if requests else []
        except BackendError as error:
            raise BackendError(f"{role or 'request'}, step {step}: {error}") from None
        expected = f"{type(self.backend).__name__}.complete must return a list of {len(requests)} completions"
        if not isinstance(answers, list | tuple):
            raise ValueError(f"{expected}, got {type(answers).__name__}")
        if len(answers) != len(requests):
            raise ValueError(f"{expected}, got {len(answers)}")
        if others := {type(answer).__name__ for answer in answers if not isinstance(answer, Completion)}:
            raise ValueError(f"{expected}, got {', '.join(sorted(others))} among them")
        return list(answers)

    def _remember(self, key: str, completion: Completion) -> None:
        if completion.finish_reason != "error":
            self._known.setdefault(key, completion)

    def _write(self, lines: list[str]) -> None:
        """Append lines. The file is not kept open, so that a recorder can be copied and pickled."""
        if self.log is None or not lines:
            return
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as file:
            file.writelines(line.encode() for line in lines)


class Replay:
    """A backend that answers from a log alone.

    Equal requests get what the backend said each time, in that order, and the last of it from then on, so that a
    failure of the run and its repetition are replayed too.

    Args:
        log: what a `Recorder` wrote.
        name: the backend whose answers are meant; None if the log has those of one only.
        count: counts tokens as that backend did, which decides what is pruned from a playbook; an estimate without.

    Raises:
        FileNotFoundError: if there is no such log.
        ValueError: if the log has a line that is no entry, or has no answers of that backend.
    """

    def __init__(self, log: Path, name: str | None = None, count: Callable[[str], int] = approximate_tokens) -> None:
        self.log = log
        self.count = count
        self._answers: dict[str, list[Completion]] = {}
        names: set[str] = set()
        for entry in read_log(log):
            names.add(entry["backend"])
            if not entry.get("cached") and name in (None, entry["backend"]):
                self._answers.setdefault(entry["key"], []).append(entry["completion"])
        if (name is None and len(names) != 1) or (name is not None and name not in names):
            wanted = "one backend" if name is None else f"the backend {name!r}"
            raise ValueError(f"{log}: expected answers of {wanted}, got {sorted(names)}")
        self.name = name if name is not None else names.pop()

    def complete(self, requests: Sequence[Request]) -> list[Completion]:
        """Answer requests, in their order.

        Raises:
            BackendError: if the log does not have one of them.
        """
        return [self._next(request) for request in requests]

    def count_tokens(self, text: str) -> int:
        """Count the tokens of a text."""
        return self.count(text)

    def _next(self, request: Request) -> Completion:
        answers = self._answers.get(request_key(request, self.name))
        if not answers:
            words = " ".join(request.messages[-1].content.split())[:60] if request.messages else ""
            raise BackendError(f"{self.log} has no answer to {words!r}: prompts or settings have changed since then")
        return answers.pop(0) if len(answers) > 1 else answers[0]


def _messages(request: Request) -> list[dict[str, str]]:
    return [{"role": message.role, "content": message.content} for message in request.messages]


def _parameters(request: Request) -> dict[str, Any]:
    return {
        "max_tokens": request.max_tokens,
        "temperature": float(request.temperature),
        "seed": request.seed,
        "json_schema": request.json_schema,
        "stop": list(request.stop),
    }


def _parse(line: bytes) -> dict[str, Any]:
    """Parse an entry.

    Raises:
        ValueError: if it is none.
    """
    try:
        entry = json.loads(line)
        completion = entry["completion"] = Completion(**entry["completion"])
        strings = (entry["key"], entry["backend"], completion.text, entry.get("role", ""))
    except (TypeError, LookupError, AttributeError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None
    if not all(isinstance(string, str) for string in strings):
        raise ValueError("expected strings as key, backend, role and text")
    for name in ("prompt_tokens", "completion_tokens", "cached_tokens"):
        count = getattr(completion, name)
        if type(count) is not int or not 0 <= count <= MOST:  # to isinstance, true is an int
            raise ValueError(f"{name} must be a whole number in [0, {MOST}], got {count!r:.40}")
    if completion.finish_reason not in get_args(FinishReason):
        raise ValueError(f"finish_reason must be stop, length or error, got {completion.finish_reason!r:.40}")
    if not isinstance(completion.error, str | None):
        raise ValueError(f"error must be a text or null, got {completion.error!r:.40}")
    seconds = entry.get("seconds", 0.0)
    if type(seconds) not in (int, float) or not 0 <= seconds <= MOST:
        raise ValueError(f"seconds must be a number in [0, {MOST}], got {seconds!r:.40}")
    if type(entry.get("cached", False)) is not bool:
        raise ValueError(f"cached must be true or false, got {entry['cached']!r:.40}")
    return entry


def _mend_end(log: Path) -> None:
    """Cut off a last line that a kill has cut, or end it if only its end is missing."""
    content = log.read_bytes()
    end = content.rfind(b"\n") + 1
    if end == len(content):
        return
    try:
        _parse(content[end:])
    except ValueError:
        with log.open("rb+") as file:
            file.truncate(end)
    else:
        with log.open("ab") as file:
            file.write(b"\n")
