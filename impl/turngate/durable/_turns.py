"""The runs and the turns that a process knows.

There is one handle for each run. Its state is the last one seen from here: a step of this process changes it
at once, and a step of another process when this process looks, at the latest when the run completes. A turn
belongs to this process from the step that started it here to the step that finishes it.
"""

from __future__ import annotations

import asyncio
import weakref
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING, Final

from turngate._core import COMPLETE, QUEUED, RUNNING, SETTLING, RunRecord, State, TurnRecord
from turngate._effects import announce, call_callbacks
from turngate._errors import TurnEnded
from turngate._handles import Run, Turn
from turngate._log import log_error
from turngate._places import Places
from turngate._turn import TurnRunner
from turngate.durable._ledger import LedgerGone, NotStorable
from turngate.durable._records import ALL, Ask, as_attachments
from turngate.durable._step import Fenced

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Context

    from turngate._events import RunComplete
    from turngate._handles import Home
    from turngate._keys import RunName
    from turngate._prompt import OnComplete
    from turngate._runner import Called
    from turngate.durable._records import RunRow
    from turngate.durable._step import Step
    from turngate.durable._stepper import Stepper
    from turngate.durable.feed import Feed

_ORDER: Final = {state: number for number, state in enumerate(State)}
"""A run reaches its states in this order."""
REFUSED_BY_LEDGER: Final = "the ledger refuses to store the result of the turn"
"""The error of a run whose text or data the ledger refuses."""


class PendingAccept:
    """What a caller passed with a prompt and only this process has, and the handle, once there is one."""

    __slots__ = ("context", "handle", "on_complete")

    def __init__(self, context: Context, on_complete: OnComplete | None) -> None:
        self.context = context
        self.on_complete = on_complete
        self.handle: Run | None = None


