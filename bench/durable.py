"""What a run on a ledger costs: against the bare engine, over processes, with much on record, beside others.

    python bench/durable.py [throughput] [cancel] [large] [queue] [others] [--seconds 1] [--rows 1000000]

Reports, judges nothing. PostgreSQL is a private cluster that is made for the occasion, with its defaults; if
that cannot be had, only SQLite is measured.

throughput  runs per second against half the commits per second of the bare engine: one INSERT per commit, the
            same kind of driver, as many connections. A run is two commits, so 1.0 is the limit as long as
            none share one. On a machine that others use too, both are measured in turns, and the ratio is the
            median. An event loop cannot wait for a file: on SQLite the bare commits are made by aiosqlite, in
            a thread as ours are; `alone` is the ratio to those that a loop without asyncio makes.
cancel      from the call in one process to the interrupted runner in another, with and without notifications
large       what a step and a poll cost with 100,000 idle sessions and a million complete runs on record
queue       to enter, cancel and clear a session with 10,000 queued runs
others      procrastinate and DBOS on the same PostgreSQL, doing the nearest thing that they can
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from turngate import Turn
from turngate.durable import DurableDispatcher, PostgresLedger, SqliteLedger

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

ROUNDS = 5
CLIENTS = (1, 8, 64)
IDLE = 100_000
QUEUED = 10_000
Call = Callable[[int], Awaitable[Any]]


async def echo(turn: Turn) -> str:
    """Answer at once."""
    return "done"


def asks(d: DurableDispatcher) -> Call:
    """Return what asks in the session of a number, and waits."""
    return lambda n: d.ask(f"s{n}", "p")


async def rate(call: Call, clients: int, seconds: float) -> float:
    """Return how many answers per second this many clients get."""
    began, answered = time.perf_counter(), 0

    async def client(number: int) -> None:
        nonlocal answered
        while time.perf_counter() < began + seconds:
            await call(number)
            answered += 1

    await asyncio.gather(*map(client, range(clients)))
    return answered / (time.perf_counter() - began)


# The engines, and nothing else.


AS_A_LEDGER = ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL", "CREATE TABLE bare (n INTEGER)")


class BareSqlite:
    """One connection that tasks wait for, one INSERT per commit."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: Any = None

    async def rate(self, clients: int, seconds: float) -> float:
        """Return the commits per second."""
        if self._connection is None:
            import aiosqlite  # noqa: PLC0415 - only where it is measured

            self._connection = await aiosqlite.connect(self._path, isolation_level=None)
            for statement in AS_A_LEDGER:
                await self._connection.execute(statement)
        insert = self._connection.execute_insert
        return await rate(lambda _: insert("INSERT INTO bare.bare VALUES (1)"), clients, seconds)

    async def close(self) -> None:
        """Close the file."""
        await self._connection.close()


class SqliteAlone:
    """One connection and nothing else to do, one INSERT per commit."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        for statement in AS_A_LEDGER:
            self._connection.execute(statement)

    async def rate(self, clients: int, seconds: float) -> float:
        """Return the commits per second."""
        began, done = time.perf_counter(), 0
        while time.perf_counter() < began + seconds:
            self._connection.execute("INSERT INTO bare.bare VALUES (1)")
            done += 1
        return done / (time.perf_counter() - began)

    async def close(self) -> None:
        """Close the file."""
        self._connection.close()


class BarePostgres:
    """As many connections as a ledger has, one INSERT per commit."""

    def __init__(self, dsn: str) -> None:
        self._ledger = PostgresLedger(dsn, schema="bare")

    async def rate(self, clients: int, seconds: float) -> float:
        """Return the commits per second."""
        if self._ledger._server is None:
            await self._ledger.open()
            await self._ledger._working().fetch("CREATE TABLE IF NOT EXISTS bare.bare (n int)")
        return await rate(
            lambda _: self._ledger._working().fetch("INSERT INTO bare.bare VALUES (1)"), clients, seconds
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._ledger.close()


class Engines:
    """The engines that there are, and new ledgers on each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made = 0
        self.dsn = _cluster()
        self.names = ["sqlite", *(["postgres"] if self.dsn else [])]

    def ledger(self, engine: str, name: str = "") -> Any:
        """Return a ledger, a new one unless it is named."""
        self._made += 1
        name = name or f"l{self._made}"
        if engine == "sqlite":
            return SqliteLedger(self._folder / f"{name}.db")
        return PostgresLedger(self.dsn, schema=name)

    def bare(self, engine: str) -> list[BareSqlite | SqliteAlone | BarePostgres]:
        """Return the engine without a dispatcher; SQLite also without asyncio."""
        self._made += 1
        if engine == "sqlite":
            path = self._folder / f"bare{self._made}.db"
            return [BareSqlite(path), SqliteAlone(path.with_name(f"alone{self._made}.db"))]
        return [BarePostgres(self.dsn)]


