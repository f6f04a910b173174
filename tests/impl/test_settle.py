"""Settling: what is put on record when a cancel or the outside gets in the way."""

from __future__ import annotations

import asyncio
import functools
import gc
import threading
import time
import types
import typing
from collections.abc import Awaitable, Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dispatching import (
    HANG,
    OUTSIDE,
    Agent,
    BrokenMessages,
    SlowMessages,
    Stubborn,
    active,
    assert_nothing_left,
    containing,
    echo,
    in_loop,
    on_record,
    outcome,
    queued,
    steps,
)
from turngate import Dispatcher, MemoryMessages, Message, Run, State, Turn
from turngate._settle import _BLOCKED, _SECOND_LOOKS, WriteClock
from turngate._turn import CLOSED_UNWRITTEN
from turngate_verify.world.virtual_loop import VirtualLoop


@in_loop
async def test_a_cancel_while_the_messages_are_written_makes_them_say_so() -> None:
    store = SlowMessages()
    async with Dispatcher(echo, messages=store) as d:
        run = await active(d, "s", "p")
        assert (await d.cancel("s")).runs == [run]
        store.gates[0].set_result(None)
        await steps()
        assert run.state is State.ACTIVE
        store.gates[1].set_result(None)
        assert outcome(await run) == ("p", None, True)
        assert await on_record(d, "s") == [("user", "p", None), ("assistant", "p", "canceled")]
        assert len(store.puts) == 2


@in_loop
async def test_a_cancel_while_a_cancelled_turn_is_written_needs_no_second_write() -> None:
    store = SlowMessages()
    agent = Agent()
    async with Dispatcher(agent, messages=store) as d:
        run = await active(d, "s", "p")
        await d.cancel("s")
        await steps()
        assert (await d.cancel("s")).runs == [run]
        store.gates[0].set_result(None)
        assert (await run).cancelled
        assert len(store.puts) == 1


@in_loop
async def test_a_prompt_sent_while_a_cancelled_turn_unwinds_runs_next() -> None:
    store = SlowMessages()
    agent = Agent()
    async with Dispatcher(agent, messages=store) as d:
        await active(d, "s", "p")
        await d.cancel("s")
        after = await queued(d, "s", "q")
        await steps()
        store.gates[0].set_result(None)
        await steps()
        agent.finish(after)
        await steps()
        store.gates[1].set_result(None)
        assert outcome(await after) == ("done", None, False)


@in_loop
async def test_a_runner_that_swallows_a_cancel_is_cancelled_and_a_second_cancel_interrupts_it_again() -> None:
    runner = Stubborn(patience=2)
    async with Dispatcher(runner) as d:
        run = await active(d, "s", "p")
        await d.cancel("s")
        await steps()
        assert (runner.interrupts, run.state) == (1, State.ACTIVE)
        assert (await d.cancel("s")).runs == [run]
        assert outcome(await run) == ("as if nothing had happened", None, True)
        assert runner.interrupts == 2


@in_loop
async def test_a_runner_that_fails_when_it_is_cancelled_is_cancelled() -> None:
    async def failing(turn: Turn) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            raise RuntimeError("while unwinding")

    async with Dispatcher(failing) as d:
        run = await active(d, "s", "p")
        await d.cancel("s")
        assert outcome(await run) == ("", None, True)
        assert (await on_record(d, "s"))[-1] == ("assistant", "", "canceled")


@in_loop
async def test_a_runner_that_cancels_its_own_session_and_returns() -> None:
    async def cancels(turn: Turn) -> str:
        await d.cancel("s")
        return "done"

    store = SlowMessages()
    async with Dispatcher(cancels, messages=store) as d:
        run = await d.submit("s", "p")
        while not run.complete:
            await steps()
            for gate in store.gates:
                if not gate.done():
                    gate.set_result(None)
        assert outcome(await run) == ("done", None, True)
        assert await on_record(d, "s") == [("user", "p", None), ("assistant", "done", "canceled")]


@pytest.mark.parametrize("interrupts", [1, 2])
def test_the_store_gets_a_task_that_is_not_cancelled(interrupts: int) -> None:
    cancels = []

    class Looking(MemoryMessages):
        async def put(self, messages: Sequence[Message]) -> None:
            task = asyncio.current_task()
            assert task is not None
            cancels.append(task.cancelling())
            await super().put(messages)

    @in_loop
    async def main() -> None:
        async with Dispatcher(Stubborn(patience=interrupts), messages=Looking()) as d:
            run = await active(d, "s", "p")
            for _ in range(interrupts):
                await d.cancel("s")
                await steps()
            assert (await run).cancelled

    main()
    assert cancels == [0]


