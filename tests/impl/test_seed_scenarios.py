"""Thirty-two scenarios that are easy to get wrong: accepting, cancelling early and late, the queue."""

from __future__ import annotations

import asyncio

import pytest

from dispatching import (
    Agent,
    BrokenMessages,
    SlowMessages,
    active,
    containing,
    in_loop,
    look,
    on_record,
    outcome,
    queued,
    steps,
)
from turngate import Attachment, Dispatcher, EmptyPrompt, MissingSession, RunComplete, State, Turn

CANCELED_TURN = [("user", "hello", None), ("assistant", "", "canceled")]


async def done(turn: Turn) -> str:
    return "done"


# Accepting and releasing.


@in_loop
async def test_01_closing_a_handle_again_and_again_does_not_underflow() -> None:
    async with Dispatcher(done) as d:
        run = await d.accept("s", "hello")
        assert (run.session_id, await look(d.accepted_count("s"))) == ("s", 1)
        for _ in range(3):
            await run.close()
            assert await look(d.accepted_count("s")) == 0


@in_loop
async def test_02_each_reservation_is_released_on_its_own() -> None:
    async with Dispatcher(done) as d:
        first, second = await d.accept("s", "a"), await d.accept("s", "b")
        assert await look(d.accepted_count("s")) == 2
        await first.close()
        assert await look(d.accepted_count("s")) == 1
        await second.close()
        assert await look(d.accepted_count("s")) == 0


@in_loop
async def test_03_sequences_increase_in_the_order_of_accepting() -> None:
    async with Dispatcher(done) as d:
        seqs = [(await d.accept(session, "hello")).seq for session in ("s", "t", "s")]
        assert seqs == sorted(set(seqs))


@in_loop
async def test_04_entering_gives_the_reservation_up_whatever_the_decision() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        runs = [await d.accept("s", "hello") for _ in range(3)]
        await d.cancel_run(runs[2].run_id)
        assert [await d.enter(run) for run in runs] == ["active", "queued", "cancel_on_entry"]
        assert await look(d.accepted_count("s")) == 0


@in_loop
async def test_05_validation_is_shared_by_every_entry_point() -> None:
    async with Dispatcher(done) as d:
        for take_in in (d.accept, d.submit, d.ask):
            with pytest.raises(EmptyPrompt):
                await take_in("s", "", attachments=[Attachment("a.png", "image/png", b"1")])
            with pytest.raises(MissingSession):
                await take_in("", "hello")
            await take_in("s", "", attachments=[Attachment("a.txt", "text/plain", "hello")])


# Cancelling what is not active yet.


@in_loop
async def test_06_an_idle_cancel_records_nothing() -> None:
    async with Dispatcher(done) as d:
        await d.cancel("s")
        assert await look(d.cancel_mark("s")) == 0


@in_loop
async def test_07_a_cancel_of_an_accepted_run_is_recorded() -> None:
    async with Dispatcher(done) as d:
        run = await d.accept("s", "hello")
        await d.cancel("s")
        assert await look(d.cancel_mark("s")) == run.seq


@in_loop
async def test_08_a_second_cancel_while_one_is_pending_changes_nothing() -> None:
    async with Dispatcher(done) as d:
        run = await d.accept("s", "hello")
        for _ in range(2):
            await d.cancel("s")
            assert await look(d.cancel_mark("s")) == run.seq
        await d.enter(run)
        assert await look(d.cancel_mark("s")) == 0
        assert (await d.ask("s", "hello")).text == "done"


@in_loop
async def test_09_cancel_on_entry_writes_a_canceled_turn() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        run = await d.accept("s", "hello")
        await d.cancel("s")
        assert await d.enter(run) is State.CANCEL_ON_ENTRY
        await run
        assert (await look(d.cancel_mark("s")), await look(d.accepted_count("s")), agent.turns) == (0, 0, [])
        assert await on_record(d, "s") == CANCELED_TURN


@in_loop
async def test_10_cancel_on_entry_publishes_a_run_complete() -> None:
    async with Dispatcher(done) as d, d.subscribe() as events:
        run = await d.accept("s", "hello", run_id="run-cancel-on-entry")
        await d.cancel("s")
        await d.enter(run)
        event = await anext(events)
        assert isinstance(event, RunComplete)
        assert (event.run_id, event.session_id, event.cancelled) == ("run-cancel-on-entry", "s", True)


@in_loop
async def test_11_a_failed_write_on_entry_is_the_error_of_the_run_complete() -> None:
    async with Dispatcher(done, messages=BrokenMessages(OSError("locked"))) as d:
        run = await d.accept("s", "hello")
        await d.cancel("s")
        await d.enter(run)
        assert outcome(await run) == ("", containing("OSError: locked"), True)


