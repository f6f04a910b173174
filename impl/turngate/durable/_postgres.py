"""A ledger in PostgreSQL, for processes on many machines."""

from __future__ import annotations

import asyncio
import json
import os
import re
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

from turngate._log import log_error
from turngate.durable import _postgres_statements as sql
from turngate.durable._cache import SessionCache
from turngate.durable._ledger import (
    CompletionRecord,
    HistoryStep,
    LedgerUnavailable,
    NotStorable,
    Orphans,
    ReadPoint,
    StoredTurn,
)
from turngate.durable._postgres_notifications import Notifications
from turngate.durable._postgres_saves import Saves
from turngate.durable._postgres_schema import Schema
from turngate.durable._purge import SLICE, PastRun, PastStep, Phase
from turngate.durable._records import (
    ALL,
    Known,
    Loaded,
    as_complete,
    as_key,
    as_known,
    as_messages,
    as_run,
    as_session,
    of_key,
    restored,
    storable,
)
from turngate.durable._swap import Unanswered, swap

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from turngate._messages import ListOfMessages
    from turngate.durable._ledger import Checkpoint, Place
    from turngate.durable._postgres_connections import Beat, Server
    from turngate.durable._purge import Purge
    from turngate.durable._records import Ask, Changes, Decide, Decision, KeyRow
    from turngate.durable._swap import Fate

_ORPHANS_LIMIT: Final = 50


