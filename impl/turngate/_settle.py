"""Writes what happened to a turn, so that neither the store nor a cancel from outside keeps it from its end.

There are four ways for a write to end. It succeeds. It fails: then the runs complete with an error. The task
is cancelled while the store works: then it is unknown what was written, and the turn is written again. Or the
time is up, which all the writes of a turn share: that is a failure too.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from turngate._log import describe, log_error, log_or_propagate
from turngate._turn import is_current

if TYPE_CHECKING:
    from asyncio import Handle, Task
    from collections.abc import Callable
    from typing import Self

    from turngate._core import Decided, SessionCore
    from turngate._handles import Turn
    from turngate._messages import Messages

_BLOCKED: Final = 0.05
"""A timer that is later than this, in seconds, shows that the loop was blocked, not the store slow."""
_SECOND_LOOKS: Final = 8
"""Steps of the loop that it may take until the store's answer, which has come, has reached the turn."""


async def settle(
    core: SessionCore, turn: Turn, store: Messages, within: float, cancelled_from_outside: Callable[[], None]
) -> Decided:
    """Put the outcome of the turn on record, and return what follows.

    `within` is how many seconds the store may take. `cancelled_from_outside` is called when the task has been
    cancelled and no cancel of the dispatcher's explains it.
    """
    record, task = turn.record, turn.task
    assert task is not None
    is_undelivered = task.cancelling() > 0  # the first write may still come to feel this cancel
    if is_undelivered:
        if not record.covered:
            cancelled_from_outside()
        _forget_cancels(task)
    with _Clock(task, within) as clock:
        while True:
            messages = core.outcome(record)
            failure: str | None = None
            try:
                await store.put(messages)
            except BaseException as exc:
                if not is_current(task):
                    raise GeneratorExit from exc  # the turn is being closed, whatever the store makes of that
                is_cancelled = isinstance(exc, asyncio.CancelledError)
                if is_cancelled and clock.is_expired:
                    failure = clock.too_late(turn)
                elif is_cancelled and (task.cancelling() or is_undelivered):
                    if task.cancelling():
                        cancelled_from_outside()  # the dispatcher interrupts no turn that is being written
                    _forget_cancels(task)
                    is_undelivered = False
                    continue
                else:
                    failure = _failure(exc, turn)
            if (decided := core.written(record, messages, failure)) is not None:
                return decided


class _Clock:
    """Cancels the task when the time of its writes is up."""

    def __init__(self, task: Task[None], within: float) -> None:
        self.is_expired = False
        self._task = task
        self._within = within
        self._loop = task.get_loop()
        self._deadline = self._loop.time() + within
        self._second_looks = _SECOND_LOOKS

    def __enter__(self) -> Self:
        self._timer: Handle = self._loop.call_at(self._deadline, self._expire)
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def _expire(self) -> None:
        late = self._loop.time() - self._deadline
        if late > _BLOCKED:  # the store may have answered long ago, while nothing could run
            self._deadline += late + min(late, self._within)
            self._timer = self._loop.call_at(self._deadline, self._expire)
        elif self._second_looks:
            self._second_looks -= 1
            self._timer = self._loop.call_soon(self._expire)
        else:
            self.is_expired = True
            self._task.cancel()

    def remaining(self) -> tuple[float, bool, int]:
        """Return the seconds that are left, whether the time is up, and the second looks that are left."""
        return self._deadline - self._loop.time(), self.is_expired, self._second_looks

    def too_late(self, turn: Turn) -> str:
        """Log that the time is up, and return the error."""
        error = f"writing the messages took longer than {self._within:g} s"
        log_error(None, "%s, in run %s of session %r", error, turn.run.run_id, turn.run.session_id)
        return error


def _forget_cancels(task: Task[None]) -> None:
    """Give the store a task that is not cancelled."""
    while task.cancelling():
        task.uncancel()


def _failure(exc: BaseException, turn: Turn) -> str:
    log_or_propagate(exc, "the store raised in run %s of session %r", turn.run.run_id, turn.run.session_id)
    return f"writing the messages failed: {describe(exc)}"
