"""Figures of a run: accuracy and size of the context against steps, counters of bullets, tokens of roles (Sec. 12).

Colours are those of Okabe and Ito.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from shared.tables import drawing

from ace.playbook import Bullet, Playbook, by_number

BLUE, ORANGE, GREEN, SKY = "#0072B2", "#D55E00", "#009E73", "#56B4E9"
TOP = 20  # bullets of a figure
LONGEST = 50  # characters of a lesson beside its bar
MOST = 10**12  # steps or tokens of a log's line


log = logging.getLogger(__name__)


def draw_run(
    folder: Path,
    history: Sequence[Mapping[str, float]],
    playbook: Playbook | None,
    usage: Mapping[str, Mapping[str, Any]],
) -> None:
    """Draw what a run's folder holds, into its `figures`.

    A figure that would be empty is left out, and so is, with a warning, that of steps whose log is damaged.

    Args:
        folder: of the run, with its log of steps.
        history: of validation: step, accuracy and tokens of the context.
        playbook: that the run ended with, if its method has one.
        usage: role -> calls and tokens.
    """
    figures = folder / "figures"
    try:
        steps = read_steps(folder / "steps.jsonl")
    except ValueError as error:
        log.warning("the figure progress.png is left out: %s", error)
    else:
        if steps or len(history) > 1:
            draw_progress(history, steps, figures / "progress.png")
    if playbook is not None and most_tagged(playbook):
        draw_counters(playbook, figures / "counters.png")
    if usage:
        draw_usage(usage, figures / "usage.png")


def read_steps(path: Path) -> list[dict[str, Any]]:
    """Read a run's log of steps, if there is one; a last line that a kill has cut is left out.

    Raises:
        ValueError: if another line is no step; it names file and line.
    """
    lines = path.read_bytes().split(b"\n") if path.is_file() else [b""]
    steps = []
    for number, line in enumerate(lines[:-1], 1):
        try:
            step = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}, line {number}: no entry of a log of steps ({error})") from None
        if not _is_step(step):
            raise ValueError(
                f"{path}, line {number}: expected an object with step and tokens as numbers and before as a list of "
                f"true and false, got {step!r:.60}"
            )
        steps.append(step)
    return steps


def _is_step(step: object) -> bool:
    if not isinstance(step, dict):
        return False
    number, tokens, before = map(step.get, ("step", "tokens", "before"))
    return (
        isinstance(number, int)
        and 0 <= number <= MOST
        and isinstance(tokens, int | float)
        and 0 <= tokens <= MOST
        and isinstance(before, list)
        and all(type(right) is bool for right in before)
    )


def running_accuracy(steps: Sequence[Mapping[str, Any]]) -> dict[int, float]:
    """Return the share of samples so far that were answered rightly before they were learned from.

    Args:
        steps: of a run's log.

    Returns:
        Step -> share; steps without such an answer are left out.
    """
    answered = [step for step in steps if step["before"]]
    right = accumulate(sum(step["before"]) for step in answered)
    asked = accumulate(len(step["before"]) for step in answered)
    return {int(step["step"]): r / n for step, r, n in zip(answered, right, asked, strict=True)}


def draw_progress(history: Sequence[Mapping[str, float]], steps: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw accuracy and size of the context against steps.

    Args:
        history: of validation.
        steps: of the run's log.
        path: the PNG to write.
    """
    with drawing(path, (8.0, 3.2)) as image:
        left, right = image.subplots(1, 2)
        if history:
            points = {point["step"]: 100 * point["accuracy"] for point in history}
            left.plot(list(points), list(points.values()), color=BLUE, marker="o", markersize=4, label="validation")
        if running := running_accuracy(steps):
            values = [100 * value for value in running.values()]
            left.plot(list(running), values, color=ORANGE, linestyle="--", label="before learning, so far")
        sizes = {point["step"]: point["tokens"] for point in [*history, *steps]}
        right.plot(sorted(sizes), [sizes[step] for step in sorted(sizes)], color=GREEN)
        left.set_title("accuracy (%)", fontsize=9)
        right.set_title("tokens of the context", fontsize=9)
        left.set_ylim(0, 105)
        right.set_ylim(bottom=0)
        for axes in (left, right):
            axes.set_xlabel("step")
            axes.spines[["top", "right"]].set_visible(False)
        if left.lines:
            left.legend(fontsize=7, frameon=False)


def most_tagged(playbook: Playbook, top: int = TOP) -> list[Bullet]:
    """List the bullets that were tagged most often, the most first; those never tagged are left out.

    Args:
        playbook: that they are in.
        top: how many at most.
    """
    tagged = [bullet for bullet in playbook.bullets if bullet.helpful or bullet.harmful]
    return sorted(tagged, key=lambda bullet: (-bullet.helpful - bullet.harmful, by_number(bullet)))[:top]


def draw_counters(playbook: Playbook, path: Path) -> None:
    """Draw how often the most tagged bullets helped, to the right, and misled, to the left.

    Args:
        playbook: that they are in.
        path: the PNG to write.
    """
    from matplotlib.ticker import MaxNLocator

    bullets = most_tagged(playbook)
    with drawing(path, (7.5, 0.9 + 0.24 * len(bullets))) as image:
        axes = image.subplots()
        rows = range(len(bullets))
        axes.barh(rows, [float(bullet.helpful) for bullet in bullets], color=BLUE, label="helpful")
        axes.barh(rows, [-float(bullet.harmful) for bullet in bullets], color=ORANGE, hatch="//", label="harmful")
        axes.set_yticks(rows, [label_of(bullet) for bullet in bullets], fontsize=6, parse_math=False)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.xaxis.set_major_formatter(lambda value, _: f"{abs(value):g}")
        axes.axvline(0, color="black", linewidth=0.8)
        axes.invert_yaxis()
        axes.set_xlabel("tags")
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.legend(fontsize=7, frameon=False)


def label_of(bullet: Bullet) -> str:
    """Return a bullet's id and the beginning of its lesson, in letters that the figures' font has."""
    lesson = " ".join(bullet.content.split())
    short = lesson if len(lesson) <= LONGEST else lesson[: LONGEST - 1] + "…"
    return f"{bullet.id}  " + "".join(letter if ord(letter) < 0x2100 else "?" for letter in short)


def draw_usage(usage: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Draw the tokens of each role: read, read from the backend's cache, and written.

    Args:
        usage: role -> calls and tokens.
        path: the PNG to write.
    """
    roles = sorted(usage)
    # As floats, since matplotlib takes no whole number of more than 64 bits.
    cached = [float(usage[role]["cached_tokens"]) for role in roles]
    fresh = [float(usage[role]["prompt_tokens"] - usage[role]["cached_tokens"]) for role in roles]
    wrote = [float(usage[role]["completion_tokens"]) for role in roles]
    with drawing(path, (6.4, 0.9 + 0.5 * len(roles))) as image:
        axes = image.subplots()
        left = [0.0] * len(roles)
        parts = (("read", fresh, BLUE, ""), ("read, cached", cached, SKY, ".."), ("written", wrote, ORANGE, "//"))
        for label, values, colour, hatch in parts:
            axes.barh(range(len(roles)), values, left=left, color=colour, hatch=hatch, label=label)
            left = [start + value for start, value in zip(left, values, strict=True)]
        names = [f"{role or 'other'} ({usage[role]['calls']} calls)" for role in roles]
        axes.set_yticks(range(len(roles)), names, fontsize=8)
        axes.invert_yaxis()
        axes.set_xlabel("tokens")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(fontsize=7, frameon=False)
