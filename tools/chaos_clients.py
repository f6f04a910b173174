"""Those who use the servers of chaos over HTTP: callers that send again, onlookers of the event stream."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2

from chaos_calls import SESSIONS, Log, Operations, Sending
from turngate import Delta, Moved, Note, RunComplete, TurngateError
from turngate.client import Client, Gap, Snapshot

ABOUT = (None, None, "s0", "s1", f"s{SESSIONS - 1}")
"""What each onlooker looks at: all sessions, or one."""
LOST = 0.1
"""How often the answer of a call is lost, and how often a call arrives twice."""


class Roads(httpx2.AsyncBaseTransport):
    """Sends every request to one of the servers there are; loses answers and doubles requests."""

    def __init__(self, folder: Path, dice: random.Random) -> None:
        self._servers = folder / "servers"
        self._random = dice
        self._http = httpx2.AsyncHTTPTransport(limits=httpx2.Limits(max_connections=None))

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request."""
        if request.method == "GET":
            return await self._send(request)
        body = await request.aread()
        if self._random.random() < LOST:
            first, second = await asyncio.gather(
                self._copy(request, body), self._late_copy(request, body), return_exceptions=True
            )
            if isinstance(first, BaseException):
                first, second = second, first
            answer = first
        else:
            answer = await self._copy(request, body)
        if isinstance(answer, BaseException):
            raise answer
        if self._random.random() < LOST:
            raise httpx2.ReadError("the answer was lost", request=request)
        return answer

    async def _copy(self, request: httpx2.Request, body: bytes) -> httpx2.Response:
        answer = await self._send(
            httpx2.Request(
                request.method,
                request.url,
                headers=request.headers,
                content=body,
                extensions=request.extensions,
            )
        )
        await answer.aread()
        return answer

    async def _late_copy(self, request: httpx2.Request, body: bytes) -> httpx2.Response:
        await asyncio.sleep(self._random.random())  # others may come in between
        return await self._copy(request, body)

    async def _send(self, request: httpx2.Request) -> httpx2.Response:
        ports = []
        for file in self._servers.iterdir():
            with suppress(OSError, ValueError):
                ports.append(int(file.read_text()))
        if not ports:
            raise httpx2.ConnectError("there is no server", request=request)
        request.url = request.url.copy_with(host="127.0.0.1", port=self._random.choice(ports))
        return await self._http.handle_async_request(request)

    async def aclose(self) -> None:
        """Close every connection."""
        await self._http.aclose()


def client(folder: Path, dice: random.Random) -> Client:
    """Return a client that goes to whichever server."""
    # Patient with servers that are stopped: what they have received they carry out when they go on.
    return Client("http://127.0.0.1:1", patience=15.0, timeout=60.0, transport=Roads(folder, dice))