@in_loop
async def test_the_write_is_made_again_when_the_task_is_cancelled_from_outside() -> None:
    store = SlowMessages()
    turns: list[Turn] = []

    async def runner(turn: Turn) -> str:
        turns.append(turn)
        return "done"

    async with Dispatcher(runner, messages=store) as d:
        run = await active(d, "s", "p")
        task = turns[0].task
        assert task is not None
        for n in range(3):
            task.cancel()
            await steps()
            assert len(store.puts) == n + 2
        assert task.cancelling() == 0
        store.gates[-1].set_result(None)
        assert outcome(await run) == ("done", None, False)
        assert await on_record(d, "s") == [("user", "p", None), ("assistant", "done", "end_turn")]


@in_loop
async def test_a_canceled_turn_is_written_although_every_task_is_cancelled() -> None:
    store = SlowMessages()
    agent = Agent()
    d = Dispatcher(agent, messages=store)
    run = await active(d, "s", "p")
    entered = await d.accept("s", "q")
    caller = asyncio.create_task(d.cancel("s"))
    await caller
    await d.enter(entered)
    for _ in range(3):
        await steps(2)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
    await steps()
    for gate in store.gates:
        if not gate.done():
            gate.set_result(None)
    assert (await run).cancelled
    assert (await entered).cancelled
    assert sorted(await on_record(d, "s")) == sorted(
        [
            ("user", "p", None),
            ("assistant", "", "canceled"),
            ("user", "q", None),
            ("assistant", "", "canceled"),
        ]
    )
    await d.aclose()


@in_loop
async def test_a_cancel_on_entry_neither_waits_for_the_active_turn_nor_disturbs_it() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        turn = await active(d, "s", "p")
        entered = await d.accept("s", "q")
        await d.cancel_run(entered.run_id)
        assert await d.enter(entered) is State.CANCEL_ON_ENTRY
        assert outcome(await entered) == ("", None, True)
        assert (turn.state, agent.turns[0].covered) == (State.ACTIVE, False)
        agent.finish(turn)
        assert outcome(await turn) == ("done", None, False)


@in_loop
async def test_a_turn_closed_while_it_is_written_completes_at_once() -> None:
    store = SlowMessages()
    turns: list[Turn] = []

    async def runner(turn: Turn) -> str:
        turns.append(turn)
        return "done"

    async with Dispatcher(runner, messages=store) as d:
        run = await active(d, "s", "p")
        task: Any = turns[0].task
        task.get_coro().close()
        assert_nothing_left(d)
        assert run.complete is not None
        assert outcome(run.complete) == (
            "done",
            CLOSED_UNWRITTEN,
            False,
        )
        task.cancel()
        await steps()
        assert isinstance(task.exception(), RuntimeError)  # its coroutine was closed behind its back
        assert not d.is_busy()


def faults() -> list[tuple[str, int]]:
    return [(store, step) for store in ("memory", "waits") for step in range(14)]


@pytest.mark.parametrize(("store", "step"), faults())
def test_cancelling_any_task_at_any_step_loses_no_completion(store: str, step: int) -> None:
    class Waits(MemoryMessages):
        async def put(self, messages: Sequence[Message]) -> None:
            await asyncio.sleep(0)
            await super().put(messages)
            await asyncio.sleep(0)

    async def runner(turn: Turn) -> str:
        turn.write(turn.run.prompt)
        await asyncio.sleep(0)
        await turn.fold()
        await asyncio.sleep(0)
        return turn.run.prompt

    @in_loop
    async def check() -> None:
        async with (
            Dispatcher(runner, messages=Waits() if store == "waits" else None) as d,
            d.subscribe() as events,
        ):
            runs = [await d.submit("s", f"p{n}", when_busy="queue" if n == 2 else "fold") for n in range(4)]
            runs.append(await d.submit("t", "other"))
            await d.cancel_run(runs[3].run_id)
            asking = asyncio.create_task(d.ask("s", "asked", run_id="asked"))
            await steps(step)
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            completes = [await run for run in runs]
            if not asking.cancelled():
                await asyncio.wait([asking])
            await steps()
            await d.aclose()
            received = [event async for event in events if hasattr(event, "cancelled")]
            assert len(received) == len({event.run_id for event in received})
            assert set(received) >= set(completes)
            stray = [c for c in completes if c.error]
            assert [c.cancelled for c in completes] == [False, False, False, True, False]
            assert {c.error for c in stray} <= {OUTSIDE}
            per_run = [message.run_id for message in await d.messages.list("s") if message.role == "user"]
            assert len(per_run) == len(set(per_run)) == 4 + ("asked" in per_run)
            assert_nothing_left(d)

    check()


class ClingingMessages(SlowMessages):
    """A store that goes on waiting when it is dropped."""

    async def put(self, messages: Sequence[Message]) -> None:
        try:
            await super().put(messages)
        except GeneratorExit:
            await asyncio.sleep(0)


