"""Operations at every moment between two rests: after each callback of the operation before.

Only the moments of arrival vary. asyncio runs callbacks in their order, and so does the kit: a dispatcher
may rely on that. The moments after the kit's own callbacks are left out, for nothing of the subject has
happened since the moment before. No two programs are taken for the same because they have shown the same:
their insides may differ.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from turngate_verify.conform.enabling import ProgramLimits, enabled_at
from turngate_verify.conform.port import Features, SubjectFailed
from turngate_verify.conform.programs import LINE, REST, Op, Program, gaps, parsed
from turngate_verify.conform.result import Played

if TYPE_CHECKING:
    from turngate_verify.conform.suites import Examined, Suite

ONE_GAP = 4
"""Programs with one gap are worth this part of the time: a quarter."""
MORE = 24
"""Those with two gaps, and those in two sessions, are worth this part of it, each."""
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
"""Races on what waits in line, and the features that each needs."""
_LIMITS = ProgramLimits(prompts=3, cancels=2, sessions=1, extras=1, line=0)


def explore(suite: Suite) -> None:
    """Play every program mid-flight, shortest first: with one gap, in two sessions, and with two gaps."""
    most = suite.effort.mid_flight
    if not most:
        return
    if not suite.stepped:
        _sweep(suite)
        return
    _Stage(suite, "with one gap", _LIMITS, most, ONE_GAP).play(most_gaps=1)
    if suite.limits.sessions > 1:
        two = _LIMITS._replace(sessions=2, cancels=1)
        _Stage(suite, "in two sessions", two, min(most, 4), MORE).play(most_gaps=1)
    _Stage(suite, "with two gaps", _LIMITS, most, MORE).play(most_gaps=2)
    if suite.result.features.has_line:
        lined = _LIMITS._replace(extras=0, cancels=1, line=2)
        most += suite.result.features.two_phase
        _sweep_line(suite)
        _Stage(suite, "on what waits in line", lined, most, MORE).play(most_gaps=1)


def _sweep_line(suite: Suite) -> None:
    """Play the races on what waits in line, with the last operation at every moment after the one before."""
    features = suite.result.features
    for text, needs in _LINE_RACES:
        if not set(needs.split()) <= set(features.names):
            continue
        *before, last = _entering(parsed(text), features, 0)
        examined = suite.in_time(tuple(before))
        if examined is None:
            return
        for gap in range(len(examined.played.moments) - 1):
            program = (*before[:-1], before[-1]._replace(gap=gap), last)
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
    """One set of programs, and how far it was played."""

    def __init__(self, suite: Suite, name: str, limits: ProgramLimits, most: int, share: int) -> None:
        self._suite = suite
        self._name = name
        self._limits = limits
        self._most = most
        self._until = time.monotonic() + suite.effort.seconds / share
        self._played = 0

    def play(self, *, most_gaps: int) -> None:
        """Play programs, one length after the other, as long as there is time."""
        suite = self._suite
        level: list[Program] = [(Op("accept", "a"),)]
        if suite.result.features.reject:
            level.append((Op("reject", "a"),))
        for length in range(1, self._most + 1):
            last = length == self._most
            level = [program for program in level if self._is_new(program, last, most_gaps)]
            if not level or self._played + len(level) > suite.effort.programs:
                return
            longer: list[Program] = []
            for program, examined in zip(level, suite.players.map(self._in_time, level), strict=True):
                if examined is None:
                    return
                if isinstance(examined, SubjectFailed):
                    suite.result.failed = suite.result.failed or examined
                    continue
                self._account(program, examined)
                if examined.sound and not last:
                    longer += self._longer(program, examined.played, most_gaps)
            self._played += len(level)
            if length > 1:
                suite.result.mid_flight.operations[self._name] = length
            level = sorted(longer, key=gaps, reverse=True)

    def _is_new(self, program: Program, last: bool, most_gaps: int) -> bool:
        """Tell whether a program is worth playing: a last one that is waited for throughout is not."""
        if not last:
            return True
        in_two = len({op.place for op in program}) > 1
        if self._limits.line and not any(op.name in LINE for op in program):
            return False
        return gaps(program) == most_gaps and (self._limits.sessions == 1 or in_two)

    def _in_time(self, program: Program) -> Examined | SubjectFailed | None:
        """Play a program, unless time has run out. What raises in one program may hang or lose in another."""
        if time.monotonic() > self._until or self._suite.over:
            return None
        try:
            return self._suite.examine(program)
        except SubjectFailed as failed:
            self._suite.players.stopped = None
            return failed

    def _account(self, program: Program, examined: Examined) -> None:
        result = self._suite.result
        result.mid_flight.executions += 1
        result.mid_flight.moments_cut += examined.played.moments_cut
        if gaps(program):
            self._suite.account(program, examined, result.in_flight)

    def _longer(self, program: Program, played: Played, most_gaps: int) -> list[Program]:
        """Return the program with one more operation, at every moment after its last."""
        features, more = self._suite.result.features, gaps(program) < most_gaps
        longer: list[Program] = []
        for gap, moment in enumerate(played.moments):
            at_rest = gap == len(played.moments) - 1
            if not at_rest and not more:
                continue
            head = (*program[:-1], program[-1]._replace(gap=REST if at_rest else gap))
            longer += [(*head, op) for op in enabled_at(program, moment, features, self._limits)]
        return longer
