"""Writing a turn's messages so that neither a cancel nor the store keeps its runs from completing."""

from __future__ import annotations

import asyncio
import types
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Task, TimerHandle
    from collections.abc import Awaitable, Generator

    from turngate._core import SessionCore, TurnRecord
    from turngate._messages import Messages


async def settle(core: SessionCore, turn: TurnRecord, store: Messages, timeout: float) -> None:
    """Put the outcome of the turn on record, again if a cancel changes it meanwhile.

    Cancelling the task does not end the write: a store that was interrupted is given the same messages
    again. All writes of the turn share one time-out.
    """
    task = asyncio.current_task()
    assert task is not None
    clock = _Clock(task, timeout)
    undelivered = _forget_cancels(task)
    while messages := core.unwritten(turn):
        clock.started = False
        try:
            await _timed(store.put(messages), clock)
            error = None
        except asyncio.CancelledError as exc:
            if clock.started and not clock.expired and (_forget_cancels(task) or undelivered):
                undelivered = False
                continue
            error = f"writing the messages failed: {describe(exc)}"
            if clock.expired:
                error = f"writing the messages took longer than {timeout:g} s"
        except BaseException as exc:
            error = f"writing the messages failed: {describe(exc)}"
            stop_loop(task.get_loop(), exc)
        core.written(turn, messages, error)


class _Clock:
    """The time-out of a turn's writes; it starts when the store first makes the turn wait."""

    __slots__ = ("_deadline", "_task", "_timeout", "expired", "started")

    def __init__(self, task: Task[Any], timeout: float) -> None:
        self._task = task
        self._timeout = timeout
        self._deadline: float | None = None
        self.started = False
        self.expired = False

    def start(self) -> TimerHandle:
        loop = self._task.get_loop()
        if self._deadline is None:
            self._deadline = loop.time() + self._timeout
        self.started = True
        return loop.call_at(self._deadline, self._expire)

    def _expire(self) -> None:
        self.expired = True
        self._task.cancel()


@types.coroutine
def _timed(write: Awaitable[None], clock: _Clock) -> Generator[Any, Any, None]:
    """Await the write, as `await` does; a write that does not wait pays for no timer."""
    steps: Any = write.__await__()
    try:
        waiting_for = steps.send(None)
    except StopIteration:
        return
    timer = clock.start()
    try:
        while True:
            try:
                sent = yield waiting_for
            except BaseException as exc:
                waiting_for = steps.throw(exc)
            else:
                waiting_for = steps.send(sent)
    except StopIteration:
        return
    finally:
        timer.cancel()


def _forget_cancels(task: Task[Any]) -> bool:
    """Give the store a task that nobody has cancelled, and say whether somebody had."""
    cancelled = task.cancelling() > 0
    while task.cancelling():
        task.uncancel()
    return cancelled


def describe(exc: BaseException) -> str:
    """Return what the exception says, or its name when it says nothing."""
    try:
        return str(exc) or type(exc).__name__
    except Exception:
        return type(exc).__name__


def stop_loop(loop: AbstractEventLoop, exc: BaseException) -> None:
    """Let an exception that is to end the process go on, out of the loop and out of no run's way."""
    if isinstance(exc, KeyboardInterrupt | SystemExit):
        loop.call_soon(_raise, exc)


def _raise(exc: BaseException) -> NoReturn:
    raise exc
