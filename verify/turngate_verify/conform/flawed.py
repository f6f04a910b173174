"""A subject with something wrong at the port: the kit sees what a flawed dispatcher would show.

``turngate conform --doubt`` puts each of these in front of a right subject, and looks whether the kit
notices. A flaw changes what is asked of the subject (``act``), what it shows (``shows``), or both. Some keep
a prompt back for a moment, like a dispatcher that takes it in too late.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any, ClassVar

from turngate_model.history import Complete, Enter, Fold, Handoff, Wrote
from turngate_model.lifecycle import DeclaredState
from turngate_model.properties import AnyProperty, DurableProperty, Property
from turngate_verify.conform.lines import Command
from turngate_verify.conform.port import Features, Given, Observed, SubjectFactory
from turngate_verify.conform.programs import OPERATIONS, TAKING_IN, Op
from turngate_verify.conform.stepping import Noted

_P = Property
_STARTS = (Handoff, Fold)


class Flawed:
    """A subject behind a port that does one thing wrong. This one does nothing wrong."""

    sentence: ClassVar[str] = ""
    breaks: ClassVar[tuple[AnyProperty, ...]] = ()
    """What it breaks: any of these."""
    needs: ClassVar[tuple[str, ...]] = ()
    """The features without which the port cannot show it."""

    def __init__(self, subject: Any, took_effect: Callable[[], None]) -> None:
        self.subject = subject
        self.took_effect = took_effect
        """Called whenever the flaw changes something."""
        self.features: Features = subject.features
        self.session_of: dict[str, str] = {}
        self.entered: dict[str, DeclaredState] = {}
        """The last thing shown about each run that has entered and is not complete."""
        self.started: set[str] = set()
        """The runs that have become active, the complete ones too."""
        self.hidden: set[str] = set()
        """The runs about which nothing more is shown."""
        self.kept_back: list[tuple[str, str]] = []
        """The session and the run of every accept that is kept back."""
        self._shown_as_queued: set[str] = set()
        self._own: list[Observed] = []

    def __getattr__(self, name: str) -> Any:
        """Return an operation with the flaw in it; other attributes are the subject's own."""
        if name in OPERATIONS:
            getattr(self.subject, name)  # a subject without it has none here either
            return partial(self.do, name)
        return getattr(self.subject, name)

    @property
    def patient(self) -> bool:
        """Whether the subject waits for all its timers."""
        return bool(getattr(self.subject, "patient", False))

    @patient.setter
    def patient(self, patient: bool) -> None:
        self.subject.patient = patient

    # What the kit does.

    def do(self, name: str, *arguments: Any) -> Any:
        """Do one operation, in the wrong way if the flaw is about it."""
        if name in TAKING_IN:
            self.session_of[arguments[1]] = arguments[0]
        return self.act(name, *arguments)

    def act(self, name: str, *arguments: Any) -> Any:
        """Do one operation. A flaw overrides this."""
        self.let_through()
        return self.forward(name, *arguments)

    def forward(self, name: str, *arguments: Any) -> Any:
        """Have the subject do an operation."""
        return getattr(self.subject, name)(*arguments)

    def burst(self, operations: Sequence[Op]) -> None:
        """Do several operations without waiting in between."""
        self.let_through()
        for op in operations:
            if op.name in TAKING_IN:
                self.session_of[op.run] = str(op.arguments["session"])
        self.subject.burst(operations)

    def is_busy(self, session: str) -> bool:
        """Return whether the subject has shown that a turn of a session is active."""
        return any(
            state is DeclaredState.ACTIVE and self.session_of.get(run) == session
            for run, state in self.entered.items()
        )

    def in_flight(self, session: str) -> list[str]:
        """Return the runs of a session that are not complete."""
        return [run for run in self.entered if self.session_of.get(run) == session]

    def hide(self, state: DeclaredState) -> None:
        """Show nothing more of the runs that are in a state."""
        if runs := {run for run, its in self.entered.items() if its is state}:
            self.took_effect()
            self.hidden |= runs

    def keep_back(self, session: str, run: str) -> None:
        """Keep the accept of a run back. If it should enter as well, it is shown as queued."""
        self.took_effect()
        self.kept_back.append((session, run))
        if not self.features.two_phase:
            self._shown_as_queued.add(run)
            self._own.append(Enter(run, DeclaredState.QUEUED))

    def let_through(self) -> None:
        """Have the subject take in what was kept back."""
        kept, self.kept_back = self.kept_back, []
        for session, run in kept:
            self.forward("accept", session, run)

    # What the subject shows.

    def observe(self) -> Sequence[Observed]:
        """Return what happened since the last call, as changed by the flaw."""
        own, self._own = self._own, []
        raw = [each for event in self.subject.observe() if (each := self._as_queued(event)) is not None]
        for event in raw:
            self.note(event)
        return self.reordered([*own, *(shown for event in raw for shown in self._shown(event))])

    def window(self) -> Sequence[Noted]:
        """Return what has happened since the last rest, as changed by the flaw."""
        rows = []
        for row in self.subject.window():
            if isinstance(row.what, Enter | Handoff | Fold | Complete | Wrote | Given):
                rows += [row._replace(what=shown) for shown in self._shown(row.what)]
            else:
                rows.append(row)
        return rows

    def working(self) -> Collection[str] | None:
        """Return the runs whose runner is shown to be at work."""
        working = getattr(self.subject, "working", None)
        runs = None if working is None else working()
        return None if runs is None else [run for run in runs if run not in self.hidden]

    def _shown(self, event: Observed) -> Iterable[Observed]:
        return () if event.run in self.hidden else self.shows(event)

    def shows(self, event: Observed) -> Iterable[Observed]:
        """Return what is shown for an event: the event alone, unless a flaw overrides this."""
        return (event,)

    def reordered(self, events: list[Observed]) -> Sequence[Observed]:
        """Return what is shown after an operation that was waited for, in the order of the flaw."""
        return events

    def _as_queued(self, event: Observed) -> Observed | None:
        """Return what is left to show of a run that was kept back and has been shown as queued."""
        if not isinstance(event, Enter) or event.run not in self._shown_as_queued:
            return event
        self._shown_as_queued.discard(event.run)
        self.entered[event.run] = DeclaredState.QUEUED
        return Handoff(event.run) if event.state is DeclaredState.ACTIVE else None

    def note(self, event: Observed) -> None:
        """Take in what the subject has shown."""
        match event:
            case Enter(run, state):
                self.entered[run] = state
            case Handoff(run) | Fold(run, _):
                self.entered[run] = DeclaredState.ACTIVE
            case Complete(run):
                self.entered.pop(run, None)
        if isinstance(event, _STARTS) or (isinstance(event, Enter) and event.state is DeclaredState.ACTIVE):
            self.started.add(event.run)


