"""Task factories that make no task of a turn: it settles anyway, on record, and the queue goes on."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dispatching import Agent, echo, outcome
from stacking import Life, Scenario, Sees, Stack, live, until
from stacks import factory
from turngate import State, Turn

ALWAYS = 10**9
Fault = Callable[[asyncio.AbstractEventLoop, Any, dict[str, Any]], Any]


async def nothing() -> None:
    """Do what a wrapper does that never comes to what it wraps."""


async def broken() -> None:
    raise LookupError("no tracer")


def refuses(loop: asyncio.AbstractEventLoop, coro: Any, options: dict[str, Any]) -> Any:
    raise RuntimeError("no more tasks")


def cancels(loop: asyncio.AbstractEventLoop, coro: Any, options: dict[str, Any]) -> Any:
    task = asyncio.Task(coro, loop=loop, **options)
    task.cancel()
    return task


def drops(loop: asyncio.AbstractEventLoop, coro: Any, options: dict[str, Any]) -> Any:
    return asyncio.Task(nothing(), loop=loop, **options)


def closes(loop: asyncio.AbstractEventLoop, coro: Any, options: dict[str, Any]) -> Any:
    coro.close()
    return asyncio.Task(nothing(), loop=loop, **options)


def breaks(loop: asyncio.AbstractEventLoop, coro: Any, options: dict[str, Any]) -> Any:
    return asyncio.Task(broken(), loop=loop, **options)


def is_done(loop: asyncio.AbstractEventLoop, coro: Any, options: dict[str, Any]) -> Any:
    done: asyncio.Future[None] = loop.create_future()
    done.set_result(None)
    return done


def gives_nothing(loop: asyncio.AbstractEventLoop, coro: Any, options: dict[str, Any]) -> Any:
    return None


FAULTS = (refuses, cancels, drops, closes, breaks, is_done, gives_nothing)


class Faulty:
    """A factory that makes tasks normally until it misbehaves on command, a given number of times."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.times = 0

    def __call__(self, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> Any:
        if self.times > 0:
            self.times -= 1
            return self.fault(loop, coro, options)
        return asyncio.Task(coro, loop=loop, **options)


@pytest.fixture(params=FAULTS, ids=lambda fault: fault.__name__)
def faulty(request: pytest.FixtureRequest) -> Faulty:
    return Faulty(request.param)


def live_with(faulty: Faulty, scenario: Scenario) -> None:
    @contextlib.contextmanager
    def install() -> Iterator[Sees]:
        with factory(faulty):
            yield lambda task: True

    live(Stack("faulty", install), scenario)


def test_every_turn_that_gets_no_task_completes_with_an_error(
    faulty: Faulty, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(life: Life) -> None:
        d = life.open(echo)
        faulty.times = ALWAYS
        runs = [await d.submit("s", f"prompt {n}", when_busy="queue") for n in range(3)]
        runs.append(await d.submit("another", "aside"))
        for run in runs:
            complete = await run
            assert complete.error, complete
            assert not complete.cancelled
        assert not d.is_busy()
        assert life.prompts == []
        faulty.times = 0
        assert outcome(await d.ask("s", "tea")) == ("tea", None, False)

    live_with(faulty, scenario)
    if faulty.fault in (refuses, breaks):  # it says why, and nothing swallows it
        raised = [record.exc_info[1] for record in caplog.records if record.exc_info]
        why = "no more tasks" if faulty.fault is refuses else "no tracer"
        assert any(why in str(exc) for exc in raised)
        assert {record.name for record in caplog.records if record.levelno >= logging.ERROR} == {"turngate"}


def test_a_successor_that_gets_no_task_does_not_strand_the_queue(faulty: Faulty) -> None:
    async def scenario(life: Life) -> None:
        agent = Agent()
        d = life.open(agent)
        first = await life.begun(await d.submit("s", "tea"))
        second = await d.submit("s", "cake", when_busy="queue")
        third = await d.submit("s", "soup", when_busy="queue")
        await until(lambda: len(d.queued("s")) == 2)
        faulty.times = 1
        agent.finish(first)
        assert outcome(await first) == ("done", None, False)
        assert (await second).error
        assert not (await second).cancelled
        agent.finish(await life.begun(third))
        assert outcome(await third) == ("done", None, False)
        assert life.prompts == ["tea", "soup"]

    live_with(faulty, scenario)


def test_what_a_cancel_covers_is_cancelled_though_it_gets_no_task(faulty: Faulty) -> None:
    async def scenario(life: Life) -> None:
        d = life.open(echo)
        faulty.times = ALWAYS
        covered = await d.accept("s", "tea")
        assert (await d.cancel("s")).runs == [covered]
        assert await d.enter(covered) is State.CANCEL_ON_ENTRY
        assert (await covered).cancelled
        active = await d.accept("s", "cake")
        assert await d.enter(active) is State.ACTIVE
        queued = await d.submit("s", "soup")
        interrupted = await d.cancel("s")
        for run in (active, queued):
            assert (await run).cancelled is (run in interrupted.runs)
        assert life.prompts == []

    live_with(faulty, scenario)


def test_closing_ends_though_nothing_gets_a_task(faulty: Faulty) -> None:
    async def scenario(life: Life) -> None:
        agent = Agent()
        d = life.open(agent)
        active = await life.begun(await d.submit("s", "tea"))
        queued = await d.submit("s", "cake")
        faulty.times = ALWAYS
        entered = await d.accept("new", "soup")
        await d.enter(entered)
        accepted = await d.accept("accepted", "salad")
        await d.aclose()
        assert [run.state for run in (active, queued, entered, accepted)] == [State.COMPLETE] * 4
        assert (await active).cancelled
        assert (await queued).cancelled
        assert life.prompts == ["tea"]

    live_with(faulty, scenario)


def test_a_factory_that_raises_when_the_task_is_already_made() -> None:
    """As in asyncio 3.13, which makes the task, and then asks a future in vain for its `set_name`."""
    made: list[asyncio.Task[Any]] = []

    def too_late(loop: asyncio.AbstractEventLoop, coro: Any, options: dict[str, Any]) -> Any:
        made.append(asyncio.Task(coro, loop=loop, **options))
        raise AttributeError("set_name")

    async def hopping(turn: Turn) -> str:
        for _ in range(5):
            await asyncio.sleep(0)
        if turn.run.prompt == "for ever":
            await asyncio.get_running_loop().create_future()
        return turn.run.prompt

    async def scenario(life: Life) -> None:
        d = life.open(hopping)
        late.times = ALWAYS
        runs = [await d.submit("s", f"prompt {n}", when_busy="queue") for n in range(3)]
        for run in runs:  # which of the two is the factory's to say; not both, and not twice
            complete = await run
            assert bool(complete.error) is (run.prompt not in life.prompts), complete
        for begun in (False, True):
            covered = await d.accept("s", "for ever")
            await d.enter(covered)
            for _ in range(20 * begun):
                await asyncio.sleep(0)
            cancelled = await d.cancel("s")
            assert (await covered).cancelled is bool(cancelled)
        late.times = 0
        assert outcome(await d.ask("s", "tea")) == ("tea", None, False)
        assert all(task.done() for task in made)

    late = Faulty(too_late)
    live_with(late, scenario)
    assert made


def test_a_covered_turn_is_no_business_of_the_factorys(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(life: Life) -> None:
        d = life.open(echo)
        refusing.times = 1
        covered = await d.accept("s", "tea")
        await d.cancel("s")
        await d.enter(covered)
        assert outcome(await covered) == ("", None, True)
        assert refusing.times == 1
        assert [record.getMessage() for record in caplog.records if record.name == "turngate"] == []
        refusing.times = 0

    refusing = Faulty(refuses)
    live_with(refusing, scenario)
