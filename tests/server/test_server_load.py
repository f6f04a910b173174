"""Many at once: subscribers that come and go, prompts, cancels; nothing missing or doubled, all bounded.

Every loop is bounded by what it has to see, not by a time.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx2
import pytest

from dispatching import in_loop
from serving import Ear, Line, figure, served, serving
from turngate import Dispatcher, Turn
from turngate.durable import DurableDispatcher, SqliteLedger
from turngate.server import App, Limits, asgi_app


class Load(NamedTuple):
    """How much there is."""

    subscribers: int
    to_all: int
    sessions: int
    prompts: int
    ring: int
    cuts: tuple[int, int] | None = None
    """After how many bytes, from and to, the line is cut that every other subscriber is behind."""


async def quick(turn: Turn) -> None:
    for number in range(5):
        turn.write(f"word{number} ")
        await asyncio.sleep(0)
    await turn.fold()


class Subscriber:
    """Reads a session or all; goes away after a random number of events, and comes again."""

    def __init__(self, url: str, session: str | None, chance: random.Random) -> None:
        self.url, self.session, self.chance = url, session, chance
        self.seen: dict[str, int] = {}
        self.after: str | None = None
        self.connected = asyncio.Event()
        self.connections = self.resets = self.gaps = self.late = 0

    async def follow(self, expected: dict[str, str], told: asyncio.Event) -> None:
        """Read until everything that was sent to its session is complete."""
        path = "/v1/events" if self.session is None else f"/v1/sessions/{self.session}/events"
        while not (told.is_set() and self.owed(expected) <= self.seen.keys()):
            try:
                ear = await Ear.open(self.url, path, self.after)
            except (asyncio.IncompleteReadError, ConnectionError):
                continue
            assert ear.status == 200
            self.connections += 1
            patience = self.chance.randint(5, 400)
            async for each in ear:
                self.connected.set()
                self.take(each.event, each.data)
                self.after = each.id or self.after
                patience -= 1
                done = told.is_set() and self.owed(expected) <= self.seen.keys()
                if done or (patience <= 0 and each.event not in ("gap", "snapshot")):
                    break
            ear.close()

    def owed(self, expected: dict[str, str]) -> set[str]:
        return {run for run, session in expected.items() if self.session in (None, session)}

    def take(self, event: str, data: dict[str, object]) -> None:
        if event == "run.complete":
            run = str(data["run_id"])
            self.seen[run] = self.seen.get(run, 0) + 1
        elif event == "delta":
            self.late += data["run_id"] in self.seen
        elif event == "gap":
            self.gaps += 1
        elif event == "snapshot":
            self.resets += bool(data["reset"])


async def post_and_vanish(url: str, session: str, expected: dict[str, str]) -> None:
    """Send a prompt over a connection that is gone before the answer: whatever is taken in is run."""
    run = f"vanished-{len(expected)}"
    expected[run] = session
    body = f'{{"prompt": "x", "run_id": "{run}", "when_busy": "queue"}}'
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    head = f"POST /v1/sessions/{session}/runs HTTP/1.1\r\nHost: {parts.netloc}\r\n"
    writer.write(
        f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
    )
    await reader.read(1)  # the request is taken in; its answer is never read
    writer.transport.abort()


async def bear(load: Load, seed: int) -> tuple[list[Subscriber], App]:
    chance = random.Random(seed)
    dispatcher = Dispatcher(quick)
    app = asgi_app(dispatcher, limits=Limits(ring_events=load.ring, streams_limit=load.subscribers * 2))
    async with (
        dispatcher,
        serving(app) as url,
        Line(url, load.cuts, seed).up() as near,
        httpx2.AsyncClient(base_url=url, timeout=600) as http,
    ):
        sessions = [f"s{number}" for number in range(load.sessions)]
        subscribers = [
            Subscriber(
                near if load.cuts and number % 2 else url,
                None if number < load.to_all else sessions[number % load.sessions],
                chance,
            )
            for number in range(load.subscribers)
        ]
        expected: dict[str, str] = {}
        told = asyncio.Event()
        following = [asyncio.create_task(each.follow(expected, told)) for each in subscribers]
        for each in subscribers:
            await each.connected.wait()

        async def post(numbers: list[int]) -> None:
            for number in numbers:
                session, run = chance.choice(sessions), f"r{number}"
                busy = chance.choice(("fold", "fold", "queue", "queue", "interrupt"))
                expected[run] = session
                sent = {"prompt": f"about {run}", "run_id": run, "when_busy": busy}
                assert (await http.post(f"/v1/sessions/{session}/runs", json=sent)).status_code == 202
                if chance.random() < 0.05:
                    await post_and_vanish(url, session, expected)
                if chance.random() < 0.05:
                    assert (await http.post(f"/v1/sessions/{session}/cancel")).status_code == 200

        numbers = [*range(load.prompts)]
        await asyncio.gather(*(post(numbers[start::8]) for start in range(8)))
        # One last prompt for each session: a reader that has seen it has seen everything before it.
        expected |= {f"last-{session}": session for session in sessions}
        told.set()
        for session in sessions:
            sent = {"prompt": "last", "run_id": f"last-{session}"}
            assert (await http.post(f"/v1/sessions/{session}/runs", json=sent)).status_code == 202
        for task in following:
            await task
        assert await figure(url, "ring_events") <= load.ring
        assert await figure(url, "ring_bytes") <= app.limits.ring_bytes
        while await figure(url, "streams"):
            await asyncio.sleep(0.01)
        assert dispatcher.sessions() == []
        assert "turngate_runs_in_flight 0\n" in (await http.get("/metrics")).text
    for each in subscribers:
        owed = each.owed(expected)
        assert owed <= each.seen.keys()
        assert set(each.seen.values()) == {1}, each.session
        assert (each.resets, each.late) == (0, 0)
    return subscribers, app


@in_loop
async def test_hundreds_of_subscribers_that_come_and_go() -> None:
    subscribers, _ = await bear(Load(200, 8, 20, 150, 8_192), seed=1)
    assert sum(each.connections for each in subscribers) > 250


@in_loop
async def test_a_ring_so_small_that_everybody_always_falls_behind() -> None:
    subscribers, _ = await bear(Load(40, 8, 4, 100, 2), seed=2)
    assert sum(each.gaps for each in subscribers) > 40


@in_loop
async def test_lines_that_are_cut_at_random_bytes() -> None:
    subscribers, _ = await bear(Load(40, 8, 10, 100, 64, (200, 20_000)), seed=3)
    assert sum(each.connections for each in subscribers) > 80


@pytest.mark.deep
@pytest.mark.parametrize(("ring", "prompts"), [(8_192, 2_000), (64, 2_000), (2, 400)])
@in_loop
async def test_thousands_of_prompts(ring: int, prompts: int) -> None:
    subscribers, _ = await bear(Load(300, 20, 20, prompts, ring, (10_000, 1_000_000)), seed=ring)
    assert sum(each.connections for each in subscribers) > 400


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_readers_that_come_together_share_a_look(kind: str, tmp_path: Path) -> None:
    in_loop(come_together)(kind, tmp_path)


async def come_together(kind: str, folder: Path) -> None:
    """Each has its snapshot, not older than its question, and the sessions are looked at a few times only."""
    gate = asyncio.Event()

    async def gated(turn: Turn) -> None:
        await gate.wait()

    d: Any = Dispatcher(gated)
    if kind == "sqlite":
        d = DurableDispatcher(gated, SqliteLedger(folder / "l.db", synchronous="NORMAL"), poll=0.05)
    looks = 0
    sessions = d.sessions

    def counted() -> Any:
        nonlocal looks
        looks += 1
        return sessions()

    async def counted_later() -> Any:
        return await counted()

    async with d, served(d) as (url, http):
        await asyncio.gather(*(d.submit(f"s{number}", "x") for number in range(300)))
        d.sessions = counted if kind == "memory" else counted_later
        ears = await asyncio.gather(*(Ear.open(url) for _ in range(60)))
        firsts = await asyncio.gather(*(anext(ear) for ear in ears))
        assert looks <= 20
        assert (await http.post("/v1/sessions/late/runs", json={"prompt": "x"})).status_code == 202
        ears.append(await Ear.open(url))
        firsts.append(await anext(ears[-1]))
        assert [len(each.data["sessions"]) for each in firsts] == [300] * 60 + [301]
        assert len((await http.get("/v1/sessions")).json()["sessions"]) == 301
        gate.set()
        for ear in ears:
            await ear.complete(*(run["active"]["run_id"] for run in firsts[-1].data["sessions"][-1:]))
            ear.close()
