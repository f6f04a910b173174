"""What is held of runs that are complete, of subscribers that are gone, of runners that failed."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import weakref
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from dispatching import Agent, active, assert_nothing_left, garbage_of, in_loop, queued, steps, text_of
from turngate import (
    Attachment,
    Delta,
    Dispatcher,
    MemoryMessages,
    Message,
    Run,
    RunConflict,
    State,
    Turn,
    UnknownRun,
)
from turngate._completions import _EACH


class Text(str):
    """A prompt that can be asked whether it is still there."""


class Forgetful(MemoryMessages):
    """A store that keeps nothing, for what a store keeps is not the dispatcher's."""

    async def put(self, messages: Sequence[Message]) -> None:
        pass


async def echo(turn: Turn) -> str:
    turn.write(turn.run.prompt)
    return "answer"


async def finish(d: Dispatcher, agent: Agent, run: Run) -> None:
    agent.finish(run)
    await run


async def fail(d: Dispatcher, agent: Agent, run: Run) -> None:
    agent.fail(run, LookupError())
    await run


async def cancel(d: Dispatcher, agent: Agent, run: Run) -> None:
    await d.cancel("s")
    await run


async def cancelled_from_outside(d: Dispatcher, agent: Agent, run: Run) -> None:
    task = agent.turns[0].task
    assert task is not None
    task.cancel()
    await run


# Payloads.


@pytest.mark.parametrize("named", [True, False], ids=["named", "unnamed"])
@pytest.mark.parametrize("way", [finish, fail, cancel, cancelled_from_outside])
@in_loop
async def test_of_a_complete_run_neither_prompt_nor_attachments_are_kept(
    way: Callable[[Dispatcher, Agent, Run], Awaitable[None]], named: bool
) -> None:
    logging.getLogger("turngate").setLevel(logging.CRITICAL)  # so that no log holds on to the failure
    try:
        agent = Agent()
        async with Dispatcher(agent, messages=Forgetful()) as d:
            texts = [Text("prompt"), Text("attached"), Text("content")]
            alive = [weakref.ref(text) for text in texts]
            run = await active(
                d,
                "s",
                texts[0],
                attachments=[texts[1], Attachment("a", "text/plain", texts[2])],
                run_id="r" if named else None,
            )
            await way(d, agent, run)
            await steps()
            assert len(d._completions) == 1
            assert [text() for text in alive] == texts  # the handle holds them
            agent.turns.clear()
            agent._ends.clear()
            del run, texts
            gc.collect()  # the future by which the agent fails holds the frame that holds it
            assert [text() for text in alive] == [None] * 3
    finally:
        logging.getLogger("turngate").setLevel(logging.NOTSET)


@in_loop
async def test_of_released_dropped_folded_and_cleared_runs_nothing_is_kept_either() -> None:
    agent = Agent()
    async with Dispatcher(agent, messages=Forgetful()) as d:
        prompts = [Text(n) for n in range(6)]
        alive = [weakref.ref(prompt) for prompt in prompts]
        lead = await active(d, "s", prompts[0])
        await queued(d, "s", prompts[1])
        await agent.turns[0].fold()
        await queued(d, "s", prompts[2])
        await d.clear_queue("s")
        dropped = await queued(d, "s", prompts[3])
        await d.cancel_run(dropped.run_id)
        accepted = await d.accept("s", prompts[4])
        await accepted.close()
        on_entry = await d.accept("t", prompts[5])
        await d.cancel("t")
        assert await d.enter(on_entry) is State.CANCEL_ON_ENTRY
        await on_entry
        agent.finish(lead)
        await lead
        assert len(d._completions) == 6
        agent.turns.clear()
        agent._ends.clear()
        del lead, dropped, accepted, on_entry, prompts
        await steps()
        assert [prompt() for prompt in alive] == [None] * 6


@in_loop
async def test_large_attachments_are_released() -> None:
    held = 0

    class Image(bytes):
        def __init__(self, *_: object) -> None:
            nonlocal held
            held += 1

        def __del__(self) -> None:
            nonlocal held
            held -= 1

    async with Dispatcher(echo) as d:
        for n in range(20):
            await d.ask(f"s{n}", "look", attachments=[Attachment("a.png", "image/png", Image(1_000))])
        await steps()
        assert len(d._completions) == 20
        assert held == 0


