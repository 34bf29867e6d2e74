"""The playbook: sections of itemised bullets, each with an id, two counters and one lesson (Sec. 3.1).

JSON is the canonical form. The text form is what a person edits and a prompt shows; each bullet is one line of it:

    ## FORMULAS & CALCULATIONS
    [calc-00012] helpful=3 harmful=1 :: the lesson

A line break inside a lesson is written ⏎. Every other character that would end a line, and a blank at either end of
the lesson, is written as a backslash, `u` and four hexadecimal digits. Backslashes are doubled only in front of one of
these, so that LaTeX, regular expressions, and the backslash and n of a code snippet stay as they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Literal

Order = Literal["sections", "ids"]
Tag = Literal["helpful", "harmful", "neutral"]

OTHERS = "OTHERS"
# The authors' code, for finance and for AppWorld.
FINANCE_SECTIONS = (
    "STRATEGIES & INSIGHTS",
    "FORMULAS & CALCULATIONS",
    "CODE SNIPPETS & TEMPLATES",
    "COMMON MISTAKES TO AVOID",
    "PROBLEM-SOLVING HEURISTICS",
    "CONTEXT CLUES & INDICATORS",
    OTHERS,
)
APPWORLD_SECTIONS = (
    "STRATEGIES AND HARD RULES",
    "APIs TO USE FOR SPECIFIC INFORMATION",
    "USEFUL CODE SNIPPETS AND TEMPLATES",
    "COMMON MISTAKES AND CORRECT STRATEGIES",
    "PROBLEM-SOLVING HEURISTICS AND WORKFLOWS",
    "VERIFICATION CHECKLIST",
    "TROUBLESHOOTING AND PITFALLS",
    OTHERS,
)
SLUGS = {
    "formulas_and_calculations": "calc",
    "code_snippets_and_templates": "code",
    "common_mistakes_to_avoid": "err",
    "problem-solving_heuristics": "prob",
    "context_clues_and_indicators": "ctx",
    "others": "misc",
}

DIGITS = 15  # of the counter in an id, at most
NEXT_LIMIT = 10**DIGITS  # a playbook whose next id is this one takes no further bullet
MOST_COUNT = 10**12  # of helpful, harmful and step

_ID = re.compile(rf"[a-z]+-([0-9]{{5,{DIGITS}}})")
_HEADER = re.compile(r"##\s+(\S.*)")
_BULLET = re.compile(r"\[([^\]]*)\]\s*helpful=(-?[0-9]+)\s+harmful=(-?[0-9]+)\s*::\s*(.*)", re.DOTALL)
_PLAIN = re.compile(r"\[([^\]]*)\]\s*(?!helpful=)(\S.*)", re.DOTALL)  # without counters, as for AppWorld
_SURROGATE = re.compile("[\ud800-\udfff]")
_BREAK = "⏎"
# A run of backslashes, and what must not stand in a line, or would be read as the code of that.
_UNSAFE = re.compile(rf"(?<!\\)(\\*+)([\n{_BREAK}\r\v\f\x1c-\x1e\x85\u2028\u2029]|u[0-9a-f]{{4}}|\A\s|\s\Z)")
_ESCAPED = re.compile(rf"(?<!\\)(\\*+)({_BREAK}|u[0-9a-f]{{4}})")
_KINDS: dict[str, type] = {"id": str, "content": str, "helpful": int, "harmful": int, "step": int}
_json = json.JSONEncoder(ensure_ascii=False).encode


class PlaybookError(ValueError):
    """What is wrong with a playbook or its file, in one sentence."""


def section_key(name: str) -> str:
    """Return that by which sections are told apart: lower case, blanks as `_`, `&` as `and`, no colon at the end."""
    return "_".join(name.lower().replace("&", "and").rstrip(": ").split())


def slug(name: str) -> str:
    """Return the first part of the ids in a section.

    It is that of the released code, else the initials of up to five words, or the first four letters of a single word.
    Only the letters a-z count; a name without them has the slug `misc`.
    """
    key = section_key(name)
    words = [letters for word in key.split("_") if (letters := re.sub("[^a-z]", "", word))]
    short = words[0][:4] if len(words) == 1 else "".join(word[0] for word in words[:5])
    return SLUGS.get(key) or short or SLUGS["others"]


def number(bullet_id: str) -> int:
    """Return the counter in an id: 12 of `calc-00012`.

    Raises:
        PlaybookError: if it is no id.
    """
    if not (match := _ID.fullmatch(bullet_id)):
        raise PlaybookError(
            f"the id of a bullet must be like calc-00012, got {bullet_id!r:.60}; its number has 5 to {DIGITS} digits"
        )
    return int(match[1])


def by_number(bullet: Bullet) -> tuple[int, str]:
    """Sort key: the order in which bullets were made."""
    return number(bullet.id), bullet.id


def _escape(content: str) -> str:
    """Write a lesson as one line that neither loses its ends nor its breaks."""
    if content.isprintable() and _BREAK not in content and "\\u" not in content and content == content.strip():
        return content

    def code(match: re.Match[str]) -> str:
        run, unsafe = match[1], match[2]
        if len(unsafe) == 5:  # looks like a code; it is one only if it is that of a blank
            return run * 2 + unsafe if chr(int(unsafe[1:], 16)).isspace() else match[0]
        return run * 2 + {"\n": _BREAK, _BREAK: f"\\{_BREAK}"}.get(unsafe, f"\\u{ord(unsafe):04x}")

    return _UNSAFE.sub(code, content)


def _unescape(line: str) -> str:
    """Read what `_escape` wrote; an odd run of backslashes ends in one that changes the meaning of what follows."""
    if _BREAK not in line and "\\u" not in line:
        return line

    def meaning(match: re.Match[str]) -> str:
        (half, odd), mark = divmod(len(match[1]), 2), match[2]
        if mark == _BREAK:
            return "\\" * half + (_BREAK if odd else "\n")
        char = chr(int(mark[1:], 16))
        return "\\" * half + (char if odd else mark) if char.isspace() else match[0]

    return _ESCAPED.sub(meaning, line)


def _line(bullet: Bullet, counters: bool) -> str:
    counts = f"helpful={bullet.helpful} harmful={bullet.harmful} :: " if counters else ""
    return f"[{bullet.id}] {counts}{_escape(bullet.content)}"


def _count_of(digits: str) -> int:
    """Read a counter; `int` refuses thousands of digits in words that speak of no counter."""
    if len(digits) > 100:
        raise PlaybookError(f"helpful and harmful must be at most {MOST_COUNT}, got a number of {len(digits)} digits")
    return int(digits)


def _bullet_of(line: str) -> Bullet:
    """Read a line with or without counters."""
    if match := _BULLET.fullmatch(line):
        return Bullet(match[1], _unescape(match[4]), _count_of(match[2]), _count_of(match[3]))
    if match := _PLAIN.fullmatch(line):
        return Bullet(match[1], _unescape(match[2]))
    raise PlaybookError(f"must be `## SECTION` or `[id] helpful=0 harmful=0 :: lesson`, got {line[:60]!r}")


def _json_list(lines: Sequence[str], indent: str) -> str:
    return "[" + ",".join(f"\n{line}" for line in lines) + (f"\n{indent}]" if lines else "]")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a JSON object of its keys and values, which `json` would do silently where a key comes twice."""
    _refuse_twins("key", [(key, key) for key, _ in pairs])
    return dict(pairs)


