"""A ledger in an SQLite file, for several processes of one machine."""

from __future__ import annotations

import json
import logging
import os
import random
import secrets
import sqlite3
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from turngate._log import log
from turngate._sqlite_file import OpenedFile, absolute, check_usable, resolved
from turngate.durable._ledger import LeaseLost, LedgerGone, LedgerUnavailable, ReadPoint
from turngate.durable._records import (
    ALL,
    Ask,
    Loaded,
    as_key,
    as_known,
    as_run,
    as_session,
    encode,
    of_complete,
    of_messages,
    of_session,
    restored,
    storable,
)
from turngate.durable._sql import SqlLedger, add_known, migrations, refuse_newer, statements
from turngate.durable._sqlite_relay import LONGEST, Relay
from turngate.durable._sqlite_thread import CommitThread
from turngate.durable._sqlite_workers import DeathWatch, WorkerLock, refuse_shared_file_system, remove_lock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from turngate.durable._records import Changes, Decide, Decision, Row

_SQL: Final = statements("sqlite")
_LOCKED: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_LISTENERS_INTERVAL: Final = 0.1
"""Seconds for which the answer to "does another process listen?" is kept."""
_LOG_PAGES: Final = 4_000
"""The write-ahead log is copied into the file at this many pages, 16 MB, because a run writes many."""


