"""A client of the Agent Client Protocol that sees every line as it comes, and keeps it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from surroundings import ROOT
from turngate import Dispatcher
from turngate._prompt import WhenBusy
from turngate.acp import serve
from turngate.durable import DurableDispatcher

AGENT = ROOT / "tests" / "support" / "acp_agent.py"
ALLOW = {"outcome": {"outcome": "selected", "optionId": "allow"}}
REJECT = {"outcome": {"outcome": "selected", "optionId": "reject"}}
Said = dict[str, Any]


class AcpClient:
    """Sends what a test says; `heard` has every message of the agent in the order of their lines."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.heard: list[Said] = []
        self._number = 100

    # Sending.

    def send(self, **message: Any) -> None:
        self.line(json.dumps({"jsonrpc": "2.0", **message}).encode())

    def line(self, line: bytes) -> None:
        self.writer.write(line + b"\n")

    def ask(self, method: str, **params: Any) -> int:
        self._number += 1
        self.send(id=self._number, method=method, params=params)
        return self._number

    def prompt(self, session: str, text: str) -> int:
        return self.ask("session/prompt", sessionId=session, prompt=[{"type": "text", "text": text}])

    def cancel(self, session: str) -> None:
        self.send(method="session/cancel", params={"sessionId": session})

    # Hearing.

    async def hear(self) -> Said:
        """Return the next message; {} when the agent has no more to say."""
        line = await self.reader.readline()
        message: Said = json.loads(line) if line else {}
        if message:
            assert message["jsonrpc"] == "2.0"
            self.heard.append(message)
        return message

    async def until(self, wanted: Callable[[Said], bool]) -> Said:
        """Hear messages up to one that is wanted, and return it."""
        for message in self.heard:
            if wanted(message):
                return message
        while message := await self.hear():
            if wanted(message):
                return message
        raise AssertionError(f"the agent has ended after {self.heard[-3:]}")

    async def answer(self, number: int) -> Said:
        """Return the response to a request."""
        return await self.until(lambda said: "method" not in said and said.get("id") == number)

    async def outcome(self, number: int) -> str | int:
        """Return the stop reason of a prompt, or the code of its error."""
        answer = await self.answer(number)
        outcome: str | int = answer["result"]["stopReason"] if "result" in answer else answer["error"]["code"]
        return outcome

    async def question(self) -> Said:
        return await self.until(lambda said: "method" in said and "id" in said)

    async def drain(self) -> None:
        """Hear everything that is left."""
        while await self.hear():
            pass

    # What was heard.

    def updates(self, session: str) -> list[Said]:
        about = [each["params"] for each in self.heard if each.get("method") == "session/update"]
        return [each["update"] for each in about if each["sessionId"] == session]

    def text(self, session: str, kind: str = "agent_message_chunk") -> str:
        return "".join(
            each["content"]["text"] for each in self.updates(session) if each["sessionUpdate"] == kind
        )

    def responses(self, number: int) -> int:
        return sum("method" not in each and each.get("id") == number for each in self.heard)

    # The usual beginnings.

    async def call(self, method: str, **params: Any) -> Said:
        return await self.answer(self.ask(method, **params))

    async def initialize(self) -> Said:
        answer: Said = (await self.call("initialize", protocolVersion=1, clientCapabilities={}))["result"]
        return answer

    async def new_session(self, cwd: str = "/") -> str:
        answer = await self.call("session/new", cwd=cwd, mcpServers=[])
        session: str = answer["result"]["sessionId"]
        return session


@contextlib.asynccontextmanager
async def connected(
    dispatcher: Dispatcher | DurableDispatcher, when_busy: WhenBusy = "fold"
) -> AsyncIterator[tuple[AcpClient, asyncio.Task[None]]]:
    """Have a client of a server in this process, on two pipes; both have ended in the end."""
    loop = asyncio.get_running_loop()
    (theirs_in, ours_out), (ours_in, theirs_out) = os.pipe(), os.pipe()
    serving = loop.create_task(serve(dispatcher, when_busy=when_busy, streams=(theirs_in, theirs_out)))
    reader = asyncio.StreamReader(limit=1 << 26)
    source, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(ours_in, "rb", 0)
    )
    target, protocol = await loop.connect_write_pipe(
        lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), os.fdopen(ours_out, "wb", 0)
    )
    writer = asyncio.StreamWriter(target, protocol, None, loop)
    try:
        yield AcpClient(reader, writer), serving
    finally:
        writer.close()
        reader_task = asyncio.ensure_future(_swallow(reader))
        await asyncio.wait([serving])
        source.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        await reader_task
    if not serving.cancelled():
        serving.result()


async def _swallow(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(OSError):
        while await reader.read(1 << 16):
            pass


@contextlib.asynccontextmanager
async def started(
    *arguments: str, agent: Path = AGENT, **streams: Any
) -> AsyncIterator[tuple[AcpClient, asyncio.subprocess.Process]]:
    """Have a client of `turngate serve --acp` in a process of its own."""
    command = ("-m", "turngate", "serve", "--acp", f"{agent}:agent", *arguments)
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, **{"stdin": -1, "stdout": -1, "stderr": -1, "limit": 1 << 26, **streams}
    )
    try:
        assert process.stdin is not None
        yield AcpClient(process.stdout or asyncio.StreamReader(), process.stdin), process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
