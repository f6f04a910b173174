"""A proxy on loopback that spoils one exchange of HTTP: loses, delays or cuts it, or answers 502 itself."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

Fault = Literal[
    "request lost", "answer lost", "answer cut", "request late", "answer late", "502 before", "502 after",
    "503 after", "504 after",
]  # fmt: skip
"""What happens to the exchange: before the server has seen the request, or after it has acted."""
FAULTS: tuple[Fault, ...] = get_args(Fault)
LATE = 3.0
"""Seconds after which what is late arrives although nothing else has passed."""


async def nothing() -> None:
    """Do nothing meanwhile."""


class FaultyProxy:
    """Passes exchanges on, and spoils one: the `nth` since it was armed, counted from 0.

    `meanwhile` is called when the fault strikes: after the server has acted, if it has seen the request, and
    before the client can notice. What is late arrives after another exchange has passed.
    """

    def __init__(self, url: str) -> None:
        self._to = urlsplit(url)
        self._fault: Fault | None = None
        self._left = 0
        self._meanwhile: Callable[[], Awaitable[object]] = nothing
        self._tasks: set[asyncio.Task[Any]] = set()
        self._passed = asyncio.Event()
        self.struck = False
        self.over = asyncio.Event()
        """Set when nothing more will come of the exchange that was spoilt."""

    def arm(self, fault: Fault, nth: int = 0, meanwhile: Callable[[], Awaitable[object]] = nothing) -> None:
        """Have a fault strike the nth exchange from now on."""
        self._fault, self._left, self._meanwhile, self.struck = fault, nth, meanwhile, False

    @contextlib.asynccontextmanager
    async def up(self) -> AsyncIterator[str]:
        """Yield the address of this end."""
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
            for task in [*self._tasks]:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            while await self._exchange(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # it is cancelled by `up` alone
        finally:
            writer.transport.abort()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Pass one exchange on; say whether the connection is still good."""
        request = await _message(reader)
        fault = self._next_fault()
        try:
            return await self._carry_out(request, fault, writer)
        finally:
            if fault is not None:
                self.over.set()

    async def _carry_out(self, request: bytes, fault: Fault | None, writer: asyncio.StreamWriter) -> bool:
        if fault == "request lost":
            await self._meanwhile()
            return False
        if fault == "502 before":
            await self._meanwhile()
            writer.write(_of_proxy(502))
            return True
        if fault == "request late":
            await self._meanwhile()
            await self._another_has_passed()
        far, to = await asyncio.open_connection(self._to.hostname, self._to.port)
        try:
            to.write(request)
            if fault is None:
                good = await self._pass(far, writer)
                self._passed.set()
                return good
            return await self._spoil(fault, far, writer)
        finally:
            to.transport.abort()

    def _next_fault(self) -> Fault | None:
        if self._fault is None or self.struck:
            return None
        if self._left:
            self._left -= 1
            return None
        self.struck = True
        self._passed.clear()
        return self._fault

    async def _another_has_passed(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LATE):
                await self._passed.wait()

    async def _spoil(self, fault: Fault, far: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Take the answer, or the beginning of a stream, and apply the fault to it."""
        answer = await _message(far, is_answer=True)
        if fault == "request late":
            return False
        await self._meanwhile()
        if fault == "answer cut":
            writer.write(answer[: len(answer) * 2 // 3])
            await writer.drain()
            return False
        if fault == "answer late":
            await self._another_has_passed()
            writer.write(answer)
            return False
        if fault != "answer lost":
            writer.write(_of_proxy(int(fault[:3])))
            return True
        return False

    async def _pass(self, far: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        answer = await _message(far, is_answer=True)
        writer.write(answer)
        if b"\r\ncontent-length:" in answer.partition(b"\r\n\r\n")[0].lower():
            await writer.drain()
            return True
        self._passed.set()
        while data := await far.read(65_536):  # a stream
            writer.write(data)
            await writer.drain()
        return False


async def _message(reader: asyncio.StreamReader, *, is_answer: bool = False) -> bytes:
    """Read a message; of an answer without a length, which is a stream, its head and what comes at once."""
    head = await reader.readuntil(b"\r\n\r\n")
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return head + await reader.readexactly(int(line.partition(b":")[2]))
    return head + await reader.read(65_536) if is_answer else head


def _of_proxy(status: int) -> bytes:
    body = b"<html>Bad Gateway</html>"
    head = f"HTTP/1.1 {status} Bad Gateway\r\nContent-Type: text/html\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body
