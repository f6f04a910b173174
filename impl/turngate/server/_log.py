"""The log of events: what the dispatcher tells, in one order, encoded once, for any number of readers.

The way of an event: the dispatcher tells it to one subscription; the log takes it from there, gives it the
next number and puts it into the ring; readers are woken and take from the ring what is behind their place.

1. The log follows the dispatcher's completions as well: it knows up to where all of them are in the log, and
   says so in the id of every event (see `Cursor`).
2. A log that was cut off, or that failed, begins anew: it subscribes again and forgets all that the ring
   holds. Every reader is then behind, and receives what it missed from the completions.

How it follows them is another matter in memory (`MemoryLog`) than on a ledger (`LedgerLog`).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final

from turngate import Moved, RunComplete
from turngate._supervise import Supervisor
from turngate.server._backend import views
from turngate.server._cursor import Cursor, mark
from turngate.server._ring import Ring
from turngate.server._shapes import encoded, event_data, view_shape

if TYPE_CHECKING:
    from collections.abc import Iterable

    from turngate import Event, SessionView
    from turngate.server._backend import AnyDispatcher, Events
    from turngate.server._limits import Limits
    from turngate.server._reader import Reader

log = logging.getLogger("turngate.server")
_AT_ONCE: Final = 100
"""Sessions that are encoded in one step of the loop."""
BEGINS_ANEW: Final = "the event log does not have all events; every reader is told what it missed"


class EventLog(ABC):
    """Follows one dispatcher, from `begin` to its close or to `end`."""

    outlives_process = False
    """Whether the completions do, so that a place that another log gave may be one among them."""

    def __init__(self, d: AnyDispatcher, limits: Limits) -> None:
        self.ring = Ring(limits.ring_events, limits.ring_bytes)
        self.epoch = secrets.token_hex(4)
        self.ended = asyncio.Event()
        """Set when nothing more will come."""
        self.in_flight: dict[str, set[str]] = {}
        """The runs of each session that are in flight, as far as the log has heard."""
        self.counts: dict[str, int] = {}
        """How many events of each name, and RunCompletes of each outcome, there have been."""
        self._d = d
        self._readers: dict[str | None, dict[Reader, None]] = {}
        self._last: dict[str, int] = {}
        """The number of the last event of each session that somebody reads, or of one behind it."""
        self._to_wake: set[str] = set()
        self._place = Cursor(self.epoch, 0)
        self._suffix = self._place.suffix
        self._ahead: set[str] = set()
        self._supervisor = Supervisor(longest_pause=2.0)
        self._events: Events | None = None
        self._dropped = 0
        self._last_look: asyncio.Task[tuple[Cursor, bytes]] | None = None
        """The look at all sessions that was begun last."""
        self._next_look: asyncio.Task[tuple[Cursor, bytes]] | None = None
        """The one that will begin next, for all who ask until then."""

    # Its life.

    @abstractmethod
    async def begin(self) -> None:
        """Subscribe, and know where the completions stand."""

    async def end(self) -> None:
        """Follow the dispatcher no longer; readers get what there is, and their end."""
        await self._supervisor.close()
        if self._events is not None:
            self._events.close()
        self._finish()

    @abstractmethod
    async def drain(self) -> None:
        """Put into the log all that the dispatcher has told up to now; there may be nothing after that."""

    def _finish(self) -> None:
        self.ended.set()
        self._wake_all()

    def _forget(self) -> None:
        """Keep nothing of what there was: everybody is behind, and looks for what was missed."""
        self.ring.forget()
        self._last = dict.fromkeys(self._last, self.ring.head)
        self._wake_all()

    def _wake_all(self) -> None:
        for of_session in self._readers.values():
            for reader in of_session:
                reader.wake()

    @abstractmethod
    def flush(self) -> None:
        """Put into the log all that the dispatcher has told by now and that can be had without waiting."""

    @abstractmethod
    async def catch_up_with(self, place: Cursor) -> None:
        """Come to where another log of the same completions was, if that was further."""

    @abstractmethod
    def remember_prompt(self, run_id: str, prompt: str) -> None:
        """Know the prompt of a run until it is told, where it cannot be asked for in one step."""

    # What goes in.

    def _append(self, event: Event, prompt: str | None) -> None:
        self._count(event)
        name, data = event_data(event, prompt)
        self.counts[name] = self.counts.get(name, 0) + 1
        session_id = event.session_id
        if session_id in self._readers:
            self._bring_along(session_id)
        if session_id not in self._to_wake:
            self._wake_soon(session_id)
        frame = f"id: {self.epoch}:{self.ring.head + 1}{self._suffix}\nevent: {name}\ndata: {data}\n\n"
        self.ring.append(session_id, frame.encode("ascii"), self._place)

    def _count(self, event: Event) -> None:
        """Know what is in flight."""
        if isinstance(event, Moved):
            if event.event == "accept" and event.run_id is not None:
                self.in_flight.setdefault(event.session_id, set()).add(event.run_id)
        elif isinstance(event, RunComplete):
            self.counts[event.outcome] = self.counts.get(event.outcome, 0) + 1
            flying = self.in_flight.get(event.session_id)
            if flying is not None:
                flying.discard(event.run_id)
                if not flying:
                    del self.in_flight[event.session_id]

    def _count_anew(self, seen: Iterable[SessionView]) -> None:
        """Know what is in flight, having heard nothing of it or not all."""
        self.in_flight = {
            view.session_id: {
                run.run_id
                for run in (*view.accepted, *view.settling, *view.queued, *view.folded, view.active)
                if run is not None
            }
            for view in seen
        }

    def _pass(self, cursor: str) -> None:
        """Have all completions up to this one in the log."""
        self._place = self._place._replace(completions=cursor)
        self._move_place()

    def _move_place(self) -> None:
        ahead = frozenset(map(mark, self._ahead)) if self._ahead else frozenset()
        self._place = self._place._replace(ahead=ahead)
        self._suffix = self._place.suffix

    # Readers.

    @property
    def dropped(self) -> int:
        """How many deltas and notes the log has lost because the dispatcher was faster."""
        return self._dropped + (0 if self._events is None else self._events.dropped)

    @property
    def place(self) -> Cursor:
        """Where the log has come to."""
        return self._place._replace(number=self.ring.head)

    async def look(self, session_id: str | None) -> tuple[Cursor, bytes]:
        """Return the place in the log and the sessions, or the one session, as they are at that place.

        The sessions are a list in JSON. A look at all of them may be large, so callers share it: those who
        ask while one is being taken wait together for the next. It is never older than the question.
        """
        if session_id is not None:
            return await self._look(session_id)
        if self._next_look is None:
            self._next_look = asyncio.create_task(self._look_after(self._last_look), name="turngate look")
            self._next_look.add_done_callback(self._looked)
        return await asyncio.shield(self._next_look)

    async def _look_after(self, before: asyncio.Task[Any] | None) -> tuple[Cursor, bytes]:
        if before is not None:
            await asyncio.wait([before])
        self._last_look, self._next_look = self._next_look, None
        return await self._look(None)

    def _looked(self, look: asyncio.Task[tuple[Cursor, bytes]]) -> None:
        if self._last_look is look:
            self._last_look = None  # it may be large
        if not look.cancelled():
            look.exception()  # those who waited have been told

    async def _look(self, session_id: str | None) -> tuple[Cursor, bytes]:
        """Look now.

        In memory the place and the sessions are taken in one step. On a ledger the place is taken first: what
        happened between the two is among the events to come, which say nothing new then.
        """
        self.flush()
        place = self.place
        shapes = [view_shape(view) for view in await views(self._d, session_id)]
        parts: list[bytes] = []
        for start in range(0, len(shapes), _AT_ONCE):
            if start:
                await asyncio.sleep(0)  # others may have their turn
            parts.append(encoded(shapes[start : start + _AT_ONCE])[1:-1])
        return place, b"[%s]" % b",".join(parts)

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
