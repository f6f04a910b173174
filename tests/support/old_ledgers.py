"""Ledgers that older versions of Turngate left behind: the dumps in tests/durable/dumps, loaded again."""

from __future__ import annotations

import asyncio
import re
import secrets
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from postgres import cluster
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


def new_database(script: str = "SELECT 1", options: str = "") -> str:
    """Make a database on the private cluster, run a script in it, and return its dsn."""
    import asyncpg  # noqa: PLC0415 - the package may be missing, and then the cluster is

    server = cluster()
    name = f"d{secrets.token_hex(8)}"

    async def make() -> str:
        connection = await asyncpg.connect(server.dsn)
        await connection.execute(f"CREATE DATABASE {name} {options}")
        await connection.close()
        dsn = server.dsn.rpartition("/")[0] + f"/{name}"
        connection = await asyncpg.connect(dsn)
        await connection.execute(script)
        await connection.close()
        return dsn

    return asyncio.run(make())
