"""Ledgers behind a proxy that pools transactions, and in processes that were forked off."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dispatching import Agent, echo, in_loop
from ledgers import ledgers, still
from pooling_proxy import pooling_proxy
from turngate import Turn
from turngate.durable import DurableDispatcher, PostgresLedger, SqliteLedger
from turngate_verify.ledger_judge import problems


@pytest.mark.needs
def test_a_proxy_that_pools_transactions_is_enough(caplog: pytest.LogCaptureFixture) -> None:
    """More connections than the proxy has to give, and no notifications: everything works, by polling."""

    @in_loop
    async def check(dsn: str) -> None:
        schema = f"t{os.urandom(6).hex()}"
        agent = Agent()
        one = DurableDispatcher(echo, PostgresLedger(dsn, schema=schema, cached_statements=0), poll=0.05)
        two = DurableDispatcher(agent, PostgresLedger(dsn, schema=schema, cached_statements=0), poll=0.05)
        async with one, two:
            runs = [(f"s{number % 5}", f"r{number}") for number in range(60)]
            asked = (one.ask(session, "p", run_id=run_id, when_busy="queue") for session, run_id in runs)
            assert {each.outcome for each in await asyncio.gather(*asked)} == {"finished"}
            run = await two.submit("t", "p", run_id="elsewhere")
            await still(two)
            events = one.subscribe("t")
            assert [each.run_id for each in (await one.cancel("t")).runs] == ["elsewhere"]
            assert (await run).cancelled
            assert await anext(events) == await one.wait("elsewhere")
            assert await problems(one._ledger, [run_id for _, run_id in runs]) == []

    with pooling_proxy(server_connections=2) as dsn, caplog.at_level(logging.WARNING):
        check(dsn)
    assert not caplog.records


def in_child(call: Callable[[], str]) -> str:
    """Fork, call in the child, and return the result."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            said = call()
        except BaseException as exc:
            said = f"{type(exc).__name__}: {exc}"
        os.write(writing, said.encode()[:60_000])
        os.kill(os.getpid(), signal.SIGKILL)  # not a line of what the parent would do at its end
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        said = answer.read().decode()
    os.waitpid(child, 0)
    return said


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_child_that_was_forked_off_is_refused_and_does_no_harm(kind: str, tmp_path: Path) -> None:
    with ledgers(kind, tmp_path) as make:

        @in_loop
        async def check() -> None:
            agent = Agent()
            ledger = make()
            async with DurableDispatcher(agent, ledger, poll=0.05, lease=3.0) as d:
                run = await d.submit("s", "p", run_id="of the parent")
                await still(d)

                def use() -> str:
                    asyncio.set_event_loop(None)
                    coroutine = ledger.find(["of the parent"])
                    try:
                        coroutine.send(None)
                    except StopIteration as found:
                        return f"found {found.value}"
                    return "it waits"

                said = in_child(use)
                assert said.startswith("LedgerUnavailable: "), said

                def begin_anew() -> str:
                    async def ask() -> str:
                        async with DurableDispatcher(echo, make(), poll=0.05, lease=3.0) as other:
                            known = await other.find("of the parent")
                            assert known is not None
                            return f"{known.state.value}, {(await other.ask('t', 'from the child')).text}"

                    return asyncio.run(ask())

                assert in_child(begin_anew) == "active, from the child"
                agent.finish(run)
                assert (await run).outcome == "finished"  # and no process took its worker for dead
                assert await d._ledger.find(["of the parent"])

        check()


def test_a_forked_child_neither_prolongs_nor_ends_the_life_of_its_parent(tmp_path: Path) -> None:
    """A child that lives on must not keep a dead parent alive, nor may its end be taken for the parent's."""
    path, living = tmp_path / "ledger.db", tmp_path / "living"

    def _wait_to_be_killed() -> None:
        living.write_text(str(os.getpid()))
        while True:
            time.sleep(1)

    parent = os.fork()
    if parent == 0:

        async def die_in_a_turn() -> None:
            async def runner(turn: Turn) -> None:
                if os.fork() == 0:
                    _wait_to_be_killed()
                os.kill(os.getpid(), signal.SIGKILL)

            async with DurableDispatcher(runner, SqliteLedger(path)) as d:
                await d.ask("s", "p", run_id="r")

        try:
            asyncio.run(die_in_a_turn())
        finally:
            os._exit(1)
    assert os.waitpid(parent, 0)[1] == signal.SIGKILL

    @in_loop
    async def check() -> None:
        async with DurableDispatcher(echo, SqliteLedger(path), poll=0.02) as d:
            assert (await d.wait("r")).outcome == "lost"

    while not living.exists() or not living.read_text():
        time.sleep(0.01)
    try:
        check()
    finally:
        os.kill(int(living.read_text()), signal.SIGKILL)
