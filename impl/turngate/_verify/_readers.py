"""A subscriber that reads when it is told to, and in between lags."""

from __future__ import annotations

import asyncio

from turngate import RunComplete
from turngate._events import Event
from turngate_model import Property, Violation

from ._world import World


class Reader:
    """One subscription, what was read from it, and what should have been."""

    def __init__(self, world: World, session: str | None) -> None:
        self.session = session
        self.read_so_far: list[Event] = []
        self._world = world
        self._from = len(world.delivered)
        self._to: int | None = None
        self._deltas = -self._written()
        self._reading: asyncio.Task[None] | None = None
        with world.loop:
            self._events = world.dispatcher.subscribe(session)

    def read(self) -> asyncio.Task[None] | None:
        """Read one event in a task, which may have to wait; one at a time."""
        if self.waits:
            return None
        self._reading = self._world.loop.create_task(self._next(), name="reads")
        return self._reading

    @property
    def waits(self) -> bool:
        """Whether it is reading already."""
        return self._reading is not None and not self._reading.done()

    async def _next(self) -> None:
        async for event in self._events:
            self.read_so_far.append(event)
            return

    def unsubscribe(self) -> None:
        """Receive nothing more."""
        if self._to is None:
            self._to = len(self._world.delivered)
            self._deltas += self._written()
            with self._world.loop:
                self._events.close()

    def see_that_nothing_is_missing(self) -> None:
        """Read what is left, and see that no RunComplete is missing and every delta is accounted for."""
        self.unsubscribe()
        while self._events._unread:
            self._world.loop.call(self._next())
        seen = [event for event in self.read_so_far if isinstance(event, RunComplete)]
        should = [
            complete
            for complete in self._world.delivered[self._from : self._to]
            if self.session in (None, complete.session_id)
        ]
        if seen != should:
            missed = f"a subscriber to {self.session or 'all'} received {seen}: it should receive {should}"
            self._world.violations.append(Violation(Property.EXACTLY_ONE_COMPLETE, missed))
        deltas = len(self.read_so_far) - len(seen) + self._events.dropped
        if not self._world.claimed:
            assert deltas == self._deltas, f"{deltas} deltas were read or dropped, of {self._deltas}"
        self._world.raise_what_is_broken()

    def _written(self) -> int:
        written = self._world.deltas
        return written.total() if self.session is None else written[self.session]
