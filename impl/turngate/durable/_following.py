"""Telling the subscribers of this process what every process does, in the order of the ledger.

RunCompletes and moves are read from the ledger, those of this process too: so there is one order for all of
them, in each session that of its steps. What the turns of this process write is streamed at once, but a turn
is held back until the subscribers have been told what happened up to its start.

A subscription begins at a moment that the ledger names. What this process sends after `subscribe` waits for
that moment, and what it had sent before without an answer is told on whichever side it falls: whoever
subscribes while a run is not complete, as far as this process knows, is told when it is.
"""

from __future__ import annotations

import asyncio
import math
import weakref
from typing import TYPE_CHECKING, Any, Final

from turngate._errors import CursorExpired, DispatcherClosed
from turngate._events import Subscription
from turngate._guard import complain
from turngate._journal import _moved
from turngate.durable._conducting import Conducting
from turngate.durable._ledger import Moment
from turngate.durable._telling import BEHIND, Beginning, GatedSubscribers, Lane

if TYPE_CHECKING:
    from typing import Self

    from turngate._events import RunComplete
    from turngate.durable._flight import Flight
    from turngate.durable._handles import DurableTurn
    from turngate.durable._ledger import Finished, Place

_PAGE: Final = 500
_DIGITS: Final = 19
"""No number in a cursor has so many."""
_SOON: Final = 0.005
_NOBODY_ASKS: Final = 2**62
"""A horizon behind everything."""


class News(asyncio.Event):
    """Set when there may be something to read; counted, for several wait and none may clear it for others."""

    count = 0

    def set(self) -> None:
        """Wake those who wait."""
        self.count += 1
        super().set()


