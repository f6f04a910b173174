"""Looking after what notifications may have missed, and after what the dead have left.

Everything here works by looking again and again; hints only make it sooner. Debts are found by the state that
they are in, never at the moment in which somebody dies, so it does not matter who noticed what when. Each is
paid by one more step, which looks again itself: of several processes that try, one does it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from turngate._guard import complain, say
from turngate._keys import KEPT_ON_A_LEDGER
from turngate._lifecycle import RUNNING, State
from turngate._words import counted
from turngate.durable._ledger import Checkpoint, LedgerGone
from turngate.durable._records import Ask
from turngate.durable._relaying import Relaying
from turngate.durable._step import ATTEMPTS, Recovered
from turngate.durable._telling import BEHIND

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from turngate.durable._handles import DurableTurn
    from turngate.durable._ledger import Orphans
    from turngate.durable._step import Step

_AT_ONCE: Final = 500
"""So many runs are asked for in one question."""
_FEW: Final = 500
"""So many runs are asked for one by one, at every look."""
_KEYS_EVERY: Final = 60.0
"""Seconds after which idempotency keys are looked for that are too old."""
_ROUNDS: Final = 20
"""So many times in a row debts are paid before anything else is looked after."""


class Tending(Relaying):
    """A worker that looks after things."""

    def __init__(
        self, *args: Any, on_death: str, poll: float, enter_timeout: float, checkpoint: float, **limits: int
    ) -> None:
        super().__init__(*args, **limits)
        self._retry = on_death == "retry"
        self._poll = poll
        self._enter_timeout = enter_timeout
        self._checkpoint_every = checkpoint
        self._woken = asyncio.Event()
        self._looked_until: tuple[int, int] | None = None
        """Up to where completions were looked at, if so many are waited for that it is done that way."""
        self._expire_keys_at = 0.0
        self._looked_at = 0
        """Where among many runs that are waited for the next look begins."""
        self._tender: asyncio.Task[None] | None = None

    def _opened(self) -> None:
        self._tender = self._supervisor.start("looking after the ledger", self._tend)
        self._guard("listening to the ledger", self._ledger.listen, self._wake)  # only hints would be missing

    def _wake(self) -> None:
        """Look soon: somebody may have done something."""
        self._woken.set()
        self._news.set()

    async def _tend(self) -> None:
        """Look after everything, again and again. What fails does not keep the rest from being done."""
        loop = self._here()
        due = put_by = loop.time()
        while True:
            self._woken.clear()
            now = loop.time()
            if self._turns and self._name:
                await self._try("the turns of this process could not be looked at", self._look_at_turns)
            await self._try("the ends of runs could not be looked for", self._look_for_ends)
            if now >= put_by:
                put_by = now + self._checkpoint_every
                await self._try("what turns have written could not be put by", self._put_by)
            if now >= due:
                due = now + self._poll
                await self._try("the ends of runs could not be looked for", self._look_at_some)
                await self._retire_former()
                await self._try("old idempotency keys could not be forgotten", self._expire_keys)
                await self._try("what dead processes have left could not be looked after", self._pay_debts)
            await self._rest(min(due, put_by) - loop.time())

    async def _try(self, complaint: str, call: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Call; log what is raised: the ledger cannot be reached, or is broken, and both may pass."""
        try:
            await call()
        except LedgerGone as exc:
            self._ledger_is_gone(exc)
        except Exception as exc:
            complain(exc, complaint)

    async def _rest(self, seconds: float) -> None:
        """Wait until woken, for so many seconds at most."""
        try:
            async with asyncio.timeout(max(seconds, 0.001)):
                await self._woken.wait()
        except TimeoutError:
            pass

    # What others have done to our turns and runs.

    async def _look_for_ends(self) -> None:
        """Find out which runs are complete that somebody of this process waits for, and nobody here runs.

        A few are asked for one by one. If there are many, what has completed since the last look is read,
        whosever it is, and only those that have come since then are asked for.
        """
        waited_for = self._waited_for()
        moment = None
        if len(waited_for) <= _FEW:
            self._looked_until = None
        elif self._looked_until is None:
            moment = await self._ledger.read_point()
        else:
            await self._look_at_completions(self._looked_until)
            waited_for = [run_id for run_id in self._unlooked if run_id in self._held]
        for start in range(0, len(waited_for), _AT_ONCE):
            await self._look_at(waited_for[start : start + _AT_ONCE])
        if moment is not None:
            self._looked_until = moment.horizon - 1, BEHIND

    def _waited_for(self) -> list[str]:
        return [run_id for run_id, run in self._held.items() if run._turn is None]

    async def _look_at_some(self) -> None:
        """Ask for some of many runs, others each time, although nothing was read of their ends.

        A transaction that is open elsewhere may hold back what is read of completions.
        """
        if self._looked_until is None:
            return
        waited_for = self._waited_for()
        first = self._looked_at % max(len(waited_for), 1)
        self._looked_at = first + _AT_ONCE
        await self._look_at(waited_for[first : first + _AT_ONCE])

    async def _look_at(self, run_ids: list[str]) -> None:
        """Ask the ledger for runs. One that it does not know any more was complete, and was purged."""
        if not run_ids:
            return
        waiting = {run_id: self._held[run_id] for run_id in run_ids if run_id in self._held}
        for known in await self._ledger.find([*waiting]):
            self._handle_of(known.row, known.complete, known.position)
            waiting.pop(known.row.run_id, None)
        for run_id, run in waiting.items():
            if self._held.get(run_id) is run and run._turn is None:
                self._is_purged(run)
        self._unlooked.difference_update(run_ids)

    async def _look_at_completions(self, after: tuple[int, int]) -> None:
        while True:
            purged, _, finished = await self._ledger.completions_after(after, _AT_ONCE)
            if purged > after:  # what was purged was not read: everything has to be asked for again
                self._looked_until = None
                return
            for position, ordinal, complete in finished:
                after = self._looked_until = position, ordinal
                if complete.run_id in self._held:
                    self._complete_here(complete, position)
            if len(finished) < _AT_ONCE:
                return

    async def _look_at_turns(self) -> None:
        """Interrupt what a cancel covers, stop what was given to another, see who waits to be folded."""
        name, turns = self._name, [*self._turns.values()]
        on_record = {mine.fence: mine for mine in await self._ledger.turns_of(name)}
        for turn in turns:
            if self._turns.get(turn.fence) is not turn or name != self._name:
                continue  # it has ended meanwhile
            mine = on_record.get(turn.fence)
            if mine is None:
                if turn.phase is RUNNING:
                    self._give_up(turn)
            elif mine.covered:
                self._cover(turn.fence, name)
            if turn._was_asked and not turn.is_over():
                await self._look_at_queue(turn)

    async def _look_at_queue(self, turn: DurableTurn) -> None:
        (loaded,) = await self._ledger.view(turn.run.session_id)
        if loaded.session is not None and loaded.session.fence == turn.fence:
            queued = [row for row in loaded.runs if row.state == "queued"]
            turn._queue = {row.seq: self._handle_of(row) for row in queued}

    async def _put_by(self) -> None:
        """Put by what turns have written, so that it is there if this process dies."""
        points: list[tuple[DurableTurn, tuple[int, str | None], Checkpoint]] = []
        for turn in self._turns.values():
            with self._writing:
                so_far = turn.length, turn.kept
                text = "".join(turn.parts or ())
            if so_far != turn.put_by and not turn.is_over():
                points.append((turn, so_far, Checkpoint(turn.run.session_id, turn.fence, text, so_far[1])))
        if points:
            await self._ledger.checkpoint([point for _, _, point in points])
            for turn, so_far, _ in points:
                turn.put_by = so_far

    # What the dead have left.

    async def _pay_debts(self) -> None:
        await self._ledger.expire_workers()
        for _ in range(_ROUNDS):
            if self._closing:
                return
            debts = await self._ledger.orphans(self._enter_timeout)
            if not any(debts) or self._closing or not await self._pay(debts):
                return

    async def _expire_keys(self) -> None:
        """Forget some of the idempotency keys that are too old; the next poll goes on if there are more."""
        now = self._here().time()
        if now >= self._expire_keys_at:
            self._expire_keys_at = now + _KEYS_EVERY
            if await self._ledger.expire_keys(KEPT_ON_A_LEDGER, _AT_ONCE) == _AT_ONCE:
                self._expire_keys_at = now

    async def _pay(self, debts: Orphans) -> bool:
        """Take the steps that are owed, and say whether one could be taken."""

        def entering(run_id: str) -> Callable[[Step], object]:
            return lambda step: step.enter(run_id)

        steps: list[tuple[Ask, Callable[[Step], object]]] = [
            *(
                (Ask(each, 0, "", 1, None, True), lambda step: step.reap(retry=self._retry))
                for each in debts.dead
            ),
            *((Ask(each, 0, "", 1), lambda step: step.claim()) for each in debts.unowned),
            *((Ask(session, 0, "", 0, run), entering(run)) for session, run in debts.unentered),
        ]
        paying = [self._stepping(ask, step, owner=False) for ask, step in steps]
        came_of = await asyncio.gather(*paying, return_exceptions=True)
        for (ask, _), result in zip(steps, came_of, strict=True):
            if isinstance(result, Recovered):
                _log_recovered(ask.session_id, result)
            elif isinstance(result, State):
                _log(
                    logging.INFO, ask.run_id, ask.session_id,
                    "is %s now: its process accepted it, and did not enter it", result.value,
                )  # fmt: skip
        failed = [each for each in came_of if isinstance(each, BaseException)]
        for exc in failed:
            complain(exc, "a debt could not be paid")
        return len(failed) < len(came_of)

    def _look_after(self, step: Step) -> None:
        self._news.set()
        others = {step.rows[run.run_id].holder for run in step.published}
        if step.interrupted and step.row.owner is not None:
            others.add(step.row.owner)
        others.discard(self._name)
        unowned = step.core.turn is not None and step.owner is None
        if others or unowned:
            self._ledger.hint(set() if unowned else others)


def _log_recovered(session_id: str, recovered: Recovered) -> None:
    """Say in the log what became of a turn that a process has left behind, a line for each run."""
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
        say(logging.INFO, "session %r has %s in its queue, to be run after that", session_id, waiting)


def _log(level: int, run_id: str | None, session_id: str, outcome: str, *about: object) -> None:
    say(level, f"run %r of session %r {outcome}", run_id, session_id, *about)
