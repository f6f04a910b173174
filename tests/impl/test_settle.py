"""Settling: what is put on record when a cancel or the outside gets in the way."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from typing import Any

import pytest

from dispatching import (
    OUTSIDE,
    Agent,
    SlowMessages,
    Stubborn,
    active,
    assert_nothing_left,
    echo,
    in_loop,
    on_record,
    outcome,
    queued,
    steps,
)
from turngate import Dispatcher, MemoryMessages, Message, Run, State, Turn


@in_loop
async def test_a_cancel_while_the_messages_are_written_makes_them_say_so() -> None:
    store = SlowMessages()
    async with Dispatcher(echo, messages=store) as d:
        run = await active(d, "s", "p")
        assert (await d.cancel("s")).runs == [run]
        store.gates[0].set_result(None)
        await steps()
        assert run.state is State.ACTIVE
        store.gates[1].set_result(None)
        assert outcome(await run) == ("p", None, True)
        assert await on_record(d, "s") == [("user", "p", None), ("assistant", "p", "canceled")]
        assert len(store.puts) == 2


@in_loop
async def test_a_cancel_while_a_cancelled_turn_is_written_needs_no_second_write() -> None:
    store = SlowMessages()
    agent = Agent()
    async with Dispatcher(agent, messages=store) as d:
        run = await active(d, "s", "p")
        await d.cancel("s")
        await steps()
        assert (await d.cancel("s")).runs == [run]
        store.gates[0].set_result(None)
        assert (await run).cancelled
        assert len(store.puts) == 1


@in_loop
async def test_a_prompt_sent_while_a_cancelled_turn_unwinds_runs_next() -> None:
    store = SlowMessages()
    agent = Agent()
    async with Dispatcher(agent, messages=store) as d:
        await active(d, "s", "p")
        await d.cancel("s")
        after = await queued(d, "s", "q")
        await steps()
        store.gates[0].set_result(None)
        await steps()
        agent.finish(after)
        await steps()
        store.gates[1].set_result(None)
        assert outcome(await after) == ("done", None, False)


@in_loop
async def test_a_runner_that_swallows_a_cancel_is_cancelled_and_a_second_cancel_interrupts_it_again() -> None:
    runner = Stubborn(patience=2)
    async with Dispatcher(runner) as d:
        run = await active(d, "s", "p")
        await d.cancel("s")
        await steps()
        assert (runner.interrupts, run.state) == (1, State.ACTIVE)
        assert (await d.cancel("s")).runs == [run]
        assert outcome(await run) == ("as if nothing had happened", None, True)
        assert runner.interrupts == 2


@in_loop
async def test_a_runner_that_fails_when_it_is_cancelled_is_cancelled() -> None:
    async def failing(turn: Turn) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            raise RuntimeError("while unwinding")

    async with Dispatcher(failing) as d:
        run = await active(d, "s", "p")
        await d.cancel("s")
        assert outcome(await run) == ("", None, True)
        assert (await on_record(d, "s"))[-1] == ("assistant", "", "canceled")


@in_loop
async def test_a_runner_that_cancels_its_own_session_and_returns() -> None:
    async def cancels(turn: Turn) -> str:
        await d.cancel("s")
        return "done"

    store = SlowMessages()
    async with Dispatcher(cancels, messages=store) as d:
        run = await d.submit("s", "p")
        while not run.complete:
            await steps()
            for gate in store.gates:
                if not gate.done():
                    gate.set_result(None)
        assert outcome(await run) == ("done", None, True)
        assert await on_record(d, "s") == [("user", "p", None), ("assistant", "done", "canceled")]


@pytest.mark.parametrize("interrupts", [1, 2])
def test_the_store_gets_a_task_that_nobody_has_cancelled(interrupts: int) -> None:
    cancels = []

    class Looking(MemoryMessages):
        async def put(self, messages: Sequence[Message]) -> None:
            task = asyncio.current_task()
            assert task is not None
            cancels.append(task.cancelling())
            await super().put(messages)

    @in_loop
    async def main() -> None:
        async with Dispatcher(Stubborn(patience=interrupts), messages=Looking()) as d:
            run = await active(d, "s", "p")
            for _ in range(interrupts):
                await d.cancel("s")
                await steps()
            assert (await run).cancelled

    main()
    assert cancels == [0]


@in_loop
async def test_the_write_is_made_again_when_the_task_is_cancelled_from_outside() -> None:
    store = SlowMessages()
    turns: list[Turn] = []

    async def runner(turn: Turn) -> str:
        turns.append(turn)
        return "done"

    async with Dispatcher(runner, messages=store) as d:
        run = await active(d, "s", "p")
        task = turns[0].task
        assert task is not None
        for n in range(3):
            task.cancel()
            await steps()
            assert len(store.puts) == n + 2
        assert task.cancelling() == 0
        store.gates[-1].set_result(None)
        assert outcome(await run) == ("done", None, False)
        assert await on_record(d, "s") == [("user", "p", None), ("assistant", "done", "end_turn")]


@in_loop
async def test_a_canceled_turn_is_written_although_every_task_is_cancelled() -> None:
    store = SlowMessages()
    agent = Agent()
    d = Dispatcher(agent, messages=store)
    run = await active(d, "s", "p")
    entered = await d.accept("s", "q")
    caller = asyncio.create_task(d.cancel("s"))
    await caller
    await d.enter(entered)
    for _ in range(3):
        await steps(2)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
    await steps()
    for gate in store.gates:
        if not gate.done():
            gate.set_result(None)
    assert (await run).cancelled
    assert (await entered).cancelled
    assert sorted(await on_record(d, "s")) == sorted(
        [
            ("user", "p", None),
            ("assistant", "", "canceled"),
            ("user", "q", None),
            ("assistant", "", "canceled"),
        ]
    )
    await d.aclose()


@in_loop
async def test_a_cancel_on_entry_neither_waits_for_the_active_turn_nor_disturbs_it() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        turn = await active(d, "s", "p")
        entered = await d.accept("s", "q")
        await d.cancel_run(entered.run_id)
        assert await d.enter(entered) is State.CANCEL_ON_ENTRY
        assert outcome(await entered) == ("", None, True)
        assert (turn.state, agent.turns[0].covered) == (State.ACTIVE, False)
        agent.finish(turn)
        assert outcome(await turn) == ("done", None, False)


@in_loop
async def test_a_turn_closed_while_it_is_written_completes_at_once() -> None:
    store = SlowMessages()
    turns: list[Turn] = []

    async def runner(turn: Turn) -> str:
        turns.append(turn)
        return "done"

    async with Dispatcher(runner, messages=store) as d:
        run = await active(d, "s", "p")
        task: Any = turns[0].task
        task.get_coro().close()
        assert_nothing_left(d)
        assert run.complete is not None
        assert outcome(run.complete) == (
            "done",
            "the turn was closed before it could be written",
            False,
        )
        task.cancel()
        await steps()
        assert isinstance(task.exception(), RuntimeError)  # its coroutine was closed behind its back
        assert not d.is_busy()


def faults() -> list[tuple[str, int]]:
    return [(store, step) for store in ("memory", "waits") for step in range(14)]


@pytest.mark.parametrize(("store", "step"), faults())
def test_cancelling_any_task_at_any_step_loses_no_completion(store: str, step: int) -> None:
    class Waits(MemoryMessages):
        async def put(self, messages: Sequence[Message]) -> None:
            await asyncio.sleep(0)
            await super().put(messages)
            await asyncio.sleep(0)

    async def runner(turn: Turn) -> str:
        turn.write(turn.run.prompt)
        await asyncio.sleep(0)
        await turn.fold()
        await asyncio.sleep(0)
        return turn.run.prompt

    @in_loop
    async def check() -> None:
        async with (
            Dispatcher(runner, messages=Waits() if store == "waits" else None) as d,
            d.subscribe() as events,
        ):
            runs = [await d.submit("s", f"p{n}", when_busy="queue" if n == 2 else "fold") for n in range(4)]
            runs.append(await d.submit("t", "other"))
            await d.cancel_run(runs[3].run_id)
            asking = asyncio.create_task(d.ask("s", "asked", run_id="asked"))
            await steps(step)
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            completes = [await run for run in runs]
            if not asking.cancelled():
                await asyncio.wait([asking])
            await steps()
            await d.aclose()
            received = [event async for event in events if hasattr(event, "cancelled")]
            assert len(received) == len({event.run_id for event in received})
            assert set(received) >= set(completes)
            stray = [c for c in completes if c.error]
            assert [c.cancelled for c in completes] == [False, False, False, True, False]
            assert {c.error for c in stray} <= {OUTSIDE}
            per_run = [message.run_id for message in await d.messages.list("s") if message.role == "user"]
            assert len(per_run) == len(set(per_run)) == 4 + ("asked" in per_run)
            assert_nothing_left(d)

    check()


class ClingingMessages(SlowMessages):
    """A store that goes on waiting when it is dropped."""

    async def put(self, messages: Sequence[Message]) -> None:
        try:
            await super().put(messages)
        except GeneratorExit:
            await asyncio.sleep(0)


@pytest.mark.parametrize("make_store", [SlowMessages, ClingingMessages])
def test_a_turn_that_is_dropped_while_its_messages_are_written_completes_its_runs(
    make_store: type[SlowMessages],
) -> None:
    """A loop that is closed drops its tasks: their coroutines are closed, wherever they wait."""
    store = make_store()
    received: list[Any] = []
    runs: list[Run] = []

    async def main() -> Dispatcher:
        d = Dispatcher(echo, messages=store)
        runs.append(await d.submit("s", "settles", on_complete=received.append))
        runs.append(await d.submit("s", "queued", when_busy="queue"))
        await steps()
        return d

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # the loop says that a task was destroyed, as it should
    d = loop.run_until_complete(main())
    task: Any = asyncio.all_tasks(loop).pop()
    loop.close()
    task.get_coro().close()
    assert [run.complete and run.complete.error for run in runs] == [
        "the turn was closed before it could be written"
    ] * 2
    assert received == [runs[0].complete]
    assert_nothing_left(d)
    d.itself = d  # type: ignore[attr-defined]  # so that it goes when garbage is collected, and not before
    runs.clear()
    del task, d
    with pytest.warns(ResourceWarning, match="dropped without aclose"):
        gc.collect()
