"""More dispatchers for asyncio: other architectures, and bugs in what few dispatchers can do.

The right ones take in slowly, end their own actors, bounce generators, sleep in a task group, claim rows,
stamp marks. The wrong ones refuse, interrupt, fold or cancel one run with an await in the wrong place, or
mistake one session for another.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

from flights import Answer, Awaited, Flight, Runner, Steps, database, flight, future, settle
from turngate_verify.conform import AsyncioSubject, Features


@dataclass(eq=False)
class Row:
    """A prompt, from its accept to its answer."""

    prompt: str
    answer: Answer
    number: int = 0
    covered: bool = False
    state: str = "waits"
    work: asyncio.Future[str] | None = None

    def settle(self) -> None:
        if self.covered or self.work is None:
            self.answer.cancel()
        else:
            settle(self.answer, self.work, covered=False)

    def cover(self) -> None:
        self.covered = True
        if self.work is not None:
            self.work.cancel()


# Right ones.


class Moderates(Steps):
    """Takes prompts in one after the other, each after 30 ms. A cancel takes 10 ms."""

    def __init__(self, run: Runner) -> None:
        super().__init__(run)
        self.intake: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def submit(self, session: str, prompt: str) -> Answer:
        async with self.intake[session]:
            await asyncio.sleep(0.03)
            return await super().submit(session, prompt)

    async def cancel(self, session: str) -> None:
        await asyncio.sleep(0.01)
        self.cover(session)


class Actors:
    """An actor for each session, which ends when it has nothing to do. It hears cancels while it settles."""

    def __init__(self, run: Runner) -> None:
        self.run = run
        self.boxes: dict[str, asyncio.Queue[tuple[str, Any]]] = {}
        self.actors: dict[str, asyncio.Task[None]] = {}

    def post(self, session: str, what: str, about: Any) -> None:
        if session not in self.boxes:
            self.boxes[session] = asyncio.Queue()
            self.actors[session] = asyncio.ensure_future(self.act(session, self.boxes[session]))
        self.boxes[session].put_nowait((what, about))

    async def act(self, session: str, box: asyncio.Queue[tuple[str, Any]]) -> None:
        rows: deque[Row] = deque()
        while True:
            what, about = await box.get()
            self.hear(rows, what, about)
            if what == "done":
                await asyncio.sleep(0.002)
                while not box.empty():
                    self.hear(rows, *box.get_nowait())
                rows.popleft().settle()
            while rows and rows[0].covered and rows[0].work is None:
                rows.popleft().settle()
            if rows and rows[0].work is None:
                rows[0].work = asyncio.ensure_future(self.run(rows[0].prompt))
                rows[0].work.add_done_callback(lambda _: self.post(session, "done", None))
            elif not rows and box.empty():
                del self.boxes[session]
                return

    def hear(self, rows: deque[Row], what: str, about: Any) -> None:
        if what == "submit":
            rows.append(about)
        elif what == "cancel":
            for row in rows:
                row.cover()
            about.set_result("")

    async def submit(self, session: str, prompt: str) -> Answer:
        row = Row(prompt, future())
        self.post(session, "submit", row)
        return row.answer

    async def cancel(self, session: str) -> None:
        heard = future()
        self.post(session, "cancel", heard)
        await heard


class Trampoline:
    """A generator for each session, and one callback that sends each the next message."""

    def __init__(self, run: Runner) -> None:
        self.run = run
        self.lanes: dict[str, Generator[None, tuple[str, Any], None]] = {}
        self.messages: deque[tuple[str, str, Any]] = deque()
        self.bouncing = False

    def send(self, session: str, what: str, about: Any = None) -> None:
        self.messages.append((session, what, about))
        if not self.bouncing:
            self.bouncing = True
            asyncio.get_running_loop().call_soon(self.bounce)

    def bounce(self) -> None:
        if not self.messages:
            self.bouncing = False
            return
        session, what, about = self.messages.popleft()
        if session not in self.lanes:
            self.lanes[session] = self.lane(session)
            next(self.lanes[session])
        self.lanes[session].send((what, about))
        asyncio.get_running_loop().call_soon(self.bounce)

    def lane(self, session: str) -> Generator[None, tuple[str, Any], None]:
        rows: deque[Row] = deque()
        while True:
            what, about = yield
            if what == "submit":
                rows.append(about)
            elif what == "cancel":
                while len(rows) > 1 or (rows and rows[0].work is None):
                    rows.pop().answer.cancel()
                if rows:
                    rows[0].cover()
            else:
                rows.popleft().settle()
            if rows and rows[0].work is None:
                rows[0].work = asyncio.ensure_future(self.run(rows[0].prompt))
                rows[0].work.add_done_callback(lambda _: self.send(session, "done"))

    async def submit(self, session: str, prompt: str) -> Answer:
        row = Row(prompt, future())
        self.send(session, "submit", row)
        return row.answer

    async def cancel(self, session: str) -> None:
        self.send(session, "cancel")


class Nursery:
    """One task group for all sessions, a child for each, and a checkpoint in every call, as with trio."""

    def __init__(self, run: Runner) -> None:
        self.run = run
        self.rows: dict[str, list[Row]] = {}
        self.stops: dict[Row, asyncio.Event] = {}
        self.more: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.fresh: asyncio.Queue[str] = asyncio.Queue()
        self.main = asyncio.ensure_future(self.open())

    async def open(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                group.create_task(self.serve(await self.fresh.get()))

    async def serve(self, session: str) -> None:
        rows = self.rows[session]
        while True:
            while not rows:
                self.more[session].clear()
                await self.more[session].wait()
            await asyncio.sleep(0)
            row, stop = rows[0], self.stops[rows[0]]
            if not stop.is_set():
                row.work = work = asyncio.ensure_future(self.run(row.prompt))
                stopped = asyncio.ensure_future(stop.wait())
                await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
                if not work.done():
                    work.cancel()
                    await asyncio.wait({work})
                stopped.cancel()
            row.covered = stop.is_set()
            rows.remove(row)
            row.settle()

    async def submit(self, session: str, prompt: str) -> Answer:
        if session not in self.rows:
            self.rows[session] = []
            self.fresh.put_nowait(session)
        await asyncio.sleep(0)
        row = Row(prompt, future())
        self.stops[row] = asyncio.Event()
        self.rows[session].append(row)
        self.more[session].set()
        return row.answer

    async def cancel(self, session: str) -> None:
        await asyncio.sleep(0)
        for row in self.rows.get(session, ()):
            self.stops[row].set()


class Claims:
    """Rows in a table, and two workers that claim the first row of an idle session."""

    def __init__(self, run: Runner) -> None:
        self.run = run
        self.rows: list[tuple[str, Row]] = []
        self.bells = [asyncio.Event(), asyncio.Event()]
        self.workers = [asyncio.ensure_future(self.serve(bell)) for bell in self.bells]

    def ring(self) -> None:
        for bell in self.bells:
            bell.set()

    def claim(self) -> tuple[str, Row] | None:
        seen = set()
        for session, row in self.rows:
            if session not in seen and row.state == "waits":
                row.state = "claimed"
                return session, row
            seen.add(session)
        return None

    async def serve(self, bell: asyncio.Event) -> None:
        while True:
            await bell.wait()
            bell.clear()
            await asyncio.sleep(0.004)
            while claimed := self.claim():
                row = claimed[1]
                await asyncio.sleep(0.001)
                if not row.covered:
                    row.work = asyncio.ensure_future(self.run(row.prompt))
                    await asyncio.wait([row.work])
                    await asyncio.sleep(0.001)
                self.rows.remove(claimed)
                row.settle()
                self.ring()

    async def submit(self, session: str, prompt: str) -> Answer:
        await asyncio.sleep(0.001)
        row = Row(prompt, future())
        self.rows.append((session, row))
        self.ring()
        return row.answer

    async def cancel(self, session: str) -> None:
        await asyncio.sleep(0.001)
        for its, row in list(self.rows):
            if its == session:
                row.cover()
                if row.state == "waits":
                    self.rows.remove((its, row))
                    row.settle()
        self.ring()


class Marks:
    """Stamps a prompt, decides about it a tick later, and compares it with a mark that a cancel leaves."""

    def __init__(self, run: Runner) -> None:
        self.run = run
        self.last = 0
        self.marks: defaultdict[str, int] = defaultdict(int)
        self.rows: defaultdict[str, list[Row]] = defaultdict(list)
        self.ends: set[asyncio.Task[None]] = set()

    async def submit(self, session: str, prompt: str) -> Answer:
        self.last += 1
        row = Row(prompt, future(), self.last)
        self.rows[session].append(row)
        asyncio.get_running_loop().call_soon(self.enter, session, row)
        return row.answer

    def enter(self, session: str, row: Row) -> None:
        row.state = "queued"
        if row.number <= self.marks[session]:
            self.end(session, row)
        self.next(session)

    def next(self, session: str) -> None:
        queued = [row for row in self.rows[session] if row.state == "queued"]
        if queued and not any(row.state == "active" for row in self.rows[session]):
            queued[0].state = "active"
            queued[0].work = asyncio.ensure_future(self.run(queued[0].prompt))
            queued[0].work.add_done_callback(
                lambda _: self.ends.add(asyncio.ensure_future(self.write(session, queued[0])))
            )

    async def write(self, session: str, row: Row) -> None:
        await database()
        self.end(session, row)
        self.next(session)

    def end(self, session: str, row: Row) -> None:
        self.rows[session].remove(row)
        row.covered = row.number <= self.marks[session]
        row.settle()

    async def cancel(self, session: str) -> None:
        self.marks[session] = self.last
        for row in list(self.rows[session]):
            if row.state == "queued":
                self.end(session, row)
            elif row.work is not None:
                row.work.cancel()


class Folding(AsyncioSubject):
    """A dispatcher that tells by callbacks how runs end, and can do everything, each thing under a lock."""

    __test__ = False
    features = Features(folds=True, clear=True, cancel_run=True, interrupt=True, reject=True, residue=True)

    def start(self) -> None:
        self.locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.queue: defaultdict[str, list[str]] = defaultdict(list)
        self.turns: dict[str, tuple[list[str], asyncio.Task[str]]] = {}
        self.covered: set[str] = set()
        self.sessions: dict[str, str] = {}
        self.ends: set[asyncio.Task[None]] = set()

    def residue(self) -> int:
        return len(self.turns) + len(self.covered) + sum(map(len, self.queue.values()))

    async def under_lock(self, session: str, do: Callable[..., Any], *about: str) -> Any:
        async with self.locks[session]:
            await asyncio.sleep(0)
            return do(*about)

    def take_in(self, session: str, run: str) -> None:
        self.sessions[run] = session
        self.queue[session].append(run)
        self.next(session)

    def next(self, session: str) -> None:
        if session in self.turns or not self.queue[session]:
            return
        run = self.queue[session].pop(0)
        task = asyncio.ensure_future(self.runner(run))
        self.turns[session] = ([run], task)
        task.add_done_callback(
            lambda _: self.ends.add(asyncio.ensure_future(self.under_lock(session, self.end, session)))
        )

    def end(self, session: str) -> None:
        runs, task = self.turns.pop(session)
        covered = session in self.covered
        self.covered.discard(session)
        failed = None if covered or task.cancelled() else task.exception()
        for run in runs:
            self.completed(run, cancelled=covered, error=str(failed) if failed else None)
        self.next(session)

    def cover(self, session: str) -> None:
        for run in self.queue.pop(session, []):
            self.completed(run, cancelled=True)
        self.cover_turn(session)

    def cover_turn(self, session: str) -> None:
        if session in self.turns:
            self.covered.add(session)
            self.turns[session][1].cancel()

    def drop(self, session: str) -> None:
        for run in self.queue.pop(session, []):
            self.completed(run, error="cleared")

    async def do_accept(self, session: str, run: str) -> None:
        await self.under_lock(session, self.take_in, session, run)

    async def do_reject(self, session: str, run: str) -> None:
        def decide() -> None:
            if session in self.turns:
                self.refused(run)
            else:
                self.take_in(session, run)

        await self.under_lock(session, decide)

    async def do_interrupt(self, session: str, run: str) -> None:
        def decide() -> None:
            self.cover(session)
            self.take_in(session, run)

        await self.under_lock(session, decide)

    async def do_cancel(self, session: str) -> None:
        await self.under_lock(session, self.cover, session)

    async def do_clear(self, session: str) -> None:
        await self.under_lock(session, self.drop, session)

    async def do_cancel_run(self, run: str) -> None:
        session = self.sessions.get(run, "")

        def decide() -> None:
            if run in self.queue[session]:
                self.queue[session].remove(run)
                self.completed(run, cancelled=True)
            elif session in self.turns and run in self.turns[session][0]:
                self.cover_turn(session)

        await self.under_lock(session, decide)

    async def do_fold(self, run: str) -> Sequence[str]:
        session = self.sessions[run]

        def fold() -> Sequence[str]:
            if session in self.covered:
                return ()
            taken = self.queue.pop(session, [])
            self.turns[session][0].extend(taken)
            return taken

        folded: Sequence[str] = await self.under_lock(session, fold)
        return folded


class Watched(Flight):
    """The adapter of a dispatcher that cannot clear a queue."""

    features = Features()


class Asked(Awaited):
    """The same, of a caller whose call lasts until the run is complete."""

    features = Features()


class Shielded(Watched):
    """The adapter of a caller who waits under a shield, for a limited time: it hears late."""

    async def do_accept(self, session: str, run: str) -> None:
        answer = await self.mine.submit(session, run)
        try:
            await asyncio.wait_for(asyncio.shield(answer), 1e9)
            self.completed(run)
        except asyncio.CancelledError:
            self.completed(run, cancelled=True)
        except Exception as error:
            self.completed(run, error=str(error))


class Polls(Watched):
    """The adapter of a caller who asks again and again."""

    async def do_accept(self, session: str, run: str) -> None:
        answer = await self.mine.submit(session, run)
        while not answer.done():
            await asyncio.sleep(0.2)
        error = None if answer.cancelled() else answer.exception()
        self.completed(run, cancelled=answer.cancelled(), error=str(error) if error else None)


class InTwoPhases(AsyncioSubject):
    """Two phases: the line is sorted by acceptance, so one that enters late may wait ahead of others."""

    __test__ = False
    features = Features(two_phase=True, cancel_run=True)

    def start(self) -> None:
        self.accepted: dict[str, tuple[str, Answer]] = {}
        self.covered: set[str] = set()
        self.line: dict[str, list[str]] = {}
        self.turns: dict[str, tuple[str, asyncio.Task[str]]] = {}

    async def do_accept(self, session: str, run: str) -> None:
        await asyncio.sleep(0)
        self.accepted[run] = (session, future())
        self.watch(run, self.accepted[run][1])

    async def do_enter(self, run: str) -> None:
        await asyncio.sleep(0)
        session, answer = self.accepted[run]
        if run in self.covered:
            answer.cancel()
        elif session in self.turns:
            line = self.line.setdefault(session, [])
            line.append(run)
            line.sort(key=list(self.accepted).index)
        else:
            self.begin(session, run)

    def begin(self, session: str, run: str) -> None:
        task = asyncio.ensure_future(self.runner(run))
        self.turns[session] = (run, task)
        task.add_done_callback(lambda task: self.over(session, run, task))

    def over(self, session: str, run: str, task: asyncio.Task[str]) -> None:
        settle(self.accepted[run][1], task, covered=run in self.covered)
        del self.turns[session]
        if line := self.line.get(session):
            self.begin(session, line.pop(0))

    async def do_cancel(self, session: str) -> None:
        for run, (its, _) in self.accepted.items():
            if its == session:
                await self.do_cancel_run(run)

    async def do_cancel_run(self, run: str) -> None:
        session, answer = self.accepted[run]
        if answer.done():
            return
        self.covered.add(run)
        if run in self.line.get(session, ()):
            self.line[session].remove(run)
            answer.cancel()
        elif self.turns.get(session, ("",))[0] == run:
            self.turns[session][1].cancel()


RIGHT: list[type[AsyncioSubject]] = [
    *(
        flight(kind, adapter)
        for kind in (Moderates, Actors, Trampoline, Nursery, Claims, Marks)
        for adapter in (Watched, Asked)
    ),
    Folding,
    InTwoPhases,
    *(flight(kind, adapter) for kind in (Actors, Trampoline) for adapter in (Shielded, Polls)),
]


# Wrong ones.


class ForgetsWhose(Steps):
    """A cancel keeps its session in a variable of all sessions while it goes to the database."""

    whose = ""

    async def cancel(self, session: str) -> None:
        self.whose = session
        await database()
        if self.whose:
            self.cover(self.whose)
        self.whose = ""


class TearsDown(Steps):
    """A turn answers, then tears its sandbox down: a second cancel ends that, and the lane hangs."""

    def begin(self, session: str, prompt: str, answer: Answer) -> None:
        self.turns[session] = self.spawn(self.turn(session, answer, prompt))

    async def turn(self, session: str, answer: Answer, prompt: str) -> None:
        work = asyncio.ensure_future(self.run(prompt))
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError:
            work.cancel()
            await asyncio.wait([work])
        self.settle(session, answer, work)
        await asyncio.sleep(0)
        self.next(session)

    def cover(self, session: str) -> None:
        turn = self.turns.pop(session, None)
        super().cover(session)
        if turn is not None:
            self.turns[session] = turn
            self.covered.add(session)
            asyncio.get_running_loop().call_soon(turn.cancel)  # never before its first step


class HandsOffInATask(Steps):
    """The handoff is a task: a second cancel ends it, and what comes later waits for ever."""

    def next(self, session: str) -> None:
        self.turns[session] = self.spawn(self.hand_off(session))

    async def hand_off(self, session: str) -> None:
        await asyncio.sleep(0)
        self.covered.discard(session)
        super().next(session)


class AnswersTheLast(Steps):
    """The answer that is due is kept by session: a cancel meanwhile puts another in its place."""

    def __init__(self, run: Runner) -> None:
        super().__init__(run)
        self.due: dict[str, Answer] = {}

    def over(self, session: str, answer: Answer, turn: asyncio.Task[str]) -> None:
        async def end() -> None:
            self.due[session] = answer
            await database()
            if not self.due[session].done():
                self.settle(session, self.due[session], turn)
            self.next(session)

        self.spawn(end())

    def cover(self, session: str) -> None:
        for _, answer in self.queue[session]:
            self.due[session] = answer
        super().cover(session)


class CountsOutside(Steps):
    """Waits under a condition until no turn runs, lets the condition go, then counts its own turn."""

    def __init__(self, run: Runner) -> None:
        super().__init__(run)
        self.idle: defaultdict[str, asyncio.Condition] = defaultdict(asyncio.Condition)
        self.running: defaultdict[str, int] = defaultdict(int)
        self.rows: defaultdict[str, list[Row]] = defaultdict(list)

    async def submit(self, session: str, prompt: str) -> Answer:
        row = Row(prompt, future())
        self.rows[session].append(row)
        self.spawn(self.turn(session, row))
        return row.answer

    async def turn(self, session: str, row: Row) -> None:
        async with self.idle[session]:
            await self.idle[session].wait_for(lambda: not self.running[session])
        if not row.covered:
            self.running[session] += 1
            row.work = asyncio.ensure_future(self.run(row.prompt))
            await asyncio.wait([row.work])
            self.running[session] -= 1
        self.rows[session].remove(row)
        row.settle()
        async with self.idle[session]:
            self.idle[session].notify_all()

    async def cancel(self, session: str) -> None:
        for row in self.rows[session]:
            row.cover()


class BouncesTooFast(Trampoline):
    """The trampoline empties its list of messages after a whole pass: what came meanwhile is lost."""

    def bounce(self) -> None:
        for session, what, about in list(self.messages):
            if session not in self.lanes:
                self.lanes[session] = self.lane(session)
                next(self.lanes[session])
            self.lanes[session].send((what, about))
        asyncio.get_running_loop().call_soon(self.rest)

    def rest(self) -> None:
        self.messages.clear()
        self.bouncing = False


class RefusesSlowly(Steps):
    """Sees that a session is idle, goes to the database, then takes the prompt in whatever has come."""

    async def reject(self, session: str, prompt: str) -> Answer | None:
        if session in self.turns:
            return None
        await database()
        return await self.submit(session, prompt)


class InterruptsByHalves(Steps):
    """Cancels what there is, goes to the database, then takes the prompt in behind what has come."""

    async def interrupt(self, session: str, prompt: str) -> Answer:
        self.cover(session)
        await database()
        return await self.submit(session, prompt)


class CancelsByPlace(Steps):
    """Looks for the place of a run in the queue, asks for permission, then cancels what is there."""

    async def cancel_run(self, session: str, prompt: str) -> None:
        place = next((nth for nth, (its, _) in enumerate(self.queue[session]) if its == prompt), None)
        await database()
        if place is not None and place < len(self.queue[session]):
            self.queue[session][place][1].cancel()
            del self.queue[session][place]


class Rarer(Flight):
    """The adapter of what few dispatchers can do."""

    features = Features()

    async def do_reject(self, session: str, run: str) -> None:
        answer = await self.mine.reject(session, run)
        if answer is None:
            self.refused(run)
        else:
            self.watch(run, answer)

    async def do_interrupt(self, session: str, run: str) -> None:
        self.watch(run, await self.mine.interrupt(session, run))

    async def do_cancel_run(self, run: str) -> None:
        await self.mine.cancel_run(self._session_of[run], run)


class FoldsWhatWas(Folding):
    """Looks at the queue, renders the prompts, then folds them, whatever has happened to them."""

    features = Features(folds=True, clear=True)

    async def do_fold(self, run: str) -> Sequence[str]:
        session = self.sessions[run]
        taken = list(self.queue[session])
        await database()
        for each in set(taken) & set(self.queue[session]):
            self.queue[session].remove(each)
        self.turns[session][0].extend(taken)
        return taken


class FoldsTooLate(Folding):
    """Takes the prompts off the queue, renders them, then folds them: a cancel meanwhile loses them."""

    features = Features(folds=True)

    async def do_fold(self, run: str) -> Sequence[str]:
        session = self.sessions[run]
        taken = self.queue.pop(session, [])
        await database()
        self.turns[session][0].extend(taken)
        return taken


class EntersLate(AsyncioSubject):
    """Two phases: to enter asks whether a cancel covers the run, goes to the database, then forgets it."""

    __test__ = False
    features = Features(two_phase=True)

    def start(self) -> None:
        self.mine = Steps(self.runner)
        self.accepted: dict[str, tuple[str, Answer]] = {}
        self.gone: set[str] = set()

    async def do_accept(self, session: str, run: str) -> None:
        self.accepted[run] = (session, future())
        self.watch(run, self.accepted[run][1])

    async def do_enter(self, run: str) -> None:
        session, answer = self.accepted[run]
        covered = run in self.gone
        await database()
        del self.accepted[run]
        if covered:
            answer.cancel()
        else:
            self.mine.take_in(session, run, answer)

    async def do_cancel(self, session: str) -> None:
        self.gone.update(run for run, (its, _) in self.accepted.items() if its == session)
        self.mine.cover(session)


WRONG: list[type[AsyncioSubject]] = [
    *(
        type(kind.__name__, (Rarer,), {"kind": kind, "features": features})
        for kind, features in (
            (ForgetsWhose, Features()),
            (TearsDown, Features()),
            (HandsOffInATask, Features()),
            (AnswersTheLast, Features()),
            (CountsOutside, Features()),
            (BouncesTooFast, Features()),
            (RefusesSlowly, Features(reject=True)),
            (InterruptsByHalves, Features(interrupt=True)),
            (CancelsByPlace, Features(cancel_run=True)),
        )
    ),
    FoldsWhatWas,
    FoldsTooLate,
    EntersLate,
]
