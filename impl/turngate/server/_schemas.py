"""The shapes of what goes over the line, as JSON Schema; what each field means is said where it is made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, get_args

from turngate import Outcome, State, WhenBusy

if TYPE_CHECKING:
    from turngate.server._limits import Limits

_TEXT: Final = {"type": "string"}
_TEXT_OR_NOT: Final = {"type": ["string", "null"]}
_COUNT: Final = {"type": "integer", "minimum": 0}
_FLAG: Final = {"type": "boolean"}
_STATE: Final = {"type": "string", "enum": [state.value for state in State]}


def _object(*optional: str, **properties: Any) -> dict[str, Any]:
    """Return the schema of an object; properties are required unless they are said to be optional."""
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def _list(of: Any) -> dict[str, Any]:
    return {"type": "array", "items": of}


def _or_null(of: Any) -> dict[str, Any]:
    return {"anyOf": [of, {"type": "null"}]}


_ABOUT_RUN: Final = {"session_id": _TEXT, "run_id": _TEXT}
_VIEW: Final = {
    "session_id": _TEXT,
    "accepted": _list(_ref("Run")),
    "settling": _list(_ref("Run")),
    "queued": _list(_ref("Run")),
    "active": _or_null(_ref("Run")),
    "folded": _list(_ref("Run")),
    "text": _TEXT,
    "covered": _FLAG,
    "phase": {"enum": ["waiting", "starting", "running", "settling", None]},
    "since": {"type": ["number", "null"]},
}

SCHEMAS: Final[dict[str, Any]] = {
    "Problem": _object(type=_TEXT, title=_TEXT, status=_COUNT, detail=_TEXT),
    "Status": _object(status=_TEXT),
    "RunComplete": _object(
        **_ABOUT_RUN,
        seq=_COUNT,
        text=_TEXT,
        error=_TEXT_OR_NOT,
        cancelled=_FLAG,
        message_id=_TEXT_OR_NOT,
        folded_into=_TEXT_OR_NOT,
        outcome={"type": "string", "enum": [*get_args(Outcome)]},
    ),
    "Run": _object(
        **_ABOUT_RUN, seq=_COUNT, state=_STATE, prompt=_TEXT_OR_NOT, complete=_or_null(_ref("RunComplete"))
    ),
    "Covered": _object(covered=_list(_TEXT)),
    "Dropped": _object(dropped=_list(_TEXT)),
    "Session": _object(**_VIEW),
    "SessionAtPlace": _object(**_VIEW, cursor=_TEXT),
    "Sessions": _object(sessions=_list(_ref("Session")), cursor=_TEXT),
    "Message": _object(
        id=_TEXT,
        session_id=_TEXT,
        run_id=_TEXT,
        role={"type": "string", "enum": ["user", "assistant"]},
        text=_TEXT,
        finish_reason={"enum": ["end_turn", "canceled", "error", None]},
        data={},
    ),
    "Messages": _object(messages=_list(_ref("Message")), next=_TEXT_OR_NOT),
    "Snapshot": _object(sessions=_list(_ref("Session")), reset=_FLAG, cursor=_TEXT),
    "Accepted": _object(**_ABOUT_RUN, seq=_COUNT, prompt=_TEXT_OR_NOT),
    "Entered": _object(**_ABOUT_RUN, seq=_COUNT, state=_STATE),
    "Folded": _object(**_ABOUT_RUN, seq=_COUNT, into=_TEXT),
    "HandedOff": _object(**_ABOUT_RUN, seq=_COUNT),
    "Cancelled": _object(session_id=_TEXT, run_id={"type": "null"}, runs=_or_null(_list(_TEXT))),
    "Cleared": _object(session_id=_TEXT, run_id={"type": "null"}),
    "Delta": _object(**_ABOUT_RUN, text=_TEXT, offset=_COUNT),
    "Note": _object(**_ABOUT_RUN, kind=_TEXT, data={}),
    "Gap": _object(session_id=_TEXT_OR_NOT, run_id={"type": "null"}),
}
EVENTS: Final = {
    name: _ref(shape)
    for name, shape in (
        ("snapshot", "Snapshot"),
        ("run.accept", "Accepted"),
        ("run.enter", "Entered"),
        ("run.fold", "Folded"),
        ("run.handoff", "HandedOff"),
        ("run.complete", "RunComplete"),
        ("session.cancel", "Cancelled"),
        ("session.clear", "Cleared"),
        ("delta", "Delta"),
        ("note", "Note"),
        ("gap", "Gap"),
    )
}
"""The data of each event of the stream."""


def new_run(limits: Limits) -> dict[str, Any]:
    """Return the schema of what a client wants to have run."""
    attachment = {"name": _TEXT, "mime_type": _TEXT}
    encoded = {"type": "string", "contentEncoding": "base64"}
    return _object(
        "run_id",
        "when_busy",
        "attachments",
        prompt=_TEXT,
        run_id={"type": ["string", "null"], "minLength": 1, "maxLength": limits.id_limit},
        when_busy={"type": ["string", "null"], "enum": [*get_args(WhenBusy), None]},
        attachments={
            "type": ["array", "null"],
            "maxItems": limits.attachments_limit,
            "items": {"anyOf": [_object(**attachment, text=_TEXT), _object(**attachment, base64=encoded)]},
        },
    )
