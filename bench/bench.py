"""What one run costs, next to doing without a dispatcher: CPU time, paired rounds, median of the ratios.

The work is 200 sessions of 50 prompts and a runner that gives way to the loop once, in two shapes: waves (one
prompt per session in flight, wait, next) and flood (everything accepted up front). The floor is a bare task
of the same body. As with `timeit`, the garbage collector is off while the clock runs, and what a dispatcher
keeps (messages, completions) is let go after it has stopped: a server does not throw its dispatcher away.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import sys
import time
from collections.abc import Awaitable, Callable

import aiojobs

from turngate import Dispatcher, Turn

SESSIONS = [f"session-{n}" for n in range(200)]
PROMPTS = 50
RUNS = len(SESSIONS) * PROMPTS


async def body(turn: Turn | None = None) -> None:
    """Give way to the loop once."""
    await asyncio.sleep(0)


async def floor_waves() -> None:
    """Run a bare task per run."""
    for _ in range(PROMPTS):
        tasks = [asyncio.create_task(body()) for _ in SESSIONS]
        for task in tasks:
            await task


async def floor_flood() -> None:
    """Run a bare task per run."""
    tasks = [asyncio.create_task(body()) for _ in range(RUNS)]
    for task in tasks:
        await task


async def turngate_waves() -> Dispatcher:
    """Accept, enter, turn, settle, RunComplete."""
    async with Dispatcher(body) as d:
        for _ in range(PROMPTS):
            runs = []
            for session in SESSIONS:
                run = await d.accept(session, "prompt")
                await d.enter(run)
                runs.append(run)
            for run in runs:
                await run.wait()
    return d


async def turngate_flood() -> Dispatcher:
    """Accept, enter, turn, settle, RunComplete."""
    async with Dispatcher(body) as d:
        runs = [await d.accept(session, "prompt") for _ in range(PROMPTS) for session in SESSIONS]
        for run in runs:
            await d.enter(run)
        for run in runs:
            await run.wait()
    return d


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

    def submit(self, session: str) -> asyncio.Future[None]:
        """Queue a run; the future is done when the run is."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues[session].put_nowait(done)
        return done

    async def close(self) -> None:
        """Stop the workers."""
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)


class Locks:
    """Per session an asyncio.Lock, which a task per run takes."""

    def __init__(self) -> None:
        self._locks = {session: asyncio.Lock() for session in SESSIONS}

    def submit(self, session: str) -> asyncio.Future[None]:
        """Start the task of a run."""
        return asyncio.create_task(self._run(self._locks[session]))

    async def _run(self, lock: asyncio.Lock) -> None:
        async with lock:
            await body()

    async def close(self) -> None:
        """Nothing is left to stop."""


async def waves(sessions: QueueWorkers | Locks) -> None:
    """One prompt per session in flight."""
    for _ in range(PROMPTS):
        for done in [sessions.submit(session) for session in SESSIONS]:
            await done
    await sessions.close()


async def flood(sessions: QueueWorkers | Locks) -> None:
    """Everything up front."""
    for done in [sessions.submit(session) for _ in range(PROMPTS) for session in SESSIONS]:
        await done
    await sessions.close()


async def aiojobs_waves() -> None:
    """Per session an aiojobs scheduler with a limit of one."""
    schedulers = [aiojobs.Scheduler(limit=1, pending_limit=0) for _ in SESSIONS]
    for _ in range(PROMPTS):
        for job in [await scheduler.spawn(body()) for scheduler in schedulers]:
            await job.wait()
    for scheduler in schedulers:
        await scheduler.close()


async def aiojobs_flood() -> None:
    """Per session an aiojobs scheduler with a limit of one."""
    schedulers = [aiojobs.Scheduler(limit=1, pending_limit=0) for _ in SESSIONS]
    for job in [await scheduler.spawn(body()) for _ in range(PROMPTS) for scheduler in schedulers]:
        await job.wait()
    for scheduler in schedulers:
        await scheduler.close()


