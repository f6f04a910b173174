"""The description of the calls for programs: OpenAPI 3.1, errors and the event stream's shapes included."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from turngate import __version__
from turngate._keys import LONGEST_KEY
from turngate.server._problems import TITLES
from turngate.server._schemas import EVENTS, SCHEMAS, new_run

if TYPE_CHECKING:
    from turngate.server._limits import Limits

_ALWAYS: Final = ("forbidden-origin", "unknown-host", "too-large")
"""What any call may be answered with."""
_BAD_ID: Final = ("malformed", "invalid")
_LEDGER: Final = "ledger-unavailable"
_KEYED: Final = ("key-conflict", "outcome-unknown", _LEDGER)
"""What a call that changes something may be answered with."""


def openapi(root: str, limits: Limits, *, token: bool) -> dict[str, Any]:
    """Return the description of a server that is mounted below `root`."""
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "Turngate",
            "version": __version__,
            "description": (
                "Prompts arrive for a session, at most one turn runs at a time, a cancel covers what was "
                "accepted before it and nothing after, and every run gets exactly one RunComplete."
            ),
        },
        "servers": [{"url": root or "/"}],
        "paths": _paths(limits, token=token),
        "components": {"schemas": {**SCHEMAS, "NewRun": new_run(limits)}},
    }
    if token:
        document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"token": []}]
    return document


class _Calls:
    """Describes calls of one server, which may ask for a token."""

    def __init__(self, *, token: bool) -> None:
        self._token = token

    def __call__(
        self,
        summary: str,
        answers: dict[str, Any],
        *problems: str,
        given: list[Any] | None = None,
        **more: Any,
    ) -> dict[str, Any]:
        """Return one call: what it answers, and with which problems it may be refused."""
        is_open = more.pop("open", False)
        named = [*problems, *_ALWAYS, *(["unauthorized"] if self._token and not is_open else [])]
        described: dict[str, Any] = {"summary": summary, "responses": {**answers, **_problems(named)}, **more}
        if given:
            described["parameters"] = given
        if self._token and is_open:
            described["security"] = []
        return described


def _paths(limits: Limits, *, token: bool) -> dict[str, Any]:
    """Return every call, by its address and method."""
    call = _Calls(token=token)
    session = _id("session", limits)
    return {
        **_runs(call, session, limits),
        **_cancels(call, session),
        **_looking(call, session, limits),
        **_streams(call, session),
        **_server(call),
    }


def _runs(call: _Calls, session: Any, limits: Limits) -> dict[str, Any]:
    run = _id("run", limits)
    wait = _query("wait", {"type": "number", "minimum": 0}, f"Seconds, at most {limits.wait_limit:g}")
    only = _query("waiting_only", {"type": "boolean"}, "Only while its runner has not been called")
    accepted = {"202": _accepted("The run is accepted"), "200": _accepted("The run is known, same payload")}
    return {
        "/v1/sessions/{session}/runs": {
            "parameters": [session],
            "post": call(
                "Take a prompt in",
                accepted,
                *("malformed", "run-conflict", "session-busy", "unsupported-media-type", "empty-prompt"),
                *("invalid", "queue-full", "shutting-down", "outcome-unknown", _LEDGER),
                given=[_header("Idempotency-Key", "Stands for run_id", limits.id_limit)],
                requestBody={"required": True, "content": _json("NewRun")},
            ),
        },
        "/v1/runs/{run}": {
            "parameters": [run],
            "get": call(
                "Look at a run, after its completion if that comes in time",
                {"200": _answer("The run", "Run")},
                *("malformed", "unknown-run", "invalid", _LEDGER),
                given=[wait],
            ),
        },
        "/v1/runs/{run}/cancel": {
            "parameters": [run],
            "post": call(
                "Cancel a run, or the whole turn that it is part of",
                {"200": _answer("What the cancel covers", "Covered")},
                *("malformed", "unknown-run", "invalid", *_KEYED),
                given=[only, _KEY],
            ),
        },
    }


def _cancels(call: _Calls, session: Any) -> dict[str, Any]:
    covered = {"200": _answer("What the cancel covers", "Covered")}
    dropped = {"200": _answer("What is dropped", "Dropped")}
    return {
        "/v1/sessions/{session}/cancel": {
            "parameters": [session],
            "post": call("Cancel all that a session has in flight", covered, *_BAD_ID, *_KEYED, given=[_KEY]),
        },
        "/v1/sessions/{session}/queue": {
            "parameters": [session],
            "delete": call("Drop what is queued", dropped, *_BAD_ID, *_KEYED, given=[_KEY]),
        },
    }


def _looking(call: _Calls, session: Any, limits: Limits) -> dict[str, Any]:
    return {
        "/v1/sessions": {
            "get": call(
                "Look at every session that has something in flight",
                {"200": _answer("The sessions, and the place of the event stream", "Sessions")},
                _LEDGER,
            )
        },
        "/v1/sessions/{session}": {
            "parameters": [session],
            "get": call(
                "Look at a session", {"200": _answer("The session", "SessionAtPlace")}, *_BAD_ID, _LEDGER
            ),
        },
        "/v1/sessions/{session}/messages": {
            "parameters": [session],
            "get": call(
                "Read the messages of a session",
                {"200": _answer("Messages, and the `after` of the next page", "Messages")},
                *(*_BAD_ID, _LEDGER),
                given=[
                    _query("after", {"type": "string"}, "The id of the message before the first"),
                    _query(
                        "limit",
                        {"type": "integer", "minimum": 1, "maximum": limits.page_limit},
                        "How many",
                    ),
                ],
            ),
        },
    }


def _streams(call: _Calls, session: Any) -> dict[str, Any]:
    content = {"text/event-stream": {"schema": {"type": "string"}, "x-events": EVENTS}}
    stream = {
        "200": {
            "description": (
                "Server-sent events. `x-events` names the schema of the data of each. All but `gap` have an "
                "id; a client that sends the last one back misses no `run.complete` and gets none twice. An "
                "id that is not known is answered with a `snapshot` whose `reset` is true."
            ),
            "content": content,
        }
    }
    given = [
        {
            "name": "Last-Event-ID",
            "in": "header",
            "schema": {"type": "string"},
            "description": "Where to go on; wins over `after`",
        },
        _query("after", {"type": "string"}, "The same, for those who cannot set headers"),
    ]
    problems = ("too-many-streams", _LEDGER)
    return {
        "/v1/events": {"get": call("Hear of every session", stream, *problems, given=given)},
        "/v1/sessions/{session}/events": {
            "parameters": [session],
            "get": call("Hear of one session", stream, "malformed", "invalid", *problems, given=given),
        },
    }


def _server(call: _Calls) -> dict[str, Any]:
    text = {"text/plain": {"schema": {"type": "string"}}}
    html = {"text/html": {"schema": {"type": "string"}}}
    return {
        "/healthz": {"get": call("Is it alive?", {"200": _answer("It is", "Status")}, open=True)},
        "/readyz": {
            "get": call(
                "Does it take prompts?", {"200": _answer("It does", "Status")}, "shutting-down", open=True
            )
        },
        "/metrics": {"get": call("Figures", {"200": {"description": "Prometheus text", "content": text}})},
        "/openapi.json": {
            "get": call(
                "This description",
                {"200": {"description": "OpenAPI 3.1", "content": _content({"type": "object"})}},
            )
        },
        "/": {"get": call("The live page", {"200": {"description": "A page", "content": html}}, open=True)},
    }


def _problems(names: list[str]) -> dict[str, Any]:
    """Return the answers for these problems, by status."""
    answers: dict[str, Any] = {}
    for status in sorted({TITLES[name][0] for name in names}):
        here = [name for name in dict.fromkeys(names) if TITLES[name][0] == status]
        said = "; ".join(f"`{name}`: {TITLES[name][1]}" for name in here)
        schema = {"$ref": "#/components/schemas/Problem"}
        answers[str(status)] = {
            "description": said,
            "content": {"application/problem+json": {"schema": schema}},
        }
    return answers


def _content(schema: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _json(name: str) -> dict[str, Any]:
    return _content({"$ref": f"#/components/schemas/{name}"})


def _answer(description: str, name: str) -> dict[str, Any]:
    life = {"description": "Names the time in which keys are remembered", "schema": {"type": "string"}}
    return {"description": description, "content": _json(name), "headers": {"Turngate-Key-Life": life}}


def _accepted(description: str) -> dict[str, Any]:
    location = {"description": "The address of the run", "schema": {"type": "string"}}
    answer = _answer(description, "Run")
    answer["headers"]["Location"] = location
    return answer


def _id(name: str, limits: Limits) -> dict[str, Any]:
    schema = {"type": "string", "minLength": 1, "maxLength": limits.id_limit}
    said = f"A {name} id, as one percent-encoded segment"
    return {"name": name, "in": "path", "required": True, "schema": schema, "description": said}


def _query(name: str, schema: Any, description: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "schema": schema, "description": description}


def _header(name: str, description: str, longest: int) -> dict[str, Any]:
    schema = {"type": "string", "minLength": 1, "maxLength": longest}
    return {"name": name, "in": "header", "schema": schema, "description": description}


_KEY: Final = _header(
    "Idempotency-Key",
    (
        "A repetition under the same key changes nothing and answers what the first call answered. Kept 24 "
        "hours on a ledger; the last 10,000 in memory. Along with a repetition, send what the header "
        "`Turngate-Key-Life` of the last answer said: a server that was restarted without its keys meanwhile "
        "then does nothing, and answers `outcome-unknown`"
    ),
    LONGEST_KEY,
)
