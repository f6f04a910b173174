"""A ledger that an older Turngate has written gets the current schema, and everything in it goes on."""

from __future__ import annotations

import asyncio
import hashlib
import re
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dispatching import echo, in_loop
from old_ledgers import DUMPS, ask_postgres, cursor_of, load, new_database
from surroundings import ROOT
from turngate import CursorExpired, UnknownSchema
from turngate.durable import (
    DurableDispatcher,
    Ledger,
    LedgerUnavailable,
    PostgresLedger,
    SqliteLedger,
    _postgres,
    _sqlite,
)
from turngate.durable._sql import migrations, statements

if TYPE_CHECKING:
    pass

ENGINES = ("sqlite", "postgres")
WITHOUT_DUMP: set[str] = set()
"""Versions whose code is not finished yet."""

BEHIND_CURSOR = ["lead", "folded-1", "folded-2", "second", "cancelled"]
TURN = ["wait 1", "also 1", "also 2", "answer to wait 1"]
FROZEN = {
    "postgres/0001_ledger.sql": "b6f598d8a55b4728",
    "postgres/0002_save_plain.sql": "2d45ed9861556433",
    "postgres/0003_epochs.sql": "7e1e0faae7ee1e09",
    "postgres/0004_keys.sql": "40532539dd390430",
    "postgres/0005_one_save.sql": "b21c7a1567f44a62",
    "sqlite/0001_ledger.sql": "cfc397a6e1bacb7d",
    "sqlite/0002_runs_by_id.sql": "5b7b3650fe28bd42",
    "sqlite/0003_epochs.sql": "10fbd48f03b6539d",
    "sqlite/0004_keys.sql": "2504e2aa4a7a405f",
}
"""The digest of every migration: one that was ever run is never edited; a new one is added here."""


def on_old_ledgers(test: Any) -> Any:
    """Run a test on every ledger that older code has left behind, with the cursor that it gave."""

    @pytest.mark.parametrize("dump", DUMPS, ids=lambda dump: dump.stem)
    def wrapper(dump: Path, tmp_path: Path) -> None:
        in_loop(test)(load(dump, tmp_path), cursor_of(dump))

    wrapper.__name__ = test.__name__
    return wrapper


@on_old_ledgers
async def test_what_was_in_flight_comes_to_its_end(ledger: Ledger, cursor: str) -> None:
    async with DurableDispatcher(echo, ledger) as d, asyncio.timeout(20):
        ended = [await d.wait(run_id) for run_id in ("hanging", "queued", "accepted")]
        assert [(each.outcome, each.text) for each in ended] == [
            ("lost", ""), ("finished", "queued"), ("finished", "accepted")
        ]  # fmt: skip
        assert (await d.ask("first", "new")).seq == 1
        assert (await d.ask("a", "new")).seq == 5


@on_old_ledgers
async def test_completions_go_on_behind_a_cursor_and_nothing_comes_before_one(
    ledger: Ledger, cursor: str
) -> None:
    async with DurableDispatcher(echo, ledger) as d, asyncio.timeout(20):
        completions = d.completions(cursor)
        cursors, found = zip(*[await anext(completions) for _ in BEHIND_CURSOR], strict=True)
        assert [each.run_id for each in found] == BEHIND_CURSOR
        for run_id in ("queued", "accepted"):
            await d.wait(run_id)
        later = {(await anext(completions))[1].run_id for _ in range(3)}
        assert later == {"hanging", "queued", "accepted"}
        again = d.completions(cursors[-1])
        assert {(await anext(again))[1].run_id for _ in range(3)} == later
        assert (await d.ask("a", "first", run_id="first")).text == "answer to first"


@on_old_ledgers
async def test_messages_are_those_of_their_turns_and_in_order(ledger: Ledger, cursor: str) -> None:
    async with DurableDispatcher(echo, ledger) as d, asyncio.timeout(20):
        for run_id in ("lead", "folded-1", "folded-2"):
            assert [each.text for each in await d.messages.of_run(run_id)] == TURN
        assert [each.text for each in await d.messages.of_run("failed")] == ["fail", ""]
        await d.ask("a", "new", run_id="new")
        assert [each.text for each in await d.messages.of_run("new")] == ["new", "new"]
        everything = await d.messages.list("a")
        assert [each.text for each in everything] == ["first", "answer to first", *TURN, "new", "new"]
        for number, each in enumerate(everything):
            assert await d.messages.list("a", after=each.id, limit=2) == everything[number + 1 : number + 3]


