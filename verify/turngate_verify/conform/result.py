"""The result of checking a subject: a verdict for each property, and what it rests on."""

from __future__ import annotations

import shlex
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from turngate_model.checker.counterexample import Counterexample, PlayedStep
from turngate_model.properties import AnyProperty, AnyViolation, DurableProperty, Property, Violation
from turngate_verify.conform.port import Features, SubjectFailed
from turngate_verify.conform.programs import Op, Program
from turngate_verify.conform.stepping import Moment
from turngate_verify.words import counted

UNTESTED = "no program tested it"
"""Why a property is unknown that the subject could show."""

JUDGED: tuple[Property, ...] = tuple(
    each for each in Property if each not in (Property.REFINES, Property.HELD, Property.AS_EDITED)
)
"""The properties that every subject must have. ``judged`` adds those that need a feature."""


def judged(features: Features) -> tuple[AnyProperty, ...]:
    """Return the properties that a subject with these features must have."""
    more: dict[AnyProperty, bool] = {
        Property.HELD: features.hold or features.stop,
        Property.AS_EDITED: features.edit,
        DurableProperty.DURABLE: features.crash,
    }
    return (*JUDGED, *[each for each, may in more.items() if may])


class Effort(NamedTuple):
    """How hard to look."""

    programs: int = 20_000
    """The most short programs to play in one session, and again in two. A slow subject plays fewer.

    Only whole depths are played. A depth is played if it will take no more than
    a twenty-fourth of the time, or, as long as there are no more than 500
    programs in all, if it will be over before half of the time is.
    """
    depth: int = 12
    """The most operations in a short program."""
    examples: int = 100
    """The most random programs to play. A slow subject plays fewer, but at least three of them.

    When four fifths of the time are over, no other one is begun.
    """
    steps: int = 24
    """The most operations in a random program."""
    seed: int = 0
    seconds: float = 120.0
    """The number of seconds after which the suite begins no other program."""
    workers: int = 1
    """How many instances of the subject play at the same time."""
    require_races: bool = False
    """Whether the verdict is unknown if every operation was waited for."""
    mid_flight: int = 5
    """The most operations in a program whose operations also arrive between callbacks; 0 turns this off."""


class Played(NamedTuple):
    """The result of playing one program."""

    steps: tuple[PlayedStep, ...]
    violations: tuple[AnyViolation, ...]
    late: tuple[tuple[Violation, int], ...]
    exercised: frozenset[AnyProperty]
    idle_cancels: frozenset[int]
    enabled: tuple[Op, ...]
    bursts: tuple[Program, ...] = ()
    state: Hashable = None
    """Equal for two programs of the same operations that have led to the same sessions."""
    hasty: bool = False
    """Whether a run counted as queued though a timer might still have started it."""
    disturbed: bool = False
    """Whether waiting for such a timer has changed what happened to other runs."""
    raced: bool = False
    """Whether an operation was called before the one ahead of it was at rest."""
    moments: tuple[Moment, ...] = ()
    """The moments after the last operation at which another could be called; the last is rest."""
    moments_cut: int = 0
    """How many moments were left out, because there were too many."""
    hears_late: bool = False
    """Whether a RunComplete was shown after the next turn had started, and may have been heard late."""
    undecided: str = ""
    """Why what happened could not be judged; empty if it could."""
    doubt: str = ""
    """What was seen that explains whatever seems to be broken; empty if nothing does."""


@dataclass
class MidFlight:
    """How far operations were tried at every moment between two rests."""

    operations: dict[str, int] = field(default_factory=dict)
    """Up to how many operations every program was played: with one gap, with two, in two sessions."""
    executions: int = 0
    moments_cut: int = 0
    """How many moments were left out, because an operation had too many callbacks."""

    @property
    def bounds(self) -> str:
        """The bounds in words."""
        reached = [f"up to {operations} operations {what}" for what, operations in self.operations.items()]
        cut = [f"{self.moments_cut} moments left out"] if self.moments_cut else []
        return ", ".join([*reached, *cut])


