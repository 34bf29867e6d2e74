"""ACE: a playbook that grows by one sample after the other (Sec. 3).

One step on a sample: answer it, reflect on the attempt and answer again until it is right, curate, apply the delta,
refine. Every model call goes through the roles; what is in this file is the paper's loop and plain code.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from ace import playbook as books
from ace.operations import Operation, apply
from ace.options import check_positive
from ace.playbook import APPWORLD_SECTIONS, FINANCE_SECTIONS, Playbook
from ace.refine import Embedder, deduplicate, ngram_embedder, prune
from ace.reflection import Outcome, check_feedback, judge, reflect
from ace.roles import Attempt, Roles, is_right
from ace.tasks import Feedback, Sample

Refinement = Literal["never", "lazy", "proactive"]
SECTIONS = {"finance": FINANCE_SECTIONS, "appworld": APPWORLD_SECTIONS}


@dataclass
class StepReport:
    """What a step did, for the run's log.

    Attributes:
        samples: ids of the samples that were learned from.
        before: whether each was answered rightly before.
        after: likewise after the step; empty where that was not looked at.
        rounds: reflections on each.
        operations: what was applied, with the id of each bullet.
        refused: one sentence for each operation that was not.
        merged: ids of similar bullets that became one.
        dropped: ids of bullets that no longer fitted the budget.
    """

    samples: list[str]
    before: list[bool] = field(default_factory=list)
    after: list[bool] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    operations: list[dict[str, Any]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    merged: list[list[str]] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)


class Learner(ABC):
    """A method: what it has learned goes into the context of the next question."""

    roles: Roles
    learned: list[tuple[str, ...]]  # facts of the samples that lessons were taken from

    @abstractmethod
    def answer(self, samples: Sequence[Sample], *, step: int) -> list[Attempt]:
        """Answer samples for a score; nothing is learned."""

    @abstractmethod
    def learn(self, samples: Sequence[Sample], *, step: int, steps: int) -> StepReport:
        """Learn from samples, at a step of so many."""

    @abstractmethod
    def text(self) -> str:
        """Return what it puts into the context of a question."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return what it has learned as plain containers, for a checkpoint."""

    @abstractmethod
    def load_state(self, state: dict[str, Any]) -> None:
        """Take over what `state` returned."""