class _Hides(Flawed):
    """Does not show some RunCompletes."""

    def shows(self, event: Observed) -> Iterable[Observed]:
        if isinstance(event, Complete) and self.hides(event):
            self.took_effect()
            return ()
        return (event,)

    def hides(self, event: Complete) -> bool:
        raise NotImplementedError


class LostFailure(_Hides):
    """A turn that fails."""

    sentence = "a turn that fails gets no RunComplete"
    breaks: ClassVar[tuple[AnyProperty, ...]] = (_P.EXACTLY_ONE_COMPLETE, _P.NO_STRAND, _P.LAST_WORD)

    def hides(self, event: Complete) -> bool:
        """Hide a failure."""
        return event.error is not None and event.run in self.started


class SilentDrop(_Hides):
    """A run that a cancel drops from the queue."""

    sentence = "a run that a cancel drops from the queue gets no RunComplete"
    breaks: ClassVar[tuple[AnyProperty, ...]] = (_P.EXACTLY_ONE_COMPLETE,)
    needs: ClassVar[tuple[str, ...]] = ("cancel",)

    def __init__(self, subject: Any, took_effect: Callable[[], None]) -> None:
        super().__init__(subject, took_effect)
        self.on_entry: set[str] = set()

    def hides(self, event: Complete) -> bool:
        """Hide runs that were cancelled and never started."""
        return event.cancelled and event.run not in self.started | self.on_entry

    def note(self, event: Observed) -> None:
        """Note how a run began."""
        super().note(event)
        if isinstance(event, Enter) and event.state is DeclaredState.CANCEL_ON_ENTRY:
            self.on_entry.add(event.run)


