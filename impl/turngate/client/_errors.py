"""What a client raises beside the errors of the dispatcher, which it raises by the same names.

TurngateError
├── Refused        the server refuses the request, for a reason that has no error of its own
└── Unreachable    the server did not answer for as long as the client was to be patient
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from turngate import (
    DispatcherClosed,
    EmptyPrompt,
    KeyConflict,
    OutcomeUnknown,
    QueueFull,
    RunConflict,
    SessionBusy,
    TurngateError,
    UnknownRun,
)

if TYPE_CHECKING:
    import httpx2

_BY_NAME = {
    "empty-prompt": EmptyPrompt,
    "key-conflict": KeyConflict,
    "outcome-unknown": OutcomeUnknown,
    "queue-full": QueueFull,
    "run-conflict": RunConflict,
    "session-busy": SessionBusy,
    "shutting-down": DispatcherClosed,
    "unknown-run": UnknownRun,
}


class Refused(TurngateError):
    """The server refuses; `name` says why, for programs, and `status` is that of the answer."""

    def __init__(self, status: int, name: str, detail: str) -> None:
        super().__init__(f"{status} {name}: {detail}")
        self.status = status
        self.name = name


class Unreachable(TurngateError):
    """The server could not be reached in time. If it was to change something, it has not done so."""


def is_problem(response: httpx2.Response) -> bool:
    """Say whether an answer is a refusal in the form that a Turngate server gives it."""
    return bool(response.headers.get("content-type", "").startswith("application/problem+json"))


def error_in(response: httpx2.Response) -> TurngateError | None:
    """Return what to raise for an answer, None if there is nothing wrong with it."""
    if response.is_success:
        return None
    said: Any = None
    if is_problem(response):
        try:
            said = response.json()
        except ValueError:  # it was cut short
            said = None
    if not isinstance(said, dict):
        return Refused(response.status_code, "unknown", response.reason_phrase)
    name = str(said.get("type", "")).rpartition(":")[2]
    detail = str(said.get("detail", response.reason_phrase))
    if name in _BY_NAME:
        return _BY_NAME[name](detail)
    return Refused(response.status_code, name or "unknown", detail)
