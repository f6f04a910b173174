"""Dispatchers for asyncio of many architectures: right ones, and ones with a bug between two awaits.

Each takes prompts with ``submit``, which returns the future of the answer, and has ``cancel`` and ``clear``.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ClassVar

from turngate_verify.conform import AsyncioSubject, Features

Runner = Callable[[str], Awaitable[str]]
Answer = asyncio.Future[str]


def future() -> Answer:
    return asyncio.get_running_loop().create_future()


async def database() -> None:
    """Go to a database and back: two hops of the loop."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)


def settle(answer: Answer, turn: asyncio.Future[str], *, covered: bool) -> None:
    """Tell the caller how the turn went."""
    if covered:
        answer.cancel()
    elif turn.cancelled():
        answer.set_exception(RuntimeError("interrupted"))
    elif error := turn.exception():
        answer.set_exception(error)
    else:
        answer.set_result(turn.result())


class Steps:
    """Every decision is one step, and the end of a turn is a callback."""

    def __init__(self, run: Runner) -> None:
        self.run = run
        self.queue: defaultdict[str, deque[tuple[str, Answer]]] = defaultdict(deque)
        self.turns: dict[str, asyncio.Task[Any]] = {}
        self.covered: set[str] = set()
        self.tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    async def submit(self, session: str, prompt: str) -> Answer:
        answer = future()
        self.take_in(session, prompt, answer)
        return answer

    def take_in(self, session: str, prompt: str, answer: Answer) -> None:
        if session in self.turns:
            self.queue[session].append((prompt, answer))
        else:
            self.begin(session, prompt, answer)

    def begin(self, session: str, prompt: str, answer: Answer) -> None:
        task = self.turns[session] = asyncio.ensure_future(self.run(prompt))
        task.add_done_callback(lambda task: self.over(session, answer, task))

    def over(self, session: str, answer: Answer, turn: asyncio.Task[str]) -> None:
        self.settle(session, answer, turn)
        self.next(session)

    def settle(self, session: str, answer: Answer, turn: asyncio.Task[str]) -> None:
        settle(answer, turn, covered=session in self.covered)
        self.covered.discard(session)

    def next(self, session: str) -> None:
        del self.turns[session]
        if self.queue[session]:
            self.begin(session, *self.queue[session].popleft())

    async def cancel(self, session: str) -> None:
        self.cover(session)

    def cover(self, session: str) -> None:
        for _, answer in self.queue.pop(session, ()):
            answer.cancel()
        if session in self.turns:
            self.covered.add(session)
            self.turns[session].cancel()

    async def clear(self, session: str) -> None:
        self.drop(session)

    def drop(self, session: str) -> None:
        for _, answer in self.queue.pop(session, ()):
            answer.set_exception(RuntimeError("cleared"))


# Right ones.


class WritesFirst(Steps):
    """Writes a prompt down before it takes it in. A cancel that comes meanwhile came before the prompt."""

    async def submit(self, session: str, prompt: str) -> Answer:
        await database()
        return await super().submit(session, prompt)


class Locks(Steps):
    """Does everything under a lock for each session, the end of a turn too, with the database inside."""

    def __init__(self, run: Runner) -> None:
        super().__init__(run)
        self.locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def submit(self, session: str, prompt: str) -> Answer:
        async with self.locks[session]:
            await database()
            return await super().submit(session, prompt)

    def over(self, session: str, answer: Answer, turn: asyncio.Task[str]) -> None:
        async def end() -> None:
            async with self.locks[session]:
                await database()
                Steps.over(self, session, answer, turn)

        self.spawn(end())

    async def cancel(self, session: str) -> None:
        async with self.locks[session]:
            await database()
            self.cover(session)

    async def clear(self, session: str) -> None:
        async with self.locks[session]:
            await database()
            self.drop(session)


