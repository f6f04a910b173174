"""What a ledger keeps, as plain values: the rows that a step is decided on, and the rows that it changes.

Both engines, and the double that the checks run on, speak in these. Nothing here does any I/O.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from turngate._events import RunComplete
from turngate._lifecycle import State
from turngate._prompt import Attachment

if TYPE_CHECKING:
    from turngate._messages import Message
    from turngate._prompt import WhenBusy

ALL: Final = -1
"""A head of the queue that is the whole queue."""
REMEMBERED: Final = 32
"""So many of its last steps a session remembers by their ids, for those whose answer was lost."""
_ODD: Final = "\x1b"
"""What begins with this is JSON of a text that a database does not take as it is."""


class SessionRow(NamedTuple):
    """A session at a version.

    `token` is drawn anew whenever the session is: a session that was purged and comes again is another one.
    `queued` counts its queue. Of its turn: `lead` is the run that leads it, `owner` the worker that runs it
    (None: nobody yet), `begun` whether its runner may have been called, `attempts` which attempt it is.
    `fence` is the number of its last owner. `recent` are the ids of the last steps.
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
    """A run; `place` is its place in the turn that it is part of, `holder` the worker that accepted it."""

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


class Known(NamedTuple):
    """A run that was asked for by its id, whichever session it is in, and its completion if it has one.

    `position` is the position of the step that completed it; 0 where it is not complete, or nobody asked.
    """

    row: RunRow
    complete: RunComplete | None
    position: int = 0


class KeyRow(NamedTuple):
    """A request under an idempotency key, and the answer to it as JSON.

    An operation of one step has one row, whose `part` is empty; it is written with the step, whose id it has.
    An operation of several steps has a row with what it is going to do, one `part` for each step, and one for
    its answer.
    """

    key: str
    part: str
    request: str
    answer: str
    step_id: str = ""


class Ask(NamedTuple):
    """What a step needs to see: so much of the queue's head, this run by its id, the text kept so far.

    A run that `is_new` is most likely not known yet. `key` names a row of an idempotency key: key and part.
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
    """A session as a step finds it: its row, its accepted and active runs, and what else was asked for.

    `fresh` is higher than every number that was given out before it in the whole ledger: a fence, and the
    first version of a session. `owner_lives` says whether the owner of the turn is known and alive. `text`
    and `kept` are what the owner has put by of the turn. `now` is the ledger's clock. `key` is the row of the
    key that was asked for, if there is one.
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


class Moved(NamedTuple):
    """What becomes of a run that is on record and goes on."""

    run_id: str
    state: State
    covered: bool
    place: int


class Changes(NamedTuple):
    """What a step writes, all or nothing: only if the session is still at the version that was loaded."""

    session_id: str
    before: SessionRow | None
    after: SessionRow
    new: list[RunRow]
    moved: list[Moved]
    done: list[RunComplete]
    messages: list[Message]
    entries: list[dict[str, Any]]
    key: KeyRow | None = None
    """Written only if there is no such key yet; otherwise nothing is written at all."""


@dataclass
class Decision:
    """What a step has decided: what is to be written, None if nothing is, and what `came_of` it.

    `position` is where the ledger has put it, once it has: those of one session grow from step to step.
    """

    changes: Changes | None
    came_of: Any
    position: int = 0


Decide = Callable[[Loaded, str], Decision]
"""A step: a pure function of the session as it was loaded, saved under the id that it is given.

It may be called again, and in another thread.
"""


def digest_of(session_id: str, prompt: str, attachments: str) -> str:
    """Return what tells a repeated accept from a conflict."""
    payload = json.dumps([session_id, prompt, attachments])
    return hashlib.sha256(payload.encode()).hexdigest()[:32]


def as_json(attachments: tuple[Attachment | str, ...]) -> str:
    """Return attachments as JSON text."""
    return json.dumps([_as_value(attachment) for attachment in attachments]) if attachments else ""


def _as_value(attachment: Attachment | str) -> object:
    if isinstance(attachment, str):
        return attachment
    name, mime_type, content = attachment
    if isinstance(content, str):
        return {"name": name, "mime_type": mime_type, "text": content}
    return {"name": name, "mime_type": mime_type, "base64": base64.b64encode(content).decode()}


def as_attachments(text: str) -> tuple[Attachment | str, ...]:
    """Return the attachments that the JSON text is of."""
    return tuple(_as_attachment(value) for value in json.loads(text)) if text else ()


def _as_attachment(value: Any) -> Attachment | str:
    if isinstance(value, str):
        return value
    content = value["text"] if "text" in value else base64.b64decode(value["base64"])
    return Attachment(value["name"], value["mime_type"], content)


def storable(text: str) -> str:
    """Return the text as any database takes it: one with NUL or half a surrogate pair goes in as JSON."""
    if text.isascii():
        return text if "\0" not in text and not text.startswith(_ODD) else _ODD + json.dumps(text)
    try:
        text.encode()
    except UnicodeEncodeError:
        return _ODD + json.dumps(text)
    return text if "\0" not in text and not text.startswith(_ODD) else _ODD + json.dumps(text)


def restored(text: str) -> str:
    """Return the text that was made storable."""
    if text.startswith(_ODD):
        original: str = json.loads(text[1:])
        return original
    return text
