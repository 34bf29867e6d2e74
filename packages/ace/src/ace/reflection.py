"""The loop of reflecting and answering again (Sec. 3), which ACE and the rewriting baseline share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import get_args

from ace.playbook import Playbook, Tag
from ace.roles import Attempt, Case, Reflection, Roles, is_right
from ace.tasks import Feedback, Sample, feedback

NOTHING = Playbook.empty(())


@dataclass
class Outcome:
    """What came of reflecting on an attempt.

    Attributes:
        case: the last attempt.
        reflection: the last one that could be read; None if there is none.
        tags: of bullets, a mapping for each reflection.
        rounds: reflections.
    """

    case: Case
    reflection: Reflection | None = None
    tags: list[dict[str, Tag]] = field(default_factory=list)
    rounds: int = 0


def check_feedback(kind: Feedback, roles: Roles) -> None:
    """Refuse a kind of feedback that is unknown, or that the roles cannot work with."""
    if kind not in get_args(Feedback):
        raise ValueError(f"feedback must be one of {', '.join(get_args(Feedback))}, got {kind!r}")
    if kind == "execution" and not roles.acts:
        raise ValueError(f"feedback execution is what an environment printed, but {type(roles).__name__} act in none")
    if roles.needs_label and kind != "label":
        raise ValueError(f"{type(roles).__name__} reflect with the right answer: they need feedback label, got {kind}")


def judge(
    roles: Roles, samples: Sequence[Sample], attempts: Sequence[Attempt], kind: Feedback, playbook: Playbook
) -> list[Case]:
    """Say of attempts what a kind of feedback reveals, and which bullets they used.

    Args:
        roles: whose attempts they are.
        samples: that were asked.
        attempts: one at each.
        kind: of the feedback.
        playbook: that they were shown.
    """
    task, known = roles.chat.task, playbook.by_id
    cases = []
    for sample, attempt in zip(samples, attempts, strict=True):
        used = roles.used(attempt, playbook)
        case = Case(
            sample,
            replace(attempt, bullet_ids=used),
            feedback(task, sample, attempt.answer, kind, attempt.execution, attempt.passed),
            target=sample.target if kind == "label" else None,
            right=is_right(task, sample, attempt) if kind in ("label", "match_bit") else None,
            bullets="\n".join(f"[{name}] {known[name].content}" for name in used),
            shown=playbook,
        )
        cases.append(case)
    return cases


def reflect(
    roles: Roles,
    cases: Sequence[Case],
    contexts: Sequence[str],
    *,
    kind: Feedback,
    rounds: int,
    step: int,
) -> list[Outcome]:
    """Reflect on attempts and answer again, at most R times and until the answer is right.

    An answer that is right at once is reflected on once, to tag its bullets; so is one of which nobody says whether it
    is right.

    Args:
        roles: Generator and Reflector.
        cases: the first attempts.
        contexts: what each was shown.
        kind: of the feedback.
        rounds: R, at least 1.
        step: of training.

    Returns:
        What came of each.
    """
    outcomes = [Outcome(case) for case in cases]
    going = list(range(len(cases)))
    for attempt in range(rounds):
        found = roles.reflect([outcomes[i].case for i in going], step=step, attempt=attempt)
        again: list[int] = []
        reflections: list[Reflection] = []
        for i, reflection in zip(going, found, strict=True):
            outcome = outcomes[i]
            outcome.rounds += 1
            if reflection is not None:
                outcome.reflection = reflection
                outcome.tags.append(dict(reflection.tags))
                if outcome.case.right is False:
                    again.append(i)
                    reflections.append(reflection)
        if again:
            samples = [cases[i].sample for i in again]
            attempts = roles.answer_again(samples, [contexts[i] for i in again], reflections, step=step)
            for i, attempted in zip(again, attempts, strict=True):
                shown = NOTHING if roles.retries_alone else cases[i].shown
                [outcomes[i].case] = judge(roles, [cases[i].sample], [attempted], kind, shown)
        going = [i for i in going if outcomes[i].case.right is False]
        if not going:
            break
    return outcomes
