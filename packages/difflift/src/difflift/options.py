"""Checks of options."""

from __future__ import annotations

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
