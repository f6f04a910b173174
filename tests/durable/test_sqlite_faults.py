"""What an SQLite ledger did not expect: its thread goes on, or refuses, and no caller waits for ever."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dispatching import in_loop
from turngate import Turn
from turngate._sqlite_file import OpenedFile
from turngate.durable import DurableDispatcher, LedgerUnavailable, OutcomeUnknown, SqliteLedger


async def echo(turn: Turn) -> str:
    return turn.run.prompt


class Fault:
    """Raises, a number of times, before or after the statements that begin with some words."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.statement = ""
        self.is_done_first = False
        self.times = 0
        fault, connect = self, sqlite3.connect

        class Connection(sqlite3.Connection):
            def execute(self, sql: str, *about: Any) -> sqlite3.Cursor:
                if not fault.strikes(sql):
                    return super().execute(sql, *about)
                if fault.is_done_first:
                    super().execute(sql, *about)
                raise RuntimeError("struck")

        monkeypatch.setattr(sqlite3, "connect", lambda *a, **kw: connect(*a, **kw, factory=Connection))

    def strikes(self, sql: str) -> bool:
        if not self.times or not sql.lstrip().startswith(self.statement):
            return False
        self.times -= 1
        return True

    def arm(self, statement: str, *, is_done_first: bool, times: int = 1) -> None:
        self.statement, self.is_done_first, self.times = statement, is_done_first, times


async def on_record(path: Path, run_id: str) -> bool:
    """Ask the file, by another ledger."""
    ledger = SqliteLedger(path)
    await ledger.open()
    try:
        return bool(await ledger.find([run_id]))
    finally:
        await ledger.close()


@pytest.mark.parametrize("is_done_first", [False, True])
@pytest.mark.parametrize("statement", ["BEGIN IMMEDIATE", "COMMIT", "PRAGMA data_version", "SELECT"])
def test_a_prompt_whose_statement_fails_is_answered_truly_and_the_ledger_goes_on(
    statement: str, is_done_first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger.db"

    @in_loop
    async def check() -> None:
        fault = Fault(monkeypatch)
        async with DurableDispatcher(echo, SqliteLedger(path), poll=0.05) as d:
            assert (await d.ask("s", "before")).text == "before"
            for number in range(6):
                run_id = f"r{number}"
                fault.arm(statement, is_done_first=is_done_first)
                problem: Exception | None = None
                try:
                    await d.accept("s", "p", run_id=run_id)
                except Exception as exc:
                    problem = exc
                fault.times = 0
                if not isinstance(problem, OutcomeUnknown):
                    assert await on_record(path, run_id) is (problem is None)
            while True:  # a worker that does not know what became of a step takes a new name first
                with contextlib.suppress(LedgerUnavailable):
                    assert (await d.ask("t", "after")).text == "after"
                    break

    check()


def test_a_commit_that_fails_behind_the_commit_is_not_called_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @in_loop
    async def check() -> None:
        fault = Fault(monkeypatch)
        ledger = SqliteLedger(tmp_path / "ledger.db")
        await ledger.open()
        fault.arm("COMMIT", is_done_first=True)
        with pytest.raises(OutcomeUnknown):
            await ledger.register(5.0)
        assert await ledger.register(5.0)
        await ledger.close()

    check()


@pytest.mark.parametrize("at", ["the look at the file", "the look behind the commit", "the taking of jobs"])
@pytest.mark.parametrize("times", [1, 10_000])
def test_a_thread_that_fails_goes_on_or_says_that_it_cannot(
    at: str, times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = 0

    def failing(call: Callable[..., Any], every: int) -> Callable[..., Any]:
        calls = 0

        def fail(*args: Any) -> Any:
            nonlocal left, calls
            if left:
                calls += 1
                if calls % every == 0:
                    left -= 1
                    raise MemoryError(f"no room for {at}")
            return call(*args)

        return fail

    if at == "the taking of jobs":
        from turngate.durable._sqlite_thread import CommitThread  # noqa: PLC0415 - for this case alone

        monkeypatch.setattr(CommitThread, "_next_batch", failing(CommitThread._next_batch, 1))
    else:
        every = 2 if at == "the look behind the commit" else 1
        monkeypatch.setattr(OpenedFile, "problem", failing(OpenedFile.problem, every))

    @in_loop
    async def check() -> None:
        nonlocal left
        ledger = SqliteLedger(tmp_path / "ledger.db")
        d = DurableDispatcher(echo, ledger, poll=0.05)
        await d.__aenter__()
        assert (await d.ask("s", "before")).text == "before"
        left = times
        asked = [asyncio.create_task(d.ask(f"s{number}", "p")) for number in range(20)]
        await asyncio.wait(asked)  # none waits for ever
        for task in asked:
            assert task.exception() is None or isinstance(task.exception(), LedgerUnavailable)
        if times == 1:
            while True:
                with contextlib.suppress(LedgerUnavailable):
                    assert (await d.ask("t", "after")).text == "after"
                    break
        else:
            with pytest.raises(LedgerUnavailable):
                await d.accept("t", "p")
        await d.aclose(finish=1)

    check()


def test_a_listener_that_raises_hears_what_comes_next(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    @in_loop
    async def check() -> None:
        ledgers = [SqliteLedger(tmp_path / "ledger.db") for _ in range(2)]
        for ledger in ledgers:
            await ledger.open()
        heard: list[str] = []

        def hear(message: str) -> None:
            heard.append(message)
            if message == "wrong":
                raise ValueError(message)

        ledgers[0].on_relay(hear)
        await ledgers[1].relay(["wrong", "right"])
        while len(heard) < 2:
            await asyncio.sleep(0.005)
        assert heard == ["wrong", "right"]
        for ledger in ledgers:
            await ledger.close()

    check()
    assert "could not be heard" in caplog.text
