"""A small asyncio dispatcher, one lane per session, and the ways in which real ones have gone wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from turngate_verify.conform import AsyncioSubject, Features


class Lane:
    """One session: what waits, what runs, and what was done so far."""

    def __init__(self) -> None:
        self.waiting: list[tuple[str, asyncio.Future[str]]] = []
        self.active: asyncio.Task[None] | None = None
        self.lead = ""
        self.turns = 0


class Lanes:
    """Runs the prompts of a session one after the other. A subclass does one thing worse."""

    def __init__(self, run: Callable[[str], Awaitable[str]]) -> None:
        self.run = run
        self.lanes: dict[str, Lane] = {}
        self.open: dict[str, asyncio.Future[str]] = {}

    def submit(self, session: str, prompt: str) -> asyncio.Future[str]:
        lane = self.lanes.setdefault(session, Lane())
        done: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.open[prompt] = done
        lane.waiting.append((prompt, done))
        self.next(session, lane)
        return done

    def next(self, session: str, lane: Lane) -> None:
        if lane.active is None and lane.waiting:
            lane.turns += 1
            prompt, done = self.take(lane)
            lane.lead = prompt
            lane.active = asyncio.get_running_loop().create_task(self.turn(session, lane, prompt, done))

    def take(self, lane: Lane) -> tuple[str, asyncio.Future[str]]:
        return lane.waiting.pop(0)

    async def turn(self, session: str, lane: Lane, prompt: str, done: asyncio.Future[str]) -> None:
        try:
            text = await self.run(prompt)
        except asyncio.CancelledError:
            done.cancel()
        except Exception as error:
            done.set_exception(error)
        else:
            done.set_result(text)
        self.ended(session, lane, prompt)

    def ended(self, session: str, lane: Lane, prompt: str) -> None:
        self.open.pop(prompt, None)
        lane.active = None
        self.next(session, lane)
        if lane.active is None:
            self.lanes.pop(session, None)

    def cancel(self, session: str) -> None:
        lane = self.lanes.get(session, Lane())
        dropped, lane.waiting = lane.waiting, []
        for prompt, done in dropped:
            self.open.pop(prompt, None)
            done.cancel()
        if lane.active:
            self.interrupt(session, lane)

    def interrupt(self, session: str, lane: Lane) -> None:
        assert lane.active is not None
        lane.active.cancel()
        if not self.begun(lane):
            # A task that is cancelled before its first step runs nothing of its own: its run ends here.
            done = self.open.pop(lane.lead)
            done.cancel()
            self.ended(session, lane, lane.lead)

    def begun(self, lane: Lane) -> bool:
        assert lane.active is not None
        coroutine: Any = lane.active.get_coro()
        return coroutine.cr_await is not None

    def held(self) -> int:
        return len(self.lanes) + len(self.open)


class Zombies(Lanes):
    """Tells the caller that a run is cancelled, and lets its runner work on beside the next turn."""

    async def turn(self, session: str, lane: Lane, prompt: str, done: asyncio.Future[str]) -> None:
        working = asyncio.ensure_future(self.run(prompt))
        try:
            await asyncio.shield(working)
        except asyncio.CancelledError:
            done.cancel()
        except Exception as error:
            done.set_exception(error)
        else:
            done.set_result("text")
        self.ended(session, lane, prompt)


class MissesInTheSameTick(Lanes):
    """A cancel interrupts only a turn whose task has taken its first step."""

    def interrupt(self, session: str, lane: Lane) -> None:
        if self.begun(lane):
            super().interrupt(session, lane)


class LockRunsOut(Lanes):
    """Takes the lane away from a holder that has had it for a minute."""

    def next(self, session: str, lane: Lane) -> None:
        super().next(session, lane)
        held = lane.active
        if held is not None:
            asyncio.get_running_loop().call_later(60.0, self.take_away, session, lane, held)

    def take_away(self, session: str, lane: Lane, held: asyncio.Task[None]) -> None:
        if lane.active is held and lane.waiting:
            lane.active = None
            self.next(session, lane)


class NewestOfThree(Lanes):
    """Is fair to two who wait, and starts the newest of three."""

    def take(self, lane: Lane) -> tuple[str, asyncio.Future[str]]:
        return lane.waiting.pop(-1 if len(lane.waiting) > 2 else 0)


class StrandsAfterSix(Lanes):
    """Forgets to hand off once its lane has had six turns."""

    def next(self, session: str, lane: Lane) -> None:
        if lane.turns < 6:
            super().next(session, lane)


class StrandsAfterSixInAll(StrandsAfterSix):
    """Counts the turns of a session for ever, not only while it is busy."""

    def ended(self, session: str, lane: Lane, prompt: str) -> None:
        super().ended(session, lane, prompt)
        self.lanes[session] = lane


class LosesAStart(Lanes):
    """Takes the third of a lane out of the queue, and never calls its runner."""

    async def turn(self, session: str, lane: Lane, prompt: str, done: asyncio.Future[str]) -> None:
        if lane.turns == 3:
            await asyncio.get_running_loop().create_future()
        await super().turn(session, lane, prompt, done)


class LosesTheWakeUp(Lanes):
    """Starts an idle lane a tick later, and only with the run that came last in that tick."""

    def submit(self, session: str, prompt: str) -> asyncio.Future[str]:
        idle = session not in self.lanes
        done = super().submit(session, prompt)
        lane = self.lanes[session]
        if not idle and lane.active is not None and not self.begun(lane) and lane.waiting:
            lane.active.cancel()
            lane.active = None
            self.next(session, lane)
        return done


class KeepsLanes(Lanes):
    """Keeps a lane for every session there ever was."""

    def ended(self, session: str, lane: Lane, prompt: str) -> None:
        super().ended(session, lane, prompt)
        self.lanes[session] = lane


class KeepsFailures(Lanes):
    """Keeps what it knows of a run that failed."""

    def ended(self, session: str, lane: Lane, prompt: str) -> None:
        done = self.open.get(prompt)
        super().ended(session, lane, prompt)
        if done is not None and not done.cancelled() and done.exception():
            self.open[prompt] = done


def subject(kind: type[Lanes], **more: bool) -> type[AsyncioSubject]:
    """Return the adapter of a dispatcher, with these features beside cancel."""

    class LanesSubject(AsyncioSubject):
        __test__ = False
        features = Features(**more)
        returns_when_done = True
        lanes: Lanes

        def start(self) -> None:
            self.lanes = kind(self.runner)

        async def do_accept(self, session: str, run: str) -> None:
            self.watch(run, self.lanes.submit(session, run))

        async def do_cancel(self, session: str) -> None:
            self.lanes.cancel(session)

        def residue(self) -> int:
            return self.lanes.held()

    LanesSubject.__name__ = f"{kind.__name__}Subject"
    return LanesSubject
