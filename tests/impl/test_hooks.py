"""Hooks of every kind: what is taken, what is refused, what happens to what they return."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from dispatching import Agent, active, assert_nothing_left, echo, in_loop
from turngate import Attachment, Dispatcher, RunComplete


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
async def test_an_async_hook_is_refused_and_leaves_no_trace(hook: Any) -> None:
    async with Dispatcher(echo) as d:
        for call in (d.accept, d.submit, d.ask):
            with pytest.raises(TypeError, match="on_complete"):
                await call("s", "p", run_id="r", on_complete=hook)
        assert d._seq == 0
        assert_nothing_left(d)
        assert (await d.ask("s", "another prompt", run_id="r")).seq == 1


@in_loop
async def test_a_hook_that_cannot_be_called_is_refused() -> None:
    wrong: Any = "hook"
    async with Dispatcher(echo) as d:
        with pytest.raises(TypeError, match=r"on_complete.*str"):
            await d.accept("s", "p", on_complete=wrong)
        assert_nothing_left(d)


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
        with pytest.raises(TypeError, match="Attachment"):
            await d.accept("s", "p", attachments=[wrong])
        assert_nothing_left(d)


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
        assert (
            "on_complete of run r in session 's' returned an awaitable, which is not awaited" in caplog.text
        )
        assert len(caplog.records) == 1
        await d.aclose()
        assert [event async for event in events] == []


@pytest.mark.parametrize("closes", ["no", "badly"])
@in_loop
async def test_an_awaitable_that_cannot_be_closed_is_logged_too(
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
async def test_the_return_value_of_a_plain_hook_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    class Closing:
        def close(self) -> None:
            raise AssertionError

    async with Dispatcher(echo) as d:
        await d.ask("s", "p", on_complete=lambda _: Closing())
        assert caplog.records == []


@in_loop
async def test_what_follows_from_a_hook_is_on_record_before_the_hook_goes_on() -> None:
    entries: list[dict[str, Any]] = []
    seen: list[str] = []
    agent = Agent()
    d = Dispatcher(agent, record=entries.append)

    def close(_: RunComplete) -> None:
        d.begin_close()
        seen.extend(entry["event"] for entry in entries if entry.get("session") == "other")

    other = await active(d, "other", "p")
    run = await active(d, "s", "p", on_complete=close)
    agent.finish(run)
    await run
    assert seen == ["accept", "enter", "cancel"]
    await d.aclose()
    assert (await other).cancelled
