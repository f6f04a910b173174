"""Values as the columns of both engines have them, and back."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from turngate._events import RunComplete
from turngate._json import decode
from turngate._lifecycle import State
from turngate._messages import Message
from turngate.durable._rows import KeyRow, Known, RunRow, SessionRow, restored, storable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from turngate._messages import ListOfMessages

_FIELDS: Final = len(RunRow._fields)
_COMPLETE_FIELDS: Final = len(RunComplete._fields)

Row = tuple[Any, ...]


def of_session(row: SessionRow) -> Row:
    """Return the columns of a session, without its id."""
    token, version, next_seq, mark, queued, lead, *rest, recent = row
    return (
        token, version, next_seq, mark, queued, None if lead is None else storable(lead), *rest,
        " ".join(recent),
    )  # fmt: skip


def as_session(row: Sequence[Any]) -> SessionRow:
    """Return a session of its columns."""
    token, version, next_seq, mark, queued, lead, owner, fence, covered, begun, attempts, since, recent = row
    return SessionRow(
        token, version, next_seq, mark, queued, None if lead is None else restored(lead), owner, fence,
        bool(covered), bool(begun), attempts, since, tuple(recent.split()),
    )  # fmt: skip


def of_run(row: RunRow) -> Row:
    """Return the columns of a run that is not complete."""
    return (
        storable(row.run_id), storable(row.session_id), row.seq, row.state._value_, row.when_busy,
        row.covered, row.holder, row.place, storable(row.prompt), storable(row.attachments), row.digest,
    )  # fmt: skip


def as_run(row: Sequence[Any]) -> RunRow:
    """Return a run of its columns."""
    run_id, session_id, seq, state, when_busy, covered, holder, place, prompt, attachments, digest = row
    return RunRow(
        restored(run_id), restored(session_id), seq, State(state), when_busy, bool(covered), holder, place,
        restored(prompt), restored(attachments), digest,
    )  # fmt: skip


def of_key(row: KeyRow) -> tuple[str, ...]:
    """Return the columns of a key."""
    return storable(row.key), row.part, row.request, row.answer, row.step_id


def as_key(row: Sequence[Any]) -> KeyRow:
    """Return the key of these columns."""
    return KeyRow(restored(row[0]), *row[1:])


def of_complete(complete: RunComplete) -> Row:
    """Return the columns of a completion, without those that the run has anyway."""
    error = None if complete.error is None else storable(complete.error)
    folded_into = None if complete.folded_into is None else storable(complete.folded_into)
    return (
        storable(complete.text),
        error,
        complete.cancelled,
        complete.message_id,
        folded_into,
        complete.outcome,
    )


def as_complete(row: Sequence[Any]) -> RunComplete:
    """Return a completion of its columns."""
    session_id, run_id, seq, text, error, cancelled, message_id, folded_into, outcome = row
    return RunComplete(
        restored(session_id),
        restored(run_id),
        seq,
        restored(text),
        None if error is None else restored(error),
        bool(cancelled),
        message_id,
        None if folded_into is None else restored(folded_into),
        outcome,
    )


def as_known(row: Sequence[Any]) -> Known:
    """Return a run of its columns and, behind these, those of its completion, and perhaps its position."""
    run = as_run(row[:_FIELDS])
    if run.state is not State.COMPLETE:
        return Known(run, None)
    completion = row[_FIELDS:]
    position = completion[_COMPLETE_FIELDS] if len(completion) > _COMPLETE_FIELDS else 0
    return Known(run, as_complete(completion[:_COMPLETE_FIELDS]), position)


def of_messages(messages: Sequence[Message]) -> list[Row]:
    """Return the columns of messages; the last names the turn that they are of, by its assistant message.

    That one comes last in a turn.
    """
    rows: list[Row] = []
    turn = ""
    for message in reversed(messages):
        turn = message.id if message.role == "assistant" else turn
        message_id, session_id, run_id, role, text, finish_reason, data = message
        kept = None if data is None else json.dumps(data)
        rows.append((
            message_id, storable(session_id), storable(run_id), role, storable(text), finish_reason, kept,
            turn,
        ))  # fmt: skip
    return rows[::-1]


def as_messages(rows: Sequence[Sequence[Any]]) -> ListOfMessages:
    """Return messages of their columns."""
    return [
        Message(
            message_id, restored(session_id), restored(run_id), role, restored(text), reason, decode(data)
        )
        for message_id, session_id, run_id, role, text, reason, data in rows
    ]
