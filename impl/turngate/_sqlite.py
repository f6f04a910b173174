"""Messages in an SQLite file, written off the event loop."""

from __future__ import annotations

import asyncio
import json
import os
import random
import sqlite3
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turngate._errors import UnknownSchema
from turngate._messages import ListOfMessages, Message
from turngate._prompt import decode, whole_number
from turngate._sqlite_file import OpenedFile, absolute, check_usable, resolved

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

_LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_ALL = 2**63 - 1
"""No limit: the largest number that SQLite can count to."""
_IN_MEMORY = ":memory:"
"""SQLite's name for a database without a file."""

#: The statements that lead from each `user_version` to the next.
_MIGRATIONS = (
    (
        """
        CREATE TABLE messages (
            position INTEGER PRIMARY KEY,
            id TEXT NOT NULL UNIQUE,
            session_id TEXT NOT NULL,
            run_id TEXT NOT NULL,
            role TEXT NOT NULL,
            text TEXT NOT NULL,
            finish_reason TEXT
        )
        """,
        "CREATE INDEX messages_of_session ON messages (session_id, position)",
    ),
    (
        "ALTER TABLE messages ADD COLUMN data TEXT",
        "CREATE INDEX messages_of_run ON messages (run_id, position)",
    ),
)

_PUT = """
    INSERT INTO messages (id, session_id, run_id, role, text, finish_reason, data)
    VALUES (?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (id) DO UPDATE SET
        session_id = excluded.session_id, run_id = excluded.run_id, role = excluded.role,
        text = excluded.text, finish_reason = excluded.finish_reason, data = excluded.data
"""
_LIST = """
    SELECT id, session_id, run_id, role, text, finish_reason, data FROM messages
    WHERE session_id = ? AND position > ? ORDER BY position LIMIT ?
"""
_POSITION = "SELECT position FROM messages WHERE session_id = ? AND id = ?"
_LAST_OF_RUN = "SELECT session_id, position FROM messages WHERE run_id = ? ORDER BY position DESC LIMIT 1"
_TURN_BEGINS = """
    SELECT max(position) FROM messages WHERE session_id = ? AND position < ? AND role = 'assistant'
"""
_TURN_ENDS = """
    SELECT min(position) FROM messages WHERE session_id = ? AND position >= ? AND role = 'assistant'
"""
_TURN = """
    SELECT id, session_id, run_id, role, text, finish_reason, data FROM messages
    WHERE session_id = ? AND position > ? AND position <= ? ORDER BY position
"""