@in_loop
async def test_the_context_of_a_complete_run_is_released() -> None:
    async with Dispatcher(echo) as d:
        runs = [await d.submit("s", "p"), await d.accept("s", "q")]
        await runs[0]
        await runs[1].close()
        assert [run.context for run in runs] == [None, None]


# Runs that are known after the fact.


@in_loop
async def test_a_complete_run_is_known_by_the_id_that_was_chosen_for_it() -> None:
    async with Dispatcher(echo) as d:
        attachments: list[Attachment | str] = ["text", Attachment("a", "image/png", b"content")]
        run = await d.submit("s", "p", run_id="r", attachments=attachments)
        complete = await run
        assert await d.accept("s", "p", run_id="r", attachments=attachments) is run
        assert await d.submit("s", "p", run_id="r", attachments=attachments) is run
        seq = run.seq
        del run
        again = await d.accept("s", "p", run_id="r", attachments=attachments)
        assert again.complete == complete
        assert await again.wait() == await again == complete == await d.wait("r")
        assert (again.session_id, again.run_id, again.seq, again.prompt) == ("s", "r", seq, "p")
        assert again.attachments == tuple(attachments)
        assert again.state is State.COMPLETE
        assert await d.ask("s", "p", run_id="r", attachments=attachments) == complete
        await steps()
        assert_nothing_left(d)
        await again.close()
        assert not await d.cancel_run("r")
        assert len(await d.messages.list("s")) == 2


@pytest.mark.parametrize("held", [True, False], ids=["held", "let go of"])
@pytest.mark.parametrize("complete", [True, False], ids=["complete", "in flight"])
@in_loop
async def test_another_payload_is_a_conflict_before_and_after_completion(complete: bool, held: bool) -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        run = await active(d, "s", "p", run_id="r", attachments=["a"])
        if complete:
            agent.finish(run)
            await run
        if not held:
            agent.turns.clear()
            if complete:
                agent._ends.clear()
            del run
        wrong: list[tuple[str, str, list[str]]] = [
            ("t", "p", ["a"]),
            ("s", "q", ["a"]),
            ("s", "p", []),
            ("s", "p", ["b"]),
            ("s", "p", ["a", "a"]),
        ]
        for session, prompt, attachments in wrong:
            with pytest.raises(RunConflict, match="'r'"):
                await d.accept(session, prompt, run_id="r", attachments=attachments)
        assert (await d.accept("s", "p", run_id="r", attachments=["a"])).run_id == "r"
        await d.cancel_all()


# Completions.


@in_loop
async def test_completions_are_bounded_in_bytes_and_the_oldest_are_forgotten_first() -> None:
    async def long(turn: Turn) -> str:
        return "x" * int(turn.run.prompt)

    each = _EACH + sys.getsizeof("x" * 10_000)
    async with Dispatcher(long, completions_bytes=3 * each) as d:
        for n in range(5):
            await d.ask("s", "10000", run_id=f"r{n}")
        assert [f"r{n}" in d._completions for n in range(5)] == [False, False, True, True, True]
        await d.ask("s", "0", run_id="small")
        assert [f"r{n}" in d._completions for n in range(5)] == [False, False, False, True, True]
        with pytest.raises(UnknownRun):
            await d.wait("r2")
        assert len((await d.wait("r3")).text) == 10_000
        await d.ask("s", str(4 * each), run_id="huge")
        assert len(d._completions) == 0
        assert d._completions._bytes == 0
        await d.ask("s", "0", run_id="last")
        assert len(d._completions) == 1


@in_loop
async def test_no_bytes_for_completions_are_no_completions() -> None:
    async with Dispatcher(echo, completions_bytes=0) as d:
        await d.ask("s", "p", run_id="r")
        assert len(d._completions) == 0


# Subscribers.


@in_loop
async def test_unread_deltas_are_bounded_in_bytes_and_what_is_dropped_is_counted() -> None:
    agent = Agent()
    size = sys.getsizeof("x" * 1_000)
    async with Dispatcher(agent, delta_bytes=2 * size) as d, d.subscribe() as events:
        run = await active(d, "s", "p", run_id="r")
        for _ in range(5):
            agent.turns[0].write("x" * 1_000)
        assert events.dropped == 3
        assert await anext(events) == Delta("s", "r", "x" * 1_000, 0)
        agent.turns[0].write("y" * 1_000)
        agent.turns[0].write("z")
        assert events.dropped == 4
        agent.finish(run)
        complete = await run
        assert [text_of(await anext(events))[0] for _ in range(2)] == ["x", "y"]
        assert await anext(events) == complete
        assert events._unread_bytes == 0


