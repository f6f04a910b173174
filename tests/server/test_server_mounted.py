"""The server inside somebody else's application, under a prefix."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import httpx2
import uvicorn
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount

from dispatching import Agent, in_loop
from serving import Ear, Quiet
from turngate import Dispatcher, Turn
from turngate.client import Client
from turngate.server import App, asgi_app
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
        self.server.capture_signals = Quiet.capture_signals.__get__(self.server)  # type: ignore[method-assign]
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
