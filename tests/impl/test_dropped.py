"""A dispatcher that is dropped unclosed, and a loop that seems to come to its end and goes on."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from dispatching import HANG, OUTSIDE, Agent, SlowMessages, made_for, outcome, steps
from turngate import Dispatcher, MemoryMessages, Message, Run, State, Turn
from turngate._loop import _SECOND_LOOK, HomeLoop
from turngate_verify.world.virtual_loop import VirtualLoop


def run_and_drop(main: Any, caplog: pytest.LogCaptureFixture, agent: Agent, dropped: int = 1) -> list[str]:
    """Run main, which leaves a dispatcher unclosed: one ResourceWarning, and no complaint of the loop's.

    Returns the prompts whose runner was called.
    """

    def run_and_collect() -> list[str]:
        asyncio.run(main())
        prompts = agent.prompts
        agent.turns.clear()
        gc.collect()
        return prompts

    with pytest.warns(ResourceWarning, match="dropped without aclose") as warned:
        prompts = run_and_collect()
    assert len(warned) == dropped
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []
    return prompts


class Leisurely(MemoryMessages):
    """A store that takes many steps of the loop."""

    async def put(self, messages: Sequence[Message]) -> None:
        await steps(50)
        await super().put(messages)


# At the end of `asyncio.run`.


@pytest.mark.parametrize("begun", [True, False], ids=["begun", "not begun"])
def test_no_queued_runner_starts_while_the_loop_is_torn_down(
    begun: bool, caplog: pytest.LogCaptureFixture
) -> None:
    agent = Agent()
    completes: list[Any] = []

    async def main() -> None:
        d = Dispatcher(agent)
        await d.submit("s", "active", on_complete=completes.append)
        await d.submit("s", "queued", when_busy="queue")
        await d.submit("t", "elsewhere")
        await d.submit("t", "queued")
        if begun:
            await steps()

    assert run_and_drop(main, caplog, agent) == (["active", "elsewhere"] if begun else [])
    assert [outcome(complete) for complete in completes] == [("", OUTSIDE, False)]


@pytest.mark.parametrize("begun", [True, False], ids=["begun", "not begun"])
def test_no_queued_runner_starts_though_a_thread_keeps_the_loop_from_its_end(
    begun: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = Agent()
    looked_often = threading.Event()
    looks = 0
    monkeypatch.setattr("turngate._loop._SECOND_LOOK", 0.001)

    class Watched(HomeLoop):
        def _look_again(self, start: Callable[[], None], steps: int = 2) -> None:
            nonlocal looks
            super()._look_again(start, steps)
            looks += 1
            if looks == 5:
                looked_often.set()

    async def main() -> None:
        monkeypatch.setattr("turngate._dispatcher.HomeLoop", Watched)
        d = Dispatcher(agent)
        asyncio.get_running_loop().run_in_executor(None, looked_often.wait, HANG)
        await d.submit("s", "active")
        await d.submit("s", "queued", when_busy="queue")
        if begun:
            await steps()

    assert run_and_drop(main, caplog, agent) == (["active"] if begun else [])
    assert looks >= 5


def test_no_queued_runner_starts_though_other_tasks_take_their_time_to_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    agent = Agent()

    async def cleans_up() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await asyncio.sleep(0.01)

    async def main() -> None:
        d = Dispatcher(agent)
        tasks.append(asyncio.create_task(cleans_up()))
        await d.submit("s", "active")
        await d.submit("s", "queued", when_busy="queue")
        await steps()

    tasks: list[asyncio.Task[None]] = []
    assert run_and_drop(main, caplog, agent) == ["active"]


def test_a_turn_that_is_written_while_the_loop_is_torn_down_is_written(
    caplog: pytest.LogCaptureFixture,
) -> None:
    agent, store = Agent(), Leisurely()

    async def main() -> None:
        d = Dispatcher(agent, messages=store)
        await d.submit("s", "active")
        await d.submit("s", "queued", when_busy="queue")
        await steps()

    assert run_and_drop(main, caplog, agent) == ["active"]
    assert [message.text for message in asyncio.run(store.list("s"))] == ["active", ""]


def test_no_queued_runner_starts_behind_a_runner_that_swallows_the_end_of_the_loop(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Swallowing(Agent):
        async def __call__(self, turn: Turn) -> str:
            with contextlib.suppress(asyncio.CancelledError):
                await super().__call__(turn)
            return "as far as it got"

    agent = Swallowing()
    completes: list[Any] = []

    async def main() -> None:
        d = Dispatcher(agent)
        await d.submit("s", "active", on_complete=completes.append)
        await d.submit("s", "queued", when_busy="queue")
        await steps()

    assert run_and_drop(main, caplog, agent) == ["active"]
    assert [outcome(complete) for complete in completes] == [("as far as it got", None, False)]


def test_no_queued_runner_starts_behind_a_turn_that_was_being_written_when_the_loop_ended(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Cancelled(MemoryMessages):
        async def put(self, messages: Sequence[Message]) -> None:
            try:
                await asyncio.sleep(0 if cancelled else HANG)
            except asyncio.CancelledError:
                cancelled.append(True)
                raise

    agent, cancelled = Agent(), list[bool]()

    async def main() -> None:
        d = Dispatcher(agent, messages=Cancelled(), settle_timeout=HANG)
        run = await d.submit("s", "active")
        await d.submit("s", "queued", when_busy="queue")
        await steps()
        agent.finish(run)
        await steps()

    assert run_and_drop(main, caplog, agent) == ["active"]
    assert cancelled


def test_no_queued_runner_of_two_dispatchers_starts_while_the_loop_is_torn_down(
    caplog: pytest.LogCaptureFixture,
) -> None:
    agent = Agent()

    async def main() -> None:
        for store in (Leisurely(), None):
            d = Dispatcher(agent, messages=store)
            await d.submit("s", "active")
            await d.submit("s", "queued", when_busy="queue")
        await steps()

    assert run_and_drop(main, caplog, agent, dropped=2) == ["active", "active"]


def test_a_turn_that_the_end_of_the_loop_cut_short_is_warned_of_though_nothing_is_left(
    caplog: pytest.LogCaptureFixture,
) -> None:
    agent = Agent()

    async def main() -> None:
        await Dispatcher(agent).submit("s", "active")
        await steps()

    assert run_and_drop(main, caplog, agent) == ["active"]


@pytest.mark.parametrize("turns_limit", [None, 1])
def test_turns_that_are_collected_with_their_dispatcher_and_its_loop_complete(
    turns_limit: int | None,
) -> None:
    told: list[str] = []

    async def never(turn: Turn) -> None:
        await asyncio.get_running_loop().create_future()

    async def main() -> None:
        d = Dispatcher(never, turns_limit=turns_limit, record=lambda line: told.append(line["event"]))
        for session in "st":
            run = await d.submit(session, "hello", on_complete=lambda complete: told.append("hook"))
            run.add_done_callback(lambda complete: told.append("callback"))
        await steps(3)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # not in the stubs

    def run_and_collect() -> None:
        loop = asyncio.new_event_loop()
        loop.run_until_complete(main())
        loop.close()
        gc.collect()

    with pytest.warns(ResourceWarning, match="dropped without aclose"):
        run_and_collect()
    assert [told.count(each) for each in ("complete", "hook", "callback")] == [2, 2, 2]


def test_a_dispatcher_with_nothing_in_flight_may_be_dropped(recwarn: pytest.WarningsRecorder) -> None:
    async def main() -> None:
        agent = Agent()
        d = Dispatcher(agent)
        run = await d.submit("s", "p")
        await steps()
        agent.finish(run)
        await run

    asyncio.run(main())
    gc.collect()
    assert list(recwarn) == []


def test_a_dispatcher_that_could_not_be_made_is_no_dropped_one(recwarn: pytest.WarningsRecorder) -> None:
    with pytest.raises(ValueError, match="queue_limit"):
        Dispatcher(Agent(), queue_limit=0)
    gc.collect()
    assert list(recwarn) == []


# On a loop that lives on.


class World:
    """One active and one queued run on a loop whose time the test tells."""

    def __init__(self, **options: Any) -> None:
        self.loop = VirtualLoop()
        self.agent = Agent()
        self.d = Dispatcher(self.agent, **options)
        self.run, self.behind = self.submit("p"), self.submit("q")

    def submit(self, prompt: str) -> Run:
        return self.loop.call(self.d.submit("s", prompt, when_busy="queue"))

    def cancel_from_outside(self) -> None:
        (turn,) = self.d._sessions.turns.values()
        task = turn.task or made_for(turn)
        assert task is not None
        task.cancel()
        self.loop.settle()

    def wait(self, seconds: float) -> None:
        self.loop.advance(seconds)
        self.loop.settle()

    def end(self) -> None:
        """What was held back goes on like any other, and dropping it warns of nothing."""
        self.agent.finish(self.behind)
        self.loop.settle()
        assert self.behind.complete is not None
        assert outcome(self.behind.complete) == ("done", None, False)
        assert self.loop.problems == []
        assert not self.d._loop.cut_short


@pytest.mark.parametrize("begun", [True, False], ids=["begun", "not begun"])
def test_the_queue_goes_on_at_once_where_other_tasks_live(begun: bool) -> None:
    w = World()
    other = w.loop.create_task(asyncio.sleep(10))
    w.loop.step()
    w.loop.step()
    if begun:
        w.loop.settle()
    assert (w.agent.prompts == ["p"]) is begun
    w.cancel_from_outside()
    assert w.run.complete is not None
    assert outcome(w.run.complete) == ("", OUTSIDE, False)
    assert w.agent.prompts[-1] == "q"
    w.end()
    w.wait(10)
    assert other.done()


@pytest.mark.parametrize("begun", [True, False], ids=["begun", "not begun"])
def test_the_queue_goes_on_after_a_second_look_where_no_other_task_lives(begun: bool) -> None:
    w = World()
    w.loop.step()
    w.loop.step()
    if begun:
        w.loop.settle()
    w.cancel_from_outside()
    assert w.run.complete is not None
    assert outcome(w.run.complete) == ("", OUTSIDE, False)
    assert w.behind.state is State.ACTIVE
    w.wait(_SECOND_LOOK - 0.1)
    assert "q" not in w.agent.prompts
    w.wait(0.2)
    assert w.agent.prompts[-1] == "q"
    w.end()


@pytest.mark.parametrize("steps_without_a_task", [0, 1, 2])
def test_a_loop_that_is_between_its_last_tasks_does_not_live_on(steps_without_a_task: int) -> None:
    async def shutdown_default_executor() -> None:
        await asyncio.sleep(5 * _SECOND_LOOK)

    w = World()
    w.loop.settle()
    w.cancel_from_outside()
    w.loop.advance(_SECOND_LOOK)
    for _ in range(steps_without_a_task):
        assert w.loop.step()
    last = w.loop.create_task(shutdown_default_executor())
    w.loop.settle()
    w.wait(4 * _SECOND_LOOK)
    assert w.agent.prompts == ["p"]
    w.wait(2 * _SECOND_LOOK)
    assert last.done()
    w.wait(_SECOND_LOOK)
    assert w.agent.prompts == ["p", "q"]
    w.end()


def test_what_is_held_back_can_be_cancelled_and_its_runner_is_not_called() -> None:
    w = World()
    w.loop.settle()
    w.cancel_from_outside()
    assert w.loop.call(w.d.cancel("s")).runs == [w.behind]
    after = w.submit("after")
    w.wait(_SECOND_LOOK)
    assert w.behind.complete is not None
    assert outcome(w.behind.complete) == ("", None, True)
    assert w.agent.prompts == ["p", "after"]
    w.agent.finish(after)
    w.loop.settle()
    assert w.loop.problems == []


def test_a_close_waits_for_what_is_held_back() -> None:
    w = World()
    w.loop.settle()
    w.cancel_from_outside()
    closing = w.loop.create_task(w.d.aclose())
    w.loop.settle()
    assert not closing.done()
    w.wait(_SECOND_LOOK)
    assert closing.done()
    assert w.behind.complete is not None
    assert outcome(w.behind.complete) == ("", None, True)
    assert w.agent.prompts == ["p"]


def test_a_loop_that_turns_out_to_live_while_the_turn_is_written_holds_nothing_back() -> None:
    store = SlowMessages()
    w = World(messages=store)
    w.loop.settle()
    w.cancel_from_outside()
    other = w.loop.create_task(asyncio.sleep(10))
    w.loop.settle()
    store.gates[0].set_result(None)
    w.loop.settle()
    assert w.agent.prompts == ["p", "q"]
    w.agent.finish(w.behind)
    w.loop.settle()
    store.gates[1].set_result(None)
    w.loop.settle()
    assert w.behind.complete is not None
    assert not w.d._loop.cut_short
    w.wait(10)
    assert other.done()


def test_a_cancel_of_the_dispatchers_own_is_no_end_of_the_loop() -> None:
    w = World()
    w.loop.settle()
    assert w.loop.call(w.d.cancel_run(w.run.run_id)).runs == [w.run]
    w.loop.settle()
    assert w.agent.prompts == ["p", "q"]
    w.end()


def test_the_log_says_nothing_of_a_cancel_from_outside(caplog: pytest.LogCaptureFixture) -> None:
    w = World()
    w.loop.settle()
    w.cancel_from_outside()
    w.wait(_SECOND_LOOK)
    w.end()
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_the_warning_names_the_place_where_the_dispatcher_is_dropped() -> None:
    held: list[Dispatcher] = []

    async def main() -> None:
        held.append(Dispatcher(Agent()))
        await held[0].accept("s", "p")

    asyncio.run(main())
    dropping = compile("held.clear()\ngc.collect()", "<where it is dropped>", "exec")
    with pytest.warns(ResourceWarning, match="dropped without aclose") as warned:
        exec(dropping, {"held": held, "gc": gc})  # so that the place has a name of its own
    assert [each.filename for each in warned] == ["<where it is dropped>"]
