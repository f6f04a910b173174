"""The handles that callers and runners hold of what is on a ledger.

A handle is made in one process of what is known there. Its `state` is what was last seen from here: a step of
this process changes it at once, one of another when this process looks, at the latest when the run completes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from turngate._errors import DispatcherClosed
from turngate._lifecycle import COMPLETE, SETTLING
from turngate._run import Covered, Run, Turn
from turngate._waiters import Waiters
from turngate.durable._ledger import LedgerGone

if TYPE_CHECKING:
    from turngate._events import RunComplete
    from turngate._prompt import OnComplete
    from turngate.durable._dispatcher import DurableDispatcher


class DurableRun(Run):
    """A run on a ledger; see `Run`."""

    __slots__ = ("_turn", "_version")

    _turn: DurableTurn | None
    """The turn that it is part of, if that runs in this process."""
    _version: int
    """The version of the session at which it was last seen."""

    @property
    def _home(self) -> DurableDispatcher:
        return cast("DurableDispatcher", self._dispatcher)

    async def wait(self) -> RunComplete:
        """Return the RunComplete, at once if there is one, whichever process the run ends in.

        When cancelled while waiting, neither the run nor anyone else who waits for it is touched. Raises
        DispatcherClosed when this process's dispatcher closes first: the run goes on elsewhere, or later;
        LedgerUnavailable when the ledger is gone for good; and UnknownRun when the run is purged before this
        process has read its outcome.
        """
        loop = self._dispatcher._here()
        self._home._watch(self)
        if self.complete is None:
            await self._dispatcher._check_wait(self)
        while self.complete is None:
            self._check_end_is_to_come()
            if self._waiters is None:
                self._waiters = Waiters()
            await self._waiters.wait(loop)
        return self.complete

    @property
    def lead(self) -> Run | None:
        """The run whose turn this one is part of, as far as that is known in this process."""
        self._dispatcher._in_thread()
        if self._turn is not None:
            return self._turn.run
        if self.complete is not None and self.complete.folded_into is not None:
            return self._home._handles.get(self.complete.folded_into)
        return None if self._pieces is None else self

    def _check_end_is_to_come(self) -> None:
        """Raise if this process will not learn of the end of the run."""
        self._check_not_forgotten()
        if self._dispatcher._closed:
            raise DispatcherClosed(f"the dispatcher is closed; run {self.run_id} goes on without it")
        if self._home._gone is not None:
            raise LedgerGone(str(self._home._gone))

    def _listen(self) -> Waiters:
        self._check_end_is_to_come()
        self._home._watch(self)
        return super()._listen()

    def add_done_callback(self, callback: OnComplete) -> None:
        """Have `callback` called once in this process, with the RunComplete, whichever way the run ends.

        Raises UnknownRun if the run is known to be purged. A run that is purged later, before this process
        has read its outcome, is logged as an error, and nothing is called.
        """
        super().add_done_callback(callback)
        self._home._watch(self)

    async def cancel(self) -> Covered:
        """Cover this run or, when it is part of the active turn, the whole turn; as `cancel_run` does."""
        if self.state is COMPLETE:  # by now another run may have its run_id
            return Covered([])
        return await self._home.cancel_run(self.run_id)

    async def close(self) -> None:
        """Release the run if it has not entered, otherwise do nothing. Idempotent."""
        await self._home._release_run(self)


class DurableTurn(Turn):
    """One call of the runner for a turn on a ledger; see `Turn`.

    `fence` grows with every owner of the session's turn: hand it to the systems that the runner writes to, so
    that they can refuse what comes from an owner that was given up. `attempt` counts from 1; a later one
    answers the same runs from the beginning, after the process of the one before has died.
    """

    __slots__ = ("_attempt", "_fence", "_home", "_queue", "_was_asked", "given_up", "put_by")

    def __init__(self, home: DurableDispatcher, runs: list[DurableRun], fence: int, attempt: int) -> None:
        super().__init__(runs[0])
        self._runs = [*runs]
        self._home = home
        self._fence = fence
        self._attempt = attempt
        self._queue: dict[int, DurableRun] = {}
        """What is queued behind it, as far as this process knows."""
        self._was_asked = False
        self.given_up = False
        """Whether this process has lost the turn: nothing that it does counts any more."""
        self.put_by: tuple[int, str | None] = 0, None
        """How much of the text, and what beside it, the ledger has."""

    @property
    def attempt(self) -> int:
        """Which attempt at the turn this is, from 1."""
        return self._attempt

    @property
    def fence(self) -> int:
        """A number that grows with every owner of the session's turn."""
        return self._fence

    async def fold(self) -> list[Run]:
        """Take in the queued follow-ups that may join this turn, and return them; none once it is cancelled.

        When cancelled while waiting, what is taken in on record is among `runs` all the same. Raises
        TurnEnded when the turn was given up for dead.
        """
        return await self._home._fold_into(self)

    def waiting(self) -> list[Run]:
        """Return what `fold` would take in, as far as this process knows; it looks again with every poll."""
        self._home._here()
        self._home._nobody.check_open(self, "fold into")
        self._was_asked = True
        waiting: list[Run] = []
        for _, run in sorted(self._queue.items()):
            if run.when_busy != "fold" or self.covered:
                break
            waiting.append(run)
        return waiting

    def is_over(self) -> bool:
        """Say whether the runner is over, or will not be called."""
        return self.phase is SETTLING or self.given_up
