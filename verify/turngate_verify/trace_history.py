"""What led to a violation in a recording: the events of the session in which it happened."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from turngate.cli.visible import visible
from turngate_model.history import (
    Accept,
    Cancel,
    Clear,
    Complete,
    Edit,
    Enter,
    Event,
    Fold,
    Handoff,
    Hold,
    Move,
    Resume,
)
from turngate_model.lifecycle import DeclaredState


class Recorded(NamedTuple):
    """One line of a recording: its number, its session, who did what, and the event."""

    line: int
    session: str
    actor: str
    words: str
    events: tuple[Event, ...]


def history_before(lines: Sequence[str | bytes], last: int) -> list[Recorded]:
    """Return the events of one session up to a line: the session that the line is about.

    The history begins where the session was last quiet, or earlier if the line is about an earlier run. If
    the line is the end of the recording, the session is the first in which a run is in flight.
    """
    session_of: dict[str, str] = {}
    in_flight: dict[str, set[str]] = {}
    told: list[tuple[int, str, dict[str, Any]]] = []
    for number, line in enumerate(lines[:last], 1):
        if not line.strip():
            continue
        record = json.loads(line if isinstance(line, str) else line.decode("utf-8-sig"))
        run, session = record.get("run", ""), record.get("session", "")
        if record["event"] == "accept":
            session_of.setdefault(run, session)
            in_flight.setdefault(session, set()).add(run)
        first = next(iter(record.get("runs") or ()), "")
        session = session or session_of.get(run, "") or session_of.get(first, "")
        if record["event"] == "complete":
            in_flight[session].discard(run)
        told.append((number, session, record))
    _, about, ended = told[-1]
    if ended["event"] == "end":
        about = next((session for session, runs in in_flight.items() if runs), "")
        told[-1] = (last, about, ended)
    own = [(number, record) for number, session, record in told if session == about]
    return [Recorded(number, visible(about), *_said(record)) for number, record in own[_beginning(own) :]]


def latest(history: list[Recorded], most: int) -> list[Recorded]:
    """Return the last events of a history, and before them all about runs that were in flight by then.

    Cancels, clears and holds since the first of these runs was accepted are kept as well: they may be about
    them. So only what is about runs that were over, and never come up again, is left out.
    """
    if len(history) <= most:
        return history
    earlier, last = history[:-most], history[-most:]
    over = {event.run for record in earlier for event in record.events if isinstance(event, Complete)}
    runs = {run for record in last for run in _runs(record)}
    runs |= {run for record in earlier for run in _runs(record)} - over
    own = [nth for nth, record in enumerate(earlier) if _runs(record) & runs]
    first = own[0] if own else len(earlier)
    kept = [record for record in earlier[first:] if _runs(record) & runs or not _runs(record)]
    return [*kept, *last]


def _runs(record: Recorded) -> set[str]:
    """Return the runs that a record is about; none if it is about the session."""
    named = [getattr(event, key, "") for event in record.events for key in ("run", "into", "before")]
    return {each for each in named if each}


def _beginning(own: list[tuple[int, dict[str, Any]]]) -> int:
    """Return the place at which the history begins that the last record belongs to."""
    about = own[-1][1].get("run", "")
    begin, in_flight = 0, set[str]()
    for place, (_, record) in enumerate(own):
        if record["event"] == "accept" and not in_flight and not _accepted(own[begin:place], about):
            begin = place
        if record["event"] == "accept":
            in_flight.add(record["run"])
        elif record["event"] == "complete":
            in_flight.discard(record["run"])
    return begin


def _accepted(records: list[tuple[int, dict[str, Any]]], run: str) -> bool:
    return any(record["event"] == "accept" and record["run"] == run for _, record in records)


def _said(record: dict[str, Any]) -> tuple[str, str, tuple[Event, ...]]:
    """Return who did what, and the event that it is to the model."""
    run = visible(record.get("run", ""))
    match record["event"]:
        case "accept":
            into = visible(record.get("into") or "")
            return "caller", f"accept {run}" + (f" into {into}" if into else ""), (Accept(run, into=into),)
        case "enter":
            return "caller", f"enter {run}", (Enter(run, DeclaredState(record["state"])),)
        case "fold":
            into = visible(record["into"])
            return "runner", f"fold {run} into {into}", (Fold(run, into),)
        case "handoff":
            return "session", f"handoff {run}", (Handoff(run),)
        case "cancel":
            return "caller", "cancel", (Cancel(_named(record)),)
        case "clear":
            return "caller", "clear the queue", (Clear(_named(record)),)
        case "hold":
            return "caller", _of("hold", record), (Hold(_named(record)),)
        case "resume":
            return "caller", _of("resume", record), (Resume(_named(record), unbinds=True),)
        case "move":
            before = visible(record.get("before") or "")
            where = f"before {before}" if before else "behind all"
            return "caller", f"move {run} {where}", (Move(run, before),)
        case "edit":
            return "caller", f"edit {run}", (Edit(run, foldable=True),)
        case "complete":
            error = record.get("error")
            complete = Complete(run, record["cancelled"], None if error is None else visible(error))
            return "session", f"RunComplete of {run}", (complete,)
        case _:
            return "", "the end of the recording", ()


def _named(record: dict[str, Any]) -> frozenset[str] | None:
    """Return the runs that a record names; None if it is about the session."""
    named = record.get("runs")
    return None if named is None else frozenset(map(visible, named))


def _of(what: str, record: dict[str, Any]) -> str:
    """Say what was done, and to which runs if only to some."""
    return f"{what} {' '.join(map(visible, record['runs']))}" if record.get("runs") else f"{what} the session"
