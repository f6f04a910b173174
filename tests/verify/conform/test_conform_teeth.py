"""What real dispatchers have done wrong, each built once, and found with the default settings."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import lanes
from conforming import NEWER_FLAWS, Able, Reopens, Retries
from turngate_model import Property
from turngate_model.properties import DurableProperty
from turngate_verify.conform import Conformance, Effort, ProgramLimits, Subject, check, parsed, play

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
    lanes.MissesInTheSameTick: (Property.FULL_COVERAGE, "accept a + cancel, finish a"),
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
    lanes.LosesTheWakeUp: (Property.NO_STRAND, "accept a + accept b, finish b"),
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
