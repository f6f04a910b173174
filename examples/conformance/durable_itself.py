"""Turngate's own DurableDispatcher on an SQLite file, in a process that is killed and started again.

Check it with: turngate conform --workers 2 examples/conformance/durable_itself.py:DurableSubject
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path

from turngate_verify.conform import Features, RealtimeSubject, Timing, observed

CHILD = Path(__file__).with_name("durable_child.py")


class DurableSubject(RealtimeSubject):
    """The adapter: one file for each program. A crash is SIGKILL, and then a new process on the same file."""

    features = Features(
        two_phase=True, folds=True, clear=True, cancel_run=True, interrupt=True, reject=True, crash=True,
        hold=True, stop=True, move=True, edit=True, send_now=True, into=True,
    )  # fmt: skip
    timing = Timing(grace=20.0, longest=60.0)
    on_death = "fail"

    async def start(self) -> None:
        """Begin on an empty ledger."""
        self.folder = tempfile.TemporaryDirectory()
        self.told_lines = 0
        self.at_work: list[str] = []
        await self.open()

    async def open(self) -> None:
        """Start a process on the ledger."""
        path = str(Path(self.folder.name) / "ledger.sqlite")
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, str(CHILD), path, self.on_death, stdin=-1, stdout=-1
        )
        await self.ask("look")

    async def ask(self, op: str, **about: str | None) -> None:
        """Ask the process, and show what it tells."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"op": op, "seen": self.told_lines, **about}).encode() + b"\n")
        answer = json.loads(await self.process.stdout.readline())
        self.told_lines = answer["lines"]
        self.at_work = answer["at_work"]
        for event in answer["events"]:
            self.saw(observed(event))

    async def do_crash(self) -> None:
        """Kill the process, and start another."""
        self.process.kill()
        await self.process.wait()
        await self.open()

    async def look(self) -> None:
        """Read on in the history of the ledger."""
        await self.ask("look")

    async def do_accept(self, session: str, run: str) -> None:
        """Accept."""
        await self.ask("accept", session=session, run=run)

    async def do_interrupt(self, session: str, run: str) -> None:
        """Accept, and cancel what came before."""
        await self.ask("accept", session=session, run=run, when_busy="interrupt")

    async def do_reject(self, session: str, run: str) -> None:
        """Accept, unless the session is busy."""
        await self.ask("accept", session=session, run=run, when_busy="reject")

    async def do_enter(self, run: str) -> None:
        """Enter."""
        await self.ask("enter", run=run)

    async def do_cancel(self, session: str) -> None:
        """Cancel."""
        await self.ask("cancel", session=session)

    async def do_cancel_run(self, run: str) -> None:
        """Cancel one run."""
        await self.ask("cancel_run", run=run)

    async def do_clear(self, session: str) -> None:
        """Clear."""
        await self.ask("clear", session=session)

    async def do_hold(self, session: str) -> None:
        """Hold what waits."""
        await self.ask("hold", session=session)

    async def do_resume(self, session: str) -> None:
        """Resume what is held."""
        await self.ask("resume", session=session)

    async def do_stop(self, session: str) -> None:
        """Stop the turn, and hold what waits."""
        await self.ask("stop", session=session)

    async def do_hold_run(self, run: str) -> None:
        """Hold one run."""
        await self.ask("hold_run", run=run)

    async def do_resume_run(self, run: str) -> None:
        """Resume one run."""
        await self.ask("resume_run", run=run)

    async def do_move(self, run: str, before: str | None) -> None:
        """Move one run."""
        await self.ask("move", run=run, **({"before": before} if before else {"to": "last"}))

    async def do_edit(self, run: str, prompt: str) -> None:
        """Edit one run."""
        await self.ask("edit", run=run, prompt=prompt)

    async def do_send_now(self, run: str) -> None:
        """Send one run now."""
        await self.ask("send_now", run=run)

    async def do_into(self, session: str, run: str, into: str) -> None:
        """Accept for one turn alone."""
        await self.ask("accept", session=session, run=run, into=into)

    def tell(self, run: str, what: str) -> None:
        """Tell the runner, which is in the process."""
        self.call(self.ask("tell", run=run, what=what))

    def working(self) -> list[str]:
        """Return whose runner is at work in the process."""
        return self.at_work

    async def end(self) -> None:
        """Kill the process."""
        self.process.kill()
        await self.process.wait()
        self.folder.cleanup()


class RetryingSubject(DurableSubject):
    """The same, where a turn whose process died runs again."""

    on_death = "retry"
