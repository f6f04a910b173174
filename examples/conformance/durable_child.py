"""A DurableDispatcher on an SQLite file, in a process that may be killed at any time: see durable_itself.py.

It does what it is asked for in lines of JSON, and tells what the ledger has recorded since.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import sys
from typing import Any

from turngate import AlreadyEntered, NotRunning, NotWaiting, Run, SessionBusy, Turn
from turngate.durable import DurableDispatcher, SqliteLedger

OWN = ("accept", "cancel", "clear", "hold", "resume", "move", "edit", "end")
"""What the kit does itself: the history of the ledger has it, and the port does not."""


class Process:
    """What runs in the process: the dispatcher, and a runner that follows commands."""

    def __init__(self, path: str, on_death: Any) -> None:
        ledger = SqliteLedger(path, synchronous="NORMAL")
        self.dispatcher = DurableDispatcher(self.agent, ledger, on_death=on_death, poll=0.05)
        self.told: dict[str, asyncio.Queue[str]] = {}
        self.seen: list[dict[str, Any]] = []

    async def agent(self, turn: Turn) -> str:
        """Work as the kit says."""
        run = turn.run.run_id
        told = self.told[run] = asyncio.Queue()
        if turn.attempt > 1:
            self.seen.append({"event": "handoff", "run": run})
        self.given(turn.run)
        try:
            while (what := await told.get()) == "fold":
                for folded in await turn.fold():
                    self.given(folded)
        finally:
            del self.told[run]
        if what == "fail":
            raise RuntimeError("no luck")
        return "text"

    def given(self, run: Run) -> None:
        """Show which prompt the runner has for a run."""
        self.seen.append({"event": "given", "run": run.run_id, "prompt": str(run.prompt)})

    async def serve(self) -> None:
        """Do what is asked for, a line each, and tell what has happened since."""
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
        )
        async with self.dispatcher:
            while line := await reader.readline():
                asked = json.loads(line)
                seen = asked.pop("seen")
                await self.do(**asked)
                history = io.StringIO()
                lines = await self.dispatcher.write_history(history)
                entries = [json.loads(entry) for entry in history.getvalue().splitlines()[seen:]]
                events = [*(entry for entry in entries if entry["event"] not in OWN), *self.seen]
                self.seen = []
                print(json.dumps({"events": events, "lines": lines, "at_work": [*self.told]}), flush=True)

    async def do(self, op: str, session: str = "", run: str = "", what: str = "", **more: Any) -> None:
        """Do one operation."""
        match op:
            case "accept":
                try:
                    await self.dispatcher.accept(session, run, run_id=run, **more)
                except (SessionBusy, NotRunning):
                    self.seen.append({"event": "refused", "run": run})
            case "enter":
                await self.enter(await self.dispatcher.find(run))
            case "cancel":
                await self.dispatcher.cancel(session)
            case "cancel_run":
                await self.dispatcher.cancel_run(run)
            case "clear":
                await self.dispatcher.clear_queue(session)
            case "hold" | "resume" | "stop":
                await getattr(self.dispatcher, op)(session)
            case "hold_run" | "resume_run" | "move" | "edit" | "send_now":
                try:
                    await getattr(self.dispatcher, op)(run, **more)
                except NotWaiting:
                    self.seen.append({"event": "refused", "run": run, "op": op})
            case "tell" if run in self.told:
                self.told[run].put_nowait(what)

    async def enter(self, run: Run | None) -> None:
        """Enter a run; after a crash the dispatcher may have entered it already."""
        assert run is not None
        with contextlib.suppress(AlreadyEntered):
            await self.dispatcher.enter(run)


if __name__ == "__main__":
    logging.disable()  # a runner fails only on command
    asyncio.run(Process(*sys.argv[1:]).serve())
