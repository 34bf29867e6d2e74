"""The loop of reflecting and answering again: how often each role is asked, and what comes of it."""

import json
import re

import pytest
from ace.playbook import Bullet, Playbook, Section
from ace.prompts import Prompts
from ace.recording import Recorder
from ace.reflection import check_feedback, judge, reflect
from ace.roles import Attempt, Chat, JsonRoles
from ace.scripted import ScriptedBackend
from ace.tasks import ExactMatch, Sample
from ace.tiny import TinyRoles

BOOK = Playbook((Section("OTHERS", (Bullet("misc-00001", "count again"),)),), 2)


def sample(name, rounds):
    """A question that is answered rightly after so many reflections."""
    return Sample(name, f"needs {rounds} rounds, {name}", "right")


class Pupil:
    """A model that says after n reflections "wrong n", or "right" if the question needs no more."""

    def __init__(self, unreadable=()):
        self.unreadable = unreadable  # attempts whose reflection is no JSON
        self.recorder = Recorder(ScriptedBackend(self.say), cache=False)
        self.roles = JsonRoles(Chat(self.recorder, Prompts(), ExactMatch()))
        self.contexts = []

    def say(self, request):
        system, user = (message.content for message in request.messages)
        if system.startswith("You review an attempt"):
            said = re.search(r"wrong (\d+)|right", user.partition("ANSWER OF THE ATTEMPT\n")[2])
            number = int(said[1] or 9)
            tags = [{"id": "misc-00001", "tag": "harmful" if said[1] else "helpful"}]
            readable = number not in self.unreadable
            return json.dumps({"key_insight": f"hint {number + 1}", "bullet_tags": tags}) if readable else "hm"
        self.contexts.append(system)
        hint = re.search(r"key_insight: hint (\d+)", user)
        reflections = int(hint[1]) if hint else 0
        needed = int(re.search(r"needs (\d+)", user)[1])
        final = "right" if reflections >= needed else f"wrong {reflections}"
        return json.dumps({"reasoning": "misc-00001", "bullet_ids": [], "final_answer": final})

    def run(self, samples, rounds=3, kind="label"):
        contexts = [f"context of {s.id}" for s in samples]
        cases = judge(self.roles, samples, self.roles.answer(samples, contexts, step=1), kind, BOOK)
        return reflect(self.roles, cases, contexts, kind=kind, rounds=rounds, step=1)

    @property
    def calls(self):
        return {role: usage.calls for role, usage in self.recorder.usage.items()}


@pytest.mark.parametrize("rounds", [1, 2, 3, 5])
@pytest.mark.parametrize("needed", range(7))
def test_a_sample_is_reflected_on_until_it_is_right_at_most_r_times_and_at_least_once(needed, rounds):
    pupil = Pupil()
    [outcome] = pupil.run([sample("s", needed)], rounds)
    reflections = 1 if needed == 0 else min(needed, rounds)
    again = min(needed, rounds)
    assert pupil.calls == {"generator": 1 + again, "reflector": reflections}
    assert outcome.rounds == len(outcome.tags) == reflections
    assert outcome.case.right == (needed <= rounds)
    assert outcome.case.attempt.answer == ("right" if needed <= rounds else f"wrong {rounds}")
    assert outcome.reflection.text == ("key_insight: hint 10" if needed == 0 else f"key_insight: hint {reflections}")


def test_tags_of_each_reflection_are_kept_apart_so_that_each_counts():
    [outcome] = Pupil().run([sample("s", 9)], rounds=3)
    assert outcome.tags == [{"misc-00001": "harmful"}] * 3


def test_samples_side_by_side_each_end_when_they_are_right_and_keep_their_own_context():
    needs = {"a": 0, "b": 2, "c": 9, "d": 1}
    pupil = Pupil()
    outcomes = pupil.run([sample(name, needed) for name, needed in needs.items()])
    assert [outcome.rounds for outcome in outcomes] == [1, 2, 3, 1]
    assert [outcome.case.right for outcome in outcomes] == [True, True, False, True]
    assert [outcome.case.sample.id for outcome in outcomes] == list(needs)
    shown = [re.search(r"context of (\w)", system)[1] for system in pupil.contexts]
    assert shown == [*"abcd", *"bcd", *"bc", *"c"]
    assert pupil.calls == {"generator": 10, "reflector": 4 + 2 + 1}


def test_alone_or_side_by_side_the_outcome_is_the_same():
    samples = [sample(name, needed) for name, needed in {"a": 0, "b": 2, "c": 9}.items()]
    assert Pupil().run(samples) == [outcome for s in samples for outcome in Pupil().run([s])]


def test_a_reflection_that_cannot_be_read_is_asked_for_again_without_a_new_attempt():
    pupil = Pupil(unreadable=[0])
    [outcome] = pupil.run([sample("s", 2)], rounds=3)
    assert pupil.calls == {"generator": 1, "reflector": 3}
    assert (outcome.reflection, outcome.tags, outcome.rounds, outcome.case.attempt.answer) == (None, [], 3, "wrong 0")
    assert pupil.roles.chat.unreadable == {"reflector": 3}


def test_the_last_reflection_that_could_be_read_remains():
    pupil = Pupil(unreadable=[1])
    [outcome] = pupil.run([sample("s", 3)], rounds=3)
    assert pupil.calls == {"generator": 2, "reflector": 3}
    assert (outcome.reflection.lesson, len(outcome.tags), outcome.rounds) == ("hint 1", 1, 3)


@pytest.mark.parametrize("kind", ["none", "match_bit"])
def test_without_a_verdict_there_is_one_reflection_and_no_second_attempt(kind):
    for needed in (0, 2):
        pupil = Pupil()
        [outcome] = pupil.run([sample("s", needed)], kind=kind)
        told = kind == "match_bit"
        assert outcome.rounds == (2 if told and needed else 1)
        assert pupil.calls["generator"] == (3 if told and needed else 1)
        assert outcome.case.right == (True if told else None)
        assert outcome.case.target is None


def test_the_case_names_the_bullets_of_each_attempt():
    [outcome] = Pupil().run([sample("s", 1)])
    assert outcome.case.attempt.bullet_ids == ("misc-00001",)
    assert outcome.case.bullets == "[misc-00001] count again"


def test_execution_feedback_needs_an_environment():
    with pytest.raises(ValueError, match="feedback execution needs what an environment printed"):
        Pupil().run([sample("s", 1)], kind="execution")


def test_kinds_of_feedback_that_are_unknown_or_useless_to_the_roles_are_refused():
    json_roles = Pupil().roles
    with pytest.raises(ValueError, match="feedback must be one of label, match_bit, execution, none, got 'labels'"):
        check_feedback("labels", json_roles)
    with pytest.raises(
        ValueError, match="feedback execution is what an environment printed, but JsonRoles act in none"
    ):
        check_feedback("execution", json_roles)
    for kind in ("match_bit", "none"):
        check_feedback(kind, json_roles)
        with pytest.raises(ValueError, match=f"TinyRoles reflect with the right answer: .* label, got {kind}"):
            check_feedback(kind, TinyRoles(json_roles.chat))


@pytest.mark.parametrize("passed", [True, False])
def test_the_verdict_in_words_is_that_of_the_environment_too(passed):
    [case] = judge(Pupil().roles, [sample("a", 0)], [Attempt("nothing", passed=passed)], "match_bit", BOOK)
    assert case.feedback == f"The answer is {'right' if passed else 'wrong'}."
