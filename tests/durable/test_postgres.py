"""Connections to a PostgreSQL server, cut off at any moment."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import pytest

from dispatching import in_loop
from ledgers import MakeLedger, ledgers
from turngate.durable import PostgresLedger
from turngate.durable._postgres import Server


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
