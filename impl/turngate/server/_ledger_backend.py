"""The log of a dispatcher on a ledger: what every process does, as this one comes to hear of it.

The subscription brings moves and RunCompletes, and the ledger has an order of all completions. Neither has to
be the first to tell of a run, so the log waits for the one when it has heard of the other:

1. A RunComplete that the subscription brings before the completions do is `ahead`, which the ids of events
   say (see `Cursor`). Ids are to stay short, so at some point the log waits for the completions.
2. A completion that the subscription has not brought yet is waited for. One that was committed before the
   subscription began, and is seen only now because a transaction elsewhere held it back, is put into the log
   at once: where the subscription begins says which is which.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, cast

from turngate import CursorExpired, DispatcherClosed, Moved, RunComplete, SubscriberCutOff
from turngate.durable import LedgerUnavailable
from turngate.server._cursor import mark, order, plain
from turngate.server._log import BEGINS_ANEW, EventLog, log
from turngate.server._shapes import shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from turngate import Event
    from turngate.server._backend import AnyDispatcher, OnLedger
    from turngate.server._cursor import Cursor
    from turngate.server._limits import Limits

_MOST_AHEAD: Final = 16
"""So many RunCompletes may be ahead of the completions, for ids are to stay short; then the log waits."""
_REMEMBERED: Final = 4_096
"""So many prompts are remembered until their runs are told; the oldest are forgotten first."""
_ATTEMPTS: Final = 3
_PAUSE: Final = 0.1
"""Seconds between two attempts to reach a ledger."""


class LedgerLog(EventLog):
    """Follows a `DurableDispatcher`."""

    outlives_process = True

    def __init__(self, d: AnyDispatcher, limits: Limits) -> None:
        super().__init__(d, limits)
        self._prompts: dict[str, str] = {}
        self._unbidden: set[str] = set()
        """The runs whose completion the subscription brings although it counts as what was before."""
        self._changed = asyncio.Event()
        """Set when an event or a completion has come."""
        self._following = False
        """Whether the log reads the completions; if not, there will be no more of them."""
        self._subscribed = False
        """Whether the subscription and the place in the completions belong together."""
        self._draining = False
        """Whether the subscription is closed, and the log takes what is left in it."""
        self._took_all = False
        """Whether it has taken all that was left."""
        self._brings: Callable[[str], bool] = lambda cursor: True
        """Says whether the subscription brings the completion of a cursor."""

    async def begin(self) -> None:
        """Subscribe, and know where the completions stand."""
        await self._subscribe()
        self._supervisor.start("the event log", self._follow)

    async def drain(self) -> None:
        """Put into the log all that was told up to now, while the ledger can still be read."""
        self._draining = True
        if self._events is not None:
            self._events.close()
        await self.ended.wait()

    async def _subscribe(self) -> None:
        """Subscribe, and know of every completion on which side of the beginning it is.

        What completes between the two looks at the end counts as what was before, for nobody has heard of it
        yet, even if the subscription brings it.
        """
        before = plain(await self._d.end_cursor())
        self._events = self._d.subscribe(moves=True)
        brings = await cast("OnLedger", self._d).beginning(self._events)
        self._count_anew(await self._d.sessions())
        end = plain(await self._d.end_cursor())
        between = [each async for each in self._d.completions(before, until=end)]
        # In one step: whoever has read all of the ring has not heard of what completed up to here.
        if self.ring.head:
            self._forget()
        self._ahead.clear()
        self._brings = brings
        self._unbidden = {complete.run_id for cursor, complete in between if brings(cursor)}
        self._pass(end)
        self._subscribed = True
        self._changed.set()

    def _finish(self) -> None:
        super()._finish()
        self._changed.set()

    def flush(self) -> None:
        """Do nothing: to read from a ledger is to wait."""

    async def _follow(self) -> None:
        """Follow the events and the completions until the dispatcher closes.

        When one of the two fails, the other stops too: what was taken and is not in the log may be lost, so
        both begin anew. The supervisor calls this again when an attempt to begin anew fails.
        """
        try:
            while True:
                if not self._subscribed:
                    log.warning(BEGINS_ANEW)
                    self._dropped = self.dropped
                    if self._events is not None:
                        self._events.close()
                    await self._subscribe()
                    if self._draining and self._events is not None:
                        self._events.close()
                try:
                    await self._follow_both()
                    break
                except* (SubscriberCutOff, CursorExpired):  # it fell behind, or a purge passed it
                    pass
        except* DispatcherClosed:
            pass
        self._finish()

    async def _follow_both(self) -> None:
        """Follow until the subscription ends; then the completions up to what it brought."""
        self._following, self._took_all = True, False
        try:
            async with asyncio.TaskGroup() as both:
                completions = both.create_task(self._follow_completions(), name="turngate completions")
                await self._follow_events()
                self._took_all = True
                self._changed.set()
                await self._until(lambda: not self._ahead or not self._following)
                completions.cancel()
        except BaseException:
            self._subscribed = False
            raise
        finally:
            self._following = False

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    # What the subscription brings.

    async def _follow_events(self) -> None:
        """Take what the dispatcher tells until the subscription ends."""
        assert self._events is not None
        async for event in self._events:
            await self._take(event)

    async def _take(self, event: Event) -> None:
        """Put one event into the log."""
        prompt = None
        if isinstance(event, RunComplete):
            if event.run_id in self._unbidden:
                self._unbidden.discard(event.run_id)
                return
            await self._until(lambda: len(self._ahead) < _MOST_AHEAD or not self._following)
            if len(self._ahead) >= _MOST_AHEAD:
                raise DispatcherClosed("the ledger was closed before all completions were read")
            self._ahead.add(event.run_id)
            self._move_place()
        elif isinstance(event, Moved) and event.event == "accept" and event.run_id is not None:
            prompt = await self._prompt_of(event.run_id)
        self._append(event, prompt)
        self._changed.set()

    def remember_prompt(self, run_id: str, prompt: str) -> None:
        """Know the prompt of a run until it is told."""
        self._prompts.pop(run_id, None)
        self._prompts[run_id] = shown(prompt)
        if len(self._prompts) > _REMEMBERED:  # of runs that were told before, or that were known already
            del self._prompts[next(iter(self._prompts))]

    async def _prompt_of(self, run_id: str) -> str | None:
        """Return the prompt of a run, which may have come to another process; None if it is not kept.

        The prompt of a complete run is among the messages, if the run had a turn.
        """
        for _ in range(_ATTEMPTS):
            if (prompt := self._prompts.pop(run_id, None)) is not None:
                return prompt
            if self._draining:  # there is no time to ask for each
                return None
            try:
                run = await self._d.find(run_id)
                if run is None or run.prompt:
                    return None if run is None else shown(run.prompt)
                messages = await self._d.messages.of_run(run_id)
            except LedgerUnavailable:
                await asyncio.sleep(_PAUSE)
                continue
            except DispatcherClosed:
                return None
            said = [each.text for each in messages if (each.run_id, each.role) == (run_id, "user")]
            return shown(said[0]) if said and said[0] else None
        return None

    # What the completions say.

    async def _follow_completions(self) -> None:
        """Know up to where all completions are in the log, and put in what is missing."""
        while True:
            try:
                async for cursor, complete in self._d.completions(self._place.completions):
                    has_come = await self._await_arrival(cursor, complete.run_id)
                    self._pass(cursor)
                    if not has_come:
                        self._append(complete, None)
                    self._changed.set()
                break
            except LedgerUnavailable:
                await asyncio.sleep(_PAUSE)
            except DispatcherClosed:
                break
        self._following = False
        self._changed.set()

    async def _await_arrival(self, cursor: str, run_id: str) -> bool:
        """Wait until the log has this completion; return False if the subscription does not bring it."""
        if self._brings(cursor):
            await self._until(lambda: run_id in self._ahead or self._took_all)
        has_come = run_id in self._ahead
        self._ahead.discard(run_id)
        return has_come

    async def catch_up_with(self, place: Cursor) -> None:
        """Come to where another log of the same completions was, if that was further.

        Raises CursorExpired if nobody can have come there.
        """
        end, wanted = plain(await self._d.end_cursor()), place.completions
        if order(wanted) > order(end):
            raise CursorExpired("the place is not one on this ledger")
        needed = [each async for each, _ in self._d.completions(self._place.completions, until=wanted)][-1:]
        ahead = set(place.ahead)
        if ahead:
            async for cursor, complete in self._d.completions(wanted, until=end):
                if mark(complete.run_id) in ahead:
                    ahead.discard(mark(complete.run_id))
                    needed = [cursor]
        if ahead:
            raise CursorExpired("there is no such run on this ledger")
        if needed:
            last = order(needed[0])
            await self._until(lambda: order(self._place.completions) >= last or self.ended.is_set())
