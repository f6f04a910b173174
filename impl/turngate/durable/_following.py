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

from turngate._errors import CursorExpired, DispatcherClosed, TurngateError
from turngate._events import Subscription
from turngate._guard import complain, describe
from turngate._journal import _moved
from turngate._waiters import Waiters
from turngate.durable._conducting import Conducting
from turngate.durable._ledger import LedgerUnavailable, ReadPoint
from turngate.durable._telling import BEHIND, Beginning, Gap, GatedSubscribers, Lane

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from turngate._events import Event, RunComplete
    from turngate.durable._flight import Flight
    from turngate.durable._handles import DurableTurn
    from turngate.durable._ledger import CompletionRecord, HistoryStep, Place

_PAGE: Final = 500
_DIGITS: Final = 19
"""No number in a cursor has so many."""
_SOON: Final = 0.005
_LATER: Final = 0.2
_NOBODY_ASKS: Final = 2**62
"""A horizon behind everything."""


class News(asyncio.Event):
    """Set when there may be something to read; counted, for several wait and none may clear it for others."""

    count = 0

    def set(self) -> None:
        """Wake those who wait."""
        self.count += 1
        super().set()


class _Joiner:
    """Who has subscribed and has no beginning yet, and the steps that were under way then."""

    __slots__ = ("flights", "moment", "reference")

    def __init__(self, reference: weakref.ref[Subscription], flights: list[Flight]) -> None:
        self.reference = reference
        self.flights = flights
        self.moment: ReadPoint | None = None


