"""The event stream of a server, over as many connections as it takes.

A separate task reads a little ahead. So cancelling a caller that waits disturbs nothing, and a stream that is
dropped without being closed ends its connection properly.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from typing import TYPE_CHECKING, Final

import httpx2

from turngate.client._calls import Unreachable, error_in
from turngate.client._types import event_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from typing import Any, Self

    from turngate.client._types import RemoteEvent

_HEARTBEAT: Final = 15.0
"""A server sends something at least this often, in seconds; one that stays silent much longer is gone."""
_LARGEST: Final = 268_435_456
"""The most bytes of one event."""
_AHEAD: Final = 64
"""How many frames are read ahead."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0


class _Reader:
    """Reads frames in a task of its own; it does not know the stream, which may be dropped meanwhile."""

    def __init__(
        self, http: httpx2.AsyncClient, path: str, after: str | None, patience: float | None
    ) -> None:
        self.cursor = after
        """The cursor of the last frame that was read."""
        self.connected = False
        self.connections = 0
        self.frames: asyncio.Queue[tuple[str, str, str] | Exception | None] = asyncio.Queue(_AHEAD)
        """Event, data and id of each frame; an exception if reading has failed; None at the end."""
        self._http = http
        self._path = path
        self._patience = patience

    async def read(self) -> None:
        """Put what the server sends into `frames`, over one connection after another."""
        try:
            await self._read()
        except Exception as wrong:
            await self.frames.put(wrong)

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        silent_since, pause = loop.time(), _FIRST_PAUSE
        while True:
            connections = self.connections
            lost: Exception | None = None
            deadline = None if self._patience is None else silent_since + self._patience
            try:
                await self._read_one(deadline)
            except (httpx2.TransportError, TimeoutError) as exc:
                lost = exc
            finally:
                self.connected = False
            if self.connections > connections:  # it was an event stream
                silent_since, pause = loop.time(), _FIRST_PAUSE
            elif deadline is not None and loop.time() + pause > deadline:
                raise Unreachable(f"no event stream for {self._patience:g} s") from lost
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - so that clients do not all come at once
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _read_one(self, deadline: float | None) -> None:
        """Read from one connection until it ends; its first frame must have come by the deadline."""
        headers = {"Accept": "text/event-stream"}
        if self.cursor is not None:
            headers["Last-Event-ID"] = self.cursor
        timeout = httpx2.Timeout(10.0, read=2.5 * _HEARTBEAT)
        request = self._http.stream("GET", self._path, headers=headers, timeout=timeout)
        async with asyncio.timeout_at(deadline) as first, request as response:
            if not response.is_success:
                await response.aread()
                error = error_in(response)
                if error is not None and response.status_code < 500:
                    raise error
                raise httpx2.ConnectError(str(error))
            frames = aiter(httpx2.EventSource(response, max_event_size=_LARGEST))
            while (frame := await anext(frames, None)) is not None:
                if not self.connected:
                    self.connected = True
                    self.connections += 1
                    first.reschedule(None)
                try:
                    await self.frames.put((frame.event, frame.data, frame.id))
                except asyncio.CancelledError:
                    await _unwind(frames)
                    raise
                self.cursor = frame.id or self.cursor


async def _unwind(frames: AsyncIterator[object]) -> None:
    """End the generators that read a response from the inside out, as a cancelled read does.

    They are nested, and do not fully close each other. If they were dropped, the loop would close them all at
    the same time when it ends, and that fails.
    """
    task = asyncio.current_task()
    assert task is not None
    task.cancel()  # the next await inside of them
    with contextlib.suppress(asyncio.CancelledError, httpx2.TransportError):
        while await anext(frames, None) is not None:
            pass


class EventStream:
    """The events of one session, or of all: an async iterator that reconnects, with its cursor.

    Each RunComplete comes once, however often the connection breaks. `cursor` is that of the last event:
    `client.events(after=cursor)` continues from there, in another process too. Cancelling a caller that waits
    for an event, for example by a time-out, loses none. After an error you can iterate again, and the stream
    continues behind the last event.
    """

    _reading: asyncio.Task[None] | None = None
    """The task that reads; None also in an object whose constructor was refused."""

    def __init__(
        self,
        http: httpx2.AsyncClient,
        path: str,
        after: str | None,
        patience: float | None,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self.cursor = after
        self._reader = _Reader(http, path, after, patience)
        self._spawn = spawn
        self._waiting = False
        self._closed = False

    @property
    def connected(self) -> bool:
        """Whether there is a connection, and something has arrived on it."""
        return self._reader.connected

    @property
    def connections(self) -> int:
        """How many connections there have been."""
        return self._reader.connections

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RemoteEvent:
        if self._waiting:
            raise RuntimeError("another task is waiting for the next event of this stream")
        self._waiting = True
        try:
            while not self._closed:
                event = await self._next()
                if event is not None:
                    return event
        finally:
            self._waiting = False
        raise StopAsyncIteration

    async def _next(self) -> RemoteEvent | None:
        """Return the next event; None for a frame without one."""
        if self._reading is None:
            self._reading = self._spawn(self._reader.read())
        frame = await self._reader.frames.get()
        if frame is None:
            return None
        if isinstance(frame, Exception):
            self._reading = None
            raise frame
        name, data, cursor = frame
        event = event_of(name, json.loads(data), self.cursor) if data else None
        self.cursor = cursor or self.cursor
        return event

    def close(self) -> None:
        """End the stream soon, without waiting for it."""
        self._closed = True
        while not self._reader.frames.empty():
            self._reader.frames.get_nowait()
        self._reader.frames.put_nowait(None)  # for a task that waits
        if self._reading is not None:
            self._reading.cancel()

    async def aclose(self) -> None:
        """End the stream."""
        self.close()
        if self._reading is not None:
            await asyncio.wait([self._reading])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        if self._reading is not None and not self._reading.done():
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._reading.get_loop().call_soon_threadsafe(self._reading.cancel)
