"""Deltas: the Curator's small operations on a playbook, and the plain code that merges them (Sec. 3.1).

The released code has ADD alone; the paper's design names updating, merging and deleting too. No model rewrites the
playbook: each operation touches the bullets that it names and no other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from ace.playbook import MOST_COUNT, NEXT_LIMIT, OTHERS, Bullet, Playbook, Section, by_number, section_key, slug


def _require_all(schema: dict[str, Any]) -> None:
    """Let schemas ask for the type too, although code may leave it out."""
    schema["required"] = list(schema["properties"])


def _is_text(value: str) -> str:
    value.encode()  # half a surrogate pair, which JSON can escape, is a UnicodeEncodeError and so a ValueError
    return value


Text = Annotated[str, AfterValidator(_is_text)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, json_schema_extra=_require_all)


class Add(_Model):
    """Append a bullet to a section; a section that is not there stands for OTHERS."""

    type: Literal["ADD"] = "ADD"
    section: Text
    content: Text


class Update(_Model):
    """Replace a bullet's content; its id, counters and step stay."""

    type: Literal["UPDATE"] = "UPDATE"
    id: Text
    content: Text


class Merge(_Model):
    """Replace two or more bullets by one, which has the lowest id, its place, and the sums of the counters."""

    type: Literal["MERGE"] = "MERGE"
    ids: tuple[Text, ...]
    content: Text


class Delete(_Model):
    """Remove a bullet."""

    type: Literal["DELETE"] = "DELETE"
    id: Text


Operation = Annotated[Add | Update | Merge | Delete, Field(discriminator="type")]
_OPERATION: TypeAdapter[Operation] = TypeAdapter(Operation)


@dataclass(frozen=True)
class Applied:
    """What became of a delta.

    Attributes:
        done: operations, each with the id of the bullet that it made, changed or removed.
        skipped: operations, each with the reason in one sentence.
    """

    done: list[tuple[Operation, str]]
    skipped: list[tuple[Operation, str]]


def parse_operations(raw: object) -> tuple[list[Operation], list[str]]:
    """Validate operations, each alone.

    Args:
        raw: what a model gave as its `operations`: a list of objects. Types may be in lower case, and further keys are
            ignored.

    Returns:
        The valid ones in their order, and one sentence for each other.
    """
    if not isinstance(raw, list):
        return [], [f"operations must be a list, got {raw!r:.60}"]
    operations, rejected = [], []
    for i, item in enumerate(raw, start=1):
        kind = item.get("type") if isinstance(item, dict) else None
        named = item | {"type": kind.upper()} if isinstance(kind, str) else item
        try:
            operations.append(_OPERATION.validate_python(named))
        except ValidationError as error:
            reasons = (f"{'.'.join(map(str, e['loc'])) or 'value'}: {e['msg']}" for e in error.errors())
            rejected.append(f"operation {i} is not valid: {'; '.join(reasons)}")
    return operations, rejected


def apply(playbook: Playbook, operations: Sequence[Operation], step: int = 0) -> tuple[Playbook, Applied]:
    """Apply a delta.

    The operations are applied in order, and one that cannot be is skipped: its content is blank, an added text is there
    already (up to case and blanks), it names a bullet that is not there, or was removed or made by this very delta, or
    the next id or a sum of counters would be above the highest. Blanks around a content are dropped.

    Args:
        playbook: what the operations were written for; it is not changed.
        operations: from `parse_operations`, of one sample or of several.
        step: of training, for the bullets that are added.

    Returns:
        The new playbook and a report.
    """
    draft = _Draft(playbook, step)
    report = Applied([], [])
    for operation in operations:
        try:
            report.done.append((operation, draft.run(operation)))
        except _SkipError as reason:
            report.skipped.append((operation, str(reason)))
    return (draft.finish() if report.done else playbook), report


def _normalised(text: str) -> str:
    return " ".join(text.casefold().split())


class _SkipError(Exception):
    """Why an operation is skipped."""