@in_loop
async def test_a_subscription_that_was_abandoned_is_gone() -> None:
    async with Dispatcher(echo) as d:
        for about in (None, "s"):

            async def looks_once(about: str | None = about) -> None:
                async for _ in d.subscribe(about):
                    break

            reader = asyncio.create_task(looks_once())
            await steps()
            await d.ask("s", "p")
            await reader
            del reader
            assert not d._subscribers.listen()
            assert not d._subscribers.being_read
        d.subscribe()
        assert not d._subscribers.listen()


@in_loop
async def test_a_reader_that_gave_up_leaves_nothing() -> None:
    async with Dispatcher(echo) as d:
        reader = asyncio.create_task(anext(d.subscribe()))
        await steps()
        assert len(d._subscribers.being_read) == 1
        reader.cancel()
        await asyncio.wait([reader])
        del reader
        assert not d._subscribers.listen()
        assert not d._subscribers.being_read


@in_loop
async def test_a_reader_without_other_references_is_not_collected_while_it_waits() -> None:
    received: list[Any] = []

    async def reads(events: Any) -> None:
        received.extend([event async for event in events])

    async with Dispatcher(echo) as d:
        task = asyncio.create_task(reads(d.subscribe()))
        await steps()
        alive = weakref.ref(task)
        del task
        gc.collect()
        assert alive() is not None
        await d.ask("s", "p")
        await steps()
        gc.collect()
    await steps()
    assert [text_of(event) for event in received] == ["p", "answer"]
    gc.collect()
    assert alive() is None


@in_loop
async def test_a_subscriber_that_leaves_during_a_delivery_costs_the_others_nothing() -> None:
    async with Dispatcher(echo) as d:
        first, second, third = d.subscribe(), [d.subscribe()], d.subscribe()
        first.receive = lambda *_: second.clear()  # type: ignore[method-assign]  # to have one go meanwhile
        await d.ask("s", "p")
        assert text_of(await anext(third)) == "p"
        fourth = [d.subscribe()]
        third._close = fourth.clear  # type: ignore[method-assign]  # to have one go meanwhile
        await d.aclose()
        assert fourth == []


# Garbage.


class Failing:
    async def __call__(self, turn: Turn) -> str:
        try:
            return {"known": "name"}[turn.run.prompt]
        except KeyError as exc:
            raise RuntimeError("outer") from exc


class FailingStore(MemoryMessages):
    async def put(self, messages: Sequence[Message]) -> None:
        await asyncio.sleep(0)
        raise OSError("disk full")


class FailingStoreAtOnce(MemoryMessages):
    async def put(self, messages: Sequence[Message]) -> None:
        raise OSError("disk full")


@pytest.mark.parametrize("store", [MemoryMessages, FailingStore, FailingStoreAtOnce])
@pytest.mark.parametrize("runner", [Failing(), echo])
def test_what_fails_leaves_no_reference_cycle(runner: Any, store: type[MemoryMessages]) -> None:
    logging.getLogger("turngate").setLevel(logging.CRITICAL)  # pytest keeps what is logged

    def failing_hook(_: object) -> None:
        raise LookupError

    async def main() -> None:
        async with Dispatcher(runner, messages=store()) as d:
            for n in range(5):
                await d.ask("s", f"p{n}", on_complete=failing_hook)
            run = await d.submit("s", "cancelled")
            await asyncio.sleep(0)
            await d.cancel("s")
            await run

    try:
        assert garbage_of(main) == []
    finally:
        logging.getLogger("turngate").setLevel(logging.NOTSET)


def test_garbage_is_found() -> None:
    async def main() -> None:
        cycle: list[Any] = []
        cycle.append(cycle)

    assert garbage_of(main) != []


@in_loop
async def test_what_was_cancelled_in_line_is_not_kept_while_the_place_is_taken() -> None:
    agent = Agent()
    async with Dispatcher(agent, turns_limit=1) as d:
        await active(d, "s")
        waits = await active(d, "t")
        alive = weakref.ref(waits)
        await waits.cancel()
        assert (await waits).cancelled
        del waits
        gc.collect()
        assert alive() is None
