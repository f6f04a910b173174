"""A ledger as chaos handles it from outside: what is purged, dumps, backups, locks of strangers.

Triggers keep in an archive what purges delete, so that at the end everything can be judged that has happened.
The archive is part of the ledger: a restore brings back an older one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import sqlite3
import subprocess
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from turngate import Message, RunComplete
from turngate.durable import PostgresLedger, SqliteLedger
from turngate.durable._ledger import CompletionRecord, HistoryStep
from turngate.durable._records import as_complete, as_messages

TABLES = ("run", "message", "history")
Place = tuple[int, int]


class Completed(NamedTuple):
    """A complete run: its place, its RunComplete, and when it was purged, if it was."""

    place: Place
    complete: RunComplete
    purged_at: float | None


@dataclass
class Life:
    """All that a ledger knew when it was dumped, as `ledger_judge` reads a ledger."""

    completed: list[Completed] = field(default_factory=list)
    steps: list[HistoryStep] = field(default_factory=list)
    messages: dict[str, list[Message]] = field(default_factory=dict)
    """The messages of each turn, by the id of its answer."""
    in_flight: dict[str, str] = field(default_factory=dict)
    """The session of each run that is in flight."""

    @property
    def runs(self) -> dict[str, Completed]:
        """The complete runs by their ids."""
        return {each.complete.run_id: each for each in self.completed}

    async def view(self, session_id: None) -> list[Any]:
        """Return the sessions that have something in flight."""
        return [SimpleNamespace(session_id=each) for each in sorted(set(self.in_flight.values()))]

    async def completions_after(self, after: Place, limit: int) -> tuple[Place, int, list[CompletionRecord]]:
        """Return everything behind a place at once."""
        found = [
            CompletionRecord(*each.place, each.complete) for each in self.completed if each.place > after
        ]
        return (-1, -1), 0, found

    async def history_after(self, after: Place, limit: int) -> tuple[Place, int, list[HistoryStep]]:
        """Return everything behind a place at once."""
        return (-1, -1), 0, [step for step in self.steps if (step.position, step.ordinal) > after]

    async def messages_of(self, run_id: str) -> list[Message]:
        """Return the messages of the turn that the run was part of."""
        found = self.runs.get(run_id)
        return [] if found is None else self.messages.get(found.complete.message_id or "", [])


def life_of(runs: list[Any], messages: list[Any], steps: list[Any], in_flight: list[Any]) -> Life:
    """Return a life from rows: position, ordinal, time of the purge and the columns of a RunComplete, ..."""
    life = Life(in_flight={row[0]: row[1] for row in in_flight})
    life.completed = [Completed((row[0], row[1]), as_complete(row[3:]), row[2]) for row in runs]
    life.steps = [HistoryStep(*row) for row in steps]
    of_turn: dict[str, list[Message]] = defaultdict(list)
    for row in messages:
        of_turn[row[0]] += as_messages([row[1:]])
    life.messages = dict(of_turn)
    return life


_COMPLETE = ", ".join(RunComplete._fields)
_MESSAGE = ", ".join(Message._fields)


class SqliteStore:
    """The file of an SQLite ledger."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "ledger.db"
        self._backup = folder / "backup.db"

    @property
    def spec(self) -> str:
        """What `ledger_at` makes a ledger from."""
        return str(self.path)

    def _connect(self) -> Any:
        return closing(sqlite3.connect(self.path, timeout=60, isolation_level=None))

    def keep_what_is_purged(self) -> None:
        """Make the archive, and the triggers that fill it."""
        with self._connect() as connection:
            for table in TABLES:
                columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
                old = ", ".join(f"old.{name}" for name in columns)
                connection.execute(
                    f"CREATE TABLE archive_{table} AS SELECT *, 0.0 AS purged_at FROM {table} WHERE 0"
                )
                connection.execute(
                    f"CREATE TRIGGER archive_{table} AFTER DELETE ON {table} BEGIN "
                    f"INSERT INTO archive_{table} VALUES ({old}, (julianday('now') - 2440587.5) * 86400.0); "
                    "END"
                )

    def life(self) -> Life:
        """Read everything."""
        with self._connect() as connection:

            def all_of(columns: str, table: str, where: str, order: str) -> list[Any]:
                kept = f"SELECT {columns.format(purged='NULL')} FROM {table} WHERE {where}"
                gone = f"SELECT {columns.format(purged='purged_at')} FROM archive_{table} WHERE {where}"
                found: list[Any] = connection.execute(f"{kept} UNION ALL {gone} ORDER BY {order}").fetchall()
                return found

            complete = "state = 'complete'"
            return life_of(
                all_of(f"position, ordinal, {{purged}}, {_COMPLETE}", "run", complete, "1, 2"),
                [row[1:] for row in all_of(f"position, turn, {_MESSAGE}", "message", "true", "1")],
                [
                    (row[0], 0, row[1], json.loads(row[2]), row[3])
                    for row in all_of("position, session_id, entries, at", "history", "true", "1")
                ],
                connection.execute("SELECT run_id, session_id FROM run WHERE state <> 'complete'").fetchall(),
            )

    def back_up(self) -> None:
        """Copy the ledger while it is in use, as operators are told to."""
        self._backup.unlink(missing_ok=True)
        with self._connect() as connection:
            connection.execute("VACUUM INTO ?", (str(self._backup),))

    def restore(self) -> None:
        """Put the backup in place; no process has the file open."""
        for suffix in ("", "-wal", "-shm"):
            Path(f"{self.path}{suffix}").unlink(missing_ok=True)
        shutil.copy(self._backup, self.path)

    def settle(self) -> None:
        """Wait until nothing goes on in it any more: nothing does when its processes are dead."""

    KINDS = ("a writer", "a reader")

    @contextmanager
    def held(self, kind: str) -> Iterator[None]:
        """Hold a transaction."""
        with self._connect() as connection:
            connection.execute("BEGIN IMMEDIATE" if kind == "a writer" else "BEGIN")
            connection.execute("SELECT count(*) FROM run").fetchall()
            yield


