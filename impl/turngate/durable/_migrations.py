"""The migrations of both engines, as frozen text: one file per version in `sql/`.

A file is never edited, not even its whitespace, because ledgers of that version exist. A change of the schema
is a new file, `NNNN_name.sql`, with the next number.
"""

from __future__ import annotations

import functools
import sqlite3
from importlib import resources

from turngate._errors import UnknownSchema


@functools.cache
def migrations(engine: str) -> tuple[str, ...]:
    """Return the scripts that lead from each version of the schema to the next."""
    folder = resources.files("turngate.durable") / "sql" / engine
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".sql")), key=lambda f: f.name)
    numbers = [int(file.name.partition("_")[0]) for file in files]
    if not numbers or numbers != [*range(1, len(numbers) + 1)]:
        raise RuntimeError(f"the migrations of {engine} are incomplete: {[file.name for file in files]}")
    return tuple(file.read_text(encoding="utf-8") for file in files)


def statements(script: str) -> list[str]:
    """Return the statements of an SQLite script. No two statements may share a line."""
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


def refuse_newer(version: int, known: int) -> None:
    """Raise UnknownSchema if a ledger has a version that this Turngate does not know."""
    if version > known:
        raise UnknownSchema(
            f"the ledger has schema version {version}, and this turngate knows versions up to {known}; "
            f"use a newer turngate"
        )


for _engine in ("sqlite", "postgres"):
    migrations(_engine)  # read now: a process may drop its privileges before it opens a ledger
