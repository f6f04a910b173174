"""The thread that does the work of an SQLite ledger: by itself, on a file of its own."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import turngate.durable._sqlite_thread as thread_module
from dispatching import in_loop
from turngate.durable import LedgerUnavailable, SqliteLedger
from turngate.durable._ledger import LedgerGone
from turngate.durable._sqlite_thread import CommitThread, _SeenLedger


@in_loop
async def make(path: Path) -> None:
    ledger = SqliteLedger(path)
    await ledger.open()
    await ledger.register(5.0)
    await ledger.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    make(tmp_path / "ledger.db")
    return tmp_path / "ledger.db"


def connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None, check_same_thread=False)


def write(path: Path, statement: str = "PRAGMA user_version = 1") -> None:
    with closing(connect(path)) as other:
        other.execute(statement)


def nothing(connection: sqlite3.Connection) -> None:
    pass


def test_what_was_seen_is_looked_for_when_another_connection_has_written(path: Path) -> None:
    with closing(connect(path)) as connection:
        seen, looks = _SeenLedger(), list[str]()
        connection.set_trace_callback(looks.append)
        assert not seen.is_lost(connection)
        looks.clear()
        assert not seen.is_lost(connection)
        assert looks == ["PRAGMA data_version"]
        write(path)
        assert not seen.is_lost(connection)
        assert len(looks) > 2
        seen.reached += 1  # a step that is not there any more
        assert not seen.is_lost(connection)
        write(path, "PRAGMA user_version = 2")
        assert seen.is_lost(connection)


def test_all_jobs_are_done_before_the_end_and_none_is_taken_behind_it(path: Path) -> None:
    @in_loop
    async def check() -> None:
        may_go_on = threading.Event()
        thread = CommitThread(lambda: connect(path), lambda: None)
        first = thread.do(lambda connection: may_go_on.wait())
        second = thread.do(lambda connection: "done")
        end = asyncio.ensure_future(thread.end())
        await asyncio.sleep(0)
        with pytest.raises(LedgerUnavailable, match="the ledger is closed"):
            thread.do(nothing)
        may_go_on.set()
        assert (await first, await second) == (True, "done")
        await end

    check()


def test_each_write_of_another_connection_is_told_once(path: Path) -> None:
    @in_loop
    async def check() -> None:
        told: list[None] = []
        thread = CommitThread(lambda: connect(path), lambda: None)
        thread.on_change(lambda: told.append(None))
        for _ in range(5):
            await thread.do(nothing)
        write(path)
        for _ in range(5):
            await thread.do(nothing)
        await thread.end()
        assert len(told) == 2  # the first look counts as one

    check()


def test_a_connection_to_a_file_that_is_gone_is_closed(path: Path) -> None:
    @in_loop
    async def check() -> None:
        gone: list[str] = []
        connections: list[sqlite3.Connection] = []

        def opened() -> sqlite3.Connection:
            connections.append(connect(path))
            return connections[-1]

        thread = CommitThread(opened, lambda: gone[-1] if gone else None)
        await thread.do(nothing)
        gone.append("it was removed")
        with pytest.raises(LedgerGone, match="it was removed"):
            await thread.do(nothing)
        with pytest.raises(LedgerGone, match="it was removed"):
            await thread.do(nothing)  # by then the connection is closed
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            connections[0].execute("SELECT 1")
        assert len(connections) == 1
        await thread.end()

    check()


def test_the_pause_between_failures_grows_until_it_gives_up(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(thread_module, "time", SimpleNamespace(sleep=pauses.append))

    def fails() -> Any:
        raise MemoryError("no room")

    @in_loop
    async def check() -> None:
        thread = CommitThread(lambda: connect(path), fails)
        for _ in range(thread_module._FAILURES_LIMIT):
            with pytest.raises(LedgerUnavailable, match="the ledger failed"):
                await thread.do(nothing)
        with pytest.raises(LedgerGone, match="10"):
            await thread.do(nothing)
        await thread.end()

    check()
    assert pauses == pytest.approx([0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.0, 2.0])
