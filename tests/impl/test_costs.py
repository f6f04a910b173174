"""What things cost, counted in comparisons and in lines of Python, never in seconds."""

from __future__ import annotations

import asyncio
import math
import random
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

import pytest

from dispatching import Agent, active, echo, in_loop, steps
from turngate import Dispatcher, State
from turngate._core import Queue, RunRecord
from turngate._dispatcher import _SUBMITS_IN_A_ROW

SMALL = 250


class Seq(int):
    """A sequence that counts how often one is compared with another."""

    compared = 0

    def __lt__(self, other: int) -> bool:
        Seq.compared += 1
        return int(self) < int(other)

    def __gt__(self, other: int) -> bool:
        Seq.compared += 1
        return int(self) > int(other)

    def __add__(self, other: int) -> Seq:
        return Seq(int(self) + other)


class Cost:
    """Counts comparisons of sequences, and the lines that run in the dispatcher's modules."""

    def __init__(self) -> None:
        self.lines = 0
        self.compared = 0

    def __enter__(self) -> Self:
        self._before, self._compared = sys.gettrace(), Seq.compared
        sys.settrace(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)
        self.compared = Seq.compared - self._compared

    def _call(self, frame: FrameType, event: str, arg: Any) -> Any:
        name = frame.f_globals.get("__name__", "")
        return self._line if name.startswith("turngate.") or name == "heapq" else None

    def _line(self, frame: FrameType, event: str, arg: Any) -> Any:
        self.lines += 1
        return self._line


def grows_like_n_log_n(cost: Callable[[int], Cost]) -> None:
    """Four times as much costs somewhat more than four times, and nowhere near sixteen times."""
    small, large = cost(SMALL), cost(4 * SMALL)
    bound = 1.5 * 4 * math.log(4 * SMALL) / math.log(SMALL)
    assert large.lines <= bound * small.lines, (small.lines, large.lines)
    assert large.compared <= 40 + bound * small.compared, (small.compared, large.compared)


def test_what_is_quadratic_is_found() -> None:
    def quadratic(n: int) -> Cost:
        with Cost() as cost:
            for k in range(0, n, 5):
                sorted((Seq(each) for each in range(k)), reverse=True)
        return cost

    with pytest.raises(AssertionError):
        grows_like_n_log_n(quadratic)


# The queue.


def run(seq: int) -> RunRecord:
    return RunRecord("s", f"r{seq}", Seq(seq), "p")


