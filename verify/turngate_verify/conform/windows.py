"""Judges a window: what happens between two rests, in any order that its intervals allow.

A window is sound if some order of its operations, and of what the subject shows, breaks nothing and
leaves nothing owed. Different orders may leave the sessions in different states, and all of these are
followed. Sessions are judged apart: nothing in one depends on the order in another.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import NamedTuple

from turngate_model.history import Ended, Enter, Fold, Handoff
from turngate_model.lifecycle import DeclaredState
from turngate_model.properties import Property, Violation
from turngate_verify.conform.port import Observed, Refused
from turngate_verify.conform.programs import ABOUT_ALL, TAKING_IN, Op
from turngate_verify.conform.sessions import Sessions
from turngate_verify.conform.stepping import Noted, Waiting, What
from turngate_verify.intervals.order import Found, Item, Verdict, middle, plainest, search

MOST_CONFIGURATIONS = 20_000
"""A window with more configurations than this stays unknown."""
MOST_STATES = 200
"""The most states that are followed from one window to the next."""


class Window(NamedTuple):
    """The operations between two rests, and everything that happened in between."""

    operations: tuple[Op, ...]
    noted: tuple[Noted, ...]
    refused: frozenset[Refused]
    at_work: Collection[str] | None
    """The lead runs whose runner is at work at the end, or None if the subject does not say."""
    is_ordered: bool = True
    """Whether the order in which things are shown is that in which they happened, after one operation."""


class Judged(NamedTuple):
    """The verdict on a window."""

    verdict: Verdict
    states: list[Sessions]
    """The states in which the window may end, if it is sound."""
    order: list[What]
    """An order that explains it; if there is none, the one that gets furthest, with the offence last."""
    broken: Violation | None = None
    possible: tuple[Property, ...] = ()
    """The properties that each explain the offence alone, if there are any."""


def unstepped(operations: Sequence[Op], shown: Sequence[Observed | Waiting]) -> list[Noted]:
    """Return what is known about a subject that cannot be stepped: in which order it shows things."""
    calls = [Noted(op, nth, None) for nth, op in enumerate(operations, 1)]
    return calls + [Noted(event, 0, nth) for nth, event in enumerate(shown, len(calls) + 1)]


def judged(states: Sequence[Sessions], window: Window, place_of: Mapping[str, int]) -> Judged:
    """Judge a window that began in one of these states."""
    return _Judge(window, place_of).judged(states)


class _State:
    """The sessions of a program as a state of the search."""

    __slots__ = ("_forgiven", "_place_of", "_refused", "sessions")

    def __init__(
        self,
        sessions: Sessions,
        refused: Collection[Refused],
        place_of: Mapping[str, int],
        forgiven: Property | None,
    ) -> None:
        self.sessions = sessions
        self._refused = refused
        self._place_of = place_of
        self._forgiven = forgiven

    def copy(self) -> _State:
        return _State(self.sessions.copy(), self._refused, self._place_of, self._forgiven)

    def key(self) -> Hashable:
        return self.sessions.key()

    def take(self, what: What) -> list[Violation]:
        return [each for each in self._taken(what) if each.property is not self._forgiven]

    def _taken(self, what: What) -> list[Violation]:
        if isinstance(what, Op):
            return self.sessions.take(what, self._refused)[1]
        place = self._place_of[what.run]
        session = self.sessions.at(place)
        if isinstance(what, Ended):
            return session.observe(what)
        if isinstance(what, Waiting):
            self.sessions.count_as_queued(place, what.run)
            return []
        if isinstance(what, Enter | Handoff):
            queued = session.states.get(what.run) is DeclaredState.QUEUED
            if isinstance(what, Enter) and what.state is DeclaredState.QUEUED and queued:
                return []
            if _starts(what) and self.sessions.has_waited(place, what.run):
                self.sessions.count_as_queued(place, what.run)
            what = _meant(what, session.states.get(what.run))
        return self.sessions.judge(place, what)  # type: ignore[arg-type]  # a refusal is no event


def _meant(event: Enter | Handoff, state: DeclaredState | None) -> Enter | Handoff:
    """Return the event as this state has it: a runner does not know whether its run was queued meanwhile."""
    if isinstance(event, Handoff):
        return Enter(event.run, DeclaredState.ACTIVE) if state is DeclaredState.ACCEPTED else event
    if event.state is DeclaredState.ACTIVE and state is DeclaredState.QUEUED:
        return Handoff(event.run)
    return event


class _Judge:
    def __init__(self, window: Window, place_of: Mapping[str, int]) -> None:
        self._window = window
        self._place_of = place_of
        self._rows = window.noted

    def judged(self, states: Sequence[Sessions]) -> Judged:
        """Judge the window, one session after the other."""
        order: list[What] = []
        for place, rows in self._apart():
            found = self._search(rows, states, place)
            order += [rows[nth].what for nth in found.order]
            if found.verdict != "holds" or len(found.states) > MOST_STATES:
                verdict = found.verdict if found.verdict == "violated" else "unknown"
                if found.culprit is not None:
                    order.append(rows[found.culprit].what)
                possible = self._possible(rows, states, place) if verdict == "violated" else ()
                return Judged(verdict, [], order, found.broken, possible)
            states = [state.sessions for state in found.states]
        return Judged("holds", list(states), order)

    def _apart(self) -> list[tuple[int | None, list[Noted]]]:
        """Return what happened in each session; all together if an operation is about all of them."""
        if not self._rows or any(
            isinstance(row.what, Op) and row.what.name in ABOUT_ALL for row in self._rows
        ):
            return [(None, list(self._rows))]
        places = sorted({self._place(row.what) for row in self._rows})
        return [(place, [row for row in self._rows if self._place(row.what) == place]) for place in places]

    def _place(self, what: What) -> int:
        return what.place if isinstance(what, Op) else self._place_of[what.run]

    def _possible(
        self, rows: list[Noted], states: Sequence[Sessions], place: int | None
    ) -> tuple[Property, ...]:
        """Return the properties each of which, if it were not required, would leave nothing broken."""
        return plainest(
            each for each in Property if self._search(rows, states, place, forgiven=each).verdict == "holds"
        )

    def forgiving(self, states: Sequence[Sessions], forgiven: Property) -> list[Sessions]:
        """Return the states in which the window may end if one property is not required."""
        for place, rows in self._apart():
            states = [state.sessions for state in self._search(rows, states, place, forgiven=forgiven).states]
        return list(states)

    def _search(
        self,
        rows: list[Noted],
        states: Sequence[Sessions],
        place: int | None,
        forgiven: Property | None = None,
    ) -> Found[_State]:
        window = self._window
        end = max((row.hi or row.lo for row in self._window.noted), default=0) + 1
        places = sorted(range(len(rows)), key=lambda nth: rows[nth].lo)
        where = {nth: place for place, nth in enumerate(places)}
        items = [
            Item(
                rows[nth].lo,
                end if (hi := rows[nth].hi) is None else hi,
                rows[nth].what,
                after=frozenset(where[other] for other in self._before(rows, nth)),
            )
            for nth in places
        ]
        starts = []
        for state in states:
            sessions = state.copy()
            sessions.work(window.at_work)
            starts.append(_State(sessions, window.refused, self._place_of, forgiven))

        def owed(state: _State) -> list[Violation]:
            return [each for each in state.sessions.copy().at_rest(place) if each.property is not forgiven]

        found = search(items, starts, owed=owed, limit=MOST_CONFIGURATIONS, all_ends=True, first=middle)
        found.order = [places[nth] for nth in found.order]
        found.culprit = None if found.culprit is None else places[found.culprit]
        return found

    def _before(self, rows: list[Noted], nth: int) -> list[int]:
        """Return what must come before: after a single operation, everything that was shown before it.

        With several operations in flight, or where nothing has one order, only what is about one run keeps
        its order, and starts among each other: a RunComplete that is heard late may have been decided before
        an operation that came meanwhile.
        """
        row = rows[nth]
        if len(self._window.operations) <= 1 and self._window.is_ordered:
            return list(range(nth))
        if isinstance(row.what, Op):
            return []
        before = _brought(rows, row.what.run) if isinstance(row.what, Waiting) else []
        if len(self._window.operations) == 1 and not isinstance(row.what, Fold):
            # It was at rest until then. A fold may be inferred from what comes later.
            before = [other for other, earlier in enumerate(rows) if isinstance(earlier.what, Op)]
        for other in range(nth):
            earlier = rows[other]
            if isinstance(earlier.what, Op) or (row.shown_in and row.shown_in == earlier.shown_in):
                continue
            if earlier.what.run == row.what.run or (_starts(row.what) and _starts(earlier.what)):
                before.append(other)
        return before


def _brought(rows: Sequence[Noted], run: str) -> list[int]:
    """Return the operations after which a run can wait: those that have brought it."""
    return [
        nth
        for nth, row in enumerate(rows)
        if isinstance(row.what, Op) and row.what.run == run and row.what.name in (*TAKING_IN, "enter")
    ]


def forgiving(
    states: Sequence[Sessions], window: Window, place_of: Mapping[str, int], forgiven: Property
) -> list[Sessions]:
    """Return the states in which a window may end if one property is not required; none if no order fits."""
    return _Judge(window, place_of).forgiving(states, forgiven)


def _starts(what: What) -> bool:
    return isinstance(what, Handoff) or (isinstance(what, Enter) and what.state is DeclaredState.ACTIVE)


def owing(judged: Judged) -> bool:
    """Return whether waiting may help: nothing explains the window, or something is owed in every order."""
    return all(sessions.copy().owe() for sessions in judged.states)
