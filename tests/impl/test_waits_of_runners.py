"""A runner that waits for its own session would wait for itself: it gets an error."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from dispatching import Agent, active, in_loop, steps
from turngate import (
    ClosedFromRunner,
    Dispatcher,
    MemoryMessages,
    Message,
    PromptOptions,
    Run,
    RunComplete,
    SessionBusy,
    State,
    Turn,
    WouldDeadlock,
)

Wait = Callable[[Dispatcher, Turn], Awaitable[object]]


@contextmanager
def quiet() -> Iterator[None]:
    """Log nothing of runners that fail on purpose."""
    logging.disable()
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


class Scripted:
    """Does for the prompt `first` what the test says, and answers every other one with its prompt."""

    def __init__(self, wait: Wait) -> None:
        self.wait = wait
        self.d: Dispatcher
        self.came_of: object = None

    async def __call__(self, turn: Turn) -> str:
        if turn.run.prompt == "nested":
            await NESTED.pop()(self.d, turn)
        if turn.run.prompt != "first":
            return turn.run.prompt
        try:
            self.came_of = await self.wait(self.d, turn)
        except BaseException as exc:
            self.came_of = exc
            raise
        return "first"


async def play(wait: Wait) -> tuple[object, RunComplete]:
    """Have a runner wait; return the result, and its RunComplete."""
    runner = Scripted(wait)
    async with Dispatcher(runner) as d:
        runner.d = d
        with quiet():
            complete = await d.ask("s", "first")
            while WAITING:
                assert (await WAITING.pop()).text == "second"
            assert (await d.ask("s", "afterwards")).text == "afterwards"
    return runner.came_of, complete


async def itself(d: Dispatcher, turn: Turn) -> object:
    return await turn.run


async def wait_of_itself(d: Dispatcher, turn: Turn) -> object:
    return await turn.run.wait()


async def itself_by_id(d: Dispatcher, turn: Turn) -> object:
    return await d.wait(turn.run.run_id)


async def within_a_time_out(d: Dispatcher, turn: Turn) -> object:
    async with asyncio.timeout(60):
        return await turn.run.wait()


async def own_stream(d: Dispatcher, turn: Turn) -> object:
    turn.write("a piece")
    stream = turn.run.stream()
    assert await anext(stream) == "a piece"  # what is there can be read
    return await anext(stream)


async def queued_behind(d: Dispatcher, turn: Turn) -> object:
    run = await d.submit("s", "second")
    await asyncio.sleep(0.01)
    return await run


async def accepted_only(d: Dispatcher, turn: Turn) -> object:
    run = await d.accept("s", "second")
    try:
        return await run.wait()
    finally:
        await run.close()


async def folded(d: Dispatcher, turn: Turn) -> object:
    run = await d.submit("s", "second")
    while not await turn.fold():
        await asyncio.sleep(0.001)
    assert run.state is State.ACTIVE
    return await run


async def stream_of_queued(d: Dispatcher, turn: Turn) -> object:
    run = await d.submit("s", "second")
    return [piece async for piece in run.stream()]


async def ask_again_by_id(d: Dispatcher, turn: Turn) -> object:
    return await d.ask("s", "first", run_id=turn.run.run_id)


async def in_a_child(d: Dispatcher, turn: Turn) -> object:
    return await asyncio.create_task(turn.run.wait())


async def in_a_gather(d: Dispatcher, turn: Turn) -> object:
    return await asyncio.gather(itself_by_id(d, turn), asyncio.sleep(0))


async def in_a_task_group(d: Dispatcher, turn: Turn) -> object:
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(queued_behind(d, turn))
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
    return None


async def in_wait_for(d: Dispatcher, turn: Turn) -> object:
    return await asyncio.wait_for(turn.run.wait(), 60)


async def in_a_grandchild(d: Dispatcher, turn: Turn) -> object:
    return await asyncio.create_task(in_a_child(d, turn))


async def in_a_thread(d: Dispatcher, turn: Turn) -> object:
    loop = asyncio.get_running_loop()
    asking = asyncio.to_thread(lambda: asyncio.run_coroutine_threadsafe(turn.run.wait(), loop).result(60))
    return await asking


async def stream_in_a_child(d: Dispatcher, turn: Turn) -> object:
    async def read() -> list[str]:
        return [piece async for piece in turn.run.stream()]

    return await asyncio.create_task(read())


async def behind_another_turn(d: Dispatcher, turn: Turn) -> object:
    """Wait for the own session in a turn that was submitted from inside another one, and sees itself."""

    async def inner(d: Dispatcher, turn: Turn) -> object:
        return await asyncio.create_task(turn.run.wait())

    NESTED.append(inner)
    outcome = (await d.ask("nested", "nested")).error
    assert outcome is not None
    assert outcome.startswith("WouldDeadlock: run ")
    return await itself(d, turn)


NESTED: list[Wait] = []
WAITS = [
    in_a_child,
    in_a_gather,
    in_a_task_group,
    in_wait_for,
    in_a_grandchild,
    in_a_thread,
    stream_in_a_child,
    behind_another_turn,
    itself,
    wait_of_itself,
    itself_by_id,
    within_a_time_out,
    own_stream,
    queued_behind,
    accepted_only,
    folded,
    stream_of_queued,
    ask_again_by_id,
]


@pytest.mark.parametrize("wait", WAITS)
def test_a_runner_that_waits_for_its_own_session_gets_an_error(wait: Wait) -> None:
    @in_loop
    async def test() -> None:
        came_of, complete = await play(wait)
        assert isinstance(came_of, WouldDeadlock)
        assert "session 's'" in str(came_of)
        assert "context=contextvars.Context()" in str(came_of)
        assert complete.outcome == "failed"
        assert complete.error == f"WouldDeadlock: {came_of}"

    test()


@pytest.mark.parametrize("options", [{}, {"when_busy": "queue", "run_id": "chosen"}])
def test_a_runner_that_asks_in_its_own_session_gets_an_error_before_the_accept(
    options: PromptOptions,
) -> None:
    prompts: list[str] = []

    @in_loop
    async def test() -> None:
        async def agent(turn: Turn) -> str:
            prompts.append(turn.run.prompt)
            return "fine" if turn.run.prompt == "then" else (await d.ask("s", "again", **options)).text

        async with Dispatcher(agent) as d:
            with quiet():
                complete = await d.ask("s", "first")
                assert complete.error is not None
                assert complete.error.startswith("WouldDeadlock: a new prompt of session 's'")
                assert (await d.ask("s", "then")).text == "fine"

    test()
    assert prompts == ["first", "then"]


@in_loop
async def test_reject_and_a_missing_session_are_refused_as_ever() -> None:
    async def reject(d: Dispatcher, turn: Turn) -> object:
        return await d.ask("s", "second", when_busy="reject")

    came_of, complete = await play(reject)
    assert isinstance(came_of, SessionBusy)
    assert complete.outcome == "failed"

    async def nowhere(d: Dispatcher, turn: Turn) -> object:
        return await d.ask([], "second")  # type: ignore[arg-type]  # on purpose

    came_of, complete = await play(nowhere)
    assert type(came_of).__name__ == "MissingSession"


@in_loop
async def test_interrupt_cancels_the_runner_that_asks() -> None:
    async def interrupt(d: Dispatcher, turn: Turn) -> object:
        return await d.ask("s", "second", when_busy="interrupt")

    came_of, complete = await play(interrupt)
    assert isinstance(came_of, asyncio.CancelledError)
    assert complete.cancelled


@in_loop
async def test_a_cancel_that_is_on_its_way_comes_before_the_refusal() -> None:
    async def cancelled(d: Dispatcher, turn: Turn) -> object:
        await d.cancel("s")
        return await d.ask("s", "second")

    came_of, complete = await play(cancelled)
    assert isinstance(came_of, asyncio.CancelledError)
    assert complete.outcome == "cancelled"


@in_loop
async def test_a_runner_that_has_swallowed_its_cancel_gets_the_error_too() -> None:
    async def stubborn(d: Dispatcher, turn: Turn) -> object:
        covering = asyncio.create_task(d.cancel("s"))
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            await covering
        return await turn.run

    came_of, complete = await play(stubborn)
    assert isinstance(came_of, WouldDeadlock)
    assert complete.cancelled


# What stays legal.


async def another_session(d: Dispatcher, turn: Turn) -> object:
    return await d.ask("another", "second")


async def completed_before(d: Dispatcher, turn: Turn) -> object:
    run = await d.accept("s", "second")
    await run.close()
    await d.wait(run.run_id)
    assert [piece async for piece in run.stream()] == []
    return await run


async def cancelled_on_entry(d: Dispatcher, turn: Turn) -> object:
    run = await d.accept("s", "second")
    await d.cancel_run(run.run_id)
    entering = asyncio.create_task(d.enter(run))
    complete = await run
    await entering
    assert complete.cancelled
    return complete


async def settling_after_its_entry(d: Dispatcher, turn: Turn) -> object:
    run = await d.accept("s", "second")
    await d.cancel_run(run.run_id)
    await d.enter(run)
    return await run


async def outside_of_the_turn(d: Dispatcher, turn: Turn) -> object:
    run = await d.submit("s", "second", when_busy="queue")
    WAITING.append(asyncio.create_task(run.wait(), context=contextvars.Context()))
    await asyncio.sleep(0)
    return None


async def after_the_turn(d: Dispatcher, turn: Turn) -> object:
    first = turn.run

    async def wait_later() -> RunComplete:
        while first.complete is None:
            await asyncio.sleep(0.001)
        return await d.ask("s", "second")

    WAITING.append(asyncio.create_task(wait_later()))
    return None


async def in_a_hook(d: Dispatcher, turn: Turn) -> object:
    turn.run.add_done_callback(lambda _: WAITING.append(asyncio.create_task(d.ask("s", "second"))))
    return None


async def stream_of_another_session(d: Dispatcher, turn: Turn) -> object:
    run = await d.submit("another", "second")
    pieces = [piece async for piece in run.stream()]
    assert pieces == ["second"]
    return pieces


async def another_session_in_a_child(d: Dispatcher, turn: Turn) -> object:
    return await asyncio.gather(d.ask("another", "second"), d.ask("third", "second"))


WAITING: list[asyncio.Task[Any]] = []
LEGAL = [
    another_session,
    another_session_in_a_child,
    stream_of_another_session,
    completed_before,
    cancelled_on_entry,
    settling_after_its_entry,
    outside_of_the_turn,
    after_the_turn,
    in_a_hook,
]


@pytest.mark.parametrize("wait", LEGAL)
def test_waits_that_come_to_an_end_stay_legal(wait: Wait) -> None:
    @in_loop
    async def test() -> None:
        came_of, complete = await play(wait)
        assert not isinstance(came_of, BaseException), came_of
        assert complete.outcome == "finished"

    test()


@in_loop
async def test_a_reader_elsewhere_goes_on_reading() -> None:
    async def agent(turn: Turn) -> None:
        turn.write("one ")
        await asyncio.sleep(0.01)
        turn.write("two")

    async with Dispatcher(agent) as d:
        run = await d.submit("s", "tea")
        assert [piece async for piece in run.stream()] == ["one ", "two"]


@in_loop
async def test_a_store_may_wait_for_the_active_turn_when_it_writes_one_that_was_cancelled_on_entry() -> None:
    agent = Agent()
    waited: list[RunComplete] = []

    class Patient(MemoryMessages):
        async def put(self, messages: Sequence[Message]) -> None:
            if messages[0].run_id == "cancelled":
                waited.append(await d.wait("active"))
            await super().put(messages)

    async with Dispatcher(agent, messages=Patient()) as d:
        cancelled = await d.accept("s", "p", run_id="cancelled")
        await d.cancel("s")
        run = await active(d, "s", "q", run_id="active")
        assert await d.enter(cancelled) is State.CANCEL_ON_ENTRY
        await steps()
        agent.finish(run)
        assert (await cancelled).error is None
        assert waited == [run.complete]


@in_loop
async def test_a_task_of_the_runner_may_wait_while_the_turn_is_written() -> None:
    agent = Agent()
    waiting: list[asyncio.Task[RunComplete]] = []
    waits = asyncio.Event()

    class Slow(MemoryMessages):
        async def put(self, messages: Sequence[Message]) -> None:
            waits.set()
            await steps()
            assert not waiting[0].done()
            await super().put(messages)

    async def wait(run: Run) -> RunComplete:
        await waits.wait()
        return await run

    async def runner(turn: Turn) -> None:
        waiting.append(asyncio.create_task(wait(turn.run)))
        await agent(turn)

    async with Dispatcher(runner, messages=Slow()) as d:
        run = await active(d, "s", "p")
        agent.finish(run)
        assert await waiting[0] == await run


# Turns that wait for each other.


class Circle:
    """Each prompt names the sessions that its turn asks, in this order, with the rest of the prompt."""

    def __init__(self) -> None:
        self.d: Dispatcher
        self.errors: list[str | None] = []

    async def __call__(self, turn: Turn) -> str:
        session_id, _, rest = turn.run.prompt.partition(" ")
        if session_id:
            self.errors.append((await self.d.ask(session_id, rest or "-")).error)
        return "done"


@pytest.mark.parametrize("way", ["b a x", "b c a x", "b c d b x"])
def test_the_turn_that_closes_a_circle_of_waits_gets_an_error(way: str) -> None:
    @in_loop
    async def test() -> None:
        agent = Circle()
        async with Dispatcher(agent) as d, asyncio.timeout(60):
            agent.d = d
            with quiet():
                assert (await d.ask("a", way)).error is None
            told, *others = agent.errors
            *_, again, _ = way.split()
            assert told is not None
            assert told.startswith(f"WouldDeadlock: a new prompt of session {again!r} cannot complete")
            assert others == [None] * len(others)
            assert len(agent.errors) == len(way.split()) - 2

    test()


@in_loop
async def test_a_run_that_closes_a_circle_of_waits_is_refused_too() -> None:
    told: list[BaseException] = []

    async def agent(turn: Turn) -> str:
        if turn.run.session_id == "a":
            return (await d.ask("b", turn.run.run_id)).text
        with pytest.raises(WouldDeadlock) as wrong:
            await d.wait(turn.run.prompt)
        told.append(wrong.value)
        return "done"

    async with Dispatcher(agent) as d, asyncio.timeout(60):
        assert (await d.ask("a", "p", run_id="first")).text == "done"
    assert str(told[0]).startswith("run first of session 'a' ")


@in_loop
async def test_waits_for_each_other_that_end_are_no_circle() -> None:
    asked: list[asyncio.Task[RunComplete]] = []

    async def agent(turn: Turn) -> str:
        if turn.run.session_id == "b":
            return (await d.wait("first")).outcome
        asked.append(asyncio.create_task(d.ask("b", "p")))  # which the runner does not await
        await asyncio.sleep(0.05)
        return "done"

    async with Dispatcher(agent) as d, asyncio.timeout(60):
        assert (await d.ask("a", "p", run_id="first")).text == "done"
        assert (await asked.pop()).text == "finished"


@in_loop
async def test_a_wait_for_a_run_that_its_session_does_not_hold_up_closes_no_circle() -> None:
    began, goes_on, waits = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def agent(turn: Turn) -> str:
        if turn.run.session_id == "a":
            waits.set()
            return (await late).outcome
        began.set()
        await goes_on.wait()
        return (await d.wait("first")).text

    async with Dispatcher(agent) as d, asyncio.timeout(60):
        run = await d.submit("b", "p")
        await began.wait()
        late = await d.accept("b", "late")
        await d.cancel_run(late.run_id)
        await d.submit("a", "p", run_id="first")
        await waits.wait()
        await steps()
        goes_on.set()
        await steps()
        await d.enter(late)
        assert (await run).text == "cancelled"


@in_loop
async def test_a_covered_turn_closes_no_circle() -> None:
    outcomes: list[str] = []

    async def agent(turn: Turn) -> str:
        if turn.run.session_id == "a":
            return (await d.ask("b", "p")).text
        await d.cancel_run("first")
        outcomes.append((await d.wait("first")).outcome)
        return "done"

    async with Dispatcher(agent) as d, asyncio.timeout(60):
        assert (await d.ask("a", "p", run_id="first")).outcome == "cancelled"
        while not outcomes:
            await asyncio.sleep(0.001)
    assert outcomes == ["cancelled"]


# Closing.


async def close(d: Dispatcher, turn: Turn) -> None:
    await d.aclose()


async def close_in_a_child(d: Dispatcher, turn: Turn) -> object:
    return await asyncio.create_task(d.aclose(finish=math.inf))


async def close_in_wait_for(d: Dispatcher, turn: Turn) -> object:
    return await asyncio.wait_for(d.aclose(finish=math.inf), 60)


@pytest.mark.parametrize("wait", [close, close_in_a_child, close_in_wait_for])
def test_a_runner_that_waits_for_the_close_of_its_dispatcher_gets_an_error(wait: Wait) -> None:
    @in_loop
    async def test() -> None:
        came_of, complete = await play(wait)
        assert isinstance(came_of, ClosedFromRunner)
        assert "context=contextvars.Context()" in str(came_of)
        assert complete.outcome == "failed"

    test()


@in_loop
async def test_a_runner_may_close_another_dispatcher_and_have_its_own_closed() -> None:
    closing: list[asyncio.Task[None]] = []

    async def agent(turn: Turn) -> str:
        async with Dispatcher(agent):
            pass
        closing.append(asyncio.create_task(d.aclose(finish=60), context=contextvars.Context()))
        await asyncio.sleep(0)
        return "done"

    async with asyncio.timeout(60):
        async with Dispatcher(agent) as d:
            assert (await d.ask("s", "p")).text == "done"
        await closing[0]
