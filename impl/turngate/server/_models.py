"""The bodies of requests, answers and events, from which their schemas are made.

A body is a dict when it is made, and a model in the description of the server, which is made of the models.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_args, get_type_hints

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, defstruct
from msgspec.json import encode as encode_raw

from turngate import Delta, Moved, Outcome, RunComplete, State, WhenBusy

if TYPE_CHECKING:
    from turngate import Event, Message, Run, SessionView

SHOWN: Final = 200
"""Characters of a prompt that are shown where runs are listed; the runner is given all of them."""
Count = Annotated[int, Meta(ge=0)]


class Body(Struct, forbid_unknown_fields=True):
    """A JSON object."""


def _model(name: str, about: str, fields: dict[str, Any]) -> type[Struct]:
    return defstruct(name, [*fields.items()], bases=(Body,), namespace={"__doc__": about})


# Requests.


class AttachmentBody(Body):
    """Something sent along with a prompt."""

    name: str
    mime_type: str
    text: str | UnsetType = UNSET
    base64: Annotated[str, Meta(extra_json_schema={"contentEncoding": "base64"})] | UnsetType = UNSET

    def __post_init__(self) -> None:
        if (self.text is UNSET) == (self.base64 is UNSET):
            raise ValueError("an attachment has either text or base64")


_EITHER: Final = {"oneOf": [{"required": ["text"]}, {"required": ["base64"]}]}


class NewRunBody(Body):
    """A prompt to be run. Only the shape is checked here: a wrong value is another problem."""

    prompt: str
    run_id: Annotated[str, Meta(extra_json_schema={"minLength": 1})] | None = None
    when_busy: Annotated[str, Meta(extra_json_schema={"enum": [*get_args(WhenBusy)]})] | None = None
    attachments: list[Annotated[AttachmentBody, Meta(extra_json_schema=_EITHER)]] | None = None
    into: str | None = None
    data: Any = None


class StopBody(Body):
    """Names a turn by one of its runs; if another turn is active, nothing happens."""

    turn: str | None = None


class MoveBody(Body):
    """Where to move it: before another waiting run, or to the first or last position."""

    before: str | None = None
    to: Annotated[str, Meta(extra_json_schema={"enum": ["first", "last"]})] | None = None


class EditBody(Body):
    """What to change of a waiting run. A field that is left out stays; null clears it."""

    prompt: str | UnsetType | None = UNSET
    attachments: list[Annotated[AttachmentBody, Meta(extra_json_schema=_EITHER)]] | UnsetType | None = UNSET
    when_busy: Annotated[str, Meta(extra_json_schema={"enum": ["fold", "queue"]})] | UnsetType | None = UNSET
    data: Any = UNSET


class RunQuery(Struct):
    """How to wait for a run."""

    wait: Annotated[float, Meta(ge=0, description="Seconds to wait for the completion, within a limit")] = 0.0


class CancelRunQuery(Struct):
    """How to cancel a run."""

    waiting_only: Annotated[
        Literal["true", "false"], Meta(description="Only while its runner has not been called")
    ] = "false"


class MessagesQuery(Struct):
    """Which messages to read."""

    after: Annotated[str, Meta(description="The id of the message before the first")] = ""
    limit: Annotated[int, Meta(ge=1, description="How many messages")] = 100


class EventsQuery(Struct):
    """Where an event stream continues."""

    after: Annotated[str, Meta(description="Like `Last-Event-ID`, for clients that cannot set headers")] = ""


# Answers.


class RunCompleteBody(Body):
    """How a run ended."""

    session_id: str
    run_id: str
    seq: Count
    text: str
    error: str | None
    cancelled: bool
    message_id: str | None
    folded_into: str | None
    outcome: Outcome


class RunBody(Body):
    """A run; `complete` is null until it is."""

    run_id: str
    session_id: str
    seq: Count
    state: State
    prompt: str | None
    complete: RunCompleteBody | None
    held: bool
    data: Any


class SessionBody(Body):
    """A session at one moment; `waiting` are the ids of the accepted and queued runs, in order."""

    session_id: str
    accepted: list[RunBody]
    settling: list[RunBody]
    queued: list[RunBody]
    active: RunBody | None
    folded: list[RunBody]
    text: str
    covered: bool
    phase: Literal["waiting", "starting", "running", "settling"] | None
    since: float | None
    waiting: list[str]


class MessageBody(Body):
    """A message of a session."""

    id: str
    session_id: str
    run_id: str
    role: Literal["user", "assistant"]
    text: str
    finish_reason: Literal["end_turn", "canceled", "error"] | None
    data: Any


ProblemBody: Final = _model(
    "ProblemBody",
    "Why a request is refused; `type` ends in the name of the problem.",
    {"type": str, "title": str, "status": Count, "detail": str},
)
StatusBody: Final = _model("StatusBody", "The state of the server.", {"status": str})
CoveredBody: Final = _model(
    "CoveredBody", "The ids of the runs that a cancel covers.", {"covered": list[str]}
)
StoppedBody: Final = _model(
    "StoppedBody",
    "The ids of the runs that were covered, of those that were held, and of all that still wait.",
    {"covered": list[str], "held": list[str], "waiting": list[str]},
)
LineBody: Final = _model("LineBody", "The ids of the runs that were held or resumed.", {"runs": list[str]})
DroppedBody: Final = _model(
    "DroppedBody", "The ids of the runs that were dropped from a queue.", {"dropped": list[str]}
)
SessionAtPlaceBody: Final = _model(
    "SessionAtPlaceBody",
    "A session, and the cursor of the event stream at that step.",
    {**get_type_hints(SessionBody, include_extras=True), "cursor": str},
)
SessionsBody: Final = _model(
    "SessionsBody",
    "Every session with runs in flight, and the cursor of the event stream at that step.",
    {"sessions": list[SessionBody], "cursor": str},
)
MessagesBody: Final = _model(
    "MessagesBody",
    "A page of messages, and the `after` of the next page.",
    {"messages": list[MessageBody], "next": str | None},
)

# Events.

_RUN: Final[dict[str, Any]] = {"session_id": str, "run_id": str, "seq": Count}
_SESSION: Final[dict[str, Any]] = {"session_id": str, "run_id": None, "runs": list[str] | None}
EVENTS: Final[dict[str, type[Struct]]] = {
    "snapshot": _model(
        "SnapshotBody",
        "The present state; with `reset`, the server does not know the event that the client resumed from.",
        {"sessions": list[SessionBody], "reset": bool, "cursor": str},
    ),
    "run.accept": _model(
        "AcceptedBody", "A run was accepted.", {**_RUN, "prompt": str | None, "into": str | None}
    ),
    "run.enter": _model("EnteredBody", "A run has entered.", {**_RUN, "state": State}),
    "run.fold": _model("FoldedBody", "A run has joined the turn of another.", {**_RUN, "into": str}),
    "run.handoff": _model("HandedOffBody", "A queued run has become active.", _RUN),
    "run.complete": RunCompleteBody,
    "run.move": _model("MovedBody", "A waiting run has another position.", {**_RUN, "before": str | None}),
    "run.edit": _model("EditedBody", "A waiting run was edited.", _RUN),
    "session.cancel": _model("CancelledBody", "A session was cancelled, or some runs of it.", _SESSION),
    "session.clear": _model("ClearedBody", "The queue of a session was cleared, or some of it.", _SESSION),
    "session.hold": _model("HeldBody", "The waiting runs of a session are held, or some of them.", _SESSION),
    "session.resume": _model(
        "ResumedBody", "The held runs of a session are resumed, or some of them.", _SESSION
    ),
    "delta": _model(
        "DeltaBody",
        "Text that a turn wrote.",
        {"session_id": str, "run_id": str, "text": str, "offset": Count},
    ),
    "note": _model(
        "NoteBody",
        "A note from a runner to the subscribers.",
        {"session_id": str, "run_id": str, "kind": str, "data": Any},
    ),
    "gap": _model(
        "GapBody",
        "Events were skipped; the RunCompletes among them follow, then a snapshot.",
        {"session_id": str | None, "run_id": None},
    ),
}
"""The data of each event of the stream. A decision has the fields of `Moved` that its model names."""

_encoder: Final = json.JSONEncoder(separators=(",", ":"))
# In ASCII: an event of the stream ends with its line, and not every string has a UTF-8 form.


def encode(body: Any) -> bytes:
    """Return a body in JSON."""
    return _encoder.encode(body).encode("ascii")


def encode_around(sessions: bytes, **more: bool | str) -> bytes:
    """Return an object in JSON whose `sessions` are encoded already."""
    return encode_raw({"sessions": Raw(sessions), **more})


def frame(name: str, data: bytes, place: str | None) -> bytes:
    """Return one event of the stream, with its data in JSON; `place` is its id."""
    identified = b"" if place is None else b"id: %s\n" % place.encode("ascii")
    return b"%sevent: %s\ndata: %s\n\n" % (identified, name.encode("ascii"), data)


def shown(prompt: str | None) -> str | None:
    """Return as much of a prompt as is shown in a list."""
    return prompt if prompt is None or len(prompt) <= SHOWN else f"{prompt[: SHOWN - 1]}…"


def run_body(
    run: Run, complete: RunComplete | None = None, sent: Message | None = None, *, whole: bool = False
) -> dict[str, Any]:
    """Return a run, with its completion, and the message with its prompt, if these are known from elsewhere.

    The prompt is shortened as in a list, unless the `whole` of it is asked for.

    The handle of a complete run need not have the prompt and the data: then these are null.
    """
    complete = complete or run.complete
    prompt, data = run.prompt if run.prompt or complete is None else None, run.data
    if prompt is None and sent is not None:
        prompt, data = sent.text, sent.data
    return {
        "run_id": run.run_id,
        "session_id": run.session_id,
        "seq": run.seq,
        "state": State.COMPLETE if complete is not None else run.state,
        "prompt": prompt if whole else shown(prompt),
        "complete": None if complete is None else complete._asdict(),
        "held": run.held,
        "data": data,
    }


def session_body(view: SessionView) -> dict[str, Any]:
    """Return what a session looks like."""
    fields = view._asdict()
    for name in ("accepted", "settling", "queued", "folded"):
        fields[name] = [run_body(run) for run in fields[name]]
    fields["active"] = None if view.active is None else run_body(view.active)
    fields["waiting"] = [run.run_id for run in view.waiting]
    return fields


def event_body(event: Event, prompt: str | None = None) -> tuple[str, dict[str, Any]]:
    """Return an event's name in the stream and its data; that of an accept has the prompt, if it is known."""
    fields = event._asdict()
    if isinstance(event, Moved):
        name = f"run.{event.event}"
        if name not in EVENTS:
            name = f"session.{event.event}"
        fields["prompt"] = shown(prompt)
        return name, {field: fields[field] for field in EVENTS[name].__struct_fields__}
    if isinstance(event, RunComplete):
        return "run.complete", fields
    return "delta" if isinstance(event, Delta) else "note", fields
