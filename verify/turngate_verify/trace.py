"""Checks recorded histories: JSON lines, one event a line, many sessions interleaved.

The abstract session judges the events. A recording does not show two things
that it needs: the messages, and when a runner's call ended. The check assumes
that these are as they should be: messages are written before the RunComplete,
and the call has ended before the next turn starts. Nor does a recording show
whether a prompt may be folded, or whether an edit or a resume lets a run have a
turn of its own that was for one turn alone: the check assumes that they do.

The time grows with the number of events, the memory with the number of runs in
flight. Of a complete run the check keeps only eight bytes, to know it again.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from turngate_model.abstract_session import AbstractSession
from turngate_model.history import (
    Accept,
    Cancel,
    Clear,
    Complete,
    Edit,
    Ended,
    Enter,
    Event,
    Fold,
    Handoff,
    Hold,
    Move,
    Resume,
    Wrote,
)
from turngate_model.lifecycle import DeclaredState
from turngate_model.properties import Property, Violation
from turngate_verify.trace_lines import COMMANDS, BadRecording, RecordedLine, read_line

NEVER_SHOWN = (Property.ON_RECORD, Property.NO_RESIDUE)
"""What a recording cannot show: messages, and the memory of the dispatcher."""


class Offence(NamedTuple):
    """The first violation: which line, which property, and what should have been."""

    line: int
    property: Property
    what: str


@dataclass
class Checked:
    """The result of checking a recording."""

    events: int = 0
    runs: int = 0
    whole: bool = False
    offence: Offence | None = None
    unchecked: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """One of holds, violated and unknown; a recording without events shows nothing."""
        if self.offence:
            return "violated"
        return "holds" if self.runs else "unknown"


class _Known:
    """Remembers names in eight bytes each: the newest in a set, the rest as sorted hashes."""

    def __init__(self) -> None:
        self._recent: set[int] = set()
        self._sorted = array("q")

    def add(self, name: str) -> None:
        self._recent.add(hash(name))
        if len(self._recent) > max(4096, len(self._sorted) // 4):
            self._sorted = array("q", heapq.merge(self._sorted, sorted(self._recent)))
            self._recent.clear()

    def __contains__(self, name: str) -> bool:
        hashed = hash(name)
        if hashed in self._recent:
            return True
        place = bisect_left(self._sorted, hashed)
        return place < len(self._sorted) and self._sorted[place] == hashed


def check(lines: Iterable[str | bytes]) -> Checked:
    """Check a recording line by line, up to the first violation.

    Raises BadRecording for a line that is not an event, an event about an
    unknown run, and anything after ``end``.
    """
    return _Checker().run(lines)


class _Checker:
    def __init__(self) -> None:
        self._sessions: dict[str, AbstractSession] = {}
        self._session_of: dict[str, str] = {}
        self._complete = _Known()
        self._result = Checked()
        self._line = 0

    def run(self, lines: Iterable[str | bytes]) -> Checked:
        result = self._result
        for number, line in enumerate(lines, 1):
            self._line = number
            if not line.strip():
                continue
            said = read_line(line, number)
            if result.whole:
                raise BadRecording(number, "an event after end, which says that nothing more will happen")
            result.events += 1
            violation = self._ended() if said.kind == "end" else self._observed(said)
            if violation:
                result.offence = Offence(number, violation.property, violation.what)
                return result
        if not result.whole:
            owed = [*self._session_of]
            named = ", ".join(owed[:5]) + (f" and {len(owed) - 5} more" if len(owed) > 5 else "")
            still = f"what is still owed ({named})" if owed else "whether anything is still owed"
            result.unchecked = [
                f"{each}: {still}" for each in (Property.EXACTLY_ONE_COMPLETE, Property.NO_STRAND)
            ]
        return result

    def _ended(self) -> Violation | None:
        """Return the first thing that is owed at the end, where every accepted run must be complete."""
        self._result.whole = True
        for session in self._sessions.values():
            for violation in session.owed():
                return violation
            for run in session.in_flight:
                owed = f"{run} was accepted and never got a RunComplete"
                return Violation(Property.EXACTLY_ONE_COMPLETE, owed)
        return None

    def _observed(self, said: RecordedLine) -> Violation | None:
        if said.kind == "accept":
            return self._accepted(said)
        if said.kind in COMMANDS:
            return self._commanded(said)
        run = said.run
        if run not in self._session_of:
            if run not in self._complete:
                raise self._bad(f"{said.kind} of run {run!r}, which was never accepted")
            return after_the_end(said)
        session = self._sessions[self._session_of[run]]
        beside = self._beside(said, self._session_of[run]) if said.kind == "move" else said.beside
        violation = first(session, *events_of(said._replace(beside=beside), session))
        if said.kind == "complete":
            self._completed(session, run)
        return violation

    def _accepted(self, said: RecordedLine) -> Violation | None:
        name, run = said.session, said.run
        known_in = self._session_of.get(run)
        if known_in is not None and known_in != name:
            raise self._bad(f"run {run!r} is in session {known_in!r} already, not in {name!r}")
        if known_in is None and run not in self._complete:
            # A second accept of a run_id is about the same run. Later events show whether it runs twice.
            self._result.runs += 1
            self._session_of[run] = name
            session = self._sessions.setdefault(name, AbstractSession())
            return first(session, Accept(run, into=self._beside(said, name)))
        return None

    def _beside(self, said: RecordedLine, name: str) -> str:
        """Return the other run of the session that a line names; empty if it names none."""
        run = said.beside
        if not run:
            return ""
        key = "into" if said.kind == "accept" else "before"
        known_in = self._session_of.get(run, name if run in self._complete else None)
        if known_in is None:
            raise self._bad(f"{key} names run {run!r}, which was never accepted")
        if known_in != name:
            raise self._bad(f"{key} names run {run!r}, which is in session {known_in!r}, not in {name!r}")
        return run

    def _commanded(self, said: RecordedLine) -> Violation | None:
        name = said.session
        if not name:
            name = next((self._session_of[run] for run in said.runs or () if run in self._session_of), "")
        session = self._sessions.get(name)
        return None if session is None else first(session, *events_of(said, session))

    def _completed(self, session: AbstractSession, run: str) -> None:
        self._complete.add(run)
        session.forget(run)
        if not session.states:
            del self._sessions[self._session_of[run]]
        del self._session_of[run]

    def _bad(self, what: str) -> BadRecording:
        return BadRecording(self._line, what)


def events_of(said: RecordedLine, session: AbstractSession) -> list[Event]:
    """Return the events that a line shows, with those before it that no line shows."""
    run = said.run
    some = None if said.runs is None else frozenset(each for each in said.runs if each in session.states)
    match said.kind:
        case "accept":
            return [Accept(run, into=said.beside)]
        case "enter":
            assert said.state is not None
            return [Enter(run, said.state)]
        case "fold":
            return [Fold(run, said.beside)]
        case "handoff":
            return [Ended(session.lead), Handoff(run)]
        case "cancel":
            return [Cancel(some)]
        case "clear":
            return [Clear(some)]
        case "hold":
            return [Hold(some)]
        case "resume":
            return [Resume(some, unbinds=True)]
        case "move":
            return [Move(run, said.beside)]
        case "edit":
            return [Edit(run, foldable=True)]
        case _:
            events: list[Event] = []
            if run in session.turn:
                events.append(Ended(session.lead))
            if session.states[run] in (DeclaredState.ACTIVE, DeclaredState.CANCEL_ON_ENTRY):
                events.append(Wrote(run, "unwritten"))
            return [*events, Complete(run, said.cancelled, said.error)]


def after_the_end(said: RecordedLine) -> Violation:
    """Return what a line about a run breaks that is complete already."""
    run = said.run
    if said.kind == "complete":
        return Violation(Property.EXACTLY_ONE_COMPLETE, f"{run} gets a second RunComplete")
    if said.kind in ("move", "edit"):
        late = Property.AS_EDITED if said.kind == "edit" else Property.DECLARED_MOVE
        return Violation(late, f"{run} is complete: the {said.kind} should have been refused")
    return Violation(Property.TERMINAL_IS_FINAL, f"{run} is complete, and must not {said.kind} again")


def first(session: AbstractSession, *events: Event) -> Violation | None:
    """Show events to a session, and return the first thing that they break."""
    found = [violation for event in events for violation in session.observe(event)]
    return found[0] if found else None
