"""Closing one process's part: its turns finish or are cancelled, everything else stays on the ledger."""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING, Any, Final

from turngate._errors import ClosedFromRunner
from turngate._guard import complain, describe, say
from turngate._lifecycle import RUNNING, WAITING
from turngate._words import counted
from turngate.durable._ledger import LedgerGone
from turngate.durable._records import Ask
from turngate.durable._step import Fenced
from turngate.durable._tending import Tending

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from turngate.durable._handles import DurableTurn

_REMINDER: Final = 2.0
_PATIENCE: Final = 10.0
"""Seconds after `finish` for which a close tries to put on record what became of the turns, at most."""
_TRIES: Final = 100
_PAUSE: Final = 0.01
"""Seconds between two attempts to read the last of it."""
_LOOKS_EVERY: Final = 0.1
"""Seconds after which a close looks again what it waits for, once `finish` is over."""
_MOMENT: Final = 1.0
"""Seconds that a ledger has to answer after a close has given up on it."""
_GONE: Final = -1
"""The name of a worker that has none, and takes none any more."""


class Ending(Tending):
    """A worker that can be closed."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._before_ledger_closes: list[Callable[[], Awaitable[None]]] = []
        """Called when the turns of this process have ended and its subscribers are told, one by one."""
        self._deadline = math.inf
        """When a close cancels the turns that are left."""
        self._gave_up = False
        """Whether a close has given up on a ledger that cannot be written."""

    async def aclose(self, *, finish: float = 0.0) -> None:
        """Refuse new prompts, end the turns of this process, and let go of the ledger.

        The turns may end by themselves for `finish` seconds (`math.inf`: as long as it takes); then they are
        cancelled. What is accepted and queued stays for the other processes, or for the next start; who still
        waits for it here is told DispatcherClosed. Idempotent: all callers wait for the same end, and the
        first one's `finish` counts. Cancelling the caller does not stop the close. A runner cannot call it:
        that raises ClosedFromRunner.

        A ledger that cannot be written does not keep a close from ending. After `finish` it is tried for as
        long as the lease lasts, and for 10 seconds at most. Then the turns are given up, which is logged.
        Other processes, or the next start, find them as those of a process that has died.
        """
        loop = self._here()
        task = asyncio.current_task()
        if any(turn.task is task for turn in self._turns.values()):
            raise ClosedFromRunner("aclose() waits for every turn, so a runner cannot call it")
        self.begin_close(finish=finish)
        while not self._closed:
            await self._close_waiters.wait(loop)

    def begin_close(self, *, finish: float = 0.0) -> None:
        """Begin what `aclose` does, without waiting for it: for a signal handler on the loop."""
        self._here()
        if not isinstance(finish, int | float) or not finish >= 0:
            raise ValueError(f"finish must be at least 0 seconds, not {finish!r}")
        if not self._closing:
            self._closing = True
            self._spawn(self._close(finish))

    async def _close(self, finish: float) -> None:
        try:
            if self._opening is not None:
                await asyncio.wait({self._opening})
            if self._is_open:
                await self._end_turns(finish)
                await self._let_go_of_ledger()
        except BaseException as exc:
            complain(exc, "closing raised")
        finally:
            self._closed = True
            self._guard("closing the subscriptions", self._subscribers.close)
            self._news.set()
            for run in [*self._held.values()]:
                self._wake_waiters(run)
            self._guard("waking those who close", self._close_waiters.wake)

    async def _end_turns(self, finish: float) -> None:
        """Wait for the ends of all turns and steps; give up the turns that the ledger does not let end."""
        loop = self._here()
        self._deadline = min(self._deadline, loop.time() + finish)
        patience = min(self._lease, _PATIENCE)
        reminder, until = loop.time() + _REMINDER, math.inf
        cancelling: dict[int, asyncio.Task[None]] = {}
        while self._turns or self._steps or (self._gave_up and self._running):
            now = loop.time()
            for turn in [*self._turns.values()]:
                if turn.fence not in cancelling and (now >= self._deadline or turn.phase is WAITING):
                    cancelling[turn.fence] = self._spawn(self._end_turn(turn))
            if now >= self._deadline and until == math.inf:
                until = now + patience
            if now >= until:
                if self._gave_up and not self._turns:
                    complain(None, "closing does not wait any longer for what the ledger does not answer")
                    return
                if self._give_up_unwritten(cancelling):
                    until = now + patience  # for the runners to end, and for steps that are under way
            if now >= reminder:
                reminder = now + _REMINDER
                self._remind()
            next_look = now + _LOOKS_EVERY if now >= self._deadline else self._deadline
            try:
                async with asyncio.timeout_at(min(reminder, next_look)):
                    await self._idle.wait(loop)
            except TimeoutError:
                pass

    def _give_up_unwritten(self, cancelling: dict[int, asyncio.Task[None]]) -> bool:
        """Give up the turns whose end, or whose cancel, the ledger does not take; say whether there are any.

        A turn that is cancelled on record and whose runner goes on is not among them.
        """
        unwritten = [
            turn
            for turn in self._turns.values()
            if turn.is_over() or (turn.fence in cancelling and not cancelling[turn.fence].done())
        ]
        if not unwritten and (self._turns or not self._steps):
            return False
        self._gave_up = True
        if unwritten:
            names = ", ".join(turn.run.run_id for turn in unwritten[:10])
            complain(
                None,
                "the ledger cannot be written; closing leaves %s, to be recovered like those of the dead: %s",
                counted(len(unwritten), "turn"),
                names,
            )
        for turn in unwritten:
            self._give_up(turn)
        return True

    def _hasten_close(self) -> None:
        """Cancel the turns of this process now, if it is closing or as soon as it does."""
        self._deadline = -math.inf
        self._idle.wake()

    async def _end_turn(self, turn: DurableTurn) -> None:
        """Cancel the turn; leave one whose runner was not called to others."""
        run, waits = turn.run, turn.phase is WAITING
        ask = Ask(run.session_id, 0, "", 1, run.run_id)
        while self._turns.get(turn.fence) is turn:
            try:
                if waits:
                    await self._stepping(ask, lambda step: step.give_up(turn.fence), owner=True)
                    self._let_go(turn)
                else:
                    await self._stepping(ask, lambda step: step.cancel_run(run.run_id), owner=True)
            except (Fenced, LedgerGone):
                self._give_up(turn)
            except Exception as exc:  # the ledger cannot be reached, or is broken: both may pass
                complain(exc, "the turn of run %s cannot be cancelled yet", run.run_id)
                await asyncio.sleep(self._poll)
            else:
                return

    def _remind(self) -> None:
        """Say for which runs the close waits; interrupt again the runners that should have ended."""
        names = ", ".join(turn.run.run_id for turn in [*self._turns.values()][:10])
        say(logging.WARNING, "closing waits for %s: %s", counted(len(self._turns), "turn"), names)
        for turn in self._turns.values():
            if turn.covered and turn.phase is RUNNING:
                self._interrupt(turn)

    async def _read_to_the_end(self) -> None:
        """Let the subscribers have all that this process has done: others may hold the horizon back.

        Those who cannot be told all of it are cut off.
        """
        why = "a transaction elsewhere held back what the ledger tells"
        loop = self._here()
        until = loop.time() + min(self._lease, _PATIENCE)
        for _ in range(_TRIES):
            try:
                async with asyncio.timeout(_MOMENT if self._gave_up else None):
                    if await self._read_on() > self._last_position:
                        return
            except Exception as exc:
                why = describe(exc)
                complain(exc, "the last events on the ledger could not be read yet")
                if self._gave_up or loop.time() >= until:
                    break
            await asyncio.sleep(_PAUSE)
        complain(None, "subscribers are not told the last of what this process has done: %s", why)
        self._subscribers.cut_off(f"the dispatcher was closed before everything was told: {why}")

    async def _call_before_ledger_closes(self) -> None:
        for call in self._before_ledger_closes:
            try:
                await call()
            except Exception as exc:
                complain(exc, "what was to be done before the ledger closes raised")

    async def _let_go_of_ledger(self) -> None:
        """Tell the subscribers the last of it, have the name count as dead, and close."""
        if self._tender is not None:
            self._tender.cancel()
        if not self._gave_up:
            await self._say()
        if self._follower is not None:
            await self._read_to_the_end()
            await self._call_before_ledger_closes()
        name, self._name = self._name, _GONE  # from here on its lease is nobody's business
        self._lets_go = True
        try:
            async with asyncio.timeout(_MOMENT if self._gave_up else None):
                await self._ledger.retire(name)
        except Exception as exc:
            complain(exc, "the worker could not take its leave")
        if self._follower is not None:
            self._follower.cancel()
            self._stop_following()
        await self._supervisor.close()
        try:
            await self._ledger.close()
        except Exception as exc:
            complain(exc, "closing the ledger raised")
        if self._gave_up:
            await self._end_steps()

    async def _end_steps(self) -> None:
        """Wait for a moment until the steps that were under way have learnt that the ledger is closed."""
        try:
            async with asyncio.timeout(_MOMENT):
                while self._steps:
                    await self._idle.wait(self._here())
        except TimeoutError:
            complain(None, "%s is still under way on a ledger that is closed", counted(self._steps, "step"))