@on_old_ledgers
async def test_what_is_purged_is_gone_and_its_numbers_do_not_come_again(ledger: Ledger, cursor: str) -> None:
    async with DurableDispatcher(echo, ledger) as d, asyncio.timeout(20):
        for run_id in ("hanging", "queued", "accepted"):
            await d.wait(run_id)
        await d.ask("a", "new", run_id="new")
        end = await d.end_cursor()
        assert await d.purge(before=time.time() + 1) == 11
        assert await d.messages.list("a") == []
        assert await d.messages.of_run("lead") == []
        with pytest.raises(CursorExpired):
            await anext(d.completions(cursor))
        complete = await d.ask("a", "again", run_id="again")
        assert (await anext(d.completions(end)))[1] == complete


# The migrations themselves.


def test_migrations_are_frozen() -> None:
    folder = ROOT / "impl" / "turngate" / "durable" / "sql"
    digests = {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()[:16]
        for file in sorted(folder.glob("*/*.sql"))
    }
    assert digests == FROZEN


def test_there_is_a_dump_of_every_version_of_both_engines() -> None:
    names = {f"{engine}_{n}" for engine in ENGINES for n in range(1, len(migrations(engine)) + 1)}
    assert {dump.stem for dump in DUMPS} >= names - WITHOUT_DUMP


def shape(ledger: Any) -> list[tuple[str, ...]]:
    """Return what the schema of a ledger consists of."""
    if isinstance(ledger, SqliteLedger):
        with closing(sqlite3.connect(ledger.path)) as connection:
            rows = connection.execute(
                "SELECT type, name, sql FROM sqlite_master WHERE sql NOT NULL"
            ).fetchall()
        return sorted((kind, name, normal(text)) for kind, name, text in rows)
    rows = ask_postgres(ledger.dsn, SHAPE)
    return sorted((kind, name, normal(text)) for kind, name, text in rows)


def normal(text: str) -> str:
    """Return SQL without the differences that mean nothing."""
    return re.sub(r"\s*([(),])\s*", r"\1", re.sub(r"\s+", " ", text.replace('"', ""))).strip()


SHAPE = """
    SELECT 'table', table_name || '.' || column_name,
        concat_ws(' ', ordinal_position, data_type, is_nullable, column_default, identity_generation)
    FROM information_schema.columns WHERE table_schema = 'turngate'
    UNION ALL SELECT 'index', indexname, indexdef FROM pg_indexes WHERE schemaname = 'turngate'
    UNION ALL SELECT 'function', proname, pg_get_functiondef(oid)
    FROM pg_proc WHERE pronamespace = 'turngate'::regnamespace
"""


def new_ledger(engine: str, folder: Path) -> Any:
    folder.mkdir(exist_ok=True)
    if engine == "sqlite":
        return SqliteLedger(folder / "new.db")
    return PostgresLedger(new_database(), connections=2)


def made_by_migrations(engine: str, version: int, folder: Path) -> Any:
    """Make what the migrations up to a version make."""
    ledger = new_ledger(engine, folder)
    scripts = migrations(engine)[:version]
    if engine == "sqlite":
        with closing(sqlite3.connect(ledger.path)) as connection:
            for script in scripts:
                connection.executescript(script)
    else:
        make = "CREATE SCHEMA turngate; CREATE TABLE turngate.schema_version (version int NOT NULL);"
        for script in (make, *scripts):
            ask_postgres(ledger.dsn, script.replace("{s}", "turngate"))
    return ledger


async def open_and_close(*ledgers: Ledger) -> None:
    try:
        await asyncio.gather(*[ledger.open() for ledger in ledgers])
    finally:
        await asyncio.gather(*[ledger.close() for ledger in ledgers])


def know_only(patch: pytest.MonkeyPatch, version: int, *more: str) -> None:
    """Have both engines know the migrations up to this version, and then these."""
    known = {engine: (*migrations(engine)[:version], *more) for engine in ENGINES}
    for module in (_sqlite, _postgres):
        patch.setattr(module, "migrations", known.__getitem__)


@pytest.mark.parametrize("dump", DUMPS, ids=lambda dump: dump.stem)
def test_the_migrations_make_what_the_code_of_their_version_made(dump: Path, tmp_path: Path) -> None:
    engine, version = dump.stem.split("_")
    assert shape(load(dump, tmp_path)) == shape(made_by_migrations(engine, int(version), tmp_path))


@pytest.mark.parametrize("dump", DUMPS, ids=lambda dump: dump.stem)
def test_an_old_ledger_that_several_open_at_once_gets_the_schema_of_a_new_one(
    dump: Path, tmp_path: Path
) -> None:
    old, new = load(dump, tmp_path), new_ledger(dump.stem.split("_")[0], tmp_path / "new")
    again = [copy_of(old) for _ in range(5)]
    asyncio.run(open_and_close(old, *again))
    asyncio.run(open_and_close(new))
    assert shape(old) == shape(new)


def copy_of(ledger: Any) -> Any:
    """Return another ledger on the same file or database."""
    if isinstance(ledger, SqliteLedger):
        return SqliteLedger(ledger.path)
    return PostgresLedger(ledger.dsn, connections=2)