class SilentEntry(SilentDrop):
    """A run that is cancelled on entry."""

    sentence = "a run that is cancelled on entry gets no RunComplete"
    needs: ClassVar[tuple[str, ...]] = ("two_phase", "cancel")

    def hides(self, event: Complete) -> bool:
        """Hide runs that were cancelled on entry."""
        return event.run in self.on_entry


class SilentFold(_Hides):
    """A run that was folded."""

    sentence = "a folded run gets no RunComplete"
    breaks: ClassVar[tuple[AnyProperty, ...]] = (_P.EXACTLY_ONE_COMPLETE,)
    needs: ClassVar[tuple[str, ...]] = ("folds",)

    def __init__(self, subject: Any, took_effect: Callable[[], None]) -> None:
        super().__init__(subject, took_effect)
        self.folded: set[str] = set()

    def hides(self, event: Complete) -> bool:
        """Hide runs that were folded."""
        return event.run in self.folded

    def note(self, event: Observed) -> None:
        """Note how a run began."""
        super().note(event)
        if isinstance(event, Fold):
            self.folded.add(event.run)


class CompletesTwice(Flawed):
    """A run that is cancelled."""

    sentence = "a cancelled run gets two RunCompletes"
    breaks: ClassVar[tuple[AnyProperty, ...]] = (_P.EXACTLY_ONE_COMPLETE,)
    needs: ClassVar[tuple[str, ...]] = ("cancel",)

    def shows(self, event: Observed) -> Iterable[Observed]:
        """Show it twice."""
        if isinstance(event, Complete) and event.cancelled:
            self.took_effect()
            return (event, event)
        return (event,)


class LateComplete(Flawed):
    """A run whose successor starts first."""

    sentence = "the RunComplete of a turn comes after the next turn has started"
    breaks: ClassVar[tuple[AnyProperty, ...]] = (_P.LAST_WORD,)

    def reordered(self, events: list[Observed]) -> Sequence[Observed]:
        """Show the RunComplete after the next handoff."""
        for nth, event in enumerate(events):
            if isinstance(event, Complete) and event.run in self.started:
                handoffs = [at for at in range(nth, len(events)) if isinstance(events[at], Handoff)]
                if handoffs:
                    self.took_effect()
                    last = handoffs[0]
                    return [*events[:nth], *events[nth + 1 : last + 1], event, *events[last + 1 :]]
        return events


class SaysFinished(Flawed):
    """A turn that is cancelled."""

    sentence = "the RunComplete of a cancelled turn says that it finished"
    breaks: ClassVar[tuple[AnyProperty, ...]] = (_P.FULL_COVERAGE,)
    needs: ClassVar[tuple[str, ...]] = ("cancel",)

    def shows(self, event: Observed) -> Iterable[Observed]:
        """Show it as finished."""
        if isinstance(event, Complete) and event.cancelled and event.run in self.started:
            self.took_effect()
            return (event._replace(cancelled=False),)
        return (event,)


class DeafCancel(Flawed):
    """A cancel that is ignored."""

    sentence = "a cancel does nothing"
    breaks: ClassVar[tuple[AnyProperty, ...]] = (_P.FULL_COVERAGE, _P.EXACTLY_ONE_COMPLETE)
    needs: ClassVar[tuple[str, ...]] = ("cancel",)

    def act(self, name: str, *arguments: Any) -> Any:
        """Leave the cancel out."""
        if name != "cancel":
            return super().act(name, *arguments)
        if self.in_flight(arguments[0]):
            self.took_effect()
        return None


class CancelMissesQueue(Flawed):
    """A cancel that reaches the active turn alone."""

    sentence = "a cancel misses a prompt that came while a turn was active"
    breaks: ClassVar[tuple[AnyProperty, ...]] = (_P.FULL_COVERAGE, _P.EXACTLY_ONE_COMPLETE)
    needs: ClassVar[tuple[str, ...]] = ("cancel",)

    def act(self, name: str, *arguments: Any) -> Any:
        """Take a prompt in only with the next operation, and after it if that is a cancel."""
        if name == "accept" and self.is_busy(arguments[0]) and not self.kept_back:
            return self.keep_back(*arguments)
        if name == "cancel":
            done = self.forward(name, *arguments)
            self.let_through()
            return done
        return super().act(name, *arguments)


