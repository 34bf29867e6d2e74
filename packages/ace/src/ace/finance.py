"""FiNER and Formula, the finance tasks of the paper, in the format of their release (sections 5 and 10.9).

Each is a JSONL file of rows `{"context": str, "target": str}`. A row of FiNER asks for the XBRL tags of four entities,
of 139 tags that it lists; its target is the four tags joined by commas. A row of Formula asks for a number. The
released files have 1000, 500 and 441 rows of FiNER and 500, 300 and 200 of Formula to train, validate and test on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ace.jsonl import field_text, read_rows
from ace.tasks import Sample, check_tolerance

FinanceName = Literal["finer", "formula"]

# Names of the released files.
RELEASED = {
    "finer": {
        "train": "finer_train_batched_1000_samples.jsonl",
        "val": "finer_val_batched_500_samples.jsonl",
        "test": "finer_test_subset_006_seed42.jsonl",
    },
    "formula": {
        "train": "formula_train_subset_500.jsonl",
        "val": "formula_val_subset_300.jsonl",
        "test": "formula_test.jsonl",
    },
}
INSTRUCTED = re.compile(r"Instruction:\s(.*?)Input:\s(.*)", re.DOTALL)
ASKED = re.compile(r"Question:\s(.*)Answer:", re.DOTALL)
QUOTES = ('"', "\u201c", "\u201d")  # the real file mixes straight and curly ones


def split_instruction(text: str) -> tuple[str, str]:
    """Split "Instruction: <question> Input: <context> Answer:".

    Args:
        text: the `context` field of a row.

    Returns:
        Question and context. A text without these marks is all question, as in the authors' code: the released rows of
        FiNER hold tags and sub-questions with none of them.
    """
    found = INSTRUCTED.search(text)
    if found is None:
        return text.strip(), ""
    return found[1].strip(), found[2].split("Answer:")[0].strip()


def split_question(text: str) -> str:
    """Return <q> of "... Question: "<q>". Answer:".

    What stands before the question is left out, as in the authors' code; `Formula.instruction` replaces it.

    Args:
        text: the `context` field of a row.

    Returns:
        The question without its quotes, straight or curly. A text without these marks is all question.
    """
    found = ASKED.search(text)
    if found is None:
        return text.strip()
    question = found[1].strip().removesuffix(".").strip()
    # The authors take off straight quotes alone, so that a curly one stays in their questions.
    if len(question) > 1 and question.startswith(QUOTES) and question.endswith(QUOTES):
        return question[1:-1].strip()
    return question


def read_finance(path: Path, name: FinanceName) -> list[Sample]:
    """Read a file of FiNER or Formula.

    Args:
        path: of the file.
        name: `finer` or `formula`.

    Returns:
        Samples in the file's order, named for file and line.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if a line is no object with the strings `context` and `target`.
    """
    samples = []
    for number, row in read_rows(path):
        place = f"{path}, line {number}"
        text, target = field_text(row, "context", place), field_text(row, "target", place, numbers=name == "formula")
        question, context = split_instruction(text) if name == "finer" else (split_question(text), "")
        if not question:
            raise ValueError(f"{place}: field 'context' must hold a question, got {text!r}")
        samples.append(Sample(f"{path.stem}-{number}", question, target.strip(), context))
    return samples


def labels_of(text: str) -> list[str]:
    """Split tags at commas; case and white space do not count."""
    return [label.strip().lower() for label in text.split(",")]


def as_float(text: str) -> float | None:
    """Read a number with or without thousands separators, or return None."""
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


@dataclass(frozen=True)
class Finer:
    """XBRL tags, compared one by one in their order; accuracy is over all tags of all samples (micro)."""

    name: str = "finer"
    instruction: str = "Give the tags alone, in the order of the questions, separated by commas."

    def count(self, sample: Sample, answer: str) -> tuple[int, int]:
        """Count the tags that match; missing ones are wrong, and what follows the last asked for is ignored."""
        target = labels_of(sample.target)
        return sum(g == t for g, t in zip(labels_of(answer), target, strict=False)), len(target)

    def correct(self, sample: Sample, answer: str) -> bool:
        """Say whether all tags match."""
        matched, total = self.count(sample, answer)
        return matched == total


@dataclass(frozen=True)
class Formula:
    """A number, compared as float after its thousands separators are removed; what is no number, as text.

    Attributes:
        tolerance: largest distance |answer - target| that is right, >= 0; 0, as published, for equal numbers.
    """

    tolerance: float = 0.0
    name: str = "formula"
    instruction: str = (
        "Answer with a plain number and nothing else, rounded to the nearest hundredth where needed. "
        "Write it out in full: 3 million is 3000000.0."
    )

    def __post_init__(self) -> None:
        check_tolerance(self.tolerance)

    def count(self, sample: Sample, answer: str) -> tuple[int, int]:
        """Count one for the right number."""
        return int(self.correct(sample, answer)), 1

    def correct(self, sample: Sample, answer: str) -> bool:
        """Compare an answer with the target."""
        given, target = as_float(answer), as_float(sample.target)
        if given is None or target is None:
            return answer.strip() == sample.target.strip()
        return given == target or abs(given - target) <= self.tolerance
