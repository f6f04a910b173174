"""A ledger in an SQLite file, for several processes of one machine."""

from __future__ import annotations

import json
import logging
import math
import os
import random
import secrets
import sqlite3
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from turngate._guard import say
from turngate._sqlite_file import OpenedFile, absolute, check_usable, resolved
from turngate.durable import _sqlite_statements as sql
from turngate.durable._columns import as_complete, as_messages, of_key
from turngate.durable._ledger import (
    Debts,
    Finished,
    LedgerGone,
    LedgerUnavailable,
    Mine,
    Moment,
    NotStorable,
    Told,
)
from turngate.durable._migrations import migrations, refuse_newer, statements
from turngate.durable._purge import SLICE, PastRun, PastStep, Phase
from turngate.durable._rows import ALL, Ask, Known, Loaded, restored, storable
from turngate.durable._sqlite_relay import LONGEST, Relay
from turngate.durable._sqlite_steps import find_key, find_run, last_number, load, take_step
from turngate.durable._sqlite_thread import CommitThread
from turngate.durable._sqlite_workers import WorkerLock, forget, patience, refuse_shared_file_system

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from turngate._messages import ListOfMessages
    from turngate.durable._ledger import Checkpoint, Place
    from turngate.durable._purge import Purge
    from turngate.durable._rows import Decide, Decision, KeyRow

_LOCKED: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_LOOKS_FOR_EARS: Final = 0.1
_AT_ONCE: Final = 50
"""So many debts are taken up at a time."""
_PAGES: Final = 4_000
"""So long the write-ahead log grows, 16 MB, before it is copied into the file: a run writes many pages."""


