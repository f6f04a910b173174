"""Every RunComplete, from a cursor on: oldest kept first, live at the end."""

from __future__ import annotations

import asyncio
import random
import sys
from typing import Any

import pytest

from dispatching import HANG, Agent, active, in_loop, queued, steps
from turngate import CompletionStream, CursorExpired, Dispatcher, RunComplete, Turn, WrongLoop
from turngate._completions import _EACH

pytestmark = pytest.mark.requirement("R-LOK-4")


async def echo(turn: Turn) -> str:
    turn.write("…")
    return turn.run.prompt


async def ready(completions: CompletionStream) -> list[tuple[str, RunComplete]]:
    """What can be read without waiting."""
    found: list[tuple[str, RunComplete]] = []
    while True:
        reading = asyncio.ensure_future(anext(completions, None))
        await steps(3)
        if not reading.done():
            reading.cancel()
            return found
        if (next_one := await reading) is None:
            return found
        found.append(next_one)


def names(found: list[tuple[str, RunComplete]]) -> list[str]:
    return [complete.run_id for _, complete in found]


@in_loop
async def test_those_that_are_kept_come_first_and_then_those_to_come() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        first = await active(d, "s", "p", run_id="first", on_complete=lambda _: None)
        agent.finish(first)
        await first
        completions = d.completions()
        assert completions.__aiter__() is completions
        assert (await anext(completions))[1] == first.complete
        reading = asyncio.create_task(anext(completions))
        await steps()
        assert not reading.done()
        second = await active(d, "t", "p", run_id="second")
        agent.finish(second)
        await second
        assert (await reading)[1] == second.complete
        accepted = await d.accept("s", "p", run_id="released")
        await accepted.close()
        lead = await active(d, "s", "p", run_id="lead")
        await queued(d, "s", "p", run_id="folded")
        await agent.turns[-1].fold()
        await queued(d, "s", "p", run_id="cleared")
        await d.clear_queue("s")
        await d.cancel("s")
        await lead
        assert names(await ready(completions)) == ["released", "cleared", "lead", "folded"]


@in_loop
async def test_a_reader_that_returns_with_a_cursor_misses_none_and_gets_none_twice() -> None:
    async with Dispatcher(echo) as d:
        for number in range(20):
            await d.ask("s", "p", run_id=f"r{number}")
        everything = await ready(d.completions())
        assert names(everything) == [f"r{number}" for number in range(20)]
        assert len({cursor for cursor, _ in everything}) == 20
        for number, (cursor, _) in enumerate(everything, 1):
            assert await ready(d.completions(after=cursor)) == everything[number:]
        for limit in (1, 3, 7):
            read: list[tuple[str, RunComplete]] = []
            while page := (await ready(d.completions(after=read[-1][0] if read else None)))[:limit]:
                read += page
            assert read == everything


@in_loop
async def test_a_reader_that_gives_up_and_comes_again_loses_none() -> None:
    async with Dispatcher(echo) as d:
        completions = d.completions()
        read: list[str] = []
        for number in range(40):
            reading = asyncio.ensure_future(anext(completions))
            await steps(number % 3)
            await d.submit("s", "p", run_id=f"r{number}", when_busy="queue")
            await steps(number % 5)
            reading.cancel()  # before, as and after the completion comes
            (done,) = await asyncio.gather(reading, return_exceptions=True)
            if isinstance(done, tuple):
                read.append(done[1].run_id)
        await d.wait("r39")
        read += names(await ready(completions))
        assert read == [f"r{number}" for number in range(40)]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(completions), 0.001)
        await d.ask("s", "p", run_id="last")
        _, complete = await asyncio.wait_for(anext(completions), HANG)
        assert complete.run_id == "last"
        assert not d._completions.waiters


@in_loop
async def test_it_ends_at_a_cursor_and_does_not_wait_for_more() -> None:
    async with Dispatcher(echo) as d:
        cursors = [d.end_cursor()]
        assert [each async for each in d.completions(until=cursors[0])] == []
        for number in range(4):
            await d.ask("s", "p", run_id=f"r{number}")
            cursors.append(d.end_cursor())
        everything = await ready(d.completions())
        assert [cursor for cursor, _ in everything] == cursors[1:]
        assert [each async for each in d.completions(until=d.end_cursor())] == everything
        for start, after in enumerate(cursors):
            for end, until in enumerate(cursors):
                assert [each async for each in d.completions(after, until=until)] == everything[start:end]
        with pytest.raises(CursorExpired):
            d.completions(until="another.1")


