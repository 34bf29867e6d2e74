"""Checks of options."""

from __future__ import annotations

import math
from typing import Any, get_args


def check_choice(option: str, value: object, choices: Any) -> None:
    """Check that a value is one of a `Literal`.

    Args:
        option: its name, for the message.
        value: what was given.
        choices: the `Literal`.

    Raises:
        ValueError: if it is not.
    """
    if value not in get_args(choices):
        raise ValueError(f"{option} must be one of {', '.join(map(str, get_args(choices)))}, got {value!r}")


def check_number(option: str, value: float, *, above: float = -math.inf, least: float = -math.inf) -> None:
    """Check that a number is finite and within its bounds.

    Args:
        option: its name, for the message.
        value: what was given.
        above: what it must exceed.
        least: what it must be at least.

    Raises:
        ValueError: if it is not.
    """
    if not (math.isfinite(value) and value > above and value >= least):
        bounds = [f" > {above:g}"] * (above > -math.inf) + [f" >= {least:g}"] * (least > -math.inf)
        raise ValueError(f"{option} must be a finite number{' and'.join(bounds)}, got {value}")
