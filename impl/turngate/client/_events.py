"""The event stream of a server, over as many connections as it takes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from typing import TYPE_CHECKING, Final

import httpx2

from turngate import RunComplete
from turngate.client._errors import Unreachable, error_in
from turngate.client._types import Snapshot, event_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from typing import Self

    from turngate.client._types import RemoteEvent

_HEARTBEAT: Final = 15.0
"""A server says something at least so often, in seconds; one that is silent for longer than two is gone."""
_REMEMBERED: Final = 4_096
"""So many RunCompletes are known again."""
_LARGEST: Final = 268_435_456
"""Bytes of one event, beyond which it is no event."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0


class EventStream:
    """The events of one session, or of all: an async iterator that connects again, with its cursor.

    Each RunComplete comes once, whatever becomes of the line. `cursor` is behind the last event received:
    `client.events(after=cursor)` goes on from there, in another process too. `connected` says whether
    there is a line. Whoever is cancelled while waiting for an event, say by a time-out, loses none.
    """

    def __init__(
        self, http: httpx2.AsyncClient, path: str, after: str | None, patience: float | None
    ) -> None:
        self.cursor = after
        self.connected = False
        self.connections = 0
        self._http = http
        self._path = path
        self._patience = patience
        self._response: httpx2.Response | None = None
        self._frames: AsyncIterator[httpx2.ServerSentEvent] | None = None
        self._pause = _FIRST_PAUSE
        self._silent_since: float | None = None
        self._known: dict[str, None] = {}
        self._closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RemoteEvent:
        while not self._closed:
            event = await self._next()
            if isinstance(event, RunComplete):
                if event.run_id in self._known:
                    continue
                self._known[event.run_id] = None
                if len(self._known) > _REMEMBERED:
                    del self._known[next(iter(self._known))]
            elif isinstance(event, Snapshot) and event.reset:
                self._known.clear()  # a server that has begun anew may run a known run_id again
            if event is not None:
                return event
        raise StopAsyncIteration

    async def _next(self) -> RemoteEvent | None:
        """Return the next event; None if there was none, and one should look again."""
        try:
            if self._frames is None:
                await self._connect()
            assert self._frames is not None
            frame = await anext(self._frames, None)
        except httpx2.TransportError as lost:
            await self._disconnect(lost)
            return None
        if frame is None:
            await self._disconnect(None)
            return None
        event = event_of(frame.event, json.loads(frame.data)) if frame.data else None
        self.cursor = frame.id or self.cursor
        return event

    async def _connect(self) -> None:
        headers = {"Accept": "text/event-stream"}
        if self.cursor is not None:
            headers["Last-Event-ID"] = self.cursor
        timeout = httpx2.Timeout(10.0, read=2.5 * _HEARTBEAT)
        request = self._http.build_request("GET", self._path, headers=headers, timeout=timeout)
        response = await self._http.send(request, stream=True)
        if not response.is_success:
            await response.aread()
            error = error_in(response)
            if error is not None and response.status_code < 500:
                raise error
            raise httpx2.ConnectError(str(error))
        self._response = response
        self._frames = aiter(httpx2.EventSource(response, max_event_size=_LARGEST))
        self.connected, self._pause, self._silent_since = True, _FIRST_PAUSE, None
        self.connections += 1

    async def _disconnect(self, lost: Exception | None) -> None:
        """Let the line go, and wait a little before the next one."""
        now = asyncio.get_running_loop().time()
        self._silent_since = self._silent_since or now
        await self._let_go()
        if self._patience is not None and now - self._silent_since > self._patience:
            raise Unreachable(f"no event stream for {self._patience:g} s") from lost
        await asyncio.sleep(self._pause * random.uniform(0.5, 1.0))  # noqa: S311 - so that not all come at once
        self._pause = min(self._pause * 2, _LONGEST_PAUSE)

    async def _let_go(self) -> None:
        response, self._response, self._frames, self.connected = self._response, None, None, False
        if response is not None:
            with contextlib.suppress(httpx2.HTTPError, RuntimeError):
                await response.aclose()

    async def aclose(self) -> None:
        """End the stream."""
        self._closed = True
        await self._let_go()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
