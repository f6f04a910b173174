"""Turngate's own dispatcher on a ledger, as a subject of the kit.

On tables in memory it can be stepped: every message to them and back takes a callback of the loop, and
operations arrive in between. On SQLite and PostgreSQL it is a subject in real time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import turngate_itself

from turngate import Run, RunComplete, SessionBusy, Turn
from turngate.durable import DurableDispatcher
from turngate_verify.conform import Features, RealtimeSubject, Timing
from turngate_verify.world.memory_ledger import MemoryLedger, Tables

NEVER = 1e9


class OnTables(turngate_itself.TurngateSubject):
    """Two phases, folds, and all that callers can do with what waits in line."""

    __test__ = False
    features = turngate_itself.TurngateSubject.features._replace(messages=False, residue=False)
    remembers: ClassVar[bool] = False
    """Whether the process decides on what it remembers of a session, as with a server, or loads it first."""

    def start(self) -> None:
        self.runs: dict[str, Run] = {}
        self.turns: dict[str, Turn] = {}
        ledger = MemoryLedger(Tables(remembers=self.remembers))
        self.dispatcher: Any = DurableDispatcher(self.agent, ledger, poll=NEVER, lease=NEVER)
        self.drive(self.dispatcher.__aenter__())

    async def agent(self, turn: Turn) -> str:
        self.turns[turn.run.run_id] = turn
        return await self.runner(str(turn.run.prompt))

    def hear(self, run: str) -> None:
        def complete(complete: RunComplete) -> None:
            self.completed(run, cancelled=complete.cancelled, error=complete.error)

        if run in self.runs:
            self.runs[run].add_done_callback(complete)

    async def do_accept(self, session: str, run: str) -> None:
        await super().do_accept(session, run)
        self.hear(run)

    async def do_interrupt(self, session: str, run: str) -> None:
        await super().do_interrupt(session, run)
        self.hear(run)

    async def do_reject(self, session: str, run: str) -> None:
        await super().do_reject(session, run)
        self.hear(run)

    async def do_into(self, session: str, run: str, into: str) -> None:
        await super().do_into(session, run, into)
        self.hear(run)

    async def do_fold(self, run: str) -> Sequence[str]:
        folded = await self.turns[run].fold()
        for each in folded:
            self.given(each.run_id, str(each.prompt))
        return [each.run_id for each in folded]


class InRealTime(RealtimeSubject):
    """One phase, and races with short delays, in sessions of its own on a ledger."""

    __test__ = False
    features = Features(clear=True, cancel_run=True, interrupt=True, reject=True, bursts=True)
    timing = Timing(quiet=0.1, grace=60.0, longest=1200.0, answers=600.0)

    ledger: ClassVar[Any]
    """Makes a ledger."""

    async def start(self) -> None:
        self.dispatcher = DurableDispatcher(self.agent, type(self).ledger(), poll=0.05)
        await self.dispatcher.__aenter__()

    async def end(self) -> None:
        await self.dispatcher.aclose()

    async def agent(self, turn: Turn) -> str:
        mine = self.named("")
        if not turn.run.run_id.endswith(mine):
            return ""  # left on the ledger by the end of an earlier program
        return await self.runner(turn.run.run_id.removesuffix(mine))

    async def take_in(self, session: str, run: str, when_busy: Any) -> None:
        accepted = await self.dispatcher.submit(
            self.named(session), run, run_id=self.named(run), when_busy=when_busy
        )

        def complete(complete: RunComplete) -> None:
            self.completed(run, cancelled=complete.cancelled, error=complete.error)

        accepted.add_done_callback(complete)

    async def do_accept(self, session: str, run: str) -> None:
        await self.take_in(session, run, "queue")

    async def do_interrupt(self, session: str, run: str) -> None:
        await self.take_in(session, run, "interrupt")

    async def do_reject(self, session: str, run: str) -> None:
        try:
            await self.take_in(session, run, "reject")
        except SessionBusy:
            self.refused(run)

    async def do_cancel(self, session: str) -> None:
        await self.dispatcher.cancel(self.named(session))

    async def do_cancel_run(self, run: str) -> None:
        await self.dispatcher.cancel_run(self.named(run))

    async def do_clear(self, session: str) -> None:
        await self.dispatcher.clear_queue(self.named(session))
