"""JSON objects and bullet ids out of what a language model wrote (Sec. 3.7 of the specification, items 2 and 6).

A model puts its JSON into fences, writes prose around it, wraps it in a list, forgets a quote, or is cut at its token
limit. The forms are tried from the strictest to the most lenient, and what was needed is reported. What could be half
of an answer is never returned: of an object that is broken, an inner one is not taken for the whole, nor is the first
of a list of several.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

import json_repair

How = Literal["strict", "fenced", "balanced", "repaired", "failed"]

FENCE = re.compile(r"^[ \t]*```[ \t]*[\w+-]*\s(.*?)```", re.MULTILINE | re.DOTALL)
OPENING = re.compile(r"\[\s*(?=\{)|\{")  # of an object, or of a list of objects; prose has other brackets
STRING = re.compile(r'"(?:[^"\\]|\\.)*"?', re.DOTALL)
BRACKET_OR_STRING = re.compile(STRING.pattern + r"|[{}\[\]]", re.DOTALL)
STEP = {"{": 1, "[": 1, "}": -1, "]": -1}
DEEPEST = 50  # json-repair takes a time that grows with the square of the depth
QUOTE = re.compile("[\"'“”]")
NOT_A_NUMBER = re.compile(r"\b(?:NaN|Infinity)\b")
ID = re.compile(r"\b[a-z]+-[0-9]{5,}\b")


@dataclass(frozen=True)
class Extracted:
    """What was found.

    Attributes:
        value: the object, or None.
        how: `strict` (the text is JSON), `fenced` (in a code block), `balanced` (amid prose), `repaired` (not JSON
            until json-repair mended it; a guess, see `extract_json`) or `failed`.
    """

    value: dict[str, Any] | None
    how: How


def extract_json(text: str, *, repair: bool = True) -> Extracted:
    """Find the JSON object in an answer.

    A list that holds one object stands for it. Other lists, numbers and strings are failures, and so are the literals
    NaN and Infinity, which are no JSON. Among several objects in prose the first that is valid and not empty is taken.

    Args:
        text: what the model wrote.
        repair: whether broken JSON may be mended. Pass False for an answer that was cut at its token limit
            (`finish_reason` is `length`): mending closes what is open, and half an answer would pass for a whole one.
    """
    text = text.strip().removeprefix("\ufeff")
    try:
        return _only_object(_parse(text), "strict")
    except ValueError:
        pass
    for fence in FENCE.finditer(text):
        try:
            return _only_object(_parse(fence[1]), "fenced")
        except ValueError:
            continue
    groups = list(_groups(text))
    for group in groups:
        try:
            found = _only_object(_parse(group), "balanced")
        except ValueError:
            continue
        if found.value != {}:
            return found
    return _repaired(groups) if repair else Extracted(None, "failed")


def extract_ids(text: str, known: Collection[str]) -> list[str]:
    """List the ids of bullets that a text names, inside or outside of JSON, each once, as they first appear.

    Args:
        text: what the model wrote.
        known: the ids that exist; others are left out.
    """
    known = set(known)
    return [name for name in dict.fromkeys(ID.findall(text)) if name in known]


def _parse(text: str) -> Any:
    """Parse JSON.

    Raises:
        ValueError: if it is not JSON, or is nested more deeply than Python's parser goes.
    """
    try:
        return _encodable(json.loads(text, parse_constant=_refuse))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _encodable(value: Any) -> Any:
    """Replace halves of surrogate pairs, which JSON can escape and no file can hold, by U+FFFD.

    Raises:
        ValueError: if there is an infinite number, such as 1e999.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return json.loads(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))


def _only_object(value: Any, how: How) -> Extracted:
    """Return an object, or the object in a list of one; anything else has failed."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    return Extracted(value, how) if isinstance(value, dict) else Extracted(None, "failed")


def _groups(text: str) -> Iterator[str]:
    """Yield the outermost `{...}` and `[{...}]` in order, in one pass; one that is never closed is the last."""
    position = 0
    while opening := OPENING.search(text, position):
        depth = 0
        for token in BRACKET_OR_STRING.finditer(text, opening.start()):
            depth += STEP.get(token[0], 0)
            if depth == 0:
                position = token.end()
                yield text[opening.start() : position]
                break
        else:
            yield text[opening.start() :]
            return


def _repaired(groups: Iterable[str]) -> Extracted:
    """Let json-repair mend the first group that it makes an object of."""
    for group in groups:
        outside = STRING.sub('""', group)
        depth = max(accumulate(STEP.get(character, 0) for character in outside))
        # Braces without a quote are prose or mathematics. NaN would become a string.
        if not QUOTE.search(group) or depth > DEEPEST or NOT_A_NUMBER.search(outside):
            continue
        try:
            value = _encodable(json_repair.loads(group, skip_json_loads=True))
        except (ValueError, RecursionError):
            continue
        found = _only_object(value, "repaired")
        if found.value or (isinstance(value, list) and any(isinstance(item, dict) for item in value)):
            return found
    return Extracted(None, "failed")
