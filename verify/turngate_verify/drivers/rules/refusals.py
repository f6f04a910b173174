"""Calls that the dispatcher must refuse, and calls that it must not refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from turngate import (
    AlreadyEntered,
    CursorExpired,
    DispatcherClosed,
    NotRunning,
    NotWaiting,
    QueueFull,
    RunConflict,
    SessionBusy,
    TurngateError,
    UnknownRun,
    WhenBusy,
    WrongLoop,
)
from turngate_model import AbstractSession
from turngate_model.lifecycle import DeclaredState
from turngate_verify.drivers.rules.example import QUEUE_LIMIT, Example
from turngate_verify.world.expecting import expect

REFUSALS = (
    AlreadyEntered,
    CursorExpired,
    DispatcherClosed,
    NotRunning,
    NotWaiting,
    QueueFull,
    RunConflict,
    SessionBusy,
    UnknownRun,
    WrongLoop,
)
"""The refusals that the examples together must meet."""


class RefusalsExpected(Example):
    """An example that knows which calls the dispatcher must refuse."""

    def _offer(
        self, session: str, run: str, accept: Callable[..., object], when_busy: WhenBusy = "fold"
    ) -> object:
        """Offer a new prompt to ``accept`` or ``submit``; the dispatcher refuses it exactly when it must."""
        abstract = self.world.monitor.sessions.get(session) or AbstractSession()
        waiting = len(abstract.in_state(DeclaredState.ACCEPTED))
        waiting += 0 if when_busy == "interrupt" else len(abstract.queue)
        refusal: type[TurngateError] | None = None
        if self.world.closing:
            refusal = DispatcherClosed
        elif when_busy == "reject" and not abstract.quiet:
            refusal = SessionBusy
        elif waiting >= QUEUE_LIMIT:
            refusal = QueueFull
        return self._expect_refusal(refusal, accept, session, run, when_busy=when_busy)

    def _expect_refusal(
        self, refusal: type[TurngateError] | None, call: Callable[..., object], *args: Any, **options: Any
    ) -> object:
        """Call, expect this refusal or none, and expect that a refused call changes nothing."""
        seen = len(self.world.monitor.history)
        answer, said = None, None
        try:
            answer = call(*args, **options)
        except TurngateError as exc:
            said = type(exc)
        if said is not refusal:
            # A run that was lost leaves room in the queue. The check names the loss, so it comes first.
            self.world.check()
        expect(said is refusal, f"refused with {said}, expected {refusal}")
        if said is not None:
            expect(len(self.world.monitor.history) == seen, f"what was refused with {said} has left a trace")
            self.tally.reached.add(f"refused: {said.__name__}")
        return answer
