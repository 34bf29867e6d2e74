"""Models that are a function: for tests of everything around a model, without one.

What they show is that the plumbing holds (Sec. 7 of the specification); their scores say nothing about the method.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence

from ace.completion import Backend, Completion, FinishReason, Request

UNKNOWN = "I do not know."


def count_words(text: str) -> int:
    """Count the words of a text, which are the tokens of these models."""
    return len(text.split())


class ScriptedBackend(Backend):
    """A model whose answers a function gives.

    A text that it returns is cut as a model's would be: before the first stop string, and after `max_tokens` words. A
    completion is handed on as it is.

    Args:
        answer: the function; called from one thread at a time.
        name: of the backend.

    Attributes:
        calls: how many requests were answered.
    """

    def __init__(self, answer: Callable[[Request], str | Completion], name: str = "scripted") -> None:
        self.answer = answer
        self.name = name
        self.calls = 0
        self._lock = threading.RLock()

    def complete(self, requests: Sequence[Request]) -> list[Completion]:
        """Answer requests, in their order."""
        return [self._complete(request) for request in requests]

    def count_tokens(self, text: str) -> int:
        """Count the words."""
        return count_words(text)

    def _complete(self, request: Request) -> Completion:
        with self._lock:
            self.calls += 1
            answer = self.answer(request)
        if isinstance(answer, Completion):
            return answer
        text, reason = _cut(answer, request)
        prompt_tokens = sum(count_words(message.content) for message in request.messages)
        return Completion(text, prompt_tokens, count_words(text), reason)


class LessonBackend(ScriptedBackend):
    """A model that can answer a question only if its prompt holds the fact: a learner without any knowledge.

    Asked one of the known questions (it is in the last message; of several the last one counts), it answers with the
    fact if any message holds that, else that it does not know. Asked to reflect on such a question, it writes the fact
    as the lesson. So online accuracy with disjoint facts is 0, and 1/2 with each asked twice (Sec. 10, item 7).

    Args:
        answers: question -> sentence with the fact.
        reflects: says of a request that it asks for a lesson; None if no request does.
        name: of the backend.
    """

    def __init__(
        self,
        answers: Mapping[str, str],
        reflects: Callable[[Request], bool] | None = None,
        name: str = "lessons",
    ) -> None:
        super().__init__(self._say, name)
        self.answers = dict(answers)
        self.reflects = reflects

    def _say(self, request: Request) -> str:
        asked = request.messages[-1].content if request.messages else ""
        ends = {question: asked.rfind(question) + len(question) for question in self.answers if question in asked}
        if not ends:
            return UNKNOWN
        fact = self.answers[max(ends, key=lambda question: (ends[question], len(question)))]
        if self.reflects is not None and self.reflects(request):
            return fact
        return fact if any(fact in message.content for message in request.messages) else UNKNOWN


def _cut(text: str, request: Request) -> tuple[str, FinishReason]:
    """Cut a text before the first stop string, then after as many words as the request allows."""
    for stop in request.stop:
        text = text.partition(stop)[0]
    words = list(re.finditer(r"\S+", text))
    if len(words) <= request.max_tokens:
        return text, "stop"
    return text[: words[request.max_tokens - 1].end() if request.max_tokens > 0 else 0], "length"
