"""The contract of what callers and runners hold and look at: one test per sentence, which each test cites."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dispatching import HANG, Agent, active, echo, in_loop, look, on_record, outcome, queued, steps
from turngate import Delta, Dispatcher, MemoryMessages, Message, RunComplete, SqliteMessages, State, Turn

# `d.is_busy(session_id=None)`, `d.queued`, `d.accepted_count`, `d.cancel_mark`


@in_loop
async def test_snapshots() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        first, second = await d.accept("s", "p1"), await d.accept("s", "p2")
        assert (await look(d.is_busy("s")), await look(d.is_busy()), await look(d.accepted_count("s"))) == (
            False,
            False,
            2,
        )
        await d.enter(first)
        await d.enter(second)
        assert (await look(d.is_busy("s")), await look(d.is_busy("t")), await look(d.is_busy())) == (
            True,
            False,
            True,
        )
        assert (await look(d.queued("s")), await look(d.accepted_count("s"))) == ([second], 0)
        await steps()
        agent.finish(first)
        await first
        await steps()
        agent.finish(second)
        await second
        assert (
            await look(d.is_busy("s")),
            await look(d.is_busy()),
            await look(d.queued("s")),
            await look(d.accepted_count("s")),
        ) == (False, False, [], 0)


@in_loop
async def test_cancel_mark_is_0_when_no_accepted_run_is_covered() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        assert await look(d.cancel_mark("s")) == 0
        await active(d, "s", "p1")
        await d.cancel("s")
        assert await look(d.cancel_mark("s")) == 0
        second, third = await d.accept("s", "p2"), await d.accept("s", "p3")
        assert await look(d.cancel_mark("s")) == 0
        await d.cancel("s")
        assert await look(d.cancel_mark("s")) == third.seq
        await d.enter(second)
        assert await look(d.cancel_mark("s")) == third.seq
        await third.close()
        assert await look(d.cancel_mark("s")) == 0


# `d.subscribe(session_id=None)`


@in_loop
async def test_subscribe_is_an_async_context_manager_and_iterator_of_events() -> None:
    async def stream(turn: Turn) -> None:
        turn.write("a")
        turn.write("b")

    async with Dispatcher(stream) as d:
        async with d.subscribe("s") as events:
            await d.ask("t", "not for this subscriber")
            complete = await d.ask("s", "p")
            received = [await anext(events) for _ in range(3)]
        assert received == [
            Delta("s", complete.run_id, "a", 0),
            Delta("s", complete.run_id, "b", 1),
            complete,
        ]
        with pytest.raises(StopAsyncIteration):
            await anext(events)


@in_loop
async def test_deltas_are_dropped_for_a_slow_reader_and_counted_and_run_completes_are_not() -> None:
    async def stream(turn: Turn) -> None:
        for _ in range(5):
            turn.write("x")

    async with Dispatcher(stream, delta_limit=3) as d, d.subscribe() as events:
        completes = [await d.ask("s", "p") for _ in range(4)]
        await d.aclose()  # on a ledger, subscribers may be told after the caller
        received = [event async for event in events]
        assert events.dropped == 17
        assert [event for event in received if isinstance(event, RunComplete)] == completes
        assert len(received) == 7


# `await d.wait(run_id) -> RunComplete`


@in_loop
async def test_wait_by_run_id_also_after_the_fact() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        run = await active(d, "s", "p")
        waiting = asyncio.create_task(d.wait(run.run_id))
        await steps()
        agent.finish(run)
        complete = await waiting
        assert await d.wait(run.run_id) == complete
    assert await d.wait(run.run_id) == complete


# `Turn`


@in_loop
async def test_turn_has_its_lead_run_and_its_runs() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        lead = await active(d, "s", "p")
        (turn,) = agent.turns
        assert (turn.run, turn.runs) == (lead, [lead])
        follow_up = await queued(d, "s", "q")
        await turn.fold()
        assert (turn.run, turn.runs) == (lead, [lead, follow_up])


@in_loop
async def test_fold_returns_the_runs_newly_taken_in() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        await active(d, "s", "p")
        (turn,) = agent.turns
        assert await turn.fold() == []
        second, third = await queued(d, "s", "q"), await queued(d, "s", "r")
        assert await turn.fold() == [second, third]
        fourth = await queued(d, "s", "t")
        assert await turn.fold() == [fourth]
        assert [run.state for run in turn.runs] == [State.ACTIVE] * 4


@in_loop
async def test_what_was_written_is_the_text_when_the_runner_returns_none() -> None:
    async def stream(turn: Turn) -> str | None:
        turn.write("par")
        turn.write("tial")
        return "final" if turn.run.prompt == "return" else None

    async with Dispatcher(stream) as d:
        assert (await d.ask("s", "write")).text == "partial"
        assert (await d.ask("s", "return")).text == "final"


@in_loop
async def test_what_was_written_is_kept_when_the_turn_is_cancelled() -> None:
    async def stream(turn: Turn) -> str:
        turn.write("partial")
        await asyncio.get_running_loop().create_future()
        return "final"

    async with Dispatcher(stream) as d:
        run = await active(d, "s", "p")
        await d.cancel("s")
        assert outcome(await run) == ("partial", None, True)
        assert await on_record(d, "s") == [("user", "p", None), ("assistant", "partial", "canceled")]


@in_loop
async def test_history_is_what_the_store_holds_of_the_session() -> None:
    async def remember(turn: Turn) -> str:
        return " ".join(message.text for message in await turn.history())

    async with Dispatcher(remember) as d:
        assert (await d.ask("s", "one")).text == ""
        await d.ask("t", "another session")
        assert (await d.ask("s", "two")).text == "one "
        assert (await d.ask("s", "three")).text == "one  two one "


# `Run`


@in_loop
async def test_run_has_what_the_contract_names() -> None:
    async with Dispatcher(echo) as d:
        run = await d.accept("s", "p", run_id="r")
        assert (run.run_id, run.session_id, run.seq, run.prompt, run.state) == ("r", "s", 1, "p", "accepted")
        await d.enter(run)
        assert await run is await run.wait()


@in_loop
async def test_close_releases_and_is_idempotent_and_safe_at_any_time() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        run = await d.accept("s", "p")
        await run.close()
        await run.close()
        assert outcome(await run) == ("", "released before entry", False)
        turn = await active(d, "s", "p")
        waiting = await queued(d, "s", "q")
        await turn.close()
        await waiting.close()
        assert (turn.state, waiting.state) == (State.ACTIVE, State.QUEUED)
    await turn.close()
    assert (await turn).error is None


# `RunComplete`, `State`, `Message`, `d.messages`


@in_loop
async def test_run_complete_has_what_the_contract_names() -> None:
    async with Dispatcher(echo) as d:
        complete = await d.ask("s", "p", run_id="r")
        (_, reply) = await d.messages.list("s")
        assert complete == RunComplete(
            session_id="s",
            run_id="r",
            seq=1,
            text="p",
            error=None,
            cancelled=False,
            message_id=reply.id,
            folded_into=None,
            outcome="finished",
        )


def test_states_have_the_values_of_the_lifecycle() -> None:
    assert [*State] == ["accepted", "cancel_on_entry", "queued", "active", "complete"]


@in_loop
async def test_message_has_what_the_contract_names() -> None:
    async with Dispatcher(echo) as d:
        await d.ask("s", "p", run_id="r")
        user, assistant = await d.messages.list("s")
        assert user == Message(user.id, "s", "r", "user", "p", None)
        assert assistant == Message(assistant.id, "s", "r", "assistant", "p", "end_turn")
        assert user.id != assistant.id


@in_loop
async def test_messages_is_the_store_in_memory_unless_given(tmp_path: Any) -> None:
    assert isinstance(Dispatcher(echo).messages, MemoryMessages)
    async with (
        SqliteMessages(tmp_path / "messages.db") as store,
        Dispatcher(echo, messages=store, settle_timeout=HANG) as d,
    ):
        assert d.messages is store
        await d.ask("s", "p")
        assert await on_record(d, "s") == [("user", "p", None), ("assistant", "p", "end_turn")]
