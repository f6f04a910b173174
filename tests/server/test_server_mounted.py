"""The server inside another application, under a prefix."""

from __future__ import annotations

import asyncio
import re
import socket
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvicorn
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount

from dispatching import Agent, in_loop
from serving import Ear, Quiet
from turngate import Dispatcher, DispatcherClosed, MemoryMessages, Turn
from turngate.client import Client
from turngate.durable import DurableDispatcher, LedgerUnavailable, SqliteLedger
from turngate.server import App, Limits, asgi_app
from turngate.server._serving import config, listening


async def quick(turn: Turn) -> str:
    return f"about {turn.run.prompt}"


class Served:
    """An application around ours, served by plain uvicorn as its author would serve it."""

    def __init__(self, app: Any, mounted: App, **options: Any) -> None:
        self.app, self.mounted, self.options = app, mounted, options

    async def __aenter__(self) -> str:
        settings = config(self.mounted, "127.0.0.1", 0)
        self.server = uvicorn.Server(
            uvicorn.Config(
                self.app,
                http=settings.http,
                log_level="warning",
                timeout_graceful_shutdown=5,
                **self.options,
            )
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
async def test_a_dispatcher_of_the_application_is_left_to_it() -> None:
    """Streams go on behind the lifespan, until the application closes the dispatcher."""
    agent = Agent()
    d = Dispatcher(agent)
    mounted = asgi_app(d, owns=False)
    serving_it = AsyncExitStack()
    async with mounted.lifespan():
        url = await serving_it.enter_async_context(Served(mounted, mounted, lifespan="off"))
        ear = await Ear.open(url, "/v1/events")
        await anext(ear)
        runs = [await d.submit(f"s{number}", "x", run_id=f"r{number}") for number in range(2)]
        await ear.until(lambda each: each.event == "run.enter" and each.data["run_id"] == "r1")
    assert [run.complete for run in runs] == [None, None]
    agent.finish(runs[0])
    await ear.complete("r0")
    async with httpx2.AsyncClient(base_url=url) as http:
        refused = await http.post("/v1/sessions/s/runs", json={"prompt": "late"})
        assert (refused.status_code, refused.json()["type"]) == (503, "urn:turngate:problem:shutting-down")
    await d.aclose()
    heard = [each async for each in ear]
    assert ear.ended
    assert [each.data["outcome"] for each in heard if each.event == "run.complete"] == ["cancelled"]
    ear.close()
    await serving_it.aclose()


@in_loop
async def test_at_a_signal_streams_of_such_a_dispatcher_wait_until_nothing_is_in_flight() -> None:
    """They cannot wait for the close: the server runs the application's lifespan when they have ended."""
    agent = Agent()
    async with Dispatcher(agent) as d:
        mounted = asgi_app(d, owns=False, finish=3_000)
        app = Starlette(routes=[Mount("/agent", mounted)], lifespan=mounted.lifespan)
        async with Served(app, mounted) as url:
            ear = await Ear.open(url, "/agent/v1/events")
            await anext(ear)
            run = await d.submit("s", "x", run_id="r")
            await ear.until(lambda each: each.event == "run.enter")
            mounted.begin_end()  # as a signal does
            agent.finish(run)
            heard = [each async for each in ear]
            assert ear.ended
            assert [each.data["outcome"] for each in heard if each.event == "run.complete"] == ["finished"]
            ear.close()
        assert (await d.submit("s", "y")).state == "accepted"  # the dispatcher is open


@in_loop
async def test_a_runner_comes_with_what_a_dispatcher_takes_and_may_live_twice() -> None:
    store = MemoryMessages()
    mounted = asgi_app(quick, messages=store, turns_limit=1, finish=0)
    for number in range(2):
        async with Served(mounted, mounted) as url, Client(url) as client:
            assert (await client.ask("s", f"tea {number}")).text == f"about tea {number}"
    texts = [message.text for message in await store.list("s")]
    assert texts == ["tea 0", "about tea 0", "tea 1", "about tea 1"]
    with pytest.raises(TypeError, match="no_such_option"):
        asgi_app(quick, no_such_option=1)
    with pytest.raises(TypeError, match="turns_limit"):
        asgi_app(Dispatcher(quick), turns_limit=1)
    with pytest.raises(ValueError, match="owns=False"):
        asgi_app(quick, owns=False)
    with pytest.raises(ValueError, match="finish"):
        asgi_app(quick, finish=-1)


@in_loop
async def test_a_dispatcher_that_was_closed_does_not_begin_again() -> None:
    mounted = asgi_app(Dispatcher(quick))
    async with mounted.lifespan():
        pass
    with pytest.raises(DispatcherClosed):
        async with mounted.lifespan():
            pass


@in_loop
async def test_a_reader_that_blocks_is_dropped_behind_middleware_too() -> None:
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
async def test_without_its_lifespan_it_warns_once_and_begins_with_the_first_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Dispatcher(quick) as d:
        await d.ask("s", "before", run_id="old")
        mounted = asgi_app(d)
        transport = httpx2.ASGITransport(app=Starlette(routes=[Mount("/agent", mounted)]))
        async with httpx2.AsyncClient(transport=transport, base_url="http://x") as http:
            assert (await http.get("/agent/v1/runs/old")).json()["complete"]["text"] == "about before"
            await d.ask("s", "after")
            assert "turngate_runs_accepted_total 1\n" in (await http.get("/agent/metrics")).text
        await mounted.end()
    assert len([each for each in caplog.records if "lifespan" in each.getMessage()]) == 1


class Slow(DurableDispatcher):
    """Is slow to begin, or fails to, for as long as the test says."""

    def __init__(self, path: Path) -> None:
        super().__init__(quick, SqliteLedger(path), poll=0.05)
        self.may_begin, self.failures = asyncio.Event(), 0

    async def key_life(self) -> str:
        await self.may_begin.wait()
        if self.failures:
            self.failures -= 1
            raise LedgerUnavailable("not yet")
        return await super().key_life()


@in_loop
async def test_a_first_request_that_is_cancelled_takes_no_other_along(tmp_path: Path) -> None:
    d = Slow(tmp_path / "l.db")
    mounted = asgi_app(d, finish=0)
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app=mounted), base_url="http://x", timeout=None
    ) as http:
        first, second = (asyncio.create_task(http.get("/v1/sessions")) for _ in range(2))
        await asyncio.sleep(0.1)
        first.cancel()
        await asyncio.wait([first])
        d.may_begin.set()
        assert (await asyncio.wait_for(second, 60)).status_code == 200
    await mounted.end()


@in_loop
async def test_a_beginning_that_failed_leaves_no_second_log_behind(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    d = Slow(tmp_path / "l.db")
    d.may_begin.set()
    d.failures = 3
    mounted = asgi_app(d, finish=0)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=mounted), base_url="http://x") as http:
        for _ in range(3):
            assert (await http.get("/v1/sessions")).status_code == 503
        for number in range(20):
            await http.post(f"/v1/sessions/s{number}/runs", json={"prompt": "x", "run_id": f"r{number}"})
            await http.get(f"/v1/runs/r{number}?wait=60")
        async with asyncio.timeout(60):
            while 'completed_total{outcome="finished"} 20\n' not in (await http.get("/metrics")).text:
                await asyncio.sleep(0.01)
        following = [task for task in asyncio.all_tasks() if "the event log" in task.get_name()]
        assert len(following) == 1
    await mounted.end()