class _OutOfSight:
    """A worker that may be dead, and for how long that has been so."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._waited = 0.0
        self._last = time.monotonic()

    def wait(self, limit: float) -> float:
        """Return how many seconds were waited in all.

        A pause between two looks counts for a quarter of the limit at most: if this process was stopped, the
        other one may have been stopped with it, and had no time to come back.
        """
        now = time.monotonic()
        self._waited += min(now - self._last, limit / 4)
        self._last = now
        return self._waited


class SqliteLedger:
    """The sessions in the file at `path`, in WAL mode: for any number of processes on one machine.

    One thread does the work; steps that come together share a commit. A process that dies is noticed by its
    file lock. `history` says whether every decision is kept, for `turngate trace` and for subscribers to
    moves; `lock_timeout` is how many seconds another process may hold the file; with `synchronous="NORMAL"` a
    loss of power may cost the last commits.

    The path is made absolute and links are followed, so it does not matter how it is spelled, and a later
    `os.chdir` changes nothing. Opening refuses, with LedgerUnavailable: a file with several hard links, a
    file that is a mount of its own, and file systems that other machines may share. A ledger that was opened
    before a fork is refused in the child. When the file is removed or replaced while it is open, everything
    from then on is refused: what was acknowledged would be gone after a restart.
    """

    def __init__(
        self, path: str | Path, *, history: bool = True, lock_timeout: float = 10.0, synchronous: str = "FULL"
    ) -> None:
        if synchronous not in {"FULL", "NORMAL"}:
            raise ValueError(f"synchronous must be FULL or NORMAL, not {synchronous!r}")
        self._given = absolute(path)
        self.path = resolved(self._given)
        self.history = history
        self._lock_timeout = lock_timeout
        self._synchronous = synchronous
        self._thread: CommitThread | None = None
        self._file: OpenedFile | None = None
        self._lease = 0.0
        self._locks: dict[int, WorkerLock] = {}
        """The locks of the workers of this ledger object."""
        self._out_of_sight: dict[int, _OutOfSight] = {}
        """Workers of which it is not clear whether they live."""
        self._process = 0
        self._relay = Relay(self.path)
        self._look_for_ears_at = 0.0
        self._has_ears = False

    async def open(self) -> None:
        """Open the file, and bring it to the current schema."""
        self.path = resolved(self._given)  # a link may have been changed since
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
        """Finish what is waiting, and close the file. Idempotent."""
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
                "the ledger was opened before this process was forked off; open another one"
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
                time.sleep(random.uniform(0.001, 0.02))  # noqa: S311 - so that those who wait do not meet again
        except BaseException:
            connection.close()
            raise

    def _problem(self) -> str | None:
        """Say what has become of the file if it is no longer the one that was opened; for the thread."""
        assert self._file is not None
        return self._file.problem()

    # Steps.

    def step(self, ask: Ask, decide: Decide) -> Awaitable[Decision]:
        """Load, decide and save in one transaction: nobody can be faster."""
        return self._working().do(
            lambda connection: take_step(connection, ask, decide, history=self.history), writes=True
        )

    # Who lives.

    async def register(self, lease: float) -> int:
        """Return the name of a new worker, which lives as long as this process."""
        thread = self._working()
        self._lease = lease
        lock = self._new_lock()
        try:
            worker = await thread.do(
                lambda connection: (
                    connection.execute("INSERT INTO worker (name) VALUES (?)", (str(lock.name),)).lastrowid
                ),
                writes=True,
            )
        except BaseException as exc:
            # A job whose caller is cancelled is still done. Then there is a row, and its lock must be free.
            lock.release(remove=isinstance(exc, Exception))
            raise
        assert worker is not None
        lock.is_recorded = True
        self._locks[worker] = lock
        return worker

    def _new_lock(self) -> WorkerLock:
        assert self._file is not None
        return WorkerLock(self.path, self._file.id)

    async def retire(self, worker: int) -> None:
        """Have a worker count as dead."""
        await self._working().do(
            lambda connection: connection.execute("DELETE FROM worker WHERE worker = ?", (worker,)),
            writes=True,
        )
        if (lock := self._locks.pop(worker, None)) is not None:
            lock.release(remove=True)

    def keep_alive(self, worker: int, lease: float, lost: Callable[[int], None]) -> None:
        """Do nothing: the lock holds as long as the process."""

    async def bury(self) -> None:
        """Find the workers that have died, and remove what is left of them; see `_sqlite_workers`."""
        thread = self._working()
        await self._repair_locks()
        rows: list[tuple[int, str]] = await thread.do(
            lambda connection: connection.execute("SELECT worker, name FROM worker").fetchall()
        )
        dead = self._dead_of(rows)
        if dead:
            # A worker that has made a new lock meanwhile has another name.
            await thread.do(
                lambda connection: connection.executemany(
                    "DELETE FROM worker WHERE worker = ? AND name = ?", dead
                ),
                writes=True,
            )
        for _, name in dead:
            forget(self.path, name)

    def _dead_of(self, rows: list[tuple[int, str]]) -> list[tuple[int, str]]:
        """Return those of the workers that are dead; never one of this ledger object."""
        assert self._file is not None
        dead: list[tuple[int, str]] = []
        unclear: dict[int, _OutOfSight] = {}
        for worker, name in rows:
            if worker in self._locks:
                continue
            limit = patience(self.path, self._file.id, name, self._lease)
            if limit == math.inf:
                continue
            seen = self._out_of_sight.get(worker)
            if seen is None or seen.name != name:
                seen = _OutOfSight(name)
            if seen.wait(limit) >= limit:
                dead.append((worker, name))
            else:
                unclear[worker] = seen
        self._out_of_sight = unclear
        return dead

    async def _repair_locks(self) -> None:
        """Make new locks in the place of those that others cannot see any more."""
        for worker, lock in [*self._locks.items()]:
            if lock.is_recorded and lock.is_in_place():
                continue
            try:
                await self._repair_lock(worker, lock)
            except LedgerGone:
                raise
            except LedgerUnavailable as exc:
                say(
                    logging.ERROR,
                    "the lock file of worker %d is gone and cannot be made anew: %s",
                    worker,
                    exc,
                )

    async def _repair_lock(self, worker: int, lock: WorkerLock) -> None:
        if not lock.is_in_place():
            say(
                logging.WARNING, "the lock file of worker %d was removed or replaced; it is made anew", worker
            )
            fresh = self._new_lock()
            lock.release(remove=False)
            lock = self._locks[worker] = fresh
        await self._working().do(
            lambda connection: connection.execute(
                "UPDATE worker SET name = ? WHERE worker = ?", (str(lock.name), worker)
            ),
            writes=True,
        )
        lock.is_recorded = True

    async def debts(self, enter_timeout: float) -> Debts:
        """Return some of what is owed by the dead, and what was not entered for so many seconds."""
        late = time.time() - enter_timeout

        def look(connection: sqlite3.Connection) -> Debts:
            query = connection.execute
            return Debts(
                [restored(session) for (session,) in query(sql.DEAD, (_AT_ONCE,))],
                [restored(session) for (session,) in query(sql.UNOWNED, (_AT_ONCE,))],
                [(restored(s), restored(r)) for s, r in query(sql.UNENTERED, (late, _AT_ONCE))],
            )

        return await self._working().do(look)

    async def mine(self, worker: int) -> list[Mine]:
        """Return the turns that belong to the worker."""
        rows = await self._query(sql.MINE, worker)
        return [
            Mine(restored(session), fence, bool(covered), version)
            for session, fence, covered, version in rows
        ]

    # Looking on.

    async def find(self, run_ids: Sequence[str]) -> list[Known]:
        """Return those of the runs that are known."""

        def look(connection: sqlite3.Connection) -> list[Known]:
            found = [find_run(connection, run_id) for run_id in run_ids]
            return [each for each in found if each is not None]

        return await self._working().do(look)

    async def view(self, session_id: str | None) -> list[Loaded]:
        """Return the session, or every session that has something in flight, all at one moment."""

        def look(connection: sqlite3.Connection) -> list[Loaded]:
            if session_id is not None:
                return [_view(connection, session_id)]
            return [
                _view(connection, restored(each)) for (each,) in connection.execute(sql.IN_FLIGHT).fetchall()
            ]

        return await self._working().do(look)

    async def name(self) -> str:
        """Return the name of the epoch, by which its cursors are told from those of another."""
        ((name,),) = await self._query(sql.EPOCH)
        return str(name)

    async def end_of(self, name: str) -> int | None:
        """Return the position that no cursor of the epoch reaches; None if there is no such epoch."""

        def look(connection: sqlite3.Connection) -> int | None:
            found = connection.execute(sql.END_OF, (name,)).fetchone()
            return None if found is None else int(found[0] or last_number(connection) + 1)

        return await self._working().do(look)

    async def moment(self) -> Moment:
        """Return what there is to be read now: everything up to the last position."""
        number = await self._working().do(last_number)
        return Moment(number + 1, number + 1)

    async def finished(self, after: Place, limit: int) -> tuple[Place, int, list[Finished]]:
        """Return the last that was purged, the horizon, and the next completions below it, in order."""

        def look(connection: sqlite3.Connection) -> tuple[Place, int, list[Finished]]:
            number = last_number(connection)
            purged = connection.execute("SELECT purged, purged_ordinal FROM meta").fetchone()
            rows = connection.execute(sql.FINISHED, (*after, limit)).fetchall()
            return purged, number + 1, [Finished(row[0], row[1], as_complete(row[2:])) for row in rows]

        return await self._working().do(look)

    async def told(self, after: Place, limit: int) -> tuple[Place, int, list[Told]]:
        """Return the last that was purged, the horizon, and the decisions of the next steps, in order."""

        def look(connection: sqlite3.Connection) -> tuple[Place, int, list[Told]]:
            number = last_number(connection)
            ((forgotten,),) = connection.execute("SELECT forgotten FROM meta")
            rows = connection.execute(sql.TOLD, (after[0], limit)).fetchall()
            steps = [Told(row[0], 0, restored(row[1]), json.loads(row[2])) for row in rows]
            return (forgotten, 0), number + 1, steps

        return await self._working().do(look)

    async def _query(self, query: str, *about: object) -> list[tuple[Any, ...]]:
        return await self._working().do(lambda connection: connection.execute(query, about).fetchall())

    # Beside the steps.

    async def checkpoint(self, checkpoints: Sequence[Checkpoint]) -> None:
        """Put by what turns have written so far."""
        rows = [(storable(c.session_id), c.fence, storable(c.text), c.kept) for c in checkpoints]
        try:
            await self._working().do(
                lambda connection: connection.executemany(sql.PUT_CHECKPOINT, rows), writes=True
            )
        except NotStorable:
            for each in checkpoints if len(checkpoints) > 1 else ():
                await self.checkpoint([each])

    async def find_key(self, key: str, part: str = "") -> KeyRow | None:
        """Return the row of an idempotency key, None if it has none."""
        return await self._working().do(lambda connection: find_key(connection, key, part))

    async def keep_key(self, row: KeyRow) -> KeyRow:
        """Write the row unless the key has one, and return the row that it has."""

        def keep(connection: sqlite3.Connection) -> KeyRow:
            connection.execute(sql.KEEP_KEY, (*of_key(row), time.time()))
            kept = find_key(connection, row.key, row.part)
            assert kept is not None
            return kept

        return await self._working().do(keep, writes=True)

    async def expire_keys(self, age: float, limit: int) -> int:
        """Forget at most `limit` keys that are older than so many seconds; return how many it was."""
        before = time.time() - age
        if not await self._query(sql.HAS_OLD_KEYS, before):
            return 0  # without taking the file's lock
        return await self._working().do(
            lambda connection: connection.execute(sql.EXPIRE_KEYS, (before, limit)).rowcount, writes=True
        )

    async def messages(self, session_id: str, after: str | None, limit: int | None) -> ListOfMessages:
        """Return messages of the session; ValueError if it has no message `after`."""
        session = storable(session_id)
        behind = 0
        if after is not None:
            found = await self._query(sql.MESSAGE_AT, session, storable(after))
            if not found:
                raise ValueError(f"session {session_id!r} has no message {after!r}")
            behind = found[0][0]
        rows = await self._query(sql.MESSAGES, session, behind, -1 if limit is None else limit)
        return as_messages(rows)

    async def messages_of(self, run_id: str) -> ListOfMessages:
        """Return the messages of the turn that the run was part of."""
        return as_messages(await self._query(sql.MESSAGES_OF, storable(run_id)))

    async def purge(self, purge: Purge) -> int:
        """Take the next slice of a purge; return how many runs are gone."""
        match purge.phase:
            case Phase.RUNS:
                return await self._purge_runs(purge)
            case Phase.SESSIONS:
                await self._purge_sessions(purge)
            case Phase.HISTORY:
                await self._purge_history(purge)
            case Phase.REST:
                await self._working().do(
                    lambda connection: [connection.execute(each) for each in sql.PURGE_REST], writes=True
                )
                purge.next_phase()
        return 0

    async def _purge_runs(self, purge: Purge) -> int:
        if purge.is_new:
            purge.keep(
                [(row[0], bool(row[1])) for row in await self._query(sql.PURGE_IN_FLIGHT, purge.before)]
            )
        rows = await self._query(sql.PURGE_LOOK, purge.before, purge.before, *purge.after, SLICE)
        looked_at, gone = purge.slice([PastRun(*row) for row in rows])

        def forget_them(connection: sqlite3.Connection) -> int:
            many, (position, ordinal, *_) = connection.executemany, gone[-1]
            turns = {(each.position, each.message_id) for each in gone if each.message_id is not None}
            many(sql.PURGE_MESSAGES, [(at * sql.STEP, (at + 1) * sql.STEP - 1, turn) for at, turn in turns])
            deleted = many(sql.PURGE_RUNS, [(each.run_id, each.position) for each in gone])
            connection.execute(sql.PURGED, {"position": position, "ordinal": ordinal})
            return deleted.rowcount

        count = await self._working().do(forget_them, writes=True) if gone else 0
        purge.looked_at(looked_at)
        if not rows:
            purge.next_phase()
        return count

    async def _purge_sessions(self, purge: Purge) -> None:
        rows = await self._query(sql.PURGE_LOOK_AT_SESSIONS, purge.name, SLICE)
        quiet = [row for row in rows if row[0] not in purge.kept]

        def forget_them(connection: sqlite3.Connection) -> None:
            new = {row[0] for row in connection.execute(sql.PURGE_NEW_RUNS, (purge.after[0],))}
            connection.executemany(sql.PURGE_SESSIONS, [row for row in quiet if row[0] not in new])

        if quiet:
            await self._working().do(forget_them, writes=True)
        if rows:
            purge.name = rows[-1][0]
        else:
            purge.next_phase()

    async def _purge_history(self, purge: Purge) -> None:
        rows = [PastStep(*row) for row in await self._query(sql.PURGE_LOOK_AT_HISTORY, purge.after[0], SLICE)]
        gone = [(each.position,) for each in rows if purge.forgets(each)]

        def forget_them(connection: sqlite3.Connection) -> None:
            connection.execute(sql.KEEP_NUMBER, (last_number(connection),))
            connection.executemany("DELETE FROM history WHERE position = ?", gone)
            connection.execute("UPDATE meta SET forgotten = max(forgotten, ?)", gone[-1])

        if gone:
            await self._working().do(forget_them, writes=True)
        if rows and not purge.is_past(rows):
            purge.after = rows[-1][:2]
        else:
            purge.next_phase()

    def listen(self, wake: Callable[[], None]) -> None:
        """Call `wake` when another process has written."""
        self._working().on_change(wake)

    # What turns stream.

    longest_message = LONGEST

    def is_overheard(self) -> bool:
        """Say whether another process listens, or did a moment ago."""
        now = time.monotonic()
        if now >= self._look_for_ears_at:
            self._look_for_ears_at, self._has_ears = now + _LOOKS_FOR_EARS, bool(self._relay.others())
        return self._has_ears

    async def relay(self, messages: Sequence[str]) -> None:
        """Say something to the processes that listen; it may be lost."""
        self._relay.say(messages)

    def overhear(self, heard: Callable[[str], None] | None) -> None:
        """Listen to what other processes say, or no longer."""
        if heard is None:
            self._relay.stop()
        else:
            self._relay.hear(heard)

    def hint(self, workers: set[int]) -> None:
        """Do nothing: whoever listens sees that the file has changed."""


# In the thread.


def _migrate(connection: sqlite3.Connection, synchronous: str) -> None:
    """Bring the file to the current schema: one transaction per version, made by one of several processes."""
    scripts = migrations("sqlite")
    refuse_newer(_version(connection), len(scripts))
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    connection.execute(f"PRAGMA wal_autocheckpoint = {_PAGES}")
    if connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):  # new, or restored from a dump
        connection.execute("PRAGMA journal_mode = WAL")
    while _version(connection) < len(scripts):
        with connection:
            connection.execute("BEGIN IMMEDIATE")
            version = _version(connection)  # another process may have been faster
            for script in scripts[version : version + 1]:
                for statement in statements(script):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {version + 1}")
    refuse_newer(_version(connection), len(scripts))


def _begin_epoch(connection: sqlite3.Connection) -> None:
    """Begin an epoch: what is behind the end of the file was given to readers by a file that is lost."""
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(sql.PUT_EPOCH, (secrets.token_hex(6), last_number(connection) + 1))


def _version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def _view(connection: sqlite3.Connection, session_id: str) -> Loaded:
    return load(connection, Ask(session_id, 0, "", ALL, None, with_text=True), 0)
