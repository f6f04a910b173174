"""The rules of callers who change what waits: they hold, resume, stop, move, edit and send now."""

from __future__ import annotations

from hypothesis import strategies as st

from turngate import DispatcherClosed, NotRunning, NotWaiting, QueueFull, TurngateError, UnknownRun
from turngate_model import AbstractSession
from turngate_model.lifecycle import WAITING, DeclaredState
from turngate_verify.drivers.rules.callers import MOST_ACCEPTED, CallerRules
from turngate_verify.drivers.rules.example import QUEUE_LIMIT, one_of, rule, when

_UNTIL_WRITTEN = 12
"""Within this many callbacks the messages of a turn are being written, once its runner has returned."""


class LineRules(CallerRules):
    """What callers do to runs that wait."""

    _edits = 0
    """How many edits the callers have made."""

    @when(lambda self: self.uncovered)
    @rule(session=one_of(lambda self: self.sessions_of(self.uncovered)))
    def hold(self, session: str) -> None:
        """Hold what waits in a session."""
        self.world.hold(session)

    @when(lambda self: self.held)
    @rule(session=one_of(lambda self: [*3 * self.settling_and_held, *self.sessions_of(self.held)]))
    def resume(self, session: str) -> None:
        """Resume what is held in a session."""
        self.world.resume(session)

    @when(lambda self: self.uncovered)
    @rule(run=one_of(lambda self: self.in_line))
    def hold_run(self, run: str) -> None:
        """Hold one run, if it waits."""
        self._expect_refusal(self._refusal_of(run, *WAITING), self.world.hold_run, run)

    @when(lambda self: self.held)
    @rule(run=one_of(lambda self: [*self.held, *self.in_line]))
    def resume_run(self, run: str) -> None:
        """Resume one run, if it waits."""
        self._expect_refusal(self._refusal_of(run, *WAITING), self.world.resume_run, run)

    @when(lambda self: self.uncovered)
    @rule(session=one_of(lambda self: self.sessions_of(self.uncovered)), turn=one_of(lambda self: self.turns))
    def stop(self, session: str, turn: str | None) -> None:
        """Stop a session, or only if a certain run is part of its turn."""
        self.world.stop(session, turn)

    @when(lambda self: self.queued)
    @rule(run=one_of(lambda self: [*self.queued, *self.in_line]), turn=one_of(lambda self: self.turns))
    def send_now(self, run: str, turn: str | None) -> None:
        """Send a run now, if it is queued, or only if a certain run is part of the turn."""
        refusal = self._refusal_of(run, DeclaredState.QUEUED)
        self._expect_refusal(refusal, self.world.send_now, run, turn)

    @when(lambda self: self.behind_another)
    @rule(run=one_of(lambda self: [*4 * self.behind_another, *self.in_line]), nth=st.integers(-2, 3))
    def move(self, run: str, nth: int) -> None:
        """Move a run before the nth run in its line, or first (-1) or last (-2); or before a complete one."""
        refusal = self._refusal_of(run, *WAITING)
        if nth < 0 or run not in self.world.runs:
            to = "first" if nth == -1 else "last"
            self._expect_refusal(refusal, self.world.move, run, to=to)
            return
        session = self.world.runs[run].session_id
        line = self.world.monitor.sessions[session].line
        others = [each for each in self.runs if self.world.runs[each].session_id == session]
        before = line[nth] if nth < len(line) else others[0]
        other = self._refusal_of(before, *WAITING)
        if refusal is None or other is None or refusal is other:  # else either may be said
            self._expect_refusal(refusal or other, self.world.move, run, before=before)

    @when(lambda self: self.uncovered)
    @rule(run=one_of(lambda self: self.in_line), when_busy=st.sampled_from((None, None, "fold", "queue")))
    def edit(self, run: str, when_busy: str | None) -> None:
        """Edit a run, if it waits."""
        self._edits += 1
        refusal = self._refusal_of(run, *WAITING)
        self._expect_refusal(refusal, self.world.edit, run, f"edit {self._edits}", when_busy)

    @when(lambda self: self.players and len(self.accepted) < MOST_ACCEPTED)
    @rule(into=one_of(lambda self: [*self.players, *self.players, *self.runs]), enters=st.booleans())
    def steer(self, into: str, enters: bool) -> None:
        """Accept a prompt that may only join the turn of a run, and perhaps enter it at once."""
        session = self.world.runs[into].session_id
        abstract = self.world.monitor.sessions.get(session) or AbstractSession()
        runs = abstract.turn if abstract.running and abstract.lead not in abstract.covered else []
        waiting = len(abstract.in_state(DeclaredState.ACCEPTED)) + len(abstract.queue)
        refusal: type[TurngateError] | None = None
        if self.world.closing:
            refusal = DispatcherClosed
        elif into not in runs:
            refusal = NotRunning
        elif waiting >= QUEUE_LIMIT:
            refusal = QueueFull
        name = self._new_run_id()
        run = self._expect_refusal(refusal, self.world.accept, session, name, into=into)
        if run is not None and enters:
            self.world.enter(name)

    # Situations that single rules hardly ever reach.

    @when(lambda self: self.followed)
    @rule(run=one_of(lambda self: self.followed))
    def resume_late(self, run: str) -> None:
        """Hold what waits behind a turn, have its runner finish, and resume while the turn is written."""
        session = self.world.runs[run].session_id
        self.world.hold(session)
        self.world.store.plans.appendleft("slow")
        self.world.runner.players[run].obey("finish")
        for _ in range(_UNTIL_WRITTEN):
            if self.world.runs[run].seq in self.world.monitor.settling:
                break
            self._run_callback()
        self.world.resume(session)

    @when(lambda self: self.behind_another and len(self.accepted) < MOST_ACCEPTED)
    @rule(run=one_of(lambda self: self.behind_another))
    def move_and_accept(self, run: str) -> None:
        """Move a run to the end of its line, and send another prompt, which is behind it."""
        if self._refusal_of(run, *WAITING) is not None:
            return  # A shrunk program may call this when the run waits no more.
        self.world.move(run, to="last")
        name = self._new_run_id()
        if self._offer(self.world.runs[run].session_id, name, self.world.accept, "queue") is not None:
            self.world.enter(name)

    @when(lambda self: self.queued)
    @rule(run=one_of(lambda self: self.queued))
    def edit_and_clear(self, run: str) -> None:
        """Edit a queued run, and clear the queue before anything else happens."""
        if self._refusal_of(run, DeclaredState.QUEUED) is not None:
            return  # A shrunk program may call this when the run is not queued.
        self._edits += 1
        self.world.edit(run, f"edit {self._edits}", None)
        self.world.clear(self.world.runs[run].session_id)

    # What the rules above need.

    def _refusal_of(self, run: str, *states: DeclaredState) -> type[TurngateError] | None:
        """Return how a call about a run is refused unless the run is in one of these states."""
        if run not in self.world.runs or not self.world.knows(run):
            return UnknownRun
        abstract = self.world.monitor.sessions[self.world.runs[run].session_id]
        return None if abstract.states[run] in states else NotWaiting
