"""A session of a history with intervals, as a state of the search."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from math import inf
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
    Fold,
    Handoff,
    Hold,
    Move,
    Resume,
    Wrote,
)
from turngate_model.lifecycle import DeclaredState
from turngate_model.properties import Property, Violation
from turngate_verify.intervals.lines import ABOUT_THE_LINE, Line
from turngate_verify.intervals.order import Item

_ACTIVE, _QUEUED = DeclaredState.ACTIVE, DeclaredState.QUEUED


class Expected(NamedTuple):
    """When a run becomes active, and what is known about its end; used to look ahead."""

    earliest: float
    latest: float
    complete: float
    """When it is complete at the earliest."""
    folds: bool


class Known(NamedTuple):
    """Facts about a history that hold in every order."""

    enters: frozenset[str]
    """The runs with an enter line of their own; the others enter with their accept."""
    ends: frozenset[str]
    """The runs whose runner says when it ends."""
    starts: bool
    """Whether anything says when turns begin."""
    over: frozenset[str] = frozenset()
    """The runs that were complete before."""
    spared: frozenset[str] = frozenset()
    """The runs whose only RunComplete says that they were not cancelled, if the search may look ahead."""
    expected: dict[str, Expected] = {}  # noqa: RUF012 - nothing changes it
    """When runs become active, if the search may look ahead."""


def changes_the_line(lines: Iterable[Line]) -> bool:
    """Tell whether runs may become active in another order than they were accepted."""
    return any(line.kind in ABOUT_THE_LINE or (line.kind == "accept" and line.into) for line in lines)


def known_of(items: Sequence[Item], over: frozenset[str], *, look_ahead: bool) -> Known:
    """Return these facts."""
    lines: list[Line] = [item.what for item in items]
    known = Known(
        frozenset(line.run for line in lines if line.kind == "enter"),
        frozenset(line.run for line in lines if line.kind == "ended"),
        any(line.kind in ("start", "handoff") for line in lines),
        over,
    )
    if not look_ahead:
        return known
    certain = [item for item in items if not item.optional]
    ends = [item for item in certain if item.what.kind == "complete"]
    often = Counter(item.what.run for item in items if item.what.kind == "complete")
    complete = {item.what.run: item.lo for item in ends}
    return known._replace(
        spared=frozenset(
            item.what.run for item in ends if not item.what.cancelled and often[item.what.run] == 1
        ),
        expected={
            item.what.run: Expected(
                item.lo, item.hi, complete.get(item.what.run, -inf), item.what.kind == "fold"
            )
            for item in certain
            if item.what.kind in ("start", "handoff", "fold") and not changes_the_line(lines)
        },
    )


class SessionState:
    """An abstract session, and what else is known."""

    __slots__ = ("_forgiven", "_known", "_over", "_session", "_started", "_working")

    def __init__(self, known: Known, forgiven: Property | None = None) -> None:
        self._known = known
        self._forgiven = forgiven
        self._session = AbstractSession()
        self._over = known.over
        self._started: frozenset[str] = frozenset()
        self._working: frozenset[str] = frozenset()
        """The leads whose runner has been called and says later when it ends."""

    def copy(self) -> SessionState:
        """Return a copy. What happens to the one changes nothing in the other."""
        twin = SessionState.__new__(SessionState)
        twin._known, twin._forgiven = self._known, self._forgiven
        twin._session = self._session.copy()
        twin._over, twin._started, twin._working = self._over, self._started, self._working
        return twin

    def key(self) -> Hashable:
        """Return a value that is equal for two that judge alike; what is over follows from what is placed."""
        return (self._session.key(), self._working)

    def owed(self) -> list[Violation]:
        """Return what is owed if nothing more will happen."""
        broken = self._session.owed() or [
            Violation(
                Property.EXACTLY_ONE_COMPLETE,
                f"{run} was accepted and never got a RunComplete",
            )
            for run in self._session.in_flight
        ]
        return [each for each in broken if each.property is not self._forgiven]

    def take(self, line: Line) -> list[Violation]:
        """Take one line in; return what it breaks."""
        return [each for each in self._taken(line) if each.property is not self._forgiven]

    def _taken(self, line: Line) -> list[Violation]:
        session, run = self._session, line.run
        match line.kind:
            case "accept":
                return self._accepted(run, line.into)
            case "cancel":
                return self._cancelled(line)
            case "clear":
                known = None if line.runs is None else frozenset(line.runs & session.states.keys())
                return session.observe(Clear(known))
            case "hold":
                return session.observe(Hold(line.runs))
            case "resume":
                return session.observe(Resume(line.runs, unbinds=True))
        if line.kind == "ended":
            self._working -= {run}
            return session.observe(Ended(run)) if run in session.states else []
        if line.kind in ABOUT_THE_LINE:
            return self._changed(line)
        if run in self._over:
            if line.kind == "complete":
                second = f"{run} gets a second RunComplete"
                return [Violation(Property.EXACTLY_ONE_COMPLETE, second)]
            if line.kind == "start" and run in self._started:
                return []
            again = f"{run} is complete, and must not {line.kind} again"
            return [Violation(Property.TERMINAL_IS_FINAL, again)]
        if run not in session.states:
            return [Violation(Property.DECLARED_MOVE, f"{line.kind} of {run}, which was not accepted before")]
        match line.kind:
            case "enter":
                assert line.state is not None
                return self._entered(run, line.state)
            case "fold":
                return self._past_the_dropped(Fold(run, line.into))
            case "start" | "handoff":
                return self._begun(run)
            case _:
                return self._completed(run, line)

    def _changed(self, line: Line) -> list[Violation]:
        """Judge that a run was moved or edited, which was not refused: it waited, and what it passed too."""
        session, run = self._session, line.run
        for each in (run, line.before):
            if each and each not in session.states:
                late = f"the {line.kind} of {run} should be refused, because {each} is not waiting"
                broken = Property.AS_EDITED if line.kind == "edit" else Property.DECLARED_MOVE
                return [Violation(broken, late)]
        return session.observe(Edit(run, foldable=True) if line.kind == "edit" else Move(run, line.before))

    def _accepted(self, run: str, into: str) -> list[Violation]:
        session = self._session
        if run in session.states or run in self._over:
            return []
        if broken := session.observe(Accept(run, into=into)):
            return broken
        if run in self._known.enters or self._working & self._over:
            return []  # it enters later: when its line says so, or when a runner that works on has ended
        busy = bool(session.turn) or any(each not in session.held for each in session.queue)
        return self._entered(run, _QUEUED if busy else _ACTIVE) or self._too_late()

    def _entered(self, run: str, state: DeclaredState) -> list[Violation]:
        if state is _ACTIVE:
            return self._works_beside(run) + self._past_the_dropped(Enter(run, state))
        return self._past_the_dropped(Enter(run, state))

    def _cancelled(self, line: Line) -> list[Violation]:
        session = self._session
        if line.runs is not None:
            session.observe(Cancel(frozenset(run for run in line.runs if run in session.states)))
            return []
        for run in session.states if self._known.spared else ():
            if run in self._known.spared:  # a look ahead: its RunComplete will not say cancelled
                should = f"{run} was accepted before the cancel: its RunComplete should say cancelled=True"
                return [Violation(Property.FULL_COVERAGE, should)]
        return session.observe(Cancel())

    def _too_late(self) -> list[Violation]:
        """Look ahead whether every run in the queue can still become active in time."""
        expected = self._known.expected
        if not expected:
            return []
        now = -inf
        over = max((expected[run].complete for run in self._session.turn if run in expected), default=-inf)
        for run in self._session.queue:
            if run not in expected:
                continue  # it never becomes active, and is dropped
            earliest, latest, complete, folds = expected[run]
            now = max(now, earliest) if folds else max(now, over, earliest)
            if now > latest:
                ahead = f"{run} becomes active ahead of another, which should go first"
                return [Violation(Property.FIFO, ahead)]
            over = max(over, complete)
        return []

    def _begun(self, run: str) -> list[Violation]:
        session = self._session
        self._started |= {run}
        if run == session.lead:
            return []  # it became active when it entered, and now its runner is called
        if session.lead and session.lead not in self._known.ends:
            session.observe(Ended(session.lead))
        event = Handoff(run) if session.states[run] is _QUEUED else Enter(run, _ACTIVE)
        return self._works_beside(run) + self._past_the_dropped(event)

    def _works_beside(self, run: str) -> list[Violation]:
        """Note that the runner of a run works; break ONE_TURN if that of a complete run still does."""
        beside = [each for each in self._working if each != run and each in self._over]
        if run in self._known.ends:
            self._working |= {run}
        if beside:
            works = f"the runner of {beside[0]} works on beside the turn of {run}: it should have ended first"
            return [Violation(Property.ONE_TURN, works)]
        return []

    def _past_the_dropped(self, event: Enter | Handoff | Fold) -> list[Violation]:
        """Judge a run that becomes active as if the covered and cleared runs were gone."""
        session = self._session
        gone = session.covered | session.cleared | self._left_over()
        dropped = [run for run in session.queue if run in gone and run != event.run] if gone else []
        if not dropped:
            return session.observe(event)
        line, session.line = session.line, [run for run in session.line if run not in dropped]
        broken = session.observe(event)
        session.line = [run for run in line if run in session.line or run in dropped]
        return broken

    def _left_over(self) -> set[str]:
        """Return the runs that were for one turn alone, and it is over: the dispatcher clears them itself."""
        session = self._session
        return {run for run, lead in session.bound.items() if lead != session.lead}

    def _completed(self, run: str, line: Line) -> list[Violation]:
        session, known = self._session, self._known
        if run in self._left_over():
            session.observe(Clear(frozenset({run})))
        excused = line.cancelled or line.error is not None or run in session.covered | session.cleared
        broken: list[Violation] = []
        waits = session.states[run] is _QUEUED or (
            session.states[run] is DeclaredState.ACCEPTED and run not in known.enters
        )
        if not excused and waits:
            if known.starts:
                return [Violation(Property.DECLARED_MOVE, f"{run} completes as finished, and never ran")]
            broken = self._begun(run)  # nothing says when turns begin: it has run just now
        elif not excused and known.starts and run == session.lead and run not in self._started | known.enters:
            return [Violation(Property.DECLARED_MOVE, f"{run} completes as finished, and never ran")]
        if session.lead and run in session.turn and session.running:
            if session.lead not in known.ends:
                session.observe(Ended(session.lead))
            elif run not in session.covered:
                early = f"{run} completes while the runner of {session.lead} still runs"
                return [Violation(Property.DECLARED_MOVE, early)]
        if session.states[run] in (_ACTIVE, DeclaredState.CANCEL_ON_ENTRY):
            session.observe(Wrote(run, "unwritten"))
        broken += session.observe(Complete(run, line.cancelled, line.error))
        session.forget(run)
        self._over |= {run}
        return broken
