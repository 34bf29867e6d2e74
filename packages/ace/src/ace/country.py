"""The country desk, the embedded data set: facts about countries that a small model mostly does not know (section 7).

The facts are those of `countryinfo`: capital, currency and internet domain. The training question of a fact has one
wording, validation and test ask for it in others. So the desk measures whether lessons are kept and used, not whether
strategies are discovered.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np

from ace.tasks import Sample, contains, normalised

Relation = Literal["capital", "currency", "domain"]
Part = Literal["train", "val", "test"]

RELATIONS: tuple[Relation, ...] = ("capital", "currency", "domain")
# Those of train and test are the specification's (section 7), those of validation are ours.
WORDINGS: dict[Part, dict[Relation, str]] = {
    "train": {
        "capital": "What is the capital of {n}?",
        "currency": "Which currency code does {n} use?",
        "domain": "What is the internet domain of {n}?",
    },
    "val": {
        "capital": "Which city is the capital of {n}?",
        "currency": "By which three-letter code is the currency of {n} known?",
        "domain": "What do web addresses in {n} end with?",
    },
    "test": {
        "capital": "Name the capital city of {n}.",
        "currency": "Give the ISO code of the money used in {n}.",
        "domain": "Websites from {n} end in which domain?",
    },
}
SHOTS = ("Japan", "Poland", "Italy", "New Zealand")  # the examples in the Reflector's prompt
# Codes of countryinfo that ISO 4217 has withdrawn: what it says of these countries is no longer true.
WITHDRAWN = {"BGN", "BYR", "HRK", "MRO", "SLL", "STD", "VEF", "ZMK"}
# Codes that an answer in English may contain by chance.
WORDS = {"ALL", "COP", "GEL", "MAD", "PEN", "TOP", "TRY"}
# Of these, countryinfo's capital has moved (to Gitega), been renamed (Astana), or is not the one that others give.
DOUBTFUL = {"Burundi", "Kazakhstan", "Hong Kong", "Sri Lanka", "Swaziland"}
MIN_POPULATION = 10_000
NAME = re.compile(r"[^\W\d_][\w '.-]*")


@dataclass(frozen=True)
class Fact:
    """Something that is true of a country.

    Attributes:
        country: its English name.
        relation: what is told of it.
        gold: the answer: a city, an ISO 4217 code, or a domain with its full stop.
    """

    country: str
    relation: Relation
    gold: str


def facts_of(entry: Mapping[str, Any]) -> dict[Relation, str] | None:
    """Return what countryinfo says of a country, or None if it is no country to ask about.

    Left out are countries of which a fact is missing, odd, doubtful or no longer true; whose question would give the
    answer away, since the capital's name holds the country's or the reverse; with several currencies, since the first
    is not always the one in use (Chile's is a unit of account); with a currency whose code is an English word; and
    places with fewer than 10 000 inhabitants, which are mostly outposts without a capital.

    Args:
        entry: raw data of a country.
    """
    name, capital, currencies, domains = (entry.get(key) for key in ("name", "capital", "currencies", "tld"))
    if not isinstance(name, str) or not isinstance(capital, str) or not currencies or not domains:
        return None
    currency, domain = currencies[0], domains[0]
    places = normalised(name), normalised(capital)
    if (
        len(currencies) > 1
        or not NAME.fullmatch(name)
        or not NAME.fullmatch(capital)
        or not re.fullmatch(r"[A-Z]{3}", currency)
        or not re.fullmatch(r"\.[a-z]{2}", domain)
        or places[0] in places[1]
        or places[1] in places[0]
        or (entry.get("population") or 0) < MIN_POPULATION
        or currency in WITHDRAWN | WORDS
        or name in DOUBTFUL
        or name in SHOTS
    ):
        return None
    return {"capital": capital, "currency": currency, "domain": domain}


@cache
def country_facts() -> dict[str, dict[Relation, str]]:
    """Return the facts of all countries that can be asked about, by name in alphabetical order (see `facts_of`).

    A country that is listed twice (Myanmar is also Burma) counts once. None is there whose name is part of another's
    (Guinea, Papua New Guinea): a lesson about the one would look like a lesson about the other.
    """
    from countryinfo import all_countries

    found: dict[str, dict[Relation, str]] = {}
    for entry in (country.info() for country in all_countries()):
        facts = facts_of(entry)
        if facts is not None and facts["domain"] not in {known["domain"] for known in found.values()}:
            found[entry["name"]] = facts
    return {
        name: found[name]
        for name in sorted(found)
        if not any(other != name and contains(other, name) for other in found)
    }


def draw_facts(seed: int, countries: int = 30) -> list[Fact]:
    """Draw countries and one fact of each: capital, currency and domain in turn.

    Args:
        seed: of numpy's generator.
        countries: how many to draw.

    Returns:
        One fact for each country.

    Raises:
        ValueError: if there are not so many countries.
    """
    known = country_facts()
    if not 1 <= countries <= len(known):
        raise ValueError(f"countries must lie in 1..{len(known)}, got {countries}")
    names = list(known)
    order = np.random.default_rng(seed).permutation(len(names))[:countries]
    drawn = [(names[index], RELATIONS[i % 3]) for i, index in enumerate(order)]  # relation i mod 3 (section 7)
    return [Fact(name, relation, known[name][relation]) for name, relation in drawn]


def questions(facts: Sequence[Fact], part: Part) -> list[Sample]:
    """Ask for facts in the wording of train, validation or test, in the order of the facts."""
    return [
        Sample(
            id=f"{part}-{fact.country}-{fact.relation}",
            question=WORDINGS[part][fact.relation].format(n=fact.country),
            target=fact.gold,
            facts=(fact.country, fact.gold),
        )
        for fact in facts
    ]
