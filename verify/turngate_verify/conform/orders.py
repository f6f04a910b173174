"""The orders in which the operations of a burst may have taken effect.

A subject shows what has happened when it is at rest, not what happened between
two operations that were called in the same moment. An operation may also take
effect after the next one was called: a dispatcher that writes a prompt down
before it takes it in does that. So every order counts that breaks nothing, and
different orders may leave the sessions in different states. A history is wrong
only if no choice of orders explains all of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from turngate_model.history import Enter, Event
from turngate_model.lifecycle import DeclaredState
from turngate_model.properties import Violation
from turngate_verify.conform.programs import Op
from turngate_verify.conform.sessions import Sessions

Item: TypeAlias = Op | Event
"""What happens, one after the other: operations take effect, and the subject shows events."""

MOST_STATES = 200
"""How many states are followed at most; beyond that the answer is unknown."""


class TakenTogether(NamedTuple):
    """Operations that were called in the same moment, or one, and what was shown up to the next rest."""

    operations: tuple[Op, ...]
    """Empty for what a real-time subject has shown after it seemed to be at rest."""
    seen: tuple[Event, ...]
    refused: frozenset[str]
    at_work: Collection[str] | None
    """The lead runs whose runner was at work in the end, or None if the subject does not say."""
    took_effect: tuple[bool, ...] = ()
    """For each operation, whether it is known to have taken effect before the next was called."""

    @property
    def waiting(self) -> set[Item]:
        """Where a run is said to be queued, and nothing more is shown of it."""
        last = {event.run: event for event in self.seen}  # type: ignore[union-attr]  # what is shown is about a run
        return {e for e in last.values() if isinstance(e, Enter) and e.state is DeclaredState.QUEUED}


def sound_orders(
    sessions: Sessions, taken: TakenTogether, place_of: Mapping[str, int]
) -> Iterator[tuple[list[Item], Sessions]]:
    """Yield every order that breaks nothing, with the sessions it leaves; the order of the calls first."""
    start = sessions.copy()
    start.work(taken.at_work)
    yield from _search(_Search(taken, place_of), start, [], taken.operations, taken.seen)


def latest_offence(sessions: Sessions, taken: TakenTogether, place_of: Mapping[str, int]) -> list[Item]:
    """Return the order in which the first offence comes latest, for a burst that no order explains."""
    search = _Search(taken, place_of)
    start = sessions.copy()
    start.work(taken.at_work)
    for _ in _search(search, start, [], taken.operations, taken.seen):
        pass
    return search.best


def explained(
    start: Sessions, history: Sequence[TakenTogether], place_of: Mapping[str, int]
) -> Sessions | None:
    """Return the sessions that a history may have led to, or None if no choice of orders explains it."""
    states = {_key(start): start}
    for taken in history:
        after: dict[Any, Sessions] = {}
        for sessions in states.values():
            for _, left in sound_orders(sessions, taken, place_of):
                after.setdefault(_key(left), left)
                if len(after) >= MOST_STATES:
                    break
        states = after
    return next(iter(states.values()), None)


def _key(sessions: Sessions) -> Any:
    return (tuple(session.key() for session in sessions.each), frozenset(sessions.asked_to_enter))


class _Search:
    """What one search goes by, and the longest order that it has found so far."""

    def __init__(self, taken: TakenTogether, place_of: Mapping[str, int]) -> None:
        self.taken = taken
        self.place_of = place_of
        self.waiting = taken.waiting
        self.first = {op for op, known in zip(taken.operations, taken.took_effect, strict=False) if known}
        self.best: list[Item] = []
        self._length = -1

    def reached(self, done: list[Item], rest: Sequence[Item], *, sound: bool = True) -> None:
        """Note how far an order breaks nothing."""
        if len(done) + sound > self._length:
            self._length, self.best = len(done) + sound, [*done, *rest]

    def may_come_next(self, operations: Sequence[Op]) -> Iterator[Op]:
        """Yield the operations that may take effect next."""
        for op in operations:
            yield op
            if op in self.first:
                return

    def broken(self, sessions: Sessions, event: Any) -> list[Violation]:
        """Return what an event breaks, and go on from there."""
        place = self.place_of[event.run]
        normal = sessions.normal(place, event)
        if event in self.waiting and sessions.hang(place, event.run):
            return []
        return sessions.judge(place, normal) if normal is not None else []


def _search(
    search: _Search, sessions: Sessions, done: list[Item], operations: Sequence[Op], events: Sequence[Event]
) -> Iterator[tuple[list[Item], Sessions]]:
    if not operations and not events:
        sound = not sessions.copy().at_rest()
        search.reached(done, (), sound=sound)
        if sound:
            yield done, sessions
        return
    search.reached(done, [*operations, *events], sound=False)
    for op in search.may_come_next(operations):
        after = sessions.copy()
        if not after.take(op, search.taken.refused)[1]:
            rest = [each for each in operations if each is not op]
            yield from _search(search, after, [*done, op], rest, events)
    if events and (len(search.taken.operations) != 1 or not operations):
        after = sessions.copy()
        if not search.broken(after, events[0]):
            yield from _search(search, after, [*done, events[0]], operations, events[1:])
