"""Signals to an application that mounts the server: plain uvicorn, real processes, readers connected.

Every prompt that was answered with 202 gets its RunComplete, every reader receives it before its connection
ends, and the messages are written, however the application is put together and served.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from dispatching import in_loop
from serving import Ear, Heard
from turngate import SqliteMessages
from turngate.durable import DurableDispatcher, SqliteLedger

AGENT = """
import asyncio
import contextlib
import os
from fastapi import FastAPI
from turngate import Dispatcher, SqliteMessages
from turngate.durable import DurableDispatcher, SqliteLedger
from turngate.server import asgi_app

async def agent(turn):
    turn.write("working ")
    try:
        while turn.run.prompt == "long" or not os.path.exists("go"):
            await asyncio.sleep(0.02)
    finally:
        turn.write("over")
"""
DISPATCHERS = {
    "dispatcher": 'agent_app = asgi_app(Dispatcher(agent, messages=SqliteMessages("store.db")), finish=3000)',
    "runner": 'agent_app = asgi_app(agent, messages=SqliteMessages("store.db"), finish=3000)',
    "ledger": 'agent_app = asgi_app(DurableDispatcher(agent, SqliteLedger("store.db")), finish=3000)',
    "theirs": 'd = Dispatcher(agent, messages=SqliteMessages("store.db"))\n'
    "agent_app = asgi_app(d, owns=False, finish=3000)",
}
APPLICATIONS = {
    "plain": "app = FastAPI(lifespan=agent_app.lifespan)",
    "nested": """
@contextlib.asynccontextmanager
async def lifespan(app):
    async with agent_app.lifespan(app):
        async with other_app.lifespan(app):
            yield

other_app = asgi_app(agent)
app = FastAPI(lifespan=lifespan)
app.mount("/other", other_app)
""",
    "closes": """
@contextlib.asynccontextmanager
async def lifespan(app):
    async with d, agent_app.lifespan(app):
        yield

app = FastAPI(lifespan=lifespan)
""",
    "none": "app = FastAPI()",
}
MOUNT = 'app.mount("/agent", agent_app)\n'
RUN = 'if __name__ == "__main__":\n    import uvicorn\n    uvicorn.run(app, port=0{options})\n'
RUNNING = re.compile(r"running on (http://\S+)")


class Host:
    """An application in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.url = ""
        self.said = ""

    async def started(self) -> None:
        """Wait until it serves."""
        assert self.process.stderr is not None
        while "Application startup complete" not in self.said or not self.url:
            line = (await self.process.stderr.readline()).decode()
            assert line, self.said
            self.said += line
            if found := RUNNING.search(line):
                self.url = found[1]
        # uvicorn listens only after the application has started.
        async with httpx2.AsyncClient(base_url=self.url, timeout=60) as http:
            while True:
                with contextlib.suppress(httpx2.TransportError):
                    await http.get("/agent/healthz")
                    return
                await asyncio.sleep(0.02)

    async def ended(self) -> int:
        """Wait for its end."""
        assert self.process.stderr is not None
        self.said += (await self.process.stderr.read()).decode()
        return await self.process.wait()


