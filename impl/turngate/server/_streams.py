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

from turngate import CursorExpired, DispatcherClosed
from turngate._supervise import Supervisor
from turngate.durable import LedgerUnavailable
from turngate.server._cursor import parsed
from turngate.server._event_log import CHUNK, LogReader, missed_completions
from turngate.server._models import GapBody, encode, encode_around, frame

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from starlette.types import Receive, Send

    from turngate.server._backend import Backend
    from turngate.server._cursor import Cursor
    from turngate.server._event_log import EventLog
    from turngate.server._limits import Limits

HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
    (b"x-content-type-options", b"nosniff"),
]
_HELLO: Final = b"retry: 1000\n: turngate\n\n"


class Streams:
    """Serves the log to readers, says that it is alive, and drops readers that block."""

    def __init__(self, log: EventLog, backend: Backend, limits: Limits) -> None:
        self._log = log
        self._backend = backend
        self._limits = limits
        self._open: dict[LogReader, tuple[Send, asyncio.Task[Any] | None]] = {}
        self._supervisor = Supervisor()
        self._ticker: asyncio.Task[None] | None = None
        self.all_closed = asyncio.Event()
        """Set while no stream is open."""
        self.all_closed.set()
        self.counts = {"gaps": 0, "resets": 0, "dropped": 0, "opened": 0}

    def __len__(self) -> int:
        return len(self._open)

    async def serve(
        self,
        receive: Receive,
        send: Send,
        session_id: str | None,
        after: str | None,
        headers: Mapping[str, str],
    ) -> None:
        """Send one reader what it asks for, until it goes away or nothing more will come."""
        log = self._log
        since = None if after is None else parsed(after)
        expired = False
        if since is not None and since.epoch != log.epoch:
            try:
                await self._backend.catch_up_with(since)
            except CursorExpired:
                since, expired = None, self._backend.outlives_process
        more = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        reader = LogReader(log, session_id)
        log.add(reader)
        self._open[reader] = send, asyncio.current_task()
        self.all_closed.clear()
        self.counts["opened"] += 1
        if self._ticker is None:
            self._ticker = self._supervisor.start("the heartbeat of event streams", self._tick)
        watch = asyncio.create_task(_watch(receive, reader))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": HEADERS + more})
            await self._write(reader, _HELLO)
            if expired:
                await self._write(reader, _gap(session_id))
            await self._come_in(reader, after, since)
            await self._go_on(reader)
            if not reader.closed:
                await send({"type": "http.response.body", "body": b""})
        except OSError:  # what some servers say of a client that is gone
            pass
        except asyncio.CancelledError:
            if not reader.dropped:
                raise
        except (LedgerUnavailable, DispatcherClosed):  # a client that comes again can go on elsewhere
            await send({"type": "http.response.body", "body": b""})
        finally:
            reader.closed = True
            log.remove(reader)
            self._open.pop(reader, None)
            if not self._open and self._ticker is not None:
                self._ticker.cancel()
                self._ticker = None
                self.all_closed.set()
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)

    async def _come_in(self, reader: LogReader, after: str | None, since: Cursor | None) -> None:
        """Bring a reader to where it can go on from the ring."""
        ring, here = self._log.ring, since is not None and since.epoch == self._log.epoch
        if after is None:
            await self._show(reader, None, reset=False)
        elif since is None or (here and since.number > ring.head):
            await self._show(reader, None, reset=True)
        elif here and since.number >= ring.floor:
            reader.go_on_from(since)
        else:
            await self._show(reader, since, reset=False)

    async def _go_on(self, reader: LogReader) -> None:
        log = self._log
        while not reader.closed:
            if reader.is_behind:
                await self._show(reader, reader.place, reset=False)
            elif frames := reader.take():
                await self._write(reader, frames)
            elif log.ended.is_set():
                return
            elif self._is_due(reader):
                # With an id, so that a reader of a quiet session comes along with the log.
                await self._write(reader, b"id: %s\n: alive\n\n" % str(log.place).encode("ascii"))
            else:
                await reader.wait()

    async def _show(self, reader: LogReader, since: Cursor | None, *, reset: bool) -> None:
        """Send how things are, after what the reader missed since it was somewhere."""
        log, session_id = self._log, reader.session_id
        if session_id is None:
            place, sessions = await log.look()
        else:
            place, session = await log.look_at(session_id)
            sessions = encode([session])
        if since is not None:
            self.counts["gaps"] += 1
            gap = _gap(session_id)
            told = False
            try:
                async for frames in _joined(
                    gap, missed_completions(self._backend.dispatcher, session_id, since, place)
                ):
                    told = True
                    await self._write(reader, frames)
                    await asyncio.sleep(0)  # others may have their turn
            except CursorExpired:
                reset = True
                if not told and self._backend.outlives_process:
                    await self._write(reader, gap)
        self.counts["resets"] += reset
        reader.go_on_from(place)
        snapshot = encode_around(sessions, reset=reset, cursor=str(place))
        await self._write(reader, frame("snapshot", snapshot, str(place)))

    # Time.

    async def _write(self, reader: LogReader, frames: bytes) -> None:
        loop = asyncio.get_running_loop()
        reader.busy_since = loop.time()
        await self._open[reader][0]({"type": "http.response.body", "body": frames, "more_body": True})
        reader.busy_since, reader.quiet_since = None, loop.time()

    @property
    def _pulse(self) -> float:
        return min(self._limits.heartbeat, self._limits.write_timeout) / 5

    def _is_due(self, reader: LogReader) -> bool:
        """Say whether a heartbeat must not wait for the next pulse but one."""
        quiet = asyncio.get_running_loop().time() - reader.quiet_since
        return quiet >= self._limits.heartbeat - 2 * self._pulse

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._pulse)
            for reader, (send, task) in [*self._open.items()]:
                if reader.busy_since is None:
                    if self._is_due(reader):
                        reader.wake()
                elif loop.time() - reader.busy_since > self._limits.write_timeout and not reader.dropped:
                    self.counts["dropped"] += 1
                    reader.dropped = True
                    reader.close()
                    _drop(send, task)


def _gap(session_id: str | None) -> bytes:
    """Say that events were skipped, and not behind which: the place may be one that a client made up."""
    return frame("gap", encode(GapBody(session_id, None)), None)


async def _watch(receive: Receive, reader: LogReader) -> None:
    """Close the reader when its client is gone."""
    try:
        while (await receive())["type"] != "http.disconnect":
            pass
    finally:  # a server that can say no more has lost its client too
        reader.close()


def _drop(send: Send, task: asyncio.Task[Any] | None) -> None:
    """Let go of a reader that does not read, whatever is still to be sent to it.

    ASGI has no word for closing a connection, so the transport is looked for where uvicorn has it. Where it
    is out of reach, say behind middleware, the stream ends, and the connection is left to its server.
    """
    transport: Any = getattr(getattr(send, "__self__", None), "transport", None)
    if transport is not None:
        transport.abort()
    elif task is not None:
        task.cancel()


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
