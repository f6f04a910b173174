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
from typing import TYPE_CHECKING, Any, Final

from turngate._log import log
from turngate._sqlite_file import OpenedFile, absolute, check_usable, resolved
from turngate.durable import _sqlite_statements as sql
from turngate.durable._ledger import (
    CompletionRecord,
    HistoryStep,
    LeaseLost,
    LedgerGone,
    LedgerUnavailable,
    NotStorable,
    Orphans,
    ReadPoint,
    StoredTurn,
)
from turngate.durable._migrations import migrations, refuse_newer, statements
from turngate.durable._purge import SLICE, PastRun, PastStep, Phase
from turngate.durable._records import (
    ALL,
    Ask,
    Known,
    Loaded,
    as_complete,
    as_key,
    as_known,
    as_messages,
    as_run,
    as_session,
    of_complete,
    of_key,
    of_messages,
    of_run,
    of_session,
    restored,
    storable,
)
from turngate.durable._sqlite_relay import LONGEST, Relay
from turngate.durable._sqlite_thread import CommitThread
from turngate.durable._sqlite_workers import DeathWatch, WorkerLock, refuse_shared_file_system, remove_lock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from turngate._messages import ListOfMessages
    from turngate.durable._ledger import Checkpoint, Place
    from turngate.durable._purge import Purge
    from turngate.durable._records import Changes, Decide, Decision, KeyRow, Row

_LOCKED: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_LISTENERS_INTERVAL: Final = 0.1
"""Seconds for which the answer to whether another process listens is kept."""
_ORPHANS_LIMIT: Final = 50
_LOG_PAGES: Final = 4_000
"""The write-ahead log is copied into the file when it has this many pages, 16 MB: a run writes many."""


