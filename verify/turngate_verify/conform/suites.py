"""The suite: every short program, drills, random programs, and a verdict for each property.

The suite plays short programs breadth first, so the first counterexample of a
property is a shortest one. Two programs of the same operations that have led to
the same sessions are both played, but only the first of them is made longer. To
see whether one session disturbs the other, or an idle cancel changes something,
the suite plays a program again without the other session, and without the idle
cancels. A violation must come back each time that the program is played again,
several times; otherwise it counts as flaky.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from turngate_model.checker.counterexample import Counterexample, PlayedStep
from turngate_model.properties import AnyProperty, AnyViolation, Property
from turngate_verify.conform.comparing import compared
from turngate_verify.conform.drills import drills
from turngate_verify.conform.enabling import EXTRA
from turngate_verify.conform.judge import Judge, ProgramLimits
from turngate_verify.conform.lines import Command
from turngate_verify.conform.midflight import explore, explore_on
from turngate_verify.conform.players import Players
from turngate_verify.conform.port import SubjectFactory, SubjectFailed
from turngate_verify.conform.programs import LINE, Program, gaps, written
from turngate_verify.conform.result import Conformance, Effort, FlakyFinding, Played
from turngate_verify.conform.shrinking import keep_short
from turngate_verify.conform.walks import walk
from turngate_verify.conform.watchdog import WATCHDOG
from turngate_verify.pipeline.situations import of_steps

REPLAYS = 3
"""How many times a program must break a property again before that is reported.

