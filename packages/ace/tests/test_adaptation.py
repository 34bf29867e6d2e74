"""ACE's step: calls of each role, counters, merged deltas, ids, the budget, refinement and retrieval."""

import json
import re

import numpy as np
import pytest
from ace.adaptation import ACE
from ace.playbook import Bullet, Playbook, Section
from ace.prompts import Prompts
from ace.recording import Recorder
from ace.roles import Chat, JsonRoles
from ace.scripted import ScriptedBackend
from ace.tasks import Contains, Sample
from ace.tiny import TinyRoles

PROMPTS = Prompts()
ID = re.compile(r"\[([a-z]+-\d{5})\] (?:helpful=\d+ harmful=\d+ :: )?(.*)")
KNOWN = Sample("known", "What is 1 + 1?", "2")


def item(name):
    """A question whose answer the model can read off a lesson alone."""
    return Sample(name, f"What is {name}?", f"value-{name}", facts=(name, f"value-{name}"))


def fact(name, more=""):
    return f"{name} is value-{name}{more}"


class World:
    """A model that knows what 1 + 1 is, reads lessons, reflects with the right answer, and curates what it is told.

    `lesson` maps a question's name to what the Reflector writes; `operations` maps that to the Curator's proposal.
    """

    def __init__(self, lesson=fact, operations=None, count=None, roles=JsonRoles, merge=lambda contents: "", **options):
        self.lesson, self.merge = lesson, merge
        self.operations = operations or (lambda text: [{"type": "ADD", "section": "OTHERS", "content": text}])
        self.shown = []  # what the Generator had as a playbook, call by call
        self.curated = []
        backend = ScriptedBackend(self.say)
        if count is not None:
            backend.count_tokens = count
        self.recorder = Recorder(backend, cache=False)
        self.ace = ACE(roles(Chat(self.recorder, PROMPTS, Contains())), **options)

    def say(self, request):
        system, user = request.messages[0].content, request.messages[-1].content
        everything = f"{system}\n{user}"
        name = re.search(r"What is (.+)\?", user)
        if system.startswith("You answer"):
            self.shown.append(system.partition("PLAYBOOK\n")[2].partition("\n\nReply with")[0])
            ids = [bullet for bullet, content in ID.findall(system) if content.startswith(f"{name[1]} ")]
            final = "2" if name[1] == "1 + 1" else f"value-{name[1]}" if f"value-{name[1]}" in everything else "none"
            return json.dumps({"reasoning": "", "bullet_ids": ids, "final_answer": final})
        if system.startswith("You review"):
            tag = "helpful" if "The answer is right" in user else "harmful"
            used = [bullet for bullet, _ in ID.findall(user.partition("LESSONS THAT WERE USED")[2])]
            tags = [{"id": bullet, "tag": tag} for bullet in [*used, "misc-99999"]]
            return json.dumps({"key_insight": self.lesson(name[1]), "bullet_tags": tags})
        if system.startswith("You keep a playbook"):
            self.curated.append(user)
            insight = re.search(r"key_insight: (.*)", user)
            return json.dumps({"operations": self.operations(insight[1] if insight else f"raw {name[1]}")})
        return self.merge(re.findall(r"^- (.*)$", user, re.MULTILINE))

    def learn(self, *names, step=1, steps=9):
        return self.ace.learn([item(name) for name in names], step=step, steps=steps)

    @property
    def calls(self):
        return {role: usage.calls for role, usage in self.recorder.usage.items()}

    @property
    def contents(self):
        return [bullet.content for bullet in self.ace.playbook.bullets]

    @property
    def ids(self):
        return [bullet.id for bullet in self.ace.playbook.bullets]

    @property
    def tokens(self):
        return self.ace.tokens(self.ace.playbook)


# Calls of each role (Sec. 3.4).


def test_a_right_answer_is_reflected_on_once_curated_and_looked_at_again():
    world = World()
    report = world.ace.learn([KNOWN], step=1, steps=1)
    assert world.calls == {"generator": 2, "reflector": 1, "curator": 1}
    assert (report.before, report.after, report.rounds) == ([True], [True], [1])