class Callers:
    """Several callers in one process."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        self._random = random.Random(seed)
        self._log = Log(folder / "log")
        self._name = f"h{seed}"

    async def main(self) -> None:
        """Call until it is quiet."""
        parent = os.getppid()
        async with client(self._folder, self._random) as http:
            sending = Sending(self._folder / "sending")

            async def call(number: int) -> None:
                operations = Operations(http, self._log, sending, self._random, f"{self._name}-{number}")
                while os.getppid() == parent and not (self._folder / "quiet").exists():
                    await operations.one()
                    await asyncio.sleep(self._random.random() * 0.1)

            await asyncio.gather(*map(call, range(6)))


class Onlooker:
    """Reads an event stream, goes away and comes back, and writes down everything it has heard."""

    def __init__(self, folder: Path, http: Client, dice: random.Random, number: int) -> None:
        self._folder = folder
        self._http = http
        self._random = dice
        self._session = ABOUT[number]
        self._path = folder / f"onlooker-{number}"
        self._lines = 0
        self._cursors: list[tuple[int, str]] = []
        """The cursors it had, each with the number of lines that were written by then."""
        if self._path.exists():  # the process before this one was killed
            for line in map(json.loads, self._path.read_text(encoding="utf-8").splitlines()):
                self._lines += 1
                if line["kind"] == "anew":
                    self._cursors.clear()
                elif line["kind"] == "from":
                    self._cursors = [each for each in self._cursors if each[0] <= line["lines"]]
                elif line.get("cursor") is not None and line["kind"] != "gap":
                    self._cursors.append((self._lines, line["cursor"]))
        self._file = self._path.open("a", buffering=1, encoding="utf-8")
        self._last: set[str] = set()
        self._ack = folder / f"away-{number}"
        self._wanted = {f"s{each}" for each in range(SESSIONS)} if self._session is None else {self._session}

    def _write(self, **line: Any) -> None:
        self._file.write(json.dumps({"wall": time.time(), **line}) + "\n")
        self._lines += 1

    async def main(self) -> None:
        """Read over one stream after the other, until the last run of each session was heard."""
        while not self._wanted <= self._last:
            await self._until_open()
            after = self._choose_cursor()
            stream = self._http.events(self._session, after=after)
            try:
                await self._read(stream)
            except TurngateError as refused:
                self._write(kind="refused", why=str(refused))
            finally:
                await stream.aclose()
        self._write(kind="done")

    def _choose_cursor(self) -> str | None:
        """Return where to go on: where it was, seldom where it was before, seldomer anywhere."""
        dice = self._random.random()
        if not self._cursors or (dice < 0.1 and not (self._folder / "quiet").exists()):
            self._write(kind="anew")
            self._cursors.clear()
            return None
        if dice < 0.3:
            back = self._random.randrange(min(len(self._cursors), 50))
            del self._cursors[len(self._cursors) - back :]
            if not self._cursors:
                self._write(kind="anew")
                return None
        lines, cursor = self._cursors[-1]
        self._write(kind="from", lines=lines)
        return cursor

    async def _until_open(self) -> None:
        """Stay away while the ledger is restored."""
        while (self._folder / "restoring").exists():
            if not self._ack.exists():
                self._write(kind="life")
                self._ack.touch()
            await asyncio.sleep(0.05)
        self._ack.unlink(missing_ok=True)

    async def _read(self, stream: Any) -> None:
        events = self._random.randrange(400)
        while not self._wanted <= self._last and not (self._folder / "restoring").exists():
            if events == 0 and not (self._folder / "quiet").exists():
                return
            try:
                async with asyncio.timeout(0.3):
                    event = await anext(stream)
            except TimeoutError:
                continue
            events -= 1
            self._hear(event, stream.cursor)
            if self._random.random() < 0.005:
                await self._doze()

    async def _doze(self) -> None:
        """Do not read for a while; the server may fall out of patience, a purge may pass."""
        until = time.monotonic() + self._random.random() * 5
        while time.monotonic() < until and not (self._folder / "restoring").exists():  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    def _hear(self, event: Any, cursor: str | None) -> None:
        line: dict[str, Any] = {"cursor": cursor}
        match event:
            case RunComplete():
                line |= {"kind": "complete", "complete": list(event)}
                if event.run_id.startswith("last-"):
                    self._last.add(event.session_id)
            case Snapshot():
                line |= {"kind": "snapshot", "reset": event.reset}
                line["in_flight"] = {
                    view.session_id: [
                        run.run_id
                        for run in (*view.accepted, *view.settling, *view.queued, view.active, *view.folded)
                        if run is not None
                    ]
                    for view in event.sessions
                }
            case Gap():
                line["kind"] = "gap"
            case Moved() | Delta() | Note():
                line |= {"kind": "event", "run": event.run_id, "what": type(event).__name__}
                if isinstance(event, Moved):
                    line["what"] = event.event
        self._write(**line)
        if cursor is not None and line["kind"] != "gap":
            self._cursors.append((self._lines, cursor))
            del self._cursors[:-200]


async def look_on(folder: Path, seed: int) -> None:
    """Read with every onlooker until they are done."""
    dice = random.Random(seed)
    parent = os.getppid()
    async with client(folder, dice) as http:
        tasks = [asyncio.create_task(Onlooker(folder, http, dice, each).main()) for each in range(len(ABOUT))]
        while os.getppid() == parent and not all(task.done() for task in tasks):
            done, _ = await asyncio.wait(tasks, timeout=1, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        for task in tasks:
            task.cancel()
