"""A ledger that an older Turngate has written gets the current schema, and everything in it goes on."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dispatching import echo, in_loop
from ledgers import MakeLedger, ledgers
from turngate import CursorExpired, UnknownSchema
from turngate.durable import DurableDispatcher, SqliteLedger, _postgres_sql, _sqlite_schema

OLD = Path(__file__).with_name("ledger_of_schema_1.sql")
"""What a process of schema 1 left behind that died with one run accepted, one queued and one active."""
CURSOR = "8a3195422498.4.0"
"""One that it gave, behind the second of its completions."""
BEHIND_CURSOR = ["lead", "folded-1", "folded-2", "second", "cancelled"]
TURN = ["wait 1", "also 1", "also 2", "answer to wait 1"]


def old_ledger(folder: Path) -> SqliteLedger:
    """Make the file of an older Turngate."""
    path = folder / "ledger.db"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.executescript(OLD.read_text())
    connection.close()
    return SqliteLedger(path)


def on_old_ledger(test: Any) -> Any:
    def wrapper(tmp_path: Path) -> None:
        in_loop(test)(old_ledger(tmp_path))

    wrapper.__name__ = test.__name__
    return wrapper


@on_old_ledger
async def test_what_was_in_flight_comes_to_its_end(ledger: SqliteLedger) -> None:
    async with DurableDispatcher(echo, ledger) as d, asyncio.timeout(20):
        ended = [await d.wait(run_id) for run_id in ("hanging", "queued", "accepted")]
        assert [(each.outcome, each.text) for each in ended] == [
            ("lost", ""), ("finished", "queued"), ("finished", "accepted")
        ]  # fmt: skip
        assert (await d.ask("first", "new")).seq == 1
        assert (await d.ask("a", "new")).seq == 5


@on_old_ledger
async def test_completions_go_on_behind_a_cursor_and_nothing_comes_before_one(ledger: SqliteLedger) -> None:
    async with DurableDispatcher(echo, ledger) as d, asyncio.timeout(20):
        completions = d.completions(CURSOR)
        cursors, found = zip(*[await anext(completions) for _ in BEHIND_CURSOR], strict=True)
        assert [each.run_id for each in found] == BEHIND_CURSOR
        for run_id in ("queued", "accepted"):
            await d.wait(run_id)
        later = {(await anext(completions))[1].run_id for _ in range(3)}
        assert later == {"hanging", "queued", "accepted"}
        again = d.completions(cursors[-1])
        assert {(await anext(again))[1].run_id for _ in range(3)} == later
        assert (await d.ask("a", "first", run_id="first")).text == "answer to first"


@on_old_ledger
async def test_messages_are_those_of_their_turns_and_in_order(ledger: SqliteLedger) -> None:
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


@on_old_ledger
async def test_what_is_purged_is_gone_and_its_numbers_do_not_come_again(ledger: SqliteLedger) -> None:
    async with DurableDispatcher(echo, ledger) as d, asyncio.timeout(20):
        for run_id in ("hanging", "queued", "accepted"):
            await d.wait(run_id)
        await d.ask("a", "new", run_id="new")
        end = await d.end_cursor()
        assert await d.purge(before=time.time() + 1) == 11
        assert await d.messages.list("a") == []
        assert await d.messages.of_run("lead") == []
        with pytest.raises(CursorExpired):
            await anext(d.completions(CURSOR))
        complete = await d.ask("a", "again", run_id="again")
        assert (await anext(d.completions(end)))[1] == complete


@pytest.mark.needs
def test_a_schema_of_postgres_is_brought_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @in_loop
    async def old(make: MakeLedger) -> None:
        ledger = make()
        await ledger.open()
        await ledger.close()

    @in_loop
    async def new(make: MakeLedger) -> None:
        async with DurableDispatcher(echo, make()) as d:
            assert [(await d.ask("s", "p")).seq for _ in range(3)] == [1, 2, 3]

    with ledgers("postgres", tmp_path) as make:
        with monkeypatch.context() as patch:
            patch.setattr(_postgres_sql, "MIGRATIONS", _postgres_sql.MIGRATIONS[:1])
            old(make)
        new(make)
        new_again = make()
        with monkeypatch.context() as patch:
            patch.setattr(_postgres_sql, "MIGRATIONS", _postgres_sql.MIGRATIONS[:1])
            with pytest.raises(UnknownSchema, match="the ledger is of schema 2; this turngate knows 1"):
                in_loop(new_again.open)()


def test_no_statement_on_sqlite_goes_through_all_messages_or_makes_an_index_of_its_own() -> None:
    asked = [
        *_sqlite_schema.PURGE,
        *(each for each in vars(_sqlite_schema).values() if isinstance(each, str)),
    ]
    explained = 0
    with closing(sqlite3.connect(":memory:")) as connection:
        for statements in _sqlite_schema.MIGRATIONS:
            for statement in statements:
                connection.execute(statement)
        for statement in asked:
            if re.match(r"\s*(SELECT|DELETE|UPDATE|INSERT)\s", statement):
                about = dict.fromkeys(re.findall(r":(\w+)", statement)) or [None] * statement.count("?")
                plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", about)]
                assert not [step for step in plan if "AUTOMATIC" in step or "SCAN message" in step], statement
                explained += 1
    assert explained > 25
