"""The log of events: what the dispatcher tells, in one order, encoded once, for any number of readers.

The way of an event: the dispatcher tells it to one subscription; the log takes it from there, gives it the
next number and puts it into the ring; readers are woken and take from the ring what is behind their place.

1. In memory the subscription is emptied in one step whenever somebody looks at the log, so a look at the
   sessions and the place in the log belong together (`look`).
2. The log follows the dispatcher's completions as well: it knows up to where all of them are in the log, and
   says so in the id of every event (see `Cursor`). A completion that the subscription does not bring is put
   into the log from there, so a RunComplete is never missing.
3. A subscription that is cut off is begun anew, and all that the ring holds is forgotten: everybody is then
   behind, and is told what was missed from the completions.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from typing import TYPE_CHECKING, Any, Final

from turngate import CursorExpired, Moved, RunComplete, SubscriberCutOff
from turngate.server._cursor import LOST, Cursor, mark
from turngate.server._dispatching import at_hand, settled, to_be_awaited, views
from turngate.server._ring import Ring
from turngate.server._shapes import encoded, event_shape, shown, view_shape

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from turngate import Event
    from turngate.server._dispatching import AnyDispatcher, Events
    from turngate.server._limits import Limits
    from turngate.server._reader import Reader

_MOST_AHEAD: Final = 16
"""So many RunCompletes may be ahead of the completions, for ids are to stay short; then the log waits."""
_PATIENCE: Final = 5.0
"""Seconds after which a completion that the subscription has not brought is put into the log without it."""
_REMEMBERED: Final = 1_024
"""So many of those are remembered, should the subscription bring them after all."""

log = logging.getLogger("turngate.server")


class EventLog:
    """Follows one dispatcher, from `begin` to its close or to `end`."""

    def __init__(self, d: AnyDispatcher, limits: Limits) -> None:
        self.ring = Ring(limits.ring_events, limits.ring_bytes)
        self.epoch = secrets.token_hex(4)
        self.ended = asyncio.Event()
        """Set when nothing more will come."""
        self.in_flight: dict[str, int] = {}
        """How many runs each session has in flight, as far as the log has heard."""
        self.counts: dict[str, int] = {}
        """How many events of each name, and RunCompletes of each outcome, there have been."""
        self._d = d
        self._readers: dict[str | None, dict[Reader, None]] = {}
        self._to_wake: set[str] = set()
        self._prompts: dict[str, str] = {}
        self._place = Cursor(self.epoch, 0)
        self._suffix = self._place.suffix
        self._first = ""
        """The first completion there ever was, by which a beginning is known to be the beginning."""
        self._ahead: set[str] = set()
        self._unbidden: dict[str, None] = {}
        self._arrived = asyncio.Event()
        """Set when an event or a completion has come; only on a ledger does somebody wait for it."""
        self._tasks: list[asyncio.Task[None]] = []
        self._in_memory = True
        self._events: Events | None = None
        self._completions: AsyncIterator[tuple[str, RunComplete]] | None = None
        self._next: tuple[str, RunComplete] | None = None
        """The next completion, if it has been taken from there already."""
        self._lost = 0
        self._dropped = 0

    # Its life.

    async def begin(self) -> None:
        """Subscribe, and know where the completions stand."""
        looked = self._d.sessions()
        self._in_memory = not to_be_awaited(looked)
        await settled(looked)
        self._events = self._d.subscribe(moves=True)
        self._completions = self._d.completions()
        if self._in_memory:
            self._count_anew()
            for cursor, _ in at_hand(self._completions):
                self._pass(cursor)
        else:
            await self._pass_what_is_old(self._completions)
            self._tasks.append(asyncio.create_task(self._follow_completions(), name="turngate completions"))
        self._tasks.append(asyncio.create_task(self._follow_events(), name="turngate events"))

    async def end(self) -> None:
        """Follow the dispatcher no longer; readers get what there is, and their end."""
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        if self._events is not None:
            self._events.close()
        self._finish()

    def _finish(self) -> None:
        self.ended.set()
        for of_session in self._readers.values():
            for reader in of_session:
                reader.wake()

    # What the dispatcher tells.

    async def _follow_events(self) -> None:
        """Take what the dispatcher tells until it is closed."""
        while True:
            events = self._events
            assert events is not None
            try:
                async for event in events:
                    self._take(event)
                    self.flush()
                    await self._let_completions_catch_up()
                break
            except SubscriberCutOff:
                if events is self._events:
                    self._begin_anew()
        self.flush()
        self._finish()

    def flush(self) -> None:
        """Put all that a dispatcher in memory has told by now into the log."""
        if not self._in_memory or self._events is None or self.ended.is_set():
            return
        try:
            for event in at_hand(self._events):
                self._take(event)
        except SubscriberCutOff:
            self._begin_anew()
        self._pass_what_is_told()

    def _pass_what_is_told(self) -> None:
        """In memory: come to where the completions are; nothing is new there unless something is ahead."""
        while self._ahead and self._peek() is not None:
            self._pass_next()

    def _begin_anew(self) -> None:
        """Subscribe again after the subscription was cut off: what the ring holds is not all there was."""
        log.warning("the event log fell behind the dispatcher, and goes on with what comes now")
        self.ring.forget()
        self._dropped = self.dropped
        self._events = self._d.subscribe(moves=True)
        if self._in_memory:
            self._count_anew()
            while self._peek() is not None:
                self._pass_next()

    def _take(self, event: Event) -> None:
        """Put one event into the log."""
        if isinstance(event, RunComplete):
            if event.run_id in self._unbidden:
                del self._unbidden[event.run_id]
                return
            following = self._peek() if self._in_memory else None
            self._ahead.add(event.run_id)
            if following is not None and following[1].run_id == event.run_id:
                self._pass_next()
            else:
                self._move_place()
        self._append(event)
        self._arrived.set()

    async def _let_completions_catch_up(self) -> None:
        while len(self._ahead) >= _MOST_AHEAD and not self._in_memory:
            self._arrived.clear()
            await self._arrived.wait()

    def _append(self, event: Event) -> None:
        prompt = self._count(event)
        name, data = event_shape(event, prompt)
        self.counts[name] = self.counts.get(name, 0) + 1
        session_id = event.session_id
        if session_id not in self._to_wake:
            self._wake_soon(session_id)
        head = f"id: {self.epoch}:{self.ring.head + 1}{self._suffix}\nevent: {name}\ndata: "
        self.ring.append(session_id, b"%s%s\n\n" % (head.encode("ascii"), encoded(data)), self._place)

    def _count(self, event: Event) -> str | None:
        """Know what is in flight; return the prompt of an accept, if it is known."""
        session_id = event.session_id
        if isinstance(event, Moved):
            if event.event == "accept" and event.run_id is not None:
                self.in_flight[session_id] = self.in_flight.get(session_id, 0) + 1
                return self._prompt_of(event.run_id)
        elif isinstance(event, RunComplete):
            self.counts[event.outcome] = self.counts.get(event.outcome, 0) + 1
            left = self.in_flight.get(session_id, 1) - 1
            if left > 0:
                self.in_flight[session_id] = left
            else:
                self.in_flight.pop(session_id, None)
        return None

    def _count_anew(self) -> None:
        """Know what is in flight in memory, having heard nothing of it or not all."""
        self.in_flight = {
            view.session_id: len(view.accepted)
            + len(view.settling)
            + len(view.queued)
            + len(view.folded)
            + (view.active is not None)
            for view in self._d.sessions()
        }

    def remember_prompt(self, run_id: str, prompt: str) -> None:
        """Know the prompt of a run on a ledger, which cannot be asked for in one step, until it is told."""
        if not self._in_memory and len(self._prompts) < _REMEMBERED:
            self._prompts[run_id] = shown(prompt)

    def _prompt_of(self, run_id: str) -> str | None:
        if not self._in_memory:
            return self._prompts.pop(run_id, None)
        run = self._d.find(run_id)
        return None if run is None or not run.prompt else shown(run.prompt)

    # What the completions say.

    def _peek(self) -> tuple[str, RunComplete] | None:
        """In memory: return the next completion, None if there is none yet."""
        assert self._completions is not None
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

    async def _follow_completions(self) -> None:
        """On a ledger: know up to where all completions are in the log, and put in what is missing."""
        while True:
            assert self._completions is not None
            try:
                async for cursor, complete in self._completions:
                    await self._await_arrival(complete)
                    self._pass(cursor)
                    self._arrived.set()
            except CursorExpired:
                self._lose_completions()
            else:
                return

    async def _await_arrival(self, complete: RunComplete) -> None:
        """Wait until the log has this completion; if it does not come, put it in."""
        try:
            async with asyncio.timeout(_PATIENCE):
                while complete.run_id not in self._ahead:
                    self._arrived.clear()
                    await self._arrived.wait()
            self._ahead.discard(complete.run_id)
        except TimeoutError:
            self._append(complete)
            self._unbidden[complete.run_id] = None
            if len(self._unbidden) > _REMEMBERED:
                del self._unbidden[next(iter(self._unbidden))]

    async def _pass_what_is_old(self, completions: AsyncIterator[tuple[str, RunComplete]]) -> None:
        """On a ledger: pass over what was complete before; it has ended when nothing comes for a moment."""
        coming = asyncio.ensure_future(anext(completions, None))
        while True:
            done, _ = await asyncio.wait([coming], timeout=0.5)
            if not done:
                break
            got = coming.result()
            if got is None:
                break
            self._pass(got[0])
            coming = asyncio.ensure_future(anext(completions, None))
        self._completions = _resumed(coming, completions)

    def _pass(self, cursor: str) -> None:
        self._first = self._first or cursor
        self._place = self._place._replace(completions=cursor)
        self._move_place()

    def _move_place(self) -> None:
        ahead = frozenset(map(mark, self._ahead)) if self._ahead else frozenset()
        self._place = self._place._replace(ahead=ahead)
        self._suffix = self._place.suffix

    def _lose_completions(self) -> None:
        """Begin again with the completions that are kept: more were forgotten than had been read.

        Until the next one comes, no place is known in them from which one could go on.
        """
        self._completions, self._next = self._d.completions(), None
        self._ahead.clear()
        self._lost += 1
        self._pass(f"{LOST}{self._lost}")

    def is_beginning(self, first: str) -> bool:
        """Say whether this is the cursor of the first completion there ever was."""
        return first == self._first

    # Readers.

    @property
    def dropped(self) -> int:
        """How many deltas and notes the log has lost because the dispatcher was faster."""
        return self._dropped + (0 if self._events is None else self._events.dropped)

    @property
    def place(self) -> Cursor:
        """Where the log has come to."""
        return self._place._replace(number=self.ring.head)

    async def look(self, session_id: str | None) -> tuple[Cursor, list[dict[str, Any]]]:
        """Return the place in the log and the sessions, or the one session, as they are at that place.

        In memory this is one step. On a ledger the place is taken first: what happened between the two is
        among the events to come, which say nothing new then.
        """
        self.flush()
        place = self.place
        seen = await views(self._d, session_id)
        return place, [view_shape(view) for view in seen]

    def add(self, reader: Reader) -> None:
        """Wake the reader when there is something new for it."""
        self._readers.setdefault(reader.session_id, {})[reader] = None

    def remove(self, reader: Reader) -> None:
        """Wake the reader no longer."""
        of_session = self._readers.get(reader.session_id, {})
        of_session.pop(reader, None)
        if not of_session:
            self._readers.pop(reader.session_id, None)

    def _wake_soon(self, session_id: str) -> None:
        if not self._to_wake:
            asyncio.get_running_loop().call_soon(self._wake)
        self._to_wake.add(session_id)
        for reader in self._readers.get(session_id, ()):
            reader.something_comes(self.ring.head)

    def _wake(self) -> None:
        for about in (*self._to_wake, None):
            for reader in self._readers.get(about, ()):
                reader.wake()
        self._to_wake.clear()


async def _resumed(
    coming: asyncio.Future[Any], completions: AsyncIterator[tuple[str, RunComplete]]
) -> AsyncIterator[tuple[str, RunComplete]]:
    """Go on with completions of which the next is being waited for already."""
    got = await coming
    if got is not None:
        yield got
        async for each in completions:
            yield each
