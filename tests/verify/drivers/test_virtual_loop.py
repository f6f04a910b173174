"""The virtual loop: what it runs, when, and what it tells of."""

from __future__ import annotations

import asyncio
import gc

import pytest

from turngate_verify.world.virtual_loop import Suspended, VirtualLoop, Waits


def test_nothing_runs_until_the_driver_chooses_it() -> None:
    loop, ran = VirtualLoop(), list[int]()
    for number in range(3):
        loop.call_soon(ran.append, number)
    assert (ran, len(loop.ready)) == ([], 3)
    assert loop.step()
    assert ran == [0]
    assert loop.step(1)
    assert ran == [0, 2]
    loop.settle()
    assert ran == [0, 2, 1]
    assert not loop.step()


def test_a_cancelled_callback_takes_a_step_and_does_nothing_unless_tidied_away() -> None:
    loop, ran = VirtualLoop(), list[int]()
    loop.call_soon(ran.append, 0).cancel()
    loop.call_soon(ran.append, 1)
    assert loop.step()
    assert ran == []
    loop.call_soon(ran.append, 2).cancel()
    loop.call_later(1, ran.append, 3).cancel()
    loop.tidy()
    assert (len(loop.ready), loop.timers) == (1, [])
    loop.settle()
    assert ran == [1]


def test_time_stands_still_until_it_is_advanced() -> None:
    loop, ran = VirtualLoop(), list[str]()
    loop.call_later(2, ran.append, "second")
    loop.call_later(1, ran.append, "first")
    loop.call_later(1, ran.append, "never").cancel()
    loop.call_later(9, ran.append, "later")
    loop.settle()
    assert (loop.time(), ran) == (0, [])
    loop.advance(2)
    assert (loop.time(), ran, len(loop.timers)) == (2, [], 1)
    loop.settle()
    assert ran == ["first", "second"]


def test_a_loop_that_never_rests_is_noticed() -> None:
    loop = VirtualLoop()

    def again() -> None:
        loop.call_soon(again)

    again()
    with pytest.raises(AssertionError, match="still busy after 100 callbacks"):
        loop.settle(100)


def test_tasks_have_names_that_are_the_same_in_the_same_run() -> None:
    loop = VirtualLoop()

    async def work() -> str:
        await asyncio.sleep(0)
        return "done"

    tasks = [loop.create_task(work()), loop.create_task(work(), name="named")]
    assert [task.get_name() for task in loop.tasks] == ["task 0", "named"]
    loop.settle()
    assert [task.result() for task in tasks] == ["done", "done"]


def test_a_call_that_must_not_wait_is_reported_when_it_does() -> None:
    loop = VirtualLoop()
    closed = []

    async def waits() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            closed.append(True)

    async def returns() -> int:
        return 3

    assert loop.call(returns()) == 3
    with pytest.raises(Suspended, match="waits, and should not"):
        loop.call(waits())
    assert closed == [True]
    with pytest.raises(RuntimeError, match="no running event loop"):
        asyncio.get_running_loop()


def test_a_call_that_may_wait_goes_on_in_a_task() -> None:
    loop, gate = VirtualLoop(), VirtualLoop().create_future()

    async def returns() -> int:
        return 3

    async def lets_others_go_first() -> int:
        await asyncio.sleep(0)
        return 4

    async def waits(door: asyncio.Future[int]) -> int:
        try:
            return await door
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            return -1

    assert (loop.begin(returns(), "returns"), loop.tasks) == (3, [])

    with pytest.raises(Waits) as short:
        loop.begin(lets_others_go_first(), "lets others go first")
    assert loop.step()
    assert short.value.task.result() == 4

    doors = [loop.create_future() for _ in range(3)]
    waiting = []
    for number, door in enumerate(doors):
        with pytest.raises(Waits, match=f"waiter {number} waits") as long:
            loop.begin(waits(door), f"waiter {number}")
        waiting.append(long.value.task)
    loop.settle()
    assert [task.done() for task in waiting] == [False] * 3
    doors[0].set_result(7)
    waiting[1].cancel()
    doors[2].set_exception(OSError("no"))
    loop.settle()
    assert [task.result() for task in waiting[:2]] == [7, -1]
    assert str(waiting[2].exception()) == "no"
    gate.cancel()


def test_an_unhandled_problem_is_kept() -> None:
    loop = VirtualLoop()

    async def fails() -> None:
        raise OSError("unseen")

    loop.call_soon(int, "no number")
    loop.create_task(fails())
    loop.settle()
    assert [str(problem["exception"]) for problem in loop.problems] == [
        "invalid literal for int() with base 10: 'no number'"
    ]
    loop.tasks.clear()
    gc.collect()
    assert loop.problems[1]["message"] == "Task exception was never retrieved"


def test_what_is_to_end_the_process_comes_out_of_a_step() -> None:
    loop = VirtualLoop()

    def interrupt() -> None:
        raise KeyboardInterrupt

    loop.call_soon(interrupt)
    loop.call_soon(loop.problems.append, {})
    with pytest.raises(KeyboardInterrupt):
        loop.settle()
    assert len(loop.ready) == 1
    with pytest.raises(RuntimeError, match="no running event loop"):
        asyncio.get_running_loop()


def test_a_closed_loop_makes_no_task() -> None:
    loop = VirtualLoop()
    loop.close()

    async def never() -> None: ...

    coroutine = never()
    with pytest.raises(RuntimeError, match="Event loop is closed"):
        loop.create_task(coroutine)
    coroutine.close()
    assert (loop.tasks, loop.problems) == ([], [])
