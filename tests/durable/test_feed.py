"""The feed and its parts: where subscriptions and cursors begin, what is delivered, in which order."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dispatching import HANG, Agent, echo, in_loop
from ledgers import MakeLedger, ledgers, on_each, still
from stepping import SteppingLoop, in_steps
from turngate import (
    CursorExpired,
    Delta,
    DispatcherClosed,
    Moved,
    RunComplete,
    State,
    SubscriberCutOff,
    Subscription,
    Turn,
    WrongLoop,
)
from turngate._events import Event, Subscribers
from turngate._loop import HomeLoop
from turngate.durable import DurableDispatcher, LedgerUnavailable
from turngate.durable._ledger import CompletionRecord, HistoryStep, LedgerGone, Place, ReadPoint
from turngate.durable._records import Ask, Decide, Decision, RunRow
from turngate.durable._stepper import PendingStep
from turngate.durable.feed import Feed, _feed
from turngate.durable.feed._completions import LedgerCursor
from turngate.durable.feed._delivery import BEHIND, Beginning, Delivery, Gap
from turngate.durable.feed._feed import News
from turngate_verify.world.memory_ledger import MemoryLedger, Tables


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

    def subscribe(self, until: int, under_way: Mapping[str, int] = {}, **more: Any) -> Subscription:
        options: dict[str, Any] = {"session_id": None, "moves": False, **more}
        options |= {"delta_limit": 100, "delta_bytes": 10_000, "complete_limit": 100}
        subscription = Subscription(HomeLoop(), self.subscribers, **options)
        self.delivery.beginnings[subscription] = Beginning(ReadPoint(until, until), under_way)
        return subscription


def test_a_subscription_receives_what_is_saved_after_its_beginning_or_from_a_step_under_way_then() -> None:
    told = Delivering()
    early, late, under_way = told.subscribe(1), told.subscribe(6), told.subscribe(6, {"s": 3})
    other = told.subscribe(1, session_id="other")
    events = {position: complete(str(position)) for position in (2, 3, 5, 6)}
    for position, event in events.items():
        told.delivery.deliver(event, position)
    told.delivery.deliver(complete("elsewhere", "another"), 5)
    assert unread(early) == [*events.values(), complete("elsewhere", "another")]
    assert unread(late) == [events[6]]
    assert unread(under_way) == [events[3], events[5], events[6]]
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
    early, late, under_way = told.subscribe(1), told.subscribe(9), told.subscribe(9, {"s": 4})
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
    start = await feed.beginning(events)
    assert start.brings(f"{await ledger.epoch()}.{(await ledger.read_point()).until}.0", "s")
    assert not start.brings(start.cursor, "s")
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
async def test_a_run_that_was_being_accepted_completes_within_the_subscription_whoever_ends_it() -> None:
    """Another process ends it before the subscription has begun, and before its accept has returned."""
    tables = Tables()
    slow, hold = MemoryLedger(tables), asyncio.Event()
    take_step = slow.step

    async def step(ask: Ask, decide: Decide) -> Decision:
        decision = await take_step(ask, decide)
        await hold.wait()
        return decision

    agent = Agent()
    async with DurableDispatcher(agent, slow) as one, DurableDispatcher(agent, MemoryLedger(tables)) as two:
        first = await two.submit("s", "p", run_id="first")
        slow.step = step  # type: ignore[method-assign]  # to have the answer of a step come late
        submitting = asyncio.create_task(one.submit("s", "p", run_id="a"))
        while await two.find("a") is None:
            await asyncio.sleep(0)
        await two.cancel_run("a")
        async with one.subscribe(moves=True) as moves, one.subscribe() as completes:
            await asyncio.sleep(0.01)
            hold.set()
            run = await submitting
            async with asyncio.timeout(HANG):
                seen = [await anext(moves) for _ in range(4)]
                complete = await anext(completes)
            assert [each.event for each in seen if isinstance(each, Moved)] == ["accept", "enter", "cancel"]
            assert seen[-1] == complete == await run
            assert isinstance(complete, RunComplete)
            assert complete.cancelled
        agent.finish(first)
        await first


@in_loop
async def test_subscriptions_that_do_not_get_everything_at_the_close_are_cut_off() -> None:
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
async def test_a_subscription_made_while_the_ledger_is_being_closed_has_no_beginning() -> None:
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


# Where subscriptions and cursors begin: behind what was there, and before everything that comes.


async def at_hand(completions: Any, wanted: int) -> list[str]:
    return [(await anext(completions))[1].run_id for _ in range(wanted)]


@asynccontextmanager
async def open_transaction(ledger: Any) -> AsyncIterator[None]:
    """Hold a transaction open on a server, so that the horizon stays below what commits meanwhile."""
    server = getattr(ledger, "_server", None)
    if server is None:
        yield
        return
    connection = await server.connect()
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute("SELECT pg_current_xact_id()")
    try:
        yield
    finally:
        await transaction.rollback()
        await connection.close()


def test_a_moment_includes_what_could_be_read_then() -> None:
    moment = ReadPoint(5, 9, frozenset({5, 7}))
    assert [position for position in range(12) if moment.has(position)] == [0, 1, 2, 3, 4, 6, 8]


@on_each
async def test_after_the_end_cursor_come_only_later_completions(make: MakeLedger) -> None:
    async with DurableDispatcher(echo, make()) as one, DurableDispatcher(echo, make(), poll=0.02) as two:
        beginning = await two.end_cursor()
        async with open_transaction(one._ledger):
            await one.ask("s", "p", run_id="before")
            cursor = await two.end_cursor()
            assert cursor == await one.end_cursor()
            await one.ask("s", "p", run_id="behind")
            await one.ask("t", "p", run_id="last")
        completions = two.completions(after=cursor)
        found = [await anext(completions), await anext(completions)]
        assert [complete.run_id for _, complete in found] == ["behind", "last"]
        assert await at_hand(one.completions(after=found[0][0]), 1) == ["last"]
        assert await at_hand(one.completions(after=beginning), 3) == ["before", "behind", "last"]


@on_each
async def test_completions_end_at_a_cursor_and_do_not_wait_for_more(make: MakeLedger) -> None:
    async with DurableDispatcher(echo, make()) as one, DurableDispatcher(echo, make()) as two:
        cursors = [await one.end_cursor()]
        assert [each async for each in two.completions(until=cursors[0])] == []
        for number in range(4):
            await (one if number % 2 else two).ask("s", "p", run_id=f"r{number}")
            await one.cancel("idle")  # positions may grow without a completion
            cursors.append(await two.end_cursor())
        everything = [each async for each in one.completions(until=cursors[-1])]
        assert [complete.run_id for _, complete in everything] == ["r0", "r1", "r2", "r3"]
        for start, after in enumerate(cursors):
            for end, until in enumerate(cursors):
                assert [each async for each in two.completions(after, until=until)] == everything[start:end]
        for start, (after, _) in enumerate(everything, 1):
            for end, (until, _) in enumerate(everything, 1):
                assert [each async for each in two.completions(after, until=until)] == everything[start:end]


@on_each
async def test_a_task_that_found_nothing_is_woken_by_what_came_while_it_looked(make: MakeLedger) -> None:
    """Though another has looked meanwhile, and waits for news again; the poll never comes."""
    async with DurableDispatcher(echo, make(), poll=3_600) as d:
        events, finished, looked = d.subscribe(moves=True), d._ledger.completions_after, asyncio.Event()
        await d.ask("s", "p")

        async def finished_late(after: tuple[int, int], limit: int) -> Any:
            page = await finished(after, limit)
            await looked.wait()
            return page

        d._ledger.completions_after = finished_late  # type: ignore[method-assign]  # to be slow
        reading = asyncio.ensure_future(anext(d.completions(await d.end_cursor())))
        await still(d)
        done = await d.ask("s", "p", run_id="r")
        while await anext(events) != done:
            pass
        await still(d)
        looked.set()
        assert (await asyncio.wait_for(reading, HANG))[1] == done


@on_each
async def test_cursors_that_are_none(make: MakeLedger) -> None:
    async with DurableDispatcher(echo, make()) as d:
        await d.ask("s", "p")
        name = (await d.end_cursor()).split(".")[0]
        for wrong in (
            "",
            "x",
            name,
            f"{name}.1",
            f"{name}.1.x",
            f"{name}.-1.0",
            f"{name}.1.{'9' * 5_000}",
            f"{name}.\u0663.0",
        ):
            with pytest.raises(CursorExpired):
                d.completions(after=wrong)


@on_each
async def test_a_subscriber_does_not_get_earlier_run_completes(make: MakeLedger) -> None:
    async with DurableDispatcher(echo, make()) as d, open_transaction(d._ledger):
        first = d.subscribe()
        await d.ask("s", "p", run_id="before")
        second, moves = d.subscribe(), d.subscribe(moves=True)
        await d.ask("s", "p", run_id="after")
        async with open_transaction(d._ledger):
            third = d.subscribe()
            await d.ask("s", "p", run_id="last")
    told = [
        [event async for event in each if not isinstance(event, Moved)]
        for each in (first, second, moves, third)
    ]
    names = [[event.run_id for event in events] for events in told]
    assert names == [["before", "after", "last"], ["after", "last"], ["after", "last"], ["last"]]


@on_each
async def test_a_subscription_made_before_a_run_is_complete_gets_its_run_complete(make: MakeLedger) -> None:
    agent = Agent()
    async with DurableDispatcher(agent, make()) as d:
        for moves in (False, True):
            for hops in range(6):
                run = await d.submit("s", "p")
                await still(d)
                agent.finish(run)
                for _ in range(hops):
                    await asyncio.sleep(0)
                events = d.subscribe(moves=moves)
                known = run.complete is not None
                complete = await run
                await d.session("s")
                if not known:
                    async with asyncio.timeout(10):
                        while await anext(events) != complete:
                            pass
                events.close()


@on_each
async def test_every_subscriber_gets_the_text_of_a_turn_before_its_run_complete(
    make: MakeLedger,
) -> None:
    async def write(turn: Turn) -> None:
        turn.write("a")
        turn.write("b")

    async with (
        DurableDispatcher(write, make()) as d,
        d.subscribe() as events,
        d.subscribe(moves=True) as moves,
    ):
        for _ in range(5):
            complete = await d.ask("s", "p")
            run_id = complete.run_id
            wanted = [Delta("s", run_id, "a", 0), Delta("s", run_id, "b", 1), complete]
            assert [await anext(events) for _ in range(3)] == wanted
            told = [await anext(moves) for _ in range(5)]
            assert [each.event for each in told[:2] if isinstance(each, Moved)] == ["accept", "enter"]
            assert told[2:] == wanted


@in_loop
async def test_a_subscription_begins_when_the_ledger_can_be_reached_again() -> None:
    tables = Tables()
    ledger = MemoryLedger(tables)
    async with DurableDispatcher(echo, ledger, poll=0.01) as d, d.subscribe() as first:
        await d.ask("s", "p")
        ledger.is_away = True
        second = d.subscribe()
        with pytest.raises(LedgerUnavailable):
            await d.ask("s", "p")
        ledger.is_away = False
        await d.session("s")
        complete = await d.ask("s", "p", run_id="later")
        assert [event.run_id async for event in _until(first, complete)][-1] == "later"
        assert [event async for event in _until(second, complete)] == [complete]


async def _until(events: Any, last: RunComplete) -> AsyncIterator[Any]:
    async for event in events:
        yield event
        if event == last:
            return


def test_a_hook_that_receives_the_run_complete_is_enough(tmp_path: Any) -> None:
    @in_loop
    async def hooked(make: MakeLedger) -> None:
        told: list[RunComplete] = []
        async with DurableDispatcher(echo, make()) as d:
            events = d.subscribe()
            for _ in range(10):
                await d.ask("s", "p", on_complete=told.append)
            last = await d.ask("s", "p")
            assert await anext(events) == last
            assert len(told) == 10
            assert not d._feed.hooked

    with ledgers("memory", tmp_path) as make:
        hooked(make)


# What goes wrong, and how often it looks.


@in_loop
async def test_steps_that_wait_for_a_subscription_learn_why_it_cannot_begin() -> None:
    feed = await alone(MemoryLedger(Tables()))
    feed._fail_joining(OSError("no step waits for any"))
    assert not feed.is_joining()
    feed._moment_known = asyncio.get_running_loop().create_future()
    gone = LedgerGone("purged")
    for wrong in (OSError("unplugged"), gone):
        waiting = asyncio.create_task(feed.until_joined())
        await asyncio.sleep(0)
        feed._fail_joining(wrong)
        with pytest.raises(LedgerUnavailable if wrong is not gone else LedgerGone) as raised:
            await waiting
        assert (raised.value is gone) == (wrong is gone)
        assert wrong in (raised.value, raised.value.__cause__)
        assert feed.is_joining()  # the next step waits again
    feed._fail_joining(OSError("no step waits"))


@pytest.mark.parametrize("is_known", [False, True])
@in_loop
async def test_when_the_last_subscription_is_closed_no_step_waits_for_it(is_known: bool) -> None:
    feed = await alone(MemoryLedger(Tables()))
    feed._moment_known = known = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(feed.until_joined())
    await asyncio.sleep(0)
    if is_known:
        known.set_result(None)
    feed._stop_following()
    await waiting
    assert not feed.is_joining()


@in_loop
async def test_while_a_gate_is_closed_it_looks_again_soon_and_then_less_often(
    caplog: pytest.LogCaptureFixture,
) -> None:
    feed = await alone(MemoryLedger(Tables()))
    horizons: list[Any] = [1, 1, 1, 1, 1, 1, 1, 1, 2, 1, OSError("unplugged"), LedgerGone("purged"), 1]
    pauses: list[float | None] = []

    async def read() -> int:
        horizon = horizons.pop(0)
        if isinstance(horizon, Exception):
            raise horizon
        return int(horizon)

    async def wait(heard: int, within: float | None = None) -> None:
        pauses.append(within)
        if len(horizons) == 1:
            feed.delivery.open_gates()
        if not horizons:
            feed._news.close()

    feed._read = read  # type: ignore[method-assign]
    feed._news.wait = wait  # type: ignore[method-assign]
    feed.subscribers.listen = lambda: True  # type: ignore[method-assign]
    feed.delivery.gate("r", 1)
    await feed._follow()
    assert pauses == [
        *(0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.2, 0.2),
        *(0.005, 0.005),  # others have gone on
        *(0.01, 0.02),
        None,  # the gates are open
    ]
    assert [type(each.exc_info[1]) for each in caplog.records if each.exc_info] == [OSError]


@in_loop
async def test_a_turn_has_a_gate_only_where_the_ledger_is_read_for_subscribers() -> None:
    feed = await alone(MemoryLedger(Tables()))
    feed.subscribers.listen = lambda: True  # type: ignore[method-assign]
    feed.begin_turn("r", 1)
    assert not feed.delivery.gates
    feed._task = asyncio.create_task(asyncio.sleep(0))
    heard = feed._news.count
    feed.begin_turn("r", 1)
    assert feed.delivery.gates
    assert feed._news.count > heard  # the ledger is read soon, which opens it
    feed.subscribers.listen = lambda: False  # type: ignore[method-assign]
    feed.begin_turn("q", 1)
    assert len(feed.delivery.gates) == 1
    await feed._task


@in_loop
async def test_an_event_that_cannot_be_delivered_does_not_keep_back_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    feed = await alone(MemoryLedger(Tables()))

    def fail(event: Event | Gap, position: int, *, for_hook: bool) -> None:
        raise RuntimeError("broken")

    feed.delivery.deliver = fail  # type: ignore[method-assign,assignment]
    feed._deliver(complete("r"), 1)
    assert "broken" in caplog.text


def test_the_bytes_held_back_are_added_up() -> None:
    told = Delivering()
    events = told.subscribe(1)
    told.delivery.gate("r", 5)
    deltas = [Delta("s", "r", letter, number) for number, letter in enumerate("abc")]
    for delta, size in zip(deltas, (500, 500, 1), strict=True):
        told.delivery.stream(delta, size)
    assert (told.delivery.held, told.delivery.held_bytes, events.dropped) == (2, 1_000, 1)
    told.delivery.open_gates()
    assert unread(events) == deltas[:2]


def test_a_limited_number_of_complete_runs_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turngate.durable.feed._delivery._COMPLETE_RUNS", 2)
    told = Delivering()
    for position, run_id in enumerate("abc", 1):
        told.delivery.deliver(complete(run_id), position)
    assert [*told.delivery.complete_runs] == ["b", "c"]


@in_loop
async def test_runs_purged_meanwhile_are_not_looked_at_again() -> None:
    feed = await alone(MemoryLedger(Tables()))
    pages: list[Any] = [((9, 1), 20, []), ((9, 1), 20, [])]
    places: list[Any] = []

    async def history_after(place: Any, limit: int) -> Any:
        places.append(place)
        return pages.pop(0)

    feed._ledger.history_after = history_after  # type: ignore[method-assign,assignment]
    feed._at = (3, 1)
    assert await feed._read() == 20
    feed._at = (21, 5)  # an older horizon takes nothing back
    assert await feed._read() == 20
    assert (places, feed._at) == ([(3, 1), (21, 5)], (21, 5))


async def idle(tables: Tables | None = None) -> tuple[Feed, MemoryLedger]:
    """Return a feed that reads only when the test says so, and its ledger."""
    ledger = MemoryLedger(tables or Tables())
    feed = await alone(ledger)
    feed._task = asyncio.get_running_loop().create_future()  # type: ignore[assignment]  # it never ends
    return feed, ledger


def save(tables: Tables, *entries: dict[str, Any], session_id: str = "s") -> int:
    """Put a step on record; return its position."""
    tables.number += 1
    lines = [{"session": session_id, **entry} for entry in entries]
    tables.history.append(HistoryStep(tables.number, 0, session_id, lines, 0.0))
    return tables.number


def save_complete(tables: Tables, run_id: str, session_id: str = "s") -> int:
    """Put the end of a run on record; return its position."""
    position = save(tables, {"event": "complete", "run": run_id}, session_id=session_id)
    tables.runs[run_id] = RunRow(run_id, session_id, 1, State.COMPLETE, "fold", False, 1, 0, "", "", "")
    tables.complete[run_id] = CompletionRecord(position, 0, complete(run_id, session_id))
    return position


def cleared(session_id: str = "s") -> Moved:
    return Moved(session_id, "clear", None, None, None, None, None, None)


CLEAR = {"event": "clear"}


@in_loop
async def test_whoever_waits_for_a_beginning_has_it_once_the_ledger_was_read() -> None:
    feed, _ = await idle()
    events = feed.subscribe(None, moves=True)
    waiting = asyncio.create_task(feed.beginning(events))
    await asyncio.sleep(0)
    feed._joined.wake()  # for another subscription
    await asyncio.sleep(0)
    assert not waiting.done()
    assert await feed._read() == 1
    start = await waiting
    assert [start.brings(f"memory.{position}.0", "s") for position in (0, 1)] == [False, True]
    assert LedgerCursor.parse(start.cursor).at == (0, BEHIND)
    closed = feed.subscribe(None, moves=True)
    closed.close()
    with pytest.raises(DispatcherClosed):
        await feed.beginning(closed)
    never = feed.subscribe(None, moves=True)
    feed._news.closed = True
    with pytest.raises(DispatcherClosed):
        await feed.beginning(never)


@in_loop
async def test_a_hook_counts_only_while_the_ledger_is_read_for_subscribers() -> None:
    feed, _ = await idle()
    feed.leave_to_hook("r", 4)
    assert feed.hooked == {"r": 4}
    feed._stop_following()
    feed.leave_to_hook("r", 4)
    assert feed.hooked == {}


@in_loop
async def test_what_turns_stream_is_wanted_here_or_elsewhere() -> None:
    feed, ledger = await idle()
    assert not feed.listen()
    other = MemoryLedger(ledger.tables, 1)
    other.on_relay(lambda message: None)
    assert feed.listen()
    other.on_relay(None)
    events = feed.subscribe(None, moves=False)
    assert feed.listen()
    events.close()


@in_loop
async def test_a_ledger_is_not_read_for_no_one() -> None:
    feed, ledger = await idle()
    reads: list[Any] = []
    read = ledger.history_after

    async def last_one_closes(*about: Any) -> Any:
        reads.append(about)
        feed._stop_following()
        return await read(*about)

    ledger.history_after = last_one_closes  # type: ignore[method-assign,assignment]
    assert await feed._read() == _feed._EVERYTHING
    assert reads == []
    events = feed.subscribe(None, moves=True)
    save(ledger.tables, CLEAR)
    assert await feed._read() == _feed._EVERYTHING
    assert len(reads) == 1
    assert unread(events) == []


@in_loop
async def test_a_subscription_that_was_dropped_before_it_began_holds_nothing_up() -> None:
    feed, ledger = await idle()
    dropped = feed.subscribe(None, moves=True)
    assert feed.is_joining()
    del dropped
    gc.collect()
    assert await feed._read() == _feed._EVERYTHING
    assert (feed.joining, feed.is_joining(), len(feed.delivery.beginnings)) == ([], False, 0)
    assert not ledger.tables.listeners  # no subscriber is left for what turns stream elsewhere


@in_loop
async def test_steps_wait_for_a_subscription_that_came_while_the_moment_was_asked_for() -> None:
    feed, ledger = await idle()
    first, second = feed.subscribe(None, moves=True), list[Subscription]()
    ask = ledger.read_point

    async def meanwhile() -> ReadPoint:
        moment = await ask()
        if not second:
            save(ledger.tables, CLEAR)
            second.append(feed.subscribe(None, moves=True))
        return moment

    ledger.read_point = meanwhile  # type: ignore[method-assign]
    await feed._learn_moment()
    assert feed.is_joining()  # the moment of the second is not known
    await feed._read()
    assert not feed.is_joining()
    assert unread(first) == [cleared()]
    assert unread(second[0]) == []
    assert ledger.tables.listeners.keys() == {ledger}
    await feed._learn_moment()  # there is nothing more to learn
    assert not feed.is_joining()


@in_loop
async def test_many_steps_are_read_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_feed, "_PAGE", 2)
    feed, ledger = await idle()
    events = feed.subscribe(None, moves=True)
    await feed._read()
    for event in ("hold", *["clear"] * 4):  # a hold of a session names no run
        save(ledger.tables, {"event": event})
    reads: list[Any] = []
    read = ledger.history_after

    async def noted(after: Any, limit: int) -> Any:
        reads.append((after, limit))
        return await read(after, limit)

    ledger.history_after = noted  # type: ignore[method-assign]
    feed.hooked = {"old": 5, "new": 6}
    feed.delivery.gate("r", 5)
    assert await feed._read() == 6
    assert reads == [((0, BEHIND), 2), ((2, 0), 2), ((4, 0), 2)]
    assert [event.session_id for event in unread(events)] == ["s"] * 5
    assert feed.hooked == {"new": 6}  # whatever completes below the horizon has been read
    assert not feed.delivery.gates
    assert await feed._read() == 6
    assert reads[-1] == ((5, BEHIND), 2)


@in_loop
async def test_a_purge_below_the_place_of_a_subscription_is_no_loss() -> None:
    feed, ledger = await idle()
    events = feed.subscribe(None, moves=True)
    await feed._read()
    read, purged = ledger.history_after, [(0, BEHIND), (4, 0)]

    async def with_purges(*about: Any) -> Any:
        return (purged.pop(0), *(await read(*about))[1:])

    ledger.history_after = with_purges  # type: ignore[method-assign,assignment]
    await feed._read()
    assert not events.closed
    await feed._read()
    assert events.closed
    assert feed._at == (4, 0)


def under_way(position: int | None, *completes: str, session_id: str = "s") -> PendingStep:
    step = PendingStep(session_id)
    step.position, step.completes = position, {*completes}
    return step


@in_loop
async def test_the_steps_that_were_under_way_are_found_by_their_answers_or_their_runs() -> None:
    feed, ledger = await idle()
    save_complete(ledger.tables, "lost")
    steps = [
        under_way(4),
        under_way(0, "lost"),
        under_way(3),
        *(under_way(0, "unknown", session_id="u"), under_way(0, session_id="v")),
        *(under_way(7, "known", session_id="t"), under_way(9, session_id="t")),
    ]
    assert await feed._saved_of(steps) == {"s": 1, "t": 7}
    asked: list[Any] = []

    async def find(run_ids: Sequence[str]) -> list[Any]:
        asked.append(run_ids)
        return []

    ledger.find = find  # type: ignore[method-assign]
    assert await feed._saved_of([under_way(7, "known"), under_way(0)]) == {"s": 7}
    assert asked == []


@pytest.mark.parametrize(("moves", "page"), [(True, 1), (True, 2), (False, 1), (False, 500)])
@in_loop
async def test_a_subscription_gets_what_was_under_way_and_delivered_before_it_began(
    moves: bool, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_feed, "_PAGE", page)
    feed, ledger = await idle()
    read = ledger.history_after

    async def checked(after: Place, limit: int) -> Any:
        position, ordinal = after
        return await read((position, ordinal), limit)

    ledger.history_after = checked  # type: ignore[method-assign]
    tables = ledger.tables
    early = feed.subscribe(None, moves=True)
    await feed._read()
    save(tables, CLEAR)  # it was not under way
    first = save(tables, CLEAR)
    save_complete(tables, "r")
    save(tables, {"event": "complete", "run": "purged"})
    save_complete(tables, "hooked")
    of_other = save_complete(tables, "other", session_id="t")
    feed.hooked["hooked"] = 99
    await feed._read()
    assert early.closed  # it should have received a completion that was purged
    late = feed.subscribe("s", moves=moves)
    feed.joining[0].steps = [under_way(first), under_way(of_other, session_id="t")]
    save_complete(tables, "later")
    await feed._read()
    expected = [complete("r"), complete("later")]
    assert unread(late) == ([cleared(), expected[0], complete("hooked"), expected[1]] if moves else expected)


@in_loop
async def test_a_close_reads_what_is_left_until_its_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_feed, "_PAUSE", 0)
    monkeypatch.setattr(_feed, "_TRIES", 4)
    feed, _ = await idle()
    reads: list[Any] = []

    def told(*answers: Any) -> None:
        reads[:] = answers

    async def read() -> int:
        answer = reads.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return int(answer)

    feed._read = read  # type: ignore[method-assign]
    away = LedgerUnavailable("away")

    async def cut_off(*, patience: float = 9.0, answer_within: float | None = None) -> bool:
        events = feed.subscribe(None, moves=True)
        feed.delivery.beginnings[events] = Beginning(ReadPoint(1, 1), {})
        await feed.read_to(5, patience=patience, answer_within=answer_within)
        return events.closed

    told(away, 5, away, 6)
    assert (await cut_off(), reads) == (False, [])
    told(5, 4, 5, 5, 6)  # a transaction elsewhere holds it back
    assert (await cut_off(), reads) == (True, [6])
    told(away, 6)
    assert (await cut_off(patience=0.0), reads) == (True, [6])
    told(away, 6)
    assert (await cut_off(answer_within=9.0), reads) == (True, [6])


@in_loop
async def test_stopping_a_feed_ends_its_reading_and_all_that_waits_for_it() -> None:
    feed, ledger = await idle()
    events = feed.subscribe(None, moves=True)
    await feed._read()
    assert feed.following
    feed.hooked["r"] = 1
    feed.delivery.gate("r", 9)
    never = feed.subscribe(None, moves=True)
    waiting = asyncio.create_task(feed.until_joined())
    beginning = asyncio.create_task(feed.beginning(never))
    await asyncio.sleep(0)
    task = feed._task
    feed.stop()
    await waiting
    assert task is not None
    assert task.cancelled()
    assert (feed.following, feed.hooked, feed.joining, feed._at) == (False, {}, [], None)
    assert not feed.delivery.gates
    assert not ledger.tables.listeners
    feed.stop()
    assert feed.subscribe(None, moves=True).closed
    feed.close()
    with pytest.raises(DispatcherClosed):
        await beginning
    assert events.closed


@in_loop
async def test_what_is_delivered_in_part_is_not_missed_twice() -> None:
    feed, ledger = await idle()
    events = feed.subscribe(None, moves=True)
    position = save(ledger.tables, CLEAR)
    first = ledger.tables.history[-1]
    after = [{"event": "clear", "session": "t"}]
    ledger.tables.history.append(first._replace(ordinal=1, session_id="t", entries=after))
    since = {"s": position, "t": position}
    assert await feed._missed(events, since) == []  # nothing was delivered yet
    feed._at = (position, 0)
    assert await feed._missed(events, since) == [cleared()]
    feed._at = (position, BEHIND)
    assert await feed._missed(events, since) == [cleared(), cleared("t")]
    assert await feed._missed(events, {}) == []
    assert await feed._missed(events, {"t": position}) == [cleared("t")]


@in_loop
async def test_a_first_subscription_is_told_what_comes_after_it_began() -> None:
    feed, ledger = await idle()
    for _ in range(7):
        save(ledger.tables, CLEAR)
    reads: list[Any] = []
    read = ledger.history_after

    async def noted(after: Any, limit: int) -> Any:
        if not reads:
            second.append(feed.subscribe(None, moves=True))
        reads.append(after)
        return await read(after, limit)

    second = list[Subscription]()
    ledger.history_after = noted  # type: ignore[method-assign]
    heard = feed._news.count
    first = feed.subscribe(None, moves=True)
    assert feed._news.count > heard  # so that it begins soon
    await feed._read()
    assert reads == [(7, BEHIND)]
    start = await feed.beginning(first)
    assert LedgerCursor.parse(start.cursor).at == (7, BEHIND)
    assert second[0] in feed.delivery.beginnings  # what was read meanwhile is not delivered without one


@in_loop
async def test_a_moment_is_asked_for_once() -> None:
    feed, ledger = await idle()
    events = feed.subscribe(None, moves=True)
    await feed._learn_moment()
    ledger.is_away = True
    await feed._learn_moment()
    assert not feed.is_joining()
    events.close()


@in_loop
async def test_the_cursor_of_this_moment_waits_for_subscriptions_and_for_the_ledger() -> None:
    feed, ledger = await idle()
    save(ledger.tables, CLEAR)
    events = feed.subscribe(None, moves=True)
    asking = asyncio.create_task(feed.end_cursor())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not asking.done()
    await feed._read()
    assert LedgerCursor.parse(await asking).at == (1, BEHIND)
    events.close()
    feed._stepper.is_closed = True
    with pytest.raises(DispatcherClosed):
        await feed.end_cursor()


@in_loop
async def test_readers_belong_to_the_loop_of_the_dispatcher() -> None:
    feed, ledger = await idle()
    save(ledger.tables, CLEAR)
    feed._loop.check_loop()
    for read in (lambda: feed.completions(None, None), lambda: feed.history(None, follow=False)):
        with pytest.raises(WrongLoop):
            await asyncio.to_thread(read)
    pages = [page async for page in feed.history(None, follow=False)]
    assert [line["event"] for page in pages for line in page] == ["clear"]


@in_loop
async def test_what_turns_stream_goes_to_other_processes_too() -> None:
    feed, _ = await idle()
    sent: list[Any] = []

    async def note(*about: Any) -> None:
        sent.append(about)

    feed.relay.send = sent.append  # type: ignore[method-assign,assignment]
    feed.relay.end_turn = feed.relay.flush = note  # type: ignore[method-assign,assignment]
    delta = Delta("s", "r", "text", 0)
    feed.stream(delta, 4)
    await feed.end_turn("r")
    await feed.flush()
    assert sent == [delta, ("r",), ()]


@in_loop
async def test_the_last_subscription_that_closes_before_it_began_has_no_beginning() -> None:
    feed, _ = await idle()
    events = feed.subscribe(None, moves=True)
    beginning = asyncio.create_task(feed.beginning(events))
    await asyncio.sleep(0)
    events.close()
    feed._stop_following()
    with pytest.raises(DispatcherClosed):
        await beginning


@in_loop
async def test_a_ledger_that_is_not_open_is_opened_to_be_read(caplog: pytest.LogCaptureFixture) -> None:
    feed, _ = await idle()
    opened: list[None] = []

    async def open_later() -> None:
        opened.append(None)
        if len(opened) == 1:
            raise OSError("unplugged")
        feed._news.close()

    feed._stepper.open = open_later  # type: ignore[method-assign]
    events = feed.subscribe(None, moves=True)
    feed._news.count += 1  # so that nothing is waited for

    async def no_wait(*_: Any) -> None:
        pass

    feed._news.wait = no_wait  # type: ignore[method-assign,assignment]
    await feed._follow()
    assert len(opened) == 2
    assert [str(each.exc_info[1]) for each in caplog.records if each.exc_info] == ["unplugged"]
    events.close()


def test_a_reader_waits_for_news_or_for_a_while() -> None:
    async def check(loop: SteppingLoop) -> None:
        news = News(poll=7.0)
        await news.wait(news.count)
        assert loop.time() == 7
        await news.wait(news.count, 2.0)
        assert loop.time() == 9
        heard = news.count
        news.wake()
        await news.wait(heard)
        assert loop.time() == 9  # it came before the wait
        await news.wait(news.count)
        assert loop.time() == 16  # and is no news any more
        loop.call_later(1, news.wake)
        await news.wait(news.count)
        assert loop.time() == 17
        loop.call_later(1, news.close)
        await news.wait(news.count)
        assert loop.time() == 18
        assert news.stopping
        assert news.closed

    in_steps(check)


def test_a_close_does_not_wait_for_a_ledger_longer_than_it_is_told_to(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_feed, "_PAUSE", 1.0)

    async def check(loop: SteppingLoop) -> None:
        feed, _ = await idle()
        assert feed._task is not None
        feed._task.cancel()
        events = feed._subscription(session_id=None, moves=True)
        feed.delivery.beginnings[events] = Beginning(ReadPoint(1, 1), {})

        async def away() -> int:
            raise LedgerUnavailable("unplugged")

        feed._read = away  # type: ignore[method-assign]
        await feed.read_to(5, patience=4.5, answer_within=None)
        assert loop.time() == 5
        with pytest.raises(SubscriberCutOff, match="unplugged"):
            await anext(events)

    in_steps(check)
    assert [bool(each.exc_info) for each in caplog.records] == [*[True] * 6, False]
