"""The JSON roles: how answers are read, what is sent, and what the Reflector never sees."""

import json

import pytest
from ace.completion import Completion, failed
from ace.operations import Add, Delete, Merge, Update
from ace.playbook import Bullet, Playbook, Section
from ace.prompts import Prompts
from ace.recording import Recorder
from ace.reflection import judge
from ace.roles import (
    Attempt,
    Case,
    Chat,
    CuratorAnswer,
    GeneratorAnswer,
    JsonRoles,
    Reflection,
    ReflectorAnswer,
    as_text,
    tagged_sheet,
    tags_of,
)
from ace.scripted import ScriptedBackend
from ace.tasks import ExactMatch, Sample

PROMPTS = Prompts()
SAMPLE = Sample("s1", "What is 6 * 7?", "42", context="Arithmetic.")
BOOK = Playbook(
    (
        Section("FORMULAS & CALCULATIONS", (Bullet("calc-00001", "multiply", 3, 1), Bullet("calc-00004", "carry"))),
        Section("OTHERS", (Bullet("misc-00002", "check"),)),
    ),
    next_id=5,
)
CASE = Case(SAMPLE, Attempt("41", "I added"), "The answer is wrong.")


class Scripted:
    """Roles over a function, with every request that it saw."""

    def __init__(self, answer, seed=0, **options):
        self.requests = []

        def say(request):
            self.requests.append(request)
            return answer(request) if callable(answer) else answer

        self.chat = Chat(Recorder(ScriptedBackend(say), cache=False), PROMPTS, ExactMatch(), seed)
        self.roles = JsonRoles(self.chat, **options)

    def attempt(self, playbook=""):
        [attempt] = self.roles.answer([SAMPLE], [playbook], step=1)
        return attempt

    def reflection(self, case=CASE):
        [reflection] = self.roles.reflect([case], step=1, attempt=0)
        return reflection

    def curated(self, book=BOOK):
        return self.roles.curate(book, CASE, Reflection("add, do not multiply"), budget=900, step=3, steps=8)

    @property
    def unreadable(self):
        return dict(self.chat.unreadable)

    @property
    def asked(self):
        return "\n".join(message.content for request in self.requests for message in request.messages)


def answer(final, ids=(), reasoning="so"):
    return json.dumps({"reasoning": reasoning, "bullet_ids": list(ids), "final_answer": final})


# Reading answers.

WHOLE = answer("42", ["calc-00001"])


@pytest.mark.parametrize(
    "text", [WHOLE, f"```json\n{WHOLE}\n```", f"Let me think.\n{WHOLE}\nDone.", f"[{WHOLE}]", WHOLE[:-1] + ",}"]
)
def test_an_answer_is_read_bare_fenced_amid_prose_in_a_list_and_with_a_slip(text):
    model = Scripted(text)
    assert model.attempt() == Attempt("42", "so", ("calc-00001",))
    assert model.unreadable == {}


def test_an_answer_that_was_cut_anywhere_is_no_answer_and_is_counted():
    for kept in range(1, len(WHOLE)):
        model = Scripted(Completion(WHOLE[:kept], 10, 5, "length"))
        assert model.attempt() == Attempt("", WHOLE[:kept], error="the answer was cut")
        assert model.unreadable == {"generator": 1}


def test_an_answer_that_ends_just_at_the_limit_is_whole():
    assert Scripted(Completion(WHOLE, 10, 5, "length")).attempt().answer == "42"


@pytest.mark.parametrize(
    "text", ["", "It is 42.", "42", '["42"]', "{}", '{"reasoning": "so"}', answer(None), answer(" ")]
)
def test_an_answer_without_an_answer_is_a_failure_with_a_reason(text):
    attempt = Scripted(text).attempt()
    assert attempt.answer == ""
    assert attempt.error


def test_a_failed_call_keeps_its_reason_and_is_not_unreadable():
    model = Scripted(failed("the server is busy"))
    assert model.attempt() == Attempt("", error="the server is busy")
    assert model.unreadable == {}
    assert model.reflection() is None
    assert model.curated() == ([], ["the server is busy"])
    assert model.unreadable == {}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("  42 ", "42"),
        (42, "42"),
        (0.07, "0.07"),
        (True, "true"),
        (None, ""),
        (["Revenues", "Goodwill"], "Revenues, Goodwill"),
        ([1, 2.5], "1, 2.5"),
        ([], ""),
        ({"tag": "Umsätze"}, '{"tag": "Umsätze"}'),
        ([["a"], "b"], '[["a"], "b"]'),
    ],
)
def test_an_answer_that_is_no_string_becomes_the_text_that_a_person_would_write(value, text):
    assert as_text(value) == text


# Bullets that were used (Sec. 3.7, item 2).