def _refuse_twins(kind: str, named: list[tuple[str, str]]) -> None:
    """Refuse pairs of key and name of which two have the same key."""
    if len(dict(named)) == len(named):
        return
    seen: set[str] = set()
    for key, name in named:
        if key in seen:
            raise PlaybookError(f"{kind} {name!r} comes twice")
        seen.add(key)


def _check(value: object, place: str, kinds: Mapping[str, type]) -> None:
    """Refuse what is not a JSON object of exactly these keys, with values of these types."""
    if not isinstance(value, dict):
        raise PlaybookError(f"{place} must be an object, got {value!r:.60}")
    if value.keys() != kinds.keys():
        raise PlaybookError(f"{place} must have the keys {', '.join(kinds)}, got {', '.join(value) or 'none'}")
    for key, kind in kinds.items():
        if type(value[key]) is not kind:  # isinstance would let true pass for 1
            raise PlaybookError(f"{place}: {key} must be of type {kind.__name__}, got {value[key]!r:.60}")


@dataclass(frozen=True)
class Bullet:
    """One lesson.

    Attributes:
        id: slug of its first section and a counter of 5 to 15 digits, such as `calc-00012`.
        content: the lesson, of one or more lines.
        helpful: how often it was tagged as helpful, in [0, 10**12].
        harmful: likewise as harmful.
        step: of training, when it was added; 0 before training. The text form does not hold it.

    Raises:
        PlaybookError: if the id has another form, a number is out of range, or the content is not valid Unicode.
    """

    id: str
    content: str
    helpful: int = 0
    harmful: int = 0
    step: int = 0

    def __post_init__(self) -> None:
        number(self.id)
        numbers = (self.helpful, self.harmful, self.step)
        if min(numbers) < 0 or max(numbers) > MOST_COUNT:
            bound = "at least 0" if min(numbers) < 0 else f"at most {MOST_COUNT}"
            raise PlaybookError(
                f"bullet {self.id}: helpful, harmful and step must be {bound}, "
                f"got {self.helpful}, {self.harmful} and {self.step}"
            )
        if not self.content.isprintable() and _SURROGATE.search(self.content):
            raise PlaybookError(f"bullet {self.id}: half a surrogate pair is no text, got {self.content[:60]!r}")


