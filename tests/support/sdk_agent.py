"""A sound agent on the official Python SDK: one turn at a time in a session, and a cancel covers all."""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from typing import Any
from urllib.parse import urlsplit

import acp


class Turn:
    def __init__(self, before: Turn | None) -> None:
        self.before = before
        self.is_over = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True
        if self.task is not None:
            self.task.cancel()


class ModelAgent:
    def __init__(self) -> None:
        self.turns: dict[str, list[Turn]] = {}
        self.client: Any = None

    def on_connect(self, client: Any) -> None:
        self.client = client

    async def initialize(self, protocol_version: int, **_: Any) -> acp.InitializeResponse:
        return acp.InitializeResponse(protocol_version=acp.PROTOCOL_VERSION)

    async def new_session(self, cwd: str, **_: Any) -> acp.NewSessionResponse:
        session_id = uuid.uuid4().hex
        self.turns[session_id] = []
        return acp.NewSessionResponse(session_id=session_id)

    async def prompt(self, session_id: str, prompt: list[Any], **_: Any) -> acp.PromptResponse:
        turns = self.turns[session_id]
        turn = Turn(turns[-1] if turns else None)
        turns.append(turn)
        try:
            if turn.before is not None:
                await turn.before.is_over.wait()
            if not turn.is_cancelled:
                turn.task = asyncio.create_task(self.work(session_id, prompt[0].text))
                await asyncio.wait([turn.task])
                if not turn.task.cancelled():
                    turn.task.result()
            return acp.PromptResponse(stop_reason="cancelled" if turn.is_cancelled else "end_turn")
        finally:
            turns.remove(turn)
            turn.is_over.set()

    async def cancel(self, session_id: str, **_: Any) -> None:
        for turn in self.turns[session_id]:
            turn.cancel()

    async def work(self, session_id: str, text: str) -> None:
        url = urlsplit(os.environ["OPENAI_BASE_URL"])
        reader, writer = await asyncio.open_connection(url.hostname, url.port)
        try:
            said = {"messages": [{"role": "user", "content": text}], "stream": True, "tools": [{}]}
            body = json.dumps(said).encode()
            head = (
                f"POST {url.path}/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            writer.write(head.encode() + body)
            if b" 200 " not in await reader.readuntil(b"\r\n\r\n"):
                raise acp.RequestError.internal_error()
            while line := await reader.readline():
                if line.startswith(b"data: {"):
                    piece = json.loads(line[6:])["choices"][0]["delta"].get("content") or ""
                    await self.client.session_update(session_id, acp.update_agent_message_text(piece))
        finally:
            writer.close()


if __name__ == "__main__":
    asyncio.run(acp.run_agent(ModelAgent()))  # type: ignore[arg-type]