class SqliteMessages:
    """Messages in the file at `path`, in WAL mode, each put one transaction; several processes may share it.

    The file is opened, and brought to the current schema, at the first use. One thread does the work, so
    nothing blocks the event loop. `lock_timeout` is how many seconds another process may hold the file.
    Close it, or use it as a context manager, when the dispatcher is closed.

    The path is made absolute and links are followed. A file with several hard links is refused with OSError.
    If the file is removed or replaced while it is open, every later call is refused too, because what it
    wrote would be gone after a restart. ":memory:" has no file, and forgets everything when it closes.
    """

    _connection: sqlite3.Connection | None = None
    """None until the file is opened, even if the constructor raised."""

    def __init__(self, path: str | Path, *, lock_timeout: float = 5.0) -> None:
        self._given = None if os.fspath(path) == _IN_MEMORY else absolute(path)
        self.path = Path(_IN_MEMORY) if self._given is None else resolved(self._given)
        self._file: OpenedFile | None = None
        self._gone: str | None = None
        """Why nothing can be written or read any more."""
        self._lock_timeout = lock_timeout
        self._closed: Future[None] | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="turngate-sqlite")

    async def put(self, messages: Sequence[Message]) -> None:
        """Write all the messages or none. If the caller is cancelled, they may still be written."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._put, messages)

    async def list(
        self, session_id: str, *, after: str | None = None, limit: int | None = None
    ) -> ListOfMessages:
        """Return the messages of the session, at most `limit`, starting after `after`.

        They are in the order in which they were first put. Raises ValueError if the session has no message
        `after`.
        """
        if limit is not None:
            whole_number("limit", limit, at_least=0)
        return await self._in_thread(self._list, session_id, after, limit)

    async def of_run(self, run_id: str) -> ListOfMessages:
        """Return the messages of the turn that the run was part of."""
        return await self._in_thread(self._of_run, run_id)

    async def _in_thread(self, call: Callable[..., ListOfMessages], *about: object) -> ListOfMessages:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call, *about)

    async def close(self) -> None:
        """Close the file once all messages that were put are written. Idempotent.

        If the caller is cancelled, closing goes on.
        """
        if self._closed is None:
            self._closed = self._thread.submit(self._disconnect)
            self._thread.shutdown(wait=False)
        await asyncio.shield(asyncio.wrap_future(self._closed))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __del__(self) -> None:
        self._disconnect()

    def __repr__(self) -> str:
        return f"SqliteMessages({str(self.path)!r})"

    # In the thread.

    def _put(self, messages: Sequence[Message]) -> None:
        rows = [_encodable((*message[:-1], _as_json(message.data))) for message in messages]
        with self._connected() as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(_PUT, rows)
        self._check_file()

    def _list(self, session_id: str, after: str | None, limit: int | None) -> ListOfMessages:
        behind = 0
        if after is not None:
            found = self._query(_POSITION, session_id, after)
            if not found:
                raise ValueError(f"session {session_id!r} has no message {after!r}")
            behind = found[0][0]
        return _messages(self._query(_LIST, session_id, behind, _ALL if limit is None else min(limit, _ALL)))

    def _of_run(self, run_id: str) -> ListOfMessages:
        """Find the turn of the run: it is written at once, and its assistant message comes last."""
        for session_id, position in self._query(_LAST_OF_RUN, run_id):
            ((begins,),) = self._query(_TURN_BEGINS, session_id, position)
            ((ends,),) = self._query(_TURN_ENDS, session_id, position)
            return _messages(self._query(_TURN, session_id, begins or 0, ends))
        return []

    def _query(self, query: str, *about: object) -> Sequence[tuple[Any, ...]]:
        rows = self._connected().execute(query, _encodable(about)).fetchall()
        self._check_file()
        return [tuple(_decoded(value) for value in row) for row in rows]

    def _connected(self) -> sqlite3.Connection:
        if self._gone is not None:
            raise OSError(self._gone)
        self._check_file()
        if self._connection is None:
            if self._given is not None:
                self.path = resolved(self._given)  # a link may have changed meanwhile
                check_usable(self.path)
            connection = sqlite3.connect(
                self.path, timeout=self._lock_timeout, isolation_level=None, check_same_thread=False
            )
            try:
                _wait_for_lock(_migrate, connection, self._lock_timeout)
                if self._given is not None:
                    self._file = OpenedFile(self._given, self.path)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _check_file(self) -> None:
        """Raise if the path no longer leads to the file that was just written or read."""
        if self._file is not None and (problem := self._file.problem()) is not None:
            self._gone = problem
            self._disconnect()
            raise OSError(problem)

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _as_json(data: object) -> str | None:
    return None if data is None else json.dumps(data)


def _messages(rows: Sequence[tuple[Any, ...]]) -> ListOfMessages:
    return [Message(*row)._replace(data=decode(row[-1])) for row in rows]


def _wait_for_lock(
    call: Callable[[sqlite3.Connection], None], connection: sqlite3.Connection, within: float
) -> None:
    """Call again while another connection holds the file: SQLite does not wait to change the journal mode."""
    deadline = time.monotonic() + within
    while True:
        try:
            return call(connection)
        except sqlite3.OperationalError as exc:
            if exc.sqlite_errorcode & 0xFF not in _LOCKED or time.monotonic() >= deadline:
                raise
        time.sleep(random.uniform(0.001, 0.02))  # noqa: S311 - so that those who wait do not meet again


def _encodable(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the values as SQLite takes them: text with lone surrogates goes in as bytes."""
    return tuple(_encoded(value) if isinstance(value, str) else value for value in values)


def _encoded(text: str) -> str | bytes:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
    return text


def _decoded(value: Any) -> Any:
    return value.decode("utf-8", "surrogatepass") if isinstance(value, bytes) else value


def _migrate(connection: sqlite3.Connection) -> None:
    """Bring the file to the current schema, once, even if others open it at the same time."""
    if _version(connection) < len(_MIGRATIONS):
        connection.execute("PRAGMA journal_mode = WAL")
        with connection:
            connection.execute("BEGIN IMMEDIATE")
            for statements in _MIGRATIONS[_version(connection) :]:
                for statement in statements:
                    connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {len(_MIGRATIONS)}")
    version, known = _version(connection), len(_MIGRATIONS)
    if version > known:
        raise UnknownSchema(
            f"the messages have schema version {version}, and this turngate knows versions up to {known}; "
            "use a newer turngate"
        )


def _version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)
