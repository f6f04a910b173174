"""The adapter of a `Dispatcher`: everything that it has done can be read at any moment, without waiting.

The subscription of the event log is emptied in one step: a new one takes its place, and the old one is
closed, which can then be read to its end without waiting. So a look at the sessions and the place in the
event log belong together.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypeVar

from turngate import CursorExpired, Moved, RunComplete, SubscriberCutOff
from turngate.server._backend import BEGINS_ANEW, InFlight, Passed, runs_of
from turngate.server._cursor import mark

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from turngate import Dispatcher, Event, Run, SessionView, Subscription
    from turngate.server._cursor import Cursor
    from turngate.server._event_log import EventLog

T = TypeVar("T")
logger = logging.getLogger("turngate.server")


class MemoryBackend:
    """Serves a `Dispatcher`; see `Backend`."""

    outlives_process = False

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.dispatcher = dispatcher
        self.passed = Passed()
        self._log: EventLog
        self._events: Subscription
        self._ahead: dict[str, str] = {}
        self._dropped = 0
        self._losses = 0
        """How often completions were forgotten before they could be read."""
        self._is_over = False

    @property
    def dropped(self) -> int:
        return self._dropped + self._events.dropped

    async def find(self, run_id: str) -> Run | None:
        return self.dispatcher.find(run_id)

    async def look(self, session_id: str | None, place: Callable[[], T]) -> tuple[T, Sequence[SessionView]]:
        await self.drain()
        views = self.dispatcher.sessions() if session_id is None else [self.dispatcher.session(session_id)]
        return place(), views

    def in_flight(self) -> InFlight:
        views = self.dispatcher.sessions()
        return InFlight(len(views), sum(len(runs_of(view)) for view in views))

    def has_room(self, session_id: str, sessions_limit: int) -> bool:
        if self.dispatcher.session_count() < sessions_limit:
            return True
        return bool(runs_of(self.dispatcher.session(session_id)))

    async def begin(self, log: EventLog) -> None:
        self._log = log
        self._events = self.dispatcher.subscribe(moves=True)
        self.passed = Passed(self.dispatcher.end_cursor())

    async def follow(self) -> None:
        while True:
            events = self._events
            try:
                event = await anext(events, None)
            except SubscriberCutOff:
                if events is self._events:
                    self._begin_anew()
                continue
            if events is self._events:  # if not, another task has emptied it meanwhile
                if event is None:
                    return
                await self.drain(event)

    def expect(self, run_id: str, prompt: str) -> None:
        """Do nothing: the dispatcher can be asked for the prompt."""

    async def catch_up_with(self, place: Cursor) -> None:
        """Refuse a place where no log of this dispatcher can have been; there is nothing to wait for."""
        d, ahead = self.dispatcher, set(place.ahead)
        if ahead:
            async for _, complete in d.completions(place.completions, until=d.end_cursor()):
                ahead.discard(mark(complete))
        if ahead:
            raise CursorExpired("there is no such run")

    def call_before_close(self, call: Callable[[], Awaitable[None]]) -> None:
        """Do nothing: the dispatcher can be read after it is closed, too."""

    async def hasten_close(self) -> None:
        await self.dispatcher.cancel_all()

    async def drain(self, *first: Event) -> None:
        """Put what the subscription holds into the log, after an event that was taken from it; never waits.

        If that fails, what was taken may be lost, so the log begins anew.
        """
        if self._is_over:
            return
        events, self._events = self._events, self.dispatcher.subscribe(moves=True)
        events.close()
        self._dropped += events.dropped
        try:
            for event in first:
                await self._put(event)
            async for event in events:
                await self._put(event)
            await self._pass_completions(told_only=False)
        except SubscriberCutOff:
            self._begin_anew()
        except Exception:
            logger.exception("the event log failed")
            self._begin_anew()

    def end(self) -> None:
        self._is_over = True
        self._events.close()

    async def _put(self, event: Event) -> None:
        prompt = None
        if isinstance(event, RunComplete):
            self._ahead[event.run_id] = mark(event)
            await self._pass_completions(told_only=True)
        elif isinstance(event, Moved) and event.event == "accept" and event.run_id is not None:
            run = self.dispatcher.find(event.run_id)
            prompt = None if run is None else run.prompt or None
        self._log.append(event, prompt)

    async def _pass_completions(self, *, told_only: bool) -> None:
        """Take note of completions that are in the log, as far as they come one after another; never waits.

        One that was told before the log subscribed may be kept only after that. So when everything that the
        dispatcher has told is in the log, all completions are. If some were forgotten before they could be
        read, the events until then have a cursor that no reader can go on from.
        """
        d, passed = self.dispatcher, self.passed.completions
        if not told_only and passed == d.end_cursor():
            return
        try:
            async for cursor, complete in d.completions(passed, until=d.end_cursor()):
                if told_only and complete.run_id not in self._ahead:
                    break
                self._ahead.pop(complete.run_id, None)
                passed = cursor
        except CursorExpired:
            self._ahead.clear()
            self._losses += told_only
            passed = f"lost.{self._losses}" if told_only else d.end_cursor()
        self.passed = Passed(passed, frozenset(self._ahead.values()))

    def _begin_anew(self) -> None:
        """Subscribe again: the log does not hold all that has happened."""
        logger.warning(BEGINS_ANEW)
        self._log.forget()
        self._events.close()
        self._dropped += self._events.dropped
        self._events = self.dispatcher.subscribe(moves=True)
        self._ahead.clear()
        self.passed = Passed(self.dispatcher.end_cursor())
