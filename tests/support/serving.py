"""Real servers on loopback, connections that break, and a reader of event streams of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx2

from turngate.server import Limits, asgi_app
from turngate.server._serving import HttpServer, config, listening


class Quiet(HttpServer):
    """A server that leaves signals to the tests."""

    def capture_signals(self) -> Any:
        """Capture none."""
        return contextlib.nullcontext()


@contextlib.asynccontextmanager
async def serving(app: Any, *, port: int = 0) -> AsyncIterator[str]:
    """Serve an application as `turngate serve` does, on the loop of the test; yield its address."""
    started: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    server = Quiet(app, config(app, "127.0.0.1", port), started.set_result)
    with listening("127.0.0.1", port) as own:
        task = asyncio.create_task(server.serve([own]))
        both: list[asyncio.Future[Any]] = [started, task]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            await task
        try:
            yield f"http://127.0.0.1:{started.result()}"
        finally:
            server.should_exit = True
            await task


@contextlib.asynccontextmanager
async def served(dispatcher: Any, **options: Any) -> AsyncIterator[tuple[str, httpx2.AsyncClient]]:
    """Serve a dispatcher or a runner; yield the address, and an HTTP client for it.

    At the end, what is in flight is cancelled unless `finish` is given.
    """
    options.setdefault("finish", 0.0)
    async with (
        serving(asgi_app(dispatcher, **options)) as url,
        httpx2.AsyncClient(base_url=url, timeout=60.0) as http,
    ):
        yield url, http


async def figure(url: str, name: str) -> int:
    """Return a figure of a server, as `/metrics` has it."""
    async with httpx2.AsyncClient(base_url=url, timeout=60.0) as http:
        found = re.search(rf"^turngate_{name} (\d+)$", (await http.get("/metrics")).text, re.MULTILINE)
    assert found is not None, name
    return int(found[1])


class Heard(NamedTuple):
    """An event of a stream."""

    event: str
    data: dict[str, Any]
    id: str | None


class Ear:
    """One connection to an event stream, read by hand: iterate for events, heartbeats left out."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.status = 0
        self.headers = ""
        self.comments: list[str] = []
        self.last_id: str | None = None
        self.ended = False
        """Whether the server has ended the stream as HTTP ends a body."""
        self._reader, self._writer = reader, writer
        self._rest = b""
        self._left = 0
        self._frames: list[bytes] = []

    @classmethod
    async def open(cls, url: str, path: str = "/v1/events", after: str | None = None, **more: str) -> Ear:
        """Connect, and read the head of the answer."""
        parts = urlsplit(url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        ear = cls(reader, writer)
        headers = {"Host": parts.netloc, **more}
        if after is not None:
            headers["Last-Event-ID"] = after
        lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
        writer.write("\r\n".join(lines).encode())
        ear.headers = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        ear.status = int(ear.headers.split()[1])
        return ear

    def __aiter__(self) -> Ear:
        return self

    async def __anext__(self) -> Heard:
        while True:
            while self._frames:
                if (heard := self._heard(self._frames.pop(0))) is not None:
                    return heard
            await self._read()

    async def _read(self) -> None:
        """Take what has come, even a part of a chunk."""
        try:
            if self._left == 0:
                self._left = int(await self._reader.readline(), 16)
                if self._left == 0:
                    self.ended = True
                    raise StopAsyncIteration
            data = await self._reader.read(self._left)
            self._left -= len(data)
            if not data:
                raise StopAsyncIteration
            if self._left == 0:
                await self._reader.readexactly(2)
        except (asyncio.IncompleteReadError, ConnectionError, ValueError):
            raise StopAsyncIteration from None
        *self._frames, self._rest = (self._rest + data).split(b"\n\n")

    def _heard(self, frame: bytes) -> Heard | None:
        event, data, identity = "", None, None
        for line in frame.decode().split("\n"):
            field, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if field == "event":
                event = value
            elif field == "data":
                data = json.loads(value)
            elif field == "id":
                identity = value
            elif not field:
                self.comments.append(value)
        self.last_id = identity or self.last_id
        return None if data is None else Heard(event, data, identity)

    async def until(self, wanted: Callable[[Heard], bool]) -> list[Heard]:
        """Return the events up to one that is wanted, that one included."""
        heard = []
        async for each in self:
            heard.append(each)
            if wanted(each):
                return heard
        raise AssertionError(f"the stream ended after {heard[-3:]}")

    async def complete(self, *run_ids: str) -> list[Heard]:
        """Return the events up to the last RunComplete of these runs."""
        left = set(run_ids)

        def is_last(each: Heard) -> bool:
            if each.event == "run.complete":
                left.discard(each.data["run_id"])
            return not left

        return await self.until(is_last)

    def close(self) -> None:
        """Go away without a word."""
        self._writer.transport.abort()


def names(heard: list[Heard]) -> list[str]:
    """Return the names of events."""
    return [each.event for each in heard]


def completes(heard: list[Heard]) -> list[str]:
    """Return the ids of the runs whose RunCompletes are among the events."""
    return [each.data["run_id"] for each in heard if each.event == "run.complete"]


def recorded(heard: list[Heard]) -> list[str]:
    """Return the recorded history that the events of a stream are, from its beginning to its end."""
    lines = []
    renamed = {"run_id": "run", "state": "state", "into": "into", "cancelled": "cancelled", "runs": "runs"}
    for each in heard:
        if each.event not in ("delta", "note", "snapshot"):
            line = {"event": each.event.rpartition(".")[2], "session": each.data["session_id"]}
            line |= {new: each.data[old] for old, new in renamed.items() if each.data.get(old) is not None}
            lines.append(json.dumps(line))
    return [*lines, '{"event": "end"}']


async def follow(
    url: Callable[[], str],
    session: str | None,
    expected: dict[str, str],
    *,
    begun: Callable[[], object] = lambda: None,
    most: Callable[[], int] = lambda: 1_000_000,
) -> None:
    """Read a stream over as many connections as it takes, until every completion has come; each once.

    `expected` has the session of each run. `url` is asked for every connection, `most` for how many events to
    read from it; `begun` is called when there is a place to go on from.
    """
    path = "/v1/events" if session is None else f"/v1/sessions/{session}/events"
    owed = {run for run, at in expected.items() if session in (None, at)}
    seen: list[str] = []
    after: str | None = None
    while owed - set(seen):
        try:
            ear = await Ear.open(url(), path, after)
        except (asyncio.IncompleteReadError, ConnectionError):
            continue
        left = most()
        async for each in ear:
            assert not (each.event == "snapshot" and each.data["reset"])
            seen += completes([each])
            if each.id:
                after = each.id
                begun()
            left -= 1
            if left <= 0 or not owed - set(seen):
                break
        ear.close()
    assert sorted(seen) == sorted(owed)


class Line:
    """A line between a client and a server that can be cut: a proxy on a port of its own.

    With `cuts`, each connection is cut after a random number of bytes of the answer.
    """

    def __init__(self, url: str, cuts: tuple[int, int] | None = None, seed: int = 0) -> None:
        self._to = urlsplit(url)
        self._cuts = cuts
        self._random = random.Random(seed)
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.whole = True
        self.connections = 0

    @contextlib.asynccontextmanager
    async def up(self) -> AsyncIterator[str]:
        """Yield the address of this end of the line."""
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
            self.cut()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Cut every connection; new ones are refused until it is mended."""
        self.whole = False
        for writer in self._open:
            writer.transport.abort()

    def mend(self) -> None:
        """Let new connections through."""
        self.whole = True

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if not self.whole:
            writer.transport.abort()
            return
        self.connections += 1
        try:
            to_reader, to_writer = await asyncio.open_connection(self._to.hostname, self._to.port)
        except OSError:  # the server is not there, or is just going away
            writer.transport.abort()
            return
        self._open |= {writer, to_writer}
        budget = None if self._cuts is None else self._random.randint(*self._cuts)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump(reader, to_writer, None))
                both.create_task(self._pump(to_reader, writer, budget))
        finally:
            self._open -= {writer, to_writer}
            for each in (writer, to_writer):
                each.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, budget: int | None
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65_536):
                if budget is not None:
                    data, budget = data[:budget], budget - len(data)
                writer.write(data)
                await writer.drain()
                if budget is not None and budget <= 0:
                    break
        for each in [*self._open & {writer}]:
            each.transport.close() if budget is None else each.transport.abort()


def small(**limits: Any) -> Limits:
    """Return limits of which some are small."""
    return Limits(**limits)
