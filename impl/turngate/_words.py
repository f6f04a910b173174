"""Numbers and nouns that agree: "1 run", "2 runs"."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Return the number with its noun, in the plural unless it is one."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
