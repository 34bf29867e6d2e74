import json
import re
import time

import pytest
from ace.extraction import Extracted, extract_ids, extract_json
from hypothesis import given, settings
from hypothesis import strategies as st

scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=12)
)
texts = st.text(max_size=8)
values = scalars | st.lists(scalars, max_size=2) | st.dictionaries(texts, scalars, max_size=2)
objects = st.dictionaries(texts, values, min_size=1, max_size=2)
prose = st.text(st.characters(exclude_characters='{}[]"`', exclude_categories=["Cs"]), max_size=20)
fast = settings(max_examples=25, deadline=None)


@fast
@given(objects)
def test_json_is_taken_as_it_is(value):
    assert extract_json(json.dumps(value)) == Extracted(value, "strict")
    assert extract_json(f"\ufeff\n{json.dumps([value], ensure_ascii=False)} ") == Extracted(value, "strict")


@fast
@given(objects, prose, prose, st.sampled_from(["json", "", "JSON"]))
def test_fenced_json_is_found_amid_prose(value, before, after, language):
    text = f"{before}\n```{language}\n{json.dumps(value, indent=1)}\n```\n{after}"
    # A fence inside of a string would end the block; JSON does not escape it.
    expected = "fenced" if "```" not in json.dumps(value) else "balanced"
    assert extract_json(text) == Extracted(value, expected)


@fast
@given(objects, prose, prose)
def test_object_amid_prose_is_found(value, before, after):
    assert extract_json(f"{before} {json.dumps(value)}{after}x") == Extracted(value, "balanced")


@fast
@given(objects, st.data())
def test_cut_answer_gives_nothing_without_repair(value, data):
    text = json.dumps(value)
    cut = text[: data.draw(st.integers(0, len(text) - 1))]
    for form in (cut, f"Here: {cut}", f"```json\n{cut}", f"[{cut}"):
        assert extract_json(form, repair=False) == Extracted(None, "failed")


@fast
@given(objects, objects)
def test_list_of_several_is_no_answer(first, second):
    text = json.dumps([first, second])
    for form in (text, f"Both: {text}.", f"Both: {text[:-1]}", f"Both: {text[:-1]},]"):
        assert extract_json(form).value is None
    assert extract_json('[{"a": "1",}, {"b": "2",}] and {"c": "3",}').value is None


@settings(max_examples=100, deadline=None)
@given(st.text(st.sampled_from('{}[]":,\\ab1 \n`-'), max_size=60) | st.text())
def test_nothing_raises_and_every_value_is_an_object_that_a_file_can_hold(text):
    found = extract_json(text)
    assert (found.value is None) == (found.how == "failed")
    if found.value is not None:
        assert json.loads(json.dumps(found.value, ensure_ascii=False).encode()) == found.value


@fast
@given(prose, prose)
def test_prose_is_not_repaired_into_something(before, after):
    assert extract_json(f"In words: {before}{after}") == Extracted(None, "failed")
    unquoted = re.sub("['“”]", "", f"{before} x^{{n: m}} {after}")
    assert extract_json(unquoted) == Extracted(None, "failed")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1, "b": [1, 2,],}', {"a": 1, "b": [1, 2]}),
        ("{'a': True, 'b': None}", {"a": True, "b": None}),
        ('{"a": "x" "b": 2} I hope {this} helps', {"a": "x", "b": 2}),
        ('{"a": "say "hi" there", "b": 1}', {"a": 'say "hi" there', "b": 1}),
        ('Answer: {"a": "b", "c": [1', {"a": "b", "c": [1]}),
        ('```json\n{"a": "use\n```python\nx\n```\n"}\n```', {"a": "use\n```python\nx\n```"}),
        ('{"reasoning": "r", "operations": [{"type": "ADD"},]}', {"reasoning": "r", "operations": [{"type": "ADD"}]}),
    ],
)
def test_broken_object_is_mended_as_a_whole(text, value):
    assert extract_json(text) == Extracted(value, "repaired")
    assert extract_json(text, repair=False) == Extracted(None, "failed")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('The set {} and [1]: {"a": "}{"} then {"b": 2}', {"a": "}{"}),
        ('{not json} but {"a": 1}', {"a": 1}),
        ('{"a": 1}}', {"a": 1}),
        ('As a list [ {"a": 1} ].', {"a": 1}),
        ('[shr-00001] helped: {"a": "\\"]"}', {"a": '"]'}),
    ],
)
def test_first_outermost_object_that_parses_is_taken(text, value):
    assert extract_json(text) == Extracted(value, "balanced")


@pytest.mark.parametrize("text", ["", "  ", "no braces", "3", '"text"', "null", "true", "[]", "[1, 2]", "[[{}]]", "{"])
def test_what_is_no_object_fails(text):
    assert extract_json(text) == Extracted(None, "failed")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_json_does_not_have_are_refused(number):
    for text in (f'{{"a": {number}}}', f'see {{"a": [{number}]}}', f'```\n{{"a": {number}}}\n```'):
        assert extract_json(text, repair=False).value is None
        assert extract_json(text).value in (None, {"a": "1e999"}, {"a": ["1e999"]})
    assert extract_json('{"a": "NaN"}').value == {"a": "NaN"}
    assert extract_json('{"a": "NaN",}').value == {"a": "NaN"}


def test_half_a_surrogate_pair_is_replaced():
    assert extract_json('{"a": "\\ud83d", "b": "\\ud83d\\ude42"}').value == {"a": "\ufffd", "b": "🙂"}


UNITS = ["{", "[", "[{", '{"a":', '{"a": [', '"', "```", "\n```json\n{", "{x}", '{"a" b}', '{"']


@pytest.mark.parametrize("unit", UNITS)
def test_long_garbage_takes_linear_time(unit):
    start = time.process_time()
    extract_json(unit * 20_000)
    assert time.process_time() - start < 3


def test_nesting_beyond_the_parser_fails_without_an_exception():
    deep = '{"a":' * 5000 + "1" + "}" * 5000
    assert extract_json(deep).value is None
    assert extract_json(f"see {deep}").value is None
    assert extract_json('{"a":' * 30 + "1," + "}" * 30).how == "repaired"


def test_ids_are_found_in_and_out_of_json_in_order_and_once():
    known = {"calc-00001", "shr-00002", "misc-123456", "ctx-00009"}
    text = (
        '{"bullet_ids": ["shr-00002", "calc-00001"]} I used [calc-00001], misc-123456, not xcalc-00001 or calc-00007.'
    )
    assert extract_ids(text, known) == ["shr-00002", "calc-00001", "misc-123456"]
    assert extract_ids("calc-0001 CALC-00001 calc-000010 calc-00001x calc_00001", known) == []
    assert extract_ids("", known) == []
