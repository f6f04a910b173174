"""Hooks and stores of every kind: what is taken, what is refused, what becomes of what they return."""

from __future__ import annotations

import asyncio
import functools
import importlib.metadata
import logging
import threading
import time
import types
import typing
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import turngate
from dispatching import HANG, Agent, active, in_loop, on_record, outcome, queued, steps
from turngate import Attachment, Dispatcher, MemoryMessages, Message, RunComplete, Turn
from turngate._settle import _BLOCKED


async def echo(turn: Turn) -> str:
    return turn.run.prompt


# Hooks.


async def function(_: RunComplete) -> None:
    raise AssertionError


async def generator(_: RunComplete) -> AsyncIterator[int]:
    raise AssertionError
    yield 1


class Hooks:
    async def method(self, _: RunComplete) -> None:
        raise AssertionError

    @staticmethod
    async def static(_: RunComplete) -> None:
        raise AssertionError

    async def __call__(self, _: RunComplete) -> None:
        raise AssertionError


class Generating:
    async def __call__(self, _: RunComplete) -> AsyncIterator[int]:
        raise AssertionError
        yield 1


@pytest.mark.parametrize(
    "hook",
    [
        function,
        generator,
        Hooks().method,
        Hooks.static,
        Hooks(),
        Generating(),
        functools.partial(function),
        functools.partial(functools.partial(Hooks().method)),
    ],
)
@in_loop
async def test_a_hook_that_somebody_would_have_to_await_is_refused_and_leaves_no_trace(hook: Any) -> None:
    async with Dispatcher(echo) as d:
        for call in (d.accept, d.submit, d.ask):
            with pytest.raises(TypeError, match="on_complete must be a plain function"):
                await call("s", "p", run_id="r", on_complete=hook)
        assert (d._seq, d._accepted, d._entering, d._runs, d._sessions) == (0, 0, 0, {}, {})
        assert (await d.ask("s", "another prompt", run_id="r")).seq == 1


@in_loop
async def test_a_hook_that_cannot_be_called_is_refused() -> None:
    wrong: Any = "hook"
    async with Dispatcher(echo) as d:
        with pytest.raises(TypeError, match="on_complete must be callable, not str"):
            await d.accept("s", "p", on_complete=wrong)
        assert d._runs == {}


WRONG: Any = None


@pytest.mark.parametrize(
    "wrong",
    [
        b"bytes need a type",
        ("a", "text/plain", "content"),
        Attachment(WRONG, "text/plain", "content"),
        Attachment("a", WRONG, "content"),
        Attachment("a", "text/plain", WRONG),
    ],
    ids=repr,
)
@in_loop
async def test_an_attachment_that_is_none_is_refused(wrong: Any) -> None:
    async with Dispatcher(echo) as d:
        with pytest.raises(TypeError, match="an attachment must be a string, or an Attachment"):
            await d.accept("s", "p", attachments=[wrong])
        assert d._runs == {}


@in_loop
async def test_an_awaitable_that_a_hook_returns_is_closed_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    coroutines: list[Any] = []

    def hook(complete: RunComplete) -> object:
        coroutines.append(function(complete))
        return coroutines[-1]

    async with Dispatcher(echo) as d, d.subscribe() as events:
        assert (await d.ask("s", "p", run_id="r", on_complete=hook)).text == "p"
        assert coroutines[0].cr_frame is None  # closed
        assert "on_complete of run r in session 's' returned an awaitable, which nobody awaits" in caplog.text
        assert len(caplog.records) == 1
        await d.aclose()
        assert [event async for event in events] == []


