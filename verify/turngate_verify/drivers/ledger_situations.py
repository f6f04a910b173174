"""Finds in the history of a ledger the situations that holds, moves and edits create."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from turngate.durable._ledger import HistoryStep

SITUATIONS = frozenset(
    {
        "a run passes one that is held",
        "a resume starts a turn",
        "a resume while a turn runs",
        "a held run enters a session without a turn",
        "a moved run passes an earlier one",
        "an edited run starts",
        "an edited run joins a turn",
        "a cancel drops a held run",
        "a run joins the one turn that it is for",
        "a run is cleared with its turn",
        "a run is released with its turn",
        "a run is sent now while a turn runs",
        "a run is sent now that was held",
        "the owner of a turn dies while a run is held",
    }
)
"""The situations that drivers with holds, moves and edits must reach."""


@dataclass
class _Session:
    """What is known about a session at one point of its history."""

    line: dict[str, int] = field(default_factory=dict)
    """The runs that are accepted or queued, with their sequences."""
    queued: set[str] = field(default_factory=set)
    held: set[str] = field(default_factory=set)
    edited: set[str] = field(default_factory=set)
    bound: dict[str, str] = field(default_factory=dict)
    active: set[str] = field(default_factory=set)


def situations(history: Iterable[HistoryStep]) -> set[str]:
    """Return the situations that a history shows. A death is not in the history, and has to be added."""
    sessions: dict[str, _Session] = {}
    seen: set[str] = set()
    for step in history:
        session = sessions.setdefault(step.session_id, _Session())
        events = [entry["event"] for entry in step.entries]
        if events[:1] == ["resume"] and "handoff" in events:
            seen.add("a resume starts a turn")
        if "resume" in events and "cancel" in events:  # no other operation does both in one step
            seen.add("a run is sent now while a turn runs")
            (resume,) = [entry for entry in step.entries if entry["event"] == "resume"]
            if session.held & {*resume["runs"]}:
                seen.add("a run is sent now that was held")
        for entry in step.entries:
            seen |= _follow(session, entry)
    return seen


def _follow(session: _Session, entry: dict[str, Any]) -> set[str]:
    """Process one entry, and return the situations that it shows."""
    run, event, seen = entry.get("run", ""), entry["event"], set[str]()
    match event:
        case "accept":
            session.line[run] = entry["seq"]
            if "into" in entry:
                session.bound[run] = entry["into"]
        case "hold" | "resume":
            runs = session.line.keys() & (entry.get("runs") or session.line.keys())
            if event == "resume":
                if session.active and session.held & runs:
                    seen.add("a resume while a turn runs")
                session.held -= runs
            else:
                session.held |= runs
        case "enter" if entry["state"] == "queued":
            session.queued.add(run)
            if run in session.held and not session.active:
                seen.add("a held run enters a session without a turn")
        case "edit":
            session.edited.add(run)
        case "fold" | "handoff" | "enter":
            seen |= _started(session, run, joins=event == "fold")
            if event != "enter" or entry["state"] == "active":
                session.active.add(run)
            _leave(session, run)
        case "complete":
            if run in session.held and entry["cancelled"]:
                seen.add("a cancel drops a held run")
            if run in session.bound and entry.get("error") in (
                "cleared from the queue",
                "released before entry",
            ):
                cleared = entry["error"].startswith("cleared")
                seen.add("a run is cleared with its turn" if cleared else "a run is released with its turn")
            session.active.discard(run)
            _leave(session, run)
        case _:
            pass
    return seen


def _started(session: _Session, run: str, *, joins: bool) -> set[str]:
    seen = set[str]()
    before = {each for each in session.queued if session.line[each] < session.line[run]}
    if before & session.held:
        seen.add("a run passes one that is held")
    if before - session.held:
        seen.add("a moved run passes an earlier one")
    if run in session.edited:
        seen.add("an edited run joins a turn" if joins else "an edited run starts")
    if joins and run in session.bound:
        seen.add("a run joins the one turn that it is for")
    return seen


def _leave(session: _Session, run: str) -> None:
    session.line.pop(run, None)
    session.bound.pop(run, None)
    for each in (session.queued, session.held, session.edited):
        each.discard(run)
