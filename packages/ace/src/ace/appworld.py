"""AppWorld, the paper's agent benchmark: a ReAct episode in its sandbox, and its two metrics (section 5).

The package `appworld` and its data, which it downloads itself, are the user's to install; anything with the methods of
`World` will do. The code that a model writes runs in AppWorld's own sandbox and nowhere else. A sample is the id of a
task: what the task says is known once its world is open. `ace.appworld_roles` has the roles for such samples.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, Protocol, cast, get_args

from ace.completion import Completion, Message
from ace.options import check_positive
from ace.prompts import Prompts
from ace.tasks import Sample

Split = Literal["train", "dev", "test_normal", "test_challenge"]

# A model that was stopped at its token limit has not closed the block.
BLOCK = re.compile(r"```(?:python|py)\s*\n(.*?)(?:```|\Z)", re.DOTALL)
PERSON = ("first_name", "last_name", "email", "phone_number")  # what a task tells of its `supervisor`
NO_BLOCK = "There was no ```python block to run. Write one."


class World(Protocol):
    """What an episode needs of `appworld.AppWorld`."""

    task: Any  # with `instruction` and `supervisor`

    def execute(self, code: str) -> str:
        """Run code in the sandbox and return what it printed, errors included."""
        ...

    def task_completed(self) -> bool:
        """Say whether the code has declared the task to be done."""
        ...

    def evaluate(self) -> Any:
        """Run the task's unit tests; the result has `success` and `report(print_it=False)`."""
        ...


@dataclass(frozen=True)
class Episode:
    """An attempt at a task.

    Attributes:
        transcript: the conversation, with the playbook in its first message.
        completed: whether the agent declared the task done; whether it was right, `unit_tests` says.
        written: the model's turns.
        printed: what the environment printed after each.
        ending: how the episode ended, in a sentence; nothing of the unit tests.
        error: why the model could not be asked, if that ended it.
    """

    transcript: tuple[Message, ...]
    completed: bool
    written: tuple[str, ...]
    printed: tuple[str, ...]
    ending: str
    error: str | None = None

    @property
    def actions(self) -> str:
        """What the model wrote, turn by turn."""
        return by_turns(self.written)

    @property
    def feedback_text(self) -> str:
        """What the environment printed, turn by turn, and how the episode ended."""
        return "\n".join([by_turns(self.printed), self.ending]).lstrip()


@dataclass(frozen=True)
class AppWorldTask:
    """Tasks of AppWorld: its unit tests say what is right (`Attempt.passed`), no text of an answer can."""

    name: str = "appworld"
    instruction: str = ""  # the template of the agent has it

    def count(self, sample: Sample, answer: str) -> tuple[int, int]:
        """Count none of one: nothing is right without the unit tests."""
        return 0, 1

    def correct(self, sample: Sample, answer: str) -> bool:
        """Call no text right."""
        return False

    def summary(self, right: Mapping[str, bool]) -> dict[str, float]:
        """Return the task and the scenario goal completion, TGC and SGC (see `goal_completion`)."""
        tgc, sgc = goal_completion(right)
        return {"tgc": tgc, "sgc": sgc}


def by_turns(texts: Sequence[str]) -> str:
    """Number the texts of an episode's turns from 1, and join them."""
    return "\n".join(f"Turn {turn}:\n{text}" for turn, text in enumerate(texts, start=1))


def samples_of(split: Split) -> list[Sample]:
    """Return the tasks of a split as samples: their id is also their question, and they have no target.

    Raises:
        ImportError: if the package is not installed.
        ValueError: if the split is unknown.
    """
    return [Sample(name, name, "") for name in task_ids(split)]


def _appworld() -> Any:
    try:
        return import_module("appworld")
    except ImportError as error:
        raise ImportError(
            "AppWorld needs its package and data: `pip install appworld`, `appworld install`, `appworld download data`"
        ) from error


def task_ids(split: Split) -> list[str]:
    """Return the ids of a split's tasks.

    Args:
        split: `train`, `dev`, `test_normal` or `test_challenge`.

    Raises:
        ImportError: if the package is not installed.
        ValueError: if the split is unknown.
    """
    if split not in get_args(Split):
        raise ValueError(f"split must be one of {', '.join(get_args(Split))}, got {split!r}")
    return list(_appworld().load_task_ids(split))


