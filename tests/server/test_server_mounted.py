"""The server inside somebody else's application, under a prefix."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import sys
from typing import Any

import httpx2
import pytest
import uvicorn
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount

from dispatching import Agent, in_loop
from serving import Ear, Quiet
from turngate import Dispatcher, Turn
from turngate.client import Client
from turngate.server import App, Limits, asgi_app
from turngate.server._serving import config, listening


async def quick(turn: Turn) -> str:
    return f"about {turn.run.prompt}"


class Served:
    """An application around ours, served by plain uvicorn as its author would serve it."""

    def __init__(self, app: Any, mounted: App) -> None:
        self.app, self.mounted = app, mounted

    async def __aenter__(self) -> str:
        settings = config(self.mounted, "127.0.0.1", 0)
        self.server = uvicorn.Server(
            uvicorn.Config(self.app, http=settings.http, log_level="warning", timeout_graceful_shutdown=5)
        )
        self.server.capture_signals = Quiet.capture_signals.__get__(self.server)  # type: ignore[method-assign]  # pytest keeps its signals
        self.own = listening("127.0.0.1", 0)
        self.task = asyncio.create_task(self.server.serve([self.own]))
        while not self.server.started:
            await asyncio.sleep(0.01)
        return f"http://127.0.0.1:{self.own.getsockname()[1]}"

    async def __aexit__(self, *_: object) -> None:
        self.server.should_exit = True
        await self.task
        self.own.close()


@in_loop
async def test_in_fastapi_under_a_prefix() -> None:
    agent = asgi_app(quick, token="t")
    app = FastAPI(lifespan=agent.lifespan)
    app.mount("/deep/agent", agent)
    async with Served(app, agent) as url, httpx2.AsyncClient(base_url=url) as http:
        headers = {"Authorization": "Bearer t"}
        sent = {"prompt": "tea", "run_id": "r/1"}
        answer = await http.post("/deep/agent/v1/sessions/s%2F1/runs", json=sent, headers=headers)
        assert answer.status_code == 202
        assert answer.headers["location"] == "/deep/agent/v1/runs/r%2F1"
        done = await http.get(f"{answer.headers['location']}?wait=30", headers=headers)
        assert done.json()["complete"]["text"] == "about tea"
        # The page's own links are relative, so they lead to the files below the prefix.
        page = (await http.get("/deep/agent/")).text
        for link in re.findall(r'(?:href|src)="([^"#]+)"', page):
            assert not link.startswith("/")
            assert (await http.get(f"/deep/agent/{link}")).status_code == 200
        assert (await http.get("/deep/agent/openapi.json", headers=headers)).json()["servers"] == [
            {"url": "/deep/agent"}
        ]
        # Whatever name the application around it answers under is its own business.
        assert (
            await http.get("/deep/agent/healthz", headers={"Host": "anything.example"})
        ).status_code == 200
        async with Client(f"{url}/deep/agent", "t") as client:
            assert (await client.ask("s/2", "soup")).text == "about soup"
            assert [message.text for message in await client.messages("s/2")] == ["soup", "about soup"]


@in_loop
async def test_a_dispatcher_of_the_application_is_left_open_and_streams_end_with_the_server() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        mounted = asgi_app(d)
        app = Starlette(routes=[Mount("/agent", mounted)], lifespan=mounted.lifespan)
        async with Served(app, mounted) as url:
            ear = await Ear.open(url, "/agent/v1/events")
            await anext(ear)
            run = await d.submit("s", "x", run_id="r")
            await ear.until(lambda each: each.event == "run.enter")
            mounted.begin_end()  # as a signal does
            async for _ in ear:
                pass
            assert ear.ended
            ear.close()
        assert run.complete is None
        agent.finish(run)
        assert (await run).text == "done"


HOST = """
import asyncio
import uvicorn
from fastapi import FastAPI
from turngate import Dispatcher
from turngate.server import asgi_app

async def agent(turn):
    turn.write("working ")
    try:
        while turn.run.prompt == "long":
            await asyncio.sleep(3600)
        await asyncio.sleep(0.5)
    finally:
        turn.write("over")

mounted = asgi_app({0}, finish=2.0)
app = FastAPI(lifespan=mounted.lifespan)
app.mount("/agent", mounted)
uvicorn.run(app, port=0, log_level="info")
"""
RUNNING = re.compile(r"running on (http://\S+)")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("made", ["agent", "Dispatcher(agent)"])
@in_loop
async def test_a_signal_to_the_application_around_it_ends_the_streams(
    number: signal.Signals, made: str
) -> None:
    """uvicorn waits for open connections before it tells an application; here the streams end by themselves.

    What the application has made it closes itself: its runs are told to those who listen only if they end
    before. What was made for it is closed, and every run is told.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOST.replace("{0}", made), stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    said = ""
    try:
        while not (found := RUNNING.search(said)):
            said += (await process.stderr.readline()).decode()
        url = found[1]
        async with httpx2.AsyncClient(base_url=f"{url}/agent", timeout=60) as http:
            ear = await Ear.open(url, "/agent/v1/events")
            await anext(ear)
            for prompt in ("short", "long"):
                sent = {"prompt": prompt, "run_id": prompt}
                assert (await http.post(f"/v1/sessions/{prompt}/runs", json=sent)).status_code == 202
        await ear.until(lambda each: each.event == "delta" and each.data["run_id"] == "long")
        process.send_signal(number)
        heard = [each async for each in ear]
        assert ear.ended
        ear.close()
        said += (await process.stderr.read()).decode()
        assert await process.wait() in (0, -number, 130)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert "Application shutdown complete" in said
    if made == "agent":
        outcomes = {
            each.data["run_id"]: each.data["outcome"] for each in heard if each.event == "run.complete"
        }
        assert outcomes == {"short": "finished", "long": "cancelled"}


@in_loop
async def test_a_reader_that_blocks_is_let_go_behind_middleware_too() -> None:
    async def flood(turn: Turn) -> None:
        for _ in range(400):
            turn.write("x" * 16_384)
            await asyncio.sleep(0)

    mounted = asgi_app(flood, limits=Limits(write_timeout=0.2, ring_bytes=2_000_000), finish=0)
    app = FastAPI(lifespan=mounted.lifespan)
    app.mount("/agent", mounted)
    async with Served(app, mounted) as url, httpx2.AsyncClient(base_url=f"{url}/agent") as http:
        blocked = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])))
        blocked.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        blocked.sendall(b"GET /agent/v1/events HTTP/1.1\r\nHost: x\r\n\r\n")
        while "turngate_streams 1\n" not in (await http.get("/metrics")).text:
            await asyncio.sleep(0.01)
        await http.post("/v1/sessions/s/runs", json={"prompt": "x"})
        while "turngate_streams_dropped_total 1\n" not in (await http.get("/metrics")).text:
            await asyncio.sleep(0.05)
        while "turngate_streams 0\n" not in (await http.get("/metrics")).text:
            await asyncio.sleep(0.01)
        blocked.close()


@in_loop
async def test_without_its_lifespan_it_begins_with_the_first_request() -> None:
    async with Dispatcher(quick) as d:
        await d.ask("s", "before", run_id="old")
        mounted = asgi_app(d)
        transport = httpx2.ASGITransport(app=Starlette(routes=[Mount("/agent", mounted)]))
        async with httpx2.AsyncClient(transport=transport, base_url="http://x") as http:
            assert (await http.get("/agent/v1/runs/old")).json()["complete"]["text"] == "about before"
            await d.ask("s", "after")
            assert "turngate_runs_accepted_total 1\n" in (await http.get("/agent/metrics")).text
        await mounted.end()
