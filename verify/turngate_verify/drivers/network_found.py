"""The programs of the rules over a network, and their results."""

from __future__ import annotations

from typing import Any, NamedTuple

Rule = tuple[Any, ...]
Program = list[tuple[Rule, bool]]
"""An action, and whether its immediate consequences come before the next one."""


class NetworkRules(NamedTuple):
    """The result of the rules over a network."""

    examples: int
    reached: frozenset[str]
    missed: frozenset[str]
    """Situations that should have been reached and were not."""
    wrong: list[str]
    """What is wrong in the first program that failed, once it is shortened."""
    program: Program