@pytest.mark.parametrize(
    ("ids", "reasoning", "used"),
    [
        (["calc-00001", "misc-00002"], "", ("calc-00001", "misc-00002")),
        (["[misc-00002]", "calc-00001 helpful=3"], "", ("misc-00002", "calc-00001")),
        (["calc-00003", "calc-1", "Calc-00001"], "", ()),  # 3 was deleted
        (["calc-00001", "calc-00001"], "", ("calc-00001",)),
        (["calc-00001"], "I also saw misc-00002", ("calc-00001",)),
        ([], 'as ["calc-00004", ...] says', ("calc-00004",)),
        ("calc-00004", "", ()),
        (None, "see [calc-00004] and calc-000011", ("calc-00004",)),
    ],
)
def test_ids_are_seen_in_the_list_or_else_in_the_reasoning_if_there_are_such_bullets(ids, reasoning, used):
    text = json.dumps({"reasoning": reasoning, "bullet_ids": ids, "final_answer": "42"})
    model = Scripted(text)
    assert model.roles.used(model.attempt(), BOOK) == used


def test_the_reflector_is_shown_the_bullets_that_were_used_with_their_ids():
    model = Scripted(answer("41", ["misc-00002", "calc-00001"]))
    [case] = judge(model.roles, [SAMPLE], [model.attempt()], "label", BOOK)
    assert case.bullets == "[misc-00002] check\n[calc-00001] multiply"
    assert case.attempt.bullet_ids == ("misc-00002", "calc-00001")


# Reflections.


def test_a_reflection_is_its_fields_without_the_tags_and_the_lesson_is_its_key_insight():
    fields = {"reasoning": "r", "error_identification": "e", "root_cause_analysis": None, "key_insight": "k"}
    tags = [{"id": "calc-00001", "tag": "harmful"}]
    reflection = Scripted(json.dumps({**fields, "bullet_tags": tags})).reflection()
    assert reflection.text == "reasoning: r\nerror_identification: e\nroot_cause_analysis: \nkey_insight: k"
    assert (reflection.tags, reflection.lesson) == ({"calc-00001": "harmful"}, "k")


def test_of_an_id_that_is_tagged_twice_the_last_tag_counts_and_malformed_tags_are_left_out():
    raw = [
        {"id": "calc-00001", "tag": "helpful"},
        {"id": "[calc-00004]", "tag": " Harmful "},
        {"id": "misc-00002", "tag": "useless"},
        {"id": "calc-00001", "tag": "neutral"},
        {"id": 7, "tag": "helpful"},
        {"tag": "helpful"},
        {"id": "calc-00009"},
        "calc-00001",
        None,
    ]
    assert tags_of(raw) == {"calc-00001": "neutral", "calc-00004": "harmful"}
    assert tags_of({"calc-00001": "helpful"}) == tags_of(None) == tags_of("calc-00001") == {}


def test_a_reflection_that_cannot_be_read_or_was_cut_is_none_and_counted():
    whole = json.dumps({"reasoning": "r", "key_insight": "k", "bullet_tags": [{"id": "calc-00001", "tag": "harmful"}]})
    for text, reason in (("I think so.", "stop"), (whole[:-3], "length")):
        model = Scripted(Completion(text, 1, 1, reason))
        assert model.reflection() is None
        assert model.unreadable == {"reflector": 1}


@pytest.mark.parametrize("kind", ["label", "match_bit", "execution", "none"])
@pytest.mark.parametrize("final", ["42", "forty-one"])
def test_without_labels_no_message_holds_the_target_and_without_feedback_no_verdict(kind, final):
    sample = Sample("s1", "What is six times seven?", "TARGET", context="Arithmetic.")
    task = ExactMatch()
    right = task.correct(sample, final)
    model = Scripted(json.dumps({"reasoning": "r", "final_answer": final, "operations": []}))
    [attempt] = model.roles.answer([sample], [model.roles.render(BOOK)], step=1)
    attempt = Attempt(attempt.answer, attempt.reasoning, execution="it ran", passed=not right)
    [case] = judge(model.roles, [sample], [attempt], kind, BOOK)
    [reflection] = model.roles.reflect([case], step=1, attempt=0)
    model.roles.curate(BOOK, case, reflection, budget=9, step=1, steps=1)
    model.roles.curate(BOOK, case, model.roles.without_reflector(case), budget=9, step=1, steps=1)
    model.roles.answer_again([sample], [""], [reflection], step=1)
    model.roles.rewrite("sheet", case, reflection, budget=9, step=1)
    assert len(model.requests) == 6
    assert ("TARGET" in model.asked) == (kind == "label")
    verdict = "The answer is right" in model.asked or "The answer is wrong" in model.asked
    assert verdict == (kind in ("label", "match_bit"))
    assert ("it ran" in model.asked) == (kind == "execution")
    assert (case.right is None) == (kind in ("execution", "none"))


