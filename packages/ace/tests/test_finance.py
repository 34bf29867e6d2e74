"""FiNER and Formula: their rows, and their scores by hand."""

import json

import pytest
from ace.finance import Finer, Formula, read_finance, split_instruction, split_question
from ace.tasks import Sample, feedback

TAGS = "Revenues, InterestExpense,Goodwill ,ShareBasedCompensation"


def written(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def finer(target, answer):
    return Finer().count(Sample("s", "?", target), answer)


def test_one_of_four_tags_in_its_place_counts_a_quarter():
    assert finer(TAGS, "Revenues, Goodwill") == (1, 4)  # Goodwill is third, not second
    assert finer(TAGS, " revenues ,x,GOODWILL") == (2, 4)
    assert finer(TAGS, f"{TAGS},Depreciation") == (4, 4)  # cut to the label's length
    assert finer(TAGS, "") == (0, 4)
    assert finer("A,,B", "A") == (1, 3)  # what is missing matches nothing, not even an empty tag


def test_accuracy_over_rows_is_micro_and_a_row_is_right_if_all_its_tags_are():
    counts = [finer(TAGS, "Revenues,InterestExpense"), finer("Revenues,Goodwill", "Revenues,Goodwill")]
    assert counts == [(2, 4), (2, 2)]
    assert sum(m for m, _ in counts) / sum(n for _, n in counts) == pytest.approx(0.6667, abs=1e-4)
    assert Finer().correct(Sample("s", "?", TAGS), TAGS.lower()) and not Finer().correct(Sample("s", "?", TAGS), "x")
    assert "1 of its 4 parts" in feedback(Finer(), Sample("s", "?", TAGS), "Revenues", "label")


@pytest.mark.parametrize(
    ("target", "answer", "right"),
    [
        ("5000000.0", "5,000,000", True),
        ("1,000", "1000.00", True),
        ("12.35", "12.351", False),
        ("12.35", "$12.35", False),  # the released rule takes off separators alone
        ("n/a", " n/a ", True),
        ("n/a", "N/A", False),
        ("3", "three", False),
        ("6", "2*3", False),
        ("nan", "nan", False),
    ],
)
def test_formula_compares_floats_and_else_text(target, answer, right):
    assert Formula().count(Sample("s", "?", target), answer) == (int(right), 1)


def test_formula_has_a_tolerance_on_request():
    assert Formula(0.01).correct(Sample("s", "?", "12.35"), "12.345")
    assert not Formula(0.01).correct(Sample("s", "?", "12.35"), "12.33")
    with pytest.raises(ValueError, match="tolerance must be a finite number >= 0, got -1"):
        Formula(-1)


def test_an_instructed_row_is_split_into_question_and_context():
    row = "Instruction: Choose tags from A, B.\nInput: 1. Rent of 5 million.\nOutput tags.\nAnswer: "
    assert split_instruction(row) == ("Choose tags from A, B.", "1. Rent of 5 million.\nOutput tags.")
    assert split_instruction("Instruction: a Input: b") == ("a", "b")


def test_a_row_without_marks_is_all_question():
    row = 'Here are tags: ,A,B. Answer the following questions. \n1. Which for "5" in "paid 5"?\nOutput tags:'
    assert split_instruction(row) == (row, "")
    assert split_question("What is 2 / 3?") == "What is 2 / 3?"


@pytest.mark.parametrize("opening", ['"', "\u201c"])
@pytest.mark.parametrize("closing", ['"', "\u201d"])
def test_a_formula_row_gives_its_question_without_straight_or_curly_quotes(opening, closing):
    row = f"Use the formula. Question: {opening}What is EPS if 3. Answer: 4 are 5?{closing}. Answer:"
    assert split_question(row) == "What is EPS if 3. Answer: 4 are 5?"


def test_files_of_both_tasks_are_read_in_their_form(tmp_path):
    path = written(tmp_path / "finer.jsonl", {"context": "Instruction: q Input: c Answer:", "target": "A,B"})
    assert read_finance(path, "finer") == [Sample("finer-1", "q", "A,B", "c")]
    path = written(
        tmp_path / "f.jsonl", {"context": 'x Question: "q". Answer:', "target": " 1.5"}, {"context": "r", "target": 2}
    )
    assert read_finance(path, "formula") == [Sample("f-1", "q", "1.5"), Sample("f-2", "r", "2")]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"context": "q"}, "line 1: expected a field 'target', got 'context'"),
        ({"context": "q", "target": 3}, "line 1: field 'target' must be a string, got int"),
        ({"context": "Instruction: Input: c", "target": "A"}, "line 1: field 'context' must hold a question"),
    ],
)
def test_a_row_of_another_form_is_refused(tmp_path, row, message):
    with pytest.raises(ValueError, match=message):
        read_finance(written(tmp_path / "finer.jsonl", row), "finer")
