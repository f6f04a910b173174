"""What one run costs, next to doing without a dispatcher: CPU time, paired rounds, median of the ratios.

The work is 200 sessions of 50 prompts and a runner that gives way to the loop once, in two shapes: waves (one
prompt per session in flight, wait, next) and flood (everything accepted up front). The floor is a bare task
of the same body. On a shared machine a processor is slower or faster from one moment to the next, so the
floor is measured right beside each contender: before each of its waves, and before and after its flood. The
garbage collector is on, as it is where people run this. What a dispatcher keeps (messages, completions) is
let go after the clock has stopped: a server does not throw its dispatcher away.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

import aiojobs

from turngate import Dispatcher, Turn

SESSIONS = [f"session-{n}" for n in range(200)]
PROMPTS = 50
RUNS = len(SESSIONS) * PROMPTS


async def body(turn: Turn | None = None) -> None:
    """Give way to the loop once."""
    await asyncio.sleep(0)


class Contender(Protocol):
    """A way to run one prompt at a time per session."""

    async def run(self, prompts: int) -> None:
        """Take this many prompts per session at once, and wait for them all."""

    async def close(self) -> None:
        """Leave nothing behind."""


class Floor:
    """A bare task per run."""

    async def run(self, prompts: int) -> None:
        """Start the tasks, then wait for them."""
        tasks = [asyncio.create_task(body()) for _ in range(prompts) for _ in SESSIONS]
        for task in tasks:
            await task

    async def close(self) -> None:
        """Nothing is left to stop."""


class Turngate:
    """Accept, enter, turn, settle, RunComplete."""

    def __init__(self) -> None:
        self._dispatcher = Dispatcher(body)

    async def run(self, prompts: int) -> None:
        """Accept everything, then enter, then wait."""
        d = self._dispatcher
        runs = [await d.accept(session, "prompt") for _ in range(prompts) for session in SESSIONS]
        for run in runs:
            await d.enter(run)
        for run in runs:
            await run.wait()

    async def close(self) -> None:
        """Close the dispatcher."""
        await self._dispatcher.aclose()


class QueueWorkers:
    """Per session an asyncio.Queue and a worker, which starts a task per run."""

    def __init__(self) -> None:
        self._queues: dict[str, asyncio.Queue[asyncio.Future[None]]] = {s: asyncio.Queue() for s in SESSIONS}
        self._workers = [asyncio.create_task(self._work(queue)) for queue in self._queues.values()]

    async def _work(self, queue: asyncio.Queue[asyncio.Future[None]]) -> None:
        while True:
            done = await queue.get()
            await asyncio.create_task(body())
            done.set_result(None)

    def _submit(self, session: str) -> asyncio.Future[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues[session].put_nowait(done)
        return done

    async def run(self, prompts: int) -> None:
        """Queue everything, then wait."""
        for done in [self._submit(session) for _ in range(prompts) for session in SESSIONS]:
            await done

    async def close(self) -> None:
        """Stop the workers."""
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)


class Locks:
    """Per session an asyncio.Lock, which a task per run takes."""

    def __init__(self) -> None:
        self._locks = {session: asyncio.Lock() for session in SESSIONS}

    async def _run(self, lock: asyncio.Lock) -> None:
        async with lock:
            await body()

    async def run(self, prompts: int) -> None:
        """Start the tasks, then wait for them."""
        locks = self._locks
        for task in [
            asyncio.create_task(self._run(locks[session])) for _ in range(prompts) for session in SESSIONS
        ]:
            await task

    async def close(self) -> None:
        """Nothing is left to stop."""


class Aiojobs:
    """Per session an aiojobs scheduler with a limit of one."""

    def __init__(self) -> None:
        self._schedulers = [aiojobs.Scheduler(limit=1, pending_limit=0) for _ in SESSIONS]

    async def run(self, prompts: int) -> None:
        """Spawn the jobs, then wait for them."""
        jobs = [await scheduler.spawn(body()) for _ in range(prompts) for scheduler in self._schedulers]
        for job in jobs:
            await job.wait()

    async def close(self) -> None:
        """Close the schedulers."""
        for scheduler in self._schedulers:
            await scheduler.close()


CONTENDERS: dict[str, Callable[[], Contender]] = {
    "bare task (the floor)": Floor,
    "turngate": Turngate,
    "asyncio.Queue worker": QueueWorkers,
    "asyncio.Lock": Locks,
    "aiojobs, limit 1": Aiojobs,
}


async def cpu(work: Awaitable[object]) -> float:
    """Measure the seconds of CPU time that some work takes."""
    started = time.process_time()
    await work
    return time.process_time() - started


async def in_waves(make: Callable[[], Contender]) -> tuple[float, float]:
    """Measure a contender and the floor, in seconds, wave by wave."""
    contender, floor = make(), Floor()
    taken = beside = 0.0
    for _ in range(PROMPTS):
        beside += await cpu(floor.run(1))
        taken += await cpu(contender.run(1))
    await contender.close()
    return taken, beside


async def in_a_flood(make: Callable[[], Contender]) -> tuple[float, float]:
    """Measure a contender and the floor, in seconds, each at once."""
    contender, floor = make(), Floor()
    beside = await cpu(floor.run(PROMPTS))
    taken = await cpu(contender.run(PROMPTS))
    beside += await cpu(floor.run(PROMPTS))
    await contender.close()
    return taken, beside / 2


async def collected(measured: Awaitable[tuple[float, float]]) -> tuple[float, float]:
    """Measure, with no garbage of earlier measurements left to collect."""
    gc.collect()
    return await measured


async def compare(rounds: int) -> None:
    """Print what each contender costs, and its ratio to the floor beside it."""
    print(
        f"{'':24}{'waves':>20}{'flood':>20}\n{'':24}{'µs / run':>12}{'ratio':>8}{'µs / run':>12}{'ratio':>8}"
    )
    shapes = (in_waves, in_a_flood)
    found: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for _ in range(rounds):
        for shape, measure in enumerate(shapes):
            for name, make in CONTENDERS.items():
                found.setdefault((name, shape), []).append(await collected(measure(make)))
    for name in CONTENDERS:
        line = f"{name:24}"
        for shape in range(len(shapes)):
            each = found[name, shape]
            taken = statistics.median(taken for taken, _ in each) / RUNS * 1e6
            line += f"{taken:12.1f}{statistics.median(taken / beside for taken, beside in each):8.2f}"
        print(line)


async def per_run(work: Awaitable[object], runs: int) -> float:
    """Measure the microseconds of CPU time per run."""
    gc.collect()
    return await cpu(work) / runs * 1e6


async def queue_of(length: int) -> None:
    """Run as many prompts as the queue of one session holds."""
    async with Dispatcher(body) as d:
        runs = [await d.accept("one session", "prompt", when_busy="queue") for _ in range(length)]
        for run in runs:
            await d.enter(run)
        await runs[-1].wait()


async def queue_in_any_order(length: int) -> None:
    """Enter as many prompts as the queue of one session holds, in random order."""
    async with Dispatcher(body) as d:
        runs = [await d.accept("one session", "prompt", when_busy="queue") for _ in range(length)]
        for run in random.Random(1).sample(runs, length):  # noqa: S311 - the same order each time
            await d.enter(run)
        await d.clear_queue("one session")


async def interrupt_in_a_row(length: int) -> None:
    """Accept prompts that interrupt all that came before, without letting anything run."""
    async with Dispatcher(body) as d:
        for _ in range(length):
            await d.accept("one session", "prompt", when_busy="interrupt")


async def accepted(length: int) -> None:
    """Accept prompts, each in a session of its own, and do nothing else."""
    async with Dispatcher(body) as d:
        for n in range(length):
            await d.accept(f"session {n}", "prompt")


async def cancel_in_the_middle_of(length: int) -> None:
    """Cancel every other run of a full queue one by one."""
    async with Dispatcher(body) as d:
        runs = [await d.accept("one session", "prompt") for _ in range(length)]
        for run in runs:
            await d.enter(run)
        for run in runs[1::2]:
            await d.cancel_run(run.run_id)
        await runs[0].wait()


async def prompts_in(d: Dispatcher, count: int) -> None:
    """Run prompts one after the other."""
    for _ in range(count):
        await d.ask("one session", "prompt")


async def after(sessions: int, kept: int) -> float:
    """Measure prompts in a dispatcher that has seen that many sessions and keeps that many completions."""
    async with Dispatcher(body, completions_kept=kept) as d:
        for n in range(sessions):
            await d.ask(f"quiet-{n}", "prompt")
        return await per_run(prompts_in(d, 1_000), 1_000)


async def scale(rounds: int) -> None:
    """Print what a run costs small and large: the two columns should say the same."""

    async def least(measure: Callable[..., Awaitable[float]], *of: int) -> float:
        return min([await measure(*of) for _ in range(rounds)])

    async def queued(length: int) -> float:
        return await per_run(queue_of(length), length)

    async def cancelled(length: int) -> float:
        return await per_run(cancel_in_the_middle_of(length), length)

    async def shuffled(length: int) -> float:
        return await per_run(queue_in_any_order(length), length)

    async def interrupting(length: int) -> float:
        return await per_run(interrupt_in_a_row(length), length)

    async def only_accepted(length: int) -> float:
        return await per_run(accepted(length), length)

    print(f"\n{'µs / run, least of the rounds':44}{'small':>12}{'large':>12}")
    for label, measure, small, large in (
        ("queued in one session: 100, 10,000", queued, (100,), (10_000,)),
        ("cancelled in the queue: 100, 10,000", cancelled, (100,), (10_000,)),
        ("entered in random order: 100, 10,000", shuffled, (100,), (10_000,)),
        ("interrupting, in a row: 100, 10,000", interrupting, (100,), (10_000,)),
        ("accepted, and released at the end: 100, 10,000", only_accepted, (100,), (10_000,)),
        ("quiet sessions: 10, 20,000", after, (10, 0), (20_000, 0)),
        ("completions kept: 10, 20,000", after, (10, 10), (20_000, 100_000)),
    ):
        print(f"{label:44}{await least(measure, *small):12.1f}{await least(measure, *large):12.1f}")


async def main(rounds: int) -> None:
    """Compare, then scale."""
    print(f"{RUNS:,} runs, {rounds} rounds, Python {sys.version.split()[0]}\n")
    await compare(rounds)
    await scale(min(rounds, 5))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=15, help="how often to measure (default 15)")
    asyncio.run(main(parser.parse_args().rounds))
