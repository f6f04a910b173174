"""The tasks of a worker, which nobody else knows: kept as long as they run."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar, cast

from turngate._shell import Shell
from turngate._supervise import Supervisor

if TYPE_CHECKING:
    from asyncio import Task
    from collections.abc import Coroutine

T = TypeVar("T")


class Tasks(Shell):
    """A shell with tasks of its own. They are not made by a factory: they are not the user's business."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._tasks: set[Task[Any]] = set()
        self._supervisor = Supervisor(self._spawn)
        """Runs what works in the background until the close."""

    def _spawn(self, coroutine: Coroutine[Any, Any, T]) -> Task[T]:
        """Have a task that somebody may wait for; if nobody does, what it raises is not mentioned."""
        task = asyncio.Task(coroutine, loop=self._here())
        self._tasks.add(task)
        task.add_done_callback(self._is_done)
        return task

    def _is_done(self, task: Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waited has been told

    def _send_off(self, coroutine: Coroutine[Any, Any, None]) -> Task[None]:
        """Have a task of what raises nothing: that nobody is called at its end saves a callback each time."""
        task = asyncio.Task(self._until_over(coroutine), loop=self._here())
        self._tasks.add(task)
        return task

    async def _until_over(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = cast("Task[None]", asyncio.current_task())
        try:
            await coroutine
        finally:
            self._tasks.discard(task)
