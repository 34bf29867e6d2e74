"""The baselines: what each shows to the model, its budget, the collapse of a rewritten sheet, and saved states."""

import json
import re

import pytest
from ace.adaptation import ACE
from ace.baselines import FullHistory, InContext, NoContext, Rewrite
from ace.prompts import Prompts
from ace.recording import Recorder
from ace.roles import Chat, JsonRoles
from ace.scripted import ScriptedBackend
from ace.tasks import Contains, Sample, contains
from ace.tiny import TinyRoles

PROMPTS = Prompts()


def item(name):
    return Sample(name, f"What is {name}?", f"v{name}", facts=(name, f"v{name}"))


class World:
    """A model that answers with what it reads, reflects with the right answer, and keeps `memory` facts in a sheet."""

    def __init__(self, method, memory=99, roles=JsonRoles, tags=True, **options):
        self.memory, self.tags = memory, tags
        self.requests = []
        self.recorder = Recorder(ScriptedBackend(self.say), cache=False)
        self.learner = method(roles(Chat(self.recorder, PROMPTS, Contains())), **options)

    def say(self, request):
        self.requests.append(request)
        system, user = request.messages[0].content, request.messages[-1].content
        name = re.findall(r"What is (\w+)\?", user)
        if system.startswith("You answer"):
            known = f"v{name[-1]}" in system + user
            return json.dumps({"reasoning": "r", "bullet_ids": [], "final_answer": f"v{name[-1]}" if known else "none"})
        if system.startswith("You review"):
            return json.dumps({"key_insight": f"{name[-1]} is v{name[-1]}", "bullet_tags": []})
        if system.startswith("You keep a playbook"):
            [insight] = re.findall(r"key_insight: (.*)", user)
            return json.dumps({"operations": [{"type": "ADD", "section": "OTHERS", "content": insight}]})
        facts = re.findall(r"\w+ is v\w+", user.partition("LESSON")[0]) + re.findall(r"\w+ is v\w+", user[-20:])
        sheet = "\n".join(facts[-self.memory :])
        return f"<cheatsheet>{sheet}</cheatsheet>" if self.tags else sheet

    def learn(self, *names, step=1):
        return self.learner.learn([item(name) for name in names], step=step, steps=9)

    @property
    def calls(self):
        return {role: usage.calls for role, usage in self.recorder.usage.items()}

    def shown(self):
        """The prompt around the context of a question that is answered for a score."""
        self.learner.answer([item("x")], step=9)
        return self.requests[-1].messages[0].content

    def right(self, *names):
        samples = [item(name) for name in names]
        attempts = self.learner.answer(samples, step=9)
        return [Contains().correct(s, a.answer) for s, a in zip(samples, attempts, strict=True)]


def retention(learner):
    """Facts that are still in the context, as a share of those that were taught."""
    return sum(all(contains(learner.text(), part) for part in facts) for facts in learner.learned) / len(
        learner.learned
    )


def test_the_model_alone_has_an_empty_context_and_costs_nothing_to_train():
    world = World(NoContext)
    report = world.learn("a", "b")
    assert (world.calls, report.before, world.learner.text()) == ({}, [], "")
    assert "PLAYBOOK\n(empty)\n" in world.shown()
    assert world.calls == {"evaluation": 1}
    assert world.right("a") == [False]


# Demonstrations.


def test_demonstrations_are_shown_in_the_order_of_training_each_once_and_cost_no_call():
    world = World(InContext)
    world.learn("b", "a")
    world.learn("a", step=2)
    text = "Question: What is b?\nAnswer: vb\n\nQuestion: What is a?\nAnswer: va"
    assert world.learner.text() == text
    assert world.calls == {}
    assert f"PLAYBOOK\n{text}\n" in world.shown()
    assert world.right("a", "b", "c") == [True, True, False]
    assert world.learner.learned == [("b", "vb"), ("a", "va")]


@pytest.mark.parametrize(("budget", "fits"), [(5, 0), (6, 1), (11, 1), (12, 2), (17, 2), (18, 3)])
def test_a_demonstration_that_does_not_fit_the_budget_is_left_out(budget, fits):
    world = World(InContext, budget=budget)  # each has 6 words
    report = world.learn("a", "b", "c")
    assert [sample.id for sample in world.learner.shown] == ["a", "b", "c"][:fits]
    assert report.refused == [f"{name}: the budget is full" for name in ["a", "b", "c"][fits:]]
    assert len(world.learner.text().split()) <= budget


def test_a_shorter_demonstration_may_still_fit_where_a_longer_did_not():
    world = World(InContext, budget=12)
    long = Sample("long", "What is this thing here?", "a long answer")
    world.learner.learn([item("a"), long, item("b")], step=1, steps=1)
    assert [sample.id for sample in world.learner.shown] == ["a", "b"]


# Full history.


def test_history_is_every_attempt_with_question_answer_and_feedback():
    world = World(FullHistory)
    report = world.learn("a", "b")
    assert report.before == [False, False]
    assert world.calls == {"generator": 2}
    rest = "reasoning: r\nanswer: none\nfeedback: The answer is wrong. The right answer:"
    entries = [f"question: What is {name}?\n{rest} v{name}" for name in "ab"]
    assert world.learner.text() == "\n".join(entries)
    assert world.learner.text() in world.shown()
    assert world.right("a", "b", "c") == [True, True, False]
    assert retention(world.learner) == 1


