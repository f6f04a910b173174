"""What can happen while a turn is being written: time runs out, the task is cancelled, the store raises."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from turngate._log import describe, log_error, log_or_propagate

if TYPE_CHECKING:
    from asyncio import Handle, Task

    from turngate._handles import Turn

_BLOCKED: Final = 0.05
"""A timer that is late by more than this, in seconds, shows that the loop was blocked, not the store slow."""
_SECOND_LOOKS: Final = 8
"""How many steps of the loop an answer of the store may need to reach the turn."""


class WriteClock:
    """Cancels the task when the time for its writes is up."""

    def __init__(self, task: Task[None], within: float) -> None:
        self.is_expired = False
        self._task = task
        self._within = within
        self._loop = task.get_loop()
        self._deadline = self._loop.time() + within
        self._second_looks = _SECOND_LOOKS

    def start(self) -> None:
        """Start the clock."""
        self._timer: Handle = self._loop.call_at(self._deadline, self._expire)

    def cancel(self) -> None:
        """Stop the clock."""
        self._timer.cancel()

    def _expire(self) -> None:
        late = self._loop.time() - self._deadline
        if late > _BLOCKED:  # the store may have answered while nothing could run
            self._deadline += late + min(late, self._within)
            self._timer = self._loop.call_at(self._deadline, self._expire)
        elif self._second_looks:
            self._second_looks -= 1
            self._timer = self._loop.call_soon(self._expire)
        else:
            self.is_expired = True
            self._task.cancel()

    def remaining(self) -> tuple[float, bool, int]:
        """Return the seconds left, whether the time is up, and how many second looks are left."""
        return self._deadline - self._loop.time(), self.is_expired, self._second_looks

    def too_late(self, turn: Turn) -> str:
        """Log that the time is up, and return the error."""
        error = f"writing the messages took longer than {self._within:g} s"
        log_error(None, "%s, in run %s of session %r", error, turn.run.run_id, turn.run.session_id)
        return error


def forget_cancels(task: Task[None]) -> None:
    """Clear the task's cancel, so that the store can be called."""
    while task.cancelling():
        task.uncancel()


def store_failure(exc: BaseException, turn: Turn) -> str:
    """Log what the store raised, and return the error."""
    log_or_propagate(exc, "the store raised in run %s of session %r", turn.run.run_id, turn.run.session_id)
    return f"writing the messages failed: {describe(exc)}"
