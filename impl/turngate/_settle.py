"""Writing what happened to a turn, so that neither the store nor a cancel from outside keeps it from its end.

There are four ways for a write to end. It succeeds. It fails: then the runs complete with an error. The task
is cancelled while the store works: then nobody knows what was written, and the turn is written again. Or the
time is up, which all the writes of a turn share: that is a failure too.
"""

from __future__ import annotations

import asyncio
import contextlib
import types
from functools import partial
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final

from turngate._guard import complain, deal_with, describe

if TYPE_CHECKING:
    from asyncio import Handle, Task
    from collections.abc import Awaitable, Callable, Coroutine, Generator

    from turngate._core import Effect, SessionCore
    from turngate._messages import Message, Messages
    from turngate._run import Turn

_OVER: Final = object()  # a default for next(), which is cheaper than a StopIteration
_BLOCKED: Final = 0.05
"""A timer that comes so many seconds late tells that the loop was blocked, not that the store was slow."""
_SECOND_LOOKS: Final = 8
"""So many steps of the loop may pass before the store's answer, which has come, has reached the turn."""


def settle(
    core: SessionCore, turn: Turn, store: Messages, within: float, from_outside: Callable[[Turn], None]
) -> list[Effect] | Coroutine[Any, Any, list[Effect]]:
    """Put the outcome of the turn on record. Return what follows, or a coroutine for it if the store waits.

    `within` is how many seconds the store may take, from when it first makes the turn wait.
    `from_outside` is told when the task has been cancelled and no cancel of the dispatcher's explains it.
    """
    task = turn.task
    assert task is not None
    undelivered = task.cancelling() > 0
    if undelivered:
        if not turn.covered:
            from_outside(turn)
        _forget_cancels(task)
    while True:
        messages = core.outcome(turn)
        error = None
        try:
            putting = store.put(messages)
            put: Any = (putting if type(putting) is CoroutineType else _awaited(putting)).__await__()
            if (waiting_for := next(put, _OVER)) is not _OVER:
                writing = _rest_of(put, waiting_for)
                clock = _Clock(task, within)
                return _settle_on(core, turn, store, clock, messages, writing, undelivered, from_outside)
        except BaseException as exc:
            error = _failure(exc, turn)
        if effects := core.written(turn, messages, error):
            return effects


async def _settle_on(
    core: SessionCore,
    turn: Turn,
    store: Messages,
    clock: _Clock,
    messages: tuple[Message, ...],
    writing: Awaitable[None],
    undelivered: bool,
    from_outside: Callable[[Turn], None],
) -> list[Effect]:
    """Go on with a write that waits, and write again as often as it takes.

    `undelivered` says that the task was cancelled before the first write, which may still come to feel it.
    """
    with clock:
        while True:
            error = None
            try:
                await writing
            except asyncio.CancelledError as exc:
                if not clock.expired and (clock.task.cancelling() or undelivered):
                    if clock.task.cancelling():
                        from_outside(turn)  # the dispatcher interrupts no turn that is being written
                    _forget_cancels(clock.task)
                    undelivered = False
                    writing = _put(store, messages)
                    continue
                error = clock.too_late(turn) if clock.expired else _failure(exc, turn)
            except GeneratorExit:
                raise  # the turn is being closed: what is returned from here would be lost
            except BaseException as exc:
                error = _failure(exc, turn)
            if effects := core.written(turn, messages, error):
                return effects
            messages = core.outcome(turn)
            writing = _put(store, messages)


async def _awaited(putting: Awaitable[None]) -> None:
    """Take whatever `await` takes."""
    await putting


@types.coroutine
def _put(store: Messages, messages: tuple[Message, ...]) -> Generator[Any, Any, None]:
    """Have the store write, from its first step on."""
    steps = _awaited(store.put(messages)).__await__()
    waiting_for = _next(partial(next, steps), _OVER)
    if waiting_for is not _OVER:
        yield from _rest_of(steps, waiting_for)  # pyright: ignore[reportGeneralTypeIssues] - it is a generator


@types.coroutine
def _rest_of(steps: Any, waiting_for: Any) -> Generator[Any, Any, None]:
    """Go on with an awaitable after its first step, as `await` does."""
    try:
        while True:
            try:
                sent = yield waiting_for
            except GeneratorExit as exc:
                with contextlib.suppress(BaseException):
                    steps.throw(exc)
                raise
            except BaseException as exc:
                waiting_for = _next(steps.throw, exc)
            else:
                waiting_for = _next(steps.send, sent)
    except StopIteration:
        return


def _next(step: Any, what: Any) -> Any:
    """Take one step of the store's; a GeneratorExit of its own must not look as if the turn was closed."""
    try:
        return step(what)
    except GeneratorExit as exc:
        raise RuntimeError("the store raised GeneratorExit") from exc
    finally:
        del what  # an exception holds this frame, by its traceback


class _Clock:
    """Cancels the task when the time of its writes is up."""

    def __init__(self, task: Task[None], within: float) -> None:
        self.task = task
        self.expired = False
        self._within = within
        self._loop = task.get_loop()
        self._deadline = self._loop.time() + within
        self._second_looks = _SECOND_LOOKS

    def __enter__(self) -> None:
        self._timer: Handle = self._loop.call_at(self._deadline, self._expire)

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def _expire(self) -> None:
        late = self._loop.time() - self._deadline
        if late > _BLOCKED:  # the store may have answered long ago, and nobody could hear it
            self._deadline += late + min(late, self._within)
            self.__enter__()
        elif self._second_looks and _is_answered(self.task):
            self._second_looks -= 1
            self._timer = self._loop.call_soon(self._expire)
        else:
            self.expired = True
            self.task.cancel()

    def too_late(self, turn: Turn) -> str:
        """Say that the time is up."""
        error = f"writing the messages took longer than {self._within:g} s"
        complain(None, "%s, in run %s of session %r", error, turn.run.run_id, turn.run.session_id)
        return error


def _is_answered(task: Task[Any]) -> bool:
    """Say whether what the task waits for has come, and the task is only to be told yet."""
    waits_for: Any = task
    while isinstance(waits_for, asyncio.Task) and not waits_for.done():
        waits_for = getattr(waits_for, "_fut_waiter", None)
    return waits_for is None or waits_for.done()


def _forget_cancels(task: Task[None]) -> None:
    """Give the store a task that nobody has cancelled."""
    while task.cancelling():
        task.uncancel()


def _failure(exc: BaseException, turn: Turn) -> str:
    deal_with(exc, "the store raised in run %s of session %r", turn.run.run_id, turn.run.session_id)
    return f"writing the messages failed: {describe(exc)}"