class SqliteLedger:
    """The sessions in the file at `path`, in WAL mode: for any number of processes on one machine.

    history       whether every decision is kept, for `turngate trace` and for subscribers to moves
    lock_timeout  how many seconds to wait while another process holds the file
    synchronous   "FULL", or "NORMAL", with which a loss of power may cost the last commits

    One thread does the work, and steps that wait at the same time share a commit. The death of a process is
    noticed by its file lock.

    The path is made absolute and links are followed, so a later `os.chdir` changes nothing. Opening raises
    LedgerUnavailable for a file with several hard links, for a file that is itself a mount, and on file
    systems that other machines may share. A child process cannot use a ledger that was opened before the
    fork. If the file is removed or replaced while it is open, every later call is refused, because what it
    acknowledged would be gone after a restart.
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
        """The locks of this ledger's own workers."""
        self._watch = DeathWatch()
        self._process = 0
        self._relay = Relay(self.path)
        self._has_listeners = False
        self._has_listeners_until = 0.0

    async def open(self) -> None:
        """Open the file, and migrate it to the current schema."""
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
                time.sleep(random.uniform(0.001, 0.02))  # noqa: S311 - no secret
        except BaseException:
            connection.close()
            raise

    def _problem(self) -> str | None:
        """Return what has become of the file if it is no longer the one that was opened."""
        assert self._file is not None
        return self._file.problem()

    # Steps.

    def step(self, ask: Ask, decide: Decide) -> Awaitable[Decision]:
        """Load, decide and save in one transaction, during which no other process can write."""
        return self._working().do(
            lambda connection: _take_step(connection, ask, decide, history=self.history), writes=True
        )

    # Workers.

    async def register(self, lease: float) -> int:
        """Return the name of a new worker, which is alive as long as this process."""
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
            # If the caller was cancelled, the row is written all the same, and its lock must be free.
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
        """Declare a worker dead."""
        await self._write("DELETE FROM worker WHERE worker = ?", [(worker,)])
        if (lock := self._locks.pop(worker, None)) is not None:
            lock.release(remove=True)

    def keep_alive(self, worker: int, lease: float, lost: Callable[[int], None]) -> None:
        """Do nothing: the lock lasts as long as the process."""

    async def expire_workers(self) -> None:
        """Find the workers that have died, and remove their rows and lock files."""
        await self._repair_locks()
        assert self._file is not None
        rows = await self._query("SELECT worker, name FROM worker")
        others = {worker: name for worker, name in rows if worker not in self._locks}
        dead = self._watch.dead_of(others, self.path, self._file.id, self._lease)
        if dead:
            # A worker that has made a new lock meanwhile has another name.
            await self._write("DELETE FROM worker WHERE worker = ? AND name = ?", dead)
        for _, name in dead:
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
                    "the lock file of worker %d is gone and cannot be made anew: %s",
                    worker,
                    exc,
                )

    async def _repair_lock(self, worker: int, lock: WorkerLock) -> None:
        if not lock.is_in_place():
            log(
                logging.WARNING, "the lock file of worker %d was removed or replaced; it is made anew", worker
            )
            new = self._new_lock()
            lock.release(remove=False)
            lock = self._locks[worker] = new
        await self._write("UPDATE worker SET name = ? WHERE worker = ?", [(str(lock.name), worker)])
        lock.is_recorded = True

    async def orphans(self, enter_timeout: float) -> Orphans:
        """Return some of the turns and runs that no living worker looks after."""
        late = time.time() - enter_timeout

        def look(connection: sqlite3.Connection) -> Orphans:
            query = connection.execute
            return Orphans(
                [restored(session) for (session,) in query(sql.DEAD, (_ORPHANS_LIMIT,))],
                [restored(session) for (session,) in query(sql.UNOWNED, (_ORPHANS_LIMIT,))],
                [(restored(s), restored(r)) for s, r in query(sql.UNENTERED, (late, _ORPHANS_LIMIT))],
            )

        return await self._working().do(look)

    async def turns_of(self, worker: int) -> list[StoredTurn]:
        """Return the turns that belong to the worker."""
        rows = await self._query(sql.TURNS_OF, worker)
        return [
            StoredTurn(restored(session), fence, bool(covered), version)
            for session, fence, covered, version in rows
        ]

    # Reading.

    async def find(self, run_ids: Sequence[str]) -> list[Known]:
        """Return the runs of these ids that exist."""

        def look(connection: sqlite3.Connection) -> list[Known]:
            found = [_find_run(connection, run_id) for run_id in run_ids]
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

    async def epoch(self) -> str:
        """Return the name of the current epoch."""
        ((name,),) = await self._query(sql.EPOCH)
        return str(name)

    async def epoch_end(self, name: str) -> int | None:
        """Return the position behind the last one of an epoch; None if there is no such epoch."""

        def look(connection: sqlite3.Connection) -> int | None:
            found = connection.execute(sql.END_OF, (name,)).fetchone()
            return None if found is None else int(found[0] or _last_number(connection) + 1)

        return await self._working().do(look)

    async def read_point(self) -> ReadPoint:
        """Return which positions can be read now: all up to the last one."""
        number = await self._working().do(_last_number)
        return ReadPoint(number + 1, number + 1)

    async def completions_after(self, after: Place, limit: int) -> tuple[Place, int, list[CompletionRecord]]:
        """Return the last purged place, the horizon, and the next completions below it, in order."""

        def look(connection: sqlite3.Connection) -> tuple[Place, int, list[CompletionRecord]]:
            number = _last_number(connection)
            purged = connection.execute("SELECT purged, purged_ordinal FROM meta").fetchone()
            rows = connection.execute(sql.COMPLETIONS_AFTER, (*after, limit)).fetchall()
            return (
                purged,
                number + 1,
                [CompletionRecord(row[0], row[1], as_complete(row[2:])) for row in rows],
            )

        return await self._working().do(look)

    async def history_after(self, after: Place, limit: int) -> tuple[Place, int, list[HistoryStep]]:
        """Return the last purged place, the horizon, and the decisions of the next steps, in order."""

        def look(connection: sqlite3.Connection) -> tuple[Place, int, list[HistoryStep]]:
            number = _last_number(connection)
            ((forgotten,),) = connection.execute("SELECT forgotten FROM meta")
            rows = connection.execute(sql.HISTORY_AFTER, (after[0], limit)).fetchall()
            steps = [HistoryStep(row[0], 0, restored(row[1]), json.loads(row[2])) for row in rows]
            return (forgotten, 0), number + 1, steps

        return await self._working().do(look)

    async def _query(self, query: str, *about: object) -> list[tuple[Any, ...]]:
        return await self._working().do(lambda connection: connection.execute(query, about).fetchall())

    async def _write(self, statement: str, rows: Sequence[Row]) -> int:
        """Execute the statement with each of the rows; return how many rows it has changed."""
        return await self._working().do(
            lambda connection: connection.executemany(statement, rows).rowcount, writes=True
        )

    # Beside the steps.

    async def checkpoint(self, checkpoints: Sequence[Checkpoint]) -> None:
        """Save the text that turns have written so far; leave out what cannot be stored."""
        rows = [(storable(c.session_id), c.fence, storable(c.text), c.kept) for c in checkpoints]
        try:
            await self._write(sql.PUT_CHECKPOINT, rows)
        except NotStorable:
            for each in checkpoints if len(checkpoints) > 1 else ():
                await self.checkpoint([each])

    async def find_key(self, key: str, part: str = "") -> KeyRow | None:
        """Return the row of an idempotency key, None if it has none."""
        return await self._working().do(lambda connection: _find_key(connection, key, part))

    async def keep_key(self, row: KeyRow) -> KeyRow:
        """Write the row unless the key has one, and return the row that is stored."""

        def keep(connection: sqlite3.Connection) -> KeyRow:
            connection.execute(sql.KEEP_KEY, (*of_key(row), time.time()))
            kept = _find_key(connection, row.key, row.part)
            assert kept is not None
            return kept

        return await self._working().do(keep, writes=True)

    async def expire_keys(self, age: float, limit: int) -> int:
        """Delete at most `limit` keys older than `age` seconds; return how many were deleted."""
        before = time.time() - age
        if not await self._query(sql.HAS_OLD_KEYS, before):
            return 0  # without taking the file's lock
        return await self._write(sql.EXPIRE_KEYS, [(before, limit)])

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
        """Take the next slice of a purge; return how many runs were deleted."""
        match purge.phase:
            case Phase.RUNS:
                return await self._purge_runs(purge)
            case Phase.SESSIONS:
                await self._purge_sessions(purge)
            case Phase.HISTORY:
                await self._purge_history(purge)
            case Phase.REST:
                for statement in sql.PURGE_REST:
                    await self._write(statement, [()])
                purge.next_phase()
        return 0

    async def _purge_runs(self, purge: Purge) -> int:
        if purge.is_new:
            purge.keep(
                [(row[0], bool(row[1])) for row in await self._query(sql.PURGE_IN_FLIGHT, purge.before)]
            )
        rows = await self._query(sql.PURGE_LOOK, purge.before, purge.before, *purge.after, SLICE)
        looked_at, gone = purge.slice([PastRun(*row) for row in rows])

        def delete(connection: sqlite3.Connection) -> int:
            many, (position, ordinal, *_) = connection.executemany, gone[-1]
            turns = {(each.position, each.message_id) for each in gone if each.message_id is not None}
            many(sql.PURGE_MESSAGES, [(at * sql.STEP, (at + 1) * sql.STEP - 1, turn) for at, turn in turns])
            deleted = many(sql.PURGE_RUNS, [(each.run_id, each.position) for each in gone])
            connection.execute(sql.PURGED, {"position": position, "ordinal": ordinal})
            return deleted.rowcount

        count = await self._working().do(delete, writes=True) if gone else 0
        purge.looked_at(looked_at)
        if not rows:
            purge.next_phase()
        return count

    async def _purge_sessions(self, purge: Purge) -> None:
        rows = await self._query(sql.PURGE_LOOK_AT_SESSIONS, purge.name, SLICE)
        quiet = [row for row in rows if row[0] not in purge.kept]

        def delete(connection: sqlite3.Connection) -> None:
            new = {row[0] for row in connection.execute(sql.PURGE_NEW_RUNS, (purge.after[0],))}
            connection.executemany(sql.PURGE_SESSIONS, [row for row in quiet if row[0] not in new])

        if quiet:
            await self._working().do(delete, writes=True)
        if rows:
            purge.name = rows[-1][0]
        else:
            purge.next_phase()

    async def _purge_history(self, purge: Purge) -> None:
        rows = [PastStep(*row) for row in await self._query(sql.PURGE_LOOK_AT_HISTORY, purge.after[0], SLICE)]
        gone = [(each.position,) for each in rows if purge.forgets(each)]

        def delete(connection: sqlite3.Connection) -> None:
            connection.execute(sql.KEEP_NUMBER, (_last_number(connection),))
            connection.executemany("DELETE FROM history WHERE position = ?", gone)
            connection.execute("UPDATE meta SET forgotten = max(forgotten, ?)", gone[-1])

        if gone:
            await self._working().do(delete, writes=True)
        if rows and not purge.is_past(rows):
            purge.after = rows[-1][:2]
        else:
            purge.next_phase()

    def listen(self, wake: Callable[[], None]) -> None:
        """Call `wake` when another process has written."""
        self._working().on_change(wake)

    # What turns stream.

    longest_message = LONGEST

    def has_listeners(self) -> bool:
        """Return whether another process listens, or did a moment ago."""
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
                for statement in statements(script):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {version + 1}")
    refuse_newer(_version(connection), len(scripts))


