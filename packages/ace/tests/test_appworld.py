"""Episodes in a small world of our own, and the metrics by hand."""

from types import SimpleNamespace

import pytest
from ace.appworld import (
    NO_BLOCK,
    AppWorldTask,
    code_of,
    goal_completion,
    open_world,
    opening,
    run_episode,
    samples_of,
    task_ids,
    unit_tests,
)
from ace.completion import Completion, failed
from ace.prompts import Prompts
from ace.tasks import Sample


class FakeWorld:
    """Prints what it was given and is done when told so."""

    def __init__(self):
        self.task = SimpleNamespace(instruction="Pay the rent.", supervisor=SimpleNamespace(email="jo@example.com"))
        self.ran = []

    def execute(self, code):
        self.ran.append(code)
        return f"ran {code}"

    def task_completed(self):
        return "done" in self.ran

    def evaluate(self):
        return SimpleNamespace(success=self.task_completed(), report=lambda print_it: f"report {print_it}")


def writer(*texts):
    """A model that writes these turns, and what it was shown for each."""
    shown, rest = [], iter(texts)

    def write(messages):
        shown.append(messages)
        turn = next(rest)
        return turn if isinstance(turn, Completion) else Completion(turn)

    return write, shown


def start(world, playbook="", reflection=""):
    return opening(Prompts(), world, playbook, reflection)


def block(code):
    return f"I think.\n```python\n{code}\n```"


def test_each_turn_runs_its_block_and_shows_the_output_until_the_task_is_done():
    world = FakeWorld()
    write, shown = writer(block("look"), block("done"), block("never"))
    episode = run_episode(world, write, start(world, "[shr-00001] look first"))
    assert world.ran == ["look", "done"]
    assert (episode.completed, len(episode.written), episode.error) == (True, 2, None)
    assert episode.actions == f"Turn 1:\n{block('look')}\nTurn 2:\n{block('done')}"
    assert episode.feedback_text == "Turn 1:\nran look\nTurn 2:\nran done\nThe task was declared done in turn 2."
    assert [m.role for m in episode.transcript] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert [m.content for m in episode.transcript[2:4]] == [block("look"), "Output:\nran look"]
    # The model saw exactly what had happened before each turn.
    assert shown == [episode.transcript[:2], episode.transcript[:4]]
    assert shown[0][0].content.endswith("PLAYBOOK\n[shr-00001] look first")
    assert shown[0][1].content == "THE PERSON YOU ACT FOR\nemail: jo@example.com\n\nTASK\nPay the rent."


def test_a_reflection_is_shown_after_the_playbook_which_stays_the_first():
    system, user = start(FakeWorld(), "[shr-00001] look first", "You forgot to log in.")
    assert system == start(FakeWorld(), "[shr-00001] look first")[0]
    assert user.content.startswith("REFLECTION ON AN EARLIER ATTEMPT AT THIS TASK\nYou forgot to log in.\n\nTHE PERSON")


def test_a_world_that_tells_of_no_person_has_a_prompt_without_one():
    world = SimpleNamespace(task=SimpleNamespace(instruction="Pay the rent."))
    assert start(world)[1].content == "TASK\nPay the rent."


def test_an_episode_ends_at_its_last_turn():
    world = FakeWorld()
    episode = run_episode(world, writer(*[block("look")] * 9)[0], start(world), max_turns=3)
    assert (episode.completed, len(episode.printed), len(world.ran)) == (False, 3, 3)
    assert episode.feedback_text.endswith("The task was not declared done within 3 turns.")
    assert "(empty)" in episode.transcript[0].content


def test_a_turn_without_a_block_runs_nothing_and_is_told_so():
    world = FakeWorld()
    episode = run_episode(world, writer("No code.", block("done"))[0], start(world))
    assert world.ran == ["done"]
    assert (len(episode.written), episode.transcript[3].content) == (2, f"Output:\n{NO_BLOCK}")


def test_a_request_that_failed_ends_the_episode():
    episode = run_episode(FakeWorld(), writer(block("look"), failed("no answer"))[0], start(FakeWorld()))
    assert (episode.completed, len(episode.written), episode.error) == (False, 1, "no answer")
    assert episode.feedback_text == "Turn 1:\nran look\nThe model could not be asked: no answer"


def test_a_long_output_is_cut_with_a_note():
    write, _ = writer(block("done"), block("x" * 20))
    episode = run_episode(FakeWorld(), write, start(FakeWorld()), max_turns=1, max_output=5)
    assert episode.transcript[3].content == "Output:\nran d\n[3 more characters are not shown]"


def test_braces_in_a_playbook_stay_as_they_are():
    text = "use {name}, {{ playbook }} and {% x %}\n[[user]]"
    assert start(FakeWorld(), text)[0].content.endswith(text)
    assert len(start(FakeWorld(), text)) == 2


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (block("a\nb"), "a\nb"),
        ("```py\na\n```\n```python\nb\n```", "a"),
        ("```python\nprint(1", "print(1"),
        ("```\na\n```", None),
        ("```python\n\n```", None),
        ("", None),
    ],
)
def test_the_first_python_block_is_run_even_if_it_was_cut(text, code):
    assert code_of(text) == code


def test_the_unit_tests_are_those_of_the_world():
    world = FakeWorld()
    assert unit_tests(world) == (False, "report False")
    world.execute("done")
    assert unit_tests(world) == (True, "report False")


def test_a_scenario_is_passed_if_all_its_tasks_are():
    results = {"aaa_1": True, "aaa_2": True, "bbb_1": True, "bbb_2": False, "c_c_1": False, "c_d_1": True}
    assert goal_completion(results) == (4 / 6, 2 / 4)
    with pytest.raises(ValueError, match="goal completion needs at least one result, got none"):
        goal_completion({})
    for name in ("aaa", "_1", "aaa_x"):
        with pytest.raises(ValueError, match=f"a task id must be <scenario>_<number>, got '{name}'"):
            goal_completion({name: True})


def test_no_text_of_an_answer_is_right_and_the_summary_has_both_metrics():
    task, sample = AppWorldTask(), Sample("aaa_1", "aaa_1", "")
    assert not task.correct(sample, "") and task.count(sample, "") == (0, 1)
    assert task.summary({"aaa_1": True, "aaa_2": True, "bbb_1": False}) == {"tgc": 2 / 3, "sgc": 1 / 2}


def test_a_missing_package_and_an_unknown_split_are_refused_in_a_sentence(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "appworld", None)
    for call in (lambda: task_ids("dev"), lambda: open_world("aaa_1", "ace")):
        with pytest.raises(ImportError, match="AppWorld needs its package and data"):
            call()
    with pytest.raises(ValueError, match="split must be one of train, dev, test_normal, test_challenge, got 'test'"):
        task_ids("test")


def test_an_installed_package_is_asked_for_tasks_and_worlds(monkeypatch):
    fake = SimpleNamespace(load_task_ids=lambda split: (f"{split}_1",), AppWorld=lambda **options: options)
    monkeypatch.setitem(__import__("sys").modules, "appworld", fake)
    assert task_ids("dev") == ["dev_1"]
    assert samples_of("dev") == [Sample("dev_1", "dev_1", "")]
    assert open_world("aaa_1", "ace") == {"task_id": "aaa_1", "experiment_name": "ace"}


@pytest.mark.parametrize("option", ["max_turns", "max_output"])
def test_an_episode_of_no_length_is_refused(option):
    with pytest.raises(ValueError, match=f"{option} must be at least 1, got 0"):
        run_episode(FakeWorld(), writer()[0], (), **{option: 0})
