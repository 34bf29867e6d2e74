"""Checks of options that several classes have."""

from __future__ import annotations

import math


def check_positive(*, optional: bool = False, **options: int | None) -> None:
    """Check that numbers are at least 1.

    Args:
        optional: whether None passes, as no number.
        options: values by the names of the options, for the message.

    Raises:
        ValueError: if one of them is less.
    """
    for option, value in options.items():
        if value is None and optional:
            continue
        if value is None or value < 1:
            raise ValueError(f"{option} must be at least 1, got {value}")


def check_temperature(temperature: float) -> None:
    """Raise a ValueError unless a temperature is a finite number that is not negative."""
    if not 0 <= temperature < math.inf:
        raise ValueError(f"temperature must be a finite number >= 0, got {temperature}")
