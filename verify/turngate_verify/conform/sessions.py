"""The sessions of one program, as abstract sessions that judge what a subject shows.

A subject shows less than a recorded history has, so some events are filled in
here: that a runner has ended, and that messages were written in time. And a
run that a cancel covers, or that was cleared, no longer waits: a run that starts
ahead of it does not overtake it, but the run is still owed its RunComplete.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable

from turngate_model.abstract_session import AbstractSession
from turngate_model.history import Accept, Cancel, Clear, Complete, Ended, Enter, Event, Fold, Handoff, Wrote
from turngate_model.lifecycle import DeclaredState
from turngate_model.properties import Property, Violation
from turngate_verify.conform.port import Features
from turngate_verify.conform.programs import TAKING_IN, Op

_ENTERED = (DeclaredState.QUEUED, DeclaredState.ACTIVE, DeclaredState.CANCEL_ON_ENTRY)


class Sessions:
    """One abstract session per session of a program, and what the kit knows beside them."""

    def __init__(self, features: Features) -> None:
        self.features = features
        self.each: list[AbstractSession] = []
        self.asked_to_enter: set[str] = set()
        """The runs that have been told to enter; with one phase, every run that was accepted."""
        self.at_work: Collection[str] | None = None
        """The lead runs whose runner is at work, or None if the subject does not say."""
        self.waited = ""
        """How long the kit waits for what is owed, in words."""
        self._was_at_work: set[str] = set()
        self._hanging: set[str] = set()
        """The runs that were said to be queued in an idle session: nothing will ever start them."""
        self._died: set[str] = set()
        """The runs of turns whose process was killed, until they are complete or run again."""

    def at(self, place: int) -> AbstractSession:
        """Return the session of this number."""
        while len(self.each) <= place:
            self.each.append(AbstractSession())
        return self.each[place]

    def copy(self) -> Sessions:
        """Return a copy. What happens to the one changes nothing in the other."""
        twin = Sessions(self.features)
        twin.each = [session.copy() for session in self.each]
        twin.asked_to_enter = set(self.asked_to_enter)
        twin.at_work = self.at_work
        twin.waited = self.waited
        twin._was_at_work = set(self._was_at_work)
        twin._hanging = set(self._hanging)
        twin._died = set(self._died)
        return twin

    def key(self) -> Hashable:
        """Return a value that is equal for two if they judge alike whatever happens later."""
        return (
            tuple(session.key() for session in self.each),
            frozenset(self.asked_to_enter),
            frozenset(self._hanging),
            frozenset(self._died),
        )

    def _die(self) -> None:
        """Note that the process was killed, and every runner with it."""
        for session in self.each:
            self._died.update(session.turn)
            if session.lead:
                session.observe(Ended(session.lead))
        self._was_at_work.clear()

    def work(self, at_work: Collection[str] | None) -> None:
        """Note whose runner is at work now."""
        self.at_work = at_work
        self._was_at_work.update(at_work or ())

    # What the kit does.

    def take(self, op: Op, refused: Collection[str]) -> tuple[list[Event], list[Violation]]:
        """Take in that an operation has taken effect; return its own events, and whether it should have."""
        session = self.at(op.place)
        if op.name == "crash":
            self._die()
        broken: list[Violation] = []
        if op.name == "reject" and (op.run in refused) != bool(session.in_flight):
            busy = "is busy: it should be refused" if session.in_flight else "is idle: it should be taken in"
            done = "refused" if op.run in refused else "taken in"
            said = f"{op.run} is {done}, but its session {busy}"
            broken.append(Violation(Property.DECLARED_MOVE, said))
        events = [] if op.run in refused else self._own(op)
        for event in events:
            session.observe(event)
        return events, broken

    def _own(self, op: Op) -> list[Event]:
        """Return the events that an operation itself makes."""
        if op.name == "enter" or (op.name in TAKING_IN and not self.features.two_phase):
            self.asked_to_enter.add(op.run)
        match op.name:
            case "accept" | "reject":
                return [Accept(op.run, self._may_fold)]
            case "interrupt":
                return [Cancel(), Accept(op.run, self._may_fold)]
            case "cancel":
                return [Cancel()]
            case "cancel_run":
                return [Cancel(frozenset(self.at(op.place).covered_by_cancel(op.run)))]
            case "clear":
                return [Clear()]
            case "finish" | "fail":
                return [Ended(op.run)]
            case "enter" | "fold" | "wait" | "crash" | "residue":
                return []

    @property
    def _may_fold(self) -> bool:
        return self.features.folds or self.features.self_folds

    # What is shown.

    def normal(self, place: int, event: Event) -> Event | None:
        """Return the event that a real-time subject means: it does not know whether a run was queued.

        None stands for what is known already: a run that was taken as queued is said to be queued.
        """
        if not self.features.real_time or not isinstance(event, Handoff | Enter):
            return event
        state = self.at(place).states.get(event.run)
        if isinstance(event, Handoff):
            return Enter(event.run, DeclaredState.ACTIVE) if state is DeclaredState.ACCEPTED else event
        if state is DeclaredState.QUEUED and event.state is not DeclaredState.CANCEL_ON_ENTRY:
            return Handoff(event.run) if event.state is DeclaredState.ACTIVE else None
        return event

    def hang(self, place: int, run: str) -> bool:
        """Take in that the last word about a run is that it is queued; return whether it hangs.

        It does if the session is idle: the run has neither started nor
        completed, and there is nothing that it could wait for.
        """
        session = self.at(place)
        if session.turn or session.queue or session.states.get(run) is not DeclaredState.ACCEPTED:
            return False
        self._hanging.add(run)
        return True

    def count_as_queued(self, place: int, run: str) -> None:
        """Take a run as queued that has neither started nor ended, if there is something it can wait for."""
        session = self.at(place)
        if session.states.get(run) is not DeclaredState.ACCEPTED or run in session.covered:
            return
        if session.turn or session.queue:
            session.observe(Enter(run, DeclaredState.QUEUED))
        else:
            self._hanging.add(run)

    def judge(self, place: int, event: Event) -> list[Violation]:
        """Return what an event breaks, and go on from there."""
        session = self.at(place)
        if getattr(event, "run", "") not in session.states:
            trace = f"{getattr(event, 'run', '')} was not taken in, and should leave no trace"
            return [Violation(Property.DECLARED_MOVE, trace)]
        match event:
            case Complete():
                return self._completed(session, event)
            case Handoff(run) | Enter(run, DeclaredState.ACTIVE):
                if run in self._died and session.states[run] is DeclaredState.ACTIVE:
                    return self._runs_again(session, run)
                if session.lead in session.covered:
                    session.observe(Ended(session.lead))
                return _past_the_dropped(session, event)
            case Fold():
                return _past_the_dropped(session, event)
            case _:
                return session.observe(event)

    def _runs_again(self, session: AbstractSession, run: str) -> list[Violation]:
        self._died.difference_update(session.turn)
        session.running = True
        if run in session.covered:
            again = f"{run} was accepted before the cancel: it must not run again after a crash"
            return [Violation(Property.FULL_COVERAGE, again)]
        return []

    def _completed(self, session: AbstractSession, event: Complete) -> list[Violation]:
        run, state = event.run, session.states[event.run]
        broken: list[Violation] = []
        if run in session.turn and session.running and run not in session.covered and self._works(session):
            early = f"{run} completes while the runner of {session.lead} still runs"
            broken.append(Violation(Property.DECLARED_MOVE, early))
        elif never := _never_ran(session, event):
            broken.append(Violation(Property.DECLARED_MOVE, never))
        unwritten = not self.features.messages or (run in self._died and run not in session.record)
        if state in (DeclaredState.ACTIVE, DeclaredState.CANCEL_ON_ENTRY) and unwritten:
            session.observe(Wrote(run, "unwritten"))
        if run == session.lead:
            session.observe(Ended(run))
        self._died.discard(run)
        seen = session.observe(event)
        return broken or seen

    def _works(self, session: AbstractSession) -> bool:
        return self.at_work is None or session.lead in self.at_work

    # What is owed at rest.

    def at_rest(self, place: int | None = None) -> list[Violation]:
        """Return the first thing that is wrong when nothing more will happen, in one session or in any."""
        for session in self.each if place is None else [self.at(place)]:
            if beside := self._beside(session):
                working = f"the runner of {beside[0]} works on beside the turn of {session.lead}"
                return [Violation(Property.ONE_TURN, f"{working}: it should have ended first")]
            self._notice_the_end(session)
            if session.turn and session.running:
                continue
            if owed := session.owed():
                return [self._in_its_words(session, owed[0])]
            for run in session.in_state(DeclaredState.ACCEPTED):
                if run in self.asked_to_enter:
                    return [self._hangs(session, run)]
        return []

    def _hangs(self, session: AbstractSession, run: str) -> Violation:
        """Say of a run that it has neither started nor completed though nothing is in its way."""
        hangs = f"{run} hangs: it neither started nor completed{self.waited}"
        if run in session.covered:
            said = f"{hangs}. A cancel covers it, so it is owed its RunComplete"
            return Violation(Property.EXACTLY_ONE_COMPLETE, said)
        said = f"{hangs}, and no turn of its session is active. It should have started"
        stranded = run in self._hanging or session.states[run] is DeclaredState.QUEUED
        return Violation(Property.NO_STRAND if stranded else Property.EXACTLY_ONE_COMPLETE, said)

    def _in_its_words(self, session: AbstractSession, owed: Violation) -> Violation:
        """Say what became of a run that should have started, or should have been dropped."""
        if owed.property is Property.NO_STRAND:
            waiting = [run for run in session.queue if run not in session.covered | session.cleared]
            return self._hangs(session, waiting[0])
        for run in session.queue:
            why = "a cancel covers it" if run in session.covered else "the queue was cleared"
            if run in session.covered | session.cleared:
                said = f"{run} gets no RunComplete: {why}, and it is never heard of again"
                return Violation(owed.property, said)
        return owed

    def owe(self) -> bool:
        """Tell whether something should still happen by itself. Waiting longer may bring it."""
        return any(self._owes(session) for session in self.each)

    def _owes(self, session: AbstractSession) -> bool:
        entered = {run for run in session.in_flight if self._has_entered(session, run)}
        if entered & (session.covered | session.cleared) or self._beside(session):
            return True
        self._notice_the_end(session)
        return bool(entered) and not (session.turn and session.running)

    def _has_entered(self, session: AbstractSession, run: str) -> bool:
        return session.states[run] in _ENTERED or run in self.asked_to_enter

    def _beside(self, session: AbstractSession) -> list[str]:
        """Return the runs whose runner works on beside the active turn of the session."""
        if not self.at_work or not session.turn:
            return []
        return [run for run in self.at_work if run in session.states and run != session.lead]

    def _notice_the_end(self, session: AbstractSession) -> None:
        """Note that the runner of the active turn is over, or was never called, if that can be seen.

        A runner that has not been called yet may wait for a place, as long as another is at work.
        """
        if self.at_work is None or session.lead in self.at_work or not session.lead:
            return
        if session.lead in self._was_at_work or not self.at_work:
            session.observe(Ended(session.lead))


def _past_the_dropped(session: AbstractSession, event: Enter | Handoff | Fold) -> list[Violation]:
    """Judge a run that becomes active as if the runs about to be dropped were gone."""
    dropped = [run for run in session.queue if run in session.covered | session.cleared and run != event.run]
    line, session.line = session.line, [run for run in session.line if run not in dropped]
    broken = session.observe(event)
    session.line = [run for run in line if run in session.line or run in dropped]
    return broken


def _never_ran(session: AbstractSession, event: Complete) -> str:
    """Say that a run completes which was never active and which nothing has dropped; empty if not so."""
    run, state = event.run, session.states[event.run]
    if event.cancelled or run in session.covered | session.cleared:
        return ""
    if state in (DeclaredState.ACCEPTED, DeclaredState.QUEUED) and event.error is None:
        return (
            f"{run} completes as finished, and never ran: its caller got the answer of another run, or none"
        )
    if state is DeclaredState.QUEUED:
        return f"{run} completes with an error ({event.error}), and never ran: nothing has dropped it"
    return ""
