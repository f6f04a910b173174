"""The event log: what the dispatcher does, in one order, encoded once, for any number of readers.

The way of an event: the backend takes it from the dispatcher's subscription and appends it; the log gives it
the next number and puts it into the ring; readers are woken, and take from the ring what is new to them.

1. The backend follows the dispatcher's completions as well: it knows up to where all of them are in the log,
   which the id of every event says (see `Cursor`).
2. A reader is behind when the ring has dropped an event that it has not read. It then receives what it missed
   from the completions (`missed_completions`).
3. A backend that was cut off, or that failed, begins anew: it subscribes again and has the log forget all
   that the ring holds. Every reader is then behind.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter, deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from turngate import RunComplete
from turngate._supervise import Supervisor
from turngate.server._cursor import NO_LOG, Cursor, mark
from turngate.server._models import encode, event_body, frame, session_body

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from turngate import Dispatcher, Event
    from turngate.durable import DurableDispatcher
    from turngate.server._backend import Backend
    from turngate.server._limits import Limits

CHUNK: Final = 65_536
"""Bytes that are sent at once, about."""
_AT_ONCE: Final = 100
"""Sessions that are encoded in one step of the loop."""


class StoredEvent(NamedTuple):
    """An event as it goes over the line, and the place of a reader that has read it."""

    session_id: str
    frame: bytes
    place: Cursor


class Ring:
    """The newest events of all sessions, numbered from 1, limited in number and bytes."""

    def __init__(self, events_limit: int, bytes_limit: int) -> None:
        self.head = 0
        """The number of the newest event, 0 before the first."""
        self.bytes = 0
        self._events_limit = events_limit
        self._bytes_limit = bytes_limit
        self._events: deque[StoredEvent] = deque()
        self._by_session: dict[str, deque[StoredEvent]] = {}

    @property
    def floor(self) -> int:
        """The number up to which events are no longer kept."""
        return self.head - len(self._events)

    def append(self, event: StoredEvent) -> list[StoredEvent]:
        """Keep one more event; return those that are dropped for it."""
        dropped: list[StoredEvent] = []
        self.head += 1
        self._events.append(event)
        self._by_session.setdefault(event.session_id, deque()).append(event)
        self.bytes += len(event.frame)
        while len(self._events) > self._events_limit or self.bytes > self._bytes_limit:
            oldest = self._events.popleft()
            self.bytes -= len(oldest.frame)
            of_session = self._by_session[oldest.session_id]
            of_session.popleft()
            if not of_session:
                del self._by_session[oldest.session_id]
            dropped.append(oldest)
        return dropped

    def clear(self) -> None:
        """Drop every event, and count one that no reader has."""
        self.head += 1
        self.bytes = 0
        self._events.clear()
        self._by_session.clear()

    def take(self, session_id: str | None, after: int) -> tuple[bytes, Cursor | None]:
        """Return events behind the number `after`, of the session or of all, up to about a chunk.

        With them comes the place of a reader that has read them; None for where the log is.
        """
        events = self._events if session_id is None else self._by_session.get(session_id, ())
        new: list[StoredEvent] = []
        for event in reversed(events):
            if event.place.number <= after:
                break
            new.append(event)
        frames: list[bytes] = []
        size = 0
        while new and size < CHUNK:
            event = new.pop()
            frames.append(event.frame)
            size += len(event.frame)
        return b"".join(frames), event.place if new else None

    def __len__(self) -> int:
        return len(self._events)


class LogReader:
    """A place in the log, of one session or of all; `place` is behind the last event that it has taken."""

    def __init__(self, log: EventLog, session_id: str | None) -> None:
        self.session_id = session_id
        self.place = log.place
        self.is_closed = False
        """Whether it reads no more."""
        self.lost = 0
        """The number of the newest event of its session that is no longer kept, as far as it was there."""
        self._log = log
        self._woken = asyncio.Event()

    @property
    def is_behind(self) -> bool:
        """Whether an event was dropped that it has not taken."""
        return self.place.number < (self._log.ring.floor if self.session_id is None else self.lost)

    def take(self) -> bytes:
        """Return some of what is new; nothing if there is nothing, or it is behind."""
        if self.place.number == self._log.ring.head or self.is_behind:
            return b""
        frames, place = self._log.ring.take(self.session_id, self.place.number)
        self.place = self._log.place if place is None else place
        return frames

    def wake(self) -> None:
        """Have it look again."""
        self._woken.set()

    async def wait(self) -> None:
        """Wait to be woken."""
        self._woken.clear()
        await self._woken.wait()

    def close(self) -> None:
        """Read no more."""
        self.is_closed = True
        self.wake()


class EventLog:
    """The events of one dispatcher, from `begin` to its close or to `end`."""

    def __init__(self, backend: Backend, limits: Limits) -> None:
        self.ring = Ring(limits.ring_events, limits.ring_bytes)
        self.epoch = secrets.token_hex(4)
        self.ended = asyncio.Event()
        """Set when nothing more will come."""
        self.counts: Counter[str] = Counter()
        """How many events of each name, and RunCompletes of each outcome, there have been."""
        self._backend = backend
        self._readers: dict[str | None, dict[LogReader, None]] = {}
        self._to_wake: set[str] = set()
        self._supervisor = Supervisor(longest_pause=2.0)
        self._last_look: asyncio.Task[tuple[Cursor, bytes]] | None = None
        """The look at all sessions that was begun last."""
        self._next_look: asyncio.Task[tuple[Cursor, bytes]] | None = None
        """The look that will begin next, for every caller until then."""

    # Its life.

    async def begin(self) -> None:
        """Follow the dispatcher from here on."""
        await self._backend.begin(self)
        self._supervisor.start("the event log", self._follow)

    async def _follow(self) -> None:
        await self._backend.follow()
        self._finish()

    async def end(self) -> None:
        """Follow the dispatcher no longer; readers get what there is, and their end."""
        await self._supervisor.close()
        self._backend.end()
        self._finish()

    def _finish(self) -> None:
        self.ended.set()
        for of_session in self._readers.values():
            for reader in of_session:
                reader.wake()

    # What goes in.

    def append(self, event: Event, prompt: str | None) -> None:
        """Add an event; an accept comes with its prompt, if that is known."""
        name, body = event_body(event, prompt)
        self.counts[name] += 1
        if isinstance(event, RunComplete):
            self.counts[event.outcome] += 1
        place = Cursor(self.epoch, self.ring.head + 1, *self._backend.passed)
        stored = StoredEvent(event.session_id, frame(name, encode(body), str(place)), place)
        for dropped in self.ring.append(stored):
            for reader in self._readers.get(dropped.session_id, ()):
                reader.lost = dropped.place.number
        if not self._to_wake:
            asyncio.get_running_loop().call_soon(self._wake)
        self._to_wake.add(event.session_id)

    def forget(self) -> None:
        """Drop every event, because some are missing; every reader then looks for what it missed."""
        self.ring.clear()
        for of_session in self._readers.values():
            for reader in of_session:
                reader.lost = self.ring.head
                reader.wake()

    # Readers.

    @property
    def place(self) -> Cursor:
        """Where the log has come to."""
        return Cursor(self.epoch, self.ring.head, *self._backend.passed)

    async def look_at(self, session_id: str) -> tuple[Cursor, dict[str, Any]]:
        """Return a session, and the place in the log at that step."""
        place, (view,) = await self._backend.look(session_id, lambda: self.place)
        return place, session_body(view)

    async def look(self) -> tuple[Cursor, bytes]:
        """Return the place in the log, and every session in flight at that step: a list in JSON.

        It may be large, so callers share it: callers that come while one is being taken wait together for
        the next. It is never older than the call.
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
            look.exception()  # the callers that waited have it

    def add(self, reader: LogReader) -> None:
        """Wake the reader when there is something new for it."""
        self._readers.setdefault(reader.session_id, {})[reader] = None

    def remove(self, reader: LogReader) -> None:
        """Wake the reader no longer."""
        of_session = self._readers.get(reader.session_id, {})
        of_session.pop(reader, None)
        if not of_session:
            self._readers.pop(reader.session_id, None)

    def _wake(self) -> None:
        for about in (*self._to_wake, None):
            for reader in self._readers.get(about, ()):
                reader.wake()
        self._to_wake.clear()


async def missed_completions(
    d: Dispatcher | DurableDispatcher, session_id: str | None, since: Cursor, until: Cursor
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
        name = mark(complete) if told else ""
        if name in told:
            told.discard(name)
        elif session_id in (None, complete.session_id):
            yield _completed(complete, at, told)
    at = max(at, until.completions, key=d.cursor_order)
    if owed:  # what is ahead there, and nothing else of what comes behind
        async for _, complete in d.completions(at):
            name = mark(complete)
            if name in owed:
                owed.discard(name)
                told.add(name)
                if session_id in (None, complete.session_id):
                    yield _completed(complete, at, told)
            if not owed:
                return


def _completed(complete: RunComplete, at: str, told: set[str]) -> bytes:
    place = Cursor(NO_LOG, 0, at, frozenset(told))
    return frame("run.complete", encode(complete._asdict()), str(place))
