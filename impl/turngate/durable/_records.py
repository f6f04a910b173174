"""What a ledger keeps, as plain values: the rows that a step is decided on, and the rows that it changes.

Both engines, and the ledger in memory that the checks use, share these. The second half of the module
converts them to the columns of the engines' tables, and back. Nothing here does any I/O.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from turngate._core import RunRecord, State
from turngate._events import RunComplete
from turngate._messages import Message
from turngate._prompt import Attachment, decode_attachment, encode_attachment
from turngate._prompt import decode as decode_json

if TYPE_CHECKING:
    from turngate._messages import ListOfMessages
    from turngate._prompt import WhenBusy

ALL: Final = -1
"""As `head` in an `Ask`: the whole queue."""
REMEMBERED: Final = 32
"""How many of its last steps a session remembers by id, for callers whose answer was lost."""
_ODD: Final = "\x1b"
"""Prefix of a text stored as JSON because a database would not take it as it is."""

Row = tuple[Any, ...]
"""The columns of a row."""


class SessionRow(NamedTuple):
    """A session at a version.

    token     distinguishes the session from a purged one of the same name
    queued    the length of its queue
    lead      the run that leads its turn
    owner     the worker that runs the turn; None if no worker has taken it yet
    fence     the number of the turn's last owner
    begun     whether the turn's runner may have been called
    attempts  which attempt at the turn this is
    recent    the ids of its last steps
    """

    token: str
    version: int
    next_seq: int = 1
    mark: int = 0
    queued: int = 0
    lead: str | None = None
    owner: int | None = None
    fence: int = 0
    covered: bool = False
    begun: bool = False
    attempts: int = 0
    since: float | None = None
    recent: tuple[str, ...] = ()


class RunRow(NamedTuple):
    """A run; `place` is its place in its turn, `holder` the worker that accepted it.

    While it waits, `rank` gives its position, and `bound` is the lead of the one turn that it may join.
    `data` is JSON. An empty text means None.
    """

    run_id: str
    session_id: str
    seq: int
    state: State
    when_busy: WhenBusy
    covered: bool
    holder: int
    place: int
    prompt: str
    attachments: str
    digest: str
    data: str = ""
    rank: int = 0
    held: bool = False
    bound: str = ""

    def as_record(self) -> RunRecord:
        """Return the record that the core works on."""
        record = RunRecord(
            self.session_id, self.run_id, self.seq, self.prompt, self.when_busy, self.state, self.covered,
            self.data or None,
        )  # fmt: skip
        record.rank, record.held, record.into = self.rank, self.held, self.bound or None
        return record

    def updated(self, run: RunRecord, place: int, attachments: str | None = None) -> RunRow:
        """Return the row for a run that the core has changed."""
        return self._replace(
            state=run.state, covered=run.covered, place=place, when_busy=run.when_busy, rank=run.rank,
            held=run.held, bound=run.into or "", prompt=run.prompt, data=run.data or "",
            attachments=self.attachments if attachments is None else attachments,
        )  # fmt: skip


class Known(NamedTuple):
    """A run that was looked up by its id, in any session, and its completion if it has one.

    `position` is that of the step that completed it; 0 if it is not complete, or was not looked up.
    """

    row: RunRow
    complete: RunComplete | None
    position: int = 0


class KeyRow(NamedTuple):
    """A request under an idempotency key, and its answer as JSON.

    An operation of one step has one row, with an empty `part`, which is written in that step and has its id.
    An operation of several steps has one row for its plan, one `part` for each step, and one for its answer.
    """

    key: str
    part: str
    request: str
    answer: str
    step_id: str = ""


class Ask(NamedTuple):
    """What a step needs to see of its session.

    head       how many runs from the head of the queue
    run_id     a run to look up, in any session
    with_text  whether the text that the turn has written so far is needed
    is_new     whether the run is probably not known yet
    key        key and part of an idempotency key to look up
    """

    session_id: str
    worker: int
    step_id: str
    head: int = 0
    run_id: str | None = None
    with_text: bool = False
    is_new: bool = False
    key: tuple[str, str] | None = None


class Loaded(NamedTuple):
    """A session as a step finds it: its row, its accepted and active runs, and what the `Ask` asked for.

    fresh        a number that no other step has, higher than any used before in the session: for a fence, or
                 for a first version
    now          the time by the ledger's clock
    owner_lives  whether the owner of the turn is alive
    text, kept   what the owner has checkpointed of the turn
    """

    session_id: str
    session: SessionRow | None
    runs: list[RunRow]
    known: Known | None
    fresh: int
    now: float
    owner_lives: bool = False
    text: str = ""
    kept: str | None = None
    key: KeyRow | None = None


class RunChange(NamedTuple):
    """A change to a run that stays incomplete; fields that an edit may change are None if unchanged."""

    run_id: str
    state: State
    covered: bool
    place: int
    when_busy: WhenBusy
    rank: int
    held: bool
    bound: str
    prompt: str | None = None
    attachments: str | None = None
    data: str | None = None

    @classmethod
    def between(cls, before: RunRow, after: RunRow) -> RunChange:
        """Return the change that leads from one row to the other."""
        prompt, attachments, data = (
            new if new != old else None
            for old, new in zip(
                (before.prompt, before.attachments, before.data),
                (after.prompt, after.attachments, after.data),
                strict=True,
            )
        )
        return cls(
            after.run_id, after.state, after.covered, after.place, after.when_busy, after.rank, after.held,
            after.bound, prompt, attachments, data,
        )  # fmt: skip

    def applied(self, row: RunRow) -> RunRow:
        """Return the row as it is after the change."""
        changed = {name: value for name, value in self._asdict().items() if value is not None}
        return row._replace(**changed)


class Changes(NamedTuple):
    """What a step writes, all of it or nothing, if the session is still at the version that was loaded."""

    session_id: str
    before: SessionRow | None
    after: SessionRow
    new: list[RunRow]
    changed: list[RunChange]
    done: list[RunComplete]
    messages: list[Message]
    entries: list[dict[str, Any]]
    key: KeyRow | None = None
    """If the key already has a row, nothing is written at all."""


@dataclass
class Decision:
    """What a step has decided: the changes to save, None if there are none, and the `result` for the caller.

    `position` is set when the changes are saved.
    """

    changes: Changes | None
    result: Any
    position: int = 0


Decide = Callable[[Loaded, str], Decision]
"""A step: a pure function of the loaded session and the id under which the step will be saved.

