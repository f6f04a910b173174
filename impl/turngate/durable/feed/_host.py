"""What a feed needs of the dispatcher that it belongs to, and what wakes the feed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from turngate._events import LoopCheck

if TYPE_CHECKING:
    from asyncio import Task
    from collections.abc import Callable, Coroutine

    from turngate.durable._flight import Flight


class Host(LoopCheck, Protocol):
    """What a feed needs of its dispatcher."""

    async def ready(self) -> None:
        """Wait until the ledger is open; raise DispatcherClosed once the dispatcher is closed."""

    def pending_steps(self) -> list[Flight]:
        """Return the steps that this process has sent and that have not been answered yet."""
        ...

    def has_hook(self, run_id: str) -> bool:
        """Say whether an `on_complete` of this process waits for the RunComplete."""
        ...

    def supervise(self, name: str, run: Callable[[], Coroutine[Any, Any, None]]) -> Task[None]:
        """Run a background task, again if it fails; see `Supervisor.start`."""
        ...


class News:
    """Wakes the tasks that read the ledger: there may be something new, or the feed has closed.

    A task remembers `count` before it looks, and passes it to `wait`. So it misses nothing, although several
    tasks wait.
    """

    def __init__(self, poll: float) -> None:
        self.count = 0
        self.stopping = False
        """Whether the ledger is about to be closed, so that a failure to read it means nothing."""
        self.closed = False
        self._poll = poll
        self._event = asyncio.Event()

    def wake(self) -> None:
        """Wake every task that waits."""
        self.count += 1
        self._event.set()

    async def wait(self, heard: int, within: float | None = None) -> None:
        """Return once `count` is no longer `heard`, or after `within` seconds; by default, poll."""
        if self.count != heard:
            return
        self._event.clear()
        try:
            async with asyncio.timeout(self._poll if within is None else within):
                await self._event.wait()
        except TimeoutError:
            pass

    def close(self) -> None:
        """Wake every task for the last time."""
        self.stopping = self.closed = True
        self.wake()
