"""Questions and answers of a user's own: one JSON object a line, with fields of any name (section 12)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from ace.tasks import Sample

# Part of a sample -> its field in the file, where the user names no other.
FIELDS = {"question": "question", "target": "target", "context": "context", "id": "id"}
REQUIRED = ("question", "target")


def refuse_constant(name: str) -> Any:
    """Refuse NaN and the infinities, which Python's reader would let pass."""
    raise ValueError(f"{name} is no JSON")


def read_rows(path: Path) -> list[tuple[int, dict[str, Any]]]:
    """Read a JSONL file.

    Blank lines, a byte order mark and either kind of line ending are allowed. A fraction is read as a Decimal, so that
    it can be written as it was.

    Args:
        path: of the file, in UTF-8.

    Returns:
        Number of each line, counted from 1, and its object.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file is not UTF-8, holds nothing, or a line is no JSON object.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no data file {path}")
    content = path.read_bytes()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ValueError(
            f"{path}, line {line}: the file must be UTF-8, got byte {content[error.start]:#04x}"
        ) from error
    rows = []
    # Not splitlines: JSON strings may hold U+2028 and the like as they are.
    for number, line_text in enumerate(text.split("\n"), start=1):
        if not line_text.strip():
            continue
        try:
            row = json.loads(line_text, parse_float=Decimal, parse_constant=refuse_constant)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}, line {number}: expected a JSON object, got malformed JSON ({error})") from error
        if not isinstance(row, dict):
            raise ValueError(f"{path}, line {number}: expected a JSON object, got {type(row).__name__}")
        rows.append((number, row))
    if not rows:
        raise ValueError(f"{path} is empty: expected a JSON object a line")
    return rows


def field_text(row: Mapping[str, Any], field: str, place: str, *, numbers: bool = False, blank: bool = False) -> str:
    """Return a field of a row as text.

    Args:
        row: a line of the file.
        field: its name.
        place: file and line, for messages.
        numbers: whether a number may stand in place of a string.
        blank: whether the text may be blank.

    Raises:
        ValueError: if the field is missing, of another type, or blank.
    """
    if field not in row:
        raise ValueError(f"{place}: expected a field {field!r}, got {', '.join(map(repr, row)) or 'no field'}")
    value = row[field]
    if numbers and isinstance(value, int | Decimal) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        expected = "a string or a number" if numbers else "a string"
        raise ValueError(f"{place}: field {field!r} must be {expected}, got {type(value).__name__}")
    if not blank and not value.strip():
        raise ValueError(f"{place}: field {field!r} must not be blank")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{place}: field {field!r} holds half of a surrogate pair, which is no character") from error
    return value


def read_jsonl(path: Path, fields: Mapping[str, str] | None = None) -> list[Sample]:
    """Read samples from a JSONL file.

    Args:
        path: of the file.
        fields: which field of the file is the `question`, the `target`, the `context` and the `id`. Those left out have
            their own name; context and id may then be missing. A sample without id is named for file and line.

    Returns:
        Samples in the file's order. A target or id that is a number is written as it stands in the file.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file, a line or the mapping is not as described, or an id occurs twice.
    """
    chosen = dict(fields or {})
    if unknown := sorted(set(chosen) - set(FIELDS)):
        raise ValueError(f"fields maps {', '.join(unknown)}, but a sample has only {', '.join(FIELDS)}")
    names = FIELDS | chosen
    samples: list[Sample] = []
    lines: dict[str, int] = {}
    for number, row in read_rows(path):
        place = f"{path}, line {number}"
        needed = {part for part in FIELDS if part in REQUIRED or part in chosen or names[part] in row}
        text = {
            part: field_text(row, names[part], place, numbers=part in ("target", "id"), blank=part == "context")
            for part in FIELDS
            if part in needed
        }
        name = text.get("id", f"{path.stem}-{number}")
        sample = Sample(name, text["question"], text["target"], text.get("context", ""))
        if sample.id in lines:
            raise ValueError(f"{place}: id {sample.id!r} must be unique, but line {lines[sample.id]} has it too")
        lines[sample.id] = number
        samples.append(sample)
    return samples
