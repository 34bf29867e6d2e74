"""Generator, Reflector and Curator (Sec. 3.2): what each is shown, and how its answer is read.

`JsonRoles` are those of the paper, for models that can write JSON. `ace.tiny` has a set for models that cannot. Both
use one model, through a `Chat`. An answer that cannot be read, or was cut at its limit, counts as no answer; it is
never applied by halves.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from ace.completion import Completion, Message, Request
from ace.extraction import extract_ids, extract_json
from ace.operations import Operation, parse_operations
from ace.options import check_positive, check_temperature
from ace.playbook import Order, Playbook, Tag, render
from ace.prompts import Prompts
from ace.recording import Recorder
from ace.tasks import Sample, Task


@dataclass(frozen=True)
class Attempt:
    """What the Generator made of a sample.

    Attributes:
        answer: its final answer; empty if there is none.
        reasoning: how it got there.
        bullet_ids: bullets that it says it relied on.
        error: why there is no answer.
        execution: what an environment printed, for tasks that have one.
        passed: whether the environment's own tests did, for tasks that have one; never shown to a role.
    """

    answer: str
    reasoning: str = ""
    bullet_ids: tuple[str, ...] = ()
    error: str | None = None
    execution: str | None = None
    passed: bool | None = None


def is_right(task: Task, sample: Sample, attempt: Attempt) -> bool:
    """Say whether an attempt is right: by its environment's tests, or by the task's comparison with the target."""
    return task.correct(sample, attempt.answer) if attempt.passed is None else attempt.passed


@dataclass(frozen=True)
class Case:
    """An attempt with what its Reflector may know.

    Attributes:
        sample: that was asked.
        attempt: at it.
        feedback: what is said of it.
        target: the right answer, or None where it is not revealed.
        right: whether the attempt is, or None where that is not revealed.
        bullets: those that were used, as text.
        shown: the playbook that the Generator saw.
    """

    sample: Sample
    attempt: Attempt
    feedback: str
    target: str | None = None
    right: bool | None = None
    bullets: str = ""
    shown: Playbook = field(default_factory=lambda: Playbook.empty(()))


@dataclass(frozen=True)
class Reflection:
    """What the Reflector found.

    Attributes:
        text: for the Generator's next attempt and for the Curator.
        tags: bullet id -> whether it helped.
        lesson: one sentence to remember, where the Reflector writes such.
    """

    text: str
    tags: Mapping[str, Tag] = field(default_factory=dict)
    lesson: str = ""


class Roles(ABC):
    """The three roles, the prompts of the baselines, and how a playbook is shown to them."""

    chat: Chat
    needs_label: bool = False  # whether the Reflector cannot do without the right answer
    retries_alone: bool = False  # whether a further attempt sees the reflection alone, without the playbook
    acts: bool = False  # whether the Generator acts in an environment, whose output can be the feedback

    @abstractmethod
    def render(self, playbook: Playbook) -> str:
        """Write a playbook as the Generator sees it."""

    @abstractmethod
    def used(self, attempt: Attempt, playbook: Playbook) -> tuple[str, ...]:
        """List the ids of the bullets that an attempt relied on."""

    @abstractmethod
    def examples(self, samples: Sequence[Sample]) -> str:
        """Write labelled demonstrations as the Generator sees them."""

    @abstractmethod
    def answer(
        self, samples: Sequence[Sample], contexts: Sequence[str], *, step: int, role: str = "generator"
    ) -> list[Attempt]:
        """Answer samples, each with a context such as the playbook."""

    @abstractmethod
    def answer_again(
        self, samples: Sequence[Sample], contexts: Sequence[str], reflections: Sequence[Reflection], *, step: int
    ) -> list[Attempt]:
        """Answer samples once more, with a reflection on the last attempt."""

    @abstractmethod
    def reflect(self, cases: Sequence[Case], *, step: int, attempt: int) -> list[Reflection | None]:
        """Reflect on attempts; None where nothing came of it. `attempt` counts the rounds from 0."""

    @abstractmethod
    def without_reflector(self, case: Case) -> Reflection:
        """Return the raw trace of an attempt in place of a reflection."""

    @abstractmethod
    def refusal(self, case: Case, reflection: Reflection) -> str | None:
        """Say why nothing shall be learned from the last attempt and the reflection; None if something may."""

    @abstractmethod
    def curate(
        self, playbook: Playbook, case: Case, reflection: Reflection, *, budget: int, step: int, steps: int
    ) -> tuple[list[Operation], list[str]]:
        """Propose operations, and say what was rejected of the proposal."""

    @abstractmethod
    def rewrite(self, sheet: str, case: Case, reflection: Reflection | None, *, budget: int, step: int) -> str | None:
        """Write a whole cheatsheet anew; None keeps the old one (the baseline)."""

    @abstractmethod
    def combine(self, contents: Sequence[str], *, step: int) -> str | None:
        """Write one lesson that says what similar ones say; None if that failed."""


class Chat:
    """Asks a model, on behalf of roles.

    Args:
        recorder: the model, with the run's log.
        prompts: templates.
        task: how answers are asked for.
        seed: of draws at a temperature above 0.

    Attributes:
        unreadable: role -> answers that could not be read.
    """

    def __init__(self, recorder: Recorder, prompts: Prompts, task: Task, seed: int = 0) -> None:
        self.recorder, self.prompts, self.task, self.seed = recorder, prompts, task, seed
        self.unreadable: Counter[str] = Counter()

    def ask(
        self,
        role: str,
        conversations: Sequence[Sequence[Message]],
        *,
        step: int,
        max_tokens: int,
        temperature: float = 0.0,
        draw: Sequence[str] = (),
        schema: str | None = None,
    ) -> list[Completion]:
        """Complete conversations.

        Args:
            role: on whose behalf.
            conversations: one for each completion.
            step: of the run, for the log.
            max_tokens: most tokens to write.
            temperature: 0 for the most probable answer.
            draw: names each conversation's draw, where the temperature is above 0.
            schema: JSON Schema of the answers.
        """
        seeds = [self._seed(role, name) for name in draw] if temperature > 0 else [0] * len(conversations)
        return self.recorder.complete(
            [
                Request(tuple(messages), max_tokens, temperature, seed, schema)
                for messages, seed in zip(conversations, seeds, strict=True)
            ],
            role=role,
            step=step,
        )

    def read_json(self, role: str, completion: Completion) -> dict[str, Any] | None:
        """Read the JSON object of an answer; None, which is counted, if there is none or it was cut."""
        found = extract_json(completion.text, repair=completion.finish_reason != "length").value
        if found is None:
            self.unreadable[role] += 1
        return found

    def _seed(self, role: str, name: str) -> int:
        text = f"{self.seed}/{role}/{name}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1  # servers take 31 bits


class GeneratorAnswer(BaseModel):
    """The Generator's JSON."""

    model_config = ConfigDict(extra="forbid")
    reasoning: str
    bullet_ids: list[str]
    final_answer: str


