"""The log of a dispatcher in memory: whatever it has told can be had at any moment, in one step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from turngate import CursorExpired, Moved, RunComplete, SubscriberCutOff
from turngate.server._backend import at_hand
from turngate.server._cursor import LOST, mark
from turngate.server._log import BEGINS_ANEW, EventLog, log
from turngate.server._shapes import shown

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from turngate import Event
    from turngate.server._cursor import Cursor


class MemoryLog(EventLog):
    """Follows a `Dispatcher`.

    The subscription is emptied in one step whenever somebody looks at the log, so a look at the sessions and
    the place in the log belong together (`look`).
    """

    _completions: AsyncIterator[tuple[str, RunComplete]]
    _next: tuple[str, RunComplete] | None = None
    """The next completion, if it has been taken from there already."""
    _lost = 0

    async def begin(self) -> None:
        """Subscribe, and know where the completions stand."""
        self._events = self._d.subscribe(moves=True)
        self._pass(self._d.end_cursor())
        self._completions = self._d.completions(self._place.completions)
        self._count_anew(self._d.sessions())
        self._supervisor.start("the event log", self._follow)

    async def _follow(self) -> None:
        """Take what the dispatcher tells until it is closed."""
        while True:
            events = self._events
            assert events is not None
            try:
                event = await anext(events, None)
            except SubscriberCutOff:
                if events is self._events:
                    self._begin_anew()
            else:
                if event is None and events is self._events:
                    break
                self._put_in(() if event is None else (event,))
                self.flush()
        self.flush()
        self._finish()

    async def drain(self) -> None:
        """Put into the log all that the dispatcher has told up to now."""
        self.flush()

    def flush(self) -> None:
        """Put into the log all that the dispatcher has told by now."""
        if self._events is not None and not self.ended.is_set():
            self._put_in(at_hand(self._events))

    def _put_in(self, events: Iterable[Event]) -> None:
        """Put events into the log. If that fails, what was taken may be lost, so the log begins anew."""
        try:
            for event in events:
                self._take(event)
            # Nothing is new among the completions unless something is ahead of them.
            while self._ahead and self._peek() is not None:
                self._pass_next()
        except SubscriberCutOff:
            self._begin_anew()
        except Exception:
            log.exception("the event log failed")
            self._begin_anew()

    async def catch_up_with(self, place: Cursor) -> None:
        """Know that somebody can have been there; what the dispatcher has told is in the log by now."""
        ahead = set(place.ahead)
        if ahead:
            async for _, complete in self._d.completions(place.completions, until=self._d.end_cursor()):
                ahead.discard(mark(complete.run_id))
        if ahead:
            raise CursorExpired("there is no such run")

    def remember_prompt(self, run_id: str, prompt: str) -> None:
        """Do nothing: the dispatcher is asked for it."""

    def _begin_anew(self) -> None:
        """Subscribe again: the ring does not hold all that has happened."""
        log.warning(BEGINS_ANEW)
        self._forget()
        self._dropped = self.dropped
        if self._events is not None:
            self._events.close()
        self._events = self._d.subscribe(moves=True)
        self._count_anew(self._d.sessions())
        while self._peek() is not None:
            self._pass_next()

    def _take(self, event: Event) -> None:
        """Put one event into the log."""
        prompt = None
        if isinstance(event, RunComplete):
            following = self._peek()
            self._ahead.add(event.run_id)
            if following is not None and following[1].run_id == event.run_id:
                self._pass_next()
            else:
                self._move_place()
        elif isinstance(event, Moved) and event.event == "accept" and event.run_id is not None:
            run = self._d.find(event.run_id)
            prompt = None if run is None or not run.prompt else shown(run.prompt)
        self._append(event, prompt)

    # What the completions say.

    def _peek(self) -> tuple[str, RunComplete] | None:
        """Return the next completion, None if there is none yet."""
        if self._next is None:
            try:
                self._next = next(at_hand(self._completions), None)
            except CursorExpired:
                self._lose_completions()
        return self._next

    def _pass_next(self) -> None:
        assert self._next is not None
        (cursor, complete), self._next = self._next, None
        self._ahead.discard(complete.run_id)
        self._pass(cursor)

    def _lose_completions(self) -> None:
        """Begin again with the completions that are kept: more were forgotten than had been read.

        Until the next one comes, no place is known in them from which one could go on.
        """
        self._completions, self._next = self._d.completions(), None
        self._ahead.clear()
        self._lost += 1
        self._pass(f"{LOST}{self._lost}")