@contextlib.asynccontextmanager
async def hosted(
    folder: Path, dispatcher: str, application: str = "plain", options: str = "", *command: str
) -> AsyncIterator[Host]:
    (folder / "host_of_test.py").write_text(
        "\n".join([AGENT, DISPATCHERS[dispatcher], APPLICATIONS[application], MOUNT])
        + RUN.replace("{options}", options),
        encoding="utf-8",
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *(command or ("host_of_test.py",)),
        cwd=folder,
        stderr=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    host = Host(process)
    try:
        await host.started()
        yield host
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its workers too
        await process.wait()


async def rest_of(ear: Ear) -> dict[str, str]:
    """Return how the runs ended that the stream tells of; it must end as HTTP ends a body."""
    outcomes = outcomes_of([each async for each in ear])
    assert ear.ended
    ear.close()
    return outcomes


def outcomes_of(heard: list[Heard]) -> dict[str, str]:
    completes = [each.data for each in heard if each.event == "run.complete"]
    outcomes = {each["run_id"]: each["outcome"] for each in completes}
    assert len(outcomes) == len(completes)
    return outcomes


async def post(http: httpx2.AsyncClient, prompt: str, run: str, **more: Any) -> None:
    sent = {"prompt": prompt, "run_id": run, **more}
    assert (await http.post(f"/v1/sessions/{prompt}/runs", json=sent)).status_code == 202


async def messages_of(folder: Path, dispatcher: str, session: str) -> list[tuple[str, str | None]]:
    """Return the texts and finish reasons of the run `r` that are in the store."""
    if dispatcher == "ledger":
        async with DurableDispatcher(lambda turn: asyncio.sleep(0), SqliteLedger(folder / "store.db")) as d:
            messages = await d.messages.list(session)
    else:
        store = SqliteMessages(folder / "store.db")
        messages = await store.list(session)
        await store.close()
    return [(each.text, each.finish_reason) for each in messages if each.run_id == "r"]


HOSTS: list[tuple[str, str, str, tuple[str, ...], signal.Signals]] = [
    ("dispatcher", "plain", "", (), signal.SIGTERM),
    ("runner", "nested", ", timeout_graceful_shutdown=0.1", (), signal.SIGINT),
    ("ledger", "plain", ", loop='asyncio'", (), signal.SIGTERM),
    ("ledger", "plain", "", ("-m", "uvicorn", "host_of_test:app", "--port", "0"), signal.SIGINT),
    ("theirs", "closes", "", (), signal.SIGTERM),
]


@pytest.mark.parametrize(("dispatcher", "application", "options", "command", "number"), HOSTS)
@in_loop
async def test_a_signal_loses_nothing_that_was_accepted(
    tmp_path: Path,
    dispatcher: str,
    application: str,
    options: str,
    command: tuple[str, ...],
    number: signal.Signals,
) -> None:
    async with hosted(tmp_path, dispatcher, application, options, *command) as host:
        ears = [
            await Ear.open(host.url, f"/agent/v1{path}")
            for path in ("/events", "/events", "/sessions/short/events")
        ]
        for ear in ears:
            await anext(ear)
        async with httpx2.AsyncClient(base_url=f"{host.url}/agent", timeout=60) as http:
            await post(http, "short", "r")
            reader, writer = await asyncio.open_connection("127.0.0.1", int(host.url.rpartition(":")[2]))
            writer.write(b"GET /agent/v1/runs/r?wait=60 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert (await http.get("/healthz")).status_code == 200  # so it has come to wait
        host.process.send_signal(number)
        (tmp_path / "go").touch()
        heard = await asyncio.gather(*map(rest_of, ears))
        assert heard == [{"r": "finished"}] * 3
        assert b'"outcome":"finished"' in await reader.read()
        writer.close()
        assert await host.ended() in (0, -number, 130)
    assert "Application shutdown complete" in host.said
    assert "Exception in ASGI application" not in host.said
    assert "timeout graceful shutdown exceeded" not in host.said  # as uvicorn says when it cuts connections
    stored = await messages_of(tmp_path, dispatcher, "short")
    assert stored == [("short", None), ("working over", "end_turn")]


@pytest.mark.parametrize("numbers", [(signal.SIGTERM, signal.SIGTERM), (signal.SIGINT, signal.SIGINT)])
@pytest.mark.parametrize("dispatcher", ["dispatcher", "ledger"])
@in_loop
async def test_meanwhile_prompts_are_refused_and_a_second_signal_hastens(
    tmp_path: Path, dispatcher: str, numbers: tuple[signal.Signals, signal.Signals]
) -> None:
    async with hosted(tmp_path, dispatcher) as host:
        ear = await Ear.open(host.url, "/agent/v1/events")
        await anext(ear)
        async with httpx2.AsyncClient(base_url=f"{host.url}/agent", timeout=60) as http:
            await post(http, "long", "r")
            await post(http, "long", "queued", when_busy="queue")
            await ear.until(lambda each: each.event == "delta")
            host.process.send_signal(numbers[0])
            while (await http.get("/readyz")).status_code == 200:
                await asyncio.sleep(0.01)
            refused = await http.post("/v1/sessions/s/runs", json={"prompt": "late"})
            assert refused.status_code == 503
            assert refused.json()["type"] == "urn:turngate:problem:shutting-down"
            assert (await http.get("/v1/runs/r")).json()["state"] == "active"
            late = await Ear.open(host.url, "/agent/v1/events")  # who comes back meanwhile is told, too
            await anext(late)
        host.process.send_signal(numbers[1])
        heard = [await rest_of(each) for each in (ear, late)]
        stays = {} if dispatcher == "ledger" else {"queued": "cancelled"}  # a ledger keeps it for the next
        assert heard == [{"r": "cancelled", **stays}] * 2
        assert await host.ended() in (0, *(-number for number in numbers), 130)
    assert await messages_of(tmp_path, dispatcher, "long") == [("long", None), ("working over", "canceled")]


@pytest.mark.parametrize("how", ["--workers", "--reload"])
@in_loop
async def test_workers_and_reloaders_pass_a_signal_on(tmp_path: Path, how: str) -> None:
    """They send SIGTERM to the processes that serve."""
    more = ("--workers", "2") if how == "--workers" else ("--reload",)
    command = ("-m", "uvicorn", "host_of_test:app", "--port", "0", *more)
    async with hosted(tmp_path, "ledger", "plain", "", *command) as host:
        ear = await Ear.open(host.url, "/agent/v1/events")
        await anext(ear)
        async with httpx2.AsyncClient(base_url=f"{host.url}/agent", timeout=60) as http:
            await post(http, "short", "r")
            await ear.until(lambda each: each.event == "run.enter")
        host.process.terminate()
        (tmp_path / "go").touch()
        # A worker that runs no turn does not wait for the turns of the others.
        assert await rest_of(ear) in ([{"r": "finished"}] if how == "--reload" else [{"r": "finished"}, {}])
        await host.ended()
    assert await messages_of(tmp_path, "ledger", "short") == [("short", None), ("working over", "end_turn")]


@in_loop
async def test_without_the_lifespan_it_is_said_once_in_the_log(tmp_path: Path) -> None:
    async with hosted(tmp_path, "dispatcher", "none") as host:
        (tmp_path / "go").touch()
        async with httpx2.AsyncClient(base_url=f"{host.url}/agent", timeout=60) as http:
            for run in ("a", "b"):
                await post(http, "short", run)
            assert (await http.get("/v1/runs/b?wait=60")).json()["complete"]["outcome"] == "finished"
        host.process.terminate()
        await host.ended()
    assert host.said.count("lifespan of the mounted") == 1