class Following(Conducting):
    """A worker that reads the ledger for its subscribers."""

    def __init__(self, *args: Any, delta_limit: int, delta_bytes: int, complete_limit: int) -> None:
        super().__init__(*args)
        self._subscribers: GatedSubscribers = GatedSubscribers()
        self._delta_limit = delta_limit
        self._delta_bytes = delta_bytes
        self._complete_limit = complete_limit
        self._follower: asyncio.Task[None] | None = None
        self._joining: list[tuple[weakref.ref[Subscription], list[Flight]]] = []
        """Those who have subscribed and have no beginning yet, with what was under way when they did."""
        self._news = News()
        self._reading = asyncio.Lock()
        self._by_hook: set[str] = set()

    def subscribe(self, session_id: str | None = None, *, moves: bool = False) -> Subscription:
        """Receive the events of the session, or of all, from now on; see `Subscription`.

        RunCompletes, and with `moves` every accept, enter, fold, handoff, cancel and clear, are those of all
        processes, in each session in the order of its steps. Deltas and notes come at once from the turns
        that run in this process; from elsewhere they come in chunks a little later, and may be lost, which is
        counted in `dropped` as far as it is known. A RunComplete that a hook of this process receives is not
        told again here, except with `moves`; in other processes it is.
        """
        loop = self._here()
        if moves and not self._ledger.history:
            raise ValueError("moves are read from the history, which this ledger does not keep")
        subscription = Subscription(
            self,
            session_id=session_id,
            moves=moves,
            delta_limit=self._delta_limit,
            delta_bytes=self._delta_bytes,
            complete_limit=self._complete_limit,
        )
        if self._closed:
            subscription.close()
            return subscription
        if not self._joining:
            self._from_here = loop.create_future()
        self._joining.append((weakref.ref(subscription), [*self._flights]))
        self._news.set()
        if self._follower is None:
            self._follower = self._spawn(self._follow())
        return subscription

    async def _ready(self) -> None:
        """Open; what comes after a subscription waits until it is known where that begins."""
        await super()._ready()
        await self._until_joined()

    async def _follow(self) -> None:
        """Read and deliver, as long as somebody is subscribed."""
        try:
            while self._subscribers.listen():
                heard = self._news.count
                try:
                    await super()._ready()
                    await self._read_on()
                except Exception as exc:  # the ledger cannot be reached, or is broken: both may pass
                    if self._closed:
                        raise
                    self._is_not_joined(exc)
                    complain(exc, "subscribers are not told yet what happens on the ledger")
                await self._wait_for_news(heard, _SOON if self._subscribers.gated else None)
        except BaseException as exc:
            self._is_not_joined(exc)
            raise
        finally:
            self._stop_following()

    def _stop_following(self) -> None:
        self._follower = None
        self._joining.clear()
        self._subscribers.beginnings.clear()
        self._subscribers.completes.in_use = self._subscribers.moves.in_use = False
        if self._from_here is not None:
            self._from_here.set_result(None)
            self._from_here = None
        self._by_hook.clear()
        self._subscribers.open(math.inf)

    def _is_not_joined(self, why: BaseException) -> None:
        """Tell those who wait for the beginning of a subscription that it is not known yet."""
        if self._from_here is not None:
            _fail(self._from_here, why)
            self._from_here = self._here().create_future()

    async def _let_join(self) -> None:
        """Give a beginning to those who have none yet."""
        while self._joining:
            joining, self._joining = self._joining, []
            from_here = self._from_here
            assert from_here is not None
            try:
                moment = await self._ledger.moment()
            except BaseException as exc:
                self._joining[:0] = joining
                if self._from_here is not from_here:
                    _fail(from_here, exc)
                raise
            if self._from_here is from_here:
                self._from_here = None
            from_here.set_result(None)
            for reference, flights in joining:
                under_way = frozenset([await flight.landed() for flight in flights]) - {0}
                if (subscription := reference()) is not None:
                    self._subscribers.begin(subscription, Beginning(moment, under_way))

    async def _wait_for_news(self, heard: int, within: float | None = None) -> None:
        """Wait until this process has done something, another may have, or a while has passed.

        `heard` is the count of news before whoever waits has looked: what came meanwhile is not waited for.
        """
        if self._news.count != heard:
            return
        self._news.clear()
        try:
            async with asyncio.timeout(self._poll if within is None else within):
                await self._news.wait()
        except TimeoutError:
            pass

    async def _read_on(self) -> int:
        """Deliver what there is, let the turns stream that started before, and return the horizon."""
        async with self._reading:
            await self._let_join()
            for lane in self._subscribers.lanes():
                lane.more = True
            return await self._walk()

    async def _walk(self) -> int:
        """Walk the lanes by position, together, as far as it is known what comes next in each."""
        subscribers = self._subscribers
        while lanes := subscribers.lanes():
            for lane in lanes:
                if lane.more and not lane.coming:
                    await self._load(lane)
            if self._joining:
                await self._let_join()
                continue
            lane = min(lanes, key=Lane.next)
            while lane.coming:
                self._guard("delivering an event", self._tell, lane)
                if lane.more and not lane.coming:
                    break
                lane = min(lanes, key=Lane.next)
            else:
                subscribers.reached(lane.horizon)
                return lane.horizon
        return _NOBODY_ASKS

    async def _load(self, lane: Lane) -> None:
        """Find out what comes next in a lane."""
        if lane is self._subscribers.completes:
            purged, horizon, finished = await self._ledger.finished(lane.at, _PAGE)
            self._check_purged(lane, purged)
            lane.load([((each.position, each.ordinal), each.complete) for each in finished], horizon)
            lane.more = len(finished) == _PAGE
            lane.settle()
            return
        purged, horizon, told = await self._ledger.told(lane.at, _PAGE)
        self._check_purged(lane, purged)
        entries = [((step.position, step.ordinal), entry) for step in told for entry in step.entries]
        complete = [entry["run"] for _, entry in entries if entry["event"] == "complete"]
        known = (
            {each.row.run_id: each.complete for each in await self._ledger.find(complete)} if complete else {}
        )
        events = [
            (at, known.get(entry["run"]) if entry["event"] == "complete" else _moved(entry))
            for at, entry in entries
        ]
        lane.load([(at, event) for at, event in events if event is not None], horizon)
        lane.more = len(told) == _PAGE
        if told:
            lane.at = told[-1].position, told[-1].ordinal
        lane.settle()

    def _check_purged(self, lane: Lane, purged: Place) -> None:
        """Cut off those who have not been told what was purged meanwhile."""
        if lane.at < purged:
            self._subscribers.cut_off_before(lane, purged[0])
            lane.at = purged

    def _tell(self, lane: Lane) -> None:
        position, event = lane.coming.popleft()
        if lane is not self._subscribers.completes or not self._is_hooked(event.run_id):
            self._subscribers.tell(lane.audience, event, position)

    def _is_hooked(self, run_id: str | None) -> bool:
        """Say whether a hook of this process receives the RunComplete, or will as soon as it is told."""
        assert run_id is not None
        handle = self._handles.get(run_id)
        if run_id not in self._by_hook and (handle is None or handle.on_complete is None):
            return False
        self._by_hook ^= {run_id}
        return True

    def _hooked(self, run_id: str) -> None:
        if self._follower is not None:
            self._by_hook ^= {run_id}

    def _gate(self, turn: DurableTurn, position: int) -> None:
        if self._subscribers.listen() and self._follower is not None:
            self._subscribers.gated[turn.run.run_id] = position, []
            self._news.set()

    # Completions.

    def completions(self, after: str | None = None, *, until: str | None = None) -> LedgerCompletions:
        """Return `(cursor, RunComplete)` of each complete run of every process, oldest kept first.

        An async iterator; at the end it waits for those to come, and ends when the dispatcher is closed.
        `after` is a cursor that it gave, here or in another process: go on behind it; `until` is one too: end
        there, at once if that is not behind `after`. Nothing appears later before a cursor already given.
        Raises CursorExpired, here or while iterating, when what comes behind `after` may have been purged, or
        it is a cursor of another ledger.
        """
        self._in_thread()
        return LedgerCompletions(self, after, until)

    async def end_cursor(self) -> str:
        """Return the cursor behind which `completions(after=)` gives what completes from now on."""
        await self._ready()
        moment = await self._ledger.moment()
        return _cursor(await self._ledger.name(), (moment.horizon - 1, BEHIND), moment)


