"""The country desk: its facts, checked against known ones, and its questions."""

import re

import pytest
from ace.country import RELATIONS, SHOTS, country_facts, draw_facts, facts_of, questions
from ace.tasks import Contains, contains


def entry(**changes):
    return {
        "name": "Utopia",
        "capital": "Amaurot",
        "currencies": ["UTO"],
        "tld": [".ut"],
        "population": 10_000,
    } | changes


def test_facts_that_everybody_knows():
    facts = country_facts()
    assert facts["France"] == {"capital": "Paris", "currency": "EUR", "domain": ".fr"}
    assert facts["India"] == {"capital": "New Delhi", "currency": "INR", "domain": ".in"}
    assert facts["Brazil"] == {"capital": "Brasília", "currency": "BRL", "domain": ".br"}
    assert facts["United Kingdom"] == {"capital": "London", "currency": "GBP", "domain": ".uk"}


def test_countries_whose_question_gives_the_answer_away_or_whose_facts_are_odd_are_left_out():
    absent = {
        "Mexico", "Singapore", "Luxembourg", "Djibouti", "Guatemala", "Guinea-Bissau", "Tunisia",  # capital
        "Chile", "Switzerland", "United States",  # several currencies
        "Croatia", "Albania",  # a withdrawn code; the word "all"
        "Guinea", "Sudan", "Republic of the Congo",  # part of another country's name
        "Burma", "Scotland", "Antarctica", "Tokelau", "South Georgia", "Curaçao", "Burundi",
        *SHOTS,
    }  # fmt: skip
    assert not absent & set(country_facts())
    assert {"Myanmar", "South Sudan", "Papua New Guinea", "Niger", "Nigeria"} <= set(country_facts())


def test_every_fact_has_the_form_of_its_relation_and_no_domain_is_shared():
    facts = country_facts()
    assert len(facts) >= 150
    assert all(re.fullmatch("[A-Z]{3}", fact["currency"]) for fact in facts.values())
    assert all(re.fullmatch(r"\.[a-z]{2}", fact["domain"]) for fact in facts.values())
    assert len({fact["domain"] for fact in facts.values()}) == len(facts)
    assert not any(
        contains(question.question, question.target)
        for seed in range(20)
        for question in questions(draw_facts(seed), "test")
    )


def test_a_complete_entry_is_kept():
    assert facts_of(entry()) == {"capital": "Amaurot", "currency": "UTO", "domain": ".ut"}
    assert facts_of(entry(tld=[".ut", ".xy"]))["domain"] == ".ut"


@pytest.mark.parametrize(
    "changes",
    [
        {"capital": None},
        {"capital": ["Amaurot"]},
        {"capital": "Amaurot / Aircastle"},
        {"capital": "Utopia City"},
        {"name": "Amaurotia"},
        {"name": "Utopia (Island)"},
        {"currencies": []},
        {"currencies": None},
        {"currencies": ["UTO", "USD"]},
        {"currencies": ["Gold"]},
        {"currencies": ["ALL"]},
        {"currencies": ["HRK"]},
        {"tld": []},
        {"tld": [".utopia"]},
        {"tld": ["ut"]},
        {"population": 9_999},
        {"population": None},
        {"name": "Japan"},
    ],
)
def test_an_entry_with_a_flaw_is_left_out(changes):
    assert facts_of(entry(**changes)) is None


def test_countries_are_drawn_once_each_by_the_seed_and_relations_take_turns():
    facts = draw_facts(3, 30)
    assert len({fact.country for fact in facts}) == 30
    assert [fact.relation for fact in facts] == [*RELATIONS] * 10
    assert all(country_facts()[fact.country][fact.relation] == fact.gold for fact in facts)
    assert draw_facts(3, 30) == facts != draw_facts(4, 30)
    assert draw_facts(3, 7) == facts[:7]


def test_train_and_test_ask_for_the_same_facts_in_the_wordings_of_the_specification():
    train, test = (questions(draw_facts(0, 3), part) for part in ("train", "test"))
    capital, currency, domain = (fact.country for fact in draw_facts(0, 3))
    assert [sample.question for sample in train] == [
        f"What is the capital of {capital}?",
        f"Which currency code does {currency} use?",
        f"What is the internet domain of {domain}?",
    ]
    assert [sample.question for sample in test] == [
        f"Name the capital city of {capital}.",
        f"Give the ISO code of the money used in {currency}.",
        f"Websites from {domain} end in which domain?",
    ]
    assert [(s.target, s.facts) for s in train] == [(s.target, s.facts) for s in test]
    assert train[0].facts == (capital, country_facts()[capital]["capital"])


def test_validation_asks_for_the_facts_of_training_in_words_of_its_own():
    facts = draw_facts(0, 30)
    asked = {part: [sample.question for sample in questions(facts, part)] for part in ("train", "val", "test")}
    assert len({question for part in asked.values() for question in part}) == 90
    assert [s.facts for s in questions(facts, "val")] == [s.facts for s in questions(facts, "train")]


def test_an_answer_that_contains_the_fact_is_right():
    sample = questions(draw_facts(0, 3), "test")[2]
    assert Contains(name="country").count(sample, f"They end in {sample.target.upper()}.") == (1, 1)
    assert not Contains(name="country").correct(sample, f"They end in {sample.target}fo.")


@pytest.mark.parametrize("countries", [0, 10_000])
def test_more_countries_than_there_are_are_refused(countries):
    with pytest.raises(ValueError, match=rf"countries must lie in 1\.\.{len(country_facts())}, got {countries}"):
        draw_facts(0, countries)
