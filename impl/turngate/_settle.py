"""What keeps a cancel from outside, and the store, from standing between a turn and its completion."""

from __future__ import annotations

import asyncio
import contextlib
import types
from typing import TYPE_CHECKING, Any, Final, NoReturn

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Task
    from collections.abc import Generator

    from turngate._core import Effect, SessionCore
    from turngate._messages import Messages
    from turngate._run import Turn

_WRITTEN: Final = object()  # a default for next(), which is cheaper than a StopIteration


@types.coroutine
def begun() -> Generator[None, None, None]:
    """Suspend once, so that the coroutine has begun when it gets its task.

    A task that is cancelled before its first step never enters a coroutine that has not begun.
    """
    yield


async def settle(core: SessionCore, turn: Turn, store: Messages, within: float) -> list[Effect]:
    """Put the outcome of the turn on record, again if a cancel changes it meanwhile; return what follows.

    Cancelling the task does not end the write: a store that was interrupted is given the same messages
    again. All writes of the turn share one time-out, `within` seconds, which starts when the store first
    makes the turn wait.
    """
    task = turn.task
    assert task is not None
    undelivered = task.cancelling() > 0
    if undelivered:
        _forget_cancels(task)
    clock: _Clock | None = None
    while True:
        messages = core.outcome(turn)
        error = None
        try:
            put: Any = store.put(messages).__await__()
            waiting_for = next(put, _WRITTEN)
        except BaseException as exc:
            put, waiting_for, error = None, _WRITTEN, _failure(exc, task)
        if waiting_for is not _WRITTEN:
            clock = clock or _Clock(task, within)
            try:
                await _timed(put, waiting_for, clock)
            except asyncio.CancelledError as exc:
                if clock.expired:
                    error = f"writing the messages took longer than {within:g} s"
                elif _forget_cancels(task) or undelivered:
                    undelivered = False
                    continue
                else:
                    error = _failure(exc, task)
            except BaseException as exc:
                error = _failure(exc, task)
        if effects := core.written(turn, messages, error):
            return effects


class _Clock:
    """Cancels the task at the deadline, whenever it is ticking then."""

    def __init__(self, task: Task[None], within: float) -> None:
        self._task = task
        self._loop = task.get_loop()
        self._deadline = self._loop.time() + within
        self._expired = False

    @property
    def expired(self) -> bool:
        """Whether the time is up; the timer alone cannot tell if cancels keep coming before it."""
        return self._expired or self._loop.time() >= self._deadline

    def __enter__(self) -> None:
        self._timer = self._loop.call_at(self._deadline, self._expire)

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def _expire(self) -> None:
        self._expired = True
        self._task.cancel()


@types.coroutine
def _timed(steps: Any, waiting_for: Any, clock: _Clock) -> Generator[Any, Any, None]:
    """Go on with an awaitable after its first step, as `await` does, while the clock ticks."""
    with clock:
        try:
            while True:
                try:
                    sent = yield waiting_for
                except GeneratorExit as exc:
                    with contextlib.suppress(BaseException):
                        steps.throw(exc)
                    raise
                except BaseException as exc:
                    waiting_for = steps.throw(exc)
                else:
                    waiting_for = steps.send(sent)
        except StopIteration:
            return


def _forget_cancels(task: Task[None]) -> bool:
    """Give the store a task that nobody has cancelled, and say whether somebody had."""
    cancelled = task.cancelling() > 0
    while task.cancelling():
        task.uncancel()
    return cancelled


def _failure(exc: BaseException, task: Task[None]) -> str:
    if isinstance(exc, GeneratorExit):
        raise exc  # the turn itself is being closed: what is returned from here would be lost
    stop_loop(task.get_loop(), exc)
    return f"writing the messages failed: {describe(exc)}"


def describe(exc: BaseException) -> str:
    """Return what the exception says, or its name when it says nothing."""
    try:
        return str(exc) or type(exc).__name__
    except Exception:
        return type(exc).__name__


def stop_loop(loop: AbstractEventLoop, exc: BaseException) -> None:
    """Let an exception that is to end the process go on, out of the loop and out of every run's way."""
    if isinstance(exc, KeyboardInterrupt | SystemExit):
        loop.call_soon(_raise, exc)


def _raise(exc: BaseException) -> NoReturn:
    raise exc