def test_an_environments_own_verdict_goes_before_the_comparison_with_the_target():
    model = Scripted("")
    attempts = [Attempt("42", passed=False), Attempt("41", passed=True), Attempt("42")]
    cases = judge(model.roles, [SAMPLE] * 3, attempts, "match_bit", BOOK)
    assert [case.right for case in cases] == [False, True, True]


# The Curator.


def test_the_curators_operations_are_parsed_each_alone():
    raw = [
        {"type": "ADD", "section": "OTHERS", "content": "new", "id": "ignored"},
        {"type": "update", "id": "calc-00001", "content": "changed"},
        {"type": "MERGE", "ids": ["calc-00001", "calc-00004"], "content": "both"},
        {"type": "DELETE", "id": "misc-00002"},
        {"type": "RENAME", "id": "misc-00002"},
        {"type": "ADD", "section": "OTHERS"},
    ]
    operations, rejected = Scripted(json.dumps({"reasoning": "r", "operations": raw})).curated()
    assert operations == [
        Add(section="OTHERS", content="new"),
        Update(id="calc-00001", content="changed"),
        Merge(ids=("calc-00001", "calc-00004"), content="both"),
        Delete(id="misc-00002"),
    ]
    assert len(rejected) == 2
    assert "operation 5" in rejected[0]
    assert "operation 6" in rejected[1]


def test_the_curator_may_leave_all_as_it_is():
    assert Scripted('{"reasoning": "nothing is missing", "operations": []}').curated() == ([], [])
    assert Scripted('{"reasoning": "nothing is missing"}').curated() == ([], [])


def test_a_cut_proposal_is_not_applied_by_halves():
    whole = json.dumps({"operations": [{"type": "ADD", "section": "OTHERS", "content": text} for text in "ab"]})
    for kept in range(1, len(whole)):
        model = Scripted(Completion(whole[:kept], 1, 1, "length"))
        assert model.curated() == ([], ["the Curator's answer is not JSON, or was cut"])
        assert model.unreadable == {"curator": 1}


def test_the_curator_is_told_counters_tokens_budget_step_and_question():
    model = Scripted('{"operations": []}')
    model.curated()
    tokens = len(model.roles.render(BOOK).split())
    for told in ("3 lessons, tagged 3 times as helpful and 1 as harmful", f"{tokens} of at most 900 tokens"):
        assert told in model.asked
    assert "step 3 of 8" in model.asked.lower()
    for told in (model.roles.render(BOOK), "add, do not multiply", SAMPLE.question, SAMPLE.context):
        assert told in model.asked


# What is sent.


def test_the_playbook_comes_before_reflection_and_question_so_that_prompts_share_their_beginning():
    model = Scripted(WHOLE)
    text = model.roles.render(BOOK)
    model.roles.answer([SAMPLE, Sample("s2", "Other?", "1")], [text] * 2, step=1)
    first, second = ("".join(m.content for m in request.messages) for request in model.requests)
    assert first[: first.index(text) + len(text)] == second[: second.index(text) + len(text)]
    assert first.index(text) < first.index(SAMPLE.question)


def test_in_the_order_of_ids_without_counters_a_new_bullet_lengthens_the_playbook_at_its_end():
    roles = Scripted("", order="ids", counters=False).roles
    longer = Playbook(
        (Section(BOOK.sections[0].name, (*BOOK.sections[0].bullets, Bullet("calc-00005", "new"))), BOOK.sections[1]), 6
    ).tagged({"calc-00001": "helpful"})
    assert roles.render(longer) == roles.render(BOOK) + "\n[calc-00005] new"
    assert not Scripted("").roles.render(longer).startswith(Scripted("").roles.render(BOOK))


def test_schemas_are_sent_only_if_answers_are_constrained_and_hold_for_the_answers_that_are_wanted():
    operations = [
        {"type": "ADD", "section": "OTHERS", "content": "c"},
        {"type": "UPDATE", "id": "calc-00001", "content": "c"},
        {"type": "MERGE", "ids": ["calc-00001", "calc-00004"], "content": "c"},
        {"type": "DELETE", "id": "calc-00001"},
    ]
    reflection = dict.fromkeys(list(ReflectorAnswer.model_fields)[:-1], "t")
    wanted = [
        json.loads(WHOLE),
        {**reflection, "bullet_tags": [{"id": "calc-00001", "tag": "neutral"}]},
        {"reasoning": "r", "operations": operations},
    ]
    jsonschema = pytest.importorskip("jsonschema")  # a development tool of the workspace
    free, bound = Scripted("{}"), Scripted("{}", constrained=True)
    for model in (free, bound):
        model.attempt()
        model.reflection()
        model.curated()
    assert [request.json_schema for request in free.requests] == [None] * 3
    for request, good in zip(bound.requests, wanted, strict=True):
        schema = json.loads(request.json_schema)
        jsonschema.Draft202012Validator.check_schema(schema)
        validator = jsonschema.Draft202012Validator(schema)
        assert validator.is_valid(good)
        for left_out in good:
            assert not validator.is_valid({key: value for key, value in good.items() if key != left_out})
        assert not validator.is_valid({**good, "more": 1})
    for model, good in zip((GeneratorAnswer, ReflectorAnswer, CuratorAnswer), wanted, strict=True):
        assert json.loads(model.model_validate(good).model_dump_json()) == good


