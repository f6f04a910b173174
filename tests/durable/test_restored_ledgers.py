"""A ledger that is restored from a backup: what readers of its lost life hold is answered truthfully."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dispatching import echo, in_loop
from leave_ledger import runner
from old_ledgers import ask_postgres, new_database
from postgres import Cluster, cluster, programs
from turngate import CursorExpired
from turngate.durable import DurableDispatcher, LedgerUnavailable, PostgresLedger, SqliteLedger

SOON = 30.0


async def kept(d: DurableDispatcher, after: str | None = None) -> list[tuple[str, str]]:
    """Return the cursors and runs of what is complete behind a cursor."""
    end = await d.end_cursor()
    return [(cursor, each.run_id) async for cursor, each in d.completions(after, until=end)]


async def ask(d: DurableDispatcher, *run_ids: str) -> None:
    for run_id in run_ids:
        await d.ask("s", "p", run_id=run_id)


async def check_expired(d: DurableDispatcher, cursors: list[str]) -> None:
    for cursor in cursors:
        for options in ({"after": cursor}, {"until": cursor}):
            async with asyncio.timeout(SOON):
                with pytest.raises(CursorExpired):
                    await anext(d.completions(**options))


async def live(
    ledger: Any,
    run_ids: list[str],
    first: list[str] | None = None,
    back_up: Callable[[], None] = lambda: None,
) -> list[str]:
    """Live a life on a ledger: complete some runs, and return the cursors of these and of the end.

    A backup may be made in the middle of it, behind the `first` runs.
    """
    async with DurableDispatcher(echo, ledger) as d, asyncio.timeout(SOON):
        await ask(d, *(first or ()))
        await asyncio.to_thread(back_up)
        await ask(d, *run_ids)
        return [*(cursor for cursor, run in await kept(d) if run in run_ids), await d.end_cursor()]


async def live_again(ledger: Any, before: list[str], run_ids: list[str], lost: list[str]) -> None:
    """Live the life behind a restore: the cursors that were lost have expired, and nothing is missing."""
    async with DurableDispatcher(echo, ledger) as d, asyncio.timeout(SOON):
        await check_expired(d, lost)
        told: list[str] = []
        async with d.subscribe() as events:
            await ask(d, *run_ids)
            while len(told) < len(run_ids):
                told.append((await anext(events)).run_id or "")
        assert told == run_ids
        await check_expired(d, lost)  # also when others have passed them
        assert [run for _, run in await kept(d)] == before + run_ids
        cursors = [cursor for cursor, _ in await kept(d)]
        for number, cursor in enumerate(cursors, 1):
            assert [run for _, run in await kept(d, cursor)] == (before + run_ids)[number:]


# SQLite: an older backup is put in place of the file.


def copied(path: Path, backup: Path) -> None:
    shutil.copy(path, backup)


def vacuumed(path: Path, backup: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("VACUUM INTO ?", (str(backup),))


def backed_up(path: Path, backup: Path) -> None:
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(backup)) as target:
        source.backup(target)


def dumped(path: Path, backup: Path) -> None:
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(backup)) as target:
        (version,) = source.execute("PRAGMA user_version").fetchone()
        target.executescript("\n".join(source.iterdump()))
        target.execute(f"PRAGMA user_version = {version}")


WAYS = [(way, lives) for way in (copied, vacuumed, backed_up, dumped) for lives in (0, 1, 2)]


@pytest.mark.parametrize(("back_up", "lives"), [each for each in WAYS if each != (copied, 0)])
def test_cursors_that_an_older_backup_of_a_file_has_lost_are_expired(
    back_up: Callable[[Path, Path], None], lives: int, tmp_path: Path
) -> None:
    path, backup = tmp_path / "ledger.db", tmp_path / "backup.db"
    good = asyncio.run(live(SqliteLedger(path), ["a", "b"]))
    lost: list[str] = []
    if lives == 0:  # of a file that is in use: the lost life has begun before the backup
        lost += asyncio.run(live(SqliteLedger(path), ["lost"], back_up=lambda: back_up(path, backup)))
    else:
        back_up(path, backup)
    for number in range(lives):
        lost += asyncio.run(live(SqliteLedger(path), [f"lost-{number}-{n}" for n in range(3)]))
    for file in tmp_path.glob("ledger.db*"):
        file.unlink()
    shutil.copy(backup, path)

    new = ["c", "d", "e", "f", "g"]
    in_loop(live_again)(SqliteLedger(path), ["a", "b"], new, lost)
    in_loop(live_again)(SqliteLedger(path), ["a", "b", *new], ["h"], lost)

    @in_loop
    async def old_cursors_are_good() -> None:
        async with DurableDispatcher(echo, SqliteLedger(path)) as d:
            assert [run for _, run in await kept(d, good[0])] == ["b", *new, "h"]
            assert [run for _, run in await kept(d, good[1])] == [*new, "h"]
            assert [run for _, run in await kept(d, good[2])] == [*new, "h"]

    old_cursors_are_good()


def test_a_backup_that_is_written_into_the_file_while_it_is_open_is_noticed(tmp_path: Path) -> None:
    """As `.restore` of the sqlite3 program does it: with transactions, so that the file itself is sound."""
    path = tmp_path / "ledger.db"

    @in_loop
    async def check(when: str) -> None:
        backup = tmp_path / f"{when}.db"
        async with DurableDispatcher(echo, SqliteLedger(path)) as d:
            await ask(d, f"{when} a")
        if when == "before it was opened":
            backed_up(path, backup)
        async with asyncio.timeout(SOON):
            d = DurableDispatcher(echo, SqliteLedger(path), poll=3600.0)
            events = d.subscribe()
            await ask(d, f"{when} b")
            if when != "before it was opened":
                await asyncio.to_thread(backed_up, path, backup)
            await ask(d, f"{when} lost 1", f"{when} lost 2")
            await asyncio.to_thread(backed_up, backup, path)
            if when == "and others went on":
                async with DurableDispatcher(echo, SqliteLedger(path)) as other:
                    await ask(other, *(f"{when} new {n}" for n in range(3)))
            with pytest.raises(LedgerUnavailable, match="restored"):
                await ask(d, f"{when} late")
            with pytest.raises(LedgerUnavailable, match="restored"):
                await d.find(f"{when} a")
            await d.aclose()
            events.close()
        async with DurableDispatcher(echo, SqliteLedger(path)) as d:
            assert await d.find(f"{when} a") is not None
            assert await d.find(f"{when} lost 1") is None
            assert await d.find(f"{when} late") is None

    for when in ("before it was opened", "while it was open", "and others went on"):
        check(when)


def test_changes_to_a_file_that_keep_its_content_are_not_a_restore(tmp_path: Path) -> None:
    """Two processes take turns; purges forget all epochs but the last, and a third tidies up."""
    path = tmp_path / "ledger.db"

    def tidy_up() -> None:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("VACUUM")
            connection.execute("ANALYZE")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            connection.execute("DELETE FROM epoch WHERE number < (SELECT max(number) FROM epoch)")
            connection.commit()

    @in_loop
    async def check() -> None:
        async with asyncio.timeout(SOON), DurableDispatcher(echo, SqliteLedger(path), poll=0.05) as one:
            for number in range(5):
                ledger = SqliteLedger(path)
                async with DurableDispatcher(echo, ledger, poll=0.05) as two:
                    await asyncio.gather(ask(one, f"one {number}"), ask(two, f"two {number}"))
                    await one.purge(before=4e9)
                    await ask(one, f"one again {number}")
                    await ask(two, f"two again {number}")
                    await asyncio.to_thread(tidy_up)
                    await ask(two, f"two at last {number}")
                await ask(one, f"one at last {number}")

    check()


# PostgreSQL: a dump is restored elsewhere, or an older copy of the whole cluster.


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Cluster]:
    """Another cluster, whose transactions have lower ids."""
    cluster()  # or skip
    found = programs()
    assert found is not None
    made = Cluster(found)
    try:
        yield made
    finally:
        made.remove()


def burn(dsn: str, transactions: int) -> None:
    """Use up ids of transactions."""
    script = f"""
        DO $$ BEGIN FOR n IN 1..{transactions} LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$
    """
    ask_postgres(dsn, script)


def dump(dsn: str) -> str:
    found = programs()
    assert found is not None
    command = [str(found / "pg_dump"), "--inserts", "--no-owner", "--no-privileges", "--schema=turngate", dsn]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return "\n".join(line for line in done.stdout.splitlines() if not line.startswith(("\\", "--")))


@pytest.mark.parametrize("where", ["another cluster", "another database", "the same database"])
def test_a_restored_dump_can_be_used(where: str, elsewhere: Cluster) -> None:
    home = new_database()
    burn(home, 3000)
    backups: list[str] = []
    first = ["a", "b"]
    lost = asyncio.run(live(PostgresLedger(home), ["lost"], first, lambda: backups.append(dump(home))))
    backup = backups[0]
    lost += asyncio.run(live(PostgresLedger(home), ["lost-1", "lost-2"]))
    if where == "the same database":
        ask_postgres(home, "DROP SCHEMA turngate CASCADE")
        ask_postgres(home, backup)
        restored = home
    else:
        restored = new_database(backup, on=elsewhere if where == "another cluster" else cluster())

    if where == "another cluster":  # there alone are positions lower than those that are stored
        (stored,), *_ = ask_postgres(restored, 'SELECT max("position") FROM turngate.run')
        (now,), *_ = ask_postgres(restored, "SELECT pg_current_xact_id()::text::bigint")
        assert now < stored
    in_loop(live_again)(PostgresLedger(restored), ["a", "b"], ["c", "d"], lost)
    in_loop(live_again)(PostgresLedger(restored), ["a", "b", "c", "d"], ["e"], lost)

    @in_loop
    async def nothing_comes_again() -> None:
        async with DurableDispatcher(echo, PostgresLedger(restored), poll=0.1) as d, d.subscribe() as events:
            await ask(d, "f")
            assert (await anext(events)).run_id == "f"
            await asyncio.to_thread(burn, restored, 4000)  # past the positions that are stored
            await ask(d, "g")
            assert (await anext(events)).run_id == "g"
            assert [run for _, run in await kept(d)] == ["a", "b", "c", "d", "e", "f", "g"]
            await check_expired(d, lost)

    nothing_comes_again()


def test_workers_from_before_the_dump_are_dead_and_their_names_are_not_used_again(
    elsewhere: Cluster,
) -> None:
    home = new_database()
    names: list[int] = []

    @in_loop
    async def leave() -> None:
        async with DurableDispatcher(runner, PostgresLedger(home), lease=100_000.0) as d:
            await d.submit("s", "hang", run_id="hanging")
            await d.submit("s", "p", run_id="queued")
            await d.accept("t", "p", run_id="accepted")
            while (found := await d.find("hanging")) is None or found.state != "active":
                await asyncio.sleep(0.01)
            backups.append(await asyncio.to_thread(dump, home))
            names.append(d._stepper.name)

    @in_loop
    async def go_on(restored: str) -> None:
        async with DurableDispatcher(echo, PostgresLedger(restored)) as d, asyncio.timeout(SOON):
            ended = [await d.wait(run_id) for run_id in ("hanging", "queued", "accepted")]
            assert [each.outcome for each in ended] == ["lost", "finished", "finished"]
            names.append(d._stepper.name)
        ((fence,),) = ask_postgres(restored, "SELECT max(fence) FROM turngate.session")
        assert fence > 2**32

    backups: list[str] = []
    leave()
    restored = new_database(backups[0], on=elsewhere)
    go_on(restored)
    assert names[1] > names[0] + 2**32


def test_an_older_copy_of_the_whole_cluster_can_be_used(elsewhere: Cluster, tmp_path: Path) -> None:
    home = new_database(on=elsewhere)
    good = asyncio.run(live(PostgresLedger(home), ["a", "b"]))
    elsewhere.stop("fast")
    elsewhere.copy_to(tmp_path / "copy")
    elsewhere.start()
    lost = asyncio.run(live(PostgresLedger(home), [f"lost-{n}" for n in range(5)]))
    elsewhere.stop("fast")
    elsewhere.put_back(tmp_path / "copy")
    elsewhere.start()
    in_loop(live_again)(PostgresLedger(home), ["a", "b"], ["c", *(f"new-{n}" for n in range(20))], lost)

    @in_loop
    async def old_cursors_are_good() -> None:
        async with DurableDispatcher(echo, PostgresLedger(home)) as d:
            for cursor, expected in zip(good, ["b", "c", "c"], strict=True):
                assert (await kept(d, cursor))[0][1] == expected

    old_cursors_are_good()


# Neither: a plain stop and start.


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_cursors_are_good_after_a_restart(engine: str, tmp_path: Path) -> None:
    dsn = new_database() if engine == "postgres" else ""

    def make() -> Any:
        return PostgresLedger(dsn) if dsn else SqliteLedger(tmp_path / "ledger.db")

    good: list[str] = []
    runs: list[str] = []
    for number in range(3):
        good += asyncio.run(live(make(), [f"{number}-a", f"{number}-b"]))
        runs += [f"{number}-a", f"{number}-b", ""]

    @in_loop
    async def check() -> None:
        async with DurableDispatcher(echo, make()) as d, DurableDispatcher(echo, make()) as e:
            await ask(d, "last")
            for number, cursor in enumerate(good, 1):
                expected = [run for run in [*runs[number:], "last"] if run]
                assert [run for _, run in await kept(d, cursor)] == expected
                assert [run for _, run in await kept(e, cursor)] == expected
            name, position, ordinal = good[-2].split(".")
            for forged in (f"{name}.{int(position) + 10**6}.{ordinal}", f"0{name}.{position}.{ordinal}"):
                await check_expired(d, [forged])

    check()


def test_a_cursor_that_is_given_while_another_process_opens_the_ledger_is_good() -> None:
    """The other one has begun its epoch and not committed it, and another process goes on meanwhile."""
    home = new_database()

    @in_loop
    async def check() -> None:
        import asyncpg  # noqa: PLC0415 - the package may be missing, and then the cluster is

        holder = await asyncpg.connect(home)
        try:
            async with DurableDispatcher(echo, PostgresLedger(home)) as d, asyncio.timeout(SOON):
                await ask(d, "a")
                async with holder.transaction():
                    await holder.execute("LOCK TABLE turngate.epoch IN SHARE MODE")
                    other = PostgresLedger(home)
                    opening = asyncio.create_task(other.open())
                    while not await holder.fetchval(IS_AWAITED):
                        await asyncio.sleep(0.01)
                    await ask(d, "b")
                    cursors = [asyncio.create_task(d.end_cursor()) for _ in range(3)]
                    await asyncio.sleep(0.1)
                await opening
                await ask(d, "c")
                for cursor in cursors:
                    assert [run for _, run in await kept(d, await cursor)] == ["c"]
                await other.close()
        finally:
            await holder.close()

    check()


IS_AWAITED = """
    SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation = 'turngate.epoch'::regclass)
"""