class Actor(Steps):
    """One task takes one message after the other, and callers wait for its answers."""

    waits: ClassVar[bool] = True

    def __init__(self, run: Runner) -> None:
        super().__init__(run)
        self.box: asyncio.Queue[tuple[Callable[[], None], Answer]] = asyncio.Queue()
        self.spawn(self.act())

    async def act(self) -> None:
        while True:
            do, done = await self.box.get()
            await asyncio.sleep(0.01)
            do()
            if not done.done():
                done.set_result("")

    async def post(self, do: Callable[[], None], *, wait: bool = True) -> None:
        done = future()
        self.box.put_nowait((do, done))
        if wait:
            await done

    async def submit(self, session: str, prompt: str) -> Answer:
        answer = future()
        await self.post(lambda: self.take_in(session, prompt, answer))
        return answer

    def over(self, session: str, answer: Answer, turn: asyncio.Task[str]) -> None:
        self.box.put_nowait((lambda: Steps.over(self, session, answer, turn), future()))

    async def cancel(self, session: str) -> None:
        await self.post(lambda: self.cover(session), wait=self.waits)

    async def clear(self, session: str) -> None:
        await self.post(lambda: self.drop(session), wait=self.waits)


class Postbox(Actor):
    """The same, but a cancel and a clear return when they are posted."""

    waits = False


class NextTick(Steps):
    """Every call returns at once, and the loop does it in its next callback."""

    async def submit(self, session: str, prompt: str) -> Answer:
        answer = future()
        asyncio.get_running_loop().call_soon(self.take_in, session, prompt, answer)
        return answer

    async def cancel(self, session: str) -> None:
        asyncio.get_running_loop().call_soon(self.cover, session)

    async def clear(self, session: str) -> None:
        asyncio.get_running_loop().call_soon(self.drop, session)


class Heeds(Steps):
    """A turn reads its attachments first, and heeds a cancel once its runner has been called."""

    def begin(self, session: str, prompt: str, answer: Answer) -> None:
        self.turns[session] = self.spawn(self.turn(session, prompt, answer))

    async def turn(self, session: str, prompt: str, answer: Answer) -> None:
        await database()
        work = self.spawn(self.run(prompt))  # type: ignore[arg-type]  # the kit's runner is a coroutine function
        await asyncio.sleep(0)
        while not work.done():
            if session in self.covered:
                work.cancel()
            await asyncio.wait([work], timeout=0.05)
        self.settle(session, answer, work)
        self.next(session)

    def cover(self, session: str) -> None:
        for _, answer in self.queue.pop(session, ()):
            answer.cancel()
        if session in self.turns:
            self.covered.add(session)


class Table(Steps):
    """Rows in a table, and a worker that looks at it every 50 ms. Callers only touch rows."""

    def __init__(self, run: Runner) -> None:
        super().__init__(run)
        self.rows: list[dict[str, Any]] = []
        self.working: dict[str, tuple[dict[str, Any], asyncio.Future[str]]] = {}
        asyncio.get_running_loop().call_later(0.05, self.poll)

    def poll(self) -> None:
        asyncio.get_running_loop().call_later(0.05, self.poll)
        for row in list(self.rows):
            session = row["session"]
            mine = self.working.get(session)
            if mine is not None and mine[0] is row:
                if mine[1].done():
                    del self.working[session]
                    self.finish(row, mine[1])
                elif row["cancelled"]:
                    mine[1].cancel()
            elif row["cancelled"] or row["cleared"]:
                self.finish(row, None)
            elif mine is None:
                self.working[session] = (row, asyncio.ensure_future(self.run(row["prompt"])))

    def finish(self, row: dict[str, Any], turn: asyncio.Future[str] | None) -> None:
        self.rows.remove(row)
        if turn is not None:
            settle(row["answer"], turn, covered=row["cancelled"])
        elif row["cancelled"]:
            row["answer"].cancel()
        else:
            row["answer"].set_exception(RuntimeError("cleared"))

    def take_in(self, session: str, prompt: str, answer: Answer) -> None:
        row = {"session": session, "prompt": prompt, "answer": answer, "cancelled": False, "cleared": False}
        self.rows.append(row)

    def cover(self, session: str) -> None:
        for row in self.rows:
            row["cancelled"] |= row["session"] == session

    def drop(self, session: str) -> None:
        for row in self.rows:
            working = self.working.get(session, (None,))[0]
            row["cleared"] |= row["session"] == session and row is not working