class PostgresLedger:
    """The sessions in a PostgreSQL database (14 or newer): for any number of processes and machines.

    dsn                as asyncpg takes it: "postgresql://user@host/database"
    schema             the schema that the tables are in; created and migrated when needed
    history            whether every decision is kept, for `turngate trace` and for subscribers to moves
    connections        connections for steps; one more listens, and one keeps the lease
    patience           seconds for which a step is tried again while the server cannot be reached
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
        self._schema = Schema(schema)
        self._patience = patience
        self._lease = 0.0
        self._options = (connections, statement_timeout, cached_statements)
        self._server: Server | None = None
        self._beat: Beat | None = None
        self._worker = 0
        self._process = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By session: the steps of one session in this process do not overtake each other."""
        self._cache = SessionCache()
        self._saves = Saves(self._send, self._spawn, self._cache, history=history)
        self._notifications = Notifications(schema, self._fetch, self._listen_to, self._spawn)

    def __repr__(self) -> str:
        return f"<PostgresLedger {self.schema!r}>"  # the dsn may hold a password

    async def open(self) -> None:
        """Connect, and migrate the schema if it is an older one."""
        self._process = os.getpid()
        self._server = self._postgres.Server(self.dsn, *self._options)
        try:
            while not await self._server.in_transaction(self._schema.prepare):
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
                "the ledger was opened before this process was forked off; open another one"
            )
        if self._server is None:
            raise LedgerUnavailable("the ledger is not open")
        return self._server

    async def _fetch(self, statement: str, *about: object) -> list[Any]:
        return await self._working().fetch(self._schema.sql(statement), *about)

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
        loaded = await self._load(sql.LOAD, ask.session_id, ask.head, ask.run_id, with_text=ask.with_text)
        self._cache.set_clock(loaded.now)
        if ask.key is not None:
            # Read after the session: if the key is taken in between, the save finds out.
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
        """Save if the session is still at its version and the worker is alive."""
        return self._saves.save(ask.worker, changes)

    def _send(self, statement: str, *about: object) -> Coroutine[Any, Any, list[Any]]:
        return self._working().send(self._schema.sql(statement), *about)

    # Workers.

    async def register(self, lease: float) -> int:
        """Return the name of a new worker, which is alive for `lease` seconds unless it is kept alive."""
        ((worker,),) = await self._fetch(sql.REGISTER, float(lease))
        self._lease = lease
        return int(worker)

    async def retire(self, worker: int) -> None:
        """Declare a worker dead."""
        if self._beat is not None and worker == self._worker:
            self._beat.end()
        await self._fetch(sql.RETIRE, worker)

    def keep_alive(self, worker: int, lease: float, lost: Callable[[int], None]) -> None:
        """Renew the worker's lease from a thread of its own; call `lost` on the loop when that has failed."""
        if self._beat is not None:
            self._beat.end()
        self._worker = worker
        self._beat = self._postgres.Beat(
            self._working(), self._schema.sql(sql.BEAT), worker, float(lease), lost
        )
        self._notifications.set_worker(worker)

    async def expire_workers(self) -> None:
        """Remove the workers whose leases have ended."""
        await self._fetch(sql.EXPIRE_WORKERS)

    async def orphans(self, enter_timeout: float) -> Orphans:
        """Return some of the turns and runs that no living worker looks after."""
        dead = await self._fetch(sql.DEAD, _ORPHANS_LIMIT)
        unowned = await self._fetch(sql.UNOWNED, _ORPHANS_LIMIT)
        unentered = await self._fetch(sql.UNENTERED, _ORPHANS_LIMIT, float(enter_timeout))
        return Orphans(
            [restored(row[0]) for row in dead],
            [restored(row[0]) for row in unowned],
            [(restored(row[0]), restored(row[1])) for row in unentered],
        )

    async def turns_of(self, worker: int) -> list[StoredTurn]:
        """Return the turns that belong to the worker."""
        return [
            StoredTurn(restored(row[0]), *row[1:])
            for row in map(tuple, await self._fetch(sql.TURNS_OF, worker))
        ]

    # Reading.

    async def find(self, run_ids: Sequence[str]) -> list[Known]:
        """Return the runs of these ids that exist."""
        return [as_known(tuple(row)) for row in await self._fetch(sql.KNOWN, [*map(storable, run_ids)])]

    async def view(self, session_id: str | None) -> list[Loaded]:
        """Return the session, or every session that has something in flight, all at one moment."""
        if session_id is not None:
            return [await self._load(sql.VIEW, session_id, ALL, None, with_text=True)]
        rows = await self._fetch(sql.VIEW_ALL)
        return [_as_loaded(restored(row[0]), None, tuple(row)[1:]) for row in rows]

    async def epoch(self) -> str:
        """Return the name of the current epoch."""
        ((name,),) = await self._fetch(sql.EPOCH)
        return str(name)

    async def epoch_end(self, name: str) -> int | None:
        """Return the position behind the last one of an epoch; None if there is no such epoch."""
        for (end,) in await self._fetch(sql.END_OF, name):
            return int(end)
        return None

    async def read_point(self) -> ReadPoint:
        """Return which positions can be read now, as the server's snapshot says."""
        ((snapshot, shift, settled),) = await self._fetch(sql.SNAPSHOT)
        oldest, following, running = snapshot.split(":")
        pending = frozenset(int(each) + shift for each in running.split(",") if each)
        if pending:
            # One of these may begin an epoch: a cursor of this moment must name that epoch, or a later one.
            await self._fetch(sql.LOCK_SHARED, self.schema)
        return ReadPoint(max(int(oldest) + shift, settled), int(following) + shift, pending)

    async def completions_after(self, after: Place, limit: int) -> tuple[Place, int, list[CompletionRecord]]:
        """Return the last purged place, the horizon, and the next completions below it, in order."""
        ((*purged, horizon, page),) = map(tuple, await self._fetch(sql.COMPLETIONS_AFTER, *after, limit))
        rows = json.loads(page) if page else []
        return (
            (purged[0], purged[1]),
            horizon,
            [CompletionRecord(row[0], row[1], as_complete(row[2:])) for row in rows],
        )

    async def history_after(self, after: Place, limit: int) -> tuple[Place, int, list[HistoryStep]]:
        """Return the last purged place, the horizon, and the decisions of the next steps, in order."""
        ((*purged, horizon, page),) = map(tuple, await self._fetch(sql.HISTORY_AFTER, *after, limit))
        rows = json.loads(page) if page else []
        return (
            (purged[0], purged[1]),
            horizon,
            [HistoryStep(row[0], row[1], restored(row[2]), json.loads(row[3])) for row in rows],
        )

    # Beside the steps.

    async def checkpoint(self, checkpoints: Sequence[Checkpoint]) -> None:
        """Save the text that turns have written so far; leave out what cannot be stored."""
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
        """Write the row unless the key has one, and return the row that is stored."""
        while True:
            await self._fetch(sql.KEEP_KEY, *of_key(row))
            if (kept := await self.find_key(row.key, row.part)) is not None:
                return kept

    async def expire_keys(self, age: float, limit: int) -> int:
        """Delete at most `limit` keys older than `age` seconds; return how many were deleted."""
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
            except Unanswered:  # they count once they are certainly gone
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
        """Return whether another process has said lately that it listens."""
        return self._notifications.has_listeners()

    async def relay(self, messages: Sequence[str]) -> None:
        """Send messages to the processes that listen; they may be lost."""
        await self._notifications.relay(messages)

    def on_relay(self, heard: Callable[[str], None] | None) -> None:
        """Call `heard` with the messages of other processes; None stops that."""
        self._notifications.on_relay(heard)

    def hint(self, workers: set[int]) -> None:
        """Let these workers, or all, look soon: hints are collected, and sent together."""
        self._notifications.hint(workers)

    def _spawn(self, coroutine: Any) -> asyncio.Task[Any]:
        # Not by the loop's task factory: what that returns need not be a task.
        task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=asyncio.get_running_loop())
        self._tasks.add(task)
        task.add_done_callback(self._is_done)
        return task

    def _is_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (exc := task.exception()) is not None:
            log_error(exc, "a task of the ledger has failed")


def _as_loaded(session_id: str, run_id: str | None, row: Sequence[Any]) -> Loaded:
    fresh, now, session, runs, queue, known, lives, text = row
    found = None if known is None else as_known(json.loads(known))
    rows = [as_run(each) for part in (runs, queue) if part for each in json.loads(part)]
    if found is not None and found.complete is None and found.row.session_id == session_id:
        rows = [*rows, found.row] if all(row.run_id != run_id for row in rows) else rows
    kept = ("", None) if text is None else json.loads(text)
    return Loaded(
        session_id,
        None if session is None else as_session(json.loads(session)),
        rows,
        found,
        fresh,
        now,
        lives,
        restored(kept[0]),
        kept[1],
    )
