"""An OpenAI-compatible endpoint on this machine, in front of a model in this process.

What several clients ask at the same time is answered as one batch. There is no key and no encryption: it is for the
loopback address. Answers come whole, not as streams.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

from ace.chat_api import RequestError, parse_request, reply_of
from ace.completion import Backend, Completion, Request, overflow
from ace.http_backend import is_loopback
from ace.jsonl import refuse_constant
from ace.options import check_positive

MOST_BYTES = 16 * 1024**2  # of a request
LONGEST_IDLE = 60.0  # seconds that a connection may be silent
GATHERING = 0.01  # seconds to wait for further requests before a batch is begun


class Job:
    """A request that waits for its answer."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.done = threading.Event()
        self.completion: Completion | None = None
        self.error: str | None = None

    def result(self) -> Completion:
        """Wait for the answer.

        Raises:
            RequestError: if there is none.
        """
        self.done.wait()
        if self.completion is None:
            raise RequestError(self.error or "the server is stopping", status=500)
        return self.completion


class Batcher:
    """Answers what waits, together, in a thread of its own: a model in this process serves one batch at a time.

    Args:
        backend: the model.
        batch_size: most requests of a batch.
    """

    def __init__(self, backend: Backend, batch_size: int) -> None:
        self.backend, self.batch_size = backend, batch_size
        self._waiting: queue.Queue[Job | None] = queue.Queue()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def answer(self, request: Request) -> Completion:
        """Answer a request; called from many threads.

        Raises:
            RequestError: if the backend fails, or the batcher is stopped.
        """
        job = Job(request)
        self._waiting.put(job)
        if self._stopped.is_set():
            self._refuse_waiting()
        return job.result()

    def stop(self, timeout: float = 5.0) -> None:
        """Refuse what waits, and let the batch that is being answered end if it does so within seconds."""
        self._stopped.set()
        self._refuse_waiting()
        self._waiting.put(None)
        self._thread.join(timeout)

    def _work(self) -> None:
        while not self._stopped.is_set():
            if (first := self._waiting.get()) is None:
                return
            jobs = self._gather(first)
            try:
                for job, completion in zip(jobs, self.backend.complete([job.request for job in jobs]), strict=True):
                    job.completion = completion
            except Exception as error:  # whatever it is, the next batch may succeed
                for job in jobs:
                    job.error = " ".join(f"{type(error).__name__}: {error}".split())
            for job in jobs:
                job.done.set()

    def _gather(self, first: Job) -> list[Job]:
        jobs, end = [first], time.monotonic() + GATHERING
        while len(jobs) < self.batch_size:
            try:
                job = self._waiting.get(timeout=max(end - time.monotonic(), 0.0))
            except queue.Empty:
                break
            if job is None:
                break
            jobs.append(job)
        return jobs

    def _refuse_waiting(self) -> None:
        while True:
            try:
                job = self._waiting.get_nowait()
            except queue.Empty:
                return
            if job is not None:
                job.done.set()