@in_loop
async def test_it_ends_when_the_dispatcher_is_closed() -> None:
    async with Dispatcher(echo) as d:
        await d.ask("s", "p", run_id="r")
        completions, late = d.completions(), d.completions()
        await anext(completions)
        reading = asyncio.create_task(anext(completions, None))
        await steps()
    assert await reading is None
    assert names([each async for each in late]) == ["r"]
    assert names([each async for each in d.completions()]) == ["r"]
    with pytest.raises(StopAsyncIteration):
        await anext(late)


@in_loop
async def test_what_is_cancelled_by_closing_is_among_them() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        completions = d.completions()
        await active(d, "s", "p", run_id="active")
        await queued(d, "s", "q", run_id="queued")
        reading = asyncio.create_task(_all(completions))
        await steps()
    assert sorted(names(await reading)) == ["active", "queued"]


async def _all(completions: CompletionStream) -> list[tuple[str, RunComplete]]:
    return [each async for each in completions]


# Cursors that are no longer kept.


@in_loop
async def test_a_cursor_whose_followers_are_no_longer_all_kept_has_expired() -> None:
    async with Dispatcher(echo, completions_kept=3) as d:
        cursors: list[str] = []
        completions = d.completions()
        for number in range(10):
            await d.ask("s", "p", run_id=f"r{number}")
            cursors.append((await anext(completions))[0])
        assert names(await ready(d.completions())) == ["r7", "r8", "r9"]
        for number, cursor in enumerate(cursors):
            if number < 6:
                with pytest.raises(CursorExpired):
                    d.completions(after=cursor)
            else:
                behind = [f"r{each}" for each in range(number + 1, 10)]
                assert names(await ready(d.completions(after=cursor))) == behind


@in_loop
async def test_a_reader_that_lags_gets_an_error_and_can_begin_again() -> None:
    async with Dispatcher(echo, completions_kept=3) as d:
        completions = d.completions()
        await d.ask("s", "p", run_id="first")
        assert (await anext(completions))[1].run_id == "first"
        for number in range(3):
            await d.ask("s", "p", run_id=f"r{number}")
        assert (await anext(completions))[1].run_id == "r0"
        for number in range(3, 6):
            await d.ask("s", "p", run_id=f"r{number}")
        for _ in range(2):
            with pytest.raises(CursorExpired, match="kept"):
                await anext(completions)
        assert names(await ready(d.completions())) == ["r3", "r4", "r5"]


@in_loop
async def test_a_waiting_reader_gets_an_error_if_more_complete_at_once_than_are_kept() -> None:
    agent = Agent()
    async with Dispatcher(agent, completions_kept=2) as d:
        await active(d, "s", "p")
        for _ in range(3):
            await queued(d, "s", "q")
        reading = asyncio.create_task(anext(d.completions()))
        await steps()
        await d.cancel("s")
        with pytest.raises(CursorExpired):
            await reading


@in_loop
async def test_a_reader_gets_an_error_if_no_completions_are_kept() -> None:
    async with Dispatcher(echo, completions_kept=0) as d:
        completions = d.completions()
        await d.ask("s", "p")
        with pytest.raises(CursorExpired):
            await anext(completions)
        assert await ready(d.completions()) == []


@pytest.mark.parametrize("returned", ["short", ""])
@in_loop
async def test_bytes_bound_what_is_kept_with_what_was_written_besides(returned: str) -> None:
    async def runner(turn: Turn) -> str:
        turn.write("x" * 10_000)
        return returned

    each = _EACH + sys.getsizeof("x" * 10_000) + (sys.getsizeof(returned) if returned else 0)
    async with Dispatcher(runner, completions_bytes=3 * each) as d:
        for number in range(5):
            await d.ask("s", "p", run_id=f"r{number}")
        assert names(await ready(d.completions())) == ["r2", "r3", "r4"]
        assert d._completions._bytes == 3 * each
        found = d.find("r4")
        assert found is not None
        assert [len(piece) async for piece in found.stream()] == [10_000]


