"""The abstract places: which turns wait for their runner to be called, and which calls are going on.

The abstract places know history only: the order in which turns became active, the calls, and what cancels
cover. They have no counter of free places; the mechanism has one (``places.py``). They judge three things,
each under the id REFINES:

1. At most ``limit`` runner calls go on at once, over all sessions.
2. Waiting turns are called in the order in which they became active, over all sessions.
3. The runner is not called for a turn that a cancel covers, nor for one that does not wait.

A session has at most one turn, so a number that names the session also names its turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from turngate_model.abstract_session import AbstractSession
from turngate_model.history import Called, Ended, Enter, Event, Handoff
from turngate_model.lifecycle import DeclaredState
from turngate_model.properties import Property, Violation


class AbstractPlaces(NamedTuple):
    """The waiting turns in the order in which they became active, and the calls that are going on."""

    limit: int
    waiting: tuple[int, ...] = ()
    called: frozenset[int] = frozenset()

    @property
    def first(self) -> int | None:
        """The session whose turn is to be called next, or None while nobody waits or no place is free."""
        return self.waiting[0] if self.waiting and len(self.called) < self.limit else None

    def broken_by(self, session: int, event: Event) -> Iterator[Violation]:
        """Yield what an event of a session breaks."""
        if not isinstance(event, Called):
            return
        run = event.run
        if session not in self.waiting:
            yield _refuted(f"the runner is called for {run}, which waits for no place: it should not be")
        elif self.waiting[0] != session:
            first = f"session {self.waiting[0] + 1}"
            yield _refuted(f"{run} is called ahead of the turn of {first}, which became active before it")
        if len(self.called) >= self.limit:
            yield _refuted(f"the runner is called for {run}, but no place is free: it should wait")

    def after(self, session: int, event: Event, abstract: AbstractSession) -> AbstractPlaces:
        """Return the places after an event of a session; ``abstract`` has taken the event in already."""
        waiting, called = self.waiting, self.called
        match event:
            case Enter(_, DeclaredState.ACTIVE) | Handoff():
                waiting = (*waiting, session)
            case Called():
                waiting, called = _without(waiting, session), called | {session}
            case Ended():
                called -= {session}
            case _:
                pass
        if not abstract.turn or abstract.covered.intersection(abstract.turn):
            waiting = _without(waiting, session)
        return AbstractPlaces(self.limit, waiting, called)


def _without(waiting: tuple[int, ...], session: int) -> tuple[int, ...]:
    return tuple(each for each in waiting if each != session)


def _refuted(what: str) -> Violation:
    return Violation(Property.REFINES, what)
