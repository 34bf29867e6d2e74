"""What ACE is compared with (Sec. 4), behind its interface: what each puts into the context of a question.

- `NoContext`: the model alone.
- `InContext`: labelled demonstrations (ICL), up to a budget.
- `Rewrite`: a cheatsheet that the model writes anew after every sample (Dynamic Cheatsheet, cumulative).
- `FullHistory`: every attempt with its feedback, the oldest dropped beyond the budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ace.adaptation import Learner, StepReport
from ace.options import check_positive
from ace.reflection import NOTHING, Outcome, check_feedback, judge, reflect
from ace.roles import Attempt, Roles, is_right
from ace.tasks import Feedback, Sample


class NoContext(Learner):
    """The model alone.

    Args:
        roles: of which only the Generator is asked.
    """

    def __init__(self, roles: Roles) -> None:
        self.roles = roles
        self.learned: list[tuple[str, ...]] = []

    def text(self) -> str:
        """Return nothing."""
        return ""

    def answer(self, samples: Sequence[Sample], *, step: int) -> list[Attempt]:
        """Answer samples."""
        return self.roles.answer(samples, [self.text()] * len(samples), step=step, role="evaluation")

    def learn(self, samples: Sequence[Sample], *, step: int, steps: int) -> StepReport:
        """Learn nothing."""
        return StepReport([sample.id for sample in samples])

    def state(self) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take nothing over."""


class InContext(NoContext):
    """Labelled demonstrations, those that fit the budget.

    Args:
        roles: of which only the Generator is asked.
        budget: most tokens of the demonstrations.

    Raises:
        ValueError: if the budget is not positive.
    """

    def __init__(self, roles: Roles, budget: int = 80_000) -> None:
        super().__init__(roles)
        check_positive(budget=budget)
        self.budget = budget
        self.shown: list[Sample] = []

    def text(self) -> str:
        """Return the demonstrations."""
        return self.roles.examples(self.shown)

    def learn(self, samples: Sequence[Sample], *, step: int, steps: int) -> StepReport:
        """Take samples as demonstrations, each once, while they fit."""
        report = super().learn(samples, step=step, steps=steps)
        known = {sample.id for sample in self.shown}
        for sample in samples:
            if sample.id in known:
                continue
            if self.roles.chat.recorder.count_tokens(self.roles.examples([*self.shown, sample])) > self.budget:
                report.refused.append(f"{sample.id}: the budget is full")
                continue
            self.shown.append(sample)
            if sample.facts:
                self.learned.append(sample.facts)
        return report

    def state(self) -> dict[str, Any]:
        """Return the demonstrations."""
        return {"shown": [asdict(sample) | {"facts": list(sample.facts)} for sample in self.shown]}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take them over."""
        self.shown = [Sample(**{**sample, "facts": tuple(sample["facts"])}) for sample in state["shown"]]
        self.learned = [sample.facts for sample in self.shown if sample.facts]


class Rewrite(NoContext):
    """A cheatsheet that the model writes anew after every sample.

    With `reflector`, the same lessons go into the prompt as into ACE's playbook, and one that ACE would refuse is not
    shown: the two differ in nothing but how a lesson is kept.

    Args:
        roles: which write the cheatsheet too.
        feedback: what is told of an attempt.
        budget: most tokens of a cheatsheet; the old one is kept where the new one is longer.
        reflector: reflect first; the model sees the attempt and its feedback alone otherwise, as in Dynamic Cheatsheet.
        rounds: R, most reflections on a sample.

    Attributes:
        sheet: as it is now.

    Raises:
        ValueError: if an option is out of range.
    """

    def __init__(
        self, roles: Roles, feedback: Feedback = "label", budget: int = 2048, reflector: bool = True, rounds: int = 3
    ) -> None:
        super().__init__(roles)
        check_feedback(feedback, roles)
        check_positive(budget=budget, rounds=rounds)
        self.budget, self.rounds = budget, rounds
        self.feedback, self.reflector = feedback, reflector
        self.sheet = ""

    def text(self) -> str:
        """Return the cheatsheet."""
        return self.sheet

    def learn(self, samples: Sequence[Sample], *, step: int, steps: int) -> StepReport:
        """Write the cheatsheet anew after each sample."""
        report = super().learn(samples, step=step, steps=steps)
        for sample in samples:
            [attempt] = self.roles.answer([sample], [self.sheet], step=step)
            [case] = judge(self.roles, [sample], [attempt], self.feedback, NOTHING)
            report.before.append(is_right(self.roles.chat.task, sample, attempt))
            if self.reflector:
                [outcome] = reflect(
                    self.roles,
                    [case],
                    [self.sheet],
                    kind=self.feedback,
                    rounds=self.rounds,
                    step=step,
                )
            else:
                outcome = Outcome(case, self.roles.without_reflector(case))
            report.rounds.append(outcome.rounds)
            if outcome.reflection is not None:
                refusal = self.roles.refusal(outcome.case, outcome.reflection)
                if refusal is not None:
                    report.refused.append(f"{sample.id}: {refusal}")
                    continue
            elif self.reflector:
                report.refused.append(f"{sample.id}: the reflection cannot be read")
            taught = outcome.reflection is not None and outcome.reflection.lesson
            if taught and sample.facts and sample.facts not in self.learned:
                self.learned.append(sample.facts)
            sheet = self.roles.rewrite(self.sheet, outcome.case, outcome.reflection, budget=self.budget, step=step)
            if sheet is not None and self.roles.chat.recorder.count_tokens(sheet) > self.budget:
                report.refused.append(f"{sample.id}: the new cheatsheet is longer than the budget")
            elif sheet is not None:
                self.sheet = sheet
        return report

    def state(self) -> dict[str, Any]:
        """Return the cheatsheet, and the facts that were learned."""
        return {"sheet": self.sheet, "learned": [list(facts) for facts in self.learned]}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take both over."""
        self.sheet = state["sheet"]
        self.learned = [tuple(facts) for facts in state["learned"]]