def test_a_wrong_answer_that_the_first_reflection_mends_takes_one_more_attempt():
    world = World()
    report = world.learn("a")
    assert world.calls == {"generator": 3, "reflector": 1, "curator": 1}
    assert (report.before, report.after, report.rounds) == ([False], [True], [1])
    assert world.contents == [fact("a")]
    assert report.operations == [{"type": "ADD", "section": "OTHERS", "content": fact("a"), "bullet": "misc-00001"}]


@pytest.mark.parametrize("rounds", [1, 3, 5])
def test_an_answer_that_never_is_right_takes_r_rounds_and_is_still_curated(rounds):
    world = World(lesson=lambda name: "be careful", rounds=rounds)
    report = world.learn("a")
    assert world.calls == {"generator": 1 + rounds + 1, "reflector": rounds, "curator": 1}
    assert (report.before, report.after, report.rounds) == ([False], [False], [rounds])
    assert world.contents == ["be careful"]


def test_without_a_reflection_that_can_be_read_nothing_is_curated_or_learned():
    world = World()
    plain = world.say
    world.recorder.backend.answer = lambda r: "hm" if r.messages[0].content.startswith("You review") else plain(r)
    report = world.learn("a")
    assert world.calls == {"generator": 2, "reflector": 3}
    assert report.refused == ["a: the reflection cannot be read"]
    assert (len(world.ace.playbook), world.ace.learned) == (0, [])
    assert world.ace.roles.chat.unreadable == {"reflector": 3}


def test_answers_after_the_step_can_be_left_out():
    world = World(look_after=False)
    assert world.learn("a").after == []
    assert world.calls == {"generator": 2, "reflector": 1, "curator": 1}


def test_without_a_reflector_the_curator_sees_the_raw_trace_and_nothing_is_tagged():
    world = World(reflector=False)
    report = world.learn("a")
    assert world.calls == {"generator": 2, "curator": 1}
    assert report.rounds == [0]
    assert world.contents == ["raw a"]
    for told in ("question: What is a?", "answer: none", "The right answer: value-a"):
        assert told in world.curated[0]


@pytest.mark.parametrize("frequency", [1, 2, 3])
def test_the_curator_is_asked_at_every_so_manyth_step_alone(frequency):
    world = World(curator_frequency=frequency)
    for step in range(1, 8):
        report = world.learn(str(step), step=step)
        assert bool(report.operations) == (step % frequency == 0)
    assert [bullet.step for bullet in world.ace.playbook.bullets] == list(range(frequency, 8, frequency))
    assert world.calls["curator"] == 7 // frequency
    assert world.calls["reflector"] == 7


def test_scoring_asks_the_generator_once_and_learns_nothing():
    world = World()
    before = world.ace.state()
    attempts = world.ace.answer([KNOWN, item("a")], step=0)
    assert [attempt.answer for attempt in attempts] == ["2", "none"]
    assert (world.calls, world.ace.state()) == ({"evaluation": 2}, before)


# Counters (Sec. 3.4).


def start(*bullets, name="OTHERS", next_id=None):
    """The file of a playbook to start from."""
    return Playbook((Section(name, tuple(bullets)),), next_id or len(bullets) + 1).to_json()


def world_from(tmp_path, text, **options):
    (tmp_path / "start.json").write_text(text)
    return World(playbook=tmp_path / "start.json", **options)


def counters(world):
    return {bullet.id: (bullet.helpful, bullet.harmful) for bullet in world.ace.playbook.bullets}


def test_what_was_used_for_a_right_answer_gains_one_helpful_and_others_nothing(tmp_path):
    world = world_from(tmp_path, start(Bullet("misc-00001", fact("a")), Bullet("misc-00002", fact("b"), 4, 2)))
    for step in (1, 2):
        assert world.learn("a", step=step).before == [True]
    assert counters(world) == {"misc-00001": (2, 0), "misc-00002": (4, 2)}


