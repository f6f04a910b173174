"""The judge: has one subject perform a program, and judges what it shows by abstract sessions.

After every operation the subject is at rest. So the judge asks at once what is
owed: a session in which no runner is at work must owe nothing. If operations
were called before the subject was at rest, the judge asks whether any order
explains the window (``windows.py``), and follows every state in which it may
have ended.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any

from turngate_model.checker.counterexample import PlayedStep
from turngate_model.history import Complete, Ended, Enter, Event, Fold, Handoff, Wrote
from turngate_model.lifecycle import WAITING, DeclaredState
from turngate_model.properties import AnyViolation, DurableProperty, DurableViolation, Property, Violation
from turngate_verify.conform.enabling import ProgramLimits, bursts, enabled
from turngate_verify.conform.port import (
    Given,
    Observed,
    Refused,
    Subject,
    SubjectFailed,
    SubjectHangs,
    is_refused,
)
from turngate_verify.conform.programs import ABOUT_ALL, LINE, REST, TAKING_IN, Op, Program
from turngate_verify.conform.rest import at_work, settled, told_of, waited_for
from turngate_verify.conform.sessions import Sessions
from turngate_verify.conform.stepping import Waiting, What
from turngate_verify.conform.windows import Judged, Window, forgiving, judged, unstepped
from turngate_verify.words import counted

__all__ = ["Judge", "ProgramLimits"]

_LATE = "a RunComplete comes after the next turn has started: it should come first"
BY_FOLDS = (Property.DECLARED_MOVE, Property.LAST_WORD)
"""What a follow-up seems to break if it has joined a turn unseen."""
GROWING = 6
"""A quiet subject leaves residue if what it holds grows this many times in a row."""


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
        self.states = [Sessions(self.features)]
        """The sessions, in every state that is possible."""
        self.states[0].waited = waited_for(subject)
        self.stepped = hasattr(subject, "begin_window")
        """Whether operations can be called between two callbacks of the subject."""
        self.hears_late = False
        """Whether a RunComplete was shown after the next turn had started, and may have been heard late."""
        self.hangs_in_close: SubjectFailed | None = None
        """What is wrong if closing did not return, although nothing was in flight."""
        self.undecided = ""
        """Why what happened could not be judged; empty if it could."""
        self.doubt = ""
        """What explains an offence that was found, so that nothing is wrong; empty if nothing does."""
        self.place_of: dict[str, int] = {}
        """The session of every run that was accepted or refused."""
        self._window: tuple[Op, ...] = ()
        self._judged: tuple[Window, Judged] | None = None
        """The window that was judged last. Both waiting for rest and the judgement use it."""
        self._heard_of: set[str] = set()
        """The runs about which something was shown."""
        self._cancelled: set[int] = set()
        self._after_cancel: set[str] = set()
        self._holds = 0
        self._held: list[int] = []
        """How many things were held, each time that the kit asked with nothing in flight."""
        self._refused: set[str] = set()

    @property
    def sessions(self) -> Sessions:
        """The sessions, in the first of their possible states."""
        return self.states[0]

    @property
    def over(self) -> bool:
        """Whether nothing more is judged: something is broken, or could not be decided."""
        return bool(self.violations or self.undecided)

    def is_refused(self, run: str) -> bool:
        """Tell whether a prompt was not taken in."""
        return run in self._refused

    def close(self) -> None:
        """Close the subject. What it raises changes no verdict, unless it hangs with nothing in flight."""
        quiet = not any(session.in_flight for session in self.sessions.each)
        with suppress(Exception, SystemExit):
            try:
                self.subject.close()
            except SubjectHangs as hangs:
                if quiet:
                    self.hangs_in_close = self._failed_at("close", hangs.what, ())

    def enabled(self, limits: ProgramLimits) -> list[Op]:
        """Return the operations that make sense now, in a fixed order."""
        return enabled(self, limits)

    def bursts(self, limits: ProgramLimits) -> list[Program]:
        """Return the pairs of operations that make sense in the same moment, in a fixed order."""
        return bursts(self, limits)

    # Doing it.

    def take(self, op: Op) -> None:
        """Have the subject do one operation, and judge what it shows once it is at rest."""
        if op.name == "edit":
            op = op._replace(other=str(1 + sum((op.name, op.run) == each[:2] for each in self.program)))
        self.program += (op,)
        self._window += (op,)
        if op.name in TAKING_IN:
            self.place_of[op.run] = op.place
        if op.name == "into" and op.other in self._refused:
            self._refused.add(op.run)  # there is no such turn, so it is not even asked for
        if op.gap != REST:
            return
        operations, self._window, self._judged = self._window, (), None
        before = set(self.exercised)
        self._hear_out()
        if self.stepped:
            self.subject.begin_window(operations[0] if len(operations) == 1 else None)
        self._call(operations)
        shown = settled(self, operations)
        window = self.window(operations, shown)
        self._refused |= {each.run for each in window.refused if not each.operation}
        self._heard_of |= told_of(shown)
        if len(operations) == 1 and len(self.states) == 1 and not self.features.unordered:
            self._judge_in_order(operations[0], window, shown)
        else:
            self._judge_window(window)
        if self.violations and hasattr(self.subject, "doubt"):
            self.doubt = self.subject.doubt(to_the_end=True)
        if self.violations:
            # An operation that ends in an offence says nothing about the properties it does not break.
            self.exercised = before | {violation.property for violation in self.violations}

    def window(self, operations: Sequence[Op], shown: Sequence[Observed]) -> Window:
        """Return what is known about the operations since the last rest."""
        refused = frozenset(event for event in shown if isinstance(event, Refused))
        refused |= {Refused(run) for run in self._refused}
        seen = [event for event in shown if not isinstance(event, Refused)]
        if self.stepped and len(operations) > 1:
            noted = [row for row in self.subject.window() if not isinstance(row.what, Refused)]
        else:
            noted = unstepped(operations, [self._last_word(event, seen) for event in seen])
        is_ordered = not self.features.unordered
        return Window(tuple(operations), tuple(noted), refused, at_work(self.subject), is_ordered)

    def _last_word(self, event: Observed, seen: Sequence[Observed]) -> Observed | Waiting:
        """Return that a run waits, if all that is shown about it is that it is queued."""
        queued = isinstance(event, Enter) and event.state is DeclaredState.QUEUED
        last = [each for each in seen if each.run == event.run][-1]
        return Waiting(event.run) if queued and last is event else event

    def not_heard_of(self, operations: Sequence[Op]) -> list[str]:
        """Return the runs that were asked to enter and about which nothing was shown."""
        asked = [
            op.run
            for op in (*self.program, *operations)
            if op.name == "enter" or (op.name in TAKING_IN and not self.features.two_phase)
        ]
        return [run for run in dict.fromkeys(asked) if run not in self._heard_of | self._refused]

    def judged(self, window: Window) -> Judged:
        """Return the verdict on a window, and change nothing."""
        if self._judged is None or self._judged[0] != window:
            self._judged = (window, judged(self.states, window, self.place_of))
        return self._judged[1]

    def _judge_window(self, window: Window) -> None:
        """Judge operations that may each have taken effect at any moment of their interval."""
        found = self.judged(window)
        self._note_window(window)
        self._tell(window, found.order)
        if found.verdict == "holds":
            self.states = found.states
            self._offended_elsewhere(window)
        elif found.verdict == "unknown":
            self.undecided = "it has too many orders to decide whether one explains it"
        elif found.possible == (Property.LAST_WORD,):
            assert found.broken is not None
            what = found.broken.what if found.broken.property is Property.LAST_WORD else _LATE
            ends = [row.what.run for row in window.noted if isinstance(row.what, Complete)]
            broken = self._unless_heard_late([Violation(Property.LAST_WORD, what)], ends)
            self.late += [(each, len(self.program)) for each in broken]
            self.states = forgiving(self.states, window, self.place_of, Property.LAST_WORD)
        else:
            self.violations.append(self._named(found, window))

    def _named(self, found: Judged, window: Window) -> AnyViolation:
        """Return the offence, with every property that may have been broken instead."""
        broken = found.broken
        assert broken is not None
        if self.features.self_folds and (unknown := [each for each in found.possible if each in BY_FOLDS]):
            return Violation(unknown[0], broken.what)
        if (moved := self._moved_from_elsewhere(found, window)) is not None:
            return moved
        others = [str(each) for each in found.possible if each is not broken.property]
        what = f"{broken.what} (or {', '.join(others)} is broken)" if others else broken.what
        if window.operations and window.operations[-1].name == "crash":
            return DurableViolation(DurableProperty.DURABLE, f"after the crash, {what}")
        return Violation(broken.property, what)

    def _moved_from_elsewhere(self, found: Judged, window: Window) -> Violation | None:
        """Return that a run was moved by an operation on another session, if that can be told apart."""
        places = {op.place for op in window.operations}
        culprit = found.order[-1] if found.order else None
        if not self.features.unordered or not places or culprit is None or isinstance(culprit, Op):
            return None
        if self.place_of[culprit.run] in places or any(op.name in ABOUT_ALL for op in window.operations):
            return None
        moved = f"{window.operations[-1]} is about another session: {culprit.run} should not be moved by it"
        return Violation(Property.ISOLATION, moved)

    def _hear_out(self) -> None:
        """Take in what a real-time subject has done since it seemed to be at rest."""
        shown = self.shown()
        seen = [event for event in shown if not isinstance(event, Refused)]
        if not seen:
            return
        self._heard_of |= told_of(seen)
        self._judged = None
        if len(self.states) > 1 or self.features.unordered:
            self._judge_window(self.window((), seen))
            return
        self.sessions.work(at_work(self.subject))
        for event in seen:
            if self.steps:
                normal = self.sessions.normal(self.place_of[event.run], event)
                if normal is None:
                    continue
                if not isinstance(normal, Given):
                    self._add_to_last_step(normal)
                self._event(normal, ())

    def _add_to_last_step(self, *events: Event) -> None:
        last = self.steps[-1]
        self.steps = (*self.steps[:-1], last._replace(events=(*last.events, *events)))

    def _call(self, operations: Sequence[Op]) -> None:
        try:
            if len(operations) > 1:
                self.subject.burst(operations)
            elif (op := operations[0]).name == "residue":
                self._holds = self.subject.residue()
            elif op.run not in self._refused and (op.other not in self._refused or op.name == "edit"):
                getattr(self.subject, op.name)(*op.arguments.values())
        except SubjectFailed as failed:
            raise self._failed(failed.what, failed.conversation) from failed
        except (Exception, SystemExit) as wrong:  # report anything that a subject raises
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
            if not isinstance(event, Enter | Handoff | Fold | Complete | Wrote | Refused | Given):
                raise self._failed(f"it shows {event!r}, which is no event of the port", ())
            if event.run not in self.place_of:
                raise self._failed(f"it shows {event!r}, about a run that was never accepted", ())
        return shown

    def _failed(self, what: str, conversation: Sequence[str]) -> SubjectFailed:
        return self._failed_at(str(self.program[-1]), what, conversation)

    def _failed_at(self, at: str, what: str, conversation: Sequence[str]) -> SubjectFailed:
        told = conversation or getattr(self.subject, "conversation", ())
        told = told or [f"{number}  {op}" for number, op in enumerate(self.program, 1)]
        return SubjectFailed(f"at {at}: {what}", told)

    # Judging it.

    def _judge_in_order(self, op: Op, window: Window, shown: Sequence[Observed]) -> None:
        """Judge one operation that was waited for: what it shows, in order, and what is owed afterwards."""
        self.sessions.work(window.at_work)
        self._note_operation(op)
        events, broken = self.sessions.take(op, window.refused)
        self._offended(broken)
        seen = [event for event in shown if not isinstance(event, Refused)]
        for event in seen:
            place = self.place_of[event.run]
            normal = self.sessions.normal(place, event)
            if isinstance(self._last_word(event, seen), Waiting) and self.sessions.hang(place, event.run):
                continue
            if normal is not None:
                events += [] if isinstance(normal, Given) else [normal]
                self._event(normal, (op,))
        self._add_step(op, events, window.refused)
        if all(violation.property is Property.DECLARED_MOVE for violation in self.violations):
            self._at_rest(op)

    def _tell(self, window: Window, order: Sequence[What]) -> None:
        """Return a window as steps: each operation, with what was shown between it and the next."""
        told: dict[Op, list[Event]] = {op: [] for op in window.operations}
        if not told:
            self._add_to_last_step(
                *(each for each in order if not isinstance(each, Op | Waiting | Refused | Given))
            )
            return
        at = window.operations[0]
        left = [row.what for row in window.noted if row.what not in order]
        for what in (*order, *left):
            if isinstance(what, Op):
                at = what
            elif isinstance(what, Ended):
                at = next((op for op in told if op.name in ("finish", "fail") and op.run == what.run), at)
            elif isinstance(what, Waiting):
                told[at].append(Enter(what.run, DeclaredState.QUEUED))
            elif not isinstance(what, Refused | Given):
                told[at].append(what)
        for op in window.operations:
            self._add_step(op, told[op], window.refused)

    def _add_step(self, op: Op, events: Sequence[Event], refused: Collection[Refused]) -> None:
        action = op.action
        refuses = is_refused(op, refused)
        if refuses and op.name in TAKING_IN:
            action = action._replace(how=f"{action.how}: refused")
        if op.name == "residue":
            action = action._replace(run=f"({self._holds} held)")
        step = PlayedStep(op.place, action, tuple(events), op.gap == 0)
        if refuses and op.name in LINE:
            step = step._replace(words=f"{step}: refused")
        if op.gap > 0:
            unit = "callback" if self.stepped else "ms"
            later = counted(op.gap, unit) if self.stepped else f"{op.gap} ms"
            step = step._replace(words=f"{step}, and {later} later")
        self.steps += (step,)

    def _event(self, event: Any, operations: Sequence[Op]) -> None:
        place = self.place_of[event.run]
        session = self.sessions.at(place)
        if event.run in session.states and not self.violations:
            self._note(place, event)
        turn = tuple(session.turn)
        self._offended(self._unless_heard_late(self.sessions.judge(place, event), turn))
        places = {op.place for op in operations}
        if operations and place not in places and not any(op.name in ABOUT_ALL for op in operations):
            moved = f"{operations[-1]} is about another session: {event.run} should not be moved by it"
            self._offended([Violation(Property.ISOLATION, moved)])

    def _unless_heard_late(self, broken: Sequence[Violation], turn: Sequence[str]) -> Sequence[Violation]:
        """Leave out that a turn starts before the RunComplete of these runs, if that was heard late.

        A call that waits for a run goes on some callbacks after its RunComplete, and the next turn may have
        started by then.
        """
        if not turn or not set(turn) <= set(getattr(self.subject, "heard", ())):
            return broken
        self.hears_late |= any(each.property is Property.LAST_WORD for each in broken)
        return [each for each in broken if each.property is not Property.LAST_WORD]

    def _offended(self, broken: Sequence[Violation]) -> None:
        """Note what an event breaks, if nothing was broken before it."""
        if not self.violations:
            self.late += [(each, len(self.program)) for each in broken if each.property is Property.LAST_WORD]
            self.violations += [each for each in broken if each.property is not Property.LAST_WORD]

    def _offended_elsewhere(self, window: Window) -> None:
        """Note that something was shown about a session that no operation of the window is about."""
        places = {op.place for op in window.operations}
        if not places or any(op.name in ABOUT_ALL for op in window.operations):
            return
        for row in window.noted:
            if not isinstance(row.what, Op) and self.place_of[row.what.run] not in places:
                last = window.operations[-1]
                moved = f"{last} is about another session: {row.what.run} should not be moved by it"
                self._offended([Violation(Property.ISOLATION, moved)])
                return

    def _note_window(self, window: Window) -> None:
        """Note which properties a window with several operations puts to the test."""
        for op in window.operations:
            self._note_operation(op, alone=False)
        if len({op.place for op in window.operations}) > 1:
            self.exercised.add(Property.ISOLATION)
        for row in window.noted:
            what = row.what
            if isinstance(what, Op | Ended | Waiting | Refused):
                continue
            place = self.place_of[what.run]
            self._note(place, self.sessions.normal(place, what) or what)

    def _note_operation(self, op: Op, *, alone: bool = True) -> None:
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
        if op.name == "edit" and session.states.get(op.run) not in WAITING:
            self.exercised.add(Property.AS_EDITED)
        if op.name in ("finish", "fail", "fold", "accept", "enter", "resume_run") and session.held:
            self.exercised.add(Property.HELD)
        if op.name == "crash" and any(each.in_flight for each in self.sessions.each):
            self.exercised.add(DurableProperty.DURABLE)

    def _note(self, place: int, event: Event | Given) -> None:
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
                known = session.states.get(run) not in (None, DeclaredState.ACCEPTED)
                if self.features.messages and cancelled and known:
                    self.exercised.add(Property.ON_RECORD)
            case Wrote(run, _):
                pass
            case Given(run, prompt):
                if prompt != run:
                    self.exercised.add(Property.AS_EDITED)
            case _:
                return
        if run in self._after_cancel:
            self.exercised.add(Property.NEVER_POISONED)

    def _at_rest(self, op: Op) -> None:
        """Judge what is owed now that nothing more will happen, and, if all is quiet, what is held."""
        owed: list[AnyViolation] = list(self.sessions.at_rest())
        if op.name == "crash":
            owed = [
                DurableViolation(DurableProperty.DURABLE, f"after the crash, {each.what}") for each in owed
            ]
        self.violations += owed
        if op.name != "residue" or any(session.in_flight for session in self.sessions.each):
            return
        self._held.append(self._holds)
        if len(self._held) >= GROWING:
            self.exercised.add(Property.NO_RESIDUE)
            held = self._held[-GROWING:]
            if all(more > less for less, more in itertools.pairwise(held)):
                counts = ", ".join(map(str, held))
                grows = f"with nothing in flight it holds {counts} things: that should not grow"
                self.violations.append(Violation(Property.NO_RESIDUE, grows))
