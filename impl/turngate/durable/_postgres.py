"""A ledger in PostgreSQL, for processes on many machines."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import secrets
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, cast
from weakref import WeakValueDictionary

from turngate._log import log, log_error
from turngate._prompt import plain
from turngate.durable._ledger import LedgerUnavailable, NotStorable, ReadPoint
from turngate.durable._postgres_notifications import Notifications
from turngate.durable._records import (
    ALL,
    Loaded,
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
from turngate.durable._swap import Conflict, Fate, Refused, SessionCache, Unanswered, swap

if TYPE_CHECKING:
    from asyncio import Future, Task
    from collections.abc import Callable, Coroutine, Iterable, Sequence

    from turngate.durable._ledger import Place
    from turngate.durable._postgres_connections import Beat, Server
    from turngate.durable._records import Ask, Changes, Decide, Decision, Row

_SQL: Final = statements("postgres")
_BATCH_LIMIT: Final = 64
"""The most steps that one statement saves."""
_SENDERS_LIMIT: Final = 2
"""The most statements under way: while one is written to disk, the next is collected."""


class PostgresLedger(SqlLedger):
    """The sessions in a PostgreSQL database (14 or newer): for any number of processes and machines.

    dsn                in asyncpg's form: "postgresql://user@host/database"
    schema             the schema of the tables; created and migrated if needed
    connections        connections for steps; one more listens, and one keeps the lease
    patience           seconds for which a step is retried while the server cannot be reached
    statement_timeout  seconds after which a server that does not answer counts as gone
    cached_statements  prepared statements per connection; 0 behind a proxy that pools transactions, where
                       notifications do not arrive either and polling does their work

    Needs asyncpg: the extra `turngate[postgres]`.
    """

    def __init__(
        self,
        dsn: str,
        *,
        schema: str = "turngate",
        connections: int = 4,
        patience: float = 5.0,
        statement_timeout: float = 10.0,
        cached_statements: int = 100,
    ) -> None:
        try:
            from turngate.durable import _postgres_connections  # noqa: PLC0415 - an extra
        except ModuleNotFoundError as missing:
            raise ModuleNotFoundError(
                "PostgresLedger needs asyncpg; install it with: pip install 'turngate[postgres]'"
            ) from missing
        if not re.fullmatch(r"[a-z_][a-z0-9_]{0,31}", schema):
            raise ValueError(f"schema must be a lower-case name of at most 32 characters, not {schema!r}")
        self.dsn = dsn
        self.schema = schema
        self._postgres = _postgres_connections
        self._sql = {name: statement.replace("{s}", schema) for name, statement in _SQL.items()}
        self._patience = patience
        self._lease = 0.0
        self._options = (connections, statement_timeout, cached_statements)
        self._server: Server | None = None
        self._beat: Beat | None = None
        self._worker = 0
        self._process = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """A lock per session, so that the steps of a session in this process do not overtake each other."""
        self._cache = SessionCache()
        self._saves = Saves(self._send, self._spawn, self._cache)
        self._notifications = Notifications(schema, self.fetch, self._listen_to, self._spawn)

    def __repr__(self) -> str:
        return f"<PostgresLedger {self.schema!r}>"  # the dsn may hold a password

    async def open(self) -> None:
        """Connect, and migrate the schema if it is an older one."""
        self._process = os.getpid()
        self._server = self._postgres.Server(self.dsn, *self._options)
        try:
            while not await self._server.in_transaction(Schema(self.schema, self._sql).prepare):
                pass
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """End the background tasks, and close the connections. Idempotent."""
        server, self._server = self._server, None
        self._notifications.close()
        if self._beat is not None:
            self._beat.end()
        while self._tasks:  # steps that are still under way may start others
            for task in [*self._tasks]:
                task.cancel()
            await asyncio.wait(self._tasks)
        self._saves.close()
        if server is not None:
            await server.close()

    def _working(self) -> Server:
        if self._process not in (0, os.getpid()):
            raise LedgerUnavailable(
                "the ledger was opened before this process was forked; open it again here"
            )
        if self._server is None:
            raise LedgerUnavailable("the ledger is not open")
        return self._server

    async def fetch(self, name: str, *about: object) -> list[Row]:
        """Execute the statement of this name, twice if its answer is lost; return the rows."""
        return [*map(tuple, await self._working().fetch(self._sql[name], *about))]

    def _send(self, name: str, *about: object) -> Coroutine[Any, Any, list[Any]]:
        """Execute the statement of this name once."""
        return self._working().send(self._sql[name], *about)

    # Steps.

    async def step(self, ask: Ask, decide: Decide) -> Decision:
        """Load, decide and save, again if another process was faster."""
        loop = asyncio.get_running_loop()
        began = loop.time()

        def give_up(sent: bool) -> bool:
            tried_for = loop.time() - began
            return self._server is None or tried_for > (
                max(self._lease, self._patience) if sent else self._patience
            )

        async with self._locks.setdefault(ask.session_id, asyncio.Lock()):
            return await swap(self, self._cache, ask, decide, give_up)

    async def load(self, ask: Ask) -> Loaded:
        """Return the session as it is."""
        head, run_id = (
            None if ask.head == ALL else ask.head,
            None if ask.run_id is None else storable(ask.run_id),
        )
        (row,) = await self.fetch("load", head, run_id, ask.with_text, storable(ask.session_id))
        loaded = _as_loaded(row)
        self._cache.set_clock(loaded.now)
        if ask.key is not None:
            # Read after the session: if the key is taken in between, the save will notice.
            loaded = loaded._replace(key=await self.find_key(*ask.key))
        return loaded

    async def view(self, session_id: str | None) -> list[Loaded]:
        """Return the session, or every session that has something in flight, all at one moment."""
        if session_id is None:
            rows = await self.fetch("view_all", None, None, True)
        else:
            rows = await self.fetch("view", None, None, True, storable(session_id))
        return [_as_loaded(row) for row in rows]

    def save(self, ask: Ask, changes: Changes) -> Coroutine[Any, Any, tuple[Fate, int]]:
        """Save if the session is still at its version and the worker is alive."""
        return self._saves.save(ask.worker, changes)

    # Workers.

    async def register(self, lease: float) -> int:
        """Return the name of a new worker, which is alive for `lease` seconds unless it is kept alive."""
        ((worker,),) = await self.fetch("register", float(lease))
        self._lease = lease
        return int(worker)

    async def retire(self, worker: int) -> None:
        """Declare a worker dead."""
        if self._beat is not None and worker == self._worker:
            self._beat.end()
        await self.fetch("retire", worker)

    def keep_alive(self, worker: int, lease: float, lost: Callable[[int], None]) -> None:
        """Renew the worker's lease in a thread of its own; call `lost` on the loop if that fails."""
        if self._beat is not None:
            self._beat.end()
        self._worker = worker
        self._beat = self._postgres.Beat(self._working(), self._sql["beat"], worker, float(lease), lost)
        self._notifications.set_worker(worker)

    async def expire_workers(self) -> None:
        """Remove the workers whose leases have ended."""
        await self.fetch("expire_workers")

    # Apart from the steps.

    async def read_point(self) -> ReadPoint:
        """Return which positions can be read now, as the server's snapshot says."""
        ((snapshot, shift, settled),) = await self.fetch("snapshot")
        oldest, following, running = snapshot.split(":")
        pending = frozenset(int(each) + shift for each in running.split(",") if each)
        if pending:
            # One of these may begin an epoch: a cursor of this moment must name that epoch, or a later one.
            await self.fetch("lock_shared", self.schema)
        return ReadPoint(max(int(oldest) + shift, settled), int(following) + shift, pending)

    async def delete_runs(self, run_ids: list[str], first: int, last: Place) -> int:
        """Delete runs; if a deletion was not answered, count its runs once they are certainly gone."""
        try:
            ((count,),) = await self._send("purge_runs", run_ids, *last, first)
        except Unanswered:
            await super().delete_runs(run_ids, first, last)
            return len(run_ids)
        return int(count)

    # Notifications.

    longest_message = 7_900

    def listen(self, wake: Callable[[], None]) -> None:
        """Call `wake` when another process has a hint for this worker, or for all."""
        self._working()
        self._notifications.listen(wake)

    def _listen_to(
        self, channels: list[str], wake: Callable[[], None], heard: Callable[[str, str], None]
    ) -> Coroutine[Any, Any, None]:
        return self._postgres.listen(self._working(), channels, wake, heard)

    def has_listeners(self) -> bool:
        """Return whether another process has lately announced that it listens."""
        return self._notifications.has_listeners()

    async def relay(self, messages: Sequence[str]) -> None:
        """Send messages to the processes that listen; they may be lost."""
        await self._notifications.relay(messages)

    def on_relay(self, heard: Callable[[str], None] | None) -> None:
        """Call `heard` with the messages of other processes; None stops that."""
        self._notifications.on_relay(heard)

    def hint(self, workers: set[int]) -> None:
        """Hint that these workers, or all, should look soon; hints are collected and sent together."""
        self._notifications.hint(workers)

    def _spawn(self, coroutine: Any) -> asyncio.Task[Any]:
        # Not made by the loop's task factory, which need not return a task.
        task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=asyncio.get_running_loop())
        self._tasks.add(task)
        task.add_done_callback(self._is_done)
        return task

    def _is_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (exc := task.exception()) is not None:
            log_error(exc, "a task of the ledger has failed")


