"""How one reads a stream: giving up, time-outs, slowly, from threads, on a loop that ends."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest

from dispatching import HANG, Agent, active, assert_nothing_left, in_loop, queued, steps
from reading import TEXT, Reader, writes
from turngate import Delta, Dispatcher, Run, RunComplete, State, TextStream, WrongLoop

pytestmark = pytest.mark.requirement("R-LOK-1")


@in_loop
async def test_a_reader_that_gives_up_and_comes_again_loses_nothing() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        run = await active(d, "s", "p")
        stream = run.stream()
        pieces: list[str] = []
        for number in range(40):
            reading = asyncio.ensure_future(anext(stream))
            await steps(number % 3)
            agent.turns[0].write(f"{number} ")
            await steps(number % 4)
            reading.cancel()  # before, as and after the piece comes
            (done,) = await asyncio.gather(reading, return_exceptions=True)
            if isinstance(done, str):
                pieces.append(done)
        agent.finish(run, None)
        await run
        pieces += [piece async for piece in stream]
        assert pieces == [f"{number} " for number in range(40)]


@in_loop
async def test_time_outs_lose_nothing() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        run = await active(d, "s", "p")
        stream = run.stream()
        for number in range(5):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(stream), 0.001)
            agent.turns[0].write(str(number))
            assert await asyncio.wait_for(anext(stream), HANG) == str(number)
        assert not run.listeners
        agent.finish(run)
        with pytest.raises(StopAsyncIteration):
            await asyncio.wait_for(anext(stream), HANG)
        with pytest.raises(StopAsyncIteration):
            await anext(stream)


@in_loop
async def test_slow_readers_lose_nothing_and_are_nowhere_buffered() -> None:
    agent = Agent()
    async with Dispatcher(agent, delta_limit=1, delta_bytes=100) as d:
        run = await active(d, "s", "p")
        streams = [run.stream() for _ in range(3)]
        for number in range(1_000):
            agent.turns[0].write(f"{number},")
        for stream in streams:
            assert await anext(stream) == "0,"
            assert not hasattr(stream, "__dict__")
        agent.finish(run, None)
        text = (await run).text
        for stream in streams:
            assert "0," + "".join([piece async for piece in stream]) == text


@in_loop
async def test_two_who_share_one_stream_share_its_pieces() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        run = await active(d, "s", "p")
        stream = run.stream()
        readers = [asyncio.ensure_future(anext(stream)) for _ in range(2)]
        await steps()
        agent.turns[0].write("a")
        agent.turns[0].write("b")
        assert sorted([await reader for reader in readers]) == ["a", "b"]


@in_loop
async def test_pieces_are_deltas() -> None:
    async with Dispatcher(writes) as d, d.subscribe() as events:
        run = await d.submit("s", "p")
        pieces = [piece async for piece in run.stream()]
        await d.aclose()
        deltas = [event async for event in events if isinstance(event, Delta)]
        assert [delta.text for delta in deltas if delta.text] == pieces
        for delta in deltas:
            assert TEXT[delta.offset :].startswith(delta.text)


@pytest.mark.parametrize("start", [-1, 1.0, "0", None])
@in_loop
async def test_an_offset_is_a_whole_number(start: Any) -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        run = await d.accept("s", "p")
        with pytest.raises(ValueError, match="start must be a whole number of at least 0"):
            run.stream(start)
        await run.close()


@in_loop
async def test_a_stream_belongs_to_the_loop_of_its_dispatcher() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        run = await active(d, "s", "p", run_id="r")
        agent.turns[0].write("text")
        stream = run.stream()

        async def elsewhere() -> None:
            with pytest.raises(WrongLoop):
                await anext(stream)
            with pytest.raises(WrongLoop):
                _ = run.lead

        await asyncio.to_thread(lambda: asyncio.run(elsewhere()))
        assert await anext(stream) == "text"
        assert repr(stream) == "<TextStream of run r at 4>"
        assert isinstance(stream, TextStream)
        assert stream.__aiter__() is stream


# Threads.


@in_loop
async def test_what_a_thread_writes_wakes_a_reader_at_once() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        run = await active(d, "s", "p")
        reader = asyncio.ensure_future(anext(run.stream()))
        await steps()
        await asyncio.to_thread(agent.turns[0].write, "some text")
        assert await reader == "some text"
        agent.finish(run)


@in_loop
async def test_threads_write_to_readers_that_wait() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d, d.subscribe() as events:
        run = await active(d, "s", "p")
        reader = Reader(run)
        await steps()

        def write(name: str) -> None:
            for number in range(100):
                agent.turns[0].write(f"{name}{number};")

        threads = [asyncio.to_thread(write, name) for name in "abc"]
        for number in range(100):
            agent.turns[0].write(f"d{number};")
            await steps(1)
        await asyncio.gather(*threads)
        agent.finish(run, None)
        text = (await run).text
        await reader.task
        assert reader.text == text
        for name in "abcd":
            assert [piece for piece in text.split(";") if piece.startswith(name)] == [
                f"{name}{number}" for number in range(100)
            ]
        await d.aclose()
        offset = 0
        async for event in events:
            if isinstance(event, Delta):
                assert event.offset == offset
                offset += len(event.text)
        assert offset == len(text)


class Slipping:
    """A lock at whose every release a thread gets in before whoever released it goes on."""

    def __init__(self, slips_in: Callable[[], None]) -> None:
        self._lock = threading.Lock()
        self._slips_in: Callable[[], None] | None = slips_in

    def acquire(self) -> None:
        self._lock.acquire()

    def release(self) -> None:
        self._lock.release()
        slips_in, self._slips_in = self._slips_in, None
        if slips_in is not None:
            thread = threading.Thread(target=slips_in)
            thread.start()
            thread.join()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


@in_loop
async def test_a_thread_that_writes_right_behind_the_loop_comes_behind_it() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d, d.subscribe() as events:
        run = await active(d, "s", "p")
        turn = agent.turns[0]
        turn.output._lock = Slipping(lambda: turn.write("second"))  # type: ignore[assignment]  # as much of a lock as is used
        turn.write("first ")
        await steps()
        received = [await anext(events), await anext(events)]
        assert [event.offset for event in received if isinstance(event, Delta)] == [0, 6]
        agent.finish(run, None)
        assert (await run).text == "first second"


# A loop that ends.


@pytest.mark.parametrize("unsent", [True, False], ids=["unsent", "sent"])
@pytest.mark.parametrize("limit", [None, 1])
def test_readers_that_wait_on_a_closed_loop_cost_no_run_its_completion(
    limit: int | None, unsent: bool
) -> None:
    agent = Agent()
    runs: list[Run] = []
    received: list[RunComplete] = []

    readers: list[Reader] = []

    async def main() -> Dispatcher:
        d = Dispatcher(agent, turns_limit=limit)
        d._warns_if_dropped = False
        runs.append(await active(d, "s", "active"))
        runs.append(await queued(d, "s", "queued", when_busy="queue"))
        runs.append(await d.accept("t", "elsewhere"))
        if limit is not None:
            await d.enter(runs[-1])
        for run in runs:
            run.add_done_callback(received.append)
            readers.append(Reader(run))
        await steps()
        if unsent:
            thread = threading.Thread(target=agent.turns[0].write, args=["from a thread"])
            thread.start()
            thread.join()
        if limit is None:
            await runs[-1].close()
        return d

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # the loop says that a task was destroyed, as it should
    d = loop.run_until_complete(main())
    task = agent.turns[0].task
    assert task is not None
    coroutine = task.get_coro()
    assert coroutine is not None
    loop.close()
    coroutine.close()
    assert [run.state for run in runs] == [State.COMPLETE] * 3
    assert len(received) == 3
    assert_nothing_left(d)
    readers.clear()
    agent.turns.clear()
    del task, coroutine
    gc.collect()