FULL = """
    CREATE OR REPLACE FUNCTION public.disk_full() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN RAISE EXCEPTION USING ERRCODE = 'disk_full', MESSAGE = 'No space left on device'; END $$
"""
"""The server says that its disk is full, whenever a session is written."""
ARCHIVE = """
    CREATE TABLE turngate.archive_{table} (LIKE turngate.{table}, purged_at float8);
    CREATE FUNCTION turngate.archive_{table}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO turngate.archive_{table} SELECT OLD.*, extract(epoch FROM clock_timestamp());
        RETURN NULL;
    END $$;
    CREATE TRIGGER archive_{table} AFTER DELETE ON turngate.{table}
    FOR EACH ROW EXECUTE FUNCTION turngate.archive_{table}()
"""


class PostgresStore:
    """The schema of a ledger on a PostgreSQL server of its own."""

    def __init__(self, folder: Path) -> None:
        from postgres import cluster, programs  # noqa: PLC0415 - only where it is wanted

        self.cluster = cluster()
        self._programs = programs()
        self._backup = folder / "backup.sql"

    @property
    def spec(self) -> str:
        """What `ledger_at` makes a ledger from."""
        dsn: str = self.cluster.dsn
        return dsn

    def _ask(self, *statements: str) -> list[Any]:
        """Execute statements on a connection of their own; return the rows of the last."""

        async def ask() -> list[Any]:
            async with self._connected() as connection:
                for statement in statements[:-1]:
                    await connection.execute(statement)
                return [tuple(row) for row in await connection.fetch(statements[-1])]

        return asyncio.run(ask())

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[Any]:
        import asyncpg  # noqa: PLC0415 - only where it is wanted

        connection = await asyncpg.connect(self.spec, timeout=60)
        try:
            yield connection
        finally:
            await connection.close()

    def keep_what_is_purged(self) -> None:
        """Make the archive, and the triggers that fill it."""
        self._ask(*(ARCHIVE.format(table=table) for table in TABLES), "SELECT 1")

    def life(self) -> Life:
        """Read everything, all of it at one moment."""

        def all_of(columns: str, table: str, where: str, order: str) -> str:
            kept = f"SELECT {columns.format(purged='NULL::float8')} FROM turngate.{table} WHERE {where}"
            gone = f"SELECT {columns.format(purged='purged_at')} FROM turngate.archive_{table} WHERE {where}"
            return f"{kept} UNION ALL {gone} ORDER BY {order}"

        async def read() -> Life:
            async with self._connected() as connection, connection.transaction(isolation="repeatable_read"):
                complete = "state = 'complete'"
                at = "extract(epoch FROM at)::float8"
                runs = all_of(f'"position", ordinal, {{purged}}, {_COMPLETE}', "run", complete, "1, 2")
                said = all_of(f'"position", turn, {_MESSAGE}', "message", "true", "1")
                steps = all_of(f'"position", ordinal, session_id, entries, {at}', "history", "true", "1, 2")
                in_flight = "SELECT run_id, session_id FROM turngate.run WHERE state <> 'complete'"
                rows = [
                    [tuple(row) for row in await connection.fetch(each)]
                    for each in (runs, said, steps, in_flight)
                ]
                told = [(*row[:3], json.loads(row[3]), row[4]) for row in rows[2]]
                return life_of(rows[0], [row[1:] for row in rows[1]], told, rows[3])

        return asyncio.run(read())

    def back_up(self) -> None:
        """Dump the ledger while it is in use."""
        self._run("pg_dump", "--schema=turngate", f"--file={self._backup}", self.spec)

    def restore(self) -> None:
        """Put the backup in place; no process uses the ledger."""
        self._ask("DROP SCHEMA turngate CASCADE", "SELECT 1")
        self._run(
            "psql", "--quiet", "--no-psqlrc", "--set=ON_ERROR_STOP=1", f"--file={self._backup}", self.spec
        )

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run([str(self._programs / program), *arguments], check=True, stdout=subprocess.DEVNULL)  # type: ignore[operator]

    def settle(self) -> None:
        """Wait until the server has noticed that the processes are dead."""
        while self._ask(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND datname = current_database()"
        ):
            time.sleep(0.1)

    KINDS = ("an open transaction", "a session", "a table")

    @contextmanager
    def held(self, kind: str) -> Iterator[None]:
        """Hold a transaction."""
        lock = {
            "an open transaction": "SELECT pg_current_xact_id()",
            "a session": "SELECT 1 FROM turngate.session WHERE session_id < 's5' FOR UPDATE",
            "a table": "LOCK TABLE turngate.run IN SHARE MODE",
        }[kind]
        with asyncio.Runner() as runner:
            connected = self._connected()
            connection = runner.run(connected.__aenter__())
            runner.run(connection.execute(f"BEGIN; {lock}"))
            yield
            runner.run(connected.__aexit__(None, None, None))

    def terminate(self) -> int:
        """Terminate some connections of processes; return how many."""
        return len(
            self._ask(
                "SELECT pg_terminate_backend(pid) FROM (SELECT pid FROM pg_stat_activity "
                "WHERE application_name = 'turngate' ORDER BY random() LIMIT 3) victims"
            )
        )

    def restart(self) -> None:
        """Stop the server at once, and start it again."""
        self.cluster.stop()
        self.cluster.start()

    def fill_disk(self, seconds: float) -> None:
        """Have the server refuse to write for a moment."""
        self._ask(
            FULL,
            "CREATE OR REPLACE TRIGGER disk_full BEFORE INSERT OR UPDATE ON turngate.session "
            "EXECUTE FUNCTION public.disk_full()",
            "SELECT 1",
        )
        time.sleep(seconds)
        self._ask("DROP TRIGGER disk_full ON turngate.session", "SELECT 1")


Store = SqliteStore | PostgresStore


def ledger_at(spec: str) -> Any:
    """Return a ledger for one process."""
    if spec.startswith("postgresql:"):
        return PostgresLedger(spec, connections=3)
    return SqliteLedger(spec)


def hold(store: Store, kind: str, seconds: float) -> None:
    """Hold a transaction for some seconds; a process of its own does it."""
    with contextlib.suppress(OSError, sqlite3.Error), store.held(kind):
        time.sleep(seconds)
    os._exit(0)


def unreliable(ledger: Any, dice: random.Random) -> Any:
    """Have notifications be lost, doubled and late."""
    listen = ledger.listen

    def listen_badly(wake: Any) -> None:
        def maybe() -> None:
            kind = dice.randrange(3)
            if kind == 1:
                wake()
                wake()
            elif kind == 2:
                asyncio.get_running_loop().call_later(dice.random() * 2, wake)

        listen(maybe)

    ledger.listen = listen_badly
    return ledger
