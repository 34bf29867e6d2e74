"""A user's own files: what is read, and what is refused with file and line."""

import json

import pytest
from ace.jsonl import read_jsonl, read_rows
from ace.tasks import Sample

ROW = '{"question": "q", "target": "t"}'


def written(tmp_path, content):
    path = tmp_path / "own.jsonl"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_fields_of_other_names_are_mapped_and_ids_are_made_of_the_line(tmp_path):
    rows = [{"in": "q", "out": "t", "doc": "c", "question": "x"}, {"in": "r", "out": "u", "doc": ""}]
    path = written(tmp_path, "\n\n".join(map(json.dumps, rows)))
    mapping = {"question": "in", "target": "out", "context": "doc"}
    assert read_jsonl(path, mapping) == [Sample("own-1", "q", "t", "c"), Sample("own-3", "r", "u")]


def test_a_byte_order_mark_either_line_ending_and_blank_lines_are_fine(tmp_path):
    path = written(tmp_path, f"\ufeff{ROW}\r\n  \r\n{ROW}\n\n")
    assert [sample.id for sample in read_jsonl(path)] == ["own-1", "own-3"]


def test_a_line_separator_within_a_string_does_not_end_the_line(tmp_path):
    (sample,) = read_jsonl(written(tmp_path, '{"question": "a\u2028b", "target": "t"}'))
    assert sample.question == "a\u2028b"


@pytest.mark.parametrize(("number", "text"), [("15.10", "15.10"), ("7", "7"), ("-0.5", "-0.5")])
def test_a_target_that_is_a_number_is_written_as_in_the_file(tmp_path, number, text):
    (sample,) = read_jsonl(written(tmp_path, f'{{"question": "q", "target": {number}, "id": 12}}'))
    assert (sample.target, sample.id) == (text, "12")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (f"{ROW}\n{{", "own.jsonl, line 2: expected a JSON object, got malformed JSON"),
        (f"{ROW}\n\n[1]", "own.jsonl, line 3: expected a JSON object, got list"),
        ('{"question": "q", "target": NaN}', "line 1: .*NaN is no JSON"),
        ("[" * 100_000, "line 1: expected a JSON object, got malformed JSON"),
        (f"{ROW}\n".encode() + b"\xff", "own.jsonl, line 2: the file must be UTF-8, got byte 0xff"),
        ("", "own.jsonl is empty"),
        ("\n \n", "own.jsonl is empty"),
        ('{"question": "q", "answer": "t"}', "line 1: expected a field 'target', got 'question', 'answer'"),
        ('{"target": "t"}', "line 1: expected a field 'question', got 'target'"),
        ("{}", "line 1: expected a field 'question', got no field"),
        ('{"question": 5, "target": "t"}', "field 'question' must be a string, got int"),
        ('{"question": "q", "target": ["t"]}', "field 'target' must be a string or a number, got list"),
        ('{"question": "q", "target": true}', "field 'target' must be a string or a number, got bool"),
        ('{"question": "q", "target": null}', "field 'target' must be a string or a number, got NoneType"),
        ('{"question": " ", "target": "t"}', "field 'question' must not be blank"),
        ('{"question": "q", "target": ""}', "field 'target' must not be blank"),
        ('{"question": "\\ud800", "target": "t"}', "field 'question' holds half of a surrogate pair"),
        ('{"question": "q", "target": "t", "context": 1}', "field 'context' must be a string, got int"),
        (
            '{"question": "q", "target": "t", "id": "a"}\n' * 2,
            "line 2: id 'a' must be unique, but line 1 has it too",
        ),
    ],
)
def test_a_file_of_another_form_is_refused_by_line(tmp_path, content, message):
    with pytest.raises(ValueError, match=message):
        read_jsonl(written(tmp_path, content))


def test_a_mapping_of_something_else_or_to_a_missing_field_is_refused(tmp_path):
    path = written(tmp_path, ROW)
    with pytest.raises(ValueError, match="fields maps answer, but a sample has only question, target, context, id"):
        read_jsonl(path, {"answer": "target"})
    with pytest.raises(ValueError, match="expected a field 'doc', got 'question', 'target'"):
        read_jsonl(path, {"context": "doc"})


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no data file .*nowhere\.jsonl"):
        read_rows(tmp_path / "nowhere.jsonl")
