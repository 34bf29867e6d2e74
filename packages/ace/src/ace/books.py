"""Playbooks side by side: putting several together, what changed from one to another, and what is wrong with one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ace.playbook import Bullet, Playbook, Section, number, section_key, slug


@dataclass
class Joined:
    """What became of the bullets of a file that was merged.

    Attributes:
        file: its name.
        bullets: how many it has.
        renamed: old id -> new id, where an earlier file had the number.
        known: ids of bullets that an earlier one says too -> id of that.
    """

    file: str
    bullets: int
    renamed: dict[str, str] = field(default_factory=dict)
    known: dict[str, str] = field(default_factory=dict)


def join(books: Sequence[tuple[str, Playbook]]) -> tuple[Playbook, list[Joined]]:
    """Put playbooks together, the first as it is.

    Sections are told apart by their keys. A later bullet keeps its id unless its number is taken, since no two bullets
    of a playbook share one; it then gets the next free one. Where its text is there already, up to case and blanks, its
    counters are added to those of the first bullet that says so.

    Args:
        books: name and playbook of each.

    Returns:
        The whole, and what became of each.
    """
    (name, first), *later = books
    names = {section_key(section.name): section.name for section in first.sections}
    bullets = {section_key(section.name): {b.id: b for b in section.bullets} for section in first.sections}
    home = {b.id: key for key, held in bullets.items() for b in held.values()}
    texts = {normalised(b.content): b.id for b in reversed(first.bullets)}
    numbers = {number(b.id) for b in first.bullets}
    next_id = max(book.next_id for _, book in books)
    report = [Joined(name, len(first))]
    for name, book in later:
        report.append(Joined(name, len(book)))
        for section in book.sections:
            key = section_key(section.name)
            names.setdefault(key, section.name)
            bullets.setdefault(key, {})
            for bullet in section.bullets:
                same = texts.get(normalised(bullet.content))
                if same is not None:
                    old = bullets[home[same]][same]
                    bullets[home[same]][same] = replace(
                        old, helpful=old.helpful + bullet.helpful, harmful=old.harmful + bullet.harmful
                    )
                    report[-1].known[bullet.id] = same
                    continue
                taken = bullet
                if number(bullet.id) in numbers:
                    taken = replace(bullet, id=f"{slug(names[key])}-{next_id:05d}")
                    next_id += 1
                    report[-1].renamed[bullet.id] = taken.id
                numbers.add(number(taken.id))
                texts[normalised(taken.content)] = taken.id
                home[taken.id] = key
                bullets[key][taken.id] = taken
    sections = tuple(Section(names[key], tuple(held.values())) for key, held in bullets.items())
    return Playbook(sections, next_id), report


def changes(first: Playbook, second: Playbook) -> dict[str, list[tuple[Bullet | None, Bullet | None]]]:
    """List the bullets that differ, by the section that they are in, or were.

    Args:
        first: as it was.
        second: as it is.

    Returns:
        Section -> (bullet as it was, as it is), None where it was not or is not. One that has moved to another section
        is listed in both. The step is no difference: the text form does not hold it.
    """
    names: dict[str, str] = {}
    before: dict[str, dict[str, Bullet]] = {}
    after: dict[str, dict[str, Bullet]] = {}
    for book, held in ((first, before), (second, after)):
        for section in book.sections:
            key = section_key(section.name)
            names.setdefault(key, section.name)
            held[key] = {bullet.id: replace(bullet, step=0) for bullet in section.bullets}
    found = {}
    for key, name in names.items():
        old, new = before.get(key, {}), after.get(key, {})
        ids = sorted({*old, *new}, key=lambda bullet_id: (number(bullet_id), bullet_id))
        pairs = [(old.get(bullet_id), new.get(bullet_id)) for bullet_id in ids]
        if differing := [(was, now) for was, now in pairs if was != now]:
            found[name] = differing
    return found


def faults(playbook: Playbook) -> list[str]:
    """Say what is wrong with a playbook that can be read: blank bullets, and bullets that say the same."""
    found = [f"bullet {bullet.id} is blank" for bullet in playbook.bullets if not bullet.content.strip()]
    seen: dict[str, str] = {}
    for bullet in playbook.bullets:
        text = normalised(bullet.content)
        if text and (same := seen.setdefault(text, bullet.id)) != bullet.id:
            found.append(f"bullet {bullet.id} says the same as {same}")
    return found


def normalised(text: str) -> str:
    """Return a text without case and repeated blanks, by which `operations.apply` too knows one that is there."""
    return " ".join(text.casefold().split())
