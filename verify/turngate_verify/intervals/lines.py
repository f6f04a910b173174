"""The lines of a history with intervals, from several files and in any order.

Each line is an event of a recorded history with the times of the call that made it: ``call`` and ``return``.
The event happened at one moment between the two. A line without ``return`` may never have happened. Runners
add two kinds of lines, with the time ``at`` which they looked at their clock:

start   the runner of this run was called: the turn began no later
ended   the runner of this run returned: the turn ended no earlier

A run without an ``enter`` line entered with its accept. ``end`` says that the history is whole. A file
may begin with ``{"clock_error": seconds}``, which widens all its times.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from math import inf, isfinite
from typing import Any, NamedTuple

from turngate_model.lifecycle import DeclaredState
from turngate_verify.intervals.order import Item

ABOUT_THE_LINE = ("hold", "resume", "move", "edit")
"""The operations on runs that wait."""
OPERATIONS = ("accept", "cancel", "clear", *ABOUT_THE_LINE)
KINDS = (*OPERATIONS, "enter", "start", "handoff", "fold", "ended", "complete")
_OF_SEVERAL = ("cancel", "clear", "hold", "resume")
"""The operations about a session, or about the runs that they name."""
_ENTERED = {
    state.value: state
    for state in (DeclaredState.CANCEL_ON_ENTRY, DeclaredState.QUEUED, DeclaredState.ACTIVE)
}


class BadHistory(Exception):
    """A line that is no event of such a history. Names the file and the line."""

    def __init__(self, where: str, what: str) -> None:
        super().__init__(f"{where}: {what}")
        self.where = where


class Line(NamedTuple):
    """One line: what happened, and in which interval."""

    where: str
    """The file, unless there is only one, and the number of the line."""
    kind: str
    session: str
    run: str = ""
    lo: float | None = None
    hi: float | None = None
    state: DeclaredState | None = None
    into: str = ""
    """The run whose turn a fold joins, or a prompt is for."""
    before: str = ""
    """The run before which a run is moved; empty if it is moved behind all."""
    cancelled: bool = False
    error: str | None = None
    runs: frozenset[str] | None = None
    """The runs that a cancel, a clear, a hold or a resume names; None if it is about all."""

    @property
    def activates(self) -> bool:
        """Whether it says that its run became active."""
        return self.kind in ("start", "handoff", "fold") or self.state is DeclaredState.ACTIVE

    def __str__(self) -> str:
        """Return the line in words."""
        about = [self.kind, self.run or self.session]
        if self.kind == "enter":
            about.append(f"as {self.state}")
        if self.into:
            about.append(f"into {self.into}")
        if self.kind == "move":
            about.append(f"before {self.before}" if self.before else "behind all")
        if self.kind == "complete":
            about.append(
                "cancelled" if self.cancelled else "failed" if self.error is not None else "finished"
            )
        return " ".join(about)


class History(NamedTuple):
    """The lines of all files by session, and whether they are the whole history."""

    sessions: dict[str, list[Item]]
    whole: bool
    events: int
    runs: int


def read(files: Iterable[tuple[str, Iterable[str | bytes]]]) -> History:
    """Read the lines of several files, each with its name. Raise BadHistory for a line that is not one."""
    lines: list[Line] = []
    whole = False
    for name, each in files:
        reader = _Reader(name)
        for number, text in enumerate(each, 1):
            if text.strip():
                lines += reader.read(number, text)
        whole |= reader.whole
    return _sorted_out(lines, whole=whole)


class _Reader:
    """Reads the lines of one file."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._where = ""
        self._error = 0.0
        self._begun = False
        self.whole = False

    def read(self, number: int, text: str | bytes) -> list[Line]:
        self._where = f"{self._name}:{number}" if self._name else f"line {number}"
        record = self._parsed(text)
        first, self._begun = not self._begun, True
        if "clock_error" in record and "event" not in record:
            if not first:
                raise self._bad("clock_error is not on the first line")
            self._error = self._number(record, "clock_error", required=True) or 0.0
            if self._error < 0:
                raise self._bad("clock_error is negative")
            return []
        kind = record.get("event")
        if kind == "end":
            self.whole = True
            return []
        if kind not in KINDS:
            raise self._bad(f"unknown event {kind!r}; there are {', '.join(KINDS)}, end")
        return [self._line(str(kind), record)]

    def _parsed(self, text: str | bytes) -> dict[str, Any]:
        try:
            record = json.loads(text if isinstance(text, str) else text.decode("utf-8-sig"))
        except (ValueError, RecursionError) as wrong:
            raise self._bad(f"not JSON ({wrong})") from None
        if not isinstance(record, dict):
            raise self._bad("not a JSON object")
        return record

    def _line(self, kind: str, record: dict[str, Any]) -> Line:
        needed = kind == "accept" or (kind in _OF_SEVERAL and not record.get("runs"))
        session = self._text(record, "session", required=needed or kind in ("cancel", "clear"))
        run = self._text(record, "run", required=kind not in _OF_SEVERAL)
        lo, hi = self._interval(kind, record)
        line = Line(self._where, kind, session, run, lo, hi)
        match kind:
            case "enter":
                state = record.get("state")
                if not isinstance(state, str) or state not in _ENTERED:
                    raise self._bad(f"enter needs a state: one of {', '.join(_ENTERED)}")
                return line._replace(state=_ENTERED[state])
            case "fold" | "accept":
                return line._replace(into=self._text(record, "into", required=kind == "fold"))
            case "move":
                return line._replace(before=self._text(record, "before", required=False))
            case "complete":
                cancelled, error = record.get("cancelled"), record.get("error")
                if not isinstance(cancelled, bool):
                    raise self._bad("complete needs cancelled: true or false")
                if error is not None and not isinstance(error, str):
                    raise self._bad("error must be a string, or left out")
                return line._replace(cancelled=cancelled, error=error)
            case "cancel" | "clear" | "hold" | "resume" if record.get("runs") is not None:
                runs = record["runs"]
                if not isinstance(runs, list) or not all(isinstance(each, str) for each in runs):
                    raise self._bad(f"runs of a {kind} must be a list of run ids")
                return line._replace(runs=frozenset(runs))
            case _:
                return line

    def _interval(self, kind: str, record: dict[str, Any]) -> tuple[float | None, float | None]:
        """Return the earliest and the latest time of the event, as far as the line says."""
        at = self._number(record, "at")
        call, returned = self._number(record, "call"), self._number(record, "return")
        lo = at if call is None else call
        hi = at if returned is None else returned
        if kind == "start" and call is None:
            lo = None  # the turn began no later than that
        if kind == "ended" and returned is None:
            hi = None  # and ended no earlier
        if lo is not None and hi is not None and lo > hi:
            raise self._bad(f"the interval ends before it begins: {lo:g} to {hi:g}")
        if kind in OPERATIONS and lo is None:
            raise self._bad(f"{kind} needs call: a number")
        if kind in ("start", "ended") and lo is None and hi is None:
            raise self._bad(f"{kind} needs at: a number")
        return (
            None if lo is None else lo - self._error,
            None if hi is None else hi + self._error,
        )

    def _number(self, record: dict[str, Any], key: str, *, required: bool = False) -> float | None:
        value = record.get(key)
        if value is None and not required:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._bad(f"{key} must be a number")
        try:
            number = float(value)
        except OverflowError:
            number = inf
        if not isfinite(number):
            raise self._bad(f"{key} must be a number, and not too large")
        return number

    def _text(self, record: dict[str, Any], key: str, *, required: bool) -> str:
        value = record.get(key)
        if value is None and not required:
            return ""
        if not isinstance(value, str) or not value:
            raise self._bad(f"{record['event']} needs {key}: a string that is not empty")
        return value

    def _bad(self, what: str) -> BadHistory:
        return BadHistory(self._where, what)


