"""Roles that act in small worlds of our own: what each role is shown, and what an attempt comes to."""

import json
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from ace.adaptation import ACE
from ace.appworld import AppWorldTask
from ace.appworld_roles import AppWorldRoles, told
from ace.baselines import FullHistory, InContext
from ace.completion import failed
from ace.playbook import load
from ace.prompts import Prompts
from ace.recording import Recorder
from ace.reflection import judge
from ace.roles import Chat
from ace.scripted import ScriptedBackend
from ace.tasks import Sample

SAMPLES = [Sample("aaa_1", "aaa_1", ""), Sample("aaa_2", "aaa_2", "")]
SECRET = "assert the rent was paid twice"


class Worlds:
    """Opens worlds that hold one task each, which passes if `pay` was run, and counts those open at a time."""

    def __init__(self):
        self.open = self.most = 0
        self.opened = []

    @contextmanager
    def __call__(self, task_id, experiment):
        self.open += 1
        self.most = max(self.most, self.open)
        self.opened.append((task_id, experiment))
        ran = []

        def execute(code):
            assert self.open == 1
            ran.append(code)
            return f"printed by {code}"

        yield SimpleNamespace(
            task=SimpleNamespace(instruction=f"Pay the rent of {task_id}."),
            execute=execute,
            task_completed=lambda: "done" in ran,
            evaluate=lambda: SimpleNamespace(success="pay" in ran, report=lambda print_it: SECRET),
        )
        self.open -= 1


