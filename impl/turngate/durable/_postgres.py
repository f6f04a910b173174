"""A ledger in PostgreSQL, for processes on many machines."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
import secrets
import time
from typing import TYPE_CHECKING, Any, Final, NoReturn

from turngate._guard import complain, say
from turngate._supervise import Supervisor
from turngate.durable import _postgres_statements as sql
from turngate.durable._cache import SessionCache
from turngate.durable._columns import as_complete, as_key, as_known, as_messages, as_run, as_session, of_key
from turngate.durable._ledger import Debts, Finished, LedgerUnavailable, Mine, Moment, NotStorable, Told
from turngate.durable._migrations import migrations, refuse_newer
from turngate.durable._postgres_saves import Saves
from turngate.durable._purge import SLICE, PastRun, PastStep, Phase
from turngate.durable._rows import ALL, Known, Loaded, restored, storable
from turngate.durable._swap import Unanswered, swap

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from turngate._messages import ListOfMessages
    from turngate.durable._ledger import Checkpoint, Place
    from turngate.durable._postgres_connections import Beat, Server
    from turngate.durable._purge import Purge
    from turngate.durable._rows import Ask, Changes, Decide, Decision, KeyRow
    from turngate.durable._swap import Fate

_AT_ONCE: Final = 50
"""So many debts are taken up at a time."""
_LISTENS_EVERY: Final = 5.0
"""Seconds after which a process that listens to what others relay says so again."""
_SOON: Final = 0.005
"""Seconds for which hints are collected before they are sent together."""


class PostgresLedger:
    """The sessions in a PostgreSQL database (14 or newer): for any number of processes and machines.

    dsn                as asyncpg takes it: "postgresql://user@host/database"
    schema             the schema that the tables are in; it is made, and brought up to date, when needed
    history            whether every decision is kept, for `turngate trace` and for subscribers to moves
    connections        connections for steps; one more listens, and one keeps the lease
    patience           seconds for which a step is tried again while the server cannot be reached
    statement_timeout  seconds after which a server that does not answer counts as gone
    cached_statements  prepared statements per connection; 0 behind a proxy that pools transactions, which
                       also cannot listen: everything works then too, by polling

    Needs asyncpg: the extra `turngate[postgres]`.
    """

    def __init__(
        self,
        dsn: str,
        *,
        schema: str = "turngate",
        history: bool = True,
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
        self.history = history
        self._postgres = _postgres_connections
        self._patience = patience
        self._lease = 0.0
        self._options = (connections, statement_timeout, cached_statements)
        self._server: Server | None = None
        self._beat: Beat | None = None
        self._worker = 0
        self._process = 0
        self._hints: set[str] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._supervisor = Supervisor(self._spawn)
        self._listener: asyncio.Task[None] | None = None
        self._wake: Callable[[], None] | None = None
        self._statements: dict[str, str] = {}
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}
        self._channel = f"turngate_{schema}"
        self._token = secrets.token_hex(6)
        self._heard: Callable[[str], None] | None = None
        self._ear: asyncio.Task[Any] | None = None
        self._overheard_until = 0.0
        self._cache = SessionCache()
        self._saves = Saves(self._send, self._spawn, self._cache, history=history)

    def __repr__(self) -> str:
        return f"<PostgresLedger {self.schema!r}>"  # the dsn may hold a password

    async def open(self) -> None:
        """Connect, and bring the schema up to date."""
        self._process = os.getpid()
        self._server = self._postgres.Server(self.dsn, *self._options)
        try:
            while not await self._server.in_transaction(self._migrate):
                pass
        except BaseException:
            await self.close()
            raise

    async def _migrate(self, connection: Any) -> bool:
        """Take the schema one version further, or begin an epoch if it is current; say whether that is done.

        A role that may not make anything can use a schema that is current.
        """
        await self._check_encoding(connection)
        scripts = migrations("postgres")
        has_schema, may_make, may_use = await connection.fetchrow(sql.MAY_MAKE, self.schema)
        if has_schema and not may_use:
            await self._refuse(connection, [f"USAGE on schema {self.schema}"])
        missing = [row[0] for row in await connection.fetch(sql.MISSING_PRIVILEGES, self.schema)]
        if f"SELECT on table {self.schema}.schema_version" in missing:
            await self._refuse(connection, missing)
        version = await self._version(connection) if has_schema else 0
        if version == len(scripts):
            if missing:
                await self._refuse(connection, missing)
            await connection.execute(sql.LOCK, self.schema)
            await self._begin_epoch(connection)
            return True
        if not may_make:
            role = await connection.fetchval("SELECT current_user")
            what = f"schema {self.schema}" if has_schema else "this database"
            raise LedgerUnavailable(
                f"the ledger has schema version {version} and needs version {len(scripts)}, which the role "
                f"{role} may not make; open it once with the role that owns {what}"
            )
        await connection.execute(sql.LOCK, self.schema)
        if not await connection.fetchval(sql.HAS_SCHEMA, self.schema):
            await connection.execute(self._in_schema("CREATE SCHEMA {s}"))
        await connection.execute(self._in_schema(sql.MAKE_VERSION))
        version = await self._version(connection)  # another process may have been faster
        if version == 1 and not await connection.fetchval(sql.HAS_ORDINALS, self.schema):
            await connection.execute(self._in_schema(sql.GIVE_ORDINALS))
        for script in scripts[version : version + 1]:
            await connection.execute(self._in_schema(script))
            await connection.execute(self._in_schema(sql.PUT_VERSION), version + 1)
        return False

    async def _check_encoding(self, connection: Any) -> None:
        """Refuse a database that cannot store every text."""
        name, encoding = await connection.fetchrow(sql.ENCODING)
        if encoding != "UTF8":
            raise LedgerUnavailable(
                f"the database {name} has the encoding {encoding}, in which not every text can be stored; "
                f"a ledger needs UTF8 (CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0)"
            )

    async def _refuse(self, connection: Any, missing: list[str]) -> NoReturn:
        role = await connection.fetchval("SELECT current_user")
        raise LedgerUnavailable(
            f"the role {role} lacks privileges that the ledger needs: {', '.join(missing)}"
        )

    async def _begin_epoch(self, connection: Any) -> None:
        """Begin an epoch; if the ledger was restored here, have positions go on above all that are stored."""
        home = await connection.fetchval(sql.HOME)
        if await connection.fetchval(sql.MAY_SEE_SYSTEM):
            home = f"{await connection.fetchval(sql.SYSTEM)}.{home}"
        stored = await connection.fetchrow(self._in_schema(sql.STORED))
        last, xid, shift, settled, old_home = stored
        first = xid + shift
        has_moved = old_home is not None and not _is_same_home(old_home, home)
        if old_home is not None and not has_moved:
            home = max(old_home, home, key=len)  # what another role has seen is kept
        if first <= last or has_moved:
            if missing := await connection.fetch(sql.MISSING_TO_RESTORE, self.schema):
                await self._refuse(connection, [row[0] for row in missing])
            shift = max(shift, last + 1 - xid)
            first, settled = last + 1, xid + shift
            # These workers live elsewhere, if they do, and may go on there: none of their names comes again.
            for statement in sql.LEAVE_BEHIND:
                await connection.execute(self._in_schema(statement))
            say(
                logging.WARNING,
                "the ledger was restored in this database; older cursors beyond its end have expired",
            )
        await connection.execute(self._in_schema(sql.PUT_HOME), shift, settled, home)
        await connection.execute(self._in_schema(sql.PUT_EPOCH), secrets.token_hex(6), first)

    async def _version(self, connection: Any) -> int:
        exists = await connection.fetchval(self._in_schema(sql.HAS_VERSION))
        version: int = await connection.fetchval(self._in_schema(sql.VERSION)) if exists else 0
        refuse_newer(version, len(migrations("postgres")))
        return version

    async def close(self) -> None:
        """Let go of everything. Idempotent."""
        server, self._server = self._server, None
        if self._beat is not None:
            self._beat.end()
        while self._tasks:  # steps that are still under way may start others
            for task in [*self._tasks]:
                task.cancel()
            await asyncio.wait(self._tasks)
        self._saves.close()
        if server is not None:
            await server.close()

    def _in_schema(self, statement: str) -> str:
        ready = self._statements.get(statement)
        if ready is None:
            ready = self._statements[statement] = statement.replace("{s}", self.schema)
        return ready

    def _working(self) -> Server:
        if self._process not in (0, os.getpid()):
            raise LedgerUnavailable(
                "the ledger was opened before this process was forked off; open another one"
            )
        if self._server is None:
            raise LedgerUnavailable("the ledger is not open")
        return self._server

    async def _fetch(self, statement: str, *about: object) -> list[Any]:
        return await self._working().fetch(self._in_schema(statement), *about)

    # Steps.

    async def step(self, ask: Ask, decide: Decide) -> Decision:
        """Load, decide and save, until nobody else was faster."""
        loop = asyncio.get_running_loop()
        began = loop.time()

        def give_up(sent: bool) -> bool:
            tried_for = loop.time() - began
            return self._server is None or tried_for > (
                max(self._lease, self._patience) if sent else self._patience
            )

        # The steps of one session in this process do not overtake each other.
        lock, waiting = self._locks.get(ask.session_id) or (asyncio.Lock(), 0)
        self._locks[ask.session_id] = lock, waiting + 1
        try:
            async with lock:
                return await swap(self, self._cache, ask, decide, give_up)
        finally:
            _, waiting = self._locks[ask.session_id]
            if waiting > 1:
                self._locks[ask.session_id] = lock, waiting - 1
            else:
                del self._locks[ask.session_id]

    async def load(self, ask: Ask) -> Loaded:
        """Return the session as it is, by one statement."""
        loaded = await self._load(sql.LOAD, ask.session_id, ask.head, ask.run_id, with_text=ask.with_text)
        self._cache.set_clock(loaded.now)
        if ask.key is not None:
            # After the session: if the key is not there yet, a save finds out whether it is by then.
            loaded = loaded._replace(key=await self.find_key(*ask.key))
        return loaded

    async def _load(
        self, statement: str, session_id: str, head: int, run_id: str | None, *, with_text: bool
    ) -> Loaded:
        wanted = None if run_id is None else storable(run_id)
        (row,) = await self._fetch(
            statement, storable(session_id), None if head == ALL else head, wanted, with_text
        )
        return _as_loaded(session_id, run_id, row)

    def save(self, ask: Ask, changes: Changes) -> Coroutine[Any, Any, tuple[Fate, int]]:
        """Save, with others that wait: if the session is still at its version, and the worker alive."""
        return self._saves.save(ask.worker, changes)

    def _send(self, statement: str, *about: object) -> Coroutine[Any, Any, list[Any]]:
        return self._working().send(self._in_schema(statement), *about)

    # Who lives.

    async def register(self, lease: float) -> int:
        """Return the name of a new worker, which lives for that long unless it is kept alive."""
        ((worker,),) = await self._fetch(sql.REGISTER, float(lease))
        self._lease = lease
        return int(worker)

    async def retire(self, worker: int) -> None:
        """Have a worker count as dead."""
        if self._beat is not None and worker == self._worker:
            self._beat.end()
        await self._fetch(sql.RETIRE, worker)

    def keep_alive(self, worker: int, lease: float, lost: Callable[[int], None]) -> None:
        """Keep the worker alive from a thread of its own."""
        if self._beat is not None:
            self._beat.end()
        self._worker = worker
        self._beat = self._postgres.Beat(
            self._working(), self._in_schema(sql.BEAT), worker, float(lease), lost
        )
        if self._wake is not None:
            self.listen(self._wake)  # under the new name

    async def bury(self) -> None:
        """Remove the workers whose leases are over."""
        await self._fetch(sql.BURY)

    async def debts(self, enter_timeout: float) -> Debts:
        """Return some of what is owed by the dead, and what was not entered for so many seconds."""
        dead = await self._fetch(sql.DEAD, _AT_ONCE)
        unowned = await self._fetch(sql.UNOWNED, _AT_ONCE)
        unentered = await self._fetch(sql.UNENTERED, _AT_ONCE, float(enter_timeout))
        return Debts(
            [restored(row[0]) for row in dead],
            [restored(row[0]) for row in unowned],
            [(restored(row[0]), restored(row[1])) for row in unentered],
        )

    async def mine(self, worker: int) -> list[Mine]:
        """Return the turns that belong to the worker."""
        return [Mine(restored(row[0]), *row[1:]) for row in map(tuple, await self._fetch(sql.MINE, worker))]

    # Looking on.

    async def find(self, run_ids: Sequence[str]) -> list[Known]:
        """Return those of the runs that are known."""
        return [as_known(tuple(row)) for row in await self._fetch(sql.KNOWN, [*map(storable, run_ids)])]

    async def view(self, session_id: str | None) -> list[Loaded]:
        """Return the session, or every session that has something in flight, all at one moment."""
        if session_id is not None:
            return [await self._load(sql.VIEW, session_id, ALL, None, with_text=True)]
        rows = await self._fetch(sql.VIEW_ALL)
        return [_as_loaded(restored(row[0]), None, tuple(row)[1:]) for row in rows]

    async def name(self) -> str:
        """Return the name of the epoch, by which its cursors are told from those of another."""
        ((name,),) = await self._fetch(sql.EPOCH)
        return str(name)

    async def end_of(self, name: str) -> int | None:
        """Return the position that no cursor of the epoch reaches; None if there is no such epoch."""
        for (end,) in await self._fetch(sql.END_OF, name):
            return int(end)
        return None

    async def moment(self) -> Moment:
        """Return which transactions had committed at one moment, as the server's snapshot has it."""
        ((snapshot, shift, settled),) = await self._fetch(sql.SNAPSHOT)
        oldest, following, running = snapshot.split(":")
        pending = frozenset(int(each) + shift for each in running.split(",") if each)
        if pending:
            # One of these may begin an epoch: a cursor of this moment is named by that one, or a later one.
            await self._fetch(sql.LOCK_SHARED, self.schema)
        return Moment(max(int(oldest) + shift, settled), int(following) + shift, pending)

    async def finished(self, after: Place, limit: int) -> tuple[Place, int, list[Finished]]:
        """Return the last that was purged, the horizon, and the next completions below it, in order."""
        ((*purged, horizon, page),) = map(tuple, await self._fetch(sql.FINISHED, *after, limit))
        rows = json.loads(page) if page else []
        return (
            (purged[0], purged[1]),
            horizon,
            [Finished(row[0], row[1], as_complete(row[2:])) for row in rows],
        )

    async def told(self, after: Place, limit: int) -> tuple[Place, int, list[Told]]:
        """Return the last that was purged, the horizon, and the decisions of the next steps, in order."""
        ((*purged, horizon, page),) = map(tuple, await self._fetch(sql.TOLD, *after, limit))
        rows = json.loads(page) if page else []
        return (
            (purged[0], purged[1]),
            horizon,
            [Told(row[0], row[1], restored(row[2]), json.loads(row[3])) for row in rows],
        )

    # Beside the steps.

    async def checkpoint(self, checkpoints: Sequence[Checkpoint]) -> None:
        """Put by what turns have written so far."""
        rows = [
            {"session_id": storable(c.session_id), "fence": c.fence, "text": storable(c.text), "kept": c.kept}
            for c in checkpoints
        ]
        try:
            await self._fetch(sql.CHECKPOINT, json.dumps(rows))
        except NotStorable:
            for each in checkpoints if len(checkpoints) > 1 else ():
                await self.checkpoint([each])

    async def find_key(self, key: str, part: str = "") -> KeyRow | None:
        """Return the row of an idempotency key, None if it has none."""
        rows = await self._fetch(sql.KEY, storable(key), part)
        return as_key(tuple(rows[0])) if rows else None

    async def keep_key(self, row: KeyRow) -> KeyRow:
        """Write the row unless the key has one, and return the row that it has."""
        while True:
            await self._fetch(sql.KEEP_KEY, *of_key(row))
            if (kept := await self.find_key(row.key, row.part)) is not None:
                return kept

    async def expire_keys(self, age: float, limit: int) -> int:
        """Forget at most `limit` keys that are older than so many seconds; return how many it was."""
        ((count,),) = await self._fetch(sql.EXPIRE_KEYS, float(age), limit)
        return int(count)

    async def messages(self, session_id: str, after: str | None, limit: int | None) -> ListOfMessages:
        """Return messages of the session; ValueError if it has no message `after`."""
        behind = 0
        if after is not None:
            found = await self._fetch(sql.MESSAGE_AT, storable(session_id), storable(after))
            if not found:
                raise ValueError(f"session {session_id!r} has no message {after!r}")
            behind = found[0][0]
        return as_messages(await self._fetch(sql.MESSAGES, storable(session_id), behind, limit))

    async def messages_of(self, run_id: str) -> ListOfMessages:
        """Return the messages of the turn that the run was part of."""
        return as_messages(await self._fetch(sql.MESSAGES_OF, storable(run_id)))

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
                for statement in sql.PURGE_REST:
                    await self._fetch(statement)
                purge.next_phase()
        return 0

    async def _purge_runs(self, purge: Purge) -> int:
        if purge.is_new:
            purge.keep([(row[0], row[1]) for row in await self._fetch(sql.PURGE_IN_FLIGHT, purge.before)])
        rows = [PastRun(*row) for row in await self._fetch(sql.PURGE_LOOK, purge.before, *purge.after, SLICE)]
        looked_at, gone = purge.slice(rows)
        count = 0
        if gone:
            about = ([each.run_id for each in gone], [each.position for each in gone], *gone[-1][:2])
            try:
                ((count,),) = await self._send(sql.PURGE_RUNS, *about)
            except Unanswered:  # once they are certainly gone, they count
                await self._fetch(sql.PURGE_RUNS, *about)
                count = len(gone)
        purge.looked_at(looked_at)
        if not rows:
            purge.next_phase()
        return int(count)

    async def _purge_sessions(self, purge: Purge) -> None:
        rows = await self._fetch(sql.PURGE_LOOK_AT_SESSIONS, purge.name, SLICE)
        quiet = [tuple(row) for row in rows if row[0] not in purge.kept]
        if quiet:
            names, versions = zip(*quiet, strict=True)
            await self._fetch(sql.PURGE_SESSIONS, [*names], [*versions], purge.after[0])
        if rows:
            purge.name = rows[-1][0]
        else:
            purge.next_phase()

    async def _purge_history(self, purge: Purge) -> None:
        rows = [PastStep(*row) for row in await self._fetch(sql.PURGE_LOOK_AT_HISTORY, *purge.after, SLICE)]
        gone = [(each.position, each.ordinal) for each in rows if purge.forgets(each)]
        if gone:
            positions, ordinals = zip(*gone, strict=True)
            await self._fetch(sql.PURGE_HISTORY, [*positions], [*ordinals], *gone[-1])
        if rows and not purge.is_past(rows):
            purge.after = rows[-1][:2]
        else:
            purge.next_phase()

    def listen(self, wake: Callable[[], None]) -> None:
        """Call `wake` when somebody has a hint for this worker, or for all."""
        self._wake = wake
        if self._listener is not None:
            self._listener.cancel()
        channels = [self._channel, f"{self._channel}_{self._worker}"]
        if self._heard is not None:
            channels.append(f"{self._channel}_relay")
        server = self._working()
        self._listener = self._supervisor.start(
            "listening to PostgreSQL", lambda: self._postgres.listen(server, channels, wake, self._notice)
        )

    def _notice(self, channel: str, what: str) -> None:
        """Take a notification; what that raises does not concern the connection."""
        try:
            self._hear(what)
        except Exception as exc:
            complain(exc, "a notification of PostgreSQL could not be dealt with")

    def _hear(self, what: str) -> None:
        """Take a hint, or what another process says or listens to."""
        name, _, message = what.partition(" ")
        if not name:
            if self._wake is not None:
                self._wake()
        elif name == self._token:
            return
        elif not message:
            self._overheard_until = time.monotonic() + 3 * _LISTENS_EVERY
        elif self._heard is not None:
            self._heard(message)

    # What turns stream.

    longest_message = 7_900

    def is_overheard(self) -> bool:
        """Say whether another process has said lately that it listens."""
        return time.monotonic() < self._overheard_until

    async def relay(self, messages: Sequence[str]) -> None:
        """Say something to the processes that listen; it may be lost."""
        said = [f"{self._token} {message}" for message in messages]
        await self._fetch(sql.SAY, f"{self._channel}_relay", said)

    def overhear(self, heard: Callable[[str], None] | None) -> None:
        """Listen to what other processes say, or no longer."""
        self._heard = heard
        if self._ear is not None:
            self._ear.cancel()
            self._ear = None
        if self._server is None or self._wake is None:
            return
        self.listen(self._wake)
        if heard is not None:
            self._ear = self._supervisor.start(
                "telling other processes that this one listens", self._say_that_we_listen
            )

    async def _say_that_we_listen(self) -> None:
        while True:
            with contextlib.suppress(LedgerUnavailable):
                await self._fetch(sql.SAY, self._channel, [self._token])
            await asyncio.sleep(_LISTENS_EVERY)

    def hint(self, workers: set[int]) -> None:
        """Let these workers, or all, look soon: some hints together, after the commit, and nobody waits."""
        first = not self._hints
        self._hints |= {f"{self._channel}_{worker}" for worker in workers} or {self._channel}
        if first:
            self._spawn(self._send_hints())

    async def _send_hints(self) -> None:
        await asyncio.sleep(_SOON)
        channels, self._hints = self._hints, set()
        try:
            await self._fetch(sql.HINT, [*channels])
        except LedgerUnavailable:
            pass  # those who are meant will look by themselves
        except Exception as exc:
            complain(exc, "hints to other processes could not be sent")

    def _spawn(self, coroutine: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._is_done)
        return task

    def _is_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (exc := task.exception()) is not None:
            complain(exc, "a task of the ledger has failed")


def _is_same_home(one: str, other: str) -> bool:
    """Say whether two notes of system and database are of the same; some roles cannot see the system."""
    system, _, database = one.rpartition(".")
    other_system, _, other_database = other.rpartition(".")
    return database == other_database and (system == other_system or not system or not other_system)


def _as_loaded(session_id: str, run_id: str | None, row: Sequence[Any]) -> Loaded:
    fresh, now, session, runs, queue, known, lives, text = row
    found = None if known is None else as_known(json.loads(known))
    rows = [as_run(each) for part in (runs, queue) if part for each in json.loads(part)]
    if found is not None and found.complete is None and found.row.session_id == session_id:
        rows = [*rows, found.row] if all(row.run_id != run_id for row in rows) else rows
    put_by = ("", None) if text is None else json.loads(text)
    return Loaded(
        session_id,
        None if session is None else as_session(json.loads(session)),
        rows,
        found,
        fresh,
        now,
        lives,
        restored(put_by[0]),
        put_by[1],
    )
