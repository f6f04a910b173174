"""A model provider on loopback whose every answer the kit decides.

A call is held open until the kit writes, ends, or fails it, or the agent hangs
up. Side calls, such as those that ask for a title, are answered at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Callable
from typing import Any, Literal

from turngate_verify.acp.providers import Asked, Provider, provider_of

_LARGEST = 1 << 26
_LENGTH = re.compile(r"(?im)^content-length: *(\d+)")
_CHUNKED = re.compile(r"(?im)^transfer-encoding: *.*chunked")
_NOTHING = {"data": [], "models": [], "totalTokens": 1, "input_tokens": 1}
"""The answer to what is no call of the model, such as a list of models or a count of tokens."""


class ModelCall:
    """One call of the model, held until the driver says how it goes on."""

    def __init__(self, asked: Asked, provider: Provider) -> None:
        self.asked = asked
        self.provider = provider
        self.state: Literal["open", "answered", "hung up"] = "open"
        self.frames: asyncio.Queue[str | None] = asyncio.Queue()
        self.error = ""
        self.changed = asyncio.Event()

    @property
    def is_open(self) -> bool:
        """Whether the call has neither been answered nor given up."""
        return self.state == "open"

    def write(self, text: str) -> None:
        """Answer a piece of text; of a call that is not streamed it is kept."""
        if self.is_open:
            self.provider.text += text
            self.frames.put_nowait(self.provider.write(text))

    def use(self, name: str, arguments: dict[str, Any]) -> None:
        """Ask for a tool call, and end the answer."""
        if self.is_open:
            self.frames.put_nowait(self.provider.call(name, arguments))
            self._answered()

    def finish(self, text: str = "") -> None:
        """End the answer, with this text."""
        if self.is_open:
            if text:
                self.write(text)
            self._answered()

    def fail(self, why: str) -> None:
        """Refuse the call. What a call has begun to answer breaks off."""
        if self.is_open:
            self.error = why
            self._answered()

    def _answered(self) -> None:
        self.frames.put_nowait(None)
        self.end("answered")

    def end(self, how: Literal["answered", "hung up"]) -> None:
        """Note how the call ended, if it has not ended yet."""
        if self.is_open:
            self.state = how
        self.changed.set()


class StubModel:
    """Listens on loopback. ``called`` hears of every call that is part of a turn."""

    def __init__(self, called: Callable[[ModelCall], None]) -> None:
        self.called = called
        self.needs_tools = True
        """Whether a call that declares no tools is a side call. The kit finds out about each agent."""
        self.side_calls = 0
        self.apis: dict[str, None] = {}
        """The names of the APIs that have been called."""
        self.port = 0
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    async def listen(self, port: int = 0) -> None:
        """Begin to listen; raises OSError if the port is taken."""
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", port, limit=_LARGEST)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening, and let every connection go."""
        if self._server is not None:
            self._server.close()
        for each in self._connections:
            each.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            with contextlib.suppress(
                asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError, ValueError
            ):
                await self._exchange(reader, writer)
        except asyncio.CancelledError:
            pass  # the stub closes
        finally:
            self._connections.discard(task)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read one request and answer it. Each connection carries one, so that a hang-up is about it."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        if "100-continue" in head.lower():
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        raw = await _body(reader, head)
        method, path, *_ = head.split(" ", 2)
        provider = provider_of(path) if method == "POST" else None
        body = json.loads(raw) if raw.strip() else {}
        if provider is None or not isinstance(body, dict):
            _reply(writer, 200, _NOTHING)
        else:
            call = ModelCall(provider.asked(path, body), provider)
            self.apis.setdefault(provider.name)
            if self._is_side_call(call.asked):
                self.side_calls += 1
                call.finish("{}" if call.asked.wants_json else "ok")
            else:
                self.called(call)
            await _answer(call, reader, writer)
        await writer.drain()

    def _is_side_call(self, asked: Asked) -> bool:
        if not asked.markers:
            return True
        return not asked.tools if self.needs_tools else not asked.is_last


async def _body(reader: asyncio.StreamReader, head: str) -> bytes:
    if not _CHUNKED.search(head):
        length = _LENGTH.search(head)
        return await reader.readexactly(int(length[1]) if length else 0)
    raw = b""
    while size := int((await reader.readline()).split(b";")[0], 16):
        raw += (await reader.readexactly(size + 2))[:-2]
    await reader.readline()
    return raw


async def _answer(call: ModelCall, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer a call as the kit says, or note that the agent hangs up."""
    answering = asyncio.ensure_future(_written(call, writer))
    gone = asyncio.ensure_future(reader.read(1))  # a client says nothing more before it is answered
    try:
        await asyncio.wait({answering, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            call.end("hung up")
    finally:
        for each in (answering, gone):
            each.cancel()
        await asyncio.gather(answering, gone, return_exceptions=True)


async def _written(call: ModelCall, writer: asyncio.StreamWriter) -> None:
    has_begun = False

    def begin() -> None:
        nonlocal has_begun
        if not has_begun:
            has_begun = True
            writer.write(_head(200, "text/event-stream", "Transfer-Encoding: chunked"))
            _chunk(writer, call.provider.begin())

    while (frame := await call.frames.get()) is not None:
        if call.asked.is_streamed:
            begin()
            _chunk(writer, frame)
            await writer.drain()
    if call.error:
        if not has_begun:
            _reply(writer, 400, call.provider.error(call.error))
    elif call.asked.is_streamed:
        begin()
        _chunk(writer, call.provider.end())
        writer.write(b"0\r\n\r\n")
    else:
        _reply(writer, 200, call.provider.whole())


def _head(status: int, kind: str, *more: str) -> bytes:
    lines = [f"HTTP/1.1 {status} Stub", f"Content-Type: {kind}", "Connection: close", *more]
    return "".join(f"{line}\r\n" for line in (*lines, "")).encode()


def _chunk(writer: asyncio.StreamWriter, text: str) -> None:
    data = text.encode()
    if data:
        writer.write(b"%x\r\n" % len(data) + data + b"\r\n")


def _reply(writer: asyncio.StreamWriter, status: int, body: dict[str, Any]) -> None:
    data = json.dumps(body).encode()
    writer.write(_head(status, "application/json", f"Content-Length: {len(data)}") + data)
