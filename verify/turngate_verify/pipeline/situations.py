"""Which requirements a history puts to the test: the situation that each of them is about has occurred.

The tracker reads the events of a history in their order. It holds only runs in
flight, so a long recording takes no more memory than a short one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from turngate_model.checker.counterexample import PlayedStep
from turngate_model.history import Accept, Cancel, Clear, Complete, Enter, Event, Fold, Handoff, Wrote
from turngate_model.lifecycle import DeclaredState

_BUSY = (DeclaredState.ACTIVE, DeclaredState.QUEUED)
_WAITS = (DeclaredState.ACCEPTED, DeclaredState.QUEUED)


class _Session:
    """The runs of one session that are in flight, as far as the situations need them."""

    def __init__(self) -> None:
        self.states: dict[str, DeclaredState] = {}
        self.covered: set[str] = set()
        self.cancelled_with_all: set[str] = set()
        """Those of them that a cancel of the session covers."""
        self.covered_with_others: set[str] = set()
        """Covered runs that have not entered, of a cancel that covered another run too."""
        self.others_gone = False
        """Whether a run that was covered with them has entered or completed."""
        self.after_cancel: set[str] = set()
        self.folded: set[str] = set()
        self.wrote: set[str] = set()
        self.cancelled = False

    def in_state(self, state: DeclaredState) -> set[str]:
        return {run for run, its in self.states.items() if its is state}


class Situations:
    """Reads events in their order, and says which requirements each puts to the test."""

    def __init__(self) -> None:
        self._sessions: dict[str, _Session] = {}
        self._session_of: dict[str, str] = {}
        self.seen: set[str] = set()
        self.last: dict[str, set[str]] = {}
        """The requirements that the last step tested, each with the runs that it was about."""

    def step(self, session: str, events: Iterable[Event], operation: str = "", run: str = "") -> None:
        """Read the events of one step. ``operation`` and ``run`` say what led to it, if that is known."""
        self.last = {}
        if operation:
            self._operation(self._sessions.setdefault(session, _Session()), operation, run)
        for event in events:
            name = getattr(event, "run", "")
            if isinstance(event, Accept):
                self._session_of[event.run] = session
            its = self._session_of.get(name, session) if name else session
            among = self._sessions.setdefault(its, _Session())
            if name in among.cancelled_with_all:
                self._note("R-CAN-1", name)
            self._event(among, event)
        self.seen |= self.last.keys()

    def blamed(self, what: str) -> set[str]:
        """Return the requirements of the last step that an offence, in these words, is about."""
        words = set(re.findall(r"[^\s:,.()]+", what))
        return {name for name, runs in self.last.items() if not runs or runs & words}

    def _note(self, name: str, *runs: str) -> None:
        self.last.setdefault(name, set()).update(runs)

    def _operation(self, session: _Session, operation: str, run: str) -> None:
        queued = session.in_state(DeclaredState.QUEUED)
        match operation:
            case "interrupt" if session.states:
                self._note("R-ACC-3")
            case "reject" if session.states:
                self._note("R-BSY-4", run)
            case "fold" if queued:
                self._note("R-FLD-2" if run in session.covered else "R-FLD-1", *queued)
            case "fail" if queued:
                self._note("R-HOF-2", *queued)
            case "cancel_run" if session.states.get(run) is DeclaredState.ACTIVE and queued:
                self._note("R-HOF-2", *queued)

    def _event(self, session: _Session, event: Event) -> None:
        match event:
            case Accept(run):
                session.states[run] = DeclaredState.ACCEPTED
                if session.cancelled:
                    session.after_cancel.add(run)
            case Enter(run, state) if run in session.states:
                self._entered(session, run, state)
            case Handoff(run) if run in session.states:
                self._note("R-BSY-1", run)
                self._note("R-HOF-3")
                if len(session.in_state(DeclaredState.QUEUED)) > 1:
                    self._note("R-QUE-1", *session.in_state(DeclaredState.QUEUED))
                session.states[run] = DeclaredState.ACTIVE
            case Fold(run, _) if run in session.states:
                self._note("R-FLD-1", run)
                session.folded.add(run)
                session.states[run] = DeclaredState.ACTIVE
            case Cancel(runs):
                self._cancelled(session, runs)
            case Clear(runs):
                queued = session.in_state(DeclaredState.QUEUED)
                if cleared := queued if runs is None else queued & runs:
                    self._note("R-QUE-2", *cleared)
            case Wrote(run, reason) if run in session.states:
                session.wrote.add(run)
                if reason == "canceled":
                    self._note("R-CMP-3", run)
            case Complete(run, cancelled, _) if run in session.states:
                self._completed(session, run, cancelled=cancelled)
            case _:
                pass

    def _entered(self, session: _Session, run: str, state: DeclaredState) -> None:
        busy = any(its in _BUSY for its in session.states.values())
        session.states[run] = state
        if run in session.covered:
            self._note("R-ENT-1", run)
        else:
            self._note("R-ENT-2" if busy else "R-ENT-3", run)
        if run in session.covered_with_others:
            if session.others_gone:
                self._note("R-CAN-7", run)
            session.others_gone = True

    def _cancelled(self, session: _Session, runs: frozenset[str] | None) -> None:
        covers = set(session.states) if runs is None else session.states.keys() & runs
        if runs is not None and covers:
            self._note("R-CAN-6")
        elif runs is None:
            session.cancelled = True
            self._note("R-CAN-1" if covers else "R-CAN-5", *covers)
            session.cancelled_with_all |= covers
            accepted = session.in_state(DeclaredState.ACCEPTED)
            session.covered_with_others |= accepted if len(covers) > 1 else set()
        if queued := covers & session.in_state(DeclaredState.QUEUED):
            self._note("R-CAN-3", *queued)
        session.covered |= covers

    def _completed(self, session: _Session, run: str, *, cancelled: bool) -> None:
        state = session.states.pop(run)
        if state not in _WAITS or run in session.covered:
            self._note("R-LIV-1", run)
        if cancelled or run in session.covered:
            self._note("R-CMP-1", run)
        if run in session.after_cancel:
            self._note("R-CAN-2", run)
        if run in session.folded:
            self._note("R-FLD-3", run)
        if run in session.wrote:
            self._note("R-SET-1", run)
        if state is DeclaredState.CANCEL_ON_ENTRY:
            self._note("R-SET-4", run)
        if state is DeclaredState.QUEUED:
            self._note("R-SET-5", run)
        if run in session.covered:
            session.others_gone = True
        del self._session_of[run]
        for names in (session.covered, session.covered_with_others, session.after_cancel):
            names.discard(run)
        for names in (session.folded, session.wrote, session.cancelled_with_all):
            names.discard(run)
        if not session.covered_with_others:
            session.others_gone = False


def of_steps(steps: Sequence[PlayedStep]) -> Situations:
    """Return the situations of a program whose operations were waited for."""
    situations = Situations()
    for step in steps:
        situations.step(str(step.session), step.events, _operation(step), step.action.run)
    return situations


def _operation(step: PlayedStep) -> str:
    """Return the operation of a step by the name that it has at the port."""
    how = step.action.how.removesuffix(": refused")
    if step.action.name == "end":
        return "fail" if how == "error" else "finish"
    return how if how in ("interrupt", "reject") else step.action.name


def overheard(lines: Iterable[bytes], situations: Situations) -> Iterator[bytes]:
    """Pass the lines of a recording on, and read them too.

    Lines that are not events are left to the next reader.
    """
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if isinstance(record, dict) and (event := _recorded(record)):
            situations.step(str(record.get("session", "")), [event])
        yield line


def _recorded(record: dict[str, Any]) -> Event | None:
    runs = record.get("runs")
    named = frozenset(map(str, runs)) if isinstance(runs, list) else None
    match record:
        case {"event": "accept", "run": str(run)}:
            return Accept(run)
        case {"event": "enter", "run": str(run), "state": str(state)} if state in set(DeclaredState):
            return Enter(run, DeclaredState(state))
        case {"event": "fold", "run": str(run), "into": str(into)}:
            return Fold(run, into)
        case {"event": "handoff", "run": str(run)}:
            return Handoff(run)
        case {"event": "cancel"}:
            return Cancel(named)
        case {"event": "clear"}:
            return Clear(named)
        case {"event": "complete", "run": str(run), "cancelled": bool(cancelled)}:
            return Complete(run, cancelled)
        case _:
            return None
