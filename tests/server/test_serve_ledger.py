"""``turngate serve --ledger`` as processes: killed, started again, and several behind one address."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import httpx2
import pytest

from dispatching import in_loop
from postgres import cluster
from served_process import Process, process
from turngate import RunComplete
from turngate.client import Client, EventStream, Snapshot

AGENT = """
import asyncio, os

async def agent(turn):
    turn.write(f"process {os.getpid()}")
    while turn.run.prompt == "long":
        await asyncio.sleep(3600)
"""


@pytest.fixture
def target(tmp_path: Path) -> str:
    (tmp_path / "agent_of_test.py").write_text(AGENT, encoding="utf-8")
    return f"{tmp_path}/agent_of_test.py:agent"


async def until_complete(events: EventStream, runs: set[str]) -> dict[str, RunComplete]:
    """Return the RunCompletes of these runs; no other may come, none twice, and nothing is forgotten."""
    found: dict[str, RunComplete] = {}
    while found.keys() != runs:
        event = await anext(events)
        assert not (isinstance(event, Snapshot) and event.reset)
        if isinstance(event, RunComplete):
            assert event.run_id in runs - found.keys()
            found[event.run_id] = event
    return found


async def outlive(ledger: str, target: str, on_death: str) -> dict[str, RunComplete]:
    """Kill a server in the middle of a turn, start it again, and hear how all of its runs end."""
    with process(target, "--ledger", ledger) as server:
        port = server.port
        client = Client(server.url, patience=600)
        events = client.events()
        first = await anext(events)
        assert isinstance(first, Snapshot)
        await client.ask("s", "short", run_id="before")
        await client.submit("s", "long", run_id="long")
        for number in range(3):
            await client.submit("s", "short", run_id=f"queued{number}", when_busy="queue")
        waiting = asyncio.create_task(client.wait("queued2"))
        while (await client.run("long")).state != "active":
            pass
        server.process.kill()
        server.process.wait()
    with process(target, "--ledger", ledger, "--on-death", on_death, port=port) as server:
        if on_death == "retry":
            assert await client.cancel_run("long") == ["long"]
        await waiting
        wanted = {"before", "long", "queued0", "queued1", "queued2"}
        found = await until_complete(events, wanted)
        # A new reader is told everything, once.
        again = client.events(after=first.cursor)
        assert await until_complete(again, wanted) == found
        await again.aclose()
        await events.aclose()
        await client.aclose()
        assert server.end()[0] == 0
    return found


@pytest.mark.parametrize("on_death", ["fail", "retry"])
def test_a_kill_and_a_new_start_lose_nothing(on_death: str, target: str, tmp_path: Path) -> None:
    found = asyncio.run(outlive(str(tmp_path / "runs.db"), target, on_death))
    assert found["long"].outcome == ("lost" if on_death == "fail" else "cancelled")
    assert {each.outcome for run_id, each in found.items() if run_id != "long"} == {"finished"}
    assert found["queued0"].text != found["before"].text  # another process


@pytest.mark.deep  # a lease has to run out
def test_so_it_is_on_postgres(target: str) -> None:
    found = asyncio.run(outlive(cluster().dsn, target, "fail"))
    assert found["long"].outcome == "lost"


class Connection(NamedTuple):
    """A connection that is kept, and so is always answered by the same worker, known by its log's name."""

    http: httpx2.AsyncClient
    worker: str


async def one_of_each(server: Process, count: int, stack: AsyncExitStack) -> list[Connection]:
    """Return connections to the given number of workers; the stack closes them."""
    found: dict[str, Connection] = {}
    limits = httpx2.Limits(max_connections=1, max_keepalive_connections=1)
    while len(found) < count:
        http = httpx2.AsyncClient(base_url=server.url, limits=limits, timeout=60)
        await stack.enter_async_context(http)
        worker = (await http.get("/v1/sessions")).json()["cursor"].split(":")[0]
        found.setdefault(worker, Connection(http, worker))
    return [*found.values()]


async def events_of(server: Process, worker: str, stack: AsyncExitStack) -> EventStream:
    """Return an event stream from this worker."""
    client = await stack.enter_async_context(Client(server.url))
    while True:
        events = await stack.enter_async_context(client.events())
        first = await anext(events)
        assert isinstance(first, Snapshot)
        if first.cursor.startswith(worker):
            return events


async def post(connection: Connection, run: str, prompt: str = "short") -> None:
    sent = {"prompt": prompt, "run_id": run}
    assert (await connection.http.post(f"/v1/sessions/{run}/runs", json=sent)).status_code == 202


@in_loop
async def look_after_workers(target: str, ledger: str) -> None:
    several = ("--ledger", ledger, "--workers", "2", "--finish", "0")
    async with AsyncExitStack() as stack:
        server = stack.enter_context(process(target, *several))
        assert "by 2 workers" in server.said
        one, two = await one_of_each(server, 2, stack)
        events = await events_of(server, two.worker, stack)
        await post(one, "a")
        found = await until_complete(events, {"a"})
        await post(two, "b")
        found |= await until_complete(events, {"b"})
        first, second = (int(found[run].text.split()[1]) for run in "ab")
        assert len({first, second, server.process.pid}) == 3
        # The one that dies is replaced, and what it had in hand is not left lying.
        await post(one, "long", "long")
        os.kill(first, signal.SIGKILL)
        assert (await until_complete(events, {"long"}))["long"].outcome == "lost"
        third = one
        while third.worker in (one.worker, two.worker):
            (third,) = [each for each in await one_of_each(server, 2, stack) if each.worker != two.worker]
        await post(third, "c")
        assert (await until_complete(events, {"c"}))["c"].outcome == "finished"
        await post(two, "last", "long")
        code, said = await asyncio.to_thread(server.end)
        assert (code, said.count("\n")) == (0, 2)
        assert "ended with -9" in said
        assert "run 'long' of session 'long' is lost" in said
        assert (await until_complete(events, {"last"}))["last"].cancelled


def test_several_workers_on_one_ledger(target: str, tmp_path: Path) -> None:
    look_after_workers(target, str(tmp_path / "runs.db"))


def test_several_workers_on_postgres(target: str, tmp_path: Path) -> None:
    @in_loop
    async def go() -> None:
        several = ("--ledger", cluster().dsn, "--workers", "2", "--finish", "0")
        async with AsyncExitStack() as stack:
            server = stack.enter_context(process(target, *several))
            one, two = await one_of_each(server, 2, stack)
            events = await events_of(server, two.worker, stack)
            for run_id in ("pa", "pb", "pc"):
                await post(one, run_id)
            await until_complete(events, {"pa", "pb", "pc"})
            assert (await asyncio.to_thread(server.end, signal.SIGINT))[0] == 130

    go()


def until_refused(port: int) -> None:
    """Wait until no process listens on this port.

    While a listener goes away, a connection may still be accepted, and it may also be reset.
    """
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            return
        except ConnectionError:
            pass
        time.sleep(0.01)


def test_workers_whose_parent_is_killed_end_and_leave_the_address(target: str, tmp_path: Path) -> None:
    with process(target, "--ledger", str(tmp_path / "runs.db"), "--workers", "2") as server:
        server.process.kill()
        until_refused(server.port)
