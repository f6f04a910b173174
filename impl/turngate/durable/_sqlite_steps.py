"""One step on an SQLite file, within a transaction: load the session, decide, write."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from turngate.durable import _sqlite_statements as sql
from turngate.durable._columns import (
    as_key,
    as_known,
    as_run,
    as_session,
    of_complete,
    of_key,
    of_messages,
    of_run,
    of_session,
)
from turngate.durable._ledger import LeaseLost
from turngate.durable._rows import Loaded, restored, storable

if TYPE_CHECKING:
    import sqlite3

    from turngate.durable._columns import Row
    from turngate.durable._rows import Ask, Changes, Decide, Decision, KeyRow, Known


def take_step(connection: sqlite3.Connection, ask: Ask, decide: Decide, *, history: bool) -> Decision:
    """Load the session, decide, and write; nobody else can write meanwhile."""
    number = last_number(connection) + 1
    decision = decide(load(connection, ask, number), ask.step_id)
    if decision.changes is not None:
        if not _is_alive(connection, ask.worker):
            raise LeaseLost(f"worker {ask.worker} counts as dead")
        _save(connection, decision.changes, number, history=history)
        decision.position = number
    return decision


def load(connection: sqlite3.Connection, ask: Ask, fresh: int) -> Loaded:
    """Return the session as it is in the file."""
    query = connection.execute
    session_id = storable(ask.session_id)
    row = query(sql.SESSION, (session_id,)).fetchone()
    session = None if row is None else as_session(row)
    runs = []
    is_alive, text, kept = False, "", None
    if session is not None:
        runs = [as_run(each) for each in query(sql.RUNS, {"session_id": session_id})]
        if ask.head and session.queued:
            runs += [as_run(each) for each in query(sql.QUEUE, (session_id, ask.head))]
        is_alive = session.owner is not None and _is_alive(connection, session.owner)
        if ask.with_text and session.owner is not None:
            text, kept = query(sql.TEXT, (session_id, session.fence)).fetchone() or ("", None)
    known = None if ask.run_id is None else find_run(connection, ask.run_id)
    if known is not None and known.complete is None and known.row.session_id == ask.session_id:
        runs += [] if any(each.run_id == ask.run_id for each in runs) else [known.row]
    key = None if ask.key is None else find_key(connection, *ask.key)
    return Loaded(
        ask.session_id, session, runs, known, fresh, time.time(), is_alive, restored(text), kept, key
    )


def _save(connection: sqlite3.Connection, changes: Changes, number: int, *, history: bool) -> None:
    now = time.time()
    session_id = storable(changes.session_id)
    if not history:
        connection.execute(sql.KEEP_NUMBER, (number,))
    connection.execute(sql.PUT_SESSION, (session_id, *of_session(changes.after)))
    written: list[tuple[str, list[Row]]] = [
        (sql.PUT_RUN, [(*of_run(row), now) for row in changes.new]),
        (sql.MOVE_RUN, [(to.state.value, to.covered, to.place, storable(to.run_id)) for to in changes.moved]),
        (
            sql.COMPLETE_RUN,
            [
                (*of_complete(done), now, number, ordinal, storable(done.run_id))
                for ordinal, done in enumerate(changes.done)
            ],
        ),
        (
            sql.PUT_MESSAGE,
            [(number * sql.STEP + n, *columns) for n, columns in enumerate(of_messages(changes.messages), 1)],
        ),
        (sql.PUT_HISTORY, [(number, session_id, json.dumps(changes.entries), now)] if history else []),
        (sql.PUT_KEY, [] if changes.key is None else [(*of_key(changes.key), now)]),
    ]
    for statement, rows in written:
        if rows:
            count = connection.executemany(statement, rows).rowcount
            assert count == len(rows), f"{count} of {len(rows)}: {statement}"


def last_number(connection: sqlite3.Connection) -> int:
    """Return the number of the last step."""
    return int(connection.execute(sql.NUMBER).fetchone()[0])


def find_run(connection: sqlite3.Connection, run_id: str) -> Known | None:
    """Return the run of this id, None if there is none."""
    found = connection.execute(sql.KNOWN, (storable(run_id),)).fetchone()
    return None if found is None else as_known(found)


def find_key(connection: sqlite3.Connection, key: str, part: str) -> KeyRow | None:
    """Return the row of an idempotency key, None if it has none."""
    found = connection.execute(sql.KEY, (storable(key), part)).fetchone()
    return None if found is None else as_key(found)


def _is_alive(connection: sqlite3.Connection, worker: int) -> bool:
    return connection.execute(sql.LIVES, (worker,)).fetchone() is not None
