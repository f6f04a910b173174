"""Callbacks: each called once with the RunComplete, whichever way the run ends."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from typing import Any

import pytest

from dispatching import Agent, BrokenMessages, SlowMessages, active, garbage_of, in_loop, queued, steps
from turngate import ClosedFromRunner, Dispatcher, DispatcherClosed, Run, RunComplete, State, Turn, WrongLoop
from turngate_verify.world.virtual_loop import VirtualLoop

pytestmark = pytest.mark.requirement("R-LOK-5")


async def echo(turn: Turn) -> str:
    turn.write(turn.run.prompt)
    turn.keep({"prompt": turn.run.prompt})
    return turn.run.prompt


@in_loop
async def test_it_is_called_once_whichever_way_the_run_ends(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL", "turngate")
    agent = Agent()
    received: list[RunComplete] = []
    async with Dispatcher(agent) as d:
        finished = await active(d, "s", "p", run_id="finished")
        runs = [finished]
        for name in ("folded", "cleared", "dropped"):
            runs.append(await queued(d, "s", "p", run_id=name))
            if name == "folded":
                await agent.turns[0].fold()
        runs += [await d.accept("s", "p", run_id=name) for name in ("released", "on entry")]
        for run in runs:
            run.add_done_callback(received.append)
        await d.cancel_run("dropped")
        await d.clear_queue("s")
        await runs[-2].close()
        await runs[-1].cancel()
        await d.enter(runs[-1])
        await runs[-1]
        agent.finish(finished)
        await finished
        failed = await active(d, "s", "p", run_id="failed")
        failed.add_done_callback(received.append)
        agent.fail(failed, LookupError())
        await failed
        cancelled = await active(d, "s", "p", run_id="cancelled")
        cancelled.add_done_callback(received.append)
    assert [(complete.run_id, complete.outcome) for complete in received] == [
        ("dropped", "cancelled"),
        ("cleared", "cleared"),
        ("released", "released"),
        ("on entry", "cancelled"),
        ("finished", "finished"),
        ("folded", "finished"),
        ("failed", "failed"),
        ("cancelled", "cancelled"),
    ]


@in_loop
async def test_it_is_called_beside_the_hook_and_the_subscribers_in_the_order_of_adding() -> None:
    agent = Agent()
    called: list[str] = []

    def adding(name: str) -> Callable[[RunComplete], None]:
        return lambda _: called.append(name)

    async with Dispatcher(agent) as d, d.subscribe() as events:
        with_hook = await active(d, "s", "p", on_complete=lambda _: called.append("hook"))
        loses_its_hook = await queued(
            d, "s", "q", when_busy="queue", on_complete=lambda _: called.append("never")
        )
        for run in (with_hook, loses_its_hook):
            for name in "abca":
                run.add_done_callback(adding(name))
        agent.finish(with_hook)
        await with_hook
        assert called == ["hook", "a", "b", "c", "a"]
        assert not events._unread
        called.clear()
        await steps()
        agent.finish(loses_its_hook)
        complete = await loses_its_hook
        assert called == ["a", "b", "c", "a"]
        assert await anext(events) == complete


@in_loop
async def test_on_a_complete_run_it_is_called_soon() -> None:
    received: list[RunComplete] = []
    async with Dispatcher(echo) as d:
        run = await d.submit("s", "p", run_id="r")
        complete = await run
        run.add_done_callback(received.append)
        assert received == []
        await asyncio.sleep(0)
        assert received == [complete]
        del run
        found = d.find("r")
        assert found is not None
        found.add_done_callback(received.append)
        await asyncio.sleep(0)
        assert received == [complete] * 2
    found.add_done_callback(received.append)
    await asyncio.sleep(0)
    assert received == [complete] * 3


@in_loop
async def test_an_exception_of_a_callback_is_logged_and_stops_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    agent = Agent()
    received: list[RunComplete] = []

    def fail(_: RunComplete) -> None:
        raise LookupError("no")

    async with Dispatcher(agent) as d:
        run = await active(d, "s", "p", run_id="r")
        behind = await queued(d, "s", "q", when_busy="queue")
        for callback in (fail, received.append, fail, received.append):
            run.add_done_callback(callback)
        agent.finish(run)
        complete = await run
        assert received == [complete] * 2
        run.add_done_callback(fail)
        await steps()
        assert ["run r in session 's'" in record.getMessage() for record in caplog.records] == [True] * 3
        assert behind.state is State.ACTIVE
        agent.finish(behind)
        await behind


@in_loop
async def test_an_awaitable_that_it_returns_is_closed_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def late() -> None:
        raise AssertionError

    async with Dispatcher(echo) as d:
        run = await d.accept("s", "p", run_id="r")
        run.add_done_callback(lambda _: late())
        await d.enter(run)
        await run
        run.add_done_callback(lambda _: late())
        await steps()
        assert ["run r in session 's'" in record.getMessage() for record in caplog.records] == [True] * 2


@pytest.mark.parametrize("wrong", [None, 5, "print"])
@in_loop
async def test_what_cannot_be_called_is_refused(wrong: Any) -> None:
    async def late(_: RunComplete) -> None:
        raise AssertionError

    async with Dispatcher(echo) as d:
        run = await d.accept("s", "p")
        with pytest.raises(TypeError, match="callback"):
            run.add_done_callback(wrong)
        with pytest.raises(TypeError, match="callback"):
            run.add_done_callback(late)
        await run.close()
        with pytest.raises(TypeError, match="callback"):
            run.add_done_callback(late)


@in_loop
async def test_from_another_thread_it_is_refused() -> None:
    async with Dispatcher(echo) as d:
        run = await d.accept("s", "p")
        with pytest.raises(WrongLoop):
            await asyncio.to_thread(run.add_done_callback, print)
        assert run.callbacks == ()
        await run.close()


@in_loop
async def test_callbacks_that_add_callbacks() -> None:
    called: list[str] = []

    async with Dispatcher(echo) as d:
        run = await d.accept("s", "p", on_complete=lambda _: add("hook"))

        def add(name: str) -> None:
            called.append(name)
            if len(called) < 6:
                run.add_done_callback(lambda _: add(f"{name}'"))

        run.add_done_callback(lambda _: add("callback"))
        await d.enter(run)
        await run
        await steps()
        assert called == ["hook", "callback", "hook'", "callback'", "hook''", "callback''", "hook'''"]
        assert run.callbacks == ()


@in_loop
async def test_a_callback_sees_the_run_as_complete_and_written() -> None:
    agent, store = Agent(), SlowMessages()
    seen: list[Any] = []
    async with Dispatcher(agent, messages=store) as d:
        run = await active(d, "s", "p", run_id="r")
        run.add_done_callback(
            lambda complete: seen.append(
                (complete is run.complete, run.state, d.find("r") is run, d.sessions())
            )
        )
        agent.finish(run)
        await steps()
        assert seen == []
        store.gates[0].set_result(None)
        await run
        assert seen == [(True, State.COMPLETE, True, [])]


@in_loop
async def test_a_callback_when_the_store_fails(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL", "turngate")
    received: list[RunComplete] = []
    async with Dispatcher(echo, messages=BrokenMessages(OSError("disk full"))) as d:
        run = await d.submit("s", "p")
        run.add_done_callback(received.append)
        await run
    assert [complete.outcome for complete in received] == ["failed"]


# Closing from a callback, and joining a close.


@in_loop
async def test_a_callback_may_begin_to_close() -> None:
    agent = Agent()
    d = Dispatcher(agent)
    run, other = await active(d, "s", "p"), await active(d, "t", "q")
    accepted = await d.accept("u", "r")
    run.add_done_callback(lambda _: d.begin_close())
    agent.finish(run)
    await run
    with pytest.raises(DispatcherClosed):
        await d.accept("s", "late")
    await d.aclose()
    assert (await other).outcome == "cancelled"
    assert (await accepted).outcome == "cancelled"


def test_later_calls_join_the_first_ones_deadline() -> None:
    loop = VirtualLoop()
    agent = Agent()
    d = Dispatcher(agent)
    run = loop.call(d.submit("s", "p"))
    loop.settle()
    with loop:
        d.begin_close(finish=10)
        d.begin_close()
        d.begin_close(finish=math.inf)
    closing = loop.create_task(d.aclose(finish=0))
    loop.advance(9)
    loop.settle()
    assert run.state is State.ACTIVE
    assert not closing.done()
    loop.advance(2)
    loop.settle()
    assert run.complete is not None
    assert run.complete.outcome == "cancelled"
    assert closing.done()
    with loop:
        d.begin_close()
    assert loop.problems == []


def test_cancel_all_shortens_a_close() -> None:
    loop = VirtualLoop()
    agent = Agent()
    d = Dispatcher(agent, turns_limit=1)
    runs = [loop.call(d.submit(session, "p")) for session in "st"]
    loop.settle()
    runs.append(loop.call(d.accept("u", "p")))
    with loop:
        d.begin_close(finish=math.inf)
    loop.settle()
    assert all(run.complete is None for run in runs)
    assert loop.call(d.cancel_all()).runs == runs
    loop.settle()
    assert [run.complete.outcome for run in runs if run.complete] == ["cancelled"] * 3
    assert "closed" in repr(d)
    assert loop.problems == []


@pytest.mark.parametrize("finish", [-1, math.nan, "5", None])
@in_loop
async def test_a_close_that_is_refused_begins_nothing(finish: Any) -> None:
    async with Dispatcher(echo) as d:
        with pytest.raises(ValueError, match="finish"):
            d.begin_close(finish=finish)
        with pytest.raises(WrongLoop):
            await asyncio.to_thread(d.begin_close)
        assert (await d.ask("s", "p")).outcome == "finished"


@in_loop
async def test_a_runner_may_begin_to_close_but_not_wait_for_it() -> None:
    async def runner(turn: Turn) -> str:
        with pytest.raises(ClosedFromRunner):
            await d.aclose()
        d.begin_close(finish=math.inf)
        return "answer"

    d = Dispatcher(runner)
    run = await d.submit("s", "p")
    assert (await run).outcome == "finished"
    await d.aclose()


@in_loop
async def test_what_enters_while_closing_is_served_and_what_does_not_is_released() -> None:
    agent = Agent()
    d = Dispatcher(agent)
    enters, stays = await d.accept("s", "enters"), await d.accept("t", "stays")
    busy = await active(d, "u", "busy")
    d.begin_close(finish=math.inf)
    assert await d.enter(enters) is State.ACTIVE
    await steps()
    agent.finish(busy)
    agent.finish(enters)
    assert (await enters).outcome == "finished"
    await d.aclose()
    assert (await stays).outcome == "released"


# Garbage.


def fails(_: RunComplete) -> None:
    raise LookupError


@pytest.mark.parametrize("limit", [None, 1])
@pytest.mark.parametrize("moves", [False, True])
@pytest.mark.parametrize("end", ["finish", "cancel", "close"])
def test_streams_callbacks_kept_data_moves_and_views_leave_no_reference_cycle(
    end: str, moves: bool, limit: int | None
) -> None:
    async def runner(turn: Turn) -> None:
        turn.write("text")
        turn.emit("kind", [1])
        turn.keep({"a": 1})
        await turn.fold()
        if end != "finish":
            await asyncio.get_running_loop().create_future()

    async def read(run: Run) -> None:
        async for _ in run.stream():
            pass

    async def main() -> None:
        async with Dispatcher(runner, turns_limit=limit) as d:
            events, completions = d.subscribe(moves=moves), d.completions()
            runs = [await d.submit(session, "p") for session in "sstt"]
            readers = [asyncio.create_task(read(run)) for run in runs]
            for run in runs:
                run.add_done_callback(fails)
                run.add_done_callback(lambda complete: None)
            await steps(5)
            d.sessions()
            if end == "cancel":
                await d.cancel_all()
            if end == "close":
                await d.aclose()
            for run in runs:
                await run
            await asyncio.gather(*readers)
            assert runs[1].lead is not None or end != "finish"
            await anext(events)
            await anext(completions)

    logging.getLogger("turngate").setLevel(logging.CRITICAL)  # pytest keeps what is logged
    try:
        assert garbage_of(main) == []
    finally:
        logging.getLogger("turngate").setLevel(logging.NOTSET)


@in_loop
async def test_a_callback_finds_the_next_run_in_the_lead_of_its_turn() -> None:
    agent = Agent()
    seen: list[Any] = []
    async with Dispatcher(agent) as d:
        first = await active(d, "s", "p")
        behind = await queued(d, "s", "q", when_busy="queue")
        first.add_done_callback(lambda _: seen.extend([behind.state, behind.lead, d.session("s").active]))
        agent.finish(first)
        await first
        assert seen == [State.ACTIVE, behind, behind]
        await d.cancel("s")
