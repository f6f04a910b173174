"""The text of a run's turn, piece by piece: readers that join at any time, from any offset."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest

from dispatching import HANG, Agent, SlowMessages, active, assert_nothing_left, in_loop, queued, steps
from reading import PIECES, TEXT, Reader, read, writes
from turngate import Delta, Dispatcher, Run, RunComplete, State, TextStream, Turn, WrongLoop

pytestmark = pytest.mark.requirement("R-LOK-1")


# Joining at every moment.


@pytest.mark.parametrize("start", range(len(TEXT) + 3))
@in_loop
async def test_a_reader_that_joins_at_any_step_reads_the_text_from_its_offset(start: int) -> None:
    readers: list[Reader] = []
    async with Dispatcher(writes) as d:
        run = await d.accept("s", "p")
        readers.append(Reader(run, start))
        await d.enter(run)
        while run.complete is None:
            readers.append(Reader(run, start))
            await steps(1)
        readers.append(Reader(run, start))
        for reader in readers:
            await reader.task
            assert reader.text == TEXT[start:]
            assert all(reader.pieces)
            assert reader.stream.offset == max(start, len(TEXT))


@in_loop
async def test_a_reader_that_joins_late_reads_the_same_pieces() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        run = await active(d, "s", "p")
        early = Reader(run)
        for piece in PIECES:
            agent.turns[0].write(piece)
            await steps()
        late = Reader(run)
        await steps()
        assert early.pieces == late.pieces == [piece for piece in PIECES if piece]
        assert not early.task.done()
        agent.finish(run, None)
        await run
        await steps()
        assert early.task.done()
        assert late.task.done()
        assert [piece async for piece in run.stream()] == early.pieces


@in_loop
async def test_a_reader_is_not_done_before_the_run_is_complete() -> None:
    agent, store = Agent(), SlowMessages()
    async with Dispatcher(agent, messages=store) as d:
        run = await active(d, "s", "p")
        agent.turns[0].write("text")
        agent.finish(run, None)
        await steps()
        reader = Reader(run)  # it settles
        await steps()
        assert reader.pieces == ["text"]
        assert not reader.task.done()
        store.gates[0].set_result(None)
        await run
        await reader.task
        assert reader.pieces == ["text"]


@in_loop
async def test_what_a_silent_runner_returns_is_one_piece() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        run = await active(d, "s", "p")
        reader = Reader(run, 2)
        agent.finish(run, "answer")
        await run
        await reader.task
        assert reader.pieces == ["swer"]
        assert [piece async for piece in run.stream()] == ["answer"]


@in_loop
async def test_an_empty_write_is_not_delivered() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        run = await active(d, "s", "p", run_id="r")
        reader = Reader(run)
        agent.turns[0].write("")
        await steps()
        agent.finish(run, "answer")
        assert (await run).text == "answer"
        await reader.task
        assert reader.pieces == ["answer"]
        assert await read(run) == "answer"
        run_id = run.run_id
        del run, reader
        agent.turns.clear()
        found = d.find(run_id)
        assert found is not None
        assert await read(found) == "answer"


@in_loop
async def test_what_was_written_counts_though_the_runner_returns_something_else() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        run = await active(d, "s", "p")
        reader = Reader(run)
        agent.turns[0].write("thinking")
        agent.finish(run, "answer")
        assert (await run).text == "answer"
        await reader.task
        assert reader.text == await read(run) == "thinking"


@pytest.mark.parametrize("text", [None, ""])
@in_loop
async def test_a_turn_without_text_has_an_empty_stream(text: str | None) -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        run = await active(d, "s", "p", run_id="r")
        reader = Reader(run)
        agent.finish(run, text)
        await run
        await reader.task
        assert reader.pieces == []
        assert run.lead is run
        del reader, run
        agent.turns.clear()
        found = d.find("r")
        assert found is not None
        assert await read(found) == ""
        assert found.lead is found


# Of whom.


@in_loop
async def test_a_run_that_is_folded_in_reads_the_text_of_the_turn_from_its_beginning() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        lead = await active(d, "s", "p", run_id="lead")
        agent.turns[0].write("before ")
        accepted = await d.accept("s", "q")
        joins_accepted = Reader(accepted)
        await d.enter(accepted)
        joins_queued = Reader(accepted)
        await steps()
        assert accepted.lead is None
        assert await agent.turns[0].fold() == [accepted]
        assert accepted.lead is lead
        await steps()
        assert joins_accepted.pieces == joins_queued.pieces == ["before "]
        joins_active = Reader(accepted, 3)
        agent.turns[0].write("after")
        await steps()
        assert joins_accepted.text == "before after"
        assert joins_active.text == "ore after"
        agent.finish(lead, None)
        await accepted
        for reader in (joins_accepted, joins_queued, joins_active):
            await reader.task
        assert joins_queued.text == await read(accepted) == "before after"
        assert accepted.lead is lead


@in_loop
async def test_the_lead_of_a_folded_run_is_the_handle_that_its_caller_holds() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        lead = await active(d, "s", "the first prompt")
        folded = await queued(d, "s", "q")
        await agent.turns[0].fold()
        agent.finish(lead)
        await folded
        agent.turns.clear()
        assert folded.lead is lead
        assert lead.lead is lead


@in_loop
async def test_a_queued_run_reads_its_own_turn_and_not_the_one_before_it() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        first = await active(d, "s", "p")
        second = await queued(d, "s", "q", when_busy="queue")
        reader = Reader(second)
        agent.turns[0].write("first")
        await steps()
        assert reader.pieces == []
        agent.finish(first, None)
        await first
        await steps()
        assert second.lead is second
        agent.turns[1].write("second")
        await steps()
        assert reader.pieces == ["second"]
        agent.finish(second, None)
        await reader.task
        assert reader.pieces == ["second"]


@in_loop
async def test_a_run_that_never_had_a_turn_streams_nothing() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        first = await active(d, "s", "p")
        agent.turns[0].write("not yours")
        dropped = await queued(d, "s", "dropped")
        cleared = await queued(d, "s", "cleared")
        released = await d.accept("s", "released")
        on_entry = await d.accept("s", "on entry")
        runs = [dropped, cleared, released, on_entry]
        readers = [Reader(run) for run in runs]
        await steps()
        await d.cancel_run(dropped.run_id)
        await d.clear_queue("s")
        await released.close()
        await on_entry.cancel()
        assert await d.enter(on_entry) is State.CANCEL_ON_ENTRY
        assert on_entry.lead is None
        for run, reader in zip(runs, readers, strict=True):
            await run
            await reader.task
            assert reader.pieces == []
            assert await read(run) == ""
            assert run.lead is None
            found = d.find(run.run_id)
            assert found is not None
            assert found.lead is None
            assert await read(found) == ""
        agent.finish(first)
        await first


@pytest.mark.parametrize("end", ["cancel", "fail", "loop"])
@in_loop
async def test_the_written_text_is_kept_however_the_turn_ends(end: str) -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        run = await active(d, "s", "p")
        reader = Reader(run)
        agent.turns[0].write("so far")
        if end == "cancel":
            await run.cancel()
        elif end == "fail":
            agent.fail(run, asyncio.CancelledError())
        else:
            task = agent.turns[0].task
            assert task is not None
            task.cancel()
        await run
        await reader.task
        assert reader.pieces == ["so far"]
        assert await read(run, 3) == "far"


# The text of a run that is complete: who finds its handle later reads the same, while it is kept.


def one_piece(turn: Turn) -> str | None:
    turn.write("one")
    return None


def same_again(turn: Turn) -> str | None:
    turn.write("one")
    turn.write(" two")
    return "one two"


def first_piece_is_the_answer(turn: Turn) -> str | None:
    answer = "an answer"
    turn.write(answer)
    turn.write(", and second thoughts")
    return answer


def something_else(turn: Turn) -> str | None:
    turn.write("one")
    return "two"


def nothing_in_the_end(turn: Turn) -> str | None:
    turn.write("one")
    return ""


def silent(turn: Turn) -> str | None:
    return "one"


@pytest.mark.parametrize("named", [True, False], ids=["named", "unnamed"])
@pytest.mark.parametrize(
    "script",
    [one_piece, same_again, first_piece_is_the_answer, something_else, nothing_in_the_end, silent],
    ids=lambda script: script.__name__,
)
@in_loop
async def test_a_handle_that_is_found_later_has_the_same_stream(
    script: Callable[[Turn], str | None], named: bool
) -> None:
    async def runner(turn: Turn) -> str | None:
        return script(turn)

    async with Dispatcher(runner) as d:
        run = await d.submit("s", "p", run_id="r" if named else None)
        await run
        text, run_id = await read(run), run.run_id
        assert text
        del run
        gc.collect()
        for start in range(len(text) + 2):
            found = d.find(run_id)
            assert found is not None
            assert found.lead is found
            assert await read(found, start) == text[start:]
        again = await d.accept("s", "p", run_id=run_id)
        assert await read(again) == text


@in_loop
async def test_a_handle_keeps_its_stream_though_the_completion_is_forgotten() -> None:
    async with Dispatcher(writes, completions_kept=1) as d:
        run = await d.submit("s", "p", run_id="r")
        half_way = run.stream()
        assert await anext(half_way) == "Hel"
        await run
        await d.ask("s", "q")
        assert d.find("r") is None
        assert await read(run) == TEXT
        assert "".join([piece async for piece in half_way]) == TEXT[3:]
        assert run.lead is run


@in_loop
async def test_the_lead_is_none_once_it_is_no_longer_known() -> None:
    agent = Agent()
    async with Dispatcher(agent, completions_kept=2) as d:
        lead = await active(d, "s", "p", run_id="lead")
        await queued(d, "s", "q", run_id="folded")
        await agent.turns[0].fold()
        agent.finish(lead)
        await lead
        agent.turns.clear()
        del lead
        gc.collect()
        folded = d.find("folded")
        assert folded is not None
        assert folded.lead is not None
        assert folded.lead.run_id == "lead"
        other = await active(d, "t", "other")
        agent.finish(other)
        await other
        assert d.find("lead") is None
        folded = d.find("folded")
        assert folded is not None
        assert folded.lead is None


# How one reads a stream: giving up, time-outs, slowly, from threads, on a loop that ends.


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
async def test_two_readers_of_one_stream_share_its_pieces() -> None:
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
        with pytest.raises(ValueError, match="start"):
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
    """A lock: at each release another thread gets in before the releasing one goes on."""

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
        turn._lock = Slipping(lambda: turn.write("second"))  # type: ignore[assignment]  # as much of a lock as is used
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
        d._home._warns_if_dropped = False
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
