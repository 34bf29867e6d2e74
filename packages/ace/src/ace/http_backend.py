"""A model behind an OpenAI-compatible server: a hosted one, or a local one of vLLM, llama.cpp, Ollama and others.

Requests of a batch are sent concurrently and answered in their order. What may pass (a busy server, a timeout) is tried
a bounded number of times; what no request can mend ends the run with one sentence; the rest fails alone.
"""

from __future__ import annotations

import json
import logging
import os
import random
import re
import threading
import time
from collections.abc import Collection, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import httpx
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    sleep_using_event,
    stop_after_attempt,
    stop_any,
    stop_when_event_set,
)

from ace.completion import Backend, BackendError, Completion, Request, approximate_tokens, failed, overflow
from ace.transport import in_threads, is_loopback, message_of, read_completion, retry_after, wait_seconds

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SchemaMode = Literal["json_schema", "json_object", "none"]
TokensField = Literal["max_tokens", "max_completion_tokens"]

LONGEST_CONNECT = 10.0  # seconds
DAY = 86_400.0  # seconds
BUSY = (408, 409, 429)
CHECK = {
    401: "the server refuses the key",
    403: "the key may not use this server or model",
    404: "there is no such path or model: base_url usually ends in /v1",
}
LONGEST_MESSAGE = 300  # characters of an error
OPTIONAL = ("seed", "response_format")  # fields that a server may lack
MESSAGE_TOKENS = 4  # of a chat template around each message, about

log = logging.getLogger(__name__)


class _Attempt(Exception):
    """A failure that another attempt may mend."""

    def __init__(self, sentence: str, wait: float | None = None, unreachable: bool = False) -> None:
        super().__init__(sentence)
        self.wait = wait
        self.unreachable = unreachable


def _named(message: str, sent: Collection[str]) -> set[str]:
    """Return the optional fields of a request that a server's message names."""
    return {name for name in OPTIONAL if name in sent and re.search(rf"\b{name}\b", message)}


def _parse_url(base_url: str) -> httpx.URL:
    """Read a URL, without slashes at its end.

    Raises:
        ValueError: if it is no HTTP URL, or has a user name or password; the message does not show them.
    """
    if base_url is None:
        raise ValueError("base_url: expected a URL such as http://127.0.0.1:8000/v1, got None")
    shown = re.sub(r"^(\w+://)?.*@", r"\1", base_url.partition("?")[0])
    try:
        url = httpx.URL(base_url.strip())
    except httpx.InvalidURL:
        url = httpx.URL("")
    if url.scheme not in ("http", "https") or not url.host:
        raise ValueError(f"base_url: expected a URL such as http://127.0.0.1:8000/v1, got {shown!r}")
    if url.query or url.fragment:
        raise ValueError(f"base_url: expected a URL without a query, got one after {shown!r}")
    if url.userinfo:
        raise ValueError(
            f"base_url: expected {shown!r} without a user name and password: a run's settings are saved, "
            "so that basic authentication is not offered"
        )
    return url.copy_with(path=url.path.rstrip("/"))