def test_history_without_labels_does_not_hold_them():
    world = World(FullHistory, feedback="match_bit")
    world.learn("a")
    assert "The answer is wrong." in world.learner.text()
    assert "va" not in world.learner.text()


@pytest.mark.parametrize(("budget", "kept"), [(100, "abcd"), (51, "bcd"), (50, "cd"), (17, "d"), (16, "")])
def test_beyond_the_budget_the_oldest_attempts_are_dropped(budget, kept):
    world = World(FullHistory, budget=budget)
    world.learn(*"abcd")
    assert all(len(entry.split()) == 17 for entry in world.learner.history)
    assert re.findall(r"What is (\w)", world.learner.text()) == list(kept)
    assert len(world.learner.text().split()) <= budget
    assert retention(world.learner) == len(kept) / 4


# The rewritten cheatsheet.


def test_a_sheet_is_rewritten_after_each_sample_from_the_sheet_before_and_the_new_lesson():
    world = World(Rewrite)
    report = world.learn("a", "b")
    assert world.learner.text() == "a is va\nb is vb"
    assert world.calls == {"generator": 4, "reflector": 2, "curator": 2}
    assert (report.before, report.rounds) == ([False, False], [1, 1])
    last = world.requests[-1].messages[-1].content
    assert "CHEATSHEET\na is va\n" in last
    assert "LESSON\nb is vb" in last
    assert "PLAYBOOK\na is va\nb is vb\n" in world.shown()
    assert world.right("a", "b", "c") == [True, True, False]


@pytest.mark.parametrize(("memory", "kept"), [(99, 1.0), (3, 0.6), (2, 0.4), (1, 0.2)])
def test_a_model_that_keeps_m_of_n_facts_when_it_rewrites_has_a_retention_of_m_n_and_ace_of_1(memory, kept):
    world = World(Rewrite, memory=memory)
    for step, name in enumerate("abcde", 1):
        world.learn(name, step=step)
    assert retention(world.learner) == pytest.approx(kept)
    ace = World(ACE)
    ace.learn(*"abcde")
    assert retention(ace.learner) == 1
    assert world.right(*"abcde") == [False] * (5 - round(5 * kept)) + [True] * round(5 * kept)


def test_a_sheet_without_its_tags_leaves_the_old_one():
    world = World(Rewrite)
    world.learn("a")
    world.tags = False
    world.learn("b", step=2)
    assert world.learner.text() == "a is va"
    assert world.learner.learned == [("a", "va"), ("b", "vb")]
    assert retention(world.learner) == 0.5


def test_without_a_reflector_the_model_sees_the_attempt_and_its_feedback_alone():
    world = World(Rewrite, reflector=False)
    report = world.learn("a")
    assert (world.calls, report.rounds) == ({"generator": 1, "curator": 1}, [0])
    last = world.requests[-1].messages[-1].content
    assert "FEEDBACK\nThe answer is wrong. The right answer: va" in last
    assert "LESSON" not in last


def test_the_models_sheet_has_at_least_the_tokens_of_its_budget():
    world = World(Rewrite, roles=lambda chat: JsonRoles(chat, max_tokens=10), budget=300)
    world.learn("a")
    assert world.requests[-1].max_tokens == 300


def test_a_lesson_that_ace_would_refuse_is_not_written_into_the_sheet():
    def stubborn(request):
        return "I do not know." if "Facts" in request.messages[0].content else "It is a lesson."

    world = World(Rewrite, roles=TinyRoles, rounds=2)
    world.recorder.backend.answer = stubborn
    report = world.learn("a")
    assert world.calls == {"generator": 3, "reflector": 2}
    assert report.refused == ["a: the lesson does not mend the answer: It is a lesson."]
    assert (world.learner.text(), world.learner.learned) == ("", [])


# States.


@pytest.mark.parametrize("method", [NoContext, InContext, Rewrite, FullHistory, ACE])
def test_a_state_is_plain_and_a_learner_that_takes_it_over_goes_on_as_if_it_had_learned_itself(method):
    first, second = World(method), World(method)
    first.learn("a", "b")
    state = json.loads(json.dumps(first.learner.state()))
    second.learner.load_state(state)
    for name, step in (("c", 2), ("a", 3)):
        assert second.learn(name, step=step) == first.learn(name, step=step)
        assert second.learner.text() == first.learner.text()
        assert second.learner.learned == first.learner.learned
        assert second.learner.state() == first.learner.state()


@pytest.mark.parametrize("method", [InContext, Rewrite, FullHistory, ACE])
def test_a_saved_state_does_not_change_with_what_is_learned_later(method):
    world = World(method)
    world.learn("a")
    state = world.learner.state()
    before = json.dumps(state)
    world.learn("b", step=2)
    assert json.dumps(state) == before != json.dumps(world.learner.state())
    world.learner.load_state(state)
    world.learn("c", step=3)
    assert json.dumps(state) == before


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        (InContext, {"budget": 0}, "budget must be at least 1, got 0"),
        (Rewrite, {"budget": 0}, "budget must be at least 1, got 0"),
        (Rewrite, {"rounds": 0}, "rounds must be at least 1, got 0"),
        (Rewrite, {"feedback": "all"}, "feedback must be one of label, match_bit, execution, none, got 'all'"),
        (FullHistory, {"budget": -1}, "budget must be at least 1, got -1"),
        (FullHistory, {"feedback": "none", "roles": TinyRoles}, "TinyRoles reflect with the right answer"),
    ],
)
def test_an_option_out_of_range_is_named(method, options, message):
    with pytest.raises(ValueError, match=message):
        World(method, **options)