It may be called several times, and in another thread.
"""


def digest_of(session_id: str, prompt: str, attachments: str, data: str = "") -> str:
    """Return a digest by which a repeated accept is distinguished from a conflict."""
    payload = json.dumps([session_id, prompt, attachments, *([data] if data else [])])
    return hashlib.sha256(payload.encode()).hexdigest()[:32]


def as_json(attachments: tuple[Attachment | str, ...]) -> str:
    """Return attachments as JSON text."""
    return json.dumps([encode_attachment(each) for each in attachments]) if attachments else ""


def as_attachments(text: str) -> tuple[Attachment | str, ...]:
    """Parse the JSON text of attachments."""
    return tuple(decode_attachment(each) for each in json.loads(text)) if text else ()


def storable(text: str) -> str:
    """Return the text in a form that any database takes: as JSON if it has NUL or half a surrogate pair."""
    is_odd = "\0" in text or text.startswith(_ODD)
    if not is_odd and not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            is_odd = True
    return _ODD + json.dumps(text) if is_odd else text


def restored(text: str) -> str:
    """Return the text from which `storable` made this."""
    if text.startswith(_ODD):
        original: str = json.loads(text[1:])
        return original
    return text


# Columns. A record has a column for each of its fields, in the same order.

_RUN_COLUMNS: Final = len(RunRow._fields)


def _is_plain(record: Sequence[Any]) -> bool:
    """Return whether no text of the record needs to be changed; checks all of them at once."""
    texts = "".join([value for value in record if isinstance(value, str)])
    return texts.isascii() and "\0" not in texts and _ODD not in texts


def encode(record: Sequence[Any]) -> Row:
    """Return the columns of a record, or of a part of it."""
    if _is_plain(record):
        return (*record,)
    return tuple([storable(value) if isinstance(value, str) else value for value in record])


def decode(row: Sequence[Any]) -> Row:
    """Return the fields that have these columns."""
    if _is_plain(row):
        return (*row,)
    return tuple([restored(value) if isinstance(value, str) else value for value in row])


def of_session(session: SessionRow) -> Row:
    """Return the columns of a session, without its id."""
    return encode((*session[:-1], " ".join(session.recent)))


def as_session(row: Sequence[Any]) -> SessionRow:
    """Return the session that has these columns."""
    *fields, recent = decode(row)
    session = SessionRow(*fields)
    return session._replace(
        covered=bool(session.covered), begun=bool(session.begun), recent=tuple(recent.split())
    )


def as_run(row: Sequence[Any]) -> RunRow:
    """Return the run that has these columns."""
    run = RunRow(*decode(row))
    return run._replace(state=State(run.state), covered=bool(run.covered), held=bool(run.held))


def as_key(row: Sequence[Any]) -> KeyRow:
    """Return the key that has these columns."""
    return KeyRow(*decode(row))


def of_complete(complete: RunComplete) -> Row:
    """Return the columns of a completion that its run does not have already."""
    return encode(complete[3:])


def as_complete(row: Sequence[Any]) -> RunComplete:
    """Return the completion that has these columns."""
    complete = RunComplete(*decode(row))
    return complete._replace(cancelled=bool(complete.cancelled))


def as_known(row: Sequence[Any]) -> Known:
    """Return the run that has these columns: its own, its completion's and its position."""
    run = as_run(row[:_RUN_COLUMNS])
    if run.state is not State.COMPLETE:
        return Known(run, None)
    return Known(run, as_complete(row[_RUN_COLUMNS:-1]), row[-1])


def of_messages(messages: Sequence[Message]) -> list[Row]:
    """Return the columns of messages. The last column names the turn by its assistant message.

    That message is the last of its turn.
    """
    rows: list[Row] = []
    turn = ""
    for message in reversed(messages):
        turn = message.id if message.role == "assistant" else turn
        data = None if message.data is None else json.dumps(message.data)
        rows.append(encode((*message[:-1], data, turn)))
    return rows[::-1]


def as_messages(rows: Sequence[Sequence[Any]]) -> ListOfMessages:
    """Return the messages that have these columns."""
    messages = [Message(*decode(row)) for row in rows]
    return [message._replace(data=decode_json(message.data)) for message in messages]