def _cluster() -> str:
    """Return the dsn of a PostgreSQL of our own, with its defaults; "" if there can be none."""
    try:
        from postgres import Cluster, programs  # noqa: PLC0415 - the tests' own

        found = programs()
        return "" if found is None else Cluster(found, fsync=True).dsn
    except (ImportError, OSError):
        return ""


# What is measured.


async def throughput(engines: Engines, options: argparse.Namespace) -> None:
    """Compare runs with commits."""
    ratios_of = f"{'bare/2':>8} {'ratio':>6} {'alone':>6}"
    print(f"{'engine':10} {'clients':>7} {'runs/s':>8} {ratios_of} {'CPU ms/run':>11}")
    for engine in engines.names:
        for clients in CLIENTS:
            bares = engines.bare(engine)
            runs: list[float] = []
            commits: list[list[float]] = [[] for _ in bares]
            cpu: list[float] = []
            async with DurableDispatcher(echo, engines.ledger(engine)) as d:
                for _ in range(ROUNDS + 1):
                    for bare, rates in zip(bares, commits, strict=True):
                        rates.append(await bare.rate(clients, options.seconds))
                    used, began = time.process_time(), time.perf_counter()
                    runs.append(await rate(asks(d), clients, options.seconds))
                    took = time.perf_counter() - began
                    cpu.append((time.process_time() - used) * 1000 / (runs[-1] * took))
            for bare in bares:
                await bare.close()
            ratios = [
                statistics.median(r / (c / 2) for r, c in zip(runs[1:], rates[1:], strict=True))
                for rates in commits
            ]
            figures = f"{statistics.median(runs[1:]):8.0f} {statistics.median(commits[0][1:]) / 2:8.0f}"
            figures += f" {ratios[0]:6.2f}" + (f" {ratios[1]:6.2f}" if ratios[1:] else "       ")
            print(f"{engine:10} {clients:7} {figures} {statistics.median(cpu[1:]):11.2f}", flush=True)


async def cancel(engines: Engines, options: argparse.Namespace) -> None:
    """Cancel in one process what runs in another."""
    for engine in engines.names:
        for hints in (True, False):
            took: list[float] = []
            started, interrupted = asyncio.Event(), asyncio.Event()

            async def run(turn: Turn, started: Any = started, interrupted: Any = interrupted) -> None:
                started.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    interrupted.set()

            name = f"cancel{hints}".lower()
            ledgers = [engines.ledger(engine, name) for _ in range(2)]
            for ledger in ledgers:
                if not hints:
                    ledger.listen = lambda wake: None
            async with DurableDispatcher(run, ledgers[0]) as one, DurableDispatcher(run, ledgers[1]) as two:
                for number in range(20 if hints else 5):
                    started.clear()
                    interrupted.clear()
                    submitted = await one.submit("s", "p")
                    await started.wait()
                    await asyncio.sleep(0.1 + 0.17 * (number % 5))
                    began = time.perf_counter()
                    await two.cancel("s")
                    await interrupted.wait()
                    took.append((time.perf_counter() - began) * 1000)
                    await submitted
            how = "with notifications" if hints else "without, poll=1.0"
            print(f"{engine:10} cancel elsewhere, {how:20} {statistics.median(took):8.1f} ms", flush=True)


_FILL = {
    "sqlite": (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count}) ",
        "printf('%d', i)",
    ),
    "postgres": ("WITH n AS (SELECT i FROM generate_series(1, {count}) i) ", "i::text"),
}
_FALSE = {"sqlite": "0", "postgres": "false"}
_NOW = {"sqlite": "1000000", "postgres": "to_timestamp(1000000)"}


