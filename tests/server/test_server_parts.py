"""The parts of the server by themselves, where a request would have to be lucky to lead them."""

from __future__ import annotations

import asyncio
import re
import signal
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import turngate.server._demo as demo_module
from dispatching import Agent, echo, in_loop, steps
from turngate import (
    CursorExpired,
    Dispatcher,
    DispatcherClosed,
    MemoryMessages,
    Moved,
    RunComplete,
    State,
    SubscriberCutOff,
)
from turngate.durable import LedgerUnavailable
from turngate.server import asgi_app
from turngate.server._backend import find_prompt
from turngate.server._cursor import Cursor, mark
from turngate.server._demo import demonstration
from turngate.server._event_log import missed_completions
from turngate.server._ledger_backend import LedgerBackend
from turngate.server._page import Page
from turngate.server._problems import Problem
from turngate.server._signals import Listener, _Relay, heard_by
from turngate.server._streams import EventStream

# The application as a server calls it.


class Caller:
    """Calls an application, and keeps what it sends; what it receives is given beforehand."""

    def __init__(self, *messages: dict[str, Any]) -> None:
        self.sent: list[dict[str, Any]] = []
        self._messages = list(messages)

    async def receive(self) -> Any:
        if not self._messages:
            await asyncio.Event().wait()
        return self._messages.pop(0)

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    @property
    def types(self) -> list[str]:
        return [message["type"] for message in self.sent]


def post(path: str, kind: str = "application/json", method: str = "POST") -> dict[str, Any]:
    headers = [(b"host", b"localhost"), (b"content-type", kind.encode())]
    return {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": headers,
    }


def body(content: str) -> dict[str, Any]:
    return {"type": "http.request", "body": content.encode(), "more_body": False}


@in_loop
async def test_an_application_that_has_not_begun_has_nothing_to_end() -> None:
    mounted = asgi_app(Dispatcher(echo))
    mounted.begin_end()
    await mounted.end()
    await mounted.begin()  # it can still begin
    mounted.begin_end()
    mounted.begin_end()  # it ends once
    await mounted.end()
    mounted._hasten()  # too late


@in_loop
async def test_a_websocket_is_closed() -> None:
    caller = Caller()
    await asgi_app(Dispatcher(echo))({"type": "websocket"}, caller.receive, caller.send)
    assert caller.sent == [{"type": "websocket.close", "code": 1000}]


@in_loop
async def test_a_lifespan_that_fails_is_said_to_have_failed() -> None:
    d = Dispatcher(echo)
    mounted = asgi_app(d)
    async with mounted.lifespan():
        pass
    caller = Caller({"type": "lifespan.startup"})
    with pytest.raises(DispatcherClosed):
        await mounted({"type": "lifespan"}, caller.receive, caller.send)
    assert caller.types == ["lifespan.startup.failed"]


@in_loop
async def test_a_client_that_goes_away_before_its_body_has_come_is_sent_nothing() -> None:
    async with Dispatcher(echo) as d:
        mounted = asgi_app(d, owns=False, finish=0)
        caller = Caller({"type": "http.disconnect"})
        await mounted(post("/v1/sessions/s/runs"), caller.receive, caller.send)
        assert caller.sent == []
        assert not d.is_busy()
        await mounted.end()


@in_loop
async def test_what_cannot_be_kept_or_is_not_json_is_refused() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        mounted = asgi_app(d, owns=False, finish=0)
        await d.submit("s", "one")
        await d.submit("s", "two", run_id="waits")
        await steps()

        async def call(scope: dict[str, Any], content: str) -> int:
            caller = Caller(body(content))
            await mounted(scope, caller.receive, caller.send)
            return int(caller.sent[0]["status"])

        assert await call(post("/v1/sessions/s/stop", "text/plain"), "x") == 415
        deep = "[" * 400 + "]" * 400
        assert await call(post("/v1/sessions/s/runs"), f'{{"prompt": "x", "data": {deep}}}') == 422
        edit = post("/v1/runs/waits", method="PATCH")
        assert await call(edit, f'{{"data": {deep}}}') == 422
        assert await call(edit, '{"when_busy": null}') == 200
        assert await call(edit, '{"when_busy": "reject"}') == 422
        await d.cancel_all()
        await mounted.end()