def seeds_of(seed=0, step=1, samples=(SAMPLE,), temperature=0.7):
    model = Scripted(WHOLE, seed, temperature=temperature)
    model.roles.answer(samples, [""] * len(samples), step=step)
    return [request.seed for request in model.requests]


def test_draws_are_a_function_of_seed_step_role_and_sample():
    other = Sample("s2", SAMPLE.question, "42", SAMPLE.context)
    [base] = seeds_of()
    assert seeds_of() == [base]
    assert seeds_of(samples=(other, SAMPLE))[1] == base
    different = {base, *seeds_of(seed=1), *seeds_of(step=2), *seeds_of(samples=(other,))}
    assert len(different) == 4
    assert all(0 <= seed < 2**31 for seed in different)
    assert seeds_of(temperature=0.0, seed=5, step=9) == [0]
    model = Scripted("{}", temperature=0.7)
    model.reflection()
    assert model.requests[0].seed != base


def test_a_reflection_that_could_not_be_read_is_drawn_anew_in_the_next_round():
    model = Scripted("no JSON", temperature=0.7)
    for attempt in range(3):
        model.roles.reflect([CASE], step=1, attempt=attempt)
    assert len({request.seed for request in model.requests}) == 3


def test_temperature_and_limit_are_those_of_the_options():
    model = Scripted(WHOLE, temperature=0.3, max_tokens=77)
    model.attempt()
    assert (model.requests[0].temperature, model.requests[0].max_tokens) == (0.3, 77)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order": "random"}, "order must be sections or ids, got 'random'"),
        ({"max_tokens": 0}, "max_tokens must be at least 1, got 0"),
        ({"temperature": -0.1}, "temperature must be a finite number >= 0, got -0.1"),
        ({"temperature": float("nan")}, "temperature must be a finite number >= 0, got nan"),
        ({"temperature": float("inf")}, "temperature must be a finite number >= 0, got inf"),
    ],
)
def test_an_option_out_of_range_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        Scripted("", **options)


# The rewriting baseline, and merging.


@pytest.mark.parametrize(
    ("text", "sheet"),
    [
        ("<cheatsheet>\na\nb\n</cheatsheet>", "a\nb"),
        ("Draft: <cheatsheet>x</cheatsheet> final: <cheatsheet>y</cheatsheet> end", "y"),
        ("<cheatsheet></cheatsheet>", ""),
        ("a\nb", None),
        ("<cheatsheet>a", None),
        ("a</cheatsheet>", None),
        ("</cheatsheet>a<cheatsheet>", None),
    ],
)
def test_a_cheatsheet_stands_in_its_tags_or_there_is_none(text, sheet):
    assert tagged_sheet(text) == sheet
    assert Scripted(text).roles.rewrite("old", CASE, None, budget=9, step=1) == sheet


def test_the_limit_of_a_rewritten_sheet_is_never_below_its_budget():
    for budget, limit in ((100, 200), (300, 300)):
        model = Scripted("", max_tokens=200)
        model.roles.rewrite("old", CASE, None, budget=budget, step=1)
        assert model.requests[0].max_tokens == limit


@pytest.mark.parametrize(
    ("said", "merged"),
    [(" one lesson \n", "one lesson"), ("", None), (Completion("one les", 1, 1, "length"), None), (failed("no"), None)],
)
def test_similar_lessons_become_one_unless_the_answer_is_blank_cut_or_an_error(said, merged):
    model = Scripted(said)
    assert (model.roles.combine(["a b", "a c"], step=1) or None) == merged
    assert model.requests[0].temperature == 0.3
    assert "- a b\n- a c" in model.asked


def test_a_raw_trace_has_question_reasoning_answer_and_feedback():
    text = Scripted("").roles.without_reflector(CASE).text
    assert text == "question: What is 6 * 7?\nreasoning: I added\nanswer: 41\nfeedback: The answer is wrong."


def test_demonstrations_have_question_context_and_answer():
    text = Scripted("").roles.examples([SAMPLE, Sample("s2", "Who?", "Ada")])
    assert text == "Question: What is 6 * 7?\nContext: Arithmetic.\nAnswer: 42\n\nQuestion: Who?\nAnswer: Ada"