class OpenAIBackend(Backend):
    """Chat completions of an OpenAI-compatible server.

    The key is read from the environment whenever a request is made, and is in no message, log or pickle.

    Args:
        base_url: where the API is, with the path before `/chat/completions`. It is saved with a run's settings, so
            that it must hold no password.
        model: as the server calls it; empty for the first one that the server lists.
        api_key_env: environment variable with the key. Nothing is sent where it is not set: local servers need none.
        timeout: seconds for one attempt at a request, up to a day.
        attempts: most attempts at a request.
        concurrency: most requests at a time.
        context_size: tokens that prompt and answer may have together; a longer request fails before it is sent. None
            leaves it to the server.
        schema_mode: how a request's JSON Schema is sent: enforced (`json_schema`), as a wish for any JSON
            (`json_object`), or not at all (`none`).
        max_tokens_field: `max_completion_tokens` for servers that want that name.
        backoff: seconds to wait after the first failed attempt, up to a day; doubled after each further one. No wait is
            longer than 30.
        tokenizer: a `tokenizer.json` in the format of Hugging Face, to count tokens exactly. Without one they are
            estimated from the length.

    Raises:
        ValueError: if an option is out of its range.
        FileNotFoundError: if there is no such tokeniser.
    """

    def __init__(
        self,
        base_url: str = "http://127.0.0.1:8000/v1",
        model: str = "",
        api_key_env: str | None = "OPENAI_API_KEY",
        timeout: float = 120.0,
        attempts: int = 4,
        concurrency: int = 20,
        context_size: int | None = None,
        schema_mode: SchemaMode = "json_schema",
        max_tokens_field: TokensField = "max_tokens",
        backoff: float = 1.0,
        tokenizer: Path | None = None,
    ) -> None:
        # A config's `null` passes the parser for any option.
        self.url = _parse_url(base_url)
        if model is None:
            raise ValueError("model: expected a name, or an empty one for the first that the server lists, got None")
        if api_key_env is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", api_key_env):
            raise ValueError(
                "api_key_env: expected the name of an environment variable, such as OPENAI_API_KEY, "
                "got something else, which is not shown here because it may be a key"
            )
        for name, value in {"attempts": attempts, "concurrency": concurrency, "context_size": context_size}.items():
            if (value is None and name != "context_size") or (value is not None and value < 1):
                raise ValueError(f"{name}: expected at least 1, got {value}")
        if timeout is None or not 0 < timeout <= DAY:
            raise ValueError(f"timeout: expected seconds above 0 and up to {DAY:g}, got {timeout}")
        if backoff is None or not 0 <= backoff <= DAY:
            raise ValueError(f"backoff: expected seconds in [0, {DAY:g}], got {backoff}")
        if schema_mode not in get_args(SchemaMode):
            raise ValueError(f"schema_mode: expected one of {', '.join(get_args(SchemaMode))}, got {schema_mode!r}")
        if max_tokens_field not in get_args(TokensField):
            expected = " or ".join(get_args(TokensField))
            raise ValueError(f"max_tokens_field: expected {expected}, got {max_tokens_field!r}")
        if tokenizer is not None and not Path(tokenizer).is_file():
            raise FileNotFoundError(f"tokenizer: there is no file {tokenizer}")
        self.model = model
        self.api_key_env = api_key_env
        self.timeout = timeout
        self.attempts = attempts
        self.concurrency = concurrency
        self.context_size = context_size
        self.schema_mode = schema_mode
        self.max_tokens_field = max_tokens_field
        self.backoff = backoff
        self.tokenizer = tokenizer
        self.name = model or self.url.netloc.decode()
        self._jitter = random.Random()  # its own, so that a retry does not change the run's draws
        self._rejected: set[str] = set()

    def __repr__(self) -> str:
        return f"OpenAIBackend({str(self.url)!r}, model={self.model!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_client", "_tokenizer")}

    def complete(self, requests: Sequence[Request]) -> list[Completion]:
        """Answer requests, in their order.

        Raises:
            BackendError: if the server cannot be reached, or refuses the key, the path or the model.
            ValueError: if a request's schema is no JSON.
        """
        prepared = [(request, self._body(request), self._prompt_tokens(request)) for request in requests]
        ended = threading.Event()
        if requests and not self.model:
            self.model = self._first_model(ended)
        _ = self._client  # made here rather than by each thread
        return in_threads(lambda item: self._answer(*item, ended), prepared, self.concurrency, ended)

    def count_tokens(self, text: str) -> int:
        """Count the tokens of a text; an estimate without `tokenizer`."""
        if self.tokenizer is None:
            return approximate_tokens(text)
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        from tokenizers import Tokenizer

        try:
            return Tokenizer.from_file(str(self.tokenizer))
        except Exception as error:  # the library raises no narrower class
            raise ValueError(f"tokenizer: {self.tokenizer} is no tokenizer.json: {error}") from None

    @cached_property
    def _client(self) -> httpx.Client:
        logging.getLogger("httpx").setLevel(logging.WARNING)  # it would print a line for each request
        return httpx.Client(
            timeout=httpx.Timeout(self.timeout, connect=min(self.timeout, LONGEST_CONNECT)),
            limits=httpx.Limits(max_connections=self.concurrency, max_keepalive_connections=self.concurrency),
            trust_env=not is_loopback(self.url.host),
        )

    def _body(self, request: Request) -> dict[str, Any]:
        body: dict[str, Any] = {
            "messages": [{"role": message.role, "content": message.content} for message in request.messages],
            self.max_tokens_field: request.max_tokens,
            "temperature": request.temperature,
            "seed": request.seed,
        }
        if request.stop:
            body["stop"] = list(request.stop)
        if request.json_schema is not None and self.schema_mode == "json_object":
            body["response_format"] = {"type": "json_object"}
        elif request.json_schema is not None and self.schema_mode == "json_schema":
            try:
                schema = {"name": "answer", "schema": json.loads(request.json_schema), "strict": True}
            except ValueError as error:
                raise ValueError(f"json_schema: expected a JSON Schema as JSON text: {error}") from None
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        return body

    def _prompt_tokens(self, request: Request) -> int:
        return sum(self.count_tokens(message.content) + MESSAGE_TOKENS for message in request.messages)

    def _answer(self, request: Request, body: dict[str, Any], prompt_tokens: int, ended: threading.Event) -> Completion:
        if too_long := overflow(prompt_tokens, request.max_tokens, self.context_size):
            return failed(too_long, prompt_tokens)
        sent = {"model": self.model, **{name: value for name, value in body.items() if name not in self._rejected}}
        try:
            status, payload = self._send("POST", "/chat/completions", sent, ended)
            if status in (400, 422) and (rejected := _named(message_of(payload), sent)):
                sent = {name: value for name, value in sent.items() if name not in rejected}
                status, payload = self._send("POST", "/chat/completions", sent, ended)
                if status < 400:
                    log.warning("%s does not take %s: left out from now on", self.url, " and ".join(sorted(rejected)))
                    self._rejected |= rejected
        except _Attempt as error:
            if error.unreachable:
                raise BackendError(f"{error}: check that a server runs there and that base_url is right") from None
            return failed(f"{error}, after {self.attempts} attempts", prompt_tokens)
        if status >= 400:
            return failed(self._refusal(status, payload), prompt_tokens)
        if isinstance(payload, str):
            return failed(self._scrub(f"the server's answer is no JSON: {payload!r}"), prompt_tokens)
        completion = read_completion(payload, prompt_tokens, self.count_tokens)
        return failed(self._scrub(completion.error), completion.prompt_tokens) if completion.error else completion

    def _first_model(self, ended: threading.Event) -> str:
        advice = "name the model"
        try:
            status, payload = self._send("GET", "/models", None, ended)
            name = payload["data"][0]["id"]
        except _Attempt as error:
            advice = "check that a server runs there and that base_url is right" if error.unreachable else advice
            raise BackendError(f"{error}: {advice}") from None
        except (LookupError, TypeError):
            raise BackendError(f"{self.url}/models lists no model: {advice}") from None
        if status >= 400 or not isinstance(name, str):
            raise BackendError(f"{self.url}/models lists no model: {advice}")
        return name

    def _send(self, method: str, path: str, body: dict[str, Any] | None, ended: threading.Event) -> tuple[int, Any]:
        """Send a request until it is answered; return the status and the parsed body, or its text if it is no JSON.

        Raises:
            _Attempt: if the last attempt failed too.
            BackendError: if the server refuses every such request.
        """

        def wait(state: RetryCallState) -> float:
            error = state.outcome.exception() if state.outcome else None
            asked = error.wait if isinstance(error, _Attempt) else None
            return wait_seconds(state.attempt_number, self.backoff, self._jitter.random(), asked)

        retrying = Retrying(
            stop=stop_any(stop_after_attempt(self.attempts), stop_when_event_set(ended)),
            wait=wait,
            retry=retry_if_exception_type(_Attempt),
            sleep=sleep_using_event(ended),
            reraise=True,
        )
        return retrying(self._attempt, method, path, body)

    def _attempt(self, method: str, path: str, body: dict[str, Any] | None) -> tuple[int, Any]:
        deadline = time.monotonic() + self.timeout
        content = b""
        try:
            with self._client.stream(
                method,
                str(self.url) + path,
                content=None if body is None else json.dumps(body).encode(),
                headers={"Content-Type": "application/json", **self._authorization()},
            ) as response:
                for chunk in response.iter_bytes():
                    content += chunk
                    if time.monotonic() > deadline:  # the client's own limit is for each piece
                        raise httpx.ReadTimeout("")
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError) as error:
            reason = self._scrub(str(error)) or type(error).__name__
            raise _Attempt(f"{self.url} cannot be reached ({reason})", unreachable=True) from None
        except httpx.TimeoutException:
            raise _Attempt(f"{self.url} did not answer within {self.timeout:g} s") from None
        except httpx.HTTPError as error:
            raise _Attempt(self._scrub(f"{self.url} broke the connection ({type(error).__name__}: {error})")) from None
        status = response.status_code
        text = content.decode("utf-8", "replace")
        try:
            payload = json.loads(text)
        except (ValueError, RecursionError):
            payload = text
        if status in BUSY or status >= 500:
            asked = retry_after(response.headers.get("Retry-After"), time.time())
            raise _Attempt(self._refusal(status, payload), asked)
        if status in CHECK:
            raise BackendError(f"{self._refusal(status, payload)}: {CHECK[status]}")
        if 300 <= status < 400:
            raise BackendError(f"{self.url} answers with a redirection (HTTP {status}): set base_url to where it leads")
        return status, payload

    def _refusal(self, status: int, payload: Any) -> str:
        return self._scrub(f"{self.url} answers HTTP {status} ({message_of(payload) or 'no reason given'})")

    def _key(self) -> str:
        return os.environ.get(self.api_key_env or "", "").strip()

    def _authorization(self) -> dict[str, str]:
        key = self._key()
        if not (key.isascii() and key.isprintable()):
            raise BackendError(f"the environment variable {self.api_key_env} holds characters that no key has")
        return {"Authorization": f"Bearer {key}"} if key else {}

    def _scrub(self, sentence: str) -> str:
        """Take the key out of a sentence, which a server may have echoed, and shorten it."""
        if key := self._key():
            sentence = sentence.replace(key, "***")
        return sentence if len(sentence) <= LONGEST_MESSAGE else sentence[:LONGEST_MESSAGE] + "…"