@in_loop
async def test_the_end_of_a_server_that_owns_nothing_waits_only_for_what_is_in_flight() -> None:
    agent = Agent()
    d = Dispatcher(agent)
    mounted = asgi_app(d, owns=False, finish=60)
    async with mounted.lifespan():
        run = await d.submit("s", "one")
        await steps()
        mounted._hasten()  # it is not the one that closes the dispatcher
        mounted.begin_end()
        closing = asyncio.create_task(d.aclose())
        await mounted.end()  # the log ends with the dispatcher
        await closing
        assert (await run.wait()).cancelled


# The demonstration.


@in_loop
async def test_the_demonstration_takes_in_what_joins_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_module, "PAUSE", 0)
    async with Dispatcher(demonstration) as d:
        first = await d.submit("s", "9 words")
        joins = await d.submit("s", "and this")
        done = await first.wait()
        assert "“and this”" in str(done.text)
        assert (await joins.wait()).folded_into == first.run_id


# Messages of stores that others have written.


@in_loop
async def test_a_store_that_cannot_find_a_run_tells_no_prompt() -> None:
    class Few:
        async def add(self, *messages: Any) -> None: ...
        async def list(self, session_id: str) -> list[Any]:
            return []

    assert await find_prompt(Few(), "r") is None
    assert await find_prompt(MemoryMessages(), "r") is None


# Signals.


