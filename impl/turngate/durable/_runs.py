"""The runs that a process knows: one handle for each, brought up to date by every step and every look.

A handle is made in one process of what is known there. Its state is what was last seen from here: a step of
this process changes it at once, one of another when this process looks, at the latest when the run completes.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Final

from turngate._core import COMPLETE, RunRecord, State
from turngate._effects import announce, call_callbacks
from turngate._handles import Run
from turngate._log import log_error
from turngate.durable._records import as_attachments

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Context

    from turngate._events import RunComplete
    from turngate._handles import Home, Turn
    from turngate._keys import RunName
    from turngate._prompt import OnComplete
    from turngate.durable._records import RunRow
    from turngate.durable._step import Step

_ORDER: Final = {state: number for number, state in enumerate(State)}
"""A run comes to its states in this order."""


class PendingAccept:
    """What comes with a prompt and stays in this process, and the handle as soon as there is one."""

    __slots__ = ("context", "handle", "on_complete")

    def __init__(self, context: Context, on_complete: OnComplete | None) -> None:
        self.context = context
        self.on_complete = on_complete
        self.handle: Run | None = None


class KnownRuns:
    """The handles of this process, and which of them it has to look for.

    home       the dispatcher that the handles belong to
    on_hooked  is told of each run whose RunComplete a hook receives, and of its position
    """

    def __init__(self, home: Home, on_hooked: Callable[[str, int], None]) -> None:
        self.waited_for: dict[str, Run] = {}
        """Runs whose end may be waited for in this process."""
        self.unlooked: set[str] = set()
        """Those of them that were not looked for yet."""
        self.handles: weakref.WeakValueDictionary[str, Run] = weakref.WeakValueDictionary()
        self._home = home
        self._on_hooked = on_hooked

    def watch(self, run: Run) -> None:
        """Look for the end of the run until it is there."""
        if run.state is not COMPLETE:
            self.waited_for[run.run_id] = run
            self.unlooked.add(run.run_id)

    def has_hook(self, run_id: str) -> bool:
        """Say whether an `on_complete` of this process waits for the RunComplete."""
        handle = self.handles.get(run_id)
        return handle is not None and handle.on_complete is not None

    def elsewhere(self) -> list[str]:
        """Return the runs that are waited for and are not part of a turn of this process."""
        return [run_id for run_id, run in self.waited_for.items() if run.turn is None]

    def handle_of(self, row: RunRow, complete: RunComplete | None = None, position: int = 0) -> Run:
        """Return the one handle that this process has of the run, brought up to date.

        A row may have been read before a step that is known here already, so a handle never goes back to an
        earlier state.
        """
        handle = self.handles.get(row.run_id)
        if handle is not None and (handle.session_id, handle.seq) != (row.session_id, row.seq):
            if handle.complete is None:  # it is of a run that had the same id and was purged
                self.is_purged(handle)
            handle = None
        if handle is None:
            handle = self._new_handle(row)
        record = handle.record
        if record.complete is None:
            if _ORDER[row.state] > _ORDER[record.state] and row.state is not COMPLETE:
                record.state = row.state
                handle.drop_hook_if_queued()
            record.covered = record.covered or row.covered
            if complete is not None:
                self.complete(complete, position)
        return handle

    def seen(self, run: RunRecord, row: RunRow) -> Run:
        """Return the handle of a run that a step has seen."""
        return self.handle_of(row._replace(state=run.state, covered=run.covered))

    def all_seen(self, step: Step, runs: list[RunRecord]) -> list[Run]:
        """Return the handles of runs that a step has seen, complete or not."""
        return [self.handle_of(step.rows[run.run_id], run.complete) for run in runs]

    def forgotten(self, name: RunName) -> Run:
        """Return a handle of a run that is complete, and of which the ledger knows nothing any more."""
        return Run(self._home, RunRecord(name.session_id, name.run_id, name.seq, "", state=COMPLETE))

    def _new_handle(self, row: RunRow) -> Run:
        record = RunRecord(
            row.session_id, row.run_id, row.seq, row.prompt, row.when_busy, row.state, covered=row.covered
        )
        handle = self.handles[row.run_id] = Run(self._home, record, as_attachments(row.attachments))
        return handle

    def accept(self, step: Step) -> None:
        """Make the handles of what the step has taken in, before anything happens to it."""
        for run_id, pending in step.accepted.items():
            self.handles.pop(run_id, None)  # of a run that had the same id and was purged
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
                handle.drop_hook_if_queued()

    def complete(self, complete: RunComplete, position: int = 0, turn: Turn | None = None) -> None:
        """Tell those of this process who hold the run, once. It was completed at that position, if known.

        `turn` is the turn of this process that the run was completed with.
        """
        handle = self.handles.get(complete.run_id)
        if handle is None or handle.complete is not None:
            return
        if turn is not None and handle.turn is turn and turn.output.is_closed and not turn.given_up:
            handle.leave_turn()
        else:
            handle.turn = None
            if complete.message_id is not None:
                handle.pieces = (complete.text,) if complete.text else ()
        handle.record.state, handle.record.complete = COMPLETE, complete
        self._forget(handle)
        if handle.on_complete is not None:
            self._on_hooked(handle.run_id, position)
        announce(handle, complete)
        call_callbacks(handle, complete)

    def is_purged(self, run: Run) -> None:
        """Tell those who hold the run that the ledger has it no more.

        It was complete then. Its outcome was purged before this process has read it.
        """
        self._forget(run)
        self.handles.pop(run.run_id, None)
        run.record.state, run.context = COMPLETE, None
        if run.on_complete is not None or run.callbacks:
            run.on_complete, run.callbacks = None, []
            log_error(
                None, "run %s was purged before its outcome was read; no callback is called", run.run_id
            )
        wake(run)

    def _forget(self, run: Run) -> None:
        self.waited_for.pop(run.run_id, None)
        self.unlooked.discard(run.run_id)

    def wake_all(self) -> None:
        """Let everyone who waits for a run, or reads its text, look again."""
        for run in [*self.waited_for.values()]:
            wake(run)


def wake(run: Run) -> None:
    """Let those who wait for the run, or read its text, look again."""
    run.waiters.wake()
    run.listeners.wake()
