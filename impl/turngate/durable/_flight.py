"""A step between its being sent and its answer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio import Future

    from turngate.durable._records import Changes


class Flight:
    """A step that was sent and is not answered yet."""

    __slots__ = ("_landed", "completes", "position", "refused_by", "was_decided")

    def __init__(self) -> None:
        self._landed: Future[None] | None = None
        self.position: int | None = None
        """Where it was saved; 0 if nowhere, or if that cannot be told; None until it has landed."""
        self.completes: set[str] = set()
        """The runs that it completes if it was saved."""
        self.was_decided = False
        """Whether the ledger was given something to save."""
        self.refused_by: BaseException | None = None
        """What the step itself raised, so that nothing was saved."""

    def decided(self, changes: Changes) -> None:
        """Take note of what the ledger is about to save."""
        self.was_decided = True
        self.completes.update(complete.run_id for complete in changes.done)

    def came_to_nothing(self) -> None:
        """Take note that nothing was saved."""
        self.was_decided = False
        self.completes.clear()

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