class _Draft:
    """A playbook in the making, for which an operation costs the same however long the playbook is."""

    def __init__(self, playbook: Playbook, step: int) -> None:
        self.next_id, self.step = playbook.next_id, step
        self.names = {section_key(section.name): section.name for section in playbook.sections}
        self.sections = {
            section_key(section.name): {bullet.id: bullet for bullet in section.bullets}
            for section in playbook.sections
        }
        self.home = {bullet_id: bullets for bullets in self.sections.values() for bullet_id in bullets}
        self.removed: set[str] = set()
        self.texts: Counter[str] | None = None  # of all bullets, normalised; counted at the first ADD

    def run(self, operation: Operation) -> str:
        """Apply one operation and return the id of its bullet.

        Raises:
            _SkipError: before anything is changed.
        """
        match operation:
            case Add(section=section, content=content):
                return self._add(section, self._text(content))
            case Update(id=bullet_id, content=content):
                bullet = self._find(bullet_id)
                self._put(replace(bullet, content=self._text(content)))
            case Merge(ids=ids, content=content):
                bullet_id = self._merge([self._find(name) for name in dict.fromkeys(ids)], self._text(content))
            case Delete(id=bullet_id):
                self._remove(self._find(bullet_id))
        return bullet_id

    def finish(self) -> Playbook:
        """Return the playbook."""
        sections = (Section(self.names[key], tuple(bullets.values())) for key, bullets in self.sections.items())
        return Playbook(tuple(sections), self.next_id)

    def _add(self, section: str, content: str) -> str:
        if self.texts is None:
            self.texts = Counter(_normalised(b.content) for bullets in self.sections.values() for b in bullets.values())
        if self.texts[_normalised(content)]:
            raise _SkipError("a bullet with this content is there already")
        if self.next_id >= NEXT_LIMIT:
            raise _SkipError(f"there is no id for a further bullet below {NEXT_LIMIT}")
        key = section_key(section)
        if key not in self.sections:
            key = section_key(OTHERS)
            self.names.setdefault(key, OTHERS)
            self.sections.setdefault(key, {})
        bullet = Bullet(f"{slug(self.names[key])}-{self.next_id:05d}", content, step=self.step)
        self.next_id += 1
        self.sections[key][bullet.id] = bullet
        self._count(content, 1)
        return bullet.id

    def _merge(self, bullets: list[Bullet], content: str) -> str:
        if len(bullets) < 2:
            raise _SkipError(f"merging needs two bullets or more, got {len(bullets)}")
        helpful, harmful = sum(bullet.helpful for bullet in bullets), sum(bullet.harmful for bullet in bullets)
        if max(helpful, harmful) > MOST_COUNT:
            raise _SkipError(f"the counters would add up to more than {MOST_COUNT}")
        first, *others = sorted(bullets, key=by_number)
        for bullet in others:
            self._remove(bullet)
        self._put(replace(first, content=content, helpful=helpful, harmful=harmful))
        return first.id

    def _find(self, bullet_id: str) -> Bullet:
        if bullet_id in self.removed:
            raise _SkipError(f"bullet {bullet_id} was removed by an operation before")
        if bullet_id not in self.home:
            raise _SkipError(f"there is no bullet {bullet_id}")
        return self.home[bullet_id][bullet_id]

    def _put(self, bullet: Bullet) -> None:
        self._count(self._find(bullet.id).content, -1)
        self._count(bullet.content, 1)
        self.home[bullet.id][bullet.id] = bullet

    def _remove(self, bullet: Bullet) -> None:
        self._count(bullet.content, -1)
        del self.home[bullet.id][bullet.id]
        self.removed.add(bullet.id)

    def _count(self, content: str, change: int) -> None:
        if self.texts is not None:
            self.texts[_normalised(content)] += change

    @staticmethod
    def _text(content: str) -> str:
        if not content.strip():
            raise _SkipError("the content is blank")
        return content.strip()