class SqliteLedger(SqlLedger):
    """The sessions in the file at `path`, in WAL mode: for any number of processes on one machine.

    lock_timeout  how many seconds to wait while another process holds the file
    synchronous   "FULL", or "NORMAL", with which a power loss may cost the last commits

    One thread does the work, and steps that wait at the same time share a commit. The death of a process is
    noticed by its file lock.

    The path is made absolute and links are followed, so a later `os.chdir` changes nothing. Opening raises
    LedgerUnavailable for a file with several hard links, for a file that is itself a mount, and on file
    systems that other machines may share. A child process cannot use a ledger that was opened before the
    fork. If the file is removed or replaced while it is open, every later call is refused, because what it
    acknowledged would be gone after a restart.
    """

    def __init__(self, path: str | Path, *, lock_timeout: float = 10.0, synchronous: str = "FULL") -> None:
        if synchronous not in {"FULL", "NORMAL"}:
            raise ValueError(f"synchronous must be FULL or NORMAL, not {synchronous!r}")
        self._given = absolute(path)
        self.path = resolved(self._given)
        self._lock_timeout = lock_timeout
        self._synchronous = synchronous
        self._thread: CommitThread | None = None
        self._file: OpenedFile | None = None
        self._lease = 0.0
        self._locks: dict[int, WorkerLock] = {}
        """The locks of this ledger's own workers."""
        self._watch = DeathWatch()
        self._process = 0
        self._relay = Relay(self.path)
        self._has_listeners = False
        self._has_listeners_until = 0.0

    async def open(self) -> None:
        """Open the file, and migrate it to the current schema."""
        self.path = resolved(self._given)  # a link may have changed meanwhile
        self._relay = Relay(self.path)
        try:
            check_usable(self.path)
        except OSError as exc:
            raise LedgerUnavailable(f"the ledger cannot be opened: {exc}") from exc
        refuse_shared_file_system(self.path)
        self._process = os.getpid()
        thread = self._thread = CommitThread(self._connect, self._problem)
        try:
            await thread.do(lambda connection: None)
        except (sqlite3.Error, OSError) as exc:
            await self.close()
            raise LedgerUnavailable(f"{self.path} cannot be opened: {exc}") from exc
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Finish the jobs that are waiting, and close the file. Idempotent."""
        thread, self._thread = self._thread, None
        self._relay.stop()
        if thread is not None:
            await thread.end()
        for lock in self._locks.values():
            lock.release(remove=False)
        self._locks.clear()

    def __repr__(self) -> str:
        return f"SqliteLedger({str(self.path)!r})"

    def _working(self) -> CommitThread:
        if os.getpid() != self._process and self._process:
            raise LedgerUnavailable(
                "the ledger was opened before this process was forked; open it again here"
            )
        if self._thread is None:
            raise LedgerUnavailable("the ledger is not open")
        return self._thread

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path, timeout=self._lock_timeout, isolation_level=None, check_same_thread=False
        )
        try:
            deadline = time.monotonic() + self._lock_timeout
            while True:
                try:
                    _migrate(connection, self._synchronous)
                    _begin_epoch(connection)
                except sqlite3.OperationalError as exc:
                    # SQLite does not wait to change the journal mode.
                    if exc.sqlite_errorcode & 0xFF not in _LOCKED or time.monotonic() >= deadline:
                        raise
                else:
                    self._file = OpenedFile(self._given, self.path)
                    return connection
                time.sleep(random.uniform(0.001, 0.02))  # noqa: S311 - no secret
        except BaseException:
            connection.close()
            raise

    def _problem(self) -> str | None:
        """Say what has become of the file if it is no longer the one that was opened."""
        assert self._file is not None
        return self._file.problem()

    # Steps.

    def step(self, ask: Ask, decide: Decide) -> Awaitable[Decision]:
        """Load, decide and save in one transaction, during which no other process can write."""
        return self._working().do(lambda connection: _take_step(connection, ask, decide), writes=True)

    async def fetch(self, name: str, *about: object) -> list[Row]:
        """Execute the statements of this name in one transaction; return the rows of the last one."""
        asked = _SQL[name].split(";")
        values = {
            str(n): json.dumps(each) if isinstance(each, list) else each for n, each in enumerate(about, 1)
        }

        def execute(connection: sqlite3.Connection) -> list[Row]:
            rows: list[Row] = []
            for statement in asked:
                rows = connection.execute(statement, values).fetchall()
            return rows

        return await self._working().do(
            execute, writes=any(not each.lstrip().startswith("SELECT") for each in asked)
        )

    async def view(self, session_id: str | None) -> list[Loaded]:
        """Return the session, or every session that has something in flight, all at one moment."""

        def look(connection: sqlite3.Connection) -> list[Loaded]:
            names = [session_id]
            if session_id is None:
                names = [restored(name) for (name,) in connection.execute(_SQL["in_flight"]).fetchall()]
            return [
                _load(connection, Ask(name, 0, "", ALL, with_text=True)) for name in names if name is not None
            ]

        return await self._working().do(look)

    async def read_point(self) -> ReadPoint:
        """Return which positions can be read now: all up to the last one."""
        ((number,),) = await self.fetch("number")
        return ReadPoint(number + 1, number + 1)

    # Workers.

    async def register(self, lease: float) -> int:
        """Return the name of a new worker, which is alive as long as this process."""
        self._working()
        self._lease = lease
        lock = self._new_lock()
        try:
            ((worker,),) = await self.fetch("register", str(lock.name))
        except BaseException as exc:
            # If the caller was cancelled, the row is still written, so its lock must be released.
            lock.release(remove=isinstance(exc, Exception))
            raise
        lock.is_recorded = True
        self._locks[worker] = lock
        return int(worker)

    def _new_lock(self) -> WorkerLock:
        assert self._file is not None
        return WorkerLock(self.path, self._file.id)

    async def retire(self, worker: int) -> None:
        """Declare a worker dead."""
        await self.fetch("retire", worker)
        if (lock := self._locks.pop(worker, None)) is not None:
            lock.release(remove=True)

    def keep_alive(self, worker: int, lease: float, lost: Callable[[int], None]) -> None:
        """Do nothing: the lock lasts as long as the process."""

    async def expire_workers(self) -> None:
        """Find the workers that have died, and remove their rows and lock files."""
        await self._repair_locks()
        assert self._file is not None
        rows = await self.fetch("workers")
        others = {worker: name for worker, name in rows if worker not in self._locks}
        dead = self._watch.dead_of(others, self.path, self._file.id, self._lease)
        for worker, name in dead:
            await self.fetch("expire_worker", worker, name)
            remove_lock(self.path, name)

    async def _repair_locks(self) -> None:
        """Replace the locks of this ledger's workers that other processes cannot see any more."""
        for worker, lock in [*self._locks.items()]:
            if lock.is_recorded and lock.is_in_place():
                continue
            try:
                await self._repair_lock(worker, lock)
            except LedgerGone:
                raise
            except LedgerUnavailable as exc:
                log(
                    logging.ERROR,
                    "the lock file of worker %d is missing and cannot be created again: %s",
                    worker,
                    exc,
                )

    async def _repair_lock(self, worker: int, lock: WorkerLock) -> None:
        if not lock.is_in_place():
            log(
                logging.WARNING,
                "the lock file of worker %d was removed or replaced; making a new one",
                worker,
            )
            new = self._new_lock()
            lock.release(remove=False)
            lock = self._locks[worker] = new
        await self.fetch("rename_worker", str(lock.name), worker)
        lock.is_recorded = True

    def listen(self, wake: Callable[[], None]) -> None:
        """Call `wake` when another process has written."""
        self._working().on_change(wake)

    # What turns stream.

    longest_message = LONGEST

    def has_listeners(self) -> bool:
        """Return whether another process listens, or listened a moment ago."""
        now = time.monotonic()
        if now >= self._has_listeners_until:
            self._has_listeners_until = now + _LISTENERS_INTERVAL
            self._has_listeners = bool(self._relay.others())
        return self._has_listeners

    async def relay(self, messages: Sequence[str]) -> None:
        """Send messages to the processes that listen; they may be lost."""
        self._relay.send(messages)

    def on_relay(self, heard: Callable[[str], None] | None) -> None:
        """Call `heard` with the messages of other processes; None stops that."""
        if heard is None:
            self._relay.stop()
        else:
            self._relay.listen(heard)

    def hint(self, workers: set[int]) -> None:
        """Do nothing: other processes see that the file has changed."""


