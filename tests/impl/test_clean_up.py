"""Clean-up that a second Escape does not cut short, whatever it is given to await."""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import math
import sys
from collections.abc import Awaitable, Callable, Generator
from typing import Any

import pytest

from cleaning import Cleaning, Gate, cleaning
from dispatching import HANG, OUTSIDE, Agent, SlowMessages, garbage_of, in_loop, steps
from turngate import Dispatcher, MemoryMessages, Run, RunComplete, State, Turn, WrongLoop
from turngate_verify.world.virtual_loop import VirtualLoop


@in_loop
async def test_without_a_second_interrupt_its_result_is_returned() -> None:
    gate = Gate()
    runner = Cleaning(gate)
    async with Dispatcher(runner) as d:
        run = await cleaning(d)
        assert gate.began == 1
        assert run.state is State.ACTIVE
        gate.open()
        assert (await run).text == "cleaned up"
        assert runner.came_of_it == ["clean"]
        assert (await run).outcome == "cancelled"


@pytest.mark.parametrize("times", [1, 2, 7])
@in_loop
async def test_further_interrupts_wait_until_it_is_over(times: int) -> None:
    gate = Gate()
    runner = Cleaning(gate)
    async with Dispatcher(runner) as d:
        run = await cleaning(d)
        for _ in range(times):
            assert (await run.cancel()).runs == [run]
            await steps()
        assert runner.came_of_it == []
        gate.open()
        await run
        assert runner.came_of_it == [asyncio.CancelledError]
        assert (gate.ended, gate.cancelled) == (1, 0)


@pytest.mark.parametrize("step", range(12))
@in_loop
async def test_a_second_interrupt_at_any_step(step: int) -> None:
    done: list[int] = []

    async def clean_up() -> None:
        for number in range(5):
            await asyncio.sleep(0)
            done.append(number)

    runner = Cleaning(clean_up)
    async with Dispatcher(runner) as d:
        run = await d.submit("s", "p")
        await steps()
        await run.cancel()
        await steps(step)
        await run.cancel()
        assert (await run).outcome == "cancelled"
        assert done == [0, 1, 2, 3, 4]
        assert len(runner.came_of_it) == 1


@in_loop
async def test_an_interrupt_that_was_there_before_it_began_waits_too() -> None:
    gate = Gate()
    came_of_it: list[Any] = []

    async def runner(turn: Turn) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        try:
            await turn.clean_up(gate())
        except asyncio.CancelledError:
            came_of_it.append(gate.ended)
            raise

    async with Dispatcher(runner) as d:
        run = await d.submit("s", "p")
        await steps()
        gate.open()
        assert (await run).error == OUTSIDE
        assert came_of_it == [1]


@in_loop
async def test_closing_waits_for_it() -> None:
    gate = Gate()
    async with Dispatcher(Cleaning(gate)) as d:
        run = await cleaning(d)
        closing = asyncio.create_task(d.aclose())
        await steps()
        assert not closing.done()
        gate.open()
        await closing
        assert run.state is State.COMPLETE
        assert gate.ended == 1


@in_loop
async def test_an_asyncio_timeout_around_it_waits_too() -> None:
    gate = Gate()
    came_of_it: list[str] = []

    async def runner(turn: Turn) -> None:
        try:
            async with asyncio.timeout(0):
                await turn.clean_up(gate())
        except TimeoutError:
            came_of_it.append("timeout")

    async with Dispatcher(runner) as d:
        run = await d.submit("s", "p")
        await asyncio.sleep(0.01)
        assert came_of_it == []
        gate.open()
        assert (await run).outcome == "finished"
        assert came_of_it == ["timeout"]


@in_loop
async def test_a_turn_that_is_not_interrupted_may_use_it() -> None:
    async def runner(turn: Turn) -> str:
        return await turn.clean_up(asyncio.sleep(0, "slept"))

    async with Dispatcher(runner) as d:
        assert (await d.ask("s", "p")).text == "slept"


# What it is given.


class Awaited:
    """Something that can be awaited, and is nothing else."""

    def __await__(self) -> Generator[Any, None, str]:
        yield from asyncio.sleep(0).__await__()
        return "awaited"


async def coroutine() -> str:
    await asyncio.sleep(0)
    return "awaited"


async def at_once() -> str:
    return "awaited"


def future() -> Awaitable[str]:
    made: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(made.set_result, "awaited")
    return made


def done_future() -> Awaitable[str]:
    made: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    made.set_result("awaited")
    return made


def task() -> Awaitable[str]:
    return asyncio.create_task(coroutine())


def gathered() -> Awaitable[str]:
    return asyncio.shield(asyncio.ensure_future(coroutine()))


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize(
    "made",
    [Awaited, coroutine, at_once, future, done_future, task, gathered],
    ids=lambda made: made.__name__,
)
@in_loop
async def test_whatever_can_be_awaited(made: Callable[[], Awaitable[str]], twice: bool) -> None:
    runner = Cleaning(made)
    async with Dispatcher(runner) as d:
        run = await d.submit("s", "p")
        await steps()
        await run.cancel()
        await asyncio.sleep(0)
        if twice:
            await run.cancel()
        await run
        assert runner.came_of_it in (["awaited"], [asyncio.CancelledError])


