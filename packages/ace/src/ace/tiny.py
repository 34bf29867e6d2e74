"""Roles for a model of a hundred million parameters, which can write a sentence and no JSON (section 7).

The Reflector writes a lesson from examples. A lesson is accepted if the question is answered rightly with this lesson
alone in the context: the paper's loop of reflecting and generating again. The Curator is code: it adds what was
accepted. Which bullets an answer used is found by comparing words, since the model cannot say.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ace.completion import Completion
from ace.operations import Add, Operation
from ace.options import check_positive, check_temperature
from ace.playbook import Playbook, Tag, by_number
from ace.roles import Attempt, Case, Chat, Reflection, Roles, tagged_sheet
from ace.tasks import Sample

LEAST_OVERLAP = 0.6  # of an answer's words and a bullet's, where the answer counts as relying on the bullet


class TinyRoles(Roles):
    """Roles that answer in a sentence.

    Args:
        chat: asks the model.
        section: where lessons are added.
        verify: accept a lesson only if it mends the answer, or says what is right where the answer was right already.
        from_right: write lessons after right answers too, as the paper's Curator does.
        answer_tokens: most tokens of an answer.
        lesson_tokens: most tokens of a lesson.
        temperature: of the Reflector after its first round, which takes the most probable lesson.
        require_tags: keep the old cheatsheet where the new one is not in its tags (the rewriting baseline).

    Raises:
        ValueError: if an option is out of range.
    """

    needs_label = True
    retries_alone = True

    def __init__(
        self,
        chat: Chat,
        section: str = "CONTEXT CLUES & INDICATORS",
        verify: bool = True,
        from_right: bool = True,
        answer_tokens: int = 20,
        lesson_tokens: int = 40,
        temperature: float = 0.7,
        require_tags: bool = True,
    ) -> None:
        check_positive(answer_tokens=answer_tokens, lesson_tokens=lesson_tokens)
        check_temperature(temperature)
        self.chat, self.section, self.verify, self.from_right = chat, section, verify, from_right
        self.answer_tokens, self.lesson_tokens, self.temperature = answer_tokens, lesson_tokens, temperature
        self.require_tags = require_tags

    def render(self, playbook: Playbook) -> str:
        """Write the contents as a list, in the order of the ids: it grows at its end."""
        return "\n".join(f"- {' '.join(b.content.split())}" for b in sorted(playbook.bullets, key=by_number))

    def used(self, attempt: Attempt, playbook: Playbook) -> tuple[str, ...]:
        """List the bullets that an answer repeats: of the words of both, most are common to both."""
        words = words_of(attempt.answer)
        shared = {bullet.id: overlap(words, words_of(bullet.content)) for bullet in playbook.bullets}
        return tuple(name for name, share in shared.items() if share >= LEAST_OVERLAP)

    def examples(self, samples: Sequence[Sample]) -> str:
        """Write questions with their answers, a line each."""
        return "\n".join(f"- {sample.question} {sample.target}" for sample in samples)

    def answer(
        self, samples: Sequence[Sample], contexts: Sequence[str], *, step: int, role: str = "generator"
    ) -> list[Attempt]:
        """Answer samples with a context each."""
        conversations = [
            self.chat.prompts.fill(
                "tiny_generator",
                instruction=self.chat.task.instruction,
                playbook=context,
                question=sample.question,
                context=sample.context,
            )
            for sample, context in zip(samples, contexts, strict=True)
        ]
        completions = self.chat.ask(role, conversations, step=step, max_tokens=self.answer_tokens)
        return [
            Attempt(c.text.strip(), error=c.error or (None if c.text.strip() else "no answer")) for c in completions
        ]

    def answer_again(
        self, samples: Sequence[Sample], contexts: Sequence[str], reflections: Sequence[Reflection], *, step: int
    ) -> list[Attempt]:
        """Answer samples with the new lesson alone."""
        return self.answer(samples, [f"- {reflection.lesson}" for reflection in reflections], step=step)

    def reflect(self, cases: Sequence[Case], *, step: int, attempt: int) -> list[Reflection | None]:
        """Write a lesson for each answer, and tag the bullets whose words it has."""
        taught = [case for case in cases if self.from_right or case.right is not True]
        conversations = [
            self.chat.prompts.fill("tiny_reflector", question=case.sample.question, target=case.target or "(unknown)")
            for case in taught
        ]
        completions = self.chat.ask(
            "reflector",
            conversations,
            step=step,
            max_tokens=self.lesson_tokens,
            temperature=self.temperature if attempt else 0.0,
            draw=[f"{attempt}/{case.sample.id}" for case in taught],
        )
        lessons = {case.sample.id: first_line(completion) for case, completion in zip(taught, completions, strict=True)}
        reflections: list[Reflection | None] = []
        for case in cases:
            tag: Tag = "neutral" if case.right is None else ("helpful" if case.right else "harmful")
            tags = dict.fromkeys(case.attempt.bullet_ids, tag)
            lesson = lessons.get(case.sample.id, "")
            missing = case.right is not True and not lesson
            reflections.append(None if missing else Reflection(lesson, tags, lesson))
        return reflections

    def without_reflector(self, case: Case) -> Reflection:
        """Return question and right answer as they are."""
        trace = f"{case.sample.question} {case.target if case.target is not None else case.feedback}"
        return Reflection(trace, lesson=trace)

    def refusal(self, case: Case, reflection: Reflection) -> str | None:
        """Refuse a lesson that does not help: with it the answer is still wrong, or it is no right answer itself."""
        if not reflection.lesson or not self.verify:
            return None
        if case.right is not True:
            return f"the lesson does not mend the answer: {reflection.lesson}"
        if not self.chat.task.correct(case.sample, reflection.lesson):
            return f"the lesson does not say what is right: {reflection.lesson}"
        return None

    def curate(
        self, playbook: Playbook, case: Case, reflection: Reflection, *, budget: int, step: int, steps: int
    ) -> tuple[list[Operation], list[str]]:
        """Add the lesson, if there is one."""
        if not reflection.lesson:
            return [], []
        return [Add(section=self.section, content=reflection.lesson)], []

    def rewrite(self, sheet: str, case: Case, reflection: Reflection | None, *, budget: int, step: int) -> str | None:
        """Ask for the whole list again, with the new fact."""
        if reflection is None or not reflection.lesson:
            return None
        conversation = self.chat.prompts.fill("tiny_rewrite", sheet=sheet, lesson=reflection.lesson)
        [completion] = self.chat.ask("curator", [conversation], step=step, max_tokens=budget)
        whole = tagged_sheet(completion.text)
        if whole is None and not self.require_tags and completion.error is None:
            return completion.text.replace("<cheatsheet>", "").replace("</cheatsheet>", "").strip() or None
        return whole

    def combine(self, contents: Sequence[str], *, step: int) -> str | None:
        """Keep the first: the model would drop what the others add."""
        return contents[0]


def first_line(completion: Completion) -> str:
    """Return the first line of an answer that was not cut within it; empty otherwise."""
    line, newline, _ = completion.text.strip().partition("\n")
    cut = completion.finish_reason != "stop" and not newline
    return "" if cut else line.strip()


def words_of(text: str) -> set[str]:
    """Return the words of a text without case, with the full stop of a domain."""
    return set(re.findall(r"\.?\w+", text.casefold()))


def overlap(a: set[str], b: set[str]) -> float:
    """Return how many words two sets have in common, as a share of those in either."""
    return len(a & b) / max(len(a | b), 1)
