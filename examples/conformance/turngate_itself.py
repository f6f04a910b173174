"""Turngate's own dispatcher as a subject, with every feature: nothing is left out, and nothing breaks.

Check it with: turngate conform examples/conformance/turngate_itself.py:TurngateSubject
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from turngate import Dispatcher, MemoryMessages, Message, Run, SessionBusy, Turn
from turngate_verify.conform import AsyncioSubject, Features, Wrote, observed

_COMMANDS = ("accept", "cancel", "clear", "end")


class TurngateSubject(AsyncioSubject):
    """The adapter. The dispatcher tells its moves itself, by its recording."""

    features = Features(
        two_phase=True, folds=True, clear=True, messages=True, cancel_run=True, interrupt=True, reject=True,
        wait=True, residue=True, bursts=True,
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
        await self.turns[run].fold()
        return ()

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
