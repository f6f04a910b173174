"""Ledgers for tests, and what is needed to run the tests of `Dispatcher` on them."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import secrets
import sys
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import dispatching
from postgres import cluster
from surroundings import ROOT
from turngate._core import SETTLING, STARTING
from turngate.durable import DurableDispatcher, Ledger, PostgresLedger, SqliteLedger
from turngate_verify.world.memory_ledger import MemoryLedger, Tables

MakeLedger = Callable[[], Ledger]
KINDS = ("sqlite", "postgres", "memory")


@contextmanager
def ledgers(kind: str, folder: Path) -> Iterator[MakeLedger]:
    """Give a function that makes ledgers of this kind, all on the same sessions."""
    if kind == "sqlite":
        yield lambda: SqliteLedger(folder / "ledger.db", synchronous="NORMAL")
        return
    if kind == "memory":
        tables = Tables(now=time.time)
        yield lambda: MemoryLedger(tables)
        return
    server = cluster()
    schema = f"t{secrets.token_hex(8)}"
    yield lambda: PostgresLedger(server.dsn, schema=schema, connections=2)


@asynccontextmanager
async def open_transaction(ledger: Any) -> AsyncIterator[None]:
    """Hold a transaction open on a server, so that the horizon stays below what commits meanwhile."""
    server = getattr(ledger, "_server", None)
    if server is None:
        yield
        return
    connection = await server.connect()
    await connection.execute("BEGIN")
    await connection.execute("SELECT pg_current_xact_id()")
    ledger.held_open = connection
    try:
        yield
    finally:
        await end_transaction(ledger)
        await connection.close()


async def end_transaction(ledger: Any) -> None:
    """End the transaction that is held open, if there is one."""
    connection = getattr(ledger, "held_open", None)
    if connection is not None:
        ledger.held_open = None
        await connection.execute("ROLLBACK")


def spec_of(ledger: Any) -> str:
    """Return what names the ledger on a command line."""
    if isinstance(ledger, PostgresLedger):
        return f"{ledger.dsn} {ledger.schema}"
    return str(ledger.path)


def module_of(name: str) -> ModuleType:
    """Import a file of tests of the dispatcher in memory."""
    folder = str(ROOT / "tests" / "impl")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return importlib.import_module(name)


def is_still(d: DurableDispatcher) -> bool:
    """Return whether nothing goes on by itself: no step is under way, no turn is about to start or settle."""
    if d._stepper.opening is not None or d._feed.is_joining():
        return False
    phases = [owned.turn.record.phase for owned in d._turns.owned.values()]
    return not d._stepper.under_way and not any(phase in (STARTING, SETTLING) for phase in phases)


async def still(*dispatchers: DurableDispatcher) -> None:
    """Wait until nothing goes on by itself."""
    while not all(map(is_still, dispatchers)):
        await asyncio.sleep(0.002)


def on_each(test: Any) -> Any:
    """Run a test with a function that makes ledgers, on each kind; it may have other parameters behind it."""

    @pytest.mark.parametrize("kind", KINDS)
    def wrapper(kind: str, tmp_path: Path, **others: Any) -> None:
        with ledgers(kind, tmp_path) as make:
            dispatching.in_loop(test)(make, **others)

    _, *others = inspect.signature(test).parameters.values()
    given = [*inspect.signature(wrapper).parameters.values()][:2]
    wrapper.__signature__ = inspect.Signature([*given, *others])  # for pytest
    wrapper.__name__ = test.__name__
    return wrapper


@contextmanager
def in_place_of_dispatcher(
    module: ModuleType, make_ledger: MakeLedger, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Have the tests of a module make dispatchers on ledgers, and wait for the ledger where they wait."""
    made: weakref.WeakSet[DurableDispatcher] = weakref.WeakSet()

    def make(runner: Any, **options: Any) -> DurableDispatcher:
        d = DurableDispatcher(runner, make_ledger(), **options)
        made.add(d)
        return d

    monkeypatch.setattr(module, "Dispatcher", make)
    dispatching.WAIT_FOR.append(lambda: all(is_still(d) for d in made))
    try:
        yield
    finally:
        dispatching.WAIT_FOR.pop()