# In the thread.


def _migrate(connection: sqlite3.Connection, synchronous: str) -> None:
    """Migrate the file to the current schema, one transaction per version, by one of several processes."""
    scripts = migrations("sqlite")
    refuse_newer(_version(connection), len(scripts))
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    connection.execute(f"PRAGMA wal_autocheckpoint = {_LOG_PAGES}")
    if connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):  # new, or restored from a dump
        connection.execute("PRAGMA journal_mode = WAL")
    while _version(connection) < len(scripts):
        with connection:
            connection.execute("BEGIN IMMEDIATE")
            version = _version(connection)  # another process may have been faster
            for script in scripts[version : version + 1]:
                for statement in _split(script):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {version + 1}")
    refuse_newer(_version(connection), len(scripts))


def _begin_epoch(connection: sqlite3.Connection) -> None:
    """Begin an epoch: cursors beyond the end of this file come from a file that is lost."""
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(_SQL["put_epoch"], {"1": secrets.token_hex(6)})


def _version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def _split(script: str) -> list[str]:
    """Return the statements of a script. No two statements may share a line."""
    found: list[str] = []
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            found.append(statement.strip())
            statement = ""
    if statement.strip():
        raise ValueError(f"the script ends within a statement: {statement.strip()[:60]}")
    return found


def _take_step(connection: sqlite3.Connection, ask: Ask, decide: Decide) -> Decision:
    """Load the session, decide, and write; no other process can write meanwhile."""
    last, is_alive = connection.execute(_SQL["begin_step"], {"1": ask.worker}).fetchone()
    number = int(last) + 1
    decision = decide(_load(connection, ask, number), ask.step_id)
    if decision.changes is not None:
        if not is_alive:
            raise LeaseLost(f"worker {ask.worker} counts as dead")
        _save(connection, decision.changes, number)
        decision.position = number
    return decision


def _load(connection: sqlite3.Connection, ask: Ask, fresh: int = 0) -> Loaded:
    query, name = connection.execute, storable(ask.session_id)
    session, runs, owner_lives, text, kept = None, [], False, "", None
    if (row := query(_SQL["session"], (name,)).fetchone()) is not None:
        session, owner_lives = as_session(row[:-1]), bool(row[-1])
        runs = [as_run(each) for each in query(_SQL["runs"], (name, name))]
        if ask.head and session.queued:
            head = query(_SQL["queue"], {"1": name, "2": ask.head})
            runs += [as_run(each) for each in head]
        if ask.with_text and session.owner is not None:
            text, kept = query(_SQL["text"], (name, session.fence)).fetchone() or ("", None)
    row = None if ask.run_id is None else query(_SQL["run"], (storable(ask.run_id),)).fetchone()
    known = None if row is None else as_known(row)
    row = (
        None
        if ask.key is None
        else query(_SQL["key"], dict(zip("12", encode(ask.key), strict=True))).fetchone()
    )
    key = None if row is None else as_key(row)
    runs = add_known(runs, known, ask.session_id)
    now = time.time()
    return Loaded(ask.session_id, session, runs, known, fresh, now, owner_lives, restored(text), kept, key)


def _save(connection: sqlite3.Connection, changes: Changes, number: int) -> None:
    now = time.time()
    session_id = storable(changes.session_id)
    connection.execute(_SQL["put_session"], (session_id, *of_session(changes.after)))
    written: dict[str, list[Row]] = {
        "put_run": [(*encode(row), now) for row in changes.new],
        "move_run": [(*encode(to[1:]), storable(to.run_id)) for to in changes.changed],
        "complete_run": [
            (*of_complete(each), now, number, ordinal, storable(each.run_id))
            for ordinal, each in enumerate(changes.done)
        ],
        "put_message": [(number, place, *row) for place, row in enumerate(of_messages(changes.messages), 1)],
        "put_history": [(number, session_id, json.dumps(changes.entries), now)],
        "put_key": [] if changes.key is None else [(*encode(changes.key), now)],
    }
    for name, rows in written.items():
        if rows:
            count = connection.executemany(_SQL[name], rows).rowcount
            assert count == len(rows), f"{count} of {len(rows)}: {name}"