def open_world(task_id: str, experiment_name: str) -> AbstractContextManager[World]:
    """Return the world of a task, to be used in a `with` statement.

    Args:
        task_id: one of `task_ids`.
        experiment_name: names the folder that AppWorld writes to.

    Raises:
        ImportError: if the package is not installed.
    """
    return cast(AbstractContextManager[World], _appworld().AppWorld(task_id=task_id, experiment_name=experiment_name))


def code_of(text: str) -> str | None:
    """Return the first ```python block of a text, closed or not, or None."""
    found = BLOCK.search(text)
    return found[1].strip() if found and found[1].strip() else None


def opening(prompts: Prompts, world: World, playbook: str, reflection: str = "") -> tuple[Message, ...]:
    """Return the messages that an episode starts with, from the template `appworld_agent`.

    Args:
        prompts: templates.
        world: of the task; what it tells of the person goes into the prompt.
        playbook: as text.
        reflection: on an earlier attempt; empty if there was none.
    """
    supervisor = getattr(world.task, "supervisor", None)
    person = {key: getattr(supervisor, key) for key in PERSON if hasattr(supervisor, key)}
    return prompts.fill(
        "appworld_agent", playbook=playbook, reflection=reflection, person=person, task=world.task.instruction
    )


def run_episode(
    world: World,
    write: Callable[[Sequence[Message]], Completion],
    start: Sequence[Message],
    max_turns: int = 50,
    max_output: int = 20_000,
) -> Episode:
    """Let a model act until it declares the task done (ReAct).

    Of each of the model's turns the first code block is run, and what it printed is the next message.

    Args:
        world: of the task.
        write: the model: writes the next turn of a conversation.
        start: the conversation's first messages, see `opening`.
        max_turns: most turns of the model, >= 1.
        max_output: characters of an output that are shown; a longer one is cut, with a note.

    Returns:
        The episode. A request that failed ends it.

    Raises:
        ValueError: if max_turns or max_output is below 1.
    """
    check_positive(max_turns=max_turns, max_output=max_output)
    messages = list(start)
    written: list[str] = []
    printed: list[str] = []
    ending, error, completed = f"The task was not declared done within {max_turns} turns.", None, False
    while len(written) < max_turns and not completed:
        completion = write(tuple(messages))
        if completion.finish_reason == "error":
            error = completion.error or "the request failed"
            ending = f"The model could not be asked: {error}"
            break
        code = code_of(completion.text)
        output = NO_BLOCK if code is None else world.execute(code)
        if len(output) > max_output:
            output = f"{output[:max_output]}\n[{len(output) - max_output} more characters are not shown]"
        messages += [Message("assistant", completion.text), Message("user", f"Output:\n{output}")]
        written.append(completion.text)
        printed.append(output)
        completed = world.task_completed()
    if completed:
        ending = f"The task was declared done in turn {len(written)}."
    return Episode(tuple(messages), completed, tuple(written), tuple(printed), ending, error)


def unit_tests(world: World) -> tuple[bool, str]:
    """Run the tests of AppWorld, which are its ground truth.

    Args:
        world: after the episode, still open.

    Returns:
        Whether all passed, and the report; only a Reflector that may see labels may see it.
    """
    result = world.evaluate()
    return bool(result.success), str(result.report(print_it=False))


def goal_completion(results: Mapping[str, bool]) -> tuple[float, float]:
    """Return the task and the scenario goal completion, TGC and SGC.

    Args:
        results: task id -> whether all its tests passed. Tasks of one scenario, such as 82e2fac_1 and 82e2fac_2, have
            the same id up to the last underscore.

    Returns:
        Fractions in [0, 1]: of tasks passed, and of scenarios whose tasks all passed.

    Raises:
        ValueError: if there are no results, or an id has no number.
    """
    if not results:
        raise ValueError("goal completion needs at least one result, got none")
    scenarios: defaultdict[str, list[bool]] = defaultdict(list)
    for task_id, passed in results.items():
        scenario, underscore, number = task_id.rpartition("_")
        if not (scenario and underscore and number.isdecimal()):
            raise ValueError(f"a task id must be <scenario>_<number>, got {task_id!r}")
        scenarios[scenario].append(passed)
    return sum(results.values()) / len(results), sum(map(all, scenarios.values())) / len(scenarios)
