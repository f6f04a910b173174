"""One dispatcher, one loop: what other loops and threads may do, and what is refused without a trace."""

from __future__ import annotations

import asyncio
import functools
import gc
import threading
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import pytest

import turngate
from dispatching import Agent, outcome, text_of
from stacking import HANG, Life, Stack, live
from stacks import STACKS, request_id
from turngate import Delta, Dispatcher, Event, Run, RunComplete, State, Subscription, Turn, TurnEnded

(PLAIN,) = [stack for stack in STACKS if stack.name == "plain"]
LOOPS = [stack for stack in STACKS if stack.name in ("plain", "debug", "uvloop", "eager", "sentry")]


@pytest.fixture(params=LOOPS, ids=str)
def stack(request: pytest.FixtureRequest) -> Stack:
    stack: Stack = request.param
    if stack.missing:
        pytest.skip(stack.missing)
    return stack


def wrong_loop() -> type[turngate.TurngateError]:
    """Return the exception; a package without it fails the tests, not the import of this file."""
    exception: type[turngate.TurngateError] = vars(turngate)["WrongLoop"]
    return exception


class Held:
    """A dispatcher with something of every kind in flight: an active turn, a queued and an accepted run."""

    def __init__(self) -> None:
        self.agent = Agent()
        self.entries: list[dict[str, Any]] = []
        self.d = Dispatcher(self.agent, record=self.entries.append)

    async def fill(self) -> None:
        self.active = await self.d.submit("s", "tea", run_id="active")
        while not self.agent.turns:
            await asyncio.sleep(0)
        self.queued = await self.d.accept("s", "cake", run_id="queued")
        await self.d.enter(self.queued)
        self.accepted = await self.d.accept("s", "soup", run_id="accepted")
        complete = await self.d.accept("other", "tart", run_id="complete")
        await complete.close()

    def state(self) -> object:
        """Return all that can be seen of it."""
        d = self.d
        return (
            *(run.state for run in (self.active, self.queued, self.accepted)),
            (d.is_busy(), d.queued("s"), d.accepted_count("s"), d.cancel_mark("s")),
            (repr(d), repr(self.agent.turns), len(self.entries)),
        )


async def subscribing(held: Held) -> None:
    held.d.subscribe()


async def remembering(held: Held) -> None:
    held.d.end_cursor()


async def iterating(held: Held) -> None:
    async for _ in held.d.subscribe():
        pass


CALLS: dict[str, Callable[[Held], Awaitable[Any]]] = {
    "accept": lambda held: held.d.accept("s", "salad"),
    "accept in a new session": lambda held: held.d.accept("new", "salad"),
    "accept again": lambda held: held.d.accept("s", "cake", run_id="queued"),
    "interrupt": lambda held: held.d.accept("s", "salad", when_busy="interrupt"),
    "enter": lambda held: held.d.enter(held.accepted),
    "submit": lambda held: held.d.submit("s", "salad"),
    "ask": lambda held: held.d.ask("s", "salad"),
    "wait": lambda held: held.d.wait("accepted"),
    "wait for one that is complete": lambda held: held.d.wait("complete"),
    "cancel": lambda held: held.d.cancel("s"),
    "cancel_run": lambda held: held.d.cancel_run("queued"),
    "cancel_all": lambda held: held.d.cancel_all(),
    "clear_queue": lambda held: held.d.clear_queue("s"),
    "aclose": lambda held: held.d.aclose(),
    "subscribe": subscribing,
    "end_cursor": remembering,
    "iterate": iterating,
    "run.wait": lambda held: held.accepted.wait(),
    "await run": lambda held: awaited(held.accepted),
    "run.close": lambda held: held.accepted.close(),
    "turn.fold": lambda held: held.agent.turns[0].fold(),
}
OUTSIDE = {name: call for name, call in CALLS.items() if name != "turn.fold"}  # no turn outlives its loop


async def awaited(run: Run) -> RunComplete:
    return await run


async def called(call: Callable[[Held], Awaitable[Any]], held: Held) -> str:
    """Make the call, and report the result; one that would wait is not let."""
    try:
        async with asyncio.timeout(0):
            return f"returned {await call(held)!r}"
    except wrong_loop():
        return "WrongLoop"
    except BaseException as exc:
        return repr(exc)


