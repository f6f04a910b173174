"""Connections to a PostgreSQL server, cut off at any moment."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import pytest

from dispatching import in_loop
from ledgers import MakeLedger, ledgers
from turngate.durable import Ledger, PostgresLedger
from turngate.durable._postgres_connections import Server


@pytest.mark.parametrize("kind", ["postgres"])
def test_a_caller_cancelled_while_it_connects_leaves_nothing_behind(kind: str, tmp_path: Path) -> None:
    @in_loop
    async def check(make: MakeLedger) -> None:
        ledger = make()
        assert isinstance(ledger, PostgresLedger)
        server = Server(ledger.dsn, connections=1, statement_timeout=10, cached_statements=0)
        steps, connected = 0, False
        while not connected:
            connecting = asyncio.create_task(server.connect())
            for _ in range(steps):
                await asyncio.sleep(0.0002)
            connected = connecting.done()
            connecting.cancel()
            await asyncio.wait([connecting])
            if connected:
                connecting.result().terminate()
            steps += 1
            gc.collect()
        assert steps > 1

    with ledgers(kind, tmp_path) as make:
        check(make)


@pytest.mark.parametrize("kind", ["postgres"])
def test_a_statement_that_is_answered_after_the_close_leaves_no_connection_behind(
    kind: str, tmp_path: Path
) -> None:
    """The event log of a server asks for completions while the dispatcher lets go of its ledger."""

    @in_loop
    async def check(make: MakeLedger) -> None:
        ledger = make()
        assert isinstance(ledger, PostgresLedger)
        cases = (("SELECT pg_sleep(0.1)", True), ("SELECT 1 / 0", True), ("SELECT 1", False))
        for statement, is_connected in cases:
            server = Server(ledger.dsn, connections=1, statement_timeout=10, cached_statements=0)
            if is_connected:
                await server.send("SELECT 1")
            asking = asyncio.create_task(server.send(statement))
            await asyncio.sleep(0)
            await server.close()
            await asyncio.wait([asking])
            asking.exception()
            assert not server._idle
            del server, asking
            gc.collect()  # warns of a connection that is still open

    with ledgers(kind, tmp_path) as make:
        check(make)


@pytest.mark.parametrize("kind", ["postgres"])
def test_after_the_close_the_loop_may_end_at_once(kind: str, tmp_path: Path) -> None:
    async def listens(ledger: Ledger) -> None:
        await ledger.open()
        heard = asyncio.Event()
        ledger.listen(heard.set)
        await heard.wait()
        await ledger.close()

    with ledgers(kind, tmp_path) as make:
        loop = asyncio.new_event_loop()
        loop.run_until_complete(listens(make()))
        loop.close()
        gc.collect()  # warns of a socket that is still open
