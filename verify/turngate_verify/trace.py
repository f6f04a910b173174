"""Checks recorded histories: JSON lines, one event a line, many sessions interleaved.

The abstract session judges the events. A recording does not show two things
that it needs: the messages, and when a runner's call ended. The check assumes
that these are as they should be: messages are written before the RunComplete,
and the call is over before the next turn starts. Nor does a recording show
whether a prompt may be folded, or whether an edit or a resume lets a run have a
turn of its own that was for one turn alone: the check assumes that they do.

The time grows with the number of events, the memory with the number of runs in
flight. Of a complete run the check keeps only eight bytes, to know it again.
"""

from __future__ import annotations

import heapq
import json
from array import array
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

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

NEVER_SHOWN = (Property.ON_RECORD, Property.NO_RESIDUE)
"""What a recording cannot show: messages, and the memory of the dispatcher."""

KINDS = (
    *("accept", "enter", "fold", "handoff", "cancel", "clear", "hold", "resume", "move", "edit"),
    *("complete", "end"),
)
_ENTERED = {
    state.value: state
    for state in (DeclaredState.CANCEL_ON_ENTRY, DeclaredState.QUEUED, DeclaredState.ACTIVE)
}


class BadRecording(Exception):
    """A line that is not an event, or is about something unknown. Names the line."""

    def __init__(self, line: int, what: str) -> None:
        super().__init__(f"line {line}: {what}")
        self.line = line


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
            record = _parsed(line, number)
            if result.whole:
                raise BadRecording(number, "an event after end, which says that nothing more will happen")
            result.events += 1
            violation = self._ended() if record["event"] == "end" else self._observed(record)
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
                owed = f"{run} was accepted and never got a RunComplete: it is owed one"
                return Violation(Property.EXACTLY_ONE_COMPLETE, owed)
        return None

    def _observed(self, record: dict[str, Any]) -> Violation | None:
        kind = record["event"]
        if kind not in KINDS:
            raise self._bad(f"unknown event {kind!r}; there are {', '.join(KINDS)}")
        if kind == "accept":
            return self._accepted(self._name(record, "session"), self._name(record, "run"), record)
        if kind in ("cancel", "clear", "hold", "resume"):
            return self._commanded(kind, record)
        run = self._name(record, "run")
        if run not in self._session_of:
            return self._after_the_end(kind, run)
        session = self._sessions[self._session_of[run]]
        match kind:
            case "enter":
                return _first(session, Enter(run, self._state(record)))
            case "fold":
                return _first(session, Fold(run, self._name(record, "into")))
            case "handoff":
                return _first(session, Ended(session.lead), Handoff(run))
            case "move":
                return _first(session, Move(run, self._beside(record, "before", self._session_of[run])))
            case "edit":
                return _first(session, Edit(run, foldable=True))
            case _:
                return self._completed(session, run, record)

    def _accepted(self, name: str, run: str, record: dict[str, Any]) -> Violation | None:
        known_in = self._session_of.get(run)
        if known_in is not None and known_in != name:
            raise self._bad(f"run {run!r} is in session {known_in!r} already, not in {name!r}")
        if known_in is None and run not in self._complete:
            # A second accept of a run_id is about the same run. Later events show whether it runs twice.
            self._result.runs += 1
            self._session_of[run] = name
            session = self._sessions.setdefault(name, AbstractSession())
            return _first(session, Accept(run, into=self._beside(record, "into", name)))
        return None

    def _beside(self, record: dict[str, Any], key: str, name: str) -> str:
        """Return the other run of the session that a line names under a key; empty if it names none."""
        if record.get(key) is None:
            return ""
        run = self._name(record, key)
        known_in = self._session_of.get(run, name if run in self._complete else None)
        if known_in is None:
            raise self._bad(f"{key} names run {run!r}, which was never accepted")
        if known_in != name:
            raise self._bad(f"{key} names run {run!r}, which is in session {known_in!r}, not in {name!r}")
        return run

    def _commanded(self, kind: str, record: dict[str, Any]) -> Violation | None:
        runs = record.get("runs")
        if runs is not None and not (isinstance(runs, list) and all(isinstance(run, str) for run in runs)):
            raise self._bad(f"runs of a {kind} must be a list of run ids")
        if runs and "session" not in record and kind in ("hold", "resume"):
            name = next((self._session_of[run] for run in runs if run in self._session_of), "")
        else:
            name = self._name(record, "session")
        session = self._sessions.get(name)
        if session is None:
            return None
        some = None if runs is None else frozenset(run for run in runs if run in session.states)
        commands: dict[str, Event] = {
            "cancel": Cancel(some),
            "clear": Clear(some),
            "hold": Hold(some),
            "resume": Resume(some, unbinds=True),
        }
        return _first(session, commands[kind])

    def _completed(self, session: AbstractSession, run: str, record: dict[str, Any]) -> Violation | None:
        cancelled, error = record.get("cancelled"), record.get("error")
        if not isinstance(cancelled, bool):
            raise self._bad("complete needs cancelled: true or false")
        if error is not None and not isinstance(error, str):
            raise self._bad("error must be a string, or left out")
        unseen: list[Event] = []
        if run in session.turn:
            unseen.append(Ended(session.lead))
        if session.states[run] in (DeclaredState.ACTIVE, DeclaredState.CANCEL_ON_ENTRY):
            unseen.append(Wrote(run, "unwritten"))
        violation = _first(session, *unseen, Complete(run, cancelled, error))
        self._complete.add(run)
        session.forget(run)
        if not session.states:
            del self._sessions[self._session_of[run]]
        del self._session_of[run]
        return violation

    def _after_the_end(self, kind: str, run: str) -> Violation:
        if run not in self._complete:
            raise self._bad(f"{kind} of run {run!r}, which was never accepted")
        if kind == "complete":
            return Violation(
                Property.EXACTLY_ONE_COMPLETE, f"{run} gets a second RunComplete: one was enough"
            )
        if kind in ("move", "edit"):
            late = Property.AS_EDITED if kind == "edit" else Property.DECLARED_MOVE
            return Violation(late, f"{run} is complete: the {kind} should have been refused")
        return Violation(Property.TERMINAL_IS_FINAL, f"{run} is complete, and must not {kind} again")

    def _name(self, record: dict[str, Any], key: str) -> str:
        value = record.get(key)
        if not isinstance(value, str) or not value:
            raise self._bad(f"{record['event']} needs {key}: a string that is not empty")
        return value

    def _state(self, record: dict[str, Any]) -> DeclaredState:
        state = record.get("state")
        if not isinstance(state, str) or state not in _ENTERED:
            raise self._bad(f"enter needs a state: one of {', '.join(_ENTERED)}")
        return _ENTERED[state]

    def _bad(self, what: str) -> BadRecording:
        return BadRecording(self._line, what)


def _first(session: AbstractSession, *events: Event) -> Violation | None:
    found = [violation for event in events for violation in session.observe(event)]
    return found[0] if found else None


def _parsed(line: str | bytes, number: int) -> dict[str, Any]:
    try:
        text = line if isinstance(line, str) else line.decode("utf-8-sig" if number == 1 else "utf-8")
        record = json.loads(text, object_pairs_hook=_object)
    except json.JSONDecodeError as wrong:
        raise BadRecording(number, f"not JSON ({wrong.msg}, at character {wrong.pos + 1})") from None
    except (ValueError, RecursionError) as wrong:
        raise BadRecording(number, f"not JSON ({wrong})") from None
    if not isinstance(record, dict) or not isinstance(record.get("event"), str):
        raise BadRecording(number, 'not an object with the key "event"')
    return record


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object. Refuse one that has a key twice, because it is unclear which value was meant."""
    made = dict(pairs)
    if len(made) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} is there twice")
    return made
