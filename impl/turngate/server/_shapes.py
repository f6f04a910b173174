"""What goes over the line: runs, sessions, messages and events as JSON; the frames of the event stream."""

from __future__ import annotations

import json
from json.encoder import encode_basestring_ascii as quoted
from typing import TYPE_CHECKING, Any, Final

from turngate import Delta, Moved, Note, RunComplete

if TYPE_CHECKING:
    from turngate import Event, Message, Run, SessionView

SHOWN: Final = 200
"""So many characters of a prompt are shown where runs are listed; the runner gets all of them."""
NAMES: Final = {
    "accept": "run.accept",
    "enter": "run.enter",
    "fold": "run.fold",
    "handoff": "run.handoff",
    "cancel": "session.cancel",
    "clear": "session.clear",
}
"""What the moves of the dispatcher are called in the event stream."""

_encoder = json.JSONEncoder(separators=(",", ":"))
# In ASCII: an event of the stream ends with its line, and not every string has a UTF-8 form.


def encoded(data: object) -> bytes:
    """Return data as JSON."""
    return _encoder.encode(data).encode("ascii")


def shown(prompt: str) -> str:
    """Return as much of a prompt as is shown in a list."""
    return prompt if len(prompt) <= SHOWN else f"{prompt[: SHOWN - 1]}…"


def run_shape(run: Run, complete: RunComplete | None = None, prompt: str | None = None) -> dict[str, Any]:
    """Return a run, with its completion and its prompt if these are known from elsewhere.

    The handle of a complete run need not have the prompt: then it is null, not empty.
    """
    complete = complete or run.complete
    if run.prompt or complete is None:
        prompt = run.prompt
    return {
        "run_id": run.run_id,
        "session_id": run.session_id,
        "seq": run.seq,
        "state": "complete" if complete is not None else str(run.state),
        "prompt": None if prompt is None else shown(prompt),
        "complete": None if complete is None else complete._asdict(),
    }


def view_shape(view: SessionView) -> dict[str, Any]:
    """Return what a session looks like."""
    return {
        "session_id": view.session_id,
        "accepted": [run_shape(run) for run in view.accepted],
        "settling": [run_shape(run) for run in view.settling],
        "queued": [run_shape(run) for run in view.queued],
        "active": None if view.active is None else run_shape(view.active),
        "folded": [run_shape(run) for run in view.folded],
        "text": view.text,
        "covered": view.covered,
        "phase": view.phase,
        "since": view.since,
    }


def message_shape(message: Message) -> dict[str, Any]:
    """Return a message."""
    return message._asdict()


def event_data(event: Event, prompt: str | None = None) -> tuple[str, str]:
    """Return an event's name in the stream, and its data in JSON; of an accept, with the prompt if known.

    Spelled out, for there are several to every run, and a general encoder takes thrice the time.
    """
    match event:
        case Delta(session_id, run_id, text, offset):
            return "delta", (
                f'{{"session_id":{quoted(session_id)},"run_id":{quoted(run_id)},"text":{quoted(text)},'
                f'"offset":{offset}}}'
            )
        case RunComplete():
            return "run.complete", _complete_data(event)
        case Moved():
            return NAMES[event.event], _moved_data(event, prompt)
        case Note():
            return "note", _encoder.encode(event._asdict())


def _or_null(text: str | None) -> str:
    return "null" if text is None else quoted(text)


def _complete_data(complete: RunComplete) -> str:
    session_id, run_id, seq, text, error, cancelled, message_id, folded_into, outcome = complete
    return (
        f'{{"session_id":{quoted(session_id)},"run_id":{quoted(run_id)},"seq":{seq},"text":{quoted(text)},'
        f'"error":{_or_null(error)},"cancelled":{"true" if cancelled else "false"},'
        f'"message_id":{_or_null(message_id)},"folded_into":{_or_null(folded_into)},"outcome":"{outcome}"}}'
    )


def _moved_data(moved: Moved, prompt: str | None) -> str:
    parts = [f'"session_id":{quoted(moved.session_id)},"run_id":{_or_null(moved.run_id)}']
    if moved.seq is not None:
        parts.append(f'"seq":{moved.seq}')
    if moved.state is not None:
        parts.append(f'"state":"{moved.state}"')
    if moved.into is not None:
        parts.append(f'"into":{quoted(moved.into)}')
    if moved.event == "cancel":
        parts.append(f'"runs":{_encoder.encode(moved.runs)}')
    elif moved.event == "accept":
        parts.append(f'"prompt":{_or_null(prompt)}')
    return f"{{{','.join(parts)}}}"


def frame(name: str, data: object, place: str | None) -> bytes:
    """Return one event of the stream; `place` is its id."""
    identified = b"" if place is None else b"id: %s\n" % place.encode("ascii")
    return b"%sevent: %s\ndata: %s\n\n" % (identified, name.encode("ascii"), encoded(data))


def snapshot_frame(sessions: bytes, place: str, *, reset: bool) -> bytes:
    """Return the event that shows all sessions, which are a list in JSON already."""
    at = place.encode("ascii")
    said = b"true" if reset else b"false"
    return b'id: %s\nevent: snapshot\ndata: {"sessions":%s,"reset":%s,"cursor":"%s"}\n\n' % (
        at, sessions, said, at,
    )  # fmt: skip