class Overtakes(Flawed):
    """A queue whose last run goes first."""

    sentence = "of two prompts that come while a turn is active, the later one runs first"
    breaks: ClassVar[tuple[AnyProperty, ...]] = (_P.FIFO,)

    def act(self, name: str, *arguments: Any) -> Any:
        """Take a prompt in only after the next one."""
        if name == "accept" and self.is_busy(arguments[0]):
            if not self.kept_back:
                return self.keep_back(*arguments)
            done = self.forward(name, *arguments)
            self.let_through()
            return done
        return super().act(name, *arguments)


class Strands(Flawed):
    """A queue that is abandoned."""

    sentence = "after a turn that fails, what waits behind it never runs"
    breaks: ClassVar[tuple[AnyProperty, ...]] = (_P.NO_STRAND, _P.EXACTLY_ONE_COMPLETE)
    loses_at: ClassVar[str] = "fail"
    loses: ClassVar[DeclaredState] = DeclaredState.QUEUED

    def act(self, name: str, *arguments: Any) -> Any:
        """Show nothing more of some runs once this operation comes."""
        if name == self.loses_at:
            self.hide(self.loses)
        return super().act(name, *arguments)


class LosesInTime(Strands):
    """A queue that a timer empties."""

    sentence = "what waits for a long time is forgotten"
    needs: ClassVar[tuple[str, ...]] = ("wait",)
    loses_at = "wait"


class LosesInCrash(Strands):
    """A turn that is not taken over."""

    sentence = "the turn of a process that was killed gets no RunComplete and does not run again"
    breaks: ClassVar[tuple[AnyProperty, ...]] = (DurableProperty.DURABLE,)
    needs: ClassVar[tuple[str, ...]] = ("crash",)
    loses_at = "crash"
    loses = DeclaredState.ACTIVE


class SecondTurn(Flawed):
    """A session with two lanes."""

    sentence = "a prompt that comes while a turn is active starts at once"
    breaks: ClassVar[tuple[AnyProperty, ...]] = (_P.ONE_TURN, _P.DECLARED_MOVE)

    def act(self, name: str, *arguments: Any) -> Any:
        """Take a prompt in beside the turn, in a session of its own."""
        if name == "accept" and self.is_busy(arguments[0]):
            self.took_effect()
            return self.forward(name, f"{arguments[0]}-beside-{arguments[1]}", arguments[1])
        return super().act(name, *arguments)


class Poisons(Flawed):
    """A cancel that is remembered too long."""

    sentence = "a cancel also covers the next prompt"
    breaks: ClassVar[tuple[AnyProperty, ...]] = (_P.NEVER_POISONED,)
    needs: ClassVar[tuple[str, ...]] = ("cancel",)
    of_idle_sessions: ClassVar[bool] = False
    """Whether only a cancel with nothing in flight is remembered."""

    def __init__(self, subject: Any, took_effect: Callable[[], None]) -> None:
        super().__init__(subject, took_effect)
        self.cancelled: set[str] = set()

    def act(self, name: str, *arguments: Any) -> Any:
        """Cancel again after the next accept."""
        done = super().act(name, *arguments)
        if name == "cancel" and not (self.of_idle_sessions and self.in_flight(arguments[0])):
            self.cancelled.add(arguments[0])
        if name == "accept" and arguments[0] in self.cancelled:
            self.took_effect()
            self.cancelled.discard(arguments[0])
            self.forward("cancel", arguments[0])
        return done


class IdleCancelStays(Poisons):
    """The same, if nothing was in flight."""

    sentence = "a cancel of an idle session covers the next prompt"
    breaks: ClassVar[tuple[AnyProperty, ...]] = (_P.NEVER_POISONED, _P.IDLE_CANCEL)
    of_idle_sessions = True


class LeakyCancel(Flawed):
    """A cancel without a session."""

    sentence = "a cancel reaches every session"
    breaks: ClassVar[tuple[AnyProperty, ...]] = (_P.ISOLATION, _P.NEVER_POISONED)
    needs: ClassVar[tuple[str, ...]] = ("cancel",)

    def act(self, name: str, *arguments: Any) -> Any:
        """Cancel the other sessions as well."""
        done = super().act(name, *arguments)
        if name == "cancel":
            for session in sorted({*self.session_of.values()} - {arguments[0]}):
                self.took_effect()
                self.forward("cancel", session)
        return done


