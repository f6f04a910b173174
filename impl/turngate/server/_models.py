"""What goes over the line: the bodies of requests, answers and events, from which their schemas are made."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_args, get_type_hints

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from turngate import Delta, Note, Outcome, RunComplete, State, WhenBusy

if TYPE_CHECKING:
    from turngate import Event, Message, Moved, Run, SessionView

SHOWN: Final = 200
"""Characters of a prompt that are shown where runs are listed; the runner is given all of them."""

Count = Annotated[int, Meta(ge=0)]


class Body(Struct, forbid_unknown_fields=True):
    """A JSON object."""


class ProblemBody(Body):
    """Why a request is refused; `type` ends in the name of the problem."""

    type: str
    title: str
    status: Count
    detail: str


class StatusBody(Body):
    """How the server is."""

    status: str


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


class RunQuery(Struct):
    """How to look at a run."""

    wait: Annotated[float, Meta(ge=0, description="Seconds to wait for the completion, within a limit")] = 0.0


class CancelRunQuery(Struct):
    """How to cancel a run."""

    waiting_only: Annotated[
        Literal["true", "false"], Meta(description="Only while its runner has not been called")
    ] = "false"


class MessagesQuery(Struct):
    """Which messages to read."""

    after: Annotated[str, Meta(description="The id of the message before the first")] = ""
    limit: Annotated[int, Meta(ge=1, description="How many")] = 100


class EventsQuery(Struct):
    """Where an event stream goes on."""

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


class CoveredBody(Body):
    """The ids of the runs that a cancel covers."""

    covered: list[str]


class DroppedBody(Body):
    """The ids of the runs that were dropped from a queue."""

    dropped: list[str]


class SessionBody(Body):
    """A session at one moment."""

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


_AT_PLACE: Final = [*get_type_hints(SessionBody, include_extras=True).items(), ("cursor", str)]
SessionAtPlaceBody: Final = msgspec.defstruct(
    "SessionAtPlaceBody",
    _AT_PLACE,
    bases=(Body,),
    namespace={"__doc__": "A session, and the cursor of the event stream at that step."},
)


class SessionsBody(Body):
    """Every session that has something in flight, and the cursor of the event stream at that step."""

    sessions: list[SessionBody]
    cursor: str


class MessageBody(Body):
    """A message of a session."""

    id: str
    session_id: str
    run_id: str
    role: Literal["user", "assistant"]
    text: str
    finish_reason: Literal["end_turn", "canceled", "error"] | None
    data: Any


class MessagesBody(Body):
    """A page of messages, and the `after` of the next page."""

    messages: list[MessageBody]
    next: str | None


# Events.


class SnapshotBody(Body):
    """How things are; with `reset`, the place that the client came from is unknown."""

    sessions: list[SessionBody]
    reset: bool
    cursor: str


class AcceptedBody(Body):
    """A run was accepted."""

    session_id: str
    run_id: str
    seq: Count
    prompt: str | None


class EnteredBody(Body):
    """A run has entered."""

    session_id: str
    run_id: str
    seq: Count
    state: State


class FoldedBody(Body):
    """A run has joined the turn of another."""

    session_id: str
    run_id: str
    seq: Count
    into: str


class HandedOffBody(Body):
    """A queued run has become active."""

    session_id: str
    run_id: str
    seq: Count


class CancelledBody(Body):
    """A session was cancelled, or some runs of it."""

    session_id: str
    run_id: None
    runs: list[str] | None


class ClearedBody(Body):
    """The queue of a session was cleared."""

    session_id: str
    run_id: None


class DeltaBody(Body):
    """Text that a turn wrote."""

    session_id: str
    run_id: str
    text: str
    offset: Count


class NoteBody(Body):
    """Something that a runner told the subscribers."""

    session_id: str
    run_id: str
    kind: str
    data: Any


class GapBody(Body):
    """Events were skipped; the RunCompletes among them follow, then a snapshot."""

    session_id: str | None
    run_id: None


EVENTS: Final[dict[str, type[Body]]] = {
    "snapshot": SnapshotBody,
    "run.accept": AcceptedBody,
    "run.enter": EnteredBody,
    "run.fold": FoldedBody,
    "run.handoff": HandedOffBody,
    "run.complete": RunCompleteBody,
    "session.cancel": CancelledBody,
    "session.clear": ClearedBody,
    "delta": DeltaBody,
    "note": NoteBody,
    "gap": GapBody,
}
"""The data of each event of the stream."""

_encoder: Final = json.JSONEncoder(separators=(",", ":"), default=msgspec.structs.asdict)
# In ASCII: an event of the stream ends with its line, and not every string has a UTF-8 form.


def encode(body: Struct | list[SessionBody] | dict[str, Any]) -> bytes:
    """Return a body in JSON."""
    return _encoder.encode(body).encode("ascii")


def encode_around(sessions: bytes, **more: bool | str) -> bytes:
    """Return an object in JSON whose `sessions` are encoded already."""
    return msgspec.json.encode({"sessions": msgspec.Raw(sessions), **more})


def frame(name: str, data: bytes, place: str | None) -> bytes:
    """Return one event of the stream, with its data in JSON; `place` is its id."""
    identified = b"" if place is None else b"id: %s\n" % place.encode("ascii")
    return b"%sevent: %s\ndata: %s\n\n" % (identified, name.encode("ascii"), data)


def shown(prompt: str) -> str:
    """Return as much of a prompt as is shown in a list."""
    return prompt if len(prompt) <= SHOWN else f"{prompt[: SHOWN - 1]}…"


def complete_body(complete: RunComplete) -> RunCompleteBody:
    """Return a RunComplete as it goes over the line."""
    return RunCompleteBody(*complete)


def run_body(run: Run, complete: RunComplete | None = None, prompt: str | None = None) -> RunBody:
    """Return a run, with its completion and its prompt if these are known from elsewhere.

    The handle of a complete run need not have the prompt: then it is null, not empty.
    """
    complete = complete or run.complete
    if run.prompt or complete is None:
        prompt = run.prompt
    return RunBody(
        run_id=run.run_id,
        session_id=run.session_id,
        seq=run.seq,
        state=State.COMPLETE if complete is not None else run.state,
        prompt=None if prompt is None else shown(prompt),
        complete=None if complete is None else complete_body(complete),
    )


def session_body(view: SessionView) -> SessionBody:
    """Return what a session looks like."""
    fields = view._asdict()
    for name in ("accepted", "settling", "queued", "folded"):
        fields[name] = [run_body(run) for run in fields[name]]
    fields["active"] = None if view.active is None else run_body(view.active)
    return SessionBody(**fields)


def message_body(message: Message) -> MessageBody:
    """Return a message as it goes over the line."""
    return MessageBody(*message)


def event_body(event: Event, prompt: str | None = None) -> tuple[str, Body]:
    """Return an event's name in the stream and its data; that of an accept has the prompt, if it is known."""
    match event:
        case Delta():
            return "delta", DeltaBody(*event)
        case RunComplete():
            return "run.complete", complete_body(event)
        case Note():
            return "note", NoteBody(*event)
        case _:
            return _moved_body(event, prompt)


def _moved_body(moved: Moved, prompt: str | None) -> tuple[str, Body]:
    if moved.event == "cancel":
        runs = None if moved.runs is None else [*moved.runs]
        return "session.cancel", CancelledBody(moved.session_id, None, runs)
    if moved.event == "clear":
        return "session.clear", ClearedBody(moved.session_id, None)
    name = f"run.{moved.event}"
    fields: dict[str, Any] = {"session_id": moved.session_id, "run_id": moved.run_id, "seq": moved.seq}
    if moved.event == "accept":
        fields["prompt"] = prompt
    elif moved.event == "enter":
        fields["state"] = moved.state
    elif moved.event == "fold":
        fields["into"] = moved.into
    return name, EVENTS[name](**fields)