async def _fill(ledger: Any, engine: str, rows: int) -> None:
    """Put idle sessions and complete runs on record, all at once."""
    counted, text = _FILL[engine]
    false, now = _FALSE[engine], _NOW[engine]
    schema = "" if engine == "sqlite" else "{s}."
    position = "i" if engine == "sqlite" else "-i"
    names = f"'idle' || {text}, 'token' || {text}"
    sessions = f"""
        INSERT INTO {schema}session (session_id, token, version, next_seq, mark, queued, fence, covered,
            begun, attempts, recent)
        SELECT {names}, 1, 100, 0, 0, 1, {false}, {false}, 0, '' FROM n
    """  # noqa: S608 - made of what is written here
    runs = f"""
        INSERT INTO {schema}run (run_id, session_id, seq, state, when_busy, covered, holder, place, prompt,
            attachments, digest, accepted_at, completed_at, text, cancelled, message_id, outcome, "position",
            ordinal)
        SELECT 'run' || {text}, 'idle' || (i % {IDLE}), i / {IDLE} + 1, 'complete', 'fold', {false}, 1, 0, '',
            '', 'digest', {now}, {now}, 'an answer of some length', {false}, 'msg' || {text}, 'finished',
            {position}, 0 FROM n
    """  # noqa: S608 - made of what is written here
    sessions, runs = counted.format(count=IDLE) + sessions, counted.format(count=rows) + runs
    if engine == "sqlite":
        await ledger._thread.do(lambda connection: connection.execute(sessions), writes=True)
        await ledger._thread.do(lambda connection: connection.execute(runs), writes=True)
        set_number = f"UPDATE meta SET number = {rows + 1}"  # noqa: S608 - a number
        await ledger._thread.do(lambda connection: connection.execute(set_number), writes=True)
        return
    connection = await ledger._server.connect()
    for statement in (sessions, runs, "ANALYZE {s}.run", "ANALYZE {s}.session"):
        await connection.execute(ledger._schema.sql(statement), timeout=600)
    await connection.close()


async def _cost(call: Call, count: int) -> str:
    used, took = time.process_time(), []
    for number in range(count):
        began = time.perf_counter()
        await call(number)
        took.append((time.perf_counter() - began) * 1000)
    cpu = (time.process_time() - used) * 1000 / count
    return f"median {statistics.median(took):6.2f} ms, CPU {cpu:5.2f} ms"


async def large(engines: Engines, options: argparse.Namespace) -> None:
    """Compare an empty ledger with a large one."""
    for engine in engines.names:
        for rows in (0, options.rows):
            async with DurableDispatcher(echo, engines.ledger(engine), poll=600.0) as d:
                if rows:
                    await _fill(d._ledger, engine, rows)

                async def poll(_: int, d: Any = d) -> None:
                    await d._look()
                    await d._pay_debts()

                async def ask(n: int, d: Any = d) -> None:
                    await d.ask(f"idle{n + 1}", "p")

                await d.ask("warm", "p")
                about = f"{engine:10} {IDLE if rows else 0:7} idle sessions, {rows:7} complete runs:"
                print(f"{about} a run        {await _cost(ask, 200)}", flush=True)
                print(f"{about} a poll       {await _cost(poll, 50)}", flush=True)


async def queue(engines: Engines, options: argparse.Namespace) -> None:
    """Have a long queue, and enter, cancel and clear it."""
    for engine in engines.names:
        forever = asyncio.Event()

        async def run(turn: Turn, forever: asyncio.Event = forever) -> None:
            await forever.wait()

        async with DurableDispatcher(run, engines.ledger(engine)) as d:

            async def fill(session: str, d: Any = d) -> None:
                await d.submit(session, "p")
                await asyncio.gather(*(d.submit(session, "p", when_busy="queue") for _ in range(QUEUED)))

            for session in ("s", "t"):
                await fill(session)

            async def enter(_: int, d: Any = d) -> None:
                await d.submit("s", "p", when_busy="queue")

            clear, cancel_it = (lambda _, d=d: d.clear_queue("s")), (lambda _, d=d: d.cancel("t"))
            for what, call, count in (("enter", enter, 50), ("clear", clear, 1), ("cancel", cancel_it, 1)):
                print(f"{engine:10} {QUEUED} queued: {what:7} {await _cost(call, count)}", flush=True)
            forever.set()


async def others(engines: Engines, options: argparse.Namespace) -> None:
    """Have others do the nearest thing."""
    if not engines.dsn:
        print("others: there is no PostgreSQL")
        return
    import durable_others  # noqa: PLC0415 - what it needs is for `make bench` alone

    for clients in CLIENTS:
        async with DurableDispatcher(echo, engines.ledger("postgres")) as d:
            ours = await rate(asks(d), clients, options.seconds * 3)
        print(f"turngate      {clients:3} sessions {ours:8.1f} runs/s", flush=True)
        for name, measure in durable_others.OTHERS.items():
            theirs = await measure(engines.dsn, clients, options.seconds * 3)
            print(f"{name:13} {clients:3} sessions {theirs:8.1f} runs/s", flush=True)


PARTS = {each.__name__: each for each in (throughput, cancel, large, queue, others)}


async def main(options: argparse.Namespace) -> None:
    """Measure what was asked for."""
    with tempfile.TemporaryDirectory() as folder:
        engines = Engines(Path(folder))
        for part in options.parts or PARTS:
            print(f"\n{part}: {PARTS[part].__doc__}")
            await PARTS[part](engines, options)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], help="all, if none is named")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each measurement")
    parser.add_argument("--rows", type=int, default=1_000_000, help="complete runs on record")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the cluster is removed then, too
    asyncio.run(main(parser.parse_args()))
