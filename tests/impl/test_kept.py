"""JSON with the text of a turn: kept with every outcome, in the same write."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dispatching import Agent, BrokenMessages, SlowMessages, active, in_loop, queued, steps
from turngate import (
    Dispatcher,
    MemoryMessages,
    Message,
    Run,
    SqliteMessages,
    State,
    Turn,
    TurnEnded,
)

pytestmark = pytest.mark.requirement("R-LOK-6")

Stores = Callable[[], Any]


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Stores:
    @asynccontextmanager
    async def opened() -> AsyncIterator[Any]:
        if request.param == "memory":
            yield MemoryMessages()
        else:
            async with SqliteMessages(tmp_path / "messages.db") as messages:
                yield messages

    return opened


async def data_of(d: Dispatcher, session: str = "s") -> list[Any]:
    return [message.data for message in await d.messages.list(session)]


@in_loop
async def test_the_last_call_wins_and_only_the_reply_carries_it(store: Stores) -> None:
    agent = Agent()
    async with store() as messages, Dispatcher(agent, messages=messages) as d:
        run = await active(d, "s", "p")
        await queued(d, "s", "q")
        await agent.turns[0].fold()
        agent.turns[0].keep({"calls": [1]})
        agent.turns[0].keep({"calls": [1, 2]})
        agent.finish(run)
        await run
        assert await data_of(d) == [None, None, {"calls": [1, 2]}]


@in_loop
async def test_to_keep_nothing_is_to_have_kept_nothing(store: Stores) -> None:
    agent = Agent()
    async with store() as messages, Dispatcher(agent, messages=messages) as d:
        run = await active(d, "s", "p")
        agent.turns[0].keep({"calls": [1]})
        agent.turns[0].keep(None)
        agent.finish(run)
        await run
        assert await data_of(d) == [None, None]


@pytest.mark.parametrize("end", ["finish", "fail", "wrong type", "cancel", "cancelled from outside", "close"])
@in_loop
async def test_what_was_kept_is_written_with_every_outcome(
    store: Stores, end: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "turngate")
    agent = Agent()
    async with store() as messages:
        async with Dispatcher(agent, messages=messages) as d:
            run = await active(d, "s", "p")
            agent.turns[0].keep([end])
            match end:
                case "finish":
                    agent.finish(run)
                case "fail":
                    agent.fail(run, LookupError("no"))
                case "wrong type":
                    agent.finish(run, 5)
                case "cancel":
                    await d.cancel("s")
                case "cancelled from outside":
                    task = agent.turns[0].task
                    assert task is not None
                    task.cancel()
                case _:
                    d.begin_close()
            await run
        assert await data_of(d) == [None, [end]]


@in_loop
async def test_it_is_taken_at_the_call_and_given_back_as_a_copy(store: Stores) -> None:
    agent = Agent()
    async with store() as messages, Dispatcher(agent, messages=messages) as d:
        run = await active(d, "s", "p")
        data: dict[str, Any] = {"calls": [1]}
        agent.turns[0].keep(data)
        data["calls"].append(2)
        agent.finish(run)
        await run
        for message in await d.messages.list("s"):
            if message.data is not None:
                message.data["calls"].append(3)
        for message in await messages.of_run(run.run_id):
            if message.data is not None:
                message.data.clear()
        assert await data_of(d) == [None, {"calls": [1]}]


@in_loop
async def test_the_runner_rebuilds_its_history_from_what_was_kept(store: Stores) -> None:
    histories: list[list[Any]] = []

    async def runner(turn: Turn) -> str:
        history = [(message.text, message.data) for message in await turn.history()]
        histories.append(history)
        turn.keep({"turn": len(histories), "seen": [text for text, _ in history]})
        return f"answer {len(histories)}"

    async with store() as messages, Dispatcher(runner, messages=messages) as d:
        await d.ask("s", "a")
        await d.ask("s", "b")
        await d.ask("s", "c")
        assert histories[2] == [
            ("a", None),
            ("answer 1", {"turn": 1, "seen": []}),
            ("b", None),
            ("answer 2", {"turn": 2, "seen": ["a", "answer 1"]}),
        ]


@in_loop
async def test_keeping_while_the_turn_is_being_cancelled() -> None:
    kept: list[int] = []

    async def runner(turn: Turn) -> None:
        while len(kept) < 3:
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                kept.append(len(kept))
                turn.keep({"interrupted": len(kept)})

    async with Dispatcher(runner) as d:
        run = await d.submit("s", "p")
        for _ in range(3):
            await steps()
            await d.cancel("s")
        assert (await run).outcome == "cancelled"
        assert await data_of(d) == [None, {"interrupted": 3}]


@in_loop
async def test_whoever_is_late_is_told_so() -> None:
    agent, store = Agent(), SlowMessages()
    async with Dispatcher(agent, messages=store) as d:
        run = await active(d, "s", "p")
        agent.turns[0].keep(1)
        agent.finish(run)
        await steps()
        for _ in range(2):
            with pytest.raises(TurnEnded, match="keep"):
                agent.turns[0].keep(2)
            with pytest.raises(TurnEnded, match="keep"):
                await asyncio.to_thread(agent.turns[0].keep, 2)
            if not store.gates[0].done():
                store.gates[0].set_result(None)
                await run
        assert await data_of(d) == [None, 1]


@in_loop
async def test_nothing_is_kept_of_a_run_that_is_cancelled_on_entry() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        run = await d.accept("s", "p")
        await run.cancel()
        assert await d.enter(run) is State.CANCEL_ON_ENTRY
        await run
        assert await data_of(d) == [None, None]


@in_loop
async def test_threads_keep_and_the_last_one_before_the_end_wins() -> None:
    async def runner(turn: Turn) -> None:
        def work(name: int) -> None:
            for number in range(200):
                turn.keep([name, number])

        await asyncio.gather(*[asyncio.to_thread(work, name) for name in range(4)])
        turn.keep("last")

    async with Dispatcher(runner) as d:
        await d.ask("s", "p")
        assert await data_of(d) == [None, "last"]


@in_loop
async def test_a_thread_that_outlives_its_turn_either_keeps_or_gets_an_error() -> None:
    refused = threading.Event()
    kept: list[int] = []

    async def runner(turn: Turn) -> None:
        def work() -> None:
            number = 0
            try:
                while True:
                    turn.keep(number)
                    kept.append(number)
                    number += 1
            except TurnEnded:
                refused.set()

        threads.append(asyncio.get_running_loop().run_in_executor(None, work))
        while not kept:
            await asyncio.sleep(0)

    threads: list[asyncio.Future[None]] = []
    async with Dispatcher(runner) as d:
        await d.ask("s", "p")
        await threads[0]
        assert refused.is_set()
        assert (await d.messages.list("s"))[-1].data == kept[-1]


@in_loop
async def test_writing_again_writes_the_same_data_again() -> None:
    agent, store = Agent(), SlowMessages()
    async with Dispatcher(agent, messages=store) as d:
        run = await active(d, "s", "p")
        agent.turns[0].keep({"a": 1})
        agent.finish(run)
        await steps()
        store.puts[0][-1].data["a"] = 2  # a store may do as it likes with what it is given
        await d.cancel("s")
        store.gates[0].set_result(None)
        await steps()
        store.gates[1].set_result(None)
        await run
        assert [puts[-1].finish_reason for puts in store.puts] == ["end_turn", "canceled"]
        assert await data_of(d) == [None, {"a": 1}]


@in_loop
async def test_a_store_that_fails_fails_the_run_with_its_data() -> None:
    agent = Agent()
    async with Dispatcher(agent, messages=BrokenMessages(OSError("disk full"))) as d:
        run = await active(d, "s", "p")
        agent.turns[0].keep(1)
        agent.finish(run)
        assert (await run).outcome == "failed"
        assert await data_of(d) == []


class Plain:
    """A store of the user's own: put, and list of a session, and no more."""

    def __init__(self) -> None:
        self.messages: dict[str, Message] = {}

    async def put(self, messages: Sequence[Message]) -> None:
        self.messages |= {message.id: message for message in messages}

    async def list(self, session_id: str) -> list[Message]:
        return [message for message in self.messages.values() if message.session_id == session_id]


@in_loop
async def test_a_store_of_ones_own_needs_two_methods() -> None:
    async def runner(turn: Turn) -> str:
        turn.keep(len(await turn.history()))
        await turn.fold()
        return "answer"

    async with Dispatcher(runner, messages=Plain()) as d:
        runs: list[Run] = [await d.submit("s", prompt, when_busy="queue") for prompt in "abc"]
        for run in runs:
            assert (await run).outcome == "finished"
        assert await data_of(d) == [None, 0, None, 2, None, 4]


def test_a_message_can_be_made_without_data() -> None:
    assert Message("m", "s", "r", "user", "text").data is None
    assert Message("m", "s", "r", "assistant", "text", "end_turn", [1]).data == [1]