def by_hand(call: Callable[[Held], Awaitable[Any]], held: Held) -> str:
    """Make the call where no loop runs."""
    steps = call(held).__await__()
    try:
        next(steps)
    except StopIteration as stop:
        return f"returned {stop.value!r}"
    except wrong_loop():
        return "WrongLoop"
    except BaseException as exc:
        return repr(exc)
    return "waits"


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("loop", [True, False], ids=["its own loop", "no loop"])
def test_a_call_from_another_thread_is_refused_and_changes_nothing(
    call: Callable[[Held], Awaitable[Any]], loop: bool
) -> None:
    def elsewhere(held: Held) -> str:
        return asyncio.run(called(call, held)) if loop else by_hand(call, held)

    async def scenario(life: Life) -> None:
        held = Held()
        await held.fill()
        before = held.state()
        assert await asyncio.to_thread(elsewhere, held) == "WrongLoop"
        assert held.state() == before
        await held.d.aclose()
        assert [(await run).cancelled for run in (held.active, held.queued, held.accepted)] == [True] * 3

    live(PLAIN, scenario)


@pytest.mark.parametrize("home", ["the main thread", "another thread"])
def test_looking_on_is_refused_in_every_thread_but_its_own(home: str) -> None:
    """Two threads, for their numbers may come in any order."""

    def look(d: Dispatcher) -> str:
        with pytest.raises(wrong_loop()):
            d.sessions()
        return "refused"

    async def living(looking: Callable[[Dispatcher], Awaitable[str]]) -> str:
        async with Dispatcher(Agent()) as d:
            return await looking(d)

    async def in_a_thread(d: Dispatcher) -> str:
        return await asyncio.to_thread(look, d)

    if home == "the main thread":
        assert asyncio.run(living(in_a_thread)) == "refused"
        return
    given: SimpleQueue[Dispatcher] = SimpleQueue()
    looked = threading.Event()

    async def until_looked(d: Dispatcher) -> str:
        given.put(d)
        await asyncio.to_thread(looked.wait)
        return "done"

    with ThreadPoolExecutor() as pool:
        living_there = pool.submit(lambda: asyncio.run(living(until_looked)))
        try:
            assert look(given.get()) == "refused"
        finally:
            looked.set()
        assert living_there.result() == "done"


@pytest.mark.parametrize("call", OUTSIDE.values(), ids=OUTSIDE)
def test_a_call_from_a_second_loop_is_refused_and_changes_nothing(
    call: Callable[[Held], Awaitable[Any]],
) -> None:
    """The first loop is gone, and the dispatcher was not closed."""

    def calls() -> None:
        held = Held()
        asyncio.run(held.fill())
        before = held.state()
        assert asyncio.run(called(call, held)) == "WrongLoop"
        assert held.state() == before

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # that it is dropped unclosed
        calls()
        gc.collect()


def test_the_way_in_from_a_thread(stack: Stack) -> None:
    """asyncio.run_coroutine_threadsafe; the context of the thread goes along."""

    async def scenario(life: Life) -> None:
        async def sees(turn: Turn) -> str:
            return request_id.get("none")

        d = life.open(sees)
        loop = asyncio.get_running_loop()

        def thread() -> RunComplete:
            request_id.set("the thread")
            return asyncio.run_coroutine_threadsafe(d.ask("s", "tea"), loop).result(HANG)

        assert outcome(await asyncio.to_thread(thread)) == ("the thread", None, False)

    live(stack, scenario)


# What a runner's threads write.


async def in_thread(write: Callable[[], None], *, raw: bool) -> None:
    """Have a thread do it, and wait; `raw` as one does who knows threads only."""
    if not raw:
        await asyncio.to_thread(write)
        return
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()

    def thread() -> None:
        write()
        loop.call_soon_threadsafe(over.set_result, None)

    threading.Thread(target=thread).start()
    await over


