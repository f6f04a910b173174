"""How deep the kit looks: by the speed of the subject, with fewer programs for the same states."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from math import inf

import pytest

from conforming import Able, Plain
from surroundings import ROOT, StandingStill
from turngate_verify.conform import Effort, Features, Program, ProgramLimits, check, play
from turngate_verify.conform.suites import Suite

pytestmark = pytest.mark.usefixtures("standing_clock")


class OnePhase(Able):
    def accept(self, session: str, run: str) -> None:
        super().accept(session, run)
        if not self.features.two_phase:
            self.enter(run)


KINDS = (Features(), Features(two_phase=True, folds=True, clear=True, messages=True), Able.features)


def made(features: Features, sessions: int, depth: int) -> int:
    """Return how many subjects are made to play every short program up to a depth."""
    count = itertools.count()

    def make() -> Plain:
        next(count)
        subject = OnePhase()
        subject.features = features
        return subject

    effort = Effort(programs=100_000, depth=depth, seconds=inf)
    suite = Suite(make, "it", effort, ProgramLimits())
    suite.enumerate(sessions)
    assert suite.result.depths == {sessions: depth}
    return next(count)


def table() -> list[tuple[int, list[int]]]:
    """Return the depths and the numbers of programs as section 12.5 of SPEC.md has them."""
    spec = (ROOT / "SPEC.md").read_text(encoding="utf-8")
    section = spec.partition("### 12.5")[2].partition("\n## ")[0]
    rows = [re.findall(r"[\d,]+", line) for line in section.splitlines() if re.match(r"\| \d", line)]
    return [(int(row[0]), [int(cell.replace(",", "")) for cell in row[1:]]) for row in rows]


@pytest.mark.parametrize(
    "most", [pytest.param(1_000, id="small"), pytest.param(100_000, id="all", marks=pytest.mark.deep)]
)
def test_the_table_says_what_depth_costs(most: int) -> None:
    rows = table()
    assert [depth for depth, _ in rows] == [2, 3, 4, 5]
    for depth, cells in rows:
        columns = itertools.product((1, 2), KINDS)
        for (sessions, features), count in zip(columns, cells, strict=True):
            if count <= most:
                assert made(features, sessions, depth) == count, (depth, sessions, features)


def taking(clock: StandingStill, seconds: float) -> Callable[[], Plain]:
    """Make subjects each of which takes so long, by a clock that otherwise stands still."""

    def make() -> Plain:
        clock.now += seconds
        return Plain()

    return make


def test_a_fast_subject_is_looked_at_deeper_than_a_slow_one(standing_clock: StandingStill) -> None:
    effort = Effort(examples=0, seconds=120.0)
    depths = {}
    for seconds in (0.002, 0.02, 0.2, 1.0):
        result = check(taking(standing_clock, seconds), effort=effort)
        depths[seconds] = result.depths[1]
        assert result.failed is None
    assert depths == {0.002: 6, 0.02: 5, 0.2: 4, 1.0: 3}


def test_a_slow_subject_has_half_of_the_time_left_for_long_programs(standing_clock: StandingStill) -> None:
    result = check(taking(standing_clock, 1.0), effort=Effort(examples=5, seconds=240.0))
    assert (result.depths[1], result.gave_up) == (4, "")
    assert result.drills


def naive(depth: int) -> int:
    """Count the programs of one session up to a depth, however they are ordered."""
    programs: list[Program] = [()]
    count = 0
    for _ in range(depth):
        programs = [
            (*program, op)
            for program in programs
            for op in play(Plain, program, ProgramLimits()).enabled
            if op.place == 0
        ]
        count += len(programs)
    return count


def test_programs_that_reach_the_same_state_in_another_order_are_not_made_longer() -> None:
    result = check(Plain, effort=Effort(depth=5, examples=0), limits=ProgramLimits(sessions=1))
    assert result.depths == {1: 5}
    assert result.played < naive(5) * 0.75
