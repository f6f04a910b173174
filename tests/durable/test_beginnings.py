"""Where subscriptions and cursors begin: behind what was there, and before everything that comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dispatching import HANG, Agent, in_loop
from ledgers import MakeLedger, ledgers, on_each, still
from turngate import CursorExpired, Delta, Moved, RunComplete, Turn
from turngate.durable import DurableDispatcher, LedgerUnavailable
from turngate.durable._ledger import ReadPoint
from turngate_verify.world.memory_ledger import MemoryLedger, Tables


async def echo(turn: Turn) -> str:
    return turn.run.prompt


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


def test_a_moment_has_what_was_there() -> None:
    moment = ReadPoint(5, 9, frozenset({5, 7}))
    assert [position for position in range(12) if moment.has(position)] == [0, 1, 2, 3, 4, 6, 8]


@on_each
async def test_behind_the_end_cursor_comes_only_what_completes_from_then_on(make: MakeLedger) -> None:
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
async def test_who_looked_in_vain_hears_of_what_came_while_it_looked(make: MakeLedger) -> None:
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
async def test_a_subscriber_is_not_told_what_was_complete_before(make: MakeLedger) -> None:
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
async def test_whoever_subscribes_before_a_run_is_complete_is_told(make: MakeLedger) -> None:
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
async def test_what_a_turn_writes_comes_before_its_run_complete_for_everybody(make: MakeLedger) -> None:
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
