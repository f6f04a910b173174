"""Operations at every moment between two rests: after each callback of the operation before.

Only the moments of arrival vary. asyncio runs callbacks in their order, and so does the kit, because a
dispatcher may rely on that. The moments after the kit's own callbacks are left out: the subject has done
nothing since the moment before. Two programs that show the same are still both played further, because the
subject's internal state may differ.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from turngate_verify.conform.enabling import ProgramLimits, count_rare, enabled_at
from turngate_verify.conform.port import Features, SubjectFailed
from turngate_verify.conform.programs import LINE, REST, Op, Program, gaps, parsed
from turngate_verify.conform.result import Played

if TYPE_CHECKING:
    from turngate_verify.conform.suites import Examined, Suite

ONE_GAP = 4
"""Programs with one gap may take this part of the time: a quarter."""
MORE = 24
"""Each other stage, such as two gaps or two sessions, may take this part of it."""
SPARE = 0.5
"""When all else is done, stages that were cut short go on until this part of the time is over."""
DELAYS = (1, 5, 20)
"""The milliseconds between two operations, where a subject cannot be stepped."""
_RACES = (
    "accept a +0 cancel",
    "accept a +0 accept b",
    "accept a, finish a +0 cancel",
    "accept a, finish a +0 accept b",
    "accept a, cancel +0 accept b",
    "accept a, accept b, finish a +0 cancel",
)
_LINE_RACES = (
    ("accept a, accept b, hold, finish a, resume", "hold"),
    ("accept a, accept b, hold, finish a, resume_run b", "hold"),
    ("accept a, accept b, finish a, hold", "hold"),
    ("accept a, accept b, hold, finish a", "hold"),
    ("accept a, accept b, hold, cancel, resume", "hold cancel"),
    ("accept a, accept b, hold, resume, finish a", "hold"),
    ("accept a, accept b, finish a, stop", "stop"),
    ("accept a, accept b, stop, resume", "stop hold"),
    ("accept a, accept b, stop, accept c", "stop"),
    ("accept a, accept b, accept c, finish a, move c b", "move"),
    ("accept a, accept b, accept c, move c b, finish a", "move"),
    ("accept a, accept b, accept c, move c b, cancel", "move cancel"),
    ("accept a, accept b, finish a, edit b", "edit"),
    ("accept a, accept b, edit b, finish a", "edit"),
    ("accept a, accept b, edit b, fold a", "edit folds"),
    ("accept a, accept b, fold a, edit b", "edit folds"),
    ("accept a, accept b, accept c, finish a, send_now c", "send_now"),
    ("accept a, accept b, accept c, send_now c, finish a", "send_now"),
    ("accept a, accept b, accept c, send_now c, cancel", "send_now cancel"),
    ("accept a, finish a, into b a", "into"),
    ("accept a, cancel, into b a", "into cancel"),
    ("accept a, into b a, finish a", "into"),
    ("accept a, into b a, fold a, finish a", "into folds"),
)
"""Races on waiting runs, and the features that each needs."""
_LIMITS = ProgramLimits(prompts=3, cancels=2, sessions=1, extras=1, line=0)


def explore(suite: Suite) -> list[_Stage]:
    """Play every program mid-flight, shortest first; return the stages for which the time was too short."""
    most = suite.effort.mid_flight
    if not most:
        return []
    if not suite.stepped:
        _sweep(suite)
        return []
    flown: set[Program] = set()
    stages = [(_Stage(suite, flown, "with one gap", _LIMITS, most), ONE_GAP)]
    if suite.limits.sessions > 1:
        two = _LIMITS._replace(sessions=2)
        stages.append((_Stage(suite, flown, "in two sessions", two, most), MORE))
    rare = _LIMITS._replace(extras=2)
    stages.append((_Stage(suite, flown, "with two rare operations", rare, most), MORE))
    stages.append((_Stage(suite, flown, "with two gaps", _LIMITS, most, gaps=2), MORE))
    if suite.result.features.has_line:
        lined = _LIMITS._replace(extras=0, cancels=1, line=2)
        two_phase = suite.result.features.two_phase
        _sweep_line(suite)
        stages.append((_Stage(suite, flown, "on what waits in line", lined, most + two_phase), MORE))
    for stage, share in stages:
        stage.play(time.monotonic() + suite.effort.seconds / share)
    return [stage for stage, _ in stages if not stage.over]


def explore_on(suite: Suite, stages: list[_Stage]) -> None:
    """Continue the stages that were cut short, until half of the time is over."""
    end = suite.began + suite.effort.seconds * SPARE
    for left, stage in zip(range(len(stages), 0, -1), stages, strict=True):
        now = time.monotonic()
        stage.play(now + (end - now) / left)


def _sweep_line(suite: Suite) -> None:
    """Play the races on waiting runs, with the last operation at every moment after the one before."""
    features = suite.result.features
    for text, needs in _LINE_RACES:
        if not set(needs.split()) <= set(features.names):
            continue
        *first, raced_with = parsed(text)
        before = _entering(tuple(first), features, 0)
        last = _entering((raced_with,), features, 0)
        examined = suite.in_time(before)
        if examined is None:
            return
        for gap in range(len(examined.played.moments) - 1):
            program = (*before[:-1], before[-1]._replace(gap=gap), *last)
            if (raced := suite.in_time(program)) is None:
                return
            suite.result.mid_flight.executions += 1
            suite.account(program, raced, suite.result.in_flight)


def _sweep(suite: Suite) -> None:
    """Play a few races with short delays, on a subject that cannot be stepped."""
    features = suite.result.features
    if not features.bursts:
        return
    races = [parsed(text) for text in _RACES if features.cancel or "cancel" not in text]
    programs = [_entering(race, features, delay) for delay in DELAYS for race in races]
    for program, examined in zip(programs, suite.players.map(suite.in_time, programs), strict=True):
        if examined is None:
            return
        suite.result.mid_flight.executions += 1
        suite.account(program, examined, suite.result.in_flight)
    delays = ", ".join(map(str, DELAYS))
    suite.result.mid_flight.operations[f"in six races with delays of {delays} ms"] = 4


def _entering(race: Program, features: Features, delay: int) -> Program:
    """Return a race with this delay; if the subject is two-phase, what is accepted enters as well."""
    program: Program = ()
    for op in race:
        gap = delay if op.gap != REST else REST
        if op.name == "accept" and features.two_phase:
            program += (op._replace(gap=REST), Op("enter", op.run, op.place, gap))
        else:
            program += (op._replace(gap=gap),)
    return program


class _Stage:
    """One set of programs, and how far it was played. It can be continued."""

    def __init__(
        self, suite: Suite, flown: set[Program], name: str, limits: ProgramLimits, most: int, *, gaps: int = 1
    ) -> None:
        self._suite = suite
        self._flown = flown
        self._name = name
        self._limits = limits
        self._most = most
        self._gaps = gaps
        self._until = 0.0
        self._played = 0
        self._length = 0
        self._level: list[Program] = []
        self._next = 0
        """The number of the first program of the level that has not been played."""
        self._longer: list[Program] = [(Op("accept", "a"),)]
        if suite.result.features.reject:
            self._longer.append((Op("reject", "a"),))
        self._begin_level()

    @property
    def over(self) -> bool:
        """Whether there is nothing left to play."""
        return self._next == len(self._level)

    def _begin_level(self) -> None:
        self._length += 1
        level, self._longer, self._next = sorted(self._longer, key=gaps, reverse=True), [], 0
        if self._length == self._most:
            level = [program for program in level if self._is_new(program)]
        enough = self._length > self._most or self._played + len(level) > self._suite.effort.programs
        self._level = [] if enough else level

    def play(self, until: float) -> None:
        """Play programs, one length after the other, up to this time."""
        self._until = until
        while not self.over:
            left = self._level[self._next :]
            for program, examined in zip(left, self._suite.players.map(self._in_time, left), strict=True):
                if examined is None:
                    return
                self._next += 1
                self._take(program, examined)
            self._played += len(self._level)
            if self._length > 1:
                self._suite.result.mid_flight.operations[self._name] = self._length
            self._begin_level()

    def _is_new(self, program: Program) -> bool:
        """Return whether a program of the last length is worth playing."""
        in_two = len({op.place for op in program}) > 1
        if self._limits.line and not any(op.name in LINE for op in program):
            return False
        rare = self._limits.extras < 2 or count_rare(program) == self._limits.extras
        return gaps(program) == self._gaps and rare and (self._limits.sessions == 1 or in_two)

    def _in_time(self, program: Program) -> Examined | SubjectFailed | None:
        """Play a program, unless time has run out. A fault that raises in one program may hang in another."""
        if time.monotonic() > self._until or self._suite.over:
            return None
        try:
            return self._suite.examine(program)
        except SubjectFailed as failed:
            self._suite.players.stopped = None
            return failed

    def _take(self, program: Program, examined: Examined | SubjectFailed) -> None:
        """Count what a program shows, if no other stage has played it, and make it longer."""
        result = self._suite.result
        if isinstance(examined, SubjectFailed):
            result.failed = result.failed or examined
            return
        if program not in self._flown:
            self._flown.add(program)
            result.mid_flight.executions += 1
            result.mid_flight.moments_cut += examined.played.moments_cut
            if gaps(program):
                self._suite.account(program, examined, result.in_flight)
        if examined.sound and self._length < self._most:
            self._longer += self._one_longer(program, examined.played)

    def _one_longer(self, program: Program, played: Played) -> list[Program]:
        """Return the program with one more operation, at every moment after its last."""
        features, more = self._suite.result.features, gaps(program) < self._gaps
        longer: list[Program] = []
        for gap, moment in enumerate(played.moments):
            at_rest = gap == len(played.moments) - 1
            if not at_rest and not more:
                continue
            head = (*program[:-1], program[-1]._replace(gap=REST if at_rest else gap))
            longer += [(*head, op) for op in enabled_at(program, moment, features, self._limits)]
        return longer
