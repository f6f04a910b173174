"""The description of the server, and the server held to it by schemathesis."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import seed as seeded
from schemathesis.specs.openapi.checks import positive_data_acceptance

from dispatching import HANG, Agent, in_loop, steps
from ledgers import ledgers
from serving import Ear, served, serving
from turngate import Dispatcher, Turn
from turngate.durable import DurableDispatcher
from turngate.server import Limits
from turngate.server._app import App, backend_of
from turngate.server._endpoints import ENDPOINTS, EVENT_STREAM
from turngate.server._models import EVENTS
from turngate.server._openapi import openapi
from turngate.server._problems import TITLES
from turngate.server._security import for_address


def described() -> dict[str, Any]:
    return openapi("", Limits(), token=False)


def test_every_address_and_method_is_described_and_no_other() -> None:
    paths = described()["paths"]
    assert {(path, method.upper()) for path, calls in paths.items() for method in calls} == {
        *((call.path, call.method) for call in ENDPOINTS),
        ("/", "GET"),
    }


def test_every_problem_and_every_event_is_described() -> None:
    text = str(openapi("", Limits(), token=True))
    for name in TITLES.keys() - {"not-found", "method-not-allowed", "internal-error"}:
        assert f"`{name}`" in text, name
    assert EVENTS.keys() == {
        *("snapshot", "run.accept", "run.enter", "run.fold", "run.handoff", "run.complete", "session.cancel"),
        *("session.clear", "session.hold", "session.resume", "run.move", "run.edit", "delta", "note", "gap"),
    }
    assert {each.__name__ for each in EVENTS.values()} <= described()["components"]["schemas"].keys()


@in_loop
async def test_every_event_is_as_described() -> None:
    """One stream with every kind of event in it, each held to the schema that is named for it."""
    agent = Agent()
    d = Dispatcher(agent)
    async with d, served(d, limits=Limits(ring_events=64)) as (url, http):
        description = (await http.get("/openapi.json")).json()
        ear = await Ear.open(url, "/v1/sessions/s/events")
        heard = [await anext(ear)]
        lead = await d.submit("s", "lead", run_id="lead")
        for run in ("folded", "cleared", "next"):
            await d.submit("s", run, run_id=run, when_busy="fold" if run == "folded" else "queue")
        await steps()
        agent.turns[0].write("text\u2028")
        agent.turns[0].emit("note", {"any": [1.5, None]})
        await agent.turns[0].fold()
        await d.hold("s")
        await d.edit("next", prompt="other")
        await d.move("next", to="first")
        await d.resume_run("next")
        await d.cancel_run("cleared")
        agent.finish(lead)
        await lead
        await d.submit("s", "x", run_id="x", when_busy="queue")
        await steps()
        await d.clear_queue("s")
        await d.cancel("s")
        heard += await ear.complete("lead", "folded", "cleared", "next", "x")
        ear.close()
        for number in range(80):
            await d.submit(f"t{number}", "x")
        await d.cancel_all()
        again = await Ear.open(url, "/v1/events", heard[1].id)
        heard += await again.until(lambda each: each.event == "snapshot")
        again.close()
    assert {each.event for each in heard} == EVENTS.keys()
    stream = description["paths"]["/v1/events"]["get"]["responses"]["200"]["content"]["text/event-stream"]
    for each in heard:
        schema = {**stream["x-events"][each.event], "components": description["components"]}
        jsonschema_rs.validator_for(schema).validate(each.data)


async def quick(turn: Turn) -> str:
    await turn.fold()
    if "fail" in turn.run.prompt:
        raise RuntimeError("no luck")
    return "text"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The address of a real server."""
    with serving_in_a_thread(lambda: Dispatcher(quick)) as url:
        yield url


@contextmanager
def serving_in_a_thread(make: Callable[[], Dispatcher | DurableDispatcher]) -> Iterator[str]:
    """Serve on a loop in a thread; yield the address. No wait is long."""
    addresses: list[str] = []
    loops: list[asyncio.AbstractEventLoop] = []
    up, down = threading.Event(), asyncio.Event()

    async def main() -> None:
        loops.append(asyncio.get_running_loop())
        security = for_address("127.0.0.1", token=None, names=frozenset(), origins=frozenset())
        app = App(backend_of(make()), security, Limits(wait_limit=0.01), owns=True, finish=0)
        async with serving(app) as url:
            addresses.append(url)
            up.set()
            await down.wait()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    try:
        assert up.wait(HANG)
        yield addresses[0]
    finally:
        loops[0].call_soon_threadsafe(down.set)
        thread.join(HANG)


ANSWERED_AT_ONCE = [(call.path, call.method) for call in ENDPOINTS if call.answer != EVENT_STREAM]


def hold_to_its_description(url: str, path: str, method: str, examples: int) -> None:
    """Send what Schemathesis makes of the description: no 5xx, and no answer that is not described."""
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    operation = schema[path][method]

    @seeded(0)
    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy())
    def call(case: Any) -> None:
        # What the description allows may still be refused: an empty prompt, a message that is not there.
        case.call_and_validate(excluded_checks=[positive_data_acceptance])

    call()


@pytest.mark.parametrize(("path", "method"), ANSWERED_AT_ONCE)
def test_the_server_does_what_its_description_says(url: str, path: str, method: str) -> None:
    hold_to_its_description(url, path, method, 12)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_so_it_does_on_a_ledger(kind: str, tmp_path: Path) -> None:
    with (
        ledgers(kind, tmp_path) as make,
        serving_in_a_thread(lambda: DurableDispatcher(quick, make())) as url,
    ):
        for path, method in ANSWERED_AT_ONCE:
            if path.startswith("/v1/"):
                hold_to_its_description(url, path, method, 6)


@pytest.mark.deep
@pytest.mark.parametrize(("path", "method"), ANSWERED_AT_ONCE)
def test_the_server_does_so_for_long(url: str, path: str, method: str) -> None:
    hold_to_its_description(url, path, method, 300)
