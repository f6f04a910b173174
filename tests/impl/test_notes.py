"""What a runner tells with its text."""

from __future__ import annotations

import asyncio
import functools
import gc
import math
import sys
from enum import IntEnum, StrEnum
from typing import Any

import pytest

from dispatching import Agent, active, in_loop, steps
from turngate import Delta, Dispatcher, Note, RunComplete, Subscription, Turn, TurnEnded


async def rest(events: Subscription) -> list[Any]:
    return [event async for event in events]


@in_loop
async def test_notes_come_in_order_with_the_text_and_are_no_part_of_it() -> None:
    async def runner(turn: Turn) -> None:
        turn.emit("thinking")
        turn.write("a")
        turn.emit("tool", {"name": "search", "arguments": ["x", 1, None, True, 0.5]})
        turn.write("b")

    async with Dispatcher(runner) as d:
        of_all, of_s, moves, of_t = (
            d.subscribe(),
            d.subscribe("s"),
            d.subscribe("s", moves=True),
            d.subscribe("t"),
        )
        run = await d.submit("s", "p", run_id="r")
        complete = await run
        await d.aclose()
        expected = [
            Note("s", "r", "thinking", None),
            Delta("s", "r", "a", 0),
            Note("s", "r", "tool", {"name": "search", "arguments": ["x", 1, None, True, 0.5]}),
            Delta("s", "r", "b", 1),
            complete,
        ]
        assert complete.text == "ab"
        assert await rest(of_all) == await rest(of_s) == expected
        assert (await rest(moves))[2:] == expected
        assert await rest(of_t) == []
        assert [piece async for piece in run.stream()] == ["a", "b"]
        assert [message.text for message in await d.messages.list("s")] == ["p", "ab"]


@in_loop
async def test_the_data_are_taken_at_the_call() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d, d.subscribe() as events:
        await active(d, "s", "p")
        data = {"steps": [1]}
        agent.turns[0].emit("progress", data)
        data["steps"].append(2)
        note = await anext(events)
        assert isinstance(note, Note)
        assert note.data == {"steps": [1]}


class Colour(StrEnum):
    RED = "red"


class Number(IntEnum):
    ONE = 1


class Broken:
    def __repr__(self) -> str:
        raise LookupError


def circular() -> list[Any]:
    data: list[Any] = []
    data.append({"again": data})
    return data


def deep(levels: int) -> list[Any]:
    data: list[Any] = []
    for _ in range(levels):
        data = [data]
    return data


NOT_JSON: dict[str, Any] = {
    "nan": math.nan,
    "infinity": [{"a": -math.inf}],
    "key that is an int": {1: "a"},
    "key that is None": {"a": [{None: 1}]},
    "key without a repr": {Broken(): 1},
    "bytes": b"abc",
    "bytearray": [bytearray(b"abc")],
    "set": {"a": {1, 2}},
    "object": object(),
    "complex": 1j,
    "generator": (n for n in range(3)),
    "circular": circular(),
    "deep": deep(100_000),
    "deep dict": {"a": deep(900)},
    "an int that Python refuses to spell": 10**5_000,
    "class": dict,
}


@pytest.mark.parametrize("name", NOT_JSON)
@in_loop
async def test_what_is_not_json_is_a_type_error_and_leaves_no_trace(name: str) -> None:
    agent = Agent()
    async with Dispatcher(agent) as d, d.subscribe() as events:
        run = await active(d, "s", "p")
        agent.turns[0].keep("before")
        for call in (lambda data: agent.turns[0].emit("kind", data), agent.turns[0].keep):
            with pytest.raises(TypeError, match="JSON"):
                call(NOT_JSON[name])
            with pytest.raises(TypeError, match="JSON"):
                await asyncio.to_thread(call, NOT_JSON[name])
        agent.finish(run)
        complete = await run
        assert await anext(events) == complete
        assert complete.outcome == "finished"
        assert (await d.messages.list("s"))[-1].data == "before"


@pytest.mark.parametrize(
    ("data", "given_back"),
    [
        (None, None),
        (True, True),
        (0, 0),
        (-0.0, -0.0),
        (2**70, 2**70),
        (1e-320, 1e-320),
        ("", ""),
        ("\ud800 \x00 \N{WAVING HAND SIGN}", "\ud800 \x00 \N{WAVING HAND SIGN}"),
        ((1, (2,)), [1, [2]]),
        ({}, {}),
        ({"": {"a": []}}, {"": {"a": []}}),
        ({Colour.RED: Number.ONE}, {"red": 1}),
        (deep(100), deep(100)),
    ],
    ids=str,
)
@in_loop
async def test_what_is_json_is_given_back(data: Any, given_back: Any) -> None:
    agent = Agent()
    async with Dispatcher(agent) as d, d.subscribe() as events:
        run = await active(d, "s", "p")
        agent.turns[0].emit("kind", data)
        agent.turns[0].keep(data)
        note = await anext(events)
        assert isinstance(note, Note)
        assert note.data == given_back
        agent.finish(run)
        await run
        assert (await d.messages.list("s"))[-1].data == given_back


@pytest.mark.parametrize("kind", [None, 1, b"tool"])
@in_loop
async def test_a_kind_is_a_string(kind: Any) -> None:
    agent = Agent()
    async with Dispatcher(agent) as d, d.subscribe() as events:
        await active(d, "s", "p")
        with pytest.raises(TypeError, match="kind"):
            agent.turns[0].emit(kind)
        agent.turns[0].emit("")
        assert await anext(events) == Note("s", agent.turns[0].run.run_id, "", None)