def _fail(future: asyncio.Future[None], why: BaseException) -> None:
    if isinstance(why, asyncio.CancelledError):
        why = DispatcherClosed("the dispatcher is closed")
    future.set_exception(why)
    future.exception()  # perhaps nobody waits


def _cursor(name: str, at: tuple[int, int], passed: Moment | None) -> str:
    """Return a place among the completions as text, with what is beyond it and was passed all the same."""
    cursor = f"{name}.{at[0]}.{at[1]}"
    if passed is None or passed.until <= at[0] + 1:
        return cursor
    return ".".join([cursor, str(passed.until), *map(str, sorted(passed.pending))])


def _reach(at: tuple[int, int], passed: Moment | None) -> int:
    """Return the last position that a cursor knows of."""
    return at[0] if passed is None else max(at[0], passed.until - 1)


def _place(cursor: str) -> tuple[str, tuple[int, int], Moment | None]:
    name, *digits = cursor.split(".")
    if not all(each.isascii() and each.isdecimal() and len(each) < _DIGITS for each in digits):
        digits = []
    match [*map(int, digits)]:
        case [position, ordinal]:
            return name, (position, min(ordinal, BEHIND)), None
        case [position, ordinal, until, *pending]:
            return name, (position, min(ordinal, BEHIND)), Moment(position + 1, until, frozenset(pending))
    raise CursorExpired(f"the cursor {cursor!r:.80} is not one of a ledger")


class LedgerCompletions:
    """The completions that the ledger keeps, in order, then those to come; see `completions`.

    An async iterator. Whoever is cancelled while waiting for one, say by a time-out, loses none.
    """

    def __init__(self, worker: Following, after: str | None, until: str | None) -> None:
        self._worker = worker
        self._until: tuple[int, int] | None = None
        self._name = ""
        self._unchecked: list[tuple[str, int]] = []
        """The epochs of the cursors that it was given, and how far these reach."""
        self._at = (-1, -1)
        self._passed: Moment | None = None
        """What was there already when the cursor was taken that it began with."""
        self._page: list[Finished] = []
        if after is not None:
            name, self._at, self._passed = _place(str(after))
            self._unchecked.append((name, _reach(self._at, self._passed)))
        if until is not None:
            name, self._until, passed = _place(str(until))
            self._unchecked.append((name, _reach(self._until, passed)))
        self._begun = after is not None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[str, RunComplete]:
        if self._unchecked and not self._worker._closed:
            await self._check_cursors()
        while not self._is_over():
            if not self._page:
                await self._turn_page()
                continue
            position, ordinal, complete = self._page.pop()
            self._at, self._begun = (position, ordinal), True
            if self._until is not None and self._at > self._until:
                break
            if self._passed is None or not self._passed.has(position):
                return _cursor(self._name, self._at, self._passed), complete
        raise StopAsyncIteration

    def _is_over(self) -> bool:
        if self._until is not None and self._at >= self._until:
            return True
        return self._worker._closed and not self._page

    async def _turn_page(self) -> None:
        """Read on; wait for a while if there is nothing."""
        worker = self._worker
        await worker._ready()
        heard = worker._news.count
        purged, horizon, page = await worker._ledger.finished(self._at, _PAGE)
        if self._begun and self._at < purged:
            raise CursorExpired("what comes behind the cursor is no longer all kept")
        self._begun = True
        if page:
            self._name = await worker._ledger.name()  # of the epoch of the last of them, or a later one
            self._page = page[::-1]
        elif self._until is not None and self._until[0] < horizon:
            self._at = self._until
        else:
            self._at = max(self._at, (horizon - 1, BEHIND))
            await worker._wait_for_news(heard)

    async def _check_cursors(self) -> None:
        """Raise CursorExpired unless the ledger has come to where its cursors are, in their epochs."""
        await self._worker._ready()
        while self._unchecked:
            name, reach = self._unchecked[-1]
            end = await self._worker._ledger.end_of(name)
            if end is None:
                raise CursorExpired(
                    "the cursor is one of another ledger, or of a part of this one that is lost"
                )
            if reach >= end:
                raise CursorExpired("the cursor is beyond the end of the ledger, which was restored since")
            self._unchecked.pop()
