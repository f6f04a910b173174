"""What the suites find in dispatchers that went wrong elsewhere, what they let pass, how deep they look."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from math import inf

import pytest

import lanes
from conforming import NEWER_FLAWS, Able, Plain, Reopens, Retries
from surroundings import ROOT, StandingStill
from turngate_model import Property
from turngate_model.properties import DurableProperty
from turngate_verify.conform import (
    Conformance,
    Effort,
    Features,
    Observed,
    Program,
    ProgramLimits,
    Subject,
    check,
    parsed,
    play,
)
from turngate_verify.conform.suites import Suite

pytestmark = pytest.mark.usefixtures("standing_clock")

EFFORTS = [
    pytest.param(Effort(programs=500, examples=10), id="less than by default"),
    pytest.param(Effort(programs=4000), id="by default", marks=pytest.mark.deep),
]
"""The clock of these tests stands still, so it is said here how many programs a subject plays by default."""
ALL = {"wait": True, "residue": True, "bursts": True}


def checked(make: Callable[[], Subject], effort: Effort) -> Conformance:
    result = check(make, effort=effort)
    assert result.failed is None, result.failed
    assert result.flaky == {}
    return result


SOUND = {
    "lanes": lanes.subject(lanes.Lanes, **ALL),
    "every operation": Able,
    "on death a turn is lost": Reopens,
    "on death a turn runs again": Retries,
}


@pytest.mark.parametrize("effort", EFFORTS)
@pytest.mark.parametrize("name", SOUND)
def test_what_is_sound_holds(name: str, effort: Effort) -> None:
    result = checked(SOUND[name], effort)
    assert (result.replays, result.verdict) == ({}, "holds")
    if "death" in name:
        assert result.checks(DurableProperty.DURABLE)["short"]["programs"] > 10


FOUND = {
    lanes.Zombies: (Property.ONE_TURN, "accept a, cancel, accept b"),
    lanes.MissesInTheSameTick: (Property.FULL_COVERAGE, "accept a + cancel"),
    lanes.LockRunsOut: (Property.ONE_TURN, "accept a, accept b, wait"),
    lanes.NewestOfThree: (Property.FIFO, "accept a, accept b, accept c, accept d, finish a"),
    lanes.StrandsAfterSix: (
        Property.NO_STRAND,
        "accept a, accept b, accept c, accept d, accept e, accept f, accept g, "
        "finish a, finish b, finish c, finish d, finish e, finish f",
    ),
    lanes.StrandsAfterSixInAll: (
        Property.NO_STRAND,
        "accept a, accept b, accept c, accept d, accept e, accept f, accept g, "
        "finish a, finish b, finish c, finish d, finish e, finish f",
    ),
    lanes.LosesAStart: (Property.NO_STRAND, "accept a, accept b, accept c, finish a, finish b"),
    lanes.LosesTheWakeUp: (Property.NO_STRAND, "accept a + accept b"),
    lanes.KeepsLanes: (
        Property.NO_RESIDUE,
        "residue, accept a, finish a, residue, accept b @2, finish b @2, residue, accept c @3, finish c @3, "
        "residue, accept d @4, finish d @4, residue, accept e @5, finish e @5, residue",
    ),
    lanes.KeepsFailures: (
        Property.NO_RESIDUE,
        "residue, accept a, fail a, residue, accept b, fail b, residue, accept c, fail c, residue, "
        "accept d, fail d, residue, accept e, fail e, residue",
    ),
}


@pytest.mark.parametrize("effort", EFFORTS)
@pytest.mark.parametrize("kind", FOUND, ids=lambda kind: kind.__name__)
def test_what_went_wrong_elsewhere_is_found(kind: type[lanes.Lanes], effort: Effort) -> None:
    broken, program = FOUND[kind]
    make = lanes.subject(kind, **ALL)
    result = checked(make, effort)
    assert result.replays[broken] == program
    again = play(make, parsed(program), ProgramLimits())
    assert broken in {each.property for each in again.violations}


@pytest.mark.parametrize("effort", EFFORTS)
@pytest.mark.parametrize("flaw", NEWER_FLAWS)
def test_a_flaw_in_what_not_every_subject_has_is_found(flaw: str, effort: Effort) -> None:
    kind, broken, program = NEWER_FLAWS[flaw]
    result = checked(lambda: kind(flaw), effort)
    assert broken in result.replays
    if program:
        assert len(parsed(result.replays[broken])) <= len(parsed(program))
        played = play(lambda: kind(flaw), parsed(program), ProgramLimits())
        assert broken in {each.property for each in played.violations}


def test_what_is_held_once_is_no_residue_but_what_grows_is() -> None:
    class Settles(Able):
        def residue(self) -> int:
            return min(len(self.session_of), 4)  # it fills up a bounded place, and stops growing

    assert checked(Settles, Effort(programs=30, examples=0)).verdict_of(Property.NO_RESIDUE) == "holds"


# How deep.


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
    """Return the depths and the numbers of programs as the annex about the port has them."""
    annex = (ROOT / "docs/spec/port.md").read_text(encoding="utf-8")
    section = annex.partition("## A.5")[2].partition("\n## ")[0]
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


@pytest.mark.parametrize("seconds", [0.1, 0.5, 0.9])
def test_a_subject_that_takes_real_time_holds_within_the_time_that_there_is_by_default(
    seconds: float, standing_clock: StandingStill
) -> None:
    """It plays fewer random programs, but some."""
    result = check(taking(standing_clock, seconds))
    assert (result.gave_up, result.counterexamples, result.verdict) == ("", {}, "holds")
    assert 3 <= max(result.examples.values()) <= 100


def test_a_subject_each_operation_of_which_takes_time_holds_within_the_time_by_default(
    standing_clock: StandingStill,
) -> None:
    class Slow(Plain):
        def observe(self) -> Sequence[Observed]:
            standing_clock.now += 0.12
            return super().observe()

    result = check(Slow)
    assert (result.gave_up, result.verdict) == ("", "holds")
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
