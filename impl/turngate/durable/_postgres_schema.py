"""Opening a ledger in PostgreSQL: creates or migrates its schema, checks privileges, begins an epoch."""

from __future__ import annotations

import logging
import secrets
from typing import Any, NoReturn

from turngate._log import log
from turngate.durable import _postgres_statements as sql
from turngate.durable._ledger import LedgerUnavailable
from turngate.durable._migrations import migrations, refuse_newer


class Schema:
    """The schema that a ledger's tables are in."""

    def __init__(self, name: str) -> None:
        self.name = name

    def sql(self, statement: str) -> str:
        """Return the statement with `{s}` replaced by the name of the schema."""
        return statement.replace("{s}", self.name)

    async def prepare(self, connection: Any) -> bool:
        """Migrate the schema by one version, or begin an epoch if it is current; return whether it was.

        Works on an asyncpg connection within a transaction. A role that may not create anything can use a
        schema that is current.
        """
        await _check_encoding(connection)
        scripts = migrations("postgres")
        has_schema, may_make, may_use = await connection.fetchrow(sql.MAY_MAKE, self.name)
        if has_schema and not may_use:
            await _refuse(connection, [f"USAGE on schema {self.name}"])
        missing = [row[0] for row in await connection.fetch(sql.MISSING_PRIVILEGES, self.name)]
        if f"SELECT on table {self.name}.schema_version" in missing:
            await _refuse(connection, missing)
        version = await self._version(connection) if has_schema else 0
        if version == len(scripts):
            if missing:
                await _refuse(connection, missing)
            await connection.execute(sql.LOCK, self.name)
            await self._begin_epoch(connection)
            return True
        if not may_make:
            role = await connection.fetchval("SELECT current_user")
            what = f"schema {self.name}" if has_schema else "this database"
            raise LedgerUnavailable(
                f"the ledger has schema version {version} and needs version {len(scripts)}, which the role "
                f"{role} may not make; open it once with the role that owns {what}"
            )
        await connection.execute(sql.LOCK, self.name)
        if not await connection.fetchval(sql.HAS_SCHEMA, self.name):
            await connection.execute(self.sql("CREATE SCHEMA {s}"))
        await connection.execute(self.sql(sql.MAKE_VERSION))
        version = await self._version(connection)  # another process may have been faster
        if version == 1 and not await connection.fetchval(sql.HAS_ORDINALS, self.name):
            await connection.execute(self.sql(sql.GIVE_ORDINALS))
        for script in scripts[version : version + 1]:
            await connection.execute(self.sql(script))
            await connection.execute(self.sql(sql.PUT_VERSION), version + 1)
        return False

    async def _version(self, connection: Any) -> int:
        exists = await connection.fetchval(self.sql(sql.HAS_VERSION))
        version: int = await connection.fetchval(self.sql(sql.VERSION)) if exists else 0
        refuse_newer(version, len(migrations("postgres")))
        return version

    async def _begin_epoch(self, connection: Any) -> None:
        """Begin an epoch; if the ledger was restored here, new positions go on above all stored ones."""
        home = await connection.fetchval(sql.HOME)
        if await connection.fetchval(sql.MAY_SEE_SYSTEM):
            home = f"{await connection.fetchval(sql.SYSTEM)}.{home}"
        last, xid, shift, settled, old_home = await connection.fetchrow(self.sql(sql.STORED))
        first = xid + shift
        has_moved = old_home is not None and not _is_same_home(old_home, home)
        if old_home is not None and not has_moved:
            home = max(old_home, home, key=len)  # keep what a role that sees more has written
        if first <= last or has_moved:
            if missing := await connection.fetch(sql.MISSING_TO_RESTORE, self.name):
                await _refuse(connection, [row[0] for row in missing])
            shift = max(shift, last + 1 - xid)
            first, settled = last + 1, xid + shift
            # The workers on record may go on in another database: none of their names is used again here.
            for statement in sql.LEAVE_BEHIND:
                await connection.execute(self.sql(statement))
            log(
                logging.WARNING,
                "the ledger was restored in this database; older cursors beyond its end have expired",
            )
        await connection.execute(self.sql(sql.PUT_HOME), shift, settled, home)
        await connection.execute(self.sql(sql.PUT_EPOCH), secrets.token_hex(6), first)


async def _check_encoding(connection: Any) -> None:
    name, encoding = await connection.fetchrow(sql.ENCODING)
    if encoding != "UTF8":
        raise LedgerUnavailable(
            f"the database {name} has the encoding {encoding}, in which not every text can be stored; "
            f"a ledger needs UTF8 (CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0)"
        )


async def _refuse(connection: Any, missing: list[str]) -> NoReturn:
    role = await connection.fetchval("SELECT current_user")
    raise LedgerUnavailable(f"the role {role} lacks privileges that the ledger needs: {', '.join(missing)}")


def _is_same_home(one: str, other: str) -> bool:
    """Return whether two notes of system and database mean the same; some roles cannot see the system."""
    system, _, database = one.rpartition(".")
    other_system, _, other_database = other.rpartition(".")
    return database == other_database and (system == other_system or not system or not other_system)
