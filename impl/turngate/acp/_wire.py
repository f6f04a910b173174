"""The wire: JSON-RPC messages, one per line, on two file descriptors.

The standard streams are taken away from the rest of the process. What a runner prints goes to standard error,
and what it reads from standard input is empty, so neither can break the protocol.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import stat
import sys
import threading
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

LINE_LIMIT: Final = 16 * 1024 * 1024
"""Bytes that a message of the client may have."""
REST: Final = 5.0
"""Seconds in which the rest of a message that is too long must go on."""
UNSENT_LIMIT: Final = 1024 * 1024
"""Bytes of responses that a client may leave unread before its next message is read."""


class Code(IntEnum):
    """What kind of error a request is answered with."""

    PARSE_ERROR = -32700
    INVALID_REQUEST = -32600
    METHOD_NOT_FOUND = -32601
    INVALID_PARAMS = -32602
    INTERNAL_ERROR = -32603
    NOT_FOUND = -32002
    REQUEST_CANCELLED = -32800


class RpcError(Exception):
    """What a request is answered with instead of a result."""

    def __init__(self, code: Code, message: str, **data: Any) -> None:
        super().__init__(message)
        self.error = {"code": code, "message": message} | ({"data": data} if data else {})
        self.number: str | int | None = None
        """The id of the request, if it is known."""

    def about(self, number: str | int | None) -> Self:
        """Note which request this answers."""
        self.number = number
        return self


def parse(line: bytes) -> dict[str, Any]:
    """Return the message that a line holds; raise RpcError if it holds none."""
    try:
        message: Any = json.loads(line.decode(), parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise RpcError(Code.PARSE_ERROR, "the line is not JSON in UTF-8") from None
    if not isinstance(message, dict):
        raise RpcError(Code.INVALID_REQUEST, "a message must be an object")
    number = message.get("id")
    if not is_id(number):
        raise RpcError(Code.INVALID_REQUEST, "an id must be a string or an integer")
    if not isinstance(message.get("method", ""), str):
        raise RpcError(Code.INVALID_REQUEST, "a method must be a string").about(number)
    if not message.keys() & {"method", "result", "error"}:
        raise RpcError(Code.INVALID_REQUEST, "a message must have a method, a result or an error").about(
            number
        )
    return message


def is_id(number: object) -> bool:
    """Return whether a request can have this id."""
    return isinstance(number, str | int | None) and not isinstance(number, bool)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def take_stdio() -> tuple[int, int]:
    """Take the standard streams away from the process; return what to read from and what to write to."""
    ours = os.dup(0), os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    os.close(nowhere)
    os.dup2(2, 1)
    return ours


class Wire:
    """Both directions of a connection."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, source: asyncio.BaseTransport | None
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._source = source
        self._closed = asyncio.ensure_future(writer.wait_closed())

    @classmethod
    async def connect(cls, source: int, target: int) -> Wire:
        """Connect to two file descriptors, which are closed in the end."""
        mode = os.fstat(source).st_mode
        if stat.S_ISSOCK(mode) and os.path.samestat(os.fstat(source), os.fstat(target)):
            os.close(target)
            both = socket.socket(fileno=source)
            return cls(*await asyncio.open_connection(sock=both, limit=LINE_LIMIT), None)
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=LINE_LIMIT)
        from_client = None
        if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(source):
            from_client, _ = await loop.connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(source, "rb", 0)
            )
        else:  # a file or a device, which the loop cannot wait for, and which need not be waited for
            with os.fdopen(source, "rb") as file:
                reader.feed_data(file.read())
            reader.feed_eof()
        if stat.S_ISREG(os.fstat(target).st_mode):
            target = _pipe_into(target)
        to_client, protocol = await loop.connect_write_pipe(
            lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), os.fdopen(target, "wb", 0)
        )
        return cls(reader, asyncio.StreamWriter(to_client, protocol, None, loop), from_client)

    async def lines(self) -> AsyncIterator[bytes]:
        """Yield the lines of the client until the stream ends; an unfinished line is dropped."""
        while True:
            try:
                line = await self._reader.readuntil(b"\n")
            except (asyncio.IncompleteReadError, OSError):
                return
            except asyncio.LimitOverrunError:
                # The id of the request is not known, so it cannot be answered: end, for its client waits.
                error = f"a message has more than {LINE_LIMIT} bytes; the connection ends"
                self.send({"id": None, "error": {"code": Code.INVALID_REQUEST, "message": error}})
                sys.stderr.write(f"turngate: {error}\n")
                await self._skip_line()
                return
            if line.strip():
                yield line

    async def _skip_line(self) -> None:
        """Read the rest of a line; otherwise the client could not send it, and would never read an answer."""
        with contextlib.suppress(TimeoutError, OSError):
            while True:
                async with asyncio.timeout(REST):
                    piece = await self._reader.read(LINE_LIMIT)
                if not piece or b"\n" in piece:
                    return

    def send(self, message: dict[str, Any]) -> None:
        """Write a message, unless the client has disconnected."""
        if not self._writer.is_closing():
            self._writer.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    async def drain(self) -> None:
        """Wait until the client has read most of what was written; raise ConnectionError if it is gone."""
        await self._writer.drain()

    async def drain_if_flooded(self) -> None:
        """Wait only for a client that has left far too much unread."""
        if self._writer.transport.get_write_buffer_size() > UNSENT_LIMIT:
            await self.drain()

    async def until_lost(self) -> None:
        """Return when the client reads no more."""
        await asyncio.wait([self._closed])

    async def close(self, within: float) -> None:
        """Write what is left, for some seconds at most, and release both file descriptors."""
        if self._source is not None:
            self._source.close()
        self._writer.close()
        if not (await asyncio.wait([self._closed], timeout=within))[0]:
            self._writer.transport.abort()
        with contextlib.suppress(OSError):
            await self._closed


def _pipe_into(target: int) -> int:
    """Return a pipe that leads into a file, which the loop cannot write to; a thread copies."""
    source, pipe = os.pipe()

    def copy() -> None:
        with os.fdopen(source, "rb", 0) as lines, os.fdopen(target, "wb", 0) as file:
            shutil.copyfileobj(lines, file)

    threading.Thread(target=copy, name="turngate acp output").start()
    return pipe
