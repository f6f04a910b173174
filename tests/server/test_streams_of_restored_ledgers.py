"""Event streams on a ledger that was restored, or purged: readers learn that something is missing."""

from __future__ import annotations

import asyncio
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from dispatching import echo, in_loop
from old_ledgers import new_database
from serving import Ear, served
from turngate.durable import DurableDispatcher, PostgresLedger, SqliteLedger
from turngate.server._cursor import Cursor, mark


@pytest.mark.parametrize("passed_by", [0, 8])
def test_a_reader_of_the_lost_life_gets_a_gap_and_a_snapshot(passed_by: int, tmp_path: Path) -> None:
    path, backup = tmp_path / "ledger.db", tmp_path / "backup.db"

    async def live(*run_ids: str) -> list[str | None]:
        async with served(DurableDispatcher(echo, SqliteLedger(path))) as (url, http):
            ear = await Ear.open(url)
            for run_id in run_ids:
                await http.post("/v1/sessions/s/runs", json={"prompt": "p", "run_id": run_id})
            heard = await ear.complete(*run_ids)
            ear.close()
            return [each.id for each in heard if each.event == "run.complete"]

    @in_loop
    async def restored(good: list[str | None], lost: list[str | None]) -> None:
        async with served(DurableDispatcher(echo, SqliteLedger(path))) as (url, http), asyncio.timeout(60):
            new = [f"new-{n}" for n in range(passed_by)]
            for run_id in new:
                await http.post("/v1/sessions/s/runs", json={"prompt": "p", "run_id": run_id})
                await http.get(f"/v1/runs/{run_id}?wait=30")
            for cursor in lost:
                ear = await Ear.open(url, after=cursor)
                heard = await ear.until(lambda each: each.event == "snapshot")
                assert [each.event for each in heard] == ["gap", "snapshot"]
                assert heard[-1].data["reset"]
                ear.close()
            ear = await Ear.open(url, after=good[-1])
            await http.post("/v1/sessions/s/runs", json={"prompt": "p", "run_id": "last"})
            heard = await ear.complete(*new, "last")
            completes = [each.data["run_id"] for each in heard if each.event == "run.complete"]
            assert completes == [*new, "last"]
            ear.close()

    good = asyncio.run(live("a", "b"))
    shutil.copy(path, backup)
    lost = asyncio.run(live("lost-1", "lost-2", "lost-3"))
    for file in tmp_path.glob("ledger.db*"):
        file.unlink()
    shutil.copy(backup, path)
    restored(good, lost)


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_a_reader_behind_a_purge_gets_a_gap(engine: str, tmp_path: Path) -> None:
    dsn = new_database() if engine == "postgres" else ""

    def make() -> Any:
        return PostgresLedger(dsn) if dsn else SqliteLedger(tmp_path / "ledger.db")

    async def first_life() -> str | None:
        async with served(DurableDispatcher(echo, make())) as (url, http):
            ear = await Ear.open(url)
            await http.post("/v1/sessions/s/runs", json={"prompt": "p", "run_id": "read"})
            cursor = (await ear.complete("read"))[-1].id
            ear.close()
            return cursor

    @in_loop
    async def second_life(cursor: str) -> None:
        d = DurableDispatcher(echo, make())
        async with served(d) as (url, _), asyncio.timeout(60):
            await d.ask("s", "p", run_id="hidden")
            assert await d.purge(before=time.time() + 60) == 2
            ear = await Ear.open(url, after=cursor)
            heard = await ear.until(lambda each: each.event == "snapshot")
            assert [each.event for each in heard] == ["gap", "snapshot"]
            assert heard[-1].data["reset"]
            ear.close()

    cursor = asyncio.run(first_life())
    assert cursor is not None
    second_life(cursor)


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_a_reader_that_has_read_everything_goes_on_at_a_server_that_a_purge_has_passed(
    engine: str, tmp_path: Path
) -> None:
    """The other server has not read yet what was purged; the reader has missed nothing all the same."""
    dsn = new_database() if engine == "postgres" else ""

    def deaf(ledger: Any) -> Any:
        """Have a ledger hear of nothing before it looks."""
        ledger.listen = lambda wake: None
        return ledger

    def make() -> Any:
        return PostgresLedger(dsn) if dsn else SqliteLedger(tmp_path / "ledger.db")

    @in_loop
    async def check() -> None:
        async with (
            DurableDispatcher(echo, make()) as one,
            DurableDispatcher(echo, deaf(make()), poll=2.0) as two,
            served(one) as (url, http),
            served(two) as (late_url, _),
            asyncio.timeout(60),
        ):
            ear = await Ear.open(url)
            for run_id in ("a", "b"):
                await http.post("/v1/sessions/s/runs", json={"prompt": "p", "run_id": run_id})
            await ear.complete("a", "b")
            cursor = ""
            while cursor.count(":") != 2:  # until no RunComplete is ahead of the completions
                cursor = (await http.get("/v1/sessions")).json()["cursor"]
            assert await one.purge(before=time.time() + 60) == 2
            again = await Ear.open(late_url, after=cursor)
            await http.post("/v1/sessions/s/runs", json={"prompt": "p", "run_id": "c"})
            heard = await again.complete("c")
            assert not any(each.data["reset"] for each in heard if each.event == "snapshot")
            assert [each.data["run_id"] for each in heard if each.event == "run.complete"] == ["c"]
            ear.close()
            again.close()

    check()


def test_a_reader_that_was_told_another_outcome_of_a_run_in_the_lost_life_begins_again(
    tmp_path: Path,
) -> None:
    """The run was in flight in the backup, and its RunComplete ahead of the completions in the lost life."""

    @in_loop
    async def check() -> None:
        d = DurableDispatcher(echo, SqliteLedger(tmp_path / "ledger.db"))
        async with served(d) as (url, _), asyncio.timeout(60):
            start = await d.settled_cursor()
            complete = await d.ask("s", "p", run_id="a")
            for told, is_anew in (
                (complete, False),
                (complete._replace(outcome="lost", error="it died"), True),
            ):
                place = Cursor("lost", 7, start, frozenset({mark(told)}))
                ear = await Ear.open(url, after=str(place))
                (*_, last) = await ear.until(lambda each: each.event == "snapshot")
                assert last.data["reset"] is is_anew
                ear.close()

    check()
