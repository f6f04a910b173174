"""A limit on runner calls at once over all sessions: who waits, who goes, who is cancelled meanwhile."""

from __future__ import annotations

import asyncio
import gc
import math
import random
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from dispatching import (
    OUTSIDE,
    Agent,
    SlowMessages,
    Stubborn,
    active,
    assert_nothing_left,
    containing,
    free,
    in_loop,
    made_for,
    on_record,
    outcome,
    places,
    queued,
    steps,
)
from turngate import Dispatcher, MemoryMessages, Message, Run, RunComplete, State, Turn
from turngate._core import RunRecord, TurnRecord
from turngate._places import Places
from turngate._turn import CLOSED_UNWRITTEN
from turngate_verify.world.virtual_loop import VirtualLoop


@pytest.mark.parametrize("limit", [0, -1, 1.5, "1", math.inf])
def test_a_limit_is_a_whole_number(limit: Any) -> None:
    with pytest.raises(ValueError, match="turns_limit"):
        Dispatcher(Agent(), turns_limit=limit)


def test_one_in_line_that_a_cancel_has_covered_meanwhile_is_passed_over() -> None:
    places = Places(1)
    first, covered, last = turns = [waiting(f"r{number}") for number in range(3)]
    assert [places.take(turn) for turn in turns] == [True, False, False]
    covered.record.covered = True
    assert places.give_back(first) is last
    assert places.give_back(last) is None
    assert places.free == 1


@in_loop
async def test_one_that_leaves_the_line_is_passed_over() -> None:
    agent = Agent()
    async with Dispatcher(agent) as unlimited, Dispatcher(agent, turns_limit=1) as d:
        runs = [await active(d, session) for session in "abc"]
        leaves = runs[1].turn
        assert leaves is not None
        for each in (d, unlimited):
            each._effects.turns.leave_line(leaves)
        agent.finish(runs[0])
        await runs[0]
        await steps()
        assert [turn.run for turn in agent.turns] == [runs[0], runs[2]]
        await d.cancel_run(runs[1].run_id)
        assert (await runs[1]).cancelled


def waiting(run_id: str) -> Turn:
    """Return a turn that is never run."""
    nobody: Any = None
    record = RunRecord("s", run_id, 1, "p")
    return Turn(nobody, TurnRecord(record), Run(nobody, record), fence=1)


@in_loop
async def test_turns_beyond_the_limit_wait_in_the_order_in_which_they_became_active() -> None:
    agent = Agent()
    async with Dispatcher(agent, turns_limit=2) as d:
        runs = [await active(d, session) for session in "abcde"]
        assert [turn.run for turn in agent.turns] == runs[:2]
        assert [d.session(session).phase for session in "abcde"] == ["running"] * 2 + ["waiting"] * 3
        assert all(d.is_busy(session) for session in "abcde")
        for number, run in enumerate((1, 0, 2, 3, 4)):
            agent.finish(runs[run])
            assert (await runs[run]).outcome == "finished"
            await steps()
            assert [turn.run for turn in agent.turns] == runs[: 3 + number]
        assert free(d) == 2


@in_loop
async def test_a_busy_session_lets_the_others_go_first() -> None:
    agent = Agent()
    async with Dispatcher(agent, turns_limit=1) as d:
        first = await active(d, "busy", "b1")
        later = [await queued(d, "busy", f"b{number}", when_busy="queue") for number in (2, 3)]
        quiet = await active(d, "quiet", "q")
        for run in (first, quiet, *later):
            agent.finish(run)
            await run
            await steps()
        assert agent.prompts == ["b1", "q", "b2", "b3"]


@in_loop
async def test_no_place_is_taken_while_a_turn_settles() -> None:
    agent, store = Agent(), SlowMessages()
    async with Dispatcher(agent, messages=store, turns_limit=1) as d:
        first, second = await active(d, "s"), await active(d, "t")
        agent.finish(first)
        await steps()
        assert d.session("s").phase == "settling"
        assert d.session("t").phase == "running"
        agent.finish(second)
        await steps()
        assert free(d) == 1
        for gate in store.gates:
            gate.set_result(None)
        await first
        await second


