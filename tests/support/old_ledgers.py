"""Ledgers that older versions of Turngate left behind: the dumps in tests/durable/dumps, loaded again."""

from __future__ import annotations

import asyncio
import re
import secrets
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

from postgres import Cluster, cluster
from surroundings import ROOT
from turngate.durable import PostgresLedger, SqliteLedger

DUMPS = sorted((ROOT / "tests" / "durable" / "dumps").glob("*.sql"))


def cursor_of(dump: Path) -> str:
    """Return the cursor that the process of the dump gave behind the second of its completions."""
    (cursor,) = re.findall(r"^-- Cursor behind the second completion: (\S+)$", dump.read_text(), re.MULTILINE)
    return str(cursor)


def load(dump: Path, folder: Path) -> Any:
    """Load the dump into a new file or a new database, and return a ledger on it."""
    if dump.stem.startswith("sqlite"):
        path = folder / "ledger.db"
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript(dump.read_text())
        return SqliteLedger(path)
    return PostgresLedger(new_database(dump.read_text()), connections=2)


def new_database(script: str = "SELECT 1", options: str = "", on: Cluster | None = None) -> str:
    """Make a database on a private cluster, run a script in it, and return its dsn."""
    server = on or cluster()
    name = f"d{secrets.token_hex(8)}"
    ask_postgres(server.dsn, f"CREATE DATABASE {name} {options}")
    dsn = server.dsn.rpartition("/")[0] + f"/{name}"
    ask_postgres(dsn, script)
    return dsn


def ask_postgres(dsn: str, script: str) -> list[tuple[Any, ...]]:
    """Run a script, or a query, in a database, and return what it answers."""
    import asyncpg  # noqa: PLC0415 - the package may be missing, and then the cluster is

    async def ask() -> list[tuple[Any, ...]]:
        connection = await asyncpg.connect(dsn)
        try:
            if script.lstrip().upper().startswith(("SELECT", "WITH")):
                return [tuple(row) for row in await connection.fetch(script)]
            await connection.execute(script)
            return []
        finally:
            await connection.close()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, ask()).result()