def _sorted_out(lines: Sequence[Line], *, whole: bool) -> History:
    """Return the lines by session, as items with intervals."""
    session_of: dict[str, str] = {}
    since: dict[str, float] = {}
    for line in lines:
        if line.kind == "accept":
            known = session_of.setdefault(line.run, line.session)
            if known != line.session:
                what = f"run {line.run!r} is in session {known!r} already, not in {line.session!r}"
                raise BadHistory(line.where, what)
            assert line.lo is not None
            since[line.run] = min(line.lo, since.get(line.run, inf))
    sessions: dict[str, list[Line]] = {}
    for line in lines:
        for run in (line.run, line.before):
            if run and run not in session_of:
                raise BadHistory(line.where, f"{line.kind} of run {run!r}, which was never accepted")
        if line.kind in ("hold", "resume") and not line.session:
            for session, runs in _by_session(line, session_of).items():
                sessions.setdefault(session, []).append(line._replace(session=session, runs=runs))
            continue
        session = session_of[line.run] if line.run else line.session
        sessions.setdefault(session, []).append(line._replace(session=session))
    return History(
        {session: _items(own, since) for session, own in sessions.items()},
        whole,
        len(lines),
        len(session_of),
    )


def _by_session(line: Line, session_of: Mapping[str, str]) -> dict[str, frozenset[str]]:
    """Return the runs that a line names, by session."""
    runs: dict[str, frozenset[str]] = {}
    for run in line.runs or ():
        if run not in session_of:
            raise BadHistory(line.where, f"{line.kind} of run {run!r}, which was never accepted")
        runs[session_of[run]] = runs.get(session_of[run], frozenset()) | {run}
    return runs


