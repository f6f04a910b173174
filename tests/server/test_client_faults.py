"""One fault at every exchange of every call of the client, while other callers go on.

The abstract session judges the server's history with each call in it once, as its caller made it: if a cancel
was carried out a second time, it cancelled runs that no caller had cancelled. A reader of the event stream
hears of each RunComplete once.
"""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest

from dispatching import in_loop
from faulty_proxy import FAULTS, Fault, FaultyProxy
from ledgers import ledgers
from serving import served
from turngate import Dispatcher, OutcomeUnknown, RunComplete, Turn, UnknownRun
from turngate.client import Client
from turngate.durable import DurableDispatcher
from turngate_verify.trace import check

PATIENCE = 150.0
"""Seconds; what is lost costs one time-out, and on a busy machine many exchanges take longer than that."""
TIMEOUT = 1.0


class Scene:
    """One session with a run that is active and one that is queued, and one call over a line with a fault."""

    def __init__(self, session: str, other: Client, gates: dict[str, asyncio.Event]) -> None:
        self.session = session
        self.other = other
        self.gate = gates[session] = asyncio.Event()
        self.lead, self.queued, self.later, self.mine = (
            f"{session} {name}" for name in ("lead", "queued", "later", "mine")
        )
        self.runs = {self.lead, self.queued}

    async def begin(self) -> None:
        await self.other.submit(self.session, "lead", run_id=self.lead)
        await self.other.submit(self.session, "queued", run_id=self.queued, when_busy="queue")

    async def forget_what_never_came(self) -> None:
        """Expect nothing of a prompt that never reached the server."""
        try:
            await self.other.run(self.mine)
        except UnknownRun:
            self.runs.discard(self.mine)

    async def meanwhile(self) -> None:
        """Another caller has a prompt accepted."""
        self.runs.add(self.later)
        await self.other.submit(self.session, "later", run_id=self.later, when_busy="queue")


Call = Callable[[Client, Scene], Awaitable[object]]


async def submitted(client: Client, scene: Scene, **options: Any) -> None:
    scene.runs.add(scene.mine)
    run = await client.submit(scene.session, "mine", run_id=scene.mine, **options)
    assert run.run_id == scene.mine


async def asked(client: Client, scene: Scene) -> None:
    scene.runs.add(scene.mine)
    scene.gate.set()
    assert (await client.ask(scene.session, "mine", run_id=scene.mine)).text == "said mine"


async def waited(client: Client, scene: Scene) -> None:
    scene.gate.set()
    assert (await client.wait(scene.queued)).text == "said queued"


async def looked(client: Client, scene: Scene) -> None:
    assert (await client.run(scene.lead)).session_id == scene.session
    assert scene.session in {each.session_id for each in await client.sessions()}
    assert (await client.session(scene.session)).session_id == scene.session
    assert isinstance(await client.messages(scene.session), list)


async def streamed(client: Client, scene: Scene) -> None:
    scene.runs.add(scene.mine)
    scene.gate.set()
    text = client.stream(scene.session, "mine", run_id=scene.mine)
    assert "".join([piece async for piece in text]) == "said mine"
    assert text.complete is not None


async def heard(client: Client, scene: Scene) -> None:
    async with client.events(scene.session) as events:
        await anext(events)
        scene.gate.set()
        await client.submit(scene.session, "mine", run_id=scene.mine, when_busy="queue")
        scene.runs.add(scene.mine)
        seen: list[str] = []
        while scene.mine not in seen:
            event = await anext(events)
            if isinstance(event, RunComplete):
                seen.append(event.run_id)
        assert len(seen) == len({*seen})
        assert {scene.lead, scene.queued, scene.mine} <= {*seen}


CALLS: dict[str, Call] = {
    "submit": submitted,
    "interrupt": lambda client, scene: submitted(client, scene, when_busy="interrupt"),
    "ask": asked,
    "cancel": lambda client, scene: client.cancel(scene.session),
    "cancel_run": lambda client, scene: client.cancel_run(scene.lead),
    "clear_queue": lambda client, scene: client.clear_queue(scene.session),
    "wait": waited,
    "look": looked,
    "stream": streamed,
    "events": heard,
}
CHANGING = ("cancel", "cancel_run", "clear_queue")
EXCHANGES = {"ask": 2, "look": 4, "stream": 2, "events": 2}
"""How many exchanges a call has; one if it is not here."""


