"""Onlookers in a world with a ledger: subscribers, readers of completions, waits, hooks and callbacks.

What each of them received is judged by what is on record at the end. After a fault, a caller may get an
error, and a subscriber may be cut off. But no RunComplete may be delivered twice, and none may be missing
without an error.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from turngate import (
    CursorExpired,
    Delta,
    DispatcherClosed,
    Note,
    Run,
    RunComplete,
    SubscriberCutOff,
    Subscription,
    TurngateError,
    UnknownRun,
)
from turngate._core import moved
from turngate.durable import LedgerUnavailable
from turngate_verify.world.ledger_world import LedgerWorld
from turngate_verify.world.memory_ledger import completions
from turngate_verify.world.spoiled_ledger import PURPOSE

_PATIENCE = 5
"""A reader that fails this many times because of one fault does not notice that the fault is over."""


@dataclass(eq=False)
class _Subscriber:
    process: int
    subscription: Subscription
    moved: int
    """How many steps were on record when it subscribed."""
    done: int
    """How many completions were on record then."""
    asked: int
    """How many runs had been submitted then."""
    events: list[Any] = field(default_factory=list)
    cut_off: str = ""

    async def read(self) -> None:
        try:
            async for event in self.subscription:
                if not isinstance(event, Delta | Note):
                    self.events.append(event)
        except SubscriberCutOff as exc:
            self.cut_off = str(exc)

    def __str__(self) -> str:
        kind = "with moves" if self.subscription.moves else "without moves"
        return f"the subscriber {kind} of {self.subscription.session_id} in process {self.process}"


@dataclass(eq=False)
class _Reader:
    """Follows the completions; after a failed call, it continues with the same iterator or with a new one."""

    process: int
    done: int
    renews: bool
    told: list[RunComplete] = field(default_factory=list)
    failures: int = 0

    async def read(self, d: Any, after: str | None) -> None:
        stream = d.completions(after)
        while self.failures < _PATIENCE:
            try:
                after, complete = await anext(stream)
            except (StopAsyncIteration, DispatcherClosed):
                return
            except (LedgerUnavailable, RuntimeError):
                self.failures += 1
                if self.renews:
                    stream = d.completions(after)
                await asyncio.sleep(0.5)
            else:
                self.told.append(complete)

    def __str__(self) -> str:
        return f"the reader of completions behind {self.done} in process {self.process}"


class Onlookers:
    """All onlookers in a world."""

    def __init__(self, world: LedgerWorld, *, begin_late: bool = False, leaves_runs: bool = False) -> None:
        self.world = world
        self.begin_late = begin_late
        """Whether the ledger may not be able to say at once where a subscription begins."""
        self.leaves_runs = leaves_runs
        """Whether a closing process may leave runs to other processes."""
        self._subscribers: list[_Subscriber] = []
        self._readers: list[_Reader] = []
        self._tasks: dict[asyncio.Task[Any], str] = {}
        """All calls, each with a description."""
        self._waits: dict[asyncio.Task[Any], str] = {}
        """The calls that wait for a run."""
        self._streams: dict[asyncio.Task[Any], str] = {}
        """The calls that read the text of a run."""
        self._asked: list[tuple[int, str]] = []
        """The process and the id of each run that was submitted, in order."""
        self._hooks: Counter[tuple[int, str]] = Counter()
        self._callbacks: dict[tuple[int, str], list[RunComplete]] = {}
        self._closed_early: set[int] = set()
        """The processes that are closed while others go on."""

    def call(self, about: str, coroutine: Any) -> asyncio.Task[Any]:
        """Make a call, which has to end."""
        task = self.world.loop.create_task(coroutine)
        self._tasks[task] = about
        return task

    def look_on(self, process: int, *, readers: bool = True) -> None:
        """Subscribe in all ways and, as `readers`, follow the completions."""
        world = self.world
        d, tables = world.dispatchers[process], world.tables
        for session, moves in ((None, False), (None, True), ("s", False)):
            with world.loop:
                subscription = d.subscribe(session, moves=moves)
            subscriber = _Subscriber(
                process, subscription, len(tables.history), len(tables.complete), len(self._asked)
            )
            self._subscribers.append(subscriber)
            self.call(str(subscriber), subscriber.read())
        for renews in (False, True) if readers else ():
            reader = _Reader(process, 0, renews)
            self._readers.append(reader)
            self.call(str(reader), reader.read(d, None))

    def close(self, process: int) -> None:
        """Close the dispatcher of a process while the others go on."""
        self._closed_early.add(process)
        self.call(f"the close of process {process}", self.world.dispatchers[process].aclose())

    async def from_now_on(self, process: int) -> None:
        """Follow the completions from now on."""
        reader = _Reader(process, len(self.world.tables.complete), renews=True)
        d = self.world.dispatchers[process]
        cursor = await d.end_cursor()
        self._readers.append(reader)
        self.call(str(reader), reader.read(d, cursor))

    async def submit(self, process: int, run_id: str, *, hooked: bool = False, **options: Any) -> None:
        """Submit a prompt; wait for the run and read its text, in every process and in all ways."""
        world = self.world
        self._asked.append((process, run_id))

        def hook(complete: RunComplete) -> None:
            self._hooks[process, complete.run_id] += 1

        try:
            run = await world.submit(process, "s", run_id, on_complete=hook if hooked else None, **options)
        finally:
            for each in range(len(world.dispatchers)):
                self._wait(f"wait for {run_id} in process {each}", run_id, self._wait_by_id(each, run_id))
        self._attend(process, run)

    def _wait(self, about: str, run_id: str, coroutine: Any) -> None:
        self._waits[self.call(about, coroutine)] = run_id

    async def _wait_by_id(self, process: int, run_id: str) -> RunComplete | None:
        known = run_id in self.world.tables.runs
        try:
            return await self.world.dispatchers[process].wait(run_id)
        except UnknownRun:
            if known:
                raise
            return None

    def _attend(self, process: int, run: Run) -> None:
        told = self._callbacks[process, run.run_id] = []
        run.add_done_callback(told.append)
        self._wait(f"run.wait of {run.run_id} in process {process}", run.run_id, run.wait())
        reading = self.call(f"stream of {run.run_id} in process {process}", _read(run))
        self._streams[reading] = run.run_id

    # The end.

    def judge_quiet(self, *, entitled: bool) -> list[str]:
        """Return what is wrong when everything has completed, and nothing is closed yet.

        Callers and subscribers are `entitled` to an error if there was a fault that affects them.
        """
        wrong = [
            f"{about} hangs"
            for task, about in self._tasks.items()
            if (task in self._waits or task in self._streams) and not task.done()
        ]
        for process, d in enumerate(self.world.dispatchers):
            if not self._left_runs(process):
                wrong += [f"process {process} is left with {each}" for each in left_over(d)]
        on_record = completions(self.world.tables)
        for reader in self._readers:
            due = on_record[reader.done :]
            if reader.process in self._closed_early:
                due = due[: len(reader.told)]
            if reader.told != due:
                wrong.append(f"{reader} was told {_names(reader.told)} of {_names(on_record)}")
            if reader.failures > int(entitled):
                wrong.append(f"{reader} has failed {reader.failures} times")
        return wrong

    def judge_closed(self, *, entitled: bool) -> list[str]:
        """Return what is wrong when every dispatcher is closed."""
        wrong = [f"{about} does not end" for task, about in self._tasks.items() if not task.done()]
        on_record = {each.run_id: each for each in completions(self.world.tables)}
        for task, about in self._tasks.items():
            if task.done():
                wrong += _wrong_end(task, about, entitled=entitled, closed=self._left_runs(0))
        for task, run_id in self._waits.items():
            if _succeeded(task) and task.result() not in (on_record.get(run_id), None):
                wrong.append(f"{self._tasks[task]} was told {task.result()}")
        for (process, run_id), told in self._callbacks.items():
            if told != [on_record.get(run_id)] and (told or not self._left_runs(process)):
                wrong.append(f"the callback of {run_id} in process {process} was told {told}")
        for task, run_id in self._streams.items():
            complete = on_record.get(run_id)
            if _succeeded(task) and complete is not None and complete.error is None:
                text = complete.text if complete.message_id is not None else ""
                if task.result().strip() != text.strip():  # runners write a space after it
                    wrong.append(f"{self._tasks[task]} gave {task.result()!r}, not {text!r}")
        wrong += [
            f"the hook of {each} was called again" for each, number in self._hooks.items() if number > 1
        ]
        for subscriber in self._subscribers:
            wrong += self._wrong_events(subscriber, entitled=entitled)
        for process, d in enumerate(self.world.dispatchers):
            if d._stepper.tasks.tasks or len(d._stepper.tasks.supervisor):
                wrong.append(f"process {process} has closed and left {d._stepper.tasks.tasks}")
        return wrong

    def _wrong_events(self, subscriber: _Subscriber, *, entitled: bool) -> list[str]:
        told = [event for event in subscriber.events if isinstance(event, RunComplete)]
        if max(Counter(each.run_id for each in told).values(), default=0) > 1:
            return [f"{subscriber} was told twice: {_names(told)}"]
        if subscriber.cut_off:
            return [] if entitled else [f"{subscriber} was cut off: {subscriber.cut_off}"]
        hooked = {run_id for process, run_id in self._hooks if process == subscriber.process}
        own = {run_id for process, run_id in self._asked[subscriber.asked :] if process == subscriber.process}
        if subscriber.subscription.moves:
            due, got = self._moves(subscriber), subscriber.events
        else:
            due, got = [each for each in self._completes(subscriber) if each.run_id not in hooked], told
            own -= hooked
        if self._left_runs(subscriber.process):
            return [] if got == due[: len(got)] else [f"{subscriber} was told {got}, but not {due}"]
        if got[len(got) - len(due) :] != due:
            return [f"{subscriber} was told {got} instead of {due}"]
        missing = own & self.world.tables.complete.keys() - {each.run_id for each in told}
        return [f"{subscriber} was not told {missing}"] if missing else []

    def _completes(self, subscriber: _Subscriber) -> list[RunComplete]:
        """Return the RunCompletes that a subscriber is owed."""
        finished = sorted(self.world.tables.complete.values(), key=lambda each: each[:2])[subscriber.done :]
        return [
            each.complete
            for each in finished
            if not self._is_behind(subscriber, each.complete.session_id, each.position)
        ]

    def _moves(self, subscriber: _Subscriber) -> list[Any]:
        """Return the moves and RunCompletes that a subscriber is owed."""
        tables = self.world.tables
        return [
            tables.complete[entry["run"]].complete if entry["event"] == "complete" else moved(entry)
            for step in tables.history[subscriber.moved :]
            if not self._is_behind(subscriber, step.session_id, step.position)
            for entry in step.entries
        ]

    def _left_runs(self, process: int) -> bool:
        """Return whether a process was closed that may have left runs to others."""
        return self.leaves_runs and process in self._closed_early

    def _is_behind(self, subscriber: _Subscriber, session_id: str, position: int) -> bool:
        """Return whether another process did it before the ledger could say where to begin."""
        if not self.begin_late:
            return False
        feed = self.world.dispatchers[subscriber.process]._feed
        began = feed.delivery.beginnings.get(subscriber.subscription)
        return began is not None and began.is_behind(session_id, position)


def left_over(d: Any) -> list[str]:
    """Return what a dispatcher holds although nothing is in flight."""
    held = {
        "runs that are waited for": d._runs.waited_for,
        "runs to look for": d._runs.unlooked,
        "turns": d._turns.owned,
        "runners": d._turns.runner,
        "steps": d._stepper.pending,
        "subscribers without a beginning": d._feed.joining,
        "ids of hooks": d._feed.hooked,
        "gates": d._feed.delivery.gates,
        "former names": d._stepper.former,
        "text to relay": d._feed.relay.outbox,
        "numbers of notes": d._feed.relay.notes,
        "covered fences": d._turns.covered_early,
    }
    found = [f"{what}: {value}" for what, value in held.items() if value]
    return found + (["steps under way"] if d._stepper.under_way else [])


async def _read(run: Run) -> str:
    return "".join([piece async for piece in run.stream()])


def _succeeded(task: asyncio.Task[Any]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


def _wrong_end(task: asyncio.Task[Any], about: str, *, entitled: bool, closed: bool) -> list[str]:
    """Return what is wrong with how a call ended: only a fault or a close excuses a clear error."""
    if task.cancelled():
        return [f"{about} was cancelled"]
    exc = task.exception()
    if exc is None:
        return []
    clear = isinstance(exc, TurngateError) and not isinstance(exc, CursorExpired)
    clear = clear and (closed or not isinstance(exc, DispatcherClosed))
    clear = clear or (isinstance(exc, RuntimeError) and str(exc) == PURPOSE)
    return [] if clear and entitled else [f"{about} ended with {exc!r}"]


def _names(completes: list[RunComplete]) -> list[str]:
    return [each.run_id for each in completes]