class Workers:
    """A worker task for each session, which ends when its queue is empty, with no await in between."""

    def __init__(self, run: Runner) -> None:
        self.run = run
        self.queue: dict[str, deque[tuple[str, Answer]]] = {}
        self.work: dict[str, asyncio.Future[str]] = {}
        self.covered: set[str] = set()
        self.workers: dict[str, asyncio.Task[None]] = {}
        self.lead: dict[str, str] = {}

    async def submit(self, session: str, prompt: str) -> Answer:
        answer = future()
        self.queue.setdefault(session, deque()).append((prompt, answer))
        if session not in self.workers:
            self.workers[session] = asyncio.ensure_future(self.serve(session))
        return answer

    async def serve(self, session: str) -> None:
        while self.queue.get(session):
            prompt, answer = self.queue[session].popleft()
            self.lead[session] = prompt
            work = self.work[session] = asyncio.ensure_future(self.run(prompt))
            await asyncio.wait([work])
            settle(answer, work, covered=prompt in self.covered)
            self.covered.discard(prompt)
            del self.work[session]
        del self.workers[session]
        self.queue.pop(session, None)

    async def cancel(self, session: str) -> None:
        for _, answer in self.queue.get(session, ()):
            answer.cancel()
        if session in self.queue:
            self.queue[session].clear()
        if work := self.work.get(session):
            self.covered.add(self.lead[session])
            work.cancel()

    async def clear(self, session: str) -> None:
        for _, answer in self.queue.get(session, ()):
            answer.set_exception(RuntimeError("cleared"))
        if session in self.queue:
            self.queue[session].clear()


class Chain:
    """Each prompt is a task that waits for the one before it; a cancel covers every link there is."""

    def __init__(self, run: Runner) -> None:
        self.run = run
        self.last: dict[str, asyncio.Event] = {}
        self.links: defaultdict[str, dict[str, str]] = defaultdict(dict)
        self.work: dict[str, asyncio.Future[str]] = {}

    async def submit(self, session: str, prompt: str) -> Answer:
        answer, mine = future(), asyncio.Event()
        before, self.last[session] = self.last.get(session), mine
        self.links[session][prompt] = "waits"
        task = asyncio.ensure_future(self.link(session, prompt, answer, before, mine))
        answer.add_done_callback(lambda _: task)
        return answer

    async def link(
        self, session: str, prompt: str, answer: Answer, before: asyncio.Event | None, mine: asyncio.Event
    ) -> None:
        if before is not None:
            await before.wait()
        links = self.links[session]
        if links[prompt] == "waits":
            links[prompt] = "works"
            work = self.work[session] = asyncio.ensure_future(self.run(prompt))
            await asyncio.wait([work])
            settle(answer, work, covered=links[prompt] == "covered")
        elif links[prompt] == "covered":
            answer.cancel()
        else:
            answer.set_exception(RuntimeError("cleared"))
        del links[prompt]
        mine.set()

    async def cancel(self, session: str) -> None:
        for prompt, state in self.links[session].items():
            if state == "works":
                self.work[session].cancel()
            self.links[session][prompt] = "covered"

    async def clear(self, session: str) -> None:
        for prompt, state in self.links[session].items():
            if state == "waits":
                self.links[session][prompt] = "cleared"


