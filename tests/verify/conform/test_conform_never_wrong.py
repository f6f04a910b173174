"""The kit accuses nobody falsely: subjects that are slow, unsteady, or right in another order."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest

from conforming import Able, Plain
from surroundings import StandingStill
from turngate_model import Property
from turngate_verify.conform import (
    AsyncioSubject,
    Complete,
    Conformance,
    Effort,
    Features,
    Handoff,
    Observed,
    ProgramLimits,
    RunnerFailed,
    Timing,
    check,
    parsed,
    play,
    replay,
)

pytestmark = pytest.mark.usefixtures("standing_clock")

QUICK = Effort(programs=600, examples=20)


def replayed(make: Any, program: str) -> Conformance:
    result = replay(make, "it", parsed(program))
    assert result.failed is None
    return result


class Completing(Plain):
    """Completes a run as soon as it has entered, and then goes on as it should."""

    features = Features(two_phase=True)

    def enter(self, run: str) -> None:
        super().enter(run)
        self.seen.append(Complete(run, cancelled=False))
        self.lane("s1").turn.clear()


def test_what_is_shown_after_an_offence_is_read_before_anything_is_said_to_be_owed() -> None:
    result = replayed(Completing, "accept a, enter a")
    assert set(result.replays) == {Property.DECLARED_MOVE}
    assert result.told == ["accept a", "enter a: active"]


class AnyOrder(Able):
    """Completes what a cancel drops in an order that changes from one time to the next."""

    order = itertools.cycle((1, -1))

    def cancel(self, session: str) -> None:
        seen = len(self.seen)
        super().cancel(session)
        dropped = [event for event in self.seen[seen:] if isinstance(event, Complete)]
        rest = [event for event in self.seen[seen:] if not isinstance(event, Complete)]
        self.seen[seen:] = [*rest, *dropped[:: next(self.order)]]


def test_the_order_in_which_a_cancel_completes_several_runs_is_free() -> None:
    program = (
        "accept a, enter a, accept b, enter b, accept c, enter c, accept d @2, cancel @2, cancel @2, cancel"
    )
    for idle in ("", ", accept e, cancel @3"):
        result = replayed(AnyOrder, program + idle)
        assert (result.replays, result.flaky) == ({}, {})
    result = check(AnyOrder, effort=QUICK)
    assert (result.counterexamples, result.flaky, result.failed) == ({}, {}, None)


class Worded(Able):
    """Says in every error how many things there were before it."""

    count = itertools.count()

    def clear(self, session: str) -> None:
        seen = len(self.seen)
        super().clear(session)
        self.seen[seen:] = [
            event._replace(error=f"number {next(self.count)}") if isinstance(event, Complete) else event
            for event in self.seen[seen:]
        ]


def test_the_words_of_an_error_are_free() -> None:
    assert check(Worded, effort=QUICK).counterexamples == {}


class Slow(Plain):
    def __init__(self, clock: StandingStill) -> None:
        super().__init__("completes twice")
        clock.now += 0.5


def test_running_out_of_time_while_something_is_made_short_is_no_failure(
    standing_clock: StandingStill,
) -> None:
    result = check(
        lambda: Slow(standing_clock),
        effort=Effort(programs=0, examples=50, seconds=4.0),
        limits=ProgramLimits(),
    )
    assert (result.failed, result.gave_up) == (None, "time ran out after 4 s")
    assert result.verdict_of(Property.EXACTLY_ONE_COMPLETE) == "violated"


def test_running_out_of_time_takes_back_nothing_that_holds(standing_clock: StandingStill) -> None:
    class Sound(Plain):
        def __init__(self) -> None:
            super().__init__()
            standing_clock.now += 0.1

    result = check(Sound, effort=Effort(programs=500, examples=10_000, seconds=300.0))
    assert result.gave_up
    assert result.verdict == "unknown"
    held = {each for each in result.judged if result.verdict_of(each) == "holds"}
    assert held == set(result.judged) - set(result.not_shown)


@pytest.mark.parametrize("effort", [QUICK, Effort(programs=0, examples=60)], ids=["short", "random"])
def test_what_does_not_come_back_is_flaky_with_both_transcripts(effort: Effort) -> None:
    chance = random.Random(1)

    def unsteady() -> Plain:
        return Plain("completes twice" if chance.random() < 0.3 else "")

    result = check(unsteady, effort=effort)
    assert result.counterexamples == {}
    assert (result.verdict, result.failed) == ("flaky", None)
    finding = result.flaky[Property.EXACTLY_ONE_COMPLETE]
    assert finding.example.what.endswith("gets a second RunComplete: one was enough")
    assert finding.again[:2] == finding.example.told()[:2]
    assert finding.again != finding.example.told()
    assert result.verdict_of(Property.EXACTLY_ONE_COMPLETE) == "flaky"
    assert result.verdict_of(Property.DECLARED_MOVE) == "holds"
    assert finding.program in result.replay_command(Property.EXACTLY_ONE_COMPLETE)


def test_what_comes_back_after_all_is_violated() -> None:
    made = itertools.count()

    def settling() -> Plain:
        # It is broken the first time and again from the twentieth on.
        return Plain("completes twice" if (n := next(made)) == 3 or n > 20 else "")

    result = check(settling, effort=QUICK)
    assert result.verdict_of(Property.EXACTLY_ONE_COMPLETE) == "violated"
    assert Property.EXACTLY_ONE_COMPLETE not in result.flaky


class LosesTheCleared(Plain):
    def clear(self, session: str) -> None:
        self.lane(session).queue.clear()


def test_a_run_that_clear_loses_is_owed_and_nobody_has_overtaken_it() -> None:
    program = "accept a, enter a, accept b, enter b, clear, accept c, enter c, finish a"
    result = replayed(LosesTheCleared, f"{program}, finish c")
    assert result.replays == {Property.EXACTLY_ONE_COMPLETE: f"{program}, finish c"}
    example = result.counterexamples[Property.EXACTLY_ONE_COMPLETE]
    assert example.what == "b gets no RunComplete: the queue was cleared, and it is never heard of again"
    assert example.told()[-2:] == [
        "the turn of a ends: RunComplete of a: finished, c becomes active",
        "the turn of c ends: RunComplete of c: finished",
    ]


class Coalesces(Plain):
    """Gives whoever waits the answer of the run before."""

    features = Features(two_phase=True)

    def finish(self, run: str) -> None:
        lane = self.lane(self.session_of[run])
        queued, lane.queue = lane.queue, []
        super().finish(run)
        self.seen += [Complete(each, cancelled=False) for each in queued]


def test_a_run_that_completes_and_never_ran_is_said_to_be_just_that() -> None:
    result = replayed(Coalesces, "accept a, enter a, accept b, enter b, finish a")
    assert set(result.replays) == {Property.DECLARED_MOVE}
    assert result.counterexamples[Property.DECLARED_MOVE].what == (
        "b completes as finished, and never ran: its caller got the answer of another run, or none"
    )


def test_what_an_offence_cuts_short_is_not_said_to_be_stranded() -> None:
    result = replayed(Coalesces, "accept a, enter a, accept b, enter b, accept c, enter c, finish a")
    assert set(result.replays) == {Property.DECLARED_MOVE}
    assert result.told[-1].endswith("RunComplete of b: finished, RunComplete of c: finished")


class TakesItsTime(AsyncioSubject):
    """Starts a turn after twenty seconds of virtual time, and tells how it ended after twenty more."""

    __test__ = False
    features = Features(cancel=False)

    def start(self) -> None:
        self.locks: dict[str, asyncio.Lock] = {}

    async def do_accept(self, session: str, run: str) -> None:
        error = None
        async with self.locks.setdefault(session, asyncio.Lock()):
            await asyncio.sleep(20.0)
            try:
                await self.runner(run)
            except RunnerFailed as failed:
                error = str(failed)
            await asyncio.sleep(20.0)
            self.completed(run, error=error)


def test_what_comes_after_a_while_of_virtual_time_is_waited_for() -> None:
    result = check(TakesItsTime, effort=QUICK)
    assert (result.replays, result.flaky, result.failed, result.verdict) == ({}, {}, None, "holds")


class TimesOut(Able):
    """Ends a turn by itself after a while, and says so: a time limit on turns is nobody's offence."""

    def wait(self) -> None:
        for lane in self.lanes.values():
            if lane.turn:
                self.end(lane, error="took too long")