class KnownRuns:
    """The handles of this process, and the runs that it has to look for.

    home       the dispatcher that the handles belong to
    on_hooked  called with each run whose RunComplete a hook receives, and its position
    """

    def __init__(self, home: Home, on_hooked: Callable[[str, int], None]) -> None:
        self.waited_for: dict[str, Run] = {}
        """Runs whose end may be waited for in this process."""
        self.unlooked: set[str] = set()
        """Those among them that were not looked for yet."""
        self.handles: weakref.WeakValueDictionary[str, Run] = weakref.WeakValueDictionary()
        self._home = home
        self._on_hooked = on_hooked

    def watch(self, run: Run) -> None:
        """Look for the completion of the run until it is found."""
        if run.state is not COMPLETE:
            self.waited_for[run.run_id] = run
            self.unlooked.add(run.run_id)

    def has_hook(self, run_id: str) -> bool:
        """Return whether an `on_complete` of this process waits for the RunComplete."""
        handle = self.handles.get(run_id)
        return handle is not None and handle.on_complete is not None

    def elsewhere(self) -> list[str]:
        """Return the runs that callers wait for and that are not part of a turn of this process."""
        return [run_id for run_id, run in self.waited_for.items() if run.turn is None]

    def handle_of(self, row: RunRow, complete: RunComplete | None = None, position: int = 0) -> Run:
        """Return this process's one handle of the run, brought up to date.

        The row may be older than a step that is already known here, so a handle never goes back to an earlier
        state.
        """
        handle = self.handles.get(row.run_id)
        if handle is not None and (handle.session_id, handle.seq) != (row.session_id, row.seq):
            if handle.complete is None:  # it belongs to a purged run that had the same id
                self.is_purged(handle)
            handle = None
        if handle is None:
            handle = self._new_handle(row)
        record = handle.record
        if record.complete is None:
            if _ORDER[row.state] > _ORDER[record.state] and row.state is not COMPLETE:
                record.state = row.state
                if record.state is QUEUED:  # it completes to the subscribers
                    handle.on_complete = None
            record.covered = record.covered or row.covered
            if row.state is record.state:
                handle.attachments = as_attachments(row.attachments)
                _take_line(record, row.as_record())
            if complete is not None:
                self.complete(complete, position)
        return handle

    def all_seen(self, step: Step, runs: list[RunRecord]) -> list[Run]:
        """Return the handles of runs that a step has seen, complete or not."""
        return [self.handle_of(step.row_of(run), run.complete) for run in runs]

    def forgotten(self, name: RunName) -> Run:
        """Return a handle for a complete run that the ledger no longer knows."""
        return Run(self._home, RunRecord(name.session_id, name.run_id, name.seq, "", state=COMPLETE))

    def _new_handle(self, row: RunRow) -> Run:
        attachments = as_attachments(row.attachments)
        handle = self.handles[row.run_id] = Run(self._home, row.as_record(), attachments)
        return handle

    def accept(self, step: Step) -> None:
        """Make the handles of the runs that the step has accepted, before anything happens to them."""
        for run_id, pending in step.accepted.items():
            self.handles.pop(run_id, None)  # it belongs to a purged run that had the same id
            handle = self.handle_of(step.rows[run_id])
            self.watch(handle)
            if pending is not None:
                pending.handle = handle
                handle.context, handle.on_complete = pending.context, pending.on_complete

    def see(self, step: Step, version: int) -> None:
        """Bring the handles up to date with what the step has decided."""
        for run_id, run in step.runs.items():
            handle = self.handles.get(run_id)
            if handle is not None and handle.complete is None and handle.version <= version:
                handle.version = version
                handle.record.covered = run.covered
                if run.complete is None:
                    handle.record.state = run.state
                    _take_line(handle.record, run)
                    handle.attachments = as_attachments(step.row_of(run).attachments)
                if handle.record.state is QUEUED:
                    handle.on_complete = None

    def complete(self, complete: RunComplete, position: int = 0, turn: Turn | None = None) -> None:
        """Announce the RunComplete in this process, once. The run was completed at that position, if known.

        `turn` is the turn of this process that completed the run, if there is one.
        """
        handle = self.handles.get(complete.run_id)
        if handle is None or handle.complete is not None:
            return
        if turn is not None and handle.turn is turn and turn.is_over and not turn.given_up:
            handle.leave_turn()
        else:
            handle.turn = None
            if complete.message_id is not None:
                handle.pieces = (complete.text,) if complete.text else ()
        handle.record.state, handle.record.complete, handle.record.held = COMPLETE, complete, False
        self._forget(handle)
        if handle.on_complete is not None:
            self._on_hooked(handle.run_id, position)
        announce(handle, complete)
        call_callbacks(handle, complete)

    def is_purged(self, run: Run) -> None:
        """Mark a run as forgotten: the ledger no longer has it.

        The run was complete, and its outcome was purged before this process had read it.
        """
        self._forget(run)
        self.handles.pop(run.run_id, None)
        run.record.state, run.context = COMPLETE, None
        if run.on_complete is not None or run.callbacks:
            run.on_complete, run.callbacks = None, ()
            log_error(
                None,
                "run %s was purged before its outcome was read, so its callbacks are not called",
                run.run_id,
            )
        wake(run)

    def _forget(self, run: Run) -> None:
        self.waited_for.pop(run.run_id, None)
        self.unlooked.discard(run.run_id)

    def wake_all(self) -> None:
        """Wake the tasks that wait for any run, or read its text."""
        for run in [*self.waited_for.values()]:
            wake(run)


def _take_line(record: RunRecord, seen: RunRecord) -> None:
    """Update a record with what callers have done to the run while it waited."""
    record.prompt, record.data, record.when_busy = seen.prompt, seen.data, seen.when_busy
    record.held, record.rank, record.into = seen.held, seen.rank, seen.into


def wake(run: Run) -> None:
    """Wake the tasks that wait for the run, or read its text."""
    for waiters in (run.waiters, run.listeners):
        if waiters:
            waiters.wake()


@dataclass(eq=False, slots=True)
class OwnedTurn:
    """A turn of this process, and what is known here of the queue behind it."""

    turn: Turn
    queue: dict[int, Run] = field(default_factory=dict)
    is_asked: bool = False
    """Whether the runner has asked what it could fold, so that this has to be kept up to date."""
    checkpoint: tuple[int, str | None] = (0, None)
    """How much of the text the ledger has, and which data."""

    def is_over(self) -> bool:
        """Return whether the runner has ended, or will not be called."""
        return self.turn.record.phase is SETTLING or self.turn.given_up