def test_what_misled_gains_one_harmful_for_each_reflection_that_says_so(tmp_path):
    world = world_from(tmp_path, start(Bullet("misc-00001", "a is 7")), lesson=lambda name: "be careful", rounds=3)
    world.learn("a")
    assert counters(world) == {"misc-00001": (0, 3), "misc-00002": (0, 0)}


def test_samples_of_a_batch_each_count(tmp_path):
    world = world_from(tmp_path, start(Bullet("misc-00001", fact("a"))))
    world.ace.learn([item("a"), Sample("again", "What is a?", "value-a")], step=1, steps=1)
    assert counters(world)["misc-00001"] == (2, 0)


# Deltas of several samples.


def test_a_batch_is_made_side_by_side_from_one_playbook_and_its_deltas_are_merged_in_order():
    world = World()
    report = world.learn("a", "b", "c")
    assert world.contents == [fact("a"), fact("b"), fact("c")]
    assert world.ids == ["misc-00001", "misc-00002", "misc-00003"]
    assert {bullet.step for bullet in world.ace.playbook.bullets} == {1}
    assert (report.before, report.after, report.rounds) == ([False] * 3, [True] * 3, [1] * 3)
    assert all("It has 0 lessons" in user for user in world.curated)  # no one sees the others' deltas
    assert world.calls == {"generator": 9, "reflector": 3, "curator": 3}
    assert world.ace.learned == [("a", "value-a"), ("b", "value-b"), ("c", "value-c")]


def test_the_same_lesson_of_two_samples_is_kept_once_and_the_other_is_reported():
    world = World(lesson=lambda name: "be careful")
    report = world.learn("a", "b")
    assert world.contents == ["be careful"]
    assert report.refused == ["a bullet with this content is there already"]
    assert world.ace.learned == [("a", "value-a")]


def test_one_bad_operation_is_reported_with_its_sample_and_the_rest_apply():
    def operations(text):
        return [
            {"type": "DELETE", "id": "misc-00077"},
            {"type": "ADD", "section": "No such section", "content": text},
            {"type": "RENAME"},
        ]

    world = World(operations=operations)
    report = world.learn("a")
    assert world.contents == [fact("a")]
    assert report.refused[0].startswith("a: operation 3 is not valid")
    assert report.refused[1:] == ["there is no bullet misc-00077"]


# Ids (Sec. 3.7, item 1).


def test_ids_go_on_after_a_playbook_was_loaded_and_those_of_deleted_bullets_stay_unused(tmp_path):
    text = start(Bullet("misc-00004", "old"), Bullet("misc-00002", "older"), next_id=9)
    world = world_from(tmp_path, text)
    world.learn("a")
    world.learn("b", step=2)
    assert world.ids == ["misc-00004", "misc-00002", "misc-00009", "misc-00010"]
    (tmp_path / "start.md").write_text("## OTHERS\n[misc-00004] helpful=0 harmful=0 :: old\n")
    text_form = World(playbook=tmp_path / "start.md")
    text_form.learn("a")
    assert text_form.ids == ["misc-00004", "misc-00005"]


def test_ids_go_on_after_the_state_was_saved_and_loaded_through_json():
    deletes = [{"type": "DELETE", "id": "misc-00002"}]
    world = World(operations=lambda t: deletes if "x" in t else [{"type": "ADD", "section": "OTHERS", "content": t}])
    for step, name in enumerate("abx", 1):
        world.learn(name, step=step)
    resumed = World()
    resumed.ace.load_state(json.loads(json.dumps(world.ace.state())))
    assert resumed.ace.state() == world.ace.state()
    assert resumed.ace.playbook == world.ace.playbook
    assert resumed.ace.learned == world.ace.learned
    resumed.learn("c", step=4)
    assert resumed.ids == ["misc-00001", "misc-00003"]


