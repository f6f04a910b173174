"""The OpenAPI 3.1 document, made from the table of endpoints and the models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from turngate import __version__
from turngate._keys import LONGEST_KEY
from turngate.server._endpoints import ENDPOINTS, EVENT_STREAM
from turngate.server._models import EVENTS, NewRunBody, ProblemBody, StopBody
from turngate.server._problems import TITLES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from msgspec import Struct

    from turngate.server._endpoints import Endpoint
    from turngate.server._limits import Limits

_ABOUT: Final = (
    "Prompts arrive for a session, at most one turn runs at a time, a cancel covers what was accepted before "
    "it and nothing after, and every run gets exactly one RunComplete."
)
_STREAM: Final = (
    "Server-sent events. `x-events` names the schema of the data of each. All but `gap` have an id; a client "
    "that sends the last one back misses no `run.complete` and gets none twice. An id that is not known is "
    "answered with a `snapshot` whose `reset` is true."
)
_KEY: Final = (
    "A repetition under the same key changes nothing and answers what the first call answered. Kept 24 "
    "hours on a ledger; the last 10,000 in memory. With a repetition, send back the header "
    "`Turngate-Key-Life` of the last answer: a server that has restarted without its keys then does "
    "nothing, and answers `outcome-unknown`"
)
_PAGE: Final = {
    "summary": "The live page",
    "responses": {"200": {"description": "A page", "content": {"text/html": {"schema": {"type": "string"}}}}},
    "security": [],
}


def openapi(root: str, limits: Limits, *, token: bool) -> dict[str, Any]:
    """Return the description of a server that is mounted below `root`."""
    paths: dict[str, Any] = {"/": {"get": _PAGE}}
    for endpoint in ENDPOINTS:
        described = _describe(endpoint, limits, token=token)
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = described
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "Turngate", "version": __version__, "description": _ABOUT},
        "servers": [{"url": root or "/"}],
        "paths": paths,
        "components": {"schemas": _schemas(limits)},
    }
    if token:
        document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"token": []}]
    return document


def _schemas(limits: Limits) -> dict[str, Any]:
    answers = [endpoint.answer for endpoint in ENDPOINTS if not isinstance(endpoint.answer, str)]
    bodies = [endpoint.body for endpoint in ENDPOINTS if endpoint.body is not None]
    kinds = [ProblemBody, *bodies, *answers, *EVENTS.values()]
    _, schemas = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    new_run = schemas["NewRunBody"]["properties"]
    new_run["run_id"]["anyOf"][0]["maxLength"] = limits.id_limit
    for attachments in (new_run["attachments"], schemas["EditBody"]["properties"]["attachments"]):
        attachments["anyOf"][0]["maxItems"] = limits.attachments_limit
    return schemas


def _describe(endpoint: Endpoint, limits: Limits, *, token: bool) -> dict[str, Any]:
    """Return what an endpoint takes, what it answers, and which problems it may be refused with."""
    described: dict[str, Any] = {
        "summary": endpoint.summary,
        "parameters": _parameters(endpoint, limits),
        "responses": {**_answers(endpoint), **_refusals(_problems(endpoint, token=token))},
    }
    if endpoint.body is not None:
        described["requestBody"] = {
            "required": endpoint.body is not StopBody, "content": _content(endpoint.body),
        }  # fmt: skip
    if token and endpoint.is_open:
        described["security"] = []
    return described


def _problems(endpoint: Endpoint, *, token: bool) -> Iterator[str]:
    """Yield the names of the problems that an endpoint may be refused with."""
    yield from endpoint.problems
    yield from ("forbidden-origin", "unknown-host", "too-large")
    if "{" in endpoint.path:
        yield from ("malformed", "invalid")
    if endpoint.path.startswith("/v1/"):
        yield "ledger-unavailable"
    if endpoint.method != "GET":
        yield from (
            ("outcome-unknown",) if endpoint.body is NewRunBody else ("outcome-unknown", "key-conflict")
        )
    if token and not endpoint.is_open:
        yield "unauthorized"


def _parameters(endpoint: Endpoint, limits: Limits) -> list[dict[str, Any]]:
    parameters = []
    for name in endpoint.pattern.groupindex:
        about = f"A {name} id, as one percent-encoded segment"
        parameters.append(_parameter("path", name, about, minLength=1, maxLength=limits.id_limit))
        parameters[-1]["required"] = True
    if endpoint.method != "GET":
        about, longest = _KEY, LONGEST_KEY
        if endpoint.body is NewRunBody:
            about, longest = "Stands for run_id", limits.id_limit
        parameters.append(_parameter("header", "Idempotency-Key", about, minLength=1, maxLength=longest))
    if endpoint.answer == EVENT_STREAM:
        parameters.append(_parameter("header", "Last-Event-ID", "Where to go on; wins over `after`"))
    if endpoint.query is not None:
        _, schemas = msgspec.json.schema_components([endpoint.query])
        for name, schema in schemas[endpoint.query.__name__]["properties"].items():
            schema.pop("default", None)
            if name == "limit":
                schema["maximum"] = limits.page_limit
            parameters.append({"name": name, "in": "query", "schema": schema})
    return parameters


def _parameter(where: str, name: str, description: str, **schema: Any) -> dict[str, Any]:
    return {"name": name, "in": where, "schema": {"type": "string", **schema}, "description": description}


def _answers(endpoint: Endpoint) -> dict[str, Any]:
    kind = endpoint.answer
    if isinstance(kind, str):
        about: dict[str, Any] = {"schema": {"type": "object" if kind == "application/json" else "string"}}
        if kind == EVENT_STREAM:
            about["x-events"] = {name: _ref(body) for name, body in EVENTS.items()}
        description = _STREAM if kind == EVENT_STREAM else endpoint.summary
        return {"200": {"description": description, "content": {kind: about}}}
    headers = {"Turngate-Key-Life": _text("Names the time in which keys are remembered")}
    answer = {"description": kind.__doc__, "content": _content(kind), "headers": headers}
    if endpoint.body is not NewRunBody:
        return {"200": answer}
    headers["Location"] = _text("The address of the run")
    return {
        "202": {**answer, "description": "The run is accepted"},
        "200": {**answer, "description": "The run is known with the same payload"},
    }


def _refusals(names: Iterator[str]) -> dict[str, Any]:
    """Return the answers for these problems, by status."""
    by_status: dict[int, list[str]] = {}
    for name in dict.fromkeys(names):
        status, title = TITLES[name]
        by_status.setdefault(status, []).append(f"`{name}`: {title}")
    content = _content(ProblemBody, "application/problem+json")
    return {
        str(status): {"description": "; ".join(meanings), "content": content}
        for status, meanings in sorted(by_status.items())
    }


def _content(kind: type[Struct], media_type: str = "application/json") -> dict[str, Any]:
    return {media_type: {"schema": _ref(kind)}}


def _ref(kind: type[Struct]) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{kind.__name__}"}


def _text(description: str) -> dict[str, Any]:
    return {"description": description, "schema": {"type": "string"}}
