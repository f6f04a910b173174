"""The feed and its parts alone: delivery, cursors, and a feed that belongs to no dispatcher."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dispatching import HANG, in_loop
from turngate import (
    CursorExpired,
    Delta,
    DispatcherClosed,
    Moved,
    RunComplete,
    SubscriberCutOff,
    Subscription,
    Turn,
)
from turngate._events import Event, Subscribers
from turngate._loop import HomeLoop
from turngate.durable import DurableDispatcher
from turngate.durable._ledger import ReadPoint
from turngate.durable.feed import Feed
from turngate.durable.feed._completions import LedgerCursor
from turngate.durable.feed._delivery import Beginning, Delivery, Gap
from turngate_verify.world.memory_ledger import MemoryLedger, Tables


async def echo(turn: Turn) -> str:
    return turn.run.prompt


async def alone(ledger: MemoryLedger) -> Feed:
    """Return a feed that belongs to no dispatcher."""
    await ledger.open()
    stepper = DurableDispatcher(echo, ledger, poll=0.01)._stepper
    stepper.is_open = True
    return Feed(stepper, lambda run_id: False)


def complete(run_id: str, session_id: str = "s") -> RunComplete:
    return RunComplete(session_id, run_id, 1, "", None, False, None, None, "finished")


def unread(subscription: Subscription) -> list[Event]:
    return [*subscription._unread]


class Delivering:
    """A delivery, and subscriptions that begin at a position."""

    def __init__(self, delta_limit: int = 10) -> None:
        self.subscribers = Subscribers()
        self.delivery = Delivery(self.subscribers, delta_limit, 1_000)

    def subscribe(self, until: int, under_way: frozenset[int] = frozenset(), **more: Any) -> Subscription:
        options: dict[str, Any] = {"session_id": None, "moves": False, **more}
        options |= {"delta_limit": 100, "delta_bytes": 10_000, "complete_limit": 100}
        subscription = Subscription(HomeLoop(), self.subscribers, **options)
        self.delivery.beginnings[subscription] = Beginning(ReadPoint(until, until), under_way)
        return subscription


def test_a_subscription_receives_what_is_saved_after_its_beginning_or_was_under_way_then() -> None:
    told = Delivering()
    early, late, under_way = told.subscribe(1), told.subscribe(5), told.subscribe(5, frozenset({3}))
    other = told.subscribe(1, session_id="other")
    events = {position: complete(str(position)) for position in (2, 3, 5)}
    for position, event in events.items():
        told.delivery.deliver(event, position)
    assert unread(early) == [*events.values()]
    assert unread(late) == [events[5]]
    assert unread(under_way) == [events[3], events[5]]
    assert unread(other) == []


def test_what_a_turn_streams_is_delivered_between_what_was_saved_before_and_after_its_start() -> None:
    told = Delivering(delta_limit=2)
    events = told.subscribe(1)
    told.delivery.gate("r", 4)
    deltas = [Delta("s", "r", text, offset) for offset, text in enumerate("abc")]
    for delta in deltas:
        told.delivery.stream(delta, 1)
    assert unread(events) == []
    assert events.dropped == 1
    told.delivery.deliver(complete("before"), 4)
    assert unread(events) == [complete("before")]
    told.delivery.deliver(complete("after"), 5)
    assert unread(events) == [complete("before"), *deltas[:2], complete("after")]
    assert (told.delivery.held, told.delivery.held_bytes, told.delivery.gates) == (0, 0, {})


def test_a_purge_cuts_off_only_the_subscriptions_that_may_have_missed_something() -> None:
    told = Delivering()
    early, late, under_way = told.subscribe(1), told.subscribe(9), told.subscribe(9, frozenset({4}))
    told.delivery.cut_off_purged(7)
    assert [each.closed for each in (early, late, under_way)] == [True, False, True]


def test_a_run_complete_that_was_purged_cuts_off_the_subscriptions_that_should_have_received_it() -> None:
    told = Delivering()
    early, late = told.subscribe(1), told.subscribe(9)
    told.delivery.deliver(Gap("s", "r"), 5)
    assert (early.closed, late.closed) == (True, False)


def test_a_hook_leaves_its_run_complete_to_subscriptions_to_moves_alone() -> None:
    told = Delivering()
    completes, moves = told.subscribe(1), told.subscribe(1, moves=True)
    told.delivery.deliver(complete("hooked"), 2, for_hook=True)
    told.delivery.deliver(Moved("s", "accept", "r", 1), 3)
    assert unread(completes) == []
    assert [event.run_id for event in unread(moves)] == ["hooked", "r"]


def test_a_cursor_is_read_as_it_was_written() -> None:
    moment = ReadPoint(8, 12, frozenset({9, 11}))
    for cursor in (
        LedgerCursor("epoch", (7, 0)),
        LedgerCursor("epoch", (7, 2), moment),
    ):
        assert LedgerCursor.parse(str(cursor)) == cursor
    passed = LedgerCursor("epoch", (12, 0), moment)
    assert str(passed) == "epoch.12.0"
    assert LedgerCursor("epoch", (7, 2), moment).reach() == 11
    for text in ("", "epoch", "epoch.1", "epoch.1.x", "epoch.1.²", f"epoch.1.{'9' * 30}"):
        with pytest.raises(CursorExpired):
            LedgerCursor.parse(text)


@in_loop
async def test_a_feed_needs_no_dispatcher() -> None:
    ledger = MemoryLedger(Tables())
    feed = await alone(ledger)
    events = feed.subscribe(None, moves=True)
    assert feed.is_joining()
    await feed.until_joined()
    brings = await feed.beginning(events)
    assert brings(f"{await ledger.epoch()}.{(await ledger.read_point()).until}.0")
    delta = Delta("s", "r", "text", 0)
    feed.begin_turn("r", -1)
    feed.stream(delta, 4)
    assert await anext(events) == delta
    completions = feed.completions(await feed.end_cursor(), None)
    waits = asyncio.create_task(anext(completions))
    await asyncio.sleep(0.02)
    assert not waits.done()
    feed.stop()
    assert [event async for event in feed.subscribe(None, moves=False)] == []
    feed.close()
    assert [event async for event in events] == []
    with pytest.raises(StopAsyncIteration):
        await waits
    await ledger.close()


@in_loop
async def test_subscriptions_are_cut_off_that_a_close_cannot_tell_everything() -> None:
    ledger = MemoryLedger(Tables())
    feed = await alone(ledger)
    events = feed.subscribe(None, moves=False)
    await feed.until_joined()
    ledger.is_away = True
    await feed.read_to(1, patience=0.0, answer_within=None)
    with pytest.raises(SubscriberCutOff):
        await anext(events)
    feed.stop()
    feed.close()


@in_loop
async def test_a_subscription_that_comes_while_the_ledger_is_let_go_of_has_no_beginning() -> None:
    ledger = MemoryLedger(Tables())
    waiting: list[asyncio.Task[Any]] = []
    d = DurableDispatcher(echo, ledger)

    async def retire(worker: int) -> None:
        waiting.append(asyncio.create_task(d.beginning(d.subscribe())))
        await asyncio.sleep(0)
        ledger.tables.workers.discard(worker)

    ledger.retire = retire  # type: ignore[method-assign]  # to subscribe at that moment
    async with d, d.subscribe():
        await d.ask("s", "p")
    async with asyncio.timeout(HANG):
        with pytest.raises(DispatcherClosed):
            await waiting[0]
