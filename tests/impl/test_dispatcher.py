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
    on_record,
    outcome,
    queued,
    steps,
)
from turngate import Dispatcher, QueueFull, RunComplete, State, Turn, UnknownRun

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
    """A subclass of str."""

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
async def test_a_generated_run_id_avoids_one_that_a_caller_chose() -> None:
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


# One step after another: what callbacks do meanwhile, what a cancel of one run covers, closing.


# Callbacks, and the order of things.


@in_loop
async def test_what_on_complete_raises_neither_loses_nor_doubles_a_completion(caplog: Any) -> None:
    agent = Agent()

    def raising(exc: BaseException) -> Any:
        def on_complete(complete: RunComplete) -> None:
            called.append(complete)
            raise exc

        return on_complete

    called: list[RunComplete] = []
    async with Dispatcher(agent) as d:
        for exc in (ValueError("no"), asyncio.CancelledError(), GeneratorExit()):
            run = await active(d, "s", "p", on_complete=raising(exc))
            behind = await queued(d, "s", "q")
            agent.finish(run)
            assert outcome(await run) == ("done", None, False)
            await steps()
            agent.finish(behind)
            await behind
    assert len(called) == 3
    assert [record.getMessage() for record in caplog.records] == [
        f"on_complete of run {complete.run_id} in session 's' raised" for complete in called
    ]
    assert caplog.text.count("Traceback") + caplog.text.count("CancelledError") >= 3


@in_loop
async def test_run_complete_is_published_before_the_next_turn_starts_and_after_the_messages() -> None:
    order: list[str] = []

    class Store(SlowMessages):
        async def put(self, messages: Any) -> None:
            order.append(f"written {messages[-1].text}")

    async def runner(turn: Turn) -> str:
        order.append(f"turn {turn.run.prompt}")
        return turn.run.prompt

    async with Dispatcher(runner, messages=Store()) as d:
        first = await d.accept(
            "s", "p1", on_complete=lambda complete: order.append(f"complete {complete.text}")
        )
        second = await d.accept("s", "p2")
        await d.enter(first)
        await d.enter(second)
        await second
    assert order == ["turn p1", "written p1", "complete p1", "turn p2", "written p2"]


@in_loop
async def test_a_step_taken_by_on_complete_is_performed_after_the_step_that_called_it() -> None:
    history: list[str] = []
    agent = Agent()

    def on_complete(complete: RunComplete) -> None:
        with pytest.raises(StopIteration):
            d.cancel("s").send(None)
        with pytest.raises(StopIteration):
            d.cancel("s").send(None)

    def record(entry: dict[str, Any]) -> None:
        history.append(f"{entry['event']} {entry.get('run', '')}".strip())

    async with Dispatcher(agent, record=record) as d, d.subscribe() as events:
        lead = await active(d, "s", "p", run_id="lead", on_complete=on_complete)
        await queued(d, "s", "q", run_id="folded")
        await agent.turns[0].fold()
        await queued(d, "s", "r", run_id="next")
        await queued(d, "s", "t", run_id="dropped")
        history.clear()
        agent.finish(lead)
        await d.wait("next")
        received = [(await anext(events)) for _ in range(3)]
    assert [event.run_id for event in received] == ["folded", "dropped", "next"]
    assert history[:6] == [
        "complete lead",
        "complete folded",
        "handoff next",
        "cancel",
        "complete dropped",
        "cancel",
    ]


# Cancels of one run.


@in_loop
async def test_what_a_cancel_of_a_folded_turn_covers_is_in_sequence_order() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        first, second, third, fourth = [await d.accept("s", f"{n}") for n in range(4)]
        await d.enter(third)
        await steps()
        for run in (second, fourth):
            await d.enter(run)
            await agent.turns[0].fold()
        await d.enter(first)
        await agent.turns[0].fold()
        assert agent.turns[0].runs == [third, second, fourth, first]
        assert (await d.cancel_run(fourth.run_id)).runs == [first, second, third, fourth]
        assert [(await run).cancelled for run in (first, second, third, fourth)] == [True] * 4


