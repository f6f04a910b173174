"""A real event loop that runs one callback at a time, counts them, and whose time is virtual.

Agent frameworks want more of a loop than the closed world of the drivers has: async generators, nested task
groups, anyio. Here they have all of asyncio, and a test still says between which two callbacks it acts.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

MANY = 100_000
"""After this many callbacks, a conversation counts as endless."""


class SteppingLoop(asyncio.SelectorEventLoop):
    """Runs one callback per step; `between` is called before each of them."""

    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0
        self.between: Callable[[], None] = lambda: None
        self.problems: list[dict[str, Any]] = []
        """What went to the exception handler: nothing should."""
        self.set_exception_handler(lambda _, problem: self.problems.append(problem))
        self._now = 0.0

    def time(self) -> float:
        """Return the virtual time, which passes when there is nothing else to do."""
        return self._now

    def now(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine that never waits, right here, between two callbacks."""
        try:
            coroutine.send(None)
        except StopIteration as done:
            result: T = done.value
            return result
        finally:
            coroutine.close()
        raise AssertionError(f"{coroutine} waits, and should not")

    def run_in_executor(self, _: Any, call: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]  # nothing else is asked of it
        """Call what would run in a thread on a later step: how long a thread takes must not matter."""
        future: asyncio.Future[T] = self.create_future()

        def run() -> None:
            if future.cancelled():
                return
            try:
                future.set_result(call(*args))
            except BaseException as exc:
                future.set_exception(exc)

        self.call_soon(run)
        return future

    def _run_once(self) -> None:
        """Run the next callback; if there is none, let time pass until the next timer."""
        if not self._ready:
            while self._scheduled and self._scheduled[0].cancelled():
                heapq.heappop(self._scheduled)._scheduled = False  # type: ignore[attr-defined]  # not in the stubs
            assert self._scheduled, "nothing will ever happen any more"
            timer = heapq.heappop(self._scheduled)
            timer._scheduled = False  # type: ignore[attr-defined]  # not in the stubs
            self._now = max(self._now, timer.when())
            self._ready.append(timer)
        handle = self._ready.popleft()
        if handle.cancelled():
            return
        self.steps += 1
        assert self.steps < MANY, "this conversation does not end"
        self.between()
        handle._run()


def in_steps(main: Callable[[SteppingLoop], Coroutine[Any, Any, T]], *, leaves: str | None = None) -> T:
    """Run a coroutine on a new stepping loop; no problem may be left behind, and no task.

    `leaves` is the name of the coroutine whose tasks may be: those of a library that is known for it.
    """
    with asyncio.Runner(loop_factory=SteppingLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, SteppingLoop)

        async def whole() -> T:
            result = await main(loop)
            for _ in range(20):
                await asyncio.sleep(0)
            left = asyncio.all_tasks() - {asyncio.current_task()}
            unknown = [task for task in left if getattr(task.get_coro(), "__qualname__", "") != leaves]
            assert not unknown, f"left behind: {unknown}"
            return result

        result = runner.run(whole())
    assert not loop.problems, loop.problems
    return result
