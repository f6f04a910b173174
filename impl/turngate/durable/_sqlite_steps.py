"""The steps of one transaction on an SQLite file: decided one after another, and written together.

Nobody else writes while a transaction does, so what was saved last needs not be loaded again until another
connection has written, which `PRAGMA data_version` tells. What the steps of a transaction have decided is
written table by table, at its end, or before somebody has to read it.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from turngate.durable import _sqlite_schema as sql
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
from turngate.durable._recent import Recent
from turngate.durable._rows import Loaded, restored, storable

if TYPE_CHECKING:
    import sqlite3

    from turngate.durable._rows import Ask, Changes, Decide, Decision, KeyRow, Known, RunRow


class Steps:
    """What the steps of this process know and have not written yet; belongs to the thread."""

    def __init__(self, *, history: bool) -> None:
        self._history = history
        self._recent = Recent()
        self._lives: set[int] = set()
        self._number: int | None = None
        self.data_version: int | None = None
        """Changes when another connection has written; as of the last transaction that may write."""
        self._written = 0
        self._past = _Past()
        self._sessions: dict[str, tuple[Any, ...]] = {}
        self._new: dict[str, tuple[Any, ...]] = {}
        self._moved: dict[str, tuple[Any, ...]] = {}
        self._done: list[tuple[Any, ...]] = []
        self._said: list[tuple[Any, ...]] = []
        self._told: list[tuple[Any, ...]] = []
        self._keys: dict[tuple[str, str], tuple[Any, ...]] = {}

    def begin(self, connection: sqlite3.Connection) -> None:
        """Take note that a transaction has begun that may write."""
        self._written = 0
        version = data_version(connection)
        if version != self.data_version:
            self.forget()
            self.data_version = version

    def is_restored(self, connection: sqlite3.Connection) -> bool:
        """Say whether an older ledger was written into the file since the last transaction."""
        return self._past.is_lost(connection)

    def committed(self) -> None:
        """Take note that what was written is in the file."""
        self._past.reached = max(self._past.reached, self._written)

    def forget(self) -> None:
        """Know nothing any more: somebody else has written, or what was decided is not in the file."""
        self._recent.clear()
        self._lives.clear()
        self._number = None
        for unwritten in (
            self._sessions, self._new, self._moved, self._done, self._said, self._told, self._keys
        ):  # fmt: skip
            unwritten.clear()

    def step(self, connection: sqlite3.Connection, ask: Ask, decide: Decide) -> Decision:
        """Decide a step; what it raises leaves nothing behind."""
        if self._number is None:
            self._number = last_number(connection)
        number = self._number + 1
        loaded = self._load(connection, ask, number)
        if ask.key is not None:
            if ask.key in self._keys:
                self.write(connection)
            loaded = loaded._replace(key=find_key(connection, *ask.key))
        decision = decide(loaded, ask.step_id)
        changes = decision.changes
        if changes is not None:
            if ask.worker not in self._lives:
                if not connection.execute(sql.LIVES, (ask.worker,)).fetchone()[0]:
                    raise LeaseLost(f"worker {ask.worker} counts as dead")
                self._lives.add(ask.worker)
            self._number = decision.position = number
            self._note(changes, number)
            self._recent.keep(loaded, changes)
        return decision

    def _load(self, connection: sqlite3.Connection, ask: Ask, number: int) -> Loaded:
        loaded = self._recent.recall(ask, number, time.time())
        if loaded is not None and (loaded.known is not None or ask.run_id is None):
            return loaded
        name = None if ask.run_id is None else storable(ask.run_id)
        if name in self._new or (loaded is None and storable(ask.session_id) in self._sessions):
            self.write(connection)
        if loaded is None or connection.execute(sql.IS_KNOWN, (name,)).fetchone():
            return load(connection, ask, number)
        return loaded

    def _note(self, changes: Changes, number: int) -> None:
        session_id, now = storable(changes.session_id), time.time()
        self._sessions[session_id] = (session_id, *of_session(changes.after))
        for row in changes.new:
            columns = of_run(row)
            self._new[columns[0]] = (*columns, now)
        for run_id, state, covered, place in changes.moved:
            name = storable(run_id)
            self._moved[name] = (state.value, covered, place, name)
        self._done += [
            (*of_complete(done), now, number, ordinal, storable(done.run_id))
            for ordinal, done in enumerate(changes.done)
        ]
        first = number * sql.STEP
        self._said += [(first + n, *columns) for n, columns in enumerate(of_messages(changes.messages), 1)]
        if self._history:
            self._told.append((number, session_id, json.dumps(changes.entries), now))
        if changes.key is not None:
            self._keys[changes.key[:2]] = (*of_key(changes.key), now)

    def write(self, connection: sqlite3.Connection) -> None:
        """Write what the steps have decided."""
        if not self._sessions:
            return
        cursor = connection.cursor()
        many = cursor.executemany
        if not self._history:
            cursor.execute(sql.KEEP_NUMBER, (self._number,))
        many(sql.PUT_SESSION, self._sessions.values())
        for statement, rows in (
            (sql.PUT_RUN, self._new.values()),
            (sql.MOVE_RUN, self._moved.values()),
            (sql.COMPLETE_RUN, self._done),
            (sql.PUT_MESSAGE, self._said),
            (sql.PUT_HISTORY, self._told),
            (sql.PUT_KEY, self._keys.values()),
        ):
            if rows:
                written = many(statement, rows)
                assert written.rowcount == len(rows), f"{written.rowcount} of {len(rows)}: {statement}"
        self._written = self._number or 0
        for each in (
            self._sessions, self._new, self._moved, self._done, self._said, self._told, self._keys
        ):  # fmt: skip
            each.clear()


class _Past:
    """What this process has seen of the ledger, and what must still be there: numbers never go back.

    reached  the last number that was seen
    """

    def __init__(self) -> None:
        self.reached = 0
        self._epoch: tuple[int, str] = (0, "")
        self._data_version: int | None = None

    def is_lost(self, connection: sqlite3.Connection) -> bool:
        """Say whether something that was seen is gone; looks only when another connection has written."""
        version = data_version(connection)
        if version == self._data_version:
            return False
        number = last_number(connection)
        if self._data_version is not None:
            about = (self._epoch[1], *self._epoch[:1] * 2, self.reached)
            if number < self.reached or not connection.execute(sql.GOES_ON, about).fetchone()[0]:
                return True
        self._epoch = connection.execute(sql.LAST_EPOCH).fetchone()
        self._data_version, self.reached = version, number
        return False


def load(connection: sqlite3.Connection, ask: Ask, fresh: int) -> Loaded:
    """Return the session as it is in the file."""
    query = connection.execute
    session_id = storable(ask.session_id)
    row = query(sql.SESSION, (session_id,)).fetchone()
    session = None if row is None else as_session(row)
    runs: list[RunRow] = []
    if session is not None:
        runs += [as_run(each) for each in query(sql.RUNS, {"session_id": session_id})]
        if ask.head and session.queued:
            runs += [as_run(each) for each in query(sql.QUEUE, (session_id, ask.head))]
    known = None
    if ask.run_id is not None and (known := find(connection, storable(ask.run_id))) is not None:
        missing = known.row.run_id not in {each.run_id for each in runs}
        if known.complete is None and known.row.session_id == ask.session_id and missing:
            runs.append(known.row)
    text: tuple[str, str | None] | None = None
    lives = False
    if session is not None and session.owner is not None:
        lives = bool(query(sql.LIVES, (session.owner,)).fetchone()[0])
        if ask.with_text:
            text = query(sql.TEXT, (session_id, session.fence)).fetchone()
    text = text or ("", None)
    return Loaded(ask.session_id, session, runs, known, fresh, time.time(), lives, restored(text[0]), text[1])


def last_number(connection: sqlite3.Connection) -> int:
    """Return the number of the last step."""
    return int(connection.execute(sql.NUMBER).fetchone()[0])


def find(connection: sqlite3.Connection, name: str) -> Known | None:
    """Return the run of this name as columns have it, None if there is none."""
    found = connection.execute(sql.KNOWN, (name,)).fetchone()
    return None if found is None else as_known(found)


def find_key(connection: sqlite3.Connection, key: str, part: str) -> KeyRow | None:
    """Return the row of an idempotency key, None if it has none."""
    found = connection.execute(sql.KEY, (storable(key), part)).fetchone()
    return None if found is None else as_key(found)


def data_version(connection: sqlite3.Connection) -> int:
    """Return a number that changes when another connection has written."""
    return int(connection.execute("PRAGMA data_version").fetchone()[0])
