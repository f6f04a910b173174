"""Every endpoint of the server: its address, what it takes and answers, and the method that answers it.

Requests are matched against `ENDPOINTS`, and the OpenAPI document is made from it. Ids are percent-encoded
segments of a path, so a path is matched before it is decoded.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

from starlette.responses import Response

from turngate import DispatcherClosed
from turngate._errors import counted
from turngate.server import _models as models
from turngate.server._backend import find_sent, list_messages
from turngate.server._event_log import EventLog
from turngate.server._metrics import metrics
from turngate.server._problems import Problem
from turngate.server._requests import (
    check_id,
    decode_segment,
    idempotency_key,
    parse_body,
    parse_edit,
    parse_new_run,
    parse_query,
)
from turngate.server._streams import Streams

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from msgspec import Struct
    from starlette.requests import Request
    from starlette.types import Scope

    from turngate import Covered, Run, RunComplete
    from turngate.server._backend import Backend
    from turngate.server._limits import Limits

    Answer = Response | dict[str, Any] | bytes
    """What a method answers: a dict, or JSON that is encoded already, is an answer with status 200."""
    Handler = Callable[["Handlers", Request], Awaitable[Answer]]

EVENT_STREAM: Final = "text/event-stream"
KEY_LIFE: Final = "turngate-key-life"
"""The header by which the server names the time in which it remembers keys, and a client the one it means."""
_ANOTHER_LIFE: Final = (
    "this server was restarted since the call was first made, or its ledger was; it has done nothing now"
)
_DELIVERY: Final = 10.0
"""Seconds that readers have to take their last events when the dispatcher is closed."""
_LAST_LOOK: Final = 1.0
"""Seconds within which a completion that came with the end of the dispatcher must be known."""


class Endpoint(NamedTuple):
    """A method of an address.

    answer    the body of an answer with status 200; a media type if it is no JSON object
    problems  the names of the problems that are its own
    is_open   whether it asks for no token
    """

    method: str
    path: str
    depth: int
    pattern: re.Pattern[str]
    handler: Handler
    answer: type[Struct] | str
    problems: tuple[str, ...]
    query: type[Struct] | None
    body: type[Struct] | None
    is_open: bool

    @property
    def summary(self) -> str:
        """What it does: the first line of its method's docstring."""
        return (self.handler.__doc__ or "").partition("\n")[0].rstrip(".")


ENDPOINTS: Final[list[Endpoint]] = []


def _endpoint(
    method: str,
    path: str,
    answer: type[Struct] | str,
    *problems: str,
    query: type[Struct] | None = None,
    body: type[Struct] | None = None,
    is_open: bool = False,
) -> Callable[[Handler], Handler]:
    """Have a method answer an endpoint."""
    pattern = re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path))

    def add(handler: Handler) -> Handler:
        ENDPOINTS.append(
            Endpoint(method, path, path.count("/"), pattern, handler, answer, problems, query, body, is_open)
        )
        return handler

    return add


