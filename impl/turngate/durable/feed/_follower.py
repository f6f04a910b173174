"""Reads the ledger for the subscriptions of this process, and gives each of them a beginning."""

from __future__ import annotations

import asyncio
import sys
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from turngate._errors import DispatcherClosed, TurngateError
from turngate._events import moved
from turngate._guard import complain, deal_with, describe
from turngate._waiters import Waiters
from turngate.durable._ledger import LedgerGone, LedgerUnavailable
from turngate.durable.feed._delivery import BEHIND, Batch, Beginning, Gap, Lane

if TYPE_CHECKING:
    from asyncio import Future, Task

    from turngate._events import Event, Subscription
    from turngate.durable._flight import Flight
    from turngate.durable._ledger import Ledger, Moment, Place, Told
    from turngate.durable.feed._delivery import Delivery
    from turngate.durable.feed._host import Host, News
    from turngate.durable.feed._relay import StreamRelay

_PAGE: Final = 500
_SHORTEST: Final = 0.005
_LONGEST: Final = 0.2
"""Seconds between two reads while a gate is closed."""
_TRIES: Final = 100
_PAUSE: Final = 0.01
"""How often the last events are read before a close gives up, and the seconds in between."""
_EVERYTHING: Final = sys.maxsize
"""The horizon when there is nothing to read for anyone."""


@dataclass(eq=False, slots=True)
class _Joiner:
    """A subscription without a beginning, and the steps that were under way when it was made."""

    reference: weakref.ref[Subscription]
    steps: list[Flight]
    moment: Moment | None = None