class _Instead(Flawed):
    """Does something else in place of an operation."""

    name: ClassVar[str] = ""
    instead: ClassVar[str] = ""

    def act(self, name: str, *arguments: Any) -> Any:
        if name != self.name:
            return super().act(name, *arguments)
        self.took_effect()
        if self.instead == "cancel":
            named = arguments[0]
            return self.forward("cancel", self.session_of.get(named, named))
        return self.forward(self.instead, *arguments) if self.instead else None


class DeafClear(_Instead):
    """A clear that is ignored."""

    sentence = "clearing the queue does nothing"
    breaks: ClassVar[tuple[AnyProperty, ...]] = (_P.EXACTLY_ONE_COMPLETE, _P.DECLARED_MOVE, _P.NO_STRAND)
    needs: ClassVar[tuple[str, ...]] = ("clear",)
    name = "clear"


class ClearCancels(_Instead):
    """A clear that also cancels the turn."""

    sentence = "clearing the queue cancels the active turn as well"
    breaks: ClassVar[tuple[AnyProperty, ...]] = (_P.NEVER_POISONED,)
    needs: ClassVar[tuple[str, ...]] = ("clear", "cancel")
    name, instead = "clear", "cancel"


class InterruptSpares(_Instead):
    """An interrupt that is a plain accept."""

    sentence = "a prompt that interrupts cancels nothing"
    breaks: ClassVar[tuple[AnyProperty, ...]] = (_P.FULL_COVERAGE, _P.EXACTLY_ONE_COMPLETE)
    needs: ClassVar[tuple[str, ...]] = ("interrupt",)
    name, instead = "interrupt", "accept"


class InterruptsItself(Flawed):
    """An interrupt in two steps, in the wrong order."""

    sentence = "a prompt that interrupts is cancelled with what came before it"
    breaks: ClassVar[tuple[AnyProperty, ...]] = (_P.NEVER_POISONED,)
    needs: ClassVar[tuple[str, ...]] = ("interrupt", "cancel")

    def act(self, name: str, *arguments: Any) -> Any:
        """Accept, then cancel."""
        if name != "interrupt":
            return super().act(name, *arguments)
        self.took_effect()
        self.forward("accept", *arguments)
        return self.forward("cancel", arguments[0])


class RejectsNothing(_Instead):
    """A reject that is a plain accept."""

    sentence = "a prompt that asks to be refused is taken in by a busy session"
    breaks: ClassVar[tuple[AnyProperty, ...]] = (_P.DECLARED_MOVE,)
    needs: ClassVar[tuple[str, ...]] = ("reject",)
    name, instead = "reject", "accept"


class CancelsAll(_Instead):
    """A cancel of one run that covers all."""

    sentence = "a cancel of one run covers the whole session"
    breaks: ClassVar[tuple[AnyProperty, ...]] = (_P.NEVER_POISONED,)
    needs: ClassVar[tuple[str, ...]] = ("cancel_run", "cancel")
    name, instead = "cancel_run", "cancel"


class DeafCancelRun(_Instead):
    """A cancel of one run that is ignored."""

    sentence = "a cancel of one run does nothing"
    breaks: ClassVar[tuple[AnyProperty, ...]] = (_P.FULL_COVERAGE, _P.EXACTLY_ONE_COMPLETE)
    needs: ClassVar[tuple[str, ...]] = ("cancel_run",)
    name = "cancel_run"


class RecordsEndTurn(Flawed):
    """A record that says the wrong thing."""

    sentence = "the messages of a cancelled turn say that it ended well"
    breaks: ClassVar[tuple[AnyProperty, ...]] = (_P.ON_RECORD,)
    needs: ClassVar[tuple[str, ...]] = ("messages", "cancel")

    def shows(self, event: Observed) -> Iterable[Observed]:
        """Show another reason."""
        if isinstance(event, Wrote) and event.reason == "canceled":
            self.took_effect()
            return (event._replace(reason="end_turn"),)
        return (event,)


