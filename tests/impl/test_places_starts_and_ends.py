"""Places when a start comes to nothing, the dispatcher closes or the loop ends: each is given back."""

from __future__ import annotations

import asyncio
import gc
import math
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from dispatching import (
    OUTSIDE,
    Agent,
    SlowMessages,
    active,
    assert_nothing_left,
    free,
    in_loop,
    made_for,
    queued,
    steps,
)
from turngate import Dispatcher, MemoryMessages, Message, Run, RunComplete, State
from turngate_verify.world.virtual_loop import VirtualLoop

# Starts that come to nothing.


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
        assert {(await run).error for run in waits} == {
            "the turn could not be started: RuntimeError: no tasks today"
        }
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
        d._warns_if_dropped = False
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
        d._warns_if_dropped = False
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
    assert {run.complete.error for run in runs if run.complete} == {
        "the turn was closed before it could be written"
    }
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
        d._warns_if_dropped = False
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
