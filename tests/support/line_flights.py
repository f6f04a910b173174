"""Dispatchers for asyncio whose callers hold, move, edit and send what waits: a right one, and wrong ones.

The wrong ones are the known-bad designs with holds, moves and edits that can be seen from outside.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from flights import Answer, Runner, database, future, settle
from turngate_verify.conform import AsyncioSubject, Features, Fold


class NotPossible(Exception):
    """What is asked for is refused."""


@dataclass(eq=False)
class Entry:
    """A prompt that waits or runs."""

    run: str
    lane: Lane
    seq: int
    text: str
    into: Entry | None = None
    answer: Answer = field(default_factory=future)
    queued: bool = False
    covered: bool = False
    held: bool = False
    rank: int = 0


class Lane:
    """A session."""

    def __init__(self) -> None:
        self.line: list[Entry] = []
        """What is accepted or queued, in its order."""
        self.turn: list[Entry] = []
        self.covered = False
        self.task: asyncio.Future[str] | None = None
        self.flag = False
        self.mark = 0


class Line:
    """Every decision is one step."""

    def __init__(self, run: Runner) -> None:
        self.run = run
        self.lanes: defaultdict[str, Lane] = defaultdict(Lane)
        self.entries: dict[str, Entry] = {}
        self.accepts = 0
        self.tasks: set[asyncio.Task[Any]] = set()
        self.completed: Callable[..., None] = lambda run, **how: None
        """Shows a RunComplete beside the future."""

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def accept(self, session: str, run: str, into: str = "") -> Entry:
        lane, lead = self.lanes[session], None
        if into:
            lead = self.entries.get(into)
            if lead not in lane.turn or lane.covered or lane.task is None or lane.task.done():
                raise NotPossible
            lead = lane.turn[0]
        self.accepts += 1
        entry = self.entries[run] = Entry(run, lane, self.accepts, run, lead, rank=self.accepts)
        lane.line.append(entry)
        return entry

    def enter(self, run: str) -> None:
        entry = self.entries[run]
        lane = entry.lane
        if entry not in lane.line:
            return  # released meanwhile
        if self.covers(entry):
            lane.line.remove(entry)
            entry.answer.cancel()
        elif lane.turn or entry.held:
            entry.queued = True
        else:
            self.begin(entry)

    def covers(self, entry: Entry) -> bool:
        return entry.covered

    def begin(self, entry: Entry) -> None:
        lane = entry.lane
        lane.line.remove(entry)
        lane.turn, lane.covered = [entry], False
        lane.task = asyncio.ensure_future(self.run(entry.text))
        lane.task.add_done_callback(lambda task: self.over(lane, task))

    def over(self, lane: Lane, task: asyncio.Future[str]) -> None:
        lead = lane.turn[0]
        for entry in lane.turn:
            settle(entry.answer, task, covered=lane.covered)
        lane.turn = []
        self.release(lane, lead)
        self.next(lane)

    def release(self, lane: Lane, lead: Entry) -> None:
        for entry in [entry for entry in lane.line if entry.into is lead]:
            lane.line.remove(entry)
            if entry.covered:
                entry.answer.cancel()
            else:
                entry.answer.set_exception(RuntimeError("the turn that it was for is over"))

    def next(self, lane: Lane) -> None:
        for entry in lane.line:
            if entry.queued and not entry.held:
                self.begin(entry)
                return

    def fold(self, lead: str) -> list[Entry]:
        lane = self.entries[lead].lane
        if lane.covered:
            return []
        taken = [entry for entry in lane.line if entry.queued and self.may_fold(entry)]
        for entry in taken:
            lane.line.remove(entry)
            lane.turn.append(entry)
        return taken

    def may_fold(self, entry: Entry) -> bool:
        return not entry.held

    async def cancel(self, session: str) -> None:
        lane = self.lanes[session]
        for entry in list(lane.line):
            if not entry.queued:
                entry.covered = True
            elif self.drops(entry):
                lane.line.remove(entry)
                entry.answer.cancel()
        self.cover(lane)

    def drops(self, entry: Entry) -> bool:
        return True

    def cover(self, lane: Lane) -> None:
        if lane.turn and lane.task is not None:
            lane.covered = True
            lane.task.cancel()

    async def clear(self, session: str) -> None:
        lane = self.lanes[session]
        for entry in [entry for entry in lane.line if entry.queued]:
            lane.line.remove(entry)
            entry.answer.set_exception(RuntimeError("cleared"))

    async def cancel_run(self, run: str) -> None:
        entry = self.entries[run]
        lane = entry.lane
        if entry in lane.turn:
            self.cover(lane)
        elif entry in lane.line and entry.queued:
            lane.line.remove(entry)
            entry.answer.cancel()
        elif entry in lane.line:
            entry.covered = True

    # What waits in line.

    def waiting(self, run: str) -> Entry:
        entry = self.entries[run]
        if entry not in entry.lane.line:
            raise NotPossible
        return entry

    async def hold(self, session: str) -> None:
        self.hold_all(self.lanes[session])

    def hold_all(self, lane: Lane) -> None:
        for entry in lane.line:
            entry.held = True

    async def resume(self, session: str) -> None:
        lane = self.lanes[session]
        for entry in lane.line:
            entry.held = False
        self.next_if_idle(lane)

    def next_if_idle(self, lane: Lane) -> None:
        if not lane.turn:
            self.next(lane)

    async def hold_run(self, run: str) -> None:
        self.waiting(run).held = True

    async def resume_run(self, run: str) -> None:
        entry = self.waiting(run)
        entry.held = False
        self.next_if_idle(entry.lane)

    async def stop(self, session: str) -> None:
        lane = self.lanes[session]
        self.cover(lane)
        self.hold_all(lane)

    async def move(self, run: str, before: str | None) -> None:
        entry = self.waiting(run)
        lane = entry.lane
        other = self.waiting(before) if before else None
        lane.line.remove(entry)
        lane.line.insert(lane.line.index(other) if other else len(lane.line), entry)

    async def edit(self, run: str, text: str) -> None:
        self.waiting(run).text = text

    async def send_now(self, run: str) -> None:
        entry = self.waiting(run)
        lane = entry.lane
        if not entry.queued:
            raise NotPossible
        lane.line.remove(entry)
        lane.line.insert(0, entry)
        entry.held, entry.into = False, None
        if lane.turn:
            self.cover(lane)
        else:
            self.next(lane)


# More right ones.


class SlowLine(Line):
    """Settles with a database inside, and does everything under a lock for each session."""

    def __init__(self, run: Runner) -> None:
        super().__init__(run)
        self.locks: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def under(self, lane: Lane, work: Callable[[], Any]) -> Any:
        async with self.locks[id(lane)]:
            await database()
            done = work()
            return await done if asyncio.iscoroutine(done) else done

    def over(self, lane: Lane, task: asyncio.Future[str]) -> None:
        self.spawn(self.under(lane, lambda: Line.over(self, lane, task)))

    async def cancel(self, session: str) -> None:
        await self.under(self.lanes[session], lambda: Line.cancel(self, session))

    async def hold(self, session: str) -> None:
        await self.under(self.lanes[session], lambda: Line.hold(self, session))

    async def resume(self, session: str) -> None:
        await self.under(self.lanes[session], lambda: Line.resume(self, session))

    async def stop(self, session: str) -> None:
        await self.under(self.lanes[session], lambda: Line.stop(self, session))

    async def move(self, run: str, before: str | None) -> None:
        await self.under(self.entries[run].lane, lambda: Line.move(self, run, before))

    async def edit(self, run: str, text: str) -> None:
        await self.under(self.entries[run].lane, lambda: Line.edit(self, run, text))

    async def send_now(self, run: str) -> None:
        await self.under(self.entries[run].lane, lambda: Line.send_now(self, run))


class TickLine(Line):
    """Holds, resumes and cancels are done in the next callback of the loop."""

    async def hold(self, session: str) -> None:
        asyncio.get_running_loop().call_soon(self.hold_all, self.lanes[session])

    async def resume(self, session: str) -> None:
        def resume() -> None:
            for entry in self.lanes[session].line:
                entry.held = False
            self.next_if_idle(self.lanes[session])

        asyncio.get_running_loop().call_soon(resume)

    async def stop(self, session: str) -> None:
        def stop() -> None:
            self.cover(self.lanes[session])
            self.hold_all(self.lanes[session])

        asyncio.get_running_loop().call_soon(stop)


RIGHT: list[type[Line]] = [Line, SlowLine, TickLine]


# Wrong ones.


class HoldFlagConsumed(Line):
    """A hold is a flag that the first run which would start consumes."""

    breaks: ClassVar[str] = "HELD"

    def hold_all(self, lane: Lane) -> None:
        lane.flag = True

    def next(self, lane: Lane) -> None:
        if lane.flag:
            lane.flag = False
            return
        super().next(lane)


class HoldPoisonsNew(Line):
    """A hold is a flag of the session: a prompt accepted later is held too."""

    breaks: ClassVar[str] = "NO_STRAND"

    def hold_all(self, lane: Lane) -> None:
        super().hold_all(lane)
        lane.flag = True

    def accept(self, session: str, run: str, into: str = "") -> Entry:
        entry = super().accept(session, run, into)
        entry.held = entry.lane.flag
        return entry

    async def resume(self, session: str) -> None:
        self.lanes[session].flag = False
        await super().resume(session)


class HoldForgetsAccepted(Line):
    """A hold takes the queue and forgets what is accepted and has not entered."""

    breaks: ClassVar[str] = "HELD"

    def hold_all(self, lane: Lane) -> None:
        for entry in lane.line:
            entry.held = entry.held or entry.queued


class HeldEscapesCancel(Line):
    """A cancel drops what can run and leaves what is held."""

    breaks: ClassVar[str] = "EXACTLY_ONE_COMPLETE"

    def drops(self, entry: Entry) -> bool:
        return not entry.held


class FoldTakesHeld(Line):
    """A fold takes from the head of the queue, held or not."""

    breaks: ClassVar[str] = "HELD"

    def may_fold(self, entry: Entry) -> bool:
        return True


class StopInTwo(Line):
    """A stop is a cancel of the turn and then a hold."""

    breaks: ClassVar[str] = "HELD"

    async def stop(self, session: str) -> None:
        self.cover(self.lanes[session])
        await database()
        await database()
        self.hold_all(self.lanes[session])


class ResumeStartsTwo(Line):
    """A resume starts a run without asking whether a turn is active."""

    breaks: ClassVar[str] = "ONE_TURN"

    def next_if_idle(self, lane: Lane) -> None:
        self.next(lane)


class ResumeLost(Line):
    """A resume while a turn settles is forgotten."""

    breaks: ClassVar[str] = "NO_STRAND"

    def over(self, lane: Lane, task: asyncio.Future[str]) -> None:
        async def end() -> None:
            await database()
            Line.over(self, lane, task)

        self.spawn(end())

    async def resume(self, session: str) -> None:
        lane = self.lanes[session]
        if not (lane.turn and lane.task is not None and lane.task.done()):
            await super().resume(session)


class EditAfterStart(Line):
    """An edit is accepted although the runner has been called."""

    breaks: ClassVar[str] = "AS_EDITED"

    async def edit(self, run: str, text: str) -> None:
        entry = self.entries[run]
        if entry not in (*entry.lane.line, *entry.lane.turn):
            raise NotPossible
        entry.text = text


class EditLost(Line):
    """An edit is acknowledged, and the runner gets the old prompt."""

    breaks: ClassVar[str] = "AS_EDITED"

    async def edit(self, run: str, text: str) -> None:
        self.waiting(run)


class MoveDuplicates(Line):
    """A move inserts before it removes."""

    breaks: ClassVar[str] = "EXACTLY_ONE_COMPLETE"

    async def move(self, run: str, before: str | None) -> None:
        entry = self.waiting(run)
        line = entry.lane.line
        other = self.waiting(before) if before else None
        line.insert(line.index(other) if other else len(line), entry)

    async def cancel(self, session: str) -> None:
        line = self.lanes[session].line
        for entry in [entry for entry in set(line) if line.count(entry) > 1 and entry.queued]:
            line.remove(entry)
            self.completed(entry.run, cancelled=True)
        await super().cancel(session)


class CancelByPlace(Line):
    """The mark is compared with the place instead of the sequence."""

    breaks: ClassVar[str] = "NEVER_POISONED"

    def __init__(self, run: Runner) -> None:
        super().__init__(run)
        self.alone: set[str] = set()

    async def move(self, run: str, before: str | None) -> None:
        await super().move(run, before)
        line = self.entries[run].lane.line
        for entry, rank in zip(line, sorted(entry.rank for entry in line), strict=True):
            entry.rank = rank

    async def cancel(self, session: str) -> None:
        lane = self.lanes[session]
        if any(not entry.queued for entry in lane.line):
            lane.mark = self.accepts
        await super().cancel(session)

    async def cancel_run(self, run: str) -> None:
        await super().cancel_run(run)
        self.alone.add(run)

    def covers(self, entry: Entry) -> bool:
        return entry.rank <= entry.lane.mark or entry.run in self.alone


class MadeUpRank(Line):
    """A move to the end takes the highest rank plus one."""

    breaks: ClassVar[str] = "FIFO"

    def accept(self, session: str, run: str, into: str = "") -> Entry:
        entry = super().accept(session, run, into)
        entry.lane.line.sort(key=lambda entry: entry.rank)
        return entry

    async def move(self, run: str, before: str | None) -> None:
        await super().move(run, before)
        entry = self.entries[run]
        if before is None:
            entry.rank = max(each.rank for each in entry.lane.line) + 1
        else:
            for nth, each in enumerate(entry.lane.line):
                each.rank = each.rank if nth == 0 else max(each.rank, entry.lane.line[nth - 1].rank)


class LateSteer(Line):
    """A prompt for one turn is folded into the next."""

    breaks: ClassVar[str] = "DECLARED_MOVE"

    def release(self, lane: Lane, lead: Entry) -> None:
        for entry in lane.line:
            if entry.into is lead:
                entry.into = None


class RequeueEdit(Line):
    """An edit takes the run back and submits it again: what is seen first is that the run completes."""

    breaks: ClassVar[str] = "DECLARED_MOVE"

    async def edit(self, run: str, text: str) -> None:
        old = self.waiting(run)
        lane = old.lane
        lane.line.remove(old)
        self.accepts += 1
        new = self.entries[run] = Entry(run, lane, self.accepts, text, queued=old.queued, rank=self.accepts)
        lane.line.append(new)
        old.answer.set_exception(RuntimeError("taken back"))


WRONG: list[type[Any]] = [
    HoldFlagConsumed, HoldPoisonsNew, HoldForgetsAccepted, HeldEscapesCancel, FoldTakesHeld, StopInTwo,
    ResumeStartsTwo, ResumeLost, EditAfterStart, EditLost, MoveDuplicates, CancelByPlace, MadeUpRank,
    LateSteer, RequeueEdit,
]  # fmt: skip


class LineFlight(AsyncioSubject):
    """The adapter of a caller who watches the future."""

    __test__ = False
    features = Features(
        two_phase=True, folds=True, clear=True, cancel_run=True, hold=True, stop=True, move=True, edit=True,
        send_now=True, into=True,
    )  # fmt: skip
    kind: ClassVar[type[Line]] = Line

    def start(self) -> None:
        self.mine = self.kind(self.runner)
        self.mine.completed = self.completed

    def watch_entry(self, run: str) -> None:
        self.watch(run, self.mine.entries[run].answer)

    async def do_accept(self, session: str, run: str) -> None:
        self.mine.accept(session, run)
        self.watch_entry(run)

    async def do_into(self, session: str, run: str, into: str) -> None:
        try:
            self.mine.accept(session, run, into)
        except NotPossible:
            self.refused(run)
        else:
            self.watch_entry(run)

    async def do_enter(self, run: str) -> None:
        self.mine.enter(run)

    async def do_cancel(self, session: str) -> None:
        await self.mine.cancel(session)

    async def do_clear(self, session: str) -> None:
        await self.mine.clear(session)

    async def do_cancel_run(self, run: str) -> None:
        await self.mine.cancel_run(run)

    async def do_fold(self, run: str) -> Sequence[str]:
        for entry in self.mine.fold(run):
            self.saw(Fold(entry.run, run))
            self.given(entry.run, entry.text)
        return ()

    async def do_hold(self, session: str) -> None:
        await self.mine.hold(session)

    async def do_resume(self, session: str) -> None:
        await self.mine.resume(session)

    async def do_stop(self, session: str) -> None:
        await self.mine.stop(session)

    async def do_hold_run(self, run: str) -> None:
        await self.try_to(run, "hold_run", self.mine.hold_run(run))

    async def do_resume_run(self, run: str) -> None:
        await self.try_to(run, "resume_run", self.mine.resume_run(run))

    async def do_move(self, run: str, before: str | None) -> None:
        await self.try_to(run, "move", self.mine.move(run, before))

    async def do_edit(self, run: str, prompt: str) -> None:
        await self.try_to(run, "edit", self.mine.edit(run, prompt))
        self.watch_again(run)

    async def do_send_now(self, run: str) -> None:
        await self.try_to(run, "send_now", self.mine.send_now(run))

    async def try_to(self, run: str, operation: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except NotPossible:
            self.refused(run, operation)

    def watch_again(self, run: str) -> None:
        """Watch the future of a run that was submitted again."""
        if isinstance(self.mine, RequeueEdit) and not (answer := self.mine.entries[run].answer).done():
            self._look()
            self.watch(run, answer)


def line_flight(kind: type[Line]) -> type[LineFlight]:
    """Return an adapter for a kind of dispatcher."""
    return type(f"LineFlight{kind.__name__}", (LineFlight,), {"kind": kind})
