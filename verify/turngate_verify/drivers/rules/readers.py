"""A subscriber that reads only on command. If it lags too far behind, the dispatcher cuts it off."""

from __future__ import annotations

import asyncio

from turngate import Delta, Note, RunComplete, SubscriberCutOff
from turngate._events import Event
from turngate_model import Property
from turngate_verify.drivers.rules.world import RulesWorld
from turngate_verify.world.expecting import expect


class Reader:
    """One subscription, the events read from it, and what it should have received."""

    def __init__(self, world: RulesWorld, session: str | None, limit: int) -> None:
        self.session = session
        self.read_so_far: list[Event] = []
        self.cut_off = False
        self._ended = False
        self._world = world
        self._limit = limit
        self._from = world.received
        """How many RunCompletes the world had seen when the reader subscribed."""
        self._to: int | None = None
        """The same for when it unsubscribed."""
        self._read_at: list[int] = []
        """For each RunComplete that it read: how many the world had seen by then."""
        self._deltas = -self._written()
        """How many deltas it should receive; known once it has unsubscribed."""
        self._reading: asyncio.Task[None] | None = None
        with world.loop:
            self._events = world.dispatcher.subscribe(session)

    def read(self) -> asyncio.Task[None] | None:
        """Read one event in a task, unless such a task still waits for one."""
        if self.waits:
            return None
        self._reading = self._world.loop.create_task(self._next(), name="reads")
        return self._reading

    @property
    def waits(self) -> bool:
        """Whether a task still waits for an event."""
        return self._reading is not None and not self._reading.done()

    async def _next(self) -> None:
        try:
            async for event in self._events:
                self.read_so_far.append(event)
                if isinstance(event, RunComplete):
                    self._read_at.append(self._world.received)
                return
        except SubscriberCutOff:
            self.cut_off = True
        self._ended = True

    def unsubscribe(self) -> None:
        """Unsubscribe; what was received before can still be read."""
        if self._to is None:
            self._to = self._world.received
            self._deltas += self._written()
            with self._world.loop:
                self._events.close()

    def expect_nothing_missing(self) -> None:
        """Read the rest, and expect every RunComplete up to where the dispatcher should cut the reader off.

        Up to there every delta was read or dropped. Later ones may be neither.
        """
        self.unsubscribe()
        while not self._ended:
            self._world.loop.call(self._next())
        seen = [event for event in self.read_so_far if isinstance(event, RunComplete)]
        should, cut_off = self._should()
        if seen != should:
            missed = f"a subscriber to {self.session or 'all'} received {seen}: it should receive {should}"
            self._world.monitor.violate(Property.EXACTLY_ONE_COMPLETE, missed)
        self._world.monitor.raise_what_is_broken()
        if not self._world.monitor.claimed:
            expect(self.cut_off == cut_off, f"a subscriber is {'' if self.cut_off else 'not '}cut off")
            deltas = len(self.read_so_far) - len(seen) + self._events.dropped
            accounted_for = deltas <= self._deltas if cut_off else deltas == self._deltas
            expect(accounted_for, f"{deltas} deltas were read or dropped, of {self._deltas}")

    def _should(self) -> tuple[list[RunComplete], bool]:
        """Return the RunCompletes that the reader should receive, and whether it is then cut off."""
        should: list[RunComplete] = []
        for nth, complete in enumerate(self._world.monitor.delivered[self._from : self._to], self._from):
            if self.session in (None, complete.session_id):
                unread = len(should) - sum(at <= nth for at in self._read_at)
                if unread == self._limit:
                    return should, True
                should.append(complete)
        return should, False

    def _written(self) -> int:
        """Return how many deltas there have been so far in what the reader subscribes to."""
        monitor = self._world.monitor
        written = monitor.deltas.copy()
        unread = monitor.events._unread
        written.update(event.session_id for event in unread if isinstance(event, Delta | Note))
        return written.total() if self.session is None else written[self.session]
