"""Claude as the SDK sees it from the other end of a transport, scripted.

It speaks the lines that the SDK's own process would: it answers control requests, mirrors its transcript,
resumes from one, streams, runs its tool, and ends each prompt with a result, also when it is interrupted.
Two things it is strict about: a transcript to resume from must have a result for every tool call, and
a reader may not leave in the middle of an answer.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKClient, Transport

from claude_agent_runner import runner
from scripted import TOOL, Heard, Malformed, Script
from turngate import Runner

LEAVES = None
CONFIG = "/nowhere"
SESSION_ID = "5e551015-0000-4000-8000-000000000000"


class Claude(Transport):
    """The other end: `entries` is its transcript."""

    def __init__(self, script: Script, options: ClaudeAgentOptions) -> None:
        self.script = script
        self.options = options
        self.entries: list[dict[str, Any]] = []
        self.lines: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self.answering: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        """Resume if asked to, as the SDK has its own process do: from what the store has."""
        await asyncio.sleep(0)
        if self.options.resume is not None:
            assert self.options.session_store is not None
            key: Any = {"project_key": "p", "session_id": self.options.resume}
            self.entries = [*(await self.options.session_store.load(key) or [])]  # type: ignore[list-item]  # what it gave to the store
            calls = [each.text for each in self.heard() if each.kind == "call"]
            returns = [each.text for each in self.heard() if each.kind == "return"]
            if calls != returns:
                raise Malformed(f"a transcript with calls {calls} and returns {returns}")

    async def write(self, data: str) -> None:
        """Take one line."""
        await asyncio.sleep(0)
        line = json.loads(data)
        if line["type"] == "control_request":
            if line["request"]["subtype"] == "interrupt" and self.answering is not None:
                self.answering.cancel()
            response = {"subtype": "success", "request_id": line["request_id"], "response": {}}
            self.lines.put_nowait({"type": "control_response", "response": response})
        else:
            assert self.answering is None or self.answering.done(), "asked while it answers"
            self.answering = asyncio.create_task(self.answer(line["message"]["content"]))

    async def answer(self, prompt: str) -> None:
        """Go on until there is nothing more to look up; interrupted, close what is open and say so."""
        self.note("user", prompt)
        try:
            while await self.respond():
                pass
            self.result("success")
        except asyncio.CancelledError:
            returned = {each.text for each in self.heard() if each.kind == "return"}
            for each in self.heard():
                if each.kind == "call" and each.text not in returned:
                    self.note(
                        "user", [{"type": "tool_result", "tool_use_id": each.text, "content": "stopped"}]
                    )
            self.result("error_during_execution")

    async def respond(self) -> bool:
        """Say one thing, and run the tool if that is what it says; return whether it did."""
        reply = self.script.reply(self.heard())
        for word in reply.words:
            await asyncio.sleep(0)
            delta = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": word}}
            self.send("stream_event", uuid="u", event=delta)
        content: list[dict[str, Any]] = [{"type": "text", "text": "".join(reply.words)}]
        if reply.call is not None:
            call = {"type": "tool_use", "id": reply.call, "name": TOOL, "input": {"subject": reply.subject}}
            content.append(call)
        await asyncio.sleep(0)
        self.note("assistant", content)
        if reply.call is None:
            return False
        found = await self.script.look_up(reply.subject)
        self.note("user", [{"type": "tool_result", "tool_use_id": reply.call, "content": found}])
        return True

    def note(self, role: str, content: Any) -> None:
        """Write something down in the transcript, and tell of it."""
        message = {"role": role, "content": content, "model": "scripted"}
        entry = {"type": role, "uuid": f"e{len(self.entries)}", "message": message}
        self.entries.append(entry)
        path = str(Path(CONFIG) / "projects" / "p" / f"{SESSION_ID}.jsonl")
        self.lines.put_nowait({"type": "transcript_mirror", "filePath": path, "entries": [entry]})
        if role == "assistant" or not isinstance(content, str):
            self.send(role, message=message)

    def result(self, subtype: str) -> None:
        self.send("result", subtype=subtype, is_error=subtype != "success",
                  duration_ms=1, duration_api_ms=1, num_turns=1)  # fmt: skip

    def send(self, kind: str, **what: Any) -> None:
        self.lines.put_nowait({"type": kind, "session_id": SESSION_ID, "parent_tool_use_id": None, **what})

    def heard(self) -> list[Heard]:
        """Translate the transcript."""
        found: list[Heard] = []
        for entry in self.entries:
            role, content = entry["message"]["role"], entry["message"]["content"]
            if isinstance(content, str):
                found += [Heard("user", prompt) for prompt in content.split("\n\n")]
                continue
            for block in content:
                if block["type"] == "text":
                    found.append(Heard(role, block["text"]))
                elif block["type"] == "tool_use":
                    found.append(Heard("call", block["id"]))
                else:
                    found.append(Heard("return", block["tool_use_id"]))
        return found

    async def read_messages(self) -> AsyncIterator[dict[str, Any]]:
        """Give the lines, one after the other."""
        while (line := await self.lines.get()) is not None:
            yield line

    async def close(self) -> None:
        """End; every caller must have its answer."""
        assert self.answering is None or self.answering.done(), "left in the middle of an answer"
        await asyncio.sleep(0)
        self.lines.put_nowait(None)

    def is_ready(self) -> bool:
        return True

    async def end_input(self) -> None:
        """Nothing more will be written."""


def make(script: Script) -> Runner:
    """Make the recipe's runner, with a scripted Claude for each turn."""
    options = ClaudeAgentOptions(env={"CLAUDE_CONFIG_DIR": CONFIG})
    return runner(options, lambda stored: ClaudeSDKClient(stored, transport=Claude(script, stored)))