def test_a_turn_that_ends_by_itself_is_not_said_to_complete_early() -> None:
    played = play(TimesOut, parsed("accept a, enter a, accept b, enter b, wait, finish b"), ProgramLimits())
    assert (played.violations, played.late) == ((), ())


class HoldsPlaces(Able):
    """Has one place for all runners: the second turn is active, and waits for it."""

    def working(self) -> list[str]:
        return super().working()[:1]


def test_a_turn_whose_runner_waits_for_a_place_is_not_said_to_be_over() -> None:
    played = play(
        HoldsPlaces, parsed("accept a, enter a, accept b @2, enter b @2, finish a"), ProgramLimits()
    )
    assert (played.violations, played.late) == ((), ())


class EndsBetween(Able):
    """Ends a turn by itself, after the fourth operation and before the fifth is asked for."""

    features = Features(two_phase=True, real_time=True)
    timing = Timing(quiet=0.0)
    asked = 0

    def observe(self) -> Sequence[Observed]:
        self.asked += 1
        if self.asked == 9:  # each operation looks once before and once after
            self.end(self.lane("s1"), error="took too long")
        return super().observe()


def test_what_a_real_time_subject_shows_late_belongs_before_the_next_operation() -> None:
    program = parsed("accept a, enter a, accept b, enter b, cancel")
    played = play(EndsBetween, program, ProgramLimits())
    assert (played.violations, played.late) == ((), ())
    assert str(played.steps[3]) == "enter b: queued"
    assert played.steps[3].events[-2:] == (Complete("a", False, "took too long"), Handoff("b"))
