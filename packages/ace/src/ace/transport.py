"""Parts of talking to a server that know nothing of a backend: how long to wait, what an answer says, threads."""

from __future__ import annotations

import ipaddress
import math
import queue
import threading
from collections.abc import Callable, Sequence
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

from ace.completion import Completion, failed

MOST_TOKENS = 10**12  # of a completion; a server that names more has not counted
LONGEST_WAIT = 30.0  # seconds between two attempts, whatever the server asks for

Item = TypeVar("Item")
Result = TypeVar("Result")


def wait_seconds(attempt: int, backoff: float, jitter: float, asked: float | None = None) -> float:
    """Return the seconds to wait after an attempt.

    Args:
        attempt: its number, from 1.
        backoff: seconds after the first attempt; doubled after each further one.
        jitter: in [0, 1]; lengthens the wait by up to a half, so that concurrent requests do not return together.
        asked: what the server asked for in `Retry-After`, which goes before.
    """
    wait = backoff * 2 ** (attempt - 1) * (1 + jitter / 2) if asked is None else asked
    return min(wait, LONGEST_WAIT)


def retry_after(header: str | None, now: float) -> float | None:
    """Read the header `Retry-After`: seconds, or a date; None if it is neither.

    Args:
        header: its value.
        now: seconds since the epoch.
    """
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(header).timestamp() - now
        except ValueError:
            return None
    return max(seconds, 0.0) if math.isfinite(seconds) else None


def is_loopback(host: str) -> bool:
    """Say whether a host is this machine itself, so that no proxy can reach it."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    return address.is_loopback or address.is_unspecified


def in_threads(
    function: Callable[[Item], Result], items: Sequence[Item], workers: int, ended: threading.Event
) -> list[Result]:
    """Apply a function in several threads and return the results in the order of the items.

    The first exception is raised at once and nothing more is started; `ended` is set then, and at the end. The
    threads are daemons: those of `concurrent.futures` would keep an interrupted program alive until the last server
    has answered.
    """
    todo: queue.SimpleQueue[int] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[int, Result | None, BaseException | None]] = queue.SimpleQueue()

    def work() -> None:
        while not ended.is_set():
            try:
                number = todo.get_nowait()
            except queue.Empty:
                return
            try:
                done.put((number, function(items[number]), None))
            except BaseException as error:
                done.put((number, None, error))

    for number in range(len(items)):
        todo.put(number)
    for _ in range(min(workers, len(items))):
        threading.Thread(target=work, daemon=True).start()
    results: dict[int, Any] = {}
    try:
        while len(results) < len(items):
            number, result, error = done.get()
            if error is not None:
                raise error
            results[number] = result
    finally:
        ended.set()
    return [results[number] for number in range(len(items))]


def read_completion(payload: Any, prompt_tokens: int, count: Callable[[str], int]) -> Completion:
    """Turn the body of an answer to `chat/completions` into a completion.

    Args:
        payload: the parsed JSON.
        prompt_tokens: an estimate, for a server that does not say.
        count: counts the tokens of the answer, for such a server.
    """
    if not isinstance(payload, dict):
        return failed(f"the server's answer is not an object but {type(payload).__name__}", prompt_tokens)
    choices = payload.get("choices")
    if not isinstance(choices, list) or not choices:
        detail = f": {message_of(payload)}" if "error" in payload else ""
        return failed(f"the server's answer has no choices{detail}", prompt_tokens)
    choice = choices[0] if isinstance(choices[0], dict) else {}
    message = choice.get("message")
    text = _text_of(message.get("content")) if isinstance(message, dict) else None
    usage = payload.get("usage")
    cached = _count(usage.get("prompt_tokens_details") if isinstance(usage, dict) else None, "cached_tokens", None)
    if cached is None:
        cached = _count(usage, "prompt_cache_hit_tokens", 0)  # DeepSeek's name for it
    written = _count(usage, "completion_tokens", None)
    prompt_tokens = _count(usage, "prompt_tokens", prompt_tokens)
    if not isinstance(text, str):
        reason = str(choice.get("finish_reason"))[:50]
        return failed(f"the server's answer has no text (finish_reason is {reason})", prompt_tokens)
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # half a surrogate pair fits in no file
    return Completion(
        text,
        prompt_tokens,
        written if written is not None else count(text),
        "length" if choice.get("finish_reason") == "length" else "stop",
        min(cached, prompt_tokens),
    )


def _text_of(content: Any) -> Any:
    """Return a content that some servers send as a list of parts as one text; any other is returned as it is."""
    if not isinstance(content, list) or not content:
        return content
    texts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
    whole = len(texts) == len(content) and all(isinstance(text, str) for text in texts)
    return "".join(map(str, texts)) if whole else content


def _count(fields: Any, name: str, default: Any) -> Any:
    """Return a number of tokens if it is there and sound."""
    value = fields.get(name) if isinstance(fields, dict) else None
    return value if type(value) is int and 0 <= value <= MOST_TOKENS else default  # to isinstance, true is an int


def message_of(payload: Any) -> str:
    """Find what a server says about an error, in the forms that servers use."""
    error = payload.get("error") or payload if isinstance(payload, dict) else payload
    if isinstance(error, dict) and (said := error.get("message") or error.get("detail")):
        error = f"{said} ({error['param']})" if error.get("param") else said
    return " ".join(str(error).split())
