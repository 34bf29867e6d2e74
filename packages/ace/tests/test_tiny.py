"""Roles for the smallest models: lessons in a sentence, accepted if they mend the answer, and curated by code."""

import pytest
from ace.completion import Completion, failed
from ace.operations import Add
from ace.playbook import Bullet, Playbook, Section
from ace.prompts import Prompts
from ace.recording import Recorder
from ace.roles import Attempt, Case, Chat, Reflection
from ace.scripted import ScriptedBackend
from ace.tasks import Contains, Sample
from ace.tiny import TinyRoles, first_line, overlap, words_of

PROMPTS = Prompts()
CHAD = Sample("chad", "What is the capital of Chad?", "N'Djamena", facts=("Chad", "N'Djamena"))
FACT = "The capital of Chad is N'Djamena."
BOOK = Playbook(
    (
        Section("CONTEXT CLUES & INDICATORS", (Bullet("ctx-00003", FACT),)),
        Section("OTHERS", (Bullet("misc-00001", "Oman uses\nthe OMR.", 2, 1),)),
    ),
    next_id=4,
)


class Scripted:
    """Roles over a function, with every request that it saw."""

    def __init__(self, answer="", seed=0, **options):
        self.requests = []

        def say(request):
            self.requests.append(request)
            return answer(request) if callable(answer) else answer

        chat = Chat(Recorder(ScriptedBackend(say), cache=False), PROMPTS, Contains(name="country"), seed)
        self.roles = TinyRoles(chat, **options)

    @property
    def last(self):
        return self.requests[-1].messages[-1].content


def case_of(right, answer="It is Chad.", ids=("ctx-00003",)):
    return Case(CHAD, Attempt(answer, bullet_ids=ids), "", target=CHAD.target, right=right)


def test_a_playbook_is_shown_in_the_order_of_its_ids_without_headers_and_counters():
    assert Scripted().roles.render(BOOK) == f"- Oman uses the OMR.\n- {FACT}"


def test_playbook_and_question_are_in_the_prompt_and_the_limit_is_in_tokens():
    model = Scripted("The capital.", answer_tokens=7)
    [attempt] = model.roles.answer([CHAD], [f"- {FACT}"], step=1)
    assert attempt == Attempt("The capital.")
    [request] = model.requests
    assert request.messages[0].content.endswith(f"The internet domain of Italy is .it.\n- {FACT}")
    assert (model.last, request.max_tokens, request.temperature) == (CHAD.question, 7, 0.0)


@pytest.mark.parametrize(("said", "error"), [("", "no answer"), (" \n", "no answer"), (failed("too long"), "too long")])
def test_a_blank_answer_is_a_failure_with_a_reason(said, error):
    assert Scripted(said).roles.answer([CHAD], [""], step=1) == [Attempt("", error=error)]


def test_an_answer_is_tried_again_with_the_new_lesson_alone():
    model = Scripted("x")
    model.roles.answer_again([CHAD], [f"- {FACT}"], [Reflection("t", lesson="Chad has a capital.")], step=1)
    assert model.requests[0].messages[0].content.endswith("Italy is .it.\n- Chad has a capital.")
    assert FACT not in model.requests[0].messages[0].content


@pytest.mark.parametrize(
    ("answer", "used"),
    [
        (FACT, ("ctx-00003",)),
        ("The capital of Chad is Abuja.", ("ctx-00003",)),  # 5 words in common of 8
        ("The capital of Niger is Niamey.", ()),  # 4 of 9
        ("OMR Oman THE uses", ("misc-00001",)),
        ("", ()),
    ],
)
def test_a_bullet_counts_as_used_if_six_tenths_of_the_words_of_both_are_common(answer, used):
    assert Scripted().roles.used(Attempt(answer), BOOK) == used


def test_overlap_is_intersection_over_union_and_keeps_the_stop_of_a_domain():
    assert overlap({"a", "b"}, {"b", "c"}) == 1 / 3
    assert overlap(set(), set()) == 0
    assert words_of("Sites of Chad end in .td.") == {"sites", "of", "chad", "end", "in", ".td"}


@pytest.mark.parametrize(
    ("completion", "line"),
    [
        (Completion(f"{FACT}\nQuestion: more", 1, 1, "length"), FACT),
        (Completion(f"\n {FACT} ", 1, 1), FACT),
        (Completion("The capital of", 1, 1, "length"), ""),
        (Completion("", 1, 0), ""),
        (failed("no"), ""),
    ],
)
def test_a_lesson_is_the_first_line_unless_it_was_cut_within_it(completion, line):
    assert first_line(completion) == line


