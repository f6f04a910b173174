"""An event loop that does nothing by itself: whoever holds it decides which callback runs next.

Time is virtual and stands still until told to advance. The same choices give
the same run, always. There are no sockets, signals or threads in a closed
world, so tasks, futures and timers are all there is.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Coroutine
from contextvars import Context
from typing import Any, TypeVar

T = TypeVar("T")


class Suspended(AssertionError):
    """A call that must never wait has waited."""


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs one callback at a time, the one it is told to."""

    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]

    def __init__(self) -> None:
        super().__init__()
        self.problems: list[dict[str, Any]] = []
        """What went to the exception handler: nothing should."""
        self.tasks: list[asyncio.Task[Any]] = []
        """Every task ever made, in order."""
        self._now = 0.0
        self.set_debug(False)

    @property
    def ready(self) -> deque[asyncio.Handle]:
        """What could run next, in the order in which stock asyncio would run it."""
        return self._ready

    def step(self, choice: int = 0) -> bool:
        """Run one of the ready callbacks, by default the first; return False if there is none."""
        if not self._ready:
            return False
        handle = self._ready[choice]
        del self._ready[choice]
        if not handle.cancelled():
            with self:
                handle._run()
        return True

    def settle(self, limit: int = 10_000) -> None:
        """Run callbacks in plain order until none is ready. Time stands still."""
        for _ in range(limit):
            if not self.step():
                return
        raise AssertionError(f"still busy after {limit} callbacks")

    def advance(self, seconds: float) -> None:
        """Let time pass, making ready what was due, in the order in which it was."""
        self._now += seconds
        while self._scheduled and self._scheduled[0].when() <= self._now:
            timer = heapq.heappop(self._scheduled)
            if not timer.cancelled():
                self._ready.append(timer)

    def next_timer(self) -> float | None:
        """Return when the next timer is due, if there is one."""
        while self._scheduled and self._scheduled[0].cancelled():
            heapq.heappop(self._scheduled)
        return self._scheduled[0].when() if self._scheduled else None

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine that must never wait, from outside, without a task."""
        with self:
            try:
                coroutine.send(None)
            except StopIteration as done:
                result: T = done.value
                return result
            finally:
                coroutine.close()
        raise Suspended(f"{coroutine} waits, and should not")

    def __enter__(self) -> None:
        asyncio._set_running_loop(self)

    def __exit__(self, *_: object) -> None:
        asyncio._set_running_loop(None)

    def __del__(self) -> None:
        self.close()

    def _check_closed(self) -> None:
        """Let what is left of an abandoned world come to nothing, without complaint."""

    # What asyncio asks of it.

    def time(self) -> float:
        """Return the virtual time."""
        return self._now

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Keep what nobody else has dealt with."""
        self.problems.append(context)

    def create_task(
        self, coro: Any, *, name: object = None, context: Context | None = None, **_: Any
    ) -> asyncio.Task[Any]:
        """Make a task, with a name that is the same in the same run."""
        named = f"task {len(self.tasks)}" if name is None else str(name)
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=named, context=context)
        self.tasks.append(task)
        return task
