"""The contract of how runs complete, and who learns of it: one RunComplete each, whatever goes wrong."""

from __future__ import annotations

import asyncio

import pytest

from dispatching import (
    Agent,
    BrokenMessages,
    active,
    containing,
    echo,
    in_loop,
    on_record,
    outcome,
    queued,
    steps,
)
from turngate import Dispatcher, RunComplete, Turn


@in_loop
async def test_a_folded_run_completes_with_the_turn_that_took_it_in() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        lead = await active(d, "s", "p1")
        follow_up = await queued(d, "s", "p2")
        await agent.turns[0].fold()
        agent.finish(lead, "both")
        done, folded = await lead, await follow_up
        assert outcome(done) == outcome(folded) == ("both", None, False)
        assert (done.folded_into, folded.folded_into) == (None, lead.run_id)
        assert done.message_id == folded.message_id
        assert await on_record(d, "s") == [
            ("user", "p1", None),
            ("user", "p2", None),
            ("assistant", "both", "end_turn"),
        ]


@in_loop
async def test_a_runner_that_raises_gives_an_error_and_the_queue_goes_on() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        failing = await active(d, "s", "p1")
        behind = await queued(d, "s", "p2")
        agent.fail(failing, RuntimeError("boom"))
        assert outcome(await failing) == ("", "RuntimeError: boom", False)
        await steps()
        agent.finish(behind)
        assert outcome(await behind) == ("done", None, False)
        assert (await on_record(d, "s"))[1] == ("assistant", "", "error")


@in_loop
async def test_a_store_that_fails_gives_an_error_and_still_one_run_complete() -> None:
    for at_once in (True, False):
        async with (
            Dispatcher(echo, messages=BrokenMessages(OSError("disk full"), at_once=at_once, times=1)) as d,
            d.subscribe() as events,
        ):
            failing, behind = await d.submit("s", "p1"), await d.submit("s", "p2", when_busy="queue")
            complete = await failing
            assert complete.error == containing("OSError: disk full")
            assert (complete.text, complete.cancelled, complete.message_id) == ("p1", False, None)
            assert outcome(await behind) == ("p2", None, False)
            await d.aclose()
            assert [event async for event in events] == [complete, await behind]


@in_loop
async def test_a_handle_closed_before_entry_that_a_cancel_had_covered_is_cancelled() -> None:
    async with Dispatcher(echo) as d:
        run, other = await d.accept("s", "p"), await d.accept("s", "p")
        await d.cancel_run(other.run_id)
        await d.cancel("s")
        for released in (run, other):
            await released.close()
            assert outcome(await released) == ("", "released before entry", True)


@in_loop
async def test_a_retry_inside_the_runner_never_emits_a_second_run_complete() -> None:
    async def retrying(turn: Turn) -> str:
        for attempt in range(3):
            turn.write(f"attempt {attempt}; ")
            await asyncio.sleep(0)
        return "third time lucky"

    async with Dispatcher(retrying) as d, d.subscribe() as events:
        complete = await d.ask("s", "p")
        await d.aclose()
        assert [event async for event in events if isinstance(event, RunComplete)] == [complete]


@in_loop
async def test_on_complete_receives_the_run_complete_instead_of_the_subscribers() -> None:
    received: list[RunComplete] = []
    async with Dispatcher(echo) as d, d.subscribe() as events:
        complete = await d.ask("s", "p", on_complete=received.append)
        await d.aclose()
        assert received == [complete]
        assert [event async for event in events] == []


@in_loop
async def test_on_complete_is_not_carried_along_when_the_run_is_queued() -> None:
    received: list[RunComplete] = []
    agent = Agent()
    async with Dispatcher(agent) as d, d.subscribe() as events:
        turn = await active(d, "s", "p1", on_complete=received.append)
        waiting = await queued(d, "s", "p2", on_complete=received.append)
        agent.finish(turn)
        await steps()
        agent.finish(waiting)
        await waiting
        await d.aclose()
        assert received == [await turn]
        assert [event async for event in events] == [await waiting]


@pytest.mark.parametrize("way", ["released", "cancelled on entry"])
def test_on_complete_receives_what_ends_without_a_turn(way: str) -> None:
    @in_loop
    async def check() -> None:
        received: list[RunComplete] = []
        async with Dispatcher(echo) as d, d.subscribe() as events:
            run = await d.accept("s", "p", on_complete=received.append)
            if way == "released":
                await run.close()
            else:
                await d.cancel("s")
                await d.enter(run)
            complete = await run
            await d.aclose()
            assert received == [complete]
            assert [event async for event in events] == []

    check()