def test_lessons_are_the_most_probable_at_first_and_drawn_in_later_rounds_each_with_its_own_seed():
    model = Scripted(FACT)
    other = Case(Sample("oman", CHAD.question, "Muscat"), Attempt("no"), "", target="Muscat", right=False)
    for attempt in range(3):
        model.roles.reflect([case_of(False), other], step=4, attempt=attempt)
    assert [request.temperature for request in model.requests] == [0, 0, 0.7, 0.7, 0.7, 0.7]
    assert [request.seed for request in model.requests[:2]] == [0, 0]
    assert len({request.seed for request in model.requests[2:]}) == 4
    again = Scripted(FACT)
    again.roles.reflect([other], step=9, attempt=1)
    assert again.requests[0].seed == model.requests[3].seed  # neither the step nor the batch plays a part
    elsewhere = Scripted(FACT, seed=1)
    elsewhere.roles.reflect([other], step=4, attempt=1)
    assert elsewhere.requests[0].seed != model.requests[3].seed


@pytest.mark.parametrize(("right", "tag"), [(True, "helpful"), (False, "harmful"), (None, "neutral")])
def test_used_bullets_are_tagged_by_the_verdict(right, tag):
    [reflection] = Scripted(FACT).roles.reflect([case_of(right)], step=1, attempt=0)
    assert reflection.tags == {"ctx-00003": tag}
    assert reflection.lesson == FACT


def test_the_lesson_is_asked_for_with_the_question_and_the_right_answer():
    model = Scripted(FACT)
    model.roles.reflect([case_of(False, answer="It is Abuja.")], step=1, attempt=0)
    assert model.last == f"Question: {CHAD.question}\nCorrect answer: {CHAD.target}"
    assert "Abuja" not in "".join(message.content for message in model.requests[0].messages)


def test_without_a_lesson_a_wrong_answer_has_no_reflection_and_a_right_one_still_tags():
    [wrong, right] = Scripted(Completion("cut", 1, 1, "length")).roles.reflect(
        [case_of(False), case_of(True)], step=1, attempt=0
    )
    assert wrong is None
    assert right == Reflection("", {"ctx-00003": "helpful"}, "")


def test_right_answers_are_no_occasion_for_lessons_unless_asked():
    model = Scripted(FACT, from_right=False)
    [reflection] = model.roles.reflect([case_of(True)], step=1, attempt=0)
    assert (model.requests, reflection.lesson) == ([], "")


@pytest.mark.parametrize(
    ("right", "lesson", "options", "refused"),
    [
        (False, FACT, {}, True),  # with this very lesson the answer was wrong
        (True, FACT, {}, False),
        (True, "Chad is in Africa.", {}, True),
        (True, "", {}, False),
        (False, "", {}, False),
        (False, "Chad is in Africa.", {"verify": False}, False),
    ],
)
def test_a_lesson_is_refused_if_it_does_not_mend_the_answer_or_does_not_say_it(right, lesson, options, refused):
    reason = Scripted(**options).roles.refusal(case_of(right), Reflection(lesson, lesson=lesson))
    assert (reason is not None) == refused
    assert reason is None or lesson in reason


def test_the_curator_is_code_that_adds_the_lesson():
    model = Scripted(section="OTHERS")
    curated = [
        model.roles.curate(BOOK, case_of(True), Reflection("", lesson=lesson), budget=9, step=1, steps=1)
        for lesson in (FACT, "")
    ]
    assert curated == [([Add(section="OTHERS", content=FACT)], []), ([], [])]
    assert model.requests == []


def test_the_raw_trace_is_question_and_answer():
    reflection = Scripted().roles.without_reflector(case_of(False))
    assert reflection.lesson == reflection.text == "What is the capital of Chad? N'Djamena"


def test_demonstrations_are_questions_with_their_answers():
    assert Scripted().roles.examples([CHAD, CHAD]) == "\n".join(["- What is the capital of Chad? N'Djamena"] * 2)


@pytest.mark.parametrize(
    ("said", "tags", "sheet"),
    [
        ("<cheatsheet>\n- a\n- b\n</cheatsheet>", True, "- a\n- b"),
        ("- a\n- b", True, None),
        ("- a\n- b", False, "- a\n- b"),
        ("<cheatsheet>\n- a", False, "- a"),
        ("<cheatsheet>\n- a", True, None),
        (" ", False, None),
        (failed("no"), False, None),
    ],
)
def test_a_rewritten_list_must_be_in_its_tags_unless_they_are_not_required(said, tags, sheet):
    model = Scripted(said, require_tags=tags)
    assert model.roles.rewrite("- old", case_of(True), Reflection("", lesson=FACT), budget=30, step=1) == sheet
    assert model.last == f"List:\n- old\nNew fact: {FACT}"
    assert model.requests[0].max_tokens == 30


@pytest.mark.parametrize("reflection", [None, Reflection("", lesson="")])
def test_without_a_lesson_the_list_stays_and_no_call_is_made(reflection):
    model = Scripted("<cheatsheet>new</cheatsheet>")
    assert model.roles.rewrite("- old", case_of(True), reflection, budget=30, step=1) is None
    assert model.requests == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"answer_tokens": 0}, "answer_tokens must be at least 1, got 0"),
        ({"lesson_tokens": 0}, "lesson_tokens must be at least 1, got 0"),
        ({"temperature": float("nan")}, "temperature must be a finite number >= 0, got nan"),
    ],
)
def test_an_option_out_of_range_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        Scripted(**options)
