"""Every endpoint of the server: its address, what it takes, what it answers, and its handler.

Requests are matched against this table, and the OpenAPI document is made from it. Ids are percent-encoded
segments of a path, so a path is split before it is decoded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote

from turngate.server import _models as models
from turngate.server._handlers import Handlers
from turngate.server._problems import Problem
from turngate.server._requests import decode_segment

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from msgspec import Struct
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import Scope


class Endpoint(NamedTuple):
    """A method of an address.

    handler   answers it; None for what the application answers itself
    answer    the body of an answer with status 200; a media type if it is no JSON object
    problems  the names of the problems that it may be refused with, besides those of every endpoint
    key       what an Idempotency-Key means, None if it means nothing
    is_open   whether it asks for no token
    """

    method: str
    path: str
    summary: str
    handler: Callable[[Handlers, Request], Awaitable[Response]] | None
    answer: type[Struct] | str
    problems: tuple[str, ...] = ()
    query: type[Struct] | None = None
    body: type[Struct] | None = None
    key: str | None = None
    is_open: bool = False


_KEY: Final = (
    "A repetition under the same key changes nothing and answers what the first call answered. Kept 24 "
    "hours on a ledger; the last 10,000 in memory. Along with a repetition, send what the header "
    "`Turngate-Key-Life` of the last answer said: a server that was restarted without its keys meanwhile "
    "then does nothing, and answers `outcome-unknown`"
)
_ID: Final = ("malformed", "invalid")
_KEYED: Final = ("key-conflict", "outcome-unknown", "ledger-unavailable")
EVENT_STREAM: Final = "text/event-stream"
ENDPOINTS: Final = (
    Endpoint(
        "POST", "/v1/sessions/{session}/runs", "Submit a prompt", Handlers.submit, models.RunBody,
        (*_ID, "run-conflict", "session-busy", "unsupported-media-type", "empty-prompt", "queue-full",
         "shutting-down", "outcome-unknown", "ledger-unavailable"),
        body=models.NewRunBody, key="Stands for run_id",
    ),
    Endpoint(
        "GET", "/v1/runs/{run}", "Look at a run, after its completion if that comes in time", Handlers.run,
        models.RunBody, (*_ID, "unknown-run", "ledger-unavailable"), query=models.RunQuery,
    ),
    Endpoint(
        "POST", "/v1/runs/{run}/cancel", "Cancel a run, or the whole turn that it is part of",
        Handlers.cancel_run, models.CoveredBody, (*_ID, "unknown-run", *_KEYED),
        query=models.CancelRunQuery, key=_KEY,
    ),
    Endpoint(
        "POST", "/v1/sessions/{session}/cancel", "Cancel all that a session has in flight",
        Handlers.cancel_session, models.CoveredBody, (*_ID, *_KEYED), key=_KEY,
    ),
    Endpoint(
        "DELETE", "/v1/sessions/{session}/queue", "Drop what is queued", Handlers.clear_queue,
        models.DroppedBody, (*_ID, *_KEYED), key=_KEY,
    ),
    Endpoint(
        "GET", "/v1/sessions", "Look at every session that has something in flight", Handlers.sessions,
        models.SessionsBody, ("ledger-unavailable",),
    ),
    Endpoint(
        "GET", "/v1/sessions/{session}", "Look at a session", Handlers.session, models.SessionAtPlaceBody,
        (*_ID, "ledger-unavailable"),
    ),
    Endpoint(
        "GET", "/v1/sessions/{session}/messages", "Read the messages of a session", Handlers.messages,
        models.MessagesBody, (*_ID, "ledger-unavailable"), query=models.MessagesQuery,
    ),
    Endpoint(
        "GET", "/v1/events", "Follow every session", None, EVENT_STREAM,
        ("too-many-streams", "ledger-unavailable"), query=models.EventsQuery,
    ),
    Endpoint(
        "GET", "/v1/sessions/{session}/events", "Follow one session", None, EVENT_STREAM,
        (*_ID, "too-many-streams", "ledger-unavailable"), query=models.EventsQuery,
    ),
    Endpoint("GET", "/healthz", "Is the server alive?", Handlers.health, models.StatusBody, is_open=True),
    Endpoint(
        "GET", "/readyz", "Does the server take prompts?", Handlers.ready, models.StatusBody,
        ("shutting-down",), is_open=True,
    ),
    Endpoint("GET", "/metrics", "Figures for Prometheus", Handlers.metrics, "text/plain"),
    Endpoint("GET", "/openapi.json", "This description", None, "application/json"),
    Endpoint("GET", "/", "The live page", None, "text/html", is_open=True),
)  # fmt: skip


def split_path(scope: Scope) -> tuple[str, list[bytes]]:
    """Return the path below where the application is mounted, and its segments as they came."""
    raw: bytes = scope.get("raw_path") or quote(scope["path"]).encode("ascii")
    parts = raw.partition(b"?")[0].split(b"/")[1:]
    mounted_below = scope.get("root_path", "").strip("/")
    if mounted_below:
        parts = parts[mounted_below.count("/") + 1 :] or [b""]
    return "/" + b"/".join(parts).decode("latin-1"), parts


def match_endpoint(parts: list[bytes], method: str) -> tuple[Endpoint, dict[str, str]]:
    """Return the endpoint and the ids in its address, or refuse it."""
    found = [(endpoint, ids) for endpoint in ENDPOINTS if (ids := _ids_in(endpoint.path, parts)) is not None]
    if not found:
        raise Problem("not-found")
    for endpoint, ids in found:
        if endpoint.method == ("GET" if method == "HEAD" and endpoint.answer != EVENT_STREAM else method):
            return endpoint, ids
    raise Problem("method-not-allowed", allow=", ".join(endpoint.method for endpoint, _ in found))


def _ids_in(path: str, parts: list[bytes]) -> dict[str, str] | None:
    """Return the ids, if the segments are those of the path."""
    pattern = path.split("/")[1:]
    if len(pattern) != len(parts):
        return None
    ids: dict[str, str] = {}
    for expected, part in zip(pattern, parts, strict=True):
        if not expected.startswith("{"):
            if part != expected.encode("ascii"):
                return None
        elif not part:
            return None
        else:
            ids[expected[1:-1]] = decode_segment(part)
    return ids
