"""The log of events: what the dispatcher tells, in one order, encoded once, for any number of readers.

The way of an event: the backend takes it from the dispatcher's subscription and appends it; the log gives it
the next number and puts it into the ring; readers are woken, and take from the ring what is new to them.

1. The backend follows the dispatcher's completions as well: it knows up to where all of them are in the log,
   which the id of every event says (see `Cursor`).
2. A backend that was cut off, or that failed, begins anew: it subscribes again and has the log forget all
   that the ring holds. Every reader is then behind, and receives what it missed from the completions.

How the dispatcher is followed is the business of its adapter (see `Backend`).
"""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Any, Final

from turngate import RunComplete
from turngate._supervise import Supervisor
from turngate.server._cursor import Cursor
from turngate.server._models import encode, event_body, frame, session_body, shown
from turngate.server._ring import Ring

if TYPE_CHECKING:
    from turngate import Event
    from turngate.server._backend import Backend
    from turngate.server._limits import Limits
    from turngate.server._models import SessionBody
    from turngate.server._reader import Reader

_AT_ONCE: Final = 100
"""Sessions that are encoded in one step of the loop."""


class EventLog:
    """The events of one dispatcher, from `begin` to its close or to `end`."""

    def __init__(self, backend: Backend, limits: Limits) -> None:
        self.ring = Ring(limits.ring_events, limits.ring_bytes)
        self.epoch = secrets.token_hex(4)
        self.ended = asyncio.Event()
        """Set when nothing more will come."""
        self.counts: dict[str, int] = {}
        """How many events of each name, and RunCompletes of each outcome, there have been."""
        self._backend = backend
        self._readers: dict[str | None, dict[Reader, None]] = {}
        self._last: dict[str, int] = {}
        """The number of the last event of each session that somebody reads, or of one behind it."""
        self._to_wake: set[str] = set()
        self._supervisor = Supervisor(longest_pause=2.0)
        self._last_look: asyncio.Task[tuple[Cursor, bytes]] | None = None
        """The look at all sessions that was begun last."""
        self._next_look: asyncio.Task[tuple[Cursor, bytes]] | None = None
        """The one that will begin next, for all who ask until then."""

    # Its life.

    async def begin(self) -> None:
        """Follow the dispatcher from here on."""
        await self._backend.begin(self)
        self._supervisor.start("the event log", self._follow)

    async def _follow(self) -> None:
        await self._backend.follow()
        self._finish()

    async def drain(self) -> None:
        """Take in all that has happened up to now; there may be nothing after that."""
        await self._backend.drain()

    async def end(self) -> None:
        """Follow the dispatcher no longer; readers get what there is, and their end."""
        await self._supervisor.close()
        self._backend.end()
        self._finish()

    def _finish(self) -> None:
        self.ended.set()
        self._wake_all()

    def _wake_all(self) -> None:
        for of_session in self._readers.values():
            for reader in of_session:
                reader.wake()

    # What goes in.

    def append(self, event: Event, prompt: str | None) -> None:
        """Add an event; an accept comes with its prompt, if that is known."""
        name, body = event_body(event, None if prompt is None else shown(prompt))
        self.counts[name] = self.counts.get(name, 0) + 1
        if isinstance(event, RunComplete):
            self.counts[event.outcome] = self.counts.get(event.outcome, 0) + 1
        session_id = event.session_id
        if session_id in self._readers:
            self._bring_along(session_id)
        if session_id not in self._to_wake:
            self._wake_soon(session_id)
        place = Cursor(self.epoch, self.ring.head + 1, *self._backend.passed)
        self.ring.append(session_id, frame(name, encode(body), str(place)), place)

    def forget(self) -> None:
        """Drop every event: some are missing, so every reader is behind, and looks for what it missed."""
        self.ring.forget()
        self._last = dict.fromkeys(self._last, self.ring.head)
        self._wake_all()

    # Readers.

    @property
    def place(self) -> Cursor:
        """Where the log has come to."""
        return Cursor(self.epoch, self.ring.head, *self._backend.passed)

    async def look_at(self, session_id: str) -> tuple[Cursor, SessionBody]:
        """Return a session, and the place in the log at that step."""
        place, (view,) = await self._backend.look(session_id, lambda: self.place)
        return place, session_body(view)

    async def look(self) -> tuple[Cursor, bytes]:
        """Return the place in the log, and every session in flight at that step: a list in JSON.

        It may be large, so callers share it: those who ask while one is being taken wait together for the
        next. It is never older than the question.
        """
        if self._next_look is None:
            self._next_look = asyncio.create_task(self._look_after(self._last_look), name="turngate look")
            self._next_look.add_done_callback(self._looked)
        return await asyncio.shield(self._next_look)

    async def _look_after(self, before: asyncio.Task[Any] | None) -> tuple[Cursor, bytes]:
        if before is not None:
            await asyncio.wait([before])
        self._last_look, self._next_look = self._next_look, None
        place, views = await self._backend.look(None, lambda: self.place)
        sessions = [session_body(view) for view in views]
        parts: list[bytes] = []
        for start in range(0, len(sessions), _AT_ONCE):
            if start:
                await asyncio.sleep(0)  # others may have their turn
            parts.append(encode(sessions[start : start + _AT_ONCE])[1:-1])
        return place, b"[%s]" % b",".join(parts)

    def _looked(self, look: asyncio.Task[tuple[Cursor, bytes]]) -> None:
        if self._last_look is look:
            self._last_look = None  # it may be large
        if not look.cancelled():
            look.exception()  # those who waited have been told

    def add(self, reader: Reader) -> None:
        """Wake the reader when there is something new for it."""
        self._readers.setdefault(reader.session_id, {})[reader] = None
        if reader.session_id is not None:
            self._last.setdefault(reader.session_id, self.ring.head)

    def remove(self, reader: Reader) -> None:
        """Wake the reader no longer."""
        of_session = self._readers.get(reader.session_id, {})
        of_session.pop(reader, None)
        if not of_session:
            self._readers.pop(reader.session_id, None)
            self._last.pop(reader.session_id or "", None)

    def _bring_along(self, session_id: str) -> None:
        """Before an event of a session: what came since the last is not for those who have read that one."""
        head, last = self.ring.head, self._last[session_id]
        for reader in self._readers[session_id]:
            if reader.number >= last:
                reader.number = max(reader.number, head)
        self._last[session_id] = head + 1

    def last_of(self, session_id: str | None) -> int:
        """Return the number of the last event of a session that somebody reads, or of all; 0 for none."""
        return self.ring.head if session_id is None else self._last.get(session_id, 0)

    def _wake_soon(self, session_id: str) -> None:
        if not self._to_wake:
            asyncio.get_running_loop().call_soon(self._wake)
        self._to_wake.add(session_id)

    def _wake(self) -> None:
        for about in (*self._to_wake, None):
            for reader in self._readers.get(about, ()):
                reader.wake()
        self._to_wake.clear()