Each time that a violation of the property did not come back, this many more times are required.
"""
_CHEAP = 500
"""Up to this many short programs may take half of the time; more may take a twenty-fourth of it."""
_FIRST = 30
"""At least this many are played, even if the subject is slow."""
_SHORT = 0.5
"""Short programs are begun until this share of the time is over, however long a depth seemed to take."""
_DRILLS = 0.6
"""Drills are begun until this share of the time is over."""
_WALKS = 0.8
"""Random programs are begun until this share of the time is over."""
_FEWEST_WALKS = 3
"""The number of random programs that even a slow subject plays, unless fewer are asked for."""
_REMEMBERED = 10_000
_HEARS_LATE = (
    "a call of the adapter hears of a RunComplete after the next turn has started; "
    "self.watch(run, future) would show which came first"
)


class Examined(NamedTuple):
    """What one program breaks, and what it puts to the test."""

    played: Played
    broken: dict[AnyProperty, tuple[AnyViolation, int]]
    """What it breaks, each with the number of operations after which it is broken."""
    exercised: set[AnyProperty]
    doubt: str = ""
    """What was seen that explains what it seemed to break; nothing is broken then."""

    def steps(self, length: int) -> tuple[PlayedStep, ...]:
        """Return the steps of the first operations; all of them, if some were not waited for."""
        return self.played.steps if self.played.raced else self.played.steps[:length]

    @property
    def sound(self) -> bool:
        """Whether it can be made longer: what breaks LAST_WORD alone can."""
        fine = not self.broken.keys() - {Property.LAST_WORD}
        return fine and not self.doubt and not self.played.undecided


class Suite:
    """Plays programs on fresh subjects, and keeps the shortest that breaks each property."""

    def __init__(
        self,
        make: SubjectFactory,
        name: str,
        effort: Effort,
        limits: ProgramLimits,
        enough: Callable[[Conformance], bool] | None = None,
    ) -> None:
        self.players = Players(make, effort.workers)
        self.effort = effort
        self.limits = limits
        self.result = Conformance(
            name, isinstance(make, Command), require_races=effort.require_races, seed=effort.seed
        )
        self.began = time.monotonic()
        self._known: dict[Program, Played] = {}
        self._unsteady: Counter[AnyProperty] = Counter()
        self._ranks: dict[AnyProperty, tuple[int, int]] = {}
        """For each counterexample, how many gaps and operations its program has."""
        self._enough = enough
        self.stepped = False
        """Whether the subject can be stepped: its operations then also arrive between two callbacks."""

    @property
    def out_of_time(self) -> bool:
        """Whether time has run out; if so, the result says so."""
        if time.monotonic() - self.began > self.effort.seconds:
            self.result.gave_up = f"time ran out after {self.effort.seconds:g} s"
        return bool(self.result.gave_up)

    @property
    def over(self) -> bool:
        """Whether to begin no other program: time has run out, or the goal is reached."""
        return self.out_of_time or (self._enough is not None and self._enough(self.result))

    def races_with(self, judge: Judge) -> bool:
        """Tell whether operations may be called before the one ahead of them is at rest."""
        return self.effort.mid_flight > 0 if judge.stepped else judge.features.bursts

    # Every short program.

    def enumerate(self, sessions: int, *, waits: bool = False, line: bool = False) -> None:
        """Play every program in this number of sessions, shortest first, as deep as the effort allows.

        With a subject that can be stepped, time passes only in a round of its
        own (``waits``), so that the others go as deep as without it. Operations
        on waiting runs have a round of their own too (``line``).
        """
        levels: list[dict[Program, Played]] = [{}, {(): self.play(())}]
        reached: set[object] = set()
        done, began = 0, time.monotonic()
        for depth in range(1, self.effort.depth + 1):
            if line:
                longer = _longer(levels, sessions, bursts=False, without=EXTRA)
            else:
                without = LINE if waits or not self.stepped else (*LINE, "wait")
                longer = _longer(levels, sessions, bursts=not self.stepped, without=without)
            if not longer or not self._affords(done, len(longer), began):
                return
            frontier: dict[Program, Played] = {}
            examine = self.in_time if done < _FIRST else self._early
            for program, examined in zip(longer, self.players.map(examine, longer), strict=True):
                if examined is None:
                    return
                if not (waits or line) or any(op.name in (LINE if line else ("wait",)) for op in program):
                    self.account(program, examined, self.result.programs)
                if examined.sound and examined.played.state not in reached:
                    reached.add(examined.played.state)
                    frontier[program] = examined.played
            done += len(longer)
            self.result.played += len(longer)
            levels = [levels[-1], frontier]
            if waits:
                self.result.waits = depth
            elif line:
                self.result.line = depth
            else:
                self.result.depths[sessions] = depth

    def _affords(self, done: int, more: int, began: float) -> bool:
        """Return whether there is time for this many more short programs, given the speed so far."""
        if done + more > self.effort.programs:
            return False
        if done + more <= _FIRST:
            return True
        now = time.monotonic()
        takes = (now - began) / done * more if done else 0.0
        if done + more <= _CHEAP:
            return now - self.began + takes <= self.effort.seconds / 2
        return now - began + takes <= self.effort.seconds / 24

    def drill(self) -> None:
        """Play the drills."""
        programs = drills(self.result.features)
        end = self.began + self.effort.seconds * _DRILLS

        def begun(program: Program) -> Examined | None:
            return self.in_time(program) if time.monotonic() < end else None

        for program, examined in zip(programs, self.players.map(begun, programs), strict=True):
            if examined is None:
                return
            self._count(examined, self.result.drills)
            self.shorten(program, examined)

    def judge(self, program: Program) -> Played:
        """Play one program, keep what it breaks, and return what was played."""
        examined = self.examine(program)
        self.account(program, examined, self.result.programs)
        return examined.played

    def in_time(self, program: Program) -> Examined | None:
        """Play a program, unless time has run out."""
        return None if self.over else self.examine(program)

    def _early(self, program: Program) -> Examined | None:
        """Play a program, unless other programs need the time that is left."""
        late = time.monotonic() - self.began > self.effort.seconds * _SHORT
        return None if late else self.in_time(program)

    def _count(self, examined: Examined, counts: dict[AnyProperty, int]) -> None:
        self.result.raced += examined.played.raced
        self.result.undecided += bool(examined.played.undecided)
        if examined.played.hears_late:
            self.result.hidden[Property.LAST_WORD] = _HEARS_LATE
        if not examined.broken and not examined.played.raced:
            self.result.witnessed |= of_steps(examined.played.steps).seen
        for each in examined.exercised:
            counts[each] = counts.get(each, 0) + 1

    def shorten(self, program: Program, examined: Examined) -> None:
        """Keep what a long program is the first to break, made as short as possible."""
        for violation, length in examined.broken.values():
            if violation.property not in self.result.counterexamples:
                keep_short(self, violation, program[:length], examined.steps(length))

    def account(self, program: Program, examined: Examined, counts: dict[AnyProperty, int]) -> None:
        """Count what a program puts to the test, and keep what it breaks."""
        self._count(examined, counts)
        for violation, length in examined.broken.values():
            self.keep(violation, program[:length], examined.steps(length))

    def walk(self) -> None:
        """Play random programs: all that are asked for, or those for which there is time."""
        end = self.began + self.effort.seconds * _WALKS

        def next_walk(nth: int) -> tuple[Program, Played] | None:
            late = time.monotonic() > end and nth >= _FEWEST_WALKS
            return None if late and self.effort.programs else walk(self, nth)

        for walked in self.players.map(next_walk, range(self.effort.examples)):
            if walked is None or self.over:
                return
            program, played = walked
            examined = self.examined(program, played, self.play)
            self._count(examined, self.result.examples)
            self.shorten(program, examined)

    # What a program breaks.

    def examine(self, program: Program, *, anew: bool = False) -> Examined:
        """Play a program, and again without the parts that should make no difference."""
        play = self.play_anew if anew else self.play
        return self.examined(program, play(program), play)

    def examined(self, program: Program, played: Played, play: Callable[[Program], Played]) -> Examined:
        """Compare a program that was played with its parts, played alone.

        If something is broken, and a run may have counted as queued before the
        subject had taken it in, only what a patient subject breaks counts.
        """
        found, hasty, _ = self._compared(program, played, play)
        if found.doubt:
            return self._explained(program, found)
        if not found.broken or not hasty:
            return found
        patient, _, disturbed = self._compared(program, self._play_patiently(program), self._play_patiently)
        if disturbed:
            # The time that passed has ended turns, so differences that follow from that alone say nothing.
            for each in found.broken.keys() - patient.broken.keys():
                short = written(program[: found.broken[each][1]])
                why = f"{short} breaks it, unless the subject had not taken every prompt in by then"
                self.result.unjudged.setdefault(each, why)
            for each in patient.broken.keys() - found.broken.keys():
                del patient.broken[each]
        return patient

    def _explained(self, program: Program, found: Examined) -> Examined:
        """Return that a program breaks nothing: something that was seen explains what seemed to be broken."""
        for each, (_, length) in found.broken.items():
            self.result.unjudged.setdefault(
                each, f"{written(program[:length])} seems to break it; {found.doubt}"
            )
        return found._replace(broken={}, exercised=found.exercised - found.broken.keys())

    def _compared(
        self, program: Program, played: Played, play: Callable[[Program], Played]
    ) -> tuple[Examined, bool, bool]:
        """Return what a program breaks, and whether any part was played hastily, or disturbed."""
        plays = [played]

        def play_part(part: Program) -> Played:
            plays.append(play(part))
            return plays[-1]

        found = self._examined(program, played, play_part)
        if found.broken:
            found = found._replace(doubt=next((each.doubt for each in plays if each.doubt), ""))
        return found, any(each.hasty for each in plays), any(each.disturbed for each in plays)

    def _play_patiently(self, program: Program) -> Played:
        return self.players.play(program, self.limits, patient=True)

    def _examined(self, program: Program, played: Played, play: Callable[[Program], Played]) -> Examined:
        length = min(len(played.steps), len(program))
        broken: dict[AnyProperty, tuple[AnyViolation, int]] = {}
        for violation, after in played.late:
            broken.setdefault(violation.property, (violation, min(after, length)))
        if played.raced:
            # When operations overlap, what happens to each run may differ, and still be right.
            return Examined(played, broken | _by_property(played.violations, length), set(played.exercised))
        differing, exercised = compared(program[:length], played, play)
        broken |= _by_property((*played.violations, *differing), length)
        return Examined(played, broken, set(played.exercised) | exercised)

    def play(self, program: Program) -> Played:
        """Play a program, or return the earlier result."""
        known = self._known.get(program)
        if known is None:
            known = self._known[program] = self.play_anew(program)
            if len(self._known) > _REMEMBERED:
                self._known.pop(next(iter(self._known)), None)
        return known

    def play_anew(self, program: Program) -> Played:
        """Play a program on a fresh subject."""
        return self.players.play(program, self.limits)

    def keep(self, violation: AnyViolation, program: Program, steps: tuple[PlayedStep, ...]) -> bool:
        """Keep a counterexample that comes back, unless one as short is known; return whether it is kept."""
        each = violation.property
        if each in self.result.not_shown:
            return False
        rank = (gaps(program), len(program))
        if each in self._ranks and rank >= self._ranks[each]:
            return False  # a program whose operations are waited for is plainer than any other
        example = Counterexample(each, violation.what, steps)
        for nth in range(1, REPLAYS * (1 + self._unsteady[each]) + 1):
            again = self.examine(program, anew=True)
            if again.doubt:
                return False  # and the result says why nothing can be said of it
            if each not in again.broken:
                told = Counterexample(each, "", again.played.steps).told()
                self.result.flaky.setdefault(each, FlakyFinding(written(program), example, told, nth))
                self._unsteady[each] += 1
                return False
        self.result.flaky.pop(each, None)
        self._ranks[each] = rank
        self.result.counterexamples[each] = example
        self.result.replays[each] = written(program)
        return True


def _by_property(
    violations: Sequence[AnyViolation], length: int
) -> dict[AnyProperty, tuple[AnyViolation, int]]:
    """Return the first violation of each property, with the number of operations after which it is seen."""
    return {each.property: (each, length) for each in reversed(violations)}


def _longer(
    levels: list[dict[Program, Played]], sessions: int, *, bursts: bool, without: Collection[str]
) -> list[Program]:
    """Return the programs that are one operation longer: by one operation, or by a burst of two."""
    shorter, frontier = levels
    by_one = [
        (*program, op)
        for program, played in frontier.items()
        for op in played.enabled
        if op.place < sessions and op.name not in without
    ]
    by_two = [
        (*program, *pair)
        for program, played in shorter.items()
        for pair in played.bursts
        if bursts and all(op.place < sessions and op.name not in without for op in pair)
    ]
    return by_one + by_two


def check(
    make: SubjectFactory,
    name: str = "",
    *,
    effort: Effort | None = None,
    limits: ProgramLimits | None = None,
    enough: Callable[[Conformance], bool] | None = None,
) -> Conformance:
    """Check a subject: every short program, then drills, then random programs.

    With ``enough``, begin no other program once that is true of the result.
    """

    def work(suite: Suite) -> None:
        if suite.effort.programs:
            for sessions in range(1, suite.limits.sessions + 1):
                suite.enumerate(sessions)
            if suite.stepped and suite.result.features.wait:
                suite.enumerate(1, waits=True)
            if suite.result.features.has_line:
                suite.enumerate(1, line=True)
            if suite.stepped:
                suite.drill()
        cut_short = explore(suite) if suite.effort.programs else []
        if suite.effort.programs and not suite.stepped:
            suite.drill()  # after the races, because a slow subject has no time for all of the drills
        suite.walk()
        explore_on(suite, cut_short)

    return _worked(make, name, effort or Effort(), limits or ProgramLimits(), work, enough)


def replay(make: SubjectFactory, name: str, program: Program, *, effort: Effort | None = None) -> Conformance:
    """Play one program, and return what happens."""

    def work(suite: Suite) -> None:
        played = suite.judge(program)
        suite.result.told = Counterexample(Property.DECLARED_MOVE, "", played.steps).told()

    return _worked(make, name, effort or Effort(), ProgramLimits(), work)


def _worked(
    make: SubjectFactory,
    name: str,
    effort: Effort,
    limits: ProgramLimits,
    work: Callable[[Suite], None],
    enough: Callable[[Conformance], bool] | None = None,
) -> Conformance:
    suite = Suite(make, name or getattr(make, "__name__", str(make)), effort, limits, enough)
    result = suite.result
    try:
        with WATCHDOG.watching():
            with suite.players.judge() as first:
                result.features = first.features
                suite.stepped = first.stepped
            result.left_out = result.features.left_out
            work(suite)
    except SubjectFailed as failed:
        result.failed = failed
    finally:
        suite.players.close()
    result.failed = result.failed or suite.players.hangs_in_close
    result.seconds = time.monotonic() - suite.began
    return result