def agent(request):
    """Pays only if its prompt says so; looks first; reflects and curates."""
    system = request.messages[0].content
    if '"operations"' in system:
        add = {"type": "ADD", "section": "VERIFICATION CHECKLIST", "content": "always pay first"}
        return json.dumps({"reasoning": "", "operations": [add]})
    if '"bullet_tags"' in system:
        return json.dumps({"key_insight": "always pay first", "bullet_tags": []})
    taught = "always pay first" in system + request.messages[1].content
    code = ["look", "pay" if taught else "beg", "done"][(len(request.messages) - 2) // 2]
    return f"I follow [vc-00001].\n```python\n{code}\n```"


def roles(backend=None, **options):
    recorder = Recorder(ScriptedBackend(agent) if backend is None else backend)
    worlds = Worlds()
    return AppWorldRoles(Chat(recorder, Prompts(), AppWorldTask()), worlds, **options), worlds


def seen(backend_roles, role_mark):
    """Every prompt that a role was sent, as text."""
    backend = backend_roles.chat.recorder.backend
    return ["\n".join(m.content for m in r.messages) for r in backend.requests if role_mark in r.messages[0].content]


class Watched(ScriptedBackend):
    def __init__(self, answer=agent):
        super().__init__(answer)
        self.requests = []

    def complete(self, requests):
        self.requests += requests
        return super().complete(requests)


def test_an_attempt_is_an_episode_whose_unit_tests_decide():
    acting, worlds = roles(experiment="mine")
    failing, passing = acting.answer(SAMPLES, ["", "always pay first"], step=1)
    assert (failing.passed, passing.passed) == (False, True)
    assert worlds.opened == [("aaa_1", "mine"), ("aaa_2", "mine")]
    assert worlds.most == 1 and worlds.open == 0
    assert passing.answer == "The task was declared done in turn 3."
    assert passing.execution == (
        "Turn 1:\nprinted by look\nTurn 2:\nprinted by pay\nTurn 3:\nprinted by done\n"
        "The task was declared done in turn 3."
    )
    assert passing.reasoning.startswith("Turn 1:\nI follow [vc-00001].\n```python\nlook\n```\nTurn 2:\n")
    assert "printed" not in passing.reasoning
    assert (passing.instruction, passing.report) == ("Pay the rent of aaa_2.", SECRET)


def test_a_second_attempt_starts_in_a_new_world_with_the_reflection():
    acting, worlds = roles()
    [case] = judge(acting, SAMPLES[:1], acting.answer(SAMPLES[:1], [""], step=1), "label", ACE(acting).playbook)
    [reflection] = acting.reflect([case], step=1, attempt=0)
    [again] = acting.answer_again(SAMPLES[:1], [""], [reflection], step=1)
    assert (case.attempt.passed, again.passed) == (False, True)
    assert [task for task, _ in worlds.opened] == ["aaa_1", "aaa_1"]


@pytest.mark.parametrize(
    ("kind", "verdict", "printed", "report"),
    [
        ("label", True, True, True),
        ("match_bit", True, False, False),
        ("execution", False, True, False),
        ("none", False, False, False),
    ],
)
def test_the_reflector_sees_what_the_feedback_reveals_and_no_more(kind, verdict, printed, report):
    acting, _ = roles(Watched())
    [case] = judge(acting, SAMPLES[:1], acting.answer(SAMPLES[:1], [""], step=1), kind, ACE(acting).playbook)
    acting.reflect([case], step=1, attempt=0)
    acting.curate(ACE(acting).playbook, case, acting.without_reflector(case), budget=99, step=1, steps=1)
    for prompt in (*seen(acting, '"bullet_tags"'), *seen(acting, '"operations"')):
        assert ("The attempt is wrong." in prompt, "printed by beg" in prompt, SECRET in prompt) == (
            verdict, printed, report
        )  # fmt: skip
        assert "Pay the rent of aaa_1." in prompt
        assert "CORRECT ANSWER" not in prompt and "\naaa_1" not in prompt


def test_a_passed_attempt_is_told_to_be_right():
    acting, _ = roles()
    attempts = acting.answer(SAMPLES[:1], ["always pay first"], step=1)
    [case] = judge(acting, SAMPLES[:1], attempts, "match_bit", ACE(acting).playbook)
    assert told(case).feedback == "The attempt is right."


def test_the_agent_never_sees_the_unit_tests():
    acting, _ = roles(Watched())
    ACE(acting, sections="appworld", feedback="label").learn(SAMPLES, step=1, steps=2)
    prompts = seen(acting, "AppWorld")
    assert prompts and not any("unit tests" in prompt for prompt in prompts if "REFLECTION" not in prompt)


def test_a_step_of_the_method_mends_the_next_episode():
    acting, _ = roles()
    method = ACE(acting, sections="appworld", feedback="execution")
    report = method.learn(SAMPLES[:1], step=1, steps=2)
    # Nobody says that the attempt was wrong, so there is no second one before the curation.
    assert (report.before, report.rounds, report.after) == ([False], [1], [True])
    [bullet] = method.playbook.bullets
    assert (bullet.id, bullet.content) == ("vc-00001", "always pay first")
    [attempt] = method.answer(SAMPLES[1:], step=1)
    assert attempt.passed
    assert acting.used(attempt, method.playbook) == ("vc-00001",)  # named in its turns, not in the prompt
    assert not acting.used(attempt, ACE(acting).playbook)


def test_a_model_that_cannot_be_asked_fails_whatever_the_world_says():
    def broken(request):
        return failed("too busy") if len(request.messages) == 6 else agent(request)

    acting, _ = roles(ScriptedBackend(broken))
    [attempt] = acting.answer(SAMPLES[:1], ["always pay first"], step=1)
    assert (attempt.passed, attempt.error) == (False, "too busy")


def test_a_playbook_of_the_released_form_is_shown_and_cited(tmp_path):
    (tmp_path / "book.txt").write_text("## VERIFICATION CHECKLIST\n[vc-00001] always pay first\n")
    acting, _ = roles()
    method = ACE(acting, playbook=tmp_path / "book.txt")
    [attempt] = method.answer(SAMPLES[:1], step=0)
    assert attempt.passed and acting.used(attempt, load(tmp_path / "book.txt")) == ("vc-00001",)


def test_the_history_of_attempts_is_a_baseline_and_demonstrations_are_refused():
    acting, _ = roles()
    history = FullHistory(acting, feedback="execution")
    history.learn(SAMPLES[:1], step=1, steps=1)
    assert "printed by beg" in history.text()
    with pytest.raises(ValueError, match="InContext needs samples with answers, but those of appworld are tasks"):
        InContext(acting).learn(SAMPLES[:1], step=1, steps=1)


def test_draws_differ_between_turns_and_tasks_and_not_between_runs():
    def seeds():
        backend = Watched()
        acting, _ = roles(backend, temperature=0.5)
        acting.answer(SAMPLES, ["", ""], step=1)
        return [request.seed for request in backend.requests]

    first = seeds()
    assert len(set(first)) == len(first) == 6
    assert first == seeds()


@pytest.mark.parametrize("option", ["max_turns", "max_output", "max_tokens"])
def test_an_option_out_of_range_is_refused(option):
    with pytest.raises(ValueError, match=f"{option} must be at least 1, got 0"):
        roles(**{option: 0})
