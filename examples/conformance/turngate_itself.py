"""Turngate's own dispatcher as a subject, with every feature: nothing is left out, and nothing breaks.

Check it with: turngate conform examples/conformance/turngate_itself.py:TurngateSubject
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any

from turngate import Dispatcher, MemoryMessages, Message, NotRunning, NotWaiting, Run, SessionBusy, Turn
from turngate_verify.conform import AsyncioSubject, Features, Wrote, observed

_COMMANDS = ("accept", "cancel", "clear", "hold", "resume", "move", "edit", "end")


class TurngateSubject(AsyncioSubject):
    """The adapter. The dispatcher tells its moves itself, by its recording."""

    features = Features(
        two_phase=True, folds=True, clear=True, messages=True, cancel_run=True, interrupt=True, reject=True,
        wait=True, residue=True, bursts=True, hold=True, stop=True, move=True, edit=True, send_now=True,
        into=True,
    )  # fmt: skip
    returns_when_done = True

    def start(self) -> None:
        """Make the dispatcher."""
        self.runs: dict[str, Run] = {}
        self.turns: dict[str, Turn] = {}
        self.dispatcher = Dispatcher(self.agent, messages=ShownMessages(self), record=self.recorded)

    async def agent(self, turn: Turn) -> str:
        """Work as the kit says."""
        self.turns[turn.run.run_id] = turn
        self.given(turn.run.run_id, str(turn.run.prompt))
        return await self.work(turn.run.run_id)

    def recorded(self, entry: dict[str, Any]) -> None:
        """Show what the dispatcher records, but for what the kit does itself."""
        if entry["event"] not in _COMMANDS:
            self.saw(observed(entry))

    async def do_accept(self, session: str, run: str) -> None:
        """Accept."""
        self.runs[run] = await self.dispatcher.accept(session, run, run_id=run)

    async def do_interrupt(self, session: str, run: str) -> None:
        """Accept, and cancel what came before."""
        self.runs[run] = await self.dispatcher.accept(session, run, run_id=run, when_busy="interrupt")

    async def do_reject(self, session: str, run: str) -> None:
        """Accept, unless the session is busy."""
        try:
            self.runs[run] = await self.dispatcher.accept(session, run, run_id=run, when_busy="reject")
        except SessionBusy:
            self.refused(run)

    async def do_enter(self, run: str) -> None:
        """Enter."""
        await self.dispatcher.enter(self.runs[run])

    async def do_cancel(self, session: str) -> None:
        """Cancel."""
        await self.dispatcher.cancel(session)

    async def do_cancel_run(self, run: str) -> None:
        """Cancel one run."""
        await self.dispatcher.cancel_run(run)

    async def do_clear(self, session: str) -> None:
        """Clear."""
        await self.dispatcher.clear_queue(session)

    async def do_fold(self, run: str) -> Sequence[str]:
        """Fold; the recording shows what is taken in."""
        for folded in await self.turns[run].fold():
            self.given(folded.run_id, str(folded.prompt))
        return ()

    async def do_hold(self, session: str) -> None:
        """Hold what waits."""
        await self.dispatcher.hold(session)

    async def do_resume(self, session: str) -> None:
        """Resume what is held."""
        await self.dispatcher.resume(session)

    async def do_stop(self, session: str) -> None:
        """Stop the turn, and hold what waits."""
        await self.dispatcher.stop(session)

    async def do_hold_run(self, run: str) -> None:
        """Hold one run."""
        await self.unless_refused(run, "hold_run", self.dispatcher.hold_run(run))

    async def do_resume_run(self, run: str) -> None:
        """Resume one run."""
        await self.unless_refused(run, "resume_run", self.dispatcher.resume_run(run))

    async def do_move(self, run: str, before: str | None) -> None:
        """Move one run."""
        moving = self.dispatcher.move(run, before=before) if before else self.dispatcher.move(run, to="last")
        await self.unless_refused(run, "move", moving)

    async def do_edit(self, run: str, prompt: str) -> None:
        """Edit one run."""
        await self.unless_refused(run, "edit", self.dispatcher.edit(run, prompt=prompt))

    async def do_send_now(self, run: str) -> None:
        """Send one run now."""
        await self.unless_refused(run, "send_now", self.dispatcher.send_now(run))

    async def do_into(self, session: str, run: str, into: str) -> None:
        """Accept for one turn alone."""
        try:
            self.runs[run] = await self.dispatcher.accept(session, run, run_id=run, into=into)
        except NotRunning:
            self.refused(run)

    async def unless_refused(self, run: str, operation: str, call: Awaitable[object]) -> None:
        """Do it, or show that it was refused."""
        try:
            await call
        except NotWaiting:
            self.refused(run, operation)

    def residue(self) -> int:
        """Count the sessions that the dispatcher holds."""
        return len(self.dispatcher.sessions())

    async def do_close(self) -> None:
        """Shut down."""
        await self.dispatcher.aclose()


class ShownMessages(MemoryMessages):
    """A store that shows what is written."""

    def __init__(self, subject: TurngateSubject) -> None:
        super().__init__()
        self._subject = subject

    async def put(self, messages: Sequence[Message]) -> None:
        """Write, and show it for every run with a user message."""
        await super().put(messages)
        for message in messages:
            if message.role == "user" and (reason := messages[-1].finish_reason):
                self._subject.saw(Wrote(message.run_id, reason))
