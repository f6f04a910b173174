"""Misbehaving third-party code around a dispatcher: task factories, and log handlers that raise."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from turngate._turn import TurnRunner
from turngate_verify.world.failures import RunnerFailed
from turngate_verify.world.virtual_loop import VirtualLoop

Made: TypeAlias = Any


def _refuses(loop: asyncio.AbstractEventLoop, coroutine: Any) -> Made:
    raise RunnerFailed("no tasks today")


def _makes_and_raises(loop: asyncio.AbstractEventLoop, coroutine: Any) -> Made:
    asyncio.Task(coroutine, loop=loop)
    raise RunnerFailed("no, on second thoughts")


def _drops(loop: asyncio.AbstractEventLoop, coroutine: Any) -> Made:
    coroutine.close()
    return asyncio.Task(asyncio.sleep(0), loop=loop)


def _cancels(loop: asyncio.AbstractEventLoop, coroutine: Any) -> Made:
    task = asyncio.Task(coroutine, loop=loop)
    task.cancel()
    return task


def _wraps(loop: asyncio.AbstractEventLoop, coroutine: Any) -> Made:
    async def traced() -> Any:
        return await coroutine

    return asyncio.Task(traced(), loop=loop)


def _wraps_and_cancels(loop: asyncio.AbstractEventLoop, coroutine: Any) -> Made:
    task = _wraps(loop, coroutine)
    task.cancel()
    return task


def _starts_at_once(loop: VirtualLoop, coroutine: Any) -> Made:
    task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop)
    current = asyncio.current_task(loop)
    if current is not None:
        asyncio.tasks._leave_task(loop, current)
    try:
        loop.ready.pop()._run()
    finally:
        if current is not None:
            asyncio.tasks._enter_task(loop, current)
    return task


FACTORIES: dict[str, Callable[[Any, Any], Made]] = {
    "refuses": _refuses,
    "raises when the task is made": _makes_and_raises,
    "drops it": _drops,
    "returns it cancelled": _cancels,
    "wraps it": _wraps,
    "wraps it and returns it cancelled": _wraps_and_cancels,
    "takes its first step": _starts_at_once,
}


def conducts(coroutine: Any) -> bool:
    """Return whether a coroutine conducts a turn."""
    return getattr(coroutine, "__qualname__", "") == TurnRunner._conduct.__qualname__


class TaskFactory:
    """A task factory that misbehaves when a turn is started, or only when the ``only``-th turn is.

    For any other coroutine it makes a plain task.
    """

    def __init__(self, does: Callable[[Any, Any], Made], only: int | None = None) -> None:
        self.calls = 0
        self._does, self._only = does, only

    def __call__(self, loop: Any, coroutine: Any) -> Made:
        """Make a task, as the factory of a loop."""
        if conducts(coroutine):
            self.calls += 1
            if self._only in (None, self.calls):
                return self._does(loop, coroutine)
        return asyncio.Task(coroutine, loop=loop)


class _Raising(logging.Handler):
    def __init__(self, raises: BaseException) -> None:
        super().__init__(logging.DEBUG)
        self._raises = raises

    def handle(self, record: logging.LogRecord) -> bool:
        raise self._raises


@contextlib.contextmanager
def log_that_raises(raises: BaseException | None) -> Iterator[None]:
    """Give the log a handler that raises at every line, and remove standard error; do nothing for None."""
    if raises is None:
        yield
        return
    log, handler = logging.getLogger("turngate"), _Raising(raises)
    was, stderr = (log.disabled, log.level, log.propagate), sys.stderr
    log.disabled, log.propagate = False, False
    log.setLevel(logging.DEBUG)
    log.addHandler(handler)
    sys.stderr = None  # as under some service managers
    try:
        yield
    finally:
        sys.stderr = stderr
        log.removeHandler(handler)
        log.disabled, level, log.propagate = was
        log.setLevel(level)