class PublishesFirst(Flawed):
    """A record that comes late."""

    sentence = "the RunComplete comes before the messages are written"
    breaks: ClassVar[tuple[AnyProperty, ...]] = (_P.LAST_WORD,)
    needs: ClassVar[tuple[str, ...]] = ("messages",)

    def __init__(self, subject: Any, took_effect: Callable[[], None]) -> None:
        super().__init__(subject, took_effect)
        self.wrote: dict[str, Wrote] = {}

    def note(self, event: Observed) -> None:
        """Keep the written messages back."""
        super().note(event)
        if isinstance(event, Wrote):
            self.wrote[event.run] = event

    def shows(self, event: Observed) -> Iterable[Observed]:
        """Show the written messages only after the RunComplete."""
        if isinstance(event, Complete) and event.run in self.wrote:
            self.took_effect()
            return (event, self.wrote[event.run])
        return () if isinstance(event, Wrote) else (event,)


class Grows(Flawed):
    """A memory that only grows."""

    sentence = "every session leaves something in memory"
    breaks: ClassVar[tuple[AnyProperty, ...]] = (_P.NO_RESIDUE,)
    needs: ClassVar[tuple[str, ...]] = ("residue",)

    def act(self, name: str, *arguments: Any) -> Any:
        """Count all runs so far."""
        done = super().act(name, *arguments)
        if name != "residue":
            return done
        self.took_effect()
        return done + len(self.session_of)


class _LosesInRace(Flawed):
    """Loses an operation that is called before the one ahead of it is at rest."""

    loses: ClassVar[str] = ""
    needs: ClassVar[tuple[str, ...]] = ("bursts",)

    def __init__(self, subject: Any, took_effect: Callable[[], None]) -> None:
        super().__init__(subject, took_effect)
        self.lost: list[tuple[Op, Op]] = []
        """The operations that were lost in this window, each with the one ahead of it."""
        self.lost_runs: set[str] = set()

    def burst(self, operations: Sequence[Op]) -> None:
        """Skip the operation, and everything about a run that was never taken in."""
        for op in operations:
            if op.name in TAKING_IN:
                self.session_of[op.run] = str(op.arguments["session"])
        left, self.lost = [operations[0]], []
        for before, op in itertools.pairwise(operations):
            if op.name == self.loses:
                self.took_effect()
                self.lost.append((before, op))
                if op.name in TAKING_IN:
                    self.lost_runs.add(op.run)
            elif op.run not in self.lost_runs or not op.run:
                left.append(op)
        self.subject.burst(left)

    def act(self, name: str, *arguments: Any) -> Any:
        """Do nothing about a run that was never taken in."""
        if name not in TAKING_IN and self.lost_runs.intersection(arguments):
            return None
        return super().act(name, *arguments)

    def window(self) -> Sequence[Noted]:
        """Return the window with the lost operations: they were called, and had no effect."""
        rows = list(super().window())
        called = {row.what: row.lo for row in rows if isinstance(row.what, Op)}
        for before, op in self.lost:
            called[op] = called.get(before, max((row.lo for row in rows), default=1))
            rows.append(Noted(op, called[op], None))
        return rows


class LosesCancel(_LosesInRace):
    """A cancel that arrives mid-flight."""

    sentence = "a cancel is lost if it comes before the operation ahead of it is at rest"
    breaks: ClassVar[tuple[AnyProperty, ...]] = (_P.FULL_COVERAGE, _P.EXACTLY_ONE_COMPLETE)
    needs: ClassVar[tuple[str, ...]] = ("bursts", "cancel")
    loses = "cancel"


class LosesPrompt(_LosesInRace):
    """A prompt that arrives mid-flight."""

    sentence = "a prompt is lost if it comes before the operation ahead of it is at rest"
    breaks: ClassVar[tuple[AnyProperty, ...]] = (_P.EXACTLY_ONE_COMPLETE, _P.NO_STRAND)
    loses = "accept"


class DeafHold(_Instead):
    """A hold that is ignored."""

    sentence = "a hold does nothing"
    breaks: ClassVar[tuple[AnyProperty, ...]] = (_P.HELD,)
    needs: ClassVar[tuple[str, ...]] = ("hold",)
    name = "hold"


class DeafResume(_Instead):
    """A resume that is ignored."""

    sentence = "a resume does nothing"
    breaks: ClassVar[tuple[AnyProperty, ...]] = (_P.NO_STRAND,)
    needs: ClassVar[tuple[str, ...]] = ("hold",)
    name = "resume"


