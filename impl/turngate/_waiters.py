"""Waiting for something to change, so that cancelling one who waits touches nobody else."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future


class Waiters:
    """Those who wait to look again, woken in the order in which they came."""

    __slots__ = ("_futures",)

    def __init__(self) -> None:
        # Not a set, which would wake them in the order of their addresses.
        self._futures: dict[Future[None], None] = {}

    async def wait(self, loop: AbstractEventLoop) -> None:
        """Wait until woken; whoever waits then looks whether what it waits for has come."""
        future: Future[None] = loop.create_future()
        self._futures[future] = None
        try:
            await future
        finally:
            del self._futures[future]

    def wake(self) -> None:
        """Let everyone who waits look again."""
        for future in self._futures:
            if not future.done():
                future.set_result(None)

    def __len__(self) -> int:
        return len(self._futures)
