"""AppWorld, the paper's agent benchmark: a ReAct episode in its sandbox, and its two metrics (section 5).

The package `appworld` and its data, which it downloads itself, are the user's to install; anything with the methods of
`World` will do. The code that a model writes runs in AppWorld's own sandbox and nowhere else.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, Protocol, cast, get_args

from ace.completion import Completion, Message

Split = Literal["train", "dev", "test_normal", "test_challenge"]

# A model that was stopped at its token limit has not closed the block.
BLOCK = re.compile(r"```(?:python|py)\s*\n(.*?)(?:```|\Z)", re.DOTALL)
PERSON = ("first_name", "last_name", "email", "phone_number")  # what a task tells of its `supervisor`
NO_BLOCK = "There was no ```python block to run. Write one."
SYSTEM = """\
You carry out tasks for a person by writing Python code for the environment AppWorld, step by step.
In each turn write what you want to find out or do, then exactly one ```python block. It is run, and you see what it
printed. Variables persist between turns.
Apps are reached through `apis.<app>.<api>(...)`. To look things up:
- apps: `print(apis.api_docs.show_app_descriptions())`
- the APIs of an app: `print(apis.api_docs.show_api_descriptions(app_name='...'))`
- an API: `print(apis.api_docs.show_api_doc(app_name='...', api_name='...'))`
- passwords: `print(apis.supervisor.show_account_passwords())`
When everything is done call `apis.supervisor.complete_task()`, with `answer=...` if the task asks for an answer.

Playbook of lessons from earlier tasks:
{playbook}"""


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
        turns: how many times the model wrote.
        feedback_text: what the environment printed in each turn and how the episode ended; nothing of the unit tests.
    """

    transcript: tuple[Message, ...]
    completed: bool
    turns: int
    feedback_text: str


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


def opening(world: World, playbook_text: str) -> list[Message]:
    """Return the messages that an episode starts with: how to act, with the playbook, and the task."""
    supervisor = getattr(world.task, "supervisor", None)
    known = [f"{key}: {getattr(supervisor, key)}" for key in PERSON if hasattr(supervisor, key)]
    person = "The person you act for:\n" + "\n".join(known) + "\n\n" if known else ""
    return [
        Message("system", SYSTEM.replace("{playbook}", playbook_text or "(empty)")),
        Message("user", f"{person}Task: {world.task.instruction}"),
    ]


def run_episode(
    world: World,
    write: Callable[[list[Message]], Completion],
    playbook_text: str,
    max_turns: int = 50,
    max_output: int = 20_000,
) -> Episode:
    """Let a model act until it declares the task done (ReAct).

    Of each of the model's turns the first code block is run, and what it printed is the next message.

    Args:
        world: of the task.
        write: the model: writes the next turn of a conversation.
        playbook_text: the lessons, as they go into the prompt.
        max_turns: most turns of the model, >= 1.
        max_output: characters of an output that are shown; a longer one is cut, with a note.

    Returns:
        The episode. A request that failed ends it.

    Raises:
        ValueError: if max_turns or max_output is below 1.
    """
    for option, value in (("max_turns", max_turns), ("max_output", max_output)):
        if value < 1:
            raise ValueError(f"{option} must be at least 1, got {value}")
    messages = opening(world, playbook_text)
    printed: list[str] = []
    ending, completed, turns = f"The task was not declared done within {max_turns} turns.", False, 0
    while turns < max_turns and not completed:
        completion = write(list(messages))
        if completion.finish_reason == "error":
            ending = f"The model could not be asked: {completion.error}"
            break
        turns += 1
        code = code_of(completion.text)
        output = NO_BLOCK if code is None else world.execute(code)
        if len(output) > max_output:
            output = f"{output[:max_output]}\n[{len(output) - max_output} more characters are not shown]"
        messages += [Message("assistant", completion.text), Message("user", f"Output:\n{output}")]
        printed.append(f"Turn {turns}:\n{output}")
        completed = world.task_completed()
    if completed:
        ending = f"The task was declared done in turn {turns}."
    return Episode(tuple(messages), completed, turns, "\n".join([*printed, ending]))


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
