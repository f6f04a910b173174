"""What a dispatcher shows of its sessions and runs: taken in one step, and never changing afterwards."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Sequence
from typing import Any

import pytest

from dispatching import Agent, SlowMessages, active, assert_nothing_left, in_loop, queued, steps
from turngate import (
    Dispatcher,
    MemoryMessages,
    Message,
    RunComplete,
    SessionView,
    State,
    Turn,
    WrongLoop,
)

pytestmark = pytest.mark.requirement("R-LOK-3")


@in_loop
async def test_a_turn_is_since_when_it_became_active_whenever_one_looks() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        run = await d.submit("s", "p")
        await steps()
        became_active = time.time()
        while time.time() == became_active:
            await asyncio.sleep(0.01)
        since = d.session("s").since
        assert since is not None
        assert since <= became_active
        agent.finish(run)


@in_loop
async def test_a_session_through_its_life() -> None:
    agent, store = Agent(), SlowMessages()
    before = time.time()
    async with Dispatcher(agent, messages=store) as d:
        assert d.session("s") == SessionView("s")
        assert d.sessions() == []
        run = await d.accept("s", "p")
        assert d.session("s") == SessionView("s", accepted=(run,), waiting=(run,))
        assert d.sessions() == [d.session("s")]
        await d.enter(run)
        starting = d.session("s")
        assert (starting.active, starting.phase, starting.accepted) == (run, "starting", ())
        await steps()
        running = d.session("s")
        assert running.phase == "running"
        assert running.since is not None
        assert before <= running.since <= time.time()
        assert running.since == starting.since
        agent.turns[0].write("some ")
        folded, behind = await queued(d, "s", "f"), await queued(d, "s", "b", when_busy="queue")
        assert d.session("s").queued == (folded, behind)
        await agent.turns[0].fold()
        agent.turns[0].write("text")
        accepted, on_entry = await d.accept("s", "a"), await d.accept("s", "e")
        await on_entry.cancel()
        await d.enter(on_entry)
        assert d.session("s") == SessionView(
            "s",
            accepted=(accepted,),
            settling=(on_entry,),
            queued=(behind,),
            active=run,
            folded=(folded,),
            text="some text",
            covered=False,
            phase="running",
            since=running.since,
            waiting=(behind, accepted),
        )
        await d.cancel_run(folded.run_id)
        assert d.session("s").covered
        await steps()
        assert d.session("s").phase == "settling"
        assert d.session("s").text == "some text"
        for gate in store.gates:
            gate.set_result(None)
        await run
        after = d.session("s")
        assert (after.active, after.folded, after.text, after.covered) == (behind, (), "", False)
        assert after.since is not None
        assert after.since >= running.since
        await d.cancel("s")
        await accepted.close()
        await steps()
        store.gates[-1].set_result(None)
        await behind
        assert d.session("s") == SessionView("s")
        assert d.sessions() == []
        assert starting.phase == "starting"
        assert running.text == ""


@in_loop
async def test_a_view_does_not_change() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        run = await active(d, "s", "p")
        agent.turns[0].write("a")
        view = d.session("s")
        agent.turns[0].write("b")
        await queued(d, "s", "q")
        await agent.turns[0].fold()
        await d.cancel("s")
        assert (view.text, view.folded, view.covered) == ("a", (), False)
        with pytest.raises(AttributeError):
            view.text = "c"  # type: ignore[misc]  # wrong on purpose
        with pytest.raises(TypeError):
            view.queued[0] = run  # type: ignore[index]  # wrong on purpose
        await run


@in_loop
async def test_all_sessions_are_seen_in_one_step_and_of_the_quiet_ones_none() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        runs = [await active(d, session, "p") for session in "abc"]
        waiting = await d.accept("d", "p")
        agent.finish(runs[1])
        await runs[1]
        assert [view.session_id for view in d.sessions()] == ["a", "c", "d"]
        assert [view.active for view in d.sessions()] == [runs[0], runs[2], None]
        await waiting.close()
        await d.cancel_all()
        await runs[0]
        await runs[2]
        assert d.sessions() == []


@in_loop
async def test_looking_changes_nothing() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        for number in range(100):
            d.session(f"s{number}")
            assert d.find(f"r{number}") is None
        assert_nothing_left(d)
        run = await active(d, "s", "p")
        for _ in range(10):
            assert d.session("s").active is run
            assert d.find(run.run_id) is run
        agent.finish(run)
        assert (await run).outcome == "finished"


@in_loop
async def test_one_that_is_to_start_is_seen_by_a_hook() -> None:
    agent = Agent()
    seen: list[SessionView] = []
    async with Dispatcher(agent) as d:

        def look(_: RunComplete) -> None:
            seen.append(d.session("s"))
            seen.extend(d.sessions())

        first = await active(d, "s", "p", on_complete=look)
        second = await queued(d, "s", "q", when_busy="queue")
        agent.finish(first)
        await first
        await steps()
        assert {view.active for view in seen} == {second}
        assert {view.since for view in seen} == {d.session("s").since}


@in_loop
async def test_a_view_belongs_to_the_thread_of_the_loop() -> None:
    async with Dispatcher(Agent()) as d:
        run = await d.accept("s", "p")
        for look in (d.sessions, lambda: d.session("s"), lambda: d.find(run.run_id), d.completions):
            with pytest.raises(WrongLoop):
                await asyncio.to_thread(look)
        await run.close()


def test_before_and_after_the_loop_there_is_nothing_to_see() -> None:
    async def echo(turn: Turn) -> str:
        return turn.run.prompt

    d = Dispatcher(echo)
    assert d.sessions() == []
    assert d.session("s") == SessionView("s")
    assert d.find("r") is None

    async def main() -> None:
        async with d:
            await d.ask("s", "p", run_id="r")

    asyncio.run(main())
    assert d.sessions() == []
    found = d.find("r")
    assert found is not None
    assert found.complete is not None
    assert found.complete.text == "p"


# Finding runs.


@in_loop
async def test_a_run_is_found_while_it_is_in_flight_and_when_it_is_complete() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        named = await d.accept("s", "named", run_id="r")
        unnamed = await d.accept("t", "unnamed", attachments=["a"])
        for run in (named, unnamed):
            assert d.find(run.run_id) is run
            await d.enter(run)
            await steps()
            assert d.find(run.run_id) is run
            agent.finish(run)
            await run
        assert d.find("r") is named
        found = d.find(unnamed.run_id)
        assert found is not None
        assert (found.run_id, found.session_id, found.seq) == (unnamed.run_id, "t", unnamed.seq)
        assert (found.state, found.complete) == (State.COMPLETE, unnamed.complete)
        assert await found == unnamed.complete
        agent.turns.clear()
        del named, run
        gc.collect()
        found = d.find("r")
        assert found is not None
        assert (found.prompt, found.attachments) == ("", ())
        assert (await found).text == "done"
        await found.close()
        again = await d.accept("s", "named", run_id="r")
        assert again.prompt == "named"


@in_loop
async def test_a_forgotten_run_is_not_found() -> None:
    async def echo(turn: Turn) -> str:
        return turn.run.prompt

    async with Dispatcher(echo, completions_kept=1) as d:
        held = await d.submit("s", "p", run_id="r")
        await held
        await d.ask("s", "q", run_id="q")
        assert d.find("r") is None
        assert d.find("q") is not None


# What it costs.


def count_calls(call: Any) -> int:
    """How many functions are called, ours or not: this does not depend on the speed of the machine."""
    calls = 0

    def count(frame: Any, event: str, arg: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        call()
    finally:
        sys.setprofile(None)
    return calls


@in_loop
async def test_100_000_quiet_sessions_cost_a_view_nothing_and_hold_no_memory() -> None:
    async def echo(turn: Turn) -> None:
        return None

    class Forgetful(MemoryMessages):
        async def put(self, messages: Sequence[Message]) -> None:
            pass

    async with Dispatcher(echo, completions_kept=10, messages=Forgetful()) as d:
        few = count_calls(d.sessions)
        for number in range(100_000):
            run = await d.accept(f"s{number}", "p")
            if number % 10 == 0:
                await d.enter(run)
                await run
            else:
                await run.close()
        assert d.sessions() == []
        assert_nothing_left(d)
        assert count_calls(d.sessions) == few
        busy = await d.accept("s7", "p")
        assert [view.accepted for view in d.sessions()] == [(busy,)]
        await busy.close()