Contender = Callable[[], Awaitable[None]]
CONTENDERS: dict[str, tuple[Contender, Contender]] = {
    "bare task (the floor)": (floor_waves, floor_flood),
    "turngate": (turngate_waves, turngate_flood),
    "asyncio.Queue worker": (lambda: waves(QueueWorkers()), lambda: flood(QueueWorkers())),
    "asyncio.Lock": (lambda: waves(Locks()), lambda: flood(Locks())),
    "aiojobs, limit 1": (aiojobs_waves, aiojobs_flood),
}


async def cpu(work: Awaitable[object], runs: int = RUNS) -> float:
    """Measure the microseconds of CPU time per run."""
    gc.collect()
    gc.disable()
    started = time.process_time()
    kept = await work
    taken = time.process_time() - started
    del kept
    gc.enable()
    return taken / runs * 1e6


async def compare(rounds: int) -> None:
    """Print what each contender costs, and its ratio to the floor of the same round."""
    print(
        f"{'':24}{'waves':>20}{'flood':>20}\n{'':24}{'µs / run':>12}{'ratio':>8}{'µs / run':>12}{'ratio':>8}"
    )
    taken: dict[tuple[str, int], list[float]] = {}
    for _ in range(rounds):
        for shape in (0, 1):
            for name, contender in CONTENDERS.items():
                taken.setdefault((name, shape), []).append(await cpu(contender[shape]()))
    floor = next(iter(CONTENDERS))
    for name in CONTENDERS:
        line = f"{name:24}"
        for shape in (0, 1):
            ratios = [a / b for a, b in zip(taken[name, shape], taken[floor, shape], strict=True)]
            line += f"{statistics.median(taken[name, shape]):12.1f}{statistics.median(ratios):8.2f}"
        print(line)


async def queue_of(length: int) -> None:
    """Run as many prompts as the queue of one session holds."""
    async with Dispatcher(body) as d:
        runs = [await d.accept("one session", "prompt", when_busy="queue") for _ in range(length)]
        for run in runs:
            await d.enter(run)
        await runs[-1].wait()


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
        return await cpu(prompts_in(d, 1_000), 1_000)


async def scale(rounds: int) -> None:
    """Print what a run costs small and large: the two columns should say the same."""

    async def least(measure: Callable[[], Awaitable[float]]) -> float:
        return min([await measure() for _ in range(rounds)])

    print(f"\n{'µs / run, least of the rounds':44}{'small':>12}{'large':>12}")
    for label, small, large in (
        ("queued in one session: 100, 10,000", queue_of, queue_of),
        ("cancelled in the queue: 100, 10,000", cancel_in_the_middle_of, cancel_in_the_middle_of),
    ):
        few = await least(lambda work=small: cpu(work(100), 100))  # type: ignore[misc]  # bound early
        many = await least(lambda work=large: cpu(work(10_000), 10_000))  # type: ignore[misc]  # bound early
        print(f"{label:44}{few:12.1f}{many:12.1f}")
    for label, few_of, many_of in (
        ("quiet sessions: 10, 20,000", (10, 0), (20_000, 0)),
        ("completions kept: 10, 20,000", (10, 10), (20_000, 100_000)),
    ):
        few = await least(lambda of=few_of: after(*of))  # type: ignore[misc]  # bound early
        many = await least(lambda of=many_of: after(*of))  # type: ignore[misc]  # bound early
        print(f"{label:44}{few:12.1f}{many:12.1f}")


async def main(rounds: int) -> None:
    """Compare, then scale."""
    print(f"{RUNS:,} runs, {rounds} rounds, Python {sys.version.split()[0]}\n")
    await compare(rounds)
    await scale(min(rounds, 5))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=15, help="how often to measure (default 15)")
    asyncio.run(main(parser.parse_args().rounds))