class BulletTag(BaseModel):
    """The Reflector's judgement of a bullet."""

    model_config = ConfigDict(extra="forbid")
    id: str
    tag: Literal["helpful", "harmful", "neutral"]


class ReflectorAnswer(BaseModel):
    """The Reflector's JSON."""

    model_config = ConfigDict(extra="forbid")
    reasoning: str
    error_identification: str
    root_cause_analysis: str
    correct_approach: str
    key_insight: str
    bullet_tags: list[BulletTag]


class CuratorAnswer(BaseModel):
    """The Curator's JSON."""

    model_config = ConfigDict(extra="forbid")
    reasoning: str
    operations: list[Operation]


class JsonRoles(Roles):
    """The paper's roles, which answer in JSON.

    Args:
        chat: asks the model.
        order: of the bullets in prompts: by `sections`, as in the paper, or by `ids`, so that a prompt grows at its end
            and a backend's prefix cache holds.
        counters: show helpful and harmful in prompts; they change a prompt at every step.
        max_tokens: most tokens of an answer.
        temperature: of the three roles.
        constrained: send JSON schemas, which servers with constrained decoding enforce.

    Raises:
        ValueError: if an option is out of range.
    """

    def __init__(
        self,
        chat: Chat,
        order: Order = "sections",
        counters: bool = True,
        max_tokens: int = 4096,
        temperature: float = 0.0,
        constrained: bool = False,
    ) -> None:
        if order not in ("sections", "ids"):
            raise ValueError(f"order must be sections or ids, got {order!r}")
        check_positive(max_tokens=max_tokens)
        check_temperature(temperature)
        self.chat, self.order, self.counters = chat, order, counters
        self.max_tokens, self.temperature, self.constrained = max_tokens, temperature, constrained

    def render(self, playbook: Playbook) -> str:
        """Write the lines of a playbook, in the text form."""
        return render(playbook, self.order, self.counters)

    def used(self, attempt: Attempt, playbook: Playbook) -> tuple[str, ...]:
        """List the bullets that an attempt names, in its list of ids or else in its text."""
        known = playbook.by_id
        listed = extract_ids(" ".join(attempt.bullet_ids), known)
        return tuple(listed or extract_ids(f"{attempt.reasoning} {attempt.answer}", known))

    def examples(self, samples: Sequence[Sample]) -> str:
        """Write questions with their answers."""
        shown = (
            f"Question: {sample.question}\n" + (f"Context: {sample.context}\n" if sample.context else "")
            + f"Answer: {sample.target}"
            for sample in samples
        )  # fmt: skip
        return "\n\n".join(shown)

    def answer(
        self, samples: Sequence[Sample], contexts: Sequence[str], *, step: int, role: str = "generator"
    ) -> list[Attempt]:
        """Answer samples with a playbook each and no reflection."""
        return self._generate(samples, contexts, [""] * len(samples), step, role)

    def answer_again(
        self, samples: Sequence[Sample], contexts: Sequence[str], reflections: Sequence[Reflection], *, step: int
    ) -> list[Attempt]:
        """Answer samples with the playbook and the reflection."""
        return self._generate(samples, contexts, [reflection.text for reflection in reflections], step, "generator")

    def _generate(
        self, samples: Sequence[Sample], contexts: Sequence[str], reflections: Sequence[str], step: int, role: str
    ) -> list[Attempt]:
        conversations = [
            self.chat.prompts.fill(
                "generator",
                instruction=self.chat.task.instruction,
                playbook=context,
                reflection=reflection,
                question=sample.question,
                context=sample.context,
            )
            for sample, context, reflection in zip(samples, contexts, reflections, strict=True)
        ]
        return [
            self._attempt(role, completion)
            for completion in self._ask(role, conversations, samples, step, GeneratorAnswer)
        ]

    def _attempt(self, role: str, completion: Completion) -> Attempt:
        if completion.error is not None:
            return Attempt("", error=completion.error)
        found = self.chat.read_json(role, completion)
        if found is None:
            cut = completion.finish_reason == "length"
            return Attempt("", completion.text, error="the answer was cut" if cut else "the answer is not JSON")
        ids = found.get("bullet_ids")
        names = tuple(dict.fromkeys(str(name) for name in ids)) if isinstance(ids, list) else ()
        answer = as_text(found.get("final_answer"))
        error = None if answer else "there is no final answer"
        return Attempt(answer, as_text(found.get("reasoning")), names, error)

    def reflect(self, cases: Sequence[Case], *, step: int, attempt: int) -> list[Reflection | None]:
        """Reflect on attempts, and tag the bullets that they used."""
        conversations = [
            self.chat.prompts.fill(
                "reflector",
                question=case.sample.question,
                context=case.sample.context,
                reasoning=case.attempt.reasoning,
                answer=case.attempt.answer,
                target=case.target,
                feedback=case.feedback,
                bullets=case.bullets,
            )
            for case in cases
        ]
        samples = [case.sample for case in cases]
        reflections: list[Reflection | None] = []
        for completion in self._ask("reflector", conversations, samples, step, ReflectorAnswer, attempt):
            found = None if completion.error is not None else self.chat.read_json("reflector", completion)
            if found is None:
                reflections.append(None)
                continue
            tags = found.pop("bullet_tags", None)
            text = "\n".join(f"{key}: {as_text(value)}" for key, value in found.items())
            reflections.append(Reflection(text, tags_of(tags), as_text(found.get("key_insight"))))
        return reflections

    def without_reflector(self, case: Case) -> Reflection:
        """Return question, reasoning, answer and feedback as they are."""
        question, attempt = case.sample.question, case.attempt
        trace = f"reasoning: {attempt.reasoning}\nanswer: {attempt.answer}\nfeedback: {case.feedback}"
        return Reflection(f"question: {question}\n{trace}")

    def refusal(self, case: Case, reflection: Reflection) -> str | None:
        """Leave it to the Curator."""
        return None

    def curate(
        self, playbook: Playbook, case: Case, reflection: Reflection, *, budget: int, step: int, steps: int
    ) -> tuple[list[Operation], list[str]]:
        """Ask the Curator for operations."""
        text = self.render(playbook)
        helpful, harmful = (sum(getattr(b, name) for b in playbook.bullets) for name in ("helpful", "harmful"))
        conversation = self.chat.prompts.fill(
            "curator",
            statistics=f"{len(playbook)} lessons, tagged {helpful} times as helpful and {harmful} as harmful",
            tokens=self.chat.recorder.count_tokens(text),
            budget=budget,
            playbook=text,
            step=step,
            steps=steps,
            reflection=reflection.text,
            question=case.sample.question,
            context=case.sample.context,
        )
        [completion] = self._ask("curator", [conversation], [case.sample], step, CuratorAnswer)
        found = None if completion.error is not None else self.chat.read_json("curator", completion)
        if found is None:
            return [], [completion.error or "the Curator's answer is not JSON, or was cut"]
        return parse_operations(found.get("operations", []))

    def rewrite(self, sheet: str, case: Case, reflection: Reflection | None, *, budget: int, step: int) -> str | None:
        """Ask for a new cheatsheet in its tags, as Dynamic Cheatsheet does."""
        conversation = self.chat.prompts.fill(
            "rewrite",
            sheet=sheet,
            budget=budget,
            question=case.sample.question,
            context=case.sample.context,
            answer=case.attempt.answer,
            target=case.target,
            feedback=case.feedback,
            lesson="" if reflection is None else reflection.lesson,
        )
        # The whole budget may be written: the cap shall not be what makes a sheet shrink.
        limit = max(self.max_tokens, budget)
        [completion] = self.chat.ask("curator", [conversation], step=step, max_tokens=limit)
        return tagged_sheet(completion.text)

    def combine(self, contents: Sequence[str], *, step: int) -> str | None:
        """Ask for one lesson in place of several."""
        conversation = self.chat.prompts.fill("merge", contents=contents)
        name = hashlib.sha256("\n".join(contents).encode()).hexdigest()
        [completion] = self.chat.ask(
            "merger", [conversation], step=step, max_tokens=self.max_tokens, temperature=0.3, draw=[name]
        )
        whole = completion.finish_reason == "stop" and completion.text.strip()
        return completion.text.strip() if whole else None

    def _ask(
        self,
        role: str,
        conversations: Sequence[Sequence[Message]],
        samples: Sequence[Sample],
        step: int,
        model: type[BaseModel],
        attempt: int = 0,
    ) -> list[Completion]:
        return self.chat.ask(
            role,
            conversations,
            step=step,
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            draw=[f"{step}/{attempt}/{sample.id}" for sample in samples],
            schema=strict_schema(model) if self.constrained else None,
        )


