"""Chat completions as OpenAI's API writes them: a request is read, an answer or an error is written.

What is not offered is refused, not passed over, so that nobody takes an answer for one of other settings.
"""

from __future__ import annotations

import json
import math
import secrets
import time
from collections.abc import Mapping
from typing import Any, cast

from ace.completion import Completion, Message, Request, Role

MOST_TOKENS = 1024  # written where a request does not say
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
# Fields that would change an answer in a way that is not offered, and the only value that they may have.
NEUTRAL: dict[str, Any] = {
    "stream": False, "n": 1, "top_p": 1, "frequency_penalty": 0, "presence_penalty": 0, "logit_bias": {},
    "logprobs": False, "tools": [], "functions": [],
}  # fmt: skip


class RequestError(Exception):
    """What is wrong with a request.

    Args:
        message: one sentence.
        field: which it is about.
        status: of HTTP.
        code: by which programs know it.
    """

    def __init__(self, message: str, field: str | None = None, status: int = 400, code: str | None = None) -> None:
        super().__init__(message)
        self.field, self.status, self.code = field, status, code

    def body(self) -> dict[str, Any]:
        """Return it in the form of OpenAI's errors."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": self.field, "code": self.code}}


def parse_request(body: object, schemas: bool = False) -> Request:
    """Read the body of a request to `/v1/chat/completions`.

    The temperature is 1 where none is given, and the seed drawn afresh, as the API has it.

    Args:
        body: the parsed JSON.
        schemas: whether the backend enforces JSON schemas.

    Raises:
        RequestError: if a field is missing, of another type, out of range or not offered.
    """
    if not isinstance(body, dict):
        raise RequestError(f"the body must be a JSON object, got {type(body).__name__}")
    for name, neutral in NEUTRAL.items():
        if body.get(name) is not None and body[name] != neutral:
            hint = ": answers come whole, not as a stream" if name == "stream" else ""
            raise RequestError(f"{name} must be {json.dumps(neutral)} or left out here{hint}", name)
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RequestError("messages must be a list of one message or more", "messages")
    # The name that the API has today goes before the older one.
    limit = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
    seed = _number(body, "seed", None, -(2**63), 2**63 - 1, whole=True)
    return Request(
        tuple(_message(message, f"messages[{i}]") for i, message in enumerate(messages)),
        int(cast(float, _number(body, limit, MOST_TOKENS, 1, math.inf, whole=True))),
        float(cast(float, _number(body, "temperature", 1.0, 0, 2))),
        secrets.randbits(31) if seed is None else int(seed) % 2**31,
        _schema(body.get("response_format"), schemas),
        _stop(body.get("stop")),
    )


def reply_of(completion: Completion, name: str, number: int) -> dict[str, Any]:
    """Return the body of an answer.

    Args:
        completion: of the backend.
        name: of the model.
        number: of the answer.
    """
    tokens = {"prompt_tokens": completion.prompt_tokens, "completion_tokens": completion.completion_tokens}
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": name,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": completion.text},
                "finish_reason": completion.finish_reason,
                "logprobs": None,
            }
        ],
        "usage": {
            **tokens,
            "total_tokens": sum(tokens.values()),
            "prompt_tokens_details": {"cached_tokens": completion.cached_tokens},
        },
    }


def _message(message: object, place: str) -> Message:
    if not isinstance(message, dict):
        raise RequestError(f"{place} must be an object, got {type(message).__name__}", "messages")
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise RequestError(f"{place}.role must be one of {', '.join(ROLES)}, got {role!r:.40}", "messages")
    content = message.get("content")
    if isinstance(content, list) and all(_is_text(part) for part in content):
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise RequestError(f"{place}.content must be text, got {type(content).__name__}", "messages")
    if any("\ud800" <= letter <= "\udfff" for letter in content):
        raise RequestError(f"{place}.content holds half of a surrogate pair, which is no character", "messages")
    return Message(cast("Role", ROLES[role]), content)


def _is_text(part: object) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _number(
    body: Mapping[str, Any], name: str, default: float | None, low: float, high: float, whole: bool = False
) -> float | None:
    value: Any = body.get(name)
    if value is None:
        return default
    if not isinstance(value, int if whole else int | float) or isinstance(value, bool) or not low <= value <= high:
        kind = "a whole number" if whole else "a number"
        wanted = f"of at least {low}" if high == math.inf else f"in [{low}, {high}]"
        raise RequestError(f"{name} must be {kind} {wanted}, got {value!r:.40}", name)
    return value


def _stop(value: object) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops):
        raise RequestError(f"stop must be a text or a list of texts, none of them empty, got {value!r:.40}", "stop")
    return tuple(stops)


def _schema(value: object, schemas: bool) -> str | None:
    if value is None:
        return None
    kind = value.get("type") if isinstance(value, dict) else None
    if kind not in ("text", "json_object", "json_schema"):
        raise RequestError(f"response_format must be an object of a known type, got {value!r:.40}", "response_format")
    if kind == "text":
        return None
    if not schemas:
        raise RequestError(f"response_format {kind} cannot be enforced by this backend", "response_format")
    if kind == "json_object":
        return '{"type": "object"}'
    inner = cast("dict[str, Any]", value).get("json_schema")
    schema = inner.get("schema") if isinstance(inner, dict) else None
    if not isinstance(schema, dict):
        raise RequestError("response_format.json_schema.schema must be an object", "response_format")
    return json.dumps(schema)