class FlakyFinding(NamedTuple):
    """A property that was broken once, and not when the same program was played again."""

    program: str
    example: Counterexample
    """What happened when it was broken."""
    again: list[str]
    """What happened when it was not, step by step."""
    replays: int
    """How many times the program was played again until it broke nothing."""


@dataclass
class Conformance:
    """The result of checking a subject."""

    subject: str
    is_command: bool = False
    features: Features = field(default_factory=Features)
    left_out: list[str] = field(default_factory=list)
    depths: dict[int, int] = field(default_factory=dict)
    """For one session and for two: up to how many operations the suite has played every program."""
    waits: int = 0
    """Up to how many operations it has played every program in which time passes, in a round of their own."""
    line: int = 0
    """The same for programs with operations on waiting runs."""
    programs: dict[AnyProperty, int] = field(default_factory=dict)
    """How many short programs put a property to the test."""
    drills: dict[AnyProperty, int] = field(default_factory=dict)
    """How many drills put a property to the test."""
    examples: dict[AnyProperty, int] = field(default_factory=dict)
    """How many random programs put a property to the test."""
    played: int = 0
    """How many short programs were played."""
    raced: int = 0
    """How many programs were played in which an operation was not waited for."""
    mid_flight: MidFlight = field(default_factory=MidFlight)
    """How far operations were tried at every moment between two rests."""
    in_flight: dict[AnyProperty, int] = field(default_factory=dict)
    """How many of the programs that were played mid-flight put a property to the test."""
    witnessed: set[str] = field(default_factory=set)
    """The requirements of SPEC.md that a program tested without breaking anything."""
    undecided: int = 0
    """How many programs had too many orders to be judged."""
    require_races: bool = False
    """Whether the verdict is unknown if races were not tried."""
    counterexamples: dict[AnyProperty, Counterexample] = field(default_factory=dict)
    replays: dict[AnyProperty, str] = field(default_factory=dict)
    """For each broken property, the program that breaks it."""
    flaky: dict[AnyProperty, FlakyFinding] = field(default_factory=dict)
    """For each property that was broken once and not again, both observations."""
    unjudged: dict[AnyProperty, str] = field(default_factory=dict)
    """For each property broken only while a prompt may not have been taken in yet: the program."""
    failed: SubjectFailed | None = None
    """Why the subject could not be judged to the end."""
    gave_up: str = ""
    """Why the suite stopped before its end; empty if it did not."""
    wire: dict[AnyProperty, int] = field(default_factory=dict)
    """How many scenarios of the wire driver put a property to the test."""
    hidden: dict[AnyProperty, str] = field(default_factory=dict)
    """The properties that this check cannot show, whatever the features say, and why."""
    notes: list[str] = field(default_factory=list)
    """Observations about the subject that are not judged."""
    options: tuple[str, ...] = ()
    """The options that a command needs in addition to ``--replay`` to play something again."""
    told: list[str] = field(default_factory=list)
    """What happened, step by step, in the one program that ``replay`` played."""
    seed: int = 0
    seconds: float = 0.0

    @property
    def judged(self) -> tuple[AnyProperty, ...]:
        """The properties that this subject must have."""
        return judged(self.features)

    def checks(self, each: AnyProperty) -> dict[str, dict[str, int]]:
        """Count the short, long and random programs that put a property to the test."""
        counts = {
            "wire": {"scenarios": self.wire.get(each, 0)},
            "short": {"programs": self.programs.get(each, 0)},
            "mid-flight": {"programs": self.in_flight.get(each, 0)},
            "drills": {"programs": self.drills.get(each, 0)},
            "random": {"examples": self.examples.get(each, 0)},
        }
        return {name: count for name, count in counts.items() if any(count.values())}

    def replay_command(self, each: AnyProperty) -> str:
        """Return the command that plays the program found for a property again."""
        program = self.replays[each] if each in self.replays else self.flaky[each].program
        subject = f"-- {self.subject}" if self.is_command else shlex.quote(self.subject)
        options = "".join(f"{shlex.quote(each)} " for each in self.options)
        return f"turngate conform {options}--replay {shlex.quote(program)} {subject}"

    def verdict_of(self, each: AnyProperty) -> str:
        """Return one of holds, violated, flaky and unknown."""
        if each in self.counterexamples:
            return "violated"
        if each in self.flaky:
            return "flaky"
        return "unknown" if self.why_unknown(each) else "holds"

    def why_unknown(self, each: AnyProperty) -> str:
        """Return why the verdict on a property is unknown, or an empty string."""
        if each in self.counterexamples or each in self.flaky:
            return ""
        if not_shown := self.not_shown.get(each):
            return not_shown
        if self.failed:
            return "the subject could not be judged to the end"
        if unjudged := self.unjudged.get(each):
            return unjudged
        return "" if self.checks(each) else UNTESTED

    @property
    def not_shown(self) -> dict[AnyProperty, str]:
        """The properties that this subject cannot show, and why."""
        hidden: dict[AnyProperty, str] = {}
        if not self.features.residue:
            hidden[Property.NO_RESIDUE] = "the subject does not show what it holds in memory"
        if not self.features.messages:
            hidden[Property.ON_RECORD] = "the subject does not show its messages"
        if not self.features.cancel:
            about = (Property.NEVER_POISONED, Property.FULL_COVERAGE, Property.IDLE_CANCEL)
            hidden |= dict.fromkeys(about, "the subject cannot be cancelled")
        if self.features.self_folds:
            folded = "a turn takes follow-ups in by itself, and it is not known which"
            hidden |= dict.fromkeys((Property.DECLARED_MOVE, Property.LAST_WORD), folded)
        return hidden | self.hidden

    @property
    def verdict(self) -> str:
        """The verdict on all that the subject can show."""
        if self.counterexamples:
            return "violated"
        if self.flaky:
            return "flaky"
        return "unknown" if self._reasons else "holds"

    @property
    def races(self) -> Literal["tried", "not tried"]:
        """Whether operations were called before the one ahead of them was at rest."""
        return "tried" if self.raced else "not tried"

    @property
    def summary(self) -> str:
        """The verdict in one line, with what it rests on and what was not tried."""
        races = f"races were {self.races}"
        match self.verdict:
            case "holds":
                also = " and in bursts of two" if self.raced else ""
                if bounds := self.mid_flight.bounds:
                    also = f" and mid-flight ({bounds})"
                return f"holds for operations one at a time{also}; {races}"
            case "violated":
                return f"violated: {', '.join(self.counterexamples)}; {races}"
            case "flaky":
                return f"flaky: {', '.join(self.flaky)}; {races}"
            case verdict:
                reasons = [*self._reasons, *([] if self.lacks_races else [races])]
                return f"{verdict}: {'; '.join(reasons)}"

    @property
    def lacks_races(self) -> bool:
        """Whether races are required, and were not tried."""
        return self.require_races and not self.raced

    @property
    def _reasons(self) -> list[str]:
        """Why the verdict is unknown, if nothing is violated or flaky."""
        reasons = ["the subject could not be judged to the end"] if self.failed else []
        if self.gave_up:
            reasons.append(self.gave_up)
        shown = [each for each in self.judged if each not in self.not_shown]
        if open_ := [str(each) for each in shown if self.why_unknown(each)] if not self.failed else []:
            reasons.append(f"nothing can be said of {', '.join(open_)}")
        if self.undecided:
            reasons.append(f"{counted(self.undecided, 'program')} had too many orders to be judged")
        if self.lacks_races:
            reasons.append("races were not tried, and are required")
        return reasons
