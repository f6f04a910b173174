"""Moves while hooks, callbacks and recordings call back or close: whoever is called changes no order."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from dispatching import Agent, active, assert_nothing_left, in_loop, queued, steps
from told import check_order, rest, spelled, unread
from turngate import Dispatcher, Event, Run, RunComplete, State

pytestmark = pytest.mark.requirement("R-LOK-2")


@in_loop
async def test_a_recording_that_closes_the_dispatcher_changes_no_order() -> None:
    agent = Agent()
    recorded: list[str] = []

    def record(entry: dict[str, Any]) -> None:
        if entry.get("run") == "second" and entry["event"] == "accept":
            d.begin_close()
        recorded.append(entry["event"] + " " + entry.get("run", ""))

    d = Dispatcher(agent, record=record)
    events = d.subscribe(moves=True)
    await active(d, "s", "p", run_id="first")
    second = await d.accept("s", "q", run_id="second")
    assert (await second).outcome == "cancelled"
    await d.aclose()
    assert await rest(events) == [
        "accept first",
        "enter first active",
        "accept second",
        "cancel",
        "complete second cancelled",
        "complete first cancelled",
    ]
    assert recorded == [
        "accept first",
        "enter first",
        "accept second",
        "cancel ",
        "complete second",
        "complete first",
        "end ",
    ]


@pytest.mark.parametrize("how", ["hook", "callback"])
@in_loop
async def test_a_hook_that_closes_the_dispatcher_changes_no_order(how: str) -> None:
    agent = Agent()

    def close(_: RunComplete) -> None:
        seen.append((d.session("s"), d.is_busy(), d.queued("s")))
        d.begin_close()
        d.begin_close(finish=5)
        d.subscribe(moves=True)

    seen: list[Any] = []
    d = Dispatcher(agent)
    events = d.subscribe(moves=True)
    first = await active(d, "s", "p", run_id="first", on_complete=close if how == "hook" else None)
    if how == "callback":
        first.add_done_callback(close)
    second = await queued(d, "s", "q", run_id="second", when_busy="queue")
    third = await queued(d, "s", "q", run_id="third", when_busy="queue")
    elsewhere = await active(d, "t", "p", run_id="elsewhere")
    agent.finish(first)
    await first
    await d.aclose()
    assert [run.complete.outcome for run in (first, second, third, elsewhere) if run.complete] == [
        "finished",
        "cancelled",
        "cancelled",
        "cancelled",
    ]
    assert [turn.run for turn in agent.turns] == [first, elsewhere]
    ((view, busy, behind),) = seen
    assert view.active is second
    assert view.phase == "starting"
    assert view.since is not None
    assert busy
    assert behind == [third]
    told = [event async for event in events]
    check_order(told)
    assert [spelled(event) for event in told][-7:] == [
        "complete first finished",
        "handoff second",
        "cancel",
        "complete third cancelled",
        "cancel",
        "complete second cancelled",
        "complete elsewhere cancelled",
    ]


@in_loop
async def test_a_hook_that_looks_in_finds_what_the_stream_has_told() -> None:
    agent = Agent()
    told: list[list[str]] = []
    async with Dispatcher(agent) as d:
        events = d.subscribe(moves=True)

        def look(complete: RunComplete) -> None:
            assert d.find(complete.run_id) is not None
            told.append([spelled(event) for event in unread(events)][-2:])

        run = await active(d, "s", "p", run_id="r", on_complete=look)
        await queued(d, "s", "q", run_id="q", when_busy="queue")
        agent.finish(run)
        await run
        assert told == [["complete r finished", "handoff q"]]


def test_a_reader_of_moves_that_waits_on_a_closed_loop_costs_no_run_its_completion(
    caplog: pytest.LogCaptureFixture,
) -> None:
    agent = Agent()
    runs: list[Run] = []

    async def main() -> tuple[Dispatcher, asyncio.Task[Event]]:
        d = Dispatcher(agent)
        d._warns_if_dropped = False
        runs.append(await active(d, "s", "active"))
        runs.append(await queued(d, "s", "queued", when_busy="queue"))
        reading = asyncio.ensure_future(anext(d.subscribe(moves=True)))
        await steps()
        return d, reading

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # the loop says that a task was destroyed, as it should
    d, reading = loop.run_until_complete(main())
    task = agent.turns[0].task
    assert task is not None
    coroutine = task.get_coro()
    assert coroutine is not None
    loop.close()
    coroutine.close()
    assert [run.state for run in runs] == [State.COMPLETE] * 2
    assert_nothing_left(d)
    assert "delivering {'event': 'complete'" in caplog.text
    agent.turns.clear()
    del task, coroutine, reading
    gc.collect()