@pytest.mark.parametrize("what", [None, 5, "text", lambda: None])
@in_loop
async def test_what_cannot_be_awaited_is_a_type_error(what: Any) -> None:
    async def runner(turn: Turn) -> None:
        with pytest.raises(TypeError):
            await turn.clean_up(what)

    async with Dispatcher(runner) as d:
        assert (await d.ask("s", "p")).outcome == "finished"


@in_loop
async def test_what_it_raises_is_raised() -> None:
    async def clean_up() -> None:
        await asyncio.sleep(0)
        raise LookupError("not clean")

    runner = Cleaning(clean_up)
    async with Dispatcher(runner) as d:
        run = await cleaning(d)
        assert (await run).outcome == "cancelled"
        assert runner.came_of_it == [LookupError]


@in_loop
async def test_what_it_raises_after_an_interrupt_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()
    runner = Cleaning(gate)
    async with Dispatcher(runner) as d:
        run = await cleaning(d)
        await run.cancel()
        await steps()
        assert gate.gate is not None
        gate.gate.set_exception(LookupError("not clean"))
        await run
        assert runner.came_of_it == [asyncio.CancelledError]
        (logged,) = caplog.records
        assert logged.getMessage() == "a clean-up raised"
        assert logged.exc_info
        assert isinstance(logged.exc_info[1], LookupError)
        caplog.clear()


@in_loop
async def test_an_awaitable_that_is_cancelled_elsewhere_is_over() -> None:
    runner = Cleaning(lambda: waits_for)
    async with Dispatcher(runner) as d:
        waits_for: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        run = await cleaning(d)
        waits_for.cancel()
        assert (await run).outcome == "cancelled"
        assert runner.came_of_it == [asyncio.CancelledError]


@in_loop
async def test_it_belongs_to_the_loop_of_its_dispatcher() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        await d.submit("s", "p")
        await steps()

        async def elsewhere() -> None:
            waits_for = asyncio.get_running_loop().create_future()
            with pytest.raises(WrongLoop):
                await agent.turns[0].clean_up(waits_for)

        await asyncio.to_thread(lambda: asyncio.run(elsewhere()))


@in_loop
async def test_a_task_factory_that_refuses_prevents_no_clean_up() -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no tasks today")

    async def runner(turn: Turn) -> str:
        loop = asyncio.get_running_loop()
        loop.set_task_factory(refuse)
        try:
            return await turn.clean_up(coroutine())
        finally:
            loop.set_task_factory(None)

    async with Dispatcher(runner) as d:
        assert (await d.ask("s", "p")).text == "awaited"


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
@pytest.mark.parametrize(
    "made", [Awaited, coroutine, at_once, future, done_future, task], ids=lambda made: made.__name__
)
@in_loop
async def test_eager_tasks(made: Callable[[], Awaitable[str]]) -> None:
    asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined,unused-ignore]  # since Python 3.12
    runner = Cleaning(made)
    async with Dispatcher(runner) as d:
        run = await d.submit("s", "p")
        await steps()
        await run.cancel()
        await run
        assert runner.came_of_it == ["awaited"]


# Clean-up that takes too long, that the end of the loop cuts short, and what it leaves behind.


# How long it may take.


class Slow:
    """A clean-up that takes for ever, and one that does not even end when it is cancelled."""

    def __init__(self, *, stubborn: bool = False) -> None:
        self.stubborn = stubborn
        self.cancelled = 0
        self.let_go: asyncio.Future[None] | None = None

    async def __call__(self) -> str:
        self.let_go = asyncio.get_running_loop().create_future()
        while True:
            try:
                await asyncio.shield(self.let_go)
            except asyncio.CancelledError:
                self.cancelled += 1
                if not self.stubborn:
                    raise
            else:
                raise LookupError("too late")


@pytest.mark.parametrize("stubborn", [False, True])
@pytest.mark.parametrize("interrupts", [0, 1, 3])
def test_when_its_time_is_up_it_is_cancelled(
    stubborn: bool, interrupts: int, caplog: pytest.LogCaptureFixture
) -> None:
    loop = VirtualLoop()
    slow = Slow(stubborn=stubborn)
    runner = Cleaning(slow, 2.0)
    d = Dispatcher(runner)
    run = loop.call(d.submit("s", "p"))
    loop.settle()
    loop.call(run.cancel())
    loop.settle()
    for _ in range(interrupts):
        loop.advance(0.5)
        loop.call(run.cancel())
        loop.settle()
    assert runner.came_of_it == []
    loop.advance(2.0 - 0.5 * interrupts - 0.1)
    loop.settle()
    assert runner.came_of_it == []
    assert slow.cancelled == 0
    loop.advance(0.2)
    loop.settle()
    assert runner.came_of_it == [asyncio.CancelledError if interrupts else TimeoutError]
    assert slow.cancelled == 1
    assert run.complete is not None
    assert run.complete.outcome == "cancelled"
    if stubborn:
        assert slow.let_go is not None
        slow.let_go.set_result(None)
        loop.settle()
        assert caplog.records[-1].getMessage() == "a clean-up raised"
        caplog.clear()
    assert loop.problems == []
    loop.begin(d.aclose(), "close")
    loop.settle()
    assert all(task.done() for task in loop.tasks)