@in_loop
async def test_a_run_that_is_complete_and_not_yet_published_cannot_be_cancelled() -> None:
    agent = Agent()
    covered: list[bool] = []
    entries: list[dict[str, Any]] = []

    def cancels_the_other(_: RunComplete) -> None:
        cancelling = d.cancel_run("folded")
        with pytest.raises(StopIteration) as done:
            cancelling.send(None)
        covered.append(bool(done.value.value))

    async with Dispatcher(agent, record=entries.append) as d:
        lead = await active(d, "s", "p", on_complete=cancels_the_other)
        folded = await queued(d, "s", "q", run_id="folded")
        await agent.turns[0].fold()
        agent.finish(lead)
        assert outcome(await folded) == ("done", None, False)
        assert covered == [False]
    assert "cancel" not in {entry["event"] for entry in entries}


# Closing.


@in_loop
async def test_aclose_is_idempotent_and_all_callers_wait_for_the_same_end() -> None:
    store = SlowMessages()
    agent = Agent()
    d = Dispatcher(agent, messages=store)
    await active(d, "s", "p")
    closing = [asyncio.create_task(d.aclose()) for _ in range(3)]
    await steps()
    closing[0].cancel()
    await steps()
    assert [task.done() for task in closing] == [True, False, False]
    assert len(d._close._waiters) == 2  # who has given up is forgotten
    assert "closing" in repr(d)
    store.gates[0].set_result(None)
    await closing[1]
    await closing[2]
    await d.aclose()
    assert "closed" in repr(d)


@in_loop
async def test_closing_goes_on_when_its_only_caller_is_cancelled() -> None:
    agent = Agent()
    d = Dispatcher(agent)
    run = await active(d, "s", "p")
    closing = asyncio.create_task(d.aclose())
    await asyncio.sleep(0)
    closing.cancel()
    assert outcome(await run) == ("", None, True)
    await steps()
    assert "closed" in repr(d)


@in_loop
async def test_a_dispatcher_that_was_never_used_closes() -> None:
    await Dispatcher(echo).aclose()


@in_loop
async def test_a_runner_cannot_close_the_dispatcher_it_runs_in() -> None:
    async def closes(turn: Turn) -> None:
        await d.aclose()

    async with Dispatcher(closes) as d:
        complete = await d.ask("s", "p")
        assert complete.error is not None
        assert complete.error.startswith("ClosedFromRunner: aclose()")
        assert (await d.ask("s", "still open")).error


@in_loop
async def test_a_task_of_the_runner_can_close_the_dispatcher() -> None:
    async def delegates(turn: Turn) -> None:
        await asyncio.create_task(d.aclose())

    d = Dispatcher(delegates)
    run = await d.submit("s", "p")
    assert (await run).cancelled
    await d.aclose()


@in_loop
async def test_closing_releases_a_submitted_run_that_has_not_entered() -> None:
    agent = Agent()
    d = Dispatcher(agent)
    run = await d.submit("s", "p")
    await d.aclose()
    assert outcome(await run) == ("", "released before entry", True)
    await steps()
    assert agent.turns == []
    assert await on_record(d, "s") == []


@in_loop
async def test_closing_from_on_complete_delivers_the_last_events_first() -> None:
    agent = Agent()

    def start_closing(_: RunComplete) -> None:
        tasks.append(asyncio.get_running_loop().create_task(d.aclose()))
        coroutine = d.aclose()
        coroutine.send(None)
        coroutine.close()

    tasks: list[asyncio.Task[None]] = []
    d = Dispatcher(agent)
    async with d.subscribe() as events:
        lead = await active(d, "s", "p", on_complete=start_closing)
        folded = await queued(d, "s", "q")
        await agent.turns[0].fold()
        agent.finish(lead)
        assert [event async for event in events] == [await folded]
    await tasks[0]
