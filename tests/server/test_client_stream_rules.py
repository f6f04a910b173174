"""The rules by which an event stream connects again, one by one: a list of answers, in virtual time."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import httpx2
import pytest

from answering import Answer, Answers, Body, delta, foreign, problem, streamed
from stepping import in_steps
from turngate import Delta, DispatcherClosed, SessionBusy
from turngate.client import Client, EventStream, Gap, Refused, Unreachable

SILENT = 37.5
"""Seconds after which a line is given up on which not even a heartbeat came."""
HEARTBEAT = ": still here\n\n"


def heard(
    script: Callable[[EventStream], Awaitable[Any]], *answers: Answer, **options: Any
) -> tuple[Any, Answers]:
    """Return what a script for an event stream comes to, and the server of the answers."""
    answering = Answers(*answers)

    async def main(_: object) -> Any:
        async with Client("http://server", transport=answering) as client, client.events(**options) as events:
            return await script(events)

    return in_steps(main), answering


def taking(count: int) -> Callable[[EventStream], Awaitable[list[Any]]]:
    """Return a script that takes this many events."""

    async def take(events: EventStream) -> list[Any]:
        return [await anext(events) for _ in range(count)]

    return take


def x(offset: int) -> Delta:
    return Delta("s", "r", "x", offset)


def test_it_asks_for_all_sessions_or_for_one_from_now_on_or_behind_a_cursor() -> None:
    for options, path, after in (
        ({}, "/v1/events", None),
        ({"session_id": "a/b"}, "/v1/sessions/a%2Fb/events", None),
        ({"after": "c"}, "/v1/events", "c"),
    ):
        events, answering = heard(taking(1), streamed(delta(0, "d"), 9.0), **options)
        assert events == [x(0)]
        (sent,) = answering.sent
        assert (sent.method, sent.path, sent.after) == ("GET", path, after)
        assert answering.requests[0].headers["accept"] == "text/event-stream"
        waits = answering.requests[0].extensions["timeout"]
        assert waits == {"connect": 10.0, "read": SILENT, "write": 10.0, "pool": 10.0}


@pytest.mark.parametrize(
    "end",
    [(), (httpx2.ReadError("cut"),), (httpx2.ReadTimeout("silent"),), ("event: delta\nid: 9\ndata: {",)],
)
def test_it_connects_again_behind_the_last_event(end: tuple[Any, ...]) -> None:
    events, answering = heard(
        taking(3), streamed(delta(0, "1"), HEARTBEAT, delta(1, "2"), *end), streamed(delta(2, "3"), 99.0)
    )
    assert events == [x(0), x(1), x(2)]
    assert [each.after for each in answering.sent] == [None, "2"]


def test_what_was_read_ahead_is_not_asked_for_again() -> None:
    async def slowly(events: EventStream) -> tuple[Any, ...]:
        first, cursor = await anext(events), events.cursor
        await asyncio.sleep(5)  # meanwhile the line breaks, and another comes
        assert (events.cursor, events.connections) == (cursor, 2)
        return first, cursor, await anext(events), events.cursor, await anext(events)

    answer, answering = heard(
        slowly, streamed(delta(0, "1"), delta(1, "2")), streamed(delta(2, "3"), 99.0), after="0"
    )
    assert answer == (x(0), "1", x(1), "2", x(2))
    assert [each.after for each in answering.sent] == ["0", "2"]


def test_it_reads_only_so_far_ahead() -> None:
    read: list[int] = []

    def frames() -> Iterator[str]:
        for number in range(200):
            read.append(number)
            yield delta(number, f"{number}")

    async def wait(events: EventStream) -> None:
        await anext(events)
        await asyncio.sleep(1)
        assert len(read) == 1 + 64 + 1  # taken, read ahead, and one that waits for its place
        assert [await anext(events) for _ in range(199)] == [x(number) for number in range(1, 200)]

    head = {"content-type": "text/event-stream"}
    heard(wait, httpx2.Response(200, headers=head, stream=Body(frames())), streamed(99.0))


def test_an_event_without_an_id_leaves_the_cursor_where_it_was() -> None:
    async def three(events: EventStream) -> list[Any]:
        return [(await anext(events), events.cursor) for _ in range(3)]

    gap = 'event: gap\ndata: {"session_id": null}\n\n'
    answer, _ = heard(three, streamed(gap, delta(0, "2"), gap, 99.0), after="1")
    assert answer == [(Gap(None, "1"), "1"), (x(0), "2"), (Gap(None, "2"), "2")]


def test_what_a_newer_server_says_is_passed_over() -> None:
    odd = 'event: run.dream\nid: 7\ndata: {"session_id": "s"}\n\nevent: odd\nid: 8\n\n'
    answer, _ = heard(taking(1), streamed(odd, delta(0, "9"), 99.0))
    assert answer == [x(0)]


def test_it_says_whether_there_is_a_line_and_how_many_there_were() -> None:
    async def script(events: EventStream) -> None:
        assert (events.connected, events.connections) == (False, 0)
        await anext(events)
        assert (events.connected, events.connections) == (True, 1)
        await asyncio.sleep(1.02)  # the line is cut, and the pause is not over
        assert (events.connected, events.connections) == (False, 1)
        await anext(events)
        assert (events.connected, events.connections) == (True, 2)

    heard(script, streamed(delta(0, "1"), 1.0), streamed(delta(1, "2"), 99.0))


# Pauses and patience.


def pauses(answering: Answers) -> list[float]:
    return [later - earlier for earlier, later in zip(answering.times, answering.times[1:], strict=False)]


def test_pauses_double_up_to_five_seconds_and_are_cut_by_chance() -> None:
    lines = [httpx2.ConnectError("refused")] * 12
    _, answering = heard(taking(1), *lines, streamed(delta(0, "1"), 99.0))
    longest = [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, *[5.0] * 6]
    found = pauses(answering)
    assert len(found) == len(longest)
    assert all(most / 2 <= pause <= most for pause, most in zip(found, longest, strict=True))
    assert len({pause / most for pause, most in zip(found, longest, strict=True)}) > 3


def test_an_event_stream_that_came_about_makes_pauses_short_again() -> None:
    refused = [httpx2.ConnectError("refused")] * 4
    _, answering = heard(taking(2), *refused, streamed(delta(0, "1")), streamed(delta(1, "2"), 99.0))
    assert pauses(answering)[-1] <= 0.1


def test_one_that_said_nothing_does_not() -> None:
    _, answering = heard(taking(1), *[streamed(HEARTBEAT)] * 5, streamed(delta(1, "2"), 99.0))
    assert pauses(answering)[-1] >= 0.8


async def fail(events: EventStream) -> tuple[BaseException, float]:
    loop = asyncio.get_running_loop()
    begun = loop.time()
    try:
        await anext(events)
    except Exception as raised:
        return raised, loop.time() - begun
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize(
    "answer",
    [
        httpx2.ConnectError("refused"),
        foreign(502),
        problem(500, "internal"),
        problem(503, "shutting-down"),
        problem(503, "ledger-unavailable"),
        httpx2.Response(200, html="<p>welcome</p>"),
        streamed(),
    ],
)
def test_patience_ends_when_no_event_stream_comes_about(answer: Answer) -> None:
    (raised, after), answering = heard(fail, answer, patience=4.0)
    assert isinstance(raised, Unreachable)
    assert str(raised) == "no event stream for 4 s"
    assert 1.5 < after <= 4.0
    assert len(answering.sent) > 3


def test_what_is_lost_at_the_end_of_patience_is_the_cause() -> None:
    lost = httpx2.ConnectError("refused")
    (raised, after), _ = heard(fail, lost, patience=0.0)
    assert raised.__cause__ is lost
    assert after == 0
    _, answering = heard(fail, lost, patience=0.1)  # the next try is due at the very end
    assert len(answering.sent) == 2
    (raised, _), _ = heard(fail, problem(503, "shutting-down"), patience=0.0)
    assert str(raised.__cause__) == "the reason"


def test_a_server_that_says_nothing_is_left_when_patience_ends() -> None:
    (raised, after), answering = heard(fail, streamed(99.0), patience=4.0)
    assert isinstance(raised, Unreachable)
    assert isinstance(raised.__cause__, TimeoutError)
    assert after == 4.0
    assert len(answering.sent) == 1


def test_patience_counts_from_the_end_of_the_last_line() -> None:
    async def script(events: EventStream) -> tuple[BaseException, float]:
        await anext(events)
        await asyncio.sleep(1)
        assert (await anext(events), events.connections) == (x(1), 1)  # long after the deadline
        return await fail(events)

    (raised, after), _ = heard(
        script, streamed(delta(0, "1"), 50.0, delta(1, "2"), 10.0), httpx2.ConnectError("gone"), patience=4.0
    )
    assert isinstance(raised, Unreachable)
    assert 10.0 + 1.5 < after <= 10.0 + 4.0


def test_without_patience_to_lose_it_waits_for_as_long_as_it_takes() -> None:
    answer, answering = heard(taking(1), *[foreign(502)] * 100, streamed(delta(0, "1"), 99.0))
    assert answer == [x(0)]
    assert len(answering.sent) == 101


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (problem(401, "unauthorized"), Refused),
        (problem(409, "session-busy"), SessionBusy),
        (foreign(404), Refused),
        (foreign(302), Refused),
        (problem(499, "shutting-down"), DispatcherClosed),
    ],
)
def test_a_refusal_ends_it_at_once_and_it_can_be_asked_again(answer: Answer, kind: type[Exception]) -> None:
    async def twice(events: EventStream) -> tuple[Any, Any]:
        raised, after = await fail(events)
        assert after == 0
        return raised, await anext(events)

    (raised, event), answering = heard(twice, answer, streamed(delta(0, "1"), 99.0), after="c")
    assert isinstance(raised, kind)
    assert event == x(0)
    assert [each.after for each in answering.sent] == ["c", "c"]


def test_a_refusal_is_read_whole_before_it_is_raised() -> None:
    body = Body(['{"type": "urn:turngate:problem:session-busy",', ' "detail": "the reason"}'])
    head = {"content-type": "application/problem+json"}
    (raised, _), _ = heard(fail, httpx2.Response(409, headers=head, stream=body))
    assert isinstance(raised, SessionBusy)
    assert str(raised) == "the reason"


# Its end.


def test_a_second_waiting_task_gets_an_error() -> None:
    async def script(events: EventStream) -> None:
        first: asyncio.Task[Any] = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="task"):
            await anext(events)
        assert await first == x(0)
        assert await anext(events) == x(1)

    heard(script, streamed(1.0, delta(0, "1"), delta(1, "2"), 99.0))


def test_a_caller_that_is_cancelled_loses_nothing() -> None:
    async def script(events: EventStream) -> list[Any]:
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(events), 0.2)
        return [await anext(events), await anext(events)]

    answer, answering = heard(script, streamed(1.0, delta(0, "1"), delta(1, "2"), 99.0))
    assert answer == [x(0), x(1)]
    assert len(answering.sent) == 1


def test_closing_ends_the_stream_for_present_and_later_readers() -> None:
    async def script(events: EventStream) -> None:
        waiting: asyncio.Task[Any] = asyncio.ensure_future(anext(events, "over"))
        await asyncio.sleep(1)
        events.close()
        assert await waiting == "over"
        assert [event async for event in events] == []
        await events.aclose()

    _, answering = heard(script, streamed(99.0))
    assert len(answering.sent) == 1


def test_closed_it_has_ended_what_it_read_from_the_inside_out() -> None:
    ended: list[str] = []

    class Noted(Body):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            try:
                async for part in super().__aiter__():
                    yield part
            finally:
                ended.append("the body")

    async def script(events: EventStream) -> None:
        await anext(events)
        await asyncio.sleep(1)  # it waits for a place among what is read ahead
        async with events:
            pass
        assert ended == ["the body"]
        assert not [task for task in asyncio.all_tasks() if task.get_name() == "turngate events"]

    head = {"content-type": "text/event-stream"}
    frames: list[str | float | Exception] = [delta(number, f"{number}") for number in range(100)]
    frames.append(999.0)
    heard(script, httpx2.Response(200, headers=head, stream=Noted(frames)))


def test_closing_drops_what_was_read_ahead_and_the_connection() -> None:
    bodies: list[Any] = []

    def answer() -> httpx2.Response:
        response = streamed(*(delta(number, f"{number}") for number in range(200)))()
        bodies.append(response.stream)
        return response

    async def script(events: EventStream) -> None:
        await anext(events)
        await asyncio.sleep(1)
        await events.aclose()
        assert bodies[0].is_closed
        assert await anext(events, "over") == "over"
        assert not events.connected

    heard(script, answer)


def test_one_that_never_began_closes_without_a_line() -> None:
    async def script(events: EventStream) -> None:
        await events.aclose()
        assert await anext(events, "over") == "over"

    answering = Answers(streamed(99.0))

    async def main(_: object) -> None:
        async with Client("http://server", transport=answering) as client:
            await script(client.events())

    in_steps(main)
    assert answering.sent == []


def test_dropped_it_lets_its_line_go() -> None:
    answering = Answers(streamed(delta(0, "1"), 999.0))

    async def main(_: object) -> None:
        async with Client("http://server", transport=answering) as client:
            events = client.events()
            await anext(events)
            reading = [task for task in asyncio.all_tasks() if task.get_name() == "turngate events"]
            assert len(reading) == 1
            del events
            gc.collect()
            await asyncio.wait(reading, timeout=1)
            assert reading[0].cancelled()

    in_steps(main)


def test_dropped_after_its_loop_it_says_nothing() -> None:
    left: list[Any] = []

    async def main() -> None:
        client = Client("http://server", transport=Answers(streamed(delta(0, "1"), 999.0)))
        events = client.events()
        await anext(events)
        left.append(events)

    asyncio.run(main())
    left.clear()
    gc.collect()


def test_an_event_that_is_not_json_is_raised_and_the_next_one_comes() -> None:
    async def script(events: EventStream) -> Any:
        with pytest.raises(json.JSONDecodeError):
            await anext(events)
        return await anext(events)

    answer, _ = heard(script, streamed("event: delta\nid: 1\ndata: {\n\n", delta(0, "2"), 99.0))
    assert answer == x(0)
