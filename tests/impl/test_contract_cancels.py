"""The contract of cancelling, clearing and closing: one test per sentence, which each test cites."""

from __future__ import annotations

import asyncio

from dispatching import Agent, SlowMessages, active, echo, in_loop, look, outcome, queued, steps
from turngate import Dispatcher, State

# `await d.cancel(session_id) -> Covered`


@in_loop
async def test_covered_runs_are_in_sequence_order() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        accepted = await d.accept("s", "accepted")
        first = await active(d, "s", "active")
        waiting = await queued(d, "s", "queued")
        late = await d.accept("s", "accepted too")
        await d.accept("t", "another session")
        assert (await d.cancel("s")).runs == [accepted, first, waiting, late]


@in_loop
async def test_covered_runs_include_those_that_an_earlier_cancel_covered_and_that_still_settle() -> None:
    messages = SlowMessages()
    agent = Agent()
    async with Dispatcher(agent, messages=messages) as d:
        turn = await active(d, "s", "turn")
        entered = await d.accept("s", "entered")
        assert (await d.cancel("s")).runs == [turn, entered]
        assert await d.enter(entered) is State.CANCEL_ON_ENTRY
        await steps()
        later = await d.accept("s", "later")
        assert (await d.cancel("s")).runs == [turn, entered, later]
        for gate in messages.gates:
            gate.set_result(None)
        await steps()
        assert (await d.cancel("s")).runs == [later]


@in_loop
async def test_covered_runs_are_none_when_the_session_is_idle() -> None:
    async with Dispatcher(echo) as d:
        covered = await d.cancel("s")
        assert covered.runs == []
        assert not covered
        await d.accept("s", "p")
        assert await d.cancel("s")


# `await d.cancel_run(run_id) -> Covered`


@in_loop
async def test_cancel_run_covers_one_accepted_run() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        first, second = await d.accept("s", "p1"), await d.accept("s", "p2")
        assert (await d.cancel_run(first.run_id)).runs == [first]
        assert await look(d.cancel_mark("s")) == 0
        assert await d.enter(first) is State.CANCEL_ON_ENTRY
        assert await d.enter(second) is State.ACTIVE
        assert (await first).cancelled


@in_loop
async def test_cancel_run_covers_one_queued_run_and_the_queue_goes_on() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        turn = await active(d, "s", "p1")
        dropped, kept = await queued(d, "s", "p2"), await queued(d, "s", "p3")
        assert (await d.cancel_run(dropped.run_id)).runs == [dropped]
        assert outcome(await dropped) == ("", None, True)
        agent.finish(turn)
        await steps()
        assert agent.prompts == ["p1", "p3"]
        agent.finish(kept)
        assert not (await kept).cancelled
        assert not (await turn).cancelled


@in_loop
async def test_cancel_run_of_a_part_of_the_active_turn_covers_the_whole_turn_and_the_queue_goes_on() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        for part in (0, 1):
            lead = await active(d, "s", "lead")
            follow_up = await queued(d, "s", "follow-up")
            await agent.turns[-1].fold()
            behind = await queued(d, "s", "behind")
            assert (await d.cancel_run([lead, follow_up][part].run_id)).runs == [lead, follow_up]
            assert (await lead).cancelled
            assert (await follow_up).cancelled
            await steps()
            agent.finish(behind)
            assert not (await behind).cancelled


@in_loop
async def test_cancel_run_of_a_run_cancelled_on_entry_returns_it_while_it_settles() -> None:
    messages = SlowMessages()
    async with Dispatcher(echo, messages=messages) as d:
        run = await d.submit("s", "p")
        await d.cancel("s")
        await steps()
        assert (await d.cancel_run(run.run_id)).runs == [run]
        messages.gates[0].set_result(None)
        assert outcome(await run) == ("", None, True)


@in_loop
async def test_cancel_run_covers_nothing_when_the_run_is_complete_or_unknown() -> None:
    async with Dispatcher(echo) as d:
        complete = await d.ask("s", "p")
        assert (await d.cancel_run(complete.run_id)).runs == []
        assert (await d.cancel_run("unknown")).runs == []
        assert not (await d.wait(complete.run_id)).cancelled


# `await d.clear_queue(session_id) -> list[Run]`


@in_loop
async def test_clear_queue_drops_what_is_queued() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        await active(d, "s", "p1")
        second, third = await queued(d, "s", "p2"), await queued(d, "s", "p3")
        assert await d.clear_queue("s") == [second, third]
        assert await look(d.queued("s")) == []
        assert outcome(await second) == outcome(await third) == ("", "cleared from the queue", False)
        assert await d.clear_queue("s") == []


@in_loop
async def test_clear_queue_lets_accepted_and_active_runs_go_on() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        turn = await active(d, "s", "p1")
        accepted = await d.accept("s", "p2")
        await d.clear_queue("s")
        assert await d.enter(accepted) is State.QUEUED
        agent.finish(turn)
        await steps()
        agent.finish(accepted)
        assert outcome(await turn) == outcome(await accepted) == ("done", None, False)


# `await d.cancel_all()` / `await d.aclose()`


@in_loop
async def test_cancel_all_covers_every_session_accepted_only_ones_included() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        turn = await active(d, "s", "p")
        accepted = await d.accept("t", "p")
        assert (await d.cancel_all()).runs == [turn, accepted]
        assert await d.enter(accepted) is State.CANCEL_ON_ENTRY
        assert (await turn).cancelled
        assert (await accepted).cancelled
        assert not (await d.cancel_all())
        later = await active(d, "s", "later")
        agent.finish(later)
        assert not (await later).cancelled


@in_loop
async def test_aclose_cancels_and_waits_until_no_run_owes_its_run_complete() -> None:
    messages = SlowMessages()
    agent = Agent()
    d = Dispatcher(agent, messages=messages)
    turn = await active(d, "s", "p")
    waiting = await queued(d, "s", "q")
    accepted = await d.accept("t", "p")
    closing = asyncio.create_task(d.aclose())
    await steps()
    assert not closing.done()
    assert outcome(await waiting) == ("", None, True)
    assert outcome(await accepted) == ("", "released before entry", True)
    messages.gates[0].set_result(None)
    await closing
    assert turn.complete is not None
    assert outcome(turn.complete) == ("", None, True)
