"""Samples, how an answer to one is checked, and what the Reflector is told about it (sections 3.6 and 12).

A task is a small class: its name, how to answer, and two ways to count. No answer of a model is ever evaluated as code.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal, Protocol, get_args

Feedback = Literal["label", "match_bit", "execution", "none"]
Metric = Literal["exact", "contains", "numeric"]

# At most three digits of exponent: nobody's answer has more, and decimal arithmetic overflows far beyond.
NUMBER = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d*)?(?:[eE][+-]?\d{1,3})?")


@dataclass(frozen=True)
class Sample:
    """A question with its answer.

    Attributes:
        id: unique in its data set.
        question: what is asked.
        target: the right answer.
        context: what the question is about.
        facts: strings that a context must all contain to hold what this sample teaches; empty where unknown.
    """

    id: str
    question: str
    target: str
    context: str = ""
    facts: tuple[str, ...] = ()


class Task(Protocol):
    """How the answers of a data set are asked for and checked."""

    @property
    def name(self) -> str:
        """Name of the task."""
        ...

    @property
    def instruction(self) -> str:
        """How to answer, for the Generator's prompt."""
        ...

    def count(self, sample: Sample, answer: str) -> tuple[int, int]:
        """Count the parts of an answer that match and the parts of the target, for micro accuracy."""
        ...

    def correct(self, sample: Sample, answer: str) -> bool:
        """Say whether an answer is right as a whole."""
        ...


def normalised(text: str) -> str:
    """Return a text without case, accents, curly quotes and repeated white space."""
    letters = unicodedata.normalize("NFKD", text.translate({0x2018: "'", 0x2019: "'", 0x201C: '"', 0x201D: '"'}))
    plain = "".join(c for c in letters if not unicodedata.combining(c))
    return " ".join(plain.casefold().split())


def contains(text: str, phrase: str) -> bool:
    """Say whether a text contains a phrase that neither begins nor ends within a word of the text.

    Case, accents, curly quotes and white space are ignored. So "Oman" is in "it is oman." but not in "woman", and
    ".in" is in "www.gov.in" and "end in .in." but not in "site.info".

    Args:
        text: to search.
        phrase: to find; an empty one is nowhere.
    """
    wanted = normalised(phrase)
    if not wanted:
        return False
    # \b would demand a letter before a phrase that begins with a full stop.
    before = r"(?<!\w)" if re.match(r"\w", wanted) else ""
    after = r"(?!\w)" if re.search(r"\w\Z", wanted) else ""
    return re.search(before + re.escape(wanted) + after, normalised(text)) is not None


def parse_number(text: str) -> Decimal | None:
    """Read a number that may have thousands separators, a currency sign and a percent sign.

    "5 %" is 5, not 0.05. Separators must stand before groups of three digits: "1,23" is no number.

    Args:
        text: the whole of it must be the number.

    Returns:
        The number, or None if the text is none (words, infinities and NaN included).
    """
    kept = "".join(c for c in text.replace("\N{MINUS SIGN}", "-") if unicodedata.category(c) != "Sc" and c != "%")
    kept = "".join(kept.split()) if re.match(r"\s*[+-]\s", kept) else kept.strip()
    if not kept.isascii() or not any(c.isdigit() for c in kept) or not NUMBER.fullmatch(kept):
        return None
    mantissa = re.split("[eE]", kept)[0]
    return Decimal(kept.replace(",", "")) if any(c.isdigit() for c in mantissa) else None


@dataclass(frozen=True)
class ExactMatch:
    """An answer is right if it equals the target but for case, accents, curly quotes and white space."""

    name: str = "exact"
    instruction: str = "Give the answer alone, without an explanation."

    def count(self, sample: Sample, answer: str) -> tuple[int, int]:
        """Count one for an equal answer."""
        return int(self.correct(sample, answer)), 1

    def correct(self, sample: Sample, answer: str) -> bool:
        """Compare an answer with the target."""
        return normalised(answer) == normalised(sample.target)