def _items(lines: Sequence[Line], since: dict[str, float]) -> list[Item]:
    """Return the items of one session, sorted by their beginnings.

    What never returned is bounded by what it could explain: an accept by
    everything else about its run, a cancel by the last run that was cancelled, a
    clear by the last that failed. Beyond that it changes nothing. An operation on
    runs that wait is bounded by all that is known of the session.
    """
    completes = [line for line in lines if line.kind == "complete"]
    last_cancelled = max((_end(line) for line in completes if line.cancelled), default=-inf)
    last = max((time for line in lines for time in (line.lo, line.hi) if time is not None), default=-inf)
    last_failed = max((_end(line) for line in completes if line.error is not None), default=-inf)
    done = {line.run: _end(line) for line in completes}
    accepts: dict[str, list[Line]] = {}
    known: dict[str, float] = {}
    for line in lines:
        if line.kind == "accept":
            accepts.setdefault(line.run, []).append(line)
        elif line.run:
            known[line.run] = min(_end(line), known.get(line.run, inf))
    items: list[Item] = []
    for line in lines:
        lo = since.get(line.run, -inf) if line.lo is None else line.lo
        hi, optional = _end(line), line.hi is None
        if line.kind == "accept":
            again = accepts[line.run]
            if line is not again[0] or (all(each.hi is None for each in again) and line.run not in known):
                continue  # it is about a run that is known already, or it explains nothing
            lo, hi = since[line.run], max(map(_end, again))
            optional, hi = False, hi if hi < inf else known.get(line.run, inf)
        elif line.kind in ("cancel", "clear") and optional:
            hi = last_cancelled if line.kind == "cancel" else last_failed
            if hi < lo:
                continue
        elif line.kind in ABOUT_THE_LINE and optional:
            hi = last
        elif line.kind == "ended":
            # Once its run is complete, the end of a runner only lets the next turn begin.
            optional, hi = False, min(hi, max(lo, done.get(line.run, inf)))
        items.append(Item(lo, hi, line, optional))
    return sorted(items, key=lambda item: item.lo)


def _end(line: Line) -> float:
    return inf if line.hi is None else line.hi
