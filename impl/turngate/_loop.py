"""The event loop and the thread that a dispatcher belongs to, and clean-ups on it.

A loop may be torn down under a dispatcher that was never closed, as `asyncio.run` does when its main task
ends: it cancels every task, and runs on until they are done. Turns that are cancelled then hand off as usual,
but no queued run's runner should start any more.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from typing import TYPE_CHECKING, Any, Final, TypeVar

from turngate._errors import WrongLoop
from turngate._log import log_error

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Awaitable, Callable


_SECOND_LOOK: Final = 1.0
"""Seconds after which to check again whether a loop that seemed to end really ends."""
_OWN_TASKS: Final = frozenset({"shutdown_asyncgens", "shutdown_default_executor"})
"""The coroutines that `asyncio.run` still runs on a loop that ends."""
_ENDING: Final[weakref.WeakSet[asyncio.Task[None]]] = weakref.WeakSet()
"""Tasks that only write a turn; their cancels had to be cleared for that."""


def running_loop() -> AbstractEventLoop | None:
    """Return the loop that runs in this thread; None if there is none."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class StandIn(asyncio.Task[None]):
    """Ends a turn whose own task never began."""


class HomeLoop:
    """The loop that a dispatcher belongs to, from its first call on.

    `ends` says that the loop seems to be torn down, `cut_short` that turns ended because of it.
    """

    def __init__(self) -> None:
        self.loop: AbstractEventLoop | None = None
        self.ends = False
        self.cut_short = False
        self._thread = 0

    def is_running_here(self) -> bool:
        """Return whether the caller is on the dispatcher's loop."""
        try:
            return asyncio.get_running_loop() is self.loop
        except RuntimeError:
            return False

    def check_loop(self) -> AbstractEventLoop:
        """Return the dispatcher's loop; raise WrongLoop unless it is the one running here."""
        try:
            loop: AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        if loop is not None and loop is self.loop:
            return loop
        if loop is None or self.loop is not None:
            raise WrongLoop(
                "the dispatcher was called outside of its event loop; from another thread, use "
                "asyncio.run_coroutine_threadsafe(dispatcher.submit(...), loop)"
            )
        self.loop = loop
        self._thread = threading.get_ident()
        return loop

    def check_thread(self) -> None:
        """Raise WrongLoop in a thread other than that of the dispatcher's loop, and in another loop.

        Unlike `check_loop`, it accepts a call in that thread while no loop is running.
        """
        if self.loop is not None:
            running = running_loop()
            if running is not self.loop and (running is not None or self._thread != threading.get_ident()):
                self.check_loop()

    # A loop that ends under an open dispatcher.

    def look_whether_it_ends(self, task: asyncio.Task[None] | None) -> None:
        """Treat a cancel from outside as the end of the loop if everything else is cancelled too."""
        assert self.loop is not None
        if task is not None:
            _ENDING.add(task)
        if not any(map(_lives, asyncio.all_tasks(self.loop))):
            self.ends = self.cut_short = True

    def hold_back(self, start: Callable[[], None]) -> bool:
        """Start no queued run while the loop is being torn down; look again later."""
        assert self.loop is not None
        if not self.ends or self.loop.is_closed():
            return False
        if any(map(_lives, asyncio.all_tasks(self.loop))):
            self.ends = self.cut_short = False
            return False
        self.loop.call_later(_SECOND_LOOK, self._look_again, start)
        return True

    def _look_again(self, start: Callable[[], None], steps: int = 2) -> None:
        """Start what was held back, unless the loop is still ending.

        A loop without any task may be about to stop, which takes a few steps.
        """
        assert self.loop is not None
        tasks = asyncio.all_tasks(self.loop)
        if tasks and not any(map(_lives, tasks)):
            self.loop.call_later(_SECOND_LOOK, self._look_again, start)
        elif not tasks and steps > 0:
            self.loop.call_soon(self._look_again, start, steps - 1)
        else:
            self.ends = self.cut_short = False
            start()


def _lives(task: asyncio.Task[object]) -> bool:
    """Return whether a task goes on, unlike all those on a loop that ends."""
    if task.cancelling() or isinstance(task, StandIn | CleanUp) or task in _ENDING:
        return False
    return getattr(task.get_coro(), "__name__", "") not in _OWN_TASKS


T = TypeVar("T")


class CleanUp(asyncio.Task[T]):
    """A clean-up. It is not made by the task factory, which might refuse."""


async def clean_up(awaitable: Awaitable[T], within: float) -> T:
    """Await to the end, for this many seconds, however often the caller is cancelled meanwhile.

    There are four cases. The awaitable returns: so does this. It raises: so does this. The time is up: it is
    cancelled, and TimeoutError is raised. The caller was cancelled meanwhile: then CancelledError is raised
    once the awaitable has ended in one of these ways.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within
    work = CleanUp(_awaited(awaitable), loop=loop, name="clean-up")
    interrupt: asyncio.CancelledError | None = None
    try:
        while not work.done() and (left := deadline - loop.time()) > 0:
            try:
                await asyncio.wait({work}, timeout=left)
            except asyncio.CancelledError as exc:
                interrupt = exc
        if interrupt is not None:
            raise interrupt
        if not work.done():
            raise TimeoutError(f"the clean-up took longer than {within:g} s")
        return work.result()
    finally:
        if (interrupt is not None or not work.done()) and not loop.is_closed():
            work.add_done_callback(_retrieve)
            work.cancel()
        del work, interrupt  # what is raised holds this frame


async def _awaited(awaitable: Awaitable[T]) -> T:
    return await awaitable


def _retrieve(work: asyncio.Future[Any]) -> None:
    """Log what no caller will see, because an interrupt or a timeout is raised instead."""
    if not work.cancelled() and (exc := work.exception()) is not None:
        log_error(exc, "a clean-up raised")