class HoldsLater(Flawed):
    """A hold that is a flag of the session."""

    sentence = "a hold also holds what is accepted later"
    breaks: ClassVar[tuple[AnyProperty, ...]] = (_P.NO_STRAND,)
    needs: ClassVar[tuple[str, ...]] = ("hold",)

    def __init__(self, subject: Any, took_effect: Callable[[], None]) -> None:
        super().__init__(subject, took_effect)
        self.on_hold: set[str] = set()

    def act(self, name: str, *arguments: Any) -> Any:
        """Hold again after every accept."""
        done = super().act(name, *arguments)
        if name in ("hold", "resume"):
            (self.on_hold.add if name == "hold" else self.on_hold.discard)(arguments[0])
        if name == "accept" and arguments[0] in self.on_hold:
            self.took_effect()
            self.forward("hold", arguments[0])
        return done


class StopSpares(_Instead):
    """A stop that is a hold."""

    sentence = "a stop holds what waits, and does not cover the active turn"
    breaks: ClassVar[tuple[AnyProperty, ...]] = (_P.FULL_COVERAGE,)
    needs: ClassVar[tuple[str, ...]] = ("stop", "hold")
    name, instead = "stop", "hold"


class DeafMove(_Instead):
    """A move that is ignored."""

    sentence = "a move is acknowledged, and changes nothing"
    breaks: ClassVar[tuple[AnyProperty, ...]] = (_P.FIFO, _P.DECLARED_MOVE)
    needs: ClassVar[tuple[str, ...]] = ("move",)
    name = "move"


class OldPrompt(Flawed):
    """An edit that does not reach the runner."""

    sentence = "the runner of an edited prompt is given the old one"
    breaks: ClassVar[tuple[AnyProperty, ...]] = (_P.AS_EDITED,)
    needs: ClassVar[tuple[str, ...]] = ("edit",)

    def shows(self, event: Observed) -> Iterable[Observed]:
        """Show the prompt as it was accepted."""
        if isinstance(event, Given) and event.prompt != event.run:
            self.took_effect()
            return (event._replace(prompt=event.run),)
        return (event,)


class IntoAnyTurn(Flawed):
    """A prompt for one turn that is like any other."""

    sentence = "a prompt for one turn alone waits on when that turn has ended"
    breaks: ClassVar[tuple[AnyProperty, ...]] = (_P.EXACTLY_ONE_COMPLETE, _P.DECLARED_MOVE)
    needs: ClassVar[tuple[str, ...]] = ("into",)

    def act(self, name: str, *arguments: Any) -> Any:
        """Accept it."""
        if name != "into" or not self.is_busy(arguments[0]):
            return super().act(name, *arguments)
        self.took_effect()
        return self.forward("accept", *arguments[:2])


FLAWS: tuple[type[Flawed], ...] = (
    LostFailure, SilentDrop, SilentEntry, SilentFold, CompletesTwice, LateComplete, SaysFinished, DeafCancel,
    CancelMissesQueue, Poisons, IdleCancelStays, LeakyCancel, Overtakes, Strands, SecondTurn, LosesInTime,
    DeafClear, ClearCancels, InterruptSpares, InterruptsItself, RejectsNothing, CancelsAll, DeafCancelRun,
    RecordsEndTurn, PublishesFirst, Grows, LosesInCrash, LosesCancel, LosesPrompt, DeafHold,
    DeafResume, HoldsLater, StopSpares, DeafMove, OldPrompt, IntoAnyTurn,
)  # fmt: skip
"""What can be wrong at the port."""


def name_of(flaw: type[Flawed]) -> str:
    """Return the name of a flaw: cancel-misses-queue."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", flaw.__name__).lower()


class Doubted:
    """Makes subjects with a flaw, and counts how many of them it changed."""

    def __init__(self, make: SubjectFactory, flaw: type[Flawed]) -> None:
        self.make = make
        self.flaw = flaw
        self.took_effect = 0
        """How often the flaw has changed anything."""

    def __call__(self) -> Any:
        """Make a subject with the flaw."""
        return self.flaw(self.make(), self._count)

    def _count(self) -> None:
        self.took_effect += 1

    def twin(self) -> SubjectFactory:
        """Return the same for another worker, in a process of its own if it is a command."""
        twin = Doubted(self.make.twin(), self.flaw) if isinstance(self.make, Command) else self
        twin._count = self._count  # type: ignore[method-assign]  # both count together
        return twin

    def stop(self) -> None:
        """End the process, if there is one."""
        if isinstance(self.make, Command):
            self.make.stop()
