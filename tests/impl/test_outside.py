"""What other people's code does to a dispatcher, beyond what its authors expected: each of these was seen."""

from __future__ import annotations

import asyncio
import functools
import gc
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

import pytest

from dispatching import OUTSIDE, Agent, active, containing, echo, in_loop, steps
from turngate import (
    Attachment,
    CursorExpired,
    Dispatcher,
    MemoryMessages,
    Message,
    Run,
    RunComplete,
    Turn,
    WrongLoop,
)
from turngate_verify.world.virtual_loop import VirtualLoop


class Unhashable(str):
    """A string that compares in its own way, and so has no hash."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]  # as Python does where there is an __eq__

    def __eq__(self, other: object) -> bool:
        return False


@in_loop
async def test_what_is_no_plain_string_is_made_one() -> None:
    async with Dispatcher(echo) as d:
        odd: list[Attachment | str] = [
            Attachment(Unhashable("n"), Unhashable("text/plain"), Unhashable("c")),
            Unhashable("s"),
        ]
        run = await d.submit(Unhashable("s"), Unhashable("p"), run_id=Unhashable("r"), attachments=odd)
        assert {type(text) for text in (run.session_id, run.prompt, run.run_id)} == {str}
        assert run.attachments == (Attachment("n", "text/plain", "c"), "s")
        assert (await run).text == "p"
        assert (await d.accept("s", "p", run_id="r", attachments=[*run.attachments])) is run


@in_loop
async def test_an_attachment_is_made_of_strings_and_bytes() -> None:
    async with Dispatcher(echo) as d:
        for odd in (Attachment(["n"], "image/png", b""), Attachment("n", 1, b""), Attachment("n", "m", 1)):  # type: ignore[arg-type]  # wrong on purpose
            with pytest.raises(TypeError, match="Attachment"):
                await d.accept("s", "p", attachments=[odd])


class Answered(MemoryMessages):
    """A store whose answer takes a given number of hops of the loop to reach the task that awaits it."""

    def __init__(self, loop: VirtualLoop, hops: int) -> None:
        super().__init__()
        self.answer: asyncio.Future[None] = loop.create_future()
        self.hops = hops

    async def put(self, messages: Sequence[Message]) -> None:
        async def through(hops: int) -> None:
            await (self.answer if hops == 0 else asyncio.create_task(through(hops - 1)))

        await through(self.hops)
        await super().put(messages)


@pytest.mark.parametrize("hops", [0, 1, 3])
@pytest.mark.parametrize("blocked", [0.2, 0.201, 0.24, 0.26, 0.5])
def test_a_write_that_succeeded_while_the_loop_was_blocked_has_not_timed_out(
    blocked: float, hops: int
) -> None:
    loop = VirtualLoop()
    store = Answered(loop, hops)
    d = Dispatcher(echo, messages=store, settle_timeout=0.2)
    run = loop.call(d.submit("s", "p"))
    loop.settle()
    loop.call_soon(store.answer.set_result, None)  # from a thread, while the loop is blocked
    loop.advance(blocked)
    loop.settle()
    assert run.complete is not None
    assert run.complete.error is None
    loop.call(d.aclose())


@in_loop
async def test_a_store_that_never_waits_for_anything_still_runs_out_of_time() -> None:
    class Busy(MemoryMessages):
        async def put(self, messages: Sequence[Message]) -> None:
            while True:
                await asyncio.sleep(0)

    async with Dispatcher(echo, messages=Busy(), settle_timeout=0.01) as d:
        assert (await d.ask("s", "p")).error == containing("0.01 s")


@in_loop
async def test_errors_and_names_count_among_the_bytes_that_are_kept() -> None:
    async def fails(turn: Turn) -> None:
        raise ValueError("x" * 100_000)

    async with Dispatcher(fails, completions_bytes=1_000_000) as d:
        for _ in range(30):
            await d.ask("s", "p")
        assert len(d._completions) == 9
    async with Dispatcher(echo, completions_bytes=1_000_000) as d:
        for number in range(30):
            await d.ask("s" * 100_000 + str(number), "p")
        assert len(d._completions) == 9


@in_loop
async def test_a_recording_that_begins_the_close_costs_no_run_complete() -> None:
    def record(entry: dict[str, Any]) -> None:
        if entry["event"] == "complete":
            d.begin_close()

    d = Dispatcher(echo, record=record)
    events = d.subscribe()
    run = await d.submit("s", "p")
    assert [event async for event in events] == [await run]


class Limiter:
    """A task factory whose tasks wait for something before they begin."""

    def __init__(self) -> None:
        self.until = asyncio.Event()

    def __call__(self, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
        async def limited() -> Any:
            await self.until.wait()
            return await coro

        return asyncio.Task(limited(), loop=loop, **options)


@in_loop
async def test_a_factory_that_has_the_turn_wait_is_interrupted() -> None:
    loop = asyncio.get_running_loop()
    async with Dispatcher(echo) as d:
        loop.set_task_factory(Limiter())
        run, following, on_entry = [await d.accept("s", prompt) for prompt in "abc"]
        await d.enter(run)
        await d.cancel("s")
        await d.enter(on_entry)
        loop.set_task_factory(None)
        assert (await run).cancelled
        assert (await on_entry).cancelled
        await d.enter(following)
        assert (await following).cancelled
        assert (await d.ask("s", "p")).text == "p"


@in_loop
async def test_a_close_does_not_wait_for_a_factory() -> None:
    loop = asyncio.get_running_loop()
    d = Dispatcher(echo)
    loop.set_task_factory(Limiter())
    run = await d.submit("s", "p")
    await steps()
    loop.set_task_factory(None)
    await d.aclose()
    assert (await run).cancelled


@in_loop
async def test_a_factory_that_returns_a_poor_proxy_costs_no_run() -> None:
    class Poor:
        def __init__(self, task: asyncio.Task[Any]) -> None:
            self.set_name = task.set_name
            self.add_done_callback = task.add_done_callback

    def factory(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> Any:
        return Poor(asyncio.Task(coro, loop=loop, **options))

    loop = asyncio.get_running_loop()
    async with Dispatcher(echo) as d:
        loop.set_task_factory(factory)
        run = await d.accept("s", "p")
        await d.enter(run)
        loop.set_task_factory(None)
        assert (await run).text == "p"


@in_loop
async def test_a_store_that_times_out_leaves_no_reference_cycle() -> None:
    class Sleepy(MemoryMessages):
        async def put(self, messages: Sequence[Message]) -> None:
            await asyncio.sleep(3_600)

    async with Dispatcher(echo, messages=Sleepy(), settle_timeout=0.001, completions_kept=0) as d:
        gc.collect()
        gc.disable()
        try:
            await d.ask("s", "p")
            await steps()
            held = [each for each in gc.get_objects() if isinstance(each, Run | Turn)]
            assert held == []
        finally:
            gc.enable()


@in_loop
async def test_other_loops_are_refused_by_all_that_look_on() -> None:
    async def looks(call: Any) -> None:
        with pytest.raises(WrongLoop):
            await call() if asyncio.iscoroutinefunction(call) else call()

    agent = Agent()
    d = Dispatcher(agent)
    await active(d, "s", "p")
    (turn,) = agent.turns

    async def opens() -> None:
        async with d:
            pass

    calls = (
        turn.history, opens, d.is_busy, d.sessions, lambda: d.session("s"), lambda: d.find("r"),
        lambda: d.queued("s"), lambda: d.accepted_count("s"), lambda: d.cancel_mark("s"), d.completions,
    )  # fmt: skip
    for call in calls:
        await asyncio.to_thread(asyncio.run, looks(call))
    await d.aclose()


def test_a_second_loop_of_the_same_thread_is_refused_too() -> None:
    async def first() -> Dispatcher:
        d = Dispatcher(echo)
        await d.ask("s", "p")
        await d.aclose()
        return d

    d = asyncio.run(first())
    assert not d.is_busy()  # no loop is running: there is nothing to be confused with

    async def second() -> None:
        for look in (d.is_busy, d.sessions):
            with pytest.raises(WrongLoop):
                look()

    asyncio.run(second())


class Odd:
    """What a hook may return: it looks like an awaitable, and breaks when it is closed."""

    def __await__(self) -> Any:
        yield

    @property
    def close(self) -> None:
        raise RuntimeError("not so")


@in_loop
async def test_what_a_hook_returns_is_dealt_with_whatever_it_is(caplog: pytest.LogCaptureFixture) -> None:
    async with Dispatcher(echo) as d:
        run = await d.accept("s", "p", on_complete=lambda _: Odd())
        await run.close()
        assert "returned an awaitable" in caplog.text
        assert "on_complete of run" in caplog.text


class Called:
    async def __call__(self, complete: RunComplete) -> None:
        """Do nothing, asynchronously."""


@in_loop
async def test_a_coroutine_function_is_refused_in_whatever_it_is_wrapped() -> None:
    async def hook(complete: RunComplete) -> None:
        """Do nothing, asynchronously."""

    async with Dispatcher(echo) as d:
        for wrapped in (
            functools.partial(Called()),
            staticmethod(hook),
            functools.partial(functools.partial(hook)),
        ):
            with pytest.raises(TypeError, match="on_complete"):
                await d.accept("s", "p", on_complete=wrapped)


request_id: ContextVar[str] = ContextVar("request_id", default="nobody's")


@in_loop
async def test_a_turn_that_never_begins_is_written_in_the_context_of_its_accept() -> None:
    seen: list[str] = []

    class Watched(MemoryMessages):
        async def put(self, messages: Sequence[Message]) -> None:
            seen.append(request_id.get())

    async with Dispatcher(echo, messages=Watched()) as d:
        request_id.set("of the accept")
        run = await d.accept("s", "p")
        request_id.set("of the enter")
        await d.enter(run)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        assert (await run).error == OUTSIDE
    assert seen == ["of the accept"]


@in_loop
async def test_closing_gently_costs_no_look_at_every_session_for_every_step() -> None:
    agent = Agent()
    d = Dispatcher(agent)
    held = [await d.accept(f"accepted {n}", "p") for n in range(50)]
    runs = [await active(d, f"active {n}", "p") for n in range(50)]
    looked = 0

    class Counted(dict[str, Any]):
        def values(self) -> Any:
            nonlocal looked
            looked += 1
            return super().values()

    d._sessions.cores = Counted(d._sessions.cores)
    d.begin_close(finish=1_000)
    for run in runs:
        agent.finish(run)
        await run
    await d.aclose()
    assert looked < 10
    assert {run.complete.outcome for run in held if run.complete} == {"released"}


# What a server asks of a dispatcher beside the contract: what is in flight, which cursor is older.


@in_loop
async def test_sessions_are_counted_while_something_is_in_flight() -> None:
    async with Dispatcher(Agent()) as d:
        assert d.session_count() == 0
        for session in "aab":
            await d.accept(session, "x")
        assert d.session_count() == len(d.sessions()) == 2
        await d.aclose()
        assert d.session_count() == 0


@in_loop
async def test_cursors_sort_in_the_order_of_the_completions() -> None:
    async with Dispatcher(lambda turn: quick()) as d:
        begin = d.end_cursor()
        for number in range(12):
            await d.ask("s", str(number))
        cursors = [begin, *[cursor async for cursor, _ in d.completions(until=d.end_cursor())]]
        assert sorted({*cursors}, key=d.cursor_order) == cursors
        assert d.cursor_order(cursors[-1]) == d.cursor_order(d.end_cursor())
        for wrong in ("", "x", "lost.1", f"{begin}.1"):
            with pytest.raises(CursorExpired):
                d.cursor_order(wrong)


async def quick() -> str:
    return "done"