@in_loop
async def test_long_names_are_among_the_bytes() -> None:
    name = "n" * 10_000
    async with Dispatcher(echo, completions_bytes=50_000) as d:
        for number in range(5):
            await d.ask(name, "p", run_id=f"{name}{number}")
        assert [complete.run_id[-1] for _, complete in await ready(d.completions())] == ["3", "4"]


@pytest.mark.parametrize(
    ("session", "run", "counted"), [(64, 64, False), (64, 65, True), (65, 64, True), (100, 100, True)]
)
@in_loop
async def test_names_are_among_the_bytes_beyond_a_length(session: int, run: int, counted: bool) -> None:
    async with Dispatcher(lambda turn: asyncio.sleep(0)) as d:
        names = "s" * session, "r" * run
        await d.ask(names[0], "p", run_id=names[1])
        assert d._completions._bytes == _EACH + counted * sum(map(sys.getsizeof, names))


@in_loop
async def test_the_names_of_what_is_forgotten_are_not_kept() -> None:
    async with Dispatcher(echo, completions_kept=4) as d:
        for number in range(50):
            await d.ask("s", "p")
            assert len(d._completions._order) <= 2 * len(d._completions) + 1, number


@in_loop
async def test_after_the_end_cursor_come_only_later_completions() -> None:
    async with Dispatcher(echo, completions_kept=3) as d:
        beginning = d.end_cursor()
        assert await ready(d.completions(after=beginning)) == []
        for number in range(5):
            await d.ask("s", "p", run_id=f"r{number}")
        cursor = d.end_cursor()
        assert cursor == (await ready(d.completions()))[-1][0]
        completions = d.completions(after=cursor)
        assert await ready(completions) == []
        await d.ask("s", "p", run_id="r5")
        assert names(await ready(completions)) == ["r5"]
        with pytest.raises(CursorExpired):
            d.completions(after=beginning)


@in_loop
async def test_cursors_that_are_none() -> None:
    async with Dispatcher(echo) as d, Dispatcher(echo) as other:
        await d.ask("s", "p")
        await other.ask("s", "p")
        cursor, _ = await anext(d.completions())
        name, number = cursor.rsplit(".", 1)
        assert number == "1"
        wrong: list[Any] = [
            "",
            ".",
            "1",
            ".1",
            "nonsense",
            name,
            f"{name}.",
            f"{name}.-1",
            f"{name}.1.0",
            f"{name}.1 ",
            f"{name}.2",
            f"{name}.٣",
            f"{name}.²",
            f"{name}.{'9' * 5_000}",
            cursor + "\n",
            "\ud800",
            1,
            b"1",
            (await anext(other.completions()))[0],
        ]
        for each in wrong:
            with pytest.raises(CursorExpired):
                d.completions(after=each)
        assert await ready(d.completions(after=f"{name}.0")) == await ready(d.completions())


@in_loop
async def test_completions_belong_to_the_loop_of_their_dispatcher() -> None:
    async with Dispatcher(echo) as d:
        await d.ask("s", "p")
        completions = d.completions()

        async def elsewhere() -> None:
            with pytest.raises(WrongLoop):
                await anext(completions)

        await asyncio.to_thread(lambda: asyncio.run(elsewhere()))
        await anext(completions)


@pytest.mark.parametrize("seed", range(10))
@in_loop
async def test_readers_at_random_miss_none_and_get_none_twice(seed: int) -> None:
    chance = random.Random(seed)
    async with Dispatcher(echo, completions_kept=chance.choice([5, 50, 10**6])) as d:
        events = d.subscribe(moves=True)
        readers: list[tuple[str | None, list[str]]] = [(None, []) for _ in range(4)]
        for number in range(60):
            run = await d.submit(
                chance.choice("st"), "p", run_id=f"r{number}", when_busy=chance.choice(["queue", "interrupt"])
            )
            if chance.random() < 0.2:
                await run.close()
            await steps(chance.randrange(6))
            reader = chance.randrange(4)
            cursor, read = readers[reader]
            try:
                found = await ready(d.completions(after=cursor))
            except CursorExpired:
                readers[reader] = (None, [])
                continue
            if cursor is None and found:
                read[:] = []
            found = found[: chance.randrange(1, 5)]
            read += names(found)
            readers[reader] = (found[-1][0] if found else cursor, read)
        await d.aclose()
        published = [event.run_id async for event in events if isinstance(event, RunComplete)]
        for _, read in readers:
            start = published.index(read[0]) if read else 0
            assert read == published[start : start + len(read)]
