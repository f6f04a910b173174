"""The sessions of one program, as abstract sessions that judge what a subject shows.

A subject shows less than a recorded history has, so some events are filled in
here: that a runner has ended, and that messages were written in time. And a
run that a cancel covers, or that was cleared, no longer waits: a run that starts
ahead of it does not overtake it, but the run is still owed its RunComplete.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable

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
from turngate_model.lifecycle import WAITING, DeclaredState
from turngate_model.properties import Property, Violation
from turngate_verify.conform.port import Features, Given, Refused, is_refused
from turngate_verify.conform.programs import TAKING_IN, Op, edited

_ENTERED = (DeclaredState.QUEUED, DeclaredState.ACTIVE, DeclaredState.CANCEL_ON_ENTRY)


class Sessions:
    """One abstract session per session of a program, and what else the kit knows."""

    def __init__(self, features: Features) -> None:
        self.features = features
        self.each: list[AbstractSession] = []
        self.asked_to_enter: set[str] = set()
        """The runs that were asked to enter; with one phase, every accepted run."""
        self.at_work: Collection[str] | None = None
        """The lead runs whose runner is at work, or None if the subject does not say."""
        self.waited = ""
        """How long the kit waits for what is owed, in words."""
        self._was_at_work: set[str] = set()
        self._hanging: set[str] = set()
        """The runs that were reported as queued in an idle session: nothing will ever start them."""
        self._died: set[str] = set()
        """The runs of turns whose process was killed, until they are complete or run again."""
        self._unseen: set[str] = set()
        """The runs that may have been an active turn when a stop came, and about which nothing was shown."""
        self._prompts: dict[str, str] = {}
        """The prompts of the runs that were edited."""
        self._for_idle: set[str] = set()
        """The runs that were taken in because their session was idle: no later run may start before them."""

    def at(self, place: int) -> AbstractSession:
        """Return the session of this number."""
        while len(self.each) <= place:
            self.each.append(AbstractSession())
        return self.each[place]

    def copy(self) -> Sessions:
        """Return an independent copy."""
        twin = Sessions(self.features)
        twin.each = [session.copy() for session in self.each]
        twin.asked_to_enter = set(self.asked_to_enter)
        twin.at_work = self.at_work
        twin.waited = self.waited
        twin._was_at_work = set(self._was_at_work)
        twin._hanging = set(self._hanging)
        twin._died = set(self._died)
        twin._unseen = set(self._unseen)
        twin._prompts = dict(self._prompts)
        twin._for_idle = set(self._for_idle)
        return twin

    def key(self) -> Hashable:
        """Return a value that is equal for two that will judge every continuation alike."""
        return (
            tuple(session.key() for session in self.each),
            frozenset(self.asked_to_enter),
            frozenset(self._hanging),
            frozenset(self._died),
            frozenset(self._unseen),
            frozenset(self._prompts.items()),
            frozenset(self._for_idle),
        )

    def _die(self) -> None:
        """Note that the process was killed, and every runner with it."""
        for session in self.each:
            self._died.update(session.turn)
            if session.lead:
                session.observe(Ended(session.lead))
        self._was_at_work.clear()

    def work(self, at_work: Collection[str] | None) -> None:
        """Note which runners are at work now."""
        self.at_work = at_work
        self._was_at_work.update(at_work or ())

    # What the kit does.

    def take(self, op: Op, refused: Collection[Refused]) -> tuple[list[Event], list[Violation]]:
        """Note that an operation has taken effect; return its own events, and what this breaks."""
        session = self.at(op.place)
        if op.name == "crash":
            self._die()
        if op.run and op.name not in TAKING_IN and op.run not in session.states:
            return [], []  # the run was refused: nothing was asked for
        was_refused = is_refused(op, refused)
        broken = self._wrongly(session, op, refused=was_refused)
        events = [] if was_refused else self._own(op)
        for event in events:
            broken += session.observe(event)
        return events, broken

    def _wrongly(self, session: AbstractSession, op: Op, *, refused: bool) -> list[Violation]:
        """Say that an operation is refused which should not be, or is not and should be."""
        done = "refused" if refused else "taken in"
        match op.name:
            case "reject":
                should, right = bool(session.in_flight), "its session is"
                right += " busy: it should be refused" if should else " idle: it should be taken in"
            case "into":
                works = session.joinable and self._works(session) and op.other in session.turn
                if not (refused and works):
                    return []  # that it should be refused, the session itself says
                should, right = False, f"the turn of {op.other} runs: it should be taken in"
            case "hold_run" | "resume_run" | "move" | "edit" | "send_now":
                return self._wrongly_in_line(session, op, refused=refused)
            case _:
                return []
        if refused == should:
            return []
        return [Violation(Property.DECLARED_MOVE, f"{op.run} is {done}, but {right}")]

    def _wrongly_in_line(self, session: AbstractSession, op: Op, *, refused: bool) -> list[Violation]:
        runs = [op.run, op.other] if op.name == "move" and op.other else [op.run]
        if any(self._is_going(session, run) for run in runs):
            return []  # a cancel covers it, or it was cleared: its end is decided, and may not be shown yet
        can = (DeclaredState.QUEUED,) if op.name == "send_now" else WAITING
        waits = all(session.states.get(run) in can for run in runs)
        if refused and waits and not (op.name == "resume_run" and op.run not in session.held):
            said = f"{op} is refused, but {op.run} waits: it should be done"
            return [Violation(Property.DECLARED_MOVE, said)]
        if not refused and not waits and op.name not in ("move", "edit"):
            said = f"{op} is done, but {op.run} is {session.states.get(op.run)}: it should be refused"
            return [Violation(Property.DECLARED_MOVE, said)]
        return []

    def _is_going(self, session: AbstractSession, run: str) -> bool:
        """Return whether a waiting run can only get its RunComplete, and no turn."""
        if session.states.get(run) not in WAITING:
            return False
        return run in session.covered | session.cleared or run in self._left_behind(session)

    def _left_behind(self, session: AbstractSession) -> set[str]:
        """Return the runs for one turn alone, where that turn takes in no more."""
        return {run for run, lead in session.bound.items() if lead != session.lead or not session.joinable}

    def _own(self, op: Op) -> list[Event]:
        """Return the events that an operation itself makes."""
        if op.name == "enter" or (op.name in TAKING_IN and not self.features.two_phase):
            self.asked_to_enter.add(op.run)
            if op.name == "reject":
                self._for_idle.add(op.run)
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
            case "hold" | "hold_run":
                return [Hold(frozenset({op.run}) if op.run else None)]
            case "resume" | "resume_run":
                return [Resume(frozenset({op.run}) if op.run else None)]
            case "stop":
                return [*self._covering_turn(op), Hold()]
            case "move":
                return [Move(op.run, op.other)]
            case "edit":
                self._prompts[op.run] = edited(op.run, op.other)
                return [Edit(op.run)]
            case "send_now":
                line = self.at(op.place).line
                ahead = [Move(op.run, line[0])] if op.run in line[1:] else []
                return [*ahead, *self._covering_turn(op), Resume(frozenset({op.run}), unbinds=True)]
            case "into":
                return [Accept(op.run, self.features.folds, op.other)]
            case "enter" | "fold" | "wait" | "crash" | "residue":
                return []

    def _covering_turn(self, op: Op) -> list[Event]:
        """Return the cancel of the active turn alone, if there is one.

        A turn whose runner was not called yet is not seen. If there is no other, the run that goes next may
        be such a turn, and complete as cancelled.
        """
        session = self.at(op.place)
        if session.turn:
            return [Cancel(frozenset(session.turn))]
        able = [run for run in session.line if run not in session.held and run != op.run]
        queued = [run for run in able if session.states[run] is DeclaredState.QUEUED]
        asked = [run for run in able if run in self.asked_to_enter]
        self._unseen.update(queued[:1] or asked)
        return []

    @property
    def _may_fold(self) -> bool:
        return self.features.folds or self.features.self_folds

    # What is shown.

    def normal(self, place: int, event: Event | Given) -> Event | Given | None:
        """Return the event that a real-time subject means: it does not know whether a run was queued.

        None means that it is known already: a run that was taken as queued is reported as queued.
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
        """Note that the last thing shown about a run is that it is queued; return whether it hangs.

        It does if the session is idle: the run has neither started nor
        completed, and there is nothing that it could wait for.
        """
        session = self.at(place)
        if self._can_wait(session, run) or session.states.get(run) is not DeclaredState.ACCEPTED:
            return False
        self._hanging.add(run)
        return True

    def count_as_queued(self, place: int, run: str) -> None:
        """Take a run as queued that has neither started nor ended, if there is something it can wait for."""
        session = self.at(place)
        if session.states.get(run) is not DeclaredState.ACCEPTED or run in session.covered:
            return
        if self._can_wait(session, run):
            session.observe(Enter(run, DeclaredState.QUEUED))
        else:
            self._hanging.add(run)

    def has_waited(self, place: int, run: str) -> bool:
        """Tell whether a run that starts may have been queued, unseen: others wait that were accepted later.

        A run that has entered in a second phase waits ahead of them.
        """
        session = self.at(place)
        waits = session.states.get(run) is DeclaredState.ACCEPTED and run in self.asked_to_enter
        return waits and not session.turn and session.first != "" and run not in session.covered

    def _can_wait(self, session: AbstractSession, run: str) -> bool:
        """Return whether there is anything a run can wait for: a turn, a queue that moves, or a resume."""
        ahead = [each for each in session.queue if each not in session.held]
        return bool(session.turn or ahead) or run in session.held

    def judge(self, place: int, event: Event | Given) -> list[Violation]:
        """Return what an event breaks, and go on from there."""
        session = self.at(place)
        if getattr(event, "run", "") not in session.states:
            trace = f"{getattr(event, 'run', '')} was not taken in, and should leave no trace"
            return [Violation(Property.DECLARED_MOVE, trace)]
        self._take_as_covered(session, event)
        match event:
            case Complete():
                return self._completed(session, event)
            case Handoff(run) | Enter(run, DeclaredState.ACTIVE):
                if passed := self._passed(session, run):
                    said = f"{passed} was taken in because its session was idle, and {run} starts first"
                    return [Violation(Property.DECLARED_MOVE, f"{said}: it should have been refused")]
                if run in self._died and session.states[run] is DeclaredState.ACTIVE:
                    return self._runs_again(session, run)
                if session.lead in session.covered:
                    session.observe(Ended(session.lead))
                return _past_the_dropped(session, event)
            case Fold():
                return _past_the_dropped(session, event)
            case Given(run, prompt):
                return self._given(run, prompt)
            case _:
                return session.observe(event)

    def _passed(self, session: AbstractSession, run: str) -> str:
        """Return the run, if any, that this one overtakes although it had to start at once or be refused."""
        self._for_idle.discard(run)
        left = self._for_idle.intersection(session.in_state(DeclaredState.ACCEPTED)) - session.covered
        return next(iter(left), "")

    def _take_as_covered(self, session: AbstractSession, event: Event | Given) -> None:
        """Count a run as covered if a stop may have covered it before its runner was called."""
        match event:
            case Enter(run, DeclaredState.CANCEL_ON_ENTRY) | Complete(run, True):
                if run in self._unseen:
                    session.observe(Cancel(frozenset({run})))
            case Enter(run) | Handoff(run) | Fold(run):
                self._unseen.discard(run)

    def _given(self, run: str, prompt: str) -> list[Violation]:
        if prompt == (should := self._prompts.get(run, run)):
            return []
        said = f"the runner is given {prompt!r} for {run}: it should be {should!r}"
        return [Violation(Property.AS_EDITED, said)]

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
        elif never := "" if run in self._left_behind(session) else _never_ran(session, event):
            broken.append(Violation(Property.DECLARED_MOVE, never))
        unwritten = not self.features.messages or (run in self._died and run not in session.record)
        if state in (DeclaredState.ACTIVE, DeclaredState.CANCEL_ON_ENTRY) and unwritten:
            session.observe(Wrote(run, "unwritten"))
        if run == session.lead:
            session.observe(Ended(run))
        self._died.discard(run)
        self._unseen.discard(run)
        self._for_idle.discard(run)
        left = self._left_behind(session)
        if run in left and not event.cancelled:
            session.observe(Clear(frozenset({run})))
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
                if run in self.asked_to_enter and (run not in session.held or run in session.covered):
                    return [self._hangs(session, run)]
        return []

    def _hangs(self, session: AbstractSession, run: str) -> Violation:
        """Say that a run has neither started nor completed, though nothing is in its way."""
        hangs = f"{run} hangs: it neither started nor completed{self.waited}"
        if run in session.covered:
            said = f"{hangs}. A cancel covers it, so it is owed its RunComplete"
            return Violation(Property.EXACTLY_ONE_COMPLETE, said)
        said = f"{hangs}, and no turn of its session is active. It should have started"
        stranded = run in self._hanging or session.states[run] is DeclaredState.QUEUED
        return Violation(Property.NO_STRAND if stranded else Property.EXACTLY_ONE_COMPLETE, said)

    def _in_its_words(self, session: AbstractSession, owed: Violation) -> Violation:
        """Say what happened to a run that should have started, or should have been dropped."""
        if owed.property is Property.NO_STRAND:
            gone = session.covered | session.cleared | session.held | self._left_behind(session)
            waiting = [run for run in session.queue if run not in gone]
            return self._hangs(session, waiting[0])
        left = self._left_behind(session)
        for run in session.queue:
            why = "a cancel covers it" if run in session.covered else "the queue was cleared"
            why = "the turn that it was for is over" if run in left - session.covered else why
            if run in session.covered | session.cleared | left:
                said = f"{run} gets no RunComplete: {why}, and it is never heard of again"
                return Violation(owed.property, said)
        return owed

    def owe(self) -> bool:
        """Return whether something should still happen by itself. Waiting longer may bring it."""
        return any(self._owes(session) for session in self.each)

    def _owes(self, session: AbstractSession) -> bool:
        entered = {run for run in session.in_flight if self._has_entered(session, run)}
        if entered & (session.covered | session.cleared) or self._beside(session):
            return True
        self._notice_the_end(session)
        if any(lead != session.lead for lead in session.bound.values()):
            return True
        return bool(entered - session.held) and not (session.turn and session.running)

    def _has_entered(self, session: AbstractSession, run: str) -> bool:
        return session.states[run] in _ENTERED or run in self.asked_to_enter

    def _beside(self, session: AbstractSession) -> list[str]:
        """Return the runs whose runner works on beside the active turn of the session."""
        if not self.at_work or not session.turn:
            return []
        return [run for run in self.at_work if run in session.states and run != session.lead]

    def _notice_the_end(self, session: AbstractSession) -> None:
        """Note that the runner of the active turn has ended, or was never called, if that can be seen.

        A runner that has not been called yet may wait for a place, as long as another is at work.
        """
        if self.at_work is None or session.lead in self.at_work or not session.lead:
            return
        if session.lead in self._was_at_work or not self.at_work:
            session.observe(Ended(session.lead))


def _past_the_dropped(session: AbstractSession, event: Enter | Handoff | Fold) -> list[Violation]:
    """Judge a run that becomes active as if the runs about to be dropped were gone."""
    if event.run in session.cleared:
        cleared = (
            f"{event.run} was queued when the queue was cleared: it should be dropped, and not become active"
        )
        return [*_dropped_aside(session, event), Violation(Property.DECLARED_MOVE, cleared)]
    return _dropped_aside(session, event)


def _dropped_aside(session: AbstractSession, event: Enter | Handoff | Fold) -> list[Violation]:
    gone = session.covered | session.cleared
    gone |= {run for run, lead in session.bound.items() if lead != session.lead}
    dropped = [run for run in session.queue if run in gone and run != event.run]
    line, session.line = session.line, [run for run in session.line if run not in dropped]
    broken = session.observe(event)
    session.line = [run for run in line if run in session.line or run in dropped]
    return broken


def _never_ran(session: AbstractSession, event: Complete) -> str:
    """Say that a run completes that was never active or dropped; empty if that is not so."""
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
