from __future__ import annotations

import asyncio

import pytest

from dispatching import Agent, active, in_loop, queued, steps
from turngate import Attachment, Covered, Dispatcher, Run, State, Turn


@in_loop
async def test_many_can_wait_and_one_that_gives_up_disturbs_no_other() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        run = await active(d, "s", "p")
        waiting = [asyncio.create_task(run.wait()) for _ in range(3)]
        await steps()
        waiting[0].cancel()
        await steps()
        assert waiting[0].cancelled()
        assert run.state is State.ACTIVE
        assert len(run.waiters or ()) == 2
        agent.finish(run)
        assert await waiting[1] is await waiting[2] is run.complete
        assert not run.waiters


@in_loop
async def test_a_waiter_cancelled_as_the_run_completes_disturbs_no_other() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        run = await active(d, "s", "p")
        first, second = [asyncio.create_task(run.wait()) for _ in range(2)]
        await steps()
        waiter = min(run.waiters or (), key=id)
        waiter.cancel()
        agent.finish(run)
        await steps()
        assert {first.cancelled(), second.cancelled()} == {True, False}


@in_loop
async def test_a_run_without_waiters_has_no_future() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        run = await active(d, "s", "p")
        agent.finish(run)
        await steps()
        assert not run.waiters
        assert (await run).text == "done"
        assert not run.waiters


@in_loop
async def test_closing_one_handle_leaves_the_other_accepted() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        first, second = await d.accept("s", "p"), await d.accept("s", "q")
        await first.close()
        await first.close()
        assert d.accepted_count("s") == 1
        assert await d.enter(second) is State.ACTIVE


@in_loop
async def test_the_hook_is_released_once_it_was_called() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        run = await active(d, "s", "p", on_complete=print)
        agent.finish(run)
        await run
        assert run.on_complete is None


@in_loop
async def test_the_runs_of_a_turn_are_a_copy() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        run = await active(d, "s", "p")
        agent.turns[0].runs.clear()
        assert agent.turns[0].runs == [run]


@in_loop
async def test_repr_of_a_run() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        run = await active(d, "s", "p", run_id="r1")
        dropped = await queued(d, "s", "q", run_id="r2")
        released = await d.accept("s", "q", run_id="r3")
        assert repr(run) == "<Run r1 of session 's', seq 1, active>"
        await d.cancel("s")
        await released.close()
        assert repr(dropped) == "<Run r2 of session 's', seq 2, complete, cancelled>"
        assert repr(released) == (
            "<Run r3 of session 's', seq 3, complete, cancelled, error 'released before entry'>"
        )


@in_loop
async def test_a_finished_run_says_so() -> None:
    async def echo(turn: Turn) -> str:
        return turn.run.prompt

    async with Dispatcher(echo) as d:
        run: Run = await d.submit("s", "p", run_id="r", attachments=[Attachment("a", "text/plain", "b")])
        await run
        assert repr(run) == "<Run r of session 's', seq 1, complete>"
        assert run.attachments[0] == Attachment("a", "text/plain", "b")


def test_covered_is_true_when_it_covers() -> None:
    assert not Covered([])
    run: list[Run] = [object()]  # type: ignore[list-item]  # anything will do
    assert Covered(run)
    with pytest.raises(AttributeError):
        Covered([]).runs = run  # type: ignore[misc]  # wrong on purpose