class LedgerTurns:
    """Begins, covers, gives up and finishes the turns of this process; see `TurnHost`."""

    def __init__(self, home: Home, stepper: Stepper, runs: KnownRuns, feed: Feed, runner: Called) -> None:
        self.owned: dict[int, OwnedTurn] = {}
        """The turns of this process, by fence."""
        self.covered_early: set[int] = set()
        """Fences of turns that a cancel has covered before the step that starts them was answered."""
        limit = stepper.settings.turns_limit
        self.runner = TurnRunner(runner, stepper.loop, None if limit is None else Places(limit))
        self._home = home
        self._stepper = stepper
        self._runs = runs
        self._feed = feed
        self._poll = stepper.settings.poll
        self._has_places = limit is not None

    def turn_of(self, fence: int) -> Turn | None:
        """Return the turn of this process that has the fence."""
        owned = self.owned.get(fence)
        return None if owned is None else owned.turn

    # Consequences of steps and of looks at the ledger.

    def start(self, step: Step, position: int) -> None:
        """Run the turn that the step has started here."""
        assert step.started is not None
        lead, *folded = [self._runs.handle_of(step.row_of(run)) for run in step.started.runs]
        record = TurnRecord(lead.record, covered=step.fence in self.covered_early)
        self.covered_early.discard(step.fence)
        turn = Turn(self._home, record, lead, step.fence, step.attempts)
        owned = self.owned[turn.fence] = OwnedTurn(turn)
        turn.join(folded)
        for run in turn.runs:
            run.record.state = step.runs[run.run_id].state
        lead.turn = turn
        if lead.listeners:
            lead.listeners.wake()
        for waiting in step.core.queue.in_order():
            owned.queue[waiting.seq] = self._runs.handle_of(step.row_of(waiting))
        self._feed.begin_turn(lead.run_id, position)
        self.runner.start(turn)

    def see(self, step: Step, turn: Turn) -> None:
        """Update a turn of this process, and the queue behind it, after a step."""
        core = step.core
        if core.turn is None or step.fence != turn.fence:
            self.let_go(turn)
            return
        owned = self.owned[turn.fence]
        for run in step.runs.values():
            if run.state is QUEUED:
                owned.queue[run.seq] = self._runs.handle_of(step.row_of(run))
            else:
                owned.queue.pop(run.seq, None)
        joined = [self._runs.handle_of(step.row_of(run)) for run in core.turn.runs]
        turn.join(joined[len(turn.runs) :])

    def cover(self, fence: int, owner: int | None) -> None:
        """Interrupt the turn if it runs here, even if the step that starts it is not answered yet."""
        turn = self.turn_of(fence)
        if turn is None:
            if owner == self._stepper.name:
                self.covered_early.add(fence)
        elif not turn.covered:
            turn.record.covered = True
            if turn.record.phase is RUNNING:
                self.runner.interrupt(turn)

    def give_up_all(self) -> None:
        """Stop the runners of all turns, which no longer belong to this process."""
        for owned in [*self.owned.values()]:
            self.give_up(owned.turn)

    def give_up(self, turn: Turn) -> None:
        """Stop the runner of a turn that no longer belongs to this process."""
        turn.given_up = True
        self.let_go(turn)
        if turn.record.phase is RUNNING:
            self.runner.interrupt(turn)

    def let_go(self, turn: Turn) -> None:
        """Forget a turn that has ended, or that another process has now."""
        self.owned.pop(turn.fence, None)
        for run in turn.runs:
            run.turn = None
        self.runner.leave_line(turn)
        self._stepper.idle.wake()

    # Calls from turns.

    async def begin(self, turn: Turn) -> bool:
        """Return whether the runner may be called; with places, put on record that it is about to be."""
        if self._has_places and not turn.covered:
            await self._begin_on_record(turn)
        if turn.covered or turn.given_up:
            return False
        turn.record.phase = RUNNING
        return True

    async def _begin_on_record(self, turn: Turn) -> None:
        """Record that the run no longer waits for a place."""
        session_id, fence = turn.run.session_id, turn.fence
        while not turn.given_up and not turn.covered:
            try:
                begun = await self._stepper.step(session_id, lambda step: step.begin(fence), owner=True)
                turn.record.covered = turn.covered or not begun
            except (Fenced, LedgerGone):  # a cancel came first and has settled it, or nothing can be done
                self.give_up(turn)
            except Exception as exc:  # the ledger cannot be reached, or is broken; either may be temporary
                if self._stepper.is_closed:
                    raise
                log_error(exc, "the turn of run %s cannot begin yet", turn.run.run_id)
                await asyncio.sleep(self._poll)
            else:
                return

    def end(self, turn: Turn, text: str | None, error: str | None) -> None:
        """Take the result of the runner."""
        record = turn.record
        record.phase = SETTLING
        record.text = "".join(turn.parts) if text is None else text
        record.error, record.kept = error, turn.kept

    async def settle(self, turn: Turn, *, wait: bool) -> None:
        """Put the outcome on record, in a task that is never cancelled."""
        finishing = self._stepper.tasks.spawn(self._finish(turn))
        while wait and not finishing.done():
            try:
                await asyncio.shield(finishing)
            except asyncio.CancelledError:
                if finishing.cancelled():
                    raise

    def settle_at_once(self, turn: Turn) -> None:
        """Put the outcome on record if the loop goes on; otherwise another process recovers the turn."""
        if self._stepper.loop.is_running_here():
            self._stepper.tasks.spawn(self._finish(turn))

    async def _finish(self, turn: Turn) -> None:
        """Put the outcome on record; retry as long as the turn belongs to this process."""
        record, run_id = turn.record, turn.run.run_id
        await self._feed.end_turn(run_id)
        ask = Ask(turn.run.session_id, 0, "", head=1)
        unwritten: str | None = None

        def finish(step: Step) -> None:
            step.finish(turn.fence, record.text, record.error, record.kept, unwritten)

        while not turn.given_up:
            try:
                await self._stepper.send(ask, finish, owner=True)
            except (Fenced, LedgerGone):
                break
            except NotStorable as exc:
                log_error(exc, "the outcome of run %s cannot be stored as it is", run_id)
                if unwritten is not None:  # even an outcome without a result is refused
                    await asyncio.sleep(self._poll)
                elif record.error == REFUSED_BY_LEDGER:
                    unwritten = REFUSED_BY_LEDGER
                record.text, record.kept, record.error = "", None, REFUSED_BY_LEDGER
            except Exception as exc:
                log_error(exc, "the outcome of run %s is not stored yet", run_id)
                if not turn.given_up:
                    await asyncio.sleep(self._poll)
            else:
                return
        log_error(None, "the turn of run %s was given up: its result is discarded", run_id)
        self.let_go(turn)

    # Calls from runners.

    async def fold(self, turn: Turn) -> list[Run]:
        """Fold the follow-ups that may join the turn."""
        self._stepper.loop.check_loop()
        turn.check_open("fold into")
        session_id, fence = turn.run.session_id, turn.fence
        try:
            taken = await self._stepper.step(session_id, lambda step: step.fold(fence), head=ALL, owner=True)
        except Fenced:
            raise TurnEnded(f"fold into the turn of run {turn.run.run_id}, which was given up") from None
        joined = {run.run_id for run in taken}
        return [run for run in turn.runs if run.run_id in joined]

    def foldable(self, turn: Turn) -> list[Run]:
        """Return what a fold would take into the turn, as far as this process knows."""
        self._stepper.loop.check_loop()
        turn.check_open("fold into")
        waiting: list[Run] = []
        owned = self.owned.get(turn.fence)
        if owned is not None and not turn.covered:
            owned.is_asked = True
            free = [run for run in owned.queue.values() if not run.held]
            free.sort(key=lambda run: run.record.rank)
            waiting = [*takewhile(lambda run: run.when_busy == "fold", free)]
        return waiting
