"""A step between its being sent and its answer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio import Future


class Flight:
    """A step that was sent and is not answered yet."""

    __slots__ = ("_landed", "position")

    def __init__(self) -> None:
        self._landed: Future[None] | None = None
        self.position: int | None = None
        """Where it was saved, 0 if nowhere, None as long as that is not known."""

    def land(self) -> None:
        """Take note that no answer is awaited any more."""
        self.position = self.position or 0
        if self._landed is not None:
            self._landed.set_result(None)

    async def landed(self) -> int:
        """Wait for its end, and return the position."""
        if self.position is None:
            self._landed = self._landed or asyncio.get_running_loop().create_future()
            await asyncio.shield(self._landed)
        assert self.position is not None
        return self.position
