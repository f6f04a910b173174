"""Operations between two callbacks: what the kit finds there, and that it accuses nothing that is right."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import flights
import ledger_flight
import other_flights
from flights import Awaited, Flight, flight
from ledgers import ledgers
from turngate_model import Property
from turngate_verify.conform import (
    AsyncioSubject,
    BadProgram,
    Effort,
    Features,
    ProgramLimits,
    RealtimeSubject,
    Timing,
    check,
    parsed,
    play,
    replay,
    written,
)

pytestmark = pytest.mark.usefixtures("standing_clock")

EFFORTS = [
    pytest.param(Effort(programs=150, depth=2, examples=3), id="a little"),
    pytest.param(Effort(programs=4000, depth=4), id="much", marks=pytest.mark.deep),
]
SEARCHES = [
    pytest.param(Effort(programs=450, depth=2, examples=3), id="a little"),
    EFFORTS[1],
]
NEEDS_MORE = {
    (flights.HandsOffTwice, Flight),
    (flights.HandsOffTwice, Awaited),
    (flights.CoversLater, Awaited),
}


@pytest.mark.parametrize("effort", EFFORTS)
@pytest.mark.parametrize("adapter", [Flight, Awaited], ids=lambda adapter: adapter.__name__)
@pytest.mark.parametrize("kind", flights.RIGHT, ids=lambda kind: kind.__name__)
def test_no_right_dispatcher_is_accused(kind: type[Any], adapter: type[Flight], effort: Effort) -> None:
    result = check(flight(kind, adapter), effort=effort)
    assert (result.failed, result.replays, result.flaky, result.unjudged) == (None, {}, {}, {})
    assert result.verdict == "holds", result.summary
    assert result.races == "tried"
    assert result.undecided == 0


@pytest.mark.parametrize("effort", SEARCHES)
@pytest.mark.parametrize("adapter", [Flight, Awaited], ids=lambda adapter: adapter.__name__)
@pytest.mark.parametrize("kind", flights.WRONG, ids=lambda kind: kind.__name__)
def test_a_bug_between_two_awaits_is_found(kind: type[Any], adapter: type[Flight], effort: Effort) -> None:
    if (kind, adapter) in NEEDS_MORE and effort.programs < 1000:
        pytest.skip("it takes two gaps, or more operations than are played here")
    make = flight(kind, adapter)
    result = check(make, effort=effort)
    assert result.failed is None
    assert result.verdict == "violated", result.summary
    for broken, program in result.replays.items():
        assert "+" in program  # it takes an operation that was not waited for
        again = replay(make, "it", parsed(program))
        assert broken in again.counterexamples


@pytest.mark.parametrize(
    ("make", "effort"),
    [
        *((make, Effort(programs=150, depth=2, examples=3)) for make in other_flights.RIGHT[::2]),
        *(pytest.param(make, EFFORTS[1].values[0], marks=pytest.mark.deep) for make in other_flights.RIGHT),
    ],
)
def test_no_right_dispatcher_of_another_architecture_is_accused(
    make: type[AsyncioSubject], effort: Effort
) -> None:
    result = check(make, effort=effort)
    assert (result.failed, result.replays, result.flaky, result.unjudged) == (None, {}, {}, {})
    assert result.verdict == "holds", result.summary
    assert result.undecided == 0


class LastFirst(other_flights.InTwoPhases):
    """Lets the run that was accepted last go first."""

    def begin(self, session: str, run: str) -> None:
        line = [run, *self.line.pop(session, ())]
        last = max(line, key=list(self.accepted).index)
        line.remove(last)
        self.line[session] = line
        super().begin(session, last)


@pytest.mark.parametrize("gap", [",", " +", " +1", " +4"])
def test_a_run_that_enters_mid_flight_may_wait_ahead_of_one_that_was_accepted_later(gap: str) -> None:
    program = parsed(f"accept a, accept b, enter a, accept c, enter c, enter b{gap} finish a, finish b")
    assert replay(other_flights.InTwoPhases, "it", program).counterexamples == {}
    if gap == ",":
        assert Property.FIFO in replay(LastFirst, "it", program).counterexamples


@pytest.mark.parametrize("make", other_flights.WRONG, ids=lambda make: make.__name__)
def test_a_bug_in_what_few_dispatchers_can_do_is_found(make: type[AsyncioSubject]) -> None:
    effort = Effort(programs=1000, depth=2, examples=0)
    result = check(make, effort=effort, enough=lambda result: bool(result.counterexamples))
    assert result.failed is None
    assert result.verdict == "violated", result.summary
    assert all("+" in program for program in result.replays.values())


@pytest.mark.parametrize("kind", flights.WRONG[:4], ids=lambda kind: kind.__name__)
def test_without_it_the_same_dispatchers_hold(kind: type[Any]) -> None:
    result = check(flight(kind), effort=Effort(programs=150, depth=3, examples=3, mid_flight=0))
    assert (result.verdict, result.races) == ("holds", "not tried")


def test_a_program_says_how_many_callbacks_there_are_in_between() -> None:
    text = "accept a + accept b, finish a +2 cancel +11 accept c"
    assert written(parsed(text)) == text
    assert [op.gap for op in parsed(text)] == [0, -1, 2, 11, -1]
    assert parsed("accept a +0 cancel") == parsed("accept a + cancel")
    for wrong in ("accept a +x cancel", "accept a +-1 cancel", "accept a+2 cancel"):
        with pytest.raises(BadProgram):
            parsed(wrong)


def test_a_replay_tells_the_gaps_and_what_was_lost_on_the_way() -> None:
    result = replay(
        flight(flights.DequeuesThenStarts), "it", parsed("accept a, accept b, finish a +2 cancel")
    )
    (example,) = result.counterexamples.values()
    assert example.property is Property.FULL_COVERAGE
    assert example.told()[2:4] == [
        "the turn of a ends: RunComplete of a: finished, b becomes active, and 2 callbacks later",
        "cancel",
    ]
    lost = replay(flight(flights.LosesInTheTick), "it", parsed("accept a + cancel"))
    assert "a hangs" in lost.counterexamples[Property.EXACTLY_ONE_COMPLETE].what
    right = replay(flight(flights.Steps), "it", parsed("accept a + cancel"))
    assert right.told[-2:] == ["accept b: b is active", "the turn of b ends: RunComplete of b: finished"]


class Declared(Flight):
    returns_when_done = True


class Lax(flights.Steps):
    """A cancel that finds the runner over, and its caller not yet answered, does nothing."""

    def cover(self, session: str) -> None:
        if session in self.turns and not self.turns[session].done():
            super().cover(session)


def test_who_declares_that_operations_are_done_is_held_to_it() -> None:
    program = parsed("accept a, finish a +1 cancel")
    assert play(flight(Lax), program, ProgramLimits()).violations == ()
    (broken,) = play(flight(Lax, Declared), program, ProgramLimits()).violations
    assert broken.property is Property.FULL_COVERAGE
    for kind in (flights.Steps, flights.Locks, flights.Actor):
        result = check(flight(kind, Declared), effort=Effort(programs=150, depth=2, examples=3))
        assert result.verdict == "holds", result.replays


class Everything(flights.Steps):
    """A right dispatcher that can interrupt, refuse and cancel one run."""

    async def interrupt(self, session: str, prompt: str) -> flights.Answer:
        self.cover(session)
        return await self.submit(session, prompt)

    async def cancel_run(self, session: str, prompt: str) -> None:
        for entry in list(self.queue[session]):
            if entry[0] == prompt:
                self.queue[session].remove(entry)
                entry[1].cancel()
                return
        if session in self.turns and self.leads.get(session) == prompt:
            self.covered.add(session)
            self.turns[session].cancel()

    def __init__(self, run: flights.Runner) -> None:
        super().__init__(run)
        self.leads: dict[str, str] = {}

    def begin(self, session: str, prompt: str, answer: flights.Answer) -> None:
        self.leads[session] = prompt
        super().begin(session, prompt, answer)


class InterruptsInTwo(Everything):
    """Wrong: a prompt that interrupts is taken in after a trip to the database, and may be covered itself."""

    async def interrupt(self, session: str, prompt: str) -> flights.Answer:
        answer = flights.future()
        self.take_in(session, prompt, answer)
        await flights.database()
        for entry in list(self.queue[session]):
            if entry[1] is not answer:
                self.queue[session].remove(entry)
                entry[1].cancel()
        if session in self.turns:
            self.covered.add(session)
            self.turns[session].cancel()
        return answer


class Full(Flight):
    features = Features(clear=True, cancel_run=True, interrupt=True, reject=True, residue=True)

    async def do_interrupt(self, session: str, run: str) -> None:
        self.watch(run, await self.mine.interrupt(session, run))

    async def do_reject(self, session: str, run: str) -> None:
        if session in self.mine.turns:
            self.refused(run)
        else:
            await self.do_accept(session, run)

    async def do_cancel_run(self, run: str) -> None:
        await self.mine.cancel_run(self._session_of[run], run)

    def residue(self) -> int:
        return len(self.mine.turns) + sum(map(len, self.mine.queue.values()))


@pytest.mark.parametrize("effort", [Effort(programs=300, depth=2, examples=3), EFFORTS[1]])
def test_the_rarer_operations_arrive_mid_flight_as_well(effort: Effort) -> None:
    result = check(flight(Everything, Full), effort=effort)
    assert (result.failed, result.replays, result.flaky) == (None, {}, {})
    assert result.verdict == "holds", result.summary
    assert result.in_flight[Property.ISOLATION] > 0
    result = check(flight(InterruptsInTwo, Full), effort=effort)
    assert result.verdict == "violated"


def test_what_one_session_does_to_another_mid_flight_is_found() -> None:
    class OneFlag(flights.Steps):
        """Wrong: while one session is cancelled, the prompts of all are."""

        cancelling = False

        async def cancel(self, session: str) -> None:
            OneFlag.cancelling = True
            await flights.database()
            OneFlag.cancelling = False
            self.cover(session)

        def take_in(self, session: str, prompt: str, answer: flights.Answer) -> None:
            if OneFlag.cancelling and not self.turns.get(session):
                answer.cancel()
            else:
                super().take_in(session, prompt, answer)

    result = check(flight(OneFlag), effort=Effort(programs=150, depth=2, examples=0))
    assert result.verdict == "violated"
    assert any("@2" in program for program in result.replays.values())


class OverTheWire(RealtimeSubject):
    __test__ = False
    features = Features(bursts=True)
    timing = Timing(quiet=0.02, poll=0.005, grace=3.0, longest=1200.0, answers=600.0)
    kind: type[Any] = flights.Steps

    async def start(self) -> None:
        self.mine = self.kind(self.runner)

    async def do_accept(self, session: str, run: str) -> None:
        self.watch(run, await self.mine.submit(session, run))

    async def do_cancel(self, session: str) -> None:
        await self.mine.cancel(session)


class SlowToRegister(flights.Steps):
    """Wrong: goes by what it saw before a trip to the database that takes 300 ms."""

    async def submit(self, session: str, prompt: str) -> flights.Answer:
        answer, busy = flights.future(), session in self.turns
        await asyncio.sleep(0.3)
        if busy and session in self.turns:
            self.queue[session].append((prompt, answer))
        else:
            self.begin(session, prompt, answer)
        return answer

    def next(self, session: str) -> None:
        self.turns.pop(session, None)
        if self.queue[session]:
            self.begin(session, *self.queue[session].popleft())


def test_a_subject_in_real_time_is_tried_with_short_delays() -> None:
    for kind in (flights.Steps, flights.WritesFirst):
        adapter = type("Right", (OverTheWire,), {"kind": kind})
        for program in ("accept a +5 cancel", "accept a, finish a +1 cancel", "accept a +1 accept b"):
            played = play(adapter, parsed(program), ProgramLimits())
            assert (played.violations, played.late) == ((), ()), program
    adapter = type("Wrong", (OverTheWire,), {"kind": SlowToRegister})
    (broken,) = play(adapter, parsed("accept a +1 accept b"), ProgramLimits()).violations
    assert broken.property is Property.ONE_TURN


@pytest.mark.parametrize(
    ("remembers", "effort"),
    [
        (True, Effort(programs=80, depth=1, examples=0)),
        pytest.param(True, EFFORTS[1].values[0], marks=pytest.mark.deep),
        pytest.param(False, EFFORTS[1].values[0], marks=pytest.mark.deep),
    ],
)
def test_turngate_holds_mid_flight_between_the_messages_to_a_ledger(remembers: bool, effort: Effort) -> None:
    """A prompt enters when its accept has returned, and no sooner: there is nothing to enter before."""
    make = type("OnTables", (ledger_flight.OnTables,), {"remembers": remembers})
    result = check(make, effort=effort)
    assert (result.failed, result.replays, result.flaky) == (None, {}, {})
    assert result.mid_flight.executions > 50


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_turngate_holds_on_a_ledger_with_short_delays(kind: str, tmp_path: Path) -> None:
    with ledgers(kind, tmp_path) as ledger:
        make = type("InRealTime", (ledger_flight.InRealTime,), {"ledger": staticmethod(ledger)})
        for program in (
            "accept a, accept b, finish a +1 cancel",
            "accept a, accept b, finish a +0 interrupt c",
            "accept a, finish a +5 reject b",
            "accept a, accept b @2, cancel +0 cancel @2",
        ):
            played = play(make, parsed(program), ProgramLimits())
            assert (played.violations, played.late, played.undecided) == ((), (), ""), program


@pytest.mark.deep
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_every_race_with_short_delays_holds_on_a_ledger(kind: str, tmp_path: Path) -> None:
    with ledgers(kind, tmp_path) as ledger:
        make = type("InRealTime", (ledger_flight.InRealTime,), {"ledger": staticmethod(ledger)})
        result = check(make, effort=Effort(programs=100, examples=10, steps=12))
    assert (result.failed, result.replays, result.flaky) == (None, {}, {})
    assert result.mid_flight.executions == 18
