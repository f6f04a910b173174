"""A runner that does what its prompt says, word by word, and prints, which must not break a protocol."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from pathlib import Path

from turngate import Run, Turn
from turngate.acp import PeerError, peer


async def agent(turn: Turn) -> str | None:
    print("printed", flush=True)  # noqa: T201 - to see where it goes
    os.write(1, b"printed by a program\n")
    assert sys.stdin is None or sys.stdin.closed or not sys.stdin.isatty()
    to_do = [turn.run]
    for run in to_do:
        for word in run.prompt.split():
            what, _, how = word.partition(":")
            if what == "answer":
                return how
            await act(turn, what, how, to_do)
    return None


async def act(turn: Turn, what: str, how: str, to_do: list[Run]) -> None:
    match what:
        case "wait":
            await asyncio.sleep(float(how))
        case "hold":
            await asyncio.Event().wait()
        case "fail":
            raise RuntimeError("no luck")
        case "fold":
            to_do += await turn.fold()
        case "until":  # until that number of prompts wait behind this one
            while len(turn.waiting()) < int(how):
                await asyncio.sleep(0.001)
        case "stop":
            turn.emit("stop_reason", how)
        case "flood":
            for number in range(int(how)):
                turn.write(f"{number:07d} ")
                if number % 100 == 0:
                    await asyncio.sleep(0)
        case "notes":
            turn.emit("tool_call", {"toolCallId": "t", "title": "many", "status": "in_progress"})
            for number in range(int(how)):
                turn.emit(
                    "plan", {"entries": [{"content": f"{number}", "priority": "low", "status": "pending"}]}
                )
                if number % 100 == 0:
                    await asyncio.sleep(0)
            turn.emit("tool_call_update", {"toolCallId": "t", "status": "failed"})
        case "big":
            turn.write("\N{GRINNING FACE}" * int(how))
        case "stubborn":
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            turn.write("late ")
        case "plan":
            turn.emit("plan", {"entries": [{"content": how, "priority": "high", "status": "pending"}]})
            turn.emit("plan", "no plan at all")
        case "open":
            turn.emit("tool_call", {"toolCallId": how, "title": "left open", "status": "pending"})
        case "tool":
            turn.emit(
                "tool_call", {"toolCallId": how, "title": "touch it", "kind": "edit", "status": "pending"}
            )
            chosen = await peer().permission({"toolCallId": how})
            status = "completed" if chosen == "allow" else "failed"
            turn.emit("tool_call_update", {"toolCallId": how, "status": status})
            turn.write(f"{how}={chosen} ")
        case "shielded":
            asking = asyncio.ensure_future(peer().permission({"toolCallId": how}))
            try:
                await asyncio.shield(asking)
            except asyncio.CancelledError:
                turn.write(f"{how}={await asking} again={await peer().permission({'toolCallId': how})} ")
                raise
        case "read":
            try:
                turn.write(str(await peer().request("fs/read_text_file", path=how)))
            except PeerError as wrong:
                turn.write(f"{wrong.code}: {wrong}")
        case "where":
            client = peer()
            turn.write(f"{client.cwd} {client.mcp_servers} {client.capabilities}")
        case "attached":
            turn.write(repr([*turn.run.attachments]))
        case "touch":
            Path(how).touch()  # noqa: ASYNC240 - it takes no time
        case _:
            turn.write(f"{what} ")
            await asyncio.sleep(0)
