"""What is answered when a request cannot be: problems, as RFC 9457 spells them, one type for each reason."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response

import turngate
from turngate import durable
from turngate.server._models import encode

TITLES: Final = {
    "malformed": (400, "This call does not accept such a request"),
    "unauthorized": (401, "A bearer token is required"),
    "forbidden-origin": (403, "Requests of this origin are refused"),
    "not-found": (404, "There is nothing at this address"),
    "unknown-run": (404, "There is no such run, or its completion is no longer kept"),
    "method-not-allowed": (405, "This address does not take that method"),
    "run-conflict": (409, "The run_id is known with another payload"),
    "key-conflict": (409, "The Idempotency-Key was used for another request"),
    "session-busy": (409, "The session has runs in flight"),
    "not-waiting": (409, "The run no longer waits"),
    "not-running": (409, "The turn that the prompt is for is not running"),
    "too-large": (413, "The request is larger than allowed"),
    "unsupported-media-type": (415, "The body must be application/json"),
    "unknown-host": (421, "This server does not answer under that name"),
    "empty-prompt": (422, "The prompt has neither text nor a text attachment"),
    "invalid": (422, "Invalid value"),
    "queue-full": (429, "The queue is full"),
    "internal-error": (500, "An error in the server"),
    "shutting-down": (503, "The server no longer accepts prompts"),
    "ledger-unavailable": (503, "The ledger cannot be reached"),
    "outcome-unknown": (503, "It is not known whether the call was carried out"),
    "too-many-streams": (503, "Too many event streams are open"),
}
"""Every problem by the name that its type ends in: its status, and what it says."""
_RETRY_AFTER: Final = {"queue-full": 1, "shutting-down": 5, "ledger-unavailable": 1, "too-many-streams": 5}
_REFUSALS: Final[dict[type[Exception], str]] = {
    turngate.MissingSession: "invalid",
    turngate.EmptyPrompt: "empty-prompt",
    turngate.RunConflict: "run-conflict",
    turngate.KeyConflict: "key-conflict",
    turngate.SessionBusy: "session-busy",
    turngate.NotWaiting: "not-waiting",
    turngate.NotRunning: "not-running",
    turngate.QueueFull: "queue-full",
    turngate.DispatcherClosed: "shutting-down",
    turngate.UnknownRun: "unknown-run",
    turngate.OutcomeUnknown: "outcome-unknown",
    durable.NotStorable: "invalid",
    durable.LedgerUnavailable: "ledger-unavailable",
}
_WITHOUT_DETAIL: Final = ("outcome-unknown", "ledger-unavailable")
"""Where a ledger is, and what it says, is not for clients."""


class Problem(Exception):
    """A request that is answered with a problem."""

    def __init__(self, name: str, detail: str = "", **headers: str) -> None:
        self.name = name
        self.status, title = TITLES[name]
        self.body: dict[str, Any] = {
            "type": f"urn:turngate:problem:{name}",
            "title": title,
            "status": self.status,
            "detail": detail or title,
        }
        self._headers = {key.replace("_", "-"): value for key, value in headers.items()}
        if name in _RETRY_AFTER:
            self._headers["retry-after"] = str(_RETRY_AFTER[name])
        super().__init__(f"{self.status} {name}: {detail or title}")

    def response(self) -> Response:
        """Return the answer."""
        return Response(encode(self.body), self.status, self._headers, "application/problem+json")


def refusal(error: Exception) -> Problem | None:
    """Return the problem that stands for what a dispatcher raised; None if it is no refusal."""
    name = next((_REFUSALS[kind] for kind in type(error).__mro__ if kind in _REFUSALS), None)
    if name is None:
        return None
    problem = Problem(name, "" if name in _WITHOUT_DETAIL else str(error))
    if isinstance(error, turngate.NotWaiting):
        problem.body["state"] = error.state
    return problem
