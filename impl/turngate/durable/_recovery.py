"""Finds out what hints have missed, and recovers what dead processes have left behind.

Everything here works by polling; hints only make it faster. Orphans are found by their state, not at the
moment of a death, so it does not matter which process notices what when. Each is recovered by one step, which
checks the state again itself, so of several processes that try, exactly one succeeds.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from turngate._core import QUEUED, RUNNING, WAITING, State
from turngate._errors import counted
from turngate._keys import KEPT_ON_A_LEDGER
from turngate._log import log, log_error
from turngate.durable._ledger import Checkpoint, LedgerGone
from turngate.durable._records import Ask
from turngate.durable._step import ATTEMPTS, Recovered
from turngate.durable.feed import BEHIND

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from turngate.durable._ledger import Orphans
    from turngate.durable._step import Step
    from turngate.durable._stepper import Stepper
    from turngate.durable._turns import KnownRuns, LedgerTurns, OwnedTurn

_AT_ONCE: Final = 500
"""How many runs one query asks for."""
_FEW: Final = 500
"""Up to this many runs are looked up one by one at every poll."""
_KEYS_EVERY: Final = 60.0
"""Seconds between two searches for idempotency keys that are too old."""
_ROUNDS: Final = 20
"""How many times in a row orphans are recovered before anything else is done."""


class Recovery:
    """Watches the turns and runs of this process, and recovers those of dead processes."""

    def __init__(self, stepper: Stepper, runs: KnownRuns, turns: LedgerTurns) -> None:
        self._ledger = stepper.ledger
        self._settings = stepper.settings
        self._stepper = stepper
        self._runs = runs
        self._turns = turns
        self.task: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._looked_until: tuple[int, int] | None = None
        """How far completions were read, when too many runs are waited for to look up each."""
        self._looked_at = 0
        """Where, among many runs that are waited for, the next look begins."""
        self._expire_keys_at = 0.0

    def start(self) -> None:
        """Begin to poll, in the background."""
        self.task = self._stepper.tasks.supervisor.start("looking after the ledger", self._run)

    def stop(self) -> None:
        """Stop polling. Idempotent."""
        if self.task is not None:
            self.task.cancel()

    def wake(self) -> None:
        """Look soon: something may have happened."""
        self._woken.set()

    async def _run(self) -> None:
        """Poll. A part that fails does not stop the others."""
        loop = self._stepper.loop.check_loop()
        due = checkpoint_due = loop.time()
        while True:
            self._woken.clear()
            now = loop.time()
            if self._turns.owned and self._stepper.name:
                await self._try("the turns of this process could not be looked at", self._look_at_turns)
            await self._try("the ends of runs could not be looked for", self._look_for_ends)
            if now >= checkpoint_due:
                checkpoint_due = now + self._settings.checkpoint
                await self._try("the text of running turns could not be saved", self._checkpoint)
            if now >= due:
                due = now + self._settings.poll
                await self._try("the ends of runs could not be looked for", self._look_at_some)
                await self._stepper.retire_former()
                await self._try("old idempotency keys could not be forgotten", self._expire_keys)
                await self._try("what dead processes have left could not be recovered", self._recover_orphans)
            await self._rest(min(due, checkpoint_due) - loop.time())

    async def _try(self, complaint: str, call: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Call, and log what is raised: the ledger cannot be reached or is broken, maybe for a while."""
        try:
            await call()
        except LedgerGone as exc:
            self._stepper.ledger_is_gone(exc)
        except Exception as exc:
            log_error(exc, complaint)

    async def _rest(self, seconds: float) -> None:
        """Wait until woken, but no longer than this time."""
        try:
            async with asyncio.timeout(max(seconds, 0.001)):
                await self._woken.wait()
        except TimeoutError:
            pass

    # What other processes have done to our turns and runs.

    async def _look_for_ends(self) -> None:
        """Find completed runs of other processes for which callers here wait.

        A few are looked up one by one. If there are many, all completions since the last look are read, and
        only runs that are waited for since then are looked up.
        """
        waited_for = self._runs.elsewhere()
        moment = None
        if len(waited_for) <= _FEW:
            self._looked_until = None
        elif self._looked_until is None:
            moment = await self._ledger.read_point()
        else:
            await self._look_at_completions(self._looked_until)
            waited_for = [run_id for run_id in self._runs.unlooked if run_id in self._runs.waited_for]
        for start in range(0, len(waited_for), _AT_ONCE):
            await self._look_at(waited_for[start : start + _AT_ONCE])
        if moment is not None:
            self._looked_until = moment.horizon - 1, BEHIND

    async def _look_at_some(self) -> None:
        """Look up some of many runs, different ones each time, even if no completion of theirs was read.

        A transaction that is open elsewhere may hold back the completions that can be read.
        """
        if self._looked_until is None:
            return
        waited_for = self._runs.elsewhere()
        first = self._looked_at % max(len(waited_for), 1)
        self._looked_at = first + _AT_ONCE
        await self._look_at(waited_for[first : first + _AT_ONCE])

    async def _look_at(self, run_ids: list[str]) -> None:
        """Look up runs on the ledger. A run that it no longer knows was complete, and was purged."""
        if not run_ids:
            return
        known_here = self._runs.waited_for
        waiting = {run_id: known_here[run_id] for run_id in run_ids if run_id in known_here}
        for known in await self._ledger.find([*waiting]):
            self._runs.handle_of(known.row, known.complete, known.position)
            waiting.pop(known.row.run_id, None)
        for run_id, run in waiting.items():
            if known_here.get(run_id) is run and run.turn is None:
                self._runs.is_purged(run)
        self._runs.unlooked.difference_update(run_ids)

    async def _look_at_completions(self, after: tuple[int, int]) -> None:
        while True:
            purged, _, finished = await self._ledger.completions_after(after, _AT_ONCE)
            if purged > after:  # purged completions were not read, so every run has to be looked up again
                self._looked_until = None
                return
            for position, ordinal, complete in finished:
                after = self._looked_until = position, ordinal
                if complete.run_id in self._runs.waited_for:
                    self._runs.complete(complete, position)
            if len(finished) < _AT_ONCE:
                return

    async def _look_at_turns(self) -> None:
        """Interrupt covered turns, stop those that others have taken over, and look for follow-ups."""
        name, owned = self._stepper.name, [*self._turns.owned.values()]
        on_record = {mine.fence: mine for mine in await self._ledger.turns_of(name)}
        for each in owned:
            turn = each.turn
            if self._turns.owned.get(turn.fence) is not each or name != self._stepper.name:
                continue  # it has ended meanwhile
            mine = on_record.get(turn.fence)
            if mine is None:
                if turn.record.phase in (WAITING, RUNNING):  # otherwise it is about to find out by itself
                    self._turns.give_up(turn)
            elif mine.covered:
                self._turns.cover(turn.fence, name)
            if each.is_asked and not each.is_over():
                await self._look_at_queue(each)

    async def _look_at_queue(self, owned: OwnedTurn) -> None:
        (loaded,) = await self._ledger.view(owned.turn.run.session_id)
        if loaded.session is not None and loaded.session.fence == owned.turn.fence:
            queued = [row for row in loaded.runs if row.state is QUEUED]
            owned.queue = {row.seq: self._runs.handle_of(row) for row in queued}

    async def _checkpoint(self) -> None:
        """Save the text of running turns, so that it survives the death of this process."""
        points: list[tuple[OwnedTurn, tuple[int, str | None], Checkpoint]] = []
        for owned in self._turns.owned.values():
            length, text, kept = owned.turn.so_far()
            if (length, kept) != owned.checkpoint and not owned.is_over():
                turn = owned.turn
                point = Checkpoint(turn.run.session_id, turn.fence, text, kept)
                points.append((owned, (length, kept), point))
        if points:
            await self._ledger.checkpoint([point for _, _, point in points])
            for owned, so_far, _ in points:
                owned.checkpoint = so_far

    async def _expire_keys(self) -> None:
        """Delete some of the idempotency keys that are too old; the next poll goes on if there are more."""
        now = self._stepper.loop.check_loop().time()
        if now >= self._expire_keys_at:
            self._expire_keys_at = now + _KEYS_EVERY
            if await self._ledger.expire_keys(KEPT_ON_A_LEDGER, _AT_ONCE) == _AT_ONCE:
                self._expire_keys_at = now

    # What dead processes have left.

    async def _recover_orphans(self) -> None:
        await self._ledger.expire_workers()
        for _ in range(_ROUNDS):
            if self._stepper.is_closing:
                return
            orphans = await self._ledger.orphans(self._settings.enter_timeout)
            if not any(orphans) or self._stepper.is_closing or not await self._recover(orphans):
                return

    async def _recover(self, orphans: Orphans) -> bool:
        """Take the steps that the orphans need; return whether any could be taken."""

        def reap(step: Step) -> object:
            return step.reap(retry=self._settings.on_death == "retry")

        def claim(step: Step) -> object:
            return step.claim()

        def entering(run_id: str) -> Callable[[Step], object]:
            return lambda step: step.enter(run_id)

        steps: list[tuple[Ask, Callable[[Step], object]]] = [
            *((Ask(session_id, 0, "", 1, with_text=True), reap) for session_id in orphans.dead),
            *((Ask(session_id, 0, "", 1), claim) for session_id in orphans.unowned),
            *(
                (Ask(session_id, 0, "", 0, run_id), entering(run_id))
                for session_id, run_id in orphans.unentered
            ),
        ]
        sent = [self._stepper.send(ask, fn, owner=False) for ask, fn in steps]
        results = await asyncio.gather(*sent, return_exceptions=True)
        for (ask, _), result in zip(steps, results, strict=True):
            if isinstance(result, Recovered):
                _log_recovered(ask.session_id, result)
            elif isinstance(result, State):
                _log(
                    logging.INFO, ask.run_id, ask.session_id,
                    "is %s now: its process accepted it, but did not enter it", result.value,
                )  # fmt: skip
        failed = [each for each in results if isinstance(each, BaseException)]
        for exc in failed:
            log_error(exc, "the runs of a dead process could not be recovered")
        return len(failed) < len(results)


def _log_recovered(session_id: str, recovered: Recovered) -> None:
    """Log what happened to a turn that a process has left behind, one line per run."""
    level, outcome = {
        "lost": (logging.WARNING, "is lost: the process that ran its turn died"),
        "retried": (logging.WARNING, "runs again, attempt %d of %d: the process that ran its turn died"),
        "cancelled": (logging.WARNING, "is cancelled, as was asked: the process that ran its turn died"),
        "taken over": (logging.INFO, "goes on here: its process left before the turn began"),
    }[recovered.what]
    about = (recovered.attempt, ATTEMPTS) if recovered.what == "retried" else ()
    for run_id in recovered.runs:
        _log(level, run_id, session_id, outcome, *about)
    for run_id in recovered.successors:
        _log(logging.INFO, run_id, session_id, "goes on here: it was queued behind that turn")
    if recovered.queued:
        waiting = counted(recovered.queued, "more run")
        log(logging.INFO, "session %r has %s in its queue, which will run after it", session_id, waiting)


def _log(level: int, run_id: str | None, session_id: str, outcome: str, *about: object) -> None:
    log(level, f"run %r of session %r {outcome}", run_id, session_id, *about)
