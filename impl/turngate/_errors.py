"""What turngate raises. A caller's mistake raises; a run going wrong is an outcome in its RunComplete.

TurngateError
├── MissingSession       accept: the session id is not a non-empty string
├── EmptyPrompt          accept: neither text nor a text attachment
├── RunConflict          accept: the run_id is known with another payload
├── KeyConflict          any call with a key: the key was used for another request
├── SessionBusy          accept: when_busy="reject" and the session has something in flight
├── QueueFull            accept: queue_limit or accepted_limit is reached
├── DispatcherClosed     accept: the dispatcher no longer takes prompts in
├── AlreadyEntered       enter: the run is no longer accepted
├── NotWaiting           hold_run, resume_run, move, edit, send_now: the run does not wait (any more)
├── NotRunning           accept: the turn that the prompt is for (`into`) cannot take it in (any more)
├── WrongLoop            any call: from another event loop or another thread than the dispatcher's
├── UnknownRun           wait, enter, hold_run, ...: no such run, or its completion is no longer kept
├── CursorExpired        completions: what comes behind the cursor is no longer all kept
├── TurnEnded            write, emit, keep, fold: the turn has ended
├── ClosedFromRunner     aclose: called by a runner, which it would wait for
├── WouldDeadlock        wait, ask, stream: called by a runner for a run that cannot complete before its turn
├── SubscriberCutOff     subscription: RunCompletes are missing, say because too many were left unread
├── UnknownSchema        the file, or the ledger, was written by a newer turngate
├── LedgerUnavailable    on a ledger, any call: it cannot be reached, and nothing was done
│   └── OutcomeUnknown   on a ledger or a server: whether it was done cannot be told
└── UndeclaredMove       core: a change of state that the lifecycle does not declare
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from turngate._core import State


class TurngateError(Exception):
    """The base class of all errors that turngate raises."""


class MissingSession(TurngateError):
    """The session id is not a non-empty string."""


class EmptyPrompt(TurngateError):
    """The prompt has neither text nor a text attachment."""


class RunConflict(TurngateError):
    """The run_id is already in use for another payload."""


class KeyConflict(TurngateError):
    """The idempotency key was used for another request."""


class SessionBusy(TurngateError):
    """The prompt was sent with when_busy="reject", and something of its session is in flight."""


class QueueFull(TurngateError):
    """The session, or the dispatcher, holds as many waiting runs as its limit allows."""


class DispatcherClosed(TurngateError):
    """The dispatcher no longer takes prompts in."""


class AlreadyEntered(TurngateError):
    """The run is no longer accepted: it has entered, or it is complete."""


class NotWaiting(TurngateError):
    """The run is not waiting; `state` says which state it is in."""

    def __init__(self, message: str, state: State) -> None:
        super().__init__(message, state)
        self.state = state

    def __str__(self) -> str:
        return str(self.args[0])


class NotRunning(TurngateError):
    """The turn that the prompt is for is not active, is cancelled or has ended."""


class WrongLoop(TurngateError):
    """The dispatcher belongs to another event loop, or to another thread."""


class UnknownRun(TurngateError):
    """The dispatcher has no such run, or no longer keeps its completion."""


class CursorExpired(TurngateError):
    """Completions after the cursor have been forgotten, or the cursor is of another dispatcher."""


class TurnEnded(TurngateError):
    """The turn has ended: nothing can be written to it or folded into it."""


class ClosedFromRunner(TurngateError):
    """A runner, or a task that it started, called aclose, which would wait for the runner itself."""


class WouldDeadlock(TurngateError):
    """A runner, or a task that it started, waits for a run that cannot complete before the turn ends."""


class SubscriberCutOff(TurngateError):
    """The subscriber has missed RunCompletes: it left too many unread, or they could not be delivered."""


class UnknownSchema(TurngateError):
    """The message file, or the ledger, was written by a newer turngate."""


class LedgerUnavailable(TurngateError):
    """The ledger cannot be reached; nothing was done."""


class OutcomeUnknown(LedgerUnavailable):
    """An answer was lost, and it can no longer be found out whether the call was carried out.

    A call may be repeated under the same key, as long as that key is remembered, and a prompt under
    the same run_id. Without a key, look at the session before you cancel again.
    """


class UndeclaredMove(TurngateError):
    """A change of state that the lifecycle does not declare was attempted; nothing was changed."""


def counted(number: int, noun: str) -> str:
    """Return the number with its noun, in the plural unless the number is one."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
