"""What happens in a subject between two rests, with the interval in which each thing happened.

The clock counts everything that is noted. What is exact and what is not:

==================  =============================================================================
an operation        from its call to its return if the adapter says that it is done then,
                    otherwise until the subject is at rest
the end of a        exact: the runner is the kit's own
runner
a watched future    exact up to one callback: the kit looks after each
everything else     an upper bound: a run is active before its runner is called, and a waiter
                    hears of a RunComplete late
==================  =============================================================================
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from turngate_model.history import Ended
from turngate_verify.conform.port import Observed
from turngate_verify.conform.programs import Op


class Waiting(NamedTuple):
    """At rest, a run has neither started nor ended. It counts as queued if it can be."""

    run: str


What: TypeAlias = Op | Observed | Ended | Waiting
"""What can happen between two rests."""


class Noted(NamedTuple):
    """Something that happened at one moment between ``lo`` and ``hi``."""

    what: What
    lo: int
    hi: int | None
    """If None, it may have happened at any moment up to the end of the window."""
    shown_in: int = 0
    """The callback after which the kit has seen it by looking; 0 if the subject reported it."""


class Moment(NamedTuple):
    """A moment after an operation: what could be called now."""

    at_work: tuple[str, ...]
    """The runs whose runner can go on."""
    accepted: frozenset[str]
    """The runs whose accept has returned."""
    complete: frozenset[str] = frozenset()
    """The runs whose RunComplete was shown."""


class Notes:
    """Everything that was noted since the last rest."""

    def __init__(self) -> None:
        self.items: list[Noted] = []
        self._clock = 0
        self._rested = 0
        self._callback = 0

    def tick(self) -> int:
        """Return the next moment."""
        self._clock += 1
        return self._clock

    def begin_callback(self) -> None:
        """Note that a callback begins."""
        self._callback = self.tick()

    def rest(self) -> None:
        """Begin a new window."""
        self.items.clear()
        self._rested = self.tick()

    def called(self, op: Op) -> int:
        """Note the call of an operation; return its number."""
        self.items.append(Noted(op, self.tick(), None))
        return len(self.items) - 1

    def returned(self, number: int) -> None:
        """Note that an operation has returned, and is done."""
        if number < len(self.items):
            self.items[number] = self.items[number]._replace(hi=self.tick())

    def told(self, op: Op) -> None:
        """Note that a runner continues, which happens at once."""
        now = self.tick()
        self.items.append(Noted(op, now, now))

    def ended(self, run: str) -> None:
        """Note that a runner has ended."""
        now = self.tick()
        self.items.append(Noted(Ended(run), now, now))

    def saw(self, event: Observed | Waiting, *, exact: bool) -> None:
        """Note that something was shown, at the moment it happened or later."""
        now = self.tick()
        self.items.append(Noted(event, now if exact else self._rested, now))

    def found(self, event: Observed) -> None:
        """Note that the kit has seen something, after the callback that did it."""
        self.items.append(Noted(event, self._callback, self.tick(), self._callback))
