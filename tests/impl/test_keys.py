"""Idempotency keys in memory: how many are remembered, and handles of runs that are forgotten."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from dispatching import Agent, active, echo, in_loop
from turngate import Attachment, Dispatcher, State, UnknownRun
from turngate._keys import KEPT_IN_MEMORY, Answer, RunName, answer_from


@pytest.mark.requirement("R-KEY-5")
@in_loop
async def test_the_last_ten_thousand_are_remembered() -> None:
    async with Dispatcher(echo) as d:
        for number in range(KEPT_IN_MEMORY + 1):
            await d.cancel("s", key=f"k{number}")
        assert KEPT_IN_MEMORY == 10_000
        assert not await d.knows_key("k0")
        assert await d.knows_key("k1")
        assert await d.knows_key(f"k{KEPT_IN_MEMORY}")


@in_loop
async def test_a_repetition_names_runs_that_are_forgotten_and_never_another_by_the_same_run_id() -> None:
    agent = Agent()
    async with Dispatcher(agent, completions_kept=1) as d:
        first = await active(d, "s", run_id="r")
        assert (await d.cancel("s", key="k")).runs == [first]
        await first.wait()
        assert (await d.cancel("s", key="k")).runs == [first]
        del first
        other = await active(d, "t", run_id="other")
        agent.finish(other)
        await other.wait()
        reused = await active(d, "s", run_id="r")
        (again,) = (await d.cancel("s", key="k")).runs
        assert again is not reused
        assert (again.run_id, again.session_id, again.seq, again.state) == ("r", "s", 1, State.COMPLETE)
        for call in (again.wait(), anext(again.stream()), d.wait("nobody")):
            with pytest.raises(UnknownRun):
                await asyncio.wait_for(call, 5)
        with pytest.raises(UnknownRun):
            again.add_done_callback(print)
        assert (again.lead, (await again.cancel()).runs) == (None, [])
        await again.close()
        agent.finish(reused)
        assert (await reused.wait()).outcome == "finished"


@in_loop
async def test_a_key_keeps_no_prompt_in_memory() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        run = await active(d, "s", attachments=[Attachment("n", "text/plain", "x" * 1000)])
        await d.cancel("s", key="k")
        await run.wait()
        handle = weakref.ref(run)
        agent.turns.clear()
        agent._ends.clear()
        del run
        gc.collect()
        assert handle() is None


def test_an_answer_is_the_same_after_it_was_text() -> None:
    answer = Answer((RunName("r", "s", 1), RunName("q", "s", 2)), known=False)
    assert answer_from(answer.as_json()) == answer


@in_loop
async def test_a_repetition_returns_the_handle_of_a_run_that_is_still_in_flight() -> None:
    async with Dispatcher(Agent()) as d:
        run = await active(d, "s", "p")
        for _ in range(2):
            assert (await d.cancel("s", key="k")).runs == [run]
        await run
