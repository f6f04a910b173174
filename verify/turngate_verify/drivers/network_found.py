"""The programs of the rules over a network, and what came of them."""

from __future__ import annotations

from typing import Any, NamedTuple

Rule = tuple[Any, ...]
Program = list[tuple[Rule, bool]]
"""What is done, and whether all that follows from it at once comes before the next."""


class NetworkRules(NamedTuple):
    """What came of the rules over a network."""

    examples: int
    reached: frozenset[str]
    missed: frozenset[str]
    """What should have been reached, and was not."""
    wrong: list[str]
    """What is wrong in the first program that failed, when it was made shorter."""
    program: Program
