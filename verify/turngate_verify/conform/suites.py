"""The suite: every short program, then random ones, and a verdict for each property.

The suite plays short programs breadth first, so the first counterexample of a
property is a shortest one. To see whether one session disturbs the other, or an
idle cancel changes something, it plays the program again without the other
session, and without the idle cancels.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from turngate_model.checker.counterexample import Counterexample, Step, consequences
from turngate_model.history import (
    Accept,
    Called,
    Cancel,
    Clear,
    Complete,
    Ended,
    Enter,
    Event,
    Fold,
    Handoff,
    Wrote,
)
from turngate_model.properties import AnyProperty, AnyViolation, Property, Violation
from turngate_verify.conform.drills import drills
from turngate_verify.conform.judge import Judge, ProgramLimits
from turngate_verify.conform.lines import Command
from turngate_verify.conform.port import Features, Subject, SubjectFactory, SubjectFailed
from turngate_verify.conform.programs import Op, Program, renamed, written
from turngate_verify.conform.search import search

JUDGED: tuple[Property, ...] = tuple(each for each in Property if each is not Property.REFINES)
"""The properties that a subject is held to."""


class Effort(NamedTuple):
    """How hard to look."""

    programs: int = 2000
    """The most short programs to play in one session, and again in two. Only whole depths are played."""
    depth: int = 8
    """The most operations in a short program."""
    examples: int = 100
    """How many random programs to play."""
    steps: int = 24
    """The most operations in a random program."""
    seed: int = 0
    seconds: float = 120.0
    """After so many seconds the suite begins no other program."""


class Played(NamedTuple):
    """The result of playing one program."""

    steps: tuple[Step, ...]
    violations: tuple[AnyViolation, ...]
    late: tuple[tuple[Violation, int], ...]
    exercised: frozenset[AnyProperty]
    idle_cancels: frozenset[int]
    enabled: tuple[Op, ...]


@dataclass
class Conformance:
    """The result of checking a subject."""

    subject: str
    is_command: bool = False
    features: Features = field(default_factory=Features)
    left_out: list[str] = field(default_factory=list)
    depths: dict[int, int] = field(default_factory=dict)
    """For one session and for two: up to how many operations the suite has played every program."""
    programs: dict[Property, int] = field(default_factory=lambda: dict.fromkeys(JUDGED, 0))
    """How many short programs put a property to the test."""
    examples: dict[Property, int] = field(default_factory=lambda: dict.fromkeys(JUDGED, 0))
    """How many random programs put a property to the test."""
    played: int = 0
    counterexamples: dict[Property, Counterexample] = field(default_factory=dict)
    replays: dict[Property, str] = field(default_factory=dict)
    """For each broken property, the program that breaks it."""
    failed: SubjectFailed | None = None
    """Why the subject could not be judged to the end."""
    gave_up: str = ""
    """Why the suite stopped before its end; empty if it did not."""
    told: list[str] = field(default_factory=list)
    """What happened, step by step, in the one program that ``replay`` played."""
    seed: int = 0
    seconds: float = 0.0

    def checks(self, each: Property) -> dict[str, dict[str, int]]:
        """Return how many short and how many random programs put a property to the test."""
        counts = {
            "short": {"programs": self.programs[each]},
            "rules": {"examples": self.examples[each]},
        }
        return {name: count for name, count in counts.items() if any(count.values())}

    def replay_command(self, each: Property) -> str:
        """Return the command that plays the shortest program found for a property again."""
        program = shlex.quote(self.replays[each])
        subject = f"-- {self.subject}" if self.is_command else shlex.quote(self.subject)
        return f"turngate conform --replay {program} {subject}"

    def verdict_of(self, each: Property) -> str:
        """Return one of holds, violated and unknown."""
        if each in self.counterexamples:
            return "violated"
        return "unknown" if self.why_unknown(each) else "holds"

    def why_unknown(self, each: Property) -> str:
        """Return why the verdict on a property is unknown, or an empty string."""
        if each in self.counterexamples:
            return ""
        if not_shown := self.not_shown.get(each):
            return not_shown
        if self.failed:
            return f"the subject failed {self.failed.what}"
        return "" if self.programs[each] or self.examples[each] else "nothing has put it to the test"

    @property
    def not_shown(self) -> dict[Property, str]:
        """The properties that this subject cannot show, and why."""
        hidden: dict[Property, str] = {}
        if not self.features.residue:
            hidden[Property.NO_RESIDUE] = "the subject does not show what it holds in memory"
        if not self.features.messages:
            hidden[Property.ON_RECORD] = "the subject does not show its messages"
        if not self.features.cancel:
            about = (Property.NEVER_POISONED, Property.FULL_COVERAGE, Property.IDLE_CANCEL)
            hidden |= dict.fromkeys(about, "the subject cannot be cancelled")
        return hidden

    @property
    def verdict(self) -> str:
        """The verdict on all that the subject can show."""
        if self.counterexamples:
            return "violated"
        shown = (each for each in JUDGED if each not in self.not_shown)
        return "unknown" if self.failed or self.gave_up or any(map(self.why_unknown, shown)) else "holds"


def play(make: SubjectFactory, program: Program, limits: ProgramLimits) -> Played:
    """Play a program on a fresh subject, up to the first offence."""
    judge = Judge(make())
    try:
        for op in program:
            judge.take(op)
            if judge.violations:
                break
        enabled = () if judge.violations else tuple(judge.enabled(limits))
        return _played(judge, enabled)
    finally:
        judge.close()


def _played(judge: Judge, enabled: tuple[Op, ...]) -> Played:
    return Played(
        judge.steps,
        tuple(judge.violations),
        tuple(judge.late),
        frozenset(judge.exercised),
        frozenset(judge.idle_cancels),
        enabled,
    )


class Suite:
    """Plays programs on fresh subjects, and keeps the shortest that breaks each property."""

    def __init__(self, make: SubjectFactory, name: str, effort: Effort, limits: ProgramLimits) -> None:
        self.make = make
        self.effort = effort
        self.limits = limits
        self.result = Conformance(name, seed=effort.seed)
        self.began = time.monotonic()
        self.stopped: SubjectFailed | None = None
        self._known: dict[Program, Played] = {}
        self._sound: dict[Program, bool] = {}

    @property
    def out_of_time(self) -> bool:
        """Whether time has run out; if so, the result says so."""
        if time.monotonic() - self.began > self.effort.seconds:
            self.result.gave_up = f"time ran out after {self.effort.seconds:g} s"
        return bool(self.result.gave_up)

    def fresh(self) -> Subject:
        """Return a fresh subject. Once one has failed, raise that again, however often a search asks."""
        if self.stopped:
            raise self.stopped
        with self.stopping():
            try:
                subject = self.make()
            except SubjectFailed:
                raise
            except (Exception, SystemExit) as wrong:
                if isinstance(self.make, Command):
                    raise
                raise SubjectFailed(f"it cannot be made: {wrong!r}") from wrong
            if not isinstance(getattr(subject, "features", None), Features):
                raise SubjectFailed(f"it makes no subject, for {subject!r} has no features")
            return subject

    @contextmanager
    def stopping(self) -> Iterator[None]:
        """Remember a failure of the subject, and let it out."""
        try:
            yield
        except SubjectFailed as failed:
            self.stopped = failed
            raise

    # Every short program.

    def enumerate(self, sessions: int) -> None:
        """Play every program in so many sessions, shortest first, as deep as the effort allows."""
        frontier: list[Program] = [()]
        left = self.effort.programs
        for depth in range(1, self.effort.depth + 1):
            longer = [
                (*program, op)
                for program in frontier
                for op in self.play(program).enabled
                if op.place < sessions
            ]
            if not longer or len(longer) > left:
                return
            left -= len(longer)
            frontier = []
            for program in longer:
                if self.out_of_time:
                    return
                if program not in self._sound:
                    self._sound[program] = self.judge(program, self.result.programs)
                if self._sound[program]:
                    frontier.append(program)
            self.result.depths[sessions] = depth

    def drill(self) -> None:
        """Play the drills."""
        for program in drills(self.result.features):
            if self.out_of_time:
                return
            self.judge(program, self.result.programs)

    def judge(self, program: Program, counts: dict[Property, int]) -> bool:
        """Play a program and keep what it breaks; return whether it breaks nothing."""
        played = self.play(program)
        self.result.played += 1
        broken, exercised = self._compared(program[: len(played.steps)], played)
        for each in exercised:
            counts[each] += 1
        for violation in broken:
            self.keep(violation, program[: len(played.steps)], played.steps)
        for violation, length in played.late:
            self.keep(violation, program[:length], played.steps[:length])
        return not broken

    def compare(self, judge: Judge) -> list[Violation]:
        """Count what a random program has put to the test, and return what it breaks."""
        played = _played(judge, ())
        broken, exercised = self._compared(judge.program, played)
        for each in exercised:
            self.result.examples[each] += 1
        return broken

    def keep(self, violation: Violation, program: Program, steps: tuple[Step, ...]) -> None:
        """Keep a counterexample if none as short is known."""
        known = self.result.counterexamples.get(violation.property)
        if known is None or len(steps) < len(known.steps):
            self.result.counterexamples[violation.property] = Counterexample(
                violation.property, violation.what, steps
            )
            self.result.replays[violation.property] = written(program)

    def _compared(self, program: Program, played: Played) -> tuple[list[Violation], set[Property]]:
        """Play a program again without what should make no difference.

        Return what it breaks in all, and which properties it put to the test.
        """
        broken, exercised = list(played.violations), set(played.exercised)
        if len({op.place for op in program}) > 1:
            exercised.add(Property.ISOLATION)
            for place in (0, 1):
                own = [nth for nth, op in enumerate(program) if op.place == place]
                if differs := self._difference(program, played, own):
                    return [Violation(Property.ISOLATION, f"without the other session, {differs}")], exercised
        if played.idle_cancels:
            exercised.add(Property.IDLE_CANCEL)
            rest = [nth for nth in range(len(program)) if nth not in played.idle_cancels]
            if differs := self._difference(program, played, rest):
                broken.append(Violation(Property.IDLE_CANCEL, f"without the idle cancel, {differs}"))
        return broken, exercised

    def _difference(self, program: Program, played: Played, kept: list[int]) -> str:
        """Say where a part of a program has other consequences when it is played alone; empty if nowhere."""
        part = tuple(program[nth] for nth in kept)
        alone = self.play(renamed(part))
        if alone.violations:
            # The part breaks something when played alone. It is a counterexample itself, and a shorter one.
            return ""
        names = {new.run: old.run for new, old in zip(renamed(part), part, strict=True) if new.run}
        for nth, step in zip(kept, alone.steps, strict=True):
            seen = [event for event in played.steps[nth].events if _run_of(event) in names.values()]
            should = [_renamed(event, names) for event in step.events if _run_of(event)]
            if seen != should:
                shown, expected = consequences(tuple(seen)), consequences(tuple(should))
                return f"{program[nth]} gives: {expected or 'nothing'}; with it: {shown or 'nothing'}"
        return ""

    def play(self, program: Program) -> Played:
        """Play a program, or return what came of it before."""
        if program not in self._known:
            with self.stopping():
                self._known[program] = play(self.fresh, program, self.limits)
        return self._known[program]


def _run_of(event: Event) -> str:
    return getattr(event, "run", "")


def _renamed(event: Event, names: dict[str, str]) -> Event:
    match event:
        case Fold(run, into):
            return Fold(names[run], names[into])
        case Accept() | Enter() | Handoff() | Complete() | Wrote() | Called() | Ended():
            return event._replace(run=names[event.run])
        case Cancel() | Clear():
            return event


def check(
    make: SubjectFactory,
    name: str = "",
    *,
    effort: Effort | None = None,
    limits: ProgramLimits | None = None,
) -> Conformance:
    """Check a subject: every short program, then random ones."""

    def work(suite: Suite) -> None:
        for sessions in range(1, suite.limits.sessions + 1):
            suite.enumerate(sessions)
        if suite.effort.programs:
            suite.drill()
        search(suite)

    return _worked(make, name, effort or Effort(), limits or ProgramLimits(), work)


def replay(make: SubjectFactory, name: str, program: Program) -> Conformance:
    """Play one program, and tell what happens."""

    def work(suite: Suite) -> None:
        suite.judge(program, suite.result.programs)
        suite.result.told = Counterexample(Property.DECLARED_MOVE, "", suite.play(program).steps).told()

    return _worked(make, name, Effort(), ProgramLimits(), work)


def _worked(
    make: SubjectFactory, name: str, effort: Effort, limits: ProgramLimits, work: Callable[[Suite], None]
) -> Conformance:
    suite = Suite(make, name or getattr(make, "__name__", str(make)), effort, limits)
    result = suite.result
    result.is_command = isinstance(make, Command)
    try:
        first = Judge(suite.fresh())
        first.close()
        result.features = first.features
        result.left_out = result.features.left_out
        work(suite)
    except SubjectFailed as failed:
        result.failed = failed
    finally:
        if isinstance(make, Command):
            make.stop()
    result.seconds = time.monotonic() - suite.began
    return result