def _as_loaded(row: Row) -> Loaded:
    """Return the session that a row of `load`, `view` or `view_all` describes."""
    fresh, session_id, now, session, active, queue, known, lives, checkpoint = row
    session_id = restored(session_id)
    found = None if known is None else as_known(json.loads(known))
    runs = [as_run(each) for part in (active, queue) if part for each in json.loads(part)]
    text, kept = ("", None) if checkpoint is None else json.loads(checkpoint)
    row_of_session = None if session is None else as_session(json.loads(session))
    runs = add_known(runs, found, session_id)
    return Loaded(session_id, row_of_session, runs, found, fresh, now, lives, restored(text), kept)


class _Save(NamedTuple):
    worker: int
    changes: Changes
    answer: Future[tuple[Fate, int]]


class Saves:
    """The steps that wait to be saved. Those that wait at the same time are saved by one statement.

    Each of them is saved independently: only if its session is still at the version on which it was decided.

    send   executes a statement once
    spawn  starts a background task
    cache  is given the fresh numbers that come with the answers
    """

    def __init__(
        self,
        send: Callable[..., Coroutine[Any, Any, list[Any]]],
        spawn: Callable[[Coroutine[Any, Any, None]], Task[Any]],
        cache: SessionCache,
    ) -> None:
        self._send = send
        self._spawn = spawn
        self._cache = cache
        self._waiting: deque[_Save] = deque()
        self._senders: set[Task[Any]] = set()

    async def save(self, worker: int, changes: Changes) -> tuple[Fate, int]:
        """Save a step if its session is still at its version and the worker is alive.

        Returns the result, and the position. If the caller is cancelled before the step is sent, it is not
        saved; afterwards it is saved anyway.
        """
        answer: Future[tuple[Fate, int]] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Save(worker, changes, answer))
        if len(self._senders) < _SENDERS_LIMIT:
            sender = self._spawn(self._send_waiting())
            self._senders.add(sender)
            sender.add_done_callback(self._senders.discard)
        return await answer

    def close(self) -> None:
        """Refuse the steps that were not sent."""
        _fail(self._waiting, LedgerUnavailable("the ledger is closed"))
        self._waiting.clear()

    async def _send_waiting(self) -> None:
        try:
            while batch := self._next_batch():
                try:
                    await self._send_batch(batch)
                except asyncio.CancelledError:
                    _fail(batch, Unanswered())
                    raise
        finally:
            # In the same step of the loop as the empty look: the next step to save needs another sender.
            self._senders.discard(cast("Task[Any]", asyncio.current_task()))

    def _next_batch(self) -> list[_Save]:
        """Take steps of one worker; a step with a key goes alone, because a taken key fails its statement."""
        batch: list[_Save] = []
        while self._waiting and len(batch) < _BATCH_LIMIT:
            save = self._waiting[0]
            if batch and (save.worker != batch[0].worker or save.changes.key or batch[0].changes.key):
                break
            self._waiting.popleft()
            if not save.answer.done():
                batch.append(save)
        # In a fixed order, so that statements of several processes cannot deadlock.
        return sorted(batch, key=lambda save: storable(save.changes.session_id))

    async def _send_batch(self, batch: list[_Save]) -> None:
        """Send the steps by one statement, and answer each."""
        worker, changes, _ = batch[0]
        try:
            about = (worker, self._cache.numbers_wanted(), *_as_arrays(batch))
            if changes.key is None:
                (answer,) = await self._send("save", *about)
            else:
                (answer,) = await self._send("save_keyed", *about, *encode(changes.key))
            alive, position, saved, numbers = answer
            self._cache.add_numbers(numbers)
        except (Refused, Conflict, NotStorable) as exc:
            if len(batch) > 1:  # one of them is the cause
                for each in batch:
                    await self._send_batch([each])
            elif isinstance(exc, Conflict):
                _answer(batch[0], (Fate.STALE, 0))
            else:
                _fail(batch, exc)
        except Exception as exc:
            _fail(batch, exc)
        else:
            for number, each in enumerate(batch):
                fate = Fate.SAVED if number in saved else Fate.STALE if alive else Fate.DEAD
                _answer(each, (fate, position))


