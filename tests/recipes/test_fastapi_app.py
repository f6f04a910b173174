"""examples/agents/fastapi_app.py, served by a real uvicorn on the loopback interface."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dispatching import HANG
from surroundings import ROOT, insist_on_package

SESSION = "/sessions/s"
TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
HEADERS = {"X-Request-ID": "request-1", "traceparent": f"00-{TRACE_ID}-00f067aa0ba902b7-01"}
SOURCES = [ROOT / "impl", ROOT / "examples" / "agents"]


@pytest.fixture(autouse=True)
def _installed() -> None:
    for package in ("fastapi", "uvicorn", "httpx2", "opentelemetry.sdk"):
        insist_on_package(package)


class Served(NamedTuple):
    process: asyncio.subprocess.Process
    client: Any
    gate: Path

    async def send(self, prompt: str, **more: str) -> str:
        """Send a prompt, and return its run_id."""
        body = {"prompt": prompt, **more}
        response = await self.client.post(f"{SESSION}/prompts", json=body, headers=HEADERS)
        assert response.status_code == 202, response.text
        assert response.headers["X-Request-ID"] == "request-1"
        run_id: str = response.json()["run_id"]
        return run_id

    async def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    async def has_ended(self) -> int:
        assert self.process.stderr is not None
        await self.process.stderr.read()
        return await self.process.wait()


@asynccontextmanager
async def served(tmp_path: Path, finish: str) -> AsyncIterator[Served]:
    """Start the application in a process of its own, and have a client for it."""
    import httpx2  # noqa: PLC0415 - not there without the group

    gate = tmp_path / "gate"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "error", ROOT / "tests" / "recipes" / "served.py", gate, finish,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, SOURCES))},
    )  # fmt: skip
    try:
        assert process.stderr is not None
        said = b""
        while not (found := re.search(rb"running on (http://\S+)", said)):
            line = await process.stderr.readline()
            assert line, said.decode()
            said += line
        async with httpx2.AsyncClient(base_url=found[1].decode(), timeout=None, trust_env=False) as client:
            yield Served(process, client, gate)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@asynccontextmanager
async def events_of(app: Served) -> AsyncIterator[AsyncIterator[tuple[str, dict[str, Any]]]]:
    """Read the session's events, from now on."""
    async with app.client.stream("GET", f"{SESSION}/events") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = response.aiter_lines()
        assert await anext(lines) == ": from here on"

        async def events() -> AsyncIterator[tuple[str, dict[str, Any]]]:
            kind = ""
            async for line in lines:
                name, _, value = line.partition(": ")
                if name == "event":
                    kind = value
                elif name == "data":
                    yield kind, json.loads(value)

        yield events()


async def completes(events: AsyncIterator[tuple[str, dict[str, Any]]]) -> list[tuple[str, str, str]]:
    """Read to the end of the stream; return run_id, outcome and text of every RunComplete."""
    return [
        (event["run_id"], event["outcome"], event["text"])
        async for kind, event in events
        if kind == "RunComplete"
    ]


def test_a_prompt_is_accepted_and_its_events_know_the_request(tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(HANG), served(tmp_path, "0") as app, events_of(app) as events:
            run_id = await app.send("tea")
            kind, note = await anext(events)
            assert (kind, note["run_id"]) == ("Note", run_id)
            assert note["data"] == {"request_id": "request-1", "trace_id": TRACE_ID}
            kind, delta = await anext(events)
            assert (kind, delta["text"]) == ("Delta", "about tea: ")
            app.gate.touch()
            kind, delta = await anext(events)
            assert (kind, delta["text"]) == ("Delta", "done")
            kind, complete = await anext(events)
            assert (kind, complete["outcome"]) == ("RunComplete", "finished")

    asyncio.run(main())


def test_a_cancel_covers_what_came_before_it_and_nothing_after(tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(HANG), served(tmp_path, "0") as app, events_of(app) as events:
            covered = [await app.send("tea"), await app.send("cake", when_busy="queue")]
            assert (await app.client.post(f"{SESSION}/cancel")).json() == {"covered": covered}
            app.gate.touch()
            later = await app.send("soup")
            outcomes = {}
            while later not in outcomes:
                kind, event = await anext(events)
                if kind == "RunComplete":
                    outcomes[event["run_id"]] = event["outcome"]
            assert outcomes == {covered[0]: "cancelled", covered[1]: "cancelled", later: "finished"}
            refused = await app.client.post(f"{SESSION}/prompts", json={"prompt": " "})
            assert refused.status_code == 422

    asyncio.run(main())


def test_a_signal_cancels_what_is_in_flight_and_every_run_complete_is_delivered(tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(HANG), served(tmp_path, "0") as app, events_of(app) as events:
            runs = [await app.send(prompt, when_busy="queue") for prompt in ("tea", "cake", "soup")]
            while (await anext(events))[0] != "Delta":
                pass
            await app.terminate()
            told = await completes(events)
            assert sorted(told) == sorted(
                [
                    (runs[0], "cancelled", "about tea: "),
                    (runs[1], "cancelled", ""),
                    (runs[2], "cancelled", ""),
                ]
            )
            assert await app.has_ended() == 0

    asyncio.run(main())


def test_a_signal_lets_what_is_in_flight_finish_if_it_is_given_time(tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(HANG), served(tmp_path, "inf") as app, events_of(app) as events:
            prompts = ("tea", "cake", "soup")
            runs = [await app.send(prompt, when_busy="queue") for prompt in prompts]
            while (await anext(events))[0] != "Delta":
                pass
            await app.terminate()
            app.gate.touch()
            told = await completes(events)
            assert told == [
                (run, "finished", f"about {prompt}: done") for run, prompt in zip(runs, prompts, strict=True)
            ]
            assert await app.has_ended() == 0

    asyncio.run(main())
