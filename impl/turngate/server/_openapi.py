"""The OpenAPI 3.1 document, made from the table of endpoints and the models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from turngate import __version__
from turngate._keys import LONGEST_KEY
from turngate.server._endpoints import ENDPOINTS, EVENT_STREAM
from turngate.server._models import EVENTS, NewRunBody, ProblemBody
from turngate.server._problems import TITLES

if TYPE_CHECKING:
    from msgspec import Struct

    from turngate.server._endpoints import Endpoint
    from turngate.server._limits import Limits

_ALWAYS: Final = ("forbidden-origin", "unknown-host", "too-large")
"""The problems that any endpoint may be refused with."""
_STREAM: Final = (
    "Server-sent events. `x-events` names the schema of the data of each. All but `gap` have an id; a client "
    "that sends the last one back misses no `run.complete` and gets none twice. An id that is not known is "
    "answered with a `snapshot` whose `reset` is true."
)


def openapi(root: str, limits: Limits, *, token: bool) -> dict[str, Any]:
    """Return the description of a server that is mounted below `root`."""
    paths: dict[str, Any] = {}
    for endpoint in ENDPOINTS:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _describe(
            endpoint, limits, token=token
        )
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
        "paths": paths,
        "components": {"schemas": _schemas(limits)},
    }
    if token:
        document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"token": []}]
    return document


def _schemas(limits: Limits) -> dict[str, Any]:
    answers = [endpoint.answer for endpoint in ENDPOINTS if not isinstance(endpoint.answer, str)]
    kinds = [ProblemBody, NewRunBody, *answers, *EVENTS.values()]
    _, schemas = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    new_run = schemas["NewRunBody"]["properties"]
    new_run["run_id"]["anyOf"][0]["maxLength"] = limits.id_limit
    new_run["attachments"]["anyOf"][0]["maxItems"] = limits.attachments_limit
    return schemas


def _ref(kind: type[Struct]) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{kind.__name__}"}


def _describe(endpoint: Endpoint, limits: Limits, *, token: bool) -> dict[str, Any]:
    """Return what an endpoint takes, what it answers, and which problems it may be refused with."""
    problems = [*endpoint.problems, *_ALWAYS, *(["unauthorized"] if token and not endpoint.is_open else [])]
    described: dict[str, Any] = {
        "summary": endpoint.summary,
        "parameters": _parameters(endpoint, limits),
        "responses": {**_answers(endpoint), **_refusals(problems)},
    }
    if endpoint.body is not None:
        described["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": _ref(endpoint.body)}},
        }
    if token and endpoint.is_open:
        described["security"] = []
    return described


def _parameters(endpoint: Endpoint, limits: Limits) -> list[dict[str, Any]]:
    parameters = [
        {
            "name": part[1:-1],
            "in": "path",
            "required": True,
            "schema": {"type": "string", "minLength": 1, "maxLength": limits.id_limit},
            "description": f"A {part[1:-1]} id, as one percent-encoded segment",
        }
        for part in endpoint.path.split("/")
        if part.startswith("{")
    ]
    if endpoint.key is not None:
        longest = LONGEST_KEY if endpoint.body is None else limits.id_limit
        parameters.append(_header("Idempotency-Key", endpoint.key, minLength=1, maxLength=longest))
    if endpoint.answer == EVENT_STREAM:
        parameters.append(_header("Last-Event-ID", "Where to go on; wins over `after`"))
    if endpoint.query is not None:
        (_,), schemas = msgspec.json.schema_components([endpoint.query])
        for name, schema in schemas[endpoint.query.__name__]["properties"].items():
            schema.pop("default", None)
            if name == "limit":
                schema["maximum"] = limits.page_limit
            parameters.append({"name": name, "in": "query", "schema": schema})
    return parameters


def _header(name: str, description: str, **schema: Any) -> dict[str, Any]:
    return {"name": name, "in": "header", "schema": {"type": "string", **schema}, "description": description}


def _answers(endpoint: Endpoint) -> dict[str, Any]:
    if endpoint.answer == EVENT_STREAM:
        events = {name: _ref(kind) for name, kind in EVENTS.items()}
        stream = {"schema": {"type": "string"}, "x-events": events}
        return {"200": {"description": _STREAM, "content": {EVENT_STREAM: stream}}}
    if isinstance(endpoint.answer, str):
        schema = {"type": "object" if endpoint.answer == "application/json" else "string"}
        return {"200": {"description": endpoint.summary, "content": {endpoint.answer: {"schema": schema}}}}
    headers = {"Turngate-Key-Life": _text("Names the time in which keys are remembered")}
    answer = {
        "description": endpoint.answer.__doc__,
        "content": {"application/json": {"schema": _ref(endpoint.answer)}},
        "headers": headers,
    }
    if endpoint.body is None:
        return {"200": answer}
    headers["Location"] = _text("The address of the run")
    return {
        "202": {**answer, "description": "The run is accepted"},
        "200": {**answer, "description": "The run is known with the same payload"},
    }


def _text(description: str) -> dict[str, Any]:
    return {"description": description, "schema": {"type": "string"}}


def _refusals(names: list[str]) -> dict[str, Any]:
    """Return the answers for these problems, by status."""
    content = {"application/problem+json": {"schema": _ref(ProblemBody)}}
    by_status: dict[int, list[str]] = {}
    for name in dict.fromkeys(names):
        status, title = TITLES[name]
        by_status.setdefault(status, []).append(f"`{name}`: {title}")
    return {
        str(status): {"description": "; ".join(meanings), "content": content}
        for status, meanings in sorted(by_status.items())
    }
