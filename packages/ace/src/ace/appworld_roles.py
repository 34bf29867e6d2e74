"""The roles for AppWorld: the Generator acts in a world, Reflector and Curator are those of the paper (Sec. 4).

An attempt is a ReAct episode. The world's unit tests decide whether it passed; no role sees their verdict unless the
feedback reveals it. A sample names its task alone, so the roles are shown the instruction that its world gave.

AppWorld runs a world within the process, with the clock and the databases set for it, and can run worlds side by side
only in processes of their own. So episodes follow one another, whatever the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from ace.appworld import Episode, World, open_world, opening, run_episode, unit_tests
from ace.completion import Completion, Message
from ace.operations import Operation
from ace.options import check_positive
from ace.playbook import Order, Playbook
from ace.roles import Attempt, Case, Chat, JsonRoles, Reflection
from ace.tasks import Sample


@dataclass(frozen=True)
class EpisodeAttempt(Attempt):
    """An attempt at a task of AppWorld.

    Its `answer` is how the episode ended, its `reasoning` what the model wrote turn by turn, and its `execution` what
    the environment printed turn by turn.

    Attributes:
        instruction: what the task asks for.
        report: of the unit tests; shown only where the feedback is `label`.
    """

    instruction: str = ""
    report: str = ""


def attempt_of(episode: Episode, world: World) -> EpisodeAttempt:
    """Run the unit tests after an episode.

    Args:
        episode: that has ended.
        world: its, still open.

    Returns:
        The attempt; one whose model could not be asked has failed, whatever the tests say.
    """
    passed, report = unit_tests(world)
    return EpisodeAttempt(
        answer=episode.ending,
        reasoning=episode.actions,
        error=episode.error,
        execution=episode.feedback_text,
        passed=passed and episode.error is None,
        instruction=str(world.task.instruction),
        report=report,
    )


def told(case: Case) -> Case:
    """Replace a task's id by its instruction, and say what is revealed of the unit tests.

    A label of AppWorld is the report of the unit tests, and comes with what the environment printed; `match_bit` is
    their verdict. Under `execution` and `none` a case stays without both.
    """
    attempt = case.attempt
    if not isinstance(attempt, EpisodeAttempt):
        return case
    sample = replace(case.sample, question=attempt.instruction)
    if case.right is None:
        return replace(case, sample=sample)
    feedback = f"The attempt is {'right' if case.right else 'wrong'}."
    if case.target is not None:
        feedback += f"\nThe environment printed:\n{attempt.execution}\nThe unit tests reported:\n{attempt.report}"
    return replace(case, sample=sample, feedback=feedback, target=None)


class AppWorldRoles(JsonRoles):
    """`JsonRoles` whose Generator acts in a world of AppWorld.

    Args:
        chat: asks the model.
        world: from the id of a task and the name of an experiment to the task's world, as a context manager;
            AppWorld's own by default.
        experiment: names the folder that AppWorld writes to; a later episode of a task overwrites the earlier one's
            output.
        max_turns: most turns of an episode.
        max_output: characters of an output that the model is shown.
        order: see `JsonRoles`.
        counters: see `JsonRoles`.
        max_tokens: most tokens of a turn, and of an answer of the other roles.
        temperature: see `JsonRoles`.
        constrained: see `JsonRoles`; the turns of an episode are free.

    Raises:
        ValueError: if an option is out of range.
    """

    acts = True

    def __init__(
        self,
        chat: Chat,
        world: Callable[[str, str], AbstractContextManager[World]] = open_world,
        experiment: str = "ace",
        max_turns: int = 50,
        max_output: int = 20_000,
        order: Order = "sections",
        counters: bool = True,
        max_tokens: int = 4096,
        temperature: float = 0.0,
        constrained: bool = False,
    ) -> None:
        super().__init__(chat, order, counters, max_tokens, temperature, constrained)
        check_positive(max_turns=max_turns, max_output=max_output)
        self.world, self.experiment = world, experiment
        self.max_turns, self.max_output = max_turns, max_output

    def examples(self, samples: Sequence[Sample]) -> str:
        """Refuse: a task of AppWorld has no answer that could be shown.

        Raises:
            ValueError: always.
        """
        raise ValueError("ace.InContext needs samples with answers, but those of appworld are tasks without any")

    def reflect(self, cases: Sequence[Case], *, step: int, attempt: int) -> list[Reflection | None]:
        """Reflect on episodes."""
        return super().reflect([told(case) for case in cases], step=step, attempt=attempt)

    def without_reflector(self, case: Case) -> Reflection:
        """Return the trace of an episode as it is."""
        return super().without_reflector(told(case))

    def curate(
        self, playbook: Playbook, case: Case, reflection: Reflection, *, budget: int, step: int, steps: int
    ) -> tuple[list[Operation], list[str]]:
        """Ask the Curator for operations."""
        return super().curate(playbook, told(case), reflection, budget=budget, step=step, steps=steps)

    def rewrite(self, sheet: str, case: Case, reflection: Reflection | None, *, budget: int, step: int) -> str | None:
        """Ask for a new cheatsheet."""
        return super().rewrite(sheet, told(case), reflection, budget=budget, step=step)

    def _generate(
        self, samples: Sequence[Sample], contexts: Sequence[str], reflections: Sequence[str], step: int, role: str
    ) -> list[Attempt]:
        return [
            self._act(sample, context, reflection, step, role)
            for sample, context, reflection in zip(samples, contexts, reflections, strict=True)
        ]

    def _act(self, sample: Sample, context: str, reflection: str, step: int, role: str) -> Attempt:
        def write(messages: Sequence[Message]) -> Completion:
            [completion] = self.chat.ask(
                role,
                [messages],
                step=step,
                max_tokens=self.max_tokens,
                temperature=self.temperature,
                draw=[f"{step}/{sample.id}/{len(messages)}"],
            )
            return completion

        with self.world(sample.id, self.experiment) as world:
            start = opening(self.chat.prompts, world, context, reflection)
            return attempt_of(run_episode(world, write, start, self.max_turns, self.max_output), world)
