"""What a client raises beside the errors of the dispatcher, which it raises by the same names.

TurngateError
├── Refused        the server refuses the request, for a reason that has no error of its own
└── Unreachable    the server did not answer for as long as the client was to be patient
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

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

_TYPE: Final = "urn:turngate:problem:"
"""The beginning of the type of every problem that a Turngate server answers with."""
OF_ANOTHER: Final = "unknown"
"""The name of a refusal that is not of a Turngate server: of a proxy, or of the application around it."""


class Refused(TurngateError):
    """The server refuses; `name` says why, for programs, and `status` is that of the answer."""

    def __init__(self, status: int, name: str, detail: str) -> None:
        super().__init__(f"{status} {name}: {detail}")
        self.status = status
        self.name = name


class Unreachable(TurngateError):
    """The server could not be reached in time. If it was to change something, it has not done so."""


def error_in(response: httpx2.Response) -> TurngateError | None:
    """Return what to raise for an answer, None if there is nothing wrong with it."""
    if response.is_success:
        return None
    said = _problem_in(response)
    if said is None:
        return Refused(response.status_code, OF_ANOTHER, response.reason_phrase)
    name = said["type"].removeprefix(_TYPE)
    detail = str(said.get("detail", response.reason_phrase))
    if name in _BY_NAME:
        return _BY_NAME[name](detail)
    return Refused(response.status_code, name, detail)


def _problem_in(response: httpx2.Response) -> dict[str, Any] | None:
    """Return a refusal in the form that Turngate servers give it; None if the answer is not of one."""
    if not response.headers.get("content-type", "").startswith("application/problem+json"):
        return None
    try:
        said: Any = response.json()
    except ValueError:  # it was cut short
        return None
    is_ours = isinstance(said, dict) and str(said.get("type", "")).startswith(_TYPE)
    return said if is_ours else None