def test_ids_go_on_after_similar_bullets_were_merged():
    world = World(lesson=lambda name: f"the sum of the rows, remark {name}", refinement="proactive", similarity=0.5)
    for step, name in enumerate("abc", 1):
        report = world.learn(name, step=step)
    assert world.ids == ["misc-00001"]
    assert report.merged == [["misc-00001", "misc-00003"]]
    world.lesson = lambda name: "Zebras!"
    world.learn("d", step=4)
    assert world.ids == ["misc-00001", "misc-00004"]


# Budget and refinement (Sec. 3.5).

HEADERS = 28  # words of the seven headers of an empty playbook


def test_the_headers_of_an_empty_playbook_are_as_long_as_said_above():
    assert World().tokens == HEADERS


def test_after_every_step_the_playbook_is_within_the_budget_and_the_newest_lesson_is_in_it():
    world = World(budget=HEADERS + 20, refinement="never")  # a lesson of n words takes 4 + n
    for step in range(1, 13):
        name = f"n{step}"
        world.lesson = lambda name: fact(name, " so" * (step % 4))  # noqa: B023
        report = world.learn(name, step=step)
        assert world.tokens <= HEADERS + 20
        assert report.operations[0]["bullet"] in world.ids
        assert not set(report.dropped) & set(world.ids)
    assert world.ids == [f"misc-{step:05d}" for step in (11, 12)]  # 4 + 3 + 3 and 4 + 3 + 0 words; with 10 it is 26


def test_what_misled_most_is_dropped_first(tmp_path):
    bullets = [Bullet("misc-00001", "x y", 0, 0), Bullet("misc-00002", "x z", 1, 3), Bullet("misc-00003", "y z", 5, 1)]
    world = world_from(tmp_path, start(*bullets), budget=2 + 6 + 6 + 7)
    assert world.learn("a").dropped == ["misc-00002"]


def test_one_step_longer_than_the_budget_loses_what_was_added_last():
    world = World(budget=HEADERS + 15)
    report = world.learn("a", "b", "c")
    assert (world.contents, report.dropped) == ([fact("a"), fact("b")], ["misc-00003"])


def test_the_budget_holds_at_steps_without_curation_too_where_counters_grow(tmp_path):
    bullets = [Bullet("misc-00001", fact("a"), 9, 0), Bullet("misc-00002", fact("b"), 0, 0)]
    text = start(*bullets)
    world = world_from(tmp_path, text, count=len, curator_frequency=100, budget=10**6)
    world.ace.budget = world.tokens  # in characters; helpful=10 is one more than helpful=9
    assert world.learn("a").dropped == ["misc-00002"]
    assert world.tokens <= world.ace.budget


def test_a_playbook_that_is_too_long_from_the_start_is_pruned_at_the_first_step(tmp_path):
    bullets = [Bullet(f"misc-{i:05d}", f"lesson {i}") for i in range(1, 9)]
    world = world_from(tmp_path, start(*bullets), budget=2 + 3 * 6, curator_frequency=5, refinement="never")
    world.ace.learn([KNOWN], step=1, steps=1)
    assert world.ids == ["misc-00006", "misc-00007", "misc-00008"]


@pytest.mark.parametrize("refinement", ["never", "lazy", "proactive"])
@pytest.mark.parametrize("tight", [False, True])
def test_similar_bullets_are_merged_never_if_it_is_too_long_or_always(refinement, tight):
    world = World(lesson=lambda name: f"remark {name}", refinement=refinement, similarity=0.3)
    world.learn("a")
    world.ace.budget = HEADERS + (11 if tight else 12)
    report = world.learn("b", step=2)
    merged = refinement == "proactive" or (refinement == "lazy" and tight)
    assert report.merged == ([["misc-00001", "misc-00002"]] if merged else [])
    assert report.dropped == (["misc-00001"] if tight and not merged else [])
    assert world.contents == (["remark a"] if merged else ["remark b"] if tight else ["remark a", "remark b"])