def _begin_epoch(connection: sqlite3.Connection) -> None:
    """Begin an epoch: cursors beyond the end of this file were given by a file that is lost."""
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(sql.PUT_EPOCH, (secrets.token_hex(6), _last_number(connection) + 1))


def _version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def _view(connection: sqlite3.Connection, session_id: str) -> Loaded:
    return _load(connection, Ask(session_id, 0, "", ALL, None, with_text=True), 0)


def _take_step(connection: sqlite3.Connection, ask: Ask, decide: Decide, *, history: bool) -> Decision:
    """Load the session, decide, and write; no other process can write meanwhile."""
    number = _last_number(connection) + 1
    decision = decide(_load(connection, ask, number), ask.step_id)
    if decision.changes is not None:
        if connection.execute(sql.LIVES, (ask.worker,)).fetchone() is None:
            raise LeaseLost(f"worker {ask.worker} counts as dead")
        _save(connection, decision.changes, number, history=history)
        decision.position = number
    return decision


def _load(connection: sqlite3.Connection, ask: Ask, fresh: int) -> Loaded:
    query = connection.execute
    session_id = storable(ask.session_id)
    row = query(sql.SESSION, (session_id,)).fetchone()
    session, runs, owner_lives = None, [], False
    text, kept = "", None
    if row is not None:
        session, owner_lives = as_session(row[:-1]), bool(row[-1])
        runs = [as_run(each) for each in query(sql.RUNS, {"session_id": session_id})]
        if ask.head and session.queued:
            runs += [as_run(each) for each in query(sql.QUEUE, (session_id, ask.head))]
        if ask.with_text and session.owner is not None:
            text, kept = query(sql.TEXT, (session_id, session.fence)).fetchone() or ("", None)
    known = None if ask.run_id is None else _find_run(connection, ask.run_id)
    if known is not None and known.complete is None and known.row.session_id == ask.session_id:
        runs += [] if any(each.run_id == ask.run_id for each in runs) else [known.row]
    key = None if ask.key is None else _find_key(connection, *ask.key)
    return Loaded(
        ask.session_id, session, runs, known, fresh, time.time(), owner_lives, restored(text), kept, key
    )