@in_loop
async def test_what_the_time_out_says() -> None:
    async def runner(turn: Turn) -> None:
        with pytest.raises(TimeoutError, match=r"0\.001 s"):
            await turn.clean_up(asyncio.get_running_loop().create_future(), within=0.001)
        await turn.clean_up(asyncio.sleep(0), within=math.inf)
        await turn.clean_up(asyncio.sleep(0), within=HANG)

    async with Dispatcher(runner) as d:
        assert (await d.ask("s", "p")).error is None


@pytest.mark.parametrize("within", [0, -1, math.nan, "5", None])
@in_loop
async def test_a_time_is_more_than_nothing(within: Any) -> None:
    async def runner(turn: Turn) -> None:
        awaitable = asyncio.get_running_loop().create_future()
        with pytest.raises(ValueError, match="within"):
            await turn.clean_up(awaitable, within=within)

    async with Dispatcher(runner) as d:
        assert (await d.ask("s", "p")).error is None


# A loop that ends.


def test_at_the_end_of_asyncio_run_nothing_is_left(caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()
    runner = Cleaning(gate)
    received: list[RunComplete] = []

    async def main() -> None:
        d = Dispatcher(runner)
        d._home._warns_if_dropped = False
        run = await cleaning(d)
        run.add_done_callback(received.append)

    asyncio.run(main())
    gc.collect()
    assert gate.cancelled == 1
    assert runner.came_of_it == [asyncio.CancelledError]
    assert [complete.outcome for complete in received] == ["cancelled"]
    assert caplog.records == []


@pytest.mark.parametrize("first", ["cleans", "s"])
def test_while_a_loop_is_torn_down_a_clean_up_keeps_no_queue_going(first: str) -> None:
    """What cleans up while the loop is torn down is no sign that it goes on."""
    cleaned: list[str] = []

    async def clean_up() -> None:
        await steps(40)
        cleaned.append("up")

    runner = Cleaning(clean_up)
    agent = Agent()

    async def either(turn: Turn) -> Any:
        return await (runner(turn) if turn.run.session_id == "cleans" else agent(turn))

    async def main() -> None:
        d = Dispatcher(either)
        d._home._warns_if_dropped = False
        await d.submit("cleans", "p", run_id="cleans")
        await d.submit("s", "active", run_id="s")
        await d.submit("s", "queued", when_busy="queue")
        await steps()

    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    tasks = sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name() != first)
    for task in tasks:  # as `asyncio.run` does, in one order or another
        task.cancel()
    loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
    assert cleaned == ["up"]
    assert agent.prompts == ["active"]
    agent.turns.clear()
    runner.turns.clear()
    gc.collect()


@pytest.mark.parametrize("kind", [MemoryMessages, SlowMessages])
def test_a_clean_up_that_is_closed_with_its_turn(kind: type[MemoryMessages]) -> None:
    gate = Gate()
    runner = Cleaning(gate)
    received: list[RunComplete] = []

    async def main() -> Run:
        d = Dispatcher(runner, messages=kind())
        d._home._warns_if_dropped = False
        run = await cleaning(d)
        run.add_done_callback(received.append)
        return run

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # the loop says that a task was destroyed, as it should
    run = loop.run_until_complete(main())
    task = runner.turns[0].task
    assert task is not None
    closing = task.get_coro()
    assert closing is not None
    loop.close()
    closing.close()
    assert runner.came_of_it == [GeneratorExit]
    assert run.state is State.COMPLETE
    assert [complete.outcome for complete in received] == ["cancelled"]
    runner.turns.clear()
    del task, closing, run
    gc.collect()


# Garbage.


@pytest.mark.parametrize("interrupts", [0, 1, 2])
@pytest.mark.parametrize("end", ["returns", "raises", "takes too long"])
def test_a_clean_up_leaves_no_reference_cycle(end: str, interrupts: int) -> None:
    async def clean_up() -> None:
        await steps(8)
        if end == "raises":
            raise LookupError
        if end == "takes too long":
            await asyncio.sleep(HANG)

    async def runner(turn: Turn) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await turn.clean_up(clean_up(), 0.01 if end == "takes too long" else HANG)

    async def main() -> None:
        async with Dispatcher(runner) as d:
            run = await d.submit("s", "p")
            await steps()
            await run.cancel()
            for _ in range(interrupts):
                await steps(2)
                await run.cancel()
            await run

    logging.getLogger("turngate").setLevel(logging.CRITICAL)  # pytest keeps what is logged
    try:
        assert garbage_of(main) == []
    finally:
        logging.getLogger("turngate").setLevel(logging.NOTSET)


def test_the_time_for_a_clean_up_unless_given() -> None:
    assert inspect.signature(Turn.clean_up).parameters["within"].default == 5.0
