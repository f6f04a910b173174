"""The adapters of the two dispatchers, held to one protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from dispatching import Agent, in_loop, steps
from turngate import CursorExpired, Dispatcher, Event, Moved, RunComplete, Turn
from turngate.durable import DurableDispatcher, SqliteLedger
from turngate.server._app import backend_of
from turngate.server._backend import Backend, InFlight, Passed
from turngate.server._cursor import Cursor, mark


class Sink:
    """Keeps what a backend puts into the log, and which RunCompletes were passed then."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.events: list[tuple[Event, Passed]] = []
        self.prompts: dict[str, str | None] = {}
        self.forgotten = 0

    def append(self, event: Event, prompt: str | None) -> None:
        self.events.append((event, self.backend.passed))
        if isinstance(event, Moved) and event.event == "accept" and event.run_id is not None:
            self.prompts[event.run_id] = prompt

    def forget(self) -> None:
        self.events.clear()
        self.forgotten += 1

    def completes(self) -> list[str]:
        return [event.run_id for event, _ in self.events if isinstance(event, RunComplete)]


@asynccontextmanager
async def followed(dispatcher: Dispatcher | DurableDispatcher) -> AsyncIterator[tuple[Backend, Sink]]:
    async with dispatcher:
        backend = backend_of(dispatcher)
        sink = Sink(backend)
        await backend.begin(sink)
        following = asyncio.create_task(backend.follow())
        try:
            yield backend, sink
        finally:
            backend.end()
            await following


async def quick(turn: Turn) -> str:
    return f"about {turn.run.prompt}"


def dispatchers(folder: Path) -> list[Dispatcher | DurableDispatcher]:
    ledger = SqliteLedger(folder / "ledger.db")
    return [Dispatcher(quick), DurableDispatcher(quick, ledger, poll=0.05)]


async def until_told(sink: Sink, *runs: str) -> None:
    async with asyncio.timeout(30):
        while not {*runs} <= {*sink.completes()}:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("kind", [0, 1], ids=["memory", "ledger"])
def test_both_say_the_same_of_the_same_runs(kind: int, tmp_path: Path) -> None:
    in_loop(see_the_same)(dispatchers(tmp_path)[kind])


async def see_the_same(dispatcher: Dispatcher | DurableDispatcher) -> None:
    async with followed(dispatcher) as (backend, sink):
        begun = backend.passed
        assert backend.in_flight() == InFlight(0, 0)
        assert backend.has_room("s", 1)
        for run in ("a", "b"):
            await dispatcher.submit("s", f"prompt {run}", run_id=run)
            await until_told(sink, run)
        assert sink.prompts == {"a": "prompt a", "b": "prompt b"}
        async with asyncio.timeout(30):
            while backend.passed.ahead:
                await asyncio.sleep(0.01)
        until = backend.passed.completions
        told = [each.run_id async for _, each in dispatcher.completions(begun.completions, until=until)]
        assert told == sink.completes() == ["a", "b"]
        assert backend.in_flight() == InFlight(0, 0)
        assert await backend.find("a") is not None
        assert await backend.find("nobody") is None
        place, views = await backend.look("s", lambda: backend.passed)
        assert (place, [view.session_id for view in views]) == (backend.passed, ["s"])
        with pytest.raises(CursorExpired):
            await backend.catch_up_with(Cursor("x", 0, until, frozenset({mark("nobody")})))
        assert backend.dropped == sink.forgotten == 0


@in_loop
async def test_in_memory_a_look_and_its_place_are_of_one_step() -> None:
    agent = Agent()
    async with followed(Dispatcher(agent)) as (backend, sink):
        d = backend.dispatcher
        for number in range(20):
            await d.submit("s", "x", run_id=str(number), when_busy="queue")
            if number % 3 == 0:
                await steps()
            place, views = await backend.look(None, lambda: len(sink.events))
            accepted = [
                e.run_id for e, _ in sink.events[:place] if isinstance(e, Moved) and e.event == "accept"
            ]
            (view,) = views
            seen = [*([view.active] if view.active else []), *view.queued, *view.accepted]
            assert sorted(accepted, key=lambda run: int(run or 0)) == [run.run_id for run in seen]
        assert backend.in_flight() == InFlight(1, 20)
        assert not backend.has_room("t", 1)
        assert backend.has_room("s", 1)
        await d.cancel_all()


@in_loop
async def test_in_memory_a_backend_that_was_cut_off_begins_anew() -> None:
    async with followed(Dispatcher(quick, complete_limit=8)) as (backend, sink):
        d = backend.dispatcher
        for number in range(10):
            await d.submit(f"s{number}", "x")  # nobody reads meanwhile
        await steps(20)
        await backend.drain()
        assert sink.forgotten > 0
        await d.ask("s", "x", run_id="later")
        await backend.drain()
        assert sink.completes()[-1] == "later"
        assert not backend.passed.ahead
        assert [each async for each in d.completions(backend.passed.completions, until=await end(d))] == []


async def end(dispatcher: Dispatcher | DurableDispatcher) -> str:
    assert isinstance(dispatcher, Dispatcher)
    return dispatcher.end_cursor()


@in_loop
async def test_in_memory_nobody_goes_on_from_completions_that_are_forgotten() -> None:
    async with followed(Dispatcher(quick, completions_kept=1)) as (backend, sink):
        d = backend.dispatcher
        asked = [asyncio.ensure_future(d.ask(f"s{number}", "x", run_id=str(number))) for number in range(6)]
        await asyncio.gather(*asked)
        await backend.drain()
        assert sorted(sink.completes()) == [str(number) for number in range(6)]
        for event, passed in sink.events:
            if isinstance(event, RunComplete) and passed != backend.passed:
                with pytest.raises(CursorExpired):
                    async for _ in d.completions(passed.completions, until=await end(d)):
                        pass
        assert backend.passed == Passed(await end(d))