class ChatServer(ThreadingHTTPServer):
    """Serves `/v1/chat/completions`, `/v1/models` and `/health`.

    Args:
        backend: the model.
        host: address to listen at.
        port: to listen at; 0 for any that is free.
        batch_size: most requests that are answered together.
        schemas: whether the backend enforces JSON schemas; a request with one is refused otherwise.

    Attributes:
        url: the base URL for clients.

    Raises:
        ValueError: if the batch size is not positive, or the address cannot be used.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(
        self, backend: Backend, host: str = "127.0.0.1", port: int = 8000, batch_size: int = 16, schemas: bool = False
    ) -> None:
        check_positive(batch_size=batch_size)
        if not 0 <= port < 2**16:
            raise ValueError(f"port must lie in [0, 65535], got {port}")
        try:
            super().__init__((host, port), Handler)
        except OSError as error:
            raise ValueError(f"port {port} of {host} cannot be used: {error.strerror or error}") from error
        self.url = f"http://{host}:{self.server_port}/v1"
        self.backend, self.schemas = backend, schemas
        self.batcher = Batcher(backend, batch_size)
        self._answers, self._lock = 0, threading.Lock()

    def chat(self, body: object) -> dict[str, Any]:
        """Answer a request.

        Raises:
            RequestError: if it is not valid, or the backend fails.
        """
        request = parse_request(body, self.schemas)
        completion = self.batcher.answer(request)
        if completion.finish_reason == "error":
            size = getattr(self.backend, "context_size", None)
            long = overflow(completion.prompt_tokens, request.max_tokens, size) is not None
            error = completion.error or "the model failed"
            raise (
                RequestError(error, "messages", 400, "context_length_exceeded")
                if long
                else RequestError(error, status=500)
            )
        with self._lock:
            self._answers += 1
            return reply_of(completion, self.backend.name, self._answers)

    def server_close(self) -> None:
        """Stop listening and answering."""
        super().server_close()
        if hasattr(self, "batcher"):
            self.batcher.stop()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that has left."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """Reads requests of one connection, one after the other."""

    protocol_version = "HTTP/1.1"
    timeout = LONGEST_IDLE
    server: ChatServer

    def do_GET(self) -> None:
        """Answer `/v1/models` and `/health`."""
        model = {"id": self.server.backend.name, "object": "model", "created": 0, "owned_by": "local"}
        match self.path.partition("?")[0]:
            case "/v1/models":
                self._reply(200, {"object": "list", "data": [model]})
            case "/health":
                self._reply(200, {"status": "ok"})
            case path:
                self._reply_error(RequestError(f"there is no path {path}", status=404))

    def do_POST(self) -> None:
        """Answer `/v1/chat/completions`."""
        try:
            content = self._content()
            if (path := self.path.partition("?")[0]) != "/v1/chat/completions":
                raise RequestError(f"there is no path {path}", status=404)
            try:
                body = json.loads(content.decode(), parse_constant=refuse_constant)
            except (ValueError, RecursionError) as error:
                raise RequestError(f"the body must be JSON in UTF-8: {error}") from None
            reply = self.server.chat(body)
        except RequestError as error:
            self._reply_error(error)
        else:
            self._reply(200, reply)

    def log_message(self, format: str, *args: Any) -> None:
        """Write no log: questions may be private."""

    def _content(self) -> bytes:
        length = self.headers.get("Content-Length")
        if length is None or not (length.isascii() and length.isdigit()):
            self.close_connection = True  # where the body ends is not known
            raise RequestError("the header Content-Length is missing, or no number", status=411)
        digits = length.lstrip("0") or "0"  # `int` refuses thousands of them
        if len(digits) > len(str(MOST_BYTES)) or int(digits) > MOST_BYTES:
            self.close_connection = True
            raise RequestError(f"the body has more than {MOST_BYTES} bytes", status=413)
        return self.rfile.read(int(digits))

    def _reply_error(self, error: RequestError) -> None:
        self._reply(error.status, error.body())

    def _reply(self, status: int, body: Mapping[str, Any]) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content)


def serve(
    backend: Literal["transformers", "llamacpp"],
    gguf: Path | None,
    host: str,
    port: int,
    batch_size: int,
    context_size: int | None,
) -> None:
    """Load a model and serve it until Ctrl-C."""
    model: Backend
    if backend == "llamacpp":
        from ace.llamacpp_backend import LlamaCppBackend

        model = LlamaCppBackend(gguf, **({} if context_size is None else {"context_size": context_size}))
    else:
        from ace.transformers_backend import TransformersBackend

        model = TransformersBackend(gguf, batch_size=batch_size, context_size=context_size)
    with ChatServer(model, host, port, batch_size, schemas=backend == "llamacpp") as server:
        if not is_loopback(host) or host in ("0.0.0.0", "::"):
            say(f"warning: there is no key, and whoever reaches {host} can use the model")
        model.count_tokens("")  # loads it, so that the first request need not wait
        try:
            say(f"{model.name} answers at {server.url}; Ctrl-C ends it")
            server.serve_forever()
        except KeyboardInterrupt:
            say("stopped")


def say(text: str) -> None:
    """Print a line to stderr."""
    print(text, file=sys.stderr, flush=True)