class LedgerFollower:
    """Delivers the moves and RunCompletes of all processes, as long as there are subscriptions.

    A subscription begins at a moment that the ledger names, which takes a while. Steps that this process
    sends after `join` wait until that moment is known, so they come after it. Steps that were under way then
    are delivered whichever side of the moment they were saved on: a run that this process believed to be in
    flight when the subscription was made completes within the subscription.
    """

    def __init__(
        self, ledger: Ledger, host: Host, news: News, delivery: Delivery, relay: StreamRelay
    ) -> None:
        self._ledger = ledger
        self._host = host
        self._news = news
        self._delivery = delivery
        self._relay = relay
        self.task: Task[None] | None = None
        """Reads the ledger while there are subscriptions."""
        self._reading = asyncio.Lock()
        self.moment_known: Future[None] | None = None
        """Done when the ledger has named the moment of every subscription that steps must not overtake."""
        self.joined = Waiters()
        """Tasks that wait for a subscription to have a beginning."""
        self.joining: list[_Joiner] = []
        self.hooked: dict[str, int] = {}
        """Runs whose RunComplete a hook has received, with its position, until that has been read."""

    def stop(self) -> None:
        """Stop reading, and let go of everything that waits for it. Idempotent."""
        if self.task is not None:
            self.task.cancel()
            self._is_over()

    def _is_over(self) -> None:
        self.task = None
        self.joining.clear()
        if self.moment_known is not None:
            if not self.moment_known.done():
                self.moment_known.set_result(None)
            self.moment_known = None
        self.hooked.clear()
        self.joined.wake()
        self._delivery.stop()
        self._relay.stop_listening()

    async def _follow(self) -> None:
        pause, reached = _SHORTEST, -1
        while self._delivery.subscribers.listen() and not self._news.closed:
            heard, horizon = self._news.count, reached
            try:
                await self._host.ready()
                horizon = await self.read()
            except Exception as exc:  # the ledger cannot be reached, or is broken: both may pass
                self._fail_joining(exc)
                if not self._news.closed and not isinstance(exc, LedgerGone):
                    complain(exc, "subscribers are not told yet what happens on the ledger")
            # A transaction that is open elsewhere may hold the horizon back for a long time.
            pause = _SHORTEST if horizon != reached else min(2 * pause, _LONGEST)
            reached = horizon
            await self._news.wait(heard, pause if self._delivery.gates else None)
        self._is_over()

    # Beginnings.

    def join(self, subscription: Subscription) -> None:
        """Give a new subscription a beginning, which takes a while."""
        if self.moment_known is None:
            self.moment_known = self._host.check_loop().create_future()
        self.joining.append(_Joiner(weakref.ref(subscription), self._host.pending_steps()))
        self._news.wake()
        if self.task is None:
            self.task = self._host.supervise("reading the ledger for subscribers", self._follow)

    async def until_joined(self) -> None:
        """Wait until steps may be sent; raise LedgerUnavailable if the moment cannot be learnt now."""
        while self.moment_known is not None:
            await asyncio.shield(self.moment_known)

    async def beginning(self, subscription: Subscription) -> Beginning:
        """Wait for the beginning of a subscription; raise DispatcherClosed if it is closed before."""
        loop = self._host.check_loop()
        while (beginning := self._delivery.beginnings.get(subscription)) is None:
            if subscription.closed or self._news.closed:
                raise DispatcherClosed("the subscription was closed before it had begun")
            await self.joined.wait(loop)
        return beginning

    def _fail_joining(self, why: Exception) -> None:
        """Tell the steps that wait for the moment of a subscription that it is not known yet."""
        if self.moment_known is None:
            return
        if not isinstance(why, TurngateError):
            cause, why = why, LedgerUnavailable(f"a subscription cannot begin: {describe(why)}")
            why.__cause__ = cause
        self.moment_known.set_exception(why)
        self.moment_known.exception()  # no step may be waiting
        self.moment_known = self._host.check_loop().create_future()

    async def _let_join(self) -> None:
        """Give all new subscriptions a beginning. What fails here is tried again with the next read."""
        while self.joining:
            await self._learn_moment()
            joiner = self.joining[0]
            assert joiner.moment is not None
            under_way = await self._saved_of(joiner.steps)
            subscription = joiner.reference()
            if subscription is not None:
                missed = await self._missed(subscription, under_way)
                self._delivery.begin(subscription, Beginning(joiner.moment, under_way))
                for event in missed:
                    subscription.receive(event)
            self.joining.remove(joiner)
            self.joined.wake()
        if self._delivery.subscribers.listen():
            self._relay.listen()

    async def _learn_moment(self) -> None:
        """Have the ledger name the moment of all subscriptions that have none yet."""
        unnamed = [joiner for joiner in self.joining if joiner.moment is None]
        if not unnamed:
            return
        moment = await self._ledger.moment()
        for joiner in unnamed:
            joiner.moment = moment
        if self.moment_known is not None and all(joiner.moment is not None for joiner in self.joining):
            known, self.moment_known = self.moment_known, None
            known.set_result(None)

    async def _saved_of(self, steps: list[Flight]) -> frozenset[int]:
        """Return the positions of those steps that were saved.

        When the answer to a step is lost, its position is unknown; but a run that it completes can be found.
        """
        positions = {await step.landed() for step in steps}
        in_doubt = {run_id for step in steps if not step.position for run_id in step.completes}
        if in_doubt:
            positions |= {known.position for known in await self._ledger.find([*in_doubt])}
        return frozenset(positions) - {0}

    async def _missed(self, subscription: Subscription, under_way: frozenset[int]) -> list[Event]:
        """Return the events at these positions that the lane of the subscription has passed already."""
        lane = self._delivery.lane_of(subscription)
        missed: list[Event] = []
        for position in sorted(filter(lane.has_loaded, under_way)):
            batch = await self._read_batch(lane, (position - 1, BEHIND))
            missed += [
                event
                for at, event in batch.events
                if at == position
                and subscription.session_id in (None, event.session_id)
                and (at, event) not in lane.coming
                and not isinstance(event, Gap)
                and not self._is_for_hook(lane, event)
            ]
        return missed

    # Reading.

    async def read(self) -> int:
        """Deliver everything below the horizon, and return the horizon."""
        async with self._reading:
            await self._let_join()
            for lane in self._delivery.lanes():
                lane.more = True
            return await self._walk()

    async def read_to(self, position: int, *, patience: float, answer_within: float | None) -> None:
        """Deliver everything up to this position, before the ledger is closed.

        Failures are retried for `patience` seconds; if an answer has to come within some seconds, the first
        failure counts. Subscriptions that cannot be told everything are cut off.
        """
        why = "a transaction elsewhere held back what the ledger tells"
        loop = self._host.check_loop()
        deadline = loop.time() + patience
        for _ in range(_TRIES):
            try:
                async with asyncio.timeout(answer_within):
                    if await self.read() > position:
                        return
            except Exception as exc:
                why = describe(exc)
                complain(exc, "the last events on the ledger could not be read yet")
                if answer_within is not None or loop.time() >= deadline:
                    break
            await asyncio.sleep(_PAUSE)
        complain(None, "subscribers are not told the last of what this process has done: %s", why)
        self._delivery.cut_off(f"the dispatcher was closed before everything was told: {why}")

    async def _walk(self) -> int:
        """Walk the lanes together, by position, as far as the next event of each is known."""
        while lanes := self._delivery.lanes():
            for lane in lanes:
                if lane.more and not lane.coming:
                    await self._load(lane)
            if self.joining:
                await self._let_join()
                continue
            lane = min(lanes, key=Lane.next)
            while lane.coming:
                self._deliver_next(lane)
                if lane.more and not lane.coming:
                    break
                lane = min(lanes, key=Lane.next)
            else:
                self._delivery.open_gates(lane.horizon)
                self.hooked = {run_id: at for run_id, at in self.hooked.items() if at >= lane.horizon}
                return lane.horizon
        return _EVERYTHING

    async def _load(self, lane: Lane) -> None:
        batch = await self._read_batch(lane, lane.at)
        if lane.at < batch.purged:
            self._delivery.cut_off_purged(lane, batch.purged[0])
        lane.load(batch)

    async def _read_batch(self, lane: Lane, after: Place) -> Batch:
        if lane is self._delivery.completes:
            purged, horizon, finished = await self._ledger.finished(after, _PAGE)
            events: list[tuple[int, Event | Gap]] = [(each.position, each.complete) for each in finished]
            end, more = [each[:2] for each in finished[-1:]], len(finished) == _PAGE
        else:
            purged, horizon, told = await self._ledger.told(after, _PAGE)
            events = await self._events_of(told)
            end, more = [each[:2] for each in told[-1:]], len(told) == _PAGE
        return Batch(events, horizon, purged, max([after, purged, *end]), more)

    async def _events_of(self, told: list[Told]) -> list[tuple[int, Event | Gap]]:
        """Return the moves and RunCompletes of these steps."""
        entries = [(step, entry) for step in told for entry in step.entries]
        completed = [entry["run"] for _, entry in entries if entry["event"] == "complete"]
        found = await self._ledger.find(completed) if completed else []
        known = {each.row.run_id: each.complete for each in found}
        return [
            (
                step.position,
                (known.get(entry["run"]) or Gap(step.session_id, entry["run"]))
                if entry["event"] == "complete"
                else moved(entry),
            )
            for step, entry in entries
        ]

    def _deliver_next(self, lane: Lane) -> None:
        position, event = lane.coming.popleft()
        if self._is_for_hook(lane, event):
            return
        try:
            self._delivery.deliver(lane, event, position)
        except BaseException as exc:
            deal_with(exc, "delivering an event raised")

    # Hooks.

    def on_hooked(self, run_id: str, position: int) -> None:
        """Remember that a hook of this process has received the RunComplete that is at this position."""
        if self.task is not None:
            self.hooked[run_id] = position

    def _is_for_hook(self, lane: Lane, event: Event | Gap) -> bool:
        """Say whether a hook of this process receives the RunComplete, so that the lane does not."""
        if lane is self._delivery.moves:
            return False
        assert event.run_id is not None
        return event.run_id in self.hooked or self._host.has_hook(event.run_id)