class FullHistory(NoContext):
    """Every attempt with its feedback, one after the other.

    Args:
        roles: of which only the Generator is asked.
        feedback: what is told of an attempt.
        budget: most tokens; the oldest attempts are dropped beyond.

    Attributes:
        history: as text, an entry for each attempt.

    Raises:
        ValueError: if an option is out of range.
    """

    def __init__(self, roles: Roles, feedback: Feedback = "label", budget: int = 80_000) -> None:
        super().__init__(roles)
        check_feedback(feedback, roles)
        check_positive(budget=budget)
        self.feedback, self.budget = feedback, budget
        self.history: list[str] = []

    def text(self) -> str:
        """Return the history."""
        return "\n".join(self.history)

    def learn(self, samples: Sequence[Sample], *, step: int, steps: int) -> StepReport:
        """Append attempts and their feedback."""
        report = super().learn(samples, step=step, steps=steps)
        attempts = self.roles.answer(samples, [self.text()] * len(samples), step=step)
        for case in judge(self.roles, samples, attempts, self.feedback, NOTHING):
            report.before.append(is_right(self.roles.chat.task, case.sample, case.attempt))
            self.history.append(self.roles.without_reflector(case).text)
            if case.sample.facts and case.sample.facts not in self.learned:
                self.learned.append(case.sample.facts)
        while self.history and self.roles.chat.recorder.count_tokens(self.text()) > self.budget:
            del self.history[0]
        return report

    def state(self) -> dict[str, Any]:
        """Return the history, and the facts that were learned."""
        return {"history": list(self.history), "learned": [list(facts) for facts in self.learned]}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take both over."""
        self.history = list(state["history"])
        self.learned = [tuple(facts) for facts in state["learned"]]
