"""The text of a run's turn, piece by piece: whoever joins, whenever, from wherever, and whose text it is."""

from __future__ import annotations

import asyncio

import pytest

from dispatching import Agent, SlowMessages, active, in_loop, queued, steps
from reading import PIECES, TEXT, Reader, read, writes
from turngate import Dispatcher, State

pytestmark = pytest.mark.requirement("R-LOK-1")


# Joining at every moment.


@pytest.mark.parametrize("start", range(len(TEXT) + 3))
@in_loop
async def test_whoever_joins_at_whatever_step_reads_the_text_from_where_they_asked(start: int) -> None:
    readers: list[Reader] = []
    async with Dispatcher(writes) as d:
        run = await d.accept("s", "p")
        readers.append(Reader(run, start))
        await d.enter(run)
        while run.complete is None:
            readers.append(Reader(run, start))
            await steps(1)
        readers.append(Reader(run, start))
        for reader in readers:
            await reader.task
            assert reader.text == TEXT[start:]
            assert all(reader.pieces)
            assert reader.stream.offset == max(start, len(TEXT))


@in_loop
async def test_one_who_joins_late_reads_the_same_pieces() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        run = await active(d, "s", "p")
        early = Reader(run)
        for piece in PIECES:
            agent.turns[0].write(piece)
            await steps()
        late = Reader(run)
        await steps()
        assert early.pieces == late.pieces == [piece for piece in PIECES if piece]
        assert not early.task.done()
        agent.finish(run, None)
        await run
        await steps()
        assert early.task.done()
        assert late.task.done()
        assert [piece async for piece in run.stream()] == early.pieces


@in_loop
async def test_a_reader_is_not_done_before_the_run_is_complete() -> None:
    agent, store = Agent(), SlowMessages()
    async with Dispatcher(agent, messages=store) as d:
        run = await active(d, "s", "p")
        agent.turns[0].write("text")
        agent.finish(run, None)
        await steps()
        reader = Reader(run)  # it settles
        await steps()
        assert reader.pieces == ["text"]
        assert not reader.task.done()
        store.gates[0].set_result(None)
        await run
        await reader.task
        assert reader.pieces == ["text"]


@in_loop
async def test_what_a_silent_runner_returns_is_one_piece() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        run = await active(d, "s", "p")
        reader = Reader(run, 2)
        agent.finish(run, "answer")
        await run
        await reader.task
        assert reader.pieces == ["swer"]
        assert [piece async for piece in run.stream()] == ["answer"]


@in_loop
async def test_to_write_nothing_is_to_be_silent() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        run = await active(d, "s", "p", run_id="r")
        reader = Reader(run)
        agent.turns[0].write("")
        await steps()
        agent.finish(run, "answer")
        assert (await run).text == "answer"
        await reader.task
        assert reader.pieces == ["answer"]
        assert await read(run) == "answer"
        run_id = run.run_id
        del run, reader
        agent.turns.clear()
        found = d.find(run_id)
        assert found is not None
        assert await read(found) == "answer"


@in_loop
async def test_what_was_written_counts_though_the_runner_returns_something_else() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        run = await active(d, "s", "p")
        reader = Reader(run)
        agent.turns[0].write("thinking")
        agent.finish(run, "answer")
        assert (await run).text == "answer"
        await reader.task
        assert reader.text == await read(run) == "thinking"


@pytest.mark.parametrize("text", [None, ""])
@in_loop
async def test_a_turn_without_text_has_an_empty_stream(text: str | None) -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        run = await active(d, "s", "p", run_id="r")
        reader = Reader(run)
        agent.finish(run, text)
        await run
        await reader.task
        assert reader.pieces == []
        assert run.lead is run
        del reader, run
        agent.turns.clear()
        found = d.find("r")
        assert found is not None
        assert await read(found) == ""
        assert found.lead is found


# Of whom.


@in_loop
async def test_a_run_that_is_folded_in_reads_the_text_of_the_turn_from_its_beginning() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        lead = await active(d, "s", "p", run_id="lead")
        agent.turns[0].write("before ")
        accepted = await d.accept("s", "q")
        joins_accepted = Reader(accepted)
        await d.enter(accepted)
        joins_queued = Reader(accepted)
        await steps()
        assert accepted.lead is None
        assert await agent.turns[0].fold() == [accepted]
        assert accepted.lead is lead
        await steps()
        assert joins_accepted.pieces == joins_queued.pieces == ["before "]
        joins_active = Reader(accepted, 3)
        agent.turns[0].write("after")
        await steps()
        assert joins_accepted.text == "before after"
        assert joins_active.text == "ore after"
        agent.finish(lead, None)
        await accepted
        for reader in (joins_accepted, joins_queued, joins_active):
            await reader.task
        assert joins_queued.text == await read(accepted) == "before after"
        assert accepted.lead is lead


@in_loop
async def test_the_lead_of_a_folded_run_is_the_handle_that_somebody_holds() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        lead = await active(d, "s", "the first prompt")
        folded = await queued(d, "s", "q")
        await agent.turns[0].fold()
        agent.finish(lead)
        await folded
        agent.turns.clear()
        assert folded.lead is lead
        assert lead.lead is lead


@in_loop
async def test_a_queued_run_reads_its_own_turn_and_not_the_one_before_it() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        first = await active(d, "s", "p")
        second = await queued(d, "s", "q", when_busy="queue")
        reader = Reader(second)
        agent.turns[0].write("first")
        await steps()
        assert reader.pieces == []
        agent.finish(first, None)
        await first
        await steps()
        assert second.lead is second
        agent.turns[1].write("second")
        await steps()
        assert reader.pieces == ["second"]
        agent.finish(second, None)
        await reader.task
        assert reader.pieces == ["second"]


@in_loop
async def test_nothing_comes_of_a_run_that_never_had_a_turn() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        first = await active(d, "s", "p")
        agent.turns[0].write("not yours")
        dropped = await queued(d, "s", "dropped")
        cleared = await queued(d, "s", "cleared")
        released = await d.accept("s", "released")
        on_entry = await d.accept("s", "on entry")
        runs = [dropped, cleared, released, on_entry]
        readers = [Reader(run) for run in runs]
        await steps()
        await d.cancel_run(dropped.run_id)
        await d.clear_queue("s")
        await released.close()
        await on_entry.cancel()
        assert await d.enter(on_entry) is State.CANCEL_ON_ENTRY
        assert on_entry.lead is None
        for run, reader in zip(runs, readers, strict=True):
            await run
            await reader.task
            assert reader.pieces == []
            assert await read(run) == ""
            assert run.lead is None
            found = d.find(run.run_id)
            assert found is not None
            assert found.lead is None
            assert await read(found) == ""
        agent.finish(first)
        await first


@pytest.mark.parametrize("end", ["cancel", "fail", "loop"])
@in_loop
async def test_what_was_written_is_there_however_the_turn_ends(end: str) -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        run = await active(d, "s", "p")
        reader = Reader(run)
        agent.turns[0].write("so far")
        if end == "cancel":
            await run.cancel()
        elif end == "fail":
            agent.fail(run, asyncio.CancelledError())
        else:
            task = agent.turns[0].task
            assert task is not None
            task.cancel()
        await run
        await reader.task
        assert reader.pieces == ["so far"]
        assert await read(run, 3) == "far"
