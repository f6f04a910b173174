"""Messages in an SQLite file, written off the event loop."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turngate._errors import UnknownSchema
from turngate._messages import ListOfMessages, Message

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

_LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)

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
)

_PUT = """
    INSERT INTO messages (id, session_id, run_id, role, text, finish_reason) VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (id) DO UPDATE SET
        session_id = excluded.session_id, run_id = excluded.run_id, role = excluded.role,
        text = excluded.text, finish_reason = excluded.finish_reason
"""
_LIST = """
    SELECT id, session_id, run_id, role, text, finish_reason FROM messages
    WHERE session_id = ? ORDER BY position
"""


class SqliteMessages:
    """Messages in the file at `path`, in WAL mode, each put one transaction; several processes may share it.

    The file is opened, and brought to the current schema, at the first use. One thread does the work, so
    nothing blocks the event loop. `lock_timeout` is how many seconds another process may hold the file.
    Close it, or use it as a context manager, when the dispatcher is closed.
    """

    def __init__(self, path: str | Path, *, lock_timeout: float = 5.0) -> None:
        self._connection: sqlite3.Connection | None = None
        self.path = Path(path)
        self._lock_timeout = lock_timeout
        self._closed: Future[None] | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="turngate-sqlite")

    async def put(self, messages: Sequence[Message]) -> None:
        """Write all the messages or none. When cancelled while waiting, they may still be written."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._put, messages)

    async def list(self, session_id: str) -> ListOfMessages:
        """Return the messages of the session in the order in which they were first put."""
        rows = await asyncio.get_running_loop().run_in_executor(self._thread, self._rows, session_id)
        return [Message(*row) for row in rows]

    async def close(self) -> None:
        """Close the file when everything that was put is written. Idempotent.

        When cancelled while waiting, closing goes on.
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
        rows = [_encodable(message) for message in messages]
        with self._connected() as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(_PUT, rows)

    def _rows(self, session_id: str) -> Sequence[tuple[Any, ...]]:
        rows = self._connected().execute(_LIST, _encodable((session_id,))).fetchall()
        return [tuple(_decoded(value) for value in row) for row in rows]

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            connection = sqlite3.connect(
                self.path, timeout=self._lock_timeout, isolation_level=None, check_same_thread=False
            )
            try:
                _wait_for_lock(_migrate, connection, self._lock_timeout)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _wait_for_lock(
    call: Callable[[sqlite3.Connection], None], connection: sqlite3.Connection, within: float
) -> None:
    """Call again while somebody else holds the file: SQLite does not wait to change the journal mode."""
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
    """Bring the file to the current schema, once, whoever else opens it at the same time."""
    if _version(connection) < len(_MIGRATIONS):
        connection.execute("PRAGMA journal_mode = WAL")
        with connection:
            connection.execute("BEGIN IMMEDIATE")
            for statements in _MIGRATIONS[_version(connection) :]:
                for statement in statements:
                    connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {len(_MIGRATIONS)}")
    if _version(connection) > len(_MIGRATIONS):
        raise UnknownSchema(
            f"the messages are of schema {_version(connection)}; this turngate knows {len(_MIGRATIONS)}"
        )


def _version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)
