"""What a run on a ledger costs, against half the commits per second of the bare engine.

    python bench/durable.py [--seconds 3] [--dsn postgresql://...]

Ratios, from one run on one machine; reports, judges nothing. The bare engine does one INSERT per commit, with
the same driver and as many connections. A run is two commits at least, so 1.0 is
the limit for one client; where steps share a commit (SQLite), it is not.
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from turngate import Turn
from turngate.durable import DurableDispatcher, PostgresLedger, SqliteLedger


async def echo(turn: Turn) -> str:
    """Answer at once."""
    return "done"


async def rate(call: Callable[[int], Awaitable[Any]], clients: int, seconds: float) -> float:
    """Return how often per second so many clients get an answer."""
    until, answered = time.perf_counter() + seconds, 0

    async def client(number: int) -> None:
        nonlocal answered
        while time.perf_counter() < until:
            await call(number)
            answered += 1

    await asyncio.gather(*map(client, range(clients)))
    return answered / seconds


def bare_sqlite(path: Path, seconds: float) -> float:
    """Return the commits per second of one connection, each of one row."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE bare (n INTEGER)")
    until, done = time.perf_counter() + seconds, 0
    while time.perf_counter() < until:
        connection.execute("INSERT INTO bare VALUES (1)")
        done += 1
    connection.close()
    return done / seconds


async def bare_postgres(dsn: str, clients: int, seconds: float) -> float:
    """Return the commits per second of four connections, each of one row."""
    ledger = PostgresLedger(dsn, schema="bare")
    await ledger.open()
    await ledger._fetch("CREATE TABLE IF NOT EXISTS {s}.bare (n int)")
    done = await rate(lambda _: ledger._fetch("INSERT INTO {s}.bare VALUES (1)"), clients, seconds)
    await ledger.close()
    return done


async def main(options: argparse.Namespace) -> None:
    """Measure both engines with 1, 8 and 64 clients."""
    print(f"{'engine':10} {'clients':>7} {'runs/s':>8} {'bare/2':>8} {'ratio':>6} {'CPU ms/run':>11}")
    with tempfile.TemporaryDirectory() as folder:
        for clients in (1, 8, 64):
            kinds: list[tuple[str, Any, float]] = []
            path = Path(folder)
            bare = bare_sqlite(path / f"bare-{clients}.db", options.seconds)
            kinds.append(("sqlite", SqliteLedger(path / f"ledger-{clients}.db"), bare))
            if options.dsn:
                bare = await bare_postgres(options.dsn, clients, options.seconds)
                kinds.append(("postgres", PostgresLedger(options.dsn, schema=f"bench{clients}"), bare))
            for engine, ledger, commits in kinds:
                async with DurableDispatcher(echo, ledger) as d:
                    used = time.process_time()
                    runs = await rate(lambda n, d=d: d.ask(f"s{n}", "p"), clients, options.seconds)  # type: ignore[misc]
                    cpu = (time.process_time() - used) * 1000 / (runs * options.seconds)
                ratio = runs / (commits / 2)
                print(f"{engine:10} {clients:7} {runs:8.0f} {commits / 2:8.0f} {ratio:6.2f} {cpu:11.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--dsn", help="a PostgreSQL to measure on, too")
    asyncio.run(main(parser.parse_args()))