ORDERS = {
    "in order": lambda n: [*range(n)],
    "reversed": lambda n: [*range(n)][::-1],
    "at random": lambda n: random.Random(n).sample(range(n), n),
    "from both ends": lambda n: [
        k for pair in zip(range(n // 2), range(n)[::-1], strict=False) for k in pair
    ],
}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_a_queue_costs_n_log_n_in_any_order_of_entry(order: Callable[[int], list[int]]) -> None:
    def filled_and_emptied(n: int) -> Cost:
        runs = [run(seq) for seq in range(n)]
        queue = Queue()
        with Cost() as cost:
            for k in order(n):
                queue.add(runs[k])
            taken = [queue.take_first() for _ in range(n)]
        assert taken == runs
        return cost

    grows_like_n_log_n(filled_and_emptied)


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_a_queue_is_swept_when_runs_are_taken_out_of_its_middle(order: Callable[[int], list[int]]) -> None:
    def taken_out(n: int) -> Cost:
        runs = [run(seq) for seq in range(n)]
        queue = Queue()
        for each in runs:
            queue.add(each)
        left = set(runs)
        with Cost() as cost:
            for k in order(n):
                queue.take(runs[k])
                left.remove(runs[k])
                assert len(queue._heap) <= 2 * len(queue) + 1
                assert not left or queue.first() in left
        assert (len(queue), queue._heap) == (0, [])
        return cost

    grows_like_n_log_n(taken_out)


@pytest.mark.parametrize("seed", range(20))
def test_a_queue_does_what_a_sorted_list_does(seed: int) -> None:
    rng = random.Random(seed)
    queue, expected = Queue(), list[RunRecord]()
    for seq in rng.sample(range(300), 300):
        if not expected or rng.random() < 0.6:
            expected.append(run(seq))
            expected.sort(key=lambda each: int(each.seq))
            queue.add(expected[[each.seq for each in expected].index(seq)])
        elif rng.random() < 0.5:
            assert queue.take_first() is expected.pop(0)
        else:
            queue.take(expected.pop(rng.randrange(len(expected))))
        assert queue.in_order() == expected
        assert len(queue) == len(expected)
        if expected:
            assert queue.first() is expected[0]
        assert len(queue._heap) <= 2 * len(queue) + 1


# The dispatcher.


def cost_of(main: Callable[[Dispatcher, Agent, int], Any], n: int) -> Cost:
    async def measured() -> Cost:
        agent = Agent()
        async with Dispatcher(agent) as d:
            d._seq = Seq(0)
            cost: Cost = await main(d, agent, n)
        return cost

    return asyncio.run(measured())


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_entering_costs_n_log_n_in_any_order(order: Callable[[int], list[int]]) -> None:
    async def entering(d: Dispatcher, agent: Agent, n: int) -> Cost:
        await active(d, "s", "lead")
        runs = [await d.accept("s", f"{k}") for k in range(n)]
        with Cost() as cost:
            for k in order(n):
                assert await d.enter(runs[k]) is State.QUEUED
        assert d.queued("s") == runs
        with cost:
            assert await agent.turns[0].fold() == runs
        return cost

    grows_like_n_log_n(lambda n: cost_of(entering, n))


@pytest.mark.parametrize("enters", ["never", "at once", "later"])
def test_interrupts_in_a_row_cost_n_log_n(enters: str) -> None:
    async def interrupting(d: Dispatcher, agent: Agent, n: int) -> Cost:
        await active(d, "s", "lead")
        for k in range(n // 2):
            await d.enter(await d.accept("s", f"queued {k}"))
        runs = []
        with Cost() as cost:
            for k in range(n):
                runs.append(await d.accept("s", f"{k}", when_busy="interrupt"))
                if enters == "at once":
                    await d.enter(runs[-1])
            if enters == "later":
                for each in runs:
                    await d.enter(each)
        last = runs[-1]
        assert last.state is (State.ACCEPTED if enters == "never" else State.QUEUED)
        for each in runs:
            await each.close()
        return cost

    grows_like_n_log_n(lambda n: cost_of(interrupting, n))


def test_cancelling_queued_runs_one_by_one_costs_n_log_n() -> None:
    async def cancelling(d: Dispatcher, agent: Agent, n: int) -> Cost:
        await active(d, "s", "lead")
        runs = [await d.accept("s", f"{k}") for k in range(n)]
        for each in runs:
            await d.enter(each)
        random.Random(n).shuffle(runs)
        with Cost() as cost:
            for each in runs:
                assert (await d.cancel_run(each.run_id)).runs == [each]
        return cost

    grows_like_n_log_n(lambda n: cost_of(cancelling, n))


# Letting others run.


@in_loop
async def test_a_flood_of_submits_lets_other_tasks_run() -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    async with Dispatcher(echo) as d:
        ticking = asyncio.create_task(tick())
        await asyncio.sleep(0)
        runs = []
        most = 0
        for n in range(20 * _SUBMITS_IN_A_ROW):
            runs.append(await d.submit(f"s{n % 7}", "p", when_busy="queue"))
            most = max(most, d._sessions.entering)
        assert ticks >= 19
        assert most == _SUBMITS_IN_A_ROW
        for each in runs:
            assert (await each).text == "p"
        ticking.cancel()
        assert d._sessions.entering == 0


@in_loop
async def test_some_submits_in_a_row_never_wait() -> None:
    async with Dispatcher(echo) as d:
        for _ in range(_SUBMITS_IN_A_ROW):
            submitting = d.submit("s", "p")
            with pytest.raises(StopIteration):
                submitting.send(None)
        last = d.submit("s", "p")
        assert last.send(None) is None
        last.close()
        await steps()


@in_loop
async def test_a_caller_that_is_cancelled_inside_submit_leaves_no_run_behind() -> None:
    async with Dispatcher(echo) as d:
        for _ in range(_SUBMITS_IN_A_ROW):
            await d.submit("s", "p")
        seq = d._seq
        caller = asyncio.create_task(d.submit("t", "p", run_id="late"))
        asking = asyncio.create_task(d.ask("t", "p", run_id="late too"))
        d._sessions.entering += 2 * _SUBMITS_IN_A_ROW  # as if the flood went on
        await asyncio.sleep(0)
        assert not caller.done()
        assert caller.cancel()
        assert asking.cancel()
        await steps()
        d._sessions.entering -= 2 * _SUBMITS_IN_A_ROW
        assert caller.cancelled()
        assert asking.cancelled()
        assert d._seq == seq
        assert "t" not in d._sessions.cores
        assert not {"late", "late too"} & {*d._sessions.runs}
        assert (await d.ask("t", "p", run_id="late")).text == "p"