class Tickets:
    """A fair lock for each session; its new holder checks whether a cancel has come since its ticket."""

    def __init__(self, run: Runner) -> None:
        self.run = run
        self.locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.cancels: defaultdict[str, int] = defaultdict(int)
        self.clears: defaultdict[str, int] = defaultdict(int)
        self.work: dict[str, asyncio.Future[str]] = {}
        self.tasks: set[asyncio.Task[None]] = set()

    async def submit(self, session: str, prompt: str) -> Answer:
        answer = future()
        ticket = (self.cancels[session], self.clears[session])
        self.tasks.add(asyncio.ensure_future(self.serve(session, prompt, answer, *ticket)))
        return answer

    async def serve(self, session: str, prompt: str, answer: Answer, cancels: int, clears: int) -> None:
        async with self.locks[session]:
            if self.cancels[session] > cancels:
                answer.cancel()
                return
            if self.clears[session] > clears:
                answer.set_exception(RuntimeError("cleared"))
                return
            work = self.work[session] = asyncio.ensure_future(self.run(prompt))
            await asyncio.wait([work])
            del self.work[session]
            settle(answer, work, covered=self.cancels[session] > cancels)

    async def cancel(self, session: str) -> None:
        self.cancels[session] += 1
        if work := self.work.get(session):
            work.cancel()

    async def clear(self, session: str) -> None:
        self.clears[session] += 1


class Pump:
    """One task for all sessions, woken by an event, starts what can start and settles what is over."""

    def __init__(self, run: Runner) -> None:
        self.run = run
        self.waiting: list[tuple[str, str, Answer]] = []
        self.running: dict[str, tuple[Answer, asyncio.Future[str]]] = {}
        self.covered: set[str] = set()
        self.wake = asyncio.Event()
        self.pumping = asyncio.ensure_future(self.pump())

    async def pump(self) -> None:
        while True:
            await self.wake.wait()
            self.wake.clear()
            for session, (answer, work) in list(self.running.items()):
                if work.done():
                    del self.running[session]
                    settle(answer, work, covered=session in self.covered)
                    self.covered.discard(session)
            for entry in list(self.waiting):
                session, prompt, answer = entry
                if session not in self.running:
                    self.waiting.remove(entry)
                    work = asyncio.ensure_future(self.run(prompt))
                    work.add_done_callback(lambda _: self.wake.set())
                    self.running[session] = (answer, work)

    async def submit(self, session: str, prompt: str) -> Answer:
        answer = future()
        self.waiting.append((session, prompt, answer))
        self.wake.set()
        return answer

    def drop(self, session: str) -> list[Answer]:
        dropped = [answer for where, _, answer in self.waiting if where == session]
        self.waiting = [entry for entry in self.waiting if entry[0] != session]
        return dropped

    async def cancel(self, session: str) -> None:
        for answer in self.drop(session):
            answer.cancel()
        if session in self.running:
            self.covered.add(session)
            self.running[session][1].cancel()

    async def clear(self, session: str) -> None:
        for answer in self.drop(session):
            answer.set_exception(RuntimeError("cleared"))


class Log(Steps):
    """Callers append to a log and wait until a projector has applied their entry, one entry per step."""

    def __init__(self, run: Runner) -> None:
        super().__init__(run)
        self.log: list[tuple[Callable[[], None], Answer]] = []
        self.grown = asyncio.Condition()
        self.at = 0
        self.spawn(self.project())

    async def project(self) -> None:
        while True:
            async with self.grown:
                await self.grown.wait_for(lambda: len(self.log) > self.at)
            apply, applied = self.log[self.at]
            await database()
            apply()
            applied.set_result("")
            self.at += 1

    async def append(self, apply: Callable[[], None]) -> None:
        applied = future()
        async with self.grown:
            self.log.append((apply, applied))
            self.grown.notify_all()
        await applied

    async def submit(self, session: str, prompt: str) -> Answer:
        answer = future()
        await self.append(lambda: self.take_in(session, prompt, answer))
        return answer

    async def cancel(self, session: str) -> None:
        await self.append(lambda: self.cover(session))

    async def clear(self, session: str) -> None:
        await self.append(lambda: self.drop(session))


RIGHT: list[type[Any]] = [
    Steps, WritesFirst, Locks, Actor, Postbox, NextTick, Heeds, Table, Workers, Chain, Tickets, Pump, Log,
]  # fmt: skip


