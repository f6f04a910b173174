"""Dice for Hypothesis: what is drawn depends on a seed, and on nothing else.

Left to itself, Hypothesis may also draw constants that it finds in the modules
that are loaded, so that the same seed can give other examples in a process that
has made other checks before. It also repeats and varies what it has drawn, which
takes as long as the examples themselves and reaches no more.
"""

from __future__ import annotations

import random
from typing import Any, ClassVar, NoReturn

from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS, PrimitiveProvider

_BACKEND = "turngate-dice"


class Dice(PrimitiveProvider):
    """Draws every choice evenly, from one seed for all examples."""

    seed: ClassVar[int] = 0

    def __init__(self, data: Any) -> None:
        super().__init__(data)
        self._random = random.Random(self.seed)  # noqa: S311 - to draw examples, not secrets

    def draw_boolean(self, p: float = 0.5) -> bool:
        """Draw yes, with this probability, or no."""
        return self._random.random() < p

    def draw_integer(
        self,
        min_value: int | None = None,
        max_value: int | None = None,
        *,
        weights: dict[int, float] | None = None,
        shrink_towards: int = 0,
    ) -> int:
        """Draw a number between the two."""
        assert min_value is not None, "the rules draw numbers with two ends"
        assert max_value is not None, "the rules draw numbers with two ends"
        return self._random.randint(min_value, max_value)

    def draw_float(self, **_about: Any) -> NoReturn:
        """Refuse: no rule draws one."""
        raise NotImplementedError

    def draw_string(self, *_about: Any, **_size: Any) -> NoReturn:
        """Refuse: no rule draws one."""
        raise NotImplementedError

    def draw_bytes(self, *_about: Any, **_size: Any) -> NoReturn:
        """Refuse: no rule draws one."""
        raise NotImplementedError


def backend_of(seed: int) -> str:
    """Return the name by which Hypothesis finds dice with this seed."""
    AVAILABLE_PROVIDERS[_BACKEND] = type("SeededDice", (Dice,), {"seed": seed})
    return _BACKEND
