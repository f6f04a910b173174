"""A step between its being sent and its answer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio import Future

    from turngate.durable._records import Changes


class PendingStep:
    """A step that was sent and is not answered yet."""

    __slots__ = ("_resolved", "completes", "position", "refused_by", "was_decided")

    def __init__(self) -> None:
        self._resolved: Future[None] | None = None
        self.position: int | None = None
        """Where it was saved; 0 if nowhere, or if that is unknown; None until it is resolved."""
        self.completes: set[str] = set()
        """The runs that it completes if it was saved."""
        self.was_decided = False
        """Whether the ledger was given something to save."""
        self.refused_by: BaseException | None = None
        """What the step itself raised, so that nothing was saved."""

    def decided(self, changes: Changes) -> None:
        """Note what the ledger is about to save."""
        self.was_decided = True
        self.completes.update(complete.run_id for complete in changes.done)

    def was_not_saved(self) -> None:
        """Note that nothing was saved."""
        self.was_decided = False
        self.completes.clear()

    def resolve(self) -> None:
        """Note that no answer is awaited any more."""
        self.position = self.position or 0
        if self._resolved is not None:
            self._resolved.set_result(None)

    async def result(self) -> int:
        """Wait for its end, and return the position."""
        if self.position is None:
            self._resolved = self._resolved or asyncio.get_running_loop().create_future()
            await asyncio.shield(self._resolved)
        assert self.position is not None
        return self.position
