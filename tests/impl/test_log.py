"""Corners: logs that raise where nothing catches it, factories that are odd, loops that are gone."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from dispatching import Agent, active, containing, echo, in_loop, outcome, steps
from turngate import Dispatcher, Run, Turn, TurnEnded, WrongLoop
from turngate._log import log, logger, raise_in_loop


class Raising(logging.Filter):
    def __init__(self, exc: BaseException) -> None:
        super().__init__()
        self.exc = exc

    def filter(self, record: logging.LogRecord) -> bool:
        raise self.exc


@pytest.fixture
def filtered() -> Iterator[Raising]:
    raising = Raising(LookupError("no request id"))
    logger.addFilter(raising)
    yield raising
    logger.removeFilter(raising)


def test_a_log_handler_that_raises_is_reported_on_standard_error(
    filtered: Raising, capsys: pytest.CaptureFixture[str]
) -> None:
    log(logging.ERROR, "unheard")
    assert "LookupError: no request id" in capsys.readouterr().err


@pytest.mark.parametrize("silenced", ["by logging", "without standard error"])
def test_a_log_handler_that_raises_is_not_reported_if_logging_is_silent(
    filtered: Raising, silenced: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if silenced == "by logging":
        monkeypatch.setattr(logging, "raiseExceptions", False)
        log(logging.ERROR, "unheard")
    else:
        with monkeypatch.context() as patched:
            patched.setattr(sys, "stderr", None)
            log(logging.ERROR, "unheard")
    assert capsys.readouterr().err == ""


def test_what_a_log_raises_for_the_process_leaves_the_loop_after_the_run_has_settled(
    filtered: Raising, capsys: pytest.CaptureFixture[str]
) -> None:
    filtered.exc = KeyboardInterrupt()
    runs: list[Run] = []

    async def failing(turn: Turn) -> str:
        raise LookupError

    async def main() -> None:
        async with Dispatcher(failing) as d:
            runs.append(await d.submit("s", "p"))
            await asyncio.get_running_loop().create_future()

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    assert [run.complete and run.complete.error for run in runs] == ["LookupError"]
    assert "KeyboardInterrupt" in capsys.readouterr().err


def test_without_a_loop_it_is_too_late_to_let_anything_out() -> None:
    raise_in_loop(KeyboardInterrupt())


# Task factories.


@in_loop
async def test_a_factory_that_runs_the_turn_outside_of_any_task_fails_the_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Named(asyncio.Future[None]):
        def set_name(self, name: str) -> None:
            """Be called what the loop calls it, which from Python 3.13 on asks for no more than this."""

    def by_hand(loop: asyncio.AbstractEventLoop, coro: Any, **_: Any) -> Any:
        over = Named(loop=loop)

        def step() -> None:
            try:
                coro.send(None)
            except BaseException as exc:
                over.set_exception(exc)

        loop.call_soon(step)
        return over

    loop = asyncio.get_running_loop()
    async with Dispatcher(echo) as d:
        loop.set_task_factory(by_hand)
        run = await d.accept("s", "p")
        await d.enter(run)
        loop.set_task_factory(None)
        error = "RuntimeError: the task factory"
        assert outcome(await run) == ("", containing(error), False)
        assert f"run {run.run_id} in session 's'" in caplog.text
        assert (await d.ask("s", "q")).text == "q"


@in_loop
async def test_a_factory_that_returns_something_that_is_over_while_its_task_runs() -> None:
    tasks: list[asyncio.Task[Any]] = []

    def odd(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> Any:
        tasks.append(asyncio.Task(coro, loop=loop, **options))
        over: asyncio.Future[None] = loop.create_future()
        over.set_result(None)
        return over

    agent = Agent()
    loop = asyncio.get_running_loop()
    async with Dispatcher(agent) as d:
        loop.set_task_factory(odd)
        run = await active(d, "s", "p")
        loop.set_task_factory(None)
        assert agent.prompts == ["p"]
        agent.finish(run)
        assert outcome(await run) == ("done", None, False)


# Other loops.


@in_loop
async def test_a_look_from_another_thread_is_refused() -> None:
    async with Dispatcher(echo) as d:
        await d.ask("s", "p")
        for look in (d.is_busy, d.subscribe):
            with pytest.raises(WrongLoop):
                await asyncio.to_thread(look)
        events = d.subscribe()
        with pytest.raises(WrongLoop):
            await asyncio.to_thread(events.close)
        assert "open" in repr(events)


def test_a_write_to_a_turn_whose_loop_is_closed_is_refused() -> None:
    agent = Agent()

    async def main() -> None:
        d = Dispatcher(agent)
        d._home._warns_if_dropped = False
        await d.submit("s", "p")
        await steps()

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # the loop says that a task was destroyed, as it should
    loop.run_until_complete(main())
    loop.close()
    with pytest.raises(TurnEnded, match="whose loop is closed"):
        agent.turns[0].write("late")
    agent.turns.clear()
    gc.collect()
