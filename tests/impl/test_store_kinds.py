"""Stores of every kind: whatever `put` returns, the turn is written, or has failed."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
import types
import typing
from collections.abc import Awaitable, Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dispatching import HANG, Agent, active, echo, in_loop, on_record, outcome, queued, steps
from turngate import Dispatcher, MemoryMessages, Message
from turngate._settle import _BLOCKED

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
        assert error.startswith("writing the messages failed: ")
        assert "GeneratorExit" in error
        assert "the store raised in run" in caplog.text
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
            thread.shutdown(wait=True)  # the write is done, and nobody can hear it
            while asyncio.get_running_loop().time() < deadline + 2 * _BLOCKED + within:
                time.sleep(within)

    async with Dispatcher(echo, messages=Threaded(), settle_timeout=within) as d:
        assert outcome(await d.ask("s", "p")) == ("p", None, False)
        assert len(await d.messages.list("s")) == 2