class Handlers:
    """Stands in the place of the handlers of a server, and listens as an application does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.heard: list[int] = []
        self.hastened = 0
        self.end: asyncio.Future[Any] | None = None
        for number in (signal.SIGINT, signal.SIGTERM):
            before = signal.signal(number, lambda number, _: self.heard.append(number))
            monkeypatch.setattr(self, f"before_{number}", before, raising=False)

    def restore(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, getattr(self, f"before_{number}"))

    def hasten(self) -> None:
        self.hastened += 1

    @property
    def listener(self) -> Listener:
        return Listener(lambda: self.end, self.hasten)


@pytest.fixture
def handlers(monkeypatch: pytest.MonkeyPatch) -> Any:
    made = Handlers(monkeypatch)
    yield made
    made.restore()


@in_loop
async def _hear(handlers: Handlers, *numbers: int, end: bool) -> None:
    handlers.end = asyncio.get_running_loop().create_future() if end else None
    with heard_by(handlers.listener), heard_by(Listener(lambda: None, lambda: None)):
        for number in numbers:
            signal.raise_signal(number)
            await asyncio.sleep(0.001)
            await steps()


def test_a_third_signal_is_passed_on_with_those_that_were_held_back(handlers: Handlers) -> None:
    _hear(handlers, signal.SIGTERM, signal.SIGTERM, signal.SIGTERM, end=True)
    assert (handlers.heard, handlers.hastened) == ([signal.SIGTERM] * 3, 1)


def test_another_signal_than_the_first_does_not_hasten_unless_it_is_ctrl_c(handlers: Handlers) -> None:
    _hear(handlers, signal.SIGINT, signal.SIGTERM, end=True)
    assert handlers.hastened == 0
    _hear(handlers, signal.SIGTERM, signal.SIGINT, end=True)
    assert handlers.hastened == 1


def test_a_signal_after_the_end_is_passed_on_at_once(handlers: Handlers) -> None:
    _hear(handlers, signal.SIGTERM, signal.SIGTERM, end=False)
    assert (handlers.heard, handlers.hastened) == ([signal.SIGTERM] * 2, 0)


def test_a_signal_that_comes_when_the_loop_is_closed_is_passed_on(handlers: Handlers) -> None:
    loop = asyncio.new_event_loop()
    relay = _Relay(loop)
    relay.install()
    loop.close()
    signal.raise_signal(signal.SIGTERM)
    assert handlers.heard == [signal.SIGTERM]
    replaced: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: replaced.append(number))
    relay.remove()  # and leaves the handler that was put in its place
    signal.raise_signal(signal.SIGINT)
    assert replaced == [signal.SIGINT]


def test_another_thread_and_another_loop_hear_by_themselves(handlers: Handlers) -> None:
    def in_a_thread() -> None:
        async def main() -> None:
            with heard_by(handlers.listener):
                assert signal.getsignal(signal.SIGTERM) is before

        asyncio.run(main())

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=in_a_thread)
    thread.start()
    thread.join()

    async def left_open() -> Any:
        heard = heard_by(handlers.listener)
        heard.__enter__()
        return heard

    async def one_more() -> None:
        with heard_by(handlers.listener):
            older.__exit__(None, None, None)  # another has taken its place

    older = asyncio.run(left_open())
    asyncio.run(one_more())


# Streams.


@pytest.mark.parametrize("wrong", [OSError("gone"), LedgerUnavailable("away"), DispatcherClosed("closed")])
@in_loop
async def test_a_stream_that_cannot_go_on_ends(wrong: Exception) -> None:
    async with Dispatcher(echo) as d:
        mounted = asgi_app(d, owns=False, finish=0)
        await mounted.begin()
        streams = mounted._handlers._streams

        async def fail() -> Any:
            raise wrong

        stream = EventStream(streams, None, None, is_new=True, expired=False)
        stream._log.look = fail  # type: ignore[method-assign]
        caller = Caller()
        await stream({"type": "http"}, caller.receive, caller.send)
        ends = [each for each in caller.sent if each.get("body") == b""]
        assert len(ends) == (not isinstance(wrong, OSError))
        assert not streams.open
        await mounted.end()


@in_loop
async def test_a_stream_that_is_asked_for_after_the_log_has_ended_is_refused() -> None:
    d = Dispatcher(echo)
    mounted = asgi_app(d)
    async with mounted.lifespan():
        pass
    with pytest.raises(Problem) as refused:
        await mounted._handlers._streams.answer(None, None)
    assert refused.value.response().status_code == 503


class Told:
    """Stands in for a dispatcher that has told these completions."""

    def __init__(self, *runs: str) -> None:
        self.completed = [
            RunComplete("s", run, number, "", None, False, None, None, "finished")
            for number, run in enumerate(runs, 1)
        ]

    def cursor_order(self, cursor: str) -> int:
        return int(cursor)

    async def completions(
        self, after: str, until: str | None = None
    ) -> AsyncIterator[tuple[str, RunComplete]]:
        last = len(self.completed) if until is None else int(until)
        for number in range(int(after), last):
            yield str(number + 1), self.completed[number]


@in_loop
async def test_what_is_ahead_of_a_place_is_told_and_nothing_else_from_there() -> None:
    d: Any = Told("a", "b", "c", "d")
    since = Cursor("e", 0, "1", frozenset())
    until = Cursor("e", 5, "2", frozenset({mark(d.completed[3])}))

    async def told(session_id: str | None) -> int:
        return len([frame async for frame in missed_completions(d, session_id, since, until)])

    assert await told(None) == 2
    assert await told("s") == 2
    assert await told("other") == 0
    nowhere = Cursor("e", 5, "2", frozenset({mark(d.completed[3]._replace(text="told before a restore"))}))
    assert len([each async for each in missed_completions(d, None, since, nowhere)]) == 1


# The log of a dispatcher in memory.


class CutOff:
    """Stands in for a subscription that was cut off, once."""

    dropped = 3

    def __init__(self, then: Callable[[], Any]) -> None:
        self._then = then

    def __aiter__(self) -> CutOff:
        return self

    async def __anext__(self) -> Any:
        self._then()
        raise SubscriberCutOff("it fell behind")

    def close(self) -> None:
        """Do nothing."""


@in_loop
async def test_a_log_that_was_cut_off_begins_anew_wherever_it_hears_of_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Dispatcher(echo) as d:
        mounted = asgi_app(d, owns=False, finish=0)
        await mounted.begin()
        backend: Any = mounted._backend
        await steps()
        backend._events = CutOff(lambda: None)
        await backend.drain()
        assert caplog.text.count("does not have all events") == 1
        before = backend._events
        backend._events = CutOff(lambda: None)
        following = asyncio.create_task(backend.follow())
        await steps()
        assert caplog.text.count("does not have all events") == 2
        before.close()
        following.cancel()
        await asyncio.wait([following])

        async def fail(event: Any) -> None:
            raise RuntimeError("broken")

        put, backend._put = backend._put, fail
        await backend.drain(object())
        backend._put = put
        assert "the event log failed" in caplog.text
        assert caplog.text.count("does not have all events") == 3
        await mounted.end()
        await backend.drain()


@in_loop
async def test_a_subscription_that_another_task_has_replaced_is_not_begun_anew() -> None:
    async with Dispatcher(echo) as d:
        mounted = asgi_app(d, owns=False, finish=0)
        await mounted.begin()
        backend: Any = mounted._backend
        await steps()
        following = backend._events

        def replace() -> None:
            backend._events = following

        backend._events = CutOff(replace)
        task = asyncio.create_task(backend.follow())
        await steps()
        assert backend._events is following
        task.cancel()
        await asyncio.wait([task])
        await mounted.end()


@in_loop
async def test_many_sessions_are_looked_at_in_parts_and_by_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turngate.server._event_log._AT_ONCE", 1)
    agent = Agent()
    async with Dispatcher(agent) as d:
        mounted = asgi_app(d, owns=False, finish=0)
        await mounted.begin()
        for session in ("a", "b", "c"):
            await d.submit(session, "x")
        await steps()
        log = mounted._handlers.log
        first = asyncio.create_task(log.look())
        await asyncio.sleep(0)  # it is taken
        await asyncio.sleep(0)
        second = asyncio.create_task(log.look())
        shown = [(await look)[1] for look in (first, second)]
        assert all(each.count(b"session_id") >= 3 for each in shown)
        given_up = asyncio.create_task(log.look())
        await asyncio.sleep(0)
        assert log._next_look is not None
        log._next_look.cancel()
        await asyncio.wait([given_up])
        assert given_up.cancelled()
        await d.cancel_all()
        await mounted.end()


# The log of a dispatcher on a ledger.


class OnLedger:
    """Stands in for a dispatcher on a ledger; what it tells is given beforehand."""

    messages = MemoryMessages()

    def __init__(self, events: list[Any], completions: list[Any]) -> None:
        self.events, self.told = events, completions
        self.subscriptions = 0
        self.found: list[Any] = []

    async def settled_cursor(self) -> str:
        return "0"

    async def beginning(self, events: Any) -> Any:
        return SimpleNamespace(cursor="0", brings=lambda cursor, session_id: False)

    async def sessions(self) -> list[Any]:
        return []

    def subscribe(self, *, moves: bool) -> Any:
        self.subscriptions += 1
        return Script(self.events.pop(0))

    async def find(self, run_id: str) -> Any:
        return said(self.found.pop(0))

    async def completions(self, after: str, until: str | None = None) -> AsyncIterator[Any]:
        if until is None:
            for each in self.told.pop(0):
                yield said(each)


def said(each: Any) -> Any:
    if isinstance(each, Exception):
        raise each
    return each


class Script:
    """Stands in for a subscription, and for what it brings."""

    dropped = 0

    def __init__(self, events: list[Any]) -> None:
        self._events = list(events)

    def __aiter__(self) -> Script:
        return self

    async def __anext__(self) -> Any:
        await asyncio.sleep(0)
        if not self._events:
            raise StopAsyncIteration
        return said(self._events.pop(0))

    def close(self) -> None:
        """Do nothing."""


class Log:
    """Stands in for the event log."""

    def __init__(self) -> None:
        self.appended: list[tuple[Any, str | None]] = []

    def append(self, event: Any, prompt: str | None) -> None:
        self.appended.append((event, prompt))

    def forget(self) -> None:
        """Do nothing."""


async def followed(d: OnLedger) -> Log:
    """Return the log of such a dispatcher when it has come to its end."""
    log: Any = Log()
    backend = LedgerBackend(d)  # type: ignore[arg-type]  # a stand-in
    await backend.begin(log)
    await backend.follow()
    return log  # type: ignore[no-any-return]


def completed(run: str) -> RunComplete:
    return RunComplete("s", run, 1, "", None, False, None, None, "finished")


@in_loop
async def test_the_completions_of_a_ledger_that_was_away_are_read_again() -> None:
    done = completed("r")
    d = OnLedger([[]], [[LedgerUnavailable("away")], [("1", done)], []])
    d.events = [[done]]
    log = await followed(d)
    assert log.appended == [(done, None)]


@in_loop
async def test_a_dispatcher_that_closes_ends_its_log_wherever_it_is_met() -> None:
    done = completed("r")
    log = await followed(OnLedger([[DispatcherClosed("closed")]], [[]]))
    assert log.appended == []
    log = await followed(OnLedger([[done]], [[DispatcherClosed("closed")]]))
    assert log.appended == [(done, None)]


@in_loop
async def test_without_completions_only_so_many_can_be_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turngate.server._ledger_backend._AHEAD_LIMIT", 1)
    log = await followed(OnLedger([[completed("a"), completed("b")]], [[DispatcherClosed("closed")]]))
    assert [event.run_id for event, _ in log.appended] == ["a"]


@in_loop
async def test_a_prompt_is_asked_for_again_while_the_ledger_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turngate.server._ledger_backend._PAUSE", 0)
    monkeypatch.setattr("turngate.server._ledger_backend._ATTEMPTS", 2)
    away = LedgerUnavailable("away")
    accepts = [Moved("s", "accept", run, 1, State.ACCEPTED) for run in ("a", "b", "c")]
    d = OnLedger([accepts], [[]])
    d.found = [away, None, away, away, DispatcherClosed("closed")]
    assert [prompt for _, prompt in (await followed(d)).appended] == [None, None, None]
    assert d.found == []


@in_loop
async def test_a_log_that_begins_anew_while_it_drains_takes_what_is_left() -> None:
    d = OnLedger([[SubscriberCutOff("behind")], []], [[], []])
    log: Any = Log()
    backend = LedgerBackend(d)  # type: ignore[arg-type]  # a stand-in
    await backend.begin(log)
    following = asyncio.create_task(backend.follow())
    await backend.drain()
    await following
    assert d.subscriptions == 2


# Files.


def test_the_page_has_the_files_that_browsers_know_and_no_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "index.html").write_text("<p>")
    (tmp_path / "index.html~").write_text("<p")
    monkeypatch.setattr("turngate.server._page.FOLDER", tmp_path)
    page = Page()
    assert "/" in page
    assert "/index.html~" not in page


# What waits.


class Waiting:
    """Stands in for a run that completes when it is told to, or never."""

    def __init__(self) -> None:
        self.completed: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def wait(self) -> Any:
        return await self.completed


@in_loop
async def test_a_wait_ends_with_the_dispatcher() -> None:
    async with Dispatcher(echo) as d:
        mounted = asgi_app(d, owns=False, finish=0)
        await mounted.begin()
        handlers: Any = mounted._handlers
        lost, last = Waiting(), Waiting()
        client: Any = SimpleNamespace(receive=asyncio.Event().wait)
        waits = [asyncio.create_task(handlers._completed_within(run, 60, client)) for run in (lost, last)]
        await steps()
        lost.completed.set_exception(DispatcherClosed("the run goes on elsewhere"))
        await asyncio.wait([waits[0]])
        assert handlers._waiting == 1
        handlers._is_over.set_result(None)
        await steps()
        last.completed.set_result("complete")  # a moment later: it is still asked
        assert [await each for each in waits] == [None, "complete"]
        assert handlers._all_answered.is_set()
        await mounted.end()


@in_loop
async def test_a_purge_that_passes_a_reader_is_a_gap_and_a_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    async def purged(*arguments: Any) -> AsyncIterator[bytes]:
        raise CursorExpired("purged")
        yield b""

    monkeypatch.setattr("turngate.server._streams.missed_completions", purged)
    async with Dispatcher(echo) as d:
        mounted = asgi_app(d, owns=False, finish=0)
        await mounted.begin()
        streams: Any = mounted._handlers._streams
        for outlives, events in ((True, [b"gap", b"snapshot"]), (False, [b"snapshot"])):
            streams.backend.outlives_process = outlives
            stream = EventStream(streams, None, None, is_new=False, expired=False)
            caller = Caller()
            stream._send = caller.send
            await stream._show(Cursor("e", 0, "0", frozenset()), reset=False)
            written = b"".join(each["body"] for each in caller.sent)
            assert re.findall(rb"event: (\w+)", written) == events
            assert b'"reset":true' in written
        await mounted.end()