@in_loop
async def test_12_one_cancel_covers_two_accepted_prompts() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        first, second = await d.accept("s", "first"), await d.accept("s", "second")
        await d.cancel("s")
        assert await look(d.cancel_mark("s")) == second.seq >= first.seq
        assert [await d.enter(first), await d.enter(second)] == ["cancel_on_entry"] * 2
        await first
        await second
        assert (
            await look(d.cancel_mark("s")),
            await look(d.accepted_count("s")),
            await look(d.queued("s")),
            agent.turns,
        ) == (0, 0, [], [])
        record = await on_record(d, "s")
        assert len(record) == 4
        assert [finish for role, _, finish in record if role == "assistant"] == ["canceled"] * 2


@in_loop
async def test_13_an_idle_cancel_does_not_poison_the_next_prompt() -> None:
    async with Dispatcher(done) as d:
        await d.cancel("s")
        assert outcome(await d.ask("s", "next")) == ("done", None, False)
        assert await on_record(d, "s") == [("user", "next", None), ("assistant", "done", "end_turn")]


@in_loop
async def test_14_a_prompt_accepted_after_the_cancel_and_entering_first_is_not_poisoned() -> None:
    async with Dispatcher(done) as d:
        a, b = await d.accept("s", "A"), await d.accept("s", "B")
        await d.cancel("s")
        c = await d.accept("s", "C")
        assert await look(d.cancel_mark("s")) == b.seq < c.seq
        await d.enter(c)
        assert outcome(await c) == ("done", None, False)
        assert await look(d.cancel_mark("s")) == b.seq
        await d.enter(a)
        await d.enter(b)
        assert [(await a).cancelled, (await b).cancelled] == [True, True]
        assert (
            await look(d.cancel_mark("s")),
            await look(d.accepted_count("s")),
            await look(d.queued("s")),
        ) == (0, 0, [])
        finishes = [finish for role, _, finish in await on_record(d, "s") if role == "assistant"]
        assert sorted(map(str, finishes)) == ["canceled", "canceled", "end_turn"]


@in_loop
async def test_15_a_handle_closed_after_the_cancel_leaves_no_mark_for_the_next_prompt() -> None:
    async with Dispatcher(done) as d:
        run = await d.accept("s", "hello")
        await d.cancel("s")
        await run.close()
        assert await look(d.cancel_mark("s")) == 0
        assert not (await d.ask("s", "next")).cancelled


@in_loop
async def test_16_a_handle_closed_before_the_cancel_leaves_nothing_to_mark() -> None:
    async with Dispatcher(done) as d:
        run = await d.accept("s", "hello")
        await run.close()
        assert not await d.cancel("s")
        assert not (await d.ask("s", "next")).cancelled
        assert not (await run).cancelled


@in_loop
async def test_17_a_canceled_turn_is_written_although_the_caller_is_cancelled() -> None:
    store = SlowMessages()

    async def caller() -> None:
        run = await d.accept("s", "hello")
        await d.cancel("s")
        await d.enter(run)
        await run

    async with Dispatcher(done, messages=store) as d:
        task = asyncio.create_task(caller())
        await steps()
        task.cancel()
        await steps()
        store.gates[0].set_result(None)
        await steps()
        assert await on_record(d, "s") == CANCELED_TURN


# Cancelling with a turn active.


@in_loop
async def test_18_a_cancel_covers_the_active_turn_and_an_accepted_follow_up() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        turn = await active(d, "s", "hello")
        follow_up = await d.accept("s", "follow-up")
        await d.cancel("s")
        assert await look(d.cancel_mark("s")) == follow_up.seq
        assert (await turn).cancelled


@in_loop
async def test_19_a_covered_follow_up_of_a_busy_session_is_cancelled_on_entry_not_queued() -> None:
    store = SlowMessages()
    agent = Agent()
    async with Dispatcher(agent, messages=store) as d:
        turn = await active(d, "s", "busy")
        follow_up = await d.accept("s", "hello")
        await d.cancel("s")
        assert await look(d.is_busy("s"))
        assert await d.enter(follow_up) is State.CANCEL_ON_ENTRY
        assert (
            await look(d.queued("s")),
            await look(d.cancel_mark("s")),
            await look(d.accepted_count("s")),
        ) == ([], 0, 0)
        await steps()
        for gate in store.gates:
            gate.set_result(None)
        await turn
        await follow_up
        assert (await on_record(d, "s"))[-2:] == CANCELED_TURN


@in_loop
async def test_20_a_cancel_before_the_assistant_message_exists_leaves_a_record() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        run = await active(d, "s", "hello")
        await d.cancel("s")
        await run
        assert await on_record(d, "s") == CANCELED_TURN


@in_loop
async def test_21_a_session_stays_busy_until_the_cancelled_turn_is_written() -> None:
    store = SlowMessages()
    agent = Agent()
    async with Dispatcher(agent, messages=store) as d:
        run = await active(d, "s", "hello")
        await d.cancel("s")
        await steps()
        assert await look(d.is_busy("s"))
        store.gates[0].set_result(None)
        await run
        assert not await look(d.is_busy("s"))