def test_a_ledger_of_the_first_days_of_version_1_goes_on(tmp_path: Path) -> None:
    """On PostgreSQL, version 1 had neither ordinals in its history nor functions at first."""
    dump = next(each for each in DUMPS if each.stem == "postgres_1")
    ledger = load(dump, tmp_path)
    ask_postgres(
        ledger.dsn,
        """
        DO $$ DECLARE each regprocedure; BEGIN
            FOR each IN SELECT oid FROM pg_proc WHERE pronamespace = 'turngate'::regnamespace LOOP
                EXECUTE format('DROP FUNCTION %s', each);
            END LOOP;
        END $$;
        ALTER TABLE turngate.history DROP CONSTRAINT history_pkey, DROP COLUMN ordinal;
        ALTER TABLE turngate.history ADD PRIMARY KEY ("position")
        """,
    )

    @in_loop
    async def check() -> None:
        async with asyncio.timeout(60), DurableDispatcher(echo, ledger, poll=0.05) as d:
            ended = [await d.wait(run_id) for run_id in ("hanging", "queued", "accepted")]
            assert [each.outcome for each in ended] == ["lost", "finished", "finished"]
            assert (await d.ask("new", "p")).outcome == "finished"

    check()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_ledger_of_a_newer_turngate_is_refused_and_not_touched(engine: str, tmp_path: Path) -> None:
    ledger = new_ledger(engine, tmp_path)
    asyncio.run(open_and_close(ledger))
    known = len(migrations(engine))
    if engine == "sqlite":
        with closing(sqlite3.connect(ledger.path)) as connection:
            connection.execute("PRAGMA user_version = 99")
    else:
        ask_postgres(ledger.dsn, "INSERT INTO turngate.schema_version VALUES (99)")
    before = shape(ledger)
    refusal = f"the ledger has schema version 99, and this turngate knows versions up to {known}"
    with pytest.raises(UnknownSchema, match=refusal):
        asyncio.run(open_and_close(copy_of(ledger)))
    assert shape(ledger) == before


@pytest.mark.parametrize("engine", ENGINES)
def test_a_migration_that_fails_changes_nothing_and_the_versions_before_it_stay(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dump = next(each for each in DUMPS if each.stem == f"{engine}_1")
    ledger = load(dump, tmp_path)
    broken = (
        f"CREATE TABLE {'' if engine == 'sqlite' else '{s}.'}half_made (x int);\nDROP TABLE no_such_table;\n"
    )
    with monkeypatch.context() as patch:
        know_only(patch, 2, broken)
        with pytest.raises(LedgerUnavailable, match="no_such_table"):
            asyncio.run(open_and_close(copy_of(ledger)))
    assert not [row for row in shape(ledger) if "half_made" in row[1]]
    assert shape(ledger) == shape(made_by_migrations(engine, 2, tmp_path / "second"))
    asyncio.run(open_and_close(ledger))


def test_no_statement_on_sqlite_goes_through_all_messages_or_makes_an_index_of_its_own() -> None:
    asked = [part for each in statements("sqlite").values() for part in each.split(";")]
    explained = 0
    with closing(sqlite3.connect(":memory:")) as connection:
        for script in migrations("sqlite"):
            connection.executescript(script)
        for statement in asked:
            if re.match(r"\s*(SELECT|DELETE|UPDATE|INSERT)\s", statement):
                about = dict.fromkeys("12345") if "$" in statement else [None] * statement.count("?")
                plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", about)]
                assert not [step for step in plan if "AUTOMATIC" in step or "SCAN message" in step], statement
                explained += 1
    assert explained > 25


@pytest.mark.parametrize("engine", ENGINES)
def test_every_statement_that_is_asked_for_is_there_and_none_is_left_over(engine: str) -> None:
    """Statements are asked for by their names, and `{name}` in one stands for another."""
    folder = ROOT / "impl" / "turngate" / "durable"
    by_name = r"""(?:fetch|_send|_page|_sql|_SQL)[(\[]["'](\w+)["']"""
    asking = re.compile(by_name + r'|^\s+"(\w+)": \[|"(purge_\w+)"', re.MULTILINE)
    sources = [folder / "_sql.py", *folder.glob(f"_{engine}*.py")]
    asked = {max(names) for source in sources for names in asking.findall(source.read_text())}
    text = (folder / "sql" / f"{engine}.sql").read_text()
    there = {*re.findall(r"^-- name: (\w+)$", text, re.MULTILINE)}
    assert there == asked | {*re.findall(r"\{(\w\w+)\}", text)} - {
        *re.findall(r"\{(\w+_(?:columns|values))\}", text)
    }
    assert len(there) > 45
