"""Judges one line after another, and goes on after a violation.

It may begin in the middle of a recording: then every session is unknown at first, and nothing is held
against runs that the monitor has not seen. A line that cannot be read may have said anything, so after it
every session is unknown again. A violation makes only its own session unknown. The runs that were known
until then count as unseen.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from turngate_model.lifecycle import DeclaredState
from turngate_model.properties import Property, Violation
from turngate_verify.monitor.metrics import Figures
from turngate_verify.monitor.remembered import Remembered
from turngate_verify.monitor.session import Shown, WatchedSession
from turngate_verify.trace import after_the_end
from turngate_verify.trace_lines import COMMANDS, BadRecording, RecordedLine, read_line

REMEMBERED = 20_000
"""How many complete runs, at least, are known again when a line names them."""


class Accusation(NamedTuple):
    """A violation: where, what is broken, what should have been, and the smallest history that shows it."""

    session: str
    property: Property
    line: int
    what: str
    history: tuple[Shown, ...]


class Remark(NamedTuple):
    """Something about the recording itself, such as a line that is no event."""

    line: int
    what: str


class _Past(NamedTuple):
    """A run that is not in flight any more, or that was never seen to be accepted."""

    session: str
    lines: tuple[Shown, ...] = ()
    """The accept and the RunComplete; empty if the run is not known to be complete."""


class Monitor:
    """Judges a recording line by line.

    ``remember`` is how many complete runs are known again, at least: a second RunComplete that comes later
    is not noticed.
    """

    def __init__(self, *, remember: int = REMEMBERED) -> None:
        self._sessions: dict[str, WatchedSession] = {}
        self._session_of: dict[str, WatchedSession] = {}
        self._past = Remembered[_Past](remember)
        self._settled = Remembered[int](remember)
        """The quiet sessions, with the epoch in which they were settled."""
        self._epoch = 0
        """It changes when every session may have runs that are not known."""
        self._nth = 0
        self._figures = Figures()

    @property
    def figures(self) -> Figures:
        """What was counted so far."""
        self._figures.sessions = len(self._sessions)
        self._figures.in_flight = len(self._session_of)
        self._figures.kept = self.kept
        return self._figures

    @property
    def kept(self) -> int:
        """How many things are kept in memory: lines, runs in flight, runs and sessions that are over."""
        lines = sum(session.kept for session in self._sessions.values())
        return lines + len(self._session_of) + len(self._past) + len(self._settled)

    def judge(self, line: str | bytes, number: int) -> list[Accusation | Remark]:
        """Judge one line, which has this number in its file. Return what is wrong with it, or by it."""
        if not line.strip():
            return []
        self._nth += 1
        try:
            said = read_line(line, number)
            self._figures.events += 1
            return [*self._judged(said, self._shown(line, number))]
        except BadRecording as wrong:
            self._figures.unreadable += 1
            self.restart()
            return [Remark(number, f"{wrong.what}; every session is unknown now")]

    def restart(self, *, anew: bool = False) -> None:
        """Go on as if the recording began here.

        With ``anew``, another recording may begin here, in which the run ids of the old one come again.
        """
        self._figures.restarts += 1
        self._epoch += 1
        for session in list(self._sessions.values()):
            self._give_up(session)
        if anew:
            self._past.clear()
            self._settled.clear()

    def _give_up(self, session: WatchedSession) -> None:
        """Forget what is known of a session; its runs count as unseen."""
        for run in session.runs:
            self._past.put(run, _Past(session.name))
            del self._session_of[run]
        del self._sessions[session.name]
        self._settled.put(session.name, -1)

    def _shown(self, line: str | bytes, number: int) -> Shown:
        text = line if isinstance(line, str) else line.decode("utf-8-sig" if number == 1 else "utf-8")
        return Shown(self._nth, number, text.strip())

    def _judged(self, said: RecordedLine, shown: Shown) -> Iterable[Accusation]:
        if said.kind == "end":
            return self._ended(shown)
        if said.kind == "accept":
            return self._accepted(said, shown)
        if said.kind in COMMANDS:
            return self._commanded(said, shown)
        session = self._session_of.get(said.run)
        if session is None:
            return self._of_no_known_run(said, shown)
        return self._observed(session, said, shown)

    def _ended(self, shown: Shown) -> Iterable[Accusation]:
        """Accuse each session that owes something, and be ready for another recording."""
        found = []
        for session in self._sessions.values():
            violation = session.owed()[0]
            found.append(self._accused(session, violation, session.runs, shown))
        for session in list(self._sessions.values()):
            self._give_up(session)
        self._past.clear()
        self._settled.clear()
        self._epoch += 1
        return found

    def _accepted(self, said: RecordedLine, shown: Shown) -> Iterable[Accusation]:
        known = self._session_of.get(said.run)
        if known is not None and known.name != said.session:
            what = f"run {said.run!r} is in session {known.name!r} already, not in {said.session!r}"
            raise BadRecording(shown.line, what)
        if known is not None or said.run in self._past:
            return ()  # a second accept is about the same run
        self._figures.accepted += 1
        session = self._sessions.get(said.session)
        if session is None:
            session = self._sessions[said.session] = WatchedSession(said.session)
            settled = self._settled.get(said.session)
            session.settled_in = -1 if settled is None else settled
        self._session_of[said.run] = session
        return self._observed(session, said, shown)

    def _commanded(self, said: RecordedLine, shown: Shown) -> Iterable[Accusation]:
        session = self._sessions.get(said.session)
        if not said.session:
            known = (self._session_of[run] for run in said.runs or () if run in self._session_of)
            session = next(known, None)
        if said.kind == "resume" and (said.runs is None or any(map(self._is_unseen, said.runs))):
            self._unsettle(said.session or (session.name if session else ""))
        return () if session is None else self._observed(session, said, shown)

    def _of_no_known_run(self, said: RecordedLine, shown: Shown) -> Iterable[Accusation]:
        past = self._past.get(said.run)
        if past is not None and past.lines:
            violation = after_the_end(said)
            self._count(violation.property)
            history = (*past.lines, shown)
            return (Accusation(past.session, violation.property, shown.line, violation.what, history),)
        self._figures.unseen += 1
        beside = self._session_of.get(said.beside)
        session = said.session or (past.session if past else "") or (beside.name if beside else "")
        self._unsettle(session)
        self._past.put(said.run, _Past(session))
        return ()

    def _observed(self, session: WatchedSession, said: RecordedLine, shown: Shown) -> Iterable[Accusation]:
        beside_unseen = self._beside_unseen(session, said, shown)
        if beside_unseen:
            self._unsettle(session.name)
        turn = [session.state.lead, *session.state.turn]
        settled = session.settled_in == self._epoch
        violation = session.observe(said, shown, settled=settled, beside_unseen=beside_unseen)
        if violation is not None:
            about = [said.run, *turn, session.state.first, said.beside, *(said.runs or ())]
            accused = self._accused(session, violation, about, shown)
            session.settled_in = -1
            if said.kind == "complete":
                self._completed(session, said.run)
            if session.name in self._sessions:
                self._give_up(session)
            return (accused,)
        if said.state is DeclaredState.ACTIVE:
            session.settled_in = self._epoch
        if said.kind == "complete":
            self._completed(session, said.run)
        return ()

    def _beside_unseen(self, session: WatchedSession, said: RecordedLine, shown: Shown) -> bool:
        """Return whether a line names another run that is not known; refuse one of another session."""
        if not said.beside:
            return False
        beside = self._session_of.get(said.beside)
        if beside is not None and beside is not session and said.kind != "fold":
            what = (
                f"it names run {said.beside!r}, which is in session {beside.name!r}, not in {session.name!r}"
            )
            raise BadRecording(shown.line, what)
        return beside is None and self._is_unseen(said.beside)

    def _is_unseen(self, run: str) -> bool:
        """Return whether a run may be in flight although its accept was not seen."""
        past = self._past.get(run)
        return run not in self._session_of and (past is None or not past.lines)

    def _completed(self, session: WatchedSession, run: str) -> None:
        lines = sorted(session.lines_of(run))
        self._past.put(run, _Past(session.name, (lines[0], lines[-1])))
        session.forget(run)
        del self._session_of[run]
        if not session.state.states:
            del self._sessions[session.name]
            self._settled.put(session.name, session.settled_in)

    def _unsettle(self, session: str) -> None:
        """Note that a run which was not seen may be in a session; if the name is empty, in any."""
        if not session:
            self._epoch += 1
            return
        if session in self._sessions:
            self._sessions[session].settled_in = -1
        self._settled.put(session, -1)

    def _accused(
        self, session: WatchedSession, violation: Violation, about: Iterable[str], shown: Shown
    ) -> Accusation:
        self._count(violation.property)
        history = session.shortest(violation.property, about, shown)
        return Accusation(session.name, violation.property, shown.line, violation.what, tuple(history))

    def _count(self, broken: Property) -> None:
        self._figures.violations[broken] += 1