@in_loop
async def test_22_a_cancel_drops_the_queue_and_leaves_no_message_of_it() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        turn = await active(d, "s", "hello")
        dropped = await queued(d, "s", "queued")
        await d.cancel("s")
        assert outcome(await dropped) == ("", None, True)
        await turn
        assert await on_record(d, "s") == CANCELED_TURN


@in_loop
async def test_23_a_follow_up_queued_after_the_cancel_survives_it() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        turn = await active(d, "s", "hello")
        below, at_mark = await queued(d, "s", "below"), await queued(d, "s", "at mark")
        await d.cancel("s")
        after = await queued(d, "s", "after")
        assert [(await below).cancelled, (await at_mark).cancelled] == [True, True]
        assert await look(d.queued("s")) == [after]
        await turn
        await steps()
        agent.finish(after)
        assert outcome(await after) == ("done", None, False)


@in_loop
async def test_24_a_cancel_of_one_session_never_disturbs_another() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        mine, theirs = await active(d, "mine", "hello"), await active(d, "theirs", "hello")
        accepted = await d.accept("theirs", "accepted")
        await d.cancel("mine")
        assert (await mine).cancelled
        assert await look(d.cancel_mark("theirs")) == 0
        assert await d.enter(accepted) is State.QUEUED
        agent.finish(theirs)
        assert not (await theirs).cancelled


# The queue.


@in_loop
async def test_25_the_hook_is_stripped_when_queued_and_the_run_id_is_kept() -> None:
    agent = Agent()
    called: list[RunComplete] = []
    async with Dispatcher(agent) as d, d.subscribe() as events:
        turn = await active(d, "s", "hello")
        waiting = await queued(d, "s", "queued", run_id="run-123", on_complete=called.append)
        assert (await look(d.queued("s")))[0].prompt == "queued"
        agent.finish(turn)
        await steps()
        agent.finish(waiting)
        await waiting
        assert called == []
        assert [(await anext(events)).run_id for _ in range(2)] == [turn.run_id, "run-123"]


@in_loop
async def test_26_folding_without_a_cancel_takes_all() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        await active(d, "s", "hello")
        a, b = await queued(d, "s", "a"), await queued(d, "s", "b")
        assert await agent.turns[0].fold() == [a, b]
        assert await look(d.queued("s")) == []


@in_loop
async def test_27_folding_does_not_take_what_a_cancel_covers() -> None:
    async def folding(turn: Turn) -> str:
        await go.wait()
        return ",".join(run.prompt for run in await turn.fold())

    go = asyncio.Event()
    async with Dispatcher(folding) as d:
        main = await active(d, "s", "main")
        covered, kept = await queued(d, "s", "covered"), await queued(d, "s", "kept")
        await d.cancel_run(covered.run_id)
        go.set()
        assert outcome(await main) == ("kept", None, False)
        assert (await covered).cancelled
        assert (await kept).folded_into == main.run_id
        assert [text for role, text, _ in await on_record(d, "s") if role == "user"] == ["main", "kept"]


@in_loop
async def test_28_no_cancel_is_lost_between_a_turn_and_its_successor() -> None:
    """Whenever a cancel comes around a handoff, what was accepted before it is cancelled or complete."""
    for when in range(12):
        async with Dispatcher(done) as d:
            runs = [await d.submit("s", f"p{n}", when_busy="queue") for n in range(3)]
            await steps(when)
            before = {run.run_id for run in runs if run.complete}
            covered = await d.cancel("s")
            after = await d.submit("s", "after")
            for run in runs:
                assert (await run).cancelled == (run.run_id not in before)
            assert {run.run_id for run in covered.runs} == {run.run_id for run in runs} - before
            assert outcome(await after) == ("done", None, False)


@in_loop
async def test_29_a_finished_run_does_not_leave_its_run_complete_to_its_successor() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        first = await active(d, "s", "first")
        second = await queued(d, "s", "second")
        agent.finish(first)
        assert outcome(await first) == ("done", None, False)
        assert second.state is State.ACTIVE


@in_loop
async def test_30_a_turn_that_finishes_normally_leaves_no_mark_behind() -> None:
    async with Dispatcher(done) as d:
        await d.ask("s", "main")
        assert await look(d.cancel_mark("s")) == 0
        assert await on_record(d, "s") == [("user", "main", None), ("assistant", "done", "end_turn")]


@in_loop
async def test_31_cancel_all_stops_every_session() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        runs = [await active(d, session, "hello") for session in "abc"]
        await d.cancel_all()
        assert [(await run).cancelled for run in runs] == [True] * 3
        assert not await look(d.is_busy())


@in_loop
async def test_32_queued_prompts_are_counted_listed_and_cleared() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        await active(d, "s", "hello")
        for prompt in ("one", "two"):
            await queued(d, "s", prompt)
        assert [run.prompt for run in await look(d.queued("s"))] == ["one", "two"]
        assert [run.prompt for run in await d.clear_queue("s")] == ["one", "two"]
        assert await look(d.queued("s")) == []
