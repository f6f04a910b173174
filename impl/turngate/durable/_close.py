"""Closes the dispatcher of one process: its turns end, and everything else stays on the ledger."""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING, Final

from turngate._core import RUNNING, WAITING
from turngate._errors import counted
from turngate._events import Waiters
from turngate._log import guard, log, log_error
from turngate.durable._ledger import LedgerGone
from turngate.durable._records import Ask
from turngate.durable._step import Fenced

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from turngate._handles import Turn
    from turngate.durable._recovery import Recovery
    from turngate.durable._stepper import Stepper
    from turngate.durable._turns import KnownRuns, LedgerTurns
    from turngate.durable.feed import Feed

_REMINDER: Final = 2.0
"""Seconds after which a close that still waits names the turns, and interrupts their runners again."""
_PATIENCE: Final = 10.0
"""The most seconds after `finish` for which a close tries to put the outcomes of turns on record."""
_LOOKS_EVERY: Final = 0.1
"""Seconds between two looks at what the close waits for, once `finish` has passed."""
_MOMENT: Final = 1.0
"""Seconds that a ledger has to answer after a close has given up on it."""
_NAMED: Final = 10
"""How many turns are named in the log."""


class LedgerClose:
    """The end of a dispatcher on a ledger."""

    def __init__(
        self, stepper: Stepper, runs: KnownRuns, turns: LedgerTurns, feed: Feed, recovery: Recovery
    ) -> None:
        self.before_ledger_closes: list[Callable[[], Awaitable[None]]] = []
        """Called, one by one, when the turns of this process have ended and all events are delivered."""
        self._ledger = stepper.ledger
        self._loop = stepper.loop
        self._tasks = stepper.tasks
        self._stepper = stepper
        self._runs = runs
        self._turns = turns
        self._feed = feed
        self._recovery = recovery
        self._patience = min(stepper.settings.lease, _PATIENCE)
        self._poll = stepper.settings.poll
        self._deadline = math.inf
        """When the turns that are left are cancelled."""
        self._gave_up = False
        """Whether the close has given up on a ledger that cannot be written."""
        self._waiters = Waiters()

    async def wait(self) -> None:
        """Wait until the close is done."""
        while not self._stepper.is_closed:
            await self._waiters.wait(self._loop.check_loop())

    def begin(self, finish: float) -> None:
        """Let the turns of this process end by themselves for `finish` seconds, then cancel what is left."""
        if not self._stepper.is_closing:
            self._stepper.is_closing = True
            self._tasks.spawn(self._close(finish))

    def hasten(self) -> None:
        """Cancel the turns of this process now, if it is closing or as soon as it does."""
        self._deadline = -math.inf
        self._stepper.idle.wake()

    async def _close(self, finish: float) -> None:
        try:
            if self._stepper.opening is not None:
                await asyncio.wait({self._stepper.opening})
            if self._stepper.is_open:
                cancelling: dict[int, asyncio.Task[None]] = {}
                try:
                    await self._end_turns(finish, cancelling)
                finally:
                    for task in cancelling.values():
                        task.cancel()  # for turns that were given up meanwhile
                await self._let_go_of_ledger()
        except BaseException as exc:
            log_error(exc, "closing raised")
        finally:
            self._stepper.is_closed = True
            guard("closing the subscriptions", self._feed.close)
            self._runs.wake_all()
            guard("waking those who close", self._waiters.wake)

    async def _end_turns(self, finish: float, cancelling: dict[int, asyncio.Task[None]]) -> None:
        """Wait until all turns and steps have ended; give up turns whose end the ledger does not accept.

        `cancelling` are the tasks that cancel turns, by the fence of the turn.
        """
        loop, stepper, turns = self._loop.check_loop(), self._stepper, self._turns
        self._deadline = min(self._deadline, loop.time() + finish)
        reminder, until = loop.time() + _REMINDER, math.inf
        while turns.owned or stepper.under_way or (self._gave_up and len(turns.runner)):
            now = loop.time()
            for owned in [*turns.owned.values()]:
                turn = owned.turn
                if turn.fence not in cancelling and (now >= self._deadline or turn.record.phase is WAITING):
                    cancelling[turn.fence] = self._tasks.spawn(self._end_turn(turn))
            if now >= self._deadline and until == math.inf:
                until = now + self._patience
            if now >= until:
                if self._gave_up and not turns.owned:
                    log_error(None, "closing no longer waits for the ledger, which does not answer")
                    return
                if self._give_up_unwritten(cancelling):
                    until = now + self._patience  # for the runners to end, and for steps that are under way
            if now >= reminder:
                reminder = now + _REMINDER
                self._remind()
            next_look = now + _LOOKS_EVERY if now >= self._deadline else self._deadline
            try:
                async with asyncio.timeout_at(min(reminder, next_look)):
                    await stepper.idle.wait(loop)
            except TimeoutError:
                pass

    def _give_up_unwritten(self, cancelling: dict[int, asyncio.Task[None]]) -> bool:
        """Give up the turns whose end or cancel the ledger does not accept; return whether there are any.

        A turn that is cancelled on record, and whose runner goes on, is not among them.
        """
        unwritten = [
            owned.turn
            for fence, owned in self._turns.owned.items()
            if owned.is_over() or (fence in cancelling and not cancelling[fence].done())
        ]
        if not unwritten and (self._turns.owned or not self._stepper.under_way):
            return False
        self._gave_up = True
        if unwritten:
            log_error(
                None,
                "the ledger cannot be written; closing leaves %s, to be recovered like those of the dead: %s",
                counted(len(unwritten), "turn"),
                _names(unwritten),
            )
        for turn in unwritten:
            self._turns.give_up(turn)
        return True

    async def _end_turn(self, turn: Turn) -> None:
        """Cancel the turn; leave a turn whose runner was not called to other processes."""
        run, is_waiting = turn.run, turn.record.phase is WAITING
        ask = Ask(run.session_id, 0, "", 1, run.run_id)
        while self._turns.turn_of(turn.fence) is turn:
            try:
                if is_waiting:
                    await self._stepper.send(ask, lambda step: step.give_up(turn.fence), owner=True)
                    self._turns.let_go(turn)
                else:
                    await self._stepper.send(ask, lambda step: step.cancel_run(run.run_id), owner=True)
            except (Fenced, LedgerGone):
                self._turns.give_up(turn)
            except Exception as exc:  # the ledger cannot be reached, or is broken; either may be temporary
                log_error(exc, "the turn of run %s cannot be cancelled yet", run.run_id)
                await asyncio.sleep(self._poll)
            else:
                return

    def _remind(self) -> None:
        """Log which turns the close waits for; interrupt again the runners that should have ended."""
        turns = [owned.turn for owned in self._turns.owned.values()]
        log(logging.WARNING, "closing waits for %s: %s", counted(len(turns), "turn"), _names(turns))
        for turn in turns:
            if turn.covered and turn.record.phase is RUNNING:
                self._turns.runner.interrupt(turn)

    async def _let_go_of_ledger(self) -> None:
        """Deliver the last events, retire the name of this process, and close the ledger."""
        within = _MOMENT if self._gave_up else None
        self._recovery.stop()
        if not self._gave_up:
            await self._feed.flush()
        if self._feed.following:
            await self._feed.read_to(
                self._stepper.last_position, patience=self._patience, answer_within=within
            )
            for call in self.before_ledger_closes:
                try:
                    await call()
                except Exception as exc:
                    log_error(exc, "a last step before the ledger closes raised")
        name = self._stepper.let_go()
        self._feed.stop()
        try:
            async with asyncio.timeout(within):
                await self._ledger.retire(name)
        except Exception as exc:
            log_error(exc, "the worker could not be retired")
        await self._tasks.supervisor.close()
        try:
            await self._ledger.close()
        except Exception as exc:
            log_error(exc, "closing the ledger raised")
        if self._gave_up:
            await self._end_steps()

    async def _end_steps(self) -> None:
        """Wait a moment for the steps under way to learn that the ledger is closed."""
        stepper = self._stepper
        try:
            async with asyncio.timeout(_MOMENT):
                while stepper.under_way:
                    await stepper.idle.wait(self._loop.check_loop())
        except TimeoutError:
            log_error(
                None, "%s is still running on a ledger that is closed", counted(stepper.under_way, "step")
            )


def _names(turns: list[Turn]) -> str:
    return ", ".join(turn.run.run_id for turn in turns[:_NAMED])