def _answer(save: _Save, answer: tuple[Fate, int]) -> None:
    if not save.answer.done():
        save.answer.set_result(answer)


def _fail(saves: Iterable[_Save], why: Exception) -> None:
    for each in saves:
        if not each.answer.done():
            each.answer.set_exception(why)


def _as_arrays(batch: list[_Save]) -> list[list[list[str | None]]]:
    """Return the rows to write as arrays of text, for the stored function `save`.

    The first column of each row is the number of its step.
    """
    sessions: list[Row] = []
    accepted: list[Row] = []
    moved: list[Row] = []
    done: list[Row] = []
    messages: list[Row] = []
    entries: list[Row] = []
    for number, (_, changes, _) in enumerate(batch):
        session_id = storable(changes.session_id)
        accepts = None
        if changes.new:
            (row,) = changes.new
            accepted.append((number, *encode(row)))
            accepts = storable(row.run_id)
        sessions.append((number, changes.before is None, accepts, session_id, *of_session(changes.after)))
        moved += [(number, *encode(change)) for change in changes.changed]
        done += [(number, storable(each.run_id), *of_complete(each)) for each in changes.done]
        messages += [(number, *columns) for columns in of_messages(changes.messages)]
        if changes.entries:
            entries.append((number, session_id, json.dumps(changes.entries)))
    return [
        [[None if value is None else _as_text(value) for value in row] for row in rows]
        for rows in (sessions, accepted, moved, done, messages, entries)
    ]


