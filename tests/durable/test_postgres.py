"""Connections to a PostgreSQL server, cut off or failing at any moment."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dispatching import HANG, echo, in_loop
from ledgers import MakeLedger, ledgers
from old_ledgers import ask_postgres
from postgres import cluster
from turngate import Turn
from turngate.durable import DurableDispatcher, Ledger, LedgerUnavailable, PostgresLedger
from turngate.durable._postgres import Saves
from turngate.durable._postgres_connections import Server
from turngate.durable._records import Changes, SessionRow
from turngate.durable._swap import Conflict, Fate, SessionCache, Unanswered


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


# What a PostgreSQL ledger did not expect: its tasks go on, leases hold, and no caller waits for ever.


POSTGRES = pytest.mark.parametrize("kind", ["postgres"])


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


def on_postgres(tmp_path: Path, test: Callable[[MakeLedger], Any]) -> None:
    with ledgers("postgres", tmp_path) as make:
        in_loop(test)(make)


def strike(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, strikes: Callable[..., bool]) -> None:
    """Have a call raise an unexpected error, as often as `strikes` says."""
    call = getattr(owner, name)

    def struck(*args: Any, **options: Any) -> Any:
        if strikes(*args, **options):
            raise RuntimeError(f"{name} was struck")
        return call(*args, **options)

    monkeypatch.setattr(owner, name, struck)


@POSTGRES
def test_connections_that_fail_in_an_unexpected_way_cost_neither_the_lease_nor_the_hints(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import asyncpg  # noqa: PLC0415 - the package may be missing

    left = 0

    def strikes(*_: object, **options: Any) -> bool:
        nonlocal left
        if left == 0 or "server_settings" not in options:  # of the test itself
            return False
        left -= 1
        return True

    async def check(make: MakeLedger) -> None:
        nonlocal left
        began, interrupted, may_end = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def runner(turn: Turn) -> str:
            began.set()
            try:
                await may_end.wait()
            except asyncio.CancelledError:
                interrupted.set()
                raise
            return "text"

        # With such polls only a hint tells of the cancel.
        async with DurableDispatcher(runner, make(), poll=2 * HANG, checkpoint=2 * HANG, lease=6.0) as d:
            run = await d.submit("s", "p")
            await began.wait()
            strike(monkeypatch, asyncpg, "connect", strikes)
            left = 5
            ask_postgres(
                cluster().dsn,
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'turngate'",
            )
            await until(lambda: left == 0)
            await asyncio.sleep(8)  # longer than the lease
            async with DurableDispatcher(echo, make(), poll=2 * HANG) as other:
                await other.cancel("s")
                await interrupted.wait()
            assert (await run).outcome == "cancelled"

    with caplog.at_level(logging.ERROR, logger="turngate"):
        on_postgres(tmp_path, check)
    assert "connect was struck" in caplog.text
    assert "lost its lease" not in caplog.text


@POSTGRES
def test_announcements_and_hints_go_on_after_a_failed_one(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def check(make: MakeLedger) -> None:
        one, other = make(), make()
        assert isinstance(one, PostgresLedger)
        assert isinstance(other, PostgresLedger)
        struck: set[str] = set()

        def strikes(statement: str, *_: object) -> bool:
            is_first = statement in {"say", "hint"} and statement not in struck
            struck.add(statement)
            return is_first

        heard: list[str] = []
        hinted = 0

        def hear(message: str) -> None:
            heard.append(message)
            if message == "wrong":
                raise ValueError(message)

        def wake() -> None:
            nonlocal hinted
            hinted += 1
            if hinted == 2:
                raise ValueError("wake")

        for ledger in (one, other):
            await ledger.open()
            strike(monkeypatch, ledger._notifications, "_fetch", strikes)
        one.listen(wake)
        other.listen(lambda: None)
        one.on_relay(hear)
        await until(other.has_listeners)
        while "right" not in heard:
            with contextlib.suppress(RuntimeError):
                await other.relay(["wrong", "right"])
            await asyncio.sleep(0.05)
        before = hinted
        while hinted < before + 3:
            other.hint(set())
            await asyncio.sleep(0.05)
        for ledger in (one, other):
            await ledger.close()

    on_postgres(tmp_path, check)
    assert "ValueError" in caplog.text


@POSTGRES
def test_steps_whose_answer_cannot_be_understood_are_answered(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check(make: MakeLedger) -> None:
        async with DurableDispatcher(echo, make(), poll=0.05) as d:
            assert (await d.ask("s", "before")).text == "before"
            left = [True, True]
            strike(monkeypatch, SessionCache, "add_numbers", lambda *_: bool(left and left.pop()))
            asked = [asyncio.create_task(d.accept(f"s{number}", "p")) for number in range(20)]
            await asyncio.wait(asked)
            problems = [task.exception() for task in asked]
            assert any(problems)
            assert all(each is None or isinstance(each, LedgerUnavailable) for each in problems)
            while True:
                with contextlib.suppress(LedgerUnavailable):
                    assert (await d.ask("t", "after")).text == "after"
                    break

    on_postgres(tmp_path, check)


def test_steps_that_are_sent_one_by_one_are_answered_when_the_ledger_is_closed_meanwhile() -> None:
    @in_loop
    async def check() -> None:
        sent = 0

        async def send(*about: object) -> Any:
            nonlocal sent
            sent += 1
            if sent == 1:
                raise Conflict
            if sent == 3:
                await asyncio.Event().wait()
            return [(True, 1, [0], [])]

        saves = Saves(send, asyncio.create_task, SessionCache())
        tasks = [asyncio.create_task(saves.save(1, changes(name))) for name in "abcd"]
        while sent < 3:
            await asyncio.sleep(0)
        for sender in [*saves._senders]:
            sender.cancel()
        saved, *others = await asyncio.gather(*tasks, return_exceptions=True)
        assert saved == (Fate.SAVED, 1)
        assert [type(each) for each in others] == [Unanswered] * 3

    check()


def changes(session_id: str) -> Changes:
    return Changes(session_id, None, SessionRow("token", 1), [], [], [], [], [])
