"""Numbers and nouns that agree: "1 state", "3,962 states"."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Return the number with its noun, in the plural unless it is one."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