@pytest.mark.parametrize("make_store", [SlowMessages, ClingingMessages])
def test_a_turn_that_is_dropped_while_its_messages_are_written_completes_its_runs(
    make_store: type[SlowMessages],
) -> None:
    """A loop that is closed drops its tasks: their coroutines are closed, wherever they wait."""
    store = make_store()
    received: list[Any] = []
    runs: list[Run] = []

    async def main() -> Dispatcher:
        d = Dispatcher(echo, messages=store)
        runs.append(await d.submit("s", "settles", on_complete=received.append))
        runs.append(await d.submit("s", "queued", when_busy="queue"))
        await steps()
        return d

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # the loop says that a task was destroyed, as it should
    d = loop.run_until_complete(main())
    task: Any = asyncio.all_tasks(loop).pop()
    loop.close()
    task.get_coro().close()
    assert [run.complete and run.complete.error for run in runs] == [CLOSED_UNWRITTEN] * 2
    assert received == [runs[0].complete]
    assert_nothing_left(d)
    d.itself = d  # type: ignore[attr-defined]  # so that it goes when garbage is collected, and not before
    runs.clear()
    del task, d
    with pytest.warns(ResourceWarning, match="dropped without aclose"):
        gc.collect()


# Settling with stores that fail, hang, take too long, or go about it in their own way.


@in_loop
async def test_a_store_that_raises_cancelled_error_without_a_cancel_has_failed() -> None:
    async with Dispatcher(echo, messages=BrokenMessages(asyncio.CancelledError(), times=1)) as d:
        complete = await d.ask("s", "p")
        assert outcome(complete) == ("p", containing("CancelledError"), False)
        assert await on_record(d, "s") == []


@pytest.mark.parametrize("at_once", [True, False])
def test_a_store_that_raises_cancelled_error_has_failed(at_once: bool) -> None:
    @in_loop
    async def check() -> None:
        store = BrokenMessages(asyncio.CancelledError(), at_once=at_once)
        async with Dispatcher(echo, messages=store) as d:
            complete = await d.ask("s", "p")
            assert complete.error == containing("CancelledError")
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
        assert outcome(await run) == ("", containing("CancelledError"), True)
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
        assert outcome(await first) == ("", containing("0.01 s"), True)
        assert outcome(await second) == ("q", containing("0.01 s"), False)


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
        assert (await run).error == containing("0.01 s")


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
        assert error == containing("TypeError: object NoneType can't be used in 'await'")


@in_loop
async def test_a_store_that_fails_a_cancel_on_entry_gives_the_error() -> None:
    async with Dispatcher(echo, messages=BrokenMessages(OSError("no"))) as d:
        run = await d.submit("s", "p")
        await d.cancel("s")
        assert outcome(await run) == ("", containing("OSError: no"), True)


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


# Stores of every kind: whatever `put` returns, the turn is written, or has failed.


Put = Callable[[], Awaitable[None]]


class Store:
    """A store whose put returns whatever `kind` makes of a put in memory."""

    def __init__(self, kind: Callable[[Put], Any]) -> None:
        self.memory = MemoryMessages()
        self.kind = kind
        self.got: list[Any] = []

    def put(self, messages: Sequence[Message]) -> Any:
        self.got.append(messages)
        return self.kind(functools.partial(self.memory.put, messages))

    async def list(self, session_id: str) -> typing.List[Message]:  # noqa: UP006 - list is this method
        return await self.memory.list(session_id)


@types.coroutine
def old_style(put: Put) -> Generator[Any, Any, None]:
    yield
    yield from put().__await__()


@types.coroutine
def old_style_at_once(put: Put) -> Generator[Any, Any, None]:
    yield from put().__await__()


class Iterated:
    """Its `__await__` returns an iterator that can neither be sent to nor thrown into."""

    def __init__(self, put: Put) -> None:
        self.put = put
        self.left = 3

    def __await__(self) -> Any:
        return self

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> None:
        self.left -= 1
        if self.left == 0:
            yield_nothing = [*self.put().__await__()]
            assert yield_nothing == []
            raise StopIteration


async def ordinary(put: Put) -> None:
    await asyncio.sleep(0)
    await put()


async def ordinary_at_once(put: Put) -> None:
    await put()


def as_future(put: Put) -> asyncio.Future[None]:
    return asyncio.ensure_future(put())


def as_gathering(put: Put) -> asyncio.Future[Any]:
    return asyncio.gather(put(), asyncio.sleep(0))


KINDS = [old_style, old_style_at_once, Iterated, ordinary, ordinary_at_once, as_future, as_gathering]


