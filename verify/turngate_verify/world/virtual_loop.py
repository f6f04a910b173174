"""An event loop that does nothing by itself: whoever holds it decides which callback runs next.

Time is virtual and stands still until told to advance. The same choices give
the same run, always. There are no sockets, signals or threads in a closed
world, so tasks, futures and timers are all there is.
"""

from __future__ import annotations

import asyncio
import heapq
import types
from collections import deque
from collections.abc import Coroutine, Generator
from contextvars import Context
from typing import Any, TypeVar

T = TypeVar("T")


class Suspended(AssertionError):
    """A call that must never wait has waited."""


class Waits(Exception):
    """A call has waited: the task has the rest of it."""

    def __init__(self, task: asyncio.Task[Any]) -> None:
        super().__init__(f"{task.get_name()} waits")
        self.task = task


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

    @property
    def timers(self) -> list[asyncio.TimerHandle]:
        """What waits for its time, cancelled or not."""
        return self._scheduled

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

    def tidy(self) -> None:
        """Let go of what was cancelled, so that all that is left would really happen."""
        for handle in self._ready:
            if handle._cancelled:
                live = [each for each in self._ready if not each.cancelled()]
                self._ready.clear()
                self._ready.extend(live)
                break
        while self._scheduled and self._scheduled[0].cancelled():
            heapq.heappop(self._scheduled)

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

    def begin(self, coroutine: Coroutine[Any, Any, T], name: str) -> T:
        """Run a coroutine up to where it first waits, from outside; raise Waits if it does.

        Like ``call``, one that never waits takes no step of the loop.
        """
        with self:
            try:
                waiting_for = coroutine.send(None)
            except StopIteration as done:
                result: T = done.value
                return result
            raise Waits(self.create_task(_rest(coroutine, waiting_for), name=name))

    def __enter__(self) -> None:
        asyncio._set_running_loop(self)

    def __exit__(self, *_: object) -> None:
        asyncio._set_running_loop(None)

    def __del__(self) -> None:
        self.close()

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
        self._check_closed()  # type: ignore[attr-defined]
        named = f"task {len(self.tasks)}" if name is None else str(name)
        factory: Any = self.get_task_factory()
        task: asyncio.Task[Any]
        if factory is not None:
            task = factory(self, coro)  # one that takes nothing else is the one most easily broken
        else:
            task = asyncio.Task(coro, loop=self, name=named, context=context)
        self.tasks.append(task)
        return task

    def _write_to_self(self) -> None:
        """Wake nobody: whoever holds the loop looks for what is ready."""


async def _rest(coroutine: Coroutine[Any, Any, T], waiting_for: Any) -> T:
    """Be what a task can be made of."""
    return await _resumed(coroutine, waiting_for)


@types.coroutine
def _resumed(coroutine: Coroutine[Any, Any, T], waiting_for: Any) -> Generator[Any, Any, T]:
    """Go on with a coroutine that waits already; one that only lets others go first has done so."""
    go_on: Any = coroutine.send
    what: Any = None
    begun = waiting_for is None
    while True:
        if not begun:
            go_on = coroutine.send
            try:
                what = yield waiting_for
            except BaseException as exc:
                go_on, what = coroutine.throw, exc
        begun = False
        try:
            waiting_for = go_on(what)
        except StopIteration as done:
            result: T = done.value
            return result
