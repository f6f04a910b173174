"""Closing a dispatcher whose ledger stays away: it ends, says what it leaves, and others recover that."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from dispatching import HANG, Agent, echo, in_loop
from old_ledgers import ask_postgres
from operating import Child, turns, until
from postgres import cluster
from turngate import DispatcherClosed, State, Turn
from turngate.durable import DurableDispatcher, LedgerUnavailable, PostgresLedger, SqliteLedger, _close
from turngate_verify.world.memory_ledger import MemoryLedger, Tables

FINISH = {"finish": 0.2}


@pytest.mark.parametrize("runner_is_over", [True, False])
def test_a_close_on_a_full_disk_ends_and_the_next_process_recovers_the_turn(
    runner_is_over: bool, tmp_path: Path
) -> None:
    journal, path = tmp_path / "journal", tmp_path / "ledger.db"
    with Child(path, journal, sizes=400_000, lease=0.5) as child:
        child.opened()
        assert child.ask("submit", "busy", "at work") == "at work"
        until(lambda: ("began", "busy", "at work", 1) in turns(journal), "the turn")
        accepted: list[str] = []
        while (answer := child.ask("submit", "s", f"r{len(accepted)}")) == f"r{len(accepted)}":
            accepted.append(answer)
        assert answer.startswith("LedgerUnavailable"), answer
        if runner_is_over:
            child.ask("finish")
            until(lambda: ("ended", "busy", "at work", 1) in turns(journal), "the end of the runner")
        assert child.ask("close", FINISH) == "closed"
        until(lambda: ("ended", "busy", "at work", 1) in turns(journal), "the end of the runner")
        assert any("closing leaves 2 turns" in line and "at work" in line for line in child.log), child.log

        @in_loop
        async def recover() -> None:  # while the other process still lives: it has let go of the ledger
            async with DurableDispatcher(echo, SqliteLedger(path), poll=0.02, on_death="fail") as d:
                # There may be room for the cancel, and none for the outcome.
                assert (await d.wait("at work")).outcome in {"lost", "cancelled"}
                assert (await d.wait(accepted[-1])).outcome == "finished"

        recover()


class Line:
    """A proxy before PostgreSQL that can be cut, or be silent: it takes everything and passes nothing on."""

    def __init__(self) -> None:
        self._to = urlsplit(cluster().dsn)
        self._silent = False
        self._server: Any = None
        self._passing: set[asyncio.Task[None]] = set()

    async def begin(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        return f"postgresql://turngate@127.0.0.1:{port}/postgres"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._passing.add(task)
        onward = None
        try:
            there, onward = await asyncio.open_connection(self._to.hostname, self._to.port)
            await asyncio.gather(self._pass(reader, onward), self._pass(there, writer))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._passing.discard(task)
            for each in (writer, onward):
                if each is not None:
                    each.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            if not self._silent:
                writer.write(data)
        writer.transport.abort()

    def fail(self, how: str) -> None:
        if how == "silent":
            self._silent = True
        else:
            self._server.close()
            for task in [*self._passing]:
                task.cancel()

    async def end(self) -> None:
        self.fail("cut")
        while self._passing:
            await asyncio.sleep(0.01)


@asynccontextmanager
async def line() -> AsyncIterator[tuple[Line, str]]:
    made = Line()
    try:
        yield made, await made.begin()
    finally:
        await made.end()


@pytest.mark.parametrize("engine", ["postgres"])
@pytest.mark.parametrize(
    ("how", "lease", "runner_is_over"),
    [("cut", 2 * HANG, True), ("silent", 2 * HANG, False), ("silent", 2 * HANG, True), ("cut", 1.0, False)],
)
def test_a_close_without_the_server_ends_and_others_recover_the_turn(
    engine: str,
    how: str,
    lease: float,
    runner_is_over: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Also if the lease is so long that this process cannot lose it."""
    monkeypatch.setattr(_close, "_PATIENCE", 0.5)
    schema = f"t{secrets.token_hex(8)}"

    @in_loop
    async def check() -> None:
        may_end, began, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def runner(turn: Turn) -> str:
            began.set()
            try:
                await may_end.wait()
            finally:
                ended.set()
            return "text"

        async with line() as (server, dsn):
            ledger = PostgresLedger(dsn, schema=schema, patience=0.2, statement_timeout=0.5)
            d = DurableDispatcher(runner, ledger, lease=lease, poll=0.05)
            await d.__aenter__()
            events = d.subscribe()
            run = await d.submit("s", "p", run_id="in flight")
            waiting = asyncio.create_task(d.wait("in flight"))
            await began.wait()
            server.fail(how)
            if runner_is_over:
                may_end.set()
            await d.aclose(**FINISH)
            await ended.wait()
            with pytest.raises(DispatcherClosed):
                await waiting
            with contextlib.suppress(Exception):  # it is cut off, or closed
                async for _ in events:
                    pass
            assert run.complete is None
        if lease > 1:  # what the server knows of it has ended long after this test
            await asyncio.to_thread(ask_postgres, cluster().dsn, f"DELETE FROM {schema}.worker RETURNING 1")
        async with DurableDispatcher(
            echo, PostgresLedger(cluster().dsn, schema=schema), poll=0.05, lease=5.0
        ) as d:
            assert (await d.wait("in flight")).outcome == "lost"

    with caplog.at_level(logging.ERROR, logger="turngate"):
        check()
    assert any("in flight" in each.getMessage() for each in caplog.records)


@in_loop
async def test_a_close_that_gives_up_leaves_no_task_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_close, "_PATIENCE", 0.2)
    agent, ledger = Agent(), SqliteLedger(tmp_path / "ledger.db")
    d = DurableDispatcher(agent, ledger, poll=3600)  # what waits for the next try waits for long
    await d.submit("s", "p")
    while not agent.turns:
        await asyncio.sleep(0.002)

    async def step(*_: object) -> None:
        raise LedgerUnavailable("away")

    monkeypatch.setattr(ledger, "step", step)
    await d.aclose()
    async with asyncio.timeout(20):
        while d._stepper.tasks.tasks:
            await asyncio.sleep(0.01)


# Turns that wait for a place.


@pytest.mark.requirement("ONE_TURN")
@pytest.mark.parametrize("ends_after", range(12))
def test_a_close_leaves_no_runner_behind_that_gets_a_place_meanwhile(ends_after: int) -> None:
    """A turn that is given up to other processes is no longer in line, whenever the turn before it ends."""

    @in_loop
    async def check() -> None:
        working: list[str] = []
        over = asyncio.Event()

        async def agent(turn: Turn) -> None:
            working.append(turn.run.run_id)
            try:
                await (over if turn.run.run_id == "holder" else asyncio.Event()).wait()
            finally:
                working.remove(turn.run.run_id)

        tables = Tables(now=time.time)
        d = DurableDispatcher(agent, MemoryLedger(tables), turns_limit=1)
        async with d:
            await d.submit("s", "p", run_id="holder")
            while not working:
                await asyncio.sleep(0)
            in_line = await d.submit("t", "p", run_id="in line")
            assert in_line.state is State.ACTIVE
            d.begin_close()
            for _ in range(ends_after):
                await asyncio.sleep(0)
            over.set()
        assert working == []
        owner = tables.sessions["t"].owner
        assert owner is None or tables.sessions["t"].lead is None

    check()