def _save(connection: sqlite3.Connection, changes: Changes, number: int, *, history: bool) -> None:
    now = time.time()
    session_id = storable(changes.session_id)
    if not history:
        connection.execute(sql.KEEP_NUMBER, (number,))
    connection.execute(sql.PUT_SESSION, (session_id, *of_session(changes.after)))
    completions = enumerate(changes.done)
    messages = enumerate(of_messages(changes.messages), number * sql.STEP + 1)
    written: list[tuple[str, list[Row]]] = [
        (sql.PUT_RUN, [(*of_run(row), now) for row in changes.new]),
        (
            sql.MOVE_RUN,
            [(to.state.value, to.covered, to.place, storable(to.run_id)) for to in changes.changed],
        ),
        (sql.COMPLETE_RUN, [(*of_complete(c), now, number, n, storable(c.run_id)) for n, c in completions]),
        (sql.PUT_MESSAGE, [(position, *columns) for position, columns in messages]),
        (sql.PUT_HISTORY, [(number, session_id, json.dumps(changes.entries), now)] if history else []),
        (sql.PUT_KEY, [] if changes.key is None else [(*of_key(changes.key), now)]),
    ]
    for statement, rows in written:
        if rows:
            count = connection.executemany(statement, rows).rowcount
            assert count == len(rows), f"{count} of {len(rows)}: {statement}"


def _last_number(connection: sqlite3.Connection) -> int:
    return int(connection.execute(sql.NUMBER).fetchone()[0])


def _find_run(connection: sqlite3.Connection, run_id: str) -> Known | None:
    found = connection.execute(sql.KNOWN, (storable(run_id),)).fetchone()
    return None if found is None else as_known(found)


def _find_key(connection: sqlite3.Connection, key: str, part: str) -> KeyRow | None:
    found = connection.execute(sql.KEY, (storable(key), part)).fetchone()
    return None if found is None else as_key(found)
