"""What both engines do by SQL: frozen migrations, statements, and the purge."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import signal
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dispatching import echo, in_loop
from ledgers import spec_of
from old_ledgers import DUMPS, ask_postgres, cursor_of, load, new_database
from surroundings import ROOT
from turngate import CursorExpired, UnknownSchema
from turngate.durable import (
    DurableDispatcher,
    Ledger,
    LedgerUnavailable,
    PostgresLedger,
    PurgeCutShort,
    SqliteLedger,
    _postgres,
    _sql,
    _sqlite,
)
from turngate.durable._sql import migrations, statements
from turngate.durable._swap import Unanswered

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
    "postgres/0006_line.sql": "7259534f5531c3b0",
    "sqlite/0001_ledger.sql": "cfc397a6e1bacb7d",
    "sqlite/0002_runs_by_id.sql": "5b7b3650fe28bd42",
    "sqlite/0003_epochs.sql": "10fbd48f03b6539d",
    "sqlite/0004_keys.sql": "2504e2aa4a7a405f",
    "sqlite/0005_line.sql": "06f2a695278172c9",
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
async def test_runs_in_flight_complete_after_a_migration(ledger: Ledger, cursor: str) -> None:
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
async def test_purged_runs_are_gone_and_their_numbers_are_not_used_again(ledger: Ledger, cursor: str) -> None:
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
def test_the_migrations_create_the_schemas_of_their_versions(dump: Path, tmp_path: Path) -> None:
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


def test_a_ledger_of_the_earliest_version_1_can_be_used(tmp_path: Path) -> None:
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


def test_no_sqlite_statement_scans_all_messages_or_builds_an_automatic_index() -> None:
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
def test_every_statement_in_use_exists_and_none_is_unused(engine: str) -> None:
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


# Purges: slice by slice, beside everything else, and never hiding a RunComplete from a reader in silence.

LATER = 60.0
"""In this many seconds from now, everything complete lies in the past."""


def make_ledger(engine: str, folder: Path) -> Any:
    if engine == "sqlite":
        return SqliteLedger(folder / "ledger.db", synchronous="NORMAL")
    return PostgresLedger(new_database(), connections=2)


def another(ledger: Any) -> Any:
    return SqliteLedger(ledger.path) if isinstance(ledger, SqliteLedger) else PostgresLedger(ledger.dsn)


def on_engines(test: Any) -> Any:
    @pytest.mark.parametrize("engine", ENGINES)
    def wrapper(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(_sql, "_SLICE", 10)
        in_loop(test)(make_ledger(engine, tmp_path))

    wrapper.__name__ = test.__name__
    return wrapper


async def complete(d: DurableDispatcher, number: int, name: str = "r") -> None:
    async with asyncio.TaskGroup() as group:
        for n in range(number):
            group.create_task(d.ask(f"{name}-session-{n % 30}", "p", run_id=f"{name}-{n}"))


async def kept(d: DurableDispatcher) -> set[str]:
    end = await d.end_cursor()
    return {each.run_id async for _, each in d.completions(until=end)}


@on_engines
async def test_a_purge_works_in_slices_between_which_other_steps_go_on(ledger: Any) -> None:
    async with DurableDispatcher(echo, ledger) as d, DurableDispatcher(echo, another(ledger)) as other:
        await complete(d, 200)
        await asyncio.sleep(0.05)
        before = time.time()  # not later: what is asked meanwhile would have to be purged too, without an end
        seen: list[int] = []
        asked = 0

        async def keep_asking() -> None:
            nonlocal asked
            while True:
                await other.ask("meanwhile", "p")
                asked += 1

        asking = asyncio.create_task(keep_asking())
        try:
            gone = await d.purge(before=before, progress=seen.append)
        finally:
            asking.cancel()
        await asyncio.wait([asking])
        assert asked > 0
        assert seen == sorted(set(seen))
        assert seen[-1] == gone >= 200
        assert len(seen) >= 20
        assert not await kept(d) & {f"r-{n}" for n in range(200)}
        assert await d.messages.list("r-session-1") == []
        assert (await d.ask("r-session-1", "p")).seq == 1  # the session is gone too


@on_engines
async def test_a_purge_deletes_only_runs_that_were_complete_by_then(ledger: Any) -> None:
    async with DurableDispatcher(echo, ledger) as d:
        await complete(d, 40, "old")
        await asyncio.sleep(0.05)
        before = time.time()
        await asyncio.sleep(0.05)
        await complete(d, 40, "new")
        held = await d.accept("old-session-3", "p", run_id="held")
        assert await d.purge(before=before) == 40
        assert await kept(d) == {f"new-{n}" for n in range(40)}
        assert (await d.ask("old-session-3", "p")).seq > 2  # a session with a run in flight stays
        assert (await d.ask("old-session-1", "p")).seq == 1
        assert (await d.ask("new-session-1", "p")).seq > 1
        assert [each.text for each in await d.messages.of_run("new-0")] == ["p", "p"]
        await d.enter(held)
        assert (await held.wait()).outcome == "finished"
        assert await d.purge(before=before) == 0


@on_engines
async def test_a_purge_cut_short_reports_what_is_gone_and_another_one_deletes_the_rest(ledger: Any) -> None:
    fetch, slices = ledger.fetch, 0

    async def failing(name: str, *about: object) -> Any:
        nonlocal slices
        slices += name == "purge_look_at_runs"
        if slices == 4:
            slices += 1
            raise LedgerUnavailable("the ledger is away")
        return await fetch(name, *about)

    async with DurableDispatcher(echo, ledger) as d:
        await complete(d, 60)
        ledger.fetch = failing
        with pytest.raises(PurgeCutShort, match="the ledger is away") as cut_short:
            await d.purge(before=time.time() + LATER)
        gone = cut_short.value.purged
        assert 0 < gone < 60
        assert len(await kept(d)) == 60 - gone
        assert await d.purge(before=time.time() + LATER) == 60 - gone
        slices = 3
        with pytest.raises(LedgerUnavailable) as nothing_done:
            await d.purge(before=time.time() + LATER)
        assert not isinstance(nothing_done.value, PurgeCutShort)


@pytest.mark.parametrize("saved", [True, False])
def test_runs_of_an_unanswered_purge_are_counted_once(saved: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = make_ledger("postgres", Path())
    monkeypatch.setattr(_sql, "_SLICE", 10)

    @in_loop
    async def test() -> None:
        async with DurableDispatcher(echo, ledger) as d:
            await complete(d, 30)
            send, lost = ledger._server.send, 0

            async def losing(statement: str, *about: object) -> Any:
                nonlocal lost
                if "DELETE FROM turngate.run" in statement and lost == 0:
                    lost += 1
                    if saved:
                        await send(statement, *about)
                    raise Unanswered("no answer")
                return await send(statement, *about)

            ledger._server.send = losing
            assert await d.purge(before=time.time() + LATER) == 30
            assert lost == 1

    test()


@pytest.mark.needs
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("read_first", [0, 2])
def test_a_process_stopped_during_a_purge_learns_that_something_is_missing(
    engine: str, read_first: int, tmp_path: Path
) -> None:
    ledger = make_ledger(engine, tmp_path)

    async def line(process: asyncio.subprocess.Process, heard: set[str], *wanted: str) -> None:
        assert process.stdout is not None
        while not heard.issuperset(wanted):
            heard.add((await process.stdout.readline()).decode().strip() or "the end")
            assert "the end" not in heard

    @in_loop
    async def test() -> None:
        async with DurableDispatcher(echo, ledger, enter_timeout=600.0) as d, asyncio.timeout(60):
            await d.ask("s", "p", run_id="first")
            waited_for = await d.accept("t", "p", run_id="waited-for")
            program = ROOT / "tests" / "support" / "reading_process.py"
            where = spec_of(ledger).split(" ")[0]
            process = await asyncio.create_subprocess_exec(
                sys.executable, program, where, await d.end_cursor(), stdout=asyncio.subprocess.PIPE
            )
            heard: set[str] = set()
            try:
                await line(process, heard, "completes begins", "moves begins", "wait begins")
                for n in range(read_first):
                    await d.ask("s", "p", run_id=f"read-{n}")
                    await line(process, heard, *(f"{who} read-{n}" for who in ("completes", "moves")))
                    await line(process, heard, f"completions read-{n}")
                os.kill(process.pid, signal.SIGSTOP)
                await complete(d, 5, "hidden")
                await d.enter(waited_for)
                await waited_for.wait()
                assert await d.purge(before=time.time() + LATER) == 7 + read_first
                await d.ask("s", "p", run_id="last")
                os.kill(process.pid, signal.SIGCONT)
                await line(
                    process, heard, "completes is cut off", "moves is cut off", "completions have expired",
                    "wait does not know the run",
                )  # fmt: skip
                assert not {each for each in heard if "last" in each}
            finally:
                process.kill()
                await process.wait()
                process._transport.close()  # type: ignore[attr-defined]  # or it is left to the garbage collector

    test()


@on_engines
async def test_completions_that_began_on_an_empty_ledger_expire_too(ledger: Any) -> None:
    async with DurableDispatcher(echo, ledger) as d:
        waiting = d.completions()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(waiting), 0.2)
        finished, passed = ledger.completions_after, asyncio.Event()

        async def late(*about: Any) -> Any:
            await passed.wait()
            return await finished(*about)

        ledger.completions_after = late
        reading = asyncio.create_task(anext(waiting))
        await asyncio.sleep(0.05)
        await d.ask("s", "p")
        ledger.completions_after = finished
        assert await d.purge(before=time.time() + LATER) == 1
        passed.set()
        with pytest.raises(CursorExpired):
            await reading


@on_engines
async def test_readers_beyond_the_purged_completions_go_on(ledger: Any) -> None:
    async with (
        DurableDispatcher(echo, ledger) as d,
        d.subscribe() as events,
        d.subscribe(moves=True) as moves,
    ):
        reading = d.completions()
        for name in ("a", "b", "c"):
            await complete(d, 25, name)
            read = {(await anext(reading))[1].run_id for _ in range(25)}
            assert read == {(await anext(events)).run_id for _ in range(25)}
            while read:
                event = await anext(moves)
                if type(event).__name__ == "RunComplete":
                    read.discard(event.run_id or "")
            assert await d.purge(before=time.time() + LATER) == 25


@pytest.mark.deep
def test_a_million_runs_are_purged_while_others_go_on(tmp_path: Path) -> None:
    number, day = 1_000_000, 86_400.0
    path = tmp_path / "ledger.db"

    def fill() -> None:
        """Write old runs as the tables have them, which is quicker than to run them."""
        old = time.time() - 9 * day
        with closing(sqlite3.connect(path)) as connection:
            connection.executemany(
                """
                INSERT INTO run (run_id, session_id, seq, state, when_busy, covered, holder, place, prompt,
                    attachments, digest, accepted_at, completed_at, text, cancelled, message_id, outcome,
                    position, ordinal)
                VALUES
                    (?, ?, ?, 'complete', 'fold', 0, 1, 0, '', '', '', ?, ?, 'text', 0, ?, 'finished', ?, 0)
                """,
                ((f"run-{n}", f"session-{n // 10}", n, old, old, f"msg-{n}", 100 + n) for n in range(number)),
            )
            connection.execute("UPDATE meta SET number = ?", (number + 1_000,))
            connection.commit()

    async def main() -> None:
        async with DurableDispatcher(echo, SqliteLedger(path)) as d:
            await d.ask("s", "p", run_id="before")
        await asyncio.to_thread(fill)
        async with (
            DurableDispatcher(echo, SqliteLedger(path)) as d,
            DurableDispatcher(echo, SqliteLedger(path)) as other,
        ):
            seen: list[int] = []
            purging = asyncio.create_task(d.purge(before=time.time() - day, progress=seen.append))
            asked = 0
            while not purging.done():
                await other.ask(f"meanwhile-{asked}", "p")
                asked += 1
            assert await purging == seen[-1] == number
            assert len(seen) > 1_000
            assert asked > 10
            assert len(await kept(d)) == asked + 1

    asyncio.run(main())
