"""The adapter of a `DurableDispatcher`: it follows what every process does, as this one learns of it.

The subscription brings decisions and RunCompletes, and the ledger has an order of all completions. Either
may be the first to name a run. When it has come from one, the backend waits for the other:

1. A RunComplete that the subscription brings before the completions do is `ahead`, which the ids of events
   say (see `Cursor`). Ids have to stay short, so beyond a limit the backend waits for the completions.
2. A completion that the subscription has not brought yet is waited for. One that was committed before the
   subscription began, and is seen only now because a transaction elsewhere held it back, goes into the log
   at once: where the subscription begins says which is which.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, TypeVar

from turngate import CursorExpired, DispatcherClosed, Moved, RunComplete, SubscriberCutOff
from turngate.durable import LedgerUnavailable
from turngate.server._backend import BEGINS_ANEW, InFlight, Passed, find_prompt, runs_of
from turngate.server._cursor import mark
from turngate.server._models import SHOWN

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from turngate import Event, Run, SessionView, Subscription
    from turngate.durable import DurableDispatcher
    from turngate.server._cursor import Cursor
    from turngate.server._event_log import EventLog

T = TypeVar("T")
_AHEAD_LIMIT: Final = 16
"""RunCompletes that may be ahead of the completions, because ids have to stay short; then the log waits."""
_EXPECTED_LIMIT: Final = 4_096
"""Prompts that are remembered until the events of their runs come; the oldest are forgotten first."""
_ATTEMPTS: Final = 3
_PAUSE: Final = 0.1
"""Seconds between two attempts to reach a ledger."""

logger = logging.getLogger("turngate.server")


class LedgerBackend:
    """Serves a `DurableDispatcher`; see `Backend`."""

    outlives_process = True

    def __init__(self, dispatcher: DurableDispatcher) -> None:
        self.dispatcher = dispatcher
        self.passed = Passed()
        self._log: EventLog
        self._events: Subscription
        self._ahead: dict[str, str] = {}
        self._dropped = 0
        self._in_flight: dict[str, set[str]] = {}
        """The runs of each session that are in flight in any process, as far as this one has heard."""
        self._expected: dict[str, str] = {}
        """The prompts of runs that were submitted here and whose accept has not come as an event."""
        self._already_told: set[str] = set()
        """The runs that the subscription still mentions although they were complete before the log began."""
        self._changed = asyncio.Event()
        """Set when an event or a completion has come."""
        self._reads_completions = False
        self._is_subscribed = False
        """Whether the subscription and the place in the completions belong together."""
        self._is_draining = False
        """Whether the subscription is closed, and what is left in it is put into the log."""
        self._took_all = False
        """Whether all that was left has been put into the log."""
        self._is_over = asyncio.Event()
        self._brings: Callable[[str, str], bool] = lambda cursor, session_id: True
        """Says whether the subscription brings the completion of a cursor, which is of this session."""

    @property
    def dropped(self) -> int:
        return self._dropped + self._events.dropped

    async def find(self, run_id: str) -> Run | None:
        return await self.dispatcher.find(run_id)

    async def look(self, session_id: str | None, place: Callable[[], T]) -> tuple[T, Sequence[SessionView]]:
        at = place()
        if session_id is None:
            return at, await self.dispatcher.sessions()
        return at, [await self.dispatcher.session(session_id)]

    def in_flight(self) -> InFlight:
        """Count by the events of all processes, because asking the ledger would cost too much."""
        return InFlight(len(self._in_flight), sum(map(len, self._in_flight.values())))

    def has_room(self, session_id: str, sessions_limit: int) -> bool:
        return len(self._in_flight) < sessions_limit or session_id in self._in_flight

    def call_before_close(self, call: Callable[[], Awaitable[None]]) -> None:
        self.dispatcher.call_before_close(call)

    async def hasten_close(self) -> None:
        self.dispatcher.hasten_close()

    # The event log.

    async def begin(self, log: EventLog) -> None:
        self._log = log
        await self._subscribe()

    async def _subscribe(self) -> None:
        """Subscribe, and know of every completion whether it was there before.

        What has completed by the end counts as there before, because it is not in the log yet, even if the
        subscription brings it.
        """
        d = self.dispatcher
        self._events = d.subscribe(moves=True)
        start = await d.beginning(self._events)
        in_flight = {view.session_id: {run.run_id for run in runs_of(view)} for view in await d.sessions()}
        end = await d.settled_cursor()
        between = [each async for each in d.completions(start.cursor, until=end)]
        # In one step: a reader of the whole log so far has not heard of what completed up to here.
        if self.passed.completions:
            self._log.forget()
        self._in_flight = in_flight
        self._ahead.clear()
        self._brings = start.brings
        self._already_told = {
            complete.run_id for cursor, complete in between if start.brings(cursor, complete.session_id)
        }
        self.passed = Passed(end)
        self._is_subscribed = True
        self._changed.set()

    async def follow(self) -> None:
        """Follow the events and the completions until the dispatcher closes.

        When one of the two fails, the other stops too: what was taken and is not in the log may be lost, so
        both begin anew.
        """
        try:
            while True:
                if not self._is_subscribed:
                    logger.warning(BEGINS_ANEW)
                    self._dropped = self.dropped
                    self._events.close()
                    await self._subscribe()
                    if self._is_draining:
                        self._events.close()
                try:
                    await self._follow_both()
                    break
                except* (SubscriberCutOff, CursorExpired):  # it fell behind, or a purge passed it
                    pass
        except* DispatcherClosed:
            pass
        self.end()

    async def _follow_both(self) -> None:
        """Follow until the subscription ends; then the completions up to what it brought."""
        self._reads_completions, self._took_all = True, False
        try:
            async with asyncio.TaskGroup() as both:
                completions = both.create_task(self._follow_completions(), name="turngate completions")
                await self._follow_events()
                self._took_all = True
                self._changed.set()
                await self._until(lambda: not self._ahead or not self._reads_completions)
                completions.cancel()
        except BaseException:
            self._is_subscribed = False
            raise
        finally:
            self._reads_completions = False

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    async def drain(self) -> None:
        self._is_draining = True
        self._events.close()
        await self._is_over.wait()

    def end(self) -> None:
        self._events.close()
        self._is_over.set()
        self._changed.set()

    # What the subscription brings.

    async def _follow_events(self) -> None:
        """Put events into the log until the subscription ends."""
        async for event in self._events:
            await self._put(event)

    async def _put(self, event: Event) -> None:
        prompt = None
        if event.run_id in self._already_told:  # a reader may have its RunComplete from another process
            if isinstance(event, RunComplete):
                self._already_told.discard(event.run_id)
            self._count(event)
            return
        if isinstance(event, RunComplete):
            await self._until(lambda: len(self._ahead) < _AHEAD_LIMIT or not self._reads_completions)
            if len(self._ahead) >= _AHEAD_LIMIT:
                raise DispatcherClosed("the ledger was closed before all completions were read")
            self._ahead[event.run_id] = mark(event)
            self._pass(self.passed.completions)
        elif isinstance(event, Moved) and event.event == "accept" and event.run_id is not None:
            prompt = await self._prompt_of(event.run_id)
        self._append(event, prompt)
        self._changed.set()

    def _append(self, event: Event, prompt: str | None) -> None:
        self._count(event)
        self._log.append(event, prompt)

    def _count(self, event: Event) -> None:
        """Keep account of what is in flight."""
        if isinstance(event, Moved) and event.event == "accept" and event.run_id is not None:
            self._in_flight.setdefault(event.session_id, set()).add(event.run_id)
        elif isinstance(event, RunComplete):
            runs = self._in_flight.get(event.session_id, set())
            runs.discard(event.run_id)
            if not runs:
                self._in_flight.pop(event.session_id, None)

    def _pass(self, completions: str) -> None:
        self.passed = Passed(completions, frozenset(self._ahead.values()))

    def expect(self, run_id: str, prompt: str) -> None:
        """Remember the prompt of a run until its accept comes, so that the ledger need not be asked."""
        self._expected.pop(run_id, None)
        self._expected[run_id] = prompt[: SHOWN + 1]
        if len(self._expected) > _EXPECTED_LIMIT:  # of runs that were told before, or that were known already
            del self._expected[next(iter(self._expected))]

    async def _prompt_of(self, run_id: str) -> str | None:
        """Return the prompt of a run, which may have come to another process; None if it is not kept.

        The prompt of a complete run is among the messages, if the run had a turn.
        """
        for _ in range(_ATTEMPTS):
            if (prompt := self._expected.pop(run_id, None)) is not None:
                return prompt
            if self._is_draining:  # there is no time to ask for each
                return None
            try:
                run = await self.dispatcher.find(run_id)
                if run is None or run.prompt:
                    return None if run is None else run.prompt
                return await find_prompt(self.dispatcher.messages, run_id) or None
            except LedgerUnavailable:
                await asyncio.sleep(_PAUSE)
            except DispatcherClosed:
                return None
        return None

    # What the completions say.

    async def _follow_completions(self) -> None:
        """Know up to where all completions are in the log, and put in what is missing."""
        while True:
            try:
                async for cursor, complete in self.dispatcher.completions(self.passed.completions):
                    has_come = await self._await_arrival(cursor, complete)
                    self._pass(cursor)
                    if not has_come:
                        self._append(complete, None)
                    self._changed.set()
                break
            except LedgerUnavailable:
                await asyncio.sleep(_PAUSE)
            except DispatcherClosed:
                break
        self._reads_completions = False
        self._changed.set()

    async def _await_arrival(self, cursor: str, complete: RunComplete) -> bool:
        """Wait until the log has this completion; return False if the subscription does not bring it."""
        run_id = complete.run_id
        if self._brings(cursor, complete.session_id):
            await self._until(lambda: run_id in self._ahead or self._took_all)
        has_come = run_id in self._ahead
        self._ahead.pop(run_id, None)
        return has_come

    async def _last_until(self, wanted: str) -> list[str]:
        """Return the cursor of the last completion up to a position that is not in the log yet, if any."""
        d = self.dispatcher
        # Raises CursorExpired for a position on another ledger.
        async for _ in d.completions(wanted, until=wanted):
            pass
        while not self._is_over.is_set():
            passed = self.passed
            try:
                return [each async for each, _ in d.completions(passed.completions, until=wanted)][-1:]
            except CursorExpired:  # a purge has passed the log, not the reader: the log begins anew
                while self.passed is passed and not self._is_over.is_set():
                    self._changed.clear()
                    await self._changed.wait()
        return []

    async def catch_up_with(self, place: Cursor) -> None:
        d = self.dispatcher
        end, wanted = await d.settled_cursor(), place.completions
        if d.cursor_order(wanted) > d.cursor_order(end):
            raise CursorExpired("this position is not on this ledger")
        needed = await self._last_until(wanted)
        ahead = set(place.ahead)
        if ahead:
            async for cursor, complete in d.completions(wanted, until=end):
                if mark(complete) in ahead:
                    ahead.discard(mark(complete))
                    needed = [cursor]
        if ahead:
            raise CursorExpired("this ledger has no such run")
        if needed:
            last = d.cursor_order(needed[0])
            await self._until(
                lambda: d.cursor_order(self.passed.completions) >= last or self._is_over.is_set()
            )
