"""What a limit must be."""

from __future__ import annotations


def whole_number(name: str, value: int, *, at_least: int) -> int:
    """Return the value of the limit, or say in one line what is wrong with it."""
    if not isinstance(value, int) or value < at_least:
        raise ValueError(f"{name} must be a whole number of at least {at_least}, not {value!r}")
    return value


def seconds(name: str, value: float) -> float:
    """Return the value of the time-out, or say in one line what is wrong with it."""
    if not isinstance(value, int | float) or not value > 0:
        raise ValueError(f"{name} must be more than 0 seconds, not {value!r}")
    return value


def check_finish(value: float) -> float:
    """Return the seconds that a close may wait, or say in one line what is wrong with them."""
    if not isinstance(value, int | float) or not value >= 0:
        raise ValueError(f"finish must be at least 0 seconds, not {value!r}")
    return value
