"""One test per sentence of the table of public names, which each test cites."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

import turngate
from dispatching import (
    HANG,
    Agent,
    BrokenMessages,
    SlowMessages,
    active,
    in_loop,
    look,
    on_record,
    outcome,
    queued,
    steps,
)
from turngate import (
    AlreadyEntered,
    Attachment,
    Delta,
    Dispatcher,
    DispatcherClosed,
    EmptyPrompt,
    MemoryMessages,
    Message,
    MissingSession,
    QueueFull,
    Run,
    RunComplete,
    RunConflict,
    SessionBusy,
    SqliteMessages,
    State,
    Turn,
    TurngateError,
)


async def echo(turn: Turn) -> str:
    return turn.run.prompt


def test_every_name_of_the_contract_is_public() -> None:
    names = {
        "Dispatcher", "Run", "Turn", "RunComplete", "State", "Message", "MemoryMessages", "SqliteMessages",
        "Covered", "TurngateError", "EmptyPrompt", "MissingSession", "RunConflict", "DispatcherClosed",
        "QueueFull", "AlreadyEntered", "SessionBusy",
    }  # fmt: skip
    assert names <= set(turngate.__all__)
    assert all(hasattr(turngate, name) for name in turngate.__all__)


# `Dispatcher(runner, *, messages=None, ...)`


@in_loop
async def test_dispatcher_is_an_async_context_manager_and_leaving_it_is_aclose() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        run = await active(d, "s", "p")
    assert run.state is State.COMPLETE
    with pytest.raises(DispatcherClosed):
        await d.accept("s", "p")


def test_all_parameters_but_the_runner_are_keywords() -> None:
    parameters = [*inspect.signature(Dispatcher).parameters.values()]
    assert parameters[0].name == "runner"
    assert all(p.kind is p.KEYWORD_ONLY and p.default is not p.empty for p in parameters[1:])


# `await d.accept(...) -> Run`


def test_signature_of_accept() -> None:
    signature = inspect.signature(Dispatcher.accept)
    defaults = {p.name: p.default for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY}
    assert [*signature.parameters][:3] == ["self", "session_id", "prompt"]
    assert defaults == {"run_id": None, "attachments": (), "when_busy": "fold", "on_complete": None}


@in_loop
async def test_accept_returns_a_run_and_starts_nothing() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        run = await d.accept("s", "p")
        await steps()
        assert isinstance(run, Run)
        assert run.state is State.ACCEPTED
        assert agent.turns == []


async def traceless(d: Dispatcher) -> tuple[Any, ...]:
    return (
        repr(d),
        await look(d.accepted_count("s")),
        await look(d.queued("s")),
        await look(d.cancel_mark("s")),
        await look(d.is_busy()),
    )


@in_loop
async def test_accept_refuses_an_empty_prompt_and_leaves_no_trace() -> None:
    async with Dispatcher(echo) as d:
        before = await traceless(d)
        for prompt in ("", "  \n"):
            with pytest.raises(EmptyPrompt):
                await d.accept("s", prompt)
        with pytest.raises(EmptyPrompt):
            await d.accept("s", "", attachments=[Attachment("a.png", "image/png", b"\x89")])
        with pytest.raises(EmptyPrompt):
            await d.accept("s", "", attachments=[" ", Attachment("a.txt", "text/plain", " ")])
        assert await traceless(d) == before
        assert (await d.accept("s", "p")).seq == 1


@in_loop
async def test_a_text_attachment_makes_up_for_an_empty_prompt() -> None:
    async with Dispatcher(echo) as d:
        await d.accept("s", "", attachments=["notes"])
        await d.accept("s", "", attachments=[Attachment("a.txt", "text/plain", "notes")])
        run = await d.accept("s", "", attachments=[Attachment("a.md", "text/markdown", b"notes")])
        assert run.attachments == (("a.md", "text/markdown", b"notes"),)


@in_loop
async def test_accept_refuses_a_missing_session_and_leaves_no_trace() -> None:
    async with Dispatcher(echo) as d:
        before = await traceless(d)
        for session in ("", None, 7):
            with pytest.raises(MissingSession):
                await d.accept(session, "p")  # type: ignore[arg-type]
        assert await traceless(d) == before


@in_loop
async def test_accept_refuses_a_known_run_id_with_another_payload() -> None:
    async with Dispatcher(echo) as d:
        await d.accept("s", "p", run_id="r", attachments=["a"])
        before = await traceless(d)
        for session, prompt, attachments in [
            ("t", "p", ["a"]), ("s", "q", ["a"]), ("s", "o", ["a"]), ("s", "p", ["b"]),
        ]:  # fmt: skip
            with pytest.raises(RunConflict):
                await d.accept(session, prompt, run_id="r", attachments=attachments)
        assert await traceless(d) == before


@in_loop
async def test_accept_of_a_known_run_id_with_the_same_payload_returns_the_same_run() -> None:
    async with Dispatcher(echo) as d:
        run = await d.accept("s", "p", run_id="r")
        assert await d.accept("s", "p", run_id="r") is run
        assert await look(d.accepted_count("s")) == 1
        await d.enter(run)
        await run
        assert await d.accept("s", "p", run_id="r") is run


@in_loop
async def test_accept_refuses_when_the_dispatcher_is_closed() -> None:
    agent = Agent()
    d = Dispatcher(agent)
    run = await active(d, "s", "p")
    closing = asyncio.create_task(d.aclose())
    await asyncio.sleep(0)
    with pytest.raises(DispatcherClosed):
        await d.accept("s", "p")
    await closing
    with pytest.raises(DispatcherClosed):
        await d.accept("s", "p", run_id=run.run_id)


@in_loop
async def test_accept_refuses_beyond_the_queue_limit() -> None:
    agent = Agent()
    async with Dispatcher(agent, queue_limit=2) as d:
        await active(d, "s", "p")
        await queued(d, "s", "q1")
        await d.accept("s", "q2")
        before = await traceless(d)
        with pytest.raises(QueueFull, match="queue_limit"):
            await d.accept("s", "q3")
        assert await traceless(d) == before
        await d.accept("t", "another session has room")


def test_refusals_are_turngate_errors() -> None:
    refusals = (
        EmptyPrompt,
        MissingSession,
        RunConflict,
        DispatcherClosed,
        QueueFull,
        AlreadyEntered,
        SessionBusy,
    )
    assert all(issubclass(refusal, TurngateError) for refusal in refusals)


# `await d.enter(run) -> State`


@in_loop
async def test_enter_decides_active_queued_or_cancel_on_entry() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        first, second, third = [await d.accept("s", p) for p in ("p1", "p2", "p3")]
        assert await d.enter(first) is State.ACTIVE
        assert await d.enter(second) is State.QUEUED
        await d.cancel("s")
        assert await d.enter(third) is State.CANCEL_ON_ENTRY


@in_loop
async def test_a_second_enter_raises() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        run = await active(d, "s", "p")
        with pytest.raises(AlreadyEntered, match="active"):
            await d.enter(run)
        agent.finish(run)
        await run
        with pytest.raises(AlreadyEntered, match="complete"):
            await d.enter(run)
    assert agent.prompts == ["p"]


# `await d.submit(...) -> Run`


@in_loop
async def test_submit_accepts_now_and_enters_in_the_background() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        run = await d.submit("s", "p", run_id="r")
        assert await look(d.accepted_count("s")) == 1
        await steps()
        assert run.state is State.ACTIVE
        assert run.run_id == "r"


@in_loop
async def test_a_cancel_right_after_submit_cancels_on_entry() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        run = await d.submit("s", "p")
        assert (await d.cancel("s")).runs == [run]
        assert outcome(await run) == ("", None, True)
    assert agent.turns == []
    assert await on_record(d, "s") == [("user", "p", None), ("assistant", "", "canceled")]


# `await d.ask(...) -> RunComplete`


@in_loop
async def test_ask_submits_and_waits() -> None:
    async with Dispatcher(echo) as d:
        complete = await d.ask("s", "p", run_id="r")
        assert isinstance(complete, RunComplete)
        assert (complete.run_id, complete.text) == ("r", "p")


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
        assert events.dropped == 17
        await d.aclose()
        received = [event async for event in events]
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


# `when_busy`


@in_loop
async def test_fold_may_join_the_active_turn_else_runs_after_it() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        turn = await active(d, "s", "p1")
        joins = await queued(d, "s", "p2")
        await agent.turns[0].fold()
        after = await queued(d, "s", "p3", when_busy="fold")
        agent.finish(turn)
        assert (await joins).folded_into == turn.run_id
        await steps()
        agent.finish(after)
        assert (await after).folded_into is None
        assert agent.prompts == ["p1", "p3"]


@in_loop
async def test_queue_always_gets_its_own_turn() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        turn = await active(d, "s", "p1")
        folds = await queued(d, "s", "p2")
        own = await queued(d, "s", "p3", when_busy="queue")
        behind = await queued(d, "s", "p4")
        assert await agent.turns[0].fold() == [folds]
        assert await agent.turns[0].fold() == []
        assert await look(d.queued("s")) == [own, behind]
        agent.finish(turn)
        await steps()
        assert agent.turns[1].run is own
        assert await agent.turns[1].fold() == [behind]


@in_loop
async def test_interrupt_cancels_all_that_came_before_and_is_accepted_after_it() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        turn = await active(d, "s", "p1")
        waiting = await queued(d, "s", "p2")
        accepted = await d.accept("s", "p3")
        interrupting = await d.accept("s", "p4", when_busy="interrupt")
        assert waiting.state is State.COMPLETE
        assert await d.enter(accepted) is State.CANCEL_ON_ENTRY
        assert await d.enter(interrupting) is State.QUEUED
        assert [(await run).cancelled for run in (turn, waiting, accepted)] == [True] * 3
        await steps()
        agent.finish(interrupting)
        assert outcome(await interrupting) == ("done", None, False)


@in_loop
async def test_interrupt_is_not_foldable_and_finds_room_in_a_full_queue() -> None:
    agent = Agent()
    async with Dispatcher(agent, queue_limit=1) as d:
        await active(d, "s", "p1")
        await queued(d, "s", "p2")
        interrupting = await d.accept("s", "p3", when_busy="interrupt")
        with pytest.raises(QueueFull):
            await d.accept("s", "p4", when_busy="interrupt")
        await d.enter(interrupting)
        assert await look(d.queued("s")) == [interrupting]
        await steps()
        behind = await queued(d, "s", "p5", when_busy="interrupt")
        assert await agent.turns[-1].fold() == []
        assert await look(d.queued("s")) == [behind]


@in_loop
async def test_reject_raises_when_anything_of_the_session_is_in_flight() -> None:
    messages = SlowMessages()
    agent = Agent()
    async with Dispatcher(agent, messages=messages) as d:
        run = await d.accept("s", "p1", when_busy="reject")
        for step in ("accepted", "active", "settling"):
            before = await traceless(d)
            with pytest.raises(SessionBusy):
                await d.accept("s", "p2", when_busy="reject")
            assert await traceless(d) == before
            if step == "accepted":
                await d.enter(run)
                await steps()
            elif step == "active":
                agent.finish(run)
                await steps()
        await d.accept("t", "p2", when_busy="reject")
        messages.gates[0].set_result(None)
        await run
        await d.accept("s", "p2", when_busy="reject")


# What follows the table


@in_loop
async def test_a_folded_run_completes_with_the_turn_that_took_it_in() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        lead = await active(d, "s", "p1")
        follow_up = await queued(d, "s", "p2")
        await agent.turns[0].fold()
        agent.finish(lead, "both")
        done, folded = await lead, await follow_up
        assert outcome(done) == outcome(folded) == ("both", None, False)
        assert (done.folded_into, folded.folded_into) == (None, lead.run_id)
        assert done.message_id == folded.message_id
        assert await on_record(d, "s") == [
            ("user", "p1", None),
            ("user", "p2", None),
            ("assistant", "both", "end_turn"),
        ]


@in_loop
async def test_a_runner_that_raises_gives_an_error_and_the_queue_goes_on() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        failing = await active(d, "s", "p1")
        behind = await queued(d, "s", "p2")
        agent.fail(failing, RuntimeError("boom"))
        assert outcome(await failing) == ("", "RuntimeError: boom", False)
        await steps()
        agent.finish(behind)
        assert outcome(await behind) == ("done", None, False)
        assert (await on_record(d, "s"))[1] == ("assistant", "", "error")


@in_loop
async def test_a_store_that_fails_gives_an_error_and_still_one_run_complete() -> None:
    for at_once in (True, False):
        async with (
            Dispatcher(echo, messages=BrokenMessages(OSError("disk full"), at_once=at_once, times=1)) as d,
            d.subscribe() as events,
        ):
            failing, behind = await d.submit("s", "p1"), await d.submit("s", "p2", when_busy="queue")
            complete = await failing
            assert complete.error == "writing the messages failed: OSError: disk full"
            assert (complete.text, complete.cancelled, complete.message_id) == ("p1", False, None)
            assert outcome(await behind) == ("p2", None, False)
            await d.aclose()
            assert [event async for event in events] == [complete, await behind]


@in_loop
async def test_a_handle_closed_before_entry_that_a_cancel_had_covered_is_cancelled() -> None:
    async with Dispatcher(echo) as d:
        run, other = await d.accept("s", "p"), await d.accept("s", "p")
        await d.cancel_run(other.run_id)
        await d.cancel("s")
        for released in (run, other):
            await released.close()
            assert outcome(await released) == ("", "released before entry", True)


@in_loop
async def test_a_retry_inside_the_runner_never_emits_a_second_run_complete() -> None:
    async def retrying(turn: Turn) -> str:
        for attempt in range(3):
            turn.write(f"attempt {attempt}; ")
            await asyncio.sleep(0)
        return "third time lucky"

    async with Dispatcher(retrying) as d, d.subscribe() as events:
        complete = await d.ask("s", "p")
        await d.aclose()
        assert [event async for event in events if isinstance(event, RunComplete)] == [complete]


@in_loop
async def test_on_complete_receives_the_run_complete_instead_of_the_subscribers() -> None:
    received: list[RunComplete] = []
    async with Dispatcher(echo) as d, d.subscribe() as events:
        complete = await d.ask("s", "p", on_complete=received.append)
        await d.aclose()
        assert received == [complete]
        assert [event async for event in events] == []


@in_loop
async def test_on_complete_is_not_carried_along_when_the_run_is_queued() -> None:
    received: list[RunComplete] = []
    agent = Agent()
    async with Dispatcher(agent) as d, d.subscribe() as events:
        turn = await active(d, "s", "p1", on_complete=received.append)
        waiting = await queued(d, "s", "p2", on_complete=received.append)
        agent.finish(turn)
        await steps()
        agent.finish(waiting)
        await waiting
        await d.aclose()
        assert received == [await turn]
        assert [event async for event in events] == [await waiting]


@pytest.mark.parametrize("way", ["released", "cancelled on entry"])
def test_on_complete_receives_what_ends_without_a_turn(way: str) -> None:
    @in_loop
    async def check() -> None:
        received: list[RunComplete] = []
        async with Dispatcher(echo) as d, d.subscribe() as events:
            run = await d.accept("s", "p", on_complete=received.append)
            if way == "released":
                await run.close()
            else:
                await d.cancel("s")
                await d.enter(run)
            complete = await run
            await d.aclose()
            assert received == [complete]
            assert [event async for event in events] == []

    check()
