"""What one process on a PostgreSQL ledger tells others, and hears of them: by itself, without a server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from dispatching import in_loop, steps
from turngate.durable import LedgerUnavailable
from turngate.durable._postgres_notifications import Notifications


class Line:
    """Stands in for the ledger: what is sent and listened to is noted."""

    def __init__(self) -> None:
        self.sent: list[tuple[Any, ...]] = []
        self.wrong: Exception | None = None
        self.listening: list[list[str]] = []
        self.notice: Callable[[str, str], None] = lambda channel, text: None
        self.tasks: list[asyncio.Task[Any]] = []
        self.woken = 0
        self.notifications = Notifications("s", self.fetch, self.listen, self.spawn)

    async def fetch(self, *about: Any) -> list[Any]:
        self.sent.append(about)
        if self.wrong is not None:
            raise self.wrong
        return []

    async def listen(
        self, channels: list[str], wake: Callable[[], None], notice: Callable[[str, str], None]
    ) -> None:
        self.listening.append(channels)
        self.notice = notice
        try:
            await asyncio.Event().wait()
        finally:
            self.listening.remove(channels)

    def spawn(self, call: Coroutine[Any, Any, None]) -> asyncio.Task[Any]:
        self.tasks.append(asyncio.ensure_future(call))
        return self.tasks[-1]

    def wake(self) -> None:
        self.woken += 1

    async def end(self) -> None:
        self.notifications.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.wait(self.tasks)


@in_loop
async def test_one_task_listens_to_what_concerns_this_process() -> None:
    line = Line()
    said = line.notifications
    said.set_worker(3)
    await steps(5)
    assert line.listening == []  # no caller has asked for hints
    said.listen(line.wake)
    await steps(5)
    assert line.listening == [["turngate_s", "turngate_s_3"]]
    said.set_worker(4)
    await steps(5)
    assert line.listening == [["turngate_s", "turngate_s_4"]]
    said.on_relay(lambda message: None)
    await steps(5)
    assert line.listening == [["turngate_s", "turngate_s_4", "turngate_s_relay"]]
    assert [name for name, *_ in line.sent] == ["say"]
    said.on_relay(None)
    await steps(5)
    assert line.listening == [["turngate_s", "turngate_s_4"]]
    said.on_relay(None)
    await steps(5)
    assert len(line.sent) == 1
    await line.end()


@in_loop
async def test_a_notification_is_a_hint_or_word_of_another_process(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    line = Line()
    said = line.notifications
    heard: list[str] = []
    said.listen(line.wake)
    said.on_relay(heard.append)
    await steps(5)
    ((_, _, [mine]),) = line.sent
    line.notice("turngate_s", "")
    line.notice("turngate_s", mine)
    line.notice("turngate_s_relay", f"{mine} from this process")
    assert (line.woken, heard, said.has_listeners()) == (1, [], False)
    line.notice("turngate_s", "another")
    line.notice("turngate_s_relay", "another two words")
    assert (line.woken, heard, said.has_listeners()) == (1, ["two words"], True)
    now = time.monotonic()
    with monkeypatch.context() as patch:
        patch.setattr("turngate.durable._postgres_notifications.time.monotonic", lambda: now + 60.0)
        assert not said.has_listeners()

    def raises(message: str) -> None:
        raise ValueError(message)

    said.on_relay(raises)
    line.notice("turngate_s_relay", "another word")
    assert "ValueError" in caplog.text
    await line.end()
    line.notice("turngate_s", "")
    assert line.woken == 1


@in_loop
async def test_hints_are_collected_and_lost_without_the_server(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("turngate.durable._postgres_notifications._HINT_DELAY", 0)
    line = Line()
    said = line.notifications
    for wrong in (None, LedgerUnavailable("away"), ValueError("broken")):
        line.wrong = wrong
        said.hint({1})
        said.hint({2, 1})
        said.hint(set())
        await asyncio.wait(line.tasks)
        (name, channels) = line.sent.pop()
        assert (name, sorted(channels)) == ("hint", ["turngate_s", "turngate_s_1", "turngate_s_2"])
        assert not line.sent
        assert ("broken" in caplog.text) is (type(wrong) is ValueError)
    line.wrong = LedgerUnavailable("away")
    said.listen(line.wake)
    said.on_relay(lambda message: None)
    await steps(5)
    assert len(line.sent) == 1
    assert not any(task.done() and task.exception() for task in line.tasks if not task.cancelled())
    await line.end()