class Following(Conducting):
    """A worker that reads the ledger for its subscribers."""

    def __init__(self, *args: Any, delta_limit: int, delta_bytes: int, complete_limit: int) -> None:
        super().__init__(*args)
        self._subscribers: GatedSubscribers = GatedSubscribers(delta_limit, delta_bytes)
        self._delta_limit = delta_limit
        self._delta_bytes = delta_bytes
        self._complete_limit = complete_limit
        self._follower: asyncio.Task[None] | None = None
        self._joining: list[_Joiner] = []
        """Those who have subscribed and have no beginning yet."""
        self._began: weakref.WeakKeyDictionary[Subscription, Beginning] = weakref.WeakKeyDictionary()
        self._joined = Waiters()
        """Those who wait for a subscription to have a beginning."""
        self._news = News()
        self._reading = asyncio.Lock()
        self._by_hook: dict[str, int] = {}
        """The runs whose RunComplete a hook receives, and its position, until that is read."""

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
        if self._from_here is None:
            self._from_here = loop.create_future()
        self._joining.append(_Joiner(weakref.ref(subscription), [*self._flights]))
        self._news.set()
        if self._follower is None:
            self._follower = self._supervisor.start("reading the ledger for subscribers", self._follow)
        return subscription

    async def beginning(self, subscription: Subscription) -> Callable[[str], bool]:
        """Wait until it is known where a subscription begins; return a function that tells what it brings.

        The function takes a cursor of `completions`, and says whether the subscription brings the RunComplete
        that came with it. Raises DispatcherClosed when the subscription is closed before it has begun.
        """
        loop = self._here()
        while (began := self._began.get(subscription)) is None:
            if subscription._closed or self._closed:
                raise DispatcherClosed("the subscription was closed before it had begun")
            await self._joined.wait(loop)
        found = began
        return lambda cursor: not found.is_behind(_place(cursor)[1][0])

    async def _ready(self) -> None:
        """Open; what comes after a subscription waits until it is known where that begins."""
        await super()._ready()
        await self._until_joined()

    async def _follow(self) -> None:
        """Read and deliver, as long as somebody is subscribed."""
        soon, reached = _SOON, -1
        while self._subscribers.listen() and not self._closed:
            heard, horizon = self._news.count, reached
            try:
                await super()._ready()
                horizon = await self._read_on()
            except Exception as exc:  # the ledger cannot be reached, or is broken: both may pass
                self._is_not_joined(exc)
                if not self._closed and self._gone is None:
                    complain(exc, "subscribers are not told yet what happens on the ledger")
            # A transaction that is open elsewhere may hold the horizon back for a long time.
            soon = _SOON if horizon != reached else min(2 * soon, _LATER)
            reached = horizon
            await self._wait_for_news(heard, soon if self._subscribers.gated else None)
        self._stop_following()

    def _stop_following(self) -> None:
        self._follower = None
        self._joining.clear()
        self._subscribers.beginnings.clear()
        self._subscribers.completes.in_use = self._subscribers.moves.in_use = False
        if self._from_here is not None:
            if not self._from_here.done():
                self._from_here.set_result(None)
            self._from_here = None
        self._by_hook.clear()
        self._joined.wake()
        self._subscribers.open(math.inf)

    def _is_not_joined(self, why: BaseException) -> None:
        """Tell those who wait for the beginning of a subscription that it is not known yet."""
        if self._from_here is not None:
            _fail(self._from_here, why)
            self._from_here = self._here().create_future()

    async def _let_join(self) -> None:
        """Give a beginning to those who have none yet. What fails here is done again at the next reading."""
        while self._joining:
            await self._name_moment()
            joiner = self._joining[0]
            assert joiner.moment is not None
            under_way = await self._under_way(joiner.flights)
            subscription = joiner.reference()
            if subscription is not None:
                beginning = Beginning(joiner.moment, under_way)
                passed = await self._passed(subscription, under_way)
                self._subscribers.begin(subscription, beginning)
                self._began[subscription] = beginning
                for event in passed:
                    subscription._receive(event, 0)
            self._joining.remove(joiner)
            self._joined.wake()

    async def _name_moment(self) -> None:
        """Have the ledger name the moment at which those begin who have subscribed by now."""
        unnamed = [joiner for joiner in self._joining if joiner.moment is None]
        if not unnamed:
            return
        moment = await self._ledger.read_point()
        for joiner in unnamed:
            joiner.moment = moment
        if self._from_here is not None and all(joiner.moment is not None for joiner in self._joining):
            from_here, self._from_here = self._from_here, None
            from_here.set_result(None)

    async def _under_way(self, flights: list[Flight]) -> frozenset[int]:
        """Return the positions of the steps that were under way, as far as they were saved.

        Of a step whose answer was lost the position is not known, but that of the completion of a run is.
        """
        positions = {await flight.landed() for flight in flights}
        in_doubt = {run_id for flight in flights if not flight.position for run_id in flight.completes}
        if in_doubt:
            positions |= {known.position for known in await self._ledger.find([*in_doubt])}
        return frozenset(positions) - {0}

    async def _passed(self, subscription: Subscription, under_way: frozenset[int]) -> list[Event]:
        """Return what the subscription is owed of positions that its lane has passed already."""
        lane = self._subscribers.lane_of(subscription)
        events: list[Event] = []
        for position in sorted(under_way):
            if lane.passed(position):
                coming = lane.coming_at(position)
                events += [
                    event
                    for event in await self._events_at(lane, position)
                    if subscription.session_id in (None, event.session_id) and event not in coming
                ]
        return events

    async def _events_at(self, lane: Lane, position: int) -> list[Event]:
        at = (position - 1, BEHIND)
        if lane is self._subscribers.completes:
            _, _, finished = await self._ledger.completions_after(at, _PAGE)
            found = [each.complete for each in finished if each.position == position]
            return [complete for complete in found if not self._is_hooked(complete.run_id)]
        _, _, told = await self._ledger.history_after(at, _PAGE)
        events = await self._events_of([each for each in told if each.position == position])
        return [event for _, event in events if not isinstance(event, Gap)]

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
                self._forget_hooked(lane.horizon)
                return lane.horizon
        return _NOBODY_ASKS

    async def _load(self, lane: Lane) -> None:
        """Find out what comes next in a lane."""
        if lane is self._subscribers.completes:
            purged, horizon, finished = await self._ledger.completions_after(lane.at, _PAGE)
            self._check_purged(lane, purged)
            lane.load([((each.position, each.ordinal), each.complete) for each in finished], horizon)
            lane.more = len(finished) == _PAGE
            lane.settle()
            return
        purged, horizon, told = await self._ledger.history_after(lane.at, _PAGE)
        self._check_purged(lane, purged)
        lane.load(await self._events_of(told), horizon)
        lane.more = len(told) == _PAGE
        if told:
            lane.at = told[-1].position, told[-1].ordinal
        lane.settle()

    def _check_purged(self, lane: Lane, purged: Place) -> None:
        """Cut off those who have not been told what was purged meanwhile."""
        if lane.at < purged:
            self._subscribers.cut_off_before(lane, purged[0])
            lane.at = purged

    async def _events_of(self, told: list[HistoryStep]) -> list[tuple[tuple[int, int], Event | Gap]]:
        """Return the moves and RunCompletes of steps, each with its place."""
        entries = [((step.position, step.ordinal), step, entry) for step in told for entry in step.entries]
        complete = [entry["run"] for _, _, entry in entries if entry["event"] == "complete"]
        known = (
            {each.row.run_id: each.complete for each in await self._ledger.find(complete)} if complete else {}
        )
        return [
            (
                at,
                (known.get(entry["run"]) or Gap(step.session_id, entry["run"]))
                if entry["event"] == "complete"
                else _moved(entry),
            )
            for at, step, entry in entries
        ]

    def _tell(self, lane: Lane) -> None:
        position, event = lane.coming.popleft()
        if lane is not self._subscribers.completes or not self._is_hooked(event.run_id):
            self._subscribers.tell(lane.audience, event, position)

    def _is_hooked(self, run_id: str | None) -> bool:
        """Say whether a hook of this process receives the RunComplete, or will as soon as it is told."""
        assert run_id is not None
        handle = self._handles.get(run_id)
        return run_id in self._by_hook or (handle is not None and handle.on_complete is not None)

    def _hooked(self, run_id: str, position: int) -> None:
        if self._follower is not None:
            self._by_hook[run_id] = position

    def _forget_hooked(self, horizon: int) -> None:
        """Forget the RunCompletes of hooks that everybody has passed."""
        if self._by_hook:
            self._by_hook = {run_id: at for run_id, at in self._by_hook.items() if at >= horizon}

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
        moment = await self._ledger.read_point()
        return _cursor(await self._ledger.epoch(), (moment.horizon - 1, BEHIND), moment)


