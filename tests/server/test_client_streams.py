"""The client's streams: asked again after time-outs and errors, dropped at any time, of no server at all."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dispatching import Agent, echo, in_loop, steps
from faulty_proxy import FaultyProxy
from ledgers import ledgers
from serving import figure, serving, small
from turngate import Dispatcher, EmptyPrompt, RunComplete, State, Turn, UnknownRun
from turngate.client import Client, EventStream, Snapshot, Unreachable
from turngate.durable import DurableDispatcher
from turngate.server import asgi_app


async def no_stream_is_open(url: str) -> None:
    """Wait until the server has noticed that every reader is gone."""
    async with asyncio.timeout(60):
        while await figure(url, "streams"):
            await asyncio.sleep(0.01)


async def completes(events: EventStream, count: int) -> list[RunComplete]:
    heard: list[RunComplete] = []
    async with asyncio.timeout(60):
        while len(heard) < count:
            event = await anext(events)
            if isinstance(event, RunComplete):
                heard.append(event)
    return heard


@in_loop
async def test_a_run_id_that_is_used_again_is_heard_of_again_in_memory() -> None:
    d = Dispatcher(echo, completions_kept=0)
    app = asgi_app(d)
    async with d, serving(app) as url, Client(url) as client, client.events("s") as events:
        assert isinstance(await anext(events), Snapshot)
        for prompt in ("monday", "tuesday", "monday"):
            await client.submit("s", prompt, run_id="nightly")
            (complete,) = await completes(events, 1)
            assert (complete.run_id, complete.text) == ("nightly", prompt)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_run_id_that_is_used_again_is_heard_of_again_after_a_purge(kind: str, tmp_path: Path) -> None:
    with ledgers(kind, tmp_path) as make:

        @in_loop
        async def hear() -> None:
            d = DurableDispatcher(echo, make())
            async with d, serving(asgi_app(d)) as url, Client(url) as client, client.events() as events:
                assert isinstance(await anext(events), Snapshot)
                for _ in range(2):
                    await client.ask("s", "p", run_id="nightly")
                    assert [each.run_id for each in await completes(events, 1)] == ["nightly"]
                    assert await d.purge(before=time.time() + 1) == 1

        hear()


@in_loop
async def test_a_text_that_timed_out_goes_on_wherever_that_was() -> None:
    gate = asyncio.Event()

    async def slow(turn: Turn) -> None:
        turn.write("hello ")
        await gate.wait()
        turn.write("world")

    app = asgi_app(slow, finish=0)
    async with serving(app) as url:
        for exchange in range(3):
            gate.clear()
            proxy = FaultyProxy(url)
            held = asyncio.Event()
            async with proxy.up() as near, Client(near) as client:
                proxy.arm("answer lost" if exchange else "request late", exchange, held.wait)
                text = client.stream(f"s{exchange}", "p", run_id=f"r{exchange}")
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(collected(text, "hello world"), 0.3)
                held.set()
                gate.set()
                assert await asyncio.wait_for(collected(text, "hello world"), 60) == "hello world"
                assert [piece async for piece in text] == []
                assert text.complete is not None
        await no_stream_is_open(url)


async def collected(text: Any, until: str) -> str:
    while text.text != until:
        await anext(text)
    return str(text.text)


@in_loop
async def test_a_text_that_was_refused_can_be_asked_again_and_leaves_no_stream_open() -> None:
    app = asgi_app(echo)
    async with serving(app) as url, Client(url) as client:
        for _ in range(3):
            text = client.stream("s", " ")
            for _ in range(2):
                with pytest.raises(EmptyPrompt):
                    await asyncio.wait_for(anext(text), 60)
        await no_stream_is_open(url)


@in_loop
async def test_a_text_of_a_server_that_cannot_be_reached_is_asked_again() -> None:
    async with serving(asgi_app(echo)) as url:
        port = int(url.rpartition(":")[2])
    async with Client(url, patience=0.2) as client:
        text = client.stream("s", "tea")
        for _ in range(2):
            with pytest.raises(Unreachable):
                await asyncio.wait_for(anext(text), 60)
        async with serving(asgi_app(echo), port=port):
            assert [piece async for piece in text] == ["tea"]


@in_loop
async def test_a_text_whose_run_is_forgotten_ends_and_is_not_run_again() -> None:
    agent = Agent()
    async with serving(asgi_app(agent)) as url, Client(url) as client:
        text = client.stream("s", "tea")
        text._is_sent = True  # as if the server had been restarted right after it took the prompt in
        with pytest.raises(UnknownRun):
            await asyncio.wait_for(anext(text), 60)
        assert [piece async for piece in text] == []
        await steps()
        assert agent.turns == []


@in_loop
async def test_a_text_is_followed_from_the_middle_of_its_turn() -> None:
    gate = asyncio.Event()

    async def slow(turn: Turn) -> None:
        turn.write("one ")
        await gate.wait()
        turn.write("two")

    d = Dispatcher(slow)
    async with d, serving(asgi_app(d)) as url, Client(url) as client:
        run = await client.submit("s", "p", run_id="r")
        while (await client.run("r")).state is not State.ACTIVE:
            await asyncio.sleep(0.005)
        text = client.stream("s", "p", run_id=run.run_id)
        assert await asyncio.wait_for(anext(text), 60) == "one "
        gate.set()
        assert [piece async for piece in text] == ["two"]


@in_loop
async def test_dropped_streams_end_and_say_nothing() -> None:
    app = asgi_app(echo, limits=small(ring_events=8_192))
    async with serving(app) as url, Client(url) as client:
        async for _ in client.events():
            break
        async for _ in client.stream("s", "tea"):
            break
        behind = client.events()  # one that has not taken what was read ahead
        await anext(behind)
        for number in range(200):
            await client.submit("s", "tea", run_id=f"r{number}")
        await client.wait("r199")
        del behind
        gc.collect()
        await no_stream_is_open(url)
        waiting = asyncio.create_task(anext(client.events(), "over"))
        left = client.events()
        await anext(left)
    assert await asyncio.wait_for(waiting, 60) == "over"
    with pytest.raises(StopAsyncIteration):
        await anext(left)


def test_a_program_that_leaves_its_streams_ends_in_silence(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import asyncio, sys\n"
        "from turngate.client import Client\n"
        "async def main():\n"
        "    client = Client(sys.argv[1])\n"
        "    async for event in client.events():\n"
        "        break\n"
        "    kept = client.events()\n"
        "    await anext(kept)\n"
        "    for number in range(100):\n"
        "        await client.submit('s', 'tea')\n"
        "    await anext(client.stream('s', 'tea'))\n"
        "    print('done')\n"
        "asyncio.run(main(), debug=False)\n"
    )

    @in_loop
    async def run() -> None:
        async with serving(asgi_app(echo)) as url:
            process = await asyncio.create_subprocess_exec(
                sys.executable, program, url, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            out, err = await process.communicate()
            assert (out.decode().strip(), err.decode()) == ("done", "")

    run()


@in_loop
async def test_a_caller_that_times_out_keeps_its_line_and_loses_nothing() -> None:
    d = Dispatcher(echo)
    async with d, serving(asgi_app(d)) as url, Client(url) as client, client.events() as events:
        await anext(events)
        runs = [f"r{number}" for number in range(30)]
        heard: list[str] = []
        for run in runs:
            await client.submit("s", "tea", run_id=run, when_busy="queue")
            with contextlib.suppress(TimeoutError):
                while True:
                    event = await asyncio.wait_for(anext(events), 0.001)
                    heard += [event.run_id] if isinstance(event, RunComplete) else []
        heard += [each.run_id for each in await completes(events, len(runs) - len(heard))]
        assert heard == runs
        assert events.connections == 1


@asynccontextmanager
async def something_else(answer: bytes) -> AsyncIterator[tuple[str, list[float]]]:
    """Something that listens and answers this; yields its address and the times of its connections."""
    came: list[float] = []
    waiting: set[asyncio.StreamWriter] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.append(time.monotonic())
        waiting.add(writer)
        await reader.readuntil(b"\r\n\r\n")
        if answer:
            writer.write(answer)
            await writer.drain()
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", came
    finally:
        server.close()
        for writer in waiting:
            writer.transport.abort()
        await asyncio.sleep(0)


@pytest.mark.parametrize("kind", ["text/html", "text/event-stream", "silence"])
@in_loop
async def test_what_is_no_event_stream_is_left_alone_after_a_while(kind: str) -> None:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    async with something_else(b"" if kind == "silence" else head.encode()) as (url, came):
        async with Client(url, patience=1.0) as client, asyncio.timeout(60):
            for iterator in (client.events("s", patience=1.0), client.stream("s", "p")):
                with pytest.raises(Unreachable):
                    await anext(iterator)
        assert len(came) <= 16  # each waits longer than the one before