class Scenes:
    """The scenes of a test, on one server, and what the direct reader of its events hears."""

    def __init__(self) -> None:
        self.gates: dict[str, asyncio.Event] = {}
        self.ends: list[str] = []
        self._few = asyncio.Semaphore(40)

    async def runner(self, turn: Turn) -> str:
        await self.gates[turn.run.session_id].wait()
        turn.write(f"said {turn.run.prompt}")
        return f"said {turn.run.prompt}"

    async def hear(self, client: Client, hears: asyncio.Event) -> None:
        async with client.events() as events:
            async for event in events:
                hears.set()
                if isinstance(event, RunComplete):
                    self.ends.append(event.run_id)

    async def play(self, url: str, scene: Scene, call: str, fault: Fault, nth: int, *, fresh: bool) -> bool:
        """Make one call with one fault; say whether that struck. A fresh client has had no answer before."""
        proxy = FaultyProxy(url)
        plain = httpx2.AsyncHTTPTransport(verify=False)  # to read certificates takes longer than all the rest
        async with (
            self._few,
            proxy.up() as near,
            Client(near, patience=PATIENCE, timeout=TIMEOUT, transport=plain) as client,
        ):
            await scene.begin()
            if not fresh:
                await client.session(scene.session)
            proxy.arm(fault, nth, scene.meanwhile)
            answer = None
            try:
                answer = await CALLS[call](client, scene)
            except OutcomeUnknown:
                assert fresh, f"{scene.session}: the client knew enough to send it again"
                assert call in (*CHANGING, "interrupt")
            if proxy.struck:
                await proxy.over.wait()
            await scene.forget_what_never_came()
            scene.gate.set()
            found = sorted([await scene.other.run(run) for run in scene.runs], key=lambda run: run.seq)
            ends = [await scene.other.wait(run.run_id) for run in found]
            if call in CHANGING and answer is not None:
                wanted = "cleared" if call == "clear_queue" else "cancelled"
                assert answer == [end.run_id for end in ends if end.outcome == wanted], scene.session
        return proxy.struck


async def survive_every_fault(
    make: Callable[[Any], Any], calls: Sequence[str], *, fresh: bool
) -> list[dict[str, Any]]:
    """Make these calls with every fault at every exchange; return the history of the server."""
    every = Scenes()
    d = make(every.runner)
    async with d, served(d) as (url, _), Client(url) as other:
        hears = asyncio.Event()
        hearing = asyncio.create_task(every.hear(other, hears))
        await hears.wait()
        cases = [
            (call, fault, nth)
            for call in calls
            for fault in FAULTS
            for nth in range(EXCHANGES.get(call, 1))
            if call in CHANGING or fault not in ("503 after", "504 after")
        ]
        scenes = [Scene(f"{call}, {fault} at {nth}", other, every.gates) for call, fault, nth in cases]
        async with asyncio.TaskGroup() as group:
            playing = [
                group.create_task(every.play(url, scene, *case, fresh=fresh))
                for scene, case in zip(scenes, cases, strict=True)
            ]
        assert [case for case, each in zip(cases, playing, strict=True) if not each.result()] == []
        runs = sorted(run for scene in scenes for run in scene.runs)
        while not {*runs} <= {*every.ends}:
            await asyncio.sleep(0.01)
        hearing.cancel()
        await asyncio.wait([hearing])
        assert sorted(every.ends) == runs
        if isinstance(d, DurableDispatcher):
            written = io.StringIO()
            await d.write_history(written)
            return [json.loads(line) for line in written.getvalue().splitlines()]
    return []


def judged(history: list[dict[str, Any]]) -> list[str]:
    """Return what is wrong with each session, if its caller made each call once."""
    wrong: list[str] = []
    by_session: dict[str, list[dict[str, Any]]] = {}
    for line in history:
        by_session.setdefault(line["session"], []).append(line)
    for session, lines in by_session.items():
        first = {line["event"]: number for number, line in reversed([*enumerate(lines)])}
        once = [
            line
            for number, line in enumerate(lines)
            if line["event"] not in ("cancel", "clear") or first[line["event"]] == number
        ]
        checked = check([json.dumps(line) for line in [*once, {"event": "end"}]])
        if checked.offence is not None:
            wrong.append(f"{session}: {checked.offence.property}: {checked.offence.what}")
    return wrong


@pytest.mark.requirement("R-KEY-8")
@pytest.mark.parametrize(
    ("kind", "fresh"), [("in memory", False), ("in memory", True), ("sqlite", False), ("postgres", False)]
)
def test_one_fault_at_every_exchange(kind: str, fresh: bool, tmp_path: Path) -> None:
    history: list[dict[str, Any]] = []

    @in_loop
    async def survive() -> None:
        if kind == "in memory":
            calls = [*CHANGING, "interrupt"] if fresh else [*CALLS]
            await survive_every_fault(
                lambda runner: Dispatcher(runner, record=history.append), calls, fresh=fresh
            )
            return
        with ledgers(kind, tmp_path) as make:
            calls = [*CALLS]
            history.extend(
                await survive_every_fault(
                    lambda runner: DurableDispatcher(runner, make()), calls, fresh=fresh
                )
            )

    survive()
    assert len(history) > 100
    assert judged([line for line in history if "session" in line]) == []


def test_the_judge_finds_a_cancel_that_was_carried_out_twice() -> None:
    def line(event: str, run: str | None = None, **more: Any) -> dict[str, Any]:
        return {"event": event, "session": "s", **({} if run is None else {"run": run}), **more}

    history = [
        line("accept", "a"), line("enter", "a", state="active"), line("cancel"),
        line("complete", "a", cancelled=True),
        line("accept", "b"), line("enter", "b", state="active"), line("cancel"),
        line("complete", "b", cancelled=True),
    ]  # fmt: skip
    (wrong,) = judged(history)
    assert "NEVER_POISONED" in wrong
    assert judged([*history[:6], line("complete", "b", cancelled=False)]) == []