def _as_text(value: object) -> str:
    """Return the value as text; a member of an enumeration of strings is its value, not its name."""
    return plain(value) if isinstance(value, str) else str(value)


class Schema:
    """The schema of a ledger: creates or migrates it, checks privileges, begins an epoch."""

    def __init__(self, name: str, sql: dict[str, str]) -> None:
        self.name = name
        self._sql = sql

    async def prepare(self, connection: Any) -> bool:
        """Migrate the schema by one version, or begin an epoch if it is current; return whether it was.

        Takes an asyncpg connection within a transaction. A role without the right to create anything can use
        a schema that is current.
        """
        await _check_encoding(connection)
        scripts = migrations("postgres")
        has_schema, may_make, may_use = await connection.fetchrow(self._sql["may_make"], self.name)
        if has_schema and not may_use:
            await _refuse(connection, [f"USAGE on schema {self.name}"])
        missing = [row[0] for row in await connection.fetch(self._sql["missing_privileges"], self.name)]
        if f"SELECT on table {self.name}.schema_version" in missing:
            await _refuse(connection, missing)
        version = await self._version(connection) if has_schema else 0
        if version == len(scripts):
            if missing:
                await _refuse(connection, missing)
            await connection.execute(self._sql["lock"], self.name)
            await self._begin_epoch(connection)
            return True
        if not may_make:
            role = await connection.fetchval("SELECT current_user")
            what = f"schema {self.name}" if has_schema else "this database"
            raise LedgerUnavailable(
                f"the ledger has schema version {version} and needs version {len(scripts)}, which the role "
                f"{role} may not make; open it once with the role that owns {what}"
            )
        await connection.execute(self._sql["lock"], self.name)
        if not await connection.fetchval(self._sql["has_schema"], self.name):
            await connection.execute(f"CREATE SCHEMA {self.name}")
        await connection.execute(self._sql["make_version"])
        version = await self._version(connection)  # another process may have been faster
        if version == 1 and not await connection.fetchval(self._sql["has_ordinals"], self.name):
            await connection.execute(self._sql["give_ordinals"])
        for script in scripts[version : version + 1]:
            await connection.execute(script.replace("{s}", self.name))
            await connection.execute(self._sql["put_version"], version + 1)
        return False

    async def _version(self, connection: Any) -> int:
        exists = await connection.fetchval(self._sql["has_version"])
        version: int = await connection.fetchval(self._sql["version"]) if exists else 0
        refuse_newer(version, len(migrations("postgres")))
        return version

    async def _begin_epoch(self, connection: Any) -> None:
        """Begin an epoch; if the ledger was restored here, new positions continue above all stored ones."""
        home = await connection.fetchval(self._sql["home"])
        if await connection.fetchval(self._sql["may_see_system"]):
            home = f"{await connection.fetchval(self._sql['system'])}.{home}"
        last, xid, shift, settled, old_home = await connection.fetchrow(self._sql["stored"])
        first = xid + shift
        same_home = home if old_home is None else _same_home(old_home, home)
        has_moved = same_home is None
        home = same_home or home
        if first <= last or has_moved:
            if missing := await connection.fetch(self._sql["missing_to_restore"], self.name):
                await _refuse(connection, [row[0] for row in missing])
            shift = max(shift, last + 1 - xid)
            first, settled = last + 1, xid + shift
            # The workers on record may live on in another database, so none of their names is used again
            # here.
            await connection.execute(self._sql["leave_behind"])
            log(
                logging.WARNING,
                "the ledger was restored in this database; older cursors beyond its end have expired",
            )
        await connection.execute(self._sql["put_home"], shift, settled, home)
        await connection.execute(self._sql["put_epoch"], secrets.token_hex(6), first)


async def _check_encoding(connection: Any) -> None:
    name, encoding = await connection.fetchrow(_SQL["encoding"])
    if encoding != "UTF8":
        raise LedgerUnavailable(
            f"the database {name} has the encoding {encoding}, in which not every text can be stored; "
            f"a ledger needs UTF8 (CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0)"
        )


async def _refuse(connection: Any, missing: list[str]) -> NoReturn:
    role = await connection.fetchval("SELECT current_user")
    raise LedgerUnavailable(f"the role {role} lacks privileges that the ledger needs: {', '.join(missing)}")


def _same_home(*notes: str) -> str | None:
    """Combine notes of system, database and tables; None if they cannot be of the same one.

    Some roles cannot see the system, and earlier versions did not note the tables.
    """
    known: list[str] = []
    for said in zip(*map(_parts_of_home, notes), strict=True):
        (part, *others) = {each for each in said if each} or {""}
        if others:
            return None
        known.append(part)
    system, database, tables = known
    return (f"{system}." if system else "") + database + (f":{tables}" if tables else "")


def _parts_of_home(note: str) -> tuple[str, str, str]:
    system, _, where = note.rpartition(".")
    database, _, tables = where.partition(":")
    return system, database, tables
