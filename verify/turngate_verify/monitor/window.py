"""Puts lines back into their order, if each bears a number that grows with the decisions."""

from __future__ import annotations

import heapq
import json
import time
from collections.abc import Callable, Iterator
from math import inf, isfinite

from turngate_verify.monitor.following import Item, LostPlace, Whole

PATIENCE = 0.5
"""Seconds after which a line is let through although fewer than a window of lines came after it."""


class Window:
    """Holds lines back until ``size`` more have come, and lets the smallest by ``key`` through first.

    The order of the numbers is the order of the decisions. Lines with the same number stay as they came. A
    line whose number is smaller than one that was let through already came too late: its place is lost. A
    line without a number may belong anywhere, so the lines held back are lost with it.
    """

    def __init__(self, size: int, key: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._size = size
        self._key = key
        self._clock = clock
        self._held: list[tuple[float, int, float, Whole]] = []
        self._nth = 0
        self._last = -inf

    def put(self, item: Item) -> Iterator[Item]:
        """Take what has come, and yield what may go on."""
        if isinstance(item, LostPlace):
            self._drop()
            if item.anew:
                self._last = -inf
            yield item
            return
        if not item.text.strip():
            return
        number = self._number(item.text)
        if number is None:
            self._drop()
            yield LostPlace(item.number, f"it has no number under {self._key!r}")
        elif number < self._last:
            why = (
                f"its {self._key} is {number:g}, but {self._last:g} came more than {self._size} lines before"
            )
            yield LostPlace(item.number, why)
        else:
            self._nth += 1
            heapq.heappush(self._held, (number, self._nth, self._clock(), item))
            while len(self._held) > self._size:
                yield self._next()

    def overdue(self) -> Iterator[Item]:
        """Yield what has been held back long enough, and what comes before it."""
        due = self._clock() - PATIENCE
        while any(since <= due for _, _, since, _ in self._held):
            yield self._next()

    def flush(self) -> Iterator[Item]:
        """Yield everything: nothing more will come."""
        while self._held:
            yield self._next()

    def _drop(self) -> None:
        """Forget the lines held back: a line is missing, perhaps between them."""
        self._last = max([self._last, *(number for number, _, _, _ in self._held)])
        self._held.clear()

    def _next(self) -> Item:
        number, _, _, item = heapq.heappop(self._held)
        self._last = number
        return item

    def _number(self, text: bytes) -> float | None:
        try:
            number = json.loads(text).get(self._key)
        except (ValueError, AttributeError, RecursionError):
            return None
        known = isinstance(number, int | float) and not isinstance(number, bool) and isfinite(number)
        return number if known else None