class Handlers:
    """The calls on one dispatcher: each takes a request, asks the dispatcher, and returns an answer."""

    def __init__(
        self, backend: Backend, limits: Limits, key_life: str, describe: Callable[[str], dict[str, Any]]
    ) -> None:
        self.log = EventLog(backend, limits)
        self._backend = backend
        self._d = backend.dispatcher
        self._streams = Streams(self.log, backend, limits)
        self._limits = limits
        self._key_life = key_life
        """The time in which keys are remembered; clients that repeat a call say which one they mean."""
        self._describe = describe
        """Returns the description of a server that is mounted below a path."""
        self.closing = False
        """Whether prompts are refused."""
        self._is_over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the dispatcher is closed: there is nothing more to wait for."""
        self._all_answered = asyncio.Event()
        """Set while no call waits for a completion."""
        self._all_answered.set()
        self._waiting = 0

    async def answer(self, endpoint: Endpoint, ids: dict[str, str], request: Request) -> Response:
        """Answer a request; `ids` are those in its path, as they came."""
        request.scope["path_params"] = {name: decode_segment(raw) for name, raw in ids.items()}
        if "session" in ids:
            check_id("the session id", request.path_params["session"], self._limits)
        answer = await endpoint.handler(self, request)
        return answer if isinstance(answer, Response) else _json(answer)

    async def deliver(self) -> None:
        """Deliver the last events to the readers, and end their streams."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DELIVERY):
                await self._backend.drain()
        await self.log.end()
        if not self._is_over.done():
            self._is_over.set_result(None)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DELIVERY):
                await self._streams.all_closed.wait()
                await self._all_answered.wait()

    # Runs.

    @_endpoint(
        "POST",
        "/v1/sessions/{session}/runs",
        models.RunBody,
        *("run-conflict", "session-busy", "not-running", "unsupported-media-type", "empty-prompt"),
        *("queue-full", "shutting-down"),
        body=models.NewRunBody,
    )
    async def submit(self, request: Request) -> Answer:
        """Submit a prompt.

        Answers 202, or 200 if the run is known with the same payload.
        """
        session_id = request.path_params["session"]
        prompt, options = await parse_new_run(request, self._limits)
        if self.closing:
            raise Problem("shutting-down")
        run_id = options.get("run_id")
        known = run_id is not None and await self._backend.find(run_id) is not None
        if not known:
            await self._refuse_another_life(request)
            if not self._backend.has_room(session_id, self._limits.sessions_limit):
                sessions = counted(self._limits.sessions_limit, "session")
                raise Problem("queue-full", f"{sessions} in flight (sessions_limit)")
        run = await self._d.submit(session_id, prompt, **options)
        self._backend.expect(run.run_id, prompt)
        location = f"{quote(request.scope.get('root_path', ''))}/v1/runs/{quote(run.run_id, safe='')}"
        return _json(models.run_body(run), 200 if known else 202, location=location)

    @_endpoint("GET", "/v1/runs/{run}", models.RunBody, "unknown-run", query=models.RunQuery)
    async def run(self, request: Request) -> Answer:
        """Return a run, after its completion if that comes in time."""
        patience = min(parse_query(request, models.RunQuery).wait, self._limits.wait_limit)
        run = await self._backend.find(request.path_params["run"])
        if run is None:
            raise Problem("unknown-run")
        complete, sent = run.complete, None
        if complete is None and patience > 0:
            complete = await self._completed_within(run, patience, request)
        if complete is not None and not run.prompt:
            sent = await find_sent(self._d.messages, run.run_id)
        return models.run_body(run, complete, sent, whole=True)

    async def _completed_within(self, run: Run, patience: float, request: Request) -> RunComplete | None:
        """Wait for a completion, as long as there is a client and a dispatcher that is not closed."""
        waiting: asyncio.Task[Any] = asyncio.ensure_future(run.wait())
        gone = asyncio.ensure_future(_gone(request))
        self._waiting += 1
        self._all_answered.clear()
        try:
            first = [waiting, gone, self._is_over]
            await asyncio.wait(first, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done() and self._is_over.done():
                await asyncio.wait([waiting], timeout=_LAST_LOOK)
            return waiting.result() if waiting.done() else None
        except DispatcherClosed:  # the run goes on in another process, or with the next start
            return None
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._all_answered.set()
            waiting.cancel()
            gone.cancel()
            await asyncio.gather(waiting, gone, return_exceptions=True)

    @_endpoint(
        "POST", "/v1/runs/{run}/cancel", models.CoveredBody, "unknown-run", query=models.CancelRunQuery
    )
    async def cancel_run(self, request: Request) -> Answer:
        """Cancel a run, or the whole turn that it is part of."""
        waiting_only = parse_query(request, models.CancelRunQuery).waiting_only == "true"
        key = await self._key(request)
        covered = await self._d.cancel_run(request.path_params["run"], waiting_only=waiting_only, key=key)
        if not covered.known:
            raise Problem("unknown-run")
        return {"covered": _ids(covered.runs)}

    @_endpoint(
        "PATCH",
        "/v1/runs/{run}",
        models.RunBody,
        *("unknown-run", "not-waiting", "unsupported-media-type", "empty-prompt"),
        body=models.EditBody,
    )
    async def edit(self, request: Request) -> Answer:
        """Change a waiting run."""
        changes = await parse_edit(request, self._limits)
        key = await self._key(request)
        return models.run_body(await self._d.edit(request.path_params["run"], **changes, key=key))

    @_endpoint(
        "POST",
        "/v1/runs/{run}/move",
        models.RunBody,
        *("unknown-run", "not-waiting", "unsupported-media-type"),
        body=models.MoveBody,
    )
    async def move(self, request: Request) -> Answer:
        """Move a waiting run to another position."""
        body = await parse_body(request, models.MoveBody, self._limits, is_needed=True)
        key = await self._key(request)
        try:
            to: Any = body.to
            run = await self._d.move(request.path_params["run"], before=body.before, to=to, key=key)
        except ValueError as wrong:
            raise Problem("invalid", str(wrong)) from None
        return models.run_body(run)

    @_endpoint("POST", "/v1/runs/{run}/hold", models.LineBody, "unknown-run", "not-waiting")
    async def hold_run(self, request: Request) -> Answer:
        """Hold a waiting run."""
        return {
            "runs": _ids(await self._d.hold_run(request.path_params["run"], key=await self._key(request)))
        }

    @_endpoint("POST", "/v1/runs/{run}/resume", models.LineBody, "unknown-run", "not-waiting")
    async def resume_run(self, request: Request) -> Answer:
        """Resume a held run."""
        key = await self._key(request)
        return {"runs": _ids(await self._d.resume_run(request.path_params["run"], key=key))}

    @_endpoint(
        "POST",
        "/v1/runs/{run}/send-now",
        models.StoppedBody,
        *("unknown-run", "not-waiting", "unsupported-media-type"),
        body=models.StopBody,
    )
    async def send_now(self, request: Request) -> Answer:
        """Make a queued run the next one, and cancel the turn before it."""
        body = await parse_body(request, models.StopBody, self._limits, is_needed=False)
        key = await self._key(request)
        return _receipt(await self._d.send_now(request.path_params["run"], turn=body.turn, key=key))

    # Sessions.

    @_endpoint(
        "POST",
        "/v1/sessions/{session}/stop",
        models.StoppedBody,
        "unsupported-media-type",
        body=models.StopBody,
    )
    async def stop(self, request: Request) -> Answer:
        """Cancel the active turn alone, and hold every waiting run."""
        body = await parse_body(request, models.StopBody, self._limits, is_needed=False)
        key = await self._key(request)
        return _receipt(await self._d.stop(request.path_params["session"], turn=body.turn, key=key))

    @_endpoint("POST", "/v1/sessions/{session}/hold", models.LineBody)
    async def hold(self, request: Request) -> Answer:
        """Hold every waiting run of a session."""
        return {
            "runs": _ids(await self._d.hold(request.path_params["session"], key=await self._key(request)))
        }

    @_endpoint("POST", "/v1/sessions/{session}/resume", models.LineBody)
    async def resume(self, request: Request) -> Answer:
        """Resume every held run of a session."""
        key = await self._key(request)
        return {"runs": _ids(await self._d.resume(request.path_params["session"], key=key))}

    @_endpoint("POST", "/v1/sessions/{session}/cancel", models.CoveredBody)
    async def cancel_session(self, request: Request) -> Answer:
        """Cancel every run of a session in flight."""
        covered = await self._d.cancel(request.path_params["session"], key=await self._key(request))
        return {"covered": _ids(covered.runs)}

    @_endpoint("DELETE", "/v1/sessions/{session}/queue", models.DroppedBody)
    async def clear_queue(self, request: Request) -> Answer:
        """Drop the queued runs of a session."""
        dropped = await self._d.clear_queue(request.path_params["session"], key=await self._key(request))
        return {"dropped": _ids(dropped)}

    @_endpoint("GET", "/v1/sessions", models.SessionsBody)
    async def sessions(self, request: Request) -> Answer:
        """Return a view of every session with runs in flight."""
        place, sessions = await self.log.look()
        return models.encode_around(sessions, cursor=str(place))

    @_endpoint("GET", "/v1/sessions/{session}", models.SessionAtPlaceBody)
    async def session(self, request: Request) -> Answer:
        """Look at a session."""
        place, session = await self.log.look_at(request.path_params["session"])
        return {**session, "cursor": str(place)}

    @_endpoint("GET", "/v1/sessions/{session}/messages", models.MessagesBody, query=models.MessagesQuery)
    async def messages(self, request: Request) -> Answer:
        """Read the messages of a session."""
        session_id, most = request.path_params["session"], self._limits.page_limit
        query = parse_query(request, models.MessagesQuery)
        if query.limit > most and "limit" in request.query_params:
            raise Problem("invalid", f"limit must be a whole number from 1 to {most} (page_limit)")
        limit = min(query.limit, most)
        try:
            found = await list_messages(self._d.messages, session_id, query.after or None, limit + 1)
        except ValueError as unknown:
            raise Problem("invalid", str(unknown)) from None
        messages = [each._asdict() for each in found[:limit]]
        return {"messages": messages, "next": messages[-1]["id"] if len(found) > limit else None}

    # Events.

    @_endpoint("GET", "/v1/events", EVENT_STREAM, "too-many-streams", query=models.EventsQuery)
    async def events(self, request: Request) -> Answer:
        """Follow every session."""
        after = request.headers.get("last-event-id") or request.query_params.get("after") or None
        return await self._streams.answer(request.path_params.get("session"), after)

    @_endpoint(
        "GET", "/v1/sessions/{session}/events", EVENT_STREAM, "too-many-streams", query=models.EventsQuery
    )
    async def session_events(self, request: Request) -> Answer:
        """Follow one session."""
        return await self.events(request)

    # The server itself.

    @_endpoint("GET", "/healthz", models.StatusBody, is_open=True)
    async def health(self, request: Request) -> Answer:
        """Say that the server is alive."""
        return {"status": "alive"}

    @_endpoint("GET", "/readyz", models.StatusBody, "shutting-down", is_open=True)
    async def ready(self, request: Request) -> Answer:
        """Return whether the server accepts prompts."""
        if self.closing:
            raise Problem("shutting-down")
        return {"status": "ready"}

    @_endpoint("GET", "/metrics", "text/plain")
    async def metrics(self, request: Request) -> Answer:
        """Return figures for Prometheus."""
        figures = metrics(self.log, self._streams, self._backend.in_flight(), self._backend.dropped)
        return Response(figures, media_type="text/plain; version=0.0.4; charset=utf-8")

    @_endpoint("GET", "/openapi.json", "application/json")
    async def description(self, request: Request) -> Answer:
        """Describe the server."""
        return self._describe(request.scope.get("root_path", ""))

    # Idempotency keys.

    async def _key(self, request: Request) -> str | None:
        """Return the idempotency key.

        A repetition of a call that was made in another key life is refused unless the key is known: the call
        may have been carried out there, and must not be carried out again here.
        """
        key = idempotency_key(request)
        if key is not None and KEY_LIFE in request.headers and not await self._d.knows_key(key):
            await self._refuse_another_life(request)
        return key

    async def _refuse_another_life(self, request: Request) -> None:
        """Refuse a call that was made in a key life whose keys are not remembered here."""
        life = request.headers.get(KEY_LIFE, self._key_life)
        if life != self._key_life and not await self._d.continues_life(life):
            raise Problem("outcome-unknown", _ANOTHER_LIFE)


def path_of(scope: Scope) -> str:
    """Return the path below where the application is mounted, as it came."""
    raw: bytes = scope.get("raw_path") or quote(scope["path"]).encode("ascii")
    parts = raw.partition(b"?")[0].decode("latin-1").split("/")[1:]
    if mounted_below := scope.get("root_path", "").strip("/"):
        parts = parts[mounted_below.count("/") + 1 :]
    return "/" + "/".join(parts)


def endpoints_at(path: str) -> list[tuple[Endpoint, dict[str, str]]]:
    """Return the endpoints at a path, each with the ids in it."""
    depth = path.count("/")
    at_depth = [each for each in ENDPOINTS if each.depth == depth]
    return [(each, found.groupdict()) for each in at_depth if (found := each.pattern.fullmatch(path))]


def match_method(
    found: list[tuple[Endpoint, dict[str, str]]], method: str
) -> tuple[Endpoint, dict[str, str]]:
    """Return the endpoint of that method, or refuse it."""
    if not found:
        raise Problem("not-found")
    for endpoint, ids in found:
        if endpoint.method == ("GET" if method == "HEAD" and endpoint.answer != EVENT_STREAM else method):
            return endpoint, ids
    raise Problem("method-not-allowed", allow=", ".join(endpoint.method for endpoint, _ in found))


def _json(body: dict[str, Any] | bytes, status: int = 200, **headers: str) -> Response:
    content = body if isinstance(body, bytes) else models.encode(body)
    return Response(content, status, headers, "application/json")


def _ids(runs: Sequence[Run]) -> list[str]:
    return [run.run_id for run in runs]


def _receipt(covered: Covered) -> dict[str, Any]:
    return {
        "covered": _ids(covered.runs), "held": _ids(covered.held), "waiting": _ids(covered.waiting),
    }  # fmt: skip


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
