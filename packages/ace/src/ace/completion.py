"""What a language model is asked and what it returns; every backend has this one interface.

A backend is given a list of requests at a time: a server answers them concurrently, a model in this process as a
batch. A request that fails has a completion of its own that says why, so that one bad request does not end a run.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Role = Literal["system", "user", "assistant"]
FinishReason = Literal["stop", "length", "error"]


class BackendError(OSError):
    """No request to this backend can succeed: it cannot be reached, or refuses the key or the model's name."""


@dataclass(frozen=True)
class Message:
    """A turn of a conversation."""

    role: Role
    content: str


@dataclass(frozen=True)
class Request:
    """A completion that is asked for.

    Attributes:
        messages: the conversation; the model writes the next turn.
        max_tokens: most tokens to write.
        temperature: 0 for the most probable token every time.
        seed: of the draws at a temperature above 0.
        json_schema: a JSON Schema, as JSON text, that the answer must follow where the backend can enforce it.
        stop: the answer ends before the first of these strings.
    """

    messages: tuple[Message, ...]
    max_tokens: int = 4096
    temperature: float = 0.0
    seed: int = 0
    json_schema: str | None = None
    stop: tuple[str, ...] = ()


@dataclass(frozen=True)
class Completion:
    """What came back.

    Attributes:
        text: what the model wrote; empty after an error.
        prompt_tokens: length of the prompt in tokens.
        completion_tokens: tokens written.
        finish_reason: `stop`, `length` (cut at `max_tokens`) or `error`.
        cached_tokens: of the prompt's tokens, those that the backend had processed before.
        error: one sentence, where the request failed.
    """

    text: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    finish_reason: FinishReason = "stop"
    cached_tokens: int = 0
    error: str | None = None


class Backend(ABC):
    """A language model."""

    name: str

    @abstractmethod
    def complete(self, requests: Sequence[Request]) -> list[Completion]:
        """Answer requests, in their order.

        Raises:
            BackendError: if no request can succeed.
        """

    @abstractmethod
    def count_tokens(self, text: str) -> int:
        """Count the tokens of a text, at least approximately."""


def failed(error: str, prompt_tokens: int = 0) -> Completion:
    """Return the completion of a request that failed."""
    return Completion("", prompt_tokens, finish_reason="error", error=error)


def overflow(prompt_tokens: int, max_tokens: int, context_size: int | None) -> str | None:
    """Say that a request is longer than the model's context, or None if it fits."""
    if context_size is None or prompt_tokens + max_tokens <= context_size:
        return None
    return (
        f"the prompt has {prompt_tokens} tokens and up to {max_tokens} are to be written, "
        f"but the model's context holds {context_size}"
    )


def approximate_tokens(text: str) -> int:
    """Estimate the tokens of a text: one for four bytes of UTF-8, within some 20 % for English prose."""
    return math.ceil(len(text.encode("utf-8", "surrogatepass")) / 4)
