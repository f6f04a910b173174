"""The dispatcher at its edges: callers' mistakes, identities, limits, contexts."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from typing import Any

import pytest

from dispatching import (
    Agent,
    SlowMessages,
    active,
    assert_nothing_left,
    echo,
    in_loop,
    outcome,
    queued,
    steps,
)
from turngate import Dispatcher, QueueFull, State, Turn, UnknownRun

# What a caller can get wrong.


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("queue_limit", 0),
        ("queue_limit", 1.5),
        ("accepted_limit", 0),
        ("completions_kept", -1),
        ("completions_bytes", -1),
        ("delta_limit", -1),
        ("delta_bytes", -1),
        ("complete_limit", 0),
        ("settle_timeout", 0),
        ("settle_timeout", "soon"),
        ("settle_timeout", float("nan")),
    ],
)
def test_a_bad_limit_is_refused_in_one_line(option: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{option} must be .*, not {value!r}$"):
        Dispatcher(echo, **{option: value})


def test_the_least_limits_are_allowed() -> None:
    Dispatcher(
        echo,
        queue_limit=1,
        accepted_limit=1,
        completions_kept=0,
        completions_bytes=0,
        delta_limit=0,
        delta_bytes=0,
        complete_limit=1,
        settle_timeout=0.1,
    )


def test_the_limits_unless_given() -> None:
    parameters = inspect.signature(Dispatcher).parameters.values()
    limits = [p for p in parameters if p.name.endswith(("limit", "kept", "bytes", "timeout"))]
    assert {p.name: p.default for p in limits} == {
        "queue_limit": 16_384,
        "accepted_limit": 65_536,
        "completions_kept": 100_000,
        "completions_bytes": 268_435_456,
        "delta_limit": 1_024,
        "delta_bytes": 8_388_608,
        "complete_limit": 65_536,
        "settle_timeout": 5.0,
        "turns_limit": None,
    }


@in_loop
async def test_the_first_call_may_be_the_close() -> None:
    d = Dispatcher(echo)
    d.begin_close()
    assert repr(d).startswith("<Dispatcher closed")


class Text(str):
    """A string of somebody's own kind."""

    __slots__ = ()


@in_loop
async def test_strings_of_other_kinds_are_taken_as_plain_ones() -> None:
    async with Dispatcher(echo) as d:
        for session_id, prompt in ((Text("s"), "p"), ("s", Text("p")), (Text("s"), Text("p"))):
            run = await d.submit(session_id, prompt)
            assert (type(run.session_id), type(run.prompt)) == (str, str)
            assert outcome(await run) == ("p", None, False)


@in_loop
async def test_a_malformed_prompt_is_refused() -> None:
    wrong: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (TypeError, "prompt must be a string, not int", {"prompt": 1}),
        (TypeError, "not one string", {"attachments": "notes"}),
        (TypeError, "on_complete must be callable, not str", {"on_complete": "print"}),
        (ValueError, "run_id must be a non-empty string, not ''", {"run_id": ""}),
        (ValueError, "run_id must be a non-empty string, not 7", {"run_id": 7}),
        (
            ValueError,
            "when_busy must be one of fold, queue, interrupt, reject, not 'wait'",
            {"when_busy": "wait"},
        ),
    ]
    async with Dispatcher(echo) as d:
        for error, what, options in wrong:
            take_in: Any
            for take_in in (d.accept, d.submit, d.ask):
                with pytest.raises(error, match=what):
                    await take_in("s", **{"prompt": "p", **options})
        assert "0 sessions in flight" in repr(d)


@in_loop
async def test_a_run_enters_its_own_dispatcher_only() -> None:
    async with Dispatcher(echo) as d, Dispatcher(echo) as other:
        run = await d.accept("s", "p")
        with pytest.raises(UnknownRun):
            await other.enter(run)
        assert run.state is State.ACCEPTED


@in_loop
async def test_waiting_for_an_unknown_run_raises() -> None:
    async with Dispatcher(echo) as d:
        with pytest.raises(UnknownRun, match="'nobody'"):
            await d.wait("nobody")


# Identities.


@in_loop
async def test_sequences_increase_over_the_whole_dispatcher() -> None:
    async with Dispatcher(echo) as d:
        assert [(await d.accept(session, "p")).seq for session in "abab"] == [1, 2, 3, 4]


@in_loop
async def test_a_made_up_run_id_gives_way_to_one_that_somebody_chose() -> None:
    async with Dispatcher(echo) as d:
        first = await d.accept("s", "p")
        chosen = first.run_id[:-1] + "3"
        await d.accept("s", "q", run_id=chosen)
        third = await d.accept("s", "r")
        assert third.run_id == chosen + "+"
        assert await d.accept("s", "q", run_id=chosen) is not third


@in_loop
async def test_message_ids_do_not_come_from_run_ids() -> None:
    store = SlowMessages()
    for _ in range(2):
        async with Dispatcher(echo, messages=store) as d:
            run = await d.submit("s", "p", run_id="the same")
            await steps()
            store.gates[-1].set_result(None)
            await run
    assert len({message.id for message in await store.list("s")}) == 4


@in_loop
async def test_submit_and_ask_of_a_known_run_never_enter_it_twice() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        run = await d.submit("s", "p", run_id="r")
        assert await d.submit("s", "p", run_id="r") is run
        asking = asyncio.create_task(d.ask("s", "p", run_id="r"))
        await steps()
        agent.finish(run)
        assert await asking is await run
        assert await d.ask("s", "p", run_id="r") is await run
        assert len(agent.turns) == 1