@pytest.mark.parametrize("closes", ["no", "badly"])
@in_loop
async def test_an_awaitable_that_cannot_be_closed_is_logged_all_the_same(
    closes: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Odd:
        def __await__(self) -> Iterator[None]:
            raise AssertionError

    class Odder(Odd):
        def close(self) -> None:
            raise LookupError("closed for today")

    async with Dispatcher(echo) as d:
        await d.ask("s", "p", on_complete=lambda _: Odd() if closes == "no" else Odder())
        assert "returned an awaitable" in caplog.text
        assert ("closed for today" in caplog.text) is (closes == "badly")
        assert (await d.ask("s", "q")).text == "q"


@pytest.mark.parametrize("kind", ["task", "future", "cancelled future"])
@in_loop
async def test_a_task_or_future_that_a_hook_returns_is_left_alone(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    returned: list[asyncio.Future[Any]] = []

    def hook(_: RunComplete) -> object:
        loop = asyncio.get_running_loop()
        returned.append(
            loop.create_task(asyncio.sleep(0, "done")) if kind == "task" else loop.create_future()
        )
        if kind.startswith("cancelled"):
            returned[0].cancel()
        return returned[0]

    async with Dispatcher(echo) as d:
        await d.ask("s", "p", on_complete=hook)
        if kind == "task":
            assert await returned[0] == "done"
        else:
            assert returned[0].cancelled() is kind.startswith("cancelled")
        assert caplog.records == []


@in_loop
async def test_what_a_plain_hook_returns_is_nobodys_business(caplog: pytest.LogCaptureFixture) -> None:
    class Closing:
        def close(self) -> None:
            raise AssertionError

    async with Dispatcher(echo) as d:
        await d.ask("s", "p", on_complete=lambda _: Closing())
        assert caplog.records == []


# Stores.


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


# Cancels of one run.


@in_loop
async def test_what_a_cancel_of_a_folded_turn_covers_is_in_sequence_order() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        first, second, third, fourth = [await d.accept("s", f"{n}") for n in range(4)]
        await d.enter(third)
        await steps()
        for run in (second, fourth):
            await d.enter(run)
            await agent.turns[0].fold()
        await d.enter(first)
        await agent.turns[0].fold()
        assert agent.turns[0].runs == [third, second, fourth, first]
        assert (await d.cancel_run(fourth.run_id)).runs == [first, second, third, fourth]
        assert [(await run).cancelled for run in (first, second, third, fourth)] == [True] * 4


@in_loop
async def test_a_run_that_is_complete_and_not_yet_published_cannot_be_cancelled() -> None:
    agent = Agent()
    covered: list[bool] = []
    entries: list[dict[str, Any]] = []

    def cancels_the_other(_: RunComplete) -> None:
        cancelling = d.cancel_run("folded")
        with pytest.raises(StopIteration) as done:
            cancelling.send(None)
        covered.append(bool(done.value.value))

    async with Dispatcher(agent, record=entries.append) as d:
        lead = await active(d, "s", "p", on_complete=cancels_the_other)
        folded = await queued(d, "s", "q", run_id="folded")
        await agent.turns[0].fold()
        agent.finish(lead)
        assert outcome(await folded) == ("done", None, False)
        assert covered == [False]
    assert "cancel" not in {entry["event"] for entry in entries}


# Names.


def test_what_callers_name_in_their_annotations_is_public() -> None:
    for name in ("WhenBusy", "OnComplete", "PromptOptions", "Runner", "Event", "__version__"):
        assert name in turngate.__all__
        assert hasattr(turngate, name)
    assert typing.get_args(turngate.WhenBusy) == ("fold", "queue", "interrupt", "reject")
    assert set(turngate.PromptOptions.__annotations__) == {
        "run_id",
        "attachments",
        "when_busy",
        "on_complete",
    }
    assert turngate.__version__ == importlib.metadata.version("turngate")


@pytest.mark.parametrize("name", ["Messages", "MemoryMessages", "SqliteMessages"])
def test_a_method_called_list_does_not_spoil_the_annotations_after_it(name: str) -> None:
    store = getattr(turngate, name)
    namespace = {**vars(turngate), "Sequence": Sequence, "Message": Message}
    hints = typing.get_type_hints(store.list, localns={**vars(store), **namespace})
    assert hints["return"] == list[Message]


def test_the_logger_is_as_it_was() -> None:
    assert logging.getLogger("turngate").level == logging.NOTSET
