"""The background tasks of a process: known only here, and kept as long as they run."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from turngate._supervise import Supervisor

if TYPE_CHECKING:
    from asyncio import Task
    from collections.abc import Coroutine

    from turngate._loop import HomeLoop

T = TypeVar("T")


class BackgroundTasks:
    """Tasks that no factory makes: they are not the user's. `supervisor` runs those that must not end."""

    def __init__(self, loop: HomeLoop) -> None:
        self.tasks: set[Task[Any]] = set()
        self.supervisor = Supervisor(self.spawn)
        self._loop = loop

    def spawn(self, coroutine: Coroutine[Any, Any, T]) -> Task[T]:
        """Start a task that may be awaited; if it is not, what it raises is not mentioned."""
        task = asyncio.Task(coroutine, loop=self._loop.check_loop())
        self.tasks.add(task)
        task.add_done_callback(self._is_done)
        return task

    def _is_done(self, task: Task[Any]) -> None:
        self.tasks.discard(task)
        if not task.cancelled():
            task.exception()  # those who waited have been told