@in_loop
async def test_submit_enters_a_known_run_that_was_only_accepted() -> None:
    async with Dispatcher(echo) as d:
        run = await d.accept("s", "p", run_id="r")
        assert await d.submit("s", "p", run_id="r") is run
        assert (await run).text == "p"


@in_loop
async def test_ask_cancelled_while_waiting_lets_the_run_go_on() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        asking = asyncio.create_task(d.ask("s", "p", run_id="r"))
        await steps()
        asking.cancel()
        await steps()
        agent.finish(agent.turns[0].run)
        assert outcome(await d.wait("r")) == ("done", None, False)


@in_loop
async def test_when_busy_may_be_a_string_that_is_made_at_run_time() -> None:
    when_busy: Any = "".join(["inter", "rupt"])
    async with Dispatcher(Agent()) as d:
        turn = await active(d, "s", "p")
        await d.accept("s", "q", when_busy=when_busy)
        assert (await turn).cancelled


# Limits.


@in_loop
async def test_an_accepted_limit_of_hundreds() -> None:
    async with Dispatcher(echo, accepted_limit=300) as d:
        for n in range(300):
            await d.accept(f"session {n}", "p")
        with pytest.raises(QueueFull, match="300 runs accepted"):
            await d.accept("one more", "p")


@in_loop
async def test_accepted_limit_holds_over_all_sessions() -> None:
    async with Dispatcher(echo, accepted_limit=2) as d:
        first, second = await d.accept("a", "p"), await d.accept("b", "p")
        with pytest.raises(QueueFull, match="accepted_limit"):
            await d.accept("c", "p")
        await d.enter(first)
        third = await d.accept("c", "p")
        await second.close()
        await second.close()
        await d.accept("d", "p")
        with pytest.raises(QueueFull):
            await d.accept("e", "p")
        assert third.seq == 3


@in_loop
async def test_the_oldest_completion_is_forgotten_first() -> None:
    async with Dispatcher(echo, completions_kept=2) as d:
        runs = [await d.submit("s", f"p{n}", run_id=f"r{n}", when_busy="queue") for n in range(3)]
        completes = [await run for run in runs]
        with pytest.raises(UnknownRun):
            await d.wait("r0")
        assert [await d.wait("r1"), await d.wait("r2")] == completes[1:]
        assert await runs[0] == completes[0]
        assert await d.accept("s", "another payload", run_id="r0") is not runs[0]


@in_loop
async def test_no_completion_need_be_kept() -> None:
    async with Dispatcher(echo, completions_kept=0) as d:
        assert (await d.ask("s", "p", run_id="r")).text == "p"
        with pytest.raises(UnknownRun):
            await d.wait("r")
        assert not d._sessions.runs


@in_loop
async def test_a_quiet_session_holds_nothing() -> None:
    agent = Agent()
    async with Dispatcher(agent, completions_kept=0) as d:
        for way in ("finish", "fail", "cancel", "clear", "release", "cancel on entry"):
            run = await active(d, "s", way)
            waiting = await queued(d, "s", way)
            accepted = await d.accept("s", way)
            if way == "clear":
                await d.clear_queue("s")
            elif way == "fail":
                agent.fail(run, RuntimeError())
            elif way.startswith("cancel"):
                await d.cancel("s")
            else:
                agent.finish(run)
            if way == "cancel on entry":
                await d.enter(accepted)
            else:
                await accepted.close()
            while not waiting.complete or not run.complete:
                await steps()
                for turn in agent.turns:
                    if not agent._ends[turn.run.run_id].done():
                        agent.finish(turn.run)
            await accepted
            assert d._sessions.cores == {}, way
        assert_nothing_left(d)
        assert not d.is_busy()


# Contexts.


@in_loop
async def test_a_turn_runs_in_a_copy_of_the_context_in_which_its_lead_run_was_accepted() -> None:
    who: contextvars.ContextVar[str] = contextvars.ContextVar("who")
    who.set("dispatcher")
    seen: list[str] = []

    async def look(turn: Turn) -> None:
        seen.append(who.get())
        who.set("the turn before")
        if turn.run.prompt == "p":
            await steps()
            assert [run.prompt for run in await turn.fold()] == ["folded"]
            seen.append(who.get())

    async with Dispatcher(look) as d:
        who.set("first")
        first = await d.accept("s", "p")
        who.set("folded")
        folded = await d.accept("s", "folded")
        who.set("second")
        second = await d.accept("s", "q", when_busy="queue")
        who.set("whoever enters")
        for run in (first, folded, second):
            await d.enter(run)
        await second
        await d.ask("s", "r")
        assert first.context is folded.context is second.context is None  # it may hold a whole request
    assert seen == ["first", "the turn before", "second", "whoever enters"]
    assert who.get() == "whoever enters"


@in_loop
async def test_repr() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        run = await active(d, "s", "p")
        await queued(d, "s", "q")
        await d.accept("t", "p")
        assert repr(d) == (
            "<Dispatcher open: 2 sessions in flight, 1 active, 1 queued, 1 accepted, 0 completions kept>"
        )
        other = await active(d, "u", "p")
        assert "3 sessions in flight, 2 active, 1 queued, 1 accepted" in repr(d)
        agent.finish(run)
        await run
        assert "1 completion kept" in repr(d)
        agent.finish(other)
