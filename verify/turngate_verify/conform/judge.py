"""The judge: has one subject perform a program, and judges what it shows by abstract sessions.

After every operation the subject is at rest. So the judge asks at once what is
owed: a session in which no runner is at work must owe nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from turngate_model.abstract_session import AbstractSession
from turngate_model.checker.counterexample import Step
from turngate_model.history import Accept, Cancel, Clear, Complete, Ended, Enter, Event, Fold, Handoff, Wrote
from turngate_model.lifecycle import DeclaredState
from turngate_model.properties import Property, Violation
from turngate_verify.conform.port import Observed, Subject, SubjectFailed
from turngate_verify.conform.programs import RUNS, SESSIONS, Op, Program


class ProgramLimits(NamedTuple):
    """How many prompts, cancels and sessions a program may have."""

    prompts: int = 3
    cancels: int = 2
    sessions: int = 2


class Judge:
    """Has a subject perform operations one by one, and judges what it shows after each."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.features = subject.features
        self.program: Program = ()
        self.steps: tuple[Step, ...] = ()
        self.violations: list[Violation] = []
        """What the first offence breaks. The judge judges nothing after it."""
        self.late: list[tuple[Violation, int]] = []
        """Violations of LAST_WORD, each with the number of its operation. The judge goes on after these."""
        self.exercised: set[Property] = set()
        self.idle_cancels: set[int] = set()
        """The operations that cancelled a session with nothing in flight."""
        self._sessions = [AbstractSession() for _ in SESSIONS]
        self._place_of: dict[str, int] = {}
        self._told_to_enter: set[str] = set()
        self._cancelled: set[int] = set()
        self._after_cancel: set[str] = set()

    def close(self) -> None:
        """Close the subject. What it raises then changes no verdict."""
        with suppress(Exception, SystemExit):
            self.subject.close()

    # What could be done next.

    def enabled(self, limits: ProgramLimits) -> list[Op]:
        """Return the operations that make sense now, in a fixed order."""
        used = [place for place, session in enumerate(self._sessions) if session.states] or [0]
        fresh = [len(used)] if self._place_of and len(used) < limits.sessions else []
        ops: list[Op] = []
        if len(self._place_of) < limits.prompts:
            ops += [Op("accept", RUNS[len(self._place_of)], place) for place in (*used, *fresh)]
        cancels = sum(op.name == "cancel" for op in self.program)
        for place in used:
            session = self._sessions[place]
            if self.features.two_phase:
                waiting = (
                    run for run in session.in_state(DeclaredState.ACCEPTED) if run not in self._told_to_enter
                )
                ops += [Op("enter", run, place) for run in waiting]
            if self.features.cancel and cancels < limits.cancels:
                ops.append(Op("cancel", "", place))
            if self.features.clear and session.in_flight:
                ops.append(Op("clear", "", place))
            if session.turn and session.running:
                if self.features.folds:
                    ops.append(Op("fold", session.lead, place))
                ops += [Op("finish", session.lead, place), Op("fail", session.lead, place)]
        return ops

    # Doing it.

    def take(self, op: Op) -> None:
        """Have the subject do one operation, and judge what it shows."""
        before = set(self.exercised)
        own = self._own(op)
        self.program += (op,)
        self._call(op)
        shown = self._shown()
        events: list[Event] = []
        if own is not None:
            events.append(own)
            self._sessions[op.place].observe(own)
        for event in shown:
            place = self._place_of[event.run]
            events.append(event)
            for violation in self._judge(place, event):
                if violation.property is Property.LAST_WORD:
                    self.late.append((violation, len(self.program)))
                else:
                    self.violations.append(violation)
            if place != op.place and not self.violations:
                moved = f"{op} is about another session: {event.run} should not be moved by it"
                self.violations.append(Violation(Property.ISOLATION, moved))
            if self.violations:
                break
        self.steps += (Step(op.place, op.action, tuple(events)),)
        if all(violation.property is Property.DECLARED_MOVE for violation in self.violations):
            self.violations += self._at_rest()
        if self.violations:
            # An operation that ends in an offence says nothing of the properties it does not break.
            self.exercised = before | {violation.property for violation in self.violations}

    def _own(self, op: Op) -> Event | None:
        """Return the event that an operation itself makes, and note which properties it puts to the test."""
        session = self._sessions[op.place]
        if any(state is DeclaredState.COMPLETE for state in session.states.values()):
            self.exercised.add(Property.TERMINAL_IS_FINAL)
        match op.name:
            case "accept":
                self._place_of[op.run] = op.place
                if op.place in self._cancelled:
                    self._after_cancel.add(op.run)
                return Accept(op.run, self.features.folds)
            case "enter":
                self._told_to_enter.add(op.run)
                return None
            case "cancel":
                self._cancelled.add(op.place)
                if not session.covered_by_cancel():
                    self.idle_cancels.add(len(self.program))
                else:
                    self.exercised.add(Property.FULL_COVERAGE)
                return Cancel()
            case "clear":
                return Clear()
            case "finish" | "fail":
                if session.queue:
                    self.exercised.add(Property.NO_STRAND)
                return Ended(op.run)
            case "fold":
                return None

    def _call(self, op: Op) -> None:
        session = SESSIONS[op.place]
        try:
            match op.name:
                case "accept":
                    self.subject.accept(session, op.run)
                case "enter":
                    self.subject.enter(op.run)
                case "cancel":
                    self.subject.cancel(session)
                case "clear":
                    self.subject.clear(session)
                case "fold":
                    self.subject.fold(op.run)
                case "finish":
                    self.subject.finish(op.run)
                case "fail":
                    self.subject.fail(op.run)
        except SubjectFailed as failed:
            raise self._failed(failed.what, failed.conversation) from failed
        except (Exception, SystemExit) as wrong:  # whatever a subject raises is what is reported
            raise self._failed(f"it raised {wrong!r}", ()) from wrong

    def _shown(self) -> list[Observed]:
        try:
            shown = list(self.subject.observe())
        except (Exception, SystemExit) as wrong:
            raise self._failed(f"it raised {wrong!r} when asked what happened", ()) from wrong
        for event in shown:
            if not isinstance(event, Enter | Handoff | Fold | Complete | Wrote):
                raise self._failed(f"it shows {event!r}, which is no event of the port", ())
            if event.run not in self._place_of:
                raise self._failed(f"it shows {event!r}, about a run that was never accepted", ())
        return shown

    def _failed(self, what: str, conversation: Sequence[str]) -> SubjectFailed:
        told = conversation or getattr(self.subject, "conversation", ())
        told = told or [f"{number}  {op}" for number, op in enumerate(self.program, 1)]
        return SubjectFailed(f"at {self.program[-1]!s}: {what}", told)

    # Judging it.

    def _judge(self, place: int, event: Observed) -> list[Violation]:
        """Pass an event to the abstract session, after those before it that a subject cannot show."""
        session = self._sessions[place]
        self._note(session, event)
        begins = isinstance(event, Handoff) or (
            isinstance(event, Enter) and event.state is DeclaredState.ACTIVE
        )
        if begins and session.lead in session.covered:
            session.observe(Ended(session.lead))
        if isinstance(event, Complete):
            state = session.states[event.run]
            if event.run in session.turn and session.running and event.run not in session.covered:
                early = f"{event.run} completes while the runner of {session.lead} still runs"
                return [Violation(Property.DECLARED_MOVE, early)]
            if state in (DeclaredState.ACTIVE, DeclaredState.CANCEL_ON_ENTRY) and not self.features.messages:
                session.observe(Wrote(event.run, "unwritten"))
            if event.run == session.lead:
                session.observe(Ended(event.run))
        return session.observe(event)

    def _note(self, session: AbstractSession, event: Observed) -> None:
        """Note which properties an event puts to the test."""
        if event.run in self._after_cancel:
            self.exercised.add(Property.NEVER_POISONED)
        match event:
            case Enter(_, state):
                self.exercised.add(Property.DECLARED_MOVE)
                if session.turn and state is not DeclaredState.CANCEL_ON_ENTRY:
                    self.exercised.add(Property.ONE_TURN)
            case Handoff() | Fold():
                self.exercised |= {Property.FIFO, Property.NO_STRAND}
                if isinstance(event, Handoff):
                    self.exercised.add(Property.LAST_WORD)
            case Complete(run, cancelled, _):
                self.exercised.add(Property.EXACTLY_ONE_COMPLETE)
                if self.features.messages and cancelled and session.states[run] is not DeclaredState.ACCEPTED:
                    self.exercised.add(Property.ON_RECORD)
            case Wrote():
                pass

    def _at_rest(self) -> list[Violation]:
        """Return the first thing that a session owes in which no runner is at work."""
        for session in self._sessions:
            if session.turn and session.running:
                continue
            if owed := session.owed():
                return owed[:1]
            for run in session.in_state(DeclaredState.ACCEPTED):
                if run in self._told_to_enter or not self.features.two_phase:
                    lost = f"{run} has entered, and is neither active nor queued nor complete"
                    return [Violation(Property.EXACTLY_ONE_COMPLETE, lost)]
        return []
