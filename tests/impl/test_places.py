"""A limit on runner calls at once over all sessions: who waits, who goes, who is cancelled meanwhile."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dispatching import (
    OUTSIDE,
    Agent,
    SlowMessages,
    Stubborn,
    active,
    free,
    in_loop,
    on_record,
    outcome,
    queued,
    steps,
)
from turngate import Dispatcher, Run, Turn
from turngate._core import RunRecord, TurnRecord
from turngate._places import Places


@pytest.mark.parametrize("limit", [0, -1, 1.5, "1", math.inf])
def test_a_limit_is_a_whole_number(limit: Any) -> None:
    with pytest.raises(ValueError, match="turns_limit must be a whole number of at least 1"):
        Dispatcher(Agent(), turns_limit=limit)


def test_one_in_line_that_a_cancel_has_covered_meanwhile_is_passed_over() -> None:
    places = Places(1)
    first, covered, last = turns = [waiting(f"r{number}") for number in range(3)]
    assert [places.take(turn) for turn in turns] == [True, False, False]
    covered.record.covered = True
    assert places.give_back(first) is last
    assert places.give_back(last) is None
    assert places.free == 1


@in_loop
async def test_one_that_leaves_the_line_is_passed_over() -> None:
    agent = Agent()
    async with Dispatcher(agent) as unlimited, Dispatcher(agent, turns_limit=1) as d:
        runs = [await active(d, session) for session in "abc"]
        leaves = runs[1].turn
        assert leaves is not None
        for each in (d, unlimited):
            each._effects.turns.leave_line(leaves)
        agent.finish(runs[0])
        await runs[0]
        await steps()
        assert [turn.run for turn in agent.turns] == [runs[0], runs[2]]
        await d.cancel_run(runs[1].run_id)
        assert (await runs[1]).cancelled


def waiting(run_id: str) -> Turn:
    """Return a turn that nobody runs."""
    nobody: Any = None
    record = RunRecord("s", run_id, 1, "p")
    return Turn(nobody, TurnRecord(record), [Run(nobody, record)], nobody, fence=1)


@in_loop
async def test_turns_beyond_the_limit_wait_in_the_order_in_which_they_became_active() -> None:
    agent = Agent()
    async with Dispatcher(agent, turns_limit=2) as d:
        runs = [await active(d, session) for session in "abcde"]
        assert [turn.run for turn in agent.turns] == runs[:2]
        assert [d.session(session).phase for session in "abcde"] == ["running"] * 2 + ["waiting"] * 3
        assert all(d.is_busy(session) for session in "abcde")
        for number, run in enumerate((1, 0, 2, 3, 4)):
            agent.finish(runs[run])
            assert (await runs[run]).outcome == "finished"
            await steps()
            assert [turn.run for turn in agent.turns] == runs[: 3 + number]
        assert free(d) == 2


@in_loop
async def test_a_busy_session_lets_the_others_go_first() -> None:
    agent = Agent()
    async with Dispatcher(agent, turns_limit=1) as d:
        first = await active(d, "busy", "b1")
        later = [await queued(d, "busy", f"b{number}", when_busy="queue") for number in (2, 3)]
        quiet = await active(d, "quiet", "q")
        for run in (first, quiet, *later):
            agent.finish(run)
            await run
            await steps()
        assert agent.prompts == ["b1", "q", "b2", "b3"]


@in_loop
async def test_no_place_is_taken_while_a_turn_settles() -> None:
    agent, store = Agent(), SlowMessages()
    async with Dispatcher(agent, messages=store, turns_limit=1) as d:
        first, second = await active(d, "s"), await active(d, "t")
        agent.finish(first)
        await steps()
        assert d.session("s").phase == "settling"
        assert d.session("t").phase == "running"
        agent.finish(second)
        await steps()
        assert free(d) == 1
        for gate in store.gates:
            gate.set_result(None)
        await first
        await second


@in_loop
async def test_one_that_waits_is_cancelled_without_its_runner_being_called() -> None:
    agent = Agent()
    async with Dispatcher(agent, turns_limit=1) as d:
        first = await active(d, "s")
        waits, behind = await active(d, "t", "waits"), await active(d, "u", "behind")
        next_in_t = await queued(d, "t", "next", when_busy="queue")
        assert (await d.cancel_run(waits.run_id)).runs == [waits]
        assert outcome(await waits) == ("", None, True)
        assert await on_record(d, "t") == [("user", "waits", None), ("assistant", "", "canceled")]
        assert waits.lead is waits
        assert [piece async for piece in waits.stream()] == []
        await steps()
        assert d.session("t").active is next_in_t
        agent.finish(first)
        await first
        await steps()
        agent.finish(behind)
        await behind
        await steps()
        agent.finish(next_in_t)
        await next_in_t
        assert agent.prompts == ["p", "behind", "next"]
        assert free(d) == 1


@pytest.mark.parametrize(
    "way", ["cancel", "cancel_run", "run.cancel", "cancel_all", "interrupt", "waiting_only"]
)
@in_loop
async def test_every_way_to_cancel_one_that_waits(way: str) -> None:
    agent = Agent()
    async with Dispatcher(agent, turns_limit=1) as d:
        first, waits = await active(d, "s"), await active(d, "t", "waits")
        match way:
            case "cancel":
                await d.cancel("t")
            case "cancel_run":
                await d.cancel_run(waits.run_id)
            case "run.cancel":
                await waits.cancel()
            case "cancel_all":
                await d.cancel_all()
            case "interrupt":
                (await d.accept("t", "instead", when_busy="interrupt")).add_done_callback(lambda _: None)
            case _:
                assert (await d.cancel_run(waits.run_id, waiting_only=True)).runs == [waits]
        for _ in range(3):
            await waits.cancel()
        assert (await waits).outcome == "cancelled"
        if way != "cancel_all":
            agent.finish(first)
        await first
        await steps()
        assert agent.prompts == ["p"]
        assert free(d) == 1


@pytest.mark.parametrize("step", range(8))
@pytest.mark.parametrize("who", ["first", "second", "both"])
@in_loop
async def test_a_cancel_at_any_step_around_a_change_of_places(step: int, who: str) -> None:
    agent = Agent()
    async with Dispatcher(agent, turns_limit=1) as d:
        first = await active(d, "s", "first")
        second, third = await active(d, "t", "second"), await active(d, "u", "third")
        agent.finish(first)
        await steps(step)
        if who in ("first", "both"):
            await first.cancel()
        if who in ("second", "both"):
            await second.cancel()
            await second
        else:
            await steps()
            agent.finish(second)
            await second
        await first
        await steps()
        assert d.session("u").phase == "running"
        agent.finish(third)
        assert (await third).outcome == "finished"
        assert free(d) == 1


@in_loop
async def test_a_turn_that_goes_on_although_it_was_cancelled_keeps_its_place() -> None:
    stubborn = Stubborn(2)
    async with Dispatcher(stubborn, turns_limit=1) as d:
        first, second = await active(d, "s"), await active(d, "t")
        await first.cancel()
        await steps()
        assert d.session("s").phase == "running"
        assert d.session("t").phase == "waiting"
        await first.cancel()
        await first
        await second


@in_loop
async def test_the_failing_and_the_folding_give_their_places_back(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL", "turngate")
    agent = Agent()
    async with Dispatcher(agent, turns_limit=1) as d:
        runs = [await active(d, session) for session in "abc"]
        agent.fail(runs[0], LookupError())
        await runs[0]
        await steps()
        folded = await queued(d, "b", "folded")
        assert await agent.turns[1].fold() == [folded]
        agent.finish(runs[1], 5)
        await folded
        await steps()
        task = agent.turns[2].task
        assert task is not None
        task.cancel()
        assert (await runs[2]).error == OUTSIDE
        assert free(d) == 1


@in_loop
async def test_what_waits_joins_no_turn_and_has_written_nothing() -> None:
    agent = Agent()
    async with Dispatcher(agent, turns_limit=1) as d:
        first, waits = await active(d, "s"), await active(d, "t", run_id="waits")
        behind = await queued(d, "t", "behind")
        view = d.session("t")
        assert (view.active, view.queued, view.folded, view.text) == (waits, (behind,), (), "")
        assert view.since is not None
        assert not view.covered
        assert waits.lead is waits
        agent.finish(first)
        await first
        await steps()
        assert d.session("t").since == view.since
        assert agent.turns[1].waiting() == [behind]
        await d.cancel("t")
        await waits


@in_loop
async def test_without_a_limit_nobody_waits() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        for number in range(100):
            await active(d, f"s{number}", "p")
        assert len(agent.turns) == 100
