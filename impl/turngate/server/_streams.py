"""The event streams: server-sent events as bare ASGI, for middleware that wraps responses breaks streams.

What a reader is sent first depends on where it says that it has come to:

1. It says nothing: a `snapshot`, and what happens from there on.
2. A place in the ring: what comes behind it.
3. A place behind the ring, or in another log of the same ledger: `gap`, every RunComplete that it missed, a
   `snapshot`, and what happens from there on.
4. A place that is not known, or whose completions are no longer all kept: a `snapshot` with `reset`; on a
   ledger, which may have been restored or purged, `gap` comes first.

The same third case applies to a reader that falls behind the ring while it reads.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response

from turngate import CursorExpired, DispatcherClosed
from turngate._errors import counted
from turngate.durable import LedgerUnavailable
from turngate.server._cursor import parsed
from turngate.server._event_log import CHUNK, LogReader, missed_completions
from turngate.server._models import encode, encode_around, frame
from turngate.server._problems import Problem

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import Receive, Scope, Send

    from turngate.server._backend import Backend
    from turngate.server._cursor import Cursor
    from turngate.server._event_log import EventLog
    from turngate.server._limits import Limits

HEADERS: Final = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-store",
    "x-accel-buffering": "no",
    "x-content-type-options": "nosniff",
}
_HELLO: Final = b"retry: 1000\n: turngate\n\n"
_EARLY: Final = 0.6
"""The part of the heartbeat interval after which one is sent, so that it arrives within the interval."""


class _BlockedError(Exception):
    """A reader does not read what it is sent."""


class Streams:
    """Serves the log to readers."""

    def __init__(self, log: EventLog, backend: Backend, limits: Limits) -> None:
        self.log = log
        self.backend = backend
        self.limits = limits
        self.counts = {"gaps": 0, "resets": 0, "dropped": 0, "opened": 0}
        self.open: set[EventStream] = set()
        self.all_closed = asyncio.Event()
        """Set while no stream is open."""
        self.all_closed.set()

    def __len__(self) -> int:
        return len(self.open)

    async def answer(self, session_id: str | None, after: str | None) -> EventStream:
        """Return the answer for a reader with its last event id, or refuse it."""
        since, expired = None if after is None else parsed(after), False
        if since is not None and since.epoch != self.log.epoch:
            try:
                await self.backend.catch_up_with(since)
            except CursorExpired:
                since, expired = None, self.backend.outlives_process
        if self.log.ended.is_set():
            raise Problem("shutting-down", "The event log has ended")
        if len(self.open) >= self.limits.streams_limit:
            raise Problem(
                "too-many-streams", f"{counted(len(self.open), 'event stream')} open (streams_limit)"
            )
        return EventStream(self, session_id, since, is_new=after is None, expired=expired)


class EventStream(Response):
    """The stream of one reader, as the answer to its request."""

    def __init__(
        self, streams: Streams, session_id: str | None, since: Cursor | None, *, is_new: bool, expired: bool
    ) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers(HEADERS)
        self._streams = streams
        self._log = streams.log
        self._reader = LogReader(streams.log, session_id)
        self._since = since
        self._is_new = is_new
        self._expired = expired
        self._send: Send
        self._quiet_since = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the reader its events until it goes away or the log ends."""
        streams, self._send = self._streams, send
        streams.open.add(self)
        streams.all_closed.clear()
        streams.counts["opened"] += 1
        self._log.add(self._reader)
        watch = asyncio.create_task(self._watch(receive))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await self._write(_HELLO)
            await self._come_in()
            await self._go_on()
            if not self._reader.is_closed:
                await send({"type": "http.response.body", "body": b""})
        except OSError:  # what some servers say of a client that is gone
            pass
        except _BlockedError:
            streams.counts["dropped"] += 1
            await self._drop(watch)
        except (LedgerUnavailable, DispatcherClosed):  # a client that comes again can go on elsewhere
            await send({"type": "http.response.body", "body": b""})
        finally:
            self._log.remove(self._reader)
            streams.open.discard(self)
            if not streams.open:
                streams.all_closed.set()
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)

    async def _come_in(self) -> None:
        """Bring the reader to where it can go on from the ring."""
        if self._expired:
            await self._write(self._gap())
        ring, since = self._log.ring, self._since
        here = since is not None and since.epoch == self._log.epoch
        if since is None or (here and since.number > ring.head):
            await self._show(None, reset=not self._is_new)
        elif here and since.number >= ring.floor:
            self._reader.place = since
        else:
            await self._show(since, reset=False)

    async def _go_on(self) -> None:
        log, reader = self._log, self._reader
        while not reader.is_closed:
            if reader.is_behind:
                await self._show(reader.place, reset=False)
            elif frames := reader.take():
                await self._write(frames)
            elif log.ended.is_set():
                return
            else:
                try:
                    async with asyncio.timeout_at(
                        self._quiet_since + self._streams.limits.heartbeat * _EARLY
                    ):
                        await reader.wait()
                except TimeoutError:
                    if not reader.is_behind:
                        # What has come at this moment goes first: a client must not go on behind an event
                        # that it never received. The id takes a reader of a quiet session along with the log.
                        alive = b"id: %s\n: alive\n\n"
                        await self._write(reader.take() or alive % str(log.place).encode("ascii"))

    async def _show(self, since: Cursor | None, *, reset: bool) -> None:
        """Send how things are, after what the reader missed since it was somewhere."""
        log, session_id, backend = self._log, self._reader.session_id, self._streams.backend
        if session_id is None:
            place, sessions = await log.look()
        else:
            place, session = await log.look_at(session_id)
            sessions = encode([session])
        if since is not None:
            self._streams.counts["gaps"] += 1
            told = False
            missed = missed_completions(backend.dispatcher, session_id, since, place)
            try:
                async for frames in _joined(self._gap(), missed):
                    told = True
                    await self._write(frames)
                    await asyncio.sleep(0)  # others may have their turn
            except CursorExpired:
                reset = True
                if not told and backend.outlives_process:
                    await self._write(self._gap())
        self._streams.counts["resets"] += reset
        self._reader.place = place
        snapshot = encode_around(sessions, reset=reset, cursor=str(place))
        await self._write(frame("snapshot", snapshot, str(place)))

    def _gap(self) -> bytes:
        """Say that events were skipped, and not behind which: the place may be one that a client made up."""
        return frame("gap", encode({"session_id": self._reader.session_id, "run_id": None}), None)

    # The line.

    async def _write(self, frames: bytes) -> None:
        try:
            async with asyncio.timeout(self._streams.limits.write_timeout):
                await self._send({"type": "http.response.body", "body": frames, "more_body": True})
        except TimeoutError:
            raise _BlockedError from None
        self._quiet_since = asyncio.get_running_loop().time()

    async def _watch(self, receive: Receive) -> None:
        """Close the reader when its client is gone."""
        try:
            while (await receive())["type"] != "http.disconnect":
                pass
        finally:  # a server that can say no more has lost its client too
            self._reader.close()

    async def _drop(self, watch: asyncio.Task[None]) -> None:
        """Drop a reader that does not read, with whatever is still to be sent to it.

        ASGI has no word for closing a connection, so the transport is looked for where uvicorn has it. Where
        it is out of reach, say behind middleware, the stream ends, and the connection is left to its server.
        """
        transport: Any = getattr(getattr(self._send, "__self__", None), "transport", None)
        if transport is not None:
            transport.abort()
            await asyncio.wait([watch])


async def _joined(first: bytes, frames: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield frames in pieces that are worth sending."""
    parts, size = [first], len(first)
    async for each in frames:
        parts.append(each)
        size += len(each)
        if size >= CHUNK:
            yield b"".join(parts)
            parts, size = [], 0
    yield b"".join(parts)
