"""Logs: what they raise costs no effect; what the user's code raises is in them, and named in the error."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import structlog

from dispatching import BrokenMessages, outcome
from stacking import Life, Sees, Stack, live
from stacks import RAISING_LOGS, STACKS, Asks, raising_log
from turngate import Dispatcher, MemoryMessages, Message, Run, RunComplete, Turn

(PLAIN,) = [stack for stack in STACKS if stack.name == "plain"]


class Unlucky(MemoryMessages):
    """A store that cannot write one prompt."""

    async def put(self, messages: Sequence[Message]) -> None:
        if any(message.text == "store" for message in messages):
            raise OSError("disk full")
        await super().put(messages)


async def unlucky(turn: Turn) -> str:
    if turn.run.prompt == "runner":
        raise KeyError("user")
    return turn.run.prompt


def bad_hook(complete: RunComplete) -> None:
    raise ValueError("hook")


@pytest.mark.parametrize("level", [logging.DEBUG, logging.ERROR], ids=logging.getLevelName)
@pytest.mark.parametrize("where", RAISING_LOGS)
def test_a_log_that_raises_loses_no_effect_of_what_goes_wrong(where: str, level: int) -> None:
    kept: list[Asks] = []

    @contextlib.contextmanager
    def install() -> Iterator[Sees]:
        with raising_log(where, level) as asks:
            kept.append(asks)
            yield lambda task: True

    def bad_recording(entry: dict[str, Any]) -> None:
        if entry["event"] == "complete":
            raise ValueError("recording")

    async def scenario(life: Life) -> None:
        d = Dispatcher(unlucky, messages=Unlucky(), record=bad_recording)
        events = d.subscribe()
        prompts = ["hook", "runner", "store", "tea", "runner", "cake"]
        runs = [
            await d.submit("s", p, when_busy="queue", on_complete=bad_hook if p == "hook" else None)
            for p in prompts
        ]
        waiters = [asyncio.create_task(run.wait()) for run in runs]
        completes = [await waiter for waiter in waiters]
        assert [(complete.cancelled, bool(complete.error)) for complete in completes] == [
            (False, prompt in ("runner", "store")) for prompt in prompts
        ]
        active = await d.accept("s", "runner")
        await d.enter(active)
        await d.cancel("s")
        assert (await active).cancelled
        assert outcome(await d.ask("s", "soup")) == ("soup", None, False)
        assert not d.is_busy()
        await d.aclose()
        published = [event async for event in events]
        assert published[: len(completes) - 1] == completes[1:]  # the first went to its hook
        assert len(published) == len(completes) + 1

    live(Stack(where, install), scenario)
    wrong = {"KeyError('user')", "OSError('disk full')", "ValueError('hook')", "ValueError('recording')"}
    assert wrong <= set(kept[0].asked), "not everything was to be logged"


class Strict(logging.Handler):
    """A handler that lets out what its formatter raises, as pytest's does."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@contextlib.contextmanager
def structured(*processors: Callable[..., Any]) -> Iterator[list[str]]:
    """Have structlog format what the standard library logs, as its documentation says."""
    shared = [structlog.contextvars.merge_contextvars, structlog.stdlib.add_log_level, *processors]
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(default=str),
        ],
    )
    handler = Strict()
    handler.setFormatter(formatter)
    ours = logging.getLogger("turngate")
    ours.addHandler(handler)
    before, ours.level = ours.level, logging.DEBUG
    try:
        yield handler.lines
    finally:
        ours.setLevel(before)
        ours.removeHandler(handler)


def test_structlog_has_the_traceback_and_what_was_bound_at_submit() -> None:
    async def scenario(life: Life) -> None:
        d = life.open(unlucky)
        with structlog.contextvars.bound_contextvars(request="of tea"):
            run = await d.submit("s", "runner")
        await run
        runs.append(run)

    runs: list[Run] = []
    with structured() as formatted:
        live(PLAIN, scenario)
    lines = [json.loads(line) for line in formatted]
    (line,) = [line for line in lines if line["level"] == "error"]
    assert line["request"] == "of tea"
    assert "KeyError: 'user'" in line["exception"]
    assert runs[0].run_id in line["event"]