# Wrong ones: each has its bug between two awaits.


class BusyThenRegisters(Steps):
    """Asks whether the session is busy, writes the prompt down, and goes by the old answer."""

    async def submit(self, session: str, prompt: str) -> Answer:
        answer, busy = future(), session in self.turns
        await database()
        if busy and session in self.turns:
            self.queue[session].append((prompt, answer))
        else:
            self.begin(session, prompt, answer)
        return answer

    def next(self, session: str) -> None:
        self.turns.pop(session, None)
        if self.queue[session]:
            self.begin(session, *self.queue[session].popleft())


class DequeuesThenStarts(Steps):
    """Takes the next prompt off the queue, reads its attachments, then starts it: a cancel misses it."""

    def next(self, session: str) -> None:
        if not self.queue[session]:
            del self.turns[session]
            return
        prompt, answer = self.queue[session].popleft()

        async def start() -> None:
            await database()
            self.covered.discard(session)
            self.begin(session, prompt, answer)

        self.spawn(start())


class PublishesThenStores(Steps):
    """Answers the caller, then stores the messages in the turn's task: a cancel ends it for good."""

    def begin(self, session: str, prompt: str, answer: Answer) -> None:
        self.turns[session] = self.spawn(self.turn(session, prompt, answer))

    async def turn(self, session: str, prompt: str, answer: Answer) -> None:
        work = self.spawn(self.run(prompt))  # type: ignore[arg-type]
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError:
            work.cancel()
            await asyncio.wait([work])
        self.settle(session, answer, work)
        await database()
        self.next(session)

    def cover(self, session: str) -> None:
        for _, answer in self.queue.pop(session, ()):
            answer.cancel()
        if session in self.turns:
            self.covered.add(session)
            asyncio.get_running_loop().call_soon(self.turns[session].cancel)  # never before its first step


class LosesInTheTick(Steps):
    """A prompt starts in the next tick, and a cancel in the same tick forgets it."""

    def take_in(self, session: str, prompt: str, answer: Answer) -> None:
        self.queue[session].append((prompt, answer))
        asyncio.get_running_loop().call_soon(self.start, session)

    def start(self, session: str) -> None:
        if session not in self.turns and self.queue[session]:
            self.begin(session, *self.queue[session].popleft())

    def cover(self, session: str) -> None:
        if session in self.turns:
            super().cover(session)
        else:
            self.queue.pop(session, None)


class ClearsInTwo(Steps):
    """Reads the queue, deletes it in the database, then empties it: what came in between is lost."""

    async def clear(self, session: str) -> None:
        waiting = list(self.queue[session])
        await database()
        self.queue[session].clear()
        for _, answer in waiting:
            if not answer.done():
                answer.set_exception(RuntimeError("cleared"))


class LeavesSlowly(Steps):
    """Says goodbye to the database when the queue is empty: a prompt in between waits for nothing."""

    def next(self, session: str) -> None:
        if self.queue[session]:
            super().next(session)
        else:
            self.spawn(self.leave(session))

    async def leave(self, session: str) -> None:
        await database()
        del self.turns[session]


class CoversLater(Steps):
    """A cancel drops the queue, writes an audit line, then covers the run that is active by then."""

    async def cancel(self, session: str) -> None:
        for _, answer in self.queue.pop(session, ()):
            answer.cancel()
        if session in self.turns:
            await database()
            self.cover(session)

    def cover(self, session: str) -> None:
        if session in self.turns:
            self.covered.add(session)
            self.turns[session].cancel()


class KeepsTheFlag(Steps):
    """A cancel raises a flag until the turn has ended: a prompt that comes meanwhile is poisoned."""

    def __init__(self, run: Runner) -> None:
        super().__init__(run)
        self.flags: set[str] = set()

    async def cancel(self, session: str) -> None:
        turn = self.turns.get(session)
        self.cover(session)
        if turn is not None:
            self.flags.add(session)
            await asyncio.wait([turn])
            await database()
            self.flags.discard(session)

    def take_in(self, session: str, prompt: str, answer: Answer) -> None:
        if session in self.flags:
            answer.cancel()
        else:
            super().take_in(session, prompt, answer)


