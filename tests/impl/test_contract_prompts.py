"""The contract of taking prompts in: one test per sentence of the table, which each test cites."""

from __future__ import annotations

import asyncio
import inspect
from enum import Enum

import pytest

import turngate
from dispatching import (
    Agent,
    SlowMessages,
    active,
    echo,
    in_loop,
    look,
    on_record,
    outcome,
    queued,
    steps,
    traceless,
)
from turngate import (
    AlreadyEntered,
    Attachment,
    Dispatcher,
    DispatcherClosed,
    EmptyPrompt,
    MissingSession,
    QueueFull,
    Run,
    RunComplete,
    RunConflict,
    SessionBusy,
    State,
    Turn,
    TurngateError,
)


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
    assert defaults == {
        "run_id": None,
        "attachments": (),
        "when_busy": "fold",
        "on_complete": None,
        "into": None,
        "data": None,
    }


@in_loop
async def test_accept_returns_a_run_and_starts_nothing() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        run = await d.accept("s", "p")
        await steps()
        assert isinstance(run, Run)
        assert run.state is State.ACCEPTED
        assert agent.turns == []


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
                await d.accept(session, "p")  # type: ignore[arg-type]  # wrong on purpose
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


@pytest.mark.requirement("R-BSY-4")
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


class Word(str, Enum):  # noqa: UP042 - the `str()` of a StrEnum would be its value
    """Strings whose `str()` is another string."""

    ROOM = "room"
    PROMPT = "about tea"
    NAME = "first"
    ANSWER = "tea"


@in_loop
async def test_a_member_of_an_enumeration_of_strings_is_its_value() -> None:
    async def answer(turn: Turn) -> str | None:
        if turn.run.prompt == "written":
            turn.write(Word.ANSWER)
            return None
        return Word.ANSWER

    async with Dispatcher(answer) as d:
        for prompt in (Word.PROMPT, "written"):
            complete = await d.ask(Word.ROOM, prompt)
            assert (complete.text, type(complete.text)) == ("tea", str)
        assert [each.text for each in await d.messages.list(Word.ROOM)] == [
            "about tea", "tea", "written", "tea",
        ]  # fmt: skip
    agent = Agent()
    async with Dispatcher(agent) as d:
        first = await active(d, "room", Word.PROMPT, run_id=Word.NAME)
        waiting = await queued(d, "room", "p")
        assert await d.hold(Word.ROOM) == [waiting]
        assert (await look(d.session(Word.ROOM))).waiting == (waiting,)
        assert await d.resume(Word.ROOM) == [waiting]
        assert (await d.stop(Word.ROOM, turn=Word.NAME)).runs == [first]
        assert await d.clear_queue(Word.ROOM) == [waiting]
        assert [(await run).session_id for run in (first, waiting)] == ["room", "room"]