def test_a_bullet_that_stands_for_several_can_be_written_by_the_model():
    world = World(
        lesson=lambda name: f"remark {name}", merge=" and ".join, refinement="proactive", similarity=0.3,
        rewrite_merged=True,
    )  # fmt: skip
    world.learn("a")
    world.learn("b", step=2)
    assert world.contents == ["remark a and remark b"]
    assert world.calls["merger"] == 1


def test_a_merge_that_the_model_does_not_manage_loses_nothing():
    world = World(lesson=lambda name: f"remark {name}", refinement="proactive", similarity=0.3, rewrite_merged=True)
    world.learn("a", "b")
    assert world.contents == ["remark a", "remark b"]


def test_the_budget_holds_where_the_model_writes_more_than_it_merges(tmp_path):
    text = start(Bullet("misc-00001", "alpha"), Bullet("misc-00002", "remark a"), Bullet("misc-00003", "remark b"))
    world = world_from(
        tmp_path, text, merge=lambda contents: "long " * 20, refinement="proactive", similarity=0.3,
        rewrite_merged=True, budget=25, operations=lambda text: [],
    )  # fmt: skip
    report = world.ace.learn([KNOWN], step=1, steps=1)
    assert report.merged
    assert world.tokens <= 25


# Retrieval (ablation).


def angles(texts):
    """Embed "... at 30 degrees" as a unit vector of that angle."""
    radians = np.radians([float(re.search(r"at (-?\d+) degrees", text)[1]) for text in texts])
    return np.stack([np.cos(radians), np.sin(radians)], axis=1).astype(np.float32)


@pytest.mark.parametrize(
    ("k", "shown"), [(1, [2]), (2, [1, 2]), (3, [1, 2, 4]), (4, [1, 2, 3, 4]), (9, [1, 2, 3, 4]), (None, [1, 2, 3, 4])]
)
def test_exactly_the_k_most_similar_bullets_are_shown_in_the_playbooks_order(tmp_path, k, shown):
    bullets = [Bullet(f"misc-{i:05d}", f"at {degrees} degrees") for i, degrees in enumerate((40, 25, 90, -15), 1)]
    world = world_from(tmp_path, start(*bullets), retrieve=k, embedder=angles)
    world.ace.answer([Sample("s", "What is at 30 degrees?", "x")], step=0)
    assert [int(bullet[-5:]) for bullet, _ in ID.findall(world.shown[0])] == shown


def test_of_equally_similar_bullets_the_first_are_shown_and_each_sample_has_its_own(tmp_path):
    bullets = [Bullet(f"misc-{i:05d}", f"at {degrees} degrees, {i}") for i, degrees in enumerate((60, 0, 60, 60), 1)]
    world = world_from(tmp_path, start(*bullets), retrieve=2, embedder=angles)
    world.ace.answer([Sample(str(d), f"What is at {d} degrees?", "x") for d in (60, 0)], step=0)
    shown = [[int(bullet[-5:]) for bullet, _ in ID.findall(text)] for text in world.shown]
    assert shown == [[1, 3], [1, 2]]


# Options.


def test_the_sections_are_those_of_the_task():
    assert World(sections="appworld").ace.playbook.sections[0].name == "STRATEGIES AND HARD RULES"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": 0}, "rounds must be at least 1, got 0"),
        ({"curator_frequency": 0}, "curator_frequency must be at least 1, got 0"),
        ({"budget": 0}, "budget must be at least 1, got 0"),
        ({"retrieve": 0}, "retrieve must be at least 1, got 0"),
        ({"similarity": 0.0}, "similarity must be above 0, got 0.0"),
        ({"similarity": float("nan")}, "similarity must be above 0, got nan"),
        ({"refinement": "eager"}, "refinement must be one of never, lazy, proactive, got 'eager'"),
        ({"sections": "law"}, "sections must be one of finance, appworld, got 'law'"),
        ({"feedback": "all"}, "feedback must be one of label, match_bit, execution, none, got 'all'"),
        ({"feedback": "none", "roles": TinyRoles}, "TinyRoles reflect with the right answer"),
    ],
)
def test_an_option_out_of_range_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        World(**options)