@dataclass(frozen=True)
class Contains:
    """An answer is right if it contains the target as whole words (see `contains`)."""

    name: str = "contains"
    instruction: str = "Answer in one short sentence."

    def count(self, sample: Sample, answer: str) -> tuple[int, int]:
        """Count one for an answer that contains the target."""
        return int(self.correct(sample, answer)), 1

    def correct(self, sample: Sample, answer: str) -> bool:
        """Look for the target in an answer."""
        return contains(answer, sample.target)


@dataclass(frozen=True)
class Numeric:
    """An answer is right if it is the target's number (see `parse_number`).

    Attributes:
        tolerance: largest distance |answer - target| that is right, >= 0; 0 for equal numbers.
    """

    tolerance: float = 0.0
    name: str = "numeric"
    instruction: str = "Give the number alone."

    def __post_init__(self) -> None:
        check_tolerance(self.tolerance)

    def count(self, sample: Sample, answer: str) -> tuple[int, int]:
        """Count one for the right number."""
        return int(self.correct(sample, answer)), 1

    def correct(self, sample: Sample, answer: str) -> bool:
        """Compare an answer with the target; an answer that is no number is wrong.

        Raises:
            ValueError: if the target is no number.
        """
        target, given = parse_number(sample.target), parse_number(answer)
        if target is None:
            raise ValueError(
                f"sample {sample.id}: the target of a numeric task must be a number, got {sample.target!r}"
            )
        # The shortest decimal that means the tolerance, so that 0.01 allows 1.00 to be 1.01.
        return given is not None and abs(given - target) <= Decimal(str(self.tolerance))


def check_tolerance(tolerance: float) -> None:
    """Raise a ValueError unless a tolerance is a finite number that is not negative."""
    if not 0 <= tolerance < float("inf"):
        raise ValueError(f"tolerance must be a finite number >= 0, got {tolerance}")


def build_task(metric: Metric, tolerance: float = 0.0) -> Task:
    """Return the general task of a metric.

    Args:
        metric: `exact`, `contains` or `numeric`.
        tolerance: of `numeric`.

    Raises:
        ValueError: if the metric is unknown or the tolerance negative.
    """
    if metric not in get_args(Metric):
        raise ValueError(f"metric must be one of {', '.join(get_args(Metric))}, got {metric!r}")
    if metric == "numeric":
        return Numeric(tolerance)
    return ExactMatch() if metric == "exact" else Contains()


def feedback(
    task: Task, sample: Sample, answer: str, kind: Feedback, execution: str | None = None, passed: bool | None = None
) -> str:
    """Say what the Reflector is told about an attempt (section 3.6).

    Args:
        task: which checks the answer.
        sample: that was asked.
        answer: the Generator's.
        kind: `label` reveals the target and how much of it matched; `match_bit` only whether the answer is right, which
            is what the released code's mode without ground truth tells; `execution` only what an environment printed;
            `none` nothing.
        execution: what the environment printed, for `execution`.
        passed: whether the environment's tests did; the answer is compared with the target when None.

    Raises:
        ValueError: if the kind is unknown, or is `execution` and there is no such text.
    """
    if kind not in get_args(Feedback):
        raise ValueError(f"feedback must be one of {', '.join(get_args(Feedback))}, got {kind!r}")
    if kind == "none":
        return "There is no feedback on this answer."
    if kind == "execution":
        if execution is None:
            raise ValueError("feedback execution needs what an environment printed, but this task has no environment")
        return f"The environment printed:\n{execution}"
    right = task.correct(sample, answer) if passed is None else passed
    verdict = "The answer is right." if right else "The answer is wrong."
    if kind == "match_bit":
        return verdict
    matched, total = task.count(sample, answer)
    parts = f" {matched} of its {total} parts match." if total > 1 else ""
    return f"{verdict}{parts} The right answer: {sample.target}"