@in_loop
async def test_one_that_waits_is_cancelled_without_its_runner_being_called() -> None:
    agent = Agent()
    async with Dispatcher(agent, turns_limit=1) as d:
        first = await active(d, "s")
        waits, behind = await active(d, "t", "waits"), await active(d, "u", "behind")
        next_in_t = await queued(d, "t", "next", when_busy="queue")
        assert (await d.cancel_run(waits.run_id)).runs == [waits]
        assert outcome(await waits) == ("", None, True)
        assert await on_record(d, "t") == [("user", "waits", None), ("assistant", "", "canceled")]
        assert waits.lead is waits
        assert [piece async for piece in waits.stream()] == []
        await steps()
        assert d.session("t").active is next_in_t
        agent.finish(first)
        await first
        await steps()
        agent.finish(behind)
        await behind
        await steps()
        agent.finish(next_in_t)
        await next_in_t
        assert agent.prompts == ["p", "behind", "next"]
        assert free(d) == 1


@pytest.mark.parametrize(
    "way", ["cancel", "cancel_run", "run.cancel", "cancel_all", "interrupt", "waiting_only"]
)
@in_loop
async def test_every_way_to_cancel_one_that_waits(way: str) -> None:
    agent = Agent()
    async with Dispatcher(agent, turns_limit=1) as d:
        first, waits = await active(d, "s"), await active(d, "t", "waits")
        match way:
            case "cancel":
                await d.cancel("t")
            case "cancel_run":
                await d.cancel_run(waits.run_id)
            case "run.cancel":
                await waits.cancel()
            case "cancel_all":
                await d.cancel_all()
            case "interrupt":
                (await d.accept("t", "instead", when_busy="interrupt")).add_done_callback(lambda _: None)
            case _:
                assert (await d.cancel_run(waits.run_id, waiting_only=True)).runs == [waits]
        for _ in range(3):
            await waits.cancel()
        assert (await waits).outcome == "cancelled"
        if way != "cancel_all":
            agent.finish(first)
        await first
        await steps()
        assert agent.prompts == ["p"]
        assert free(d) == 1


@pytest.mark.parametrize("step", range(8))
@pytest.mark.parametrize("who", ["first", "second", "both"])
@in_loop
async def test_a_cancel_at_any_step_around_a_change_of_places(step: int, who: str) -> None:
    agent = Agent()
    async with Dispatcher(agent, turns_limit=1) as d:
        first = await active(d, "s", "first")
        second, third = await active(d, "t", "second"), await active(d, "u", "third")
        agent.finish(first)
        await steps(step)
        if who in ("first", "both"):
            await first.cancel()
        if who in ("second", "both"):
            await second.cancel()
            await second
        else:
            await steps()
            agent.finish(second)
            await second
        await first
        await steps()
        assert d.session("u").phase == "running"
        agent.finish(third)
        assert (await third).outcome == "finished"
        assert free(d) == 1


@in_loop
async def test_a_turn_that_goes_on_although_it_was_cancelled_keeps_its_place() -> None:
    stubborn = Stubborn(2)
    async with Dispatcher(stubborn, turns_limit=1) as d:
        first, second = await active(d, "s"), await active(d, "t")
        await first.cancel()
        await steps()
        assert d.session("s").phase == "running"
        assert d.session("t").phase == "waiting"
        await first.cancel()
        await first
        await second