def test_a_structlog_processor_that_raises_loses_no_effect() -> None:
    def asks_for_the_user(logger: object, name: str, line: dict[str, Any]) -> dict[str, Any]:
        asked.append(line)
        return {**line, "user": line["user"]}

    async def scenario(life: Life) -> None:
        d = life.open(unlucky)
        runs = [await d.submit("s", prompt, when_busy="queue") for prompt in ("runner", "tea", "runner")]
        assert [(await run).error for run in runs] == ["KeyError: 'user'", None, "KeyError: 'user'"]

    asked: list[dict[str, Any]] = []
    with structured(asks_for_the_user):
        live(PLAIN, scenario)
    assert asked


# Nothing is swallowed.


def logged(caplog: pytest.LogCaptureFixture, exc: BaseException) -> logging.LogRecord:
    """Return the one record of the turngate logger that has the traceback of the exception."""
    (record,) = [r for r in caplog.records if r.exc_info is not None and r.exc_info[1] is exc]
    assert record.name == "turngate"
    assert record.levelno >= logging.ERROR
    return record


@pytest.mark.parametrize("what", ["runner", "store", "hook", "recording"])
def test_what_the_users_code_raises_is_logged_with_session_run_and_traceback(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    exc = LookupError("gone wrong")

    async def runner(turn: Turn) -> str:
        if what == "runner":
            raise exc
        return "done"

    def hook(complete: RunComplete) -> None:
        if what == "hook":
            raise exc

    def record(entry: dict[str, Any]) -> None:
        if what == "recording" and entry["event"] == "complete":
            raise exc

    async def check(life: Life) -> None:
        store = BrokenMessages(exc) if what == "store" else MemoryMessages()
        async with Dispatcher(runner, messages=store, record=record) as d:
            run = await d.submit("the session", "tea", run_id="the-run", on_complete=hook)
            complete = await run
            expected = {"runner": "LookupError: gone wrong", "store": "LookupError: gone wrong"}.get(what, "")
            assert (complete.error or "").endswith(expected)
            assert bool(complete.error) is bool(expected)

    live(PLAIN, check)
    message = logged(caplog, exc).getMessage()
    assert "the session" in message
    assert "the-run" in message


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError


GROUP = ExceptionGroup(
    "two of three", [KeyError("user"), ExceptionGroup("inside", [ValueError(), OSError("disk full")])]
)


@pytest.mark.parametrize(
    ("exc", "error"),
    [
        (KeyError("user"), "KeyError: 'user'"),
        (ValueError("bad\nvalue"), "ValueError: bad\nvalue"),
        (RuntimeError(), "RuntimeError"),
        (TimeoutError(), "TimeoutError"),
        (Speechless(), "Speechless"),
    ],
    ids=lambda each: repr(each) if isinstance(each, str) else None,
)
def test_the_error_names_the_type(exc: Exception, error: str) -> None:
    async def raises(turn: Turn) -> str:
        raise exc

    async def check(life: Life) -> None:
        async with Dispatcher(raises) as d:
            assert (await d.ask("s", "tea")).error == error

    live(PLAIN, check)


@pytest.mark.parametrize("by", ["runner", "store"])
def test_the_error_of_a_group_names_what_is_in_it(by: str) -> None:
    async def raises(turn: Turn) -> str:
        if by == "runner":
            raise GROUP
        return "done"

    async def check(life: Life) -> None:
        async with Dispatcher(raises, messages=BrokenMessages(GROUP) if by == "store" else None) as d:
            error = (await d.ask("s", "tea")).error
            assert error is not None
            for named in ("ExceptionGroup", "KeyError: 'user'", "ValueError", "OSError: disk full"):
                assert named in error

    live(PLAIN, check)