@in_loop
async def test_notes_are_bounded_like_deltas() -> None:
    agent = Agent()
    async with Dispatcher(agent, delta_limit=2) as d, d.subscribe() as events:
        run = await active(d, "s", "p")
        for number in range(5):
            agent.turns[0].emit("n", number)
        assert events.dropped == 3
        agent.finish(run)
        complete = await run
        assert [await anext(events) for _ in range(3)] == [
            Note("s", run.run_id, "n", 0),
            Note("s", run.run_id, "n", 1),
            complete,
        ]
        assert events._unread_bytes == 0


@in_loop
async def test_notes_are_bounded_in_bytes() -> None:
    agent = Agent()
    async with Dispatcher(agent, delta_bytes=1_000) as d, d.subscribe() as events:
        await active(d, "s", "p")
        agent.turns[0].emit("n", "x" * 900)
        agent.turns[0].emit("n", "x" * 900)
        agent.turns[0].emit("x" * 2_000)
        assert events.dropped == 2
        await anext(events)
        agent.turns[0].emit("n", "x" * 900)
        assert events.dropped == 2


@in_loop
async def test_the_size_of_a_note_is_that_of_its_kind_and_its_data() -> None:
    agent = Agent()
    async with Dispatcher(agent, delta_bytes=3) as d, d.subscribe() as events:
        await active(d, "s", "p")
        agent.turns[0].emit("abc", 1)
        assert events.dropped == 1
        agent.turns[0].emit("ab", 1)
        assert events.dropped == 1


@in_loop
async def test_whoever_is_late_is_told_so() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d, d.subscribe() as events:
        run = await active(d, "s", "p")
        agent.finish(run)
        await run
        with pytest.raises(TurnEnded, match="emit"):
            agent.turns[0].emit("late")
        with pytest.raises(TurnEnded, match="emit"):
            await asyncio.to_thread(agent.turns[0].emit, "late")
        await steps()
        assert isinstance(await anext(events), RunComplete)
        assert not events._unread


@in_loop
async def test_a_turn_that_is_being_cancelled_still_tells() -> None:
    async def runner(turn: Turn) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            turn.emit("cleaning up")

    async with Dispatcher(runner) as d, d.subscribe() as events:
        run = await d.submit("s", "p", run_id="r")
        await steps()
        await run.cancel()
        complete = await run
        assert [await anext(events), await anext(events)] == [Note("s", "r", "cleaning up", None), complete]


@in_loop
async def test_threads_tell_in_order_with_what_they_write() -> None:
    agent = Agent()
    async with Dispatcher(agent, delta_limit=10_000) as d, d.subscribe(moves=True) as events:
        run = await active(d, "s", "p")
        turn = agent.turns[0]

        def work(name: str) -> None:
            for number in range(100):
                turn.emit(name, number)
                turn.write(f"{name}{number} ")

        threads = asyncio.gather(*[asyncio.to_thread(work, name) for name in "ab"])
        for number in range(50):
            turn.emit("c", number)
            turn.write(f"c{number} ")
            await steps(1)
        await threads
        agent.finish(run, None)
        await run
        await d.aclose()
        told = await rest(events)
        assert told[-1] == run.complete
        for name, count in (("a", 100), ("b", 100), ("c", 50)):
            mine = [
                event.data if isinstance(event, Note) else event.text
                for event in told
                if (isinstance(event, Note) and event.kind == name)
                or (isinstance(event, Delta) and event.text.startswith(name))
            ]
            assert mine == [each for n in range(count) for each in (n, f"{name}{n} ")]


@in_loop
async def test_what_a_thread_tells_last_comes_before_the_completion() -> None:
    async def runner(turn: Turn) -> None:
        await asyncio.to_thread(turn.emit, "last", [1])

    async with Dispatcher(runner) as d, d.subscribe() as events:
        complete = await d.ask("s", "p", run_id="r")
        assert [await anext(events), await anext(events)] == [Note("s", "r", "last", [1]), complete]


def test_a_note_from_a_turn_whose_loop_is_closed_is_refused() -> None:
    agent = Agent()

    async def main() -> None:
        d = Dispatcher(agent)
        d._home._warns_if_dropped = False
        await d.submit("s", "p")
        await steps()

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # the loop says that a task was destroyed, as it should
    loop.run_until_complete(main())
    loop.close()
    with pytest.raises(TurnEnded, match="whose loop is closed"):
        agent.turns[0].emit("late")
    agent.turns.clear()
    gc.collect()


def test_a_thread_with_a_fresh_stack_keeps_nothing_that_the_loop_cannot_give_back() -> None:
    """What is taken where the stack is shallow must be given back where it is deep."""
    taken: list[int] = []

    async def runner(turn: Turn) -> None:
        def keep() -> None:
            for levels in range(1, sys.getrecursionlimit(), 7):
                try:
                    turn.keep(deep(levels))
                except TypeError:
                    return
                taken.append(levels)

        await asyncio.to_thread(keep)

    async def main() -> None:
        async with Dispatcher(runner) as d:
            complete = await d.ask("s", "p")
            assert complete.outcome == "finished"
            (_, reply) = await d.messages.list("s")
            assert reply.data == deep(taken[-1])

    def deeper(levels: int) -> None:
        if levels:
            deeper(levels - 1)
        else:
            asyncio.run(asyncio.wait_for(main(), 60))

    deeper(300)
    assert taken[-1] > 100


@in_loop
async def test_data_nested_too_deeply_is_refused() -> None:
    agent = Agent()
    deep: list[Any] = []
    for _ in range(199):
        deep = [deep]
    async with Dispatcher(agent) as d:
        await active(d, "s", "p")
        turn = agent.turns[0]
        for take in (turn.keep, functools.partial(turn.emit, "n")):
            take(deep)
            with pytest.raises(TypeError, match="200"):
                take([deep])