@dataclass(frozen=True)
class Section:
    """Bullets under one header.

    Raises:
        PlaybookError: if the name is blank, has blanks or a colon at an end, or more than one line.
    """

    name: str
    bullets: tuple[Bullet, ...] = ()

    def __post_init__(self) -> None:
        name = self.name
        if not name.strip(": ") or name != name.strip() or name.endswith(":") or len(name.splitlines()) != 1:
            raise PlaybookError(f"the name of a section must be one line, no blank or colon around it, got {name!r}")
        if _SURROGATE.search(name):
            raise PlaybookError(f"the name of a section holds half a surrogate pair, got {name!r}")


@dataclass(frozen=True)
class Playbook:
    """Sections in order. A playbook is never changed: what changes one returns another.

    Attributes:
        sections: no two of the same `section_key`, no two bullets of the same id.
        next_id: counter of the next bullet's id, above those of all bullets and at most 10**15. Ids of deleted bullets
            are not used again.

    Raises:
        PlaybookError: if that does not hold.
    """

    sections: tuple[Section, ...]
    next_id: int = 1

    def __post_init__(self) -> None:
        _refuse_twins("section", [(section_key(section.name), section.name) for section in self.sections])
        _refuse_twins("bullet", [(bullet.id, bullet.id) for bullet in self.bullets])
        last = max((number(bullet.id) for bullet in self.bullets), default=0)
        if self.next_id <= last:
            raise PlaybookError(f"next_id must be above {last}, the highest in use, got {self.next_id}")
        if self.next_id > NEXT_LIMIT:
            raise PlaybookError(f"next_id must be at most {NEXT_LIMIT}, got {self.next_id}")

    @classmethod
    def empty(cls, sections: Sequence[str] = FINANCE_SECTIONS) -> Playbook:
        """Return a playbook of empty sections."""
        return cls(tuple(Section(name) for name in sections))

    @cached_property
    def bullets(self) -> tuple[Bullet, ...]:
        """All bullets, section by section."""
        return tuple(chain.from_iterable(section.bullets for section in self.sections))

    @cached_property
    def by_id(self) -> dict[str, Bullet]:
        """All bullets by their ids, in the same order."""
        return {bullet.id: bullet for bullet in self.bullets}

    def get(self, bullet_id: str) -> Bullet | None:
        """Return the bullet of that id, if there is one."""
        return self.by_id.get(bullet_id)

    def __len__(self) -> int:
        return len(self.bullets)

    def with_bullets(self, bullets: Mapping[str, Bullet]) -> Playbook:
        """Return it with each bullet replaced by that of the same id, and without those that have none."""
        sections = (
            replace(section, bullets=tuple(bullets[bullet.id] for bullet in section.bullets if bullet.id in bullets))
            for section in self.sections
        )
        return replace(self, sections=tuple(sections))

    def tagged(self, tags: Mapping[str, Tag]) -> Playbook:
        """Count the Reflector's tags: one more helpful or harmful use of each bullet that is there.

        Args:
            tags: by id; ids of no bullet are ignored, and `neutral` counts nothing.

        Raises:
            ValueError: if a tag is another word, or a counter is at its highest already.
        """
        changed = {}
        for bullet_id, tag in tags.items():
            if tag not in ("helpful", "harmful", "neutral"):
                raise ValueError(f"the tag of {bullet_id} must be helpful, harmful or neutral, got {tag!r}")
            if tag != "neutral" and (bullet := self.get(bullet_id)):
                changed[bullet_id] = replace(bullet, **{tag: getattr(bullet, tag) + 1})
        return self.with_bullets(self.by_id | changed) if changed else self

    def to_json(self) -> str:
        """Return the canonical form, of one bullet a line so that a `diff` shows each change."""
        sections = []
        for section in self.sections:
            bullets = _json_list([f"      {_json(vars(bullet))}" for bullet in section.bullets], "    ")
            sections.append(f'    {{"name": {_json(section.name)}, "bullets": {bullets}}}')
        return f'{{\n  "next_id": {self.next_id},\n  "sections": {_json_list(sections, "  ")}\n}}\n'

    @classmethod
    def from_json(cls, text: str) -> Playbook:
        """Read what `to_json` writes.

        Raises:
            PlaybookError: if it is not JSON, a key is missing, unknown or twice there, a value is of another type, or
                the playbook is not a valid one.
        """
        try:
            data = json.loads(text.removeprefix("\ufeff"), object_pairs_hook=_object)
        except PlaybookError:
            raise
        except (ValueError, RecursionError) as error:
            raise PlaybookError(f"not JSON: {error}") from error
        _check(data, "the playbook", {"next_id": int, "sections": list})
        sections = []
        for i, section in enumerate(data["sections"], start=1):
            _check(section, f"section {i}", {"name": str, "bullets": list})
            for j, bullet in enumerate(section["bullets"], start=1):
                _check(bullet, f"section {i}, bullet {j}", _KINDS)
            sections.append(Section(section["name"], tuple(Bullet(**bullet) for bullet in section["bullets"])))
        return cls(tuple(sections), data["next_id"])

    def to_text(self) -> str:
        """Return the text form, which `from_text` reads back to the same sections, ids, counters and contents."""
        return f"{render(self)}\n" if self.sections else ""

    @classmethod
    def from_text(cls, text: str) -> Playbook:
        """Read the text form; the next id is one above the highest.

        Bullets without counters (`[shr-00001] lesson`), headers that end in a colon, blank lines, Windows line ends
        and a byte order mark are accepted too.

        Raises:
            PlaybookError: with the number of the line that is none of these, or repeats a section or an id.
        """
        sections: dict[str, tuple[str, list[Bullet]]] = {}
        seen: dict[str, int] = {}
        bullets: list[Bullet] | None = None
        for at, line in enumerate(map(str.strip, text.removeprefix("\ufeff").split("\n")), start=1):
            if not line:
                continue
            try:
                if match := _HEADER.fullmatch(line):
                    section = Section(match[1].rstrip(": "))
                    key, bullets = section_key(section.name), []
                    if key in sections:
                        raise PlaybookError(f"section {section.name!r} is there already, as {sections[key][0]!r}")
                    sections[key] = section.name, bullets
                    continue
                bullet = _bullet_of(line)
                if bullets is None:
                    raise PlaybookError(f"bullet {bullet.id} stands before the first section header")
                if (earlier := seen.setdefault(bullet.id, at)) != at:
                    raise PlaybookError(f"id {bullet.id} is that of line {earlier} already")
            except ValueError as error:
                raise PlaybookError(f"line {at}: {error}") from error
            bullets.append(bullet)
        last = max(map(number, seen), default=0)
        return cls(tuple(Section(name, tuple(items)) for name, items in sections.values()), last + 1)


