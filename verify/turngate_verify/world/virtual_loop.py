"""An event loop that runs nothing by itself: a driver decides which callback runs next.

Time is virtual, and stands still until the driver advances it. So the same
choices always have the same consequences. There are no sockets, signals or
threads, only tasks, futures and timers.
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
    """A call waits. The task does the rest."""

    def __init__(self, task: asyncio.Task[Any]) -> None:
        super().__init__(f"{task.get_name()} waits")
        self.task = task


class VirtualLoop(asyncio.BaseEventLoop):
    """A loop that runs one callback at a time, the one that the driver chooses."""

    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]

    def __init__(self) -> None:
        super().__init__()
        self.problems: list[dict[str, Any]] = []
        """What the exception handler received. It should receive nothing."""
        self.tasks: list[asyncio.Task[Any]] = []
        """Every task ever made, in order."""
        self._now = 0.0
        self.set_debug(False)

    @property
    def ready(self) -> deque[asyncio.Handle]:
        """The callbacks that could run next, in the order in which asyncio itself would run them."""
        return self._ready

    @property
    def timers(self) -> list[asyncio.TimerHandle]:
        """The timers that are not due yet, the cancelled ones too."""
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
        """Remove cancelled callbacks and timers, so that each one left would really run."""
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
        """Let time pass; timers that are due become ready, in the order of their times."""
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
        """Run a coroutine that must never wait, outside of any task."""
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
        """Run a coroutine outside of any task up to where it first waits; raise Waits if it does.

        Like ``call``, this takes no step of the loop.
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

    # What asyncio requires.

    def time(self) -> float:
        """Return the virtual time."""
        return self._now

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Add to ``problems``."""
        self.problems.append(context)

    def create_task(
        self, coro: Any, *, name: object = None, context: Context | None = None, **_: Any
    ) -> asyncio.Task[Any]:
        """Make a task. Its name depends only on how many tasks there were before."""
        self._check_closed()  # type: ignore[attr-defined]  # not in the stubs
        named = f"task {len(self.tasks)}" if name is None else str(name)
        factory: Any = self.get_task_factory()
        task: asyncio.Task[Any]
        if factory is not None:
            task = factory(self, coro)  # many factories take neither a name nor a context
        else:
            task = asyncio.Task(coro, loop=self, name=named, context=context)
        self.tasks.append(task)
        return task

    def _write_to_self(self) -> None:
        """Do nothing: the loop never sleeps, so it need not be woken."""


async def _rest(coroutine: Coroutine[Any, Any, T], waiting_for: Any) -> T:
    """Continue a coroutine that waits. This new coroutine can be made a task."""
    return await _resumed(coroutine, waiting_for)


@types.coroutine
def _resumed(coroutine: Coroutine[Any, Any, T], waiting_for: Any) -> Generator[Any, Any, T]:
    """Continue a coroutine that is already waiting; at once, if it only let others go first."""
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


def coroutine_of(task: asyncio.Task[Any]) -> Any:
    """Return what a task of this loop runs: never None, which the types of some Pythons allow."""
    return task.get_coro()
