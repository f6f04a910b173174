"""Telling what the cores decide, in the order in which they decide it: to the recording and to the log."""

from __future__ import annotations

import json
import logging
from collections import deque
from typing import TYPE_CHECKING, Any

from turngate._core import SessionCore
from turngate._events import moved
from turngate._guard import deal_with, log, say
from turngate._lifecycle import COMPLETE, State

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TextIO

    from turngate._core import Effect, Publish
    from turngate._events import Audience, RunComplete
    from turngate._run import Run

    Entry = dict[str, Any]
    Noted = tuple[Entry, RunComplete | None]
    """A decision, as recorded histories spell it, and the RunComplete if that is what was decided."""


class Journal:
    """What the cores of a dispatcher have decided and nobody has been told yet."""

    def __init__(self, record: TextIO | Callable[[Entry], object] | None, audience: Audience) -> None:
        self.untold: deque[Noted] = deque()
        self.record = record
        self._audience = audience
        self._telling = False

    def is_kept(self) -> bool:
        """Say whether there is anybody to be told."""
        return self.record is not None or bool(self._audience.by_session) or log.isEnabledFor(logging.DEBUG)

    def end(self) -> None:
        """Tell that nothing more will happen, and record no more."""
        if self.record is not None:
            self.untold.append(({"event": "end"}, None))
        self.tell()
        self.record = None

    def tell(self) -> None:
        """Tell all that is untold: the log, the recording and those who subscribed to moves.

        Each is told whatever becomes of the others. A recording that raises is told no more. What is decided
        while somebody is being told waits until all have been.
        """
        if self._telling:
            return
        self._telling = True
        try:
            while self.untold:
                self._tell(*self.untold.popleft())
        finally:
            self._telling = False

    def _tell(self, entry: Entry, complete: RunComplete | None) -> None:
        if log.isEnabledFor(logging.DEBUG):
            words = " ".join(f"{key}=%s" for key in entry)
            say(logging.DEBUG, words, *entry.values(), extra={"turngate": entry})
        if self.record is not None:
            self._record(self.record, entry)
        if self._audience.by_session and "session" in entry:
            try:
                self._audience.deliver(moved(entry) if complete is None else complete)
            except BaseException as exc:
                deal_with(exc, "delivering %s raised", entry)

    def _record(self, record: TextIO | Callable[[Entry], object], entry: Entry) -> None:
        try:
            if callable(record):
                record(entry)
            else:
                record.write(json.dumps(entry) + "\n")
        except BaseException as exc:
            self.record = None
            deal_with(exc, "the recording raised at %s, and stops there", entry)


class JournaledCore(SessionCore):
    """Decides as `SessionCore` does, and notes each decision as recorded histories spell it."""

    __slots__ = ()

    def accept(self, run: Run) -> None:
        """Accept, and note it."""
        super().accept(run)
        self._note("accept", run=run.run_id, seq=run.seq)

    def _cover(self, newest: int) -> list[Effect]:
        self._note("cancel")  # before what follows from it
        return super()._cover(newest)

    def cancel_run(self, run: Run, *, waiting_only: bool = False) -> tuple[list[Run], list[Effect]]:
        """Cancel, and note the covered runs, which tell it from a cancel of the session."""
        if covered := self.covered_by_cancel_of(run, waiting_only=waiting_only):
            self._note("cancel", runs=[run.run_id for run in covered])
        return super().cancel_run(run, waiting_only=waiting_only)

    def clear(self) -> tuple[list[Run], list[Effect]]:
        """Clear, and note it before what follows from it."""
        self._note("clear")
        return super().clear()

    def _move(self, run: Run, trigger: str, to: State) -> None:
        was = run.state
        super()._move(run, trigger, to)
        if to is not COMPLETE:
            self._note_move(trigger, run, was, **self._particulars(trigger, to))

    def _particulars(self, trigger: str, to: State) -> dict[str, str]:
        if trigger == "enter":
            return {"state": to._value_}
        if trigger == "fold" and self.turn is not None:
            return {"into": self.turn.run.run_id}
        return {}

    def _complete(self, run: Run, trigger: str, *outcome: Any, **more: Any) -> Publish:
        was = run.state
        publish = super()._complete(run, trigger, *outcome, **more)
        assert run.complete is not None
        error = run.complete.error
        more_of_it = {} if error is None else {"error": error}
        self._note_move("complete", run, was, cancelled=run.complete.cancelled, **more_of_it)
        return publish

    def _note_move(self, event: str, run: Run, was: State, **more: Any) -> None:
        moved = {"from": was._value_, "to": run.state._value_}  # `value` is a call, until 3.12
        entry = {
            "event": event,
            "session": self.session_id,
            "run": run.run_id,
            "seq": run.seq,
            **moved,
            **more,
        }
        self.untold.append((entry, run.complete))

    def _note(self, event: str, **more: Any) -> None:
        self.untold.append(({"event": event, "session": self.session_id, **more}, None))
