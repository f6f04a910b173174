"""One step after another: what callbacks do meanwhile, what a cancel of one run covers, closing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dispatching import Agent, SlowMessages, active, echo, in_loop, on_record, outcome, queued, steps
from turngate import Dispatcher, RunComplete, Turn

# Callbacks, and the order of things.


@in_loop
async def test_what_on_complete_raises_neither_loses_nor_doubles_a_completion(caplog: Any) -> None:
    agent = Agent()

    def raising(exc: BaseException) -> Any:
        def on_complete(complete: RunComplete) -> None:
            called.append(complete)
            raise exc

        return on_complete

    called: list[RunComplete] = []
    async with Dispatcher(agent) as d:
        for exc in (ValueError("no"), asyncio.CancelledError(), GeneratorExit()):
            run = await active(d, "s", "p", on_complete=raising(exc))
            behind = await queued(d, "s", "q")
            agent.finish(run)
            assert outcome(await run) == ("done", None, False)
            await steps()
            agent.finish(behind)
            await behind
    assert len(called) == 3
    assert [record.getMessage() for record in caplog.records] == [
        f"on_complete of run {complete.run_id} in session 's' raised" for complete in called
    ]
    assert caplog.text.count("Traceback") + caplog.text.count("CancelledError") >= 3


@in_loop
async def test_run_complete_is_published_before_the_next_turn_starts_and_after_the_messages() -> None:
    order: list[str] = []

    class Store(SlowMessages):
        async def put(self, messages: Any) -> None:
            order.append(f"written {messages[-1].text}")

    async def runner(turn: Turn) -> str:
        order.append(f"turn {turn.run.prompt}")
        return turn.run.prompt

    async with Dispatcher(runner, messages=Store()) as d:
        first = await d.accept(
            "s", "p1", on_complete=lambda complete: order.append(f"complete {complete.text}")
        )
        second = await d.accept("s", "p2")
        await d.enter(first)
        await d.enter(second)
        await second
    assert order == ["turn p1", "written p1", "complete p1", "turn p2", "written p2"]


@in_loop
async def test_a_step_taken_by_on_complete_is_performed_after_the_step_that_called_it() -> None:
    history: list[str] = []
    agent = Agent()

    def on_complete(complete: RunComplete) -> None:
        with pytest.raises(StopIteration):
            d.cancel("s").send(None)
        with pytest.raises(StopIteration):
            d.cancel("s").send(None)

    def record(entry: dict[str, Any]) -> None:
        history.append(f"{entry['event']} {entry.get('run', '')}".strip())

    async with Dispatcher(agent, record=record) as d, d.subscribe() as events:
        lead = await active(d, "s", "p", run_id="lead", on_complete=on_complete)
        await queued(d, "s", "q", run_id="folded")
        await agent.turns[0].fold()
        await queued(d, "s", "r", run_id="next")
        await queued(d, "s", "t", run_id="dropped")
        history.clear()
        agent.finish(lead)
        await d.wait("next")
        received = [(await anext(events)) for _ in range(3)]
    assert [event.run_id for event in received] == ["folded", "dropped", "next"]
    assert history[:6] == [
        "complete lead",
        "complete folded",
        "handoff next",
        "cancel",
        "complete dropped",
        "cancel",
    ]


# Cancels of one run.


@in_loop
async def test_what_a_cancel_of_a_folded_turn_covers_is_in_sequence_order() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        first, second, third, fourth = [await d.accept("s", f"{n}") for n in range(4)]
        await d.enter(third)
        await steps()
        for run in (second, fourth):
            await d.enter(run)
            await agent.turns[0].fold()
        await d.enter(first)
        await agent.turns[0].fold()
        assert agent.turns[0].runs == [third, second, fourth, first]
        assert (await d.cancel_run(fourth.run_id)).runs == [first, second, third, fourth]
        assert [(await run).cancelled for run in (first, second, third, fourth)] == [True] * 4


@in_loop
async def test_a_run_that_is_complete_and_not_yet_published_cannot_be_cancelled() -> None:
    agent = Agent()
    covered: list[bool] = []
    entries: list[dict[str, Any]] = []

    def cancels_the_other(_: RunComplete) -> None:
        cancelling = d.cancel_run("folded")
        with pytest.raises(StopIteration) as done:
            cancelling.send(None)
        covered.append(bool(done.value.value))

    async with Dispatcher(agent, record=entries.append) as d:
        lead = await active(d, "s", "p", on_complete=cancels_the_other)
        folded = await queued(d, "s", "q", run_id="folded")
        await agent.turns[0].fold()
        agent.finish(lead)
        assert outcome(await folded) == ("done", None, False)
        assert covered == [False]
    assert "cancel" not in {entry["event"] for entry in entries}


# Closing.


@in_loop
async def test_aclose_is_idempotent_and_all_callers_wait_for_the_same_end() -> None:
    store = SlowMessages()
    agent = Agent()
    d = Dispatcher(agent, messages=store)
    await active(d, "s", "p")
    closing = [asyncio.create_task(d.aclose()) for _ in range(3)]
    await steps()
    closing[0].cancel()
    await steps()
    assert [task.done() for task in closing] == [True, False, False]
    assert len(d._close._waiters) == 2  # who has given up is forgotten
    assert "closing" in repr(d)
    store.gates[0].set_result(None)
    await closing[1]
    await closing[2]
    await d.aclose()
    assert "closed" in repr(d)


@in_loop
async def test_closing_goes_on_when_its_only_caller_is_cancelled() -> None:
    agent = Agent()
    d = Dispatcher(agent)
    run = await active(d, "s", "p")
    closing = asyncio.create_task(d.aclose())
    await asyncio.sleep(0)
    closing.cancel()
    assert outcome(await run) == ("", None, True)
    await steps()
    assert "closed" in repr(d)


@in_loop
async def test_a_dispatcher_that_was_never_used_closes() -> None:
    await Dispatcher(echo).aclose()


@in_loop
async def test_a_runner_cannot_close_the_dispatcher_it_runs_in() -> None:
    async def closes(turn: Turn) -> None:
        await d.aclose()

    async with Dispatcher(closes) as d:
        complete = await d.ask("s", "p")
        assert complete.error is not None
        assert complete.error.startswith("ClosedFromRunner: aclose() waits for the turn of run")
        assert (await d.ask("s", "still open")).error


@in_loop
async def test_a_task_of_the_runner_can_close_the_dispatcher() -> None:
    async def delegates(turn: Turn) -> None:
        await asyncio.create_task(d.aclose())

    d = Dispatcher(delegates)
    run = await d.submit("s", "p")
    assert (await run).cancelled
    await d.aclose()


@in_loop
async def test_closing_releases_a_submitted_run_that_has_not_entered() -> None:
    agent = Agent()
    d = Dispatcher(agent)
    run = await d.submit("s", "p")
    await d.aclose()
    assert outcome(await run) == ("", "released before entry", True)
    await steps()
    assert agent.turns == []
    assert await on_record(d, "s") == []


@in_loop
async def test_closing_from_on_complete_delivers_the_last_events_first() -> None:
    agent = Agent()

    def start_closing(_: RunComplete) -> None:
        tasks.append(asyncio.get_running_loop().create_task(d.aclose()))
        coroutine = d.aclose()
        coroutine.send(None)
        coroutine.close()

    tasks: list[asyncio.Task[None]] = []
    d = Dispatcher(agent)
    async with d.subscribe() as events:
        lead = await active(d, "s", "p", on_complete=start_closing)
        folded = await queued(d, "s", "q")
        await agent.turns[0].fold()
        agent.finish(lead)
        assert [event async for event in events] == [await folded]
    await tasks[0]
