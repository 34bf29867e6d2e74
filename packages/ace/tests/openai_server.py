"""A small OpenAI-compatible server on this machine's loopback, for tests: real HTTP, answers from a function."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Reply:
    """An answer that is not a plain completion.

    Attributes:
        body: sent as JSON, or as it is if bytes.
        status: of HTTP.
        headers: added to the usual ones.
        delay: seconds before the answer.
        drip: seconds between the bytes of the body.
        drop: close the connection without an answer.
    """

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0
    drip: float = 0.0
    drop: bool = False


def completion(text: str | None, finish_reason: str = "stop", **more: Any) -> dict[str, Any]:
    """The body of an answer, without `usage` unless given."""
    message = {"role": "assistant", "content": text}
    return {"object": "chat.completion", "choices": [{"message": message, "finish_reason": finish_reason}], **more}


class OpenAIServer:
    """Serve `/v1/chat/completions` and `/v1/models` in a `with` block.

    Args:
        answer: from the parsed body of a request to a text, or a `Reply`.
        models: names that `/v1/models` lists.

    Attributes:
        url: the base URL.
        bodies: of the completions asked for, as they came.
        headers: of all requests.
        most: most requests that were answered at a time.
    """

    def __init__(self, answer: Callable[[dict[str, Any]], str | Reply], models: Sequence[str] = ("local",)) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.most = self._active = 0
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer.headers.append(dict(self.headers))
                self.reply(Reply({"data": [{"id": model} for model in models]}))

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with outer._lock:
                    outer.bodies.append(body)
                    outer.headers.append(dict(self.headers))
                    outer._active += 1
                    outer.most = max(outer.most, outer._active)
                try:
                    if self.path != "/v1/chat/completions":
                        said: str | Reply = Reply({"error": {"message": f"no path {self.path}"}}, 404)
                    else:
                        said = answer(body)
                    reply = said if isinstance(said, Reply) else Reply(completion(said))
                    time.sleep(reply.delay)
                finally:
                    with outer._lock:
                        outer._active -= 1
                self.reply(reply)

            def reply(self, reply: Reply) -> None:
                if reply.drop:
                    self.close_connection = True
                    return
                content = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
                try:
                    self.send_response(reply.status)
                    for name, value in {"Content-Type": "application/json", **reply.headers}.items():
                        self.send_header(name, value)
                    self.send_header("Content-Length", str(len(content)))
                    self.end_headers()
                    for piece in [content[i : i + 1] for i in range(len(content))] if reply.drip else [content]:
                        self.wfile.write(piece)
                        time.sleep(reply.drip)
                except OSError:  # the client has left
                    self.close_connection = True

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def __enter__(self) -> OpenAIServer:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
