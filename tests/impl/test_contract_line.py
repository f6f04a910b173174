"""The contract of the line: hold, resume, stop, move, edit, send now, `into` and `data`."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from dispatching import (
    Agent,
    SlowMessages,
    active,
    assert_nothing_left,
    in_loop,
    look,
    queued,
    steps,
)
from turngate import (
    Attachment,
    Dispatcher,
    EmptyPrompt,
    KeyConflict,
    Moved,
    NotRunning,
    NotWaiting,
    QueueFull,
    Run,
    RunConflict,
    SessionBusy,
    State,
    Turn,
    UnknownRun,
)

CLEARED = ("", "cleared from the queue", False)
RELEASED = ("", "released before entry", False)
CANCELLED = ("", None, True)
DONE = ("done", None, False)


async def outcome(run: Run) -> tuple[str, str | None, bool]:
    """Wait for the run, and return how it ended."""
    complete = await run.wait()
    return complete.text, complete.error, complete.cancelled


async def line(d: Dispatcher, session_id: str = "s") -> list[str]:
    """Return the prompts of the queue, first in line first."""
    return [run.prompt for run in await look(d.queued(session_id))]


async def started(agent: Agent, count: int) -> None:
    """Wait until the runner has been called this many times."""
    while len(agent.turns) < count:
        await steps()


# Holding and resuming.


@pytest.mark.requirement("R-HLD-1")
@in_loop
async def test_a_hold_holds_what_waits_and_nothing_that_is_accepted_later() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        first = await active(d, "s", "first")
        waiting, accepted = await queued(d, "s", "waiting"), await d.accept("s", "accepted")
        assert await d.hold("s") == [waiting, accepted]
        assert (first.held, waiting.held, accepted.held) == (False, True, True)
        later = await queued(d, "s", "later")
        assert not later.held
        assert await d.enter(accepted) is State.QUEUED
        agent.finish(first)
        await started(agent, 2)
        assert agent.prompts == ["first", "later"]
        agent.finish(later)
        await later.wait()
        assert not await look(d.is_busy("s"))
        assert await line(d) == ["waiting", "accepted"]
        assert await d.resume("s") == [waiting, accepted]
        await started(agent, 3)
        assert agent.prompts[-1] == "waiting"
        agent.finish(waiting)
        await started(agent, 4)
        agent.finish(accepted)
        assert await outcome(accepted) == DONE
    assert not waiting.held


@pytest.mark.requirement("R-HLD-1")
@in_loop
async def test_a_second_hold_or_resume_changes_only_the_other_runs() -> None:
    async with Dispatcher(Agent()) as d:
        await active(d, "s")
        first = await queued(d, "s", "first")
        assert await d.hold("s") == [first]
        second = await queued(d, "s", "second")
        assert await d.hold("s") == [second]
        assert await d.hold_run(first.run_id) == []
        assert await d.resume_run(first.run_id) == [first]
        assert await d.resume_run(first.run_id) == []
        assert await d.resume("s") == [second]
        assert await d.resume("s") == []


@pytest.mark.requirement("R-HLD-3", "R-ENT-2")
@in_loop
async def test_a_held_run_in_a_session_without_a_turn_is_queued_and_lets_others_pass() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        held = await d.accept("s", "held")
        assert await d.hold_run(held.run_id) == [held]
        assert await d.enter(held) is State.QUEUED
        view = await look(d.session("s"))
        assert (view.active, view.queued) == (None, (held,))
        assert [view.session_id for view in await look(d.sessions())] == ["s"]
        other = await active(d, "s", "other")
        agent.finish(other)
        await other.wait()
        await steps()
        assert await d.resume_run(held.run_id) == [held]
        await started(agent, 2)
        assert agent.prompts == ["other", "held"]
        agent.finish(held)
        await held.wait()


@pytest.mark.requirement("ONE_TURN", "R-HLD-3")
@in_loop
async def test_a_resume_starts_nothing_beside_a_turn() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        first = await active(d, "s", "first")
        second = await queued(d, "s", "second")
        await d.hold("s")
        await d.resume("s")
        await steps()
        assert agent.prompts == ["first"]
        agent.finish(first)
        await started(agent, 2)
        agent.finish(second)
        assert await outcome(second) == DONE


@pytest.mark.requirement("NO_STRAND")
@in_loop
async def test_a_resume_while_a_turn_settles_is_not_forgotten() -> None:
    agent, messages = Agent(), SlowMessages()
    async with Dispatcher(agent, messages=messages) as d:
        first = await active(d, "s", "first")
        second = await queued(d, "s", "second")
        await d.hold("s")
        agent.finish(first)
        await steps()
        await d.resume("s")
        messages.gates[0].set_result(None)
        await started(agent, 2)
        agent.finish(second)
        await steps()
        messages.gates[1].set_result(None)
        await second.wait()


@pytest.mark.requirement("R-FLD-1")
@in_loop
async def test_a_fold_passes_held_runs_by() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        first = await active(d, "s", "first")
        held, free = await queued(d, "s", "held"), await queued(d, "s", "free")
        await d.hold_run(held.run_id)
        (turn,) = agent.turns
        await look(d.session("s"))
        assert await turn.fold() == [free]
        assert turn.waiting() == []
        await d.clear_queue("s")
        assert await outcome(held) == CLEARED
        agent.finish(first)


@pytest.mark.requirement("R-HLD-2")
@pytest.mark.parametrize("end", ["cancel", "cancel_run", "clear_queue", "interrupt"])
@in_loop
async def test_held_runs_end_like_any_other_and_leave_nothing(end: str) -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        held = await d.accept("s", "held")
        await d.hold("s")
        await d.enter(held)
        if end == "interrupt":
            other = await d.submit("s", "other", when_busy="interrupt")
            await started(agent, 1)
            agent.finish(other)
            await other.wait()
        elif end == "cancel_run":
            assert (await d.cancel_run(held.run_id)).runs == [held]
        elif end == "cancel":
            assert (await d.cancel("s")).runs == [held]
        else:
            assert await d.clear_queue("s") == [held]
        assert await outcome(held) == (CLEARED if end == "clear_queue" else CANCELLED)
        assert not held.held
        await steps()
        assert await look(d.sessions()) == []
        if type(d) is Dispatcher:
            assert_nothing_left(d)


@pytest.mark.requirement("R-HLD-2")
@in_loop
async def test_held_runs_count_for_limits_and_for_reject() -> None:
    async with Dispatcher(Agent(), queue_limit=1) as d:
        held = await d.accept("s", "held")
        await d.hold("s")
        await d.enter(held)
        with pytest.raises(QueueFull):
            await d.accept("s", "more")
        with pytest.raises(SessionBusy):
            await d.accept("s", "more", when_busy="reject")
        await d.cancel("s")


@pytest.mark.requirement("R-HLD-2")
@in_loop
async def test_a_held_run_that_is_released_before_entry_says_so() -> None:
    async with Dispatcher(Agent()) as d:
        held = await d.accept("s", "held")
        await d.hold("s")
        await held.close()
        assert await outcome(held) == RELEASED
        assert not held.held
        assert await look(d.sessions()) == []


@pytest.mark.requirement("R-MOV-2")
@in_loop
async def test_what_is_unknown_complete_or_active_is_not_held_and_says_which() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        run = await active(d, "s")
        for call in (d.hold_run, d.resume_run, d.edit, d.send_now):
            with pytest.raises(UnknownRun):
                await call("unknown")
            with pytest.raises(NotWaiting) as refused:
                await call(run.run_id)
            assert refused.value.state is State.ACTIVE
            assert "active" in str(refused.value)
        with pytest.raises(NotWaiting):
            await d.move(run.run_id, to="first")
        agent.finish(run)
        await run.wait()
        for call in (d.hold_run, d.resume_run, d.edit, d.send_now):
            with pytest.raises(NotWaiting) as refused:
                await call(run.run_id)
            assert refused.value.state is State.COMPLETE
        with pytest.raises(NotWaiting):
            await d.move(run.run_id, to="last")
        assert await d.hold("quiet") == await d.resume("quiet") == []


# Stopping.


@pytest.mark.requirement("R-STP-1")
@in_loop
async def test_a_stop_covers_the_turn_alone_and_holds_what_waits() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        first = await active(d, "s", "first")
        second, third = await queued(d, "s", "second"), await d.accept("s", "third")
        await d.hold_run(second.run_id)
        stopped = await d.stop("s")
        assert (stopped.runs, stopped.held, stopped.waiting) == ([first], [third], [second, third])
        assert await outcome(first) == CANCELLED
        await d.enter(third)
        await steps()
        assert agent.prompts == ["first"]
        await d.resume("s")
        await started(agent, 2)
        agent.finish(second)
        await started(agent, 3)
        agent.finish(third)
        assert [await outcome(run) for run in (second, third)] == [DONE, DONE]


@pytest.mark.requirement("R-STP-2")
@in_loop
async def test_a_stop_of_another_turn_does_nothing_and_one_of_this_turn_does() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        first = await active(d, "s", "first")
        folded = await queued(d, "s", "folded")
        await agent.turns[0].fold()
        second = await queued(d, "s", "second")
        stopped = await d.stop("s", turn=second.run_id)
        assert (stopped.runs, stopped.held, stopped.waiting) == ([], [], [second])
        assert not second.held
        stopped = await d.stop("s", turn=folded.run_id)
        assert (stopped.runs, stopped.held) == ([first, folded], [second])
        await folded.wait()
        assert (await d.stop("s", turn=folded.run_id)).waiting == [second]
        assert (await d.stop("quiet")).waiting == []
        await d.cancel("s")


# Moving.


@pytest.mark.requirement("R-MOV-3", "R-QUE-1")
@in_loop
async def test_a_move_changes_the_position_and_nothing_else() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        first = await active(d, "s", "first")
        b, c, e = [await queued(d, "s", prompt, when_busy="queue") for prompt in ("b", "c", "e")]
        assert await d.move(e.run_id, before=b.run_id) is e or type(d) is not Dispatcher
        assert await line(d) == ["e", "b", "c"]
        await d.move(e.run_id, to="last")
        assert await line(d) == ["b", "c", "e"]
        await d.move(c.run_id, to="first")
        assert await line(d) == ["c", "b", "e"]
        await d.move(c.run_id, before=c.run_id)
        await d.move(c.run_id, to="first")
        assert await line(d) == ["c", "b", "e"]
        assert [run.seq for run in (b, c, e)] == sorted(run.seq for run in (b, c, e))
        f = await queued(d, "s", "f", when_busy="queue")
        assert await line(d) == ["c", "b", "e", "f"]
        for number, run in enumerate((first, c, b, e, f), 1):
            await started(agent, number)
            agent.finish(run)
            await run.wait()
        assert agent.prompts == ["first", "c", "b", "e", "f"]


@pytest.mark.requirement("R-QUE-1")
@in_loop
async def test_an_accepted_run_is_moved_too_and_enters_at_its_new_position() -> None:
    async with Dispatcher(Agent()) as d:
        await active(d, "s")
        b, c = await queued(d, "s", "b"), await d.accept("s", "c")
        await d.move(c.run_id, before=b.run_id)
        await d.enter(c)
        assert await line(d) == ["c", "b"]
        e, f = await d.accept("s", "e"), await d.accept("s", "f")
        await d.move(f.run_id, before=e.run_id)
        await d.move(e.run_id, before=b.run_id)
        view = await look(d.session("s"))
        assert (view.accepted, view.queued) == ((e, f), (c, b))
        assert view.waiting == (c, e, b, f), "accepted and queued runs are in one line"
        assert view.waiting == tuple(await d.hold("s"))


@pytest.mark.requirement("R-MOV-1")
@in_loop
async def test_a_cancel_covers_by_sequence_whatever_was_moved() -> None:
    async with Dispatcher(Agent()) as d:
        await active(d, "s")
        b, c = await d.accept("s", "b"), await d.accept("s", "c")
        await d.move(c.run_id, before=b.run_id)
        await d.cancel("s")
        later = await d.accept("s", "later")
        await d.move(later.run_id, to="first")
        assert [await d.enter(run) for run in (b, c)] == [State.CANCEL_ON_ENTRY] * 2
        assert await d.enter(later) is not State.CANCEL_ON_ENTRY


@pytest.mark.requirement("R-MOV-2")
@in_loop
async def test_moves_that_make_no_sense_are_refused_and_change_nothing() -> None:
    async with Dispatcher(Agent()) as d:
        lead = await active(d, "s")
        b, c = await queued(d, "s", "b"), await queued(d, "s", "c")
        await active(d, "t")
        other = await queued(d, "t", "other")
        for wrong in ({}, {"before": b.run_id, "to": "first"}, {"to": "middle"}, {"before": other.run_id}):
            with pytest.raises(ValueError, match=r"move|session"):
                await d.move(c.run_id, **wrong)  # type: ignore[arg-type]
        with pytest.raises(UnknownRun):
            await d.move(c.run_id, before="unknown")
        with pytest.raises(NotWaiting):
            await d.move(c.run_id, before=lead.run_id)
        assert await line(d) == ["b", "c"]


# Editing.


@pytest.mark.requirement("R-EDT-1", "AS_EDITED")
@in_loop
async def test_an_edit_is_what_the_runner_is_given() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        first = await active(d, "s", "first")
        run = await queued(d, "s", "old", run_id="r", attachments=["a"], data={"model": "small"})
        later = await queued(d, "s", "later")
        edited = await d.edit("r", prompt="new", data={"model": "large"})
        assert (edited.run_id, edited.seq, edited.prompt) == ("r", run.seq, "new")
        assert edited.data == {"model": "large"}
        assert edited.attachments == ("a",)
        assert await line(d) == ["new", "later"]
        await d.edit("r", attachments=["b", Attachment("n", "text/plain", "c")])
        await d.edit("r")
        agent.finish(first)
        await started(agent, 2)
        given = agent.turns[-1].run
        assert (given.prompt, given.attachments) == ("new", ("b", Attachment("n", "text/plain", "c")))
        assert given.data == {"model": "large"}
        with pytest.raises(NotWaiting):
            await d.edit("r", prompt="too late")
        agent.finish(run)
        await run.wait()
        said = [each for each in await d.messages.list("s") if each.run_id == "r" and each.role == "user"]
        assert [(each.text, each.data) for each in said] == [("new", {"model": "large"})]
        await started(agent, 3)
        agent.finish(later)
        await later.wait()


@pytest.mark.requirement("R-EDT-2")
@in_loop
async def test_none_clears_attachments_and_data_and_an_empty_prompt_is_refused() -> None:
    async with Dispatcher(Agent()) as d:
        await active(d, "s")
        run = await queued(d, "s", "", attachments=["text"], data=[1])
        with pytest.raises(EmptyPrompt):
            await d.edit(run.run_id, attachments=None)
        with pytest.raises(EmptyPrompt):
            await d.edit(run.run_id, prompt=" ", attachments=())
        with pytest.raises(TypeError):
            await d.edit(run.run_id, data={1: 2})
        with pytest.raises(TypeError):
            await d.edit(run.run_id, prompt=7)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            await d.edit(run.run_id, attachments="text")
        with pytest.raises(ValueError, match="fold or queue"):
            await d.edit(run.run_id, when_busy="interrupt")  # type: ignore[arg-type]
        (now,) = await look(d.queued("s"))
        assert (now.prompt, now.attachments, now.data) == ("", ("text",), [1])
        edited = await d.edit(run.run_id, prompt="p", attachments=None, data=None)
        assert (edited.prompt, edited.attachments, edited.data) == ("p", (), None)


@pytest.mark.requirement("R-ACC-2")
@in_loop
async def test_an_accept_under_a_known_run_id_is_compared_with_the_run_as_it_was_accepted() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        lead = await active(d, "s")
        await queued(d, "s", "old", run_id="r", data={"a": 1, "b": 2})
        await d.edit("r", prompt="new", data=None)
        assert (await d.accept("s", "old", run_id="r", data={"b": 2, "a": 1})).prompt == "new"
        for prompt, data in (("new", None), ("old", None), ("new", {"a": 1, "b": 2})):
            with pytest.raises(RunConflict):
                await d.accept("s", prompt, run_id="r", data=data)
        agent.finish(lead)
        await started(agent, 2)
        agent.finish(agent.turns[1].run)
        await d.wait("r")
        assert (await d.accept("s", "old", run_id="r", data={"b": 2, "a": 1})).state is State.COMPLETE
        with pytest.raises(RunConflict):
            await d.accept("s", "new", run_id="r")


@pytest.mark.requirement("R-EDT-1")
@in_loop
async def test_an_edit_of_when_busy_counts_for_the_next_fold() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        await active(d, "s")
        own, joins = await queued(d, "s", "own"), await queued(d, "s", "joins", when_busy="queue")
        await d.edit(own.run_id, when_busy="queue")
        assert await agent.turns[0].fold() == []
        await d.edit(own.run_id, when_busy="fold")
        await d.edit(joins.run_id, when_busy="fold")
        assert await agent.turns[0].fold() == [own, joins]


# Sending now.


@pytest.mark.requirement("R-NOW-1", "R-NOW-2")
@in_loop
async def test_send_now_makes_a_queued_run_the_next_one_and_covers_the_turn_alone() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        first = await active(d, "s", "first")
        b, c, e = [await queued(d, "s", prompt) for prompt in ("b", "c", "e")]
        await d.hold("s")
        sent = await d.send_now(c.run_id)
        assert (sent.runs, sent.held, sent.waiting) == ([first], [], [c, b, e])
        assert await outcome(first) == CANCELLED
        await started(agent, 2)
        assert agent.prompts == ["first", "c"]
        agent.finish(c)
        assert await outcome(c) == DONE
        await steps()
        assert len(agent.turns) == 2
        sent = await d.send_now(e.run_id)
        assert (sent.runs, sent.waiting) == ([], [b])
        await started(agent, 3)
        agent.finish(e)
        assert await outcome(e) == DONE
        await d.cancel("s")
        assert await outcome(b) == CANCELLED


@pytest.mark.requirement("R-STP-2", "R-MOV-2")
@in_loop
async def test_send_now_with_another_turn_does_nothing_and_an_accepted_run_is_refused() -> None:
    async with Dispatcher(Agent()) as d:
        lead = await active(d, "s")
        run, accepted = await queued(d, "s", "run"), await d.accept("s", "accepted")
        with pytest.raises(NotWaiting) as refused:
            await d.send_now(accepted.run_id)
        assert refused.value.state is State.ACCEPTED
        sent = await d.send_now(run.run_id, turn=run.run_id)
        assert (sent.runs, sent.waiting) == ([], [run, accepted])
        assert not lead.complete
        assert (await d.send_now(run.run_id, turn=lead.run_id)).runs == [lead]


@pytest.mark.requirement("R-STP-2")
@in_loop
async def test_a_turn_that_is_named_and_has_ended_is_not_replaced_by_none() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        lead = await active(d, "s")
        held = await queued(d, "s", "held")
        await d.hold("s")
        agent.finish(lead)
        await lead.wait()
        sent = await d.send_now(held.run_id, turn=lead.run_id)
        assert (sent.runs, sent.waiting) == ([], [held])
        assert (await d.stop("s", turn=lead.run_id)).held == []
        await steps()
        assert agent.prompts == ["p"]
        await d.cancel("s")


# For one turn alone.


@pytest.mark.requirement("R-INTO-2")
@in_loop
async def test_a_prompt_for_one_turn_joins_that_turn_or_none() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        lead = await active(d, "s", "lead")
        joins = await d.accept("s", "joins", into=lead.run_id)
        await d.enter(joins)
        assert await agent.turns[0].fold() == [joins]
        late, later = [await d.accept("s", prompt, into=joins.run_id) for prompt in ("late", "later")]
        await d.enter(late)
        follow = await queued(d, "s", "follow")
        await d.hold_run(late.run_id)
        agent.finish(lead)
        assert [await outcome(run) for run in (lead, joins)] == [DONE, DONE]
        assert [await outcome(run) for run in (late, later)] == [CLEARED, RELEASED]
        await started(agent, 2)
        assert agent.prompts == ["lead", "follow"]
        agent.finish(follow)
        await follow.wait()
        await steps()
        if type(d) is Dispatcher:
            assert_nothing_left(d)


@pytest.mark.requirement("R-INTO-1")
@in_loop
async def test_what_is_queued_behind_a_prompt_for_one_turn_starts_when_that_turn_ends() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        lead = await active(d, "s", "lead")
        late, later = [await d.accept("s", prompt, into=lead.run_id) for prompt in ("late", "later")]
        await d.enter(late)
        await d.enter(later)
        follow, last = await queued(d, "s", "follow"), await queued(d, "s", "last")
        agent.finish(lead)
        assert [await outcome(run) for run in (late, later)] == [CLEARED, CLEARED]
        await started(agent, 2)
        agent.finish(follow)
        await started(agent, 3)
        agent.finish(last)
        await last.wait()


@in_loop
async def test_what_waits_behind_prompts_for_one_turn_runs_after_it() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        lead = await active(d, "s", "lead")
        for_it = [await queued(d, "s", prompt, into=lead.run_id) for prompt in ("one", "two")]
        behind = await queued(d, "s", "behind")
        agent.finish(lead)
        assert [await outcome(run) for run in for_it] == [CLEARED, CLEARED]
        async with asyncio.timeout(60):
            await started(agent, 2)
        agent.finish(behind)
        assert await outcome(behind) == DONE


@in_loop
async def test_a_prompt_for_a_turn_that_does_not_run_is_refused() -> None:
    agent, messages = Agent(), SlowMessages()
    async with Dispatcher(agent, messages=messages) as d:
        with pytest.raises(NotRunning):
            await d.accept("s", "p", into="unknown")
        lead = await active(d, "s", "lead")
        waiting = await queued(d, "s", "waiting")
        for when_busy in ("interrupt", "reject", "queue"):
            with pytest.raises(ValueError, match="into"):
                await d.accept("s", "p", into=lead.run_id, when_busy=when_busy)
        with pytest.raises(TypeError):
            await d.accept("s", "p", into=7)  # type: ignore[arg-type]
        with pytest.raises(NotRunning):
            await d.accept("s", "p", into=waiting.run_id)
        with pytest.raises(NotRunning):
            await d.accept("t", "p", into=lead.run_id)
        bound = await d.accept("s", "bound", into=lead.run_id)
        agent.finish(lead)
        await steps()
        with pytest.raises(NotRunning):
            await d.accept("s", "p", into=lead.run_id)
        await d.cancel_run(lead.run_id)
        with pytest.raises(NotRunning):
            await d.accept("s", "p", into=lead.run_id)
        messages.gates[0].set_result(None)
        await steps()
        messages.gates[1].set_result(None)
        assert await outcome(bound) == RELEASED
        await started(agent, 2)
        agent.finish(waiting)
        await steps()
        messages.gates[2].set_result(None)
        await waiting.wait()


@pytest.mark.requirement("R-INTO-3")
@pytest.mark.parametrize("freed_by", ["send_now", "edit"])
@in_loop
async def test_send_now_and_an_edit_of_when_busy_free_a_prompt_for_one_turn(freed_by: str) -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        lead = await active(d, "s", "lead")
        bound = await d.accept("s", "bound", into=lead.run_id)
        await d.enter(bound)
        if freed_by == "edit":
            await d.edit(bound.run_id, when_busy="queue")
            agent.finish(lead)
        else:
            await d.send_now(bound.run_id)
        await started(agent, 2)
        agent.finish(bound)
        assert await outcome(bound) == DONE


@in_loop
async def test_a_cancelled_prompt_for_one_turn_that_was_accepted_completes_once() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        lead = await active(d, "s", "lead")
        bound = await d.accept("s", "bound", into=lead.run_id)
        await d.cancel("s")
        assert await outcome(bound) == ("", "released before entry", True)
        await lead.wait()
        await steps()
        if type(d) is Dispatcher:
            assert_nothing_left(d)


# Keys, events, closing.


@pytest.mark.requirement("R-KEY-1", "R-KEY-3")
@in_loop
async def test_a_repetition_under_a_key_changes_nothing_and_returns_what_the_first_call_returned() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        lead = await active(d, "s")
        b, c = await queued(d, "s", "b"), await queued(d, "s", "c")

        async def twice(key: str, call: Any, *args: Any, **options: Any) -> None:
            first = await call(*args, key=key, **options)
            again = await call(*args, key=key, **options)
            assert names(first) == names(again)
            with pytest.raises(KeyConflict):
                await d.cancel("s", key=key)

        await twice("1", d.hold, "s")
        await twice("2", d.resume, "s")
        await twice("3", d.hold_run, b.run_id)
        await twice("4", d.resume_run, b.run_id)
        await twice("5", d.move, c.run_id, to="first")
        await d.move(b.run_id, to="first", key="6")
        await d.move(c.run_id, to="first", key="5")
        assert await line(d) == ["b", "c"]
        await twice("7", d.edit, b.run_id, prompt="new", data=[1])
        with pytest.raises(KeyConflict):
            await d.edit(b.run_id, prompt="newer", key="7")
        await twice("8", d.stop, "s", turn=lead.run_id)
        await lead.wait()
        await d.resume("s")
        assert names(await d.stop("s", turn=lead.run_id, key="8"))[0] == [lead.run_id]
        await twice("9", d.send_now, c.run_id)
        await d.cancel("s")


def names(answer: Any) -> Any:
    """Return the run_ids in an answer."""
    if isinstance(answer, Run):
        return answer.run_id
    if isinstance(answer, list):
        return [run.run_id for run in answer]
    return [names(runs) for runs in (answer.runs, answer.held, answer.waiting)]


@pytest.mark.requirement("R-LOK-2")
@in_loop
async def test_subscribers_to_moves_receive_everything_in_order() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        lead = await active(d, "s", run_id="lead")
        b, c = await queued(d, "s", "b", run_id="b"), await queued(d, "s", "c", run_id="c")
        async with d.subscribe("s", moves=True) as moves:
            await d.hold("s")
            await d.resume_run("b")
            await d.hold_run("b")
            await d.move("c", before="b")
            await d.move("c", to="last")
            await d.edit("b", prompt="new")
            await d.send_now("c")
            seen = [await anext(moves) for _ in range(9)]
            assert [(each.event, each.run_id, each.runs, each.before) for each in seen[:9]] == [  # type: ignore[union-attr]
                ("hold", None, None, None),
                ("resume", None, ("b",), None),
                ("hold", None, ("b",), None),
                ("move", "c", None, "b"),
                ("move", "c", None, None),
                ("edit", "b", None, None),
                ("move", "c", None, "b"),
                ("cancel", None, ("lead",), None),
                ("resume", None, ("c",), None),
            ]
            await lead.wait()
            await started(agent, 2)
            bound = await d.submit("s", "bound", into="c")
            agent.finish(c)
            assert (await bound).outcome in ("cleared", "released")
            told = [await anext(moves) for _ in range(5)]
            accept = next(each for each in told if isinstance(each, Moved) and each.event == "accept")
            assert accept.into == "c"
        await d.cancel("s")
        assert await outcome(b) == CANCELLED


@in_loop
async def test_a_finishing_close_releases_what_is_accepted_and_cancels_what_is_held() -> None:
    agent = Agent()
    d = Dispatcher(agent)
    lead = await active(d, "s", "lead")
    held, accepted = await queued(d, "s", "held"), await d.accept("s", "accepted")
    idle = await d.accept("t", "held in a session without a turn")
    await d.hold("s")
    await d.hold("t")
    await d.enter(idle)
    closing = asyncio.create_task(d.aclose(finish=math.inf))
    await steps()
    assert not closing.done()
    agent.finish(lead)
    await closing
    assert await outcome(lead) == DONE
    assert await outcome(accepted) == RELEASED
    assert [await outcome(run) for run in (held, idle)] == [CANCELLED, CANCELLED]
    assert_nothing_left(d)


@in_loop
async def test_a_close_cancels_held_runs_in_sessions_without_a_turn() -> None:
    async with Dispatcher(Agent()) as d:
        held = await d.accept("s", "held")
        await d.hold("s")
        await d.enter(held)
    assert await outcome(held) == CANCELLED


# Data.


@pytest.mark.requirement("R-DAT-1")
@in_loop
async def test_data_reach_the_runner_and_stay_with_the_user_message() -> None:
    async def runner(turn: Turn) -> str:
        turn.run.data["changed"] = True
        turn.keep({"reply": 1})
        return repr(sorted(turn.run.data))

    async with Dispatcher(runner) as d:
        run = await d.submit("s", "p", data={"user": "u", "deep": [{"x": None}]})
        assert (await run).text == "['deep', 'user']"
        user, reply = await d.messages.list("s")
        assert (user.data, reply.data) == ({"user": "u", "deep": [{"x": None}]}, {"reply": 1})
        with pytest.raises(TypeError, match="data"):
            await d.submit("s", "p", data={1, 2})
