"""Background tasks that do not die silently.

A task of a dispatcher or a server that works in the background (reads a ledger, follows completions, listens)
has no caller who would notice its end. A `Supervisor` notices:

1. A task that raises is logged with its traceback, and started again after a pause. The pause doubles with
   each failure in a row.
2. A task that raises one of its `final` exceptions cannot go on. That is logged, and `failed` is called with
   the exception, so that whatever depends on the task can react.
3. A task that returns is not started again, nor is one that `stop`, `close` or the end of the loop cancels.
   A `CancelledError` that does not come from a cancel of this task counts as an exception: awaiting a
   future that another task has cancelled must not end a task for good.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from turngate._log import log_error

if TYPE_CHECKING:
    from asyncio import Task
    from collections.abc import Callable, Coroutine

_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 10.0


class Supervisor:
    """Runs background tasks and restarts those that fail; see the rules above.

    spawn          makes a task of a coroutine; `asyncio.create_task` by default
    first_pause    seconds before the first restart
    longest_pause  seconds before a restart at most; a task that ran longer than this without failing starts
                   again with the first pause
    """

    def __init__(
        self,
        spawn: Callable[[Coroutine[Any, Any, None]], Task[None]] = asyncio.create_task,
        *,
        first_pause: float = _FIRST_PAUSE,
        longest_pause: float = _LONGEST_PAUSE,
    ) -> None:
        self._spawn = spawn
        self._first_pause = first_pause
        self._longest_pause = longest_pause
        self._tasks: set[Task[None]] = set()

    def start(
        self,
        name: str,
        run: Callable[[], Coroutine[Any, Any, None]],
        *,
        final: tuple[type[BaseException], ...] = (),
        failed: Callable[[BaseException], object] | None = None,
    ) -> Task[None]:
        """Run what `run` makes, and run it again when it fails. The log uses the name.

        The returned task ends when the work has ended for good. It raises only CancelledError.
        """
        task = self._spawn(self._supervise(name, run, final, failed))
        task.set_name(f"turngate: {name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _supervise(
        self,
        name: str,
        run: Callable[[], Coroutine[Any, Any, None]],
        final: tuple[type[BaseException], ...],
        failed: Callable[[BaseException], object] | None,
    ) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        pause = self._first_pause
        while True:
            began = loop.time()
            try:
                await run()
            except final as exc:
                log_error(exc, "%s has failed for good", name)
                if failed is not None:
                    _call(name, failed, exc)
                return
            except (Exception, asyncio.CancelledError) as exc:
                if isinstance(exc, asyncio.CancelledError) and task.cancelling():
                    raise
                if loop.time() - began > self._longest_pause:
                    pause = self._first_pause
                log_error(exc, "%s has failed, and starts again in %g seconds", name, pause)
            else:
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, self._longest_pause)

    async def stop(self, task: Task[None]) -> None:
        """Cancel one task and wait until it has ended."""
        task.cancel()
        await _ends({task})

    async def close(self) -> None:
        """Cancel all tasks and wait for their ends. Idempotent. A task that calls it is not cancelled."""
        others = self._tasks - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await _ends(others)

    def __len__(self) -> int:
        return len(self._tasks)


async def _ends(tasks: set[Task[None]]) -> None:
    if tasks:
        await asyncio.wait(tasks)


def _call(name: str, failed: Callable[[BaseException], object], exc: BaseException) -> None:
    try:
        failed(exc)
    except Exception as raised:
        log_error(raised, "reporting the failure of %s raised", name)
