"""Settling with stores that fail, hang, take too long, or go about it in their own way."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from dispatching import Agent, BrokenMessages, active, echo, in_loop, on_record, outcome, steps
from turngate import Dispatcher, MemoryMessages, Message, Run, Turn
from turngate._settle import _SECOND_LOOKS, WriteClock
from turngate_verify.world.virtual_loop import VirtualLoop


@in_loop
async def test_a_store_that_is_cancelled_by_nobody_has_failed() -> None:
    async with Dispatcher(echo, messages=BrokenMessages(asyncio.CancelledError(), times=1)) as d:
        complete = await d.ask("s", "p")
        assert outcome(complete) == ("p", "writing the messages failed: CancelledError", False)
        assert await on_record(d, "s") == []


@pytest.mark.parametrize("at_once", [True, False])
def test_a_store_that_raises_cancelled_error_has_failed(at_once: bool) -> None:
    @in_loop
    async def check() -> None:
        store = BrokenMessages(asyncio.CancelledError(), at_once=at_once)
        async with Dispatcher(echo, messages=store) as d:
            complete = await d.ask("s", "p")
            assert complete.error == "writing the messages failed: CancelledError"
            assert not complete.cancelled

    check()


@in_loop
async def test_a_store_that_raises_cancelled_error_after_an_interrupt_is_tried_once_more() -> None:
    store = BrokenMessages(asyncio.CancelledError(), times=1)
    agent = Agent()
    async with Dispatcher(agent, messages=store) as d:
        run = await active(d, "s", "p")
        await d.cancel("s")
        assert outcome(await run) == ("", None, True)
        store.times = 10
        run = await active(d, "s", "p")
        await d.cancel("s")
        assert outcome(await run) == ("", "writing the messages failed: CancelledError", True)
        assert store.times == 8


class HangingMessages(MemoryMessages):
    """A store that never gets done."""

    async def put(self, messages: Sequence[Message]) -> None:
        await asyncio.get_running_loop().create_future()


@in_loop
async def test_a_store_that_hangs_is_given_up_after_the_time_out_and_the_queue_goes_on() -> None:
    async with Dispatcher(echo, messages=HangingMessages(), settle_timeout=0.01) as d:
        first, second = await d.submit("s", "p"), await d.submit("s", "q", when_busy="queue")
        await d.cancel_run(first.run_id)
        assert outcome(await first) == ("", "writing the messages took longer than 0.01 s", True)
        assert outcome(await second) == ("q", "writing the messages took longer than 0.01 s", False)


@in_loop
async def test_the_time_out_holds_over_all_writes_of_a_turn() -> None:
    turns: list[Turn] = []

    async def runner(turn: Turn) -> str:
        turns.append(turn)
        return "done"

    async def pester(run: Run) -> None:
        while not run.complete:
            await asyncio.sleep(0)
            if turns and not run.complete:
                task = turns[0].task
                assert task is not None
                task.cancel()

    async with Dispatcher(runner, messages=HangingMessages(), settle_timeout=0.01) as d:
        run = await d.submit("s", "p")
        await pester(run)
        assert (await run).error == "writing the messages took longer than 0.01 s"


@in_loop
async def test_a_time_out_is_logged_with_its_run(caplog: pytest.LogCaptureFixture) -> None:
    async with Dispatcher(echo, messages=HangingMessages(), settle_timeout=0.01) as d:
        await d.ask("s", "p", run_id="r")
    said = "writing the messages took longer than 0.01 s, in run r of session 's'"
    assert [record.getMessage() for record in caplog.records] == [said]


@in_loop
async def test_the_time_is_up_when_the_timer_says_so_even_if_it_is_early() -> None:
    task = asyncio.create_task(asyncio.sleep(3_000))
    clock = WriteClock(task, 3_000)
    assert 2_000 < clock._deadline - asyncio.get_running_loop().time() <= 3_000
    assert not clock.is_expired
    await asyncio.sleep(0)
    clock._expire()
    await steps(_SECOND_LOOKS)
    assert clock.is_expired
    with pytest.raises(asyncio.CancelledError):
        await task


def started(clock: WriteClock) -> WriteClock:
    clock.start()
    return clock


def test_time_is_up_at_the_deadline_unless_the_loop_was_blocked_past_it() -> None:
    async def nothing() -> None:
        pass

    loop = VirtualLoop()
    punctual, late = [started(WriteClock(loop.create_task(nothing()), within)) for within in (3.0, 2.0)]
    loop.advance(1.0)
    loop.settle()
    assert not punctual.is_expired
    loop.advance(2.0)  # late's timer comes a second late: the loop was blocked, and it gets that second
    loop.settle()
    assert punctual.is_expired
    assert not late.is_expired
    loop.advance(1.0)
    loop.settle()
    assert late.is_expired


def test_a_blocked_loop_gives_a_store_no_more_than_its_time_once_more() -> None:
    async def nothing() -> None:
        pass

    loop = VirtualLoop()
    clock = started(WriteClock(loop.create_task(nothing()), 2.0))
    loop.advance(1_000.0)
    loop.settle()
    assert not clock.is_expired
    loop.advance(2.0)
    loop.settle()
    assert clock.is_expired


@in_loop
async def test_no_timer_outlives_its_write() -> None:
    loop: Any = asyncio.get_running_loop()
    async with Dispatcher(echo, messages=BrokenMessages(OSError("no")), settle_timeout=3_000) as d:
        await d.ask("s", "p")
    assert all(timer.cancelled() for timer in loop._scheduled if timer.when() > loop.time() + 1_000)


@in_loop
async def test_a_store_may_use_time_outs_and_groups_of_its_own() -> None:
    class Elaborate(MemoryMessages):
        async def put(self, messages: Sequence[Message]) -> None:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await asyncio.sleep(0)
            async with asyncio.TaskGroup() as group:
                group.create_task(super().put(messages))

    agent = Agent()
    async with Dispatcher(agent, messages=Elaborate()) as d:
        run = await active(d, "s", "p")
        await d.cancel("s")
        assert outcome(await run) == ("", None, True)
        assert await on_record(d, "s") == [("user", "p", None), ("assistant", "", "canceled")]


@in_loop
async def test_a_store_may_return_any_awaitable() -> None:
    class Eager:
        def __init__(self) -> None:
            self.memory = MemoryMessages()

        def put(self, messages: Sequence[Message]) -> Any:
            return asyncio.ensure_future(self.memory.put(messages))

        async def list(self, session_id: str) -> list[Message]:
            return await self.memory.list(session_id)

    async with Dispatcher(echo, messages=Eager()) as d:
        assert (await d.ask("s", "p")).error is None
        assert len(await d.messages.list("s")) == 2


@in_loop
async def test_a_store_that_is_none_has_failed() -> None:
    class Sync(MemoryMessages):
        def put(self, messages: Sequence[Message]) -> Any:
            return None

    async with Dispatcher(echo, messages=Sync()) as d:
        error = (await d.ask("s", "p")).error
        assert error is not None
        assert error.startswith(
            "writing the messages failed: TypeError: object NoneType can't be used in 'await'"
        )


@in_loop
async def test_a_store_that_fails_a_cancel_on_entry_gives_the_error() -> None:
    async with Dispatcher(echo, messages=BrokenMessages(OSError("no"))) as d:
        run = await d.submit("s", "p")
        await d.cancel("s")
        assert outcome(await run) == ("", "writing the messages failed: OSError: no", True)


@pytest.mark.parametrize(("answers_after", "error"), [(4.99, None), (5.01, "took longer than 5 s")])
def test_an_answer_that_has_come_in_time_counts_though_it_has_not_reached_the_turn(
    answers_after: float, error: str | None
) -> None:
    class Roundabout(MemoryMessages):
        async def put(self, messages: Sequence[Message]) -> None:
            await asyncio.create_task(self.by_a_task(messages))

        async def by_a_task(self, messages: Sequence[Message]) -> None:
            await asyncio.create_task(asyncio.sleep(answers_after))
            await super().put(messages)

    loop = VirtualLoop()
    d = Dispatcher(echo, messages=Roundabout(), settle_timeout=5)
    run = loop.call(d.submit("s", "p"))
    loop.settle()
    loop.advance(5)  # the answer and the end of the time come in one step of the loop
    loop.settle()
    assert run.complete is not None
    assert (run.complete.error or "").endswith(error or "")
    assert (run.complete.error is None) == (error is None)
    loop.begin(d.aclose(), "close")
    loop.settle()
    assert loop.problems == []


def test_a_clock_says_what_is_left_of_its_time() -> None:
    async def nothing() -> None:
        pass

    loop = VirtualLoop()
    clock = started(WriteClock(loop.create_task(nothing()), 2.0))
    assert clock.remaining() == (2.0, False, _SECOND_LOOKS)
    loop.advance(2.0)
    loop.settle()
    assert clock.remaining() == (0.0, True, 0)
