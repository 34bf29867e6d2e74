"""Which answers are right, and what feedback gives away."""

import pytest
from ace.tasks import Contains, ExactMatch, Numeric, Sample, build_task, contains, feedback, parse_number


def sample(target):
    return Sample("s", "A question?", target)


@pytest.mark.parametrize(
    ("text", "phrase", "there"),
    [
        ("India uses the inr.", "INR", True),
        ("A woman.", "Oman", False),
        ("(INR)", "INR", True),
        ("INRs", "INR", False),
        ("Websites end in .in.", ".in", True),
        ("www.gov.in", ".in", True),
        ("www.site.info", ".in", False),
        ("It ends in India.", ".in", False),
        ("It is bogota", "Bogotá", True),
        ("It is BOGOTA\u0301!", "Bogotá", True),
        ("N\u2019Djamena", "N'Djamena", True),
        ("Addis\n Ababa", "Addis Ababa", True),
        ("AddisAbaba", "Addis Ababa", False),
        ("Nigeria", "Niger", False),
        ("a+b", "a+b", True),
        ("aab", "a+b", False),
        ("anything", " ", False),
    ],
)
def test_a_phrase_is_found_as_whole_words_only(text, phrase, there):
    assert contains(text, phrase) is there
    assert Contains().count(sample(phrase), text) == (int(there), 1)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1,234,567.50", "1234567.5"),
        (" $ 5 ", "5"),
        ("-€1,000", "-1000"),
        ("€-1,000", "-1000"),
        ("- 3", "-3"),
        ("\u22123", "-3"),
        ("+7.", "7"),
        (".5", "0.5"),
        ("5 %", "5"),
        ("1.5e3", "1500"),
        ("1,23", None),
        ("1,2345", None),
        ("12 34", None),
        ("1.2.3", None),
        ("e5", None),
        (".", None),
        ("", None),
        ("-", None),
        ("nan", None),
        ("Infinity", None),
        ("1e99999", None),
        ("1_000", None),
        ("\u0661", None),  # a digit, but not of ASCII
        ("5 million", None),
        ("2**3", None),
    ],
)
def test_a_number_is_read_without_separators_and_signs_of_currency_and_per_cent(text, number):
    found = parse_number(text)
    assert (found is None) if number is None else (found == type(found)(number))


def test_numbers_within_the_tolerance_are_right_and_its_edge_belongs_to_them():
    assert Numeric().correct(sample("1,000"), "$1000.00")
    assert not Numeric().correct(sample("1000"), "1000.001")
    # In binary floating point 1.01 - 1 is above 0.01.
    assert Numeric(0.01).correct(sample("1"), "1.01") and Numeric(0.01).correct(sample("1"), "0.99")
    assert not Numeric(0.01).correct(sample("1"), "1.0101")
    assert Numeric(0.3).correct(sample("0"), "0.3")  # the float 0.3 is below 0.3
    assert Numeric().count(sample("1"), "one") == (0, 1)
    with pytest.raises(ValueError, match="sample s: the target of a numeric task must be a number, got 'x'"):
        Numeric().correct(sample("x"), "1")


def test_exact_match_ignores_case_and_white_space_and_nothing_else():
    assert ExactMatch().correct(sample("New  Delhi"), " new delhi\n")
    assert not ExactMatch().correct(sample("New Delhi"), "New Delhi.")
    assert not ExactMatch().correct(sample("New Delhi"), "It is New Delhi")


def test_tasks_are_built_by_their_metric():
    assert (build_task("exact"), build_task("contains"), build_task("numeric", 0.5)) == (
        ExactMatch(),
        Contains(),
        Numeric(0.5),
    )
    with pytest.raises(ValueError, match="metric must be one of exact, contains, numeric, got 'bleu'"):
        build_task("bleu")
    for tolerance in (-1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="tolerance must be a finite number >= 0, got"):
            build_task("numeric", tolerance)


def told(kind, answer, target="Kabul", **more):
    return feedback(Contains(), sample(target), answer, kind, **more)


def test_only_label_reveals_the_target_and_only_label_and_match_bit_whether_it_matched():
    assert "Kabul" in told("label", "Paris") and "Kabul" not in told("match_bit", "Paris")
    assert told("label", "Paris") != told("label", "Kabul")
    assert told("match_bit", "Paris") != told("match_bit", "Kabul")
    assert told("match_bit", "Paris") == told("match_bit", "Paris", target="Oslo")
    for kind, more in (("none", {}), ("execution", {"execution": "42"})):
        assert told(kind, "Paris", **more) == told(kind, "Kabul", **more) == told(kind, "Oslo", target="Oslo", **more)
    assert told("execution", "Paris", execution="42").endswith("\n42")
    assert "42" not in told("label", "Paris", execution="42")


def test_feedback_of_an_unknown_kind_or_without_an_environment_is_refused():
    with pytest.raises(ValueError, match="feedback execution needs what an environment printed"):
        told("execution", "Paris")
    with pytest.raises(ValueError, match="feedback must be one of label, match_bit, execution, none, got 'gold'"):
        told("gold", "Paris")