@in_loop
async def test_the_failing_and_the_folding_give_their_places_back(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL", "turngate")
    agent = Agent()
    async with Dispatcher(agent, turns_limit=1) as d:
        runs = [await active(d, session) for session in "abc"]
        agent.fail(runs[0], LookupError())
        await runs[0]
        await steps()
        folded = await queued(d, "b", "folded")
        assert await agent.turns[1].fold() == [folded]
        agent.finish(runs[1], 5)
        await folded
        await steps()
        task = agent.turns[2].task
        assert task is not None
        task.cancel()
        assert (await runs[2]).error == OUTSIDE
        assert free(d) == 1


@in_loop
async def test_what_waits_joins_no_turn_and_has_written_nothing() -> None:
    agent = Agent()
    async with Dispatcher(agent, turns_limit=1) as d:
        first, waits = await active(d, "s"), await active(d, "t", run_id="waits")
        behind = await queued(d, "t", "behind")
        view = d.session("t")
        assert (view.active, view.queued, view.folded, view.text) == (waits, (behind,), (), "")
        assert view.since is not None
        assert not view.covered
        assert waits.lead is waits
        agent.finish(first)
        await first
        await steps()
        assert d.session("t").since == view.since
        assert agent.turns[1].waiting() == [behind]
        await d.cancel("t")
        await waits


@in_loop
async def test_without_a_limit_no_turn_waits() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        for number in range(100):
            await active(d, f"s{number}", "p")
        assert len(agent.turns) == 100


# Places when a start fails, the dispatcher closes or the loop ends: each is given back.


# Starts that fail.


@in_loop
async def test_a_factory_that_refuses_keeps_no_place(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL", "turngate")
    refused = 0

    def refuse(loop: asyncio.AbstractEventLoop, coro: Any, **more: Any) -> Any:
        nonlocal refused
        if coro.__name__ == "_conduct":
            refused += 1
            raise RuntimeError("no tasks today")
        return asyncio.Task(coro, loop=loop, **more)

    agent = Agent()
    async with Dispatcher(agent, turns_limit=1) as d:
        first = await active(d, "s")
        waits = [await active(d, session) for session in "tuv"]
        asyncio.get_running_loop().set_task_factory(refuse)
        agent.finish(first)
        for run in (first, *waits):
            await run
        assert refused == 3
        assert [(await run).error for run in waits] == [containing("RuntimeError: no tasks today")] * 3
        assert free(d) == 1
        asyncio.get_running_loop().set_task_factory(None)
        again = await active(d, "s")
        agent.finish(again)
        assert (await again).outcome == "finished"


@in_loop
async def test_a_factory_that_makes_a_task_of_its_own_takes_one_place() -> None:
    def wrapped(loop: asyncio.AbstractEventLoop, coro: Any, **more: Any) -> Any:
        async def in_a_span() -> Any:
            await asyncio.sleep(0)
            return await coro

        return asyncio.Task(in_a_span(), loop=loop, **more)

    asyncio.get_running_loop().set_task_factory(wrapped)
    agent = Agent()
    async with Dispatcher(agent, turns_limit=1) as d:
        runs = [await active(d, session) for session in "abcd"]
        agent.finish(runs[0])
        await asyncio.sleep(0)
        await runs[1].cancel()  # while its task waits for its first step
        await runs[2].cancel()  # while it waits for a place
        for run in runs[:3]:
            await run
        await steps()
        agent.finish(runs[3])
        assert (await runs[3]).outcome == "finished"
        assert [turn.run for turn in agent.turns] == [runs[0], runs[3]]
        assert free(d) == 1
    asyncio.get_running_loop().set_task_factory(None)


@in_loop
async def test_a_task_that_is_cancelled_before_its_first_step_keeps_no_place() -> None:
    agent = Agent()
    async with Dispatcher(agent, turns_limit=1) as d:
        first = await active(d, "s")
        second = await d.accept("t", "p")
        third = await d.accept("u", "p")
        await d.enter(second)
        await d.enter(third)
        agent.finish(first)
        while d.session("t").phase != "starting":
            await steps(1)
        assert second.turn is not None
        made = made_for(second.turn)
        assert made is not None
        made.cancel()
        assert (await second).error == OUTSIDE
        await steps()
        agent.finish(third)
        assert (await third).outcome == "finished"
        assert free(d) == 1


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
@in_loop
async def test_eager_tasks() -> None:
    asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined,unused-ignore]  # since Python 3.12
    agent = Agent()
    async with Dispatcher(agent, turns_limit=2) as d:
        runs = [await active(d, session) for session in "abcde"]
        assert len(agent.turns) == 2
        await runs[3].cancel()
        for run in (runs[0], runs[1], runs[2], runs[4]):
            agent.finish(run)
            await run
            await steps()
        assert [turn.run for turn in agent.turns] == [runs[0], runs[1], runs[2], runs[4]]
        assert free(d) == 2


# Closing.


@in_loop
async def test_closing_cancels_what_waits() -> None:
    agent = Agent()
    async with Dispatcher(agent, turns_limit=1) as d:
        runs = [await active(d, session) for session in "abc"]
    assert [run.complete.outcome for run in runs if run.complete] == ["cancelled"] * 3
    assert len(agent.turns) == 1
    assert free(d) == 1


@in_loop
async def test_what_waits_may_finish_while_closing() -> None:
    agent = Agent()
    async with Dispatcher(agent, turns_limit=1) as d:
        runs = [await active(d, session) for session in "abc"]
        accepted = await d.accept("d", "p")
        d.begin_close(finish=math.inf)
        assert await d.enter(accepted) is State.ACTIVE
        for run in (*runs, accepted):
            await steps()
            agent.finish(run)
            assert (await run).outcome == "finished"


def test_what_waits_when_the_time_is_up_is_cancelled() -> None:
    loop = VirtualLoop()
    agent = Agent()
    d = Dispatcher(agent, turns_limit=1)
    runs = [loop.call(d.submit(session, "p")) for session in "abc"]
    loop.settle()
    with loop:
        d.begin_close(finish=10)
    loop.advance(9)
    loop.settle()
    with loop:
        agent.finish(runs[0])
    loop.settle()
    assert [d.session(session).phase for session in "abc"] == [None, "running", "waiting"]
    loop.advance(2)
    loop.settle()
    assert [run.complete.outcome for run in runs if run.complete] == ["finished", "cancelled", "cancelled"]
    assert len(agent.turns) == 2
    assert "closed" in repr(d)
    assert loop.problems == []


@in_loop
async def test_a_hook_that_closes_while_places_change() -> None:
    agent = Agent()
    d = Dispatcher(agent, turns_limit=1)
    first = await active(d, "s", on_complete=lambda _: d.begin_close())
    waits = [await active(d, session) for session in "tu"]
    behind = await queued(d, "s", "behind", when_busy="queue")
    agent.finish(first)
    assert (await first).outcome == "finished"
    await d.aclose()
    assert [(await run).outcome for run in (*waits, behind)] == ["cancelled"] * 3
    assert free(d) == 1


# A loop that ends.


class Leisurely(MemoryMessages):
    """A store that takes many steps of the loop."""

    async def put(self, messages: Sequence[Message]) -> None:
        await steps(50)
        await super().put(messages)


@pytest.mark.parametrize(
    ("begun", "store"),
    [(True, MemoryMessages), (True, Leisurely), (False, MemoryMessages)],
    ids=["begun", "begun, slow store", "not begun"],
)
def test_no_runner_that_waits_is_called_while_the_loop_is_torn_down(
    begun: bool, store: type[MemoryMessages], caplog: pytest.LogCaptureFixture
) -> None:
    agent = Agent()
    received: list[RunComplete] = []

    async def main() -> None:
        d = Dispatcher(agent, turns_limit=1, messages=store())
        d._home._warns_if_dropped = False
        await d.submit("s", "active", on_complete=received.append)
        await d.submit("s", "queued", when_busy="queue")
        for session in "tuv":
            await d.submit(session, "waits")
        if begun:
            await steps()

    asyncio.run(main())
    assert agent.prompts == (["active"] if begun else [])
    assert [complete.error for complete in received] == [OUTSIDE]
    agent.turns.clear()
    gc.collect()
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


def test_what_was_held_back_goes_on_when_the_loop_does() -> None:
    loop = VirtualLoop()
    agent = Agent()
    d = Dispatcher(agent, turns_limit=1)
    runs = [loop.call(d.submit(session, "p")) for session in "abc"]
    loop.settle()
    task = agent.turns[0].task
    assert task is not None
    task.cancel()  # there is no other task: it looks as if the loop came to its end
    loop.settle()
    assert runs[0].state is State.COMPLETE
    assert len(agent.turns) == 1
    for number in (1, 2):
        loop.advance(1)
        loop.settle()
        assert len(agent.turns) == 1 + number
        with loop:
            agent.finish(runs[number])
        loop.settle()
        assert runs[number].state is State.COMPLETE
    assert free(d) == 1
    loop.begin(d.aclose(), "close")
    loop.settle()
    assert loop.problems == []


@pytest.mark.parametrize("again", [False, True])
def test_what_was_held_back_can_be_cancelled(again: bool) -> None:
    loop = VirtualLoop()
    agent = Agent()
    d = Dispatcher(agent, turns_limit=1)
    runs = [loop.call(d.submit(session, "p")) for session in "abc"]
    loop.settle()
    task = agent.turns[0].task
    assert task is not None
    task.cancel()
    loop.settle()
    for run in runs[1:]:
        assert loop.call(run.cancel()).runs == [run]
        if again:
            assert loop.call(d.cancel_run(run.run_id, waiting_only=True)).runs == [run]
    loop.settle()
    for _ in range(3):
        loop.advance(1)
        loop.settle()
    assert [run.complete.outcome for run in runs[1:] if run.complete] == ["cancelled"] * 2
    assert len(agent.turns) == 1
    assert free(d) == 1
    loop.begin(d.aclose(), "close")
    loop.settle()
    assert loop.problems == []


def test_a_loop_that_is_closed_completes_what_waits() -> None:
    agent = Agent()
    runs: list[Run] = []

    async def main() -> Dispatcher:
        d = Dispatcher(agent, turns_limit=1)
        d._home._warns_if_dropped = False
        runs.extend([await active(d, f"s{number}") for number in range(500)])
        runs.append(await queued(d, "s7", "queued", when_busy="queue"))
        return d

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # the loop says that a task was destroyed, as it should
    d = loop.run_until_complete(main())
    (task,) = asyncio.all_tasks(loop)
    coroutine = task.get_coro()
    assert coroutine is not None
    loop.close()
    coroutine.close()
    assert {run.complete.error for run in runs if run.complete} == {CLOSED_UNWRITTEN}
    assert all(run.state is State.COMPLETE for run in runs)
    assert_nothing_left(d)
    assert free(d) == 1
    agent.turns.clear()
    del task, coroutine
    gc.collect()


def test_one_that_is_closed_while_it_settles_hands_off_on_a_loop_that_seemed_to_end() -> None:
    agent = Agent()
    runs: list[Run] = []

    async def main() -> Dispatcher:
        d = Dispatcher(agent, turns_limit=1, messages=SlowMessages())
        d._home._warns_if_dropped = False
        runs.append(await d.submit("s", "active"))
        runs.append(await d.submit("s", "queued", when_busy="queue"))
        await steps()
        return d

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # the loop says that a task was destroyed, as it should
    d = loop.run_until_complete(main())
    task = agent.turns[0].task
    assert task is not None
    coroutine = task.get_coro()
    assert coroutine is not None
    task.cancel()
    for _ in range(3):
        loop.call_soon(loop.stop)
        loop.run_forever()
    assert d._loop.ends
    assert d.session("s").phase == "settling"
    loop.close()
    coroutine.close()
    assert [run.complete.outcome for run in runs if run.complete] == ["failed", "failed"]
    assert_nothing_left(d)
    assert free(d) == 1
    agent.turns.clear()
    del task, coroutine
    gc.collect()


# Places while callers, runners, stores and factories do anything at all: none is lost or taken twice.


class Counted:
    """A runner that takes a while, ends as it likes, and counts how many of its calls there are at once."""

    def __init__(self, chance: random.Random, limit: int) -> None:
        self.chance = chance
        self.limit = limit
        self.now = 0
        self.most = 0
        self.sessions: Counter[str] = Counter()
        self.called: list[Run] = []

    async def __call__(self, turn: Turn) -> str:
        self.called.append(turn.run)
        self.now += 1
        self.sessions[turn.run.session_id] += 1
        self.most = max(self.most, self.now)
        assert self.now <= self.limit
        assert self.sessions[turn.run.session_id] == 1
        try:
            for _ in range(self.chance.randrange(5)):
                await asyncio.sleep(self.chance.choice([0, 0, 1]))
            if self.chance.random() < 0.2:
                await turn.fold()
            if self.chance.random() < 0.1:
                await _cancelled()
        except asyncio.CancelledError:
            if self.chance.random() < 0.3:
                await turn.clean_up(asyncio.sleep(1))
            raise
        finally:
            self.now -= 1
            self.sessions[turn.run.session_id] -= 1
        return "done"


async def _cancelled() -> None:
    raise asyncio.CancelledError


class Whimsical(MemoryMessages):
    """A store that takes a step, or a while, or fails."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.chance = chance

    async def put(self, messages: Sequence[Message]) -> None:
        match self.chance.randrange(5):
            case 0:
                await asyncio.sleep(0)
            case 1:
                await asyncio.sleep(1)
            case 2 if self.chance.random() < 0.2:
                raise OSError("disk full")
        await super().put(messages)


class Factory:
    """A task factory that refuses, wraps, or does as it should."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance

    def __call__(self, loop: asyncio.AbstractEventLoop, coro: Any, **more: Any) -> Any:
        whim = self.chance.random() if coro.__name__ == "_conduct" else 1.0
        if whim < 0.05:
            raise RuntimeError("no tasks today")
        if whim < 0.1:
            made = asyncio.Task(coro, loop=loop)
            made.cancel()
            return made
        if whim < 0.3:

            async def wrapped() -> Any:
                await asyncio.sleep(0)
                return await coro

            return asyncio.Task(wrapped(), loop=loop)
        return asyncio.Task(coro, loop=loop)


def anything(loop: VirtualLoop, d: Dispatcher, chance: random.Random, runs: list[Run]) -> None:
    session = f"s{chance.randrange(6)}"
    match chance.randrange(14):
        case 0:
            loop.call(d.cancel(session))
        case 1 if runs:
            loop.call(d.cancel_run(chance.choice(runs[-10:]).run_id, waiting_only=chance.random() < 0.5))
        case 2 if runs:
            loop.call(chance.choice(runs[-10:]).close())
        case 3:
            loop.call(d.clear_queue(session))
        case 4:
            runs.append(loop.call(d.accept(session, "p")))
        case 5:
            for view in d.sessions():
                for run in view.accepted:
                    loop.call(d.enter(run))
        case 6 | 7:
            loop.advance(1)
        case 8 if chance.random() < 0.3:
            turns = [turn for turn in d._sessions.turns.values() if made_for(turn)]
            turns = [turn for turn in turns if turn.run.turn is turn]
            if turns:
                made = made_for(chance.choice(turns))
                assert made is not None
                made.cancel()  # from outside
        case _:
            busy: Any = chance.choice(["fold", "queue", "interrupt"])
            runs.append(loop.call(d.accept(session, "p", when_busy=busy)))
            if chance.random() < 0.9:
                loop.call(d.enter(runs[-1]))
    for _ in range(chance.randrange(6)):
        loop.step()


@pytest.mark.parametrize("factory", [False, True], ids=["plain", "odd factory"])
@pytest.mark.parametrize("limit", [1, 2, 3])
@pytest.mark.parametrize("seed", range(8))
def test_no_place_is_lost_or_taken_twice(
    seed: int, limit: int, factory: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL", "turngate")
    chance = random.Random(f"{seed} {limit} {factory}")
    loop = VirtualLoop()
    if factory:
        loop.set_task_factory(Factory(chance))
    runner = Counted(chance, limit)
    d = Dispatcher(runner, turns_limit=limit, messages=Whimsical(chance))
    runs: list[Run] = []
    completed: Counter[str] = Counter()
    for _ in range(400):
        known = len(runs)
        anything(loop, d, chance, runs)
        with loop:
            for run in runs[known:]:
                run.add_done_callback(lambda complete: completed.update([complete.run_id]))
        waiting = [view for view in d.sessions() if view.phase == "waiting"]
        assert not waiting or free(d) == 0
    for view in d.sessions():
        for run in view.accepted:
            loop.call(d.enter(run))
    for _ in range(3_000):
        loop.settle()
        if not d.sessions():
            break
        loop.advance(1)
    assert d.sessions() == []
    assert free(d) == limit
    assert not places(d).line
    assert runner.now == 0
    assert runner.most == limit
    assert {*completed.values()} == {1}
    assert len(completed) == len(runs)
    again = [loop.call(d.submit(f"again {number}", "p")) for number in range(3 * limit)]
    for _ in range(30):
        loop.settle()
        loop.advance(1)
    assert all(run.state is State.COMPLETE for run in again)
    loop.begin(d.aclose(), "close")
    loop.settle()
    assert [problem for problem in loop.problems if "never retrieved" not in problem["message"]] == []


@in_loop
async def test_many_sessions_and_few_places() -> None:
    now = most = 0

    async def runner(turn: Turn) -> str:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0)
        now -= 1
        return turn.run.session_id

    async with Dispatcher(runner, turns_limit=7) as d:
        runs = [await d.submit(f"s{number}", "p") for number in range(5_000)]
        for run in runs:
            assert (await run).text == run.session_id
        assert most == 7
        assert free(d) == 7