def strict_schema(model: type[BaseModel]) -> str:
    """Return the JSON Schema of an answer in the form that constrained decoding takes: closed objects, no `oneOf`."""

    def strict(node: Any) -> Any:
        if isinstance(node, list):
            return [strict(item) for item in node]
        if not isinstance(node, dict):
            return node
        kept = {
            "anyOf" if key == "oneOf" else key: strict(item) for key, item in node.items() if key != "discriminator"
        }
        return kept | ({"additionalProperties": False} if kept.get("type") == "object" else {})

    return json.dumps(strict(model.model_json_schema()))


def as_text(value: object) -> str:
    """Return a value that a model was asked for as text: nothing for null, commas between the values of a list."""
    if value is None:
        return ""
    if isinstance(value, list) and not any(isinstance(item, list | dict) for item in value):
        return ", ".join(map(as_text, value))
    return value.strip() if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def tags_of(raw: object) -> dict[str, Tag]:
    """Read the Reflector's tags, leaving out what is malformed; of an id tagged twice the last tag counts."""
    tags: dict[str, Tag] = {}
    for item in raw if isinstance(raw, list) else []:
        if isinstance(item, dict) and isinstance(item.get("id"), str):
            tag = str(item.get("tag")).strip().lower()
            if tag in ("helpful", "harmful", "neutral"):
                tags[item["id"].strip("[] ")] = tag  # type: ignore[assignment]
    return tags


def tagged_sheet(text: str) -> str | None:
    """Return what stands between <cheatsheet> and </cheatsheet>, the last such; None if a tag is missing."""
    _, begin, rest = text.rpartition("<cheatsheet>")
    sheet, end, _ = rest.partition("</cheatsheet>")
    return sheet.strip() if begin and end else None