@pytest.mark.parametrize("raw", [False, True], ids=["to_thread", "thread"])
def test_what_a_thread_writes_arrives_in_order_and_complete(stack: Stack, raw: bool) -> None:
    pieces = [f"{n} " for n in range(500)]

    def write(turn: Turn) -> None:
        for piece in pieces:
            turn.write(piece)

    async def scenario(life: Life) -> None:
        async def streaming(turn: Turn) -> None:
            turn.write("from the loop: ")
            await in_thread(functools.partial(write, turn), raw=raw)
            turn.write("over")

        d = life.open(streaming)
        async with d.subscribe("s") as events:
            run = await d.submit("s", "tea")
            received = [event async for event in until_complete(events)]
        expected = ["from the loop: ", *pieces, "over"]
        assert outcome(await run) == ("".join(expected), None, False)
        assert [text_of(event) for event in received] == [*expected, "".join(expected)]
        assert [type(event) for event in received] == [Delta] * len(expected) + [RunComplete]

    live(stack, scenario)


async def until_complete(events: Subscription) -> AsyncIterator[Event]:
    async for event in events:
        yield event
        if isinstance(event, RunComplete):
            return


def test_what_a_thread_writes_arrives_while_the_loop_has_nothing_else_to_do(stack: Stack) -> None:
    """The thread waits for its piece to be read before it goes on: late delivery is a hang."""

    async def scenario(life: Life) -> None:
        read = threading.Semaphore(0)

        def stream(turn: Turn) -> None:
            for n in range(3):
                turn.write(f"{n}")
                read.acquire()

        d = life.open(lambda turn: asyncio.to_thread(stream, turn))
        async with d.subscribe("s") as events:
            run = await d.submit("s", "tea")
            try:
                async for _ in until_complete(events):
                    read.release()
            finally:
                read.release(3)
        assert outcome(await run) == ("012", None, False)

    live(stack, scenario)


def test_what_a_thread_wrote_before_it_was_joined_comes_before_what_follows(stack: Stack) -> None:
    """The runner blocks the loop while it waits, so that nothing can have been delivered meanwhile."""

    async def scenario(life: Life) -> None:
        async def joins(turn: Turn) -> None:
            for piece in ("b", "d"):
                turn.write(chr(ord(piece) - 1))
                thread = threading.Thread(target=turn.write, args=(piece,))
                thread.start()
                thread.join()

        d = life.open(joins)
        async with d.subscribe("s") as events:
            run = await d.submit("s", "tea")
            received = [text_of(event) async for event in until_complete(events)]
        assert outcome(await run) == ("abcd", None, False)
        assert received == ["a", "b", "c", "d", "abcd"]

    live(stack, scenario)


@pytest.mark.parametrize("cancelled", [False, True], ids=["finished", "cancelled"])
def test_what_a_thread_writes_is_refused_once_the_turn_is_over(stack: Stack, cancelled: bool) -> None:
    """A thread writes as fast as it can, and is left alone: what was taken is the text, and no more."""

    async def scenario(life: Life) -> None:
        taken: list[str] = []
        refused: list[BaseException] = []
        threads: list[threading.Thread] = []
        enough, forgotten = threading.Event(), threading.Event()

        def stream(turn: Turn) -> None:
            try:
                while not forgotten.is_set():
                    turn.write(piece := f"{len(taken)} ")
                    taken.append(piece)
                    if len(taken) == 50:
                        enough.set()
            except BaseException as exc:
                refused.append(exc)

        async def forsaking(turn: Turn) -> None:
            threads.append(thread := threading.Thread(target=stream, args=(turn,)))
            thread.start()
            while cancelled or not enough.is_set():
                await asyncio.sleep(0)

        d = life.open(forsaking)
        async with d.subscribe("s") as events:
            run = await life.begun(await d.submit("s", "tea"))
            while not enough.is_set():
                await asyncio.sleep(0)
            if cancelled:
                assert (await d.cancel("s")).runs == [run]
            complete = await run
            await asyncio.to_thread(threads[0].join, HANG)
            forgotten.set()
        assert complete.cancelled is cancelled
        assert [type(exc) for exc in refused] == [TurnEnded]
        assert complete.text == "".join(taken)
        received = [event async for event in events]
        assert received[-1] == complete
        assert events.dropped or "".join(map(text_of, received[:-1])) == complete.text
        assert run.state is State.COMPLETE

    live(stack, scenario)
