"""The dispatcher when something goes wrong around it: runners, tasks, the loop, signal handlers."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from typing import Any

import pytest

from dispatching import (
    OUTSIDE,
    Agent,
    SlowMessages,
    active,
    assert_nothing_left,
    containing,
    echo,
    in_loop,
    on_record,
    outcome,
    queued,
    steps,
)
from turngate import (
    Dispatcher,
    Run,
    RunComplete,
    State,
    Turn,
    TurnEnded,
)
from turngate._core import RunRecord
from turngate._effects import Effects
from turngate._turn import CLOSED_UNWRITTEN

# Runners that go wrong.


class Rude(BaseException):
    pass


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("exc", "error"),
    [
        (RuntimeError("boom"), "RuntimeError: boom"),
        (KeyError("user"), "KeyError: 'user'"),
        (RuntimeError(), "RuntimeError"),
        (UnspeakableError(), "UnspeakableError"),
        (Rude("rude"), "Rude: rude"),
        (GeneratorExit(), "GeneratorExit"),
        (StopAsyncIteration("odd"), "StopAsyncIteration: odd"),
        (
            ExceptionGroup("both", [ValueError("x"), ExceptionGroup("inner", [KeyError("y"), OSError()])]),
            "ExceptionGroup: both (2 sub-exceptions): ValueError: x; KeyError: 'y'; OSError",
        ),
        (
            ExceptionGroup("some", [ValueError(n) for n in range(5)]),
            "ExceptionGroup: some (5 sub-exceptions): ValueError: 0; ValueError: 1; ValueError: 2; "
            "ValueError: 3; ValueError: 4",
        ),
        (
            ExceptionGroup("many", [ValueError(n) for n in range(12)]),
            "ExceptionGroup: many (12 sub-exceptions): ValueError: 0; ValueError: 1; ValueError: 2; "
            "ValueError: 3; ValueError: 4; 7 more",
        ),
    ],
)
def test_whatever_the_runner_raises_is_the_error(exc: BaseException, error: str) -> None:
    async def failing(turn: Turn) -> str:
        turn.write("partial")
        if turn.run.prompt == "fail":
            raise exc
        return "done"

    @in_loop
    async def check() -> None:
        async with Dispatcher(failing) as d:
            first, second = await d.submit("s", "fail"), await d.submit("s", "go on", when_busy="queue")
            assert outcome(await first) == ("partial", error, False)
            assert outcome(await second) == ("done", None, False)
            assert [reason for _, _, reason in await on_record(d, "s")] == [None, "error", None, "end_turn"]

    check()


@in_loop
async def test_a_runner_that_returns_a_wrong_type() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        run = await active(d, "s", "p")
        agent.turns[0].write("partial")
        agent.finish(run, 7)
        assert outcome(await run) == ("partial", containing("int"), False)
        assert await on_record(d, "s") == [("user", "p", None), ("assistant", "partial", "error")]


@in_loop
async def test_a_runner_that_is_no_coroutine_function() -> None:
    def plain(turn: Turn) -> Any:
        if turn.run.prompt == "raise":
            raise ValueError("no")
        return "not awaitable"

    async with Dispatcher(plain) as d:
        assert (await d.ask("s", "raise")).error == "ValueError: no"
        error = (await d.ask("s", "return")).error
        assert error is not None
        assert "await" in error


@in_loop
async def test_a_turn_that_is_over_refuses_writes_and_folds() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d, d.subscribe() as events:
        run = await active(d, "s", "p")
        (turn,) = agent.turns
        agent.finish(run)
        await run
        later = await active(d, "s", "q")
        waiting = await queued(d, "s", "r")
        with pytest.raises(TurnEnded):
            turn.write("late")
        with pytest.raises(TurnEnded):
            await turn.fold()
        assert d.queued("s") == [waiting]
        assert turn.runs == [run]
        agent.finish(later)
        await later
        await d.aclose()
        assert [event async for event in events] == [await run, await later, await waiting]


@in_loop
async def test_a_turn_writes_strings_only() -> None:
    async def wrong(turn: Turn) -> None:
        turn.write(b"bytes")  # type: ignore[arg-type]  # wrong on purpose

    async with Dispatcher(wrong) as d:
        assert (await d.ask("s", "p")).error == containing("TypeError", "bytes")


@in_loop
async def test_a_cancelled_runner_that_takes_the_cancel_back_has_not_failed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def runner(turn: Turn) -> None:
        try:
            await asyncio.sleep(3_600)
        except asyncio.CancelledError:
            assert turn.task is not None
            turn.task.uncancel()
            raise

    async with Dispatcher(runner) as d:
        run = await active(d, "s", "p")
        await d.cancel("s")
        assert ((await run).outcome, (await run).error) == ("cancelled", None)
    assert caplog.records == []


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("where", ["runner", "on_complete", "store", "store that waits", "recording"])
def test_what_is_to_end_the_process_does_so_after_the_run_has_settled(
    stop: type[BaseException], where: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    runs: list[Run] = []

    def raising(*_: object) -> None:
        raise stop

    class Store(SlowMessages):
        async def put(self, messages: Any) -> None:
            if where.startswith("store"):
                if where.endswith("waits"):
                    await asyncio.sleep(0)
                raise stop
            await asyncio.sleep(0)

    async def runner(turn: Turn) -> None:
        if where == "runner":
            raise stop

    async def main() -> None:
        d = Dispatcher(runner, messages=Store(), record=raising if where == "recording" else None)
        runs.append(await d.submit("s", "p", on_complete=raising if where == "on_complete" else None))
        runs.append(await d.submit("s", "q"))
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await d.aclose()

    with pytest.raises(stop):
        asyncio.run(main())
    gc.collect()
    assert [run.state for run in runs] == [State.COMPLETE] * 2


# Tasks that go wrong.


@in_loop
async def test_a_task_cancelled_from_outside_is_no_cancel() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        run = await active(d, "s", "p")
        behind = await queued(d, "s", "q")
        task = agent.turns[0].task
        assert task is not None
        task.cancel()
        assert outcome(await run) == ("", OUTSIDE, False)
        await steps()
        agent.finish(behind)
        assert outcome(await behind) == ("done", None, False)


@in_loop
async def test_a_leaked_cancelled_future_is_no_cancel(caplog: pytest.LogCaptureFixture) -> None:
    async def leak(turn: Turn) -> None:
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    async with Dispatcher(leak) as d:
        complete = await d.ask("s", "p")
        assert complete.error == containing("CancelledError")
        assert not complete.cancelled
        assert f"run {complete.run_id} of session 's'" in caplog.text


@in_loop
async def test_the_task_of_a_turn_is_named_after_its_lead_run() -> None:
    async def name(_turn: Turn) -> str:
        task = asyncio.current_task()
        assert task is not None
        return task.get_name()

    async with Dispatcher(name) as d:
        assert (await d.ask("s", "p", run_id="lead")).text == "lead"


@in_loop
async def test_a_task_cancelled_before_its_first_step_settles() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        run = await d.accept("s", "p")
        await d.enter(run)
        behind = await queued(d, "s", "q")
        (task,) = asyncio.all_tasks() - {asyncio.current_task()}
        task.cancel()
        assert outcome(await run) == ("", OUTSIDE, False)
        assert await on_record(d, "s") == [("user", "p", None), ("assistant", "", "error")]
        await steps()
        assert agent.prompts == ["q"]
        agent.finish(behind)
        await behind


@in_loop
async def test_a_cancel_before_the_first_step_of_the_turn() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        run = await d.accept("s", "p")
        await d.enter(run)
        assert (await d.cancel("s")).runs == [run]
        assert outcome(await run) == ("", None, True)
        assert agent.turns == []
        assert await on_record(d, "s") == [("user", "p", None), ("assistant", "", "canceled")]


def test_a_loop_that_is_closed_in_the_middle_completes_what_is_in_flight(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.CRITICAL)
    runs: list[Run] = []
    received: list[RunComplete] = []

    async def forever(turn: Turn) -> None:
        await asyncio.get_running_loop().create_future()

    async def main() -> Dispatcher:
        d = Dispatcher(forever)
        runs.append(await d.submit("s", "active", on_complete=received.append))
        runs.extend([await d.submit("s", "queued", when_busy="queue") for _ in range(2_000)])
        await steps()
        waiting = runs[0].wait()
        waiting.send(None)
        waiting.close()
        return d

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # the loop says that a task was destroyed, as it should
    d = loop.run_until_complete(main())
    task: Any = asyncio.all_tasks(loop).pop()
    loop.close()
    task.get_coro().close()
    assert {run.complete.error for run in runs if run.complete} == {CLOSED_UNWRITTEN}
    assert all(run.state is State.COMPLETE for run in runs)
    assert received == [runs[0].complete]
    assert_nothing_left(d)
    d.itself = d  # type: ignore[attr-defined]  # so that it goes when garbage is collected, and not before
    runs.clear()
    del task, d
    with pytest.warns(ResourceWarning, match="dropped without aclose"):
        gc.collect()


@in_loop
async def test_a_task_factory_that_fails_fails_the_run(caplog: Any) -> None:
    loop = asyncio.get_running_loop()
    async with Dispatcher(echo) as d:
        run = await d.accept("s", "p")

        def refuse(*_: Any, **__: Any) -> Any:
            raise RuntimeError("no tasks today")

        loop.set_task_factory(refuse)
        try:
            await d.enter(run)
        finally:
            loop.set_task_factory(None)
        assert f"run {run.run_id} in session 's'" in caplog.text
        assert (await run).error == containing("RuntimeError: no tasks today")
        assert await on_record(d, "s") == [("user", "p", None), ("assistant", "", "error")]
        assert (await d.ask("s", "q")).text == "q"


def first_step_now(loop: Any, coro: Any, **options: Any) -> asyncio.Task[Any]:
    """Make a task that takes its first step at once, as eager tasks do."""
    task = asyncio.Task(coro, loop=loop, **options)
    loop._ready.pop()._run()
    return task


@in_loop
async def test_eager_tasks() -> None:
    async def cancels_itself(turn: Turn) -> str:
        if turn.run.prompt == "cancel":
            await d.cancel("s")
            await asyncio.sleep(0)
        return turn.run.prompt

    loop = asyncio.get_running_loop()
    async with Dispatcher(cancels_itself) as d:
        first = await d.submit("s", "cancel")
        second = await d.submit("s", "go on", when_busy="queue")
        loop.set_task_factory(first_step_now)
        await steps(1)
        loop.set_task_factory(None)
        assert (await first).cancelled
        assert (await second).cancelled
        if sys.version_info >= (3, 12):
            loop.set_task_factory(asyncio.eager_task_factory)
            assert (await d.ask("s", "hello")).text == "hello"
            assert (await d.ask("s", "cancel")).cancelled
            loop.set_task_factory(None)


@in_loop
async def test_an_exception_of_a_signal_handler_costs_no_run_complete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Interrupted(Effects):
        interrupt = True

        def _publish(self, record: RunRecord) -> None:
            super()._publish(record)
            if self.interrupt:
                self.interrupt = False
                raise Rude("as a signal handler might, anywhere")

    monkeypatch.setattr("turngate._dispatcher.Effects", Interrupted)
    agent = Agent()
    async with Dispatcher(agent) as d:
        turn = await active(d, "s", "p")
        waiting = [await queued(d, "s", "q") for _ in range(3)]
        events = d.subscribe()
        with pytest.raises(Rude):
            await d.clear_queue("s")
        completes = [await run for run in waiting]
        assert [await anext(events) for _ in waiting] == completes
        assert {complete.error for complete in completes} == {"cleared from the queue"}
        agent.finish(turn)
        assert (await turn).text == "done"
