"""A model of transformers in this process: batches, and a prompt's beginning that is processed once.

Prompts that begin alike, such as those with one playbook in front of different questions, share the keys and values
of that beginning: of the last batch's common beginning with this one's, nothing is computed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from jinja2 import TemplateError

from ace.completion import Backend, Completion, FinishReason, Request, failed, overflow
from ace.local_model import break_up, special_pattern
from ace.options import check_positive

if TYPE_CHECKING:
    from torch import Tensor

    from ace.kv_cache import Past

KEPT = 4  # beginnings of prompts that are kept: a role's each
PAD = 0  # a token that nothing looks at

Dtype = Literal["float32", "bfloat16"]


class TransformersBackend(Backend):
    """Complete chats with a causal language model of transformers. It is loaded when it is first needed.

    A model whose layers have sliding windows answers one request after the other, since the padding of a batch would
    count as distance.

    Args:
        path: a folder in the format of transformers or a GGUF file; the embedded SmolLM2-135M-Instruct when None.
        device: where the model runs; a GPU if there is one when None.
        batch_size: most sequences that are decoded together.
        context_size: tokens of prompt and answer together; the model's own when None.
        reuse: keep the keys and values of a common beginning of prompts.
        dtype: of weights and activations. bfloat16 takes half the memory and is faster, and its answers differ.

    Raises:
        ValueError: if an option is out of range.
    """

    def __init__(
        self,
        path: Path | None = None,
        device: str | None = None,
        batch_size: int = 16,
        context_size: int | None = None,
        reuse: bool = True,
        dtype: Dtype = "float32",
    ) -> None:
        check_positive(batch_size=batch_size)
        check_positive(optional=True, context_size=context_size)
        if reuse is None:
            raise ValueError("reuse must be true or false, got None")
        if dtype not in get_args(Dtype):
            raise ValueError(f"dtype must be one of {', '.join(get_args(Dtype))}, got {dtype!r}")
        self.path = None if path is None else Path(path)
        self.device, self.batch_size, self.reuse, self.dtype = device, batch_size, reuse, dtype
        self.given_context_size = context_size
        name = "smollm2-135m-instruct" if path is None else Path(path).absolute().name.removesuffix(".gguf")
        self.name = name if dtype == "float32" else f"{name}-{dtype}"  # a log tells backends apart by their names
        self._model: Any = None
        self._tokenizer: Any = None
        self._kept: list[tuple[list[int], Past]] = []  # prompts' beginnings with their keys and values, the latest last

    def load(self) -> None:
        """Load the model, unless it is there already.

        Raises:
            FileNotFoundError: if there is no such file.
            ValueError: if it cannot be read, is no model for chats, or cannot run on the device.
        """
        if self._model is not None:
            return
        import torch

        from ace import kv_cache, local_model

        path = self.path or local_model.find_gguf()
        model, tokenizer = local_model.load(path, self.dtype)
        if tokenizer.chat_template is None:
            raise ValueError(f"{path}: the model has no chat template, expected one that was trained on chats")
        self._layers, self._slides = kv_cache.layers_of(model.config, str(path))
        device = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
        try:
            model.to(device)  # type: ignore[arg-type]
        except (RuntimeError, AssertionError) as error:  # torch's own for a name or a device that there is not
            raise ValueError(f"device: cannot use {device!r}: {str(error).splitlines()[0]}") from error
        self.context_size = self.given_context_size or int(model.config.get_text_config().max_position_embeddings)
        ends = model.generation_config.eos_token_id if model.generation_config is not None else None
        added = (token.content for token in tokenizer.added_tokens_decoder.values() if token.special)
        self._special = special_pattern([*tokenizer.all_special_tokens, *added])
        self._ends = set(ends if isinstance(ends, list) else [ends]) | {tokenizer.eos_token_id}
        self._model, self._tokenizer = model, tokenizer

    def count_tokens(self, text: str) -> int:
        """Count the tokens of a text."""
        self.load()
        return len(self._tokenizer(text, add_special_tokens=False).input_ids)

    def tokens(self, request: Request) -> list[int]:
        """Return the tokens of a request's prompt, in the model's chat format.

        Special tokens in a message's content, such as those that begin and end a turn, become ordinary text.

        Raises:
            jinja2.TemplateError: if that format has no place for a message, such as one of the system.
        """
        self.load()
        chat = [{"role": m.role, "content": break_up(m.content, self._special)} for m in request.messages]
        text = self._tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        ids: list[int] = self._tokenizer(text, add_special_tokens=False).input_ids
        return ids

    def complete(self, requests: Sequence[Request]) -> list[Completion]:
        """Answer requests in batches, in their order; JSON schemas are not enforced."""
        self.load()
        completions: dict[int, Completion] = {}
        prompts: dict[int, list[int]] = {}
        for i, request in enumerate(requests):
            try:
                prompt = self.tokens(request)
            except TemplateError as error:
                completions[i] = failed(f"the model's chat format refuses the conversation: {error}")
                continue
            if request.max_tokens < 1:
                refusal: str | None = f"max_tokens must be at least 1, got {request.max_tokens}"
            else:
                refusal = overflow(len(prompt), request.max_tokens, self.context_size)
            if refusal is None and prompt:
                prompts[i] = prompt
            else:
                completions[i] = failed(refusal or "the prompt is empty", len(prompt))
        fitting, together = list(prompts), 1 if self._slides else self.batch_size
        for start in range(0, len(fitting), together):
            chosen = fitting[start : start + together]
            answers = self.complete_batch([requests[i] for i in chosen], [prompts[i] for i in chosen])
            completions |= zip(chosen, answers, strict=True)
        return [completions[i] for i in range(len(requests))]

    def prefix(self, prompts: list[list[int]]) -> tuple[list[int], int, Past]:
        """Process the common beginning of prompts, as far as it is not kept from before.

        Args:
            prompts: tokens of each.

        Returns:
            The common beginning, how many of its tokens had been processed before, and their keys and values.
        """
        import torch

        from ace.kv_cache import roomy_cache

        # One token at least is left to each prompt: its logits begin the answer.
        beginning = common([prompt[:-1] for prompt in prompts])
        lengths = [len(common([kept, beginning])) for kept, _ in self._kept]
        reused, past = 0, []
        if any(lengths):
            best = lengths.index(max(lengths))
            kept, old = self._kept[best]
            reused = lengths[best]
            past = [(keys[:, :, :reused], values[:, :, :reused]) for keys, values in old]
            if reused == len(kept):  # it is contained in the new one
                del self._kept[best]
        if len(beginning) > reused:
            cache = roomy_cache(past, len(beginning), self._layers, 1)
            ids = torch.tensor([beginning[reused:]], device=self._model.device)
            with torch.inference_mode():
                self._model(input_ids=ids, cache=cache, use_cache=True, logits_to_keep=1)
            past = [(layer.keys, layer.values) for layer in cast("Any", cache.layers)]
        if self.reuse and beginning:
            self._kept = [*self._kept, (beginning, past)][-KEPT:]
        return beginning, reused, past

    def complete_batch(self, requests: Sequence[Request], prompts: list[list[int]]) -> list[Completion]:
        """Answer requests as one batch.

        Args:
            requests: what is asked for.
            prompts: tokens of each.
        """
        import torch

        from ace.kv_cache import roomy_cache

        device = self._model.device
        beginning, reused, past = self.prefix(prompts)
        rest = [prompt[len(beginning) :] for prompt in prompts]
        width = max(map(len, rest))
        room = len(beginning) + width + max(request.max_tokens for request in requests)
        cache = roomy_cache(past, room, self._layers, len(rest))
        # Between the common beginning and what is a prompt's own, shorter ones are padded; nothing looks there.
        pads = torch.tensor([width - len(ids) for ids in rest], device=device)[:, None]
        ids = torch.tensor([[PAD] * (width - len(ids)) + ids for ids in rest], device=device)
        place = torch.arange(width, device=device)[None]
        mask = torch.cat(
            [torch.ones(len(rest), len(beginning), device=device, dtype=torch.long), (place >= pads).long()], 1
        )
        positions = (len(beginning) + place - pads).clamp(min=0)
        answers = [Answer(request, self._tokenizer, self._ends) for request in requests]
        active = list(range(len(rest)))
        with torch.inference_mode():
            while True:
                logits = self._model(
                    input_ids=ids, attention_mask=mask, position_ids=positions, cache=cache,
                    use_cache=True, logits_to_keep=1,
                ).logits[:, -1]  # fmt: skip
                chosen = [answers[i].add(row) for i, row in zip(active, logits, strict=True)]
                going = [place for place, i in enumerate(active) if answers[i].finish_reason is None]
                if not going:
                    break
                if 2 * len(going) <= len(active):  # the others are done: decode a smaller batch
                    rows = torch.tensor(going, device=device)
                    cache.batch_select_indices(rows)
                    mask, positions = mask[rows], positions[rows]
                    active, chosen = [active[i] for i in going], [chosen[i] for i in going]
                ids = torch.tensor(chosen, device=device)[:, None]
                mask = torch.cat([mask, mask.new_ones(len(active), 1)], 1)
                # A sequence that is done stays where it is: it may have reached the end of the model's context.
                doing = torch.tensor([[answers[i].finish_reason is None] for i in active], device=device)
                positions = positions[:, -1:] + doing
        return [
            Completion(
                answer.text, len(prompt), len(answer.ids), answer.finish_reason or "length",
                cached_tokens=len(beginning) if i else reused,
            )
            for i, (answer, prompt) in enumerate(zip(answers, prompts, strict=True))
        ]  # fmt: skip


class Answer:
    """What is decoded of one request, token by token.

    Args:
        request: what is asked for.
        tokenizer: turns tokens into text.
        ends: tokens that end an answer.
    """

    def __init__(self, request: Request, tokenizer: Any, ends: set[int]) -> None:
        import torch

        self.request, self.tokenizer, self.ends = request, tokenizer, ends
        self.ids: list[int] = []
        self.text = ""
        self.finish_reason: FinishReason | None = None
        self.generator = torch.Generator().manual_seed(request.seed)

    def add(self, logits: Tensor) -> int:
        """Choose the next token by its logits (V,), and see whether the answer ends."""
        if self.finish_reason is not None:
            return PAD
        if self.request.temperature > 0:
            weights = (logits.float().cpu() / self.request.temperature).softmax(-1)
            token = int(weights.multinomial(1, generator=self.generator))
        else:
            token = int(logits.argmax())
        if token in self.ends:
            self.finish_reason = "stop"
        else:
            self.ids.append(token)
            if len(self.ids) == self.request.max_tokens:
                self.finish_reason = "length"
        if self.finish_reason is not None or self.request.stop:
            self.text = self.tokenizer.decode(self.ids, skip_special_tokens=True)
            places = [place for stop in self.request.stop if (place := self.text.find(stop)) >= 0]
            if places:
                self.text, self.finish_reason = self.text[: min(places)], "stop"
        return token


def common(sequences: Sequence[list[int]]) -> list[int]:
    """Return what sequences have in common at their beginning."""
    shortest, longest = min(sequences), max(sequences)  # whatever lies between them begins alike too
    length = next((i for i, token in enumerate(shortest) if token != longest[i]), len(shortest))
    return shortest[:length]
