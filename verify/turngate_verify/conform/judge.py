"""The judge: has one subject perform a program, and judges what it shows by abstract sessions.

After every operation the subject is at rest. So the judge asks at once what is
owed: a session in which no runner is at work must owe nothing. A burst is sound
if its operations and what is shown can be put in at least one order that breaks
nothing (``orders.py``). If something is broken later, every order that was
possible is tried before anything is said to be wrong.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from turngate_model.checker.counterexample import PlayedStep
from turngate_model.history import Complete, Enter, Event, Fold, Handoff, Wrote
from turngate_model.lifecycle import DeclaredState
from turngate_model.properties import AnyViolation, DurableProperty, DurableViolation, Property, Violation
from turngate_verify.conform.enabling import ProgramLimits, bursts, enabled
from turngate_verify.conform.orders import Item, TakenTogether, explained, latest_offence, sound_orders
from turngate_verify.conform.port import Observed, Refused, Subject, SubjectFailed
from turngate_verify.conform.programs import ABOUT_ALL, TAKING_IN, Op, Program
from turngate_verify.conform.rest import at_work, settled, waited_for
from turngate_verify.conform.sessions import Sessions

__all__ = ["Judge", "ProgramLimits"]

GROWING = 6
"""What a quiet subject holds is residue if it grows this many times in a row."""


class Judge:
    """Has a subject perform operations one by one, and judges what it shows after each."""

    def __init__(self, subject: Subject) -> None:
        self.subject: Any = subject
        self.features = subject.features
        self.program: Program = ()
        self.steps: tuple[PlayedStep, ...] = ()
        self.violations: list[AnyViolation] = []
        """What the first offence breaks. The judge judges nothing after it."""
        self.late: list[tuple[Violation, int]] = []
        """Violations of LAST_WORD, each with the number of its operation. The judge goes on after these."""
        self.exercised: set[Property | DurableProperty] = set()
        self.idle_cancels: set[int] = set()
        """The operations that cancelled a session with nothing in flight."""
        self.sessions = self._fresh_sessions()
        self._history: list[TakenTogether] = []
        self.place_of: dict[str, int] = {}
        """The session of every run that was brought, the refused ones too."""
        self._burst: tuple[Op, ...] = ()
        self._cancelled: set[int] = set()
        self._after_cancel: set[str] = set()
        self._holds = 0
        self._held: list[int] = []
        """What was held each time that it was asked for with nothing in flight."""
        self._refused: set[str] = set()

    def _fresh_sessions(self) -> Sessions:
        sessions = Sessions(self.features)
        sessions.waited = waited_for(self.subject)
        return sessions

    def close(self) -> None:
        """Close the subject. What it raises then changes no verdict."""
        with suppress(Exception, SystemExit):
            self.subject.close()

    def enabled(self, limits: ProgramLimits) -> list[Op]:
        """Return the operations that make sense now, in a fixed order."""
        return enabled(self, limits)

    def bursts(self, limits: ProgramLimits) -> list[Program]:
        """Return the pairs of operations that make sense in the same moment, in a fixed order."""
        return bursts(self, limits)

    # Doing it.

    def take(self, op: Op) -> None:
        """Have the subject do one operation, and judge what it shows; in a burst, after the last."""
        self.program += (op,)
        self._burst += (op,)
        if op.name in TAKING_IN:
            self.place_of[op.run] = op.place
        if op.at_once:
            return
        operations, self._burst = self._burst, ()
        before, late = set(self.exercised), len(self.late)
        self._hear_out()
        self._call(operations)
        shown = settled(self, operations)
        refused = {event.run for event in shown if isinstance(event, Refused)}
        self._refused |= refused
        seen = tuple(event for event in shown if not isinstance(event, Refused))
        known = tuple(getattr(self.subject, "took_effect", ())) if len(operations) > 1 else ()
        taken = TakenTogether(operations, seen, frozenset(refused), at_work(self.subject), known)
        self._history.append(taken)
        self._judge(self._in_order(taken), taken)
        if all(violation.property is Property.DECLARED_MOVE for violation in self.violations):
            self._at_rest(operations)
        if self.violations or len(self.late) > late:
            self._reconsider(late)
        if self.violations:
            # An operation that ends in an offence says nothing of the properties it does not break.
            self.exercised = before | {violation.property for violation in self.violations}

    def _in_order(self, taken: TakenTogether) -> list[Item]:
        """Return an order of operations and events: one that breaks nothing, if there is one."""
        if len(taken.operations) == 1:
            return [*taken.operations, *taken.seen]
        for items, _ in sound_orders(self.sessions, taken, self.place_of):
            return items
        return latest_offence(self.sessions, taken, self.place_of)

    def _reconsider(self, late: int) -> None:
        """Take an offence back if the bursts before it may have taken effect in another order."""
        if not any(len(taken.operations) > 1 for taken in self._history[:-1]):
            return
        sessions = explained(self._fresh_sessions(), self._history, self.place_of)
        if sessions is not None:
            self.sessions, self.violations, self.late = sessions, [], self.late[:late]

    def _hear_out(self) -> None:
        """Take in what a real-time subject has done since it seemed to be at rest."""
        shown = self.shown()
        if shown:
            self.sessions.work(at_work(self.subject))
            seen = tuple(event for event in shown if not isinstance(event, Refused))
            self._history.append(TakenTogether((), seen, frozenset(), at_work(self.subject)))
        for event in shown:
            if self.steps and not isinstance(event, Refused):
                normal = self.sessions.normal(self.place_of[event.run], event)
                if normal is None:
                    continue
                last = self.steps[-1]
                self.steps = (*self.steps[:-1], last._replace(events=(*last.events, normal)))
                self._event(normal, ())

    def _call(self, operations: Sequence[Op]) -> None:
        try:
            if len(operations) > 1:
                self.subject.burst(operations)
            elif (op := operations[0]).name == "residue":
                self._holds = self.subject.residue()
            elif op.run not in self._refused:
                getattr(self.subject, op.name)(*op.arguments.values())
        except SubjectFailed as failed:
            raise self._failed(failed.what, failed.conversation) from failed
        except (Exception, SystemExit) as wrong:  # whatever a subject raises is what is reported
            raise self._failed(f"it raised {wrong!r}", ()) from wrong

    def shown(self) -> list[Observed]:
        """Return what the subject shows, if it makes sense."""
        try:
            shown = list(self.subject.observe())
        except SubjectFailed as failed:
            raise self._failed(failed.what, failed.conversation) from failed
        except (Exception, SystemExit) as wrong:
            raise self._failed(f"it raised {wrong!r} when asked what happened", ()) from wrong
        for event in shown:
            if not isinstance(event, Enter | Handoff | Fold | Complete | Wrote | Refused):
                raise self._failed(f"it shows {event!r}, which is no event of the port", ())
            if event.run not in self.place_of:
                raise self._failed(f"it shows {event!r}, about a run that was never accepted", ())
        return shown

    def _failed(self, what: str, conversation: Sequence[str]) -> SubjectFailed:
        told = conversation or getattr(self.subject, "conversation", ())
        told = told or [f"{number}  {op}" for number, op in enumerate(self.program, 1)]
        return SubjectFailed(f"at {self.program[-1]!s}: {what}", told)

    # Judging it.

    def _judge(self, items: Sequence[Item], taken: TakenTogether) -> None:
        """Judge what happened, in this order, and tell it as steps. What follows an offence is told only."""
        operations, refused, waiting = taken.operations, taken.refused, taken.waiting
        self.sessions.work(taken.at_work)
        told: dict[Op, list[Event]] = {op: [] for op in operations}
        at = operations[0]
        for item in items:
            if isinstance(item, Op):
                at = item
                self._note_operation(item, alone=len(operations) == 1)
                own, broken = self.sessions.take(item, refused)
                told[at] += own
                self._offended(broken)
            else:
                place = self.place_of[item.run]  # type: ignore[union-attr]  # what a subject shows is about a run
                normal = self.sessions.normal(place, item)
                if item in waiting and self.sessions.hang(place, item.run):  # type: ignore[union-attr]
                    continue
                if normal is not None:
                    told[at].append(normal)
                    self._event(normal, operations)
        for op in operations:
            action = op.action
            if op.run in refused:
                action = action._replace(how=f"{action.how}: refused")
            if op.name == "residue":
                action = action._replace(run=f"({self._holds} held)")
            self.steps += (PlayedStep(op.place, action, tuple(told[op]), op.at_once),)

    def _event(self, event: Any, operations: Sequence[Op]) -> None:
        place = self.place_of[event.run]
        session = self.sessions.at(place)
        if event.run in session.states and not self.violations:
            self._note(place, event)
        self._offended(self.sessions.judge(place, event))
        places = {op.place for op in operations}
        if operations and place not in places and not any(op.name in ABOUT_ALL for op in operations):
            moved = f"{operations[-1]} is about another session: {event.run} should not be moved by it"
            self._offended([Violation(Property.ISOLATION, moved)])

    def _offended(self, broken: Sequence[Violation]) -> None:
        """Note what an event breaks, if nothing was broken before it."""
        if not self.violations:
            self.late += [(each, len(self.program)) for each in broken if each.property is Property.LAST_WORD]
            self.violations += [each for each in broken if each.property is not Property.LAST_WORD]

    def _note_operation(self, op: Op, *, alone: bool) -> None:
        """Note which properties an operation puts to the test."""
        session = self.sessions.at(op.place)
        if any(state is DeclaredState.COMPLETE for state in session.states.values()):
            self.exercised.add(Property.TERMINAL_IS_FINAL)
        if op.name in TAKING_IN and op.place in self._cancelled:
            self._after_cancel.add(op.run)
        if op.name in ("cancel", "interrupt"):
            self._cancelled.add(op.place)
        if op.name == "cancel" and not session.covered_by_cancel():
            if alone:
                self.idle_cancels.add(len(self.program) - 1)
        elif op.name in ("cancel", "interrupt", "cancel_run") and session.in_flight:
            self.exercised.add(Property.FULL_COVERAGE)
        if op.name in ("finish", "fail") and session.queue:
            self.exercised.add(Property.NO_STRAND)
        if op.name == "crash" and any(each.in_flight for each in self.sessions.each):
            self.exercised.add(DurableProperty.DURABLE)

    def _note(self, place: int, event: Event) -> None:
        """Note which properties an event puts to the test."""
        session = self.sessions.at(place)
        match event:
            case Enter(run, state):
                self.exercised.add(Property.DECLARED_MOVE)
                if session.turn and state is not DeclaredState.CANCEL_ON_ENTRY:
                    self.exercised.add(Property.ONE_TURN)
            case Handoff(run) | Fold(run, _):
                self.exercised |= {Property.FIFO, Property.NO_STRAND}
                if isinstance(event, Handoff):
                    self.exercised.add(Property.LAST_WORD)
            case Complete(run, cancelled, _):
                self.exercised.add(Property.EXACTLY_ONE_COMPLETE)
                if self.features.messages and cancelled and session.states[run] is not DeclaredState.ACCEPTED:
                    self.exercised.add(Property.ON_RECORD)
            case Wrote(run, _):
                pass
            case _:
                return
        if run in self._after_cancel:
            self.exercised.add(Property.NEVER_POISONED)

    def _at_rest(self, operations: Sequence[Op]) -> None:
        """Judge what is owed now that nothing more will happen, and what is held if all is quiet."""
        owed: list[AnyViolation] = list(self.sessions.at_rest())
        if operations[-1].name == "crash":
            owed = [
                DurableViolation(DurableProperty.DURABLE, f"after the crash, {each.what}") for each in owed
            ]
        self.violations += owed
        if operations[-1].name != "residue" or any(session.in_flight for session in self.sessions.each):
            return
        self._held.append(self._holds)
        if len(self._held) >= GROWING:
            self.exercised.add(Property.NO_RESIDUE)
            held = self._held[-GROWING:]
            if all(more > less for less, more in itertools.pairwise(held)):
                counts = ", ".join(map(str, held))
                grows = f"with nothing in flight it holds {counts} things: that should not grow"
                self.violations.append(Violation(Property.NO_RESIDUE, grows))