@pytest.mark.parametrize("kind", KINDS)
@in_loop
async def test_put_may_return_whatever_can_be_awaited(kind: Callable[[Put], Any]) -> None:
    store = Store(kind)
    async with Dispatcher(echo, messages=store, settle_timeout=HANG) as d:
        first, second = await d.submit("s", "p"), await d.submit("s", "q", when_busy="queue")
        assert outcome(await first) == ("p", None, False)
        assert outcome(await second) == ("q", None, False)
        assert [text for _, text, _ in await on_record(d, "s")] == ["p", "p", "q", "q"]
        assert [type(messages) for messages in store.got] == [tuple, tuple]


@pytest.mark.parametrize("kind", KINDS)
@in_loop
async def test_whatever_put_returns_the_turn_is_written_though_it_is_cancelled_meanwhile(
    kind: Callable[[Put], Any],
) -> None:
    agent = Agent()
    store = Store(kind)
    async with Dispatcher(agent, messages=store, settle_timeout=HANG) as d:
        run = await active(d, "s", "p")
        (turn,) = agent.turns
        agent.finish(run)
        await asyncio.sleep(0)
        if turn.task is not None and run.complete is None:
            turn.task.cancel()
        assert outcome(await run) == ("done", None, False)
        assert [text for _, text, _ in await on_record(d, "s")] == ["p", "done"]


@in_loop
async def test_what_a_store_gets_of_a_folded_turn_is_a_tuple_too() -> None:
    agent = Agent()
    store = Store(ordinary)
    async with Dispatcher(agent, messages=store, settle_timeout=HANG) as d:
        lead = await active(d, "s", "p")
        await queued(d, "s", "q")
        await agent.turns[0].fold()
        agent.finish(lead)
        await lead
        assert [(type(messages), len(messages)) for messages in store.got] == [(tuple, 3)]


@pytest.mark.parametrize("when", ["at once", "after waiting", "when put is called", "when it is cancelled"])
@in_loop
async def test_a_store_that_raises_generator_exit_has_failed(
    when: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Quitting(MemoryMessages):
        def put(self, messages: Sequence[Message]) -> Any:
            if when == "when put is called":
                raise GeneratorExit
            return self.quit()

        async def quit(self) -> None:
            if when == "after waiting":
                await asyncio.sleep(0)
            if when == "when it is cancelled":
                try:
                    await asyncio.get_running_loop().create_future()
                except asyncio.CancelledError:
                    raise GeneratorExit from None
            raise GeneratorExit

    agent = Agent()
    async with Dispatcher(agent, messages=Quitting(), settle_timeout=HANG) as d:
        run, behind = await active(d, "s", "p"), await queued(d, "s", "q")
        agent.finish(run)
        await steps()
        if when == "when it is cancelled":
            task = agent.turns[0].task
            assert task is not None
            task.cancel()
        text, error, cancelled = outcome(await run)
        assert (text, cancelled) == ("done", False)
        assert error is not None
        assert "GeneratorExit" in error
        assert "GeneratorExit" in caplog.text
        caplog.clear()
        await steps()
        agent.finish(behind)
        if when == "when it is cancelled":
            await steps()
            task = agent.turns[1].task
            assert task is not None
            task.cancel()
        assert (await behind).error == error


@in_loop
async def test_a_cancel_that_comes_inside_a_put_that_never_waits_is_put_on_record() -> None:
    class Cancelling(MemoryMessages):
        async def put(self, messages: Sequence[Message]) -> None:
            if messages[-1].finish_reason == "end_turn":
                assert len((await d.cancel("s")).runs) == 1
            await super().put(messages)

    async with Dispatcher(echo, messages=Cancelling()) as d:
        assert outcome(await d.ask("s", "p")) == ("p", None, True)
        assert await on_record(d, "s") == [("user", "p", None), ("assistant", "p", "canceled")]


@in_loop
async def test_a_write_that_succeeded_while_the_loop_was_blocked_is_no_late_one() -> None:
    within = 0.01

    class Threaded(MemoryMessages):
        async def put(self, messages: Sequence[Message]) -> None:
            loop = asyncio.get_running_loop()
            thread, blocked = ThreadPoolExecutor(1), threading.Event()
            writing = loop.run_in_executor(thread, blocked.wait, HANG)
            loop.call_soon(self.block, thread, blocked, loop.time() + within)
            await writing
            await super().put(messages)

        def block(self, thread: ThreadPoolExecutor, blocked: threading.Event, deadline: float) -> None:
            blocked.set()
            thread.shutdown(wait=True)  # the write is done, and its answer cannot be heard
            while asyncio.get_running_loop().time() < deadline + 2 * _BLOCKED + within:
                time.sleep(within)

    async with Dispatcher(echo, messages=Threaded(), settle_timeout=within) as d:
        assert outcome(await d.ask("s", "p")) == ("p", None, False)
        assert len(await d.messages.list("s")) == 2
