"""Which call an address means. Ids are percent-encoded segments: a path is split before it is decoded."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from turngate.server._parsing import segment
from turngate.server._problems import Problem

if TYPE_CHECKING:
    from starlette.types import Scope


class Route(Enum):
    """A call; the value is the name of its handler."""

    SUBMIT = "submit"
    RUN = "run"
    CANCEL_RUN = "cancel_run"
    CANCEL_SESSION = "cancel_session"
    CLEAR = "clear"
    SESSIONS = "sessions"
    SESSION = "session"
    MESSAGES = "messages"
    EVENTS = "events"
    HEALTH = "health"
    READY = "ready"
    METRICS = "metrics"
    OPENAPI = "openapi"
    PAGE = "page"


ROUTES: Final[dict[str, dict[str, Route]]] = {
    "/v1/sessions/{session}/runs": {"POST": Route.SUBMIT},
    "/v1/runs/{run}": {"GET": Route.RUN},
    "/v1/runs/{run}/cancel": {"POST": Route.CANCEL_RUN},
    "/v1/sessions/{session}/cancel": {"POST": Route.CANCEL_SESSION},
    "/v1/sessions/{session}/queue": {"DELETE": Route.CLEAR},
    "/v1/sessions": {"GET": Route.SESSIONS},
    "/v1/sessions/{session}": {"GET": Route.SESSION},
    "/v1/sessions/{session}/messages": {"GET": Route.MESSAGES},
    "/v1/events": {"GET": Route.EVENTS},
    "/v1/sessions/{session}/events": {"GET": Route.EVENTS},
    "/healthz": {"GET": Route.HEALTH},
    "/readyz": {"GET": Route.READY},
    "/metrics": {"GET": Route.METRICS},
    "/openapi.json": {"GET": Route.OPENAPI},
    "/": {"GET": Route.PAGE},
}
"""Every address, and what each method means there."""
_PATTERNS: Final = [(tuple(path.split("/")[1:]), methods) for path, methods in ROUTES.items()]


def segments(scope: Scope) -> tuple[str, list[bytes]]:
    """Return the path below where the application is mounted, and its segments as they came."""
    raw: bytes = scope.get("raw_path") or quote(scope["path"]).encode("ascii")
    parts = raw.partition(b"?")[0].split(b"/")[1:]
    mounted_below = scope.get("root_path", "").strip("/")
    if mounted_below:
        parts = parts[mounted_below.count("/") + 1 :] or [b""]
    return "/" + b"/".join(parts).decode("latin-1"), parts


def route(path: str, parts: list[bytes], method: str) -> tuple[Route, dict[str, str]]:
    """Return the call and the ids in its address, or refuse it."""
    for pattern, methods in _PATTERNS:
        if len(pattern) == len(parts):
            params = _matched(pattern, parts)
            if params is not None:
                wanted = "GET" if method == "HEAD" and Route.EVENTS not in methods.values() else method
                if wanted not in methods:
                    raise Problem("method-not-allowed", allow=", ".join(methods))
                return methods[wanted], params
    raise Problem("not-found")


def _matched(pattern: tuple[str, ...], parts: list[bytes]) -> dict[str, str] | None:
    """Return the ids, if the segments are those of the pattern."""
    params: dict[str, str] = {}
    for expected, part in zip(pattern, parts, strict=True):
        if expected.startswith("{"):
            if not part:
                return None
            params[expected[1:-1]] = segment(part)
        elif part != expected.encode("ascii"):
            return None
    return params
