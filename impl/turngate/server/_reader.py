"""Readers of the log: a place in it each, and nothing else, however many there are."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from turngate.server._cursor import NO_LOG, Cursor, mark
from turngate.server._models import complete_body, encode, frame

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from turngate import RunComplete
    from turngate.server._backend import DispatcherCalls
    from turngate.server._log import EventLog

CHUNK: Final = 65_536
"""About so many bytes are sent at once."""


class Reader:
    """One who reads the log, of one session or of all.

    `number` is the last event that it has read or that is not for it, `place` says which RunCompletes it has.
    `busy_since` is when what it is sent began to wait for it, None if nothing does; `quiet_since` when it was
    last sent something; `dropped` whether it was let go because it did not read.
    """

    __slots__ = (
        "_log", "_waiter", "busy_since", "closed", "dropped", "number", "place", "quiet_since", "session_id",
    )  # fmt: skip

    def __init__(self, log: EventLog, session_id: str | None, place: Cursor) -> None:
        self._log = log
        self._waiter: asyncio.Future[None] | None = None
        self.session_id = session_id
        self.place = place
        self.number = place.number
        self.closed = False
        self.dropped = False
        self.busy_since: float | None = None
        self.quiet_since = 0.0

    def go_on_from(self, place: Cursor) -> None:
        """Have read everything up to this place."""
        self.place, self.number = place, place.number

    def take(self) -> bytes:
        """Return some of what is new; nothing if it is behind what is kept, or there is nothing."""
        ring = self._log.ring
        if self.number == ring.head or self.is_behind:
            return b""
        if self.number < ring.floor:
            self.number = ring.head  # nothing of what is gone was for it
            return b""
        frames, self.number, place = ring.take(self.session_id, self.number, CHUNK)
        self.place = self._log.place if place is None else place
        return frames

    @property
    def is_behind(self) -> bool:
        """Whether it misses something that the ring no longer has."""
        return self.number < self._log.ring.floor and self._log.last_of(self.session_id) > self.number

    def wake(self) -> None:
        """Let it look again."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self) -> None:
        """Wait to be woken."""
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def close(self) -> None:
        """Read no more."""
        self.closed = True
        self.wake()


async def missed(
    d: DispatcherCalls, session_id: str | None, since: Cursor, until: Cursor
) -> AsyncIterator[bytes]:
    """Yield the RunCompletes between two places, each with an id from which one can go on when cut off.

    Raises CursorExpired when they are no longer all kept.
    """
    told = set(since.ahead)
    owed = set(until.ahead - since.ahead)
    if since.completions == until.completions and not owed:
        return
    at = since.completions
    # Raises CursorExpired for a place among other completions, also if it seems to be behind the other.
    async for at, complete in d.completions(since.completions, until=until.completions):
        name = mark(complete.run_id) if told else ""
        if name in told:
            told.discard(name)
        elif session_id in (None, complete.session_id):
            yield _completed(complete, at, told)
    at = max(at, until.completions, key=d.cursor_order)
    if owed:  # what is ahead there, and nothing else of what comes behind
        async for _, complete in d.completions(at):
            name = mark(complete.run_id)
            if name in owed:
                owed.discard(name)
                told.add(name)
                if session_id in (None, complete.session_id):
                    yield _completed(complete, at, told)
            if not owed:
                return


def _completed(complete: RunComplete, at: str, told: set[str]) -> bytes:
    place = Cursor(NO_LOG, 0, at, frozenset(told))
    return frame("run.complete", encode(complete_body(complete)), str(place))