class Evicts(Steps):
    """A session that is idle is written away and deleted, with what has come meanwhile."""

    def next(self, session: str) -> None:
        super().next(session)
        if session not in self.turns:
            self.spawn(self.evict(session))

    async def evict(self, session: str) -> None:
        await database()
        if not self.queue[session]:
            turn = self.turns.pop(session, None)
            if turn is not None:
                self.queue.pop(session, None)


class LosesTheWakeUp(Pump):
    """The pump lowers its event after it has looked: what comes between look and lowering wakes no task."""

    async def pump(self) -> None:
        while True:
            await self.wake.wait()
            for session, (answer, work) in list(self.running.items()):
                if work.done():
                    del self.running[session]
                    settle(answer, work, covered=session in self.covered)
                    self.covered.discard(session)
            for entry in list(self.waiting):
                session, prompt, answer = entry
                if session not in self.running:
                    self.waiting.remove(entry)
                    work = asyncio.ensure_future(self.run(prompt))
                    work.add_done_callback(lambda _: self.wake.set())
                    self.running[session] = (answer, work)
            await database()
            self.wake.clear()


class HandsOffTwice(Steps):
    """A cancel hands off by itself after the audit, and so does the end of the turn that it has cancelled."""

    async def cancel(self, session: str) -> None:
        busy = session in self.turns
        self.cover(session)
        await database()
        if busy and self.queue[session]:
            self.begin(session, *self.queue[session].popleft())

    def next(self, session: str) -> None:
        self.turns.pop(session, None)
        if self.queue[session]:
            self.begin(session, *self.queue[session].popleft())


class StaleTicket(Tickets):
    """Looks at the lock, goes to the database, then draws a ticket that is too old."""

    async def submit(self, session: str, prompt: str) -> Answer:
        answer = future()
        before = self.locks[session].locked()
        await database()
        ticket = (self.cancels[session], self.clears[session])
        if not before and self.locks[session].locked():
            ticket = (ticket[0] - 1, ticket[1])  # it was idle when asked: treat what came since as earlier
        self.tasks.add(asyncio.ensure_future(self.serve(session, prompt, answer, *ticket)))
        return answer


WRONG: list[type[Any]] = [
    BusyThenRegisters, DequeuesThenStarts, PublishesThenStores, LosesInTheTick, ClearsInTwo, LeavesSlowly,
    CoversLater, KeepsTheFlag, Evicts, LosesTheWakeUp, HandsOffTwice, StaleTicket,
]  # fmt: skip


class Flight(AsyncioSubject):
    """The adapter of a caller who watches the future; it declares nothing but what there is."""

    __test__ = False
    features = Features(clear=True)
    kind: ClassVar[type[Any]] = Steps

    def start(self) -> None:
        self.mine = self.kind(self.runner)

    async def do_accept(self, session: str, run: str) -> None:
        self.watch(run, await self.mine.submit(session, run))

    async def do_cancel(self, session: str) -> None:
        await self.mine.cancel(session)

    async def do_clear(self, session: str) -> None:
        await self.mine.clear(session)


class Awaited(Flight):
    """The adapter of a caller whose call lasts until the run is complete, and tells then how it ended."""

    async def do_accept(self, session: str, run: str) -> None:
        answer = await self.mine.submit(session, run)
        try:
            await answer
            self.completed(run)
        except asyncio.CancelledError:
            self.completed(run, cancelled=True)
        except Exception as error:
            self.completed(run, error=str(error))


def flight(kind: type[Any], adapter: type[Flight] = Flight) -> type[Flight]:
    """Return an adapter for a kind of dispatcher."""
    return type(f"{adapter.__name__}{kind.__name__}", (adapter,), {"kind": kind})
