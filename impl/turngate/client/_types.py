"""What a client receives: runs and sessions as the server saw them, and events."""

from __future__ import annotations

from typing import Any, NamedTuple

from turngate import Delta, Moved, Note, RunComplete, State


class RemoteRun(NamedTuple):
    """A run as the server saw it when it answered; `prompt` is cut short."""

    run_id: str
    session_id: str
    seq: int
    state: State
    prompt: str
    complete: RunComplete | None
    held: bool = False
    data: Any = None


class RemoteCovered(NamedTuple):
    """The ids of the runs that a call covered and held, and of those that wait after it."""

    covered: list[str]
    held: list[str]
    waiting: list[str]


class RemoteSession(NamedTuple):
    """A session as the server saw it (see `turngate.SessionView`), and its place in the event stream.

    `waiting` has the ids of the accepted and the queued runs, in order.
    """

    session_id: str
    accepted: tuple[RemoteRun, ...]
    settling: tuple[RemoteRun, ...]
    queued: tuple[RemoteRun, ...]
    active: RemoteRun | None
    folded: tuple[RemoteRun, ...]
    text: str
    covered: bool
    phase: str | None
    since: float | None
    cursor: str | None = None
    waiting: tuple[str, ...] = ()


class Snapshot(NamedTuple):
    """The present state: at the beginning, after a gap, and if the server does not know the reader's cursor.

    With `reset`, RunCompletes may have been missed: ask for the runs that matter with `wait`.
    """

    sessions: tuple[RemoteSession, ...]
    reset: bool
    cursor: str


class Gap(NamedTuple):
    """Events behind the cursor `after` were skipped. The RunCompletes among them follow, then a Snapshot."""

    session_id: str | None
    after: str | None


_MOVES = (
    *("run.accept", "run.enter", "run.fold", "run.handoff", "run.move", "run.edit"),
    *("session.cancel", "session.clear", "session.hold", "session.resume"),
)
RemoteEvent = Snapshot | Gap | Moved | RunComplete | Delta | Note


def run_of(data: dict[str, Any]) -> RemoteRun:
    """Return a run from its JSON."""
    complete = data["complete"]
    return RemoteRun(
        data["run_id"],
        data["session_id"],
        data["seq"],
        State(data["state"]),
        data["prompt"],
        None if complete is None else RunComplete(**complete),
        data.get("held", False),
        data.get("data"),
    )


def session_of(data: dict[str, Any]) -> RemoteSession:
    """Return a session from its JSON."""
    runs = {
        key: tuple(run_of(each) for each in data[key]) for key in ("accepted", "settling", "queued", "folded")
    }
    active = None if data["active"] is None else run_of(data["active"])
    waiting = tuple(data.get("waiting", ()))
    return RemoteSession(**{**data, **runs, "active": active, "waiting": waiting})


def event_of(name: str, data: dict[str, Any], before: str | None) -> RemoteEvent | None:
    """Return an event of the stream; None for an event of a newer server that is not known here.

    `before` is the cursor of the event before it.
    """
    match name:
        case "run.complete":
            return RunComplete(**data)
        case "delta":
            return Delta(**data)
        case "note":
            return Note(**data)
        case "snapshot":
            return Snapshot(tuple(map(session_of, data["sessions"])), data["reset"], data["cursor"])
        case "gap":
            return Gap(data["session_id"], before)
        case _:
            return _moved(name.partition(".")[2], data) if name in _MOVES else None


def _moved(event: str, data: dict[str, Any]) -> Moved:
    state, runs = data.get("state"), data.get("runs")
    return Moved(
        data["session_id"],
        event,
        data["run_id"],
        data.get("seq"),
        None if state is None else State(state),
        data.get("into"),
        None if runs is None else tuple(runs),
        data.get("before"),
    )