class ACE(Learner):
    """The paper's method.

    Args:
        roles: Generator, Reflector and Curator.
        sections: of an empty playbook: `finance` or `appworld`.
        playbook: a file to start from; an empty playbook when None.
        feedback: what the Reflector is told: `label`, `match_bit`, `execution` or `none`.
        rounds: R, most reflections on a sample.
        reflector: without, the Curator sees the raw trace (ablation).
        curator_frequency: steps from one curation to the next.
        budget: most tokens of the playbook; enforced.
        refinement: merge similar bullets `never`, when the budget is exceeded (`lazy`) or at every curation
            (`proactive`).
        similarity: least cosine of similar bullets.
        embedder: of bullets; by character n-grams when None.
        rewrite_merged: have the model write what stands for similar bullets; the first of them stands otherwise.
        retrieve: show only so many bullets, those most similar to the question (ablation); all when None.
        look_after: answer each sample again at the end of its step, which is diagnostic.

    Attributes:
        playbook: as it is now.

    Raises:
        ValueError: if an option is out of range.
        FileNotFoundError: if there is no such playbook.
    """

    def __init__(
        self,
        roles: Roles,
        sections: Literal["finance", "appworld"] = "finance",
        playbook: Path | None = None,
        feedback: Feedback = "label",
        rounds: int = 3,
        reflector: bool = True,
        curator_frequency: int = 1,
        budget: int = 80_000,
        refinement: Refinement = "lazy",
        similarity: float = 0.90,
        embedder: Embedder | None = None,
        rewrite_merged: bool = False,
        retrieve: int | None = None,
        look_after: bool = True,
    ) -> None:
        check_feedback(feedback, roles)
        if sections not in SECTIONS:
            raise ValueError(f"sections must be one of {', '.join(SECTIONS)}, got {sections!r}")
        if refinement not in get_args(Refinement):
            raise ValueError(f"refinement must be one of {', '.join(get_args(Refinement))}, got {refinement!r}")
        check_positive(
            optional=True, rounds=rounds, curator_frequency=curator_frequency, budget=budget, retrieve=retrieve
        )
        if not similarity > 0:
            raise ValueError(f"similarity must be above 0, got {similarity}")
        self.roles, self.feedback, self.rounds, self.reflector = roles, feedback, rounds, reflector
        self.curator_frequency, self.budget, self.refinement = curator_frequency, budget, refinement
        self.similarity, self.embed = similarity, embedder or ngram_embedder
        self.rewrite_merged, self.retrieve, self.look_after = rewrite_merged, retrieve, look_after
        self.playbook = Playbook.empty(SECTIONS[sections]) if playbook is None else books.load(playbook)
        self.learned: list[tuple[str, ...]] = []
        headers = self.tokens(self.playbook.with_bullets({}))
        if headers > budget:
            raise ValueError(f"budget is {budget}, but the playbook has {headers} tokens without any bullet")

    def text(self) -> str:
        """Return the playbook as the Generator sees it."""
        return self.roles.render(self.playbook)

    def tokens(self, playbook: Playbook) -> int:
        """Count the tokens of a playbook as the Generator sees it."""
        text = self.roles.render(playbook)
        return self.roles.chat.recorder.count_tokens(text) if text else 0

    def shown(self, samples: Sequence[Sample]) -> list[Playbook]:
        """Return the playbook for each sample: whole, or what is retrieved for its question."""
        if self.retrieve is None or len(self.playbook) <= self.retrieve:
            return [self.playbook] * len(samples)
        bullets = self.playbook.bullets
        embedded = self.embed([*(bullet.content for bullet in bullets), *(sample.question for sample in samples)])
        scores = embedded[len(bullets) :] @ embedded[: len(bullets)].T
        nearest = (-scores).argsort(axis=1, kind="stable")[:, : self.retrieve]
        chosen = [{bullets[i].id: bullets[i] for i in sorted(row)} for row in nearest]
        return [self.playbook.with_bullets(some) for some in chosen]

    def contexts(self, samples: Sequence[Sample]) -> list[str]:
        """Return the playbook for each sample as the Generator sees it."""
        return [self.roles.render(playbook) for playbook in self.shown(samples)]

    def answer(self, samples: Sequence[Sample], *, step: int) -> list[Attempt]:
        """Answer samples with the playbook as it is."""
        return self.roles.answer(samples, self.contexts(samples), step=step, role="evaluation")

    def learn(self, samples: Sequence[Sample], *, step: int, steps: int) -> StepReport:
        """Make one training step (Sec. 3): the deltas of several samples are made side by side and merged."""
        report = StepReport([sample.id for sample in samples])
        shown = self.shown(samples)
        contexts = [self.roles.render(playbook) for playbook in shown]
        attempts = self.roles.answer(samples, contexts, step=step)
        cases = [
            case
            for sample, attempt, playbook in zip(samples, attempts, shown, strict=True)
            for case in judge(self.roles, [sample], [attempt], self.feedback, playbook)
        ]
        report.before = self._right(samples, attempts)
        if self.reflector:
            outcomes = reflect(self.roles, cases, contexts, kind=self.feedback, rounds=self.rounds, step=step)
        else:
            outcomes = [Outcome(case, self.roles.without_reflector(case)) for case in cases]
        report.rounds = [outcome.rounds for outcome in outcomes]
        for tags in (tags for outcome in outcomes for tags in outcome.tags):
            self.playbook = self.playbook.tagged(tags)
        if step % self.curator_frequency == 0:
            self.curate(outcomes, report, step, steps)
        self.refine(report, step)
        if self.look_after:
            report.after = self._right(samples, self.roles.answer(samples, self.contexts(samples), step=step))
        return report

    def curate(self, outcomes: Sequence[Outcome], report: StepReport, step: int, steps: int) -> None:
        """Merge the Curator's deltas of several samples into the playbook.

        Args:
            outcomes: the samples' last attempts and reflections.
            report: is filled in.
            step: of training.
            steps: in all.
        """
        delta: list[tuple[Operation, Sample]] = []
        for outcome in outcomes:
            sample, reflection = outcome.case.sample, outcome.reflection
            refusal = (
                "the reflection cannot be read" if reflection is None else self.roles.refusal(outcome.case, reflection)
            )
            if reflection is None or refusal is not None:
                report.refused.append(f"{sample.id}: {refusal}")
                continue
            operations, rejected = self.roles.curate(
                self.playbook, outcome.case, reflection, budget=self.budget, step=step, steps=steps
            )
            delta += [(operation, sample) for operation in operations]
            report.refused += [f"{sample.id}: {reason}" for reason in rejected]
        self.playbook, applied = apply(self.playbook, [operation for operation, _ in delta], step)
        report.operations = [{**operation.model_dump(), "bullet": name} for operation, name in applied.done]
        report.refused += [reason for _, reason in applied.skipped]
        done = {id(operation) for operation, _ in applied.done}
        for operation, sample in delta:
            if id(operation) in done and sample.facts and sample.facts not in self.learned:
                self.learned.append(sample.facts)

    def refine(self, report: StepReport, step: int) -> None:
        """Merge similar bullets, and prune what is over the budget (Sec. 3.2, grow and refine).

        The budget holds after every step: counters make a playbook longer too.

        Args:
            report: is filled in.
            step: of training.
        """
        long = self.tokens(self.playbook) > self.budget
        curated = step % self.curator_frequency == 0
        if (self.refinement == "proactive" and curated) or (self.refinement == "lazy" and long):
            combine = (lambda contents: self.roles.combine(contents, step=step)) if self.rewrite_merged else None
            self.playbook, merged = deduplicate(self.playbook, self.embed, self.similarity, combine)
            report.merged = [[bullet.id for bullet in group.group] for group in merged]
        if long or report.merged:  # what the model writes in place of several bullets can be longer than they were
            self.playbook, dropped = prune(self.playbook, self.budget, self.tokens)
            report.dropped = [bullet.id for bullet in dropped]

    def state(self) -> dict[str, Any]:
        """Return the playbook, and the facts that were learned."""
        return {"playbook": self.playbook.to_json(), "learned": [list(facts) for facts in self.learned]}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take both over."""
        self.playbook = Playbook.from_json(state["playbook"])
        self.learned = [tuple(facts) for facts in state["learned"]]

    def _right(self, samples: Sequence[Sample], attempts: Sequence[Attempt]) -> list[bool]:
        """Say which attempts are right, for the log alone: the roles may not be told."""
        task = self.roles.chat.task
        return [is_right(task, sample, attempt) for sample, attempt in zip(samples, attempts, strict=True)]