def _fail(future: asyncio.Future[None], why: BaseException) -> None:
    if not isinstance(why, TurngateError):
        cause, why = why, LedgerUnavailable(f"a subscription cannot begin: {describe(why)}")
        why.__cause__ = cause
    future.set_exception(why)
    future.exception()  # perhaps nobody waits


def _cursor(name: str, at: tuple[int, int], passed: ReadPoint | None) -> str:
    """Return a place among the completions as text, with what is beyond it and was passed all the same."""
    cursor = f"{name}.{at[0]}.{at[1]}"
    if passed is None or passed.until <= at[0] + 1:
        return cursor
    return ".".join([cursor, str(passed.until), *map(str, sorted(passed.pending))])


def _reach(at: tuple[int, int], passed: ReadPoint | None) -> int:
    """Return the last position that a cursor knows of."""
    return at[0] if passed is None else max(at[0], passed.until - 1)


def _place(cursor: str) -> tuple[str, tuple[int, int], ReadPoint | None]:
    name, *digits = cursor.split(".")
    if not all(each.isascii() and each.isdecimal() and len(each) < _DIGITS for each in digits):
        digits = []
    match [*map(int, digits)]:
        case [position, ordinal]:
            return name, (position, min(ordinal, BEHIND)), None
        case [position, ordinal, until, *pending]:
            return name, (position, min(ordinal, BEHIND)), ReadPoint(position + 1, until, frozenset(pending))
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
        self._passed: ReadPoint | None = None
        """What was there already when the cursor was taken that it began with."""
        self._page: list[CompletionRecord] = []
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
        try:
            await self._read_page()
        except (DispatcherClosed, LedgerUnavailable):
            if not worker._lets_go and not worker._closed:
                raise
            while not worker._closed:  # then it is over
                await worker._close_waiters.wait(worker._here())

    async def _read_page(self) -> None:
        worker = self._worker
        await worker._ready()
        heard = worker._news.count
        purged, horizon, page = await worker._ledger.completions_after(self._at, _PAGE)
        if self._begun and self._at < purged:
            raise CursorExpired("what comes behind the cursor is no longer all kept")
        if page:
            self._name = await worker._ledger.epoch()  # of the epoch of the last of them, or a later one
            self._page = page[::-1]
        elif self._until is not None and self._until[0] < horizon:
            self._at = self._until
        else:
            self._begun = True
            self._at = max(self._at, (horizon - 1, BEHIND))
            await worker._wait_for_news(heard)

    async def _check_cursors(self) -> None:
        """Raise CursorExpired unless the ledger has come to where its cursors are, in their epochs."""
        await self._worker._ready()
        while self._unchecked:
            name, reach = self._unchecked[-1]
            end = await self._worker._ledger.epoch_end(name)
            if end is None:
                raise CursorExpired(
                    "the cursor is one of another ledger, or of a part of this one that is lost"
                )
            if reach >= end:
                raise CursorExpired("the cursor is beyond the end of the ledger, which was restored since")
            self._unchecked.pop()
