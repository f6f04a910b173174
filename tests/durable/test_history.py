"""The history of a ledger: from any cursor on, followed while it is written, and judged by the monitor."""

from __future__ import annotations

import asyncio
import io
import json
import os
import threading
import time
from typing import Any

import pytest

from dispatching import in_loop
from ledgers import MakeLedger, ledgers, on_each
from turngate import CursorExpired, Turn
from turngate.durable import DurableDispatcher, LedgerUnavailable
from turngate.durable.feed._feed import News
from turngate.durable.feed._history import history_pages
from turngate_verify.monitor import Accusation, Monitor, Remark, TailedStream, follow
from turngate_verify.trace import check


async def echo(turn: Turn) -> str:
    return turn.run.prompt


def records(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


async def until(true: Any, seconds: float = 120.0) -> None:
    async with asyncio.timeout(seconds):
        while not true():
            await asyncio.sleep(0.01)


@on_each
async def test_a_history_goes_on_behind_any_cursor(make: MakeLedger) -> None:
    began = time.time()
    async with DurableDispatcher(echo, make()) as d:
        for name in "abc":
            await d.ask("s", name, run_id=name)
        whole = io.StringIO()
        assert await d.write_history(whole) == len(records(whole.getvalue()))
        told = records(whole.getvalue())
        assert check(whole.getvalue().splitlines()).verdict == "holds"
        times = [each["at"] for each in told]
        assert times == sorted(times)
        assert began - 60 < times[0] <= times[-1] < time.time() + 60
        cursors = [(nth, each["cursor"]) for nth, each in enumerate(told) if "cursor" in each]
        assert cursors[-1][0] == len(told) - 1
        for nth, cursor in cursors:
            rest = io.StringIO()
            assert await d.write_history(rest, after=cursor) == len(told) - nth - 1
            assert records(rest.getvalue()) == told[nth + 1 :]


@on_each
async def test_a_cursor_of_another_ledger_is_refused(make: MakeLedger) -> None:
    async with DurableDispatcher(echo, make()) as d:
        for wrong in ("nonsense", "another.1.0"):
            with pytest.raises(CursorExpired):
                await d.write_history(io.StringIO(), after=wrong)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_cursor_before_purged_entries_has_expired(kind: str, tmp_path: Any) -> None:
    async def purged(make: MakeLedger) -> None:
        async with DurableDispatcher(echo, make()) as d:
            out = io.StringIO()
            for name in "ab":
                await d.ask("s", name, run_id=name)
            await d.write_history(out)
            first = next(each["cursor"] for each in records(out.getvalue()) if "cursor" in each)
            assert await d.purge(before=time.time() + 60) == 2
            with pytest.raises(CursorExpired, match="kept"):
                await d.write_history(io.StringIO(), after=first)
            rest = io.StringIO()
            assert await d.write_history(rest) == 0

    in_ledger(kind, tmp_path, purged)


def in_ledger(kind: str, folder: Any, test: Any) -> None:
    with ledgers(kind, folder) as make:
        in_loop(test)(make)


@on_each
async def test_a_followed_history_reaches_the_monitor(make: MakeLedger) -> None:
    """What two processes decide goes through a pipe to the monitor, while it happens."""
    out, into = os.pipe()
    monitor, found = Monitor(), list[Accusation | Remark]()
    tail = TailedStream(out)
    watching = threading.Thread(target=follow, args=(tail, monitor, found.append))
    watching.start()
    lines = 0
    try:
        with os.fdopen(into, "w", encoding="utf-8") as pipe:
            d, other = DurableDispatcher(echo, make()), DurableDispatcher(echo, make())
            async with d, other:
                following = asyncio.create_task(d.write_history(pipe, follow=True))
                for nth in range(4):
                    await (d, other)[nth % 2].ask("s", "x", run_id=f"r{nth}")
                await until(lambda: monitor.figures.events == 12)
                assert monitor.figures.in_flight == 0
                # Anything else that has the pipe may write to it: a second RunComplete is found at once.
                pipe.write('{"event": "complete", "run": "r0", "cancelled": false}\n')
                pipe.flush()
                await until(lambda: found)
            lines = await following
    finally:
        await asyncio.to_thread(watching.join)
        os.close(out)
    assert lines == 12
    assert [(type(each), each.line) for each in found] == [(Accusation, 13)]
    assert monitor.figures.lag_seconds is not None


@on_each
async def test_following_ends_when_the_dispatcher_is_closed(make: MakeLedger) -> None:
    d = DurableDispatcher(echo, make())
    out = io.StringIO()
    async with d:
        await d.ask("s", "x")
        following = asyncio.create_task(d.write_history(out, follow=True))
        await until(lambda: out.getvalue().count("\n") == 3)
    assert await following == 3


class Failing:
    """A ledger that cannot be read, once ``stopping`` says whether its dispatcher is about to close it."""

    def __init__(self, news: News, *, stopping: bool) -> None:
        self._news = news
        self._stopping = stopping

    async def history_after(self, after: Any, limit: int) -> Any:
        self._news.stopping = self._stopping
        raise LedgerUnavailable("no answer")


async def ready() -> None:
    """Be ready at once."""


def pages(*, follow: bool, stopping: bool) -> list[Any]:
    async def read() -> list[Any]:
        news = News(0.01)
        ledger: Any = Failing(news, stopping=stopping)
        return [page async for page in history_pages(ledger, news, ready, None, follow=follow)]

    return asyncio.run(read())


def test_a_failing_ledger_is_reported_unless_it_is_about_to_be_closed() -> None:
    assert pages(follow=True, stopping=True) == []
    for follow_, stopping in ((True, False), (False, True), (False, False)):
        with pytest.raises(LedgerUnavailable):
            pages(follow=follow_, stopping=stopping)
