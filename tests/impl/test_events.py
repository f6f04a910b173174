from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dispatching import Agent, active, in_loop, steps
from turngate import Delta, Dispatcher, RunComplete, SubscriberCutOff, Turn


async def echo(turn: Turn) -> str:
    turn.write(turn.run.prompt)
    return turn.run.prompt


def texts(events: list[Any]) -> list[str]:
    return [f"{type(event).__name__} {event.text}" for event in events]


@in_loop
async def test_a_subscriber_to_all_receives_every_session_and_one_to_a_session_only_that() -> None:
    async with Dispatcher(echo) as d:
        everything, of_s, of_t = d.subscribe(), d.subscribe("s"), d.subscribe("t")
        await d.ask("s", "a")
        await d.ask("t", "b")
        await d.aclose()
        assert texts([event async for event in everything]) == [
            "Delta a",
            "RunComplete a",
            "Delta b",
            "RunComplete b",
        ]
        assert texts([event async for event in of_s]) == ["Delta a", "RunComplete a"]
        assert texts([event async for event in of_t]) == ["Delta b", "RunComplete b"]


@in_loop
async def test_two_subscribers_to_one_session_both_receive_and_leave_one_by_one() -> None:
    async with Dispatcher(echo) as d:
        async with d.subscribe("s") as first:
            async with d.subscribe("s") as second:
                await d.ask("s", "a")
            await d.ask("s", "b")
        await d.ask("s", "c")
        assert len([event async for event in first]) == 4
        assert len([event async for event in second]) == 2
        assert not d._subscribers.listen()


@in_loop
async def test_a_reader_waits_for_the_next_event() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d, d.subscribe() as events:
        reader = asyncio.create_task(anext(events))
        await steps()
        assert not reader.done()
        await active(d, "s", "p", run_id="r")
        agent.turns[0].write("hello")
        assert await reader == Delta("s", "r", "hello", 0)


@in_loop
async def test_cancelling_a_waiting_reader_loses_no_event() -> None:
    async with Dispatcher(echo) as d, d.subscribe() as events:
        reader = asyncio.create_task(anext(events))
        await steps()
        run = await d.accept("s", "p")
        await d.enter(run)
        await asyncio.sleep(0)
        assert run.complete is not None
        reader.cancel()
        await steps()
        assert reader.cancelled()
        assert texts([await anext(events), await anext(events)]) == ["Delta p", "RunComplete p"]


@in_loop
async def test_several_readers_share_the_events() -> None:
    async with Dispatcher(echo) as d, d.subscribe() as events:
        readers = [asyncio.create_task(anext(events)) for _ in range(3)]
        await steps()
        await d.ask("s", "a")
        await d.ask("s", "b")
        received = [await reader for reader in readers] + [await anext(events)]
        assert sorted(texts(received)) == ["Delta a", "Delta b", "RunComplete a", "RunComplete b"]


@in_loop
async def test_a_waiting_reader_learns_that_the_dispatcher_closed() -> None:
    async with Dispatcher(echo) as d:
        events = d.subscribe()
        reader = asyncio.create_task(anext(events, None))
        await steps()
    assert await reader is None


@in_loop
async def test_deltas_are_dropped_only_while_too_many_are_unread() -> None:
    agent = Agent()
    async with Dispatcher(agent, delta_limit=2) as d, d.subscribe() as events:
        await active(d, "s", "p")
        for text in "abc":
            agent.turns[0].write(text)
        assert events.dropped == 1
        assert texts([await anext(events)]) == ["Delta a"]
        agent.turns[0].write("d")
        assert events.dropped == 1
        assert texts([await anext(events), await anext(events)]) == ["Delta b", "Delta d"]


@in_loop
async def test_a_subscriber_that_stops_reading_is_cut_off_with_an_error() -> None:
    async with Dispatcher(echo, complete_limit=2, delta_limit=1) as d:
        events = d.subscribe("s")
        for n in range(5):
            await d.ask("s", f"p{n}")
        assert "cut off" in repr(events)
        assert not d._subscribers.listen()
        assert texts([await anext(events) for _ in range(3)]) == [
            "Delta p0",
            "RunComplete p0",
            "RunComplete p1",
        ]
        for _ in range(2):
            with pytest.raises(SubscriberCutOff, match="more than 2"):
                await anext(events)


@in_loop
async def test_cutting_one_subscriber_off_leaves_the_others() -> None:
    async with Dispatcher(echo, complete_limit=1) as d:
        lagging, reading = d.subscribe(), d.subscribe()
        for n in range(3):
            complete = await d.ask("s", f"p{n}")
            assert [await anext(reading), await anext(reading)][1] == complete
        assert texts([await anext(lagging) for _ in range(3)]) == ["Delta p0", "RunComplete p0", "Delta p1"]
        with pytest.raises(SubscriberCutOff):
            await anext(lagging)


@in_loop
async def test_subscribing_to_a_closed_dispatcher_ends_at_once() -> None:
    d = Dispatcher(echo)
    await d.aclose()
    assert [event async for event in d.subscribe()] == []


@in_loop
async def test_closing_a_subscription_twice_is_closing_it_once() -> None:
    async with Dispatcher(echo) as d, d.subscribe() as events:
        events.close()
        events.close()
        await d.ask("s", "p")
        assert [event async for event in events] == []


@in_loop
async def test_the_run_complete_is_the_last_event_of_its_run() -> None:
    async with Dispatcher(echo) as d, d.subscribe() as events:
        for n in range(3):
            await d.submit("s", f"p{n}", when_busy="queue", run_id=f"r{n}")
        await d.wait("r2")
        await d.aclose()
        received = [event async for event in events]
    assert [event.run_id for event in received] == ["r0", "r0", "r1", "r1", "r2", "r2"]
    assert [isinstance(event, RunComplete) for event in received] == [False, True] * 3


@in_loop
async def test_repr_of_a_subscription() -> None:
    async with Dispatcher(echo) as d, d.subscribe("s") as events:
        await d.ask("s", "p")
        assert repr(events) == "<Subscription to 's': open, 2 unread, 0 dropped>"
        assert repr(d.subscribe()) == "<Subscription to all sessions: open, 0 unread, 0 dropped>"
        events.close()
        assert "closed" in repr(events)


@in_loop
async def test_a_subscription_that_is_closed_is_not_cut_off_any_more() -> None:
    async with Dispatcher(echo) as d:
        events = d.subscribe()
        events.close()
        events.cut_off("too late")
        assert [event async for event in events] == []
