"""The event loop and the thread that a dispatcher belongs to, and how it tells that the loop ends.

A loop may be torn down under a dispatcher that nobody has closed, as `asyncio.run` does when its main task is
over: it cancels every task, and runs on until they are done. Turns that are cancelled then hand off as ever,
but no queued runner is to be started any more.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from typing import TYPE_CHECKING, Final

from turngate._clean_up import CleanUp
from turngate._errors import WrongLoop
from turngate._turn import StandIn

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from turngate._run import Turn

_SECOND_LOOK: Final = 1.0
"""Seconds after which a loop that seemed to come to its end is looked at again."""
_THE_LOOPS_OWN: Final = frozenset({"shutdown_asyncgens", "shutdown_default_executor"})
"""What `asyncio.run` still runs on a loop that comes to its end."""
_CANCELLED_FROM_OUTSIDE: Final[weakref.WeakSet[asyncio.Task[None]]] = weakref.WeakSet()
"""The tasks that do no more than to write a turn, for which their cancels had to be forgotten."""

running_loop = asyncio._get_running_loop  # None where `get_running_loop` raises


class Surroundings:
    """Where a dispatcher belongs, and what it makes of the end of that place."""

    _thread: int
    """The thread of the loop, set together with it."""

    def __init__(self) -> None:
        self._loop: AbstractEventLoop | None = None
        self._loop_ends = False
        self._cut_short = False

    def _start(self, turn: Turn) -> None:
        """Have the loop make the task of the turn; see `Shell`."""
        raise NotImplementedError

    # Where it belongs.

    def _here(self) -> AbstractEventLoop:
        """Return the dispatcher's loop; raise WrongLoop unless it is the one that runs here."""
        loop = running_loop()
        if loop is None or loop is not self._loop:
            return self._belong_to(loop)
        return loop

    def _belong_to(self, loop: AbstractEventLoop | None) -> AbstractEventLoop:
        if loop is None or self._loop is not None:
            raise WrongLoop(
                "the dispatcher was called outside of its event loop; from another thread, use "
                "asyncio.run_coroutine_threadsafe(dispatcher.submit(...), loop)"
            )
        self._loop = loop
        self._thread = threading.get_ident()
        return loop

    def _in_thread(self) -> None:
        """Raise WrongLoop in another thread than that of the dispatcher's loop, and in another loop.

        Unlike `_here`, it is content in that thread when no loop is running.
        """
        if self._loop is not None:
            running = running_loop()
            if running is not self._loop and (running is not None or self._thread != threading.get_ident()):
                self._here()

    # A loop that comes to its end under an open dispatcher.

    def _look_whether_the_loop_ends(self, turn: Turn) -> None:
        """Take a cancel from outside for the end of the loop if everything else is cancelled too."""
        assert self._loop is not None
        if turn.task is not None:
            _CANCELLED_FROM_OUTSIDE.add(turn.task)
        if not any(map(_lives, asyncio.all_tasks(self._loop))):
            self._loop_ends = self._cut_short = True

    def _held_back(self, turn: Turn) -> bool:
        """Start no queued runner while everything around it is torn down: look again later."""
        assert self._loop is not None
        if self._loop.is_closed():
            return False
        if any(map(_lives, asyncio.all_tasks(self._loop))):
            self._loop_ends = self._cut_short = False
            return False
        self._loop.call_later(_SECOND_LOOK, self._look_again, turn)
        return True

    def _look_again(self, turn: Turn, steps: int = 2) -> None:
        """Start a turn that was held back, unless the loop is still coming to its end.

        A loop without any task may be about to stop, which takes it so many steps.
        """
        assert self._loop is not None
        tasks = asyncio.all_tasks(self._loop)
        if tasks and not any(map(_lives, tasks)):
            self._loop.call_later(_SECOND_LOOK, self._look_again, turn)
        elif not tasks and steps > 0:
            self._loop.call_soon(self._look_again, turn, steps - 1)
        else:
            self._loop_ends = self._cut_short = False
            self._start(turn)


class BoundToLoop:
    """The `LoopCheck` of a dispatcher."""

    def __init__(self, owner: Surroundings) -> None:
        self._owner = owner

    def check_loop(self) -> AbstractEventLoop:
        """Return the dispatcher's loop; raise WrongLoop unless it is running here."""
        return self._owner._here()

    def check_thread(self) -> None:
        """Raise WrongLoop in another thread than the dispatcher's, and on another loop."""
        self._owner._in_thread()


def _lives(task: asyncio.Task[object]) -> bool:
    """Say whether a task goes on, unlike all those on a loop that comes to its end."""
    if task.cancelling() or isinstance(task, StandIn | CleanUp) or task in _CANCELLED_FROM_OUTSIDE:
        return False
    return getattr(task.get_coro(), "__name__", "") not in _THE_LOOPS_OWN
