"""A GGUF model through llama.cpp in this process: quick on a CPU, and it enforces JSON Schemas.

The requests of a batch are answered one after the other. llama.cpp keeps the keys and values of its last prompt and
computes again only what follows the common beginning, so that prompts with one playbook in front share its cost.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from ace.completion import Backend, Completion, Request, failed, overflow
from ace.local_model import break_up, find_gguf, special_pattern

UNKNOWN, CONTROL = 1, 8  # bits of llama.cpp's token attributes: those that it reads as special tokens


class LlamaCppBackend(Backend):
    """Complete chats with llama-cpp-python. The model is loaded when it is first needed.

    At a temperature above 0 it draws from the whole distribution: llama.cpp's own cuts (top-k, top-p, min-p) are off,
    so that backends differ in their arithmetic only.

    Args:
        path: a GGUF file with a chat template; the embedded SmolLM2-135M-Instruct when None.
        context_size: tokens that prompt and answer may have together.
        threads: of the CPU; half of its cores when None.

    Raises:
        FileNotFoundError: if there is no such file.
        ImportError: if llama-cpp-python is not installed.
        ValueError: if an option is out of its range.
    """

    def __init__(self, path: Path | None = None, context_size: int = 4096, threads: int | None = None) -> None:
        if context_size is None or context_size < 1:
            raise ValueError(f"context_size: expected at least 1, got {context_size}")
        if threads is not None and threads < 1:
            raise ValueError(f"threads: expected at least 1, got {threads}")
        if find_spec("llama_cpp") is None:
            raise ImportError(
                "this backend needs llama-cpp-python, which is compiled when installed: run with "
                "`uv run --package ace --extra llamacpp`"
            )
        self.path = find_gguf() if path is None else Path(path)
        if not self.path.is_file():
            raise FileNotFoundError(f"there is no model {self.path}")
        self.context_size = context_size
        self.threads = threads
        self.name = f"llamacpp:{self.path.stem}"

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: value for name, value in self.__dict__.items() if name not in ("_model", "_formatter", "_special")
        }

    def complete(self, requests: Sequence[Request]) -> list[Completion]:
        """Answer requests, in their order.

        Raises:
            ValueError: if the file is no model for chats, or a request's schema is no JSON.
        """
        return [self._answer(request) for request in requests]

    def count_tokens(self, text: str) -> int:
        """Count the tokens of a text."""
        return len(self._model.tokenize(_encode(text), add_bos=False, special=False))

    def prompt(self, request: Request) -> list[int]:
        """Return the tokens of a request's prompt, in the model's chat format.

        Special tokens in a message's content, such as those that begin and end a turn, become ordinary text.
        """
        formatted = self._formatter(messages=self._chat(request))
        tokens: list[int] = self._model.tokenize(
            _encode(formatted.prompt), add_bos=not formatted.added_special, special=True
        )
        return tokens

    @cached_property
    def _model(self) -> Any:
        from llama_cpp import Llama

        try:
            return Llama(
                str(self.path),
                n_ctx=self.context_size,
                n_threads=self.threads,
                n_threads_batch=self.threads,
                verbose=False,
            )
        except (ValueError, RuntimeError) as error:
            raise ValueError(f"{self.path}: not a model that llama.cpp reads: {error}") from None

    @cached_property
    def _formatter(self) -> Any:
        from llama_cpp.llama_chat_format import Jinja2ChatFormatter

        model = self._model
        template = model.metadata.get("tokenizer.chat_template")
        if template is None:
            raise ValueError(f"{self.path}: the model has no chat template, expected one that was trained on chats")
        bos, eos = (
            model._model.token_get_text(token) if token >= 0 else "" for token in (model.token_bos(), model.token_eos())
        )
        formatter = Jinja2ChatFormatter(template, eos_token=eos, bos_token=bos, stop_token_ids=[model.token_eos()])
        model.chat_handler = formatter.to_chat_handler()  # else llama.cpp may guess a format that counts otherwise
        return formatter

    @cached_property
    def _special(self) -> re.Pattern[str] | None:
        model = self._model._model
        numbers = range(self._model.n_vocab())
        special = (number for number in numbers if model.token_get_attr(number) & (UNKNOWN | CONTROL))
        return special_pattern(model.token_get_text(number) for number in special)

    def _chat(self, request: Request) -> list[dict[str, str]]:
        return [{"role": m.role, "content": break_up(m.content, self._special)} for m in request.messages]

    def _answer(self, request: Request) -> Completion:
        prompt = self.prompt(request)
        if too_long := overflow(len(prompt), request.max_tokens, self.context_size):
            return failed(too_long, len(prompt))
        options: dict[str, Any] = {}
        if request.json_schema is not None:
            try:
                schema = json.loads(request.json_schema)
            except ValueError as error:
                raise ValueError(f"json_schema: expected a JSON Schema as JSON text: {error}") from None
            options["response_format"] = {"type": "json_object", "schema": schema}
        cached = shared_beginning(self._model.input_ids[: self._model.n_tokens], prompt)
        try:
            answer = self._model.create_chat_completion(
                self._chat(request),
                max_tokens=request.max_tokens,
                temperature=request.temperature,
                seed=request.seed,
                stop=list(request.stop),
                top_k=0,
                top_p=1.0,
                min_p=0.0,
                **options,
            )
        except (ValueError, RuntimeError) as error:
            return failed(f"llama.cpp failed: {' '.join(str(error).split())}", len(prompt))
        choice, usage = answer["choices"][0], answer["usage"]
        return Completion(
            choice["message"]["content"] or "",
            usage["prompt_tokens"],
            usage["completion_tokens"],
            "length" if choice["finish_reason"] == "length" else "stop",
            cached,
        )


def shared_beginning(previous: Sequence[int] | np.ndarray[Any, Any], prompt: Sequence[int]) -> int:
    """Count the first tokens that a prompt shares with what the model holds.

    The prompt's last token never counts: its logits begin the answer, so that it is computed in any case.

    Args:
        previous: tokens whose keys and values are kept.
        prompt: tokens of the next prompt.
    """
    length = max(min(len(previous), len(prompt) - 1), 0)
    differ = np.flatnonzero(np.asarray(previous[:length]) != np.asarray(prompt[:length]))
    return int(differ[0]) if len(differ) else length


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "replace")