def render(playbook: Playbook, order: Order = "sections", counters: bool = True) -> str:
    """Write a playbook as prompts show it.

    Args:
        playbook: what to write.
        order: `sections` for all headers with their bullets; `ids` for one list without headers, in which a new bullet
            comes last, so that a backend's prefix cache holds up to it.
        counters: whether to show them; without, a bullet is `[id] content`.
    """
    if order == "ids":
        return "\n".join(_line(bullet, counters) for bullet in sorted(playbook.bullets, key=by_number))
    blocks = (
        "\n".join([f"## {section.name}", *(_line(bullet, counters) for bullet in section.bullets)])
        for section in playbook.sections
    )
    return "\n\n".join(blocks)


def load(path: Path) -> Playbook:
    """Read a playbook from a file in UTF-8: `.json`, or the text form in `.md` or `.txt`.

    Raises:
        FileNotFoundError: if there is no such file.
        PlaybookError: with its name, if it has another suffix or holds no valid playbook.
    """
    readers = {".json": Playbook.from_json, ".md": Playbook.from_text, ".txt": Playbook.from_text}
    if path.suffix not in readers:
        raise PlaybookError(f"{path}: the name of a playbook's file must end in .json, .md or .txt")
    if not path.is_file():
        raise FileNotFoundError(f"there is no playbook {path}")
    try:
        return readers[path.suffix](path.read_bytes().decode())
    except ValueError as error:
        raise PlaybookError(f"{path}: {error}") from error
